//! Parses the `gateway` block of `xy.kdl`: how MCP clients connect over HTTP.
//!
//! Clients can run everything that the servers offer. A gateway that other machines can reach is
//! therefore refused unless it requires the token.

use std::net::{Ipv6Addr, SocketAddr};

use super::read::{Reader, Spanned};
use super::values::Zero;
use super::words::{Word, word};
use crate::raw::RawNode;
use crate::report::{Problem, quote};
use crate::settings::{Auth, GatewaySettings};

const GATEWAY_WORDS: [Word; 7] = [
    word("listen", r#"listen "127.0.0.1:7979""#),
    word("hosts", r#"hosts "mcp.example.com""#),
    word("auth", r#"auth "token""#),
    word("sessions", "sessions 1000"),
    word("streams", "streams 64"),
    word("body", r#"body "32MiB""#),
    word("idle", r#"idle "1h""#),
];

const AUTHS: [(&str, Auth); 2] = [("token", Auth::Token), ("none", Auth::None)];

/// Maximum configurable number of sessions, or of streams per session.
const MAX_COUNT: u32 = 1_000_000;

/// Maximum configurable size of a body, which is held in memory as a whole.
const MAX_BODY_BYTES: u64 = 1 << 30;

/// Reads a `gateway` block. Absent fields keep their defaults.
pub(super) fn read(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> GatewaySettings {
    let mut gateway = GatewaySettings::default();
    let (mut address, mut auth) = (None, None);
    let Some(children) = reader.block(node, word) else { return gateway };
    for (node, word) in reader.known(children, &GATEWAY_WORDS, Some("gateway")) {
        match word.name {
            "listen" => address = listen(reader, node, word),
            "hosts" => gateway.hosts = hosts(reader, node, word),
            "auth" => auth = reader.choice(node, word, "auth", &AUTHS),
            "sessions" => gateway.sessions = count(reader, node, word).unwrap_or(gateway.sessions),
            "streams" => gateway.streams = count(reader, node, word).unwrap_or(gateway.streams),
            "body" => gateway.body = body(reader, node, word).unwrap_or(gateway.body),
            _ => {
                let zero = Zero::Forbidden("sessions would end as soon as they begin");
                let idle = reader.duration(node, word, zero);
                gateway.idle = idle.map_or(gateway.idle, |idle| idle.value);
            }
        }
    }
    check_exposure(reader, address.as_ref(), auth.as_ref());
    gateway.listen = address.map_or(gateway.listen, |address| address.value);
    gateway.auth = auth.map_or(gateway.auth, |auth| auth.value);
    gateway
}

/// Reads an address with a port, or `"off"`. Host names are refused, since they are not resolved
/// here.
fn listen(
    reader: &mut Reader<'_>,
    node: &RawNode,
    word: Word,
) -> Option<Spanned<Option<SocketAddr>>> {
    let text = reader.text(node, word)?;
    if text.value == "off" {
        return Some(text.map(|_| None));
    }
    // The only name with a fixed meaning.
    let written = match text.value.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.value.clone(),
    };
    if let Ok(address) = written.parse::<SocketAddr>() {
        return Some(text.map(|_| Some(address)));
    }
    let message = format!("{} is not an address with a port", quote(&text.value));
    let instead = "write it like `\"127.0.0.1:7979\"`, or `\"off\"` to turn HTTP off";
    reader.report(Problem::error(&text.at, message).suggest(instead));
    None
}

/// Reads host names without scheme, port or path, as clients send them in `Host`.
fn hosts(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Vec<String> {
    let mut hosts = Vec::new();
    for host in reader.texts(node, word) {
        if is_host(&host.value) {
            hosts.push(host.value);
            continue;
        }
        let message = format!("{} is not a host name", quote(&host.value));
        let instead = "use a name or an address alone, without scheme, port, path or `*`";
        reader.report(Problem::error(&host.at, message).suggest(instead));
    }
    hosts
}

fn is_host(text: &str) -> bool {
    let is_name = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'.' | b'_');
    !text.is_empty() && (text.bytes().all(is_name) || text.parse::<Ipv6Addr>().is_ok())
}

fn count(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<usize> {
    usize::try_from(reader.count(node, word, 1..=MAX_COUNT)?.value).ok()
}

fn body(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<u64> {
    let body = reader.size(node, word)?;
    if body.value <= MAX_BODY_BYTES {
        return Some(body.value);
    }
    let problem = Problem::error(&body.at, "`body` cannot be more than 1 GiB");
    reader.report(problem.suggest("each request is held in memory as a whole"));
    None
}

/// Refuses `auth "none"` on an address that other machines can reach, and warns about unencrypted
/// tokens.
fn check_exposure(
    reader: &mut Reader<'_>,
    address: Option<&Spanned<Option<SocketAddr>>>,
    auth: Option<&Spanned<Auth>>,
) {
    let Some(Spanned { value: Some(listen), at }) = address else { return };
    if listen.ip().to_canonical().is_loopback() {
        return;
    }
    let Some(auth) = auth.filter(|auth| auth.value == Auth::None) else {
        let message = "clients send tokens and all other data unencrypted to this address";
        let instead = "listen on `\"127.0.0.1:7979\"` behind a TLS proxy";
        return reader.report(Problem::warning(at, message).suggest(instead));
    };
    let message = format!("every client that reaches {} could use your servers", listen.ip());
    let problem = Problem::error(&auth.at, message)
        .label("use `auth \"token\"`, or listen on `\"127.0.0.1:7979\"`")
        .related(at, "other machines can reach this address");
    reader.report(problem);
}
