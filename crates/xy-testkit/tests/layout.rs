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
    ("xy-http", &["xy-config", "xy-mcp", "xy-protocol", "xy-transport"]),
    (
        "xy-upstream",
        &["xy-catalog", "xy-config", "xy-mcp", "xy-protocol", "xy-supervisor", "xy-transport"],
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

/// Returns the text of a file without comments and without items for tests only.
fn production_code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut lines = text.lines().map(|line| line.split("//").next().unwrap());
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            code.push_str(line);
            code.push('\n');
            continue;
        }
        // The item ends at its own indentation, whatever braces its strings contain.
        let indent = line.len() - line.trim_start().len();
        for line in lines.by_ref() {
            let is_own = line.len() - line.trim_start().len() == indent;
            if is_own && line.trim_end().ends_with([';', '}', ',']) {
                break;
            }
        }
    }
    code
}

/// The path of a module or an item, from the root of its crate.
type ItemPath = Vec<String>;

/// Splits a path with braces, such as `a::{b, c::{d, e}}`, into single paths. Returns them with
/// the rest of `code`.
fn expand_path<'c>(prefix: &ItemPath, code: &'c str) -> (Vec<ItemPath>, &'c str) {
    let code = code.trim_start();
    if let Some(mut list) = code.strip_prefix('{') {
        let mut paths = Vec::new();
        loop {
            list = list.trim_start_matches(|it: char| it == ',' || it.is_whitespace());
            if list.is_empty() {
                return (paths, list);
            }
            if let Some(rest) = list.strip_prefix('}') {
                return (paths, rest);
            }
            let (more, rest) = expand_path(prefix, list);
            // Skips what does not belong to a path, such as `as name`.
            list = rest.trim_start_matches(|it: char| it != ',' && it != '}');
            paths.extend(more);
        }
    }
    let length = code.find(|it| !is_word(it)).unwrap_or(code.len());
    let (word, rest) = code.split_at(length);
    let mut path = prefix.clone();
    path.extend(Some(word.to_owned()).filter(|it| !it.is_empty() && it != "self"));
    match rest.strip_prefix("::") {
        Some(rest) if length > 0 && !rest.starts_with('<') => expand_path(&path, rest),
        _ => (vec![path], rest),
    }
}

/// Returns the paths in `code` that begin with `crate`, `self` or `super`.
fn paths_in(code: &str) -> Vec<ItemPath> {
    let mut paths = Vec::new();
    for start in ["crate::", "self::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let before = code[..at].chars().next_back();
            if before.is_none_or(|it| !is_word(it) && it != ':') {
                let root = vec![start.trim_end_matches(':').to_owned()];
                paths.extend(expand_path(&root, &code[at + start.len()..]).0);
            }
        }
    }
    paths
}

/// Returns the paths that the `use` declarations of `code` import.
fn imports_in(code: &str) -> Vec<ItemPath> {
    let mut imports = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let line = code[..at].rsplit('\n').next().unwrap();
        if line.is_empty() || line.starts_with("pub") {
            imports.extend(expand_path(&Vec::new(), &code[at + "use ".len()..]).0);
        }
    }
    imports
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// The modules of one crate that are part of a normal build.
#[derive(Default)]
struct ModuleTree {
    /// The code of each module.
    code: BTreeMap<ItemPath, String>,
    /// The imports of each module by name, which its children see through `super`.
    imports: BTreeMap<ItemPath, BTreeMap<String, ItemPath>>,
}

impl ModuleTree {
    /// Reads the modules of a crate, except programs in `src/bin`.
    fn read(name: &str) -> Self {
        let src = workspace().join("crates").join(name).join("src");
        let mut texts = BTreeMap::new();
        for file in rust_files(&src) {
            let path = file.strip_prefix(&src).unwrap().with_extension("");
            let mut path: ItemPath =
                path.iter().map(|it| it.to_str().unwrap().to_owned()).collect();
            if path[0] == "bin" {
                continue;
            }
            if path.last().is_some_and(|it| matches!(&**it, "lib" | "main" | "mod")) {
                path.pop();
            }
            texts.insert(path, fs::read_to_string(file).unwrap());
        }
        Self::of(texts)
    }

    /// Creates the tree of modules with these texts.
    fn of(texts: BTreeMap<ItemPath, String>) -> Self {
        let mut test_only = BTreeSet::new();
        for (path, text) in &texts {
            test_only.extend(test_modules(text).into_iter().map(|it| joined(path, &it)));
        }
        let mut tree = Self::default();
        for (path, text) in texts {
            if !(1..=path.len()).any(|length| test_only.contains(&path[..length])) {
                tree.code.insert(path, production_code(&text));
            }
        }
        for (path, code) in &tree.code {
            let imports = imports_in(code).into_iter();
            let named = imports.filter_map(|it| Some((it.last()?.clone(), it)));
            tree.imports.insert(path.clone(), named.collect());
        }
        tree
    }

    /// Returns the module that defines what `from` calls `path`, or `None` if that is in another
    /// crate.
    fn find(&self, from: &[String], path: &[String], depth: usize) -> Option<ItemPath> {
        let mut at = from.to_owned();
        for (index, word) in path.iter().enumerate() {
            match &**word {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                _ => {
                    let child = joined(&at, word);
                    if self.code.contains_key(&child) {
                        at = child;
                        continue;
                    }
                    let import = self.imports.get(&at).and_then(|it| it.get(word));
                    return match import {
                        Some(import) if depth < 8 => self.find(&at, import, depth + 1),
                        _ => (index > 0).then_some(at),
                    };
                }
            }
        }
        Some(at)
    }

