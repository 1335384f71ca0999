//! Whatever a client asks or tells, its server gets the very bytes that were written, but for
//! the id, the token, and the name or URI where several servers share a door.
//!
//! What is written is odd and legal: a careless reader that takes it apart and puts it together
//! again would change it.

use serde_json::json;
use xy_testkit::{Home, McpClient, McpHttp, free_port};

use crate::stage::{
    bridged, diary_file, heard_text, home, local, local_of, ready, serve_noting, serve_with, web,
    web_at,
};

/// What stands in params besides what is meant.
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

/// One thing to say: its method, and its params but for what is odd. `NAME` stands for a name or
/// URI.
struct Saying {
    method: &'static str,
    params: &'static str,
    /// The name or URI as the server knows it, and as the door of all servers does.
    inside: &'static str,
    outside: &'static str,
}

const REQUESTS: [Saying; 6] = [
    Saying {
        method: r"tools\/call",
        params: r#""n\u0061me":NAME,"arguments":{"message":"\u00e9"}"#,
        inside: r#""echo""#,
        outside: r#""a__ech\u006f""#,
    },
    Saying {
        method: "resources/read",
        params: r#""uri" : NAME"#,
        inside: r#""test://static""#,
        outside: r#""xy:\/\/a/test://static""#,
    },
    Saying {
        method: r"prompts\u002fget",
        params: r#""arguments":{"name":"a__Ada","z":"1"},"name":NAME"#,
        inside: r#""greet""#,
        outside: r#""a__greet""#,
    },
    Saying {
        method: "completion/complete",
        params: r#""argument":{"name":"name","value":"a__"},"ref":{"x":1.0,"type":"ref/prompt", "name":NAME ,"y":-0}"#,
        inside: r#""greet""#,
        outside: r#""a__greet""#,
    },
    Saying {
        method: "completion/complete",
        params: r#""ref":{"uri":NAME,"type":"ref\/resource"},"argument":{"name":"id","value":""}"#,
        inside: r#""test://item/{id}""#,
        outside: r#""xy://a/test://item/{id}""#,
    },
    // It is not known to be of any server: its owner is found by what it offers.
    Saying {
        method: "resources/read",
        params: r#""uri":NAME"#,
        inside: r#""test://st\u0061tic""#,
        outside: r#""test://st\u0061tic""#,
    },
];

impl Saying {
    /// The request as it is written, with what is odd; the order of its parts is too.
    fn request(&self, id: &str, token: &str, name: &str, odd: &str) -> String {
        let (method, params) = (self.method, self.params.replace("NAME", name));
        format!(
            "  {{\"extra\":[1.0],\"par\\u0061ms\" : {{{params},\"_meta\":{{\"other\":{{\"progressToken\":3}},\
             \"progressToken\" : {token} ,\"x\":1.0}},{odd}}},\t\"method\":\"{method}\",\"id\" :{id}, \
             \"jsonrpc\":\"2.0\"}} "
        )
    }
}

/// Something that no other message says, to find it by.
fn mark(number: u64) -> String {
    format!("\"mark\":\"no. {number}\"")
}

/// What the server has heard with this mark.
#[track_caller]
fn heard(home: &Home, mark: &str) -> String {
    home.wait_until("it has heard it", || {
        heard_text(home, "a").into_iter().find(|it| it.contains(mark))
    })
}

/// The id that xy gave to this request.
#[track_caller]
fn id_in(line: &str) -> String {
    let (_, after) = line.rsplit_once("\"id\" :").unwrap_or_else(|| panic!("no id: {line}"));
    let ours = after.split(',').next().unwrap_or_default().to_owned();
    assert!(ours.parse::<u64>().is_ok(), "{line}");
    ours
}

/// A client, however it sends what it has written.
enum Door<'c> {
    Line(&'c McpClient),
    Web(&'c McpHttp),
}

impl Door<'_> {
    /// Asks; what comes of it.
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

    /// Says what is not answered.
    #[track_caller]
    fn tell(&self, text: &str) {
        match self {
            Self::Line(client) => client.send_raw(text),
            Self::Web(client) => assert_eq!(client.post(text).status, 202),
        }
    }
}

/// Writes the file of a server that answers whatever it is asked: by pipes, or at a port.
#[track_caller]
fn serve_at(home: &Home, has_port: bool) {
    if !has_port {
        return serve_noting(home, "a", &["--pass-unknown"]);
    }
    let (port, diary) = (free_port(), diary_file(home, "a"));
    let flags = ["--pass-unknown", "--http", &port.to_string(), "--diary", diary.to_str().unwrap()];
    serve_with(home, "a", &flags, &format!("transport \"http\"\nport {port}\npath \"/mcp\"\n"));
}

/// Numbers, each once.
#[derive(Default)]
struct Numbers(std::cell::Cell<u64>);

