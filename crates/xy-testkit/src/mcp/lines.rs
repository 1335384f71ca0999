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

use super::{McpClient, Receiver, Transport};
use crate::wait::poll;

/// How long a process may take to exit after its stdin is closed.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum length of a line; a longer one is split and counts as no message.
const MAX_LINE_BYTES: u64 = 256 << 20;

/// The writer of lines; `None` after it is closed.
struct Lines<W>(Mutex<Option<W>>);

impl<W: Write + Send + 'static> Transport for Lines<W> {
    fn send(self: Arc<Self>, receiver: &Arc<Receiver>, message: &str, id: Option<&str>) {
        if !self.line(message)
            && let Some(id) = id
        {
            receiver.inbox.lose(id, "the other side does not read".to_owned());
        }
    }
}

impl<W: Write> Lines<W> {
    fn new(writer: W) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(writer))))
    }

    /// Writes a line in one write. Returns true if it was written.
    fn line(&self, message: &str) -> bool {
        self.bytes(format!("{message}\n").as_bytes())
    }

    fn bytes(&self, bytes: &[u8]) -> bool {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writer
            .as_mut()
            .is_some_and(|writer| writer.write_all(bytes).and_then(|()| writer.flush()).is_ok())
    }

    fn close(&self) -> Option<W> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Reads lines on a separate thread until the end.
fn listen<W>(receiver: &Arc<Receiver>, answers: &Arc<Lines<W>>, from: impl Read + Send + 'static)
where
    W: Write + Send + 'static,
{
    let (receiver, answers) = (Arc::clone(receiver), Arc::clone(answers));
    thread::spawn(move || {
        let mut from = BufReader::with_capacity(64 * 1024, from);
        let mut line = Vec::new();
        while matches!((&mut from).take(MAX_LINE_BYTES).read_until(b'\n', &mut line), Ok(1..)) {
            let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line));
            if let Some(answer) = receiver.receive(&text) {
                answers.line(&answer);
            }
            line.clear();
        }
        receiver.inbox.change(|received| received.is_closed = true);
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
        let child_stderr = stderr.try_clone().expect("a descriptor is free");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(child_stderr);
        let mut child = command.spawn().unwrap_or_else(|cause| panic!("no {command:?}: {cause}"));
        let stdin = Lines::new(child.stdin.take().expect("it is piped"));
        let receiver = Receiver::new();
        listen(&receiver, &stdin, child.stdout.take().expect("it is piped"));
        let client = McpClient::new(receiver, Arc::clone(&stdin) as Arc<dyn Transport>);
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
        let ended = self.ends_within(END_TIMEOUT);
        ended.unwrap_or_else(|| {
            panic!("process {} did not end within {END_TIMEOUT:?}: {}", self.pid(), self.stderr())
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
            .unwrap_or_else(|cause| panic!("no server listens at {}: {cause}", path.display()));
        stream.set_write_timeout(Some(super::WAIT_TIMEOUT)).expect("a limit can be set");
        let listening = stream.try_clone().expect("a descriptor is free");
        let sending = Lines::new(stream);
        if !first_line.is_empty() {
            assert!(sending.line(first_line), "no server reads at {}", path.display());
        }
        let receiver = Receiver::new();
        listen(&receiver, &sending, listening);
        let client = McpClient::new(receiver, Arc::clone(&sending) as Arc<dyn Transport>);
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
