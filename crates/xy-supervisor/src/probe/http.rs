//! The little of HTTP/1.1 that a probe needs: one GET, and the status of its answer.
//!
//! Whoever answers may be anybody: nothing beyond the head is read, and of that no more than
//! fits. How long it takes is up to whoever asks.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A head that is longer is none.
const LONGEST_HEAD: usize = 16 * 1024;

/// What may come before the answer itself, such as `103 Early Hints`.
const MOST_INTERIM: usize = 8;

/// Asks; the status of the answer, or `None` for what is no HTTP.
pub(super) async fn get(mut stream: TcpStream, port: u16, path: &str) -> io::Result<Option<u16>> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: xy\r\nAccept: */*\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    loop {
        match status(&head) {
            Status::Known(status) => return Ok(Some(status)),
            Status::Nonsense => return Ok(None),
            Status::More if head.len() >= LONGEST_HEAD => return Ok(None),
            Status::More => {}
        }
        let mut chunk = [0; 1024];
        match stream.read(&mut chunk).await? {
            0 => return Ok(None),
            count => head.extend_from_slice(&chunk[..count]),
        }
    }
}

/// What the beginning of an answer says.
#[derive(Debug, PartialEq, Eq)]
enum Status {
    Known(u16),
    Nonsense,
    /// It is too short to say anything.
    More,
}

fn status(mut head: &[u8]) -> Status {
    for _ in 0..MOST_INTERIM {
        let Some(end) = head.iter().position(|byte| *byte == b'\n') else {
            return if may_begin(head) { Status::More } else { Status::Nonsense };
        };
        match code(&head[..end]) {
            None => return Status::Nonsense,
            Some(100..=199) => {}
            Some(code) => return Status::Known(code),
        }
        let Some(end) = head.windows(4).position(|it| it == b"\r\n\r\n") else {
            return Status::More;
        };
        head = &head[end + 4..];
    }
    Status::Nonsense
}

/// Whether a first line may begin like this.
fn may_begin(line: &[u8]) -> bool {
    const NAME: &[u8] = b"HTTP/1.";
    let known = line.len().min(NAME.len());
    line[..known] == NAME[..known]
}

/// The code in a first line such as `HTTP/1.1 200 OK`.
fn code(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.")?;
    let [b'0'..=b'9', b' ', code @ ..] = rest else { return None };
    let (code, rest) = code.split_at_checked(3)?;
    let is_whole = matches!(rest.first(), None | Some(b' ' | b'\r'));
    let code: u16 = std::str::from_utf8(code).ok()?.parse().ok()?;
    (is_whole && (100..=599).contains(&code)).then_some(code)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_line_decides_as_soon_as_it_is_there() {
        let table = [
            ("", Status::More),
            ("HT", Status::More),
            ("HTTP/1.1 200", Status::More),
            ("HTTP/1.1 200 OK\r\n", Status::Known(200)),
            ("HTTP/1.0 204\r\n", Status::Known(204)),
            ("HTTP/1.1 503 Not\r\nX: y\r\n\r\nno", Status::Known(503)),
            ("HTTP/1.1 103 Early Hints\r\nLink: x\r\n", Status::More),
            ("HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n", Status::Known(200)),
            ("HTTP/2 200\r\n", Status::Nonsense),
            ("HTTP/1.1 2000 OK\r\n", Status::Nonsense),
            ("HTTP/1.1 +20 OK\r\n", Status::Nonsense),
            ("HTTP/1.1 999 OK\r\n", Status::Nonsense),
            ("HTTP/1.1  200 OK\r\n", Status::Nonsense),
            ("SSH-2.0-x", Status::Nonsense),
            ("{\"jsonrpc\"", Status::Nonsense),
        ];
        for (head, wanted) in table {
            assert_eq!(status(head.as_bytes()), wanted, "{head}");
        }
        let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(100);
        assert_eq!(status(endless.as_bytes()), Status::Nonsense);
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_odd(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = status(&bytes);
            let _ = status(&[b"HTTP/1.1 ".as_slice(), &bytes].concat());
        }
    }
}
