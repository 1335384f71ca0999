//! Servers that `npx` and `uvx` run are plain processes, and their wrappers leave nothing behind.

use serde_json::json;
use xy_testkit::{is_alive, marked_processes};

use crate::stage::{Stage, install_folder};

/// The servers, each with a tool, its arguments and a part of its answer.
const RUN: [(&str, &str, &str, &str); 2] = [
    ("npx", "echo", r#"{"message":"by npx"}"#, "by npx"),
    ("uvx", "get_current_time", r#"{"timezone":"UTC"}"#, "UTC"),
];

/// The programs that `npx` and `uvx` run.
const PROGRAMS: [&str; 2] = ["mcp-server-everything", "mcp-server-time"];

#[test]
fn npx_and_uvx_servers_are_supervised() {
    let stage = Stage::of(&[]);
    let home = &stage.home;
    let real = install_folder();
    let (npm, uv) = (real.join("npm"), real.join("uv"));
    let node = npm.join("node_modules/node/bin");
    let path = format!("{}:{}", node.display(), std::env::var("PATH").unwrap());
    let npx = format!(
        "command \"npx\"\nargs \"--no-install\" \"mcp-server-everything\"\nworking-dir {npm:?}\n\
         env {{ PATH {path:?}; }}\n"
    );
    // The package is in the cache already; the test downloads nothing.
    let uvx = format!(
        "command {:?}\nargs \"--offline\" \"--python\" \"python3\" \"mcp-server-time\"\n\
         env {{ UV_CACHE_DIR {uv:?}; }}\n",
        real.join("servers/bin/uvx")
    );
    for (name, kdl) in [("npx", npx), ("uvx", uvx)] {
        let kdl = format!("{kdl}ready {{ within \"60s\"; }}\n");
        home.write_config(&format!("servers/{name}.kdl"), &kdl);
    }
    let checked = home.xy(&["check"]);
    assert!(checked.code == 0 && !checked.stdout.contains("container"), "{checked:?}");
    home.daemon();
    let client = home.mcp_connect(&[]);
    client.initialize();
    for (name, tool, arguments, says) in RUN {
        home.wait_for_state(name, "running");
        let arguments = serde_json::from_str(arguments).unwrap();
        let answer = client.call(&format!("{name}__{tool}"), arguments);
        assert!(answer["result"].to_string().contains(says), "{name}: {answer}");
    }
    for ((name, ..), program) in RUN.into_iter().zip(PROGRAMS) {
        let inside = || {
            let all = marked_processes(home.mark()).into_iter();
            all.filter(|it| it.cmdline.contains(program)).map(|it| it.pid).collect::<Vec<_>>()
        };
        let all = inside();
        assert!(!all.is_empty(), "{name} runs nothing");
        home.call("stop", json!({ "name": name })).unwrap();
        assert!(all.into_iter().all(|pid| !is_alive(pid)), "{name} has left something");
        assert_eq!(inside(), [0; 0], "{name}");
    }
    client.close();
    stage.home.finish();
}
