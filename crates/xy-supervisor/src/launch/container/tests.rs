//! Lives of containers, with an engine that does what it is told.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::time::sleep;
use xy_config::settings::{ContainerSettings, Pull, ServerKind, ServerSettings};
use xy_protocol::server::Wanted;

use self::fake::{Fake, Fetch, frame};
use super::engine::Engine;
use super::missed::{Heard, Place};
use super::*;
use crate::fake::container_settings;
use crate::instance::InstanceKey;
use crate::launch::{Ask, News, Progress};
use crate::lifecycle::note::Note;
use crate::lifecycle::{Life, Oom, Reason, State, Tally};
use crate::logs::LogBook;
use crate::logs::history::History;
use crate::speak::{Line, Way};

pub(super) mod fake;

/// Keeps every line.
#[derive(Default)]
struct Switchboard(Mutex<VecDeque<Line>>);

impl Speak for Switchboard {
    fn speak(&self, line: Line) {
        self.0.lock().unwrap().push_back(line);
    }
}

/// A daemon, as far as containers are concerned.
pub(super) struct Stage {
    folder: tempfile::TempDir,
    lines: Arc<Switchboard>,
}

impl Stage {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), lines: Arc::default() }
    }

    pub(super) fn launcher(&self) -> ContainerLauncher {
        let kept_dir = self.folder.path().join("containers");
        std::fs::create_dir_all(&kept_dir).unwrap();
        let engines = engines::Engines::remembered(&kept_dir);
        let shared = Shared {
            home: home_id(&kept_dir),
            kept_dir,
            logs_dir: self.folder.path().to_owned(),
            speaker: self.lines.clone(),
            shims: Shims::new("home"),
            grip: None,
            began_at: Instant::now(),
            owned: reconcile::Owned::default(),
            engines,
        };
        ContainerLauncher { shared: Arc::new(shared) }
    }

    /// A life of a server with an image that is fetched then, if it is not there.
    fn launch(&self, engine: &Fake, pull: Pull) -> Instance {
        self.launch_with(engine, |container| container.pull = pull)
    }

    fn launch_with(&self, engine: &Fake, change: impl FnOnce(&mut ContainerSettings)) -> Instance {
        self.launch_by(&self.launcher(), engine, change)
    }

    fn launch_by(
        &self,
        launcher: &ContainerLauncher,
        engine: &Fake,
        change: impl FnOnce(&mut ContainerSettings),
    ) -> Instance {
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

    /// What the speaker of the server reads, and all else it has.
    fn stdout(&self) -> (pipe::Receiver, (Line, OwnedFd)) {
        let mut line = self.lines.0.lock().unwrap().pop_front().expect("somebody speaks with it");
        let way = std::mem::replace(&mut line.way, Way::Endpoint);
        let Way::Pipes { stdin, stdout } = way else { panic!("it has pipes") };
        (pipe::Receiver::from_owned_fd(stdout).unwrap(), (line, stdin))
    }
}

/// What a task leaves for the next daemon.
fn note(settings: &Arc<ServerSettings>) -> Vec<u8> {
    let now = Instant::now().into_std();
    let state = State::Running { launched_at: now, ready_at: now };
    let life = Life { state, tally: Tally::default(), wanted: Wanted::Up, reason: Reason::Ready };
    Note::of(&life, settings, now).to_bytes()
}

/// What is heard of a life until this, without how far it is.
async fn heard(life: &mut Instance, is_it: impl Fn(&News) -> bool) -> Vec<News> {
    let mut all = Vec::new();
    while let Some(news) = life.news.recv().await {
        let is_last = is_it(&news);
        if is_last || !matches!(news, News::Preparing(_) | News::Contained(_)) {
            all.push(news);
        }
        if is_last {
            break;
        }
    }
    all
}

