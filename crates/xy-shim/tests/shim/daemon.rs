//! The daemon's side of the conversation, as a test plays it.
//!
//! Every wait has a limit. Whatever happens, no process and no file is left behind.

use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, test_kill_process};
use tempfile::TempDir;
use xy_shim::wire::{
    self, ExitReport, Frame, GoneRules, LimitsOrder, LogOrder, Order, Report, StartFault,
    StartOrder, StatusReport, Stdout,
};

/// Nothing here takes this long.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The shim's binary.
pub(crate) const SHIM: &str = env!("CARGO_BIN_EXE_xy-shim-for-tests");

/// A daemon with one shim.
pub(crate) struct Daemon {
    socket: Option<UnixStream>,
    shim: Option<Child>,
    unparsed: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    pub(crate) folder: TempDir,
    pub(crate) reports: Vec<Report>,
    pub(crate) records: Vec<Line>,
    pub(crate) next_seq: u64,
    /// What an earlier daemon left, and what stdout said meanwhile.
    pub(crate) note: Vec<u8>,
    pub(crate) unread: Vec<u8>,
}

/// A record, kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) seq: u64,
    pub(crate) flags: u8,
    pub(crate) bytes: Vec<u8>,
}

/// The daemon's ends of a server's stdin and stdout.
pub(crate) struct Ends {
    pub(crate) stdin: File,
    pub(crate) stdout: File,
}

impl Daemon {
    /// Launches a shim that waits for its order.
    pub(crate) fn new() -> Self {
        Self::launching(&mut Command::new(SHIM))
    }

