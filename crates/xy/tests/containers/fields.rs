//! Each field of `container { … }`, by its effect. The effect is seen in the processes of the
//! container, or at the engine if only that can tell.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use xy_testkit::{Home, McpStdio};

use crate::engine_proxy::EngineProxy;
use crate::stage::{Engine, assert_echoes, client, container_processes, reason};
use crate::support::{ask, home, running, status};

crate::with_each_engine!(
    default_settings_confine_container,
    only_configured_capabilities_are_granted,
    working_dir_user_env_and_labels_are_applied,
    image_command_gets_configured_arguments,
    limits_are_enforced_by_engine,
    pids_limit_blocks_more_threads,
    only_configured_mounts_are_writable,
    configured_network_is_used,
    other_platform_is_not_used_by_accident,
);

/// Servers of these tests are restarted at once.
const TIRELESS: &str =
    "restart { backoff-initial \"10ms\"; max-attempts 0; max-retries-per-minute 0; }\n";

/// Writes an MCP server with these fields.
fn serve(engine: &Engine, home: &Home, fields: &str) {
    let kdl = engine.kdl(home, &["xy-test-mcp"], fields);
    home.write_config("servers/one.kdl", &format!("{kdl}{TIRELESS}"));
}

/// Returns the server's process in its container.
#[track_caller]
fn process(home: &Home) -> u32 {
    *container_processes(running(home, "one")).last().unwrap()
}

/// Returns a line of the kernel's status of a process.
#[track_caller]
fn status_line(pid: u32, name: &str) -> String {
    let all = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = all.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no `{name}` in {all}")).trim().to_owned()
}

#[track_caller]
fn capabilities(pid: u32) -> u64 {
    let all = ["CapEff", "CapPrm", "CapBnd"].map(|name| status_line(pid, name));
    let all = all.map(|it| u64::from_str_radix(&it, 16).unwrap());
    assert_eq!((all[0], all[0]), (all[1], all[2]), "it could not have more either");
    all[0]
}

/// Returns the value of one of these cgroup files of a process, of either cgroup version.
#[track_caller]
fn cgroup_value(pid: u32, controller: &str, first: &str, second: &str) -> String {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let mut places = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap(), parts.next().unwrap());
        let of_first = controllers.split(',').any(|it| it == controller);
        let of_first = of_first.then(|| format!("/sys/fs/cgroup/{controllers}{path}/{first}"));
        let of_second = controllers.is_empty().then(|| format!("/sys/fs/cgroup{path}/{second}"));
        of_first.into_iter().chain(of_second)
    });
    let found = places.find_map(|place| fs::read_to_string(place).ok());
    found.unwrap_or_else(|| panic!("neither {first} nor {second}: {groups}")).trim().to_owned()
}

fn default_settings_confine_container(engine: &Engine) {
    let home = home();
    serve(engine, &home, "");
    home.daemon();
    let pid = process(&home);
    assert_eq!(capabilities(pid), 0);
    assert_eq!(status_line(pid, "NoNewPrivs"), "1");
    assert_eq!(cgroup_value(pid, "pids", "pids.max", "pids.max"), "512");
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment);
    assert!(environment.contains("XY_SERVER=one\0"), "{environment}");
    assert!(!environment.contains(home.mark()), "nothing of the daemon's: {environment}");
    engine.finish(home);
}

fn only_configured_capabilities_are_granted(engine: &Engine) {
    let home = home();
    serve(engine, &home, "cap-add \"NET_BIND_SERVICE\" \"CHOWN\"");
    home.daemon();
    assert_eq!(capabilities(process(&home)), 1 << 10 | 1);

    // By default all capabilities are dropped; with this field, only these of the engine's default
    // ones.
    serve(engine, &home, "cap-drop \"CHOWN\"");
    ask(&home, "reload", json!({}));
    let given = capabilities(process(&home));
    assert_eq!((given & 1, given >> 10 & 1), (0, 1), "{given:x}");
    engine.finish(home);
}

