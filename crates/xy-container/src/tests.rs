//! Instances of containers, with a scripted engine.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep};
use xy_config::settings::{ContainerSettings, Pull, ServerKind, ServerSettings};
use xy_protocol::server::Wanted;
use xy_supervisor::instance::InstanceKey;
use xy_supervisor::launch::home::home_id;
use xy_supervisor::launch::{
    Launch, LaunchOrder, LifeCommand, LifeEvent, LifeHandle, Progress, Shims,
};
use xy_supervisor::lifecycle::{Life, Note, Oom, Reason, State, Tally};
use xy_supervisor::logs::LogBook;
use xy_supervisor::logs::history::History;
use xy_supervisor::protocol::{Connection, ProtocolDriver, ServerIo};

use self::fake::{Fake, Fetch, frame};
use self::settings::container_settings;
use crate::create;
use crate::engine::Engine;
use crate::engines::Engines;
use crate::launcher::ContainerLauncher;
use crate::log_gap::{self, OutputPosition, ResumePoint};
use crate::owned_names::OwnedNames;
use crate::shared::SharedState;

pub(crate) mod fake;
pub(crate) mod settings;

/// Keeps every connection for the test.
#[derive(Default)]
struct HeldConnections(Mutex<VecDeque<Connection>>);

impl ProtocolDriver for HeldConnections {
    fn drive(&self, line: Connection) {
        self.0.lock().unwrap().push_back(line);
    }
}

/// The container side of a daemon.
pub(crate) struct Fixture {
    folder: tempfile::TempDir,
    connections: Arc<HeldConnections>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), connections: Arc::default() }
    }

    pub(crate) fn launcher(&self) -> ContainerLauncher {
        let state_dir = self.folder.path().join("containers");
        std::fs::create_dir_all(&state_dir).unwrap();
        let engines = Engines::load(&state_dir);
        let shared = SharedState {
            home: home_id(&state_dir),
            state_dir,
            logs_dir: self.folder.path().to_owned(),
            driver: self.connections.clone(),
            shims: Shims::new("home"),
            holder_program: None,
            began_at: Instant::now(),
            owned: OwnedNames::default(),
            engines,
        };
        ContainerLauncher { shared: Arc::new(shared) }
    }

    /// Launches a server whose image may have to be fetched.
    fn launch(&self, engine: &Fake, pull: Pull) -> LifeHandle {
        self.launch_with(engine, |container| container.pull = pull)
    }

    fn launch_with(
        &self,
        engine: &Fake,
        change: impl FnOnce(&mut ContainerSettings),
    ) -> LifeHandle {
        self.launch_by(&self.launcher(), engine, change)
    }

    fn launch_by(
        &self,
        launcher: &ContainerLauncher,
        engine: &Fake,
        change: impl FnOnce(&mut ContainerSettings),
    ) -> LifeHandle {
        let mut settings = container_settings("one");
        if let ServerKind::Container(container) = &mut settings.kind {
            container.host = Some(format!("unix://{}", engine.socket.display()));
            container.memory = Some(64 << 20);
            change(container);
        }
        let settings = Arc::new(settings);
        launcher.launch(LaunchOrder {
            key: InstanceKey::shared(settings.name.clone()),
            logs: Arc::new(LogBook::new(History::note(&self.folder.path().join("one.log")))),
            note: note(&settings),
            settings,
        })
    }

    /// Returns the stdout that the protocol driver reads, and the rest of its connection.
    fn stdout(&self) -> (pipe::Receiver, (Connection, OwnedFd)) {
        let mut line =
            self.connections.0.lock().unwrap().pop_front().expect("somebody speaks with it");
        let way = std::mem::replace(&mut line.io, ServerIo::Endpoint);
        let ServerIo::Pipes { stdin, stdout } = way else { panic!("it has pipes") };
        (pipe::Receiver::from_owned_fd(stdout).unwrap(), (line, stdin))
    }
}

