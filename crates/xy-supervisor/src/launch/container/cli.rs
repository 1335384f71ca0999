//! Processes that are the CLI of an engine: `docker run …`, as people have it in their files.
//!
//! They are processes as any other, and end as such; but a CLI that is killed leaves its
//! container behind. So each is given two labels, whose it is and which life of it, and what
//! carries the first is removed once the process is gone. Nothing else of the command line is
//! touched. Its engine is asked at its socket; where that is not found by the usual ways, the
//! CLI itself is asked, which knows.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::timeout;
use xy_config::settings::{
    ContainerSettings, EngineKind, ProcessSettings, ServerKind, ServerSettings,
};

use super::create::LABEL_LIFE;
use super::engine::Engine;
use super::{ContainerLauncher, Shared, login};
use crate::instance::InstanceKey;
use crate::launch::{Instance, LaunchOrder, News};

/// Whose process made it: the home of a daemon, and an instance.
pub(super) const LABEL_RUN: &str = "xy.run";

/// How long an engine may take to say what is left, and to remove it.
const REMOVE_WITHIN: Duration = Duration::from_secs(20);

/// So many are removed at once.
const AT_ONCE: usize = 8;

/// No list of a CLI is longer: ids of containers.
const LONGEST_LIST: u64 = 64 * 1024;

/// Which engine's CLI a process is, and where among its arguments options for a new
/// container may stand. Pure.
pub(super) fn run_by_cli(process: &ProcessSettings) -> Option<(EngineKind, usize)> {
    let program = Path::new(&process.command).file_name()?.to_str()?;
    let engine = match program {
        "docker" => EngineKind::Docker,
        "podman" => EngineKind::Podman,
        _ => return None,
    };
    let own = own_options(engine, &process.args)?;
    let words: Vec<&str> = process.args[own..].iter().map(String::as_str).take(2).collect();
    match words.as_slice() {
        ["run", ..] => Some((engine, own + 1)),
        ["container", "run"] => Some((engine, own + 2)),
        _ => None,
    }
}

/// How many words are options of the CLI itself, before what it is to do; none can be told if one
/// of them is unknown, which may have a value or none. Pure.
fn own_options(engine: EngineKind, args: &[String]) -> Option<usize> {
    let (with_value, alone): (&[&str], &[&str]) = match engine {
        EngineKind::Docker => (
            &[
                "--config",
                "--context",
                "--host",
                "--log-level",
                "--tlscacert",
                "--tlscert",
                "--tlskey",
                "-H",
                "-c",
                "-l",
            ],
            &["--debug", "--tls", "--tlsverify", "-D"],
        ),
        EngineKind::Podman => (
            &[
                "--cgroup-manager",
                "--conmon",
                "--connection",
                "--events-backend",
                "--identity",
                "--log-level",
                "--module",
                "--network-config-dir",
                "--root",
                "--runroot",
                "--runtime",
                "--runtime-flag",
                "--storage-driver",
                "--storage-opt",
                "--tmpdir",
                "--url",
                "-c",
            ],
            &["--remote", "--syslog", "--transient-store", "-r"],
        ),
    };
    let mut at = 0;
    loop {
        let word = args.get(at)?.as_str();
        at += match word.split_once('=') {
            _ if !word.starts_with('-') => return Some(at),
            Some((name, _)) if with_value.contains(&name) || alone.contains(&name) => 1,
            None if with_value.contains(&word) => 2,
            None if alone.contains(&word) => 1,
            _ => return None,
        };
    }
}

/// Whether what a server does is done in a container that its process only speaks for. Pure.
pub fn is_run_by_cli(process: &ProcessSettings) -> bool {
    run_by_cli(process).is_some()
}

fn label(shared: &Shared, key: &InstanceKey) -> String {
    format!("{LABEL_RUN}={}/{key}", shared.home)
}

