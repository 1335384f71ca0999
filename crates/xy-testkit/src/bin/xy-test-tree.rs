//! A server whose descendants do not go the way it goes.
//!
//! It starts them as its flags say, by running itself again, says `ready` on stderr once
//! all of them are there, and lives until SIGTERM or the end of stdin.
//!
//! - `--child KIND`, any number of times; the kinds are those of [`Kind`]. A hopper hops for
//!   a minute, or `--hop-for MS`.
//! - `--deaf`: descendants ignore TERM and HUP. `--deaf-leader`: the server does too, and
//!   the end of stdin.
//! - `--without-environment`: descendants have none, so only the tree shows whose they are.
//! - `--tag TEXT`: descendants carry `TEXT-PID` as an argument, with the server's own PID.
//! - `--close stdin|stdout` before it is ready, `--stop-self` (SIGSTOP) after that.
//! - `--then exit CODE` as soon as it is ready.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime};

use rustix::process::{Signal, getpid, kill_process, setsid};
use rustix::stdio::{dup2_stdin, dup2_stdout, stdin};
use signal_hook::consts::SIGHUP;
use xy_testkit::standin::{self, Flags, Output, Wait};

/// How many children each of a storm's generations starts: 4 and 12 and 48, so 64.
const STORM: [usize; 3] = [4, 3, 4];

/// How long one generation of a hopper lives, beside the time it takes to start.
const HOP: Duration = Duration::from_millis(1);

/// A hopper is up when it has really hopped.
const HOPS_UNTIL_UP: usize = 3;

/// A hopper costs much, so it has less time than all others.
const HOPS_WITHIN: Duration = Duration::from_mins(1);

/// A descendant's flag: what it is.
const BE: &str = "--be";

/// A way to start a process that does not go with its leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// In the group of the server.
    SameGroup,
    /// In a session of its own.
    Session,
    /// Forked twice and in another session, so it is a child of nobody it knows.
    Daemon,
    /// Every generation starts the next, in a session of its own, and is gone.
    Hopper,
    /// Many, over three generations.
    Storm,
    /// It keeps the server's stdout and stderr; all others have let go of them.
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

    /// How many processes will tell that they are up.
    fn count(self) -> usize {
        match self {
            Self::Storm => {
                let [first, second, third] = STORM;
                first * (1 + second * (1 + third))
            }
            _ => 1,
        }
    }

    /// How many of it the server itself starts.
    fn firsts(self) -> usize {
        if self == Self::Storm { STORM[0] } else { 1 }
    }

    /// Whether the process that the server itself starts is soon gone, and another up.
    fn goes_on_as_another(self) -> bool {
        matches!(self, Self::Daemon | Self::Hopper)
    }
}

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|first| first == BE) {
        descend(&Descendant::of_this_process());
        return ExitCode::SUCCESS;
    }
    standin::live_at_most(standin::SAFETY_LIMIT);
    lead(&Plan::of_this_process())
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

