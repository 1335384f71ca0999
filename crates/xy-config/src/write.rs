//! Writes a server's settings as the text of its file.
//!
//! The text is read and checked like any other file, so nothing is checked here.

use std::collections::BTreeMap;
use std::fmt::Write;

/// The settings of a new server. Absent fields are not written. Invalid values are written
/// unchanged, for the check to report.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NewServer {
    /// The program.
    pub command: Option<String>,
    /// The arguments.
    pub args: Vec<String>,
    /// The URL, if the server is remote.
    pub url: Option<String>,
    /// The headers of every request to the server.
    pub headers: BTreeMap<String, String>,
    /// The transport, as written in a file.
    pub transport: Option<String>,
    /// The environment variables.
    pub env: BTreeMap<String, String>,
    /// The working directory.
    pub working_dir: Option<String>,
    /// The restart policy, as written in a file.
    pub policy: Option<String>,
    /// The grace period, as written in a file.
    pub grace: Option<String>,
    /// The readiness timeout, as written in a file.
    pub ready_within: Option<String>,
}

impl NewServer {
    /// Returns the text of the file.
    pub fn to_kdl(&self) -> String {
        let mut lines = Vec::new();
        lines.extend(field("command", self.command.as_ref()));
        lines.extend(field("url", self.url.as_ref()));
        if !self.args.is_empty() {
            let words: Vec<_> = self.args.iter().map(|word| quoted(word)).collect();
            lines.push(format!("args {}", words.join(" ")));
        }
        lines.extend(field("transport", self.transport.as_ref()));
        lines.extend(block("headers", &self.headers));
        lines.extend(block("env", &self.env));
        lines.extend(field("working-dir", self.working_dir.as_ref()));
        lines.extend(rule("restart", field("policy", self.policy.as_ref())));
        lines.extend(rule("stop", field("grace", self.grace.as_ref())));
        lines.extend(rule("ready", field("within", self.ready_within.as_ref())));
        lines.join("\n") + "\n"
    }
}

fn field(name: &str, value: Option<&String>) -> Option<String> {
    value.map(|value| format!("{name} {}", quoted(value)))
}

fn rule(name: &str, field: Option<String>) -> Option<String> {
    field.map(|field| format!("{name} {{ {field} }}"))
}

fn block(name: &str, fields: &BTreeMap<String, String>) -> Vec<String> {
    if fields.is_empty() {
        return Vec::new();
    }
    let field =
        |(name, value): (&String, &String)| format!("    {} {}", quoted(name), quoted(value));
    let first = std::iter::once(format!("{name} {{"));
    first.chain(fields.iter().map(field)).chain(["}".to_owned()]).collect()
}

/// Quotes a text for KDL, on one line, with all invisible characters escaped.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            ' ' => quoted.push(' '),
            _ if is_plain(character) => quoted.push(character),
            _ => {
                // Writing to a `String` cannot fail.
                let _ = write!(quoted, "\\u{{{:x}}}", u32::from(character));
            }
        }
    }
    quoted.push('"');
    quoted
}

/// Returns true if a character needs no escape. KDL forbids control characters and direction marks,
/// and unusual spaces look like plain ones.
fn is_plain(character: char) -> bool {
    let is_mark = matches!(
        character,
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
    );
    !is_mark && !character.is_control() && !character.is_whitespace()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::check_text;

    fn example() -> NewServer {
        NewServer {
            command: Some("npx".into()),
            transport: Some("stdio".into()),
            args: vec![
                "-y".into(),
                "a \"b\" \\ c".into(),
                String::new(),
                "\u{202e}\n\u{7f}".into(),
            ],
            env: [("A B".into(), "c".into())].into(),
            working_dir: Some("/srv/x".into()),
            policy: Some("never".into()),
            grace: Some("5s".into()),
            ready_within: Some("1m".into()),
            ..NewServer::default()
        }
    }

    #[test]
    fn written_file_is_readable() {
        insta::assert_snapshot!(example().to_kdl(), @r#"
        command "npx"
        args "-y" "a \"b\" \\ c" "" "\u{202e}\n\u{7f}"
        transport "stdio"
        env {
            "A B" "c"
        }
        working-dir "/srv/x"
        restart { policy "never" }
        stop { grace "5s" }
        ready { within "1m" }
        "#);
    }

    #[test]
    fn written_file_of_a_remote_server_is_readable() {
        let new = NewServer {
            url: Some("https://a/b".into()),
            transport: Some("sse".into()),
            headers: [("Authorization".into(), "Bearer \"x\"".into())].into(),
            ..NewServer::default()
        };
        insta::assert_snapshot!(new.to_kdl(), @r#"
        url "https://a/b"
        transport "sse"
        headers {
            "Authorization" "Bearer \"x\""
        }
        "#);
        assert!(check_text("a.kdl", &new.to_kdl()).is_valid());
    }

    proptest! {
        #[test]
        fn written_settings_survive_reading(args: Vec<String>, value: String) {
            let without_nul = |text: &String| text.replace('\0', "");
            let args: Vec<String> = args.iter().map(without_nul).collect();
            let value = without_nul(&value);
            let new = NewServer {
                args: args.clone(),
                env: [("A".into(), value.clone())].into(),
                ..example()
            };
            let loaded = check_text("a.kdl", &new.to_kdl());
            prop_assert!(loaded.is_valid(), "{:?}", loaded.problems);
            let process = &loaded.settings.servers["a"].process().unwrap();
            prop_assert_eq!(&process.args, &args);
            prop_assert_eq!(&process.env["A"], &value);
        }
    }
}
