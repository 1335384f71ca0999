//! Lives that are processes of this machine, each under a shim of its own.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};
use xy_protocol::server::Transport;
use xy_shim::wire::{self, LogOrder, Order, Report, StartFault, StartOrder};

use super::shim_link::{Heard, ShimLink};
use super::{Ask, Instance, InstanceEnds, Launch, LaunchOrder, News};
use crate::lifecycle::{Exit, LaunchFault};

/// A log file is rotated at this size.
const LOG_BYTES: u64 = 10_000_000;

/// So many older log files are kept.
const LOG_GENERATIONS: u32 = 5;

/// What a dead server can have left in its stdout: no pipe holds more by default.
const PIPE_REST: usize = 1024 * 1024;

/// After an exit, the shim has this long to bring its log to disk.
const FINISH_WITHIN: Duration = Duration::from_secs(15);

/// The program that becomes a shim.
#[derive(Debug, Clone)]
pub struct ShimProgram {
    /// The file.
    pub path: PathBuf,
    /// What makes it a shim.
    pub args: Vec<OsString>,
}

impl ShimProgram {
    /// This very binary, also after another one has taken its place on disk.
    pub fn this_binary() -> io::Result<Self> {
        let running = Path::new("/proc/self/exe");
        let path = if running.exists() { running.to_owned() } else { std::env::current_exe()? };
        Ok(Self { path, args: vec!["shim".into()] })
    }
}

/// Starts processes.
#[derive(Debug)]
pub struct ProcessLauncher {
    shim: ShimProgram,
    logs_dir: PathBuf,
}

impl ProcessLauncher {
    /// Starts them through `shim`, their logs in `logs_dir`.
    pub fn new(shim: ShimProgram, logs_dir: PathBuf) -> Self {
        Self { shim, logs_dir }
    }

    /// The log of a server.
    pub fn log_file(logs_dir: &Path, server: &str) -> PathBuf {
        logs_dir.join(format!("{server}.log"))
    }
}

impl Launch for ProcessLauncher {
    fn launch(&self, order: LaunchOrder) -> Instance {
        let (instance, ends) = Instance::pair();
        let start = start_order(&order, &self.logs_dir);
        match spawn_shim(&self.shim, order.key.server.as_str()) {
            Ok((shim, stream)) => {
                let mut link = ShimLink::new(stream);
                link.queue(&Order::Start(Box::new(start)));
                tokio::spawn(Driver::new(order, shim, link, ends).run());
            }
            Err(error) => {
                let message = format!("its shim could not be started: {error}");
                let permanent = !is_transient(error.raw_os_error());
                let fault = LaunchFault { permanent, message, hint: None };
                // The channel is new and has room.
                let _ = ends.news.try_send(News::LaunchFailed(fault));
            }
        }
        instance
    }
}

fn spawn_shim(program: &ShimProgram, server: &str) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs.into_std()?);
    let shim = Command::new(&program.path)
        .args(&program.args)
        .arg(server)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()?;
    Ok((shim, ours))
}

