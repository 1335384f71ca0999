//! Lives somewhere else, with a speaker whose lines are the test's.

use tokio::time::sleep;
use xy_protocol::server::ServerState;

use super::*;
use crate::fake::{SECOND, remote};
use crate::instance::{InstanceHandle, InstanceKey, Snapshot};
use crate::lifecycle::Event;
use crate::task::{Before, Parts, Task};

/// Hands every line to the test.
struct Switchboard(mpsc::Sender<Line>);

impl Speak for Switchboard {
    fn speak(&self, line: Line) {
        self.0.try_send(line).expect("no test has so many lives");
    }
}

/// A server that lives somewhere else, and whoever is to speak with it.
struct Elsewhere {
    handle: InstanceHandle,
    lines: mpsc::Receiver<Line>,
}

impl Elsewhere {
    fn new() -> Self {
        let (lines_in, lines) = mpsc::channel(100);
        let settings = Arc::new(remote("far"));
        let (task, handle) = Task::new(Parts {
            key: InstanceKey::shared(settings.name.clone()),
            settings,
            wanted: xy_protocol::server::Wanted::Up,
            launcher: Arc::new(RemoteLauncher::new(Arc::new(Switchboard(lines_in)))),
            logs: Arc::new(LogBook::default()),
            changes: tokio::sync::broadcast::channel(100).0,
            before: Before::Nothing,
        });
        tokio::spawn(task.run());
        Self { handle, lines }
    }

    async fn line(&mut self) -> Line {
        self.lines.recv().await.unwrap()
    }

    async fn state(&self, state: ServerState) -> Snapshot {
        self.handle.wait_until(|now| now.state() == state).await
    }

    /// Says something, and hangs up once it is told that it is over.
    async fn say_last(&mut self, said: Said) {
        let mut line = self.line().await;
        line.said.send(said).await.unwrap();
        assert!(matches!(told(&mut line).await, Some(Told::Over(Exit::UNSEEN))));
    }
}

