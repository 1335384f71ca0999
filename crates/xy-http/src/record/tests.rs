use proptest::prelude::*;
use xy_transport::large::LargeMessage;

use super::*;

const TAG: EventTag = 1 << 63 | 5;
const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;

/// Returns a record of this session.
pub(crate) fn record(session: u128) -> Record {
    Record {
        session,
        key: 1,
        owner: Some(owner_text(&[7; 32])),
        initialize: INITIALIZE.to_owned(),
        initialized: false,
        level: None,
        subscriptions: BTreeSet::new(),
        tags: VecDeque::from([TAG]),
        calls: VecDeque::new(),
    }
}

fn begin(session: u128) -> Change {
    Change::Begin(Box::new(record(session)))
}

fn level(level: &str) -> Change {
    Change::Level(1, Some(level.to_owned()))
}

fn call(stream: StreamNo) -> StreamedCall {
    StreamedCall { tag: TAG, stream, request: "\"a\"".to_owned(), answered_at: None }
}

/// Returns a journal with a key, and its text with all changes appended.
fn write(changes: &[Change]) -> (Journal, Vec<u8>) {
    let mut journal = Journal::new(4);
    journal.use_key([3; 32]);
    let mut text = journal.encode();
    for change in changes {
        journal.apply(change);
        text.extend_from_slice(&Journal::encode_change(change));
    }
    (journal, text)
}

fn changes() -> Vec<Change> {
    vec![
        begin(1),
        begin(u128::MAX),
        Change::Initialized(1),
        level("error"),
        Change::Subscribe(1, "file:///a\n\"b\"".to_owned()),
        Change::Subscribe(1, "file:///c".to_owned()),
        Change::Unsubscribe(1, "file:///c".to_owned()),
        Change::Call(1, call(3)),
        Change::Call(1, call(4)),
        Change::StreamEnd(1, TAG, 4),
        Change::Call(1, StreamedCall { answered_at: Some(2), ..call(3) }),
        Change::Tag(1, 9),
        Change::End(u128::MAX),
        Change::Level(u128::MAX, Some("debug".to_owned())),
    ]
}

#[test]
fn journal_reads_back_with_and_without_its_history() {
    let (journal, text) = write(&changes());
    assert_eq!(Journal::decode(&text).as_ref(), Ok(&journal));
    assert_eq!(Journal::decode(&journal.encode()).as_ref(), Ok(&journal));
    let only: Vec<&Record> = journal.records().collect();
    let expected = Record {
        initialized: true,
        level: Some("error".to_owned()),
        subscriptions: BTreeSet::from(["file:///a\n\"b\"".to_owned()]),
        tags: VecDeque::from([TAG, 9]),
        calls: VecDeque::from([StreamedCall { answered_at: Some(2), ..call(3) }]),
        ..record(1)
    };
    assert_eq!(only, [&expected]);
}

#[test]
fn incomplete_write_is_ignored() {
    let (journal, text) = write(&changes());
    let last = Journal::encode_change(&begin(3));
    for end in 1..last.len() {
        let torn = [&text, &last[..end]].concat();
        assert_eq!(Journal::decode(&torn).as_ref(), Ok(&journal), "at {end}");
    }
}

#[test]
fn damaged_record_is_rejected() {
    let (_, text) = write(&[begin(1), level("error")]);
    for at in 0..text.len() {
        let mut other = text.clone();
        other[at] ^= 1;
        let is_last_end = at == text.len() - 1;
        // Without its line end, the last line counts as an incomplete write.
        assert_eq!(Journal::decode(&other).is_ok(), is_last_end, "at {at}");
    }
    for other in ["", "\n", "nonsense\n", "00000000 {}\n"] {
        assert!(Journal::decode(other.as_bytes()).is_err(), "{other:?}");
    }
}

#[test]
fn records_are_bounded() {
    let mut journal = Journal::new(1);
    let large = "x".repeat(INITIALIZE_BYTES_MAX + 1);
    assert!(!journal.apply(&Change::Begin(Box::new(Record { initialize: large, ..record(1) }))));
    assert!(journal.apply(&begin(1)));
    for number in 0..SUBSCRIPTIONS_MAX {
        assert!(journal.apply(&Change::Subscribe(1, number.to_string())));
    }
    assert!(!journal.apply(&Change::Subscribe(1, "one more".to_owned())));
    assert!(journal.apply(&Change::Subscribe(1, "0".to_owned())), "it is there already");
    assert!(!journal.apply(&Change::Subscribe(1, "x".repeat(RECORD_BYTES_MAX))));
    for number in 0..2 * CALLS_MAX as u64 {
        assert_eq!(journal.apply(&Change::Call(1, call(number))), number < CALLS_MAX as u64);
    }
    for tag in 0..2 * TAGS_MAX as u64 {
        assert!(journal.apply(&Change::Tag(1, tag)));
    }
    let only = journal.records().next().unwrap();
    assert_eq!((only.tags.len(), only.calls.len()), (TAGS_MAX, 0));
    for number in 2..=RECORDS_MAX as u128 {
        assert!(journal.apply(&begin(number)));
    }
    assert!(!journal.apply(&begin(0)));
    assert!(journal.apply(&Change::End(5)) && journal.apply(&begin(0)));
}

