//! The sockets: whether they are where they should be, and whether somebody answers there.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;
use xy_protocol::control::{PlaceHealth, Repair, Request, Verdict};
use xy_protocol::door::{DOOR_PROTOCOL, Hello, View};

use crate::sockets::{Socket, Sockets};

/// How long an answer may take.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// The longest answer that is read.
const MOST_ANSWER: u64 = 64 * 1024;

/// Looks at both.
pub(super) async fn test(
    sockets: &Sockets,
    repair: bool,
    repairs: &mut Vec<Repair>,
) -> Vec<PlaceHealth> {
    let version = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, Request::Version.method());
    let view = View::Profile("default".to_owned());
    let hello = Hello { protocol: DOOR_PROTOCOL, view, client_pid: None };
    let hello = serde_json::to_string(&hello).expect("wire types always serialise");
    vec![
        look(&sockets.control, &version, repair, repairs).await,
        look(&sockets.mcp, &hello, repair, repairs).await,
    ]
}

async fn look(
    socket: &Socket,
    hello: &str,
    repair: bool,
    repairs: &mut Vec<Repair>,
) -> PlaceHealth {
    let path = socket.path().display().to_string();
    let bad = |note: String| {
        let path = path.clone();
        PlaceHealth { status: Verdict::Error, path, note: Some(note) }
    };
    let is_lost = !socket.is_in_place();
    if is_lost && !repair {
        return bad("its file is gone, or another has taken its place".to_owned());
    }
    if is_lost && let Err(error) = socket.renew() {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        return bad(format!("it is gone, and {error}{}", cause.unwrap_or_default()));
    }
    if let Err(cause) = ask(&socket.path(), hello).await {
        return bad(format!("nobody answers there: {cause}"));
    }
    if is_lost {
        let reason = "its file was gone".to_owned();
        repairs.push(Repair::SocketCreated { path: path.clone(), reason });
    }
    PlaceHealth { status: Verdict::Ok, path, note: None }
}

/// Says one line, and hears one. A refusal is an answer too: somebody is there.
async fn ask(path: &Path, line: &str) -> io::Result<()> {
    let asking = async {
        let mut stream = BufReader::new(UnixStream::connect(path).await?);
        stream.write_all(format!("{line}\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.take(MOST_ANSWER).read_line(&mut answer).await?;
        let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
        answer.ends_with('\n').then_some(()).ok_or_else(gone)
    };
    timeout(ANSWERS_WITHIN, asking).await.unwrap_or_else(|late| Err(late.into()))
}
