//! Somebody who only listens: all that a server says is for its log.

use std::io;

use tokio::net::unix::pipe::Receiver;
use tokio::sync::mpsc;

use super::{Line, Said, Speak, Told, Way};

/// What one read takes.
const READ_BYTES: usize = 64 * 1024;

/// A line is cut where it would be longer than this.
const LONGEST_LINE: usize = 64 * 1024;

/// The most a pipe holds, in reads: what the dead have written is within it.
const FULL_PIPE: usize = 16;

/// Keeps stdin open, says nothing, and passes on everything it hears as stray.
#[derive(Debug, Clone, Copy, Default)]
pub struct Listener;

impl Speak for Listener {
    fn speak(&self, line: Line) {
        tokio::spawn(listen(line));
    }
}

async fn listen(line: Line) {
    let Line { key, way, before, said, mut told, .. } = line;
    let Way::Pipes { stdin, stdout } = way else { return };
    let stdout = match Receiver::from_owned_fd(stdout) {
        Ok(stdout) => stdout,
        Err(error) => return tracing::warn!(server = %key, %error, "nobody listens to it"),
    };
    let mut stdin = Some(stdin);
    let mut ear = Ear { said, lines: Lines::default() };
    ear.hear(&before.unwrap_or_default().unread).await;
    let mut is_open = true;
    loop {
        tokio::select! {
            word = told.recv() => match word {
                Some(Told::Close { .. }) => stdin = None,
                Some(Told::LetGo(answer)) => {
                    drop((stdin, stdout));
                    let _ = answer.send(ear.lines.rest); // Whoever asked may have left.
                    return;
                }
                Some(Told::Checkup(_) | Told::Rest(_)) => {} // There is nothing to say.
                Some(Told::Over(_)) | None => break,
            },
            heard = read(&stdout), if is_open => {
                is_open = !heard.is_empty();
                ear.hear(&heard).await;
                if !is_open {
                    ear.hear_end().await;
                    ear.say(Said::Mute).await;
                }
            }
        }
    }
    for _ in 0..FULL_PIPE {
        match read_rest(&stdout) {
            Ok(heard) if !heard.is_empty() => ear.hear(&heard).await,
            _ => break,
        }
    }
    ear.hear_end().await;
}

/// Reads once there is something; nothing means that there never will be. Cancel-safe.
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

/// Reads what is there, also if nobody has told us yet that there is something: a server may
/// have said all it had to say and ended before we were asked for the first time.
fn read_rest(stdout: &Receiver) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; READ_BYTES];
    let count = rustix::io::read(stdout, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Hears bytes and passes on lines.
struct Ear {
    said: mpsc::Sender<Said>,
    lines: Lines,
}

impl Ear {
    async fn hear(&mut self, bytes: &[u8]) {
        for lines in self.lines.cut(bytes) {
            self.say(Said::Stray(lines)).await;
        }
    }

    async fn hear_end(&mut self) {
        let rest = std::mem::take(&mut self.lines.rest);
        if !rest.is_empty() {
            self.say(Said::Stray(rest)).await;
        }
    }

    async fn say(&self, said: Said) {
        let _ = self.said.send(said).await; // Nobody may want to know any more.
    }
}

/// Cuts a stream into whole lines.
#[derive(Debug, Default)]
struct Lines {
    /// The beginning of a line.
    rest: Vec<u8>,
}

impl Lines {
    /// What has become whole, without the last end of a line: several lines are one piece.
    fn cut(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut whole = Vec::new();
        let begun = match bytes.iter().rposition(|byte| *byte == b'\n') {
            None => bytes,
            Some(end) => {
                let mut lines = std::mem::take(&mut self.rest);
                lines.extend_from_slice(&bytes[..end]);
                whole.push(lines);
                &bytes[end + 1..]
            }
        };
        self.rest.extend_from_slice(begun);
        while self.rest.len() > LONGEST_LINE {
            let after = self.rest.split_off(LONGEST_LINE);
            whole.push(std::mem::replace(&mut self.rest, after));
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
    fn a_line_is_whole_when_its_end_has_come() {
        let mut lines = Lines::default();
        assert_eq!(text(&lines.cut(b"one\ntwo\nthr")), ["one\ntwo"]);
        assert_eq!(text(&lines.cut(b"ee")), Vec::<&str>::new());
        assert_eq!(text(&lines.cut(b"\n\n")), ["three\n"]);
        assert_eq!(lines.rest, b"");
    }

    #[test]
    fn an_endless_line_is_cut_and_needs_no_more_memory() {
        let mut lines = Lines::default();
        let cut: Vec<_> = (0..100).flat_map(|_| lines.cut(&[b'x'; 10_000])).collect();
        assert!(cut.iter().all(|piece| piece.len() == LONGEST_LINE));
        assert_eq!(cut.len() * LONGEST_LINE + lines.rest.len(), 1_000_000);
        assert!(lines.rest.len() <= LONGEST_LINE);
    }
}
