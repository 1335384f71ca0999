//! Remote instances with a driver whose connections the test holds.

use tokio::time::sleep;
use xy_protocol::server::ServerState;

use super::*;
use crate::fake::{SECOND, remote};
use crate::instance::{InstanceHandle, InstanceKey, Snapshot};
use crate::lifecycle::Event;
use crate::task::{Origin, Parts, Task};

/// Passes every connection to the test.
struct ConnectionSender(mpsc::Sender<Connection>);

impl ProtocolDriver for ConnectionSender {
    fn drive(&self, line: Connection) {
        self.0.try_send(line).expect("no test has so many lives");
    }
}

/// A remote server, and the connections of its driver.
struct RemoteServer {
    handle: InstanceHandle,
    lines: mpsc::Receiver<Connection>,
}

impl RemoteServer {
    fn new() -> Self {
        let (lines_in, lines) = mpsc::channel(100);
        let settings = Arc::new(remote("far"));
        let (task, handle) = Task::new(Parts {
            key: InstanceKey::shared(settings.name.clone()),
            settings,
            wanted: xy_protocol::server::Wanted::Up,
            launcher: Arc::new(RemoteLauncher::new(Arc::new(ConnectionSender(lines_in)))),
            logs: Arc::new(LogBook::default()),
            changes: tokio::sync::broadcast::channel(100).0,
            origin: Origin::New,
        });
        tokio::spawn(task.run());
        Self { handle, lines }
    }

    async fn line(&mut self) -> Connection {
        self.lines.recv().await.unwrap()
    }

    async fn state(&self, state: ServerState) -> Snapshot {
        self.handle.wait_until(|now| now.state() == state).await
    }

    /// Sends a last event, and drops the connection once the driver is told of the end.
    async fn send_last(&mut self, event: DriverEvent) {
        let mut line = self.line().await;
        line.events.send(event).await.unwrap();
        assert!(matches!(
            next_command(&mut line).await,
            Some(DriverCommand::Exited(Exit::UNKNOWN))
        ));
    }
}