fn working_dir_user_env_and_labels_are_applied(engine: &Engine) {
    let home = home();
    let fields = "working-dir \"/etc\"; user \"1234:2345\"; network \"none\"; \
                  env { GREETING \"good day\"; PATH \"/elsewhere\"; }";
    let kdl = engine.kdl(&home, &["xy-test-mcp", "--name", "with spaces"], fields);
    let kdl = kdl.replace("labels {", "labels { team \"the tools\"; ");
    home.write_config("servers/one.kdl", &kdl);
    home.daemon();
    let pid = process(&home);
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), PathBuf::from("/etc"));
    assert_eq!(status_line(pid, "Uid"), "1234\t1234\t1234\t1234");
    assert_eq!(status_line(pid, "Gid"), "2345\t2345\t2345\t2345");
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let command = String::from_utf8_lossy(&command);
    assert_eq!(command, "/bin/xy-test-mcp\0--name\0with spaces\0");
    let client = client(&home);
    for (name, value) in [("GREETING", "good day"), ("PATH", "/elsewhere"), ("XY_SERVER", "one")] {
        assert_eq!(client.call_text("one__env", json!({ "name": name })), value);
    }
    let labels = engine.inspect(&engine.container(&home))["Config"]["Labels"].clone();
    assert_eq!(labels["team"], "the tools", "{labels:#}");
    assert_eq!(status(&home, "one")["container"]["socket"], engine.socket.to_str().unwrap());
    drop(client);
    engine.finish(home);
}

fn image_command_gets_configured_arguments(engine: &Engine) {
    let home = home();
    let own = "ENTRYPOINT [\"/bin/xy-test-mcp\",\"--name\",\"images\"]";
    let image = engine.image_with(&home, &[own, "CMD [\"--v2\"]"]);
    let kdl = engine.kdl(&home, &["x"], "network \"none\"").replace("localhost/xy-test", &image);
    let write = |args: &str| {
        let kdl = kdl.replace("command \"/bin/x\"", args);
        home.write_config("servers/one.kdl", &kdl);
    };
    write("");
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    home.wait_until("the arguments of the image are there", || {
        client.tool_names().contains(&"one__reverse".to_owned())
    });
    write("args \"--only-tools\"");
    ask(&home, "reload", json!({}));
    let pid = process(&home);
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap();
    let command = String::from_utf8_lossy(&command);
    assert_eq!(command, "/bin/xy-test-mcp\0--name\0images\0--only-tools\0");
    drop(client);
    engine.finish(home);
    engine.must("DELETE", &format!("/images/{image}?force=1"));
}

fn limits_are_enforced_by_engine(engine: &Engine) {
    let home = home();
    serve(engine, &home, "network \"none\"; cpus 0.5; memory \"48MiB\"; pids 77");
    home.daemon();
    let pid = process(&home);
    assert_eq!(cgroup_value(pid, "pids", "pids.max", "pids.max"), "77");
    let memory = cgroup_value(pid, "memory", "memory.limit_in_bytes", "memory.max");
    assert_eq!(memory, (48 << 20).to_string());
    let host = engine.inspect(&engine.container(&home))["HostConfig"].clone();
    // The limit covers memory and swap together, so there is no swap.
    assert_eq!(host["MemorySwap"], 48 << 20, "{host:#}");
    let quota = cgroup_value(pid, "cpu", "cpu.cfs_quota_us", "cpu.max");
    let (quota, period) = match quota.split_once(' ') {
        Some((quota, period)) => (quota.to_owned(), period.to_owned()),
        None => (quota, cgroup_value(pid, "cpu", "cpu.cfs_period_us", "cpu.max")),
    };
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|why| panic!("{text}: {why}"));
    assert_eq!(2 * number(&quota), number(&period), "half a processor");
    engine.finish(home);
}

fn pids_limit_blocks_more_threads(engine: &Engine) {
    let home = home();
    let kdl = engine.kdl(&home, &["xy-test-mcp"], "network \"none\"; pids 12");
    home.write_config("servers/one.kdl", &format!("{kdl}restart {{ policy \"never\"; }}\n"));
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    // Each call needs a thread of its own, and the server dies if it gets none.
    for _ in 0..20 {
        client.start_call("one__never", json!({}));
    }
    home.wait_for_state("one", "failed");
    let log = fs::read_to_string(home.log_file("one")).unwrap();
    assert!(log.contains("Resource temporarily unavailable"), "{log}");
    drop(client);
    engine.finish(home);
}

/// Returns true if the server can create a file: it dies if it can, and answers if it cannot.
#[track_caller]
fn can_make(client: &McpStdio, file: &str) -> bool {
    let answer = client.call("one__mutating", json!({ "message": "alive", "die_once": file }));
    let is_alive = answer["result"]["content"][0]["text"] == "alive";
    assert!(is_alive || answer["error"]["code"] == -32010, "{answer}");
    !is_alive
}

