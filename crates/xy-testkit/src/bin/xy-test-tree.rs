//! A server whose descendants outlive it.
//!
//! It starts descendants by running itself again, as its flags specify. It writes `ready` to
//! stderr once all of them run, and exits on SIGTERM or at the end of stdin.
//!
//! - `--child KIND`: starts a child; repeatable. The kinds are those of [`Kind`].
//! - `--hop-for MS`: how long a hopper keeps hopping (default: one minute).
//! - `--hop-every MS`: the lifetime of one generation of a hopper (default: 1).
//! - `--deaf`: descendants ignore TERM and HUP.
//! - `--deaf-leader`: the server ignores TERM, HUP and the end of stdin.
//! - `--without-environment`: descendants have an empty environment, so that only their
//!   parents identify them.
//! - `--tag TEXT`: descendants have an argument `TEXT-PID`, with the server's PID.
//! - `--close stdin|stdout`: closes a stream before it is ready.
//! - `--stop-self`: sends itself SIGSTOP once it is ready.
//! - `--then exit CODE`: exits as soon as it is ready.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime};

use rustix::process::{Signal, getpid, kill_process, setsid};
use rustix::stdio::{dup2_stdin, dup2_stdout, stdin};
use signal_hook::consts::SIGHUP;
use xy_testkit::standin::{self, Flags, Output, Wait};

/// Number of children per process in each generation of a storm: 4 + 12 + 48 = 64 processes.
const STORM: [usize; 3] = [4, 3, 4];

/// Default lifetime of one generation of a hopper, without its start time.
const HOP_LIFETIME: Duration = Duration::from_millis(1);

/// Number of hops after which a hopper reports that it is up.
const HOPS_UNTIL_UP: usize = 3;

/// Default maximum run time of a hopper. Short, because hopping uses much CPU time.
const HOP_TIMEOUT: Duration = Duration::from_mins(1);

/// The flag that names the kind of a descendant.
const KIND_FLAG: &str = "--be";

/// A kind of descendant, by how it separates from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A process in the server's process group.
    SameGroup,
    /// A process in its own session.
    Session,
    /// A double-forked process in another session, whose parent has exited.
    Daemon,
    /// A chain of processes. Each starts the next one in a new session and exits.
    Hopper,
    /// Many processes, in three generations.
    Storm,
    /// A process that keeps the server's stdout and stderr open. All other kinds close them.
    HoldsOutput,
}

impl Kind {
    const ALL: [(&str, Self); 6] = [
        ("same-group", Self::SameGroup),
        ("session", Self::Session),
        ("daemon", Self::Daemon),
        ("hopper", Self::Hopper),
        ("storm", Self::Storm),
        ("holds-output", Self::HoldsOutput),
    ];

    fn named(name: &str) -> Self {
        let found = Self::ALL.into_iter().find(|(known, _)| *known == name);
        found.unwrap_or_else(|| panic!("no kind of child is called `{name}`")).1
    }

    fn name(self) -> &'static str {
        let found = Self::ALL.into_iter().find(|(_, kind)| *kind == self);
        found.expect("every kind has a name").0
    }

    /// Returns the number of processes that will report that they are up.
    fn count(self) -> usize {
        match self {
            Self::Storm => {
                let [first, second, third] = STORM;
                first * (1 + second * (1 + third))
            }
            _ => 1,
        }
    }

    /// Returns the number of processes that the server starts directly.
    fn direct_count(self) -> usize {
        if self == Self::Storm { STORM[0] } else { 1 }
    }

    /// Returns true if the process that the server starts soon exits and another one replaces it.
    fn is_replaced(self) -> bool {
        matches!(self, Self::Daemon | Self::Hopper)
    }
}

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|first| first == KIND_FLAG) {
        run_descendant(&Descendant::of_this_process());
        return ExitCode::SUCCESS;
    }
    standin::live_at_most(standin::SAFETY_LIMIT);
    run_leader(&Plan::of_this_process())
}

