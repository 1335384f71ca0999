//! Texts without secrets: pure.
//!
//! Recognises secrets where people write them: after `--token`, in `password=…`, in the query
//! of a URL. Takes out too much rather than too little.

mod message;
mod secrets;

use crate::control::MASK;
pub use message::MessageMasker;
pub use secrets::{Secrets, each_text};

/// Arguments of which secrets are taken out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaskedArgs {
    /// The arguments.
    pub words: Vec<String>,
    /// The secrets.
    pub found: Vec<String>,
}

/// Returns a text without what looks like a secret.
pub fn text(text: &str) -> String {
    Masker::default().text(text)
}

/// Takes what looks like a secret out of the arguments of a program.
pub fn args<'a>(args: impl IntoIterator<Item = &'a str>) -> MaskedArgs {
    let mut masker = Masker::default();
    let words = args.into_iter().map(|arg| masker.arg(arg)).collect();
    MaskedArgs { words, found: masker.found }
}

/// Returns a URL without its user and its query, and what was taken out.
pub fn url(url: &str) -> (String, Vec<String>) {
    let mut found = Vec::new();
    (mask_urls(url, &mut found), found)
}

/// Whether something of this name is secret.
pub fn is_secret_name(name: &str) -> bool {
    const PARTS: [&str; 12] = [
        "token",
        "secret",
        "passw",
        "passphrase",
        "apikey",
        "accesskey",
        "privatekey",
        "credential",
        "bearer",
        "cookie",
        "signature",
        "auth",
    ];
    if is_folder_name(name) {
        return false;
    }
    let plain = plain(name);
    let words = || name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|it| !it.is_empty());
    let first = words().next().unwrap_or_default().to_ascii_lowercase();
    let last = words().next_back().unwrap_or_default().to_ascii_lowercase();
    // `--no-auth` and `--max-tokens` have no secret.
    let is_count = matches!(first.as_str(), "max" | "min" | "num") && last == "tokens";
    if first == "no" || is_count {
        return false;
    }
    let is_whole = matches!(last.as_str(), "pat" | "pwd" | "jwt" | "pass");
    // The author of something is no secret; an authorization is.
    let plain = if plain.contains("authori") { plain } else { plain.replace("author", "") };
    is_whole || plain.ends_with("key") || PARTS.iter().any(|part| plain.contains(part))
}

/// Whether all that follows a name and a `=` in an argument is secret.
fn is_one_secret_name(name: &str) -> bool {
    !name.contains(|it: char| it.is_whitespace() || ":;&?{,".contains(it)) && is_secret_name(name)
}

/// Where a shell keeps its folder. Connection strings keep a password there.
fn is_folder_name(name: &str) -> bool {
    matches!(name.trim_matches(|c: char| !c.is_ascii_alphanumeric()), "PWD" | "OLDPWD")
}

/// Whether everything after this name is secret, up to the end of its line: such values have
/// several words, and nobody knows all that may be before a credential.
fn is_name_of_line(name: &str) -> bool {
    let plain = plain(name);
    plain.ends_with("authorization") || plain.ends_with("cookie")
}

/// No name of a secret is longer.
const LONGEST_LABEL: usize = 128;

