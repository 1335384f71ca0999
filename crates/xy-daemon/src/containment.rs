//! How the processes of servers are tracked and limited, as clients see it.

use xy_config::settings::{
    ContainerSettings, DEFAULT_CONTAINER_PIDS, EngineKind, Limits, ServerSettings,
};
use xy_protocol::server::{ContainerEntry, Containment, EnforcedBy, Limit, LimitName, Oom};
use xy_supervisor::instance::Snapshot;
use xy_supervisor::launch::{self, Confinement, ContainerInfo};
use xy_supervisor::lifecycle;

/// Returns how the processes of a server are tracked, and their limits.
pub(crate) fn of(
    settings: &ServerSettings,
    snapshot: Option<&Snapshot>,
) -> (Option<Containment>, Vec<Limit>) {
    if let Some(container) = settings.container() {
        let is_running = snapshot.is_some_and(|snapshot| snapshot.container.is_some());
        return (
            is_running.then_some(Containment::Container),
            limits_of_container(container, is_running),
        );
    }
    let confined = snapshot.and_then(|snapshot| snapshot.confined.as_ref());
    let configured = settings.process().map(|it| it.limits).unwrap_or_default();
    (confined.map(|it| containment(it.containment)), limits(confined, configured))
}

fn limits_of_container(container: &ContainerSettings, is_running: bool) -> Vec<Limit> {
    let kept_by = is_running.then_some(EnforcedBy::Engine);
    let pids = u64::from(container.pids.unwrap_or(DEFAULT_CONTAINER_PIDS));
    let memory = container.memory.map(|value| (LimitName::Memory, value));
    let both = memory.into_iter().chain([(LimitName::Pids, pids)]);
    both.map(|(name, value)| Limit { name, value, kept_by }).collect()
}

/// Converts a container to the form that clients receive.
pub(crate) fn container(container: &ContainerInfo) -> ContainerEntry {
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

/// Converts the containment of a server to the form that clients receive.
fn containment(containment: launch::Containment) -> Containment {
    match containment {
        launch::Containment::Cgroup => Containment::Cgroup,
        launch::Containment::Subreaper => Containment::Subreaper,
        launch::Containment::Group => Containment::Group,
    }
}

/// Returns the limits of a running server, or those that its file configures for the next start.
fn limits(confined: Option<&Confinement>, configured: Limits) -> Vec<Limit> {
    if let Some(confined) = confined {
        return confined.limits.iter().map(enforced_limit).collect();
    }
    let configured = [
        (LimitName::Nofile, configured.nofile),
        (LimitName::Memory, configured.memory),
        (LimitName::Pids, configured.pids.map(u64::from)),
    ];
    configured
        .into_iter()
        .filter_map(|(name, value)| Some(Limit { name, value: value?, kept_by: None }))
        .collect()
}

fn enforced_limit(limit: &launch::Limit) -> Limit {
    let name = match limit.name {
        launch::LimitName::Nofile => LimitName::Nofile,
        launch::LimitName::Memory => LimitName::Memory,
        launch::LimitName::Pids => LimitName::Pids,
    };
    let kept_by = match limit.kept_by {
        launch::EnforcedBy::Cgroup => EnforcedBy::Cgroup,
        launch::EnforcedBy::Rlimit => EnforcedBy::Rlimit,
    };
    Limit { name, value: limit.value, kept_by: Some(kept_by) }
}

/// Converts the reason of an out-of-memory kill to the form that clients receive.
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
    fn running_server_shows_enforced_limits_and_others_configured_ones() {
        let configured = Limits { nofile: Some(99), memory: None, pids: Some(7) };
        let waiting = limits(None, configured);
        assert_eq!(waiting.iter().map(|it| it.value).collect::<Vec<_>>(), [99, 7]);
        assert!(waiting.iter().all(|it| it.kept_by.is_none()));

        let memory = launch::Limit {
            name: launch::LimitName::Memory,
            value: 1 << 20,
            kept_by: launch::EnforcedBy::Cgroup,
        };
        let confined = Confinement { limits: vec![memory], ..Confinement::default() };
        let kept =
            Limit { name: LimitName::Memory, value: 1 << 20, kept_by: Some(EnforcedBy::Cgroup) };
        assert_eq!(limits(Some(&confined), configured), [kept]);
    }
}
