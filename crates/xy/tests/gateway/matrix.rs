//! The eras of clients and servers, each with each, over every way there is, feature by
//! feature: every cell passes, or stands in a list with the reason why it does not.
//!
//! The client is at `xy connect` or at the HTTP door, the server is our fixture, behind pipes
//! or over HTTP. What a feature means is written once (`features.rs`), in words that a client
//! of each era knows (`legacy.rs`, `modern.rs`).

#[path = "matrix/clients.rs"]
mod clients;
#[path = "matrix/features.rs"]
mod features;
#[path = "matrix/legacy.rs"]
mod legacy;
#[path = "matrix/modern.rs"]
mod modern;
#[path = "matrix/servers.rs"]
mod servers;

use std::panic::{AssertUnwindSafe, catch_unwind};

use clients::{Guest, Place};
use features::FEATURES;
use servers::{home_of, home_of_one};

/// What a peer speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    /// The revisions with `initialize`.
    Legacy,
    /// The one after them.
    Modern,
}

/// How a peer is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Stdio,
    Http,
}

/// A client or a server.
type Peer = (Era, Way);

/// A cell that does not pass: the client, the server, the feature, and why that is right.
type Listed = (Peer, Peer, &'static str, &'static str);

/// All cells that do not pass, of which there are none now. One that does is not to be listed.
const LISTED: &[Listed] = &[];

/// What is tried with the names of all servers too.
const AT_ALL: [&str; 5] = ["tool", "prompt", "resource", "elicitation", "resource updates"];

/// Where a feature is tried. A legacy server that is shared never hears of roots, which are one
/// client's; a modern one is told with each request.
fn places(feature: &str, server: Peer) -> Vec<Place> {
    match (feature, server.0) {
        ("roots", Era::Legacy) => vec![Place::Own],
        ("roots", Era::Modern) => vec![Place::Own, Place::Alone],
        _ if AT_ALL.contains(&feature) => vec![Place::Alone, Place::All],
        _ => vec![Place::Alone],
    }
}

/// Tries every feature with one client and one server.
#[track_caller]
fn try_all(client: Peer, server: Peer) {
    let (shared, own) = (home_of(server), home_of_one(server));
    let guest = Guest { shared: &shared, own: &own, peer: client };
    let mut problems = Vec::new();
    for (name, feature) in FEATURES {
        let listed = LISTED.iter().find(|it| (it.0, it.1, it.2) == (client, server, *name));
        let passes = |place: &Place| {
            let tried = || feature(&*guest.at(*place));
            catch_unwind(AssertUnwindSafe(tried)).map_err(|panic| words_of(&*panic))
        };
        let tried: Result<(), String> = places(name, server).iter().try_for_each(passes);
        match (tried, listed) {
            (Ok(()), None) | (Err(_), Some(_)) => {}
            (Ok(()), Some((.., why))) => {
                problems.push(format!("{name} passes after all, and is listed: {why}"));
            }
            (Err(why), None) => problems.push(format!("{name}: {why}")),
        }
    }
    assert!(problems.is_empty(), "{client:?} with {server:?}:\n{}", problems.join("\n"));
    shared.finish();
    own.finish();
}

/// What a feature that does not pass has said.
fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned())).unwrap_or_default()
}

/// One test for each client with each server.
macro_rules! pairs {
    ($($name:ident: $client:expr, $server:expr;)*) => {
        $(
            #[test]
            fn $name() {
                try_all($client, $server);
            }
        )*
    };
}

const OLD_LINES: Peer = (Era::Legacy, Way::Stdio);
const OLD_WEB: Peer = (Era::Legacy, Way::Http);
const NEW_LINES: Peer = (Era::Modern, Way::Stdio);
const NEW_WEB: Peer = (Era::Modern, Way::Http);

pairs! {
    a_legacy_client_at_stdio_with_a_legacy_server_at_stdio: OLD_LINES, OLD_LINES;
    a_legacy_client_at_stdio_with_a_legacy_server_over_http: OLD_LINES, OLD_WEB;
    a_legacy_client_at_stdio_with_a_modern_server_at_stdio: OLD_LINES, NEW_LINES;
    a_legacy_client_at_stdio_with_a_modern_server_over_http: OLD_LINES, NEW_WEB;
    a_legacy_client_over_http_with_a_legacy_server_at_stdio: OLD_WEB, OLD_LINES;
    a_legacy_client_over_http_with_a_legacy_server_over_http: OLD_WEB, OLD_WEB;
    a_legacy_client_over_http_with_a_modern_server_at_stdio: OLD_WEB, NEW_LINES;
    a_legacy_client_over_http_with_a_modern_server_over_http: OLD_WEB, NEW_WEB;
    a_modern_client_at_stdio_with_a_legacy_server_at_stdio: NEW_LINES, OLD_LINES;
    a_modern_client_at_stdio_with_a_legacy_server_over_http: NEW_LINES, OLD_WEB;
    a_modern_client_at_stdio_with_a_modern_server_at_stdio: NEW_LINES, NEW_LINES;
    a_modern_client_at_stdio_with_a_modern_server_over_http: NEW_LINES, NEW_WEB;
    a_modern_client_over_http_with_a_legacy_server_at_stdio: NEW_WEB, OLD_LINES;
    a_modern_client_over_http_with_a_legacy_server_over_http: NEW_WEB, OLD_WEB;
    a_modern_client_over_http_with_a_modern_server_at_stdio: NEW_WEB, NEW_LINES;
    a_modern_client_over_http_with_a_modern_server_over_http: NEW_WEB, NEW_WEB;
}

#[test]
fn whatever_is_listed_is_a_cell_and_has_a_reason() {
    for (_, _, feature, why) in LISTED {
        assert!(FEATURES.iter().any(|(name, _)| name == feature), "no feature `{feature}`");
        assert!(!why.is_empty(), "why does `{feature}` not pass?");
    }
    assert_eq!(FEATURES.len(), 12);
}
