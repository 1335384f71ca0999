//! The table of `docs/compatibility.md`. Each test is a process of its own and writes its row
//! to a file; the last test assembles them.

use std::fs;
use std::path::{Path, PathBuf};

use xy_testkit::write_compatibility;

use crate::feature::FEATURES;
use crate::library::Library;
use crate::server::{Sharing, Transport, Way};
use crate::verdict::{Cell, FailureReason, Verdict};

/// Removes the row of an earlier run, which may not hold any more.
#[track_caller]
pub(crate) fn remove_row(library: &Library, way: Way) {
    let path = row_path(library, way);
    if path.exists() {
        fs::remove_file(path).unwrap();
    }
}

/// Writes the row of a library on one way: the cells in the first line, then the notes.
#[track_caller]
pub(crate) fn write_row(library: &Library, way: Way, verdict: &Verdict) {
    let path = row_path(library, way);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, row(&library.title(), way, verdict)).unwrap();
}

/// Assembles the rows of all libraries into the page.
///
/// # Panics
///
/// Panics if a row is missing.
#[track_caller]
pub(crate) fn write_table(libraries: &[&Library], with_shared: &[&Library]) {
    let places = [(libraries, Sharing::PerClient), (with_shared, Sharing::Shared)];
    let places = places.into_iter().flat_map(|(libraries, sharing)| {
        let ways = Transport::ALL.map(|transport| Way { transport, sharing });
        libraries.iter().flat_map(move |library| ways.map(|way| (*library, way)))
    });
    let rows = places.map(|(library, way)| {
        let path = row_path(library, way);
        fs::read_to_string(&path).unwrap_or_else(|cause| {
            let (key, way) = (library.key, way.name());
            panic!("no row of {key} over {way} ({cause}); run `./test zoo` without a filter")
        })
    });
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    write_compatibility(&page, "client libraries", &assemble(&rows.collect::<Vec<_>>()));
}

fn row_path(library: &Library, way: Way) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("client_libraries");
    folder.join(format!("{}-{}", library.key, way.name().replace(", ", "-")))
}

fn row(title: &str, way: Way, verdict: &Verdict) -> String {
    let name = &*way.name();
    let cells: Vec<String> = verdict.cells.iter().map(|cell| sign(*cell).to_string()).collect();
    let head = [title, name].into_iter().chain(cells.iter().map(String::as_str));
    let notes = grouped(&verdict.notes).into_iter();
    let notes = notes.map(|note| format!("- {title} over {name}, {note}"));
    [line(head)].into_iter().chain(notes).collect::<Vec<_>>().join("\n")
}

/// Returns a line for each reason: the features with the same reason and servers share one.
fn grouped(notes: &[FailureReason]) -> Vec<String> {
    let is_same = |a: &FailureReason, b: &FailureReason| (&a.why, &a.eras) == (&b.why, &b.eras);
    let is_first =
        |(at, note): &(usize, &FailureReason)| !notes[..*at].iter().any(|it| is_same(it, note));
    let firsts = notes.iter().enumerate().filter(is_first);
    let lines = firsts.map(|(_, first)| {
        let same = notes.iter().filter(|it| is_same(it, first)).map(|it| it.heading);
        let features = match same.clone().count() {
            count if count == FEATURES.len() => "every feature".to_owned(),
            _ => same.collect::<Vec<_>>().join(", "),
        };
        let servers: Vec<String> = first.eras.iter().map(|it| format!("`{}`", it.name())).collect();
        format!("{features}, server {}: {}", servers.join(" and "), first.why)
    });
    lines.collect()
}

/// Returns a line of a table.
fn line<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
}

fn sign(cell: Cell) -> char {
    match cell {
        Cell::Works => '✓',
        Cell::Unsupported => '–',
        Cell::Fails => '✗',
    }
}

fn assemble(rows: &[String]) -> String {
    let headings = FEATURES.iter().map(|(_, heading)| *heading);
    let rule = ["|---|---|", &"---|".repeat(FEATURES.len())].concat();
    let cells = rows.iter().map(|row| row.lines().next().unwrap_or_default());
    let notes = rows.iter().flat_map(|row| row.lines().skip(1));
    let mut lines = vec![line(["library", "over"].into_iter().chain(headings)), rule];
    lines.extend(cells.map(str::to_owned));
    let notes: Vec<&str> = notes.collect();
    if !notes.is_empty() {
        lines.extend([String::new(), "Cells with ✗:".to_owned(), String::new()]);
        lines.extend(notes.into_iter().map(str::to_owned));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Era;

    #[test]
    fn rows_come_first_and_notes_last() {
        let mut verdict = Verdict { cells: vec![Cell::Works; 15], ..Verdict::default() };
        verdict.cells.push(Cell::Fails);
        let note = |heading, eras| FailureReason { heading, eras, why: "why".to_owned() };
        verdict.notes.push(note("list", vec![Era::Both]));
        verdict.notes.push(note("4 MB", Era::ALL.to_vec()));
        verdict.notes.push(note("prompt", vec![Era::Both]));
        let way = |transport, sharing| Way { transport, sharing };
        let one = row("`a` 1", way(Transport::Http, Sharing::PerClient), &verdict);
        let two = row("`b` 2", way(Transport::Sse, Sharing::Shared), &Verdict::default());
        let table = assemble(&[one, two]);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("| library | over | list | Unicode |"), "{table}");
        assert!(lines[2].starts_with("| `a` 1 | http | ✓ |") && lines[2].ends_with("| ✗ |"));
        assert_eq!(lines[3], "| `b` 2 | sse, shared |");
        let notes = [
            "- `a` 1 over http, list, prompt, server `both`: why",
            "- `a` 1 over http, 4 MB, server `legacy` and `both`: why",
        ];
        assert_eq!(lines[lines.len() - 2..], notes);
    }
}
