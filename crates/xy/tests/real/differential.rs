//! Compares a server with itself through xy: one script of messages, driven directly and through
//! every endpoint of xy. Every answer, notification and server request is compared as text.
//!
//! `differential/allowed.rs` lists the allowed differences, each with its reason. Any other
//! difference is a fault, and so is an entry that matches nothing.

mod allowed;
mod compare;
mod drive;
mod script;

use xy_testkit::McpStdio;
use xy_testkit::text::Text;

use self::compare::{Allowed, AllowedDifference, compare};
use self::drive::{Record, Step, Target, drive};
use crate::lab::{Lab, Upstream};

/// A way through xy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// `xy connect --server S`.
    Connect,
    /// `/mcp/s/S`.
    Http,
    /// `xy connect`, with the server among others.
    AllConnect,
    /// `/mcp`, with the server among others.
    AllHttp,
}

impl Way {
    const EVERY: [Self; 4] = [Self::Connect, Self::Http, Self::AllConnect, Self::AllHttp];

    fn is_among_others(self) -> bool {
        matches!(self, Self::AllConnect | Self::AllHttp)
    }
}

/// A server and its script.
struct Subject {
    name: &'static str,
    /// The program and its arguments for stdio.
    words: fn(&Lab) -> Vec<String>,
    /// The server's file.
    file: fn(&Lab) -> String,
    script: fn() -> Vec<Step>,
    answers: fn(&str) -> String,
    allowed: &'static [&'static [AllowedDifference]],
}

/// A fixture that all clients share.
const SHARED: Subject = Subject {
    name: "fixture",
    words: fixture_words,
    file: |lab| lab.kdl(Upstream::Stdio),
    script: script::fixture,
    answers: script::odd_answers,
    allowed: &[allowed::ALWAYS, allowed::FIXTURE, allowed::SHARED],
};

#[test]
fn shared_fixture_answers_as_without_xy() {
    assert_same(&SHARED);
}

#[test]
fn streamable_http_fixture_answers_as_without_xy() {
    assert_same(&Subject { file: |lab| lab.kdl(Upstream::Http), ..SHARED });
}

#[test]
fn legacy_sse_fixture_answers_as_without_xy() {
    assert_same(&Subject { file: |lab| lab.kdl(Upstream::Sse), ..SHARED });
}

#[test]
fn isolated_fixture_answers_as_without_xy() {
    let allowed = &[allowed::ALWAYS, allowed::FIXTURE, allowed::OF_ONE_CLIENT];
    let file = |lab: &Lab| format!("{}isolation \"client\"\n", lab.kdl(Upstream::Stdio));
    assert_same(&Subject { file, allowed, ..SHARED });
}

#[test]
fn everything_server_answers_as_without_xy() {
    assert_same(&Subject {
        name: "everything",
        words: everything_words,
        file: |lab| {
            let more = "isolation \"client\"\nready { within \"20s\"; }\n";
            format!("{}{more}", Lab::kdl_of(&everything_words(lab)))
        },
        script: script::everything,
        answers: script::plain_answers,
        allowed: &[allowed::ALWAYS, allowed::EVERYTHING],
    });
}

fn fixture_words(lab: &Lab) -> Vec<String> {
    vec![lab.home.program("xy-test-fixture").to_str().unwrap().to_owned(), "--stdio".to_owned()]
}

fn everything_words(lab: &Lab) -> Vec<String> {
    lab.node_words("npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js")
}

#[track_caller]
fn assert_same(subject: &Subject) {
    let direct = run_directly(subject);
    let allowed = Allowed::new(subject.allowed);
    let mut problems = Vec::new();
    for way in Way::EVERY {
        let through = run_through(subject, way, &allowed.expected(way, &direct));
        problems.extend(compare(way, &direct, &through, &allowed));
    }
    problems.extend(allowed.unused());
    let count = problems.len();
    assert!(problems.is_empty(), "{count} differences:\n{}", problems.join("\n"));
}