/// How the containers of a CLI are found.
#[derive(Debug, Clone)]
struct Cli {
    engine: EngineKind,
    process: ProcessSettings,
    /// Those of its arguments that say with whom it speaks, and how.
    options: Vec<String>,
    /// What all of them carry.
    label: String,
}

impl ContainerLauncher {
    /// The order with labels for what it makes, if it is a CLI of an engine, and the second of
    /// them.
    pub(in crate::launch) fn labelled(&self, order: LaunchOrder) -> (LaunchOrder, Option<String>) {
        let Some((_, at)) = order.settings.process().and_then(run_by_cli) else {
            return (order, None);
        };
        let life = self.shared.new_life();
        let mut settings = ServerSettings::clone(&order.settings);
        if let ServerKind::Process(process) = &mut settings.kind {
            let labels = [label(&self.shared, &order.key), format!("{LABEL_LIFE}={life}")];
            let labels = labels.into_iter().flat_map(|label| ["--label".to_owned(), label]);
            process.args.splice(at..at, labels);
        }
        (LaunchOrder { settings: Arc::new(settings), ..order }, Some(life))
    }

    /// A life whose last news come once nothing is left of what it made. One that begins now has
    /// the label `begins`, and what earlier ones left is removed meanwhile.
    pub(in crate::launch) fn tidied(
        &self,
        key: &InstanceKey,
        settings: &ServerSettings,
        begins: Option<String>,
        life: Instance,
    ) -> Instance {
        let Some(process) = settings.process() else { return life };
        let Some((engine, _)) = run_by_cli(process) else { return life };
        let label = label(&self.shared, key);
        let own = own_options(engine, &process.args).unwrap_or_default();
        let options = process.args[..own].to_vec();
        let cli = Cli { engine, process: process.clone(), options, label };
        let (shared, (tidied, ends)) = (self.shared.clone(), Instance::pair());
        shared.owned.take(&cli.label);
        let Instance { mut news, asks, notes, checkups, rests, end } = life;
        tokio::spawn(async move {
            // An engine may take its time, for which nobody waits.
            let before = async {
                let Some(engine) = cli.find().await else { return };
                shared.engines.saw(&engine.socket);
                if let Some(life) = begins {
                    let left = remove(&engine, &cli.label, Some(&life));
                    let _ = timeout(REMOVE_WITHIN, left).await; // It is tried again at its end.
                }
            };
            let passing_on = async {
                while let Some(heard) = news.recv().await {
                    if is_last(&heard) {
                        if timeout(REMOVE_WITHIN, cli.remove_all(&shared)).await.is_err() {
                            let label = &cli.label;
                            tracing::warn!(label, "what a CLI left is removed later");
                        }
                        // Not later: the next life has the same label.
                        shared.owned.release(&cli.label);
                    }
                    let _ = ends.news.send(heard).await; // Nobody may hold this life any more.
                }
            };
            tokio::join!(before, passing_on);
        });
        Instance { news: tidied.news, asks, notes, checkups, rests, end }
    }
}

fn is_last(news: &News) -> bool {
    matches!(news, News::Exited(_) | News::ExitedOnProbe(_) | News::LaunchFailed(_) | News::Closed)
}

/// Removes what carries the label, but not what is of this life. What is found is removed even if
/// nobody waits for that any more.
async fn remove(engine: &Engine, label: &str, but: Option<&str>) {
    let found = engine.labelled(label).await.unwrap_or_default();
    let is_meant = |life: Option<&String>| but.is_none_or(|but| life.is_none_or(|it| it != but));
    let meant = found.into_iter().filter(|seen| is_meant(seen.labels.get(LABEL_LIFE)));
    let mut meant = meant.collect::<Vec<_>>().into_iter();
    let (engine, label) = (engine.clone(), label.to_owned());
    let removing = tokio::spawn(async move {
        let mut some = JoinSet::new();
        loop {
            while some.len() < AT_ONCE
                && let Some(seen) = meant.next()
            {
                tracing::info!(container = seen.id, label, "left by a killed CLI: removed");
                let engine = engine.clone();
                // It may be going by itself.
                some.spawn(async move { engine.remove(&seen.id).await.is_ok() });
            }
            if some.join_next().await.is_none() {
                break;
            }
        }
    });
    let _ = removing.await; // Whatever is still there is found by the next who looks.
}

