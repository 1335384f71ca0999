//! The door over real sockets, with a gateway that is only played.

use std::future::Future;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::task::{LocalSet, yield_now};

use super::*;
use crate::fake::FakeFront;

/// How long anything may take that should happen at once.
const SOON: Duration = Duration::from_secs(20);

const HELLO: &str = r#"{"xy":"hello","protocol":1,"view":{"profile":"default"}}"#;

const MEGABYTE: usize = 1024 * 1024;

/// A door with a played gateway behind it.
struct World {
    home: tempfile::TempDir,
    front: Rc<FakeFront>,
    leave: watch::Sender<bool>,
    renew: mpsc::Sender<std::os::unix::net::UnixListener>,
}

/// Changes what a door keeps to.
fn as_it_is(_: &mut LocalListener) {}

/// Plays a story at an open door; at its end no conversation may be left open.
async fn at_the_door(change: impl FnOnce(&mut LocalListener), story: impl AsyncFnOnce(&World)) {
    let play = async {
        let home = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(home.path().join("s")).unwrap();
        let front = Rc::new(FakeFront::default());
        let own_uid = rustix::process::geteuid().as_raw();
        let large = LargeReader::default();
        let mut door =
            LocalListener { front: Rc::clone(&front) as _, own_uid, most_clients: 8, large };
        change(&mut door);
        let (leave, leaving) = watch::channel(false);
        let (renew, again) = mpsc::channel(1);
        let serving =
            tokio::task::spawn_local(async move { door.serve(listener, again, leaving).await });
        let world = World { home, front, leave, renew };
        story(&world).await;
        world.leave.send_replace(true);
        within(serving).await.unwrap();
        assert!(
            world.front.conversations().iter().all(|client_session| client_session.is_closed())
        );
    };
    LocalSet::new().run_until(play).await;
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(SOON, future).await.expect("it happens soon")
}