    /// Launches a shim that comes by way of another program.
    pub(crate) fn launching(command: &mut Command) -> Self {
        let (ours, shims) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(LIMIT)).unwrap();
        let command = command.stdin(OwnedFd::from(shims)).env("XY_FROM_THE_DAEMON", "1");
        let shim = command.spawn().unwrap();
        // The command still holds the shim's end of the socket.
        command.stdin(std::process::Stdio::null());
        Self {
            socket: Some(ours),
            shim: Some(shim),
            unparsed: Vec::new(),
            descriptors: Vec::new(),
            folder: tempfile::tempdir().unwrap(),
            reports: Vec::new(),
            records: Vec::new(),
            next_seq: 0,
            note: Vec::new(),
            unread: Vec::new(),
        }
    }

    /// Launches a shim and has it start a shell script.
    pub(crate) fn running(script: &str, stdout: Stdout) -> Self {
        let mut daemon = Self::new();
        daemon.start(&daemon.script(script, stdout));
        daemon
    }

    /// An order to run a shell script.
    pub(crate) fn script(&self, script: &str, stdout: Stdout) -> StartOrder {
        StartOrder {
            protocol: wire::PROTOCOL,
            program: "/bin/sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: Vec::new(),
            working_dir: Some(self.folder.path().to_str().unwrap().to_owned()),
            stdout,
            has_stdin: false,
            log: LogOrder {
                file: self.path("x.log").to_str().unwrap().to_owned(),
                max_bytes: 1 << 30,
                generations: 5,
                next_seq: 0,
            },
            gone: GoneRules { orphan_ms: 60_000, grace_ms: 500 },
            open_files: None,
            life: "test-life".to_owned(),
            socket: None,
            note: "first note".to_owned(),
            limits: LimitsOrder::default(),
        }
    }

    /// Launches a shim that a later daemon can find, and has it start a shell script.
    pub(crate) fn lasting(script: &str, stdout: Stdout) -> Self {
        Self::lasting_with(script, stdout, |_| ())
    }

    /// The same, with another order.
    pub(crate) fn lasting_with(
        script: &str,
        stdout: Stdout,
        change: impl FnOnce(&mut StartOrder),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lock = File::create(folder.path().join("x.lock")).unwrap();
        lock.try_lock().unwrap();
        let mut daemon = Self::launching(Command::new(SHIM).stdout(lock));
        daemon.folder = folder;
        let mut order = daemon.script(script, stdout);
        order.socket = Some(daemon.path("x.sock").to_str().unwrap().to_owned());
        change(&mut order);
        daemon.start(&order);
        daemon
    }

    /// Whether the shim holds its lock.
    pub(crate) fn holds_lock(&self) -> bool {
        File::open(self.path("x.lock")).unwrap().try_lock().is_err()
    }

    /// A connection of somebody who has not said who it is.
    pub(crate) fn stranger(&self) -> UnixStream {
        let stream = xy_shim::door::connect(&self.path("x.sock")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// Another daemon comes, and hears everything.
    pub(crate) fn come_back(&mut self) -> StatusReport {
        self.socket = Some(self.stranger());
        self.unparsed.clear();
        self.descriptors.clear();
        self.reports.clear();
        self.records.clear();
        self.note.clear();
        self.unread.clear();
        self.order(&Order::Hello { protocol: wire::PROTOCOL });
        self.wait_for_report(|report| match report {
            Report::Status(status) => Some(status.clone()),
            _ => None,
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8(std::fs::read(self.path("x.log")).unwrap()).unwrap()
    }

    pub(crate) fn shim_pid(&self) -> i32 {
        self.shim.as_ref().unwrap().id().cast_signed()
    }

    pub(crate) fn start(&mut self, order: &StartOrder) {
        self.order(&Order::Start(Box::new(order.clone())));
    }

    pub(crate) fn stop(&mut self, grace: Duration) {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap();
        self.order(&Order::Stop { grace_ms, for_good: false });
    }

    pub(crate) fn stray(&mut self, bytes: &[u8]) {
        let mut frame = Vec::new();
        wire::put_stray(&mut frame, bytes);
        self.send(&frame);
    }

    pub(crate) fn order(&mut self, order: &Order) {
        let mut frame = Vec::new();
        wire::put_order(&mut frame, order).unwrap();
        self.send(&frame);
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.socket.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Waits until the server runs; answers its pid.
    pub(crate) fn started(&mut self) -> i32 {
        let pid = self.wait_for_report(|report| match report {
            Report::Started { pid, .. } => Some(*pid),
            _ => None,
        });
        pid.cast_signed()
    }

    /// Waits until the server runs; answers the ends that came with the news.
    pub(crate) fn ends(&mut self) -> Ends {
        self.started();
        self.ends_that_came()
    }

    /// Waits until the server runs; answers the end of stdin that came alone.
    pub(crate) fn stdin(&mut self) -> File {
        self.started();
        self.stdin_that_came()
    }

    /// The end of stdin that came alone with some news.
    pub(crate) fn stdin_that_came(&mut self) -> File {
        assert_eq!(self.descriptors.len(), 1);
        File::from(self.descriptors.remove(0))
    }

    /// The ends of stdin and stdout that came with some news.
    pub(crate) fn ends_that_came(&mut self) -> Ends {
        let mut ends = std::mem::take(&mut self.descriptors).into_iter().map(File::from);
        let (stdin, stdout) = (ends.next().unwrap(), ends.next().unwrap());
        assert!(ends.next().is_none());
        Ends { stdin, stdout }
    }

    pub(crate) fn start_failed(&mut self) -> StartFault {
        self.wait_for_report(|report| match report {
            Report::StartFailed(fault) => Some(fault.clone()),
            _ => None,
        })
    }

    pub(crate) fn exited(&mut self) -> ExitReport {
        self.wait_for_report(|report| match report {
            Report::Exited(report) => Some(report.clone()),
            _ => None,
        })
    }

    pub(crate) fn log_trouble(&mut self) -> Option<String> {
        let problem = self.wait_for_report(|report| match report {
            Report::LogTrouble { problem } => Some(problem.clone()),
            _ => None,
        });
        self.reports.retain(|report| !matches!(report, Report::LogTrouble { .. }));
        problem
    }

    /// Waits for a line of output.
    pub(crate) fn line(&mut self, line: &str) {
        while !self.records.iter().any(|record| record.bytes == line.as_bytes()) {
            assert!(self.read(), "the shim ended without a line `{line}`");
        }
    }

    /// Waits for this many lines of output.
    pub(crate) fn lines(&mut self, count: usize) {
        while self.records.len() < count {
            assert!(self.read(), "the shim ended with {} lines", self.records.len());
        }
    }

    /// Lets the shim end and hears all of it.
    pub(crate) fn finish(&mut self) {
        self.order(&Order::Finish);
        self.hear_the_end();
    }

    /// Reads to the end, which is the shim's.
    pub(crate) fn hear_the_end(&mut self) {
        while self.read() {}
        assert!(self.unparsed.is_empty(), "the shim ended in the middle of a frame");
        assert!(self.shim_ends().success());
    }

    pub(crate) fn hang_up(&mut self) {
        self.socket = None;
    }

    /// Waits for the process of the shim.
    pub(crate) fn shim_ends(&mut self) -> ExitStatus {
        let mut shim = self.shim.take().unwrap();
        within_the_limit(move || shim.wait().unwrap())
    }

    fn wait_for_report<T>(&mut self, wanted: impl Fn(&Report) -> Option<T>) -> T {
        loop {
            if let Some(found) = self.reports.iter().find_map(&wanted) {
                return found;
            }
            assert!(self.read(), "the shim ended; it had said {:?}", self.reports);
        }
    }

    /// Reads once; answers whether the shim is still there.
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let socket = self.socket.as_ref().unwrap();
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::empty())
        });
        let count = received.expect("an answer within the limit").bytes;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.unparsed.extend_from_slice(&bytes[..count]);
        let mut at = 0;
        while let Some((frame, length)) = wire::parse(&self.unparsed[at..]).unwrap() {
            at += length;
            match frame {
                Frame::Report(report) => self.reports.push(report),
                Frame::Log { next_seq, batch } => {
                    self.next_seq = next_seq;
                    self.records.extend(wire::records(batch).map(Line::from));
                }
                Frame::Note(note) => self.note = note.to_vec(),
                Frame::Unread(bytes) => self.unread.extend_from_slice(bytes),
                other => panic!("a shim does not say {other:?}"),
            }
        }
        self.unparsed.drain(..at);
        count > 0
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Only a failed test has one left.
        if let Some(shim) = &mut self.shim {
            let _ = shim.kill();
            let _ = shim.wait();
        }
        xy_shim::cgroup::remove_stale(); // As a daemon does for a shim that was killed.
    }
}

