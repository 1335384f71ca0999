//! The known field names, and suggestions for mistyped ones.

/// A known field name, with an example.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word {
    pub(super) name: &'static str,
    pub(super) example: &'static str,
}

/// Creates a [`Word`]; short, for use in tables.
pub(super) const fn word(name: &'static str, example: &'static str) -> Word {
    Word { name, example }
}

/// Every field of a server file, except `headers`.
pub(super) const SERVER_WORDS: [Word; 20] = [
    word("command", r#"command "npx""#),
    word("args", r#"args "-y" "some-server""#),
    word("transport", r#"transport "stdio""#),
    word("port", "port 8421"),
    word("path", r#"path "/mcp""#),
    word("env", r#"env { RUST_LOG "info" }"#),
    word("working-dir", r#"working-dir "/srv/x""#),
    word("restart", r#"restart { policy "always" }"#),
    word("stop", r#"stop { grace "10s" }"#),
    word("ready", r#"ready { within "10s" }"#),
    word("calls", r#"calls { idle "5m" }"#),
    word("health", r#"health { probe "mcp" }"#),
    word("isolation", r#"isolation "shared""#),
    word("era", r#"era "legacy""#),
    word("share-key", r#"share-key "x""#),
    word("start", r#"start "eager""#),
    word("idle-stop", r#"idle-stop "10m""#),
    word("limits", "limits { nofile 4096 }"),
    word("container", r#"container { image "x" }"#),
    word("url", r#"url "https://example.com/mcp""#),
];

/// Names that other tools use, and xy's names for them.
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

/// Returns true if a text is the name of a field of a server file.
pub(super) fn begins_field(written: &str) -> bool {
    SERVER_WORDS.iter().any(|word| word.name == written)
}

/// Maximum length of a text that is compared with known words.
const MAX_WORD_BYTES: usize = 40;

/// Returns the known word that was probably meant, if one is similar enough.
pub(super) fn nearest<'w>(
    written: &str,
    known: impl IntoIterator<Item = &'w str>,
) -> Option<&'w str> {
    if written.len() > MAX_WORD_BYTES {
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

/// Joins words in backticks to a list for a sentence.
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
    fn similar_words_are_suggested() {
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
