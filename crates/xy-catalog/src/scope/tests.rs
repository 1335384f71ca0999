//! Tests of the meaning of a profile's lines, and that nothing bypasses them.

use proptest::prelude::*;
use xy_config::check_text;

use super::*;

/// Names of tools of xy itself.
const OWN_TOOLS: [&str; 2] = ["list_servers", "restart_server"];

fn settings(text: &str) -> Arc<ProfileSettings> {
    let mut loaded = check_text("profiles/p.kdl", text);
    let errors: Vec<_> = loaded.problems.iter().filter(|it| it.is_error()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    loaded.settings.profiles.remove("p").unwrap()
}

fn scope(text: &str) -> Scope {
    Scope::new(settings(text))
}

/// A row: the profile, the kind, server and name of an item, if it is shown, and the deciding line.
type Row = (&'static str, Kind, &'static str, &'static str, bool, Option<u32>);

#[test]
fn lines_decide_what_is_shown() {
    use Kind::{Prompts, Resources, Templates, Tools};
    const PARTS: &str = "server \"git\" {\n tools {\n  allow \"read_*\" \"status\"\n  deny \"read_secret\"\n }\n prompts { deny \"*\" }\n resources {\n  allow \"file:///srv/*\"\n  deny \"*.key\"\n }\n}";
    const UNION: &str = "allow \"git__status\"\nserver \"files\" { tools { allow \"read_*\" } }";
    let table: &[Row] = &[
        ("", Tools, "git", "push", true, None),
        ("servers \"git\"", Tools, "git", "push", true, Some(1)),
        ("servers \"git\"", Prompts, "files", "x", false, Some(1)),
        ("servers \"git\" \"fi*\"", Resources, "files", "a:b", true, Some(1)),
        ("servers \"git\"\nservers \"files\"", Tools, "files", "x", true, Some(2)),
        ("servers \"*\"\ndeny-servers \"git\"", Tools, "git", "x", false, Some(2)),
        ("deny-servers \"git\"\nservers \"git\"", Tools, "git", "x", false, Some(1)),
        ("deny \"git__push\"", Tools, "git", "push", false, Some(1)),
        ("deny \"git__push\"", Prompts, "git", "push", true, None),
        ("deny \"*push*\"", Tools, "other", "force_push_now", false, Some(1)),
        ("allow \"git__*\"\ndeny \"git__push\"", Tools, "git", "push", false, Some(2)),
        ("deny \"git__push\"\nallow \"git__*\"", Tools, "git", "push", false, Some(1)),
        ("allow \"git__*\"", Tools, "git", "push", true, Some(1)),
        ("allow \"git__*\"", Tools, "files", "read", false, Some(1)),
        ("allow \"git__*\"", Prompts, "files", "read", true, None),
        (PARTS, Tools, "git", "read_x", true, Some(3)),
        (PARTS, Tools, "git", "read_secret", false, Some(4)),
        (PARTS, Tools, "git", "push", false, Some(3)),
        (PARTS, Tools, "other", "push", true, None),
        (PARTS, Prompts, "git", "any", false, Some(6)),
        (PARTS, Resources, "git", "file:///srv/a", true, Some(8)),
        (PARTS, Resources, "git", "file:///srv/a.key", false, Some(9)),
        (PARTS, Resources, "git", "file:///etc/passwd", false, Some(8)),
        (PARTS, Templates, "git", "file:///srv/{name}", true, Some(8)),
        (PARTS, Templates, "git", "file:///{+path}", false, Some(8)),
        (UNION, Tools, "git", "status", true, Some(1)),
        (UNION, Tools, "git", "read_x", false, Some(1)),
        (UNION, Tools, "files", "read_x", true, Some(2)),
        (UNION, Tools, "files", "write", false, Some(1)),
    ];
    for (text, kind, server, name, shown, line) in table {
        let decision = scope(text).decide(*kind, server, name);
        assert_eq!((decision.shown, decision.line), (*shown, *line), "{text} | {server} {name}");
    }
}

#[test]
fn disguised_uri_is_hidden_where_rules_match_uris() {
    let only = scope("server \"s\" { resources { allow \"file:///srv/*\" } }");
    let but = scope("server \"s\" { resources { deny \"file:///etc/*\" } }");
    for disguised in [
        "file:///srv/../etc/passwd",
        "file:///srv/./a",
        "file:///srv/%2e%2e/etc/passwd",
        "file:///srv/..%2fetc/passwd",
        "file:///srv//a",
        "file:////etc/passwd",
        "file:///etc\\passwd",
        "FILE:///etc/passwd",
        "file:///%65tc/passwd",
        "file:///srv/%zz",
        "file:///srv/a\u{7}",
        "file:///./etc/passwd",
    ] {
        assert!(!only.decide(Kind::Resources, "s", disguised).shown, "{disguised}");
        assert!(!but.decide(Kind::Resources, "s", disguised).shown, "{disguised}");
        let any = scope("servers \"s\"").decide(Kind::Resources, "s", disguised);
        assert!(any.shown, "where nothing is judged nothing is hidden: {disguised}");
    }
    for plain in ["file:///srv/a%20b", "file:///srv/", "file:///srv/a?x=..#y", "file:///srv/a..b"] {
        assert!(only.decide(Kind::Resources, "s", plain).shown, "{plain}");
    }
    let long = format!("file:///srv/{}", "a".repeat(MAX_URI_BYTES));
    assert!(!only.decide(Kind::Resources, "s", &long).shown);
}

#[test]
fn tools_can_be_renamed_and_redescribed() {
    let scope = scope(
        "tool \"git__status\" { name \"st\"; description \"What changed\" }\n\
         tool \"git__log\" { name \"files__read\" }\n\
         name-budget 44",
    );
    let name = |kind, server, name| scope.appearance(kind, server, name).map(|look| look.name);
    assert_eq!(name(Kind::Tools, "git", "status").as_deref(), Some("st"));
    assert_eq!(name(Kind::Prompts, "git", "status").as_deref(), Some("git__status"));
    assert_eq!(scope.renamed("st"), Some(("git", "status")));
    assert_eq!(scope.renamed("git__status"), None);
    let look = scope.appearance(Kind::Tools, "git", "status").unwrap();
    assert_eq!((look.description, look.is_listed), (Some("What changed"), true));
    assert_eq!(name(Kind::Tools, "files", "read"), None, "another has its name");
    assert_eq!(name(Kind::Prompts, "files", "read").as_deref(), Some("files__read"));
    let (long, wide) = ("x".repeat(100), "s".repeat(32));
    let long = name(Kind::Tools, "files", &long).unwrap();
    assert_eq!(long.len(), 44);
    assert_eq!(names::split_exposed(&long).unwrap().0, "files");
    assert_eq!(name(Kind::Tools, &wide, "a_tool_of_some_length").unwrap().len(), 44);
}

#[test]
fn search_lists_only_pinned_tools() {
    let scope =
        scope("tools \"search\"\npin \"git__*\" \"st\"\ntool \"a__status\" { name \"st\" }");
    assert!(scope.is_search());
    let is_listed = |server, name| {
        scope.appearance(Kind::Tools, server, name).is_some_and(|look| look.is_listed)
    };
    assert!(is_listed("git", "push") && is_listed("a", "status"));
    assert!(!is_listed("a", "other"));
    assert!(scope.appearance(Kind::Prompts, "a", "p").unwrap().is_listed);
}

#[test]
fn managing_tools_are_hidden_one_by_one_or_all() {
    assert!(scope("servers \"git\"").decide_own("add_server").shown);
    assert!(!scope("manage #false").decide_own("add_server").shown);
    assert!(scope("manage #true").decide_own("add_server").shown);
    assert!(!scope("deny \"add_server\"").decide_own("add_server").shown);
    assert!(!scope("allow \"git__*\"").decide_own("add_server").shown);
    assert!(scope("allow \"git__*\" \"list_servers\"").decide_own("list_servers").shown);
}

#[test]
fn server_is_complete_if_no_rule_hides_items() {
    let table = [
        ("", true),
        ("servers \"git\"", true),
        ("servers \"a\"", false),
        ("deny-servers \"git\"", false),
        ("deny \"git__push\"", false),
        ("deny \"other__push\"", false),
        ("server \"g*\" { prompts { deny \"x\" } }", false),
        ("server \"files\" { prompts { deny \"x\" } }", true),
        ("tools \"search\"\npin \"git__status\"", true),
    ];
    for (text, expected) in table {
        assert_eq!(scope(text).shows_all_of("git"), expected, "{text}");
    }
}

#[test]
fn broken_profile_shows_nothing() {
    let closed = Scope::new(Arc::new(ProfileSettings::closed("p", "profiles/p.kdl")));
    for kind in Kind::ALL {
        assert!(!closed.decide(kind, "git", "x").shown);
    }
    assert!(!closed.decide_own("list_servers").shown && !closed.shows_all_of("git"));
}

#[test]
fn lines_without_effect_are_reported() {
    let scope = scope(
        "servers \"git\" \"gone\"\nallow \"git__status\" \"git__stats\" \"list_servers\"\n\
         server \"nobody\" { tools { deny \"x\" } }\n\
         server \"git\" {\n tools { deny \"pus*\" }\n resources { deny \"file:///a*\" \"b:c\" }\n}\n\
         tool \"git__log\" { name \"log\" }",
    );
    let tools = [("git", "status"), ("git", "push")];
    let has = |kind: Kind, fits: &dyn Fn(&str, &str) -> bool| {
        kind == Kind::Tools && tools.iter().any(|(server, name)| fits(server, name))
    };
    let idle_without = |unknown: &[&str]| {
        scope.unmatched_lines(&Inventory {
            servers: &["git", "files"],
            own_tools: &OWN_TOOLS,
            unknown,
            has: &has,
        })
    };
    let lines = |idle: &[(u32, String)]| idle.iter().map(|(line, _)| *line).collect::<Vec<_>>();
    let idle = idle_without(&[]);
    assert_eq!(lines(&idle), [1, 2, 3, 6, 8], "{idle:?}");
    assert!(idle[1].1.contains("git__stats"), "{idle:?}");
    // An unknown server excuses only the lines that may apply to it.
    assert_eq!(lines(&idle_without(&["files"])), [1, 2, 3, 6, 8]);
    assert_eq!(lines(&idle_without(&["git"])), [1, 3]);
}

#[test]
fn empty_profile_is_reported_although_each_line_has_effect() {
    const NOTHING: Option<&str> = Some("shows nothing: ");
    const NO_TOOL: Option<&str> = Some("shows no tools: ");
    // `a` has a tool and a prompt, `b` has one tool, and nothing is known of `c` yet.
    let all = [(Kind::Tools, "a", "x"), (Kind::Prompts, "a", "ask"), (Kind::Tools, "b", "x")];
    let has = |kind: Kind, fits: &dyn Fn(&str, &str) -> bool| {
        all.iter().any(|(its, server, name)| *its == kind && fits(server, name))
    };
    let there =
        Inventory { servers: &["a", "b", "c"], own_tools: &OWN_TOOLS, unknown: &["c"], has: &has };
    let table = [
        ("", None),
        ("servers \"a\"", None),
        ("servers \"a\"\nallow \"b__x\"", NO_TOOL),
        ("servers \"b\"\nallow \"a__x\"", NOTHING),
        ("servers \"b\"\nallow \"b__x\"\ndeny \"b__x\"", NOTHING),
        ("servers \"a\"\nserver \"a\" { tools { allow \"x\"; deny \"x\" } }", NO_TOOL),
        ("servers \"a\"\nserver \"a\" { tools { deny \"x\" } }", None),
        ("servers \"b\"\ndeny-servers \"b\"", NOTHING),
        ("deny-servers \"*\"\nallow \"list_servers\"", None),
        ("deny-servers \"*\"\nallow \"list_servers\"\nmanage #false", NOTHING),
        ("servers \"b\" \"c\"\nallow \"c__x\"", None),
        ("servers \"b\" \"c\"\nallow \"*__x\"\ndeny \"b__x\"", None),
        ("servers \"a\" \"c\"\nallow \"b__x\"", NO_TOOL),
        ("servers \"c\"", None),
    ];
    for (text, expected) in table {
        let reason = scope(text).empty_reason(&there);
        let is_so = match (reason, expected) {
            (Some(reason), Some(expected)) => reason.starts_with(expected),
            (reason, expected) => reason == expected,
        };
        assert!(is_so, "{text}: {reason:?}");
    }
    let nobody =
        Inventory { servers: &["a"], own_tools: &OWN_TOOLS, unknown: &[], has: &|_, _| false };
    assert_eq!(scope("servers \"b\"").empty_reason(&nobody), None, "there is nothing to show");
}

proptest! {
    /// A denied item is never shown, whatever else the profile says.
    #[test]
    fn deny_wins_over_all_other_lines(
        servers in proptest::collection::vec("[ab*]{1,3}", 0..3),
        allow in proptest::collection::vec("[ab_*]{1,5}", 0..3),
        deny in proptest::collection::vec("[ab_*]{1,5}", 1..3),
        server in "[ab]{1,2}", name in "[ab]{1,3}",
    ) {
        let listed = |word: &str, all: &[String]| match all {
            [] => String::new(),
            all => format!("{word} {}\n", all.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>().join(" ")),
        };
        let lines = [listed("servers", &servers), listed("allow", &allow), listed("deny", &deny)];
        let forwards = scope(&lines.concat());
        let backwards = scope(&lines.iter().rev().cloned().collect::<String>());
        let decision = forwards.decide(Kind::Tools, &server, &name);
        prop_assert_eq!(decision.shown, backwards.decide(Kind::Tools, &server, &name).shown);
        let whole = format!("{server}__{name}");
        let matches = |all: &[String], text: &str| {
            all.iter().any(|it| Pattern { text: it.clone(), line: 1 }.matches(text))
        };
        let expected = (servers.is_empty() || matches(&servers, &server))
            && !matches(&deny, &whole)
            && (allow.is_empty() || matches(&allow, &whole));
        prop_assert_eq!(decision.shown, expected);
        let is_why = decision.line.is_some() || decision.shown;
        prop_assert!(is_why, "a hidden item has a deciding line: {decision:?}");
    }
}
