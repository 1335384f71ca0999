//! References to variables, as MCP clients have them in their files. Pure.
//!
//! xy replaces none of them. A value that holds a reference is passed on unchanged, which is rarely
//! intended, so `check` and `status` warn about it.

use crate::settings::ServerSettings;

/// Maximum length of a reference; longer text only looks like one.
const MAX_REFERENCE_BYTES: usize = 200;

/// Programs that expand variables in their arguments.
const SHELLS: [&str; 6] = ["sh", "bash", "zsh", "dash", "ksh", "fish"];

/// Authentication schemes of HTTP that stand before a credential.
const SCHEMES: [&str; 4] = ["Bearer", "Basic", "Token", "ApiKey"];

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

/// Returns the references in the arguments of a program, with their positions. Besides those of
/// [`find`], these are `$NAME` and `…=$NAME` with a name in upper case. A shell expands them
/// itself, also a shell among the arguments.
pub(crate) fn in_args<'t>(
    command: &str,
    args: impl IntoIterator<Item = &'t str>,
) -> Vec<(usize, Reference<'t>)> {
    let of_shell = is_shell(command);
    let all = args.into_iter().take_while(|arg| !of_shell && !is_shell(arg)).enumerate();
    let reference = |arg: &'t str| {
        if arg.contains('{') {
            return find(arg);
        }
        let value = arg.split_once('=').map_or(arg, |(_, value)| value);
        let is_variable = |name: &&str| !name.bytes().any(|it| it.is_ascii_lowercase());
        find(value).filter(|it| it.variable.as_ref().is_some_and(is_variable))
    };
    all.filter_map(|(at, arg)| Some((at, reference(arg)?))).collect()
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

/// Returns true if a text is nothing but a reference, so that it is not a secret itself. A
/// reference with a default value may be one.
pub fn is_reference(text: &str) -> bool {
    !text.contains(":-") && find(text).is_some_and(|it| it.written == text)
}

/// Returns true if the value of a header is nothing but a reference, perhaps after the name of an
/// authentication scheme.
pub(crate) fn is_header_reference(value: &str) -> bool {
    let (scheme, rest) = value.split_once(' ').unwrap_or(("", value));
    let is_scheme = scheme.is_empty() || SCHEMES.iter().any(|it| it.eq_ignore_ascii_case(scheme));
    is_reference(value) || (is_scheme && is_reference(rest.trim_start()))
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
    /// A variable of a container, which inherits none.
    ContainerVariable,
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
            (Some(_), Holder::Header | Holder::ContainerVariable) => {
                "write the value itself, and make the file private: `chmod 600`".to_owned()
            }
            (Some(name), Holder::Value) => format!(
                "write the value itself, or let the program read `{name}`, which it inherits \
                 from `xy daemon`"
            ),
        }
    }
}

/// Returns warnings about the references that are passed to a server unchanged. Each says what to
/// write instead.
pub fn warnings(server: &ServerSettings) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(process) = server.process() {
        for (name, value) in &process.env {
            found.extend(warning(&format!("env `{name}`"), find(value), Holder::Variable(name)));
        }
        let args = in_args(&process.command, process.args.iter().map(String::as_str));
        found.extend(args.iter().filter_map(|(_, it)| warning("args", Some(*it), Holder::Value)));
    }
    if let Some(container) = server.container() {
        let holder = Holder::ContainerVariable;
        for (name, value) in &container.env {
            found.extend(warning(&format!("env `{name}`"), find(value), holder));
        }
    }
    if let Some(remote) = server.remote() {
        for (name, value) in &remote.headers {
            found.extend(warning(&format!("header `{name}`"), find(value), Holder::Header));
        }
    }
    found.truncate(MAX_WARNINGS);
    found
}

/// Returns the warning about a reference in `place`.
fn warning(place: &str, reference: Option<Reference<'_>>, holder: Holder<'_>) -> Option<String> {
    let reference = reference?;
    Some(format!("{place}: {}; {}", reference.message(), reference.advice(holder)))
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
        assert!(!is_reference("${A:-s3cret}"), "the default value may be a secret");
        assert!(is_shell("/bin/bash") && !is_shell("npx"));
    }

    #[test]
    fn references_in_arguments_are_recognised_except_those_of_shells() {
        let found = |line: &str| -> Vec<(usize, String)> {
            let mut words = line.split(' ');
            let command = words.next().unwrap_or_default();
            let found = in_args(command, words);
            found.into_iter().map(|(at, it)| (at, it.written.to_owned())).collect()
        };
        let one = |at: usize, written: &str| vec![(at, written.to_owned())];
        let table = [
            ("npx $TOKEN", one(0, "$TOKEN")),
            ("npx -y --token=$TOKEN", one(1, "$TOKEN")),
            ("docker run -e TOKEN=$TOKEN", one(2, "$TOKEN")),
            ("npx --token=${TOKEN} x", one(0, "${TOKEN}")),
            ("npx --user=${user}", one(0, "${user}")),
            ("sh -c $TOKEN", vec![]),
            ("/bin/bash -c --token=$TOKEN", vec![]),
            ("env sh -c $TOKEN", vec![]),
            ("docker run image bash -c x=${TOKEN}", vec![]),
            ("npx $TOKEN sh -c $OTHER", one(0, "$TOKEN")),
            ("npx a$TOKEN $1 $ $$ 5$ pa$$word", vec![]),
            ("jq --arg=$name $__loc__ .x", vec![]),
        ];
        for (line, expected) in table {
            assert_eq!(found(line), expected, "{line}");
        }
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