// The server itself.

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
struct Plan {
    children: Vec<Kind>,
    is_deaf: bool,
    has_deaf_leader: bool,
    is_without_environment: bool,
    hop_for: Option<Duration>,
    hop_every: Option<Duration>,
    tag: Option<String>,
    close: Option<String>,
    stops_itself: bool,
    code: Option<u8>,
}

impl Plan {
    fn of_this_process() -> Self {
        let mut plan = Self::default();
        let mut flags = Flags::of_this_process();
        while let Some(flag) = flags.next_flag() {
            match flag.as_str() {
                "--child" => plan.children.push(Kind::named(&flags.value())),
                "--deaf" => plan.is_deaf = true,
                "--deaf-leader" => plan.has_deaf_leader = true,
                "--without-environment" => plan.is_without_environment = true,
                "--hop-for" => plan.hop_for = Some(flags.millis()),
                "--hop-every" => plan.hop_every = Some(flags.millis()),
                "--tag" => plan.tag = Some(flags.value()),
                "--close" => plan.close = Some(flags.value()),
                "--stop-self" => plan.stops_itself = true,
                "--then" => {
                    assert_eq!(flags.value(), "exit", "there is nothing else to do then");
                    plan.code = Some(flags.number().try_into().expect("a code up to 255"));
                }
                _ => panic!("unknown flag `{flag}`"),
            }
        }
        plan
    }
}

fn run_leader(plan: &Plan) -> ExitCode {
    // A closed stdin is replaced by `/dev/null`, whose end must be ignored.
    let watches_stdin = !plan.has_deaf_leader && plan.close.as_deref() != Some("stdin");
    let mut wait = if watches_stdin { Wait::new() } else { Wait::for_term_only() };
    if plan.has_deaf_leader {
        let noted = std::sync::Arc::default();
        signal_hook::flag::register(SIGHUP, noted).expect("SIGHUP can be handled");
    }
    let (up, reports) = io::pipe().expect("a pipe");
    for &kind in &plan.children {
        (0..kind.direct_count()).for_each(|_| start(plan, kind, &reports));
    }
    drop(reports);
    await_all(up, plan.children.iter().map(|kind| kind.count()).sum());
    if let Some(which) = &plan.close {
        close(which);
    }
    Output::Stderr.say("ready");
    if plan.stops_itself {
        kill_process(getpid(), Signal::STOP).expect("we may stop ourselves");
    }
    if let Some(code) = plan.code {
        return ExitCode::from(code);
    }
    loop {
        wait.next(None);
        if !plan.has_deaf_leader {
            return ExitCode::SUCCESS;
        }
    }
}

/// Waits until `count` processes have reported that they are up.
fn await_all(mut up: PipeReader, count: usize) {
    up.read_exact(&mut vec![0; count]).expect("every descendant comes up");
}

/// Closes a standard stream. `/dev/null` replaces it, so that no other file gets its number.
fn close(which: &str) {
    let nothing = File::options().read(true).write(true).open("/dev/null").expect("/dev/null");
    let closed = match which {
        "stdin" => dup2_stdin(&nothing),
        "stdout" => dup2_stdout(&nothing),
        _ => panic!("`{which}` cannot be closed"),
    };
    closed.expect("an open descriptor can be replaced");
}

/// Starts the first process of a kind of child. Its stdin is the pipe `reports`, through which
/// it and its descendants report that they are up.
#[expect(clippy::zombie_processes, reason = "the supervisor under test ends the process")]
fn start(plan: &Plan, kind: Kind, reports: &PipeWriter) {
    let this = std::env::current_exe().expect("this program has a path");
    let mut command = if plan.is_deaf {
        // Ignored signals stay ignored across exec. A shell can set them without unsafe code.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", r#"trap "" TERM HUP; exec "$@""#, "sh"]);
        if plan.is_without_environment {
            shell.args(["/usr/bin/env", "-i"]); // A shell adds its own variables.
        }
        shell.arg(this);
        shell
    } else {
        Command::new(this)
    };
    if plan.is_without_environment {
        command.env_clear();
    }
    let tag = plan.tag.as_ref().map(|tag| format!("{tag}-{}", std::process::id()));
    let until = unix_millis() + plan.hop_for.unwrap_or(HOP_TIMEOUT).as_millis();
    let hop_every = plan.hop_every.unwrap_or(HOP_LIFETIME);
    let first = Descendant { kind, generation: 0, until, hop_every, tag };
    command.stdin(reports.try_clone().expect("one more descriptor"));
    let mut child = first.spawn(command);
    if kind.is_replaced() {
        child.wait().expect("a child process can be waited for");
    }
}

