//! Images that have to be fetched, from a small registry of our own that can be slow.
//!
//! Only with Docker, which takes a registry on loopback without TLS.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::stage::{Engine, client, echoes, reason};
use crate::support::{home, running, status};

/// What is fetched, by its digest, with its type.
struct Shelf {
    manifest: Vec<u8>,
    blobs: Vec<(String, Vec<u8>)>,
    /// Until then only half of a blob is given out.
    is_open: AtomicBool,
    /// How often somebody has waited for the other half.
    waits: AtomicU32,
}

struct Registry {
    port: u16,
    shelf: Arc<Shelf>,
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
    /// One image, `x:1`: the test servers, and a few megabytes that take a while.
    fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let rootfs = format!("{}/rootfs", std::env::var("XY_ENGINES").unwrap());
        let script = format!(
            "mkdir root && cp -a {rootfs}/. root/ && head -c 6000000 /dev/urandom >root/ballast && \
             tar -C root -cf layer.tar . && gzip -1 -k layer.tar"
        );
        shell(&script, folder.path());
        let layer = std::fs::read(folder.path().join("layer.tar.gz")).unwrap();
        let diff = digest(folder.path(), &std::fs::read(folder.path().join("layer.tar")).unwrap());
        let config = json!({
            "architecture": "amd64", "os": "linux",
            "config": { "Entrypoint": ["/bin/xy-test-mcp"] },
            "rootfs": { "type": "layers", "diff_ids": [diff] },
        });
        let config = config.to_string().into_bytes();
        let (config_digest, layer_digest) =
            (digest(folder.path(), &config), digest(folder.path(), &layer));
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
        let shelf = Arc::new(Shelf {
            manifest: manifest.to_string().into_bytes(),
            blobs: vec![(config_digest, config), (layer_digest, layer)],
            is_open: AtomicBool::new(false),
            waits: AtomicU32::new(0),
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
        Self { port, shelf }
    }

    fn image(&self) -> String {
        format!("127.0.0.1:{}/x:1", self.port)
    }
}

/// Answers one request.
fn serve(shelf: &Shelf, mut visitor: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(visitor.try_clone()?).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let mut words = first.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let is_manifest = path.contains("/manifests/");
    let blob = shelf.blobs.iter().find(|(digest, _)| path.ends_with(digest.as_str()));
    let (kind, body): (&str, &[u8]) = match blob {
        _ if is_manifest => {
            ("application/vnd.docker.distribution.manifest.v2+json", &shelf.manifest)
        }
        Some((_, bytes)) => ("application/octet-stream", bytes),
        None if path == "/v2/" => ("application/json", b"{}"),
        None => {
            return visitor.write_all(
                b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            );
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
    let (now, later) =
        body.split_at(if body.len() > 1_000_000 { body.len() / 2 } else { body.len() });
    visitor.write_all(now)?;
    while !later.is_empty() && !shelf.is_open.load(Ordering::Relaxed) {
        std::thread::park_timeout(Duration::from_millis(20));
        shelf.waits.fetch_add(1, Ordering::Relaxed);
    }
    visitor.write_all(later)
}

#[test]
fn docker_fetches_an_image_and_tells_how_far_it_is_and_a_stop_ends_that() {
    let engine = Engine::docker();
    let home = home();
    let registry = Registry::open();
    let image = registry.image();
    let kdl = engine.kdl(&home, &["xy-test-mcp"], "network \"none\"");
    let kdl =
        kdl.replace("localhost/xy-test", &image).replace("pull \"never\"", "pull \"missing\"");
    // Much less time than it takes: that begins when the image is there.
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

    let _ = home.call("start", json!({ "name": "one", "wait": false }));
    home.wait_until("it is fetched again", || reason(&home, "one").starts_with("pulling "));
    registry.shelf.waits.store(0, Ordering::Relaxed);
    home.wait_until("that takes longer than it has to become ready", || {
        registry.shelf.waits.load(Ordering::Relaxed) > 250 // Of 20 ms each, at least.
    });
    assert_eq!(status(&home, "one")["state"], "starting", "{}", reason(&home, "one"));
    registry.shelf.is_open.store(true, Ordering::Relaxed);
    running(&home, "one");
    let client = client(&home);
    echoes(&client, "one");
    drop(client);
    engine.finish(home);
    engine.must("DELETE", &format!("/images/{image}?force=1"));
}

#[test]
fn docker_does_not_fetch_again_and_again_what_does_not_exist() {
    let engine = Engine::docker();
    let home = home();
    let registry = Registry::open();
    let image = registry.image().replace(
        "/x:1",
        "/nope@sha256:0000000000000000000000000000000000000000000000000000000000000000",
    );
    let kdl = engine.kdl(&home, &["xy-test-mcp"], "");
    let kdl =
        kdl.replace("localhost/xy-test", &image).replace("pull \"never\"", "pull \"missing\"");
    home.write_config("servers/one.kdl", &kdl);
    home.daemon();
    home.wait_until("it is told", || reason(&home, "one").contains("could not be fetched"));
    engine.finish(home);
}
