//! The settings of a server, with its secrets masked.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use xy_config::settings::{Isolation, ServerKind, ServerSettings};
use xy_protocol::control::MASK;

use super::mask::{self, Secrets};

/// Returns all settings with secrets masked, and adds the secrets to the known ones.
pub(super) fn masked_settings(settings: &ServerSettings, secrets: &mut Secrets) -> Value {
    let mut masked_settings = json!({
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
            masked_settings["command"] = mask::text(&process.command).into();
            masked_settings["args"] = mask::args(&process.args, secrets).into();
            masked_settings["env"] = masked(&process.env, secrets);
            let folder = process.working_dir.as_ref().map(|it| it.display().to_string());
            masked_settings["working_dir"] = folder.into();
            masked_settings["port"] = process.port.into();
            masked_settings["path"] = process.path.clone().into();
            masked_settings["limits"] = serde_json::to_value(process.limits).unwrap_or_default();
        }
        ServerKind::Remote(remote) => {
            masked_settings["url"] = mask::url(&remote.url, secrets).into();
            masked_settings["headers"] = masked(&remote.headers, secrets);
        }
        ServerKind::Container(container) => {
            let mut all = serde_json::to_value(container).unwrap_or_default();
            all["image"] = mask::text(&container.image).into();
            all["command"] = container.command.as_deref().map(mask::text).into();
            all["args"] = container.args.as_ref().map(|it| mask::args(it, secrets)).into();
            all["env"] = masked(&container.env, secrets);
            all["labels"] = masked(&container.labels, secrets);
            masked_settings["container"] = all;
        }
    }
    masked_settings
}

/// Returns the program or image and its arguments, with secrets masked.
pub(super) fn command(settings: &ServerSettings, secrets: &mut Secrets) -> Vec<String> {
    match &settings.kind {
        ServerKind::Process(process) => {
            let mut words = vec![mask::text(&process.command)];
            words.extend(mask::args(&process.args, secrets));
            words
        }
        ServerKind::Container(container) => {
            let words = [Some(&container.image), container.command.as_ref()];
            let mut words: Vec<_> = words.into_iter().flatten().map(|it| mask::text(it)).collect();
            words.extend(mask::args(container.args.as_deref().unwrap_or_default(), secrets));
            words
        }
        ServerKind::Remote(_) => Vec::new(),
    }
}

/// Returns the names with masked values, and adds the values to the known secrets.
fn masked(values: &BTreeMap<String, String>, secrets: &mut Secrets) -> Value {
    for value in values.values() {
        secrets.add(value);
    }
    values.keys().map(|name| (name.clone(), MASK.into())).collect::<serde_json::Map<_, _>>().into()
}
