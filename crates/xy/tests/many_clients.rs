//! Many clients with many servers at once: every answer goes to its own caller, and nothing is left
//! when all clients have gone.
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

/// A random generator with the same numbers in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

/// A client over any transport.
enum AnyClient {
    Local(McpSocket),
    Bridged(McpStdio),
    Http(McpHttp),
}

impl Deref for AnyClient {
    type Target = McpClient;

    fn deref(&self) -> &McpClient {
        match self {
            Self::Local(client) => client,
            Self::Bridged(client) => client,
            Self::Http(client) => client,
        }
    }
}

impl AnyClient {
    /// Ends the client properly, or by breaking its connection.
    fn leave(self, politely: bool) {
        match self {
            Self::Local(client) => client.close(),
            Self::Bridged(client) if politely => drop(client.close()),
            Self::Bridged(mut client) => client.kill9(),
            Self::Http(client) => {
                if politely {
                    client.close();
                } else {
                    // The session ends by its idle timeout.
                    client.break_connections();
                }
            }
        }
    }
}

fn server(number: usize) -> String {
    format!("server{number:02}")
}

/// Runs one client. Its messages are unique, so that misrouted answers are detected.
fn run_client(home: &Home, client: AnyClient, number: usize) {
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
                // Never answered, and cancelled.
                let id = client.start_call(&format!("{server}__never"), json!({}));
                client.cancel(&json!(id));
            }
            9 | 10 => {
                // Gets progress under a unique token.
                let name = format!("{server}__progress");
                let meta = json!({ "progressToken": own });
                let arguments = json!({ "steps": 3, "ms": chance.below(5) });
                let params = json!({ "name": name, "arguments": arguments, "_meta": meta });
                open.push((client.start_request("tools/call", params), "3 steps".to_owned()));
            }
            // Over HTTP a cancellation may overtake its call.
            11 if !matches!(client, AnyClient::Http(_)) => {
                // A progress call of many hours, cancelled in the middle.
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
                // Subscribed clients are notified of this change.
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
    for notification in client.notifications() {
        let token = notification["params"]["progressToken"].as_str();
        let is_own = token.is_none_or(|token| token.starts_with(&format!("{number}/")));
        assert!(is_own, "client {number} got another's notification: {notification}");
    }
    if chance.below(2) == 0 {
        // The client vanishes with an open call, which is never answered, or answered after that.
        let name = ["never", "slow_echo"][chance.below(2)];
        let tool = format!("{}__{name}", server(chance.below(SERVERS)));
        let arguments = json!({ "message": format!("late for {number}"), "ms": 100 });
        match &client {
            AnyClient::Local(client) => drop(client.start_call(&tool, arguments)),
            AnyClient::Bridged(client) => drop(client.start_call(&tool, arguments)),
            AnyClient::Http(client) => abandon(home, &client.session().unwrap(), &tool, &arguments),
        }
        client.leave(false);
    } else {
        client.leave(true);
    }
}

/// Sends a call over HTTP, and closes the connection.
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

/// Returns all gauges of retained state and of the HTTP service, except for the connection of this
/// request.
fn gauges(home: &Home) -> BTreeMap<String, u64> {
    let answer = home.mcp_http("/metrics").exchange("GET", &[], "");
    assert_eq!(answer.status, 200, "{answer:?}");
    let is_meant = |line: &&str| {
        let is_gauge = line.starts_with("xy_http_") && !line.contains("_total");
        (is_gauge && !line.starts_with("xy_http_connections"))
            || line.starts_with("xy_retained_objects{")
    };
    let number = |line: &str| {
        let (name, count) = line.rsplit_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    let gauges: BTreeMap<String, u64> =
        answer.body.lines().filter(is_meant).filter_map(number).collect();
    assert!(gauges.len() > 30, "much is counted: {gauges:?}");
    gauges
}

/// Returns the value of one gauge.
fn gauge(gauges: &BTreeMap<String, u64>, what: &str) -> u64 {
    gauges[&format!("xy_retained_objects{{what=\"{what}\"}}")]
}

/// Cancelled calls are forgotten only once their server can no longer refer to them.
const CANCELLED_CALLS: &str = "xy_retained_objects{what=\"calls_given_up\"}";

/// Gauges that differ from before; printed if the test fails.
#[derive(Default)]
struct Leftovers(BTreeMap<String, u64>);

impl Drop for Leftovers {
    #[expect(clippy::print_stderr, reason = "what a failed run found is for a person")]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("left: {:?}", self.0);
        }
    }
}

#[test]
fn responses_of_200_clients_are_routed_and_freed() {
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
        let gauges = gauges(&home);
        let is_known =
            gauge(&gauges, "manifests") == SERVERS as u64 && gauge(&gauges, "calls") == 0;
        is_known.then_some(gauges)
    });
    let start = |number: usize| {
        if number < LOCAL_CLIENTS {
            AnyClient::Local(McpSocket::connect(&home.mcp_socket(), HELLO))
        } else if number < LOCAL_CLIENTS + BRIDGED_CLIENTS {
            AnyClient::Bridged(home.mcp_connect(&[]))
        } else {
            AnyClient::Http(home.mcp_http("/mcp"))
        }
    };
    thread::scope(|scope| {
        for number in 0..LOCAL_CLIENTS + BRIDGED_CLIENTS + HTTP_CLIENTS {
            let (home, start) = (&home, &start);
            scope.spawn(move || run_client(home, start(number), number));
        }
        // The gauges count these clients, otherwise the test would prove nothing.
        home.wait_until("some of them are there", || {
            let now = gauges(&home);
            let has = |what| gauge(&now, what) > 0;
            has("clients") && has("clients_in_memory") && has("instance_users")
        });
    });
    let mut leftovers = Leftovers::default();
    home.wait_until("nothing of them is left", || {
        leftovers.0 = gauges(&home);
        leftovers.0.retain(|what, count| before[what] != *count);
        leftovers.0.keys().all(|what| what == CANCELLED_CALLS)
    });
    // A server that has ended can refer to no call, while a living one could for a minute.
    let ran = home.xy(&["restart", "--all"]);
    assert_eq!(ran.code, 0, "{ran:#?}");
    home.wait_until("nor of their cancelled calls", || {
        leftovers.0 = gauges(&home);
        leftovers.0.retain(|what, count| before[what] != *count);
        leftovers.0.is_empty()
    });
    home.finish();
}
