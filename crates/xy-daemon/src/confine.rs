//! How servers are held together and limited, as the wire shows it.

use xy_config::settings::Limits;
use xy_protocol::server::{Containment, KeptBy, Limit, LimitName, Oom};
use xy_supervisor::launch::{self, Confined};
use xy_supervisor::lifecycle;

/// What finds all processes of a server.
pub(crate) fn containment(containment: launch::Containment) -> Containment {
    match containment {
        launch::Containment::Cgroup => Containment::Cgroup,
        launch::Containment::Subreaper => Containment::Subreaper,
        launch::Containment::Group => Containment::Group,
    }
}

/// The limits of a server that lives, or those that its file gives to the next life.
pub(crate) fn limits(confined: Option<&Confined>, said: Limits) -> Vec<Limit> {
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
