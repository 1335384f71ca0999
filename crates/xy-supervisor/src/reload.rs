//! The difference between two sets of settings. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use xy_config::settings::ServerSettings;
use xy_protocol::server::ServerName;

/// All servers, by name.
pub type ServerMap = BTreeMap<ServerName, Arc<ServerSettings>>;

/// The change of each server in a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Servers with a new file.
    pub added: Vec<ServerName>,
    /// Servers whose file was removed.
    pub removed: Vec<ServerName>,
    /// Servers that need other instances: their process or their sharing has changed.
    pub restarted: Vec<ServerName>,
    /// Servers with other rules for the same process.
    pub updated: Vec<ServerName>,
    /// Servers without a change.
    pub unchanged: Vec<ServerName>,
}

/// Returns the plan that leads from `old` to `new`. Servers that were added at run time have no
/// file, so they are not removed; a file of their name replaces their settings.
pub fn diff(old: &ServerMap, new: &ServerMap) -> Plan {
    let mut plan = Plan::default();
    for (name, before) in old {
        if !new.contains_key(name) && !before.source.added {
            plan.removed.push(name.clone());
        }
    }
    for (name, settings) in new {
        let list = match old.get(name) {
            None => &mut plan.added,
            Some(before) if needs_restart(before, settings) => &mut plan.restarted,
            Some(before) if before.rules != settings.rules || has_new_source(before, settings) => {
                &mut plan.updated
            }
            Some(_) => &mut plan.unchanged,
        };
        list.push(name.clone());
    }
    plan
}

/// Returns true if the instances cannot go on, as their process or their sharing has changed.
fn needs_restart(before: &ServerSettings, now: &ServerSettings) -> bool {
    before.kind != now.kind
        || before.isolation != now.isolation
        || before.share_key != now.share_key
        || before.era != now.era
}

