//! Tests that the limits in the user guide match the code.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const HTTP: &str = "crates/xy-http/src/limits.rs";

fn file(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).unwrap_or_else(|cause| panic!("{path}: {cause}"))
}

/// Returns the value of a constant in the source: a number, bytes, or a time in milliseconds.
fn constant(source: &str, name: &str) -> Option<u64> {
    let at = source.find(&format!("const {name}: "))?;
    let (_, value) = source[at..].split_once(" = ")?;
    let value = value.split_once(';')?.0;
    let time = |word: &str, unit: u64| {
        let inside = value.strip_prefix(word)?.strip_suffix(')')?;
        Some(calculated(source, inside)? * unit)
    };
    time("Duration::from_millis(", 1)
        .or_else(|| time("Duration::from_secs(", 1000))
        .or_else(|| time("Duration::from_mins(", 60_000))
        .or_else(|| calculated(source, value))
}

/// Evaluates an expression of numbers and constants from left to right.
fn calculated(source: &str, text: &str) -> Option<u64> {
    let term = |word: &str| match word.replace('_', "").parse() {
        Ok(number) => Some(number),
        Err(_) => constant(source, word),
    };
    let mut words = text.split_whitespace();
    let mut value = term(words.next()?)?;
    while let (Some(operator), Some(word)) = (words.next(), words.next()) {
        let other = term(word)?;
        value = match operator {
            "*" => value * other,
            "/" => value / other,
            "-" => value - other,
            "<<" => value << other,
            _ => return None,
        };
    }
    Some(value)
}

/// Parses a value of the guide.
fn written(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let unit = match unit {
        "" | "ms" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    Some(number.parse::<u64>().ok()? * unit)
}

#[test]
fn guide_lists_the_limits_of_the_code() {
    let mut in_guide = BTreeSet::new();
    for line in file("docs/guide/limits.md").lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [limit, value, setting, _, place] = cells[..] else { panic!("{line}") };
        if limit == "limit" {
            continue;
        }
        let value = written(value).unwrap_or_else(|| panic!("{line}"));
        let mut words = place.split('`').filter(|word| !word.trim().is_empty() && *word != " in ");
        let Some(name) = words.next() else {
            assert!(!setting.is_empty(), "neither a setting nor a constant: {line}");
            continue;
        };
        let source = words.next().unwrap_or(HTTP);
        assert_eq!(constant(&file(source), name), Some(value), "{line}");
        in_guide.insert((source.to_owned(), name.to_owned()));
    }
    for line in file(HTTP).lines().filter(|line| line.starts_with("pub(super) const ")) {
        let name = line["pub(super) const ".len()..].split(':').next().unwrap().to_owned();
        assert!(in_guide.contains(&(HTTP.to_owned(), name.clone())), "not in the guide: {name}");
    }
}

#[test]
fn guide_lists_the_default_settings() {
    use xy_config::settings::{GatewaySettings, InstanceSettings, ParkSettings};
    let (gateway, park) = (GatewaySettings::default(), ParkSettings::default());
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap();
    let number = |number: usize| u64::try_from(number).unwrap();
    let defaults = [
        ("gateway { sessions }", number(gateway.sessions)),
        ("gateway { streams }", number(gateway.streams)),
        ("gateway { body }", gateway.body),
        ("gateway { idle }", millis(gateway.idle)),
        ("park { calls }", number(park.calls)),
        ("park { bytes }", park.bytes),
        ("park { total-calls }", number(park.total_calls)),
        ("park { total-bytes }", park.total_bytes),
        ("park { queue }", millis(park.queue)),
        ("instances { most }", number(InstanceSettings::default().most)),
    ];
    let guide = file("docs/guide/limits.md");
    for (setting, default) in defaults {
        let line = guide.lines().find(|line| line.contains(&format!("| `{setting}` |")));
        let value = line.and_then(|line| line.split('|').nth(2)).map(str::trim);
        assert_eq!(value.and_then(written), Some(default), "{setting}");
    }
}