fn lead(plan: &Plan) -> ExitCode {
    // What replaces a closed stdin is always at its end, which must mean nothing.
    let minds_stdin = !plan.has_deaf_leader && plan.close.as_deref() != Some("stdin");
    let mut wait = if minds_stdin { Wait::new() } else { Wait::for_term_only() };
    if plan.has_deaf_leader {
        let noted = std::sync::Arc::default();
        signal_hook::flag::register(SIGHUP, noted).expect("SIGHUP can be handled");
    }
    let (up, tells) = io::pipe().expect("a pipe");
    for &kind in &plan.children {
        (0..kind.firsts()).for_each(|_| start(plan, kind, &tells));
    }
    drop(tells);
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

/// Waits until so many have told that they are up.
fn await_all(mut up: PipeReader, count: usize) {
    up.read_exact(&mut vec![0; count]).expect("every descendant comes up");
}

/// The other end sees it closed; the number stays taken, lest another file gets it.
fn close(which: &str) {
    let nothing = File::options().read(true).write(true).open("/dev/null").expect("/dev/null");
    let closed = match which {
        "stdin" => dup2_stdin(&nothing),
        "stdout" => dup2_stdout(&nothing),
        _ => panic!("`{which}` cannot be closed"),
    };
    closed.expect("an open descriptor can be replaced");
}

/// Starts the first process of a kind of child; `tells` becomes its stdin, through which
/// all that are below it tell that they are up.
#[expect(clippy::zombie_processes, reason = "what stays is to be ended by somebody else")]
fn start(plan: &Plan, kind: Kind, tells: &PipeWriter) {
    let this = std::env::current_exe().expect("this program has a path");
    let mut command = if plan.is_deaf {
        // What is ignored stays so over every exec; a shell can say it without unsafe code.
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", r#"trap "" TERM HUP; exec "$@""#, "sh"]);
        if plan.is_without_environment {
            shell.args(["/usr/bin/env", "-i"]); // A shell adds variables of its own.
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
    let until = unix_millis() + plan.hop_for.unwrap_or(HOPS_WITHIN).as_millis();
    let first = Descendant { kind, generation: 0, until, tag };
    command.stdin(tells.try_clone().expect("one more descriptor"));
    let mut child = first.spawn(command);
    if kind.goes_on_as_another() {
        child.wait().expect("a child of ours can be waited for");
    }
}

#[expect(clippy::disallowed_methods, reason = "one process tells another when to end")]
fn unix_millis() -> u128 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.expect("it is after 1970").as_millis()
}

// What is below it.

#[derive(Debug, Clone)]
struct Descendant {
    kind: Kind,
    /// How many of its kind are above it.
    generation: usize,
    /// When a hopper hops no more, in milliseconds since 1970.
    until: u128,
    tag: Option<String>,
}

impl Descendant {
    fn of_this_process() -> Self {
        let mut flags = Flags::of_this_process();
        let mut number = |name: &str| {
            assert_eq!(flags.next_flag().as_deref(), Some(name));
            flags.value()
        };
        let kind = Kind::named(&number(BE));
        let generation = number("--generation").parse().expect("a number");
        let until = number("--until").parse().expect("a number");
        Self { kind, generation, until, tag: flags.next_flag() }
    }

    /// Runs it by `command`, which has a stdin already.
    fn spawn(&self, mut command: Command) -> Child {
        command.args([BE, self.kind.name(), "--generation"]).arg(self.generation.to_string());
        command.arg("--until").arg(self.until.to_string()).args(&self.tag);
        if self.kind != Kind::HoldsOutput {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
        command.spawn().expect("a descendant can be started")
    }

    /// Starts one below this one, which inherits the pipe to tell through.
    #[expect(clippy::zombie_processes, reason = "it is to be ended and reaped by somebody else")]
    fn spawn_next(&self, kind: Kind) {
        let next = Self { kind, generation: self.generation + 1, ..self.clone() };
        next.spawn(Command::new(std::env::current_exe().expect("this program has a path")));
    }
}

/// Is what it was started to be. Without handlers: what is not ignored is deadly.
fn descend(this: &Descendant) {
    match this.kind {
        Kind::SameGroup | Kind::HoldsOutput => stay(),
        Kind::Session => {
            leave_session();
            stay();
        }
        Kind::Daemon => {
            leave_session();
            this.spawn_next(Kind::SameGroup);
        }
        Kind::Hopper => hop(this),
        Kind::Storm => {
            let below = STORM.get(this.generation + 1).copied().unwrap_or(0);
            (0..below).for_each(|_| this.spawn_next(Kind::Storm));
            stay();
        }
    }
}

fn leave_session() {
    setsid().expect("one that was just started leads no group");
}

fn hop(this: &Descendant) {
    leave_session();
    if this.generation == HOPS_UNTIL_UP {
        tell();
    }
    standin::linger(HOP);
    if unix_millis() < this.until {
        this.spawn_next(Kind::Hopper);
    }
}

fn stay() {
    tell();
    standin::linger(standin::SAFETY_LIMIT);
}

/// Tells the server that this process is up, and lets go of the pipe.
fn tell() {
    let _ = rustix::io::write(stdin(), b"."); // A server that is gone waits for nobody.
    close("stdin");
}
