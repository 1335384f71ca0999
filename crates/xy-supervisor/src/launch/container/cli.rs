//! Processes that are the CLI of an engine: `docker run …`, as people have it in their files.
//!
//! They are processes as any other, and end as such; but a CLI that is killed leaves its
//! container behind. So each is given a label, and what carries that is removed once the
//! process is gone. Nothing else of the command line is touched, and an engine that is not
//! found by the usual ways is not asked.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use xy_config::settings::{
    ContainerSettings, EngineKind, ProcessSettings, ServerKind, ServerSettings,
};

use super::engine::Engine;
use super::{ContainerLauncher, Shared};
use crate::instance::InstanceKey;
use crate::launch::{Instance, LaunchOrder, News};

/// Whose process made it: the home of a daemon, and an instance.
pub(super) const LABEL_RUN: &str = "xy.run";

/// How long an engine may take to say what is left, and to remove it.
const REMOVE_WITHIN: Duration = Duration::from_secs(20);

/// Which engine's CLI a process is, and where among its arguments options for a new
/// container may stand. Pure.
pub(super) fn run_by_cli(process: &ProcessSettings) -> Option<(EngineKind, usize)> {
    let program = Path::new(&process.command).file_name()?.to_str()?;
    let engine = match program {
        "docker" => EngineKind::Docker,
        "podman" => EngineKind::Podman,
        _ => return None,
    };
    let words: Vec<&str> = process.args.iter().map(String::as_str).take(2).collect();
    match words.as_slice() {
        ["run", ..] => Some((engine, 1)),
        ["container", "run"] => Some((engine, 2)),
        _ => None, // With options of its own before that, or something else.
    }
}

fn label(shared: &Shared, key: &InstanceKey) -> String {
    format!("{LABEL_RUN}={}/{key}", shared.home)
}

impl ContainerLauncher {
    /// The order with a label for what it makes, if it is a CLI of an engine.
    pub(in crate::launch) fn labelled(&self, order: LaunchOrder) -> LaunchOrder {
        let Some((_, at)) = order.settings.process().and_then(run_by_cli) else { return order };
        let mut settings = ServerSettings::clone(&order.settings);
        if let ServerKind::Process(process) = &mut settings.kind {
            let label = label(&self.shared, &order.key);
            process.args.splice(at..at, ["--label".to_owned(), label]);
        }
        LaunchOrder { settings: Arc::new(settings), ..order }
    }

    /// A life whose last news come once nothing is left of what it made.
    pub fn tidied(&self, key: &InstanceKey, settings: &ServerSettings, life: Instance) -> Instance {
        let Some((engine, _)) = settings.process().and_then(run_by_cli) else { return life };
        let host = settings.process().and_then(|it| it.env.get("DOCKER_HOST").cloned());
        let host = host.filter(|host| host.starts_with("unix://"));
        let (label, (tidied, ends)) = (label(&self.shared, key), Instance::pair());
        let shared = self.shared.clone();
        shared.owned.take(&label);
        let Instance { mut news, asks, notes, checkups, rests } = life;
        tokio::spawn(async move {
            if let Some(engine) = find(engine, host.as_deref()).await {
                shared.engines.saw(&engine.socket);
            }
            while let Some(heard) = news.recv().await {
                if is_last(&heard) {
                    let _ = timeout(REMOVE_WITHIN, remove(engine, host.as_deref(), &label)).await;
                }
                let _ = ends.news.send(heard).await; // Nobody may hold this life any more.
            }
            shared.owned.release(&label);
        });
        Instance { news: tidied.news, asks, notes, checkups, rests }
    }
}

fn is_last(news: &News) -> bool {
    matches!(news, News::Exited(_) | News::ExitedOnProbe(_) | News::LaunchFailed(_) | News::Closed)
}

/// Removes what carries the label.
async fn remove(engine: EngineKind, host: Option<&str>, label: &str) {
    let Some(engine) = find(engine, host).await else { return };
    for seen in engine.labelled(label).await.unwrap_or_default() {
        tracing::info!(container = seen.id, label, "left by a killed CLI: removed");
        let _ = engine.remove(&seen.id).await; // It may be going by itself.
    }
}

/// The engine that a CLI speaks with, most likely. Podman's needs none that listens.
async fn find(engine: EngineKind, host: Option<&str>) -> Option<Engine> {
    let settings = ContainerSettings {
        engine: Some(engine),
        host: host.map(str::to_owned),
        ..ContainerSettings::of_image(String::new())
    };
    Engine::find(&settings).await.ok()
}

#[cfg(test)]
mod tests {
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
        assert_eq!(at("docker", &["--context", "x", "run"]), None);
        assert_eq!(at("docker", &[]), None);
        assert_eq!(at("npx", &["run"]), None);
    }
}
