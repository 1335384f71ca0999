use proptest::prelude::*;

use super::*;

fn document(server: &str, tool: &str, description: &str) -> Document {
    let definition = serde_json::json!({"name": tool, "description": description});
    Document::from_definition(server, &format!("{server}__{tool}"), &definition.to_string())
}

/// Creates an index from lines of the form `server/tool: description`.
fn index_of(tools: &[&str]) -> Index {
    let mut servers: BTreeMap<&str, Vec<Document>> = BTreeMap::new();
    for tool in tools {
        let (place, description) = tool.split_once(": ").unwrap();
        let (server, tool) = place.split_once('/').unwrap();
        servers.entry(server).or_default().push(document(server, tool, description));
    }
    let mut index = Index::default();
    for (server, documents) in servers {
        assert_eq!(index.replace_server(server, &documents), 0);
    }
    index
}

fn names(index: &Index, query: &str) -> Vec<String> {
    index.search(query, 10, |_, _| true).iter().map(|it| it.name.to_owned()).collect()
}

const SAMPLE_TOOLS: [&str; 6] = [
    "files/read_file: Reads a file from the disk",
    "files/deleteFile: Deletes a file",
    "mail/send_email: Sends an email to somebody",
    "mail/listEmails: Lists the emails of a folder",
    "web/browser_select_option: Selects an option in a dropdown",
    "web/PromQL: Asks Prometheus",
];

#[test]
fn tool_is_found_by_any_form_of_its_words() {
    let index = index_of(&SAMPLE_TOOLS);
    let table = [
        ("delete a file", "files__deleteFile"),
        ("deleting files", "files__deleteFile"),
        ("remove file", "files__deleteFile"),
        ("DELETE FILE", "files__deleteFile"),
        ("mail someone", "mail__send_email"),
        ("show mails", "mail__listEmails"),
        ("drop-down", "web__browser_select_option"),
        ("drop down", "web__browser_select_option"),
        ("promql", "web__PromQL"),
        ("promethus", "web__PromQL"),
        ("brows", "web__browser_select_option"),
    ];
    for (query, expected) in table {
        assert_eq!(names(&index, query).first().map(String::as_str), Some(expected), "{query}");
    }
}

#[test]
fn exact_name_comes_first() {
    let tools = ["a/list: Something", "b/list_list_list: List list list, a list of lists"];
    let index = index_of(&tools);
    assert_eq!(names(&index, "list")[0], "a__list");
    assert_eq!(names(&index, " a__LIST ")[0], "a__list");
    assert_eq!(names(&index, "b__list_list_list")[0], "b__list_list_list");
}

#[test]
fn tool_with_a_stop_word_name_is_found() {
    let index = index_of(&["a/down: Something", "a/other: Something else", "b/up_to: Anything"]);
    for name in ["down", "other", "up_to"] {
        assert!(names(&index, name)[0].ends_with(name), "{name}");
    }
}

#[test]
fn separated_phrasal_verb_is_recognised() {
    let index = index_of(&["a/revert: Undoes a change", "a/list: Lists rolls", "b/TurnOff: Off"]);
    assert_eq!(names(&index, "roll the last release back")[0], "a__revert");
    assert_eq!(names(&index, "turn the lamp off")[0], "b__TurnOff");
    assert!(names(&index, "lamp off").is_empty(), "`off` says nothing where it makes no verb");
}

#[test]
fn irregular_forms_and_spellings_match() {
    let index = index_of(&["a/send: Sends", "a/color: Colors", "a/person: A person"]);
    for (query, expected) in [("sent", "a__send"), ("colour", "a__color"), ("people", "a__person")]
    {
        assert_eq!(names(&index, query), [expected], "{query}");
    }
}

#[test]
fn mistyped_synonym_is_corrected() {
    let index = index_of(&["a/forecast: Weather of a place", "a/news: News"]);
    assert_eq!(names(&index, "umbrela"), ["a__forecast"]);
    assert_eq!(names(&index, "3pm"), Vec::<String>::new());
}

#[test]
fn reading_query_does_not_prefer_removal() {
    let index = index_of(&["a/delete_event: An event", "a/list_event: An event"]);
    assert_eq!(names(&index, "event")[0], "a__list_event");
    assert_eq!(names(&index, "is there an event")[0], "a__list_event");
    assert_eq!(names(&index, "cancel the event")[0], "a__delete_event");
}

