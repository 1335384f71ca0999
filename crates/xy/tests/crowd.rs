//! Many clients with many servers at once: every answer goes to its own caller, and when all
//! have gone nothing of them is left.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

mod support;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::ops::Deref;
use std::thread;

use serde_json::{Value, json};
use support::home;
use xy_testkit::{Home, McpClient, McpHttp, McpSocket, McpStdio};

const SERVERS: usize = 20;
const LOCAL_CLIENTS: usize = 130;
const BRIDGED_CLIENTS: usize = 20;
const HTTP_CLIENTS: usize = 50;
const STEPS: usize = 12;

const HELLO: &str = r#"{"xy":"hello","protocol":1,"view":{"profile":"default"}}"#;

/// The same numbers in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

/// One client, whichever door it came in by.
enum Anyone {
    Local(McpSocket),
    Bridged(McpStdio),
    Http(McpHttp),
}

impl Deref for Anyone {
    type Target = McpClient;

    fn deref(&self) -> &McpClient {
        match self {
            Self::Local(client) => client,
            Self::Bridged(client) => client,
            Self::Http(client) => client,
        }
    }
}

impl Anyone {
    /// Ends it: as it should be, or by vanishing.
    fn leave(self, politely: bool) {
        match self {
            Self::Local(client) => client.close(),
            Self::Bridged(client) if politely => drop(client.close()),
            Self::Bridged(mut client) => client.kill9(),
            Self::Http(client) => {
                if politely {
                    client.close();
                } else {
                    // The session is left to its idle limit.
                    client.break_connections();
                }
            }
        }
    }
}

fn server(number: usize) -> String {
    format!("server{number:02}")
}

/// What one client does; what it says is its own, so an answer to somebody else shows.
fn live(home: &Home, client: Anyone, number: usize) {
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15 ^ (number as u64 + 1));
    client.initialize();
    let mut open: Vec<(u64, String)> = Vec::new();
    for step in 0..STEPS {
        let (server, own) = (server(chance.below(SERVERS)), format!("{number}/{step}"));
        match chance.below(16) {
            0..=5 => {
                let id = client.start_call(&format!("{server}__echo"), json!({ "message": own }));
                open.push((id, own));
            }
            6 | 7 => {
                let arguments = json!({ "message": own, "ms": chance.below(30) });
                let id = client.start_call(&format!("{server}__slow_echo"), arguments);
                open.push((id, own));
            }
            8 => {
                // Never answered, and taken back.
                let id = client.start_call(&format!("{server}__never"), json!({}));
                client.cancel(&json!(id));
            }
            9 | 10 => {
                // Told of its progress under a token that is its own.
                let name = format!("{server}__progress");
                let meta = json!({ "progressToken": own });
                let arguments = json!({ "steps": 3, "ms": chance.below(5) });
                let params = json!({ "name": name, "arguments": arguments, "_meta": meta });
                open.push((client.start_request("tools/call", params), "3 steps".to_owned()));
            }
            // Over HTTP a cancellation may overtake its call.
            11 if !matches!(client, Anyone::Http(_)) => {
                // The same, for hours, and taken back amid it.
                let name = format!("{server}__progress");
                let meta = json!({ "progressToken": own });
                let arguments = json!({ "steps": 1_000_000, "ms": 5 });
                let params = json!({ "name": name, "arguments": arguments, "_meta": meta });
                let id = client.start_request("tools/call", params);
                client.cancel(&json!(id));
            }
            12 | 13 => {
                let uri = json!({ "uri": format!("xy://{server}/test://counter") });
                let answer = client.request("resources/subscribe", uri.clone());
                assert!(answer.get("result").is_some(), "{answer}");
                if chance.below(2) == 0 {
                    let answer = client.request("resources/unsubscribe", uri);
                    assert!(answer.get("result").is_some(), "{answer}");
                }
            }
            14 => {
                // Whoever watches its counter is told.
                assert!(client.call(&format!("{server}__bump"), json!({})).get("result").is_some());
            }
            _ => {
                let answer = client.call(&format!("{server}__no_such_tool"), json!({}));
                assert_eq!(answer["error"]["code"], -32602, "{answer}");
            }
        }
        if open.len() > 4 || step + 1 == STEPS {
            for (id, own) in open.drain(..) {
                assert_eq!(text(&client.wait_answer(id)), own, "client {number}");
            }
        }
    }
    assert_eq!(client.unclaimed_answers(), [""; 0], "client {number}");
    for told in client.notifications() {
        let token = told["params"]["progressToken"].as_str();
        let is_own = token.is_none_or(|token| token.starts_with(&format!("{number}/")));
        assert!(is_own, "client {number} was told of another's: {told}");
    }
    if chance.below(2) == 0 {
        // It vanishes with a call open, which is never answered, or when it has gone.
        let name = ["never", "slow_echo"][chance.below(2)];
        let tool = format!("{}__{name}", server(chance.below(SERVERS)));
        let arguments = json!({ "message": format!("late for {number}"), "ms": 100 });
        match &client {
            Anyone::Local(client) => drop(client.start_call(&tool, arguments)),
            Anyone::Bridged(client) => drop(client.start_call(&tool, arguments)),
            Anyone::Http(client) => abandon(home, &client.session().unwrap(), &tool, &arguments),
        }
        client.leave(false);
    } else {
        client.leave(true);
    }
}

