//! A server as the text of its file.
//!
//! What is written here is read and judged like any other file: nothing is checked twice,
//! and nothing in other words.

use std::collections::BTreeMap;
use std::fmt::Write;

/// What is said of a server that is to come. What is absent is not written; what fits
/// nothing else is written all the same, for whoever judges it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NewServer {
    /// Its program.
    pub command: Option<String>,
    /// Its arguments.
    pub args: Vec<String>,
    /// Where it is found, if it lives somewhere else.
    pub url: Option<String>,
    /// What is sent with every request to it.
    pub headers: BTreeMap<String, String>,
    /// How it speaks, as a file names it.
    pub transport: Option<String>,
    /// Its variables.
    pub env: BTreeMap<String, String>,
    /// Where it runs.
    pub working_dir: Option<String>,
    /// Its restart policy, as a file names it.
    pub policy: Option<String>,
    /// Its grace, as a file gives it.
    pub grace: Option<String>,
    /// How long it may take to be ready, as a file gives it.
    pub ready_within: Option<String>,
}

impl NewServer {
    /// The file of it.
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

/// A text as KDL writes it: on one line, and nothing in it that a reader could not see.
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
                // Writing to a text cannot fail.
                let _ = write!(quoted, "\\u{{{:x}}}", u32::from(character));
            }
        }
    }
    quoted.push('"');
    quoted
}

/// Whether it may stand in a file as it is: KDL forbids controls and marks of direction, and
/// spaces of other kinds look like spaces.
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

    fn some() -> NewServer {
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
    fn a_file_is_plain_to_read() {
        insta::assert_snapshot!(some().to_kdl(), @r#"
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
    fn one_elsewhere_is_plain_to_read_too() {
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
        fn what_is_written_is_read_again(args: Vec<String>, value: String) {
            let without_nul = |text: &String| text.replace('\0', "");
            let args: Vec<String> = args.iter().map(without_nul).collect();
            let value = without_nul(&value);
            let new = NewServer {
                args: args.clone(),
                env: [("A".into(), value.clone())].into(),
                ..some()
            };
            let loaded = check_text("a.kdl", &new.to_kdl());
            prop_assert!(loaded.is_valid(), "{:?}", loaded.problems);
            let process = &loaded.settings.servers["a"].process().unwrap();
            prop_assert_eq!(&process.args, &args);
            prop_assert_eq!(&process.env["A"], &value);
        }
    }
}
