//! Compatibility matrix: clients and servers of both eras over both transports, feature by feature.
//! Every cell passes, or is listed with a reason.
//!
//! The client connects through `xy connect` or HTTP. The server is xy's test fixture over pipes or
//! HTTP. `features.rs` defines each feature once, in terms that clients of both eras implement
//! (`legacy.rs`, `modern.rs`).

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

use clients::{ClientFactory, Endpoint};
use features::FEATURES;
use servers::{isolated_home, shared_home};

/// The era of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Era {
    /// The revisions with `initialize`.
    Legacy,
    /// The revision after them.
    Modern,
}

/// The transport of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Stdio,
    Http,
}

/// A client or a server.
type Peer = (Era, Transport);

/// A cell that does not pass: client, server, feature, and the reason.
type KnownFailure = (Peer, Peer, &'static str, &'static str);

/// All cells that do not pass; currently none. A listed cell that passes is an error.
const KNOWN_FAILURES: &[KnownFailure] = &[];

/// Features that are also tested at the endpoint of all servers.
const AT_ALL_SERVERS: [&str; 5] = ["tool", "prompt", "resource", "elicitation", "resource updates"];

/// Returns the endpoints at which a feature is tested. A shared legacy server never learns the
/// roots of a client, while a modern one gets them with each request.
fn endpoints(feature: &str, server: Peer) -> Vec<Endpoint> {
    match (feature, server.0) {
        ("roots", Era::Legacy) => vec![Endpoint::Own],
        ("roots", Era::Modern) => vec![Endpoint::Own, Endpoint::Alone],
        _ if AT_ALL_SERVERS.contains(&feature) => vec![Endpoint::Alone, Endpoint::All],
        _ => vec![Endpoint::Alone],
    }
}

/// Tests every feature with one client and one server.
#[track_caller]
fn try_all(client: Peer, server: Peer) {
    let (shared, own) = (shared_home(server), isolated_home(server));
    let factory = ClientFactory { shared: &shared, own: &own, peer: client };
    let mut problems = Vec::new();
    for (name, feature) in FEATURES {
        let listed = KNOWN_FAILURES.iter().find(|it| (it.0, it.1, it.2) == (client, server, *name));
        let passes = |endpoint: &Endpoint| {
            let tried = || feature(&*factory.at(*endpoint));
            catch_unwind(AssertUnwindSafe(tried)).map_err(|panic| panic_message(&*panic))
        };
        let tried: Result<(), String> = endpoints(name, server).iter().try_for_each(passes);
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

/// Returns the panic message of a failed feature.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned())).unwrap_or_default()
}

/// Defines one test for each pair of client and server.
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

const LEGACY_STDIO: Peer = (Era::Legacy, Transport::Stdio);
const LEGACY_HTTP: Peer = (Era::Legacy, Transport::Http);
const MODERN_STDIO: Peer = (Era::Modern, Transport::Stdio);
const MODERN_HTTP: Peer = (Era::Modern, Transport::Http);

pairs! {
    legacy_client_at_stdio_with_legacy_server_at_stdio: LEGACY_STDIO, LEGACY_STDIO;
    legacy_client_at_stdio_with_legacy_server_over_http: LEGACY_STDIO, LEGACY_HTTP;
    legacy_client_at_stdio_with_modern_server_at_stdio: LEGACY_STDIO, MODERN_STDIO;
    legacy_client_at_stdio_with_modern_server_over_http: LEGACY_STDIO, MODERN_HTTP;
    legacy_client_over_http_with_legacy_server_at_stdio: LEGACY_HTTP, LEGACY_STDIO;
    legacy_client_over_http_with_legacy_server_over_http: LEGACY_HTTP, LEGACY_HTTP;
    legacy_client_over_http_with_modern_server_at_stdio: LEGACY_HTTP, MODERN_STDIO;
    legacy_client_over_http_with_modern_server_over_http: LEGACY_HTTP, MODERN_HTTP;
    modern_client_at_stdio_with_legacy_server_at_stdio: MODERN_STDIO, LEGACY_STDIO;
    modern_client_at_stdio_with_legacy_server_over_http: MODERN_STDIO, LEGACY_HTTP;
    modern_client_at_stdio_with_modern_server_at_stdio: MODERN_STDIO, MODERN_STDIO;
    modern_client_at_stdio_with_modern_server_over_http: MODERN_STDIO, MODERN_HTTP;
    modern_client_over_http_with_legacy_server_at_stdio: MODERN_HTTP, LEGACY_STDIO;
    modern_client_over_http_with_legacy_server_over_http: MODERN_HTTP, LEGACY_HTTP;
    modern_client_over_http_with_modern_server_at_stdio: MODERN_HTTP, MODERN_STDIO;
    modern_client_over_http_with_modern_server_over_http: MODERN_HTTP, MODERN_HTTP;
}

#[test]
fn known_failures_name_a_feature_and_a_reason() {
    for (_, _, feature, why) in KNOWN_FAILURES {
        assert!(FEATURES.iter().any(|(name, _)| name == feature), "no feature `{feature}`");
        assert!(!why.is_empty(), "why does `{feature}` not pass?");
    }
    assert_eq!(FEATURES.len(), 12);
}