fn start_order(order: &LaunchOrder, logs_dir: &Path) -> StartOrder {
    let process = &order.settings.process;
    let mut env: Vec<_> =
        process.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    env.push(("XY_SERVER".into(), order.key.server.to_string()));
    StartOrder {
        protocol: wire::PROTOCOL,
        program: process.command.clone(),
        args: process.args.clone(),
        env,
        working_dir: process.working_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned()),
        stdout: match process.transport {
            Transport::Stdio => wire::Stdout::Passed,
            Transport::Http | Transport::Sse => wire::Stdout::Logged,
        },
        log: LogOrder {
            file: ProcessLauncher::log_file(logs_dir, order.key.server.as_str())
                .to_string_lossy()
                .into_owned(),
            max_bytes: LOG_BYTES,
            generations: LOG_GENERATIONS,
            next_seq: order.logs.next_seq(),
        },
        grace_ms: millis(order.settings.rules.stop.grace),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Our ends of a stdio server.
#[derive(Default)]
struct Pipes {
    /// Open as long as the server shall live.
    stdin: Option<OwnedFd>,
    stdout: Option<pipe::Receiver>,
}

/// Drives one life from the first order to the last news.
struct Driver {
    order: LaunchOrder,
    shim: Child,
    link: ShimLink,
    pipes: Pipes,
    ends: InstanceEnds,
    /// Whether anybody still holds this life.
    is_held: bool,
    /// Whether it has been told to end: then a stdin that is only now passed on is closed too.
    is_ending: bool,
    /// How it ended, and when the shim must have ended too.
    end: Option<(News, Instant)>,
}

/// One thing that happens while a life goes on.
enum Turn {
    Heard(Report),
    Room,
    ShimGone,
    LinkBroken(io::Error),
    Asked(Ask),
    Dropped,
    Output,
    Overdue,
}

impl Driver {
    fn new(order: LaunchOrder, shim: Child, link: ShimLink, ends: InstanceEnds) -> Self {
        let pipes = Pipes::default();
        Self { order, shim, link, pipes, ends, is_held: true, is_ending: false, end: None }
    }

    async fn run(mut self) {
        loop {
            match self.next_turn().await {
                Turn::Heard(report) => self.hear(report).await,
                Turn::Room => {} // So output is read again.
                Turn::Asked(Ask::Stop { grace }) => self.stop(grace),
                Turn::Asked(Ask::Kill) => self.kill(),
                Turn::Dropped => {
                    self.is_held = false;
                    self.close_stdin();
                    self.link.hang_up();
                }
                Turn::Output => self.forward_stdout(),
                Turn::ShimGone => break,
                Turn::LinkBroken(error) => {
                    tracing::warn!(server = %self.order.key, %error, "lost the shim");
                    self.kill();
                    break;
                }
                Turn::Overdue => {
                    self.kill();
                    break;
                }
            }
        }
        if timeout(FINISH_WITHIN, self.shim.wait()).await.is_err() {
            let _ = self.shim.kill().await; // It may have ended this instant.
        }
        let last = self.end.map_or(News::Exited(Exit::UNSEEN), |(news, _)| news);
        let _ = self.ends.news.send(last).await; // Nobody may hold this life any more.
    }

    /// Waits for one thing; every arm is cancel-safe.
    async fn next_turn(&mut self) -> Turn {
        let may_read = self.link.has_room() && self.end.is_none();
        let deadline = self.end.as_ref().map(|(_, finish_by)| *finish_by);
        tokio::select! {
            report = self.link.next(&self.order.logs) => match report {
                Ok(Heard::Report(report)) => Turn::Heard(report),
                Ok(Heard::Room) => Turn::Room,
                Ok(Heard::End) => Turn::ShimGone,
                Err(error) => Turn::LinkBroken(error),
            },
            ask = self.ends.asks.recv(), if self.is_held => ask.map_or(Turn::Dropped, Turn::Asked),
            () = readable(self.pipes.stdout.as_ref()), if may_read => Turn::Output,
            () = sleep_until_some(deadline) => Turn::Overdue,
        }
    }

    async fn hear(&mut self, report: Report) {
        match report {
            Report::Started { pid } => {
                self.pipes.stdin = self.link.take_fd().filter(|_| !self.is_ending);
                let stdout = self.link.take_fd();
                self.pipes.stdout = stdout.and_then(|fd| pipe::Receiver::from_owned_fd(fd).ok());
                self.tell(News::Launched { pid }).await;
            }
            Report::LogTrouble { problem } => self.tell(News::LogTrouble(problem)).await,
            Report::StartFailed(fault) => {
                self.ends_with(News::LaunchFailed(explain(fault, &self.order)));
            }
            Report::Exited(exit) => {
                self.forward_rest();
                self.link.queue(&Order::Finish);
                self.ends_with(News::Exited(Exit { code: exit.code, signal: exit.signal }));
            }
        }
    }

    async fn tell(&self, news: News) {
        let _ = self.ends.news.send(news).await; // Nobody may hold this life any more.
    }

    fn ends_with(&mut self, news: News) {
        self.end = Some((news, Instant::now() + FINISH_WITHIN));
    }

    fn stop(&mut self, grace: Duration) {
        self.close_stdin();
        self.link.queue(&Order::Stop { grace_ms: millis(grace) });
    }

    fn close_stdin(&mut self) {
        self.is_ending = true;
        self.pipes.stdin = None;
    }

    fn kill(&mut self) {
        let _ = self.shim.start_kill(); // It may have ended this instant.
    }

    /// Hands over what the dead had left in its stdout; one that escaped may go on writing.
    fn forward_rest(&mut self) {
        let Pipes { stdout, .. } = std::mem::take(&mut self.pipes);
        let Some(stdout) = stdout else { return };
        let mut forwarded = 0;
        while forwarded < PIPE_REST {
            // Read from the pipe itself: the runtime may not have heard of the last bytes yet.
            let read = |scratch: &mut [u8]| Ok(rustix::io::read(&stdout, scratch)?);
            match self.link.forward(read) {
                Ok(got @ 1..) => forwarded += got,
                Ok(0) | Err(_) => return,
            }
        }
    }

    /// Until somebody speaks MCP with it, all a stdio server says on stdout is log.
    fn forward_stdout(&mut self) {
        let Some(stdout) = &self.pipes.stdout else {
            return;
        };
        match self.link.forward(|scratch| stdout.try_read(scratch)) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => self.pipes.stdout = None,
        }
    }
}

