//! Known words, and the nearest of them to a mistyped one.

/// A word xy knows, and how it is used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word {
    pub(super) name: &'static str,
    pub(super) example: &'static str,
}

/// Makes a [`Word`] short to write in tables.
pub(super) const fn word(name: &'static str, example: &'static str) -> Word {
    Word { name, example }
}

/// What people write who have used other tools.
const OTHER_NAMES: [(&str, &str); 14] = [
    ("cmd", "command"),
    ("exec", "command"),
    ("program", "command"),
    ("arguments", "args"),
    ("cwd", "working-dir"),
    ("dir", "working-dir"),
    ("workdir", "working-dir"),
    ("environment", "env"),
    ("type", "transport"),
    ("streamable-http", "http"),
    ("streamable_http", "http"),
    ("image", "container"),
    ("docker", "container"),
    ("no", "never"),
];

/// Longer texts are not mistyped words.
const LONGEST_WORD: usize = 40;

/// The known word that was probably meant, if one is near enough.
pub(super) fn nearest<'w>(
    written: &str,
    known: impl IntoIterator<Item = &'w str>,
) -> Option<&'w str> {
    if written.len() > LONGEST_WORD {
        return None;
    }
    let plain = written.to_lowercase().replace('_', "-");
    let other = OTHER_NAMES.iter().find(|(other, _)| *other == plain).map(|(_, name)| *name);
    let mut best = None;
    for name in known {
        if other == Some(name) {
            return Some(name);
        }
        let distance = strsim::damerau_levenshtein(&plain, name);
        let allowed = (name.chars().count() / 3).clamp(1, 3);
        if distance <= allowed && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, name));
        }
    }
    best.map(|(_, name)| name)
}

/// Words in backticks, as a list in a sentence.
pub(super) fn listed<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_when_it_is_near_enough() {
        let known = ["command", "args", "port", "env", "working-dir", "restart"];
        let table = [
            ("comand", Some("command")),
            ("Command", Some("command")),
            ("working_dir", Some("working-dir")),
            ("workingDir", Some("working-dir")),
            ("cwd", Some("working-dir")),
            ("prot", Some("port")),
            ("agrs", Some("args")),
            ("zzz", None),
            ("", None),
            ("x", None),
        ];
        for (written, meant) in table {
            assert_eq!(nearest(written, known), meant, "{written}");
        }
        assert_eq!(nearest(&"command".repeat(100_000), known), None);
    }

    #[test]
    fn lists_read_as_sentences() {
        assert_eq!(listed(["a"]), "`a`");
        assert_eq!(listed(["a", "b", "c"]), "`a`, `b` and `c`");
    }
}