#[test]
fn sizes_are_those_of_the_encoded_text() {
    for text in ["plain", "\u{1}\u{1f}\"\\\n\r\t\u{8}\u{c}", "é日本", ""] {
        assert_eq!(written_len(text), serde_json::to_string(text).unwrap().len(), "{text:?}");
    }
    let mut journal = Journal::new(1);
    assert!(journal.apply(&begin(1)));
    let escaped = "\u{1}".repeat(RECORD_BYTES_MAX / 6);
    assert!(!journal.apply(&Change::Subscribe(1, escaped)));
}

#[test]
fn full_journal_refuses_subscriptions() {
    let mut journal = Journal::new(1);
    let watched = "x".repeat(RECORD_BYTES_MAX - 1024);
    let kept = (1..=RECORDS_MAX as u128).filter(|&session| {
        journal.apply(&begin(session))
            && journal.apply(&Change::Subscribe(session, watched.clone()))
    });
    assert!(kept.count() < RECORDS_MAX);
    let long = StreamedCall { request: "x".repeat(8 * 1024), ..call(1) };
    let mut stream = 1;
    while journal.apply(&Change::Call(1, StreamedCall { stream, ..long.clone() })) {
        stream += 1;
    }
    assert!(journal.size() <= RECORDS_BYTES_MAX, "{}", journal.size());
    // Otherwise the next daemon would drop a session.
    assert!(Journal::decode(&journal.encode()).as_ref() == Ok(&journal));
}

#[test]
fn largest_record_reads_back() {
    let mut journal = Journal::new(1);
    let initialize = "\"".repeat(INITIALIZE_BYTES_MAX);
    assert!(journal.apply(&Change::Begin(Box::new(Record { initialize, ..record(1) }))));
    let mut long = StreamedCall { request: "x".repeat(1024), ..call(1) };
    while journal.apply(&Change::Call(1, long.clone())) {
        long.stream += 1;
    }
    for length in [14, 12, 10, 8] {
        while journal.apply(&Change::Subscribe(1, {
            let number = journal.records().next().unwrap().subscriptions.len();
            format!("{number}{}", "x".repeat(1 << length))
        })) {}
    }
    assert_eq!(Journal::decode(&journal.encode()).as_ref(), Ok(&journal));
}

#[test]
fn open_calls_of_this_daemon_are_never_evicted() {
    let mut journal = Journal::new(1);
    journal.apply(&begin(1));
    let answered = |stream| StreamedCall { answered_at: Some(1), ..call(stream) };
    assert!(journal.apply(&Change::Call(1, call(0))));
    for stream in 1..=2 * CALLS_MAX as u64 {
        assert!(journal.apply(&Change::Call(1, call(stream))), "{stream}");
        assert!(journal.apply(&Change::Call(1, answered(stream))), "{stream}");
    }
    let streams = |journal: &Journal| -> Vec<StreamNo> {
        journal.records().next().unwrap().calls.iter().map(|it| it.stream).collect()
    };
    assert_eq!((streams(&journal).len(), streams(&journal)[0]), (CALLS_MAX, 0));
    assert!(!journal.apply(&Change::Call(1, answered(1))), "1 is not known any more");
    // Without spare calls there is no room for another one, until the next daemon starts.
    for stream in 10_000..10_000 + CALLS_MAX as u64 {
        journal.apply(&Change::Call(1, call(stream)));
    }
    assert!(!journal.apply(&Change::Call(1, call(9))) && streams(&journal).contains(&0));
    journal.apply(&Change::Tag(1, 9));
    assert!(journal.apply(&Change::Call(1, StreamedCall { tag: 9, ..call(9) })));
    assert!(!streams(&journal).contains(&0));
}

#[test]
fn ended_stream_is_removed_with_all_its_requests() {
    let mut journal = Journal::new(1);
    journal.apply(&begin(1));
    let other = StreamedCall { request: "2".to_owned(), ..call(3) };
    for call in [call(3), other, call(4), StreamedCall { tag: 9, ..call(3) }] {
        journal.apply(&Change::Call(1, call));
    }
    assert!(journal.apply(&Change::StreamEnd(1, TAG, 3)));
    let left = &journal.records().next().unwrap().calls;
    assert_eq!(*left, [call(4), StreamedCall { tag: 9, ..call(3) }]);
}

