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
        ServerKind::Container(container) => {
            let mut all = serde_json::to_value(container).unwrap_or_default();
            all["image"] = mask::text(&container.image).into();
            all["command"] = container.command.as_deref().map(mask::text).into();
            all["args"] = container.args.as_ref().map(|it| mask::args(it, secrets)).into();
            all["env"] = masked(&container.env, secrets);
            all["labels"] = masked(&container.labels, secrets);
            shown["container"] = all;
        }
    }
    shown
}

/// The program, or the image, and its arguments.
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

/// The names, without the values.
fn masked(values: &BTreeMap<String, String>, secrets: &mut Secrets) -> Value {
    for value in values.values() {
        secrets.know(value);
    }
    values.keys().map(|name| (name.clone(), MASK.into())).collect::<serde_json::Map<_, _>>().into()
}
