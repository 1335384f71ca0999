//! Programs and folders: what a path means, and whether something is there.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::read::{Reader, Spanned};
use super::words::Word;
use super::{Found, Surroundings};
use crate::raw::RawNode;
use crate::report::{Problem, quote};
use crate::source::At;

/// Reads `working-dir`: an absolute path, of a folder that had better exist.
pub(super) fn working_dir(
    reader: &mut Reader<'_>,
    node: &RawNode,
    word: Word,
) -> Option<Spanned<PathBuf>> {
    let text = reader.filled_text(node, word)?;
    let path = absolute(reader, &text, word)?;
    let shown = quote(&text.value);
    match reader.surroundings.look(&path) {
        Found::Folder | Found::Unknown => {}
        Found::Nothing => {
            let problem = Problem::warning(&text.at, format!("the folder {shown} does not exist"));
            reader.report(problem.suggest("the server cannot start until it does"));
        }
        Found::File | Found::Program => {
            reader.report(Problem::warning(&text.at, format!("{shown} is not a folder")));
        }
    }
    Some(Spanned { value: path, at: text.at })
}

/// Reads `mcp-json`: the paths of files that are read with ours.
pub(super) fn mcp_json(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Vec<PathBuf> {
    let values = reader.values(node);
    if values.is_empty() {
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

/// A path that means the same wherever the daemon was started.
fn absolute(reader: &mut Reader<'_>, text: &Spanned<String>, word: Word) -> Option<PathBuf> {
    if let Some(problem) = tilde(text, reader.surroundings) {
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

/// What decides which program a command means.
pub(super) struct CommandRules<'a> {
    pub(super) working_dir: Option<&'a Path>,
    /// Whether a `working-dir` was given that cannot be used.
    pub(super) working_dir_is_broken: bool,
    pub(super) env: &'a BTreeMap<String, Spanned<String>>,
    pub(super) surroundings: &'a dyn Surroundings,
}

impl CommandRules<'_> {
    /// The command as it will be run: a name for PATH, or an absolute path.
    ///
    /// With it may come a warning that there is no such program.
    pub(super) fn settle(
        &self,
        command: &Spanned<String>,
    ) -> Result<(String, Option<Problem>), Problem> {
        if let Some(problem) = tilde(command, self.surroundings) {
            return Err(problem);
        }
        let written = &command.value;
        if !written.contains('/') {
            return Ok((written.clone(), self.find_on_path(command)));
        }
        let path = match self.working_dir {
            _ if Path::new(written).is_absolute() => PathBuf::from(written),
            // `components` takes out the `.` of `./x`.
            Some(folder) => folder.join(written).components().collect(),
            None if self.working_dir_is_broken => return Ok((written.clone(), None)),
            None => {
                let message = "a relative `command` needs a `working-dir`";
                return Err(Problem::error(&command.at, message)
                    .suggest("give an absolute path, or a `working-dir` it starts from"));
            }
        };
        let missing = self.judge(&path, &command.at);
        Ok((path.to_string_lossy().into_owned(), missing))
    }

    fn judge(&self, path: &Path, at: &At) -> Option<Problem> {
        let shown = quote(&path.to_string_lossy());
        match self.surroundings.look(path) {
            Found::Program | Found::Unknown => None,
            Found::Nothing => Some(
                Problem::warning(at, format!("{shown} does not exist"))
                    .suggest("install it, or correct the path"),
            ),
            Found::Folder => Some(Problem::warning(at, format!("{shown} is a folder"))),
            Found::File => Some(
                Problem::warning(at, format!("{shown} is not executable"))
                    .suggest("allow it with `chmod +x`"),
            ),
        }
    }

    fn find_on_path(&self, command: &Spanned<String>) -> Option<Problem> {
        let own = self.env.get("PATH").map(|path| OsString::from(&path.value));
        let search_path = own.clone().or_else(|| self.surroundings.search_path())?;
        let found = std::env::split_paths(&search_path)
            .filter_map(|folder| match self.working_dir {
                _ if folder.is_absolute() => Some(folder),
                Some(working_dir) => Some(working_dir.join(folder)),
                None => None,
            })
            .any(|folder| self.surroundings.look(&folder.join(&command.value)) == Found::Program);
        if found {
            return None;
        }
        let which = if own.is_some() { "the PATH of its `env`" } else { "PATH" };
        let message = format!("program {} is not on {which}", quote(&command.value));
        let suggestion = if command.value.contains(char::is_whitespace) {
            "if it holds arguments, move them to `args`"
        } else {
            "install it, or give its full path"
        };
        Some(Problem::warning(&command.at, message).suggest(suggestion))
    }
}

/// A path that only a shell would understand.
fn tilde(text: &Spanned<String>, surroundings: &dyn Surroundings) -> Option<Problem> {
    let rest = text.value.strip_prefix('~')?;
    if !rest.is_empty() && !rest.starts_with('/') {
        return None;
    }
    let problem = Problem::error(&text.at, "`~` is not expanded here");
    let expanded = surroundings.home().map(|home| format!("\"{}{rest}\"", home.display()));
    Some(problem.suggest_some(expanded.map(|path| format!("did you mean {}?", quote(&path)))))
}
