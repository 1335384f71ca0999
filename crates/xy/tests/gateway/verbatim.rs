//! A server gets the exact bytes that a client wrote, except for the id, the token, and the name or
//! URI at endpoints of several servers.
//!
//! The messages are unusual but legal: parsing and serializing them again would change them.

use serde_json::json;
use xy_testkit::{Home, McpClient, McpHttp, free_port};

use crate::fixtures::{
    bridge_client, home, http_client, http_client_at, input_log_file, local_client, ready,
    received_lines, serve_recorded, serve_with, single_server_client,
};

/// Returns unusual members to add to params.
fn oddities() -> [String; 6] {
    let deep = format!("\"deep\":{}1.0{}", "[".repeat(100), "]".repeat(100));
    [
        r#""z":1.50,"big":123456789012345678901234567890,"e":1e400,"E":-1E+2,"zero":-0.0"#.into(),
        r#""k":1,"k":2,"K":3,"\u006b":{"k":4,"k":5}"#.into(),
        r#""text":"é 日本 \u00e9 \ud83e\udd80 \/ \" \\ \n \u0000 \u007f","":"","\"":null"#.into(),
        "\"spaces\" :\t{ \"kept\" : [ 1 ,\t2 ] ,  \"none\":[  ] }  ".into(),
        r#""inside":{"name":"a__echo","uri":"xy://a/test://static","id":5,"method":"ping","params":{"_meta":{"progressToken":9}},"jsonrpc":"1.0"}"#.into(),
        deep,
    ]
}

/// A request: its method, and its params without unusual members. `NAME` stands for a name or URI.
struct RawRequest {
    method: &'static str,
    params: &'static str,
    /// The name or URI at the server, and at the endpoint of all servers.
    inside: &'static str,
    outside: &'static str,
}

const REQUESTS: [RawRequest; 6] = [
    RawRequest {
        method: r"tools\/call",
        params: r#""n\u0061me":NAME,"arguments":{"message":"\u00e9"}"#,
        inside: r#""echo""#,
        outside: r#""a__ech\u006f""#,
    },
    RawRequest {
        method: "resources/read",
        params: r#""uri" : NAME"#,
        inside: r#""test://static""#,
        outside: r#""xy:\/\/a/test://static""#,
    },
    RawRequest {
        method: r"prompts\u002fget",
        params: r#""arguments":{"name":"a__Ada","z":"1"},"name":NAME"#,
        inside: r#""greet""#,
        outside: r#""a__greet""#,
    },
    RawRequest {
        method: "completion/complete",
        params: r#""argument":{"name":"name","value":"a__"},"ref":{"x":1.0,"type":"ref/prompt", "name":NAME ,"y":-0}"#,
        inside: r#""greet""#,
        outside: r#""a__greet""#,
    },
    RawRequest {
        method: "completion/complete",
        params: r#""ref":{"uri":NAME,"type":"ref\/resource"},"argument":{"name":"id","value":""}"#,
        inside: r#""test://item/{id}""#,
        outside: r#""xy://a/test://item/{id}""#,
    },
    // This URI names no server: its owner is found by the offered resources.
    RawRequest {
        method: "resources/read",
        params: r#""uri":NAME"#,
        inside: r#""test://st\u0061tic""#,
        outside: r#""test://st\u0061tic""#,
    },
];

impl RawRequest {
    /// Returns the request text, with unusual members and member order.
    fn request(&self, id: &str, token: &str, name: &str, odd: &str) -> String {
        let (method, params) = (self.method, self.params.replace("NAME", name));
        format!(
            "  {{\"extra\":[1.0],\"par\\u0061ms\" : {{{params},\"_meta\":{{\"other\":{{\"progressToken\":3}},\
             \"progressToken\" : {token} ,\"x\":1.0}},{odd}}},\t\"method\":\"{method}\",\"id\" :{id}, \
             \"jsonrpc\":\"2.0\"}} "
        )
    }
}

/// Returns a unique member to find a message by.
fn mark(number: u64) -> String {
    format!("\"mark\":\"no. {number}\"")
}

