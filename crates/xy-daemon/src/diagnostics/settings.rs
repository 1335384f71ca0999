//! The settings of a server, as strangers may see them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use xy_config::settings::{Isolation, ServerKind, ServerSettings};
use xy_protocol::control::MASK;

use super::mask::{self, Secrets};

/// All of them; what is secret among them is known from now on.
pub(super) fn shown(settings: &ServerSettings, secrets: &mut Secrets) -> Value {
    let mut shown = json!({
        "file": settings.source.file.display().to_string(),
        "line": settings.source.command_line,
        "is_added": settings.source.added,
        "is_outdated": settings.source.is_outdated,
        "isolation": match settings.isolation {
            Isolation::Shared => "shared",
            Isolation::Client => "client",
        },
        "transport": settings.transport().as_str(),
        "rules": serde_json::to_value(&settings.rules).unwrap_or_default(),
    });
    match &settings.kind {
        ServerKind::Process(process) => {
            shown["command"] = mask::text(&process.command).into();
            shown["args"] = mask::args(&process.args, secrets).into();
            shown["env"] = masked(&process.env, secrets);
            let folder = process.working_dir.as_ref().map(|it| it.display().to_string());
            shown["working_dir"] = folder.into();
            shown["port"] = process.port.into();
            shown["path"] = process.path.clone().into();
            shown["limits"] = serde_json::to_value(process.limits).unwrap_or_default();
        }
        ServerKind::Remote(remote) => {
            shown["url"] = mask::url(&remote.url, secrets).into();
            shown["headers"] = masked(&remote.headers, secrets);
        }
    }
    shown
}

/// The program and its arguments.
pub(super) fn command(settings: &ServerSettings, secrets: &mut Secrets) -> Vec<String> {
    let Some(process) = settings.process() else { return Vec::new() };
    let mut words = vec![mask::text(&process.command)];
    words.extend(mask::args(&process.args, secrets));
    words
}

/// The names, without the values.
fn masked(values: &BTreeMap<String, String>, secrets: &mut Secrets) -> Value {
    for value in values.values() {
        secrets.know(value);
    }
    values.keys().map(|name| (name.clone(), MASK.into())).collect::<serde_json::Map<_, _>>().into()
}