/// Returns a note as a task leaves it for the next daemon.
fn note(settings: &Arc<ServerSettings>) -> Vec<u8> {
    let now = Instant::now().into_std();
    let state = State::Running { launched_at: now, ready_at: now };
    let instance =
        Life { state, tally: Tally::default(), wanted: Wanted::Up, reason: Reason::Ready };
    Note::of(&instance, settings, now).to_bytes()
}

/// Returns the events up to the first that matches, without progress reports.
async fn events_until(
    handle: &mut LifeHandle,
    is_it: impl Fn(&LifeEvent) -> bool,
) -> Vec<LifeEvent> {
    let mut all = Vec::new();
    while let Some(event) = handle.events.recv().await {
        let is_last = is_it(&event);
        if is_last || !matches!(event, LifeEvent::Preparing(_) | LifeEvent::Container(_)) {
            all.push(event);
        }
        if is_last {
            break;
        }
    }
    all
}

/// Returns why an instance could not start, and whether that is permanent.
async fn refusal(handle: &mut LifeHandle) -> (String, bool) {
    match events_until(handle, |_| false).await.last() {
        Some(LifeEvent::LaunchFailed(fault)) => (fault.message.clone(), fault.permanent),
        other => panic!("{other:?}"),
    }
}

fn layer(current: i64) -> serde_json::Value {
    let detail = json!({ "current": current, "total": 100 });
    json!({ "id": "a", "status": "Downloading", "progressDetail": detail })
}

fn error(message: &str) -> serde_json::Value {
    json!({ "error": message, "errorDetail": { "message": message } })
}

#[tokio::test]
async fn missing_init_at_create_falls_back() {
    let fixture = Fixture::new();
    let why = r#"container-init binary not found on the host: stat "/nowhere": no such file"#;
    let (engine, _streams) = Fake::start(None, |it| {
        (it.is_podman, it.no_init_made) = (true, Some(why));
    });
    let mut handle = fixture.launch(&engine, Pull::Never);
    let events = events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
    assert_eq!(events, [LifeEvent::Launched { pid: 4711 }]);
    assert_eq!(engine.inits(), [true, false]);
    assert!(!engine.requests().iter().any(|it| it.starts_with("DELETE")), "there was nothing yet");
}

#[tokio::test]
async fn missing_init_at_start_falls_back() {
    let fixture = Fixture::new();
    let why = r#"failed to start: exec: "docker-init": executable file not found in $PATH"#;
    let (engine, _streams) = Fake::start(None, |it| it.no_init = Some(why));
    let mut handle = fixture.launch(&engine, Pull::Never);
    let events = events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
    assert_eq!(events, [LifeEvent::Launched { pid: 4711 }]);
    assert_eq!(engine.inits(), [true, false]);
    let removed = engine.requests().iter().filter(|it| *it == "DELETE /containers/abc").count();
    assert_eq!(removed, 1, "the first one is not left: {:?}", engine.requests());
}

#[tokio::test]
async fn pull_progress_is_reported_in_percent() {
    let fixture = Fixture::new();
    let (engine, _streams) = Fake::start(Some(Fetch::Stalls(vec![layer(45)])), |_| ());
    let mut handle = fixture.launch(&engine, Pull::Missing);
    let what = "pulling example.com/x:1".to_owned();
    let so_far = LifeEvent::Preparing(Progress { what, percent: Some(45) });
    assert_eq!(events_until(&mut handle, |it| *it == so_far).await, [so_far]);
    handle.commands.send(LifeCommand::Kill).await.unwrap();
    let events = events_until(&mut handle, |_| false).await;
    assert!(matches!(events[..], [LifeEvent::Exited(_)]), "a stop ends a fetch: {events:?}");
}

#[tokio::test(start_paused = true)]
async fn stalled_pull_is_given_up() {
    let fixture = Fixture::new();
    let (engine, _streams) = Fake::start(Some(Fetch::Stalls(vec![layer(45)])), |_| ());
    let (why, is_permanent) = refusal(&mut fixture.launch(&engine, Pull::Missing)).await;
    let events = "the image `example.com/x:1` could not be fetched: no progress for 1m";
    assert_eq!((why.as_str(), is_permanent), (events, false));
}