/// Sends a call over HTTP, and hangs up.
fn abandon(home: &Home, session: &str, tool: &str, arguments: &Value) {
    let body = json!({
        "jsonrpc": "2.0", "id": "abandoned", "method": "tools/call",
        "params": { "name": tool, "arguments": arguments },
    });
    let (body, address, token) = (body.to_string(), home.gateway_address(), home.gateway_token());
    let mut stream = TcpStream::connect(&address).unwrap();
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
         Mcp-Session-Id: {session}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
}

fn text(answer: &Value) -> String {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// How much of everything there is: all that the gateway keeps, and what its door for HTTP has
/// open, but for the connection by which one looks.
fn census(home: &Home) -> BTreeMap<String, u64> {
    let answer = home.mcp_http("/metrics").exchange("GET", &[], "");
    assert_eq!(answer.status, 200, "{answer:?}");
    let is_meant = |line: &&str| {
        let is_gauge = line.starts_with("xy_http_") && !line.contains("_total");
        (is_gauge && !line.starts_with("xy_http_connections")) || line.starts_with("xy_kept{")
    };
    let number = |line: &str| {
        let (name, count) = line.rsplit_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    let census: BTreeMap<String, u64> =
        answer.body.lines().filter(is_meant).filter_map(number).collect();
    assert!(census.len() > 30, "much is counted: {census:?}");
    census
}

/// How much of one thing there is.
fn kept(census: &BTreeMap<String, u64>, what: &str) -> u64 {
    census[&format!("xy_kept{{what=\"{what}\"}}")]
}

/// What was given up is forgotten only once its server cannot speak of it any more.
const LATER: &str = "xy_kept{what=\"calls_given_up\"}";

/// What there is more of than before, which a test that fails tells.
#[derive(Default)]
struct Left(BTreeMap<String, u64>);

impl Drop for Left {
    #[expect(clippy::print_stderr, reason = "what a failed run found is for a person")]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("left: {:?}", self.0);
        }
    }
}

#[test]
fn of_200_clients_with_20_servers_each_gets_its_own_answers_and_leaves_nothing() {
    let home = home();
    home.write_config("xy.kdl", "gateway { listen \"127.0.0.1:0\"; idle \"20s\"; }\n");
    for number in 0..SERVERS {
        home.mcp_server(&server(number), &[]);
    }
    home.daemon();
    for number in 0..SERVERS {
        home.wait_for_state(&server(number), "running");
    }
    let before = home.wait_until("all of them are known", || {
        let census = census(&home);
        let is_known = kept(&census, "manifests") == SERVERS as u64 && kept(&census, "calls") == 0;
        is_known.then_some(census)
    });
    let start = |number: usize| {
        if number < LOCAL_CLIENTS {
            Anyone::Local(McpSocket::connect(&home.mcp_socket(), HELLO))
        } else if number < LOCAL_CLIENTS + BRIDGED_CLIENTS {
            Anyone::Bridged(home.mcp_connect(&[]))
        } else {
            Anyone::Http(home.mcp_http("/mcp"))
        }
    };
    thread::scope(|scope| {
        for number in 0..LOCAL_CLIENTS + BRIDGED_CLIENTS + HTTP_CLIENTS {
            let (home, start) = (&home, &start);
            scope.spawn(move || live(home, start(number), number));
        }
        // The census counts them: else it would be empty without telling anything.
        home.wait_until("some of them are there", || {
            let now = census(&home);
            let has = |what| kept(&now, what) > 0;
            has("clients") && has("clients_in_memory") && has("instance_users")
        });
    });
    let mut left = Left::default();
    home.wait_until("nothing of them is left", || {
        left.0 = census(&home);
        left.0.retain(|what, count| before[what] != *count);
        left.0.keys().all(|what| what == LATER)
    });
    // A server that ends can speak of nothing any more; one that lives on could for a minute.
    let ran = home.xy(&["restart", "--all"]);
    assert_eq!(ran.code, 0, "{ran:#?}");
    home.wait_until("nor of what they gave up", || {
        left.0 = census(&home);
        left.0.retain(|what, count| before[what] != *count);
        left.0.is_empty()
    });
    home.finish();
}