async fn readable(pipe: Option<&pipe::Receiver>) {
    match pipe {
        None => std::future::pending().await,
        Some(pipe) => _ = pipe.readable().await, // An error shows itself at the read that follows.
    }
}

async fn sleep_until_some(deadline: Option<Instant>) {
    match deadline {
        None => std::future::pending().await,
        Some(deadline) => tokio::time::sleep_until(deadline).await,
    }
}

/// Whether the same attempt may succeed a little later.
fn is_transient(errno: Option<i32>) -> bool {
    use rustix::io::Errno;
    let transient = [
        Errno::AGAIN,
        Errno::NOMEM,
        Errno::MFILE,
        Errno::NFILE,
        Errno::INTR,
        Errno::TXTBSY,
        Errno::IO,
        Errno::NOSPC,
    ];
    errno.is_some_and(|errno| transient.iter().any(|known| known.raw_os_error() == errno))
}

/// A fault in words for whoever wrote the file.
fn explain(fault: StartFault, order: &LaunchOrder) -> LaunchFault {
    let process = &order.settings.process;
    let program = &process.command;
    let source = &order.settings.source;
    let place = format!("{}:{}", source.file.display(), source.command_line);
    let is_path = program.contains('/');
    let (message, hint) = match fault.problem {
        wire::Problem::ProgramNotFound if is_path => {
            (format!("`{program}` does not exist"), Some(format!("correct `command` at {place}")))
        }
        wire::Problem::ProgramNotFound => (
            format!("program `{program}` is not on PATH"),
            Some(format!("install it, or give its full path as `command` at {place}")),
        ),
        wire::Problem::NotExecutable => (
            format!("`{program}` cannot be executed"),
            Some(format!("make it executable, or correct `command` at {place}")),
        ),
        wire::Problem::NoWorkingDir => (
            format!(
                "its working-dir `{}` is not a folder",
                process.working_dir.as_deref().unwrap_or(Path::new("")).display()
            ),
            Some(format!("create it, or correct `working-dir` in {}", source.file.display())),
        ),
        wire::Problem::Protocol { expected } => (
            format!("its shim speaks version {expected}, the daemon {}", wire::PROTOCOL),
            Some("restart the daemon".into()),
        ),
        wire::Problem::System { what } => (what, None),
    };
    LaunchFault { permanent: !is_transient(fault.errno), message, hint }
}