impl Cli {
    /// The engine that the CLI speaks with, if that is found by the usual ways. Podman's needs
    /// none that listens.
    async fn find(&self) -> Option<Engine> {
        if !self.options.is_empty() {
            return None; // They may say where it is; the CLI itself understands them.
        }
        let env = &self.process.env;
        let variable = |name: &str| env.get(name).cloned().or_else(|| std::env::var(name).ok());
        let host = match host_of(self.engine, variable, || login::docker_context(variable)) {
            Host::At(host) => Some(host),
            Host::Usual => None,
            Host::Elsewhere => return None,
        };
        let settings = ContainerSettings {
            engine: Some(self.engine),
            host,
            ..ContainerSettings::of_image(String::new())
        };
        Engine::find_by(&settings, variable).await.ok()
    }

    /// Removes all that carries the label.
    async fn remove_all(&self, shared: &Shared) {
        match self.find().await {
            Some(engine) => remove(&engine, &self.label, None).await,
            None => self.remove_by_itself(shared).await,
        }
    }

    /// Has the CLI itself remove them: it may speak with an engine that is somewhere else, or
    /// need none.
    async fn remove_by_itself(&self, shared: &Shared) {
        let filter = format!("label={}", self.label);
        let list = ["ps", "--all", "--quiet", "--no-trunc", "--filter", &filter];
        let ids = ids_in(&self.ask(shared, &list).await.unwrap_or_default());
        if ids.is_empty() {
            return;
        }
        tracing::info!(containers = ?ids, label = self.label, "left by a killed CLI: removed");
        let ids = ids.iter().map(String::as_str);
        if self.engine == EngineKind::Podman {
            // It would ask each to end first, and wait for ten seconds.
            let kill: Vec<&str> = ["kill"].into_iter().chain(ids.clone()).collect();
            self.ask(shared, &kill).await;
        }
        let remove = ["rm", "--force", "--volumes"].into_iter().chain(ids);
        let remove: Vec<&str> = remove.collect();
        self.ask(shared, &remove).await;
    }

    async fn ask(&self, shared: &Shared, args: &[&str]) -> Option<String> {
        let mut command = Command::new(&self.process.command);
        command.args(&self.options).args(args).envs(&self.process.env);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut helper = shared.shims.spawn_helper(&mut command).ok()?;
        let mut said = Vec::new();
        let stdout = helper.child.stdout.take()?;
        stdout.take(LONGEST_LIST).read_to_end(&mut said).await.ok()?;
        let _ = helper.child.wait().await; // What it could not do is done by a later one.
        String::from_utf8(said).ok()
    }
}

/// The ids of containers in a list, and nothing else. Pure.
fn ids_in(list: &str) -> Vec<String> {
    let is_id = |it: &&str| it.len() >= 12 && it.bytes().all(|byte| byte.is_ascii_hexdigit());
    list.split_whitespace().filter(is_id).map(str::to_owned).collect()
}

/// Where the engine of a CLI listens, as its environment says.
#[derive(Debug, PartialEq, Eq)]
enum Host {
    At(String),
    /// At one of the usual places.
    Usual,
    /// At no socket of this machine, or only the CLI knows.
    Elsewhere,
}