#[tokio::test(start_paused = true)]
async fn endless_pull_is_given_up() {
    let fixture = Fixture::new();
    let (engine, _streams) = Fake::start(Some(Fetch::NeverEnds(layer(45))), |_| ());
    let (why, is_permanent) = refusal(&mut fixture.launch(&engine, Pull::Missing)).await;
    let events = "the image `example.com/x:1` could not be fetched: it took longer than 30m";
    assert_eq!((why.as_str(), is_permanent), (events, false));
}

#[tokio::test]
async fn missing_image_fails_permanently() {
    let fixture = Fixture::new();
    for (says, is_unrecoverable) in [
        ("manifest for example.com/x:1 not found: manifest unknown", true),
        ("error parsing HTTP 404 response body: unexpected end of JSON input: \"\"", true),
        ("initializing source docker://x:1: reading manifest 1 in x: StatusCode: 404, \"\"", true),
        ("dial tcp 127.0.0.1:9: connect: connection refused", false),
    ] {
        let (engine, _streams) = Fake::start(Some(Fetch::Delivers(vec![error(says)])), |_| ());
        let (why, is_permanent) = refusal(&mut fixture.launch(&engine, Pull::Missing)).await;
        assert_eq!(is_permanent, is_unrecoverable, "{why}");
        assert!(why.contains("could not be fetched"), "{why}");
        assert!(engine.inits().is_empty(), "nothing is made");
    }
}

#[tokio::test]
async fn present_image_is_used_if_pull_fails() {
    let fixture = Fixture::new();
    let away = Fetch::Delivers(vec![error("dial tcp 127.0.0.1:9: connect: connection refused")]);
    let (engine, _streams) = Fake::start(Some(away), |_| ());
    engine.add_image();
    let mut handle = fixture.launch(&engine, Pull::Always);
    let events = events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
    assert_eq!(events, [LifeEvent::Launched { pid: 4711 }]);
    assert!(engine.requests().contains(&"POST /images/create".to_owned()));
}

#[tokio::test]
async fn stop_works_during_reattach() {
    let fixture = Fixture::new();
    let (engine, mut streams) = Fake::start(None, |_| ());
    engine.limit_streams(1);
    let mut handle = fixture.launch(&engine, Pull::Never);
    events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
    drop(streams.recv().await); // It is cut, and the next one is never answered.
    engine.wait_for_request("/attach", 2).await;
    let grace = Duration::from_secs(5);
    handle
        .commands
        .send(LifeCommand::Stop { grace, for_good: false, is_hung: false })
        .await
        .unwrap();
    engine.wait_for_request("/stop", 1).await;
    drop(fixture.connections.0.lock().unwrap().pop_front()); // The protocol driver drops its connection.
    let events = events_until(&mut handle, |_| false).await;
    assert!(matches!(events[..], [LifeEvent::Exited(_)]), "nothing else came first: {events:?}");
}

#[tokio::test(start_paused = true)]
async fn missed_output_is_whole_for_slow_reader() {
    let fixture = Fixture::new();
    let (engine, mut streams) = Fake::start(None, |_| ());
    let mut handle = fixture.launch(&engine, Pull::Never);
    events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
    let (mut stdout, _rest) = fixture.stdout();
    let message = [vec![b'x'; 1 << 20], b"\n".to_vec()].concat(); // Much more than a pipe holds.
    engine.said.lock().unwrap().clone_from(&message);
    drop(streams.recv().await);
    let mut second = streams.recv().await.unwrap();
    sleep(Duration::from_secs(60)).await; // Meanwhile, `stdout` is not read.
    second.write_all(&frame(b"next\n")).await.unwrap();
    let mut read = vec![0; message.len() + 5];
    stdout.read_exact(&mut read).await.unwrap();
    assert!(read == [message, b"next\n".to_vec()].concat(), "it was torn");
    drop(handle);
}

