//! The `gateway` block of `xy.kdl`: where MCP clients come in over HTTP.
//!
//! Whoever comes in may run what the servers can do, so an open door to other machines
//! is refused unless clients have to show the token.

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

/// More sessions, or streams in one of them, no machine of one person needs.
const MOST: u32 = 1_000_000;

/// A body is kept in memory as a whole.
const LONGEST_BODY: u64 = 1 << 30;

/// Reads a `gateway` block; what it does not say is as if there was none.
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
                let zero = Zero::Senseless("a session would end as soon as it begins");
                let idle = reader.duration(node, word, zero);
                gateway.idle = idle.map_or(gateway.idle, |idle| idle.value);
            }
        }
    }
    check_door(reader, address.as_ref(), auth.as_ref());
    gateway.listen = address.map_or(gateway.listen, |address| address.value);
    gateway.auth = auth.map_or(gateway.auth, |auth| auth.value);
    gateway
}

/// An address with a port, or `"off"`. Names are refused: whom they mean is not decided here.
fn listen(
    reader: &mut Reader<'_>,
    node: &RawNode,
    word: Word,
) -> Option<Spanned<Option<SocketAddr>>> {
    let text = reader.text(node, word)?;
    if text.value == "off" {
        return Some(text.map(|_| None));
    }
    // The one name that means the same everywhere.
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

/// Names without scheme, port or path, as clients have them in `Host`.
fn hosts(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Vec<String> {
    let mut hosts = Vec::new();
    for host in reader.texts(node, word) {
        if is_host(&host.value) {
            hosts.push(host.value);
            continue;
        }
        let message = format!("{} is not the name of a host", quote(&host.value));
        let instead = "write a name or an address alone: no scheme, no port, no path, no `*`";
        reader.report(Problem::error(&host.at, message).suggest(instead));
    }
    hosts
}

fn is_host(text: &str) -> bool {
    let is_name = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'.' | b'_');
    !text.is_empty() && (text.bytes().all(is_name) || text.parse::<Ipv6Addr>().is_ok())
}

fn count(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<usize> {
    usize::try_from(reader.count(node, word, 1..=MOST)?.value).ok()
}

fn body(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<u64> {
    let body = reader.size(node, word)?;
    if body.value <= LONGEST_BODY {
        return Some(body.value);
    }
    let problem = Problem::error(&body.at, "`body` cannot be more than 1 GiB");
    reader.report(problem.suggest("each request is kept in memory as a whole"));
    None
}

/// Only clients of this machine may come in without showing anything.
fn check_door(
    reader: &mut Reader<'_>,
    address: Option<&Spanned<Option<SocketAddr>>>,
    auth: Option<&Spanned<Auth>>,
) {
    let Some(Spanned { value: Some(listen), at }) = address else { return };
    if listen.ip().to_canonical().is_loopback() {
        return;
    }
    let Some(auth) = auth.filter(|auth| auth.value == Auth::None) else {
        let message = "tokens and all else that clients send here are not encrypted";
        let instead = "listen at `\"127.0.0.1:7979\"` behind a proxy that has TLS";
        return reader.report(Problem::warning(at, message).suggest(instead));
    };
    let message = format!("everybody who reaches {} could use your servers", listen.ip());
    let problem = Problem::error(&auth.at, message)
        .label("use `auth \"token\"`, or listen at `\"127.0.0.1:7979\"`")
        .related(at, "other machines reach this address");
    reader.report(problem);
}
