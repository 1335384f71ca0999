//! Tests of servers that are containers.

use xy_protocol::server::Transport;

use super::{check_files, rendered, report};
use crate::settings::{ContainerSettings, EngineKind, MountSource, Pull};

fn container(text: &str) -> ContainerSettings {
    let loaded = check_files(&[("a.kdl", text)]);
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    loaded.settings.servers["a"].container().unwrap().clone()
}

#[test]
fn tcp_probe_of_a_container_causes_a_warning() {
    let file = |probe: &str| {
        format!("container {{ image \"x\"; }}\nport 8421\nready {{ probe \"{probe}\"; }}\n")
    };
    let loaded = check_files(&[("a.kdl", &file("tcp"))]);
    assert!(loaded.is_valid(), "{}", rendered(&loaded));
    assert!(
        rendered(&loaded).contains("before the server in the container listens"),
        "{}",
        rendered(&loaded)
    );
    assert_eq!(rendered(&check_files(&[("a.kdl", &file("http"))])), "");
}

#[test]
fn only_containers_run_by_cli_cause_a_warning() {
    let report = |text: &str| rendered(&check_files(&[("a.kdl", text)]));
    let hint = "xy sees this container only as the process";
    for line in [
        "command \"docker\"\nargs \"run\" \"--rm\" \"-i\" \"x\"\n",
        "command \"/usr/bin/podman\"\nargs \"run\" \"-i\" \"x\"\n",
        "command \"docker\"\nargs \"container\" \"run\" \"x\"\n",
    ] {
        assert_eq!(report(line).matches(hint).count(), 1, "{}", report(line));
    }
    for line in [
        "command \"npx\"\nargs \"-y\" \"run\"\n",
        "command \"uvx\"\nargs \"run\"\n",
        "command \"docker\"\nargs \"compose\" \"run\" \"x\"\n",
        "command \"docker-mcp\"\nargs \"run\"\n",
    ] {
        assert!(!report(line).contains(hint), "{}", report(line));
    }
}

#[test]
fn containers_with_one_share_key_must_be_equal() {
    let file = |more: &str| format!("container {{ image \"x:1\"; {more} }}\nshare-key \"k\"\n");
    let first = file("args \"-y\"; env { A \"1\"; B \"2\" }; volumes \"data:/data\"");
    let with = |other: &str| rendered(&check_files(&[("a.kdl", &first), ("b.kdl", other)]));
    let turned = file("volumes \"data:/data\"; env { B \"2\"; A \"1\" }; args \"-y\"");
    assert_eq!(with(&turned), "", "the order of words means nothing");
    for (what, other) in [
        ("image", first.replace("x:1", "x:2")),
        ("args", first.replace("-y", "-n")),
        ("env", first.replace("A \"1\"", "A \"3\"")),
        ("volumes", first.replace("data:/data", "data:/data:ro")),
        ("memory", first.replace("image", "memory \"64MiB\"; image")),
        ("no container", "command \"npx\"\nshare-key \"k\"\n".to_owned()),
    ] {
        let report = with(&other);
        assert!(report.contains("but they are not the same process"), "{what}: {report}");
    }
}

#[test]
fn image_alone_is_enough() {
    let read = container("container { image \"ghcr.io/x/y:1\" }");
    assert_eq!(read, ContainerSettings::of_image("ghcr.io/x/y:1".into()));
    assert_eq!((read.transport, read.port, read.pull), (Transport::Stdio, None, Pull::Missing));
    assert_eq!((read.cap_drop, read.init), (None, true));
}

#[test]
fn missing_folder_causes_a_warning_and_missing_volume_does_not() {
    let report = |volume: &str| {
        let text = format!("container {{ image \"x:1\"; volumes \"{volume}\" }}");
        rendered(&check_files(&[("a.kdl", &text)]))
    };
    for fine in ["/srv/x:/x", "/bin/data:/x:ro", "gone:/x"] {
        assert_eq!(report(fine), "", "{fine}");
    }
    let warning = report("/gone:/x");
    assert!(warning.contains("warning: `/gone` does not exist"), "{warning}");
}

