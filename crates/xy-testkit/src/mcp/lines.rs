//! A client over lines: with a child's stdin and stdout, or a socket.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{Carry, Ear, McpClient};
use crate::wait::poll;

/// How long a process may take to exit after its stdin is closed.
const END_WITHIN: Duration = Duration::from_secs(20);

/// Maximum length of a line; a longer one is split and counts as no message.
const LONGEST_LINE: u64 = 256 << 20;

/// The writer of lines; `None` after it is closed.
struct Lines<W>(Mutex<Option<W>>);

impl<W: Write + Send + 'static> Carry for Lines<W> {
    fn carry(self: Arc<Self>, ear: &Arc<Ear>, message: &str, id: Option<&str>) {
        if !self.line(message)
            && let Some(id) = id
        {
            ear.inbox.lose(id, "the other side does not read".to_owned());
        }
    }
}

impl<W: Write> Lines<W> {
    fn new(way: W) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(way))))
    }

    /// Writes a line in one write. Returns true if it was written.
    fn line(&self, message: &str) -> bool {
        self.bytes(format!("{message}\n").as_bytes())
    }

    fn bytes(&self, bytes: &[u8]) -> bool {
        let mut way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        way.as_mut().is_some_and(|way| way.write_all(bytes).and_then(|()| way.flush()).is_ok())
    }

    fn close(&self) -> Option<W> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Reads lines on a separate thread until the end.
fn listen<W>(ear: &Arc<Ear>, answers: &Arc<Lines<W>>, from: impl Read + Send + 'static)
where
    W: Write + Send + 'static,
{
    let (ear, answers) = (Arc::clone(ear), Arc::clone(answers));
    thread::spawn(move || {
        let mut from = BufReader::with_capacity(64 * 1024, from);
        let mut line = Vec::new();
        while matches!((&mut from).take(LONGEST_LINE).read_until(b'\n', &mut line), Ok(1..)) {
            let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line));
            if let Some(answer) = ear.hear(&text) {
                answers.line(&answer);
            }
            line.clear();
        }
        ear.inbox.change(|heard| heard.is_closed = true);
    });
}

/// A client of a process over stdin and stdout: a server, or `xy connect`.
///
/// Dropping it closes the process's stdin, and kills the process if it does not exit.
#[derive(Debug)]
pub struct McpStdio {
    client: McpClient,
    child: Child,
    stdin: Stdin,
    stderr: File,
}

struct Stdin(Arc<Lines<std::process::ChildStdin>>);

impl std::fmt::Debug for Stdin {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("stdin")
    }
}

impl McpStdio {
    /// Starts `command`.
    #[track_caller]
    pub fn start(mut command: Command) -> Self {
        let stderr = tempfile::tempfile().expect("a scratch file");
        let told = stderr.try_clone().expect("a descriptor is free");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(told);
        let mut child = command.spawn().unwrap_or_else(|cause| panic!("no {command:?}: {cause}"));
        let stdin = Lines::new(child.stdin.take().expect("it is piped"));
        let ear = Ear::new();
        listen(&ear, &stdin, child.stdout.take().expect("it is piped"));
        let client = McpClient::new(ear, Arc::clone(&stdin) as Arc<dyn Carry>);
        Self { client, child, stdin: Stdin(stdin), stderr }
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns what the process has written to stderr so far.
    pub fn stderr(&self) -> String {
        let length = self.stderr.metadata().map_or(0, |it| it.len());
        let mut bytes = vec![0; usize::try_from(length).expect("it fits in memory")];
        let read = self.stderr.read_exact_at(&mut bytes, 0);
        read.expect("a scratch file can be read");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Writes raw bytes without a newline. Returns true if they were written.
    pub fn send_bytes(&self, bytes: &[u8]) -> bool {
        self.stdin.0.bytes(bytes)
    }

    /// Closes the process's stdin. Its output can still be received.
    pub fn close_stdin(&self) {
        drop(self.stdin.0.close());
    }

    /// Kills the process and waits until it has exited.
    pub fn kill9(&mut self) {
        let _ = self.child.kill(); // It may have ended.
        self.child.wait().expect("a child of ours can be waited for");
    }

    /// Waits until the process exits by itself.
    #[track_caller]
    pub fn wait_exit(&mut self) -> ExitStatus {
        let ended = self.ends_within(END_WITHIN);
        ended.unwrap_or_else(|| {
            panic!("process {} did not end within {END_WITHIN:?}: {}", self.pid(), self.stderr())
        })
    }

    /// Closes the process's stdin and waits until it exits.
    #[track_caller]
    pub fn close(mut self) -> ExitStatus {
        self.close_stdin();
        self.wait_exit()
    }

    fn ends_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        poll(limit, || self.child.try_wait().expect("a child of ours can be waited for"))
    }
}

impl Deref for McpStdio {
    type Target = McpClient;

    fn deref(&self) -> &McpClient {
        &self.client
    }
}

impl Drop for McpStdio {
    fn drop(&mut self) {
        self.close_stdin();
        if self.ends_within(Duration::from_secs(2)).is_none() {
            self.kill9();
        }
    }
}

/// A client on a Unix socket. Dropping it closes the connection.
pub struct McpSocket {
    client: McpClient,
    sending: Arc<Lines<UnixStream>>,
}

impl std::fmt::Debug for McpSocket {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("McpSocket").field("client", &self.client).finish_non_exhaustive()
    }
}

impl McpSocket {
    /// Connects to the socket at `path` and sends `first_line`, unless it is empty.
    #[track_caller]
    pub fn connect(path: &Path, first_line: &str) -> Self {
        let stream = UnixStream::connect(path)
            .unwrap_or_else(|cause| panic!("nobody at {}: {cause}", path.display()));
        stream.set_write_timeout(Some(super::WAIT_WITHIN)).expect("a limit can be set");
        let listening = stream.try_clone().expect("a descriptor is free");
        let sending = Lines::new(stream);
        if !first_line.is_empty() {
            assert!(sending.line(first_line), "nobody reads at {}", path.display());
        }
        let ear = Ear::new();
        listen(&ear, &sending, listening);
        let client = McpClient::new(ear, Arc::clone(&sending) as Arc<dyn Carry>);
        Self { client, sending }
    }

    /// Writes raw bytes without a newline. Returns true if they were written.
    pub fn send_bytes(&self, bytes: &[u8]) -> bool {
        self.sending.bytes(bytes)
    }

    /// Closes the connection.
    pub fn close(self) {
        drop(self);
    }
}

impl Deref for McpSocket {
    type Target = McpClient;

    fn deref(&self) -> &McpClient {
        &self.client
    }
}

impl Drop for McpSocket {
    fn drop(&mut self) {
        // The reader thread also holds the socket, so closing this handle alone is not enough.
        if let Some(stream) = self.sending.close() {
            let _ = stream.shutdown(Shutdown::Both); // The other side may have left.
        }
    }
}
