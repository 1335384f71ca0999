//! References to variables, as MCP clients have them in their files. Pure.
//!
//! xy replaces none of them. A value that holds a reference is passed on unchanged, which is rarely
//! intended, so `check` and `status` warn about it.

use crate::settings::ServerSettings;

/// Maximum length of a reference; longer text only looks like one.
const MAX_REFERENCE_BYTES: usize = 200;

/// Programs that expand variables in their arguments.
const SHELLS: [&str; 6] = ["sh", "bash", "zsh", "dash", "ksh", "fish"];

/// Maximum number of warnings per server.
const MAX_WARNINGS: usize = 5;

/// A reference in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reference<'t> {
    /// The reference as it is written.
    pub(crate) written: &'t str,
    /// The environment variable that it names; `None` if it names something else, such as user
    /// input or a folder.
    pub(crate) variable: Option<&'t str>,
}

/// Returns the first reference in a text: `$NAME` if that is the whole text, and `${…}`, `{env:…}`
/// or `{file:…}` anywhere.
pub(crate) fn find(text: &str) -> Option<Reference<'_>> {
    if let Some(name) = text.strip_prefix('$').filter(|name| is_name(name)) {
        return Some(Reference { written: text, variable: Some(name) });
    }
    text.match_indices('{').find_map(|(at, _)| {
        let is_shell = text[..at].ends_with('$');
        let inside = &text[at + 1..];
        let inside =
            &inside[..inside.bytes().take(MAX_REFERENCE_BYTES).position(|it| it == b'}')?];
        let start = if is_shell { at - 1 } else { at };
        let mut end = at + 1 + inside.len() + 1;
        // `${{ secrets.NAME }}` ends with two.
        end += usize::from(inside.starts_with('{') && text[end..].starts_with('}'));
        let written = &text[start..end];
        let content = inside.trim();
        let by_env = content.strip_prefix("env:").filter(|name| is_name(name));
        match by_env {
            Some(name) => Some(Reference { written, variable: Some(name) }),
            None if !is_shell => {
                content.starts_with("file:").then_some(Reference { written, variable: None })
            }
            None => {
                let name = content.split(":-").next().unwrap_or_default();
                let is_known = CLIENT_VARIABLES.iter().any(|own| name.starts_with(own));
                let variable = Some(name).filter(|name| is_name(name) && !is_known);
                let is_reference = variable.is_some()
                    || is_known
                    || content.starts_with(['{', '/'])
                    || content.contains(':');
                is_reference.then_some(Reference { written, variable })
            }
        }
    })
}

/// Names that clients replace and that are not environment variables.
const CLIENT_VARIABLES: [&str; 10] = [
    "input:",
    "file:",
    "command:",
    "config:",
    "workspaceFolder",
    "userHome",
    "pathSeparator",
    "user_config.",
    "CLAUDE_",
    "__dirname",
];

/// Returns true if a text is nothing but a reference, so that it is not a secret itself.
pub fn is_reference(text: &str) -> bool {
    find(text).is_some_and(|it| it.written == text)
}

fn is_name(text: &str) -> bool {
    !text.starts_with(|it: char| it.is_ascii_digit())
        && !text.is_empty()
        && text.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'_')
}

/// Returns true if a program expands variables in its arguments.
pub(crate) fn is_shell(command: &str) -> bool {
    SHELLS.contains(&command.rsplit('/').next().unwrap_or_default())
}

/// The setting that contains a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder<'a> {
    /// A variable of `env`.
    Variable(&'a str),
    /// A header.
    Header,
    /// An argument, or any other value.
    Value,
}

impl Reference<'_> {
    /// Returns the warning about the reference.
    pub(crate) fn message(&self) -> String {
        format!(
            "{} is passed on unchanged: xy does not expand variables",
            crate::escape::quote(self.written)
        )
    }

    /// Returns what to write instead.
    pub(crate) fn advice(&self, holder: Holder<'_>) -> String {
        match (self.variable, holder) {
            (None, _) => {
                "only the client that this file is for can expand it: write the value".to_owned()
            }
            (Some(_), Holder::Variable(name)) => format!(
                "remove it and set `{name}` in the environment of `xy daemon`, which servers \
                 inherit (a daemon that `xy connect` starts gets only `HOME`, `PATH` and the like)"
            ),
            (Some(_), Holder::Header) => {
                "write the value itself, and make the file private: `chmod 600`".to_owned()
            }
            (Some(name), Holder::Value) => format!(
                "write the value itself, or let the program read `{name}`, which it inherits \
                 from `xy daemon`"
            ),
        }
    }
}

/// Returns warnings about the references that are passed to a server unchanged.
pub fn warnings(server: &ServerSettings) -> Vec<String> {
    let mut found = Vec::new();
    let mut look = |place: String, text: &str| {
        if let Some(reference) = find(text) {
            found.push(format!("{place}: {}; see `xy check`", reference.message()));
        }
    };
    if let Some(process) = server.process() {
        for (name, value) in &process.env {
            look(format!("env `{name}`"), value);
        }
        if !is_shell(&process.command) {
            process
                .args
                .iter()
                .filter(|it| it.contains('{'))
                .for_each(|it| look("args".to_owned(), it));
        }
    }
    if let Some(container) = server.container() {
        for (name, value) in &container.env {
            look(format!("env `{name}`"), value);
        }
    }
    if let Some(remote) = server.remote() {
        for (name, value) in &remote.headers {
            look(format!("header `{name}`"), value);
        }
    }
    found.truncate(MAX_WARNINGS);
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn references_of_all_clients_are_recognised() {
        let table = [
            ("$API_KEY", Some(("$API_KEY", Some("API_KEY")))),
            ("${API_KEY}", Some(("${API_KEY}", Some("API_KEY")))),
            ("Bearer ${API_KEY}", Some(("${API_KEY}", Some("API_KEY")))),
            ("${API_KEY:-none}", Some(("${API_KEY:-none}", Some("API_KEY")))),
            ("${ API_KEY }", Some(("${ API_KEY }", Some("API_KEY")))),
            ("${env:API_KEY}", Some(("${env:API_KEY}", Some("API_KEY")))),
            ("{env:API_KEY}", Some(("{env:API_KEY}", Some("API_KEY")))),
            ("{file:~/.key}", Some(("{file:~/.key}", None))),
            ("${input:key}", Some(("${input:key}", None))),
            ("${workspaceFolder}/x", Some(("${workspaceFolder}", None))),
            ("${userHome}", Some(("${userHome}", None))),
            ("${CLAUDE_PROJECT_DIR}", Some(("${CLAUDE_PROJECT_DIR}", None))),
            ("${{ secrets.KEY }}", Some(("${{ secrets.KEY }}", None))),
            ("${/}", Some(("${/}", None))),
            ("pa$$word", None),
            ("$ecret$", None),
            ("a$NAME", None),
            ("$1", None),
            ("$", None),
            ("${", None),
            ("${}", None),
            ("{\"a\": {\"b\": 1}}", None),
            ("{name}", None),
            ("%PATH%", None),
            ("50%", None),
            ("", None),
        ];
        for (text, expected) in table {
            let found = find(text).map(|it| (it.written, it.variable));
            assert_eq!(found, expected, "{text}");
        }
        assert!(is_reference("${A}") && !is_reference("Bearer ${A}"));
        assert!(is_shell("/bin/bash") && !is_shell("npx"));
    }

    proptest! {
        #[test]
        fn any_text_is_accepted(text in "[$A{}env: é]{0,30}") {
            if let Some(reference) = find(&text) {
                prop_assert!(text.contains(reference.written));
            }
        }
    }
}
