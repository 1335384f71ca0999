//! Masks secrets in texts. Pure.
//!
//! Recognises secrets where people write them: after `--token`, in `password=…`, in the query of a
//! URL. Masks too much rather than too little.

mod message;
mod secrets;

use crate::control::MASK;
pub use message::MessageMasker;
pub use secrets::{Secrets, for_each_text};

/// Arguments with their secrets masked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaskedArgs {
    /// The masked arguments.
    pub args: Vec<String>,
    /// The secrets that were masked.
    pub secrets: Vec<String>,
}

/// Returns a text with everything that looks like a secret masked.
pub fn text(text: &str) -> String {
    Masker::default().text(text)
}

/// Masks what looks like a secret in the arguments of a program.
pub fn args<'a>(args: impl IntoIterator<Item = &'a str>) -> MaskedArgs {
    let mut masker = Masker::default();
    let args = args.into_iter().map(|arg| masker.arg(arg)).collect();
    MaskedArgs { args, secrets: masker.secrets }
}

/// Returns a URL without its user and its query, and the removed parts.
pub fn url(url: &str) -> (String, Vec<String>) {
    let mut secrets = Vec::new();
    (mask_urls(url, &mut secrets), secrets)
}

/// Returns true if a value with this name is secret.
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
    if is_shell_directory(name) {
        return false;
    }
    let normalized = normalized(name);
    let args = || name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|it| !it.is_empty());
    let first = args().next().unwrap_or_default().to_ascii_lowercase();
    let last = args().next_back().unwrap_or_default().to_ascii_lowercase();
    // `--no-auth` and `--max-tokens` name no secret.
    let is_count = matches!(first.as_str(), "max" | "min" | "num") && last == "tokens";
    if first == "no" || is_count {
        return false;
    }
    let is_whole = matches!(last.as_str(), "pat" | "pwd" | "jwt" | "pass");
    // `author` is not a secret, but `authorization` is.
    let normalized =
        if normalized.contains("authori") { normalized } else { normalized.replace("author", "") };
    is_whole || normalized.ends_with("key") || PARTS.iter().any(|part| normalized.contains(part))
}

/// Returns true if everything after this name and a `=` in an argument is secret.
fn is_assignment_of_secret(name: &str) -> bool {
    !name.contains(|it: char| it.is_whitespace() || ":;&?{,".contains(it)) && is_secret_name(name)
}

/// Returns true for the variables in which a shell keeps its directory. Connection strings keep a
/// password in `PWD`.
fn is_shell_directory(name: &str) -> bool {
    matches!(name.trim_matches(|c: char| !c.is_ascii_alphanumeric()), "PWD" | "OLDPWD")
}

/// Returns true if everything after this name is secret up to the end of the line. Such values have
/// several words, and any of them may precede the credential.
fn masks_rest_of_line(name: &str) -> bool {
    let normalized = normalized(name);
    normalized.ends_with("authorization") || normalized.ends_with("cookie")
}

/// Maximum length of the name of a secret.
const MAX_LABEL_LENGTH: usize = 128;

/// Returns the end of a text, at most as long as a name may be.
fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(MAX_LABEL_LENGTH);
    &text[(start..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(start)..]
}

