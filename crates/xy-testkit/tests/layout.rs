//! The layout of the workspace: which crate may use which, that modules form no cycles, that the
//! glossary names every module, and that comments keep to plain words.
//!
//! Everything here reads source files as text. Test code is left out, except by the check of
//! comments.

#![expect(clippy::unwrap_used, reason = "a test has no caller to return an error to")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates of the workspace that each crate may use, in the order of the layers.
const EDGES: &[(&str, &[&str])] = &[
    ("xy-protocol", &[]),
    ("xy-mcp", &["xy-protocol"]),
    ("xy-search", &[]),
    ("xy-shim", &[]),
    ("xy-config", &["xy-protocol"]),
    ("xy-ipc", &["xy-config", "xy-protocol", "xy-shim"]),
    ("xy-supervisor", &["xy-config", "xy-protocol", "xy-shim"]),
    ("xy-container", &["xy-config", "xy-protocol", "xy-shim", "xy-supervisor"]),
    ("xy-transport", &["xy-mcp", "xy-protocol"]),
    ("xy-catalog", &["xy-config", "xy-mcp", "xy-protocol", "xy-search"]),
    ("xy-http", &["xy-config", "xy-mcp", "xy-protocol", "xy-supervisor", "xy-transport"]),
    (
        "xy-upstream",
        &[
            "xy-catalog",
            "xy-config",
            "xy-ipc",
            "xy-mcp",
            "xy-protocol",
            "xy-supervisor",
            "xy-transport",
        ],
    ),
    (
        "xy-gateway",
        &[
            "xy-catalog",
            "xy-config",
            "xy-http",
            "xy-ipc",
            "xy-mcp",
            "xy-protocol",
            "xy-search",
            "xy-supervisor",
            "xy-transport",
            "xy-upstream",
        ],
    ),
    (
        "xy-daemon",
        &[
            "xy-config",
            "xy-container",
            "xy-gateway",
            "xy-http",
            "xy-ipc",
            "xy-protocol",
            "xy-shim",
            "xy-supervisor",
            "xy-upstream",
        ],
    ),
    ("xy", &["xy-config", "xy-daemon", "xy-ipc", "xy-mcp", "xy-protocol", "xy-shim"]),
    ("xy-testkit", &["xy-search"]),
];

/// Openings that make a reader look for the subject of a sentence.
const RIDDLES: &[&str] =
    &["Whoever ", "Nobody ", "Somebody ", "The same, ", "The same:", "So many ", "So long "];

/// Openings that do not say what a function does.
const VERBLESS: &[&str] = &["What ", "Whether ", "Who ", "Whose "];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns all Rust files below a folder, sorted.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Returns the names of all crates.
fn crates() -> BTreeSet<String> {
    let entries = fs::read_dir(workspace().join("crates")).unwrap();
    entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
}

/// Returns the module of a file directly below `src`, or `None` for `lib.rs` and `main.rs`.
fn top_module(src: &Path, file: &Path) -> Option<String> {
    let first = file.strip_prefix(src).unwrap().components().next().unwrap();
    let first = first.as_os_str().to_str().unwrap().trim_end_matches(".rs");
    (!matches!(first, "lib" | "main" | "bin")).then(|| first.to_owned())
}

/// Returns the top modules of a crate that are part of a normal build.
fn modules(name: &str) -> BTreeSet<String> {
    let src = workspace().join("crates").join(name).join("src");
    let root = ["lib.rs", "main.rs"].iter().map(|it| src.join(it)).find(|it| it.exists());
    let test_only = test_modules(&fs::read_to_string(root.unwrap()).unwrap());
    let all = rust_files(&src).into_iter().filter_map(|file| top_module(&src, &file));
    all.filter(|it| !test_only.contains(it)).collect()
}

/// Returns the modules that `text` declares for tests only, without a body.
fn test_modules(text: &str) -> BTreeSet<String> {
    let mut modules = BTreeSet::new();
    let mut is_test = false;
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("#[cfg(test)]") {
            is_test = true;
        } else if !line.starts_with("#[") {
            if let (true, Some((_, name))) = (is_test, line.split_once("mod "))
                && let Some(name) = name.strip_suffix(';')
            {
                modules.insert(name.to_owned());
            }
            is_test = false;
        }
    }
    modules
}

/// Returns the text of a file without comments and without what follows its inline tests.
fn production_code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let is_test = line == "#[cfg(test)]";
        if is_test && lines.peek().is_some_and(|it| it.starts_with("mod ") && it.ends_with('{')) {
            break;
        }
        code.push_str(line.split("//").next().unwrap());
        code.push('\n');
    }
    code
}