    /// Returns which children of each module use which of their siblings. A use of a parent or of
    /// a child is none.
    fn sibling_graphs(&self) -> BTreeMap<ItemPath, BTreeMap<String, BTreeSet<String>>> {
        let mut graphs: BTreeMap<ItemPath, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for (from, code) in &self.code {
            for path in paths_in(code) {
                let Some(to) = self.find(from, &path, 0) else { continue };
                let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
                if common < from.len() && common < to.len() {
                    let graph = graphs.entry(from[..common].to_owned()).or_default();
                    graph.entry(from[common].clone()).or_default().insert(to[common].clone());
                }
            }
        }
        graphs
    }

    /// Returns the cycles among siblings, such as `launch/{adopt, process}`.
    fn cycles(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (parent, graph) in self.sibling_graphs() {
            for cycle in cycles(&graph) {
                found.insert(format!("{}/{{{}}}", parent.join("/"), cycle.join(", ")));
            }
        }
        found
    }
}

fn joined(path: &[String], name: &str) -> ItemPath {
    [path, &[name.to_owned()]].concat()
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

/// Returns the crates of the workspace that a manifest depends on, on any platform. Dependencies
/// of tests do not count.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let sections = manifest.split("\n[").filter_map(|it| it.split_once("]\n"));
    let is_used = |title: &str| {
        title == "dependencies" || title.starts_with("target.") && title.ends_with(".dependencies")
    };
    let sections = sections.filter(move |(title, _)| is_used(title));
    let lines = sections.flat_map(|(_, section)| section.lines());
    lines.filter(|it| it.starts_with("xy-")).map(|it| it.split(['.', ' ', '=']).next().unwrap())
}

#[test]
fn dependencies_of_all_platforms_count() {
    let manifest = "[package]\nname = \"a\"\n\n[dependencies]\nxy-b.workspace = true\nlibc = \"1\"\n\n\
        [target.'cfg(target_os = \"linux\")'.dependencies]\nxy-c = { path = \"c\" }\n\n\
        [dev-dependencies]\nxy-d.workspace = true\n\n\
        [target.'cfg(unix)'.dev-dependencies]\nxy-e.workspace = true\n";
    let found: Vec<&str> = dependencies(manifest).collect();
    assert_eq!(found, ["xy-b", "xy-c"]);
}

#[test]
fn crates_use_only_what_their_layer_allows() {
    assert_eq!(crates(), EDGES.iter().map(|(name, _)| (*name).to_owned()).collect());
    for (name, allowed) in EDGES {
        let manifest = workspace().join("crates").join(name).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        let used: BTreeSet<&str> = dependencies(&manifest).collect();
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        assert_eq!(used, allowed, "the dependencies of {name}");
    }
}

#[test]
fn modules_form_no_cycle() {
    let mut found = Vec::new();
    for name in crates() {
        let cycles = ModuleTree::read(&name).cycles();
        found.extend(cycles.into_iter().map(|it| format!("{name}: {it}")));
    }
    assert!(found.is_empty(), "modules that use one another:\n{}", found.join("\n"));
}

/// Returns the cycles of a crate with these modules, such as `("a/b", "use super::c;")`.
fn cycles_of(modules: &[(&str, &str)]) -> Vec<String> {
    let path = |it: &str| it.split('/').filter(|it| !it.is_empty()).map(str::to_owned).collect();
    let texts = modules.iter().map(|(module, text)| (path(module), (*text).to_owned()));
    ModuleTree::of(texts.collect()).cycles().into_iter().collect()
}

#[test]
fn cycles_are_found_at_every_depth() {
    let top =
        [("a", "use crate::b::B;"), ("b", "fn f() { crate::c::run() }"), ("c", "use super::a;")];
    assert_eq!(cycles_of(&top), ["/{a, b, c}"]);
    let deep =
        [("a", ""), ("a/b", "use super::{x::{self, Y}, c};"), ("a/c", "use crate::a::b::B;")];
    assert_eq!(cycles_of(&deep), ["a/{b, c}"]);
    let below =
        [("a", ""), ("a/b", ""), ("a/b/d", "use super::super::c;"), ("a/c", "use super::b;")];
    assert_eq!(cycles_of(&below), ["a/{b, c}"]);
}

#[test]
fn cycles_through_imports_of_a_parent_are_found() {
    let root = [
        ("", "pub use b::B;\nuse c::{C as D, E};"),
        ("a", "use crate::B;"),
        ("b", "use crate::a;"),
    ];
    assert_eq!(cycles_of(&root), ["/{a, b}"]);
    let parent =
        [("p", "mod a;\nuse a::{self, A};"), ("p/a", "use super::b;"), ("p/b", "use super::A;")];
    assert_eq!(cycles_of(&parent), ["p/{a, b}"]);
}

#[test]
fn parents_tests_and_other_crates_make_no_cycle() {
    let family = [("a", "mod b;\nuse b::B;"), ("a/b", "use super::A;\nuse crate::a::A;")];
    assert_eq!(cycles_of(&family), [""; 0]);
    let tests = [
        ("a", "use crate::b;"),
        ("b", "// crate::a\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}"),
    ];
    assert_eq!(cycles_of(&tests), [""; 0]);
    let files =
        [("a", "use crate::b;"), ("b", "#[cfg(test)]\nmod tests;"), ("b/tests", "use crate::a;")];
    assert_eq!(cycles_of(&files), [""; 0]);
    let other =
        [("a", "use crate::b;"), ("b", "use std::fs;\nuse super::fs;"), ("", "use std::a::fs;")];
    assert_eq!(cycles_of(&other), [""; 0]);
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