/// Returns a name in lower case, without punctuation.
fn normalized(name: &str) -> String {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// Returns true if a word precedes a credential, as `Bearer` does.
pub fn is_scheme(word: &str) -> bool {
    let word = word.trim_start_matches(['"', '\'', '(', '[', '`']);
    ["bearer", "basic", "digest", "token", "negotiate"].contains(&&*word.to_ascii_lowercase())
}

/// Returns true if a word looks like a key issued by a service.
fn looks_like_key(word: &str) -> bool {
    const KEY_PREFIXES: [&str; 12] = [
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
    let has_key_prefix = word.len() >= 12 && KEY_PREFIXES.iter().any(|it| word.starts_with(it));
    let is_plain = word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-+=".contains(&b));
    let is_mixed = |it: &str| {
        it.bytes().any(|b| b.is_ascii_digit()) && it.bytes().any(|b| b.is_ascii_alphabetic())
    };
    let has_long_part =
        || word.split(['-', '_']).any(|it| it.len() >= MIN_RANDOM_PART && is_mixed(it));
    let is_random = || has_long_part() || class_changes(word) >= MIN_CHANGES;
    has_key_prefix || (word.len() >= 32 && is_plain && is_mixed(word) && is_random())
}

/// Minimum length of a random part. Package names such as `mcp-server-kubernetes-v2` are long, but
/// their parts are not.
const MIN_RANDOM_PART: usize = 24;

/// Minimum number of changes between digits, small and capital letters in a random word. Names have
/// fewer.
const MIN_CHANGES: usize = 6;

/// Returns how often a word changes between digits, small and capital letters.
fn class_changes(word: &str) -> usize {
    let class = |b: u8| (b.is_ascii_digit(), b.is_ascii_uppercase());
    let pairs = word.as_bytes().windows(2);
    pairs
        .filter(|pair| {
            pair.iter().all(u8::is_ascii_alphanumeric) && class(pair[0]) != class(pair[1])
        })
        .count()
}

/// Masks texts word by word.
#[derive(Debug, Default)]
struct Masker {
    /// Set if the next word is secret.
    is_next_secret: bool,
    /// Set if all following words are secret, up to one that ends with this quote.
    until_quote: Option<char>,
    /// Set if the rest of the line is secret, except for a scheme at its beginning.
    is_rest_of_line: bool,
    /// The secrets that were masked.
    secrets: Vec<String>,
}

impl Masker {
    /// Masks one argument. All of it is masked if it follows the name of a secret.
    fn arg(&mut self, arg: &str) -> String {
        let is_secret = std::mem::take(&mut self.is_next_secret) && !arg.starts_with("--");
        self.end_line();
        match arg.split_once('=') {
            _ if is_secret => self.mask_value(arg),
            Some((name, value)) if !value.is_empty() && is_assignment_of_secret(name) => {
                format!("{name}={}", self.mask_value(value))
            }
            _ => self.text(arg),
        }
    }

    /// Masks a value that ends with its argument.
    fn mask_value(&mut self, value: &str) -> String {
        let masked = self.mask_word(value);
        self.end_line();
        masked
    }

    fn text(&mut self, text: &str) -> String {
        let text = mask_urls(text, &mut self.secrets);
        let mut masked = String::with_capacity(text.len());
        for piece in text.split_inclusive(char::is_whitespace) {
            let word = piece.trim_end();
            masked.push_str(&self.word(word));
            masked.push_str(&piece[word.len()..]);
            if self.is_rest_of_line && piece.ends_with('\n') {
                self.end_line();
            }
        }
        masked
    }

    fn end_line(&mut self) {
        self.is_rest_of_line = false;
        self.until_quote = None;
    }

    fn word(&mut self, word: &str) -> String {
        if word.is_empty() {
            return String::new();
        }
        if self.is_rest_of_line && !(self.is_next_secret && is_scheme(word)) {
            self.is_next_secret = false;
            return self.mask_word(word);
        }
        if let Some(quote) = self.until_quote {
            self.until_quote = (!word.ends_with(quote)).then_some(quote);
            return self.mask_word(word);
        }
        if is_scheme(word) {
            self.is_next_secret = true;
            return word.to_owned();
        }
        // An option after another option is not its value. Nor is a single character a secret:
        // "Unexpected token < in JSON".
        let is_value = !word.starts_with("--") && word.chars().nth(1).is_some();
        if std::mem::take(&mut self.is_next_secret) && is_value {
            return self.mask_word(word);
        }
        if word.starts_with('-') && !word.contains(['=', ':']) && is_secret_name(word) {
            self.is_next_secret = true;
            return word.to_owned();
        }
        if let Some(masked) = self.mask_labelled(word) {
            return masked;
        }
        if looks_like_key(word) { self.mask_word(word) } else { word.to_owned() }
    }

    /// Masks a word that names its value: `password=…`.
    fn mask_labelled(&mut self, word: &str) -> Option<String> {
        let labels = word.match_indices(['=', ':']).map(|(at, _)| {
            let label = tail(&word[..at]).rsplit(['{', ',', ';', '&', '?', '(']).next();
            (label.unwrap_or_default(), word.split_at(at + 1))
        });
        let is_secret = |label: &str, value: &str| {
            let is_path = value.trim_start_matches(['"', '\'']).starts_with('/');
            let is_password = is_shell_directory(label) && !value.is_empty() && !is_path;
            is_secret_name(label) || is_password
        };
        let (_, (name, value)) =
            labels.clone().find(|(label, (_, value))| is_secret(label, value))?;
        self.is_rest_of_line = labels.clone().any(|(label, _)| masks_rest_of_line(label));
        let last = value.rsplit(['=', ':']).next().unwrap_or_default();
        self.is_next_secret = last.is_empty() || is_scheme(last);
        if self.is_next_secret && last == value {
            return Some(word.to_owned());
        }
        let masked = self.mask_word(value);
        Some(format!("{name}{masked}"))
    }

    fn mask_word(&mut self, word: &str) -> String {
        let quote = word.chars().next().filter(|it| matches!(it, '"' | '\''));
        if let Some(quote) = quote
            && !word[1..].contains(quote)
        {
            self.until_quote = Some(quote);
        }
        if word != MASK {
            let word = word.trim_matches(['"', '\'', ',', ';', '}', ')']);
            self.secrets.push(word.to_owned());
            if self.is_rest_of_line {
                self.secrets.extend(word.split_once('=').map(|(_, value)| value.to_owned()));
            }
        }
        MASK.to_owned()
    }
}

/// Returns a text whose URLs have no user and no query.
fn mask_urls(text: &str, secrets: &mut Vec<String>) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        masked.push_str(before);
        let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`');
        let (url, more) = after.split_at(after.find(ends).unwrap_or(after.len()));
        masked.push_str(&mask_url(url, secrets));
        rest = more;
    }
    masked.push_str(rest);
    masked
}

/// Masks the part of a URL after `://`.
fn mask_url(url: &str, secrets: &mut Vec<String>) -> String {
    let cut = url.find(['?', '#']).unwrap_or(url.len());
    let (location, query) = url.split_at(cut);
    let (host, path) = location.split_at(end_of_host(location));
    let mut masked = String::new();
    match host.rsplit_once('@') {
        Some((user, host)) => {
            secrets.push(user.to_owned());
            secrets.extend(user.split_once(':').map(|(_, password)| password.to_owned()));
            masked.extend([MASK, "@", host]);
        }
        None => masked.push_str(host),
    }
    for (at, part) in path.split('/').enumerate() {
        if at > 0 {
            masked.push('/');
        }
        if looks_like_key(part) {
            secrets.push(part.to_owned());
            masked.push_str(MASK);
        } else {
            masked.push_str(part);
        }
    }
    if let Some(sign) = query.chars().next() {
        secrets.push(query[sign.len_utf8()..].to_owned());
        let pairs = query[sign.len_utf8()..].split(['&', '#']);
        secrets.extend(pairs.filter_map(|it| Some(it.split_once('=')?.1.to_owned())));
        masked.push(sign);
        masked.push_str(MASK);
    }
    masked
}

/// Returns where the host of a URL ends. A password may hold a `/`; a port is a number.
fn end_of_host(location: &str) -> usize {
    let slash = location.find('/').unwrap_or(location.len());
    let Some((_, after_colon)) = location[..slash].split_once(':') else { return slash };
    let is_port = after_colon.bytes().all(|byte| byte.is_ascii_digit());
    match location.rfind('@') {
        Some(at) if at > slash && !is_port => {
            location[at..].find('/').map_or(location.len(), |slash| at + slash)
        }
        _ => slash,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn secret_names_are_recognised() {
        for name in ["SMTP_PASS", "MYSQL_PWD", "GITHUB_PAT", "--db-pass", "AUTHORIZATION"] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["GIT_AUTHOR_NAME", "--no-auth", "--max-tokens", "compass", "PWD", "--path"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn harmless_text_is_not_masked() {
        for text in [
            "Unexpected token < in JSON at position 0",
            "--max-tokens 4096 --no-auth /srv",
            "http://localhost:8080/@scope/package",
        ] {
            assert_eq!(super::text(text), text);
        }
    }

    #[test]
    fn url_password_may_contain_a_slash() {
        let masked = text("postgres://user:p/w@db.example:5432/name");
        assert_eq!(masked, format!("postgres://{MASK}@db.example:5432/name"));
    }

    #[test]
    fn likely_secrets_are_masked() {
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
    fn only_secrets_of_arguments_are_masked() {
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
            assert_eq!(args(given.iter().copied()).args, *masked, "{given:?}");
        }
    }

    #[test]
    fn long_words_take_linear_time() {
        for part in ["a=", "é:", "://", "\"'=", "{"] {
            let _ = text(&part.repeat(10_000));
        }
    }
}