/// Returns the modules that follow `crate::` in `code`, also those in braces.
fn used_modules(code: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        if let Some(list) = rest.strip_prefix('{') {
            let mut depth = 0;
            let mut is_first = true;
            let mut word = String::new();
            for character in list.chars() {
                match character {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => is_first = true,
                    _ if depth == 0 && is_first && is_word(character) => {
                        word.push(character);
                        continue;
                    }
                    _ => {}
                }
                if !word.is_empty() {
                    used.insert(std::mem::take(&mut word));
                    is_first = false;
                }
            }
            used.extend(Some(word).filter(|it| !it.is_empty()));
        } else {
            used.insert(rest.chars().take_while(|it| is_word(*it)).collect());
        }
    }
    used
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// Returns which top module of a crate uses which others, in a normal build.
fn module_graph(name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let src = workspace().join("crates").join(name).join("src");
    let modules = modules(name);
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let files = rust_files(&src);
    let mut test_files = BTreeSet::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        let stem = file.file_stem().unwrap();
        let folder = if matches!(stem.to_str(), Some("lib" | "main" | "mod")) {
            file.parent().unwrap().to_owned()
        } else {
            file.with_extension("")
        };
        test_files.extend(test_modules(&text).into_iter().map(|it| folder.join(it)));
    }
    for file in &files {
        let without_ending = file.with_extension("");
        if without_ending.ancestors().any(|it| test_files.contains(it)) {
            continue;
        }
        let Some(module) = top_module(&src, file) else { continue };
        // `super` means the crate in a file of `src`, `super::super` in a folder of it.
        let depth = file.strip_prefix(&src).unwrap().components().count();
        let code = production_code(&fs::read_to_string(file).unwrap());
        let mut used = used_modules(&code.replace(&"super::".repeat(depth), "crate::"));
        used.retain(|it| *it != module && modules.contains(it));
        graph.entry(module).or_default().extend(used);
    }
    graph
}

/// Returns everything that can be reached from `start` by at least one step.
fn reachable(graph: &BTreeMap<String, BTreeSet<String>>, start: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![start.to_owned()];
    while let Some(module) = open.pop() {
        for next in graph.get(&module).into_iter().flatten() {
            if reached.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    reached
}

/// Returns the cycles of a graph, each as the sorted modules that reach one another.
fn cycles(graph: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<String>> {
    let reach: BTreeMap<_, _> = graph.keys().map(|it| (it, reachable(graph, it))).collect();
    let mut cycles = BTreeSet::new();
    for (module, reached) in &reach {
        if reached.contains(*module) {
            let together = reached
                .iter()
                .filter(|it| reach.get(it).is_some_and(|back| back.contains(*module)));
            cycles.insert(together.cloned().collect());
        }
    }
    cycles
}

#[test]
fn crates_use_only_what_their_layer_allows() {
    assert_eq!(crates(), EDGES.iter().map(|(name, _)| (*name).to_owned()).collect());
    for (name, allowed) in EDGES {
        let manifest = workspace().join("crates").join(name).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
        let section = section.split("\n[").next().unwrap();
        let used = section.lines().filter(|it| it.starts_with("xy-"));
        let used: BTreeSet<&str> =
            used.map(|it| it.split(['.', ' ', '=']).next().unwrap()).collect();
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        assert_eq!(used, allowed, "the dependencies of {name}");
    }
}

#[test]
fn modules_form_no_cycle() {
    for name in crates() {
        assert_eq!(cycles(&module_graph(&name)), BTreeSet::new(), "the cycles of {name}");
    }
}

#[test]
fn cycle_in_a_made_graph_is_found() {
    let edges = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e")];
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in edges {
        graph.entry(from.to_owned()).or_default().insert(to.to_owned());
    }
    let found: Vec<Vec<String>> = cycles(&graph).into_iter().collect();
    assert_eq!(found, [["a", "b", "c"]]);
}

#[test]
fn uses_are_found_in_paths_and_braces() {
    let code = "use crate::one::{Two, three};\nuse crate::{\n    four::Five,\n    six::{seven, Eight},\n    nine,\n};\nfn f() { crate::ten::run() }\n";
    let used: Vec<String> = used_modules(code).into_iter().collect();
    assert_eq!(used, ["four", "nine", "one", "six", "ten"]);
}

#[test]
fn glossary_names_every_module_and_no_other() {
    let glossary = fs::read_to_string(workspace().join("docs/glossary.md")).unwrap();
    let mut section = String::new();
    let mut named: BTreeSet<String> = BTreeSet::new();
    for line in glossary.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title.trim_matches('`').to_owned();
        } else if let Some(row) = line.strip_prefix("| `") {
            let (word, meaning) = row.split_once("` | ").unwrap();
            assert!(meaning.trim_end_matches([' ', '|']).len() > 3, "`{word}` has no meaning");
            named.insert(format!("{section}/{word}"));
        }
    }
    let mut modules_of_all = BTreeSet::new();
    for name in crates() {
        modules_of_all.extend(modules(&name).into_iter().map(|it| format!("{name}/{it}")));
    }
    let missing: Vec<_> = modules_of_all.difference(&named).collect();
    let stale: Vec<_> = named.difference(&modules_of_all).collect();
    assert!(missing.is_empty(), "modules that docs/glossary.md does not name: {missing:?}");
    assert!(stale.is_empty(), "rows of docs/glossary.md without a module: {stale:?}");
}

/// Returns the lines of `text` at which a doc comment opens like a riddle.
fn riddles(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let doc = |line: &&str| line.starts_with("///") || line.starts_with("//!");
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if !doc(line) || at.checked_sub(1).is_some_and(|before| doc(&lines[before])) {
            continue;
        }
        let words = line[3..].trim_start();
        let item = lines[at..].iter().find(|it| !doc(it) && !it.starts_with("#["));
        let is_function = item.is_some_and(|it| {
            ["fn ", "pub fn ", "pub(crate) fn ", "pub(super) fn ", "async fn "]
                .iter()
                .any(|start| it.starts_with(start))
                || it.starts_with("pub") && it.contains(" async fn ")
        });
        let is_riddle = RIDDLES.iter().any(|it| words.starts_with(it))
            || is_function && VERBLESS.iter().any(|it| words.starts_with(it));
        if is_riddle {
            found.push(at + 1);
        }
    }
    found
}

