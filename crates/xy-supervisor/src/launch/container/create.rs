//! Settings as an engine wants to be asked: pure.
//!
//! Safe unless a file says otherwise: no new privileges, no capabilities, a limit of
//! processes, and what is published is published on loopback alone.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountType, PortBinding,
    RestartPolicy, RestartPolicyNameEnum,
};
use xy_config::settings::{CONTAINER_PIDS, ContainerSettings, MountSource};
use xy_protocol::server::Transport;

use crate::instance::{Holder, InstanceKey};

/// Whose container it is: the home of a daemon.
pub(super) const LABEL_HOME: &str = "xy.home";

/// Which instance it is.
pub(super) const LABEL_INSTANCE: &str = "xy.instance";

/// Which life of it.
pub(super) const LABEL_LIFE: &str = "xy.life";

/// So much of what a container says is kept by its engine, in two files: what a daemon has
/// missed is read from there.
pub(super) const ENGINE_LOG_BYTES: u64 = 16 << 20;

/// The name of an instance's container: no engine has two of one name, so there are never two.
/// No server has a `.` in its name, so none has the name of another one's client.
pub(super) fn name(home: &str, key: &InstanceKey) -> String {
    let home = home.get(..8).unwrap_or(home);
    match key.holder {
        Holder::Shared => format!("xy-{}-{home}", key.server),
        Holder::Client(client) => format!("xy-{}.client{client}-{home}", key.server),
        Holder::Era(era) => format!("xy-{}.{era}-{home}", key.server),
    }
}

/// What an engine is asked to make.
pub(super) fn body(
    settings: &ContainerSettings,
    home: &str,
    key: &InstanceKey,
    life: &str,
) -> ContainerCreateBody {
    let is_stdio = settings.transport == Transport::Stdio;
    let env = settings.env.iter().map(|(name, value)| format!("{name}={value}"));
    let env = env.chain([format!("XY_SERVER={}", key.server)]);
    ContainerCreateBody {
        image: Some(settings.image.clone()),
        entrypoint: settings.command.clone().map(|command| vec![command]),
        cmd: settings.args.clone(),
        env: Some(env.collect()),
        working_dir: settings.working_dir.clone(),
        user: settings.user.clone(),
        labels: Some(labels(settings, home, key, life)),
        tty: Some(false),
        // Kept open when a daemon goes away: another one comes.
        open_stdin: Some(is_stdio),
        stdin_once: Some(false),
        attach_stdin: Some(is_stdio),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        exposed_ports: inner_port(settings).map(|port| vec![port]),
        host_config: Some(host_config(settings)),
        ..ContainerCreateBody::default()
    }
}

fn labels(
    settings: &ContainerSettings,
    home: &str,
    key: &InstanceKey,
    life: &str,
) -> HashMap<String, String> {
    let ours = [
        (LABEL_HOME, home.to_owned()),
        (LABEL_INSTANCE, key.to_string()),
        (LABEL_LIFE, life.to_owned()),
    ];
    let ours = ours.into_iter().map(|(name, value)| (name.to_owned(), value));
    settings.labels.clone().into_iter().chain(ours).collect()
}

/// `8000/tcp`: where it listens inside.
fn inner_port(settings: &ContainerSettings) -> Option<String> {
    let port = settings.inner_port.or(settings.port)?;
    settings.port.map(|_| format!("{port}/tcp"))
}

fn host_config(settings: &ContainerSettings) -> HostConfig {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let binding = settings.port.map(|port| PortBinding {
        host_ip: Some("127.0.0.1".to_owned()),
        host_port: Some(port.to_string()),
    });
    let bindings =
        inner_port(settings).map(|inner| HashMap::from([(inner, binding.map(|it| vec![it]))]));
    let drop = settings.cap_drop.clone().unwrap_or_else(|| vec!["ALL".to_owned()]);
    let tmpfs = settings.tmpfs.iter().map(|it| (it.target.clone(), it.options.clone()));
    HostConfig {
        init: Some(settings.init),
        auto_remove: Some(false), // How it ended is asked for afterwards.
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO), // That is for us to decide.
            maximum_retry_count: None,
        }),
        privileged: Some(false),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        cap_drop: Some(drop),
        cap_add: (!settings.cap_add.is_empty()).then(|| settings.cap_add.clone()),
        pids_limit: Some(i64::from(settings.pids.unwrap_or(CONTAINER_PIDS))),
        memory: settings.memory.map(signed),
        memory_swap: settings.memory.map(signed), // Memory and swap together: no swap.
        nano_cpus: settings.nano_cpus.map(signed),
        network_mode: settings.network.clone(),
        readonly_rootfs: Some(settings.read_only),
        tmpfs: (!settings.tmpfs.is_empty()).then(|| tmpfs.collect()),
        mounts: (!settings.volumes.is_empty())
            .then(|| settings.volumes.iter().map(mount).collect()),
        port_bindings: bindings,
        log_config: Some(log_config()),
        ..HostConfig::default()
    }
}

