//! Conversion of settings to the create request of an engine. Pure.
//!
//! Containers are safe unless their file says otherwise: no new privileges, no capabilities, a
//! process limit, and ports published on loopback only.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountType, PortBinding,
    RestartPolicy, RestartPolicyNameEnum,
};
use xy_config::settings::{ContainerSettings, DEFAULT_CONTAINER_PIDS, MountSource};
use xy_protocol::server::Transport;
use xy_supervisor::instance::{Holder, InstanceKey};

/// Label with the home of the daemon that owns the container.
pub(crate) const LABEL_HOME: &str = "xy.home";

/// Label with the instance.
pub(crate) const LABEL_INSTANCE: &str = "xy.instance";

/// Label with the owner of a CLI: home and instance.
pub(crate) const LABEL_RUN: &str = "xy.run";

/// Label with the id of the life.
pub(crate) const LABEL_LIFE: &str = "xy.life";

/// Size of the output that the engine keeps, in two files. Output that a daemon has missed is read
/// from there.
pub(crate) const ENGINE_LOG_BYTES: u64 = 16 << 20;

/// Returns the container name of an instance. Names are unique at an engine, so an instance cannot
/// have two containers. Server names contain no `.`, so names of clients' instances cannot collide.
pub(crate) fn name(home: &str, key: &InstanceKey) -> String {
    let home = home.get(..8).unwrap_or(home);
    match key.holder {
        Holder::Shared => format!("xy-{}-{home}", key.server),
        Holder::Client(client) => format!("xy-{}.client{client}-{home}", key.server),
        Holder::Era(era) => format!("xy-{}.{era}-{home}", key.server),
    }
}

/// Returns the create request.
pub(crate) fn body(
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
        // Kept open when a daemon detaches, for the next one.
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
    let own = [
        (LABEL_HOME, home.to_owned()),
        (LABEL_INSTANCE, key.to_string()),
        (LABEL_LIFE, life.to_owned()),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    settings.labels.clone().into_iter().chain(own).collect()
}

/// Returns the port inside the container, such as `8000/tcp`.
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
        auto_remove: Some(false), // Its exit status is read afterwards.
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO), // The supervisor restarts it.
            maximum_retry_count: None,
        }),
        privileged: Some(false),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        cap_drop: Some(drop),
        cap_add: (!settings.cap_add.is_empty()).then(|| settings.cap_add.clone()),
        pids_limit: Some(i64::from(settings.pids.unwrap_or(DEFAULT_CONTAINER_PIDS))),
        memory: settings.memory.map(signed),
        // The limit covers memory and swap together: no swap.
        memory_swap: settings.memory.map(signed),
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

/// Returns a mount rather than a bind, so that a missing folder is an error and is not created.
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

    fn request(settings: &ContainerSettings) -> serde_json::Value {
        serde_json::to_value(body(settings, "0123456789abcdef", &key(), "life-1")).unwrap()
    }

    #[test]
    fn container_is_confined_by_default() {
        let body = request(&ContainerSettings::of_image("img".into()));
        let host = &body["HostConfig"];
        assert_eq!(host["SecurityOpt"], serde_json::json!(["no-new-privileges"]));
        assert_eq!(host["CapDrop"], serde_json::json!(["ALL"]));
        assert_eq!(host["CapAdd"], serde_json::Value::Null);
        assert_eq!(host["PidsLimit"], DEFAULT_CONTAINER_PIDS);
        assert_eq!(host["Privileged"], false);
        assert_eq!(host["PortBindings"], serde_json::Value::Null);
        assert_eq!(host["RestartPolicy"]["Name"], "no");
        assert_eq!(body["Tty"], false);
        assert_eq!((&body["OpenStdin"], &body["StdinOnce"]), (&true.into(), &false.into()));
    }

    #[test]
    fn port_is_published_on_loopback_only() {
        let mut settings = ContainerSettings::of_image("img".into());
        (settings.transport, settings.port) = (Transport::Http, Some(8421));
        let binding = serde_json::json!([{ "HostIp": "127.0.0.1", "HostPort": "8421" }]);
        assert_eq!(request(&settings)["HostConfig"]["PortBindings"]["8421/tcp"], binding);
        settings.inner_port = Some(80);
        assert_eq!(request(&settings)["HostConfig"]["PortBindings"]["80/tcp"], binding);
        assert_eq!(request(&settings)["OpenStdin"], false);
    }

    #[test]
    fn own_labels_cannot_be_overridden() {
        let mut settings = ContainerSettings::of_image("img".into());
        settings.labels.insert(LABEL_HOME.into(), "mine".into());
        settings.labels.insert("team".into(), "tools".into());
        let labels = &request(&settings)["Labels"];
        assert_eq!(
            (&labels["team"], &labels[LABEL_HOME]),
            (&"tools".into(), &"0123456789abcdef".into())
        );
    }

    #[test]
    fn each_instance_has_unique_name() {
        let client = InstanceKey { holder: Holder::Client(7), ..key() };
        assert_eq!(name("0123456789abcdef", &key()), "xy-git-01234567");
        assert_eq!(name("0123456789abcdef", &client), "xy-git.client7-01234567");
        let namesake = InstanceKey::parse("git-client7").unwrap();
        assert_eq!(name("0123456789abcdef", &namesake), "xy-git-client7-01234567");
    }
}