/// Lines as the first version wrote them.
#[test]
fn journal_of_the_first_version_is_read() {
    let id = format!("{:032x}", 1);
    let record = format!(
        r#"{{"begin":{{"session":"{id}","key":1,"initialize":"{{}}","initialized":true,"level":"error","tags":[5],"calls":[{{"tag":5,"stream":3,"request":"7"}}]}}}}"#
    );
    let key = "03".repeat(32);
    let header = format!(r#"{{"format":1,"epoch":4,"keys":[[1,"{key}"]]}}"#);
    let level = format!(r#"{{"level":["{id}","debug"]}}"#);
    let call = format!(r#"{{"call":["{id}",{{"tag":5,"stream":4,"request":"8"}}]}}"#);
    let line = |json: &String| format!("{} {json}\n", checksum(json.as_bytes()));
    let text: String = [header, record, level, call].iter().map(line).collect();
    let journal = Journal::decode(text.as_bytes()).unwrap();
    let only = journal.records().next().unwrap();
    assert_eq!(only.level.as_deref(), Some("debug"));
    let calls: Vec<_> = only.calls.iter().map(|it| (it.stream, it.answered_at)).collect();
    assert_eq!(calls, [(3, None), (4, None)]);
}

#[test]
fn previous_key_stays_until_its_sessions_end() {
    let mut journal = Journal::new(1);
    assert!(journal.use_key([1; 32]) && !journal.use_key([1; 32]));
    journal.apply(&begin(1));
    assert!(journal.use_key([2; 32]));
    assert_eq!(journal.keys, [(1, [1; 32]), (2, [2; 32])]);
    let mut journal = Journal::decode(&journal.encode()).unwrap();
    journal.apply(&Change::End(1));
    assert!(journal.use_key([2; 32]));
    assert_eq!(journal.keys, [(2, [2; 32])]);
}

#[test]
fn records_without_their_key_are_dropped() {
    let mut journal = Journal::new(1);
    for key in 1..=5_u8 {
        journal.use_key([key; 32]);
        let key = u32::from(key);
        journal.apply(&Change::Begin(Box::new(Record { key, ..record(key.into()) })));
    }
    assert_eq!((journal.keys.len(), journal.records().count()), (KEYS_MAX, KEYS_MAX));
}

#[test]
fn messages_that_change_a_record_are_recognized() {
    let request = |method: &str, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#)
    };
    let set_level = request("logging/setLevel", r#"{"level":"error"}"#);
    let watch = request("resources\\/subscribe", r#"{"uri":"a\u0062"}"#);
    let unwatch = request("resources/unsubscribe", r#"{"uri":"c"}"#);
    let initialized = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let table = [
        (set_level.as_str(), vec![level("error")]),
        (&watch, vec![Change::Subscribe(1, "ab".to_owned())]),
        (&unwatch, vec![Change::Unsubscribe(1, "c".to_owned())]),
        (initialized, vec![Change::Initialized(1)]),
        (
            &format!("[{set_level},{unwatch},7]"),
            vec![level("error"), Change::Unsubscribe(1, "c".to_owned())],
        ),
        (&request("logging/setLevel", r#"{"level":"loud"}"#), vec![]),
        (&request("resources/subscribe", "{}"), vec![]),
        (&request("tools/call", r#"{"name":"setLevel"}"#), vec![]),
        ("setLevel", vec![]),
    ];
    let changes = |message: &RequestBody| {
        let changes = changes_of(1, message).into_iter();
        changes.map(|it| (it.change, it.request.into())).collect::<Vec<(Change, String)>>()
    };
    for (message, expected) in table {
        let id = |change: &Change| match change {
            Change::Initialized(_) => String::new(),
            _ => "1".to_owned(),
        };
        let expected: Vec<_> = expected.into_iter().map(|it| (it.clone(), id(&it))).collect();
        let small = RequestBody::Small(message.to_owned().into());
        assert_eq!(changes(&small), expected, "{message}");
        let large = LargeMessage::read(message.as_bytes().to_vec());
        let large = RequestBody::Large(std::sync::Arc::new(large));
        assert_eq!(changes(&large), expected, "read elsewhere: {message}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Journal::decode(&bytes);
    }

    #[test]
    fn size_is_the_sum_of_records(steps in prop::collection::vec((0..4_u128, 0..8_u8), 0..60)) {
        let mut journal = Journal::new(1);
        for (session, step) in steps {
            journal.apply(&match step {
                0 => begin(session),
                1 => Change::Subscribe(session, format!("{session}{step}")),
                2 => Change::Unsubscribe(session, format!("{session}1")),
                3 => Change::Call(session, call(1)),
                4 => Change::Tag(session, 3),
                5 => Change::StreamEnd(session, TAG, 1),
                6 => Change::Call(session, StreamedCall { answered_at: Some(1), ..call(1) }),
                _ => Change::End(session),
            });
            let sum: usize = journal.records().map(Record::size).sum();
            prop_assert_eq!(journal.size(), sum);
        }
    }
}
