//! The test of the sockets: each file is in place, and a server answers on it.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;
use xy_protocol::control::{CheckStatus, PathHealth, Repair, Request};
use xy_protocol::handshake::{HANDSHAKE_VERSION, Hello, View};

use crate::sockets::{Socket, Sockets};

/// Maximum time for a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum number of bytes that are read of a response.
const MAX_RESPONSE_BYTES: u64 = 64 * 1024;

/// Tests both sockets.
pub(super) async fn test(
    sockets: &Sockets,
    repair: bool,
    repairs: &mut Vec<Repair>,
) -> Vec<PathHealth> {
    let version = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, Request::Version.method());
    let view = View::Profile("default".to_owned());
    let hello = Hello { protocol: HANDSHAKE_VERSION, view, client_pid: None };
    let hello = serde_json::to_string(&hello).expect("wire types always serialise");
    vec![
        test_socket(&sockets.control, &version, repair, repairs).await,
        test_socket(&sockets.mcp, &hello, repair, repairs).await,
    ]
}

async fn test_socket(
    socket: &Socket,
    hello: &str,
    repair: bool,
    repairs: &mut Vec<Repair>,
) -> PathHealth {
    let path = socket.path().display().to_string();
    let bad = |note: String| {
        let path = path.clone();
        PathHealth { status: CheckStatus::Error, path, note: Some(note) }
    };
    let is_lost = !socket.is_in_place();
    if is_lost && !repair {
        return bad("its file is missing, or another file has replaced it".to_owned());
    }
    if is_lost && let Err(error) = socket.rebind() {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
        return bad(format!("it is missing, and {error}{}", cause.unwrap_or_default()));
    }
    if let Err(cause) = exchange_line(&socket.path(), hello).await {
        return bad(format!("no answer: {cause}"));
    }
    if is_lost {
        let reason = "its file was missing".to_owned();
        repairs.push(Repair::SocketCreated { path: path.clone(), reason });
    }
    PathHealth { status: CheckStatus::Ok, path, note: None }
}

/// Sends one line, and waits for one. A refusal is an answer, too: a server is listening.
async fn exchange_line(path: &Path, line: &str) -> io::Result<()> {
    let exchange = async {
        let mut stream = BufReader::new(UnixStream::connect(path).await?);
        stream.write_all(format!("{line}\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.take(MAX_RESPONSE_BYTES).read_line(&mut answer).await?;
        let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
        answer.ends_with('\n').then_some(()).ok_or_else(gone)
    };
    timeout(RESPONSE_TIMEOUT, exchange).await.unwrap_or_else(|late| Err(late.into()))
}
