//! Secrets, and texts without them: pure.
//!
//! What is known to be secret is taken out wherever it stands; what only looks like it, where
//! people write such things: after `--token`, in `password=…`, in the query of a URL. It takes
//! out too much rather than too little.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;
use xy_protocol::control::MASK;

/// Shorter ones cannot be told from ordinary words.
const SHORTEST: usize = 6;

/// So much of a text is compared with the beginnings of all secrets at once.
type Head = [u8; SHORTEST];

/// Everything that must not be seen.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    /// Those with the same beginning, longest first.
    by_head: HashMap<Head, Vec<String>>,
}

impl Secrets {
    /// A whole value is secret, and what is likely to be seen of it alone.
    pub(super) fn know(&mut self, value: &str) {
        self.know_exactly(value);
        let mut words = value.split_whitespace();
        if words.next().is_some_and(is_scheme) {
            self.know_exactly(value.split_once(char::is_whitespace).map_or("", |(_, rest)| rest));
        }
        for line in value.lines() {
            self.know_exactly(line.trim());
        }
        let mut found = Vec::new();
        mask_urls(value, &mut found);
        for it in &found {
            self.know_exactly(it);
        }
    }

    fn know_exactly(&mut self, value: &str) {
        let quoted = Value::from(value).to_string();
        let escaped = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
        for form in [value.to_owned(), escaped.to_owned(), percent_encoded(value)] {
            let Some(head) = form.as_bytes().first_chunk::<SHORTEST>() else { continue };
            let same = self.by_head.entry(*head).or_default();
            if !same.contains(&form) && form != MASK {
                same.push(form);
                same.sort_by_key(|it| std::cmp::Reverse(it.len()));
            }
        }
    }

    /// The text without any of them.
    pub(super) fn scrub<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut clean = String::new();
        let (mut at, mut from) = (0, 0);
        while let Some(head) = text.as_bytes().get(at..).and_then(<[u8]>::first_chunk::<SHORTEST>) {
            let rest = &text.as_bytes()[at..];
            let same = self.by_head.get(head).into_iter().flatten();
            let found = same.into_iter().find(|it| rest.starts_with(it.as_bytes()));
            match found {
                Some(secret) => {
                    clean.push_str(&text[from..at]);
                    clean.push_str(MASK);
                    at += secret.len();
                    from = at;
                }
                None => at += 1,
            }
        }
        if from == 0 {
            return Cow::Borrowed(text);
        }
        clean.push_str(&text[from..]);
        Cow::Owned(clean)
    }

    /// The same for every text in a value.
    pub(super) fn scrub_all(&self, value: &mut Value) {
        each_text(value, &mut |text| {
            if let Cow::Owned(clean) = self.scrub(text) {
                *text = clean;
            }
        });
    }
}