/// Why a life could not be begun, and whether another try could help.
async fn refusal(life: &mut Instance) -> (String, bool) {
    match heard(life, |_| false).await.last() {
        Some(News::LaunchFailed(fault)) => (fault.message.clone(), fault.permanent),
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
async fn an_engine_that_has_no_init_to_make_a_container_with_makes_it_without() {
    let stage = Stage::new();
    let why = r#"container-init binary not found on the host: stat "/nowhere": no such file"#;
    let (engine, _streams) = Fake::begin(None, |it| {
        (it.is_podman, it.no_init_made) = (true, Some(why));
    });
    let mut life = stage.launch(&engine, Pull::Never);
    let told = heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
    assert_eq!(told, [News::Launched { pid: 4711 }]);
    assert_eq!(engine.inits(), [true, false]);
    assert!(!engine.asked().iter().any(|it| it.starts_with("DELETE")), "there was nothing yet");
}

#[tokio::test]
async fn an_engine_that_sees_only_at_the_start_that_it_has_no_init_runs_it_without() {
    let stage = Stage::new();
    let why = r#"failed to start: exec: "docker-init": executable file not found in $PATH"#;
    let (engine, _streams) = Fake::begin(None, |it| it.no_init = Some(why));
    let mut life = stage.launch(&engine, Pull::Never);
    let told = heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
    assert_eq!(told, [News::Launched { pid: 4711 }]);
    assert_eq!(engine.inits(), [true, false]);
    let removed = engine.asked().iter().filter(|it| *it == "DELETE /containers/abc").count();
    assert_eq!(removed, 1, "the first one is not left: {:?}", engine.asked());
}

#[tokio::test]
async fn how_far_a_fetch_is_is_told_as_a_number() {
    let stage = Stage::new();
    let (engine, _streams) = Fake::begin(Some(Fetch::Stalls(vec![layer(45)])), |_| ());
    let mut life = stage.launch(&engine, Pull::Missing);
    let what = "pulling example.com/x:1".to_owned();
    let so_far = News::Preparing(Progress { what, percent: Some(45) });
    assert_eq!(heard(&mut life, |it| *it == so_far).await, [so_far]);
    life.asks.send(Ask::Kill).await.unwrap();
    let told = heard(&mut life, |_| false).await;
    assert!(matches!(told[..], [News::Exited(_)]), "a stop ends a fetch: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_fetch_in_which_nothing_is_heard_is_given_up() {
    let stage = Stage::new();
    let (engine, _streams) = Fake::begin(Some(Fetch::Stalls(vec![layer(45)])), |_| ());
    let (why, is_permanent) = refusal(&mut stage.launch(&engine, Pull::Missing)).await;
    let told = "the image `example.com/x:1` could not be fetched: nothing was heard for 1m";
    assert_eq!((why.as_str(), is_permanent), (told, false));
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_never_ends_is_given_up() {
    let stage = Stage::new();
    let (engine, _streams) = Fake::begin(Some(Fetch::NeverEnds(layer(45))), |_| ());
    let (why, is_permanent) = refusal(&mut stage.launch(&engine, Pull::Missing)).await;
    let told = "the image `example.com/x:1` could not be fetched: it took longer than 30m";
    assert_eq!((why.as_str(), is_permanent), (told, false));
}

#[tokio::test]
async fn an_image_that_its_registry_does_not_have_is_not_tried_again() {
    let stage = Stage::new();
    for (says, is_hopeless) in [
        ("manifest for example.com/x:1 not found: manifest unknown", true),
        ("error parsing HTTP 404 response body: unexpected end of JSON input: \"\"", true),
        ("initializing source docker://x:1: reading manifest 1 in x: StatusCode: 404, \"\"", true),
        ("dial tcp 127.0.0.1:9: connect: connection refused", false),
    ] {
        let (engine, _streams) = Fake::begin(Some(Fetch::Comes(vec![error(says)])), |_| ());
        let (why, is_permanent) = refusal(&mut stage.launch(&engine, Pull::Missing)).await;
        assert_eq!(is_permanent, is_hopeless, "{why}");
        assert!(why.contains("could not be fetched"), "{why}");
        assert!(engine.inits().is_empty(), "nothing is made");
    }
}

#[tokio::test]
async fn the_image_that_is_here_is_used_if_no_newer_one_can_be_had() {
    let stage = Stage::new();
    let away = Fetch::Comes(vec![error("dial tcp 127.0.0.1:9: connect: connection refused")]);
    let (engine, _streams) = Fake::begin(Some(away), |_| ());
    engine.has_image();
    let mut life = stage.launch(&engine, Pull::Always);
    let told = heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
    assert_eq!(told, [News::Launched { pid: 4711 }]);
    assert!(engine.asked().contains(&"POST /images/create".to_owned()));
}

#[tokio::test]
async fn a_stop_is_heard_while_a_cut_stream_is_attached_again() {
    let stage = Stage::new();
    let (engine, mut streams) = Fake::begin(None, |_| ());
    engine.attaches_only(1);
    let mut life = stage.launch(&engine, Pull::Never);
    heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
    drop(streams.recv().await); // It is cut, and the next one is never answered.
    engine.is_asked("/attach", 2).await;
    let grace = Duration::from_secs(5);
    life.asks.send(Ask::Stop { grace, for_good: false, is_hung: false }).await.unwrap();
    engine.is_asked("/stop", 1).await;
    drop(stage.lines.0.lock().unwrap().pop_front()); // Whoever speaks with it hangs up.
    let told = heard(&mut life, |_| false).await;
    assert!(matches!(told[..], [News::Exited(_)]), "nothing else came first: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_missed_comes_whole_however_slowly_it_is_read() {
    let stage = Stage::new();
    let (engine, mut streams) = Fake::begin(None, |_| ());
    let mut life = stage.launch(&engine, Pull::Never);
    heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
    let (mut stdout, _rest) = stage.stdout();
    let message = [vec![b'x'; 1 << 20], b"\n".to_vec()].concat(); // Much more than a pipe holds.
    engine.said.lock().unwrap().clone_from(&message);
    drop(streams.recv().await);
    let mut second = streams.recv().await.unwrap();
    sleep(Duration::from_secs(60)).await; // Nobody reads.
    second.write_all(&frame(b"next\n")).await.unwrap();
    let mut read = vec![0; message.len() + 5];
    stdout.read_exact(&mut read).await.unwrap();
    assert!(read == [message, b"next\n".to_vec()].concat(), "it was torn");
    drop(life);
}

#[tokio::test]
async fn of_a_stream_that_was_held_only_what_was_taken_is_read_from_the_log() {
    let (fake, _streams) = Fake::begin(None, |it| it.is_podman = true);
    *fake.said.lock().unwrap() = b"one\ntwo\nthree\n".to_vec();
    let engine = Engine::at(&fake.socket).await.unwrap();
    let place = Place { out: 4, ..Place::default() };
    let read = async |until| missed::read_out(&engine, "abc", place, until).await;
    assert_eq!(read(4).await.unwrap(), b"");
    assert!(fake.asked().is_empty(), "nothing was taken, so nothing is read");
    assert_eq!(read(6).await.unwrap(), b"tw");
    assert_eq!(read(14).await.unwrap(), b"two\nthree\n");
    assert!(read(15).await.is_err(), "what is not kept cannot be made good");
    assert_eq!(missed::read(&engine, "abc", place).await.unwrap().out, b"two\nthree\n");
    let rotated = Place { out: 20, ..Place::default() };
    let read = missed::read(&engine, "abc", rotated).await.unwrap();
    assert_eq!(read.gaps, [true, false], "less is kept than was heard");
}

#[tokio::test]
async fn what_comes_after_the_last_that_was_logged_is_found_though_its_engine_has_not_kept_all() {
    let (fake, _streams) = Fake::begin(None, |_| ());
    let lines: Vec<String> = (100_000..200_000).map(|it| format!("line {it}\n")).collect();
    let said = lines.concat();
    *fake.said.lock().unwrap() = said.as_bytes()[500_000..].to_vec(); // The rest is gone.
    let engine = Engine::at(&fake.socket).await.unwrap();
    let heard = 1_100_000;
    let known = [Some(said.as_bytes()[heard - 4096..heard].to_vec()), Some(Vec::new())];
    // Much more was said before, without a pause.
    let place = Place { out: 50_000_000, ..Place::default() };
    let read = missed::read_after(&engine, "abc", Heard { place, known: &known }).await.unwrap();
    assert!(read.out == said.as_bytes()[heard..] && read.err.is_empty());
    let until = [place.out + 12, 0];
    let (some, is_all) =
        missed::read_some(&engine, "abc", Heard { place, known: &known }, until).await.unwrap();
    assert_eq!((some.out.as_slice(), is_all), (&said.as_bytes()[heard..heard + 12], [true; 2]));
    // What cannot be found on one of them does not cost the other.
    let [out, err] = known;
    let other = Some(vec![b'x'; 4096]);
    let known = &[other.clone(), err];
    let read = missed::read_after(&engine, "abc", Heard { place, known }).await.unwrap();
    assert_eq!((read.out.len(), read.gaps), (0, [true, false]));
    for err in [other, None] {
        let place = Place { err: 50_000_000, ..place };
        let known = &[out.clone(), err];
        let read = missed::read_after(&engine, "abc", Heard { place, known }).await.unwrap();
        assert!(read.out == said.as_bytes()[heard..]);
        assert_eq!(read.gaps, [false, true]);
        assert!(missed::or_gaps(Ok(read), true, &"one").is_ok(), "nobody waits for its stderr");
    }
}

#[tokio::test]
async fn a_kill_for_want_of_memory_is_named_also_if_no_daemon_saw_it() {
    for is_podman in [false, true] {
        let stage = Stage::new();
        let (engine, _streams) = Fake::begin(None, |it| it.is_podman = is_podman);
        let mut life = stage.launch(&engine, Pull::Never);
        heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
        life.asks.send(Ask::LetGo).await.unwrap();
        drop(stage.lines.0.lock().unwrap().pop_front());
        heard(&mut life, |_| false).await;
        engine.ends(137, true);
        let (mut adopted, _) = stage.launcher().adopt_all().await;
        let adopted = adopted.pop().expect("it is known");
        assert!(!adopted.status.torn, "its end was its own");
        let report = &adopted.status.exited.as_ref().expect("it has ended").report;
        assert_eq!(report.oom, Some(xy_shim::wire::Oom::Limit));
        let mut life = adopted.instance;
        life.notes.send_replace(note(&adopted.note.settings)); // There is a task now.
        let told = heard(&mut life, |_| false).await;
        let Some(News::Exited(exit)) = told.last() else { panic!("{told:?}") };
        assert_eq!(exit.oom, Some(Oom::Limit { bytes: 64 << 20 }));
    }
}

/// A process whose parent minds it for the container `abc`, as an engine's helper does.
struct Minded {
    helper: std::process::Child,
    pid: u32,
}

impl Minded {
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

impl Drop for Minded {
    fn drop(&mut self) {
        for pid in [self.helper.id(), self.pid] {
            let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = self.helper.wait();
    }
}

#[tokio::test]
async fn a_clean_end_because_podman_was_cut_off_is_none_of_its_own() {
    for is_cut in [true, false] {
        let stage = Stage::new();
        let minded = is_cut.then(Minded::new);
        let (engine, mut streams) = Fake::begin(None, |it| {
            (it.is_podman, it.hides_ends) = (true, true);
            it.pid = minded.as_ref().map_or(it.pid, |it| it.pid);
        });
        let mut life = stage.launch(&engine, Pull::Never);
        heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
        engine.ends(0, false); // It has lost its stdin, or has had enough.
        drop(streams.recv().await);
        engine.is_asked("/logs", 1).await;
        drop(stage.lines.0.lock().unwrap().pop_front()); // Whoever speaks with it hangs up.
        let told = heard(&mut life, |_| false).await;
        let exited = News::Exited(crate::lifecycle::Exit::code(0));
        match &told[..] {
            [News::Unfit(why), last] if is_cut => {
                assert!(why.starts_with("its engine was restarted, or cut it off"), "{why}");
                assert_eq!(*last, exited);
            }
            [last] if !is_cut => assert_eq!(*last, exited),
            _ => panic!("{is_cut}: {told:?}"),
        }
    }
}

#[tokio::test]
async fn one_that_podman_has_cut_off_and_that_stays_hears_nobody() {
    let stage = Stage::new();
    let (engine, mut streams) = Fake::begin(None, |it| it.is_podman = true);
    let mut life = stage.launch(&engine, Pull::Never);
    heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
    drop(streams.recv().await);
    let told = heard(&mut life, |it| matches!(it, News::Unfit(_))).await;
    let why = "its engine was restarted, or cut it off, and it hears nobody any more";
    assert_eq!(told, [News::Unfit(why.to_owned())]);
    assert_eq!(engine.asked().iter().filter(|it| it.contains("/attach")).count(), 1);
}

#[tokio::test]
async fn one_that_a_daemon_left_is_started_anew_where_its_stdin_is_closed() {
    for is_podman in [false, true] {
        let stage = Stage::new();
        let (engine, _streams) = Fake::begin(None, |it| it.is_podman = is_podman);
        let mut life = stage.launch(&engine, Pull::Never);
        heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
        life.asks.send(Ask::LetGo).await.unwrap();
        drop(stage.lines.0.lock().unwrap().pop_front());
        heard(&mut life, |_| false).await;
        let (mut adopted, _) = stage.launcher().adopt_all().await;
        let adopted = adopted.pop().expect("it is known");
        assert!(adopted.status.exited.is_none(), "it still runs");
        assert_eq!(adopted.status.torn, is_podman);
    }
}

/// Docker goes on with it, and nobody has held its stream.
#[tokio::test]
async fn one_of_whose_stderr_some_cannot_be_had_goes_on_and_its_log_says_so() {
    let stage = Stage::new();
    let (engine, mut streams) = Fake::begin(None, |_| ());
    let mut life = stage.launch(&engine, Pull::Never);
    heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
    let mut stream = streams.recv().await.unwrap();
    let lines = b"a line on stderr\n".repeat(2000); // More than Docker may keep back.
    let mut said = frame(&lines);
    said[0] = 2;
    stream.write_all(&said).await.unwrap();
    let log = || std::fs::read(stage.folder.path().join("one.log")).unwrap_or_default();
    let count = |log: &[u8]| memchr::memchr_iter(b'\n', log).count();
    while count(&log()) < 2000 {
        sleep(Duration::from_millis(5)).await;
    }
    life.asks.send(Ask::LetGo).await.unwrap();
    drop(stage.lines.0.lock().unwrap().pop_front());
    heard(&mut life, |_| false).await;
    // Of all that, its engine has kept nothing.
    let (mut adopted, _) = stage.launcher().adopt_all().await;
    let adopted = adopted.pop().expect("it is known");
    assert!(!adopted.status.torn, "nobody waits for its stderr");
    let told_of = b"[err] xy: some of its output may be missing: its engine lacks it\n";
    while count(&log()) < 2001 {
        sleep(Duration::from_millis(5)).await;
    }
    assert!(log().ends_with(told_of));
}

#[tokio::test]
async fn an_init_of_podman_that_cannot_run_the_command_is_told_and_not_tried_again() {
    let stage = Stage::new();
    let (engine, mut streams) = Fake::begin(None, |it| it.is_podman = true);
    let mut life = stage.launch(&engine, Pull::Never);
    heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
    let mut stream = streams.recv().await.unwrap();
    let mut said = frame(b"ERROR (catatonit:2): failed to exec pid1: No such file or directory\n");
    said[0] = 2; // On its stderr.
    stream.write_all(&said).await.unwrap();
    drop(stream);
    engine.ends(1, false);
    drop(stage.lines.0.lock().unwrap().pop_front());
    let (why, is_permanent) = refusal(&mut life).await;
    assert!(is_permanent && why.ends_with("was not found in the image"), "{why}");
}

#[tokio::test]
async fn one_that_cannot_be_run_is_told_as_such_though_its_end_was_asked_for_meanwhile() {
    let stage = Stage::new();
    let (engine, mut streams) = Fake::begin(None, |it| it.is_podman = true);
    let mut life = stage.launch(&engine, Pull::Never);
    heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
    engine.ends(127, false);
    drop(streams.recv().await);
    engine.is_asked("/logs", 1).await; // It is known to have ended.
    life.asks
        .send(Ask::Stop { grace: Duration::from_secs(1), for_good: false, is_hung: false })
        .await
        .unwrap();
    drop(stage.lines.0.lock().unwrap().pop_front());
    let (why, is_permanent) = refusal(&mut life).await;
    assert!(is_permanent && why.contains("127"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_heard_while_an_engine_does_not_answer() {
    let stage = Stage::new();
    let (engine, _streams) = Fake::begin(None, |_| ());
    engine.is_silent(true);
    let mut life = stage.launch(&engine, Pull::Never);
    // That it still goes on is told the second time when all wait for the engine.
    for _ in 0..2 {
        heard(&mut life, |it| matches!(it, News::Preparing(_))).await;
    }
    let asked_at = Instant::now();
    life.asks
        .send(Ask::Stop { grace: Duration::from_secs(1), for_good: false, is_hung: false })
        .await
        .unwrap();
    let told = heard(&mut life, |_| false).await;
    assert!(matches!(told[..], [News::Exited(_)]), "{told:?}");
    assert_eq!(asked_at.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn an_image_for_another_platform_is_none_for_podman() {
    let stage = Stage::new();
    let away = Fetch::Comes(vec![error("dial tcp 127.0.0.1:9: connect: connection refused")]);
    let (engine, _streams) = Fake::begin(Some(away), |it| it.is_podman = true);
    engine.has_image();
    let wants = |platform: &'static str, pull: Pull| {
        move |container: &mut ContainerSettings| {
            (container.pull, container.platform) = (pull, Some(platform.to_owned()));
        }
    };
    let mut life = stage.launch_with(&engine, wants("linux/arm64", Pull::Never));
    let (why, is_permanent) = refusal(&mut life).await;
    assert!(is_permanent && why.contains("wanted linux/arm64, it is for linux/amd64"), "{why}");
    let mut life = stage.launch_with(&engine, wants("linux/arm64", Pull::Missing));
    let (why, is_permanent) = refusal(&mut life).await;
    assert!(!is_permanent && why.contains("could not be fetched"), "{why}");
    let mut life = stage.launch_with(&engine, wants("linux/amd64", Pull::Never));
    let told = heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
    assert_eq!(told, [News::Launched { pid: 4711 }]);
}

/// Leaves a container to a later daemon.
async fn leave_one(stage: &Stage, engine: &Fake) {
    let mut life = stage.launch(engine, Pull::Never);
    heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
    life.asks.send(Ask::LetGo).await.unwrap();
    drop(stage.lines.0.lock().unwrap().pop_front());
    heard(&mut life, |_| false).await;
}

#[tokio::test(start_paused = true)]
async fn one_whose_engine_is_slow_is_taken_over_late_and_no_other_begins_meanwhile() {
    let stage = Stage::new();
    let (engine, _streams) = Fake::begin(None, |_| ());
    leave_one(&stage, &engine).await;
    engine.is_silent(true);
    let launcher = stage.launcher();
    let (adopted, mut late) = launcher.adopt_all().await;
    assert!(adopted.is_empty() && late.len() == 1, "the daemon does not wait for it");
    let mut waits = stage.launch_by(&launcher, &engine, |it| it.pull = Pull::Never);
    sleep(Duration::from_secs(5)).await;
    engine.is_silent(false);
    let adopted = late.join_next().await.unwrap().unwrap().expect("it is taken over");
    assert_eq!(adopted.status.pid, 4711);
    waits.asks.send(Ask::LetGo).await.unwrap(); // As the fleet does then.
    assert_eq!(heard(&mut waits, |_| false).await, []);
    assert_eq!(engine.inits().len(), 1, "no other was made");
}

#[tokio::test(start_paused = true)]
async fn one_whose_engine_does_not_answer_at_all_is_nobodys_then_and_can_begin_anew() {
    let stage = Stage::new();
    let (engine, _streams) = Fake::begin(None, |_| ());
    leave_one(&stage, &engine).await;
    engine.is_silent(true);
    let launcher = stage.launcher();
    let (adopted, mut late) = launcher.adopt_all().await;
    assert!(adopted.is_empty());
    assert!(late.join_next().await.unwrap().unwrap().is_none());
    engine.is_silent(false);
    let mut life = stage.launch_by(&launcher, &engine, |it| it.pull = Pull::Never);
    let told = heard(&mut life, |it| matches!(it, News::Launched { .. })).await;
    assert_eq!(told, [News::Launched { pid: 4711 }]);

    // One that is given up in the middle is not owned for ever either.
    life.asks.send(Ask::LetGo).await.unwrap();
    drop(stage.lines.0.lock().unwrap().pop_front());
    heard(&mut life, |_| false).await;
    engine.is_silent(true);
    let launcher = stage.launcher();
    let (_, mut late) = launcher.adopt_all().await;
    late.shutdown().await;
    let name = create::name(&launcher.shared.home, &InstanceKey::parse("one").unwrap());
    assert!(!launcher.shared.owned.has(&name));
}
