//! Images that have to be pulled, from a small registry of the test that can be slow.
//!
//! Docker accepts a registry on loopback without TLS; Podman is configured to (`real/engines`).

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use xy_testkit::Home;

use crate::stage::{Engine, assert_echoes, client, reason};
use crate::support::{ask, home, running, status};

/// The content of the registry: blobs by digest, with their types.
struct Shelf {
    image: Mutex<Image>,
    /// Until this is set, blobs stop after their first half, and the rest trickles.
    is_open: AtomicBool,
    /// Number of requests that have waited for the second half.
    waits: AtomicU32,
    /// Required value of the `Authorization` header; empty for anonymous access.
    login: &'static str,
}

/// An image as a registry has it.
#[derive(Clone)]
struct Image {
    manifest: Vec<u8>,
    blobs: Vec<(String, Vec<u8>)>,
}

impl Image {
    /// Creates an image with this layer, in which `VERSION` has this content.
    fn of(folder: &Path, layer: &[u8], diff: &str, version: &str) -> Self {
        let config = json!({
            "architecture": "amd64", "os": "linux",
            "config": {
                "Entrypoint": ["/bin/xy-test-mcp"], "Env": [format!("VERSION={version}")],
            },
            "rootfs": { "type": "layers", "diff_ids": [diff] },
        });
        let config = config.to_string().into_bytes();
        let (config_digest, layer_digest) = (digest(folder, &config), digest(folder, layer));
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": config.len(), "digest": config_digest,
            },
            "layers": [{
                "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                "size": layer.len(), "digest": layer_digest,
            }],
        });
        Self {
            manifest: manifest.to_string().into_bytes(),
            blobs: vec![(config_digest, config), (layer_digest, layer.to_vec())],
        }
    }
}

struct Registry {
    port: u16,
    shelf: Arc<Shelf>,
    /// A newer image of the same name.
    newer: Image,
}

fn digest(folder: &Path, bytes: &[u8]) -> String {
    let file = folder.join("bytes");
    std::fs::write(&file, bytes).unwrap();
    let sum = Command::new("sha256sum").arg(&file).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap();
    format!("sha256:{}", sum.split(' ').next().unwrap())
}

fn shell(script: &str, folder: &Path) {
    let ran = Command::new("sh").arg("-c").arg(script).current_dir(folder).status().unwrap();
    assert!(ran.success(), "{script}");
}

impl Registry {
    /// Starts a registry with one image, `x:1`: the test servers, and a few megabytes that take a
    /// while.
    fn open() -> Self {
        Self::open_to("")
    }

