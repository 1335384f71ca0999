use super::*;
use crate::catalog::{Kind, Lists, Page};
use crate::era::Introduction;

const STAGES: [Stage; 3] = [Stage::Unwritten, Stage::Unread, Stage::Written];
const SORTS: [Idempotency; 6] = [
    Idempotency::Lookup,
    Idempotency::ReadOnly,
    Idempotency::Idempotent,
    Idempotency::NewTask,
    Idempotency::OfTask,
    Idempotency::Other,
];
const TEXTS: [Text; 3] = [Text::Kept, Text::NotKept, Text::Useless];

/// A call that its client waits for, whose text was kept, and whose server comes back.
fn plain(stage: Stage, sort: Idempotency) -> Facts {
    Facts {
        stage,
        sort,
        is_wanted: true,
        has_asked: false,
        was_written: false,
        text: Text::Kept,
        has_successor: true,
        is_hung: false,
    }
}

/// Everything there can be.
fn all() -> Vec<Facts> {
    let mut all = Vec::new();
    for stage in STAGES {
        for sort in SORTS {
            for text in TEXTS {
                for bits in 0..32 {
                    let bit = |at: u32| bits & (1 << at) != 0;
                    all.push(Facts {
                        stage,
                        sort,
                        is_wanted: bit(0),
                        has_asked: bit(1),
                        was_written: bit(2),
                        text,
                        has_successor: bit(3),
                        is_hung: bit(4),
                    });
                }
            }
        }
    }
    all
}

