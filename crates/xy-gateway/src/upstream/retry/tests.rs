use xy_catalog::catalog::{Lists, Page};
use xy_mcp::era::Introduction;
use xy_mcp::kind::Kind;

use super::*;

const STAGES: [Delivery; 3] = [Delivery::Unwritten, Delivery::Unread, Delivery::Written];
const SORTS: [Idempotency; 6] = [
    Idempotency::Lookup,
    Idempotency::ReadOnly,
    Idempotency::Idempotent,
    Idempotency::NewTask,
    Idempotency::OfTask,
    Idempotency::Other,
];
const CALLERS: [Option<CallerKind>; 3] =
    [Some(CallerKind::Client), Some(CallerKind::PendingInput), Some(CallerKind::Admin)];
const COPY_STATES: [CopyState; 3] = [CopyState::Available, CopyState::NotKept, CopyState::Useless];

/// Returns the facts of a call whose client waits, whose text is kept, and whose server has a
/// successor.
fn plain(delivery: Delivery, idempotency: Idempotency) -> RetryFacts {
    RetryFacts {
        caller: Some(CallerKind::Client),
        delivery,
        idempotency,
        is_wanted: true,
        has_server_request: false,
        was_written: false,
        copy: CopyState::Available,
        has_successor: true,
        has_moved: false,
        is_hung: false,
    }
}

/// Returns all combinations of facts.
fn all() -> Vec<RetryFacts> {
    let mut all = Vec::new();
    for delivery in STAGES {
        for idempotency in SORTS {
            for copy in COPY_STATES {
                for bits in 0..64 {
                    let bit = |at: u32| bits & (1 << at) != 0;
                    all.extend(CALLERS.map(|caller| RetryFacts {
                        caller,
                        delivery,
                        idempotency,
                        is_wanted: bit(0),
                        has_server_request: bit(1),
                        was_written: bit(2),
                        copy,
                        has_successor: bit(3),
                        has_moved: bit(4),
                        is_hung: bit(5),
                    }));
                }
            }
        }
    }
    all
}

