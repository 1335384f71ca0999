//! Containers that hang, and containers that are only busy.

use rustix::process::Signal;
use serde_json::{Value, json};
use xy_testkit::Home;

use crate::stage::{Engine, assert_echoes, client, container_processes};
use crate::support::{ask, home, pid_in, running, running_after, signal, status, wait_for_line};

crate::with_each_engine!(
    hanging_container_is_restarted,
    busy_container_is_not_restarted,
    self_test_covers_containers_and_removes_unowned,
);

/// Servers of these tests are restarted at once.
const TIRELESS: &str = "restart { backoff-initial \"0s\"; max-attempts 0; max-retries-per-minute 0 }\n\
     stop { grace \"1s\" }\n";

/// Frequent probes with a short timeout.
const HASTY: &str = "health { interval \"50ms\"; timeout \"1500ms\"; failures 3 }\n";

/// About twice the time in which such probes declare a server dead.
const A_LONG_TIME: u64 = 10_000;

#[track_caller]
fn wait_for_health(home: &Home, name: &str, health: &str) -> Value {
    home.wait_until(&format!("`{name}` is {health}"), || {
        let status = status(home, name);
        (status["health"] == health).then_some(status)
    })
}

/// Suspends the server in a container.
fn freeze(pid: u32) {
    let server = *container_processes(pid).last().unwrap();
    signal(server, Signal::STOP);
}

fn hanging_container_is_restarted(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], &format!("{TIRELESS}{HASTY}"));
    home.daemon();
    let first = running(&home, "one");
    wait_for_health(&home, "one", "healthy");
    let container = engine.container(&home);
    freeze(first);
    let now = running_after(&home, "one", 1);
    assert_ne!(pid_in(&now), first);
    let told = now["transitions"].to_string();
    assert!(told.contains("unhealthy: 3 probes in a row failed"), "{told}");
    assert_eq!(now["last_exit"]["expected"], false, "it counts: {now:#}");
    wait_for_health(&home, "one", "healthy");
    assert_ne!(engine.container(&home), container);
    let client = client(&home);
    assert_echoes(&client, "one");
    drop(client);
    engine.finish(home);
}

fn busy_container_is_not_restarted(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &["--dull"], &format!("{TIRELESS}{HASTY}"));
    home.daemon();
    let first = running(&home, "one");
    wait_for_health(&home, "one", "healthy");
    let client = client(&home);
    // Neither answers a ping meanwhile: one uses the processor, the other writes output.
    for tool in ["spin", "mutter"] {
        let slow = client.call_text(&format!("one__{tool}"), json!({ "ms": A_LONG_TIME }));
        assert_eq!(slow, "done", "{tool}");
        let now = status(&home, "one");
        assert_eq!((pid_in(&now), &now["restart_count"]), (first, &json!(0)), "{tool}: {now:#}");
    }
    wait_for_health(&home, "one", "healthy");
    let call = client.start_call("one__stall", json!({ "ms": 60_000 }));
    wait_for_line(&home, "one", "begins to stall");
    running_after(&home, "one", 1);
    assert!(client.wait_answer(call)["error"].is_object());
    drop(client);
    engine.finish(home);
}

fn self_test_covers_containers_and_removes_unowned(engine: &Engine) {
    let home = home();
    engine.mcp_server(&home, "one", &[], TIRELESS);
    home.daemon();
    let first = running(&home, "one");
    let tested = ask(&home, "self_test", json!({}));
    assert_eq!(
        (&tested["success"], &tested["autoRepair"]),
        (&json!(true), &json!(null)),
        "{tested}"
    );
    let worker = &tested["health"]["worker"][0];
    assert_eq!((&worker["status"], pid_in(worker)), (&json!("ok"), first), "{tested:#}");

    let id = engine.container(&home);
    let found: Value =
        serde_json::from_str(&engine.must("GET", &format!("/containers/{id}/json"))).unwrap();
    let body = json!({
        "Image": "localhost/xy-test",
        "Entrypoint": ["/bin/xy-test-mcp"],
        "Labels": {
            "test": home.mark(),
            "xy.home": found["Config"]["Labels"]["xy.home"],
            "xy.instance": "left",
        },
    });
    let (made, said) =
        engine.ask("POST", &format!("/containers/create?name=left-{}", home.mark()), Some(&body));
    assert_eq!(made, 201, "{said}");
    let left = serde_json::from_str::<Value>(&said).unwrap()["Id"].clone();
    freeze(first);
    let tested = ask(&home, "self_test", json!({}));
    let repairs = tested["autoRepair"].as_array().unwrap();
    let restarted = repairs.iter().find(|it| it["action"] == "worker_restarted");
    let restarted = restarted.unwrap_or_else(|| panic!("{tested:#}"));
    assert_eq!(restarted["previousPid"], first, "{tested:#}");
    let removed = repairs.iter().find(|it| it["action"] == "containers_removed");
    let removed = removed.unwrap_or_else(|| panic!("{tested:#}"));
    assert_eq!(removed["containers"], json!([left]), "{tested:#}");
    assert_ne!(engine.container(&home), id);
    engine.finish(home);
}
