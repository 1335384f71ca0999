//! The part of HTTP/1.1 that a probe needs: one GET, and the status of its response.
//!
//! The peer is not trusted: only the head is read, up to a limit. The caller sets a timeout.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Maximum size of a response head.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Maximum number of interim responses, such as `103 Early Hints`.
const MAX_INTERIM_RESPONSES: usize = 8;

/// Sends a GET and returns the status of the response, or `None` if that is not HTTP.
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
            Status::Invalid => return Ok(None),
            Status::Incomplete if head.len() >= MAX_HEAD_BYTES => return Ok(None),
            Status::Incomplete => {}
        }
        let mut chunk = [0; 1024];
        match stream.read(&mut chunk).await? {
            0 => return Ok(None),
            count => head.extend_from_slice(&chunk[..count]),
        }
    }
}

/// The status that the beginning of a response tells.
#[derive(Debug, PartialEq, Eq)]
enum Status {
    Known(u16),
    /// Not HTTP.
    Invalid,
    /// More bytes are needed.
    Incomplete,
}

fn status(mut head: &[u8]) -> Status {
    for _ in 0..MAX_INTERIM_RESPONSES {
        let Some(end) = head.iter().position(|byte| *byte == b'\n') else {
            return if is_status_line_prefix(head) { Status::Incomplete } else { Status::Invalid };
        };
        match code(&head[..end]) {
            None => return Status::Invalid,
            Some(100..=199) => {}
            Some(code) => return Status::Known(code),
        }
        let Some(end) = head.windows(4).position(|it| it == b"\r\n\r\n") else {
            return Status::Incomplete;
        };
        head = &head[end + 4..];
    }
    Status::Invalid
}

/// Returns true if `line` can be the beginning of a status line.
fn is_status_line_prefix(line: &[u8]) -> bool {
    const NAME: &[u8] = b"HTTP/1.";
    let known = line.len().min(NAME.len());
    line[..known] == NAME[..known]
}

/// Returns the code of a status line such as `HTTP/1.1 200 OK`.
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
    fn status_line_decides_once_complete() {
        let table = [
            ("", Status::Incomplete),
            ("HT", Status::Incomplete),
            ("HTTP/1.1 200", Status::Incomplete),
            ("HTTP/1.1 200 OK\r\n", Status::Known(200)),
            ("HTTP/1.0 204\r\n", Status::Known(204)),
            ("HTTP/1.1 503 Not\r\nX: y\r\n\r\nno", Status::Known(503)),
            ("HTTP/1.1 103 Early Hints\r\nLink: x\r\n", Status::Incomplete),
            ("HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n", Status::Known(200)),
            ("HTTP/2 200\r\n", Status::Invalid),
            ("HTTP/1.1 2000 OK\r\n", Status::Invalid),
            ("HTTP/1.1 +20 OK\r\n", Status::Invalid),
            ("HTTP/1.1 999 OK\r\n", Status::Invalid),
            ("HTTP/1.1  200 OK\r\n", Status::Invalid),
            ("SSH-2.0-x", Status::Invalid),
            ("{\"jsonrpc\"", Status::Invalid),
        ];
        for (head, expected) in table {
            assert_eq!(status(head.as_bytes()), expected, "{head}");
        }
        let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(100);
        assert_eq!(status(endless.as_bytes()), Status::Invalid);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = status(&bytes);
            let _ = status(&[b"HTTP/1.1 ".as_slice(), &bytes].concat());
        }
    }
}
