//! Replaces the parts of answers that differ between runs.

use xy_testkit::Home;

/// Replaces folders, processes, times and the version.
pub(crate) fn redact(home: &Home, text: &str) -> String {
    let programs = home.program("xy-test-exit");
    let programs = programs.parent().expect("a program is in a folder").display().to_string();
    let text = text
        .replace(&home.root().display().to_string(), "[home]")
        .replace(&programs, "[programs]")
        .replace(&format!("\"{}\"", env!("CARGO_PKG_VERSION")), "\"[version]\"");
    let keys = [
        "\"pid\":",
        "\"uptime_secs\":",
        "\"memory_bytes\":",
        "\"cpu_ms\":",
        "\"in_ms\":",
        "\"subscription_id\":",
        "has no stream ",
        "pid=",
        "pid ",
        "process ",
        "daemon ",
    ];
    let text = without_boots(&without_containment(without_moments(&text)));
    keys.into_iter().fold(text, |text, key| without_number(&text, key))
}

/// Removes the containment, which depends on the machine.
fn without_containment(mut text: String) -> String {
    for how in ["cgroup", "subreaper", "group"] {
        text = text.replace(&format!("\"containment\":\"{how}\""), "\"containment\":\"[how]\"");
    }
    let phrases = ["cgroup + subreaper", "subreaper", "process group (processes can leave it)"];
    for how in phrases {
        text = text.replace(&format!("tracked by {how}"), "tracked by [how]");
    }
    text
}

/// Replaces the random id that distinguishes the events of daemons.
fn without_boots(text: &str) -> String {
    let mut parts = text.split("\"boot\":\"");
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|character: char| character.is_ascii_hexdigit());
        result.extend(["\"boot\":\"[boot]", rest]);
    }
    result
}

/// Replaces every number right after `key` with `[n]`.
pub(crate) fn without_number(text: &str, key: &str) -> String {
    let mut parts = text.split(key);
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|character: char| character.is_ascii_digit());
        let number = if rest.len() < part.len() { "[n]" } else { "" };
        result.extend([key, number, rest]);
    }
    result
}

/// Replaces every RFC 3339 time with `[moment]`, whatever its precision.
pub(crate) fn without_moments(text: &str) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        if let Some(after) = after_moment(rest) {
            result.push_str("[moment]");
            rest = after;
        } else {
            result.push(character);
            rest = &rest[character.len_utf8()..];
        }
    }
    result
}

fn after_moment(text: &str) -> Option<&str> {
    let mut rest = text;
    for expected in "0000-00-00T00:00:00".chars() {
        let character = rest.chars().next()?;
        let fits = if expected == '0' { character.is_ascii_digit() } else { character == expected };
        rest = fits.then(|| &rest[1..])?;
    }
    rest.trim_start_matches(|character: char| character.is_ascii_digit() || character == '.')
        .strip_prefix('Z')
}