/// Returns true if the file has become usable again, or has replaced an added server.
fn has_new_source(before: &ServerSettings, now: &ServerSettings) -> bool {
    before.source.is_outdated != now.source.is_outdated || before.source.added != now.source.added
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use xy_config::settings::{
        ContainerSettings, EngineKind, Isolation, Mount, MountSource, Pull, RemoteSettings,
        RestartPolicy, ServerKind, Tmpfs,
    };

    use super::*;
    use crate::fake::{container_settings, process_of, remote, settings};

    fn map(servers: &[ServerSettings]) -> ServerMap {
        servers.iter().map(|one| (one.name.clone(), Arc::new(one.clone()))).collect()
    }

    fn with(name: &str, change: impl FnOnce(&mut ServerSettings)) -> ServerSettings {
        let mut changed = settings(name);
        change(&mut changed);
        changed
    }

    #[test]
    fn each_server_is_in_exactly_one_list() {
        let old = map(&[settings("same"), settings("gone"), settings("rules"), settings("args")]);
        let new = map(&[
            settings("same"),
            settings("new"),
            with("rules", |it| {
                it.rules.restart.policy = RestartPolicy::Always;
            }),
            with("args", |it| process_of(it).args = vec!["--other".into()]),
        ]);
        insta::assert_debug_snapshot!(diff(&old, &new), @r#"
        Plan {
            added: [
                ServerName(
                    "new",
                ),
            ],
            removed: [
                ServerName(
                    "gone",
                ),
            ],
            restarted: [
                ServerName(
                    "args",
                ),
            ],
            updated: [
                ServerName(
                    "rules",
                ),
            ],
            unchanged: [
                ServerName(
                    "same",
                ),
            ],
        }
        "#);
    }

    #[test]
    fn process_fields_restart_server() {
        let old = map(&[settings("a")]);
        let changes: [fn(&mut ServerSettings); 10] = [
            |it| process_of(it).command = "/other".into(),
            |it| process_of(it).args.push("x".into()),
            |it| process_of(it).env = [("A".into(), "b".into())].into(),
            |it| process_of(it).working_dir = Some("/".into()),
            |it| process_of(it).port = Some(1),
            |it| process_of(it).path = Some("/mcp".into()),
            |it| process_of(it).transport = xy_protocol::server::Transport::Sse,
            |it| process_of(it).limits.nofile = Some(1),
            |it| process_of(it).limits.memory = Some(1 << 20),
            |it| process_of(it).limits.pids = Some(1),
        ];
        for change in changes {
            assert_eq!(diff(&old, &map(&[with("a", change)])).restarted.len(), 1);
        }
    }

    #[test]
    fn container_fields_restart_server() {
        let old = map(&[container_settings("a")]);
        let changes: [fn(&mut ContainerSettings); 25] = [
            |it| it.image = "example.com/x:2".into(),
            |it| it.command = Some("/bin/other".into()),
            |it| it.args = Some(vec!["x".into()]),
            |it| it.env = [("A".into(), "b".into())].into(),
            |it| {
                let source = MountSource::Volume("data".into());
                it.volumes = vec![Mount { source, target: "/data".into(), read_only: false }];
            },
            |it| it.working_dir = Some("/app".into()),
            |it| it.user = Some("1000".into()),
            |it| it.memory = Some(64 << 20),
            |it| it.nano_cpus = Some(1),
            |it| it.pids = Some(7),
            |it| it.network = Some("none".into()),
            |it| it.read_only = true,
            |it| it.cap_drop = Some(Vec::new()),
            |it| it.cap_add = vec!["CHOWN".into()],
            |it| it.tmpfs = vec![Tmpfs { target: "/tmp".into(), options: String::new() }],
            |it| it.pull = Pull::Never,
            |it| it.platform = Some("linux/arm64".into()),
            |it| it.labels = [("team".into(), "tools".into())].into(),
            |it| it.engine = Some(EngineKind::Podman),
            |it| it.host = Some("unix:///p.sock".into()),
            |it| it.port = Some(1),
            |it| it.inner_port = Some(1),
            |it| it.transport = xy_protocol::server::Transport::Sse,
            |it| it.path = Some("/mcp".into()),
            |it| it.init = false,
        ];
        for change in changes {
            let mut now = container_settings("a");
            let ServerKind::Container(container) = &mut now.kind else { panic!("it is one") };
            change(container);
            assert_eq!(diff(&old, &map(&[now])).restarted.len(), 1);
        }
        assert_eq!(diff(&old, &map(&[settings("a")])).restarted.len(), 1, "it is a process now");
        let mut rules = container_settings("a");
        rules.rules.stop.grace = Duration::from_secs(99);
        assert_eq!(diff(&old, &map(&[rules])).updated.len(), 1);
    }

    #[test]
    fn remote_fields_restart_server() {
        let old = map(&[remote("a")]);
        let changes: [fn(&mut RemoteSettings); 3] = [
            |it| it.url = "https://example.com/other".into(),
            |it| it.headers = [].into(),
            |it| it.is_older = true,
        ];
        for change in changes {
            let mut now = remote("a");
            let ServerKind::Remote(remote) = &mut now.kind else { panic!("it is remote") };
            change(remote);
            assert_eq!(diff(&old, &map(&[now])).restarted.len(), 1);
        }
        assert_eq!(diff(&old, &map(&[settings("a")])).restarted.len(), 1, "it moves here");
        let mut calls = remote("a");
        calls.rules.calls.idle = Some(Duration::from_secs(1));
        assert_eq!(diff(&old, &map(&[calls])).updated.len(), 1);
    }

    #[test]
    fn isolation_change_restarts_server() {
        let old = map(&[settings("a")]);
        let new = map(&[with("a", |it| it.isolation = Isolation::Client)]);
        assert_eq!(diff(&old, &new).restarted.len(), 1);
    }

    #[test]
    fn added_server_needs_no_file_but_adopts_one() {
        let added = with("a", |it| it.source.added = true);
        let plan = diff(&map(std::slice::from_ref(&added)), &map(&[settings("b")]));
        assert_eq!((plan.removed.len(), plan.added.len()), (0, 1));
        assert_eq!(diff(&map(&[added]), &map(&[settings("a")])).updated.len(), 1);
    }

    #[test]
    fn rules_and_line_numbers_do_not_restart_server() {
        let old = map(&[settings("a")]);
        let rules = with("a", |it| it.rules.stop.grace = Duration::from_secs(99));
        assert_eq!(diff(&old, &map(&[rules])).updated.len(), 1);
        let moved = with("a", |it| it.source.command_line = 99);
        assert_eq!(diff(&old, &map(&[moved])).unchanged.len(), 1);
    }

    fn any_map() -> impl Strategy<Value = ServerMap> {
        let one = (0..6u8, 0..3u8, 0..3u8).prop_map(|(name, args, attempts)| {
            with(&format!("s{name}"), |it| {
                process_of(it).args = vec![args.to_string()];
                it.rules.restart.max_attempts = u32::from(attempts);
            })
        });
        proptest::collection::vec(one, 0..8).prop_map(|servers| map(&servers))
    }

    proptest! {
        #[test]
        fn equal_settings_are_unchanged(servers in any_map()) {
            let plan = diff(&servers, &servers);
            prop_assert_eq!(plan.unchanged.len(), servers.len());
        }

        #[test]
        fn plan_leads_from_old_to_new(old in any_map(), new in any_map()) {
            let plan = diff(&old, &new);
            let mut applied = old.clone();
            for name in &plan.removed {
                applied.remove(name);
            }
            for name in plan.added.iter().chain(&plan.restarted).chain(&plan.updated) {
                applied.insert(name.clone(), new[name].clone());
            }
            prop_assert_eq!(applied, new);
        }
    }
}