    /// Starts such a registry that requires this login.
    fn open_to(login: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let rootfs = format!("{}/rootfs", std::env::var("XY_ENGINES").unwrap());
        let script = format!(
            "mkdir root && cp -a {rootfs}/. root/ && head -c 6000000 /dev/urandom >root/ballast && \
             tar -C root -cf layer.tar . && gzip -1 -k layer.tar"
        );
        shell(&script, folder.path());
        let layer = std::fs::read(folder.path().join("layer.tar.gz")).unwrap();
        let diff = digest(folder.path(), &std::fs::read(folder.path().join("layer.tar")).unwrap());
        let [image, newer] =
            ["1", "2"].map(|version| Image::of(folder.path(), &layer, &diff, version));
        let shelf = Arc::new(Shelf {
            image: Mutex::new(image),
            is_open: AtomicBool::new(!login.is_empty()),
            waits: AtomicU32::new(0),
            login,
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let lent = shelf.clone();
        std::thread::spawn(move || {
            for visitor in listener.incoming().flatten() {
                let shelf = lent.clone();
                std::thread::spawn(move || serve(&shelf, visitor));
            }
        });
        Self { port, shelf, newer }
    }

    /// Replaces the image by a newer one of the same name.
    fn renew(&self) {
        *self.shelf.image.lock().unwrap() = self.newer.clone();
    }

    fn image(&self) -> String {
        format!("127.0.0.1:{}/x:1", self.port)
    }
}

/// Answers one request.
fn serve(shelf: &Shelf, mut visitor: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(visitor.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut may_have_it = shelf.login.is_empty();
    while let Some(Ok(header)) =
        lines.next().filter(|it| it.as_ref().is_ok_and(|it| !it.is_empty()))
    {
        let said =
            header.split_once(": ").filter(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        may_have_it |= said.is_some_and(|(_, value)| value == shelf.login);
    }
    if !may_have_it {
        return visitor.write_all(
            b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\n\
              Content-Length: 0\r\nConnection: close\r\n\r\n",
        );
    }
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_manifest = path.starts_with("/v2/x/manifests/");
    let image = shelf.image.lock().unwrap().clone();
    let blob = image.blobs.iter().find(|(digest, _)| path.ends_with(digest.as_str()));
    let (kind, body): (&str, &[u8]) = match blob {
        _ if is_manifest => {
            ("application/vnd.docker.distribution.manifest.v2+json", &image.manifest)
        }
        Some((_, bytes)) => ("application/octet-stream", bytes),
        None if path == "/v2/" => ("application/json", b"{}"),
        None => {
            let body = r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#;
            let answer = format!(
                "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            return visitor.write_all(answer.as_bytes());
        }
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    visitor.write_all(head.as_bytes())?;
    if method == "HEAD" {
        return Ok(());
    }
    let (now, mut later) =
        body.split_at(if body.len() > 1_000_000 { body.len() / 2 } else { body.len() });
    visitor.write_all(now)?;
    while !later.is_empty() && !shelf.is_open.load(Ordering::Relaxed) {
        std::thread::park_timeout(Duration::from_millis(20));
        // Podman reports progress only when data arrives.
        let (drop, rest) = later.split_at(256.min(later.len()));
        visitor.write_all(drop)?;
        later = rest;
        shelf.waits.fetch_add(1, Ordering::Relaxed);
    }
    visitor.write_all(later)
}

crate::with_each_engine!(
    pull_reports_progress_and_is_cancelled_by_stop,
    terminal_shows_progress_bar,
    missing_image_is_not_pulled_repeatedly,
    pull_uses_login,
    newer_image_is_pulled_at_restart,
);

fn pull_reports_progress_and_is_cancelled_by_stop(engine: &Engine) {
    let home = home();
    let registry = Registry::open();
    let image = registry.image();
    let kdl = pulled_settings(engine, &home, &image);
    // Much less time than the pull takes: the timeout starts after the pull.
    home.write_config("servers/one.kdl", &format!("{kdl}ready {{ within \"4s\"; }}\n"));
    home.daemon();
    let told = format!("pulling {image} ");
    home.wait_until("it is told how far it is", || {
        let why = reason(&home, "one");
        why.strip_prefix(&told).is_some_and(|rest| rest.ends_with(" %"))
    });
    assert_eq!(status(&home, "one")["state"], "starting");
    let stopped = home.xy(&["stop", "one"]);
    assert_eq!(
        (stopped.code, &status(&home, "one")["state"]),
        (0, &json!("stopped")),
        "{stopped:?}"
    );
    home.wait_until("its engine pulls no more", || {
        let so_far = registry.shelf.waits.load(Ordering::Relaxed);
        // Many times the duration of one piece.
        std::thread::park_timeout(Duration::from_millis(500));
        registry.shelf.waits.load(Ordering::Relaxed) == so_far
    });

    let _ = home.call("start", json!({ "name": "one", "wait": false }));
    home.wait_until("it is pulled again", || reason(&home, "one").starts_with("pulling "));
    registry.shelf.waits.store(0, Ordering::Relaxed);
    home.wait_until("that takes longer than it has to become ready", || {
        registry.shelf.waits.load(Ordering::Relaxed) > 250 // Of 20 ms each, at least.
    });
    assert_eq!(status(&home, "one")["state"], "starting", "{}", reason(&home, "one"));
    registry.shelf.is_open.store(true, Ordering::Relaxed);
    running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    drop(client);
    engine.finish(home);
    engine.must("DELETE", &format!("/images/{image}?force=1"));
}

fn terminal_shows_progress_bar(engine: &Engine) {
    let home = home().with_env("TERM", "xterm");
    let registry = Registry::open();
    let image = registry.image();
    let kdl = pulled_settings(engine, &home, &image);
    home.write_config("servers/one.kdl", &format!("{kdl}start \"lazy\"\n"));
    home.daemon();
    let screen = home.root().join("harness/screen");
    let start = format!("stty cols 120; {} start one", env!("CARGO_BIN_EXE_xy"));
    let mut terminal = home
        .command_of(Path::new("script"), &["-qefc", &start, screen.to_str().unwrap()])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let shown =
        || String::from_utf8_lossy(&std::fs::read(&screen).unwrap_or_default()).into_owned();
    // Half of the image has arrived, and the bar is half full.
    let told = format!("░] pulling {image} ");
    home.wait_until("there is a bar", || shown().contains(&told) && shown().contains("[█"));
    registry.shelf.is_open.store(true, Ordering::Relaxed);
    assert!(terminal.wait().unwrap().success(), "{}", shown());
    assert_eq!(status(&home, "one")["state"], "running");
    // Without a terminal only the outcome is shown, and no bar.
    ask(&home, "stop", json!({ "name": "one" }));
    let plain = home.xy(&["start", "one"]);
    assert!(plain.code == 0 && !plain.stderr.contains('█'), "{plain:?}");
    engine.finish(home);
    engine.must("DELETE", &format!("/images/{image}?force=1"));
}

/// Returns the settings of a server with another image, which has to be pulled.
fn pulled_settings(engine: &Engine, home: &Home, image: &str) -> String {
    let kdl = engine.kdl(home, &["xy-test-mcp"], "network \"none\"");
    kdl.replace("localhost/xy-test", image).replace("pull \"never\"", "pull \"missing\"")
}

fn pull_uses_login(engine: &Engine) {
    let registry = Registry::open_to("Basic bWU6czNjcjN0"); // `me:s3cr3t`
    let (image, place) = (registry.image(), format!("127.0.0.1:{}", registry.port));
    let home = home();
    let tools = home.root().join("harness/bin");
    std::fs::create_dir_all(&tools).unwrap();
    let path = std::env::var("PATH").unwrap();
    let home = home.with_env("PATH", &format!("{}:{path}", tools.display()));
    home.expect_left("home/.docker");
    home.write_config("servers/one.kdl", &pulled_settings(engine, &home, &image));
    home.daemon();
    let failed = home.wait_for_state("one", "failed");
    let why = failed["reason"].as_str().unwrap();
    assert!(why.contains("could not be fetched"), "{failed:#}");
    assert_eq!(failed["restarts_total"], 0, "it is not asked again and again: {failed:#}");

    // One engine's login is in the file, the other's with a credential helper.
    let logins = if engine.kind == "docker" {
        json!({ "auths": { &place: { "auth": "bWU6czNjcjN0" } } })
    } else {
        let helper = tools.join("docker-credential-xytest");
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = get ] && read -r place && [ \"$place\" = {place} ] || exit 1\n\
             echo '{{\"ServerURL\":\"x\",\"Username\":\"me\",\"Secret\":\"s3cr3t\"}}'\n"
        );
        std::fs::write(&helper, script).unwrap();
        shell("chmod +x docker-credential-xytest", &tools);
        json!({ "credHelpers": { &place: "xytest" } })
    };
    std::fs::create_dir_all(home.root().join("home/.docker")).unwrap();
    std::fs::write(home.root().join("home/.docker/config.json"), logins.to_string()).unwrap();
    let _ = home.call("start", json!({ "name": "one" }));
    running(&home, "one");
    let client = client(&home);
    assert_echoes(&client, "one");
    drop(client);
    engine.finish(home);
    engine.must("DELETE", &format!("/images/{image}?force=1"));
}

fn missing_image_is_not_pulled_repeatedly(engine: &Engine) {
    let home = home();
    let registry = Registry::open();
    let image = registry.image().replace("/x:1", "/nope:1");
    home.write_config("servers/one.kdl", &pulled_settings(engine, &home, &image));
    home.daemon();
    let failed = home.wait_for_state("one", "failed");
    assert!(reason(&home, "one").contains("could not be fetched"), "{failed:#}");
    assert_eq!(failed["restarts_total"], 0, "{failed:#}");
    engine.finish(home);
}

fn newer_image_is_pulled_at_restart(engine: &Engine) {
    let home = home();
    let registry = Registry::open();
    registry.shelf.is_open.store(true, Ordering::Relaxed);
    let image = registry.image();
    let kdl = pulled_settings(engine, &home, &image).replace("pull \"missing\"", "pull \"always\"");
    home.write_config("servers/one.kdl", &kdl);
    home.daemon();
    running(&home, "one");
    let client = client(&home);
    let version = || client.call_text("one__env", json!({ "name": "VERSION" }));
    let id_of_image = || {
        let found = engine.must("GET", &format!("/images/{image}/json"));
        serde_json::from_str::<serde_json::Value>(&found).unwrap()["Id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(version().contains('1'), "{}", version());
    let older = id_of_image();
    ask(&home, "restart", json!({ "name": "one" }));
    running(&home, "one");
    assert!(version().contains('1') && id_of_image() == older, "there is no newer one yet");
    registry.renew();
    ask(&home, "restart", json!({ "name": "one" }));
    running(&home, "one");
    assert!(version().contains('2'), "{}", version());
    assert_ne!(id_of_image(), older);
    drop(client);
    engine.finish(home);
    for left in [image, older] {
        engine.must("DELETE", &format!("/images/{left}?force=1"));
    }
}
