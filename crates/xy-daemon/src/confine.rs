//! How servers are held together and limited, as the wire shows it.

use xy_config::settings::{CONTAINER_PIDS, ContainerSettings, EngineKind, Limits, ServerSettings};
use xy_protocol::server::{ContainerEntry, Containment, KeptBy, Limit, LimitName, Oom};
use xy_supervisor::instance::Snapshot;
use xy_supervisor::launch::{self, Confined, Contained};
use xy_supervisor::lifecycle;

/// What finds all processes of a server while it lives, and what they may use.
pub(crate) fn held(
    settings: &ServerSettings,
    now: Option<&Snapshot>,
) -> (Option<Containment>, Vec<Limit>) {
    if let Some(container) = settings.container() {
        let lives = now.is_some_and(|now| now.container.is_some());
        return (lives.then_some(Containment::Container), limits_of_container(container, lives));
    }
    let confined = now.and_then(|now| now.confined.as_ref());
    let said = settings.process().map(|it| it.limits).unwrap_or_default();
    (confined.map(|it| containment(it.containment)), limits(confined, said))
}

fn limits_of_container(container: &ContainerSettings, lives: bool) -> Vec<Limit> {
    let kept_by = lives.then_some(KeptBy::Engine);
    let pids = u64::from(container.pids.unwrap_or(CONTAINER_PIDS));
    let memory = container.memory.map(|value| (LimitName::Memory, value));
    let both = memory.into_iter().chain([(LimitName::Pids, pids)]);
    both.map(|(name, value)| Limit { name, value, kept_by }).collect()
}

/// A container, as the wire shows it.
pub(crate) fn container(container: &Contained) -> ContainerEntry {
    let engine = match container.engine {
        EngineKind::Docker => "docker",
        EngineKind::Podman => "podman",
    };
    ContainerEntry {
        engine: engine.to_owned(),
        version: container.version.clone(),
        socket: container.socket.display().to_string(),
        name: container.name.clone(),
        id: container.id.clone(),
        ends_with_daemon: container.ends_with_daemon,
    }
}

/// What finds all processes of a server.
fn containment(containment: launch::Containment) -> Containment {
    match containment {
        launch::Containment::Cgroup => Containment::Cgroup,
        launch::Containment::Subreaper => Containment::Subreaper,
        launch::Containment::Group => Containment::Group,
    }
}

/// The limits of a server that lives, or those that its file gives to the next life.
fn limits(confined: Option<&Confined>, said: Limits) -> Vec<Limit> {
    if let Some(confined) = confined {
        return confined.limits.iter().map(kept).collect();
    }
    let said = [
        (LimitName::Nofile, said.nofile),
        (LimitName::Memory, said.memory),
        (LimitName::Pids, said.pids.map(u64::from)),
    ];
    said.into_iter()
        .filter_map(|(name, value)| Some(Limit { name, value: value?, kept_by: None }))
        .collect()
}

fn kept(limit: &launch::Limit) -> Limit {
    let name = match limit.name {
        launch::LimitName::Nofile => LimitName::Nofile,
        launch::LimitName::Memory => LimitName::Memory,
        launch::LimitName::Pids => LimitName::Pids,
    };
    let kept_by = match limit.kept_by {
        launch::KeptBy::Cgroup => KeptBy::Cgroup,
        launch::KeptBy::Rlimit => KeptBy::Rlimit,
    };
    Limit { name, value: limit.value, kept_by: Some(kept_by) }
}

/// Why the kernel killed.
pub(crate) fn oom(oom: lifecycle::Oom) -> Oom {
    match oom {
        lifecycle::Oom::Limit { .. } => Oom::Limit,
        lifecycle::Oom::Machine => Oom::Machine,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_a_life_are_shown_as_they_are_kept_and_others_as_they_are_said() {
        let said = Limits { nofile: Some(99), memory: None, pids: Some(7) };
        let waiting = limits(None, said);
        assert_eq!(waiting.iter().map(|it| it.value).collect::<Vec<_>>(), [99, 7]);
        assert!(waiting.iter().all(|it| it.kept_by.is_none()));

        let memory = launch::Limit {
            name: launch::LimitName::Memory,
            value: 1 << 20,
            kept_by: launch::KeptBy::Cgroup,
        };
        let confined = Confined { limits: vec![memory], ..Confined::default() };
        let kept = Limit { name: LimitName::Memory, value: 1 << 20, kept_by: Some(KeptBy::Cgroup) };
        assert_eq!(limits(Some(&confined), said), [kept]);
    }
}