/// What its speaker is told next, but for how it is, which is asked at any time.
async fn told(line: &mut Line) -> Option<Told> {
    loop {
        match line.told.recv().await {
            Some(Told::Checkup(_)) => {}
            told => return told,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn it_runs_once_its_speaker_says_so_and_has_no_process() {
    let mut far = Elsewhere::new();
    let line = far.line().await;
    assert!(matches!(line.way, Way::Endpoint));
    assert!(line.pid.is_none() && line.before.is_none());
    far.state(ServerState::Starting).await;
    line.said.send(Said::Ready).await.unwrap();
    let now = far.state(ServerState::Running).await;
    assert_eq!((now.pid, now.last_exit), (None, None));
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_be_reached_is_tried_again_after_a_while_and_is_back() {
    let mut far = Elsewhere::new();
    let began = Instant::now();
    for _ in 0..8 {
        far.say_last(Said::Unreachable("connection refused".into())).await;
        let now = far.state(ServerState::Restarting).await;
        assert_eq!(now.life.reason.to_string(), "connection refused");
        assert!(now.life.is_unreachable());
    }
    let line = far.line().await;
    assert_eq!(began.elapsed().as_secs(), 1 + 2 + 4 + 8 + 16 + 32 + 60 + 60);
    line.said.send(Said::Ready).await.unwrap();
    let now = far.state(ServerState::Running).await;
    assert!(!now.life.is_unreachable());
    assert_eq!((now.life.tally.restart_count, now.last_exit), (0, None));
}

#[tokio::test(start_paused = true)]
async fn one_that_was_there_and_is_not_any_more_is_tried_again() {
    let mut far = Elsewhere::new();
    let line = far.line().await;
    line.said.send(Said::Ready).await.unwrap();
    far.state(ServerState::Running).await;
    line.said.send(Said::Unreachable("broken pipe".into())).await.unwrap();
    drop(line);
    far.state(ServerState::Restarting).await;
    far.line().await;
}

#[tokio::test(start_paused = true)]
async fn one_that_refuses_is_given_up_at_once() {
    for said in [Said::Hopeless("401".into()), Said::Unfit("it speaks gibberish".into())] {
        let mut far = Elsewhere::new();
        far.say_last(said).await;
        far.state(ServerState::Failed).await;
        sleep(3600 * SECOND).await;
        assert!(far.lines.try_recv().is_err(), "it is left alone");
        far.handle.request(Event::StartRequested).await.unwrap();
        far.line().await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_is_not_ready_in_time_is_unreachable() {
    let mut far = Elsewhere::new();
    let mut line = far.line().await;
    assert!(matches!(told(&mut line).await, Some(Told::Close { .. })));
    drop(line);
    let now = far.state(ServerState::Restarting).await;
    assert_eq!(now.life.reason.to_string(), "no answer within 10s");
}

#[tokio::test(start_paused = true)]
async fn a_speaker_that_hangs_up_or_never_does_harms_nobody() {
    let mut far = Elsewhere::new();
    drop(far.line().await);
    let now = far.state(ServerState::Restarting).await;
    assert_eq!(now.life.reason.to_string(), HUNG_UP);
    let held = far.line().await;
    far.handle.request(Event::StopRequested).await.unwrap();
    let began = Instant::now();
    far.state(ServerState::Stopped).await;
    assert_eq!(began.elapsed(), HANG_UP_WITHIN);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_stop_and_a_start_are_a_new_life() {
    let mut far = Elsewhere::new();
    let mut line = far.line().await;
    line.said.send(Said::Ready).await.unwrap();
    far.state(ServerState::Running).await;
    far.handle.request(Event::RestartRequested).await.unwrap();
    assert!(matches!(told(&mut line).await, Some(Told::Close { .. })));
    assert!(matches!(told(&mut line).await, Some(Told::Over(Exit::UNSEEN))));
    assert!(far.lines.try_recv().is_err(), "not before the line is hung up");
    drop(line);
    let line = far.line().await;
    line.said.send(Said::Ready).await.unwrap();
    let now = far.state(ServerState::Running).await;
    assert_eq!(now.last_exit, None, "nothing has ended");
}

#[tokio::test(start_paused = true)]
async fn it_is_let_go_and_its_speaker_may_take_its_time_but_not_for_ever() {
    for answers in [true, false] {
        let mut far = Elsewhere::new();
        let mut line = far.line().await;
        let (handle, began) = (far.handle.clone(), Instant::now());
        let letting_go = tokio::spawn(async move { handle.let_go().await });
        let Some(Told::LetGo(answer)) = told(&mut line).await else { panic!("it is not let go") };
        if answers {
            answer.send(Vec::new()).unwrap();
        } else {
            std::mem::forget(answer);
        }
        letting_go.await.unwrap();
        let waited = if answers { Duration::ZERO } else { HANG_UP_WITHIN };
        assert_eq!(began.elapsed(), waited);
    }
}

#[tokio::test(start_paused = true)]
async fn its_speaker_is_told_when_nobody_holds_it_any_more() {
    let mut far = Elsewhere::new();
    let mut line = far.line().await;
    drop(far.handle);
    assert!(matches!(told(&mut line).await, Some(Told::Close { .. })));
    assert!(matches!(told(&mut line).await, Some(Told::Over(_))));
    assert!(told(&mut line).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn what_it_says_that_is_no_message_is_in_its_log_until_the_daemon_ends() {
    let mut far = Elsewhere::new();
    let line = far.line().await;
    let long = "x".repeat(MAX_LINE + 1);
    line.said.send(Said::Stray(b"one\r\n\ntwo".to_vec())).await.unwrap();
    line.said.send(Said::Stray(long.clone().into_bytes())).await.unwrap();
    line.said.send(Said::Ready).await.unwrap();
    far.state(ServerState::Running).await;
    let (lines, _) = far.handle.logs().tail(10);
    let said: Vec<_> = lines.iter().map(|line| String::from_utf8_lossy(&line.bytes)).collect();
    assert_eq!(said, ["one", "", "two", &long[1..], "x"]);
    assert!(lines.iter().all(|line| line.is_stderr));
    assert_eq!(lines.iter().filter(|line| line.continued).count(), 1);
    assert_eq!(far.handle.logs().next_seq(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_write_needs_no_shim() {
    let mut far = Elsewhere::new();
    let line = far.line().await;
    let (known, is_known) = oneshot::channel();
    line.said.send(Said::WriteBegins(known)).await.unwrap();
    is_known.await.unwrap();
    line.said.send(Said::WriteEnds).await.unwrap();
    line.said.send(Said::Note("era".into())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_in_confidence_is_not_told() {
    let mut far = Elsewhere::new();
    let why = "cannot GET https://example.com/mcp?key=s3cret with Bearer s3cret\nsecond line";
    far.say_last(Said::Unreachable(why.into())).await;
    let now = far.state(ServerState::Restarting).await;
    assert_eq!(now.life.reason.to_string(), "cannot GET https://example.com/mcp?… with …");
    assert!(!format!("{now:?}").contains("s3cret"));
}