#[tokio::test]
async fn log_is_read_only_up_to_taken_output() {
    let (fake, _streams) = Fake::start(None, |it| it.is_podman = true);
    *fake.said.lock().unwrap() = b"one\ntwo\nthree\n".to_vec();
    let engine = Engine::at(&fake.socket).await.unwrap();
    let position = OutputPosition { out: 4, ..OutputPosition::default() };
    let read = async |until| log_gap::read_out(&engine, "abc", position, until).await;
    assert_eq!(read(4).await.unwrap(), b"");
    assert!(fake.requests().is_empty(), "nothing was taken, so nothing is read");
    assert_eq!(read(6).await.unwrap(), b"tw");
    assert_eq!(read(14).await.unwrap(), b"two\nthree\n");
    assert!(read(15).await.is_err(), "what is not kept cannot be made good");
    assert_eq!(log_gap::read(&engine, "abc", position).await.unwrap().out, b"two\nthree\n");
    let rotated = OutputPosition { out: 20, ..OutputPosition::default() };
    let read = log_gap::read(&engine, "abc", rotated).await.unwrap();
    assert_eq!(read.gaps, [true, false], "less is kept than was heard");
}

#[tokio::test]
async fn output_is_resumed_by_known_tail_after_engine_log_rotation() {
    let (fake, _streams) = Fake::start(None, |_| ());
    let lines: Vec<String> = (100_000..200_000).map(|it| format!("line {it}\n")).collect();
    let said = lines.concat();
    // The engine has discarded the rest.
    *fake.said.lock().unwrap() = said.as_bytes()[500_000..].to_vec();
    let engine = Engine::at(&fake.socket).await.unwrap();
    let events_until = 1_100_000;
    let known =
        [Some(said.as_bytes()[events_until - 4096..events_until].to_vec()), Some(Vec::new())];
    // Much more output came before, without a pause.
    let position = OutputPosition { out: 50_000_000, ..OutputPosition::default() };
    let read =
        log_gap::read_after(&engine, "abc", ResumePoint { position, tails: &known }).await.unwrap();
    assert!(read.out == said.as_bytes()[events_until..] && read.err.is_empty());
    let until = [position.out + 12, 0];
    let (some, is_all) =
        log_gap::read_some(&engine, "abc", ResumePoint { position, tails: &known }, until)
            .await
            .unwrap();
    assert_eq!(
        (some.out.as_slice(), is_all),
        (&said.as_bytes()[events_until..events_until + 12], [true; 2])
    );
    // A gap in one stream does not cost the other.
    let [out, err] = known;
    let other = Some(vec![b'x'; 4096]);
    let known = &[other.clone(), err];
    let read =
        log_gap::read_after(&engine, "abc", ResumePoint { position, tails: known }).await.unwrap();
    assert_eq!((read.out.len(), read.gaps), (0, [true, false]));
    for err in [other, None] {
        let position = OutputPosition { err: 50_000_000, ..position };
        let known = &[out.clone(), err];
        let read = log_gap::read_after(&engine, "abc", ResumePoint { position, tails: known })
            .await
            .unwrap();
        assert!(read.out == said.as_bytes()[events_until..]);
        assert_eq!(read.gaps, [false, true]);
        assert!(log_gap::tolerate_gaps(Ok(read), true, &"one").is_ok(), "stderr is not awaited");
    }
}

