//! What differs from run to run, made the same: so that the rest can be compared.

use xy_testkit::Home;

/// Replaces what only this run has: folders, processes, moments, the version.
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

/// What holds a server together is up to the machine.
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

/// What tells one daemon's events from another's is drawn at random.
fn without_boots(text: &str) -> String {
    let mut parts = text.split("\"boot\":\"");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|character: char| character.is_ascii_hexdigit());
        kept.extend(["\"boot\":\"[boot]", rest]);
    }
    kept
}

/// Every number right after `key` becomes `[n]`.
pub(crate) fn without_number(text: &str, key: &str) -> String {
    let mut parts = text.split(key);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|character: char| character.is_ascii_digit());
        let number = if rest.len() < part.len() { "[n]" } else { "" };
        kept.extend([key, number, rest]);
    }
    kept
}

/// Every moment in RFC 3339 becomes `[moment]`, whatever its precision.
pub(crate) fn without_moments(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        if let Some(after) = after_moment(rest) {
            kept.push_str("[moment]");
            rest = after;
        } else {
            kept.push(character);
            rest = &rest[character.len_utf8()..];
        }
    }
    kept
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