/// The end of a text, as long as a name may be.
fn end_of(text: &str) -> &str {
    let start = text.len().saturating_sub(LONGEST_LABEL);
    &text[(start..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(start)..]
}

/// A name however it is written.
fn plain(name: &str) -> String {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// Whether a word stands before a credential, as `Bearer` does.
pub fn is_scheme(word: &str) -> bool {
    let word = word.trim_start_matches(['"', '\'', '(', '[', '`']);
    ["bearer", "basic", "digest", "token", "negotiate"].contains(&&*word.to_ascii_lowercase())
}

/// Whether a word is what services give out as keys.
fn is_key(word: &str) -> bool {
    const GIVEN: [&str; 12] = [
        "ghp_",
        "gho_",
        "ghs_",
        "ghu_",
        "github_pat_",
        "glpat-",
        "sk-",
        "xoxb-",
        "xoxp-",
        "AKIA",
        "eyJ",
        "AIza",
    ];
    let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let is_given = word.len() >= 12 && GIVEN.iter().any(|it| word.starts_with(it));
    let is_plain = word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-+=".contains(&b));
    let is_mixed = |it: &str| {
        it.bytes().any(|b| b.is_ascii_digit()) && it.bytes().any(|b| b.is_ascii_alphabetic())
    };
    let has_long_part = || word.split(['-', '_']).any(|it| it.len() >= MIN_PART && is_mixed(it));
    let is_random = || has_long_part() || changes(word) >= MIN_CHANGES;
    is_given || (word.len() >= 32 && is_plain && is_mixed(word) && is_random())
}

/// Names of packages are long, but their parts are not: `mcp-server-kubernetes-v2`.
const MIN_PART: usize = 24;

/// Nor do they change more often between digits, small and capital letters.
const MIN_CHANGES: usize = 6;

/// How often a word changes between digits, small and capital letters.
fn changes(word: &str) -> usize {
    let class = |b: u8| (b.is_ascii_digit(), b.is_ascii_uppercase());
    let pairs = word.as_bytes().windows(2);
    pairs
        .filter(|pair| {
            pair.iter().all(u8::is_ascii_alphanumeric) && class(pair[0]) != class(pair[1])
        })
        .count()
}

/// Goes through texts word by word.
#[derive(Debug, Default)]
struct Masker {
    /// The next word is secret.
    is_next: bool,
    /// And all that follow, up to one that ends with this.
    until: Option<char>,
    /// And all that follow in this line, but for a scheme at their beginning.
    is_line: bool,
    /// What was taken out.
    found: Vec<String>,
}

impl Masker {
    /// One argument, of which nothing is shown if it follows the name of a secret.
    fn arg(&mut self, arg: &str) -> String {
        let is_secret = std::mem::take(&mut self.is_next) && !arg.starts_with("--");
        self.end_line();
        match arg.split_once('=') {
            _ if is_secret => self.take_out_whole(arg),
            Some((name, value)) if !value.is_empty() && is_one_secret_name(name) => {
                format!("{name}={}", self.take_out_whole(value))
            }
            _ => self.text(arg),
        }
    }

    /// Takes out a value that ends with its argument.
    fn take_out_whole(&mut self, value: &str) -> String {
        let masked = self.take_out(value);
        self.end_line();
        masked
    }

    fn text(&mut self, text: &str) -> String {
        let text = mask_urls(text, &mut self.found);
        let mut masked = String::with_capacity(text.len());
        for piece in text.split_inclusive(char::is_whitespace) {
            let word = piece.trim_end();
            masked.push_str(&self.word(word));
            masked.push_str(&piece[word.len()..]);
            if self.is_line && piece.ends_with('\n') {
                self.end_line();
            }
        }
        masked
    }

    fn end_line(&mut self) {
        self.is_line = false;
        self.until = None;
    }

    fn word(&mut self, word: &str) -> String {
        if word.is_empty() {
            return String::new();
        }
        if self.is_line && !(self.is_next && is_scheme(word)) {
            self.is_next = false;
            return self.take_out(word);
        }
        if let Some(quote) = self.until {
            self.until = (!word.ends_with(quote)).then_some(quote);
            return self.take_out(word);
        }
        if is_scheme(word) {
            self.is_next = true;
            return word.to_owned();
        }
        // An option that follows one without a value is no value. Nor is a single sign a secret:
        // "Unexpected token < in JSON".
        let is_value = !word.starts_with("--") && word.chars().nth(1).is_some();
        if std::mem::take(&mut self.is_next) && is_value {
            return self.take_out(word);
        }
        if word.starts_with('-') && !word.contains(['=', ':']) && is_secret_name(word) {
            self.is_next = true;
            return word.to_owned();
        }
        if let Some(masked) = self.labelled(word) {
            return masked;
        }
        if is_key(word) { self.take_out(word) } else { word.to_owned() }
    }

    /// A word that says what it is: `password=…`.
    fn labelled(&mut self, word: &str) -> Option<String> {
        let labels = word.match_indices(['=', ':']).map(|(at, _)| {
            let label = end_of(&word[..at]).rsplit(['{', ',', ';', '&', '?', '(']).next();
            (label.unwrap_or_default(), word.split_at(at + 1))
        });
        let is_secret = |label: &str, value: &str| {
            let is_path = value.trim_start_matches(['"', '\'']).starts_with('/');
            let is_password = is_folder_name(label) && !value.is_empty() && !is_path;
            is_secret_name(label) || is_password
        };
        let (_, (name, value)) =
            labels.clone().find(|(label, (_, value))| is_secret(label, value))?;
        self.is_line = labels.clone().any(|(label, _)| is_name_of_line(label));
        let last = value.rsplit(['=', ':']).next().unwrap_or_default();
        self.is_next = last.is_empty() || is_scheme(last);
        if self.is_next && last == value {
            return Some(word.to_owned());
        }
        let masked = self.take_out(value);
        Some(format!("{name}{masked}"))
    }

    fn take_out(&mut self, word: &str) -> String {
        let quote = word.chars().next().filter(|it| matches!(it, '"' | '\''));
        if let Some(quote) = quote
            && !word[1..].contains(quote)
        {
            self.until = Some(quote);
        }
        if word != MASK {
            let word = word.trim_matches(['"', '\'', ',', ';', '}', ')']);
            self.found.push(word.to_owned());
            if self.is_line {
                self.found.extend(word.split_once('=').map(|(_, value)| value.to_owned()));
            }
        }
        MASK.to_owned()
    }
}

/// A text whose URLs show neither who asks nor what.
fn mask_urls(text: &str, found: &mut Vec<String>) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        masked.push_str(before);
        let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`');
        let (url, more) = after.split_at(after.find(ends).unwrap_or(after.len()));
        masked.push_str(&mask_url(url, found));
        rest = more;
    }
    masked.push_str(rest);
    masked
}

/// What comes after `://`.
fn mask_url(url: &str, found: &mut Vec<String>) -> String {
    let cut = url.find(['?', '#']).unwrap_or(url.len());
    let (place, query) = url.split_at(cut);
    let (host, path) = place.split_at(end_of_host(place));
    let mut masked = String::new();
    match host.rsplit_once('@') {
        Some((user, host)) => {
            found.push(user.to_owned());
            found.extend(user.split_once(':').map(|(_, password)| password.to_owned()));
            masked.extend([MASK, "@", host]);
        }
        None => masked.push_str(host),
    }
    for (at, part) in path.split('/').enumerate() {
        if at > 0 {
            masked.push('/');
        }
        if is_key(part) {
            found.push(part.to_owned());
            masked.push_str(MASK);
        } else {
            masked.push_str(part);
        }
    }
    if let Some(sign) = query.chars().next() {
        found.push(query[sign.len_utf8()..].to_owned());
        let pairs = query[sign.len_utf8()..].split(['&', '#']);
        found.extend(pairs.filter_map(|it| Some(it.split_once('=')?.1.to_owned())));
        masked.push(sign);
        masked.push_str(MASK);
    }
    masked
}

/// Returns where the host of a URL ends. A password may hold a `/`; a port is a number.
fn end_of_host(place: &str) -> usize {
    let slash = place.find('/').unwrap_or(place.len());
    let Some((_, after_colon)) = place[..slash].split_once(':') else { return slash };
    let is_port = after_colon.bytes().all(|byte| byte.is_ascii_digit());
    match place.rfind('@') {
        Some(at) if at > slash && !is_port => {
            place[at..].find('/').map_or(place.len(), |slash| at + slash)
        }
        _ => slash,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn names_of_secrets_are_known_by_their_words() {
        for name in ["SMTP_PASS", "MYSQL_PWD", "GITHUB_PAT", "--db-pass", "AUTHORIZATION"] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["GIT_AUTHOR_NAME", "--no-auth", "--max-tokens", "compass", "PWD", "--path"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn harmless_text_stays() {
        for text in [
            "Unexpected token < in JSON at position 0",
            "--max-tokens 4096 --no-auth /srv",
            "http://localhost:8080/@scope/package",
        ] {
            assert_eq!(super::text(text), text);
        }
    }

    #[test]
    fn password_of_a_url_may_hold_a_slash() {
        let masked = text("postgres://user:p/w@db.example:5432/name");
        assert_eq!(masked, format!("postgres://{MASK}@db.example:5432/name"));
    }

    #[test]
    fn what_looks_like_a_secret_is_taken_out() {
        let mut table = String::new();
        for line in [
            "plain words, a/path and --port 8080",
            "--token abc --api-key=def -v",
            "--auth --verbose --author somebody",
            "Authorization: Bearer abc",
            "Authorization:Bearer abc123 and more\n    the next line",
            "Authorization=Bearer abc",
            "Authorization: SSWS abc",
            "proxy-authorization:  Digest user=\"a\", realm=\"b\"",
            r#"{"x":1,"authorization":"Bearer abc","b":2}"#,
            r#"{"token":"x","authorization":"Bearer abc"}"#,
            "-HAuthorization:SSWS abc",
            "Cookie: a=b; session=xyz",
            "set-cookie:a=b; Path=/",
            "Set-Cookie: a=\"b\nc d",
            "X-Auth:Bearer abc def",
            "Bearer abc",
            "PWD=/a/b OLDPWD=/a pwd=abc",
            "UID=a;PWD=abc;x",
            "GET https://user:pw@host/p/a?key=1&b=2#c done",
            "wss://host",
            "ws://host/eyJhbGciOiJIUzI1NiJ9/x",
            r#"{"a":1,"token":"abc","b":2}"#,
            r#"env: {"API_KEY": "abc"}"#,
            "password=abc",
            "password: abc",
            "token=*** and more",
            "PASSWORD='a b'",
            "ghp_abcdefghijkl and sk-abcdefghijkl",
            "0123456789abcdef0123456789abcdef",
            "2026-01-01T00:00:00Z warning: disk at 80%",
            "monkey=banana keyboard=x",
        ] {
            let _ = writeln!(table, "{line}\n    {}", text(line));
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn arguments_lose_their_secrets_and_nothing_else() {
        let table: &[(&[&str], &[&str])] = &[
            (&["--token", "x", "y"], &["--token", "***", "y"]),
            (&["--token=x"], &["--token=***"]),
            (&["--api-key=x", "-v"], &["--api-key=***", "-v"]),
            (&["-H", "Authorization: Bearer x"], &["-H", "Authorization: Bearer ***"]),
            (&["GITHUB_TOKEN=x"], &["GITHUB_TOKEN=***"]),
            (&["-e", "GITHUB_TOKEN=x", "image"], &["-e", "GITHUB_TOKEN=***", "image"]),
            (&["password=a b"], &["password=***"]),
            (&["https://me:pass@h/x?token=1"], &["https://***@h/x?***"]),
            (&["-e", "GITHUB_TOKEN", "image"], &["-e", "GITHUB_TOKEN", "image"]),
            (&["--author", "me", "--keyboard", "us"], &["--author", "me", "--keyboard", "us"]),
            (
                &["-y", "@scope/a-package@1.2.3", "/tmp/x"],
                &["-y", "@scope/a-package@1.2.3", "/tmp/x"],
            ),
            (
                &["mcp-server-kubernetes-readonly-v2-beta"],
                &["mcp-server-kubernetes-readonly-v2-beta"],
            ),
        ];
        for (given, masked) in table {
            assert_eq!(args(given.iter().copied()).words, *masked, "{given:?}");
        }
    }

    #[test]
    fn long_words_take_no_quadratic_time() {
        for part in ["a=", "é:", "://", "\"'=", "{"] {
            let _ = text(&part.repeat(10_000));
        }
    }
}
