//! Processes that are the CLI of an engine, such as `docker run …`.
//!
//! They start and stop like any other process, but a killed CLI leaves its container behind. So
//! each gets two labels, one for its owner and one for the life. Containers with the first label
//! are removed once the process is gone. Nothing else of the command line is changed.
//!
//! The engine is asked at its socket, if that is known. Otherwise the CLI itself is asked, which
//! knows its engine.

use std::fmt;
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
use xy_supervisor::instance::InstanceKey;
use xy_supervisor::launch::adopt::AdoptedLife;
use xy_supervisor::launch::container_cli::{own_options, run_by_cli};
use xy_supervisor::launch::{Launch, LaunchOrder, LifeEvent, LifeHandle};

use crate::create::{LABEL_LIFE, LABEL_RUN};
use crate::engine::Engine;
use crate::launcher::ContainerLauncher;
use crate::login;
use crate::shared::SharedState;

/// Time for an engine to list and remove what a CLI has left.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of concurrent removals.
const MAX_CONCURRENT_REMOVALS: usize = 8;

/// Maximum size of a list of container ids that a CLI prints.
const MAX_LIST_BYTES: u64 = 64 * 1024;

fn label(shared: &SharedState, key: &InstanceKey) -> String {
    format!("{LABEL_RUN}={}/{key}", shared.home)
}

/// How the containers of a CLI are found.
#[derive(Debug, Clone)]
struct Cli {
    engine: EngineKind,
    process: ProcessSettings,
    /// Its options that select the engine and how to reach it.
    options: Vec<String>,
    /// The label of all its containers.
    label: String,
}

/// Starts processes. Removes the containers that the CLI of an engine may leave behind.
#[derive(Clone)]
pub struct CliLauncher {
    processes: Arc<dyn Launch>,
    containers: ContainerLauncher,
}

impl fmt::Debug for CliLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CliLauncher").field("containers", &self.containers).finish_non_exhaustive()
    }
}

impl CliLauncher {
    /// Creates a launcher that starts processes through `processes`.
    pub fn new(processes: Arc<dyn Launch>, containers: ContainerLauncher) -> Self {
        Self { processes, containers }
    }
}

impl Launch for CliLauncher {
    fn launch(&self, order: LaunchOrder) -> LifeHandle {
        let (key, settings) = (order.key.clone(), order.settings.clone());
        let (order, begins) = self.containers.with_cli_labels(order);
        let life = self.processes.launch(order);
        self.containers.clean_up_cli(&key, &settings, begins, life)
    }
}

impl ContainerLauncher {
    /// Makes an adopted instance remove the containers that its CLI may leave behind.
    #[must_use]
    pub fn with_cli_cleanup(&self, mut adopted: AdoptedLife) -> AdoptedLife {
        let settings = adopted.settings().clone();
        adopted.handle = self.clean_up_cli(&adopted.key, &settings, None, adopted.handle);
        adopted
    }

