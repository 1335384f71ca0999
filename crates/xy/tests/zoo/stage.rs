//! A home for one run of a server: a folder with a few files, the server's command, its file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use xy_testkit::{Daemon, Home};

use crate::drive::{Era, MODERN};
use crate::servers::{Package, Server};

/// A proxy that refuses every connection, so that a server of a remote service fails immediately
/// and in the same way on every machine.
const PROXY: [(&str, &str); 7] = [
    ("HTTP_PROXY", "http://127.0.0.1:9"),
    ("HTTPS_PROXY", "http://127.0.0.1:9"),
    ("NO_PROXY", "127.0.0.1,localhost"),
    ("http_proxy", "http://127.0.0.1:9"),
    ("https_proxy", "http://127.0.0.1:9"),
    ("no_proxy", "127.0.0.1,localhost"),
    ("NODE_USE_ENV_PROXY", "1"),
];

/// Files in the folder that a server works in.
const FILES: [(&str, &str); 5] = [
    ("note.txt", "one\ntwo\n"),
    ("data.json", "{\"one\":1,\"two\":[2]}\n"),
    ("vault/first.md", "# First\n"),
    ("page.drawio", include_str!("files/page.drawio")),
    ("openapi.json", include_str!("files/openapi.json")),
];

/// Returns the folder that `real/zoo/install` has filled.
#[track_caller]
pub(crate) fn install_folder() -> PathBuf {
    let installed = std::env::var_os("XY_ZOO").map(PathBuf::from);
    installed.expect("`XY_ZOO` names the folder that `real/zoo/install` prints")
}

/// A home, with the folder that its server works in.
pub(crate) struct Stage {
    pub(crate) home: Home,
    work: String,
}

impl Stage {
    /// Creates a home with the environment of a server, and its files.
    #[track_caller]
    pub(crate) fn new(server: &Server) -> Self {
        let mut home = Home::new(Path::new(env!("CARGO_BIN_EXE_xy")));
        home.write_config("xy.kdl", "gateway { listen \"127.0.0.1:0\"; auth \"none\"; }\n");
        let folder = home.root().join("work");
        let work = folder.to_str().expect("a temporary path is UTF-8").to_owned();
        for (name, value) in PROXY.iter().chain(server.env) {
            home = home.with_env(name, &value.replace("<work>", &work));
        }
        for left in ["work/", "home/", "tmp/"] {
            home.expect_left(left); // Servers write caches there, and Node its compiled code.
        }
        fs::create_dir_all(folder.join("vault/.obsidian")).expect("a folder of ours");
        for (name, text) in FILES {
            fs::write(folder.join(name), text).expect("a file of ours is writable");
        }
        let stage = Self { home, work };
        stage.make_repository();
        stage
    }

    /// Creates a repository whose one commit is the same in every run.
    #[track_caller]
    fn make_repository(&self) {
        let repository = format!("{}/repo", self.work);
        for args in [
            &["init", "--quiet", "--initial-branch", "main", &repository][..],
            &["-C", &repository, "commit", "--quiet", "--allow-empty", "--message", "one"],
        ] {
            let mut git = self.home.command_of(Path::new("git"), args);
            for (name, value) in [("NAME", "one"), ("EMAIL", "one@example.com")] {
                git.env(format!("GIT_AUTHOR_{name}"), value);
                git.env(format!("GIT_COMMITTER_{name}"), value);
            }
            git.env("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z");
            git.env("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z");
            let ran = self.home.run(&mut git);
            assert_eq!(ran.code, 0, "git failed: {ran:#?}");
        }
    }

    /// Returns the server as a client without xy starts it.
    #[track_caller]
    pub(crate) fn command(&self, server: &Server) -> Command {
        let words = self.words(server);
        let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        self.home.command_of(Path::new(&words[0]), &args)
    }

    /// Returns the era that xy speaks with the server.
    #[track_caller]
    pub(crate) fn spoken(&self, server: &Server) -> Era {
        let is_modern = self.home.xy_json(&["status", &server.id()])["protocol"] == MODERN;
        if is_modern { Era::Modern } else { Era::Legacy }
    }

    /// Starts a daemon with the server, and waits for its handshake.
    #[track_caller]
    pub(crate) fn daemon(&self, server: &Server) -> Daemon {
        let words: Vec<String> = self.words(server).iter().map(|it| format!("{it:?}")).collect();
        let args = match &words[1..] {
            [] => String::new(),
            args => format!("args {}\n", args.join(" ")),
        };
        // The machine may be busy.
        let file = format!("command {}\n{args}ready {{ within \"60s\"; }}\n", words[0]);
        self.home.write_config(&format!("servers/{}.kdl", server.id()), &file);
        let daemon = self.home.daemon();
        self.home.wait_for_state(&server.id(), "running");
        daemon
    }

    /// Returns `text` with the paths of this run.
    pub(crate) fn with_paths(&self, text: &str) -> String {
        let root = self.home.root().to_str().expect("a temporary path is UTF-8");
        text.replace("<work>", &self.work).replace("<home>", root)
    }

    /// Returns `text` without the paths of this run.
    pub(crate) fn without_paths(&self, text: &str) -> String {
        let root = self.home.root().to_str().expect("a temporary path is UTF-8");
        text.replace(root, "<home>")
    }

    /// Returns the program of the server and its arguments.
    #[track_caller]
    fn words(&self, server: &Server) -> Vec<String> {
        let installed = install_folder();
        let path = |path: PathBuf| path.to_str().expect("an installed path is UTF-8").to_owned();
        let mut words = match server.package {
            Package::Npm(package) => {
                let folder = installed.join("npm/node_modules").join(package);
                vec![
                    path(installed.join("npm/node_modules/node/bin/node")),
                    path(folder.join(npm_script(&folder, package))),
                ]
            }
            Package::Python { list, program, .. } => {
                vec![path(installed.join(list).join("bin").join(program))]
            }
        };
        words.extend(server.args.iter().map(|it| it.replace("<work>", &self.work)));
        words
    }
}

/// Returns the program of an npm package: the only one, or the one with its name.
#[track_caller]
fn npm_script(folder: &Path, package: &str) -> String {
    let manifest = read_manifest(folder);
    let short = package.rsplit('/').next().unwrap_or(package);
    let bin = &manifest["bin"];
    let first = || bin.as_object().and_then(|all| all.values().next());
    let script = bin.as_str().or_else(|| bin.get(short).or_else(first)?.as_str());
    script.unwrap_or_else(|| panic!("`{package}` has no program: {manifest}")).to_owned()
}

/// Returns the `package.json` of an installed package.
#[track_caller]
pub(crate) fn read_manifest(folder: &Path) -> Value {
    let file = folder.join("package.json");
    let text = fs::read_to_string(&file)
        .unwrap_or_else(|cause| panic!("no {}: {cause}; run `real/zoo/install`", file.display()));
    serde_json::from_str(&text).expect("an installed manifest is JSON")
}
