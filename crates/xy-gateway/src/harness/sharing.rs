//! One process under two names: whose calls wait, are lost, and find their next process.

use xy_protocol::server::Wanted;
use xy_supervisor::fleet::Member;

use super::*;
use crate::catalog::{Item, Kind, Known, Lists};
use crate::upstream::Cause;

/// A gateway whose server `s` has the name `t` too.
struct Names {
    play: Harness,
    alias: Rc<Backend>,
}

impl Names {
    async fn begin() -> Self {
        let play = Harness::begin().await;
        let alias = play.router.server_of(&member("t", None, Wanted::Up).settings);
        let names = Self { play, alias };
        names.are(&[member("s", None, Wanted::Up), member("t", Some("s"), Wanted::Up)]);
        let tool = |name: &str, is_read_only: bool| {
            let hints = json!({ "readOnlyHint": is_read_only });
            let tool = json!({ "name": name, "inputSchema": {}, "annotations": hints });
            Item::read(Kind::Tools, &tool.to_string()).unwrap()
        };
        let mut lists = Lists::default();
        lists.set(Kind::Tools, vec![tool("x", false), tool("look", true)]);
        let Harness { router, server, upstream, .. } = &names.play;
        router.learn(server, upstream, Known::new("s", legacy(), lists));
        names
    }

    /// These are the names of processes from now on.
    fn are(&self, members: &[Member]) {
        let named = members.iter().map(|it| (it.settings.name.clone(), it.clone()));
        self.play.router.set_owners(&named.collect());
    }

    /// The process has ended; nobody comes after it yet.
    fn end(&self) {
        let Harness { router, server, upstream, .. } = &self.play;
        upstream.close(Cause::end("`s` has ended"));
        router.over(server, upstream, "`s` has ended");
    }

    /// How many wait under each name.
    fn waiting(&self) -> [usize; 2] {
        let count = |it: &Backend| it.counts.waiting.load(std::sync::atomic::Ordering::Relaxed);
        [count(&self.play.server), count(&self.alias)]
    }
}

fn member(name: &str, owner: Option<&str>, wanted: Wanted) -> Member {
    let named = |text: &str| ServerName::new(text).unwrap();
    let share_key = Some("k".to_owned());
    let settings = settings(CallRules::default());
    let settings = Arc::new(ServerSettings { name: named(name), share_key, ..settings });
    Member {
        settings,
        wanted,
        owner: owner.map(named),
        instances: BTreeMap::new(),
        last_failed: None,
        is_failing: false,
    }
}

fn call(client: &Visitor, tool: &str) {
    client.ask(&json!(tool), "tools/call", &json!({ "name": tool, "arguments": tool }));
}

#[tokio::test(start_paused = true)]
async fn who_waits_under_a_name_that_is_stopped_is_told_and_the_others_go_on() {
    here(async {
        let names = Names::begin().await;
        let client = names.play.client(&json!({}));
        names.end();
        call(&client, "s__look");
        call(&client, "t__look");
        assert_eq!(names.waiting(), [1, 1]);
        names.are(&[member("s", None, Wanted::Up), member("t", Some("s"), Wanted::Down)]);
        assert!(client.error().starts_with("`t` is not running: it was stopped"));
        assert_eq!(names.waiting(), [1, 0]);
        call(&client, "t__look");
        assert!(client.error().contains("`xy start t`"));
        names.are(&[member("s", None, Wanted::Down), member("t", Some("s"), Wanted::Up)]);
        assert!(client.error().starts_with("`s` is not running: it was stopped"));
        call(&client, "t__look");
        assert_eq!(names.waiting(), [0, 1]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_waits_or_is_lost_goes_to_the_next_process_of_its_name() {
    here(async {
        let names = Names::begin().await;
        let client = names.play.client(&json!({}));
        for tool in ["t__look", "t__x", "s__look"] {
            call(&client, tool);
        }
        assert_eq!(names.play.calls().len(), 3, "all are written");
        // The owner leaves while they are with it.
        let Harness { router, server, .. } = &names.play;
        names.are(&[member("t", None, Wanted::Up)]);
        server.is_removed.set(true);
        router.remove(server);
        names.end();
        let heard = client.heard();
        let told = |id: &str| {
            let answer = heard.iter().find(|it| it["id"] == id);
            answer.map(|it| text(&it["error"]["message"])).unwrap_or_default()
        };
        assert_eq!(told("t__look"), "", "it is asked again");
        assert!(told("t__x").starts_with("outcome unknown: `t` has ended"), "{heard:?}");
        assert!(told("s__look").contains("`s`"), "{heard:?}");
        assert_eq!(names.alias.waiting(), 1);
        let (said, _heard) = mpsc::channel(64);
        let sent = Rc::new(Sent::default());
        life(router, &names.alias, said, sent.clone(), false, &legacy()).await;
        let sent: Vec<Value> =
            sent.messages.take().iter().map(|it| serde_json::from_slice(it).unwrap()).collect();
        assert_eq!(sent.last().unwrap()["params"]["name"], "look", "{sent:?}");
    })
    .await;
}