fn only_configured_mounts_are_writable(engine: &Engine) {
    let home = home();
    let (given, shown) = (home.root().join("harness/given"), home.root().join("harness/shown"));
    fs::create_dir_all(&given).unwrap();
    fs::create_dir_all(&shown).unwrap();
    let volume = format!("named-{}", home.mark());
    let volumes = format!(
        "network \"none\"; volumes \"{}:/given\" \"{}:/shown:ro\" \"{volume}:/named\"",
        given.display(),
        shown.display()
    );
    let strict = "; read-only #true; tmpfs \"/scratch:size=1m\" \"/tmp\"";
    serve(engine, &home, &format!("{volumes}{strict}"));
    home.daemon();
    let pid = process(&home);
    let mounts = fs::read_to_string(format!("/proc/{pid}/mounts")).unwrap();
    let scratch = mounts.lines().find(|line| line.contains(" /scratch tmpfs ")).unwrap();
    assert!(scratch.contains("size=1024k"), "{mounts}");
    let client = client(&home);
    assert!(!can_make(&client, "/etc/x"));
    assert!(!can_make(&client, "/shown/x"));
    assert!(can_make(&client, "/given/x"));
    assert!(given.join("x").exists() && !shown.join("x").exists());
    assert!(can_make(&client, "/named/x"));
    assert!(!can_make(&client, "/named/x"), "the next container has the same volume");
    assert!(can_make(&client, "/scratch/x"));
    assert!(can_make(&client, "/scratch/x"), "the next container has an empty one");
    assert!(can_make(&client, "/tmp/x"));

    serve(engine, &home, &volumes);
    ask(&home, "reload", json!({}));
    running(&home, "one");
    assert!(can_make(&client, "/etc/x"), "only one that is read-only is");
    drop(client);
    engine.finish(home);
    // A named volume belongs to the user.
    engine.must("GET", &format!("/volumes/{volume}"));
    engine.must("DELETE", &format!("/volumes/{volume}?force=1"));
}

/// Returns the network interfaces of a process.
fn interfaces(pid: u32) -> Vec<String> {
    let all = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap();
    let names = all.lines().skip(2).filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

fn configured_network_is_used(engine: &Engine) {
    let home = home();
    serve(engine, &home, "network \"none\"");
    home.daemon();
    let none = interfaces(process(&home));
    // Some kernels have further interfaces that lead nowhere.
    assert!(none.contains(&"lo".to_owned()) && !none.contains(&"eth0".to_owned()), "{none:?}");

    serve(engine, &home, "network \"host\"");
    ask(&home, "reload", json!({}));
    let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    assert_eq!(of(&process(&home).to_string()), of("self"));

    let network = format!("net-{}", &home.mark()[..8]);
    let (made, said) = engine.ask("POST", "/networks/create", Some(&json!({ "Name": network })));
    assert_eq!(made, 201, "{said}");
    serve(engine, &home, &format!("network {network:?}"));
    ask(&home, "reload", json!({}));
    let pid = process(&home);
    assert!(interfaces(pid).contains(&"eth0".to_owned()), "{:?}", interfaces(pid));
    let found = engine.inspect(&engine.container(&home));
    let networks = &found["NetworkSettings"]["Networks"];
    assert!(
        networks[&network].is_object() && networks.as_object().unwrap().len() == 1,
        "{found:#}"
    );

    serve(engine, &home, "network \"there-is-none\"");
    let _ = home.call("reload", json!({}));
    let failed = home.wait_for_state("one", "failed");
    assert!(reason(&home, "one").starts_with("its network does not exist"), "{failed:#}");
    assert_eq!(failed["restarts_total"], 0);
    engine.finish(home);
    engine.must("DELETE", &format!("/networks/{network}"));
}

fn other_platform_is_not_used_by_accident(engine: &Engine) {
    let home = home();
    let (engine_proxy, seen) = EngineProxy::of(engine, &home);
    let here = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };
    serve(&seen, &home, &format!("network \"none\"; platform \"{here}\""));
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    let asked = |what: &str, platform: &str| {
        let platform = platform.replace('/', "%2F");
        engine_proxy.asked_all(&[what, &format!("platform={platform}")])
    };
    assert_eq!(asked("/containers/create", here), 1);
    let other = "network \"none\"; platform \"linux/s390x\"";
    serve(&seen, &home, other);
    let _ = home.call("reload", json!({}));
    let failed = home.wait_for_state("one", "failed");
    let why = reason(&home, "one");
    // Docker refuses it in its own words; for Podman, xy compares the platforms.
    let is_named = ["wanted linux/s390x", "asks for linux/s390x"].map(|it| why.contains(it));
    assert!(is_named.contains(&true), "{failed:#}");
    assert_eq!(failed["restarts_total"], 0, "{failed:#}");
    // The same platform is pulled.
    let kdl = seen.kdl(&home, &["x"], other).replace("localhost/xy-test", "127.0.0.1:9/nope:1");
    home.write_config("servers/one.kdl", &kdl.replace("pull \"never\"", "pull \"missing\""));
    let _ = home.call("reload", json!({}));
    home.wait_until("it is fetched", || asked("/images/create", "linux/s390x") > 0);
    drop(client);
    engine.finish(home);
}
