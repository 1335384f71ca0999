//! Resolves programs and folders, and checks that they exist.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use xy_protocol::mask;

use super::read::{Reader, Spanned};
use super::words::{Word, begins_field};
use super::{Machine, PathKind};
use crate::raw::mistakes::command_and_args;
use crate::raw::{RawNode, Value};
use crate::references::Holder;
use crate::report::{Problem, quote};
use crate::source::SourceSpan;

/// Reads `working-dir`: an absolute path. Warns if the folder does not exist.
pub(super) fn working_dir(
    reader: &mut Reader<'_>,
    node: &RawNode,
    word: Word,
) -> Option<Spanned<PathBuf>> {
    let text = reader.filled_text(node, word)?;
    let path = absolute(reader, &text, word)?;
    let shown = quote(&text.value);
    match reader.machine.inspect(&path) {
        PathKind::Folder | PathKind::Unknown => {}
        PathKind::Missing => {
            let problem = Problem::warning(&text.at, format!("the folder {shown} does not exist"));
            reader.report(problem.suggest("the server cannot start until it does"));
        }
        PathKind::File | PathKind::Program => {
            reader.report(Problem::warning(&text.at, format!("{shown} is not a folder")));
        }
    }
    Some(Spanned { value: path, at: text.at })
}

/// Reads `mcp-json`: the paths of MCP clients' files.
pub(super) fn mcp_json(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Vec<PathBuf> {
    let values = reader.values(node);
    if values.is_empty() && !node.is_broken {
        let problem = reader.error(node.name_span, "`mcp-json` names no file");
        reader.report(problem.suggest(format!("for example `{}`", word.example)));
    }
    let mut files = Vec::new();
    for value in values {
        let text = reader.as_text(value, word.name);
        files.extend(text.and_then(|text| absolute(reader, &text, word)));
    }
    files
}

/// Returns an absolute path, or reports a problem. A relative path would depend on where the daemon
/// was started.
fn absolute(reader: &mut Reader<'_>, text: &Spanned<String>, word: Word) -> Option<PathBuf> {
    if let Some(problem) = tilde(text, reader.machine) {
        reader.report(problem);
        return None;
    }
    let path = PathBuf::from(&text.value);
    if !path.is_absolute() {
        let message = format!("{} must be an absolute path", quote(word.name));
        reader.report(Problem::error(&text.at, message).suggest("start it with `/`"));
        return None;
    }
    Some(path)
}

/// The settings that decide which program a command names.
pub(super) struct CommandRules<'a> {
    pub(super) working_dir: Option<&'a Path>,
    /// True if `working-dir` is given but invalid.
    pub(super) working_dir_is_broken: bool,
    pub(super) env: &'a BTreeMap<String, Spanned<String>>,
    pub(super) args: &'a [String],
    pub(super) machine: &'a dyn Machine,
}