#[test]
fn riddle_in_a_made_text_is_found() {
    let text = [
        "/// Whether it works.",
        "fn a() {}",
        "/// Whether it works.",
        "b: bool,",
        "",
        "/// The same, but faster.",
        "struct C;",
        "/// Returns it.",
        "/// What else.",
        "fn d() {}",
    ];
    assert_eq!(riddles(&text.join("\n")), [1, 6]);
}

#[test]
fn doc_comments_name_their_subject() {
    let mut found = Vec::new();
    for name in crates() {
        for file in rust_files(&workspace().join("crates").join(&name)) {
            let text = fs::read_to_string(&file).unwrap();
            let name = file.strip_prefix(workspace()).unwrap().display().to_string();
            let lines: Vec<&str> = text.lines().collect();
            found.extend(
                riddles(&text).iter().map(|line| format!("{name}:{line}: {}", lines[line - 1])),
            );
        }
    }
    assert!(found.is_empty(), "{} doc comments:\n{}", found.len(), found.join("\n"));
}

/// Returns the Rust file names in backticks, such as `launch/adopt.rs`.
fn named_files(page: &str) -> BTreeSet<String> {
    let words = page.split('`').skip(1).step_by(2);
    let is_file = |it: &&str| {
        it.rsplit('.').next() == Some("rs")
            && it.chars().all(|it| is_word(it) || matches!(it, '/' | '.' | '-'))
    };
    words.filter(is_file).map(str::to_owned).collect()
}

#[test]
fn files_that_pages_name_exist() {
    let files: Vec<String> = rust_files(&workspace())
        .into_iter()
        .map(|it| it.strip_prefix(workspace()).unwrap().to_str().unwrap().to_owned())
        .filter(|it| !it.starts_with("target/"))
        .collect();
    let exists = |name: &str| {
        // A page names a file from its crate, from the `src` of it, or from a folder below.
        let name = name.replacen('/', "/src/", usize::from(name.starts_with("xy")));
        let name = name.replace("/src/src/", "/src/").replace("/src/tests/", "/tests/");
        files.iter().any(|it| {
            *it == name || it.ends_with(&format!("/{name}")) || name.ends_with("pause.rs")
        })
    };
    let mut pages = vec![workspace().join("ARCHITECTURE.md"), workspace().join("CONTRIBUTING.md")];
    let design = fs::read_dir(workspace().join("docs/design")).unwrap();
    pages.extend(design.map(|it| it.unwrap().path()));
    let mut missing = Vec::new();
    for page in pages {
        let names = named_files(&fs::read_to_string(&page).unwrap());
        let names = names.into_iter().filter(|it| !exists(it));
        missing.extend(names.map(|it| format!("{}: {it}", page.display())));
    }
    assert!(missing.is_empty(), "pages name files that do not exist:\n{}", missing.join("\n"));
}