#[expect(clippy::disallowed_methods, reason = "one process tells another when to end")]
fn unix_millis() -> u128 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.expect("it is after 1970").as_millis()
}

// The descendants.

#[derive(Debug, Clone)]
struct Descendant {
    kind: Kind,
    /// Number of its ancestors of the same kind.
    generation: usize,
    /// When a hopper stops, in milliseconds since 1970.
    until: u128,
    /// The lifetime of one generation of a hopper.
    hop_every: Duration,
    tag: Option<String>,
}

impl Descendant {
    fn of_this_process() -> Self {
        let mut flags = Flags::of_this_process();
        let mut number = |name: &str| {
            assert_eq!(flags.next_flag().as_deref(), Some(name));
            flags.value()
        };
        let kind = Kind::named(&number(KIND_FLAG));
        let generation = number("--generation").parse().expect("a number");
        let until = number("--until").parse().expect("a number");
        let hop_every = number("--hop-every").parse().expect("a number");
        let hop_every = Duration::from_millis(hop_every);
        Self { kind, generation, until, hop_every, tag: flags.next_flag() }
    }

    /// Starts the descendant with `command`, whose stdin is already set.
    fn spawn(&self, mut command: Command) -> Child {
        command
            .args([KIND_FLAG, self.kind.name(), "--generation"])
            .arg(self.generation.to_string());
        command.arg("--until").arg(self.until.to_string());
        command.arg("--hop-every").arg(self.hop_every.as_millis().to_string()).args(&self.tag);
        if self.kind != Kind::HoldsOutput {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        command.spawn().expect("a descendant can be started")
    }

    /// Starts a child of this process. It inherits the pipe for reports.
    #[expect(clippy::zombie_processes, reason = "the supervisor under test ends the process")]
    fn spawn_child(&self, kind: Kind) {
        let next = Self { kind, generation: self.generation + 1, ..self.clone() };
        next.spawn(Command::new(std::env::current_exe().expect("this program has a path")));
    }
}

/// Runs as the given descendant. Installs no handlers, so signals that are not ignored kill it.
fn run_descendant(this: &Descendant) {
    match this.kind {
        Kind::SameGroup | Kind::HoldsOutput => stay_alive(),
        Kind::Session => {
            leave_session();
            stay_alive();
        }
        Kind::Daemon => {
            leave_session();
            this.spawn_child(Kind::SameGroup);
        }
        Kind::Hopper => hop(this),
        Kind::Storm => {
            let below = STORM.get(this.generation + 1).copied().unwrap_or(0);
            (0..below).for_each(|_| this.spawn_child(Kind::Storm));
            stay_alive();
        }
    }
}

fn leave_session() {
    setsid().expect("one that was just started leads no group");
}

fn hop(this: &Descendant) {
    leave_session();
    if this.generation == HOPS_UNTIL_UP {
        report_up();
    }
    standin::linger(this.hop_every);
    if unix_millis() < this.until {
        this.spawn_child(Kind::Hopper);
    }
}

fn stay_alive() {
    report_up();
    standin::linger(standin::SAFETY_LIMIT);
}

/// Reports to the server that this process is up, and closes the pipe.
fn report_up() {
    let _ = rustix::io::write(stdin(), b"."); // The server may have exited.
    close("stdin");
}