#[test]
fn unrelated_query_finds_nothing() {
    let index = index_of(&SAMPLE_TOOLS);
    for query in ["", "  ", "?!", "zebra", "\u{0}", "🦀", "天気"] {
        assert!(names(&index, query).is_empty(), "{query:?}");
    }
    assert!(names(&Index::default(), "file").is_empty());
    assert!(index.search("file", 0, |_, _| true).is_empty());
}

#[test]
fn ties_are_ordered_by_name() {
    let index = index_of(&["b/same: x", "a/same: x", "c/same: x"]);
    assert_eq!(names(&index, "same x"), ["a__same", "b__same", "c__same"]);
}

#[test]
fn removed_tools_are_not_found() {
    let mut index = index_of(&SAMPLE_TOOLS);
    assert_eq!((index.len(), index.is_empty()), (6, false));
    index.remove_server("files");
    index.remove_server("nobody");
    assert_eq!(index.len(), 4);
    assert!(names(&index, "disk").is_empty());
    index.replace_server("mail", &[document("mail", "archive", "Archives")]);
    assert_eq!(index.len(), 3);
    assert!(names(&index, "send").is_empty());
    assert_eq!(names(&index, "archive"), ["mail__archive"]);
    index.replace_server("mail", &[]);
    index.remove_server("web");
    assert!(index.is_empty() && index.words.is_empty());
}

#[test]
fn visibility_is_evaluated_once_per_change() {
    let mut index = index_of(&SAMPLE_TOOLS);
    let evaluations = std::cell::Cell::new(0);
    let accepts = |server: &str, _: &str| {
        evaluations.set(evaluations.get() + 1);
        server != "files"
    };
    let mut visible = VisibilityCache::default();
    assert!(index.search_cached(&mut visible, "disk", 5, accepts).is_empty());
    assert!(index.search_cached(&mut visible, "file", 5, accepts).is_empty());
    assert_eq!(evaluations.get(), 6);
    index.replace_server("disk", &[document("disk", "spin", "Spins a disk")]);
    assert_eq!(index.search_cached(&mut visible, "disk", 5, accepts)[0].name, "disk__spin");
    assert_eq!(evaluations.get(), 13);
}

#[test]
fn limits_are_enforced() {
    let many: Vec<Document> = (0..MAX_TOOLS_PER_SERVER + 7)
        .map(|it| document("many", &format!("tool{it}"), "Does the same"))
        .collect();
    let mut index = Index::default();
    assert_eq!(index.replace_server("many", &many), 7);
    assert_eq!(index.len(), MAX_TOOLS_PER_SERVER);
    assert_eq!(index.search("same", usize::MAX, |_, _| true).len(), MAX_HITS);
    let long = "same ".repeat(100_000);
    assert_eq!(index.search(&long, 3, |_, _| true).len(), 3);
    let words: Vec<String> = (0..100_000).map(|it| format!("w{it}x")).collect();
    assert!(index.search(&words.join(" "), 3, |_, _| true).is_empty());
    assert_eq!(index.replace_server("twice", &[many[0].clone(), many[0].clone()]), 0);
    assert_eq!(index.len(), MAX_TOOLS_PER_SERVER + 1);
}

/// Words for documents and queries, some of them similar to each other.
const WORDS: [&str; 14] = [
    "file",
    "files",
    "filer",
    "delete",
    "remove",
    "mail",
    "email",
    "send",
    "drop",
    "down",
    "dropdown",
    "getUserName",
    "news",
    "größe",
];

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&WORDS[..]), 0..6).prop_map(|it| it.join(" "))
}

/// A sequence of changes, each with a server and its new tools.
fn changes() -> impl Strategy<Value = Vec<(usize, Vec<(usize, String)>)>> {
    let tools = prop::collection::vec((0_usize..6, text()), 0..5);
    prop::collection::vec((0_usize..4, tools), 1..8)
}

fn documents(server: &str, tools: &[(usize, String)]) -> Vec<Document> {
    tools.iter().map(|(tool, about)| document(server, &format!("tool{tool}"), about)).collect()
}

/// Returns the hits as values that compare exactly.
fn found(
    index: &Index,
    query: &str,
    accepts: impl Fn(&str, &str) -> bool,
) -> Vec<(String, String, u32)> {
    let hits = index.search(query, MAX_HITS, accepts);
    hits.iter().map(|it| (it.server.to_owned(), it.name.to_owned(), it.score.to_bits())).collect()
}