#[test]
fn complete_block_is_read() {
    let read = container(
        r#"container {
    image "Registry.example:5000/x/y@sha256:0123"
    command "/bin/server"
    args "--verbose" "-x"
    env { A "b"; N 1 }
    volumes "/srv/x:/x:ro" "data:/data"
    working-dir "/app"
    user "1000:1000"
    memory "64MiB"
    cpus 1.5
    pids 20
    network "none"
    read-only #true
    cap-drop "net_raw" "CAP_KILL"
    cap-add "CHOWN"
    tmpfs "/tmp" "/run:size=1m,mode=1777"
    pull "never"
    platform "linux/arm64"
    labels { team "tools" }
    engine "podman"
    init #false
}"#,
    );
    assert_eq!(read.image, "Registry.example:5000/x/y@sha256:0123");
    assert_eq!(read.args.unwrap(), ["--verbose", "-x"]);
    assert_eq!(read.env["N"], "1");
    assert_eq!(read.volumes[0].source, MountSource::Folder("/srv/x".into()));
    assert!(read.volumes[0].read_only && !read.volumes[1].read_only);
    assert_eq!((read.memory, read.nano_cpus), (Some(64 << 20), Some(1_500_000_000)));
    assert_eq!(read.cap_drop.unwrap(), ["NET_RAW", "KILL"]);
    assert_eq!(read.cap_add, ["CHOWN"]);
    assert_eq!(read.tmpfs[1].options, "size=1m,mode=1777");
    assert_eq!((read.pull, read.engine), (Pull::Never, Some(EngineKind::Podman)));
    assert!(read.read_only && !read.init);
}

#[test]
fn container_with_a_port_has_an_endpoint() {
    let file = "port 8421\npath \"/x\"\ncontainer { image \"x\"; port 80 }";
    let read = container(file);
    assert_eq!(
        (read.transport, read.port, read.inner_port),
        (Transport::Http, Some(8421), Some(80))
    );
    let loaded = check_files(&[("a.kdl", file)]);
    let endpoint = loaded.settings.servers["a"].endpoint().unwrap();
    assert_eq!((endpoint.url.as_str(), endpoint.is_remote), ("http://127.0.0.1:8421/x", false));
}

#[test]
fn all_problems_of_a_container_are_reported() {
    let server = r#"args "-y"
env { A "b" }
working-dir "/srv/x"
limits { pids 10 }
headers { A "b" }
container {
    image "https://x/Y Z"
    imgae "x"
    volumes "~/x:/x" "/a" "/a:/b" "/c:/b"
    working-dir "app"
    user "a b"
    memory "1MiB"
    cpus 0
    pids 0
    network "a b"
    read-only "yes"
    cap-drop "NET_RAWW" "nonsense-of-all-kinds"
    tmpfs "tmp"
    pull "often"
    platform "arm"
    labels { xy.home "x"; team 1 }
    engine "dcoker"
    host "tcp://10.0.0.1:2375"
    port 70000
    command ""
}
"#;
    let others = [
        ("a.kdl", server),
        ("b.kdl", "container { }"),
        ("c.kdl", "container \"x\""),
        ("d.kdl", "container { image \"x\" }\ncommand \"/bin/true\"\nurl \"http://a/\""),
        ("e.kdl", "container { image \"x\"; port 80 }"),
        ("f.kdl", "port 81\ncontainer { image \"x\"; network \"host\" }"),
        ("g.kdl", "container { image \"x\"; engine \"podman\"; host \"unix:///x.sock\" }"),
        ("h.kdl", "transport \"http\"\ncontainer { image \"x\" }"),
    ];
    insta::assert_snapshot!(report(&others));
}
