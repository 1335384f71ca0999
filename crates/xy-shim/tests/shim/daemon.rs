//! The daemon's side of the protocol, played by a test.
//!
//! Every wait has a limit. A test leaves no process and no file behind, even if it fails.

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
    self, ExitReport, Frame, LimitsOrder, LogOrder, Order, OrphanPolicy, Report, StartFault,
    StartOrder, StatusReport, Stdout,
};

/// Time limit of every wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

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
    /// The note of the previous daemon.
    pub(crate) note: Vec<u8>,
    /// Unread stdout sent by the shim.
    pub(crate) unread: Vec<u8>,
}

/// An owned record.
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
        Self::launch(&mut Command::new(SHIM))
    }

    /// Launches a shim through the given command.
    pub(crate) fn launch(command: &mut Command) -> Self {
        let (daemon_end, shim_end) = UnixStream::pair().unwrap();
        daemon_end.set_read_timeout(Some(TIMEOUT)).unwrap();
        let command = command.stdin(OwnedFd::from(shim_end)).env("XY_FROM_THE_DAEMON", "1");
        let shim = command.spawn().unwrap();
        // The command still holds the shim's end of the socket.
        command.stdin(std::process::Stdio::null());
        Self {
            socket: Some(daemon_end),
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

    /// Launches a shim and starts a shell script with it.
    pub(crate) fn start_script(script: &str, stdout: Stdout) -> Self {
        let mut daemon = Self::new();
        daemon.start(&daemon.script(script, stdout));
        daemon
    }

    /// Returns an order to run a shell script.
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
            gone: OrphanPolicy { orphan_ms: 60_000, grace_ms: 500 },
            open_files: None,
            life: "test-life".to_owned(),
            socket: None,
            note: "first note".to_owned(),
            limits: LimitsOrder::default(),
        }
    }

    /// Launches a shim that a later daemon can find, and starts a shell script with it.
    pub(crate) fn start_lasting(script: &str, stdout: Stdout) -> Self {
        Self::start_lasting_with(script, stdout, |_| ())
    }

    /// Like [`start_lasting`](Self::start_lasting), with a changed order.
    pub(crate) fn start_lasting_with(
        script: &str,
        stdout: Stdout,
        change: impl FnOnce(&mut StartOrder),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let lock = File::create(folder.path().join("x.lock")).unwrap();
        lock.try_lock().unwrap();
        let mut daemon = Self::launch(Command::new(SHIM).stdout(lock));
        daemon.folder = folder;
        let mut order = daemon.script(script, stdout);
        order.socket = Some(daemon.path("x.sock").to_str().unwrap().to_owned());
        change(&mut order);
        daemon.start(&order);
        daemon
    }

    /// Returns true if the shim holds its lock.
    pub(crate) fn holds_lock(&self) -> bool {
        File::open(self.path("x.lock")).unwrap().try_lock().is_err()
    }

    /// Opens a connection that has not introduced itself.
    pub(crate) fn connect(&self) -> UnixStream {
        let stream = xy_shim::listener::connect(&self.path("x.sock")).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Connects as another daemon and reads until the status arrives.
    pub(crate) fn reconnect(&mut self) -> StatusReport {
        self.socket = Some(self.connect());
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

    pub(crate) fn send_unparsed(&mut self, bytes: &[u8]) {
        let mut frame = Vec::new();
        wire::put_unparsed_output(&mut frame, bytes);
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

    /// Waits until the server runs. Returns its process ID.
    pub(crate) fn wait_started(&mut self) -> i32 {
        let pid = self.wait_for_report(|report| match report {
            Report::Started { pid, .. } => Some(*pid),
            _ => None,
        });
        pid.cast_signed()
    }

    /// Waits until the server runs. Returns the ends of its stdin and stdout.
    pub(crate) fn take_ends(&mut self) -> Ends {
        self.wait_started();
        self.received_ends()
    }

    /// Waits until the server runs. Returns the end of its stdin, the only one sent.
    pub(crate) fn take_stdin(&mut self) -> File {
        self.wait_started();
        self.received_stdin()
    }

    /// Returns the end of stdin, the only one received.
    pub(crate) fn received_stdin(&mut self) -> File {
        assert_eq!(self.descriptors.len(), 1);
        File::from(self.descriptors.remove(0))
    }

    /// Returns the received ends of stdin and stdout.
    pub(crate) fn received_ends(&mut self) -> Ends {
        let mut take_ends = std::mem::take(&mut self.descriptors).into_iter().map(File::from);
        let (stdin, stdout) = (take_ends.next().unwrap(), take_ends.next().unwrap());
        assert!(take_ends.next().is_none());
        Ends { stdin, stdout }
    }

    pub(crate) fn wait_start_failed(&mut self) -> StartFault {
        self.wait_for_report(|report| match report {
            Report::StartFailed(fault) => Some(fault.clone()),
            _ => None,
        })
    }

    pub(crate) fn wait_exited(&mut self) -> ExitReport {
        self.wait_for_report(|report| match report {
            Report::Exited(report) => Some(report.clone()),
            _ => None,
        })
    }

    pub(crate) fn wait_log_trouble(&mut self) -> Option<String> {
        let problem = self.wait_for_report(|report| match report {
            Report::LogTrouble { problem } => Some(problem.clone()),
            _ => None,
        });
        self.reports.retain(|report| !matches!(report, Report::LogTrouble { .. }));
        problem
    }

    /// Waits for a line of output.
    pub(crate) fn wait_line(&mut self, wait_line: &str) {
        while !self.records.iter().any(|record| record.bytes == wait_line.as_bytes()) {
            assert!(self.read(), "the shim ended without a line `{wait_line}`");
        }
    }

    /// Waits for this many lines of output.
    pub(crate) fn wait_lines(&mut self, count: usize) {
        while self.records.len() < count {
            assert!(self.read(), "the shim ended with {} lines", self.records.len());
        }
    }

    /// Lets the shim end and reads everything it sends.
    pub(crate) fn finish(&mut self) {
        self.order(&Order::Finish);
        self.read_to_end();
    }

    /// Reads until the shim ends.
    pub(crate) fn read_to_end(&mut self) {
        while self.read() {}
        assert!(self.unparsed.is_empty(), "the shim ended in the middle of a frame");
        assert!(self.wait_shim().success());
    }

    pub(crate) fn hang_up(&mut self) {
        self.socket = None;
    }

    /// Waits for the process of the shim.
    pub(crate) fn wait_shim(&mut self) -> ExitStatus {
        let mut shim = self.shim.take().unwrap();
        with_timeout(move || shim.wait().unwrap())
    }

    fn wait_for_report<T>(&mut self, wanted: impl Fn(&Report) -> Option<T>) -> T {
        loop {
            if let Some(found) = self.reports.iter().find_map(&wanted) {
                return found;
            }
            assert!(self.read(), "the shim ended after it had sent {:?}", self.reports);
        }
    }

    /// Reads once. Returns true if the shim is still there.
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
                other => panic!("a shim never sends {other:?}"),
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
            let limit = TIMEOUT.try_into().unwrap();
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

/// Returns true if there is no such process.
pub(crate) fn is_gone(pid: i32) -> bool {
    test_kill_process(Pid::from_raw(pid).unwrap()).is_err()
}

/// Waits until `condition` is true.
pub(crate) fn wait_until(condition: impl Fn() -> bool + Send + 'static) {
    with_timeout(move || {
        while !condition() {
            std::thread::yield_now();
        }
    });
}

/// Runs work that may hang, and panics if it exceeds the time limit.
pub(crate) fn with_timeout<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    result.recv_timeout(TIMEOUT).expect("done within the limit")
}

/// Returns the report of an exit that left no process behind.
pub(crate) fn exit_report(code: Option<i32>, signal: Option<i32>, asked: bool) -> ExitReport {
    ExitReport { code, signal, asked, survivors: Vec::new(), oom: None }
}
