//! A server as the text of its file.
//!
//! What is written here is read and judged like any other file: nothing is checked twice,
//! and nothing in other words.

use std::collections::BTreeMap;
use std::fmt::Write;

/// What is said of a server that is to come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewServer {
    /// Its program.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its variables.
    pub env: BTreeMap<String, String>,
    /// Where it runs.
    pub working_dir: Option<String>,
    /// Its restart policy, as a file names it.
    pub policy: String,
    /// Its grace, as a file gives it.
    pub grace: String,
}

impl NewServer {
    /// The file of it. It speaks over stdin and stdout, whatever `defaults` say.
    pub fn to_kdl(&self) -> String {
        let words = |words: &[String]| words.iter().map(|word| quoted(word)).collect::<Vec<_>>();
        let mut lines = vec![format!("command {}", quoted(&self.command))];
        if !self.args.is_empty() {
            lines.push(format!("args {}", words(&self.args).join(" ")));
        }
        lines.push("transport \"stdio\"".to_owned());
        if !self.env.is_empty() {
            let variable = |(name, value): (&String, &String)| {
                format!("    {} {}", quoted(name), quoted(value))
            };
            lines.push("env {".to_owned());
            lines.extend(self.env.iter().map(variable));
            lines.push("}".to_owned());
        }
        lines.extend(self.working_dir.iter().map(|it| format!("working-dir {}", quoted(it))));
        lines.push(format!("restart {{ policy {} }}", quoted(&self.policy)));
        lines.push(format!("stop {{ grace {} }}", quoted(&self.grace)));
        lines.join("\n") + "\n"
    }
}

/// A text as KDL writes it: on one line, and nothing in it that a reader could not see.
fn quoted(text: &str) -> String {
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
            command: "npx".into(),
            args: vec![
                "-y".into(),
                "a \"b\" \\ c".into(),
                String::new(),
                "\u{202e}\n\u{7f}".into(),
            ],
            env: [("A B".into(), "c".into())].into(),
            working_dir: Some("/srv/x".into()),
            policy: "never".into(),
            grace: "5s".into(),
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
        "#);
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
            let process = &loaded.settings.servers["a"].process;
            prop_assert_eq!(&process.args, &args);
            prop_assert_eq!(&process.env["A"], &value);
        }
    }
}