#[tokio::test]
async fn out_of_memory_kill_is_reported_after_adoption() {
    for is_podman in [false, true] {
        let fixture = Fixture::new();
        let (engine, _streams) = Fake::start(None, |it| it.is_podman = is_podman);
        let mut handle = fixture.launch(&engine, Pull::Never);
        events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
        handle.commands.send(LifeCommand::HandOver).await.unwrap();
        drop(fixture.connections.0.lock().unwrap().pop_front());
        events_until(&mut handle, |_| false).await;
        engine.exit(137, true);
        let (mut adopted, _) = fixture.launcher().adopt_all().await;
        let adopted = adopted.pop().expect("it is known");
        assert!(!adopted.status.torn, "its end was its own");
        let report = &adopted.status.exited.as_ref().expect("it has ended").report;
        assert_eq!(report.oom, Some(xy_shim::wire::Oom::Limit));
        let mut handle = adopted.handle;
        handle.notes.send_replace(note(&adopted.note.settings)); // There is a task now.
        let events = events_until(&mut handle, |_| false).await;
        let Some(LifeEvent::Exited(exit)) = events.last() else { panic!("{events:?}") };
        assert_eq!(exit.oom, Some(Oom::Limit { bytes: 64 << 20 }));
    }
}

/// A process whose parent has the argument `abc`, like an engine's helper for the container `abc`.
struct ParentedProcess {
    helper: std::process::Child,
    pid: u32,
}

