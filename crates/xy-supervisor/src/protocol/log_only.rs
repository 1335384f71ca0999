//! A driver that speaks no protocol: all output of a server goes to its log.

use std::io;

use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc;

use super::{Connection, DriverCommand, DriverEvent, ProtocolDriver, ServerIo};

/// Maximum bytes of one read.
const READ_BYTES: usize = 64 * 1024;

/// Maximum length of a line; a longer one is split.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Number of reads that empty a full pipe. The output of a dead server fits in its pipe.
const MAX_FINAL_READS: usize = 16;

/// A driver that keeps stdin open, writes nothing, and reports all output as unparsed.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogOnlyDriver;

impl ProtocolDriver for LogOnlyDriver {
    fn drive(&self, connection: Connection) {
        tokio::spawn(log_output(connection));
    }
}

async fn log_output(connection: Connection) {
    let Connection { key, io, handover, events, mut commands, .. } = connection;
    let ServerIo::Pipes { stdin, stdout } = io else { return };
    let stdout = match Receiver::from_owned_fd(stdout) {
        Ok(stdout) => stdout,
        Err(error) => {
            return tracing::warn!(server = %key, %error, "could not read the server's stdout");
        }
    };
    let mut stdin = Some(stdin);
    let mut reporter = Reporter { events, lines: Lines::default() };
    reporter.report_lines(&handover.unwrap_or_default().unread).await;
    let mut is_open = true;
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(DriverCommand::Close { .. }) => stdin = None,
                Some(DriverCommand::HandOver(reply)) => {
                    drop((stdin, stdout));
                    let _ = reply.send(reporter.lines.partial); // The supervisor may have given up.
                    return;
                }
                // This driver has nothing to report.
                Some(DriverCommand::Checkup(_) | DriverCommand::StopIfIdle(_)) => {}
                Some(DriverCommand::Exited(_)) | None => break,
            },
            bytes = read(&stdout), if is_open => {
                is_open = !bytes.is_empty();
                reporter.report_lines(&bytes).await;
                if !is_open {
                    reporter.report_partial_line().await;
                    reporter.send(DriverEvent::StdoutClosed).await;
                }
            }
        }
    }
    for _ in 0..MAX_FINAL_READS {
        match read_rest(&stdout) {
            Ok(bytes) if !bytes.is_empty() => reporter.report_lines(&bytes).await,
            _ => break,
        }
    }
    reporter.report_partial_line().await;
}

/// Waits for output and returns it; empty at the end of the stream. Cancel-safe.
async fn read(stdout: &Receiver) -> Vec<u8> {
    loop {
        if stdout.readable().await.is_err() {
            return Vec::new();
        }
        match read_now(stdout) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read.unwrap_or_default(),
        }
    }
}

fn read_now(stdout: &Receiver) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; READ_BYTES];
    let count = stdout.try_read(&mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Reads available output without waiting for readiness. A server may have written all its
/// output and ended before the runtime first reports the pipe as readable.
fn read_rest(stdout: &Receiver) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; READ_BYTES];
    let count = rustix::io::read(stdout, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Reports output to the supervisor line by line.
struct Reporter {
    events: mpsc::Sender<DriverEvent>,
    lines: Lines,
}

impl Reporter {
    async fn report_lines(&mut self, bytes: &[u8]) {
        for lines in self.lines.split(bytes) {
            self.send(DriverEvent::UnparsedOutput(lines)).await;
        }
    }

    async fn report_partial_line(&mut self) {
        let partial = std::mem::take(&mut self.lines.partial);
        if !partial.is_empty() {
            self.send(DriverEvent::UnparsedOutput(partial)).await;
        }
    }

    async fn send(&self, event: DriverEvent) {
        let _ = self.events.send(event).await; // The supervisor may have hung up.
    }
}

/// Splits a stream into whole lines.
#[derive(Debug, Default)]
struct Lines {
    /// The beginning of an unfinished line.
    partial: Vec<u8>,
}

impl Lines {
    /// Returns the lines that `bytes` complete. Several lines form one piece, without the last
    /// newline.
    fn split(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut whole = Vec::new();
        let begun = match bytes.iter().rposition(|byte| *byte == b'\n') {
            None => bytes,
            Some(end) => {
                let mut lines = std::mem::take(&mut self.partial);
                lines.extend_from_slice(&bytes[..end]);
                whole.push(lines);
                &bytes[end + 1..]
            }
        };
        self.partial.extend_from_slice(begun);
        while self.partial.len() > MAX_LINE_BYTES {
            let after = self.partial.split_off(MAX_LINE_BYTES);
            whole.push(std::mem::replace(&mut self.partial, after));
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pieces: &[Vec<u8>]) -> Vec<&str> {
        pieces.iter().map(|piece| std::str::from_utf8(piece).unwrap()).collect()
    }

    #[test]
    fn line_is_complete_at_its_newline() {
        let mut lines = Lines::default();
        assert_eq!(text(&lines.split(b"one\ntwo\nthr")), ["one\ntwo"]);
        assert_eq!(text(&lines.split(b"ee")), Vec::<&str>::new());
        assert_eq!(text(&lines.split(b"\n\n")), ["three\n"]);
        assert_eq!(lines.partial, b"");
    }

    #[test]
    fn endless_line_is_split() {
        let mut lines = Lines::default();
        let pieces: Vec<_> = (0..100).flat_map(|_| lines.split(&[b'x'; 10_000])).collect();
        assert!(pieces.iter().all(|piece| piece.len() == MAX_LINE_BYTES));
        assert_eq!(pieces.len() * MAX_LINE_BYTES + lines.partial.len(), 1_000_000);
        assert!(lines.partial.len() <= MAX_LINE_BYTES);
    }
}