/// Returns the next command, skipping checkups, which come at any time.
async fn next_command(connection: &mut Connection) -> Option<DriverCommand> {
    loop {
        match connection.commands.recv().await {
            Some(DriverCommand::Checkup(_)) => {}
            next_command => return next_command,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn remote_server_runs_without_process_once_ready() {
    let mut far = RemoteServer::new();
    let line = far.line().await;
    assert!(matches!(line.io, ServerIo::Endpoint));
    assert!(line.pid.is_none() && line.handover.is_none());
    far.state(ServerState::Starting).await;
    line.events.send(DriverEvent::Ready).await.unwrap();
    let now = far.state(ServerState::Running).await;
    assert_eq!((now.pid, now.last_exit), (None, None));
}

#[tokio::test(start_paused = true)]
async fn unreachable_server_is_retried_with_back_off() {
    let mut far = RemoteServer::new();
    let began = Instant::now();
    for _ in 0..8 {
        far.send_last(DriverEvent::Unreachable("connection refused".into())).await;
        let now = far.state(ServerState::Restarting).await;
        assert_eq!(now.life.reason.to_string(), "connection refused");
        assert!(now.life.is_unreachable());
    }
    let line = far.line().await;
    assert_eq!(began.elapsed().as_secs(), 1 + 2 + 4 + 8 + 16 + 32 + 60 + 60);
    line.events.send(DriverEvent::Ready).await.unwrap();
    let now = far.state(ServerState::Running).await;
    assert!(!now.life.is_unreachable());
    assert_eq!((now.life.tally.restart_count, now.last_exit), (0, None));
}

#[tokio::test(start_paused = true)]
async fn lost_server_is_retried() {
    let mut far = RemoteServer::new();
    let line = far.line().await;
    line.events.send(DriverEvent::Ready).await.unwrap();
    far.state(ServerState::Running).await;
    line.events.send(DriverEvent::Unreachable("broken pipe".into())).await.unwrap();
    drop(line);
    far.state(ServerState::Restarting).await;
    far.line().await;
}

#[tokio::test(start_paused = true)]
async fn refusing_server_fails_at_once() {
    for event in [
        DriverEvent::Unrecoverable("401".into()),
        DriverEvent::ProtocolError("it speaks gibberish".into()),
    ] {
        let mut far = RemoteServer::new();
        far.send_last(event).await;
        far.state(ServerState::Failed).await;
        sleep(3600 * SECOND).await;
        assert!(far.lines.try_recv().is_err(), "it is left alone");
        far.handle.request(Event::StartRequested).await.unwrap();
        far.line().await;
    }
}

#[tokio::test(start_paused = true)]
async fn server_not_ready_in_time_is_unreachable() {
    let mut far = RemoteServer::new();
    let mut line = far.line().await;
    assert!(matches!(next_command(&mut line).await, Some(DriverCommand::Close { .. })));
    drop(line);
    let now = far.state(ServerState::Restarting).await;
    assert_eq!(now.life.reason.to_string(), "no answer within 10s");
}

#[tokio::test(start_paused = true)]
async fn driver_that_hangs_up_or_stays_is_tolerated() {
    let mut far = RemoteServer::new();
    drop(far.line().await);
    let now = far.state(ServerState::Restarting).await;
    assert_eq!(now.life.reason.to_string(), CONNECTION_DROPPED);
    let held = far.line().await;
    far.handle.request(Event::StopRequested).await.unwrap();
    let began = Instant::now();
    far.state(ServerState::Stopped).await;
    assert_eq!(began.elapsed(), CLOSE_TIMEOUT);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn restart_opens_new_connection() {
    let mut far = RemoteServer::new();
    let mut line = far.line().await;
    line.events.send(DriverEvent::Ready).await.unwrap();
    far.state(ServerState::Running).await;
    far.handle.request(Event::RestartRequested).await.unwrap();
    assert!(matches!(next_command(&mut line).await, Some(DriverCommand::Close { .. })));
    assert!(matches!(next_command(&mut line).await, Some(DriverCommand::Exited(Exit::UNKNOWN))));
    assert!(far.lines.try_recv().is_err(), "not before the line is hung up");
    drop(line);
    let line = far.line().await;
    line.events.send(DriverEvent::Ready).await.unwrap();
    let now = far.state(ServerState::Running).await;
    assert_eq!(now.last_exit, None, "nothing has ended");
}

#[tokio::test(start_paused = true)]
async fn handover_waits_for_driver_within_limit() {
    for answers in [true, false] {
        let mut far = RemoteServer::new();
        let mut line = far.line().await;
        let (handle, began) = (far.handle.clone(), Instant::now());
        let letting_go = tokio::spawn(async move { handle.hand_over().await });
        let Some(DriverCommand::HandOver(answer)) = next_command(&mut line).await else {
            panic!("it is not let go")
        };
        if answers {
            answer.send(Vec::new()).unwrap();
        } else {
            std::mem::forget(answer);
        }
        letting_go.await.unwrap();
        let waited = if answers { Duration::ZERO } else { CLOSE_TIMEOUT };
        assert_eq!(began.elapsed(), waited);
    }
}

#[tokio::test(start_paused = true)]
async fn driver_is_closed_when_handle_is_dropped() {
    let mut far = RemoteServer::new();
    let mut line = far.line().await;
    drop(far.handle);
    assert!(matches!(next_command(&mut line).await, Some(DriverCommand::Close { .. })));
    assert!(matches!(next_command(&mut line).await, Some(DriverCommand::Exited(_))));
    assert!(next_command(&mut line).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn unparsed_output_is_logged_in_memory() {
    let mut far = RemoteServer::new();
    let line = far.line().await;
    let long = "x".repeat(MAX_LINE + 1);
    line.events.send(DriverEvent::UnparsedOutput(b"one\r\n\ntwo".to_vec())).await.unwrap();
    line.events.send(DriverEvent::UnparsedOutput(long.clone().into_bytes())).await.unwrap();
    line.events.send(DriverEvent::Ready).await.unwrap();
    far.state(ServerState::Running).await;
    let (lines, _) = far.handle.logs().tail(10);
    let event: Vec<_> = lines.iter().map(|line| String::from_utf8_lossy(&line.bytes)).collect();
    assert_eq!(event, ["one", "", "two", &long[1..], "x"]);
    assert!(lines.iter().all(|line| line.is_stderr));
    assert_eq!(lines.iter().filter(|line| line.continued).count(), 1);
    assert_eq!(far.handle.logs().next_seq(), 6);
}

#[tokio::test(start_paused = true)]
async fn write_marks_are_acknowledged_without_shim() {
    let mut far = RemoteServer::new();
    let line = far.line().await;
    let (known, is_known) = oneshot::channel();
    line.events.send(DriverEvent::WriteBegins(known)).await.unwrap();
    is_known.await.unwrap();
    line.events.send(DriverEvent::WriteEnds).await.unwrap();
    line.events.send(DriverEvent::Note("era".into())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn secrets_are_redacted_from_reasons() {
    let mut far = RemoteServer::new();
    let why = "cannot GET https://example.com/mcp?key=s3cret with Bearer s3cret\nsecond line";
    far.send_last(DriverEvent::Unreachable(why.into())).await;
    let now = far.state(ServerState::Restarting).await;
    assert_eq!(now.life.reason.to_string(), "cannot GET https://example.com/mcp?… with …");
    assert!(!format!("{now:?}").contains("s3cret"));
}