impl ParentedProcess {
    fn new() -> Self {
        use std::io::{BufRead, BufReader};

        let script = "sleep 1000 & echo $!; trap \"kill $!\" TERM; wait";
        let mut helper = std::process::Command::new("sh")
            .args(["-c", script, "abc"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(helper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { helper, pid: line.trim().parse().unwrap() }
    }
}

impl Drop for ParentedProcess {
    fn drop(&mut self) {
        for pid in [self.helper.id(), self.pid] {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = self.helper.wait();
    }
}

#[tokio::test]
async fn clean_exit_after_podman_cut_off_is_protocol_error() {
    for is_cut in [true, false] {
        let fixture = Fixture::new();
        let parented = is_cut.then(ParentedProcess::new);
        let (engine, mut streams) = Fake::start(None, |it| {
            (it.is_podman, it.hides_exits) = (true, true);
            it.pid = parented.as_ref().map_or(it.pid, |it| it.pid);
        });
        let mut handle = fixture.launch(&engine, Pull::Never);
        events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
        engine.exit(0, false); // It exits after its stdin was closed, or on its own.
        drop(streams.recv().await);
        engine.wait_for_request("/logs", 1).await;
        // The protocol driver drops its connection.
        drop(fixture.connections.0.lock().unwrap().pop_front());
        let events = events_until(&mut handle, |_| false).await;
        let exited = LifeEvent::Exited(xy_supervisor::lifecycle::Exit::code(0));
        match &events[..] {
            [LifeEvent::ProtocolError(why), last] if is_cut => {
                assert!(why.starts_with("its engine was restarted or closed the stream"), "{why}");
                assert_eq!(*last, exited);
            }
            [last] if !is_cut => assert_eq!(*last, exited),
            _ => panic!("{is_cut}: {events:?}"),
        }
    }
}

#[tokio::test]
async fn running_container_cut_off_by_podman_is_protocol_error() {
    let fixture = Fixture::new();
    let (engine, mut streams) = Fake::start(None, |it| it.is_podman = true);
    let mut handle = fixture.launch(&engine, Pull::Never);
    events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
    drop(streams.recv().await);
    let events = events_until(&mut handle, |it| matches!(it, LifeEvent::ProtocolError(_))).await;
    let why = "its engine was restarted or closed the stream, and its stdin is closed";
    assert_eq!(events, [LifeEvent::ProtocolError(why.to_owned())]);
    assert_eq!(engine.requests().iter().filter(|it| it.contains("/attach")).count(), 1);
}

#[tokio::test]
async fn container_without_open_stdin_is_adopted_as_torn() {
    for is_podman in [false, true] {
        let fixture = Fixture::new();
        let (engine, _streams) = Fake::start(None, |it| it.is_podman = is_podman);
        let mut handle = fixture.launch(&engine, Pull::Never);
        events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
        handle.commands.send(LifeCommand::HandOver).await.unwrap();
        drop(fixture.connections.0.lock().unwrap().pop_front());
        events_until(&mut handle, |_| false).await;
        let (mut adopted, _) = fixture.launcher().adopt_all().await;
        let adopted = adopted.pop().expect("it is known");
        assert!(adopted.status.exited.is_none(), "it still runs");
        assert_eq!(adopted.status.torn, is_podman);
    }
}

/// Docker keeps it running, and its stream had no holder.
#[tokio::test]
async fn adoption_with_lost_stderr_marks_gap_in_log() {
    let fixture = Fixture::new();
    let (engine, mut streams) = Fake::start(None, |_| ());
    let mut handle = fixture.launch(&engine, Pull::Never);
    events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
    let mut stream = streams.recv().await.unwrap();
    let lines = b"a line on stderr\n".repeat(2000); // More than Docker may keep back.
    let mut said = frame(&lines);
    said[0] = 2;
    stream.write_all(&said).await.unwrap();
    let log = || std::fs::read(fixture.folder.path().join("one.log")).unwrap_or_default();
    let count = |log: &[u8]| memchr::memchr_iter(b'\n', log).count();
    while count(&log()) < 2000 {
        sleep(Duration::from_millis(5)).await;
    }
    handle.commands.send(LifeCommand::HandOver).await.unwrap();
    drop(fixture.connections.0.lock().unwrap().pop_front());
    events_until(&mut handle, |_| false).await;
    // The engine has kept none of that.
    let (mut adopted, _) = fixture.launcher().adopt_all().await;
    let adopted = adopted.pop().expect("it is known");
    assert!(!adopted.status.torn, "stderr is not awaited");
    let told_of = b"[err] xy: some of its output may be missing in the engine's log\n";
    while count(&log()) < 2001 {
        sleep(Duration::from_millis(5)).await;
    }
    assert!(log().ends_with(told_of));
}

#[tokio::test]
async fn podman_init_failure_is_permanent() {
    let fixture = Fixture::new();
    let (engine, mut streams) = Fake::start(None, |it| it.is_podman = true);
    let mut handle = fixture.launch(&engine, Pull::Never);
    events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
    let mut stream = streams.recv().await.unwrap();
    let mut said = frame(b"ERROR (catatonit:2): failed to exec pid1: No such file or directory\n");
    said[0] = 2; // On its stderr.
    stream.write_all(&said).await.unwrap();
    drop(stream);
    engine.exit(1, false);
    drop(fixture.connections.0.lock().unwrap().pop_front());
    let (why, is_permanent) = refusal(&mut handle).await;
    assert!(is_permanent && why.ends_with("was not found in the image"), "{why}");
}

#[tokio::test]
async fn unrunnable_command_is_reported_despite_stop() {
    let fixture = Fixture::new();
    let (engine, mut streams) = Fake::start(None, |it| it.is_podman = true);
    let mut handle = fixture.launch(&engine, Pull::Never);
    events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
    engine.exit(127, false);
    drop(streams.recv().await);
    engine.wait_for_request("/logs", 1).await; // Its exit is known.
    handle
        .commands
        .send(LifeCommand::Stop { grace: Duration::from_secs(1), for_good: false, is_hung: false })
        .await
        .unwrap();
    drop(fixture.connections.0.lock().unwrap().pop_front());
    let (why, is_permanent) = refusal(&mut handle).await;
    assert!(is_permanent && why.contains("127"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn stop_works_while_engine_is_silent() {
    let fixture = Fixture::new();
    let (engine, _streams) = Fake::start(None, |_| ());
    engine.set_silent(true);
    let mut handle = fixture.launch(&engine, Pull::Never);
    // The second report comes while the start waits for the engine.
    for _ in 0..2 {
        events_until(&mut handle, |it| matches!(it, LifeEvent::Preparing(_))).await;
    }
    let asked_at = Instant::now();
    handle
        .commands
        .send(LifeCommand::Stop { grace: Duration::from_secs(1), for_good: false, is_hung: false })
        .await
        .unwrap();
    let events = events_until(&mut handle, |_| false).await;
    assert!(matches!(events[..], [LifeEvent::Exited(_)]), "{events:?}");
    assert_eq!(asked_at.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn podman_rejects_image_for_other_platform() {
    let fixture = Fixture::new();
    let away = Fetch::Delivers(vec![error("dial tcp 127.0.0.1:9: connect: connection refused")]);
    let (engine, _streams) = Fake::start(Some(away), |it| it.is_podman = true);
    engine.add_image();
    let wants = |platform: &'static str, pull: Pull| {
        move |container: &mut ContainerSettings| {
            (container.pull, container.platform) = (pull, Some(platform.to_owned()));
        }
    };
    let mut handle = fixture.launch_with(&engine, wants("linux/arm64", Pull::Never));
    let (why, is_permanent) = refusal(&mut handle).await;
    assert!(
        is_permanent && why.contains("is for linux/amd64, but `platform` asks for linux/arm64"),
        "{why}"
    );
    let mut handle = fixture.launch_with(&engine, wants("linux/arm64", Pull::Missing));
    let (why, is_permanent) = refusal(&mut handle).await;
    assert!(!is_permanent && why.contains("could not be fetched"), "{why}");
    let mut handle = fixture.launch_with(&engine, wants("linux/amd64", Pull::Never));
    let events = events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
    assert_eq!(events, [LifeEvent::Launched { pid: 4711 }]);
}

/// Leaves a container to a later daemon.
async fn leave_one(fixture: &Fixture, engine: &Fake) {
    let mut handle = fixture.launch(engine, Pull::Never);
    events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
    handle.commands.send(LifeCommand::HandOver).await.unwrap();
    drop(fixture.connections.0.lock().unwrap().pop_front());
    events_until(&mut handle, |_| false).await;
}

#[tokio::test(start_paused = true)]
async fn slow_engine_delays_adoption_without_second_container() {
    let fixture = Fixture::new();
    let (engine, _streams) = Fake::start(None, |_| ());
    leave_one(&fixture, &engine).await;
    engine.set_silent(true);
    let launcher = fixture.launcher();
    let (adopted, mut late) = launcher.adopt_all().await;
    assert!(adopted.is_empty() && late.len() == 1, "the daemon does not wait for it");
    let mut waits = fixture.launch_by(&launcher, &engine, |it| it.pull = Pull::Never);
    sleep(Duration::from_secs(5)).await;
    engine.set_silent(false);
    let adopted = late.join_next().await.unwrap().unwrap().expect("it is taken over");
    assert_eq!(adopted.status.pid, 4711);
    waits.commands.send(LifeCommand::HandOver).await.unwrap(); // As the fleet does then.
    assert_eq!(events_until(&mut waits, |_| false).await, []);
    assert_eq!(engine.inits().len(), 1, "no other was made");
}

#[tokio::test(start_paused = true)]
async fn silent_engine_ends_adoption_and_frees_name() {
    let fixture = Fixture::new();
    let (engine, _streams) = Fake::start(None, |_| ());
    leave_one(&fixture, &engine).await;
    engine.set_silent(true);
    let launcher = fixture.launcher();
    let (adopted, mut late) = launcher.adopt_all().await;
    assert!(adopted.is_empty());
    assert!(late.join_next().await.unwrap().unwrap().is_none());
    engine.set_silent(false);
    let mut handle = fixture.launch_by(&launcher, &engine, |it| it.pull = Pull::Never);
    let events = events_until(&mut handle, |it| matches!(it, LifeEvent::Launched { .. })).await;
    assert_eq!(events, [LifeEvent::Launched { pid: 4711 }]);

    // A container whose adoption is aborted does not stay owned either.
    handle.commands.send(LifeCommand::HandOver).await.unwrap();
    drop(fixture.connections.0.lock().unwrap().pop_front());
    events_until(&mut handle, |_| false).await;
    engine.set_silent(true);
    let launcher = fixture.launcher();
    let (_, mut late) = launcher.adopt_all().await;
    late.shutdown().await;
    let name = create::name(&launcher.shared.home, &InstanceKey::parse("one").unwrap());
    assert!(!launcher.shared.owned.has(&name));
}