/// Returns the message with this mark that the server has received.
#[track_caller]
fn received(home: &Home, mark: &str) -> String {
    home.wait_until("the server has the message", || {
        received_lines(home, "a").into_iter().find(|it| it.contains(mark))
    })
}

/// Returns the id that xy gave to this request.
#[track_caller]
fn id_in(line: &str) -> String {
    let (_, after) = line.rsplit_once("\"id\" :").unwrap_or_else(|| panic!("no id: {line}"));
    let upstream_id = after.split(',').next().unwrap_or_default().to_owned();
    assert!(upstream_id.parse::<u64>().is_ok(), "{line}");
    upstream_id
}

/// A client over any transport.
enum AnyClient<'c> {
    Line(&'c McpClient),
    Web(&'c McpHttp),
}

impl AnyClient<'_> {
    /// Sends a request, and returns the response text.
    #[track_caller]
    fn ask(&self, id: &str, text: &str) -> String {
        match self {
            Self::Line(client) => {
                client.send_raw(text);
                client.wait_answer_text(id)
            }
            Self::Web(client) => client.post(text).body,
        }
    }

    /// Sends a notification.
    #[track_caller]
    fn tell(&self, text: &str) {
        match self {
            Self::Line(client) => client.send_raw(text),
            Self::Web(client) => assert_eq!(client.post(text).status, 202),
        }
    }
}

/// Writes the config file of a server that answers every method, over pipes or HTTP.
#[track_caller]
fn serve_at(home: &Home, has_port: bool) {
    if !has_port {
        return serve_recorded(home, "a", &["--pass-unknown"]);
    }
    let (port, input_log) = (free_port(), input_log_file(home, "a"));
    let flags =
        ["--pass-unknown", "--http", &port.to_string(), "--input-log", input_log.to_str().unwrap()];
    serve_with(home, "a", &flags, &format!("transport \"http\"\nport {port}\npath \"/mcp\"\n"));
}

/// A counter.
#[derive(Default)]
struct Counter(std::cell::Cell<u64>);