impl Numbers {
    fn next(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

/// Has all of it said at a door, and compares what the server hears.
#[track_caller]
fn asks(home: &Home, numbers: &Numbers, door: &Door<'_>, is_alone: bool) {
    for saying in &REQUESTS {
        for odd in oddities() {
            let number = numbers.next();
            let odd = format!("{},{odd}", mark(number));
            let (id, token) = (format!("\"n\\u006f {number}\""), format!("\"t\\u0020{number}\""));
            let name = if is_alone { saying.inside } else { saying.outside };
            let answer = door.ask(&id, &saying.request(&id, &token, name, &odd));
            assert!(answer.contains(&id), "{answer}");
            let heard = heard(home, &mark(number));
            let ours = id_in(&heard);
            assert_eq!(heard, saying.request(&ours, &ours, saying.inside, &odd));
        }
    }
}

#[test]
fn every_request_arrives_as_it_was_written_but_for_id_token_and_name() {
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
    let (one, one_web) = (local_of(&home, "a"), web_at(&home, "/mcp/s/a"));
    let (all, all_web, bridge) = (local(&home), web(&home), bridged(&home));
    all.tool_names(); // By now all that it offers is known.
    let numbers = Numbers::default();
    for door in [Door::Line(&one), Door::Web(&one_web)] {
        asks(&home, &numbers, &door, true);
    }
    for door in [Door::Line(&all), Door::Web(&all_web), Door::Line(&bridge)] {
        asks(&home, &numbers, &door, false);
    }
    assert_eq!(numbers.next(), 5 * 6 * 6 + 1, "all of it was compared");
    bridge.close();
    home.finish();
}

#[test]
fn what_only_one_server_can_mean_reaches_it_alone_and_as_it_was_written() {
    for has_port in [false, true] {
        the_rest_arrives_as_written(has_port);
    }
}

#[track_caller]
fn the_rest_arrives_as_written(has_port: bool) {
    let home = home();
    serve_at(&home, has_port);
    home.daemon();
    ready(&home, &["a"]);
    let (one, one_web) = (local_of(&home, "a"), web_at(&home, "/mcp/s/a"));
    let (all, all_web) = (local(&home), web(&home));
    let numbers = Numbers::default();
    let unknown = Saying {
        method: r"vendor\/unheard-\u006ff",
        params: r#""name":NAME,"uri":"xy://a/x""#,
        inside: r#""a__echo""#,
        outside: r#""a__echo""#,
    };
    let told = |number, odd: &str| {
        let mark = mark(number);
        format!(
            " {{\"params\" :{{{mark},\"name\":\"a__echo\",\"_meta\":{{\"progressToken\":\"x\"}}, {odd}}},\
             \"method\":\"notifications\\/vendor\", \"jsonrpc\":\"2.0\",\"extra\":1.0 }}"
        )
    };
    // Half of a pair of surrogates is legal there, and so is what no server has to read.
    let bare = format!(r#""half":"\ud800","deeper":{}{}"#, "[".repeat(5000), "]".repeat(5000));
    let odd: Vec<String> = oddities().into_iter().chain([bare]).collect();
    for (door, is_alone) in [
        (Door::Line(&one), true),
        (Door::Web(&one_web), true),
        (Door::Line(&all), false),
        (Door::Web(&all_web), false),
    ] {
        for odd in &odd {
            let number = numbers.next();
            let text = told(number, odd);
            door.tell(&text);
            if is_alone {
                assert_eq!(heard(&home, &mark(number)), text);
            }
        }
        for odd in oddities() {
            let number = numbers.next();
            let (id, odd) = (format!("\"\\u0069 {number}\""), format!("{},{odd}", mark(number)));
            let answer = door.ask(&id, &unknown.request(&id, "7.0", unknown.inside, &odd));
            assert!(answer.contains(&id), "{answer}");
            if is_alone {
                let heard = heard(&home, &mark(number));
                let ours = id_in(&heard);
                assert_eq!(heard, unknown.request(&ours, &ours, unknown.inside, &odd));
            } else {
                assert!(answer.contains("-32601"), "{answer}");
            }
        }
    }
    // Of what was said to all of them at once it has heard nothing, and never will.
    all.call_text("a__echo", json!({ "message": "last" }));
    let lines = heard_text(&home, "a");
    let marks = lines.iter().filter(|it| it.contains("\"mark\":")).count();
    assert_eq!(marks as u64, numbers.0.get() / 2, "each once");
    home.finish();
}

#[test]
fn a_call_is_cancelled_in_the_words_of_its_client() {
    let home = home();
    serve_noting(&home, "a", &[]);
    home.daemon();
    ready(&home, &["a"]);
    let (one, all) = (local_of(&home, "a"), local(&home));
    let numbers = Numbers::default();
    for (client, name) in [(&one, "never"), (&all, "a__never")] {
        for odd in oddities() {
            let number = numbers.next();
            let id = format!("\"c\\u0061ll {number}\"");
            let call_mark = mark(number);
            client.send_raw(&format!(
                "{{\"jsonrpc\":\"2.0\",\"method\":\"tools/call\",\"params\":{{\"name\":\"{name}\",{call_mark}}},\"id\" :{id},\"x\":1}}"
            ));
            let ours = id_in(&heard(&home, &call_mark));
            let mark = mark(numbers.next());
            let cancel = |id: &str| {
                format!(
                    "{{\"params\":{{ {odd},\"requestId\" :{id} ,\"reason\":\"\\u0073o\",{mark}}},\"method\":\"notifications/cancelled\",\"jsonrpc\":\"2.0\"}}"
                )
            };
            client.send_raw(&cancel(&id));
            assert_eq!(heard(&home, &mark), cancel(&ours));
        }
    }
    home.finish();
}
