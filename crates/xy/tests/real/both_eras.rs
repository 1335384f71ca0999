//! Servers of both eras on real SDKs: each client is served in its own era.
//!
//! These SDKs ask a client during a call in the legacy era only, and by rounds in the modern one.
//! So a legacy client must reach the server in the legacy era, and a modern client in the modern
//! era. Each answer is compared with the answer to the same client without xy.

use serde_json::{Value, json};

use crate::lab::Fixture;
use crate::peer::Peer;
use crate::sdk::{Sdk, find_sdk};
use crate::stage::Stage;

const LEGACY: &str = "2025-11-25";
const MODERN: &str = "2026-07-28";

/// Returns the calls of each legacy client.
fn legacy_calls() -> Value {
    json!([
        ["test_simple_text", {}],
        ["test_sampling", { "prompt": "think" }],
        ["test_elicitation", { "message": "who?" }],
    ])
}

/// Returns the calls of each client that is asked by rounds.
fn round_calls() -> Value {
    json!([
        ["test_simple_text", {}],
        ["test_input_required_result_sampling", {}],
        ["test_input_required_result_elicitation", {}],
    ])
}

/// A client library, in one of its modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    Python1,
    TypeScript1,
    Python2,
    TypeScript2,
}

const LEGACY_CLIENTS: [Client; 2] = [Client::Python1, Client::TypeScript1];
const MODERN_CLIENTS: [Client; 2] = [Client::Python2, Client::TypeScript2];
const ALL_CLIENTS: [Client; 4] =
    [Client::Python1, Client::TypeScript1, Client::Python2, Client::TypeScript2];

impl Client {
    fn name(self) -> &'static str {
        match self {
            Self::Python1 => "python-1",
            Self::TypeScript1 => "typescript-1",
            Self::Python2 => "python-2",
            Self::TypeScript2 => "typescript-2",
        }
    }

    fn is_legacy(self) -> bool {
        LEGACY_CLIENTS.contains(&self)
    }

    fn version(self) -> &'static str {
        if self.is_legacy() { LEGACY } else { MODERN }
    }

    /// Starts the client with these arguments, and waits until it is connected.
    #[track_caller]
    fn connect(self, stage: &Stage, label: &str, way: &[String]) -> Peer {
        let mut command = match self {
            Self::Python1 => stage.python(way),
            Self::TypeScript1 => stage.typescript(way),
            Self::Python2 => stage.python_of("auto", way),
            Self::TypeScript2 => stage.typescript_of("auto", way),
        };
        find_sdk(&mut command); // For a server that the client starts.
        let peer = Peer::start(stage, &format!("{}-{label}", self.name()), command);
        assert_eq!(peer.receive()["ready"], true, "{}", peer.name);
        peer
    }

    /// Has the client list the tools and make these calls, without waiting.
    #[track_caller]
    fn begin(self, peer: &mut Peer, calls: &Value) {
        peer.send(&json!({ "do": "use", "name": self.name(), "calls": calls }));
    }

    /// Returns the client's results without xy.
    #[track_caller]
    fn run_directly(self, stage: &Stage, way: &[String], calls: &Value) -> Value {
        let mut peer = self.connect(stage, "direct", way);
        self.begin(&mut peer, calls);
        let seen = peer.receive();
        peer.leave(stage);
        seen
    }
}

/// A server of both eras behind xy, and the client arguments that reach it without xy.
struct DualEraServer {
    /// The server, if it is a child of this test. It ends before the stage checks for leftover
    /// processes.
    fixture: Option<Fixture>,
    stage: Stage,
    way: Vec<String>,
    has_rounds: bool,
}

impl DualEraServer {
    /// Creates a server that xy starts and reaches over stdio.
    #[track_caller]
    fn over_stdio(sdk: Sdk) -> Self {
        let stage = Stage::of(&[]);
        stage.home.write_config("servers/both.kdl", &sdk.kdl(""));
        let way = [vec!["stdio".to_owned()], sdk.words(&["stdio"])].concat();
        Self { fixture: None, stage, way, has_rounds: sdk != Sdk::FastMcp }
    }

    /// Creates a server that xy reaches by its URL.
    #[track_caller]
    fn by_url(sdk: Sdk) -> Self {
        let stage = Stage::of(&[]);
        let fixture = sdk.serve(&stage.home, &[], &[]);
        stage.home.write_config("servers/both.kdl", &format!("url {:?}\n", fixture.url()));
        let way = ["http".to_owned(), fixture.url(), "no token".to_owned()].to_vec();
        Self { fixture: Some(fixture), stage, way, has_rounds: true }
    }

    /// Returns the calls for a client, which cause requests in its own era.
    fn calls(&self, client: Client) -> Value {
        match (client.is_legacy(), self.has_rounds) {
            (true, _) => legacy_calls(),
            (false, true) => round_calls(),
            (false, false) => json!([["test_simple_text", {}]]),
        }
    }

    /// Connects these clients through xy.
    #[track_caller]
    fn connect(&self, clients: &[Client]) -> Vec<Peer> {
        let way = [Stage::by_stdio(), vec!["--server".to_owned(), "both".to_owned()]].concat();
        clients.iter().map(|client| client.connect(&self.stage, "xy", &way)).collect()
    }