/// What is different, for people and for the facts.
type Case = (&'static str, fn(&mut Facts));

#[test]
fn the_fate_of_every_call() {
    let cases: [Case; 8] = [
        ("the server comes back", |_| {}),
        ("its client has been asked", |it| it.has_asked = true),
        ("it is the second try", |it| it.was_written = true),
        ("the server hung", |it| it.is_hung = true),
        ("nobody comes after it", |it| it.has_successor = false),
        ("no copy was kept", |it| it.text = Text::NotKept),
        ("the same would come of it", |it| it.text = Text::Useless),
        ("it was cancelled", |it| it.is_wanted = false),
    ];
    let mut table = Vec::new();
    for (case, change) in cases {
        for stage in STAGES {
            let row = SORTS.map(|sort| {
                let mut facts = plain(stage, sort);
                change(&mut facts);
                format!("{:?}", fate(facts))
            });
            let row = if row.iter().all(|it| *it == row[0]) {
                format!("all {}", row[0])
            } else {
                let cells = SORTS.iter().zip(&row).map(|(sort, fate)| format!("{sort:?} {fate}"));
                cells.collect::<Vec<_>>().join(", ")
            };
            table.push(format!("{case}, {stage:?}: {row}\n"));
        }
    }
    let expected = "\
the server comes back, Unwritten: Lookup Resend, ReadOnly Resend, Idempotent Resend, NewTask Resend, OfTask NotSent(Task), Other Resend
the server comes back, Unread: Lookup Resend, ReadOnly Resend, Idempotent Resend, NewTask Resend, OfTask NotSent(Task), Other Resend
the server comes back, Written: Lookup Resend, ReadOnly Resend, Idempotent Resend, NewTask Unknown(Task), OfTask Unknown(Task), Other Unknown(MayChange)
its client has been asked, Unwritten: Lookup Resend, ReadOnly Resend, Idempotent Resend, NewTask Resend, OfTask NotSent(Task), Other Resend
its client has been asked, Unread: Lookup Resend, ReadOnly Resend, Idempotent Resend, NewTask Resend, OfTask NotSent(Task), Other Resend
its client has been asked, Written: Lookup Unknown(Asked), ReadOnly Unknown(Asked), Idempotent Unknown(Asked), NewTask Unknown(Task), OfTask Unknown(Task), Other Unknown(Asked)
it is the second try, Unwritten: Lookup Resend, ReadOnly Resend, Idempotent Resend, NewTask Resend, OfTask Unknown(Task), Other Resend
it is the second try, Unread: Lookup Resend, ReadOnly Resend, Idempotent Resend, NewTask Resend, OfTask Unknown(Task), Other Resend
it is the second try, Written: all Unknown(Twice)
the server hung, Unwritten: Lookup Resend, ReadOnly Resend, Idempotent Resend, NewTask Resend, OfTask NotSent(Task), Other Resend
the server hung, Unread: Lookup Resend, ReadOnly Resend, Idempotent Resend, NewTask Resend, OfTask NotSent(Task), Other Resend
the server hung, Written: all Unknown(Hung)
nobody comes after it, Unwritten: Lookup NotSent(NoSuccessor), ReadOnly NotSent(NoSuccessor), Idempotent NotSent(NoSuccessor), NewTask NotSent(NoSuccessor), OfTask NotSent(Task), Other NotSent(NoSuccessor)
nobody comes after it, Unread: Lookup NotSent(NoSuccessor), ReadOnly NotSent(NoSuccessor), Idempotent NotSent(NoSuccessor), NewTask NotSent(NoSuccessor), OfTask NotSent(Task), Other NotSent(NoSuccessor)
nobody comes after it, Written: Lookup Unknown(NoSuccessor), ReadOnly Unknown(NoSuccessor), Idempotent Unknown(NoSuccessor), NewTask Unknown(Task), OfTask Unknown(Task), Other Unknown(MayChange)
no copy was kept, Unwritten: Lookup NotSent(NotKept), ReadOnly NotSent(NotKept), Idempotent NotSent(NotKept), NewTask NotSent(NotKept), OfTask NotSent(Task), Other NotSent(NotKept)
no copy was kept, Unread: Lookup NotSent(NotKept), ReadOnly NotSent(NotKept), Idempotent NotSent(NotKept), NewTask NotSent(NotKept), OfTask NotSent(Task), Other NotSent(NotKept)
no copy was kept, Written: Lookup Unknown(NotKept), ReadOnly Unknown(NotKept), Idempotent Unknown(NotKept), NewTask Unknown(Task), OfTask Unknown(Task), Other Unknown(NotKept)
the same would come of it, Unwritten: Lookup NotSent(Useless), ReadOnly NotSent(Useless), Idempotent NotSent(Useless), NewTask NotSent(Useless), OfTask NotSent(Task), Other NotSent(Useless)
the same would come of it, Unread: Lookup NotSent(Useless), ReadOnly NotSent(Useless), Idempotent NotSent(Useless), NewTask NotSent(Useless), OfTask NotSent(Task), Other NotSent(Useless)
the same would come of it, Written: Lookup Unknown(Useless), ReadOnly Unknown(Useless), Idempotent Unknown(Useless), NewTask Unknown(Task), OfTask Unknown(Task), Other Unknown(Useless)
it was cancelled, Unwritten: all Drop
it was cancelled, Unread: all Drop
it was cancelled, Written: all Drop
";
    let table = table.concat();
    assert_eq!(table, expected, "\n{table}");
}

/// What must hold whatever else is so.
#[test]
fn nothing_that_may_do_harm_is_ever_sent_again() {
    for facts in all() {
        let fate = fate(facts);
        let is_seen = facts.stage == Stage::Written;
        if fate == Retry::Resend {
            let is_harmless = facts.sort.may_be_repeated();
            assert!(!is_seen || (is_harmless && !facts.has_asked && !facts.was_written));
            assert!(!is_seen || !facts.is_hung, "{facts:?}");
            assert!(facts.text == Text::Kept && facts.has_successor && facts.is_wanted);
        }
        // `not done` is only said of what no server can have seen.
        if matches!(fate, Retry::NotSent(_)) {
            assert!(!is_seen && !facts.was_written, "{facts:?}");
        }
        assert_eq!(fate == Retry::Drop, !facts.is_wanted, "{facts:?}");
        // What was never seen is always sent again if it can be.
        let can_be = facts.text == Text::Kept && facts.has_successor && facts.is_wanted;
        if !is_seen && can_be && facts.sort != Idempotency::OfTask {
            assert_eq!(fate, Retry::Resend, "{facts:?}");
        }
    }
}

/// A server with these tools.
fn known(tools: &str) -> Known {
    let introduction = Introduction::read(r#"{"protocolVersion":"2025-11-25"}"#).unwrap();
    let mut lists = Lists::default();
    let page = Page::read(Kind::Tools, &format!(r#"{{"tools":[{tools}]}}"#)).unwrap();
    lists.set(Kind::Tools, page.items);
    Known::new("s", introduction, lists)
}

fn tool(name: &str, annotations: &str) -> String {
    format!(r#"{{"name":"{name}","inputSchema":{{}},"annotations":{annotations}}}"#)
}

fn sort_at(view: &View, name: &str, known: Option<&Known>) -> Idempotency {
    let text =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}"}}}}"#);
    sort(text.as_bytes(), &Follow::Nothing, view, known)
}

#[test]
fn a_tool_is_what_its_own_list_says_and_nothing_but_true_is_true() {
    let table = [
        (r#"{"readOnlyHint":true}"#, Idempotency::ReadOnly),
        (r#"{"readOnlyHint":true,"destructiveHint":true}"#, Idempotency::ReadOnly),
        (r#"{"idempotentHint":true}"#, Idempotency::Idempotent),
        (
            r#"{"readOnlyHint":false,"idempotentHint":true,"destructiveHint":true}"#,
            Idempotency::Idempotent,
        ),
        (r#"{"readOnlyHint":false}"#, Idempotency::Other),
        (r#"{"readOnlyHint":"true"}"#, Idempotency::Other),
        (r#"{"readOnlyHint":1}"#, Idempotency::Other),
        (r#"{"readonlyhint":true}"#, Idempotency::Other),
        ("{}", Idempotency::Other),
        ("null", Idempotency::Other),
        ("[true]", Idempotency::Other),
        (r#""readOnlyHint""#, Idempotency::Other),
    ];
    let profile = View::Profile("default".to_owned());
    let alone = View::Server("s".to_owned());
    for (annotations, expected) in table {
        let known = known(&tool("x", annotations));
        assert_eq!(sort_at(&profile, "s__x", Some(&known)), expected, "{annotations}");
        assert_eq!(sort_at(&alone, "x", Some(&known)), expected, "{annotations}");
        assert_eq!(sort_at(&alone, "s__x", Some(&known)), Idempotency::Other);
        assert_eq!(sort_at(&profile, "x", Some(&known)), Idempotency::Other);
        assert_eq!(sort_at(&profile, "s__y", Some(&known)), Idempotency::Other);
        assert_eq!(sort_at(&profile, "s__x", None), Idempotency::Other, "nobody has said");
    }
}

#[test]
fn of_tools_with_one_name_all_have_to_agree() {
    let view = View::Server("s".to_owned());
    let (good, bad) = (r#"{"readOnlyHint":true}"#, "{}");
    for (one, other, expected) in [
        (good, good, Idempotency::ReadOnly),
        (good, bad, Idempotency::Other),
        (bad, good, Idempotency::Other),
    ] {
        let known = known(&format!("{},{}", tool("x", one), tool("x", other)));
        assert_eq!(sort_at(&view, "x", Some(&known)), expected);
    }
}

#[test]
fn a_request_is_sorted_by_its_method_and_by_what_it_follows() {
    let known = known(&tool("x", r#"{"readOnlyHint":true}"#));
    let view = View::Server("s".to_owned());
    let of = |method: &str, follow: &Follow| {
        let params = r#"{"name":"x"}"#;
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        sort(text.as_bytes(), follow, &view, Some(&known))
    };
    for method in [
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "prompts/get",
        "completion/complete",
    ] {
        assert_eq!(of(method, &Follow::Nothing), Idempotency::Lookup, "{method}");
    }
    for method in
        ["resources/subscribe", "resources/unsubscribe", "logging/setLevel", "tools/calls", "x"]
    {
        assert_eq!(of(method, &Follow::Nothing), Idempotency::Other, "{method}");
    }
    assert_eq!(of("tools/call", &Follow::Nothing), Idempotency::ReadOnly);
    assert_eq!(of("tools/call", &Follow::NewTask), Idempotency::NewTask);
    assert_eq!(of("tasks/get", &Follow::Task), Idempotency::OfTask);
    assert_eq!(of("tasks/result", &Follow::Outcome("t".into())), Idempotency::OfTask);
    assert_eq!(of("tasks/list", &Follow::Tasks), Idempotency::OfTask);
    assert_eq!(sort(b"", &Follow::Nothing, &view, Some(&known)), Idempotency::Other);
}