/// As a mount, not as a bind: a folder that is not there is an error, and is not made.
fn mount(volume: &xy_config::settings::Mount) -> Mount {
    let (typ, source) = match &volume.source {
        MountSource::Folder(path) => (MountType::BIND, path),
        MountSource::Volume(name) => (MountType::VOLUME, name),
    };
    Mount {
        typ: Some(typ),
        source: Some(source.clone()),
        target: Some(volume.target.clone()),
        read_only: Some(volume.read_only),
        ..Mount::default()
    }
}

fn log_config() -> HostConfigLogConfig {
    let config = [
        ("max-size".to_owned(), (ENGINE_LOG_BYTES / 2).to_string()),
        ("max-file".to_owned(), "2".to_owned()),
    ];
    HostConfigLogConfig { typ: Some("json-file".to_owned()), config: Some(config.into()) }
}

#[cfg(test)]
mod tests {
    use xy_protocol::server::ServerName;

    use super::*;

    fn key() -> InstanceKey {
        InstanceKey::shared(ServerName::new("git").unwrap())
    }

    fn asked(settings: &ContainerSettings) -> serde_json::Value {
        serde_json::to_value(body(settings, "0123456789abcdef", &key(), "life-1")).unwrap()
    }

    #[test]
    fn a_container_is_safe_unless_its_file_says_otherwise() {
        let body = asked(&ContainerSettings::of_image("img".into()));
        let host = &body["HostConfig"];
        assert_eq!(host["SecurityOpt"], serde_json::json!(["no-new-privileges"]));
        assert_eq!(host["CapDrop"], serde_json::json!(["ALL"]));
        assert_eq!(host["CapAdd"], serde_json::Value::Null);
        assert_eq!(host["PidsLimit"], CONTAINER_PIDS);
        assert_eq!(host["Privileged"], false);
        assert_eq!(host["PortBindings"], serde_json::Value::Null);
        assert_eq!(host["RestartPolicy"]["Name"], "no");
        assert_eq!(body["Tty"], false);
        assert_eq!((&body["OpenStdin"], &body["StdinOnce"]), (&true.into(), &false.into()));
    }

    #[test]
    fn what_is_published_is_published_on_loopback_alone() {
        let mut settings = ContainerSettings::of_image("img".into());
        (settings.transport, settings.port) = (Transport::Http, Some(8421));
        let binding = serde_json::json!([{ "HostIp": "127.0.0.1", "HostPort": "8421" }]);
        assert_eq!(asked(&settings)["HostConfig"]["PortBindings"]["8421/tcp"], binding);
        settings.inner_port = Some(80);
        assert_eq!(asked(&settings)["HostConfig"]["PortBindings"]["80/tcp"], binding);
        assert_eq!(asked(&settings)["OpenStdin"], false);
    }

    #[test]
    fn nobody_can_take_our_labels() {
        let mut settings = ContainerSettings::of_image("img".into());
        settings.labels.insert(LABEL_HOME.into(), "mine".into());
        settings.labels.insert("team".into(), "tools".into());
        let labels = &asked(&settings)["Labels"];
        assert_eq!(
            (&labels["team"], &labels[LABEL_HOME]),
            (&"tools".into(), &"0123456789abcdef".into())
        );
    }

    #[test]
    fn each_instance_has_a_name_of_its_own() {
        let client = InstanceKey { holder: Holder::Client(7), ..key() };
        assert_eq!(name("0123456789abcdef", &key()), "xy-git-01234567");
        assert_eq!(name("0123456789abcdef", &client), "xy-git.client7-01234567");
        let namesake = InstanceKey::parse("git-client7").unwrap();
        assert_eq!(name("0123456789abcdef", &namesake), "xy-git-client7-01234567");
    }
}
