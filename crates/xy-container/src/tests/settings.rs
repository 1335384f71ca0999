//! Settings of servers.

use std::path::PathBuf;

use xy_config::settings::{
    ContainerSettings, Isolation, Limits, ProcessSettings, Rules, ServerKind, ServerSettings,
    Source,
};
use xy_protocol::server::{ServerName, Transport};

/// Returns the settings of a server of this kind, without jitter, so that times are exact.
fn settings_of(name: &str, kind: ServerKind) -> ServerSettings {
    let mut rules = Rules::default();
    rules.restart.jitter = false;
    ServerSettings {
        name: ServerName::new(name).unwrap(),
        source: Source {
            file: PathBuf::from(format!("servers/{name}.kdl")),
            command_line: 1,
            is_outdated: false,
            added: false,
        },
        kind,
        rules,
        isolation: Isolation::Shared,
        share_key: None,
        era: None,
    }
}

/// Returns the settings of a container.
pub(crate) fn container_settings(name: &str) -> ServerSettings {
    let container = ContainerSettings::of_image("example.com/x:1".into());
    settings_of(name, ServerKind::Container(Box::new(container)))
}

/// Returns the settings of a process.
pub(crate) fn process_settings() -> ProcessSettings {
    ProcessSettings {
        command: "/bin/true".into(),
        args: Vec::new(),
        env: [].into(),
        working_dir: None,
        transport: Transport::Stdio,
        port: None,
        path: None,
        limits: Limits::default(),
    }
}