proptest! {
    #[test]
    fn incremental_changes_equal_a_rebuild(changes in changes(), query in text()) {
        let mut index = Index::default();
        let mut last: BTreeMap<String, Vec<Document>> = BTreeMap::new();
        for (server, tools) in &changes {
            let server = format!("server{server}");
            let documents = documents(&server, tools);
            index.replace_server(&server, &documents);
            last.insert(server, documents);
        }
        let mut rebuilt = Index::default();
        for (server, documents) in last.iter().rev() {
            rebuilt.replace_server(server, documents);
        }
        prop_assert_eq!(index.len(), rebuilt.len());
        prop_assert_eq!(found(&index, &query, |_, _| true), found(&rebuilt, &query, |_, _| true));
        let words = |index: &Index| -> Vec<Box<str>> { index.words.keys().cloned().collect() };
        prop_assert_eq!(words(&index), words(&rebuilt));
    }

    /// Not even a score reveals that hidden tools exist.
    #[test]
    fn hidden_tools_do_not_affect_results(
        changes in changes(), query in text(), hidden in prop::collection::vec((0_usize..4, 0_usize..6), 0..9)
    ) {
        let shows = |server: &str, name: &str| {
            !hidden.iter().any(|(s, t)| server == format!("server{s}") && name == format!("server{s}__tool{t}"))
        };
        let (mut all, mut visible_only) = (Index::default(), Index::default());
        for (server, tools) in &changes {
            let server = format!("server{server}");
            let documents = documents(&server, tools);
            all.replace_server(&server, &documents);
            let shown: Vec<Document> =
                documents.into_iter().filter(|it| shows(&server, &it.name)).collect();
            visible_only.replace_server(&server, &shown);
        }
        let hits = found(&all, &query, shows);
        prop_assert!(hits.iter().all(|(server, name, _)| shows(server, name)));
        prop_assert_eq!(hits, found(&visible_only, &query, |_, _| true));
    }

    #[test]
    fn arbitrary_input_is_handled(definition in ".*", name in ".*", query in ".*", limit: usize) {
        let mut index = index_of(&SAMPLE_TOOLS);
        index.replace_server("odd", &[Document::from_definition("odd", &name, &definition)]);
        let hits = index.search(&query, limit, |_, _| true);
        prop_assert!(hits.len() <= limit.min(MAX_HITS));
        prop_assert!(hits.iter().all(|it| it.score.is_finite() && it.score > 0.0));
        prop_assert!(hits.is_sorted_by(|a, b| a.score >= b.score));
    }

    #[test]
    fn arbitrary_definitions_are_handled(json in json()) {
        let document = Document::from_definition("s", "s__t", &json);
        let mut index = Index::default();
        index.replace_server("s", &[document]);
        prop_assert_eq!(index.len(), 1);
    }
}

/// Definitions with the right keys in the wrong places.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("-1e3".to_owned()),
        ".{0,8}".prop_map(|it| serde_json::Value::String(it).to_string()),
    ];
    leaf.prop_recursive(8, 64, 6, |inner| {
        let words = ["name", "description", "inputSchema", "properties", "items", "anyOf", "enum"];
        let field = (prop::sample::select(words.to_vec()), inner.clone())
            .prop_map(|(name, value)| format!("\"{name}\":{value}"));
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(|it| format!("[{}]", it.join(","))),
            prop::collection::vec(field, 0..6).prop_map(|it| format!("{{{}}}", it.join(","))),
        ]
    })
}

#[test]
fn every_field_is_searched() {
    let definition = serde_json::json!({
        "name": "zebra_one", "title": "Quokka", "description": "Wombat",
        "inputSchema": { "properties": { "numbat": { "description": "Potoroo" } } },
    });
    let mut index = index_of(&SAMPLE_TOOLS);
    let tool = Document::from_definition("dingo", "dingo__zebra_one", &definition.to_string());
    assert_eq!(index.replace_server("dingo", &[tool]), 0);
    let by_annotation = serde_json::json!({ "name": "x", "annotations": { "title": "Bilby" } });
    let tool = Document::from_definition("other", "other__x", &by_annotation.to_string());
    assert_eq!(index.replace_server("other", &[tool]), 0);
    for (place, query) in [
        ("the name", "zebra"),
        ("the title", "quokka"),
        ("the description", "wombat"),
        ("an argument's name", "numbat"),
        ("what is said of an argument", "potoroo"),
        ("the name of the server", "dingo"),
    ] {
        assert_eq!(names(&index, query), ["dingo__zebra_one"], "{place}");
    }
    assert_eq!(names(&index, "bilby"), ["other__x"], "the title among the annotations");
}