    /// Adds labels to the command line of an engine's CLI. Returns the order, and the life id in
    /// the second label.
    fn with_cli_labels(&self, order: LaunchOrder) -> (LaunchOrder, Option<String>) {
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

    /// Delays the last event of a life until no container of its CLI is left, or `REMOVE_TIMEOUT`
    /// has passed. A new life has the id `begins`; containers of earlier lives are removed in the
    /// meantime.
    fn clean_up_cli(
        &self,
        key: &InstanceKey,
        settings: &ServerSettings,
        begins: Option<String>,
        life: LifeHandle,
    ) -> LifeHandle {
        let Some(process) = settings.process() else { return life };
        let Some((engine, _)) = run_by_cli(process) else { return life };
        let label = label(&self.shared, key);
        let own = own_options(engine, &process.args).unwrap_or_default();
        let options = process.args[..own].to_vec();
        let cli = Cli { engine, process: process.clone(), options, label };
        let (shared, (tidied, ends)) = (self.shared.clone(), LifeHandle::pair());
        shared.owned.take(&cli.label);
        let LifeHandle { mut events, commands, notes, checkups, idle_stops, end } = life;
        tokio::spawn(async move {
            // A slow engine holds up nothing here.
            let before = async {
                let Some(engine) = cli.find().await else { return };
                shared.engines.record_use(&engine.socket);
                if let Some(life) = begins {
                    let left = remove(&engine, &cli.label, Some(&life));
                    // It is tried again when this life ends.
                    let _ = timeout(REMOVE_TIMEOUT, left).await;
                }
            };
            let passing_on = async {
                while let Some(heard) = events.recv().await {
                    if is_last(&heard) {
                        if timeout(REMOVE_TIMEOUT, cli.remove_all(&shared)).await.is_err() {
                            let label = &cli.label;
                            tracing::warn!(label, "containers left by a CLI are removed later");
                        }
                        // Released before the event: the next life has the same label.
                        shared.owned.release(&cli.label);
                    }
                    // The task may have dropped the instance.
                    let _ = ends.events.send(heard).await;
                }
            };
            tokio::join!(before, passing_on);
        });
        LifeHandle { events: tidied.events, commands, notes, checkups, idle_stops, end }
    }
}

fn is_last(news: &LifeEvent) -> bool {
    matches!(
        news,
        LifeEvent::Exited(_)
            | LifeEvent::ExitedOnProbe(_)
            | LifeEvent::LaunchFailed(_)
            | LifeEvent::Closed
    )
}

/// Removes the containers with this label, except those of the life `but`. The removal goes on even
/// if its caller stops waiting.
async fn remove(engine: &Engine, label: &str, but: Option<&str>) {
    let found = engine.labelled(label).await.unwrap_or_default();
    let is_meant = |life: Option<&String>| but.is_none_or(|but| life.is_none_or(|it| it != but));
    let meant = found.into_iter().filter(|container| is_meant(container.labels.get(LABEL_LIFE)));
    let mut meant = meant.collect::<Vec<_>>().into_iter();
    let (engine, label) = (engine.clone(), label.to_owned());
    let removing = tokio::spawn(async move {
        let mut some = JoinSet::new();
        loop {
            while some.len() < MAX_CONCURRENT_REMOVALS
                && let Some(container) = meant.next()
            {
                tracing::info!(
                    container = container.id,
                    label,
                    "removing a container that a killed CLI left"
                );
                let engine = engine.clone();
                // It may be exiting by itself.
                some.spawn(async move { engine.remove(&container.id).await.is_ok() });
            }
            if some.join_next().await.is_none() {
                break;
            }
        }
    });
    let _ = removing.await; // The next cleanup removes what remains.
}

impl Cli {
    /// Returns the engine if its socket is known: from a variable, the context, or one of the usual
    /// places. `None` does not mean that Podman's CLI cannot work: it needs no listening engine.
    async fn find(&self) -> Option<Engine> {
        if !self.options.is_empty() {
            return None; // They may select the engine, and only the CLI understands them.
        }
        let env = &self.process.env;
        let variable = |name: &str| env.get(name).cloned().or_else(|| std::env::var(name).ok());
        let host = match host_of(self.engine, variable, || login::docker_context(variable)) {
            Host::Socket(host) => Some(host),
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

    /// Removes all containers with the label.
    async fn remove_all(&self, shared: &SharedState) {
        match self.find().await {
            Some(engine) => remove(&engine, &self.label, None).await,
            None => self.remove_by_itself(shared).await,
        }
    }

    /// Has the CLI remove them: its engine may be remote, or it may need none.
    async fn remove_by_itself(&self, shared: &SharedState) {
        let filter = format!("label={}", self.label);
        let list = ["ps", "--all", "--quiet", "--no-trunc", "--filter", &filter];
        let ids = ids_in(&self.ask(shared, &list).await.unwrap_or_default());
        if ids.is_empty() {
            return;
        }
        tracing::info!(containers = ?ids, label = self.label, "removing a container that a killed CLI left");
        let ids = ids.iter().map(String::as_str);
        if self.engine == EngineKind::Podman {
            // Podman's `rm` would ask each to stop first, and wait for ten seconds.
            let kill: Vec<&str> = ["kill"].into_iter().chain(ids.clone()).collect();
            self.ask(shared, &kill).await;
        }
        let remove = ["rm", "--force", "--volumes"].into_iter().chain(ids);
        let remove: Vec<&str> = remove.collect();
        self.ask(shared, &remove).await;
    }

    async fn ask(&self, shared: &SharedState, args: &[&str]) -> Option<String> {
        let mut command = Command::new(&self.process.command);
        command.args(&self.options).args(args).envs(&self.process.env);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut helper = shared.shims.spawn_helper(&mut command).ok()?;
        let mut output = Vec::new();
        let stdout = helper.child.stdout.take()?;
        stdout.take(MAX_LIST_BYTES).read_to_end(&mut output).await.ok()?;
        let _ = helper.child.wait().await; // Containers that it could not remove are removed later.
        String::from_utf8(output).ok()
    }
}

/// Returns the container ids in a list, and nothing else. Pure.
fn ids_in(list: &str) -> Vec<String> {
    let is_id = |it: &&str| it.len() >= 12 && it.bytes().all(|byte| byte.is_ascii_hexdigit());
    list.split_whitespace().filter(is_id).map(str::to_owned).collect()
}

/// Where the engine of a CLI listens, according to its environment.
#[derive(Debug, PartialEq, Eq)]
enum Host {
    /// At this socket.
    Socket(String),
    /// In one of the usual places.
    Usual,
    /// At no socket of this machine, or at one that only the CLI knows.
    Elsewhere,
}

/// Decides where the engine of a CLI with these variables listens. `chosen` is the context that
/// Docker's CLI uses if no variable says otherwise. Pure.
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
        (Some(host), _) if host.starts_with("unix://") => Host::Socket(host),
        (None, None) => Host::Usual,
        (None, Some(other)) if other == "default" => Host::Usual,
        (Some(_), _) | (None, Some(_)) => Host::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fake::Fake;
    use crate::tests::settings::process_settings;

    #[test]
    fn each_cli_uses_own_host_variable() {
        use EngineKind::{Docker, Podman};

        let host = |engine, own: &[(&str, &str)], ours: &[(&str, &str)]| {
            let all = [own, ours].concat();
            let variable =
                |name: &str| all.iter().find(|it| it.0 == name).map(|it| it.1.to_owned());
            host_of(engine, variable, || None)
        };
        let (d, p) = (("DOCKER_HOST", "unix:///d"), ("CONTAINER_HOST", "unix:///p"));
        let (at_d, at_p) = (Host::Socket("unix:///d".into()), Host::Socket("unix:///p".into()));
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
    fn chosen_context_applies_unless_variable_overrides() {
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
        let at = Host::Socket("unix:///d".into());
        assert_eq!(host(Docker, &[("DOCKER_HOST", "unix:///d")], Some("there")), at);
        assert_eq!(host(Docker, &[("DOCKER_CONTEXT", "default")], Some("there")), Host::Usual);
        assert_eq!(host(Podman, &[], Some("there")), Host::Usual, "that is Docker's");
    }

    #[tokio::test]
    async fn context_is_read_from_own_config_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (engine, _streams) = Fake::start(None, |_| ());
        std::os::unix::fs::symlink(&engine.socket, folder.path().join("docker.sock")).unwrap();
        let below = folder.path().to_string_lossy().into_owned();
        for (text, is_found) in [
            (r#"{"currentContext":"there","auths":{}}"#, false),
            (r#"{"currentContext":"default"}"#, true),
            ("{", true), // The CLI ignores it too.
        ] {
            std::fs::write(folder.path().join("config.json"), text).unwrap();
            let variables = ["DOCKER_CONFIG", "XDG_RUNTIME_DIR"];
            let env = variables.map(|name| (name.to_owned(), below.clone())).into();
            let process = ProcessSettings { env, ..process_settings() };
            let cli =
                Cli { engine: EngineKind::Docker, process, options: Vec::new(), label: "x".into() };
            assert_eq!(cli.find().await.is_some(), is_found, "{text}");
        }
    }

    #[test]
    fn only_ids_are_parsed_from_list() {
        let id = "0123456789abcdef0123456789abcdef";
        assert_eq!(ids_in(&format!("{id}\nWARNING: --all\n{id}\n")), [id, id]);
        assert!(ids_in("abc --force").is_empty());
    }

    #[tokio::test]
    async fn leftovers_are_removed_concurrently_without_waiter() {
        for is_podman in [true, false] {
            let (engine, _streams) = Fake::start(None, |it| {
                (it.is_podman, it.removes_for_ever) = (is_podman, true);
            });
            for id in ["one", "two", "three"] {
                engine.add_container(id, &[("x", "")]);
            }
            let asked_at = Engine::at(&engine.socket).await.unwrap();
            tokio::select! {
                () = remove(&asked_at, "x", None) => panic!("it is never done"),
                () = engine.wait_for_request("DELETE", 1) => {} // The caller stops waiting.
            }
            engine.wait_for_request("DELETE", 3).await;
            let kills = engine.requests().iter().filter(|it| it.ends_with("/kill")).count();
            assert_eq!(kills, if is_podman { 3 } else { 0 }, "it does not wait for their end");
        }
    }

    #[tokio::test]
    async fn engine_is_found_by_own_variables_of_server() {
        let (engine, _streams) = Fake::start(None, |it| it.is_podman = true);
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
            let env = [(name.to_owned(), value)].into();
            let process = ProcessSettings { env, ..process_settings() };
            let cli =
                Cli { engine: EngineKind::Podman, process, options: Vec::new(), label: "x".into() };
            assert_eq!(cli.find().await.unwrap().socket, at, "{name}");
        }
    }
}
