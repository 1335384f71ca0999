//! KDL snippets for the files that tests write.

use std::path::Path;

/// Returns `command` and, if there are any, `args`.
pub(crate) fn command(program: &Path, args: &[&str]) -> String {
    let program = program.to_str().expect("the path of a test program is UTF-8");
    let command = format!("command {}\n", quoted(program));
    if args.is_empty() {
        return command;
    }
    let args: Vec<String> = args.iter().map(|arg| quoted(arg)).collect();
    format!("{command}args {}\n", args.join(" "))
}

/// Returns a server file with a `ready` block. If it has none, the server is ready once its process
/// runs. A remote server has no process, so its file is not changed.
pub(crate) fn ready_once_it_runs(file: &str) -> String {
    if file.contains("ready {") || file.starts_with("url ") {
        return file.to_owned();
    }
    let newline = if file.ends_with('\n') { "" } else { "\n" };
    format!("{file}{newline}ready {{ probe \"process\" }}\n")
}

/// Returns `text` as a KDL string.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            _ if character.is_control() => {
                quoted.extend(character.escape_unicode());
            }
            _ => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_without_args_is_one_line() {
        assert_eq!(command(Path::new("/bin/true"), &[]), "command \"/bin/true\"\n");
    }

    #[test]
    fn file_contains_the_readiness_probe() {
        let process = "ready { probe \"process\" }\n";
        assert_eq!(ready_once_it_runs("command \"x\""), format!("command \"x\"\n{process}"));
        let own = "command \"x\"\nready { within \"1s\" }\n";
        assert_eq!(ready_once_it_runs(own), own);
    }

    #[test]
    fn args_are_quoted() {
        let text = command(Path::new("/bin/sh"), &["-c", "echo \"a\\b\"\n\u{1}"]);
        let args = "args \"-c\" \"echo \\\"a\\\\b\\\"\\n\\u{1}\"\n";
        assert_eq!(text, format!("command \"/bin/sh\"\n{args}"));
    }
}
