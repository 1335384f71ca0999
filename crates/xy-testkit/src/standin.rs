//! Common parts of the test servers in `bin/`: flags, unbuffered output, and waiting for SIGTERM or
//! the end of stdin.
//!
//! Output is not buffered: each text is one `write(2)`, so that a test knows what a reader can have
//! seen. No server outlives its safety limit.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FileType;
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::{pipe, raise};

use crate::clock;

/// Maximum lifetime of a test server. No test takes longer, so only a forgotten server reaches it.
pub const SAFETY_LIMIT: Duration = Duration::from_mins(10);

/// Kills this process by SIGKILL after `limit`, even if it is blocked in a write.
pub fn live_at_most(limit: Duration) {
    let watchdog = thread::Builder::new().name("watchdog".to_owned());
    let watched = watchdog.spawn(move || {
        clock::pause(limit);
        raise(signal_hook::consts::SIGKILL)
    });
    watched.expect("a test server may have a second thread");
}

/// Sleeps for `duration`. Signals keep their default action.
pub fn linger(duration: Duration) {
    clock::pause(duration);
}

/// Keeps one core busy for `duration`.
pub fn keep_busy(duration: Duration) {
    let began = clock::now();
    while !duration.is_zero() && began.elapsed() < duration {
        std::hint::spin_loop();
    }
}

/// The command-line flags of a test server. Invalid flags cause a panic.
#[derive(Debug)]
pub struct Flags {
    rest: VecDeque<String>,
}

impl Flags {
    /// Returns the arguments of this process.
    pub fn of_this_process() -> Self {
        Self { rest: std::env::args().skip(1).collect() }
    }

    /// Takes the next flag, without its value.
    pub fn next_flag(&mut self) -> Option<String> {
        self.rest.pop_front()
    }

    /// Takes the value of the flag that was read last.
    pub fn value(&mut self) -> String {
        self.rest.pop_front().expect("the last flag needs a value")
    }

    /// Takes the value of the flag that was read last, as a number.
    pub fn number(&mut self) -> u64 {
        let text = self.value();
        text.parse().unwrap_or_else(|_| panic!("`{text}` is not a number"))
    }

    /// Takes the value of the flag that was read last, as a number of milliseconds.
    pub fn millis(&mut self) -> Duration {
        Duration::from_millis(self.number())
    }
}

/// A destination of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// File descriptor 1.
    Stdout,
    /// File descriptor 2.
    Stderr,
}

impl Output {
    fn descriptor(self) -> BorrowedFd<'static> {
        match self {
            Self::Stdout => rustix::stdio::stdout(),
            Self::Stderr => rustix::stdio::stderr(),
        }
    }

    /// Writes all of `bytes`, in one system call unless the kernel accepts only a part.
    pub fn write(self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match rustix::io::write(self.descriptor(), bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(rustix::io::Errno::INTR) => {}
                Err(cause) => return Err(cause.into()),
            }
        }
        Ok(())
    }

    /// Writes `text` and a line end. Ignores errors: a missing reader must not end a server early.
    pub fn say(self, text: &str) {
        let _ = self.write(format!("{text}\n").as_bytes());
    }
}

/// The event that ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// SIGTERM arrived.
    Term,
    /// The other end of stdin was closed.
    StdinClosed,
    /// The limit passed.
    InTime,
}

/// A wait for SIGTERM and, if stdin is a pipe or socket, for the end of stdin.
#[derive(Debug)]
pub struct Wait {
    terms: UnixStream,
    watches_stdin: bool,
}

impl Wait {
    /// Installs a handler for SIGTERM, which ends a wait instead of the process from now on.
    pub fn new() -> Self {
        let (terms, written_by_handler) = UnixStream::pair().expect("a pair of sockets");
        pipe::register(SIGTERM, written_by_handler).expect("SIGTERM can be handled");
        Self { terms, watches_stdin: has_another_end(rustix::stdio::stdin()) }
    }

    /// Creates a wait for SIGTERM only, which ignores the end of stdin.
    pub fn for_term_only() -> Self {
        Self { watches_stdin: false, ..Self::new() }
    }

    /// Waits for at most `limit`, or without a limit. Reads and discards data on stdin.
    pub fn next(&mut self, limit: Option<Duration>) -> Woken {
        let until = limit.map(|limit| clock::now() + limit);
        loop {
            let (term, input) = self.poll(until);
            if term {
                self.terms.read_exact(&mut [0]).expect("the handler wrote a byte");
                return Woken::Term;
            }
            if input && stdin_is_at_its_end() {
                return Woken::StdinClosed;
            }
            if until.is_some_and(|until| clock::now() >= until) {
                return Woken::InTime;
            }
        }
    }

    /// Polls once. Returns whether SIGTERM arrived, and whether stdin is readable.
    fn poll(&self, until: Option<Instant>) -> (bool, bool) {
        let stdin = rustix::stdio::stdin();
        let mut watched = vec![PollFd::new(&self.terms, PollFlags::IN)];
        if self.watches_stdin {
            watched.push(PollFd::new(&stdin, PollFlags::IN));
        }
        let left = until.map(|until| until.saturating_duration_since(clock::now()));
        let left = left.map(|left| Timespec::try_from(left).expect("a short time"));
        match rustix::event::poll(&mut watched, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(cause) => panic!("cannot poll: {cause}"),
        }
        let happened = |at: usize| watched.get(at).is_some_and(|it| !it.revents().is_empty());
        (happened(0), happened(1))
    }
}

impl Default for Wait {
    fn default() -> Self {
        Self::new()
    }
}

fn has_another_end(descriptor: impl AsFd) -> bool {
    rustix::fs::fstat(descriptor).is_ok_and(|stat| {
        matches!(FileType::from_raw_mode(stat.st_mode), FileType::Fifo | FileType::Socket)
    })
}

fn stdin_is_at_its_end() -> bool {
    let mut buffer = [0; 8 * 1024];
    match rustix::io::read(rustix::stdio::stdin(), &mut buffer) {
        Ok(count) => count == 0,
        Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => false,
        Err(_) => true,
    }
}

/// Returns the address for listening test servers: loopback, or any address if `LISTEN_ANYWHERE` is
/// set. Containers set it, as their loopback cannot be reached from outside.
pub fn listen_address() -> std::net::Ipv4Addr {
    match std::env::var_os("LISTEN_ANYWHERE") {
        Some(_) => std::net::Ipv4Addr::UNSPECIFIED,
        None => std::net::Ipv4Addr::LOCALHOST,
    }
}

/// Writes `tick 1`, `tick 2` … until SIGTERM or the end of stdin, and then the reason to stop.
pub fn tick(output: Output, every: Duration) -> ExitCode {
    let mut wait = Wait::new();
    let mut count = 0u64;
    loop {
        match wait.next(Some(every)) {
            Woken::InTime => {
                count += 1;
                output.say(&format!("tick {count}"));
            }
            end => return stopping(output, end),
        }
    }
}

/// Waits for SIGTERM or the end of stdin, and then writes the reason to stop.
pub fn sleep(output: Output) -> ExitCode {
    let end = Wait::new().next(None);
    stopping(output, end)
}

fn stopping(output: Output, end: Woken) -> ExitCode {
    output.say(match end {
        Woken::Term => "stopping: TERM",
        Woken::StdinClosed => "stopping: stdin closed",
        Woken::InTime => "stopping: in time",
    });
    ExitCode::SUCCESS
}
