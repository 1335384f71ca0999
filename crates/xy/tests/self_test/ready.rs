//! Running servers whose port or page does not answer.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use xy_testkit::{Home, free_port, is_alive};

use crate::support::{ask, running};
use crate::{home_without_gateway, run_self_test, worker};

/// Serves a page that speaks no MCP and answers 503 while the process with this id lives.
fn page(failing: &Arc<AtomicU32>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let failing = failing.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answer(&stream, failing.load(Ordering::SeqCst));
        }
    });
    port
}

fn answer(mut stream: &TcpStream, failing: u32) {
    let mut head = [0; 4096];
    let count = stream.read(&mut head).unwrap_or_default();
    let status = match &head[..count] {
        asked if !asked.starts_with(b"GET /mcp/health ") => "404 Not Found",
        _ if failing != 0 && is_alive(failing) => "503 Service Unavailable",
        _ => "200 OK",
    };
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
    let _ = stream.write_all(head.as_bytes()); // The client may not wait for the answer.
}

/// Returns the self-test's result for the only server, without repairs.
#[track_caller]
fn check_only(home: &Home) -> Value {
    let tested = ask(home, "self_test", json!({ "repair": false }));
    assert_eq!(tested.get("autoRepair"), None, "{tested:#}");
    worker(&tested, "one").clone()
}

#[test]
fn non_mcp_server_with_503_page_is_restarted() {
    let home = home_without_gateway();
    let failing = Arc::default();
    let rest = "ready { probe \"http\"; within \"1m\" }\nhealth { probe \"off\" }\n";
    let sleeper = home.kdl_command("xy-test-sleep-server", &["--every", "600000"]);
    home.server("one", &format!("{sleeper}port {}\n{rest}", page(&failing)));
    home.daemon();
    let first = running(&home, "one");
    let well = check_only(&home);
    assert_eq!(well["status"], "ok", "{well:#}");
    assert_eq!(well["note"], "it does not speak MCP, but its port answers");

    failing.store(first, Ordering::SeqCst);
    let found = check_only(&home);
    assert_eq!(found["status"], "failed", "{found:#}");
    let why = found["note"].as_str().unwrap();
    assert!(why.starts_with("it is no longer ready: GET http://127.0.0.1:"), "{why}");
    assert!(why.ends_with("/mcp/health was answered with status 503"), "{why}");
    assert_eq!(running(&home, "one"), first, "it was only reported");

    let mended = run_self_test(&home);
    assert_eq!(worker(&mended, "one")["status"], "restarted", "{mended:#}");
    assert_eq!(mended["autoRepair"][0]["reason"], why, "{mended:#}");
    assert!(!is_alive(first));
    assert_eq!(check_only(&home)["status"], "ok");
    home.finish();
}

#[test]
fn answering_server_with_503_page_is_only_reported() {
    let home = home_without_gateway();
    let port = free_port();
    let kdl = home.kdl_mcp(&["--http", &port.to_string(), "--well-after", "1000000"]);
    let with = |probe| format!("{kdl}port {port}\nready {{ probe \"{probe}\"; within \"1m\" }}\n");
    home.server("one", &with("tcp"));
    home.daemon();
    let first = running(&home, "one");
    let client = home.mcp_connect(&[]);
    client.initialize();
    assert_eq!(client.call_text("one__echo", json!({ "message": "a" })), "a");
    // The server had started before: from now on its page decides.
    home.server("one", &with("http"));
    ask(&home, "reload", json!({}));

    let tested = run_self_test(&home);

    let found = worker(&tested, "one");
    assert_eq!((&found["status"], &found["pid"]), (&json!("ok"), &json!(first)), "{tested:#}");
    let page = format!("GET http://127.0.0.1:{port}/mcp/health");
    let note = format!("{page} was answered with status 503, but it answered");
    assert_eq!(found["note"], note, "{tested:#}");
    assert_eq!(tested.get("autoRepair"), None, "{tested:#}");
    client.close();
    home.finish();
}
