//! Every test that `docs/design/faults.md` names exists.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// Returns the words in backticks that look like the name of a test.
fn names_on(page: &str) -> Vec<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted.filter(|text| text.matches('_').count() > 2 && !text.contains(' ')).collect()
}

/// Adds the name of every function below `folder`.
fn functions_in(folder: &Path, found: &mut HashSet<String>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            functions_in(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(path).unwrap();
            let after_fn = text.split("fn ").skip(1);
            found.extend(after_fn.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())));
        }
    }
}

#[test]
fn every_test_named_by_the_page_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/design/faults.md")).unwrap();
    let names = names_on(&page);
    assert!(names.len() > 50, "{names:#?}");
    let mut functions = HashSet::new();
    functions_in(&root.join("crates"), &mut functions);
    let missing: Vec<_> = names.into_iter().filter(|name| !functions.contains(*name)).collect();
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}
