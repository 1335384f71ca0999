//! Many clients with many servers at once: every answer goes to its own caller, and when all
//! have gone nothing of them is left.
#![expect(clippy::unwrap_used, reason = "everything in this file is a test")]

mod support;

use std::io::Write;
use std::net::TcpStream;
use std::ops::Deref;
use std::thread;

use serde_json::{Value, json};
use support::home;
use xy_testkit::{Home, McpClient, McpHttp, McpSocket};

const SERVERS: usize = 20;
const LOCAL_CLIENTS: usize = 150;
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
    Http(McpHttp),
}

impl Deref for Anyone {
    type Target = McpClient;

    fn deref(&self) -> &McpClient {
        match self {
            Self::Local(client) => client,
            Self::Http(client) => client,
        }
    }
}

impl Anyone {
    /// Ends it: as it should be, or by vanishing.
    fn leave(self, politely: bool) {
        match self {
            Self::Local(client) => client.close(),
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
        match chance.below(10) {
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
    if chance.below(2) == 0 {
        // It vanishes with a call open.
        let tool = format!("{}__never", server(chance.below(SERVERS)));
        match &client {
            Anyone::Local(client) => drop(client.start_call(&tool, json!({}))),
            Anyone::Http(client) => abandon(home, &client.session().unwrap(), &tool),
        }
        client.leave(false);
    } else {
        client.leave(true);
    }
}

/// Sends a call over HTTP, and hangs up.
fn abandon(home: &Home, session: &str, tool: &str) {
    let body = json!({
        "jsonrpc": "2.0", "id": "abandoned", "method": "tools/call",
        "params": { "name": tool, "arguments": {} },
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

/// The sum of what the gateway counts under this name.
fn counted(home: &Home, name: &str) -> u64 {
    let answer = home.mcp_http("/metrics").exchange("GET", &[], "");
    assert_eq!(answer.status, 200, "{answer:?}");
    let lines = answer
        .body
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn of_200_clients_with_20_servers_each_gets_its_own_answers_and_leaves_nothing() {
    let home = home();
    home.write_config("xy.kdl", "gateway { listen \"127.0.0.1:0\"; idle \"5s\"; }\n");
    for number in 0..SERVERS {
        home.mcp_server(&server(number), &[]);
    }
    home.daemon();
    for number in 0..SERVERS {
        home.wait_for_state(&server(number), "running");
    }
    thread::scope(|scope| {
        for number in 0..LOCAL_CLIENTS + HTTP_CLIENTS {
            let home = &home;
            scope.spawn(move || {
                let client = if number < LOCAL_CLIENTS {
                    Anyone::Local(McpSocket::connect(&home.mcp_socket(), HELLO))
                } else {
                    Anyone::Http(home.mcp_http("/mcp"))
                };
                live(home, client, number);
            });
        }
    });
    let left = || {
        let names = [
            "xy_clients",
            "xy_server_calls_open",
            "xy_server_calls_waiting",
            "xy_resources_watched",
            "xy_http_sessions",
            "xy_http_streams",
        ];
        names.map(|name| (name, counted(&home, name)))
    };
    home.wait_until("nothing of them is left", || left().iter().all(|(_, count)| *count == 0));
    home.finish();
}