async fn wait_until(is_so: impl Fn() -> bool) {
    within(async {
        while !is_so() {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

impl World {
    async fn newcomer(&self) -> Client {
        let stream = UnixStream::connect(self.home.path().join("s")).await.unwrap();
        Client(BufReader::new(stream))
    }

    async fn client(&self) -> Client {
        let mut client = self.newcomer().await;
        client.send(HELLO).await;
        assert_eq!(client.line().await, r#"{"xy":"welcome","protocol":1}"#);
        client
    }
}

struct Client(BufReader<UnixStream>);

impl Client {
    async fn send(&mut self, line: &str) {
        within(self.0.write_all(format!("{line}\n").as_bytes())).await.unwrap();
    }

    async fn call(&mut self, id: u64, method: &str) {
        self.send(&call(id, method)).await;
    }

    /// The next line; empty at the end.
    async fn line(&mut self) -> String {
        let mut line = String::new();
        within(self.0.read_line(&mut line)).await.unwrap();
        line.trim_end_matches('\n').to_owned()
    }

    /// Why it is not let in, after which the door hangs up.
    async fn refusal(&mut self) -> String {
        let line = self.line().await;
        let Ok(Answer::Refused { message, .. }) = serde_json::from_str(&line) else {
            panic!("it is let in: {line}");
        };
        assert!(self.is_hung_up_on().await);
        message
    }

    /// Whether there is nothing more to read.
    async fn is_hung_up_on(&mut self) -> bool {
        let mut rest = Vec::new();
        // What was sent and is not read at the other end makes it a reset.
        let _ = within(self.0.read_to_end(&mut rest)).await;
        rest.is_empty()
    }
}

fn call(id: u64, method: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":[1]}}"#)
}

#[tokio::test]
async fn a_door_that_was_lost_opens_again_and_who_is_inside_stays() {
    at_the_door(as_it_is, async |world| {
        let mut before = world.client().await;
        let path = world.home.path().join("s");
        std::fs::remove_file(&path).unwrap();
        let another = std::os::unix::net::UnixListener::bind(&path).unwrap();
        world.renew.send(another).await.unwrap();
        let mut after = world.client().await;
        for client in [&mut before, &mut after] {
            client.call(1, "m").await;
        }
        wait_until(|| world.front.conversations().len() == 2).await;
    })
    .await;
}

#[tokio::test]
async fn what_is_asked_is_answered_line_by_line() {
    at_the_door(as_it_is, async |world| {
        let mut client = world.client().await;
        client.call(1, "tell").await;
        assert!(client.line().await.contains("told"));
        assert!(client.line().await.contains(r#""id":1"#));
        client.send("nonsense").await;
        assert_eq!(client.line().await, r#"{"no":-32700}"#);
        client.call(2, "cancelled").await;
        client.call(3, "echo").await;
        assert!(client.line().await.contains(r#""id":3"#));
    })
    .await;
}

#[tokio::test]
async fn a_message_with_line_breaks_in_it_is_one_line() {
    at_the_door(as_it_is, async |world| {
        let mut client = world.client().await;
        world.front.newest().say("{\r\n\"a\":\n1}", Route::Broadcast);
        assert_eq!(client.line().await, r#"{  "a": 1}"#);
    })
    .await;
}

#[tokio::test]
async fn a_client_need_not_wait_for_its_welcome() {
    at_the_door(as_it_is, async |world| {
        let mut client = world.newcomer().await;
        client.send(&format!("{HELLO}\n{}", call(1, "echo"))).await;
        assert!(client.line().await.contains("welcome"));
        assert!(client.line().await.contains(r#""id":1"#));
    })
    .await;
}

#[tokio::test]
async fn messages_keep_their_order_behind_a_large_one() {
    at_the_door(as_it_is, async |world| {
        let (mut client, mut other) = (world.client().await, world.client().await);
        let client_session = world.front.conversations()[0].clone();
        let keys: Vec<String> = (0..LARGE / 8).map(|key| format!("\"k{key}\":1")).collect();
        let keys = keys.join(",");
        let large = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"large","params":{{{keys}}}}}"#);
        // In one write, so that the small ones are there when the large one is read.
        let (next, broken) = (call(2, "next"), format!("{{{keys}"));
        client.send(&[&large, &next, &broken, &next].map(String::as_str).join("\n")).await;
        other.call(7, "echo").await;
        assert!(other.line().await.contains("\"id\":7"), "others are served meanwhile");
        assert!(client.line().await.starts_with(r#"{"jsonrpc":"2.0","id":1,"result""#));
        assert!(client.line().await.starts_with(r#"{"jsonrpc":"2.0","id":2,"result""#));
        assert_eq!(client.line().await, r#"{"no":-32700}"#);
        client.line().await;
        assert_eq!(client_session.methods(), ["large", "next", "next"]);
    })
    .await;
}

#[tokio::test]
async fn who_stops_asking_amid_a_large_answer_still_gets_all_of_it() {
    at_the_door(as_it_is, async |world| {
        let mut client = world.client().await;
        let large = format!("\"{}\"", "1".repeat(8 * MEGABYTE));
        world.front.newest().say(&large, Route::Answer(0));
        let mut begins = [0; 9];
        within(client.0.read_exact(&mut begins)).await.unwrap();
        client.0.get_mut().shutdown().await.unwrap();
        for _ in 0..1000 {
            yield_now().await; // Now the door sees that nothing more will be asked.
        }
        let rest = client.line().await;
        assert_eq!(begins.len() + rest.len(), large.len());
        assert!(client.is_hung_up_on().await);
    })
    .await;
}

#[tokio::test]
async fn who_stops_asking_is_answered_as_long_as_something_is_open() {
    at_the_door(as_it_is, async |world| {
        let mut client = world.client().await;
        let client_session = world.front.newest();
        client_session.is_busy.set(true);
        client.0.get_mut().shutdown().await.unwrap();
        client_session.say("1", Route::Answer(0));
        assert_eq!(client.line().await, "1");
        client_session.say("2", Route::Answer(0));
        assert_eq!(client.line().await, "2");
        client_session.is_busy.set(false);
        assert!(client.is_hung_up_on().await);
    })
    .await;
}

#[tokio::test]
async fn whoever_is_stopped_amid_a_line_leaves_the_rest_of_it_to_the_next() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let ours = Socket::new(ours).unwrap();
    let lines = Lines::default();
    lines.push(&vec![b'1'; 4 * MEGABYTE]);
    while lines.out.borrow().written == 0 {
        tokio::select! {
            biased;
            _ = lines.write(&ours) => panic!("so much cannot be written at once"),
            () = yield_now() => {}
        }
    }
    lines.push(b"2");
    let mut all = vec![0; 4 * MEGABYTE + 3];
    let (written, read) =
        within(async { tokio::join!(lines.write(&ours), theirs.read_exact(&mut all)) }).await;
    assert!(written.is_ok() && read.is_ok());
    assert!(all.ends_with(b"11\n2\n"));
    let out = lines.out.borrow();
    assert_eq!(out.unread(), 0);
    assert!(out.going.capacity() <= READ_BYTES, "nothing is held for what is gone");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_hung_up_on_and_no_other() {
    at_the_door(as_it_is, async |world| {
        let mut other = world.client().await;
        let _client = world.client().await;
        let client_session = world.front.newest();
        let message = "1".repeat(MEGABYTE);
        let most = MOST_UNREAD / MEGABYTE + 8; // What the system holds is unread too.
        for _ in 0..most {
            if !client_session.is_closed() {
                client_session.say(&message, Route::Broadcast);
            }
            yield_now().await;
        }
        wait_until(|| client_session.is_closed()).await;
        other.call(1, "echo").await;
        assert!(other.line().await.contains(r#""id":1"#));
    })
    .await;
}

#[tokio::test]
async fn a_daemon_that_goes_says_so() {
    at_the_door(as_it_is, async |world| {
        let mut client = world.client().await;
        world.leave.send_replace(true);
        assert_eq!(client.line().await, r#"{"xy":"goodbye"}"#);
        assert!(client.is_hung_up_on().await);
    })
    .await;
}

#[tokio::test]
async fn another_users_client_is_refused_before_it_says_anything() {
    at_the_door(
        |door| door.own_uid += 1,
        async |world| {
            let mut client = world.newcomer().await;
            assert!(client.refusal().await.contains("another user"));
            assert!(world.front.conversations().is_empty());
        },
    )
    .await;
}

#[tokio::test]
async fn there_are_only_so_many_clients_but_who_leaves_makes_room() {
    at_the_door(
        |door| door.most_clients = 2,
        async |world| {
            let (first, _second) = (world.client().await, world.newcomer().await);
            let refusal = world.newcomer().await.refusal().await;
            assert!(refusal.starts_with("2 clients are connected"), "{refusal}");
            drop(first);
            let has_left = || world.front.newest().is_closed();
            wait_until(has_left).await;
            world.client().await;
        },
    )
    .await;
}

#[tokio::test]
async fn a_first_line_that_is_no_hello_is_refused() {
    at_the_door(as_it_is, async |world| {
        for (line, why) in [
            ("{}", "not a hello"),
            (HELLO.replace(":1", ":2").as_str(), "revision"),
            (HELLO.replace("default", "none").as_str(), "`none`"),
            (&"x".repeat(MOST_HELLO + 1), "longer than 64 KiB"),
        ] {
            let mut client = world.newcomer().await;
            client.send(line).await;
            let refusal = client.refusal().await;
            assert!(refusal.contains(why), "{refusal}");
        }
    })
    .await;
}

#[test]
fn who_asks_for_a_profile_that_there_is_not_hears_which_there_are() {
    let named = |count: usize| -> Vec<String> {
        (0..count).map(|number| format!("profile-{number:02}")).collect()
    };
    let all = ["default".to_owned(), "work".to_owned()];
    assert_eq!(other_profiles("wrok", &all), "did you mean `work`?");
    let told = other_profiles("zz", &all);
    assert!(told.starts_with("there are `default`, `work`; "), "{told}");
    let told = other_profiles("zz", &named(MOST_PROFILES + 5));
    assert!(told.contains("`profile-09` and 5 more; "), "{told}");
    assert!(other_profiles("zz", &[]).contains("`profiles`"));
}

#[tokio::test]
async fn who_says_nothing_is_refused_after_a_while() {
    at_the_door(as_it_is, async |world| {
        let mut client = world.newcomer().await;
        let mut refusal = std::pin::pin!(client.refusal());
        let refusal = loop {
            tokio::select! {
                refusal = &mut refusal => break refusal,
                () = yield_now() => {}
            }
            tokio::time::pause();
            tokio::time::advance(Duration::from_millis(100)).await;
            tokio::time::resume();
        };
        assert!(refusal.contains("nothing was said"), "{refusal}");
    })
    .await;
}