/// Returns the messages of the server without xy. Each step must have messages.
#[track_caller]
fn run_directly(subject: &Subject) -> Vec<Record> {
    let lab = Lab::new();
    let words = (subject.words)(&lab);
    let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    let client = McpStdio::start(lab.home.command_of(words[0].as_ref(), &args));
    let (answers, is_odd) = (&subject.answers, subject.name == "fixture");
    let target = Target { client: &client, among_others: None, is_odd, answers, expected: None };
    let records = drive(&target, || (), &(subject.script)());
    for record in &records {
        assert!(!record.messages.is_empty(), "no messages at {}", record.label);
    }
    drop(client); // Some servers do not end with their stdin.
    lab.home.finish();
    records
}

/// Connects and disconnects a first client. From then on xy knows the server, and its description
/// does not depend on timing.
#[track_caller]
fn warm_up(lab: &Lab, server: &str) {
    let first = lab.home.mcp_connect(&["--server", server]);
    first.initialize_with(&drive::capabilities());
    assert!(!first.tool_names().is_empty());
    assert!(first.close().success());
}

/// Returns the messages of the server through xy, with its original names.
#[track_caller]
fn run_through(subject: &Subject, way: Way, expected: &[usize]) -> Vec<Record> {
    let lab = Lab::new();
    let file = (subject.file)(&lab);
    lab.home.write_config(&format!("servers/{}.kdl", subject.name), &file);
    let _daemon = lab.home.daemon();
    warm_up(&lab, subject.name);
    let (answers, is_odd) = (&subject.answers, subject.name == "fixture");
    let among_others = way.is_among_others().then_some(subject.name);
    let expected = Some(expected);
    let (server, path) = (["--server", subject.name], format!("/mcp/s/{}", subject.name));
    let mut records = match way {
        Way::Connect | Way::AllConnect => {
            let args: &[&str] = if among_others.is_some() { &[] } else { &server };
            let client = lab.home.mcp_connect(args);
            let target = Target { client: &client, among_others, is_odd, answers, expected };
            let records = drive(&target, || (), &(subject.script)());
            assert!(client.close().success());
            records
        }
        Way::Http | Way::AllHttp => {
            let path = if among_others.is_some() { "/mcp" } else { &path };
            let client = lab.http(path);
            let target = Target { client: &client, among_others, is_odd, answers, expected };
            let open_stream = || assert_eq!(client.open_stream(), 200);
            let records = drive(&target, open_stream, &(subject.script)());
            assert_eq!(client.strays(), [""; 0]);
            client.close();
            records
        }
    };
    lab.home.finish();
    if let Some(server) = among_others {
        records.iter_mut().flat_map(|it| &mut it.messages).for_each(|it| own_names(server, it));
    }
    records
}

/// Replaces the names in lists and resource updates with the server's original names. Removes
/// entries of other servers from the lists.
fn own_names(server: &str, message: &mut Text) {
    let (name, uri) = (format!("\"{server}__"), format!("\"xy://{server}/"));
    if message.word("method") == "notifications/resources/updated" {
        if let Some(Text::Plain(it)) = message.get_mut("params").and_then(|it| it.get_mut("uri")) {
            *it = it.replacen(&uri, "\"", 1);
        }
        return;
    }
    let Some(result) = message.get_mut("result") else { return };
    for (list, key, prefix) in [
        ("tools", "name", &name),
        ("prompts", "name", &name),
        ("resources", "uri", &uri),
        ("resourceTemplates", "uriTemplate", &uri),
    ] {
        let Some(Text::Array(entries)) = result.get_mut(list) else { continue };
        entries.retain_mut(|entry| match entry.get_mut(key) {
            Some(Text::Plain(it)) if it.starts_with(prefix.as_str()) => {
                *it = it.replacen(prefix.as_str(), "\"", 1);
                true
            }
            _ => false,
        });
    }
}