/// Where the engine of a CLI with these variables listens; `chosen` is the context that Docker's
/// uses if none of them says otherwise. Pure.
fn host_of(
    engine: EngineKind,
    variable: impl Fn(&str) -> Option<String>,
    chosen: impl FnOnce() -> Option<String>,
) -> Host {
    let of = |name: &str| variable(name).filter(|it| !it.is_empty());
    let (host, other) = match engine {
        EngineKind::Docker => (of("DOCKER_HOST"), of("DOCKER_CONTEXT")),
        EngineKind::Podman => (of("CONTAINER_HOST"), of("CONTAINER_CONNECTION")),
    };
    let other = match (&host, other) {
        (None, None) if engine == EngineKind::Docker => chosen().filter(|it| !it.is_empty()),
        (_, other) => other,
    };
    match (host, other) {
        (Some(host), _) if host.starts_with("unix://") => Host::At(host),
        (None, None) => Host::Usual,
        (None, Some(other)) if other == "default" => Host::Usual,
        (Some(_), _) | (None, Some(_)) => Host::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::fake::Fake;
    use super::*;
    use crate::fake::{process_of, settings};

    fn at(command: &str, args: &[&str]) -> Option<usize> {
        let mut settings = settings("a");
        let process = process_of(&mut settings);
        process.command = command.into();
        process.args = args.iter().map(|it| (*it).to_owned()).collect();
        run_by_cli(process).map(|(_, at)| at)
    }

    #[test]
    fn only_what_starts_a_container_is_given_a_label() {
        assert_eq!(at("docker", &["run", "--rm", "-i", "x"]), Some(1));
        assert_eq!(at("/usr/bin/podman", &["container", "run", "x"]), Some(2));
        assert_eq!(at("docker", &["compose", "run", "x"]), None);
        assert_eq!(at("docker", &["--context", "x", "run", "-i", "y"]), Some(3));
        assert_eq!(at("docker", &["-D", "--host=unix:///x", "container", "run", "y"]), Some(4));
        assert_eq!(at("podman", &["--remote", "--url", "unix:///x", "run", "y"]), Some(4));
        // Whether that has a value nobody here knows.
        assert_eq!(at("docker", &["--new-option", "run", "run"]), None);
        assert_eq!(at("docker", &["--context", "run"]), None);
        assert_eq!(at("docker", &[]), None);
        assert_eq!(at("npx", &["run"]), None);
    }

    #[test]
    fn each_cli_has_a_variable_of_its_own_for_where_its_engine_listens() {
        use EngineKind::{Docker, Podman};

        let host = |engine, own: &[(&str, &str)], ours: &[(&str, &str)]| {
            let all = [own, ours].concat();
            let variable =
                |name: &str| all.iter().find(|it| it.0 == name).map(|it| it.1.to_owned());
            host_of(engine, variable, || None)
        };
        let (d, p) = (("DOCKER_HOST", "unix:///d"), ("CONTAINER_HOST", "unix:///p"));
        let (at_d, at_p) = (Host::At("unix:///d".into()), Host::At("unix:///p".into()));
        assert_eq!(host(Docker, &[d, p], &[]), at_d);
        assert_eq!(host(Podman, &[d, p], &[]), at_p);
        assert_eq!(host(Podman, &[d], &[]), Host::Usual, "that is Docker's");
        assert_eq!(host(Podman, &[], &[p]), at_p, "it has what the daemon has");
        assert_eq!(host(Docker, &[("DOCKER_HOST", "tcp://x")], &[d]), Host::Elsewhere);
        assert_eq!(host(Docker, &[("DOCKER_CONTEXT", "there")], &[]), Host::Elsewhere);
        assert_eq!(host(Docker, &[("DOCKER_CONTEXT", "default")], &[]), Host::Usual);
        assert_eq!(host(Docker, &[], &[]), Host::Usual);
    }

    #[test]
    fn a_context_that_was_chosen_holds_unless_a_variable_says_otherwise() {
        use EngineKind::{Docker, Podman};

        let host = |engine, own: &[(&str, &str)], chosen: Option<&str>| {
            let variable =
                |name: &str| own.iter().find(|it| it.0 == name).map(|it| it.1.to_owned());
            host_of(engine, variable, || chosen.map(str::to_owned))
        };
        assert_eq!(host(Docker, &[], Some("there")), Host::Elsewhere);
        for usual in [Some("default"), Some(""), None] {
            assert_eq!(host(Docker, &[], usual), Host::Usual);
        }
        let at = Host::At("unix:///d".into());
        assert_eq!(host(Docker, &[("DOCKER_HOST", "unix:///d")], Some("there")), at);
        assert_eq!(host(Docker, &[("DOCKER_CONTEXT", "default")], Some("there")), Host::Usual);
        assert_eq!(host(Podman, &[], Some("there")), Host::Usual, "that is Docker's");
    }

    #[tokio::test]
    async fn the_context_of_a_cli_is_read_where_its_own_variables_say() {
        let folder = tempfile::tempdir().unwrap();
        let (engine, _streams) = Fake::begin(None, |_| ());
        std::os::unix::fs::symlink(&engine.socket, folder.path().join("docker.sock")).unwrap();
        let below = folder.path().to_string_lossy().into_owned();
        for (text, is_found) in [
            (r#"{"currentContext":"there","auths":{}}"#, false),
            (r#"{"currentContext":"default"}"#, true),
            ("{", true), // The CLI does not heed it either.
        ] {
            std::fs::write(folder.path().join("config.json"), text).unwrap();
            let variables = ["DOCKER_CONFIG", "XDG_RUNTIME_DIR"];
            let env = variables.map(|name| (name.to_owned(), below.clone())).into();
            let mut settings = settings("a");
            let process = ProcessSettings { env, ..process_of(&mut settings).clone() };
            let cli =
                Cli { engine: EngineKind::Docker, process, options: Vec::new(), label: "x".into() };
            assert_eq!(cli.find().await.is_some(), is_found, "{text}");
        }
    }

    #[test]
    fn only_ids_are_read_from_a_list() {
        let id = "0123456789abcdef0123456789abcdef";
        assert_eq!(ids_in(&format!("{id}\nWARNING: --all\n{id}\n")), [id, id]);
        assert!(ids_in("abc --force").is_empty());
    }

    #[tokio::test]
    async fn all_that_is_left_is_removed_at_once_even_if_nobody_waits() {
        for is_podman in [true, false] {
            let (engine, _streams) = Fake::begin(None, |it| {
                (it.is_podman, it.removes_for_ever) = (is_podman, true);
            });
            for id in ["one", "two", "three"] {
                engine.leaves(id, &[("x", "")]);
            }
            let asked_at = Engine::at(&engine.socket).await.unwrap();
            tokio::select! {
                () = remove(&asked_at, "x", None) => panic!("it is never done"),
                () = engine.is_asked("DELETE", 1) => {} // Nobody waits any more.
            }
            engine.is_asked("DELETE", 3).await;
            let kills = engine.asked().iter().filter(|it| it.ends_with("/kill")).count();
            assert_eq!(kills, if is_podman { 3 } else { 0 }, "it does not wait for their end");
        }
    }

    #[tokio::test]
    async fn the_engine_of_a_cli_is_found_by_the_variables_of_its_own_server() {
        let (engine, _streams) = Fake::begin(None, |it| it.is_podman = true);
        let below = tempfile::tempdir().unwrap();
        std::fs::create_dir(below.path().join("podman")).unwrap();
        let usual = below.path().join("podman/podman.sock");
        std::os::unix::fs::symlink(&engine.socket, &usual).unwrap();
        let host = format!("unix://{}", engine.socket.display());
        let runtime = below.path().to_string_lossy().into_owned();
        for (name, value, at) in [
            ("CONTAINER_HOST", host, engine.socket.clone()),
            ("XDG_RUNTIME_DIR", runtime, usual.clone()),
        ] {
            let mut settings = settings("a");
            let process = process_of(&mut settings).clone();
            let process = ProcessSettings { env: [(name.to_owned(), value)].into(), ..process };
            let cli =
                Cli { engine: EngineKind::Podman, process, options: Vec::new(), label: "x".into() };
            assert_eq!(cli.find().await.unwrap().socket, at, "{name}");
        }
    }
}
