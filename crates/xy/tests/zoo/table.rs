//! The table of `docs/compatibility.md`. Each test writes a row, and the last test assembles them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xy_testkit::write_compatibility;

use crate::Way;
use crate::compare::{entries, stale};
use crate::drive::Era;
use crate::feature::{FEATURES, Features};
use crate::servers::{ALL, Package, Server};
use crate::stage::{install_folder, read_manifest};

/// The packages with which a server speaks MCP, those that build on others first.
const SDKS: [(&str, &str); 3] = [
    ("fastmcp", "FastMCP for TypeScript"),
    ("@modelcontextprotocol/server", "TypeScript SDK"),
    ("@modelcontextprotocol/sdk", "TypeScript SDK"),
];

/// The steps of one way through xy.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Count {
    is_legacy: bool,
    compared: usize,
    identical: usize,
}

impl Count {
    pub(crate) fn new(way: Way, compared: usize, different: usize) -> Self {
        let is_legacy = way.era() == Era::Legacy;
        Self { is_legacy, compared, identical: compared - different.min(compared) }
    }
}

/// A server's row.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    package: String,
    version: String,
    sdk: String,
    is_dual: bool,
    counts: Vec<Count>,
    features: Features,
    /// The keys of the entries that explain its differences.
    seen: BTreeSet<String>,
}

impl Row {
    pub(crate) fn new(
        server: &Server,
        is_dual: bool,
        (counts, features): (Vec<Count>, Features),
        seen: BTreeSet<String>,
    ) -> Self {
        let (package, version, sdk) = match server.package {
            Package::Npm(package) => (package, npm_version(package), npm_sdk(package)),
            Package::Python { list, package, .. } => {
                (package, python_version(list, package), python_sdk(list))
            }
        };
        Self { package: package.to_owned(), version, sdk, is_dual, counts, features, seen }
    }

    fn line(&self, reasons: &[&str]) -> String {
        let Self { package, version, sdk, .. } = self;
        let era = if self.is_dual { "both" } else { "legacy" };
        let (legacy, modern) = (self.sum(true), self.sum(false));
        let features = self.features.cells(|key| number_of(key, reasons)).join(" | ");
        format!("| `{package}` | {version} | {sdk} | {era} | {features} | {legacy} | {modern} |\n")
    }

    /// Returns how many steps are identical, over HTTP and stdio, for clients of one era.
    fn sum(&self, is_legacy: bool) -> String {
        let counts = self.counts.iter().filter(|it| it.is_legacy == is_legacy);
        let (compared, identical) = counts.fold((0, 0), |(compared, identical), it| {
            (compared + it.compared, identical + it.identical)
        });
        format!("{identical} of {compared}")
    }
}

/// Returns the number of the reason of the entry with this key, from 1.
fn number_of(key: &str, reasons: &[&str]) -> Option<usize> {
    let entry = entries().find(|it| it.key() == key)?;
    Some(reasons.iter().position(|why| *why == entry.why)? + 1)
}

/// Writes the row of a server that has passed.
#[track_caller]
pub(crate) fn write_row(server: &Server, row: &Row) {
    let file = row_file(server);
    fs::create_dir_all(file.parent().expect("it is in a folder")).expect("a folder of ours");
    fs::write(file, serde_json::to_string(row).expect("a row is JSON"))
        .expect("a file of ours is writable");
}

/// Removes the row of an earlier run, so that a failed server has none.
pub(crate) fn remove_row(server: &Server) {
    let _ = fs::remove_file(row_file(server)); // There may be none.
}

fn row_file(server: &Server) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("zoo").join(format!("{}.json", server.name))
}

#[track_caller]
fn npm_version(package: &str) -> String {
    let manifest = read_manifest(&install_folder().join("npm/node_modules").join(package));
    manifest["version"].as_str().expect("a package has a version").to_owned()
}

/// Returns the SDK among the dependencies of an npm package, or among their dependencies.
#[track_caller]
fn npm_sdk(package: &str) -> String {
    let modules = install_folder().join("npm/node_modules");
    let manifest = read_manifest(&modules.join(package));
    for (name, title) in SDKS {
        if manifest["dependencies"].get(name).is_none() {
            continue;
        }
        let own = modules.join(package).join("node_modules").join(name);
        let folder = if own.is_dir() { own } else { modules.join(name) };
        let sdk = read_manifest(&folder);
        return format!("{title} {}", sdk["version"].as_str().unwrap_or("?"));
    }
    "TypeScript, in its bundle".to_owned()
}