impl Counter {
    fn next(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

/// Sends all requests, and compares what the server receives.
#[track_caller]
fn assert_requests_verbatim(
    home: &Home,
    numbers: &Counter,
    client: &AnyClient<'_>,
    is_alone: bool,
) {
    for request in &REQUESTS {
        for odd in oddities() {
            let number = numbers.next();
            let odd = format!("{},{odd}", mark(number));
            let (id, token) = (format!("\"n\\u006f {number}\""), format!("\"t\\u0020{number}\""));
            let name = if is_alone { request.inside } else { request.outside };
            let answer = client.ask(&id, &request.request(&id, &token, name, &odd));
            assert!(answer.contains(&id), "{answer}");
            let received = received(home, &mark(number));
            let upstream_id = id_in(&received);
            assert_eq!(received, request.request(&upstream_id, &upstream_id, request.inside, &odd));
        }
    }
}

#[test]
fn requests_arrive_verbatim_except_id_token_and_name() {
    for has_port in [false, true] {
        requests_arrive_as_written(has_port);
    }
}

#[track_caller]
fn requests_arrive_as_written(has_port: bool) {
    let home = home();
    serve_at(&home, has_port);
    home.daemon();
    ready(&home, &["a"]);
    let (one, one_web) = (single_server_client(&home, "a"), http_client_at(&home, "/mcp/s/a"));
    let (all, all_web, bridge) = (local_client(&home), http_client(&home), bridge_client(&home));
    all.tool_names(); // By now all offered items are known.
    let numbers = Counter::default();
    for client in [AnyClient::Line(&one), AnyClient::Web(&one_web)] {
        assert_requests_verbatim(&home, &numbers, &client, true);
    }
    for client in [AnyClient::Line(&all), AnyClient::Web(&all_web), AnyClient::Line(&bridge)] {
        assert_requests_verbatim(&home, &numbers, &client, false);
    }
    assert_eq!(numbers.next(), 5 * 6 * 6 + 1, "all of it was compared");
    bridge.close();
    home.finish();
}

#[test]
fn messages_for_a_single_server_arrive_verbatim_and_only_there() {
    for has_port in [false, true] {
        single_server_messages_arrive_as_written(has_port);
    }
}

#[track_caller]
fn single_server_messages_arrive_as_written(has_port: bool) {
    let home = home();
    serve_at(&home, has_port);
    home.daemon();
    ready(&home, &["a"]);
    let (one, one_web) = (single_server_client(&home, "a"), http_client_at(&home, "/mcp/s/a"));
    let (all, all_web) = (local_client(&home), http_client(&home));
    let numbers = Counter::default();
    let unknown = RawRequest {
        method: r"vendor\/unheard-\u006ff",
        params: r#""name":NAME,"uri":"xy://a/x""#,
        inside: r#""a__echo""#,
        outside: r#""a__echo""#,
    };
    let message_of = |number, odd: &str| {
        let mark = mark(number);
        format!(
            " {{\"params\" :{{{mark},\"name\":\"a__echo\",\"_meta\":{{\"progressToken\":\"x\"}}, {odd}}},\
             \"method\":\"notifications\\/vendor\", \"jsonrpc\":\"2.0\",\"extra\":1.0 }}"
        )
    };
    // Lone surrogates are legal here, as are members that no server must read.
    let bare = format!(r#""half":"\ud800","deeper":{}{}"#, "[".repeat(5000), "]".repeat(5000));
    let odd: Vec<String> = oddities().into_iter().chain([bare]).collect();
    for (client, is_alone) in [
        (AnyClient::Line(&one), true),
        (AnyClient::Web(&one_web), true),
        (AnyClient::Line(&all), false),
        (AnyClient::Web(&all_web), false),
    ] {
        for odd in &odd {
            let number = numbers.next();
            let text = message_of(number, odd);
            client.tell(&text);
            if is_alone {
                assert_eq!(received(&home, &mark(number)), text);
            }
        }
        for odd in oddities() {
            let number = numbers.next();
            let (id, odd) = (format!("\"\\u0069 {number}\""), format!("{},{odd}", mark(number)));
            let answer = client.ask(&id, &unknown.request(&id, "7.0", unknown.inside, &odd));
            assert!(answer.contains(&id), "{answer}");
            if is_alone {
                let received = received(&home, &mark(number));
                let upstream_id = id_in(&received);
                assert_eq!(
                    received,
                    unknown.request(&upstream_id, &upstream_id, unknown.inside, &odd)
                );
            } else {
                assert!(answer.contains("-32601"), "{answer}");
            }
        }
    }
    // The server has received nothing of what was sent to all servers.
    all.call_text("a__echo", json!({ "message": "last" }));
    let lines = received_lines(&home, "a");
    let marks = lines.iter().filter(|it| it.contains("\"mark\":")).count();
    assert_eq!(marks as u64, numbers.0.get() / 2, "each once");
    home.finish();
}

#[test]
fn cancellation_arrives_verbatim_except_its_id() {
    let home = home();
    serve_recorded(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let (one, all) = (single_server_client(&home, "a"), local_client(&home));
    let numbers = Counter::default();
    for (client, name) in [(&one, "never"), (&all, "a__never")] {
        for odd in oddities() {
            let number = numbers.next();
            let id = format!("\"c\\u0061ll {number}\"");
            let call_mark = mark(number);
            client.send_raw(&format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"tools/call\",\"params\":{{\"name\":\"{name}\",{call_mark}}},\"id\" :{id},\"x\":1}}"
            ));
            let upstream_id = id_in(&received(&home, &call_mark));
            let mark = mark(numbers.next());
            let cancel = |id: &str| {
                format!(
                    "{{\"params\":{{ {odd},\"requestId\" :{id} ,\"reason\":\"\\u0073o\",{mark}}},\"method\":\"notifications/cancelled\",\"jsonrpc\":\"2.0\"}}"
                )
            };
            client.send_raw(&cancel(&id));
            assert_eq!(received(&home, &mark), cancel(&upstream_id));
        }
    }
    home.finish();
}
