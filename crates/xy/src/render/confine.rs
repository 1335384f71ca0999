//! Rendering of a server's containment and limits.

use xy_protocol::server::{
    ContainerEntry, Containment, EnforcedBy, Limit, LimitName, ServerStatus,
};
use xy_protocol::size::Size;

use super::safe_text;

/// Returns the rows of `status` about containment and limits.
pub(crate) fn facts(status: &ServerStatus) -> Vec<(&'static str, String)> {
    let processes = status.containment.map(|it| ("processes", containment(it).to_owned()));
    let container = status.container.as_ref().map(|it| ("container", container(it)));
    let limits: Vec<String> = status.limits.iter().map(limit).collect();
    let limits = (!limits.is_empty()).then(|| ("limits", limits.join(", ")));
    container.into_iter().chain(processes).chain(limits).collect()
}

fn container(container: &ContainerEntry) -> String {
    let ContainerEntry { engine, version, name, .. } = container;
    let ends = if container.ends_with_daemon { "; it ends when the daemon is killed" } else { "" };
    safe_text(&format!("{name} of {engine} {version}{ends}")).into_owned()
}

fn containment(containment: Containment) -> &'static str {
    match containment {
        Containment::Cgroup => "tracked by cgroup + subreaper",
        Containment::Subreaper => "tracked by subreaper",
        Containment::Group => "tracked by process group (processes can leave it)",
        Containment::Container => "tracked by container",
    }
}

fn limit(limit: &Limit) -> String {
    let said = match limit.name {
        LimitName::Nofile => format!("nofile {}", limit.value),
        LimitName::Memory => format!("memory {}", Size(limit.value)),
        LimitName::Pids => format!("pids {}", limit.value),
    };
    match limit.kept_by {
        Some(EnforcedBy::Cgroup | EnforcedBy::Engine) => format!("{said} (all together)"),
        Some(EnforcedBy::Rlimit) => format!("{said} (each process)"),
        None => said,
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn rows(containment: Option<Containment>, kept_by: Option<EnforcedBy>) -> String {
        let limit = |name, value| Limit { name, value, kept_by };
        let limits = vec![
            limit(LimitName::Nofile, 4096),
            limit(LimitName::Memory, 64 << 20),
            limit(LimitName::Pids, 20),
        ];
        let status = ServerStatus { containment, limits, ..samples::failed_status() };
        let rows: Vec<String> =
            facts(&status).iter().map(|(label, value)| format!("{label}: {value}")).collect();
        rows.join("\n")
    }

    #[test]
    fn container_is_shown_with_its_engine() {
        let entry = |ends_with_daemon| ContainerEntry {
            engine: "podman".into(),
            version: "4.3.1".into(),
            socket: "/run/podman.sock".into(),
            name: "xy-a-1".into(),
            id: "0123".into(),
            ends_with_daemon,
        };
        let told = |it| {
            let container = Some(entry(it));
            let containment = Some(Containment::Container);
            let limit =
                Limit { name: LimitName::Pids, value: 512, kept_by: Some(EnforcedBy::Engine) };
            let limits = vec![limit];
            let status =
                ServerStatus { container, containment, limits, ..samples::failed_status() };
            facts(&status).into_iter().map(|(_, value)| value).collect::<Vec<_>>()
        };
        let rest = ["tracked by container", "pids 512 (all together)"];
        assert_eq!(told(false), ["xy-a-1 of podman 4.3.1", rest[0], rest[1]]);
        assert_eq!(told(true)[0], "xy-a-1 of podman 4.3.1; it ends when the daemon is killed");
    }

    #[test]
    fn limits_show_their_scope() {
        let told = [
            rows(Some(Containment::Cgroup), Some(EnforcedBy::Cgroup)),
            rows(Some(Containment::Subreaper), Some(EnforcedBy::Rlimit)),
            rows(Some(Containment::Group), None),
            rows(None, None),
        ];
        insta::assert_snapshot!(told.join("\n"), @"
        processes: tracked by cgroup + subreaper
        limits: nofile 4096 (all together), memory 64 MiB (all together), pids 20 (all together)
        processes: tracked by subreaper
        limits: nofile 4096 (each process), memory 64 MiB (each process), pids 20 (each process)
        processes: tracked by process group (processes can leave it)
        limits: nofile 4096, memory 64 MiB, pids 20
        limits: nofile 4096, memory 64 MiB, pids 20
        ");
    }

    #[test]
    fn no_limits_give_no_rows() {
        assert_eq!(facts(&samples::failed_status()), []);
    }
}