/// Returns the version of a package in a list of `real/zoo/python`.
#[track_caller]
fn python_version(list: &str, package: &str) -> String {
    let found = pinned(list, package);
    found.unwrap_or_else(|| panic!("`{package}` is not in `real/zoo/python/{list}.txt`"))
}

fn python_sdk(list: &str) -> String {
    let version = |name| pinned(list, name);
    match (version("fastmcp"), version("mcp")) {
        (Some(fastmcp), _) => format!("FastMCP {fastmcp}"),
        (None, Some(mcp)) => format!("Python SDK {mcp}"),
        (None, None) => panic!("`real/zoo/python/{list}.txt` has no SDK"),
    }
}

#[track_caller]
fn pinned(list: &str, package: &str) -> Option<String> {
    let file = repository().join(format!("real/zoo/python/{list}.txt"));
    let text = fs::read_to_string(&file).unwrap_or_else(|it| panic!("{}: {it}", file.display()));
    let name = package.replace('.', "-");
    let line = text.lines().find_map(|line| {
        line.strip_prefix(&name).or_else(|| line.strip_prefix(package))?.strip_prefix("==")
    });
    line.map(|version| version.split(' ').next().unwrap_or(version).to_owned())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs after all other tests: `./test zoo` selects it with `--run-ignored only`.
#[test]
#[ignore = "it needs the rows of all servers"]
fn table_is_written_and_no_entry_is_stale() {
    let mut rows = Vec::new();
    for server in ALL {
        let text = fs::read_to_string(row_file(server))
            .unwrap_or_else(|cause| panic!("no row of `{}` ({cause}): run its test", server.name));
        let row: Row = serde_json::from_str(&text).expect("a row is JSON");
        rows.push(row);
    }
    let seen = rows.iter().flat_map(|row| row.seen.iter().cloned()).collect();
    let stale = stale(entries(), &seen);
    assert!(stale.is_empty(), "listed, but not seen any more:\n{}", stale.join("\n"));
    write_compatibility(&repository().join("docs/compatibility.md"), "servers", &table(&rows));
}

fn table(rows: &[Row]) -> String {
    let mut reasons = Vec::new();
    for entry in entries() {
        if !reasons.contains(&entry.why) {
            reasons.push(entry.why);
        }
    }
    let features: Vec<&str> = FEATURES.iter().map(|(name, _)| *name).collect();
    let mut text = format!(
        "| package | version | SDK | eras | {} | identical, legacy client | identical, modern client |\n\
         |---|---|---|---|{}---|---|\n",
        features.join(" | "),
        "---|".repeat(features.len()),
    );
    for row in rows {
        text.push_str(&row.line(&reasons));
    }
    text.push('\n');
    for (index, reason) in reasons.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}. {}", index + 1, sentence(reason));
    }
    text
}

/// Returns a reason with a capital letter and a full stop.
fn sentence(reason: &str) -> String {
    let mut letters = reason.chars();
    let first = letters.next().map(|it| it.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_has_a_cell_for_each_heading() {
        let row = Row {
            package: "a".to_owned(),
            version: "1".to_owned(),
            sdk: "SDK 1".to_owned(),
            is_dual: true,
            counts: vec![Count::new(Way::LegacyHttp, 3, 1), Count::new(Way::LegacyStdio, 3, 0)],
            features: Features::default(),
            seen: BTreeSet::new(),
        };
        let text = table(&[row]);
        let lines: Vec<&str> = text.lines().collect();
        let cells = |line: &str| line.matches('|').count();
        assert_eq!(cells(lines[0]), cells(lines[1]));
        assert_eq!(cells(lines[0]), cells(lines[2]), "{text}");
        assert!(lines[2].ends_with("| 5 of 6 | 0 of 0 |"), "{text}");
        let all: Vec<&str> = entries().map(|it| it.why).collect();
        assert_eq!(number_of(&entries().next().unwrap().key(), &all), Some(1));
    }
}
