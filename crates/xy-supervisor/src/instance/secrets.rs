//! Removes the secrets of a server from texts that users and models read.
//!
//! Known secrets are header values, variables with secret names, and what looks secret in arguments
//! and URLs. Other values stay: without them, most errors could not be understood.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::LazyLock;

use xy_config::references::is_reference;
use xy_config::settings::{ServerKind, ServerSettings};
use xy_protocol::mask::{self, Secrets};

use crate::lifecycle::{Event, LaunchFault};
use crate::logs::Line;

/// Headers whose values are no secrets, but ordinary words of error messages.
const PUBLIC_HEADERS: [&str; 4] = ["Accept", "Accept-Language", "Content-Type", "User-Agent"];

/// The secrets in the environment of this process, which never changes. Servers inherit them.
static INHERITED: LazyLock<Vec<String>> =
    LazyLock::new(|| std::env::vars_os().filter_map(secret_variable).collect());

/// Returns the value of a variable if its name looks secret.
fn secret_variable((name, value): (OsString, OsString)) -> Option<String> {
    mask::is_secret_name(name.to_str()?).then_some(())?;
    value.into_string().ok()
}

/// Adds the secrets in the environment of this process, which its servers inherit.
pub fn add_inherited_secrets(secrets: &mut Secrets) {
    for value in &*INHERITED {
        secrets.add(value);
    }
}

/// Returns lines that a server wrote, as text without secrets.
pub(crate) fn masked_lines<'l>(
    lines: impl IntoIterator<Item = &'l Line>,
    settings: &ServerSettings,
) -> Vec<String> {
    let secrets = known_secrets(settings);
    let text = |line: &Line| mask::text(&secrets.scrub(&String::from_utf8_lossy(&line.bytes)));
    lines.into_iter().map(text).collect()
}

/// Returns an event without known secrets: protocol drivers and engines quote what a server wrote.
pub(crate) fn masked_event(event: Event, settings: &ServerSettings) -> Event {
    let masked = |text: &str| known_secrets(settings).scrub(text).into_owned();
    let masked_fault = |fault: LaunchFault| LaunchFault {
        message: masked(&fault.message),
        hint: fault.hint.as_deref().map(masked),
        ..fault
    };
    match event {
        Event::LaunchFailed(fault) => Event::LaunchFailed(masked_fault(fault)),
        Event::EngineUnavailable(fault) => Event::EngineUnavailable(masked_fault(fault)),
        Event::RepairRequested(why) => Event::RepairRequested(masked(&why)),
        Event::ProtocolError(why) => Event::ProtocolError(masked(&why)),
        Event::ProtocolErrorOnProbe(why) => Event::ProtocolErrorOnProbe(masked(&why)),
        Event::Unhealthy(why) => Event::Unhealthy(masked(&why)),
        Event::Unreachable(why) => Event::Unreachable(masked(&why)),
        Event::Unrecoverable(why) => Event::Unrecoverable(masked(&why)),
        Event::RestartRequired(why) => Event::RestartRequired(masked(&why)),
        other => other,
    }
}

/// Returns the known secrets of a server, with those that it inherits.
fn known_secrets(settings: &ServerSettings) -> Secrets {
    let mut secrets = Secrets::default();
    add_inherited_secrets(&mut secrets);
    match &settings.kind {
        ServerKind::Process(process) => {
            add_named(&process.env, &mut secrets);
            add_args(&process.args, &mut secrets);
        }
        ServerKind::Remote(remote) => {
            let is_secret =
                |name: &str| !PUBLIC_HEADERS.iter().any(|public| public.eq_ignore_ascii_case(name));
            let values = remote.headers.iter().filter(|(name, _)| is_secret(name));
            values.for_each(|(_, value)| secrets.add(value));
            mask::url(&remote.url).1.iter().for_each(|it| secrets.add_exact(it));
        }
        ServerKind::Container(container) => {
            add_named(&container.env, &mut secrets);
            add_named(&container.labels, &mut secrets);
            add_args(container.args.iter().flatten(), &mut secrets);
        }
    }
    secrets
}

/// Adds the values whose names look secret, and what looks secret in the others.
fn add_named(values: &BTreeMap<String, String>, secrets: &mut Secrets) {
    for (name, value) in values {
        if is_reference(value) {
            // A reference names a secret, but is none.
        } else if mask::is_secret_name(name) {
            secrets.add(value);
        } else {
            add_args([value], secrets);
        }
    }
}

/// Adds what looks secret in arguments.
fn add_args<'a>(args: impl IntoIterator<Item = &'a String>, secrets: &mut Secrets) {
    for secret in mask::args(args.into_iter().map(String::as_str)).secrets {
        secrets.add(&secret);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{container_settings, process_of, remote, settings};

    fn lines(texts: &[&str], settings: &ServerSettings) -> Vec<String> {
        let line = |text: &&str| Line {
            seq: None,
            unix_millis: None,
            is_stderr: true,
            continued: false,
            bytes: text.as_bytes().to_vec(),
        };
        let lines: Vec<Line> = texts.iter().map(line).collect();
        masked_lines(&lines, settings)
    }

    #[test]
    fn known_secrets_are_removed_from_lines() {
        let mut near = settings("near");
        let process = process_of(&mut near);
        process.args = ["--token", "from-an-argument"].map(str::to_owned).to_vec();
        process.env = [
            ("API_KEY", "from-a-variable"),
            ("DATABASE", "postgres://me:in-a-url@db/x"),
            ("OTHER_TOKEN", "${OTHER_TOKEN}"),
            ("MODE", "production"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        let said = [
            "from-a-variable is refused",
            "from-an-argument and in-a-url",
            "no ${OTHER_TOKEN} in production, password=x",
        ];
        let masked =
            ["*** is refused", "*** and ***", "no ${OTHER_TOKEN} in production, password=***"];
        assert_eq!(lines(&said, &near), masked);

        let mut far = remote("far");
        if let ServerKind::Remote(remote) = &mut far.kind {
            remote.headers.insert("X-Region".to_owned(), "from-a-header".to_owned());
            remote.headers.insert("accept".to_owned(), "application/json".to_owned());
        }
        let said = "s3cret and from-a-header are no application/json";
        assert_eq!(lines(&[said], &far), ["*** and *** are no application/json"]);

        let mut boxed = container_settings("boxed");
        if let ServerKind::Container(container) = &mut boxed.kind {
            container.args = Some(vec!["--password=in-a-container".to_owned()]);
        }
        assert_eq!(lines(&["in-a-container"], &boxed), ["***"]);
    }

    #[test]
    fn known_secrets_are_removed_from_events() {
        let mut near = settings("near");
        process_of(&mut near).env = [("API_KEY".to_owned(), "s3cret-value".to_owned())].into();
        let masked = |event: Event| masked_event(event, &near);
        let why = || "it refused s3cret-value".to_owned();
        let expected = Event::ProtocolError("it refused ***".to_owned());
        assert_eq!(masked(Event::ProtocolError(why())), expected);
        let fault = |why: String| {
            let hint = Some(format!("{why}?"));
            Event::LaunchFailed(LaunchFault { permanent: true, message: why, hint })
        };
        assert_eq!(masked(fault(why())), fault("it refused ***".to_owned()));
        assert_eq!(masked(Event::Ready), Event::Ready);
    }
}