impl CommandRules<'_> {
    /// Returns the command to run: a name for PATH, or an absolute path.
    ///
    /// It may come with a warning that the program does not exist.
    pub(super) fn resolve(
        &self,
        command: &Spanned<String>,
    ) -> Result<(String, Option<Problem>), Problem> {
        if let Some(problem) = tilde(command, self.machine) {
            return Err(problem);
        }
        if let Some(problem) = self.command_line(command) {
            return Err(problem);
        }
        let written = &command.value;
        if !written.contains('/') {
            return Ok((written.clone(), self.find_on_path(command)));
        }
        let path = match self.working_dir {
            _ if Path::new(written).is_absolute() => PathBuf::from(written),
            // `components` removes the `.` of `./x`.
            Some(folder) => folder.join(written).components().collect(),
            None if self.working_dir_is_broken => return Ok((written.clone(), None)),
            None => {
                let message = "a relative `command` needs a `working-dir`";
                return Err(Problem::error(&command.at, message)
                    .suggest("give an absolute path, or a `working-dir` it starts from"));
            }
        };
        let missing = self.check_program(&path, &command.at);
        Ok((path.to_string_lossy().into_owned(), missing))
    }

    /// Returns a problem if `command` certainly is more than a program.
    fn command_line(&self, command: &Spanned<String>) -> Option<Problem> {
        let written = &command.value;
        let words = split_words(written);
        let (program, args) = words.split_first().filter(|(_, args)| !args.is_empty())?;
        let place = |path: &str| match self.working_dir {
            Some(folder) => folder.join(path).components().collect(),
            None => PathBuf::from(path),
        };
        let is_whole = match self.machine.inspect(&place(written)) {
            PathKind::Missing if program.contains('/') => {
                self.machine.inspect(&place(program)) != PathKind::Program
            }
            PathKind::Missing | PathKind::Unknown => {
                program.contains('/') || self.search_path_has(written) == Some(true)
            }
            PathKind::Folder | PathKind::Program | PathKind::File => true,
        };
        if is_whole {
            return None;
        }
        let problem = Problem::error(&command.at, "`command` is a whole command line");
        let is_variable =
            |word: &String| word.split_once('=').is_some_and(|(name, _)| is_name(name));
        let suggestion = if needs_shell(written) {
            let line = mask::text(written);
            format!("write {}", fields_of(command, "sh", &["-c".to_owned(), line]))
        } else if is_variable(program) {
            let name = program.split('=').next().unwrap_or_default();
            format!("write `env {{ {name} \"…\" }}` and the program alone as `command`")
        } else {
            let all = args.iter().chain(self.args).map(String::as_str);
            format!("write {}", fields_of(command, program, &mask::args(all).args))
        };
        Some(problem.suggest(suggestion))
    }

    fn check_program(&self, path: &Path, at: &SourceSpan) -> Option<Problem> {
        let shown = quote(&path.to_string_lossy());
        match self.machine.inspect(path) {
            PathKind::Program | PathKind::Unknown => None,
            PathKind::Missing => Some(
                Problem::warning(at, format!("{shown} does not exist"))
                    .suggest("install it, or fix the path"),
            ),
            PathKind::Folder => Some(Problem::warning(at, format!("{shown} is a folder"))),
            PathKind::File => Some(
                Problem::warning(at, format!("{shown} is not executable"))
                    .suggest("allow it with `chmod +x`"),
            ),
        }
    }

    fn find_on_path(&self, command: &Spanned<String>) -> Option<Problem> {
        if self.search_path_has(&command.value)? {
            return None;
        }
        let is_own = self.env.contains_key("PATH");
        let which = if is_own { "the PATH of its `env`" } else { "PATH" };
        let message = format!("program {} is not on {which}", quote(&command.value));
        let suggestion = "install it, or give its full path";
        Some(Problem::warning(&command.at, message).suggest(suggestion))
    }

    /// Returns true if the program is on `PATH`; `None` if `PATH` is unknown.
    fn search_path_has(&self, program: &str) -> Option<bool> {
        let own = self.env.get("PATH").map(|path| OsString::from(&path.value));
        let search_path = own.or_else(|| self.machine.search_path())?;
        let mut folders =
            std::env::split_paths(&search_path).filter_map(|folder| match self.working_dir {
                _ if folder.is_absolute() => Some(folder),
                Some(working_dir) => Some(working_dir.join(folder)),
                None => None,
            });
        let is_there = |folder: PathBuf| self.machine.inspect(&folder.join(program));
        Some(folders.any(|folder| is_there(folder) == PathKind::Program))
    }
}

/// Returns `command` and `args` in the format of the command's file.
fn fields_of(command: &Spanned<String>, program: &str, args: &[String]) -> String {
    if !command.at.file.is_json {
        return command_and_args(program, args);
    }
    let words: Vec<String> = args.iter().map(|it| format!("{it:?}")).collect();
    format!("`\"command\": {program:?}, \"args\": [{}]`", words.join(", "))
}

/// Reads `command`: one text, the program alone.
pub(super) fn command(
    reader: &mut Reader<'_>,
    node: &RawNode,
    word: Word,
) -> Option<Spanned<String>> {
    let texts = || {
        node.args.iter().map(|it| match &it.value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    };
    let is_plain = node.props.is_empty() && node.children.is_none();
    let fields = node.args.iter().any(|it| begins_field(reader.file.slice(it.span)));
    if let ([_, second, ..], Some(words)) =
        (node.args.as_slice(), texts().collect::<Option<Vec<_>>>())
        && is_plain
        && !fields
    {
        let words = mask::args(words).args;
        let fields = command_and_args(&words[0], &words[1..]);
        let problem = reader.error(second.span, "`command` must be the program alone");
        reader.report(problem.suggest(format!("write {fields}")));
        return None;
    }
    let command = reader.filled_text(node, word)?;
    reader.warn_of_reference(&command.value, &command.at, Holder::Value);
    Some(command)
}

/// Splits a command line into words, like a shell.
fn split_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in line.chars() {
        match (character, quote) {
            (_, Some(open)) if character == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (_, None) if character.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

/// Returns true if a command line needs a shell.
fn needs_shell(line: &str) -> bool {
    line.split_whitespace().any(|word| {
        matches!(word, "|" | "&&" | "||" | ";" | ">" | ">>" | "<" | "&") || word.contains("$(")
    })
}

/// Returns true if a text can be the name of a variable.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'_')
        && !text.starts_with(|it: char| it.is_ascii_digit())
}

/// Returns a problem if a path begins with `~`, which only a shell expands.
fn tilde(text: &Spanned<String>, machine: &dyn Machine) -> Option<Problem> {
    let rest = text.value.strip_prefix('~')?;
    if !rest.is_empty() && !rest.starts_with('/') {
        return None;
    }
    let problem = Problem::error(&text.at, "`~` is not expanded here");
    let expanded = machine.home().map(|home| format!("\"{}{rest}\"", home.display()));
    Some(problem.suggest_some(expanded.map(|path| format!("did you mean {}?", quote(&path)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_split_like_a_shell_does() {
        assert_eq!(split_words("npx -y  'a b' \"\" c"), ["npx", "-y", "a b", "", "c"]);
        assert_eq!(split_words("  "), Vec::<String>::new());
        assert_eq!(split_words("it's"), ["its"]);
    }
}