/// A difference: its name in the table, and the change of the facts.
type Case = (&'static str, fn(&mut RetryFacts));

#[test]
fn retry_table() {
    let cases: [Case; 11] = [
        ("the server comes back", |_| {}),
        ("its client has been asked", |it| it.has_server_request = true),
        ("it is the second try", |it| it.was_written = true),
        ("the server hung", |it| it.is_hung = true),
        ("nobody comes after it", |it| it.has_successor = false),
        ("no copy was kept", |it| it.copy = CopyState::NotKept),
        ("a retry would not help", |it| it.copy = CopyState::Useless),
        ("its client has another instance", |it| it.has_moved = true),
        ("its client is to supply input", |it| it.caller = Some(CallerKind::PendingInput)),
        ("a user of the control socket sent it", |it| it.caller = Some(CallerKind::Admin)),
        ("it was cancelled", |it| it.is_wanted = false),
    ];
    let mut table = Vec::new();
    for (case, change) in cases {
        for delivery in STAGES {
            let row = SORTS.map(|idempotency| {
                let mut facts = plain(delivery, idempotency);
                change(&mut facts);
                format!("{:?}", decide(facts))
            });
            let row = if row.iter().all(|it| *it == row[0]) {
                format!("all {}", row[0])
            } else {
                let cells = SORTS
                    .iter()
                    .zip(&row)
                    .map(|(idempotency, retry)| format!("{idempotency:?} {retry}"));
                cells.collect::<Vec<_>>().join(", ")
            };
            table.push(format!("{case}, {delivery:?}: {row}\n"));
        }
    }
    let expected = "\
the server comes back, Unwritten: Lookup Resend, ReadOnly Resend, Idempotent Resend, NewTask Resend, OfTask NotSent(Task), Other Resend
the server comes back, Unread: Lookup Resend, ReadOnly Resend, Idempotent Resend, NewTask Resend, OfTask NotSent(Task), Other Resend
the server comes back, Written: Lookup Resend, ReadOnly Resend, Idempotent Resend, NewTask Unknown(Task), OfTask Unknown(Task), Other Unknown(MayChange)
its client has been asked, Unwritten: Lookup Resend, ReadOnly Resend, Idempotent Resend, NewTask Resend, OfTask NotSent(Task), Other Resend
its client has been asked, Unread: Lookup Resend, ReadOnly Resend, Idempotent Resend, NewTask Resend, OfTask NotSent(Task), Other Resend
its client has been asked, Written: Lookup Unknown(ServerRequest), ReadOnly Unknown(ServerRequest), Idempotent Unknown(ServerRequest), NewTask Unknown(Task), OfTask Unknown(Task), Other Unknown(ServerRequest)
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
a retry would not help, Unwritten: Lookup NotSent(Useless), ReadOnly NotSent(Useless), Idempotent NotSent(Useless), NewTask NotSent(Useless), OfTask NotSent(Task), Other NotSent(Useless)
a retry would not help, Unread: Lookup NotSent(Useless), ReadOnly NotSent(Useless), Idempotent NotSent(Useless), NewTask NotSent(Useless), OfTask NotSent(Task), Other NotSent(Useless)
a retry would not help, Written: Lookup Unknown(Useless), ReadOnly Unknown(Useless), Idempotent Unknown(Useless), NewTask Unknown(Task), OfTask Unknown(Task), Other Unknown(Useless)
its client has another instance, Unwritten: Lookup Redispatch, ReadOnly Redispatch, Idempotent Redispatch, NewTask Redispatch, OfTask NotSent(Task), Other Redispatch
its client has another instance, Unread: Lookup Redispatch, ReadOnly Redispatch, Idempotent Redispatch, NewTask Redispatch, OfTask NotSent(Task), Other Redispatch
its client has another instance, Written: Lookup Redispatch, ReadOnly Redispatch, Idempotent Redispatch, NewTask Unknown(Task), OfTask Unknown(Task), Other Unknown(MayChange)
its client is to supply input, Unwritten: all NotSent(SentOnce)
its client is to supply input, Unread: all NotSent(SentOnce)
its client is to supply input, Written: all Unknown(SentOnce)
a user of the control socket sent it, Unwritten: all NotSent(SentOnce)
a user of the control socket sent it, Unread: all NotSent(SentOnce)
a user of the control socket sent it, Written: all Unknown(SentOnce)
it was cancelled, Unwritten: all Drop
it was cancelled, Unread: all Drop
it was cancelled, Written: all Drop
";
    let table = table.concat();
    assert_eq!(table, expected, "\n{table}");
}

/// Checks the invariants over all combinations.
#[test]
fn only_harmless_calls_are_repeated() {
    for facts in all() {
        let retry = decide(facts);
        let is_seen = facts.delivery == Delivery::Written;
        let is_sent_again = matches!(retry, Retry::Resend | Retry::Redispatch);
        assert!(!is_sent_again || (retry == Retry::Redispatch) == facts.has_moved);
        if is_sent_again {
            assert_eq!(facts.caller, Some(CallerKind::Client));
            let is_harmless = facts.idempotency.may_be_repeated();
            assert!(!is_seen || (is_harmless && !facts.has_server_request && !facts.was_written));
            assert!(!is_seen || !facts.is_hung, "{facts:?}");
            assert!(facts.copy == CopyState::Available && facts.has_successor && facts.is_wanted);
        }
        // `NotSent` is reported only if no server can have seen the call.
        if matches!(retry, Retry::NotSent(_)) {
            assert!(!is_seen && !facts.was_written, "{facts:?}");
        }
        assert_eq!(retry == Retry::Drop, !facts.is_wanted, "{facts:?}");
        // An unseen call is always sent again if that is possible.
        let can_be = facts.copy == CopyState::Available
            && facts.has_successor
            && facts.is_wanted
            && facts.caller == Some(CallerKind::Client);
        if !is_seen && can_be && facts.idempotency != Idempotency::OfTask {
            assert!(is_sent_again, "{facts:?}");
        }
    }
}

/// Returns a server with these tools.
fn known(tools: &str) -> ServerCatalog {
    let introduction = Introduction::read(r#"{"protocolVersion":"2025-11-25"}"#).unwrap();
    let mut lists = Lists::default();
    let page = Page::read(Kind::Tools, &format!(r#"{{"tools":[{tools}]}}"#)).unwrap();
    lists.set(Kind::Tools, page.items);
    ServerCatalog::new("s", introduction, lists)
}

fn tool(name: &str, annotations: &str) -> String {
    format!(r#"{{"name":"{name}","inputSchema":{{}},"annotations":{annotations}}}"#)
}

fn sort_at(view: &View, name: &str, known: Option<&ServerCatalog>) -> Idempotency {
    let text =
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}"}}}}"#);
    classify(text.as_bytes(), &ResponseKind::Other, view, known)
}

#[test]
fn only_a_true_hint_in_the_tools_own_list_counts() {
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
        assert_eq!(sort_at(&profile, "s__x", None), Idempotency::Other, "no list was reported");
    }
}

#[test]
fn tools_with_the_same_name_must_agree() {
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
fn idempotency_follows_from_method_and_task() {
    let known = known(&tool("x", r#"{"readOnlyHint":true}"#));
    let view = View::Server("s".to_owned());
    let of = |method: &str, response_kind: &ResponseKind| {
        let params = r#"{"name":"x"}"#;
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        classify(text.as_bytes(), response_kind, &view, Some(&known))
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
        assert_eq!(of(method, &ResponseKind::Other), Idempotency::Lookup, "{method}");
    }
    for method in
        ["resources/subscribe", "resources/unsubscribe", "logging/setLevel", "tools/calls", "x"]
    {
        assert_eq!(of(method, &ResponseKind::Other), Idempotency::Other, "{method}");
    }
    assert_eq!(of("tools/call", &ResponseKind::Other), Idempotency::ReadOnly);
    assert_eq!(of("tools/call", &ResponseKind::NewTask), Idempotency::NewTask);
    assert_eq!(of("tasks/get", &ResponseKind::Task), Idempotency::OfTask);
    assert_eq!(of("tasks/result", &ResponseKind::TaskResult("t".into())), Idempotency::OfTask);
    assert_eq!(of("tasks/list", &ResponseKind::TaskList), Idempotency::OfTask);
    assert_eq!(classify(b"", &ResponseKind::Other, &view, Some(&known)), Idempotency::Other);
}