    /// Has these clients use the server through xy, and returns their results. The first client
    /// uses it alone: from then on xy knows that the server sends requests. The others use it at
    /// the same time.
    #[track_caller]
    fn use_at_once(&self, clients: &[Client], peers: &mut [Peer]) -> Vec<Value> {
        clients[0].begin(&mut peers[0], &self.calls(clients[0]));
        let first = peers[0].receive();
        for (client, peer) in clients.iter().zip(&mut *peers).skip(1) {
            client.begin(peer, &self.calls(*client));
        }
        let others = peers[1..].iter().map(Peer::receive);
        std::iter::once(first).chain(others).collect()
    }

    /// Checks that each client's results through xy equal those without xy.
    #[track_caller]
    fn assert_same_as_direct(&self, clients: &[Client], seen: &[Value]) {
        let mut problems = Vec::new();
        for (client, seen) in clients.iter().zip(seen) {
            let expected = client.run_directly(&self.stage, &self.way, &self.calls(*client));
            assert_eq!(expected["version"], client.version(), "{client:?} without xy");
            if client.is_legacy() {
                assert_was_asked(*client, &expected);
            }
            for part in ["version", "answers", "tools"] {
                let (seen, expected) = (&seen[part], &expected[part]);
                if seen != expected {
                    problems.push(format!("{client:?}: {part}: {seen}, without xy: {expected}"));
                }
            }
        }
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    /// Runs these clients through xy, and checks that their results equal those without xy.
    #[track_caller]
    fn check(self, clients: &[Client]) {
        let _daemon = self.stage.home.daemon();
        let mut peers = self.connect(clients);
        let seen = self.use_at_once(clients, &mut peers);
        self.assert_same_as_direct(clients, &seen);
        self.finish(peers);
    }

    #[track_caller]
    fn finish(self, peers: Vec<Peer>) {
        for peer in peers {
            peer.leave(&self.stage);
        }
        if let Some(fixture) = self.fixture {
            fixture.end(&self.stage.home);
        }
        self.stage.home.finish();
    }
}

/// Checks that a client answered a sampling and an elicitation request.
#[track_caller]
fn assert_was_asked(client: Client, seen: &Value) {
    let (name, answers) = (client.name(), seen["answers"].to_string());
    assert!(answers.contains(&format!("{name} has thought")), "{name}: {answers}");
    assert!(answers.contains(&format!("{name} says")), "{name}: {answers}");
}

/// Checks that a server of both eras over stdio has one process per era.
#[track_caller]
fn check_processes(sdk: Sdk) {
    let both = DualEraServer::over_stdio(sdk);
    let _daemon = both.stage.home.daemon();
    let mut peers = both.connect(&ALL_CLIENTS);
    let seen = both.use_at_once(&ALL_CLIENTS, &mut peers);
    let status = both.stage.home.xy_json(&["status", "both"]);
    let mut pids: Vec<_> =
        status["instances"].as_array().unwrap().iter().map(|it| it["pid"].to_string()).collect();
    pids.sort();
    pids.dedup();
    assert_eq!(pids.len(), 2, "the processes of the server: {status:#}");
    let stdout = both.stage.home.xy(&["status", "both"]).stdout;
    assert!([LEGACY, MODERN].iter().all(|it| stdout.contains(it)), "{stdout}");
    both.assert_same_as_direct(&ALL_CLIENTS, &seen);
    both.finish(peers);
}

#[test]
fn dual_era_typescript_server_asks_legacy_clients() {
    DualEraServer::over_stdio(Sdk::TypeScript2).check(&LEGACY_CLIENTS);
}

#[test]
fn dual_era_python_server_asks_legacy_clients() {
    DualEraServer::over_stdio(Sdk::Python2).check(&LEGACY_CLIENTS);
}

#[test]
fn dual_era_fastmcp_server_asks_legacy_clients() {
    DualEraServer::over_stdio(Sdk::FastMcp).check(&LEGACY_CLIENTS);
}

#[test]
fn dual_era_typescript_server_has_one_process_per_era() {
    check_processes(Sdk::TypeScript2);
}

#[test]
fn dual_era_python_server_has_one_process_per_era() {
    check_processes(Sdk::Python2);
}

#[test]
fn dual_era_fastmcp_server_has_one_process_per_era() {
    check_processes(Sdk::FastMcp);
}

#[test]
fn url_with_sessions_serves_each_client_in_its_era() {
    DualEraServer::by_url(Sdk::Python2).check(&ALL_CLIENTS);
}

#[test]
fn url_without_sessions_serves_modern_clients_in_their_era() {
    DualEraServer::by_url(Sdk::TypeScript2).check(&MODERN_CLIENTS);
}

/// Without a session the server cannot send a legacy client requests; xy can, by rounds.
#[test]
fn url_without_sessions_asks_legacy_clients_by_rounds() {
    let both = DualEraServer::by_url(Sdk::TypeScript2);
    let _daemon = both.stage.home.daemon();
    let mut peers = both.connect(&LEGACY_CLIENTS);
    for (client, peer) in LEGACY_CLIENTS.into_iter().zip(&mut peers) {
        client.begin(peer, &round_calls());
        let seen = peer.receive();
        assert_eq!(seen["version"], LEGACY, "{client:?}");
        assert_was_asked(client, &seen);
    }
    both.finish(peers);
}