impl From<wire::Record<'_>> for Line {
    fn from(record: wire::Record<'_>) -> Self {
        Self { seq: record.seq, flags: record.flags, bytes: record.line.to_vec() }
    }
}

impl Ends {
    /// Reads stdout up to this many bytes, or to its end.
    pub(crate) fn read(&mut self, at_most: usize) -> Vec<u8> {
        let mut bytes = vec![0; at_most];
        let mut count = 0;
        while count < at_most {
            let mut ready = [PollFd::new(&self.stdout, PollFlags::IN)];
            let limit = LIMIT.try_into().unwrap();
            assert_eq!(poll(&mut ready, Some(&limit)), Ok(1), "stdout within the limit");
            match self.stdout.read(&mut bytes[count..]).unwrap() {
                0 => break,
                more => count += more,
            }
        }
        bytes.truncate(count);
        bytes
    }
}

/// Whether there is no such process any more.
pub(crate) fn is_gone(pid: i32) -> bool {
    test_kill_process(Pid::from_raw(pid).unwrap()).is_err()
}

/// Waits until `look` sees it.
pub(crate) fn wait_until(look: impl Fn() -> bool + Send + 'static) {
    within_the_limit(move || {
        while !look() {
            std::thread::yield_now();
        }
    });
}

/// Runs what may hang, and does not hang with it.
pub(crate) fn within_the_limit<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    result.recv_timeout(LIMIT).expect("done within the limit")
}

/// An exit that left nothing behind.
pub(crate) fn ended(code: Option<i32>, signal: Option<i32>, asked: bool) -> ExitReport {
    ExitReport { code, signal, asked, survivors: Vec::new(), oom: None }
}