/// Does something to every text in a value, but for the names of its fields.
pub(super) fn each_text(value: &mut Value, change: &mut impl FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| each_text(item, change)),
        Value::Object(fields) => fields.values_mut().for_each(|field| each_text(field, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A text without what looks like a secret.
pub(super) fn text(text: &str) -> String {
    Masker::default().text(text)
}

/// Arguments without what looks like a secret, which is known from now on.
pub(super) fn args(args: &[String], secrets: &mut Secrets) -> Vec<String> {
    let mut reader = Masker::default();
    let masked = args.iter().map(|arg| reader.arg(arg)).collect();
    for it in &reader.found {
        secrets.know(it);
    }
    masked
}

/// A URL without what may be secret in it, which is known from now on.
pub(super) fn url(url: &str, secrets: &mut Secrets) -> String {
    let mut found = Vec::new();
    let masked = mask_urls(url, &mut found);
    for it in &found {
        secrets.know_exactly(it);
    }
    masked
}

/// Whether something of this name is secret.
pub(super) fn is_secret_name(name: &str) -> bool {
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
    let is_person = plain.ends_with("author") || plain.ends_with("authors");
    let is_whole =
        matches!(plain.as_str(), "pat" | "pwd" | "jwt" | "pass") || plain.ends_with("key");
    is_whole || (!is_person && PARTS.iter().any(|part| plain.contains(part)))
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

/// A name however it is written.
fn plain(name: &str) -> String {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

/// The words before a credential.
fn is_scheme(word: &str) -> bool {
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
    let is_mixed =
        word.bytes().any(|b| b.is_ascii_digit()) && word.bytes().any(|b| b.is_ascii_alphabetic());
    is_given || (word.len() >= 32 && is_plain && is_mixed)
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
        if is_secret { self.take_out(arg) } else { self.text(arg) }
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
        // An option that follows one without a value is no value.
        if std::mem::take(&mut self.is_next) && !word.starts_with("--") {
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
            let label = word[..at].rsplit(['{', ',', ';', '&', '?', '(']).next();
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
    let (host, path) = place.split_at(place.find('/').unwrap_or(place.len()));
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

/// As it stands in a URL.
fn percent_encoded(value: &str) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}"); // A `String` takes whatever it is given.
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
    fn a_known_secret_is_taken_out_wherever_it_stands() {
        let mut secrets = Secrets::default();
        secrets.know("hunter2hunter2");
        secrets.know("hunter2");
        secrets.know("Bearer abc/def+ghi");
        secrets.know("two words");
        secrets.know("-----BEGIN-----\nAAAABBBB\n-----END-----");
        secrets.know("short");
        secrets.know("quo\"ted");
        for (line, clean) in [
            ("hunter2", "***"),
            ("xhunter2hunter2x", "x***x"),
            ("hunter2hunter2hunter2", "******"),
            ("token abc/def+ghi", "token ***"),
            ("?t=abc%2Fdef%2Bghi", "?t=***"),
            ("AAAABBBB", "***"),
            (r#"{"x":"quo\"ted"}"#, r#"{"x":"***"}"#),
            ("two words, two", "***, two"),
            ("short hunter", "short hunter"),
            ("ünïcödé hunter2 ünïcödé", "ünïcödé *** ünïcödé"),
            ("", ""),
        ] {
            assert_eq!(secrets.scrub(line), clean);
        }
        let mut value = json!({ "a": ["hunter2", { "hunter2": "is hunter2" }], "n": 1 });
        secrets.scrub_all(&mut value);
        assert_eq!(value, json!({ "a": ["***", { "hunter2": "is ***" }], "n": 1 }));
    }

    #[test]
    fn what_was_an_argument_is_known_elsewhere() {
        let mut secrets = Secrets::default();
        let given =
            ["--token", "ab c def", "-H", "X-Api-Key: hijklmn", "--url", "http://a/?k=opqrstu"];
        let given = given.map(str::to_owned);
        assert_eq!(
            args(&given, &mut secrets),
            ["--token", "***", "-H", "X-Api-Key: ***", "--url", "http://a/?***"]
        );
        assert_eq!(secrets.scrub("ab c def hijklmn opqrstu"), "*** *** ***");
        let given =
            ["-H", "Authorization: SSWS first12", "--header=Cookie: s=second3; t=x", "last"];
        let given = given.map(str::to_owned);
        let masked =
            ["-H", "Authorization: *** ***", "--header=Cookie: *** ***", "last"].map(str::to_owned);
        assert_eq!(args(&given, &mut secrets), masked);
        assert_eq!(secrets.scrub("first12 second3"), "*** ***");
        let given = ["Authorization: Bearer", "third345", "last"].map(str::to_owned);
        assert_eq!(args(&given, &mut secrets), ["Authorization: Bearer", "***", "last"]);
        assert_eq!(url("https://u:longpass@h/x?y", &mut secrets), "https://***@h/x?***");
        assert_eq!(secrets.scrub("longpass"), "***");
    }
}
