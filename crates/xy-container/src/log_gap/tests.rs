use super::*;

#[test]
fn output_position_round_trips() {
    let position =
        OutputPosition { out: 1, err: 2, quiet_second: 3, quiet_out: 4, quiet_err: u64::MAX };
    assert_eq!(OutputPosition::from_bytes(&position.to_bytes()), position);
}

#[test]
fn position_counts_only_whole_lines() {
    let mut counter = OutputCounter::after(OutputPosition::default());
    counter.add(false, b"one\ntw", 1000, 0);
    assert_eq!((counter.position().out, counter.exact_position().out), (4, 6));
    counter.add(false, b"o\n", 1001, 0);
    counter.add(true, b"oops", 1002, 0);
    assert_eq!((counter.position().out, counter.position().err), (8, 4));
}

#[test]
fn quiet_moment_is_recorded() {
    let mut counter = OutputCounter::after(OutputPosition::default());
    counter.add(false, b"a\n", 10_900, 0);
    counter.add(false, b"b\n", 13_000, 2100); // Not long enough.
    assert_eq!(counter.position().quiet_second, 0);
    // The reader was busy, so it is unknown whether it was quiet.
    counter.add(false, b"c\n", 20_000, 10);
    assert_eq!(counter.position().quiet_second, 0);
    counter.add(true, b"d\n", 23_999, 3999);
    let position = counter.position();
    assert_eq!((position.quiet_second, position.quiet_out, position.quiet_err), (22, 6, 0));
    assert_eq!((position.out, position.err), (6, 2));
}

#[test]
fn position_advances_when_output_is_consumed() {
    let mut counter = OutputCounter::after(OutputPosition::default());
    let mut tracker = PositionTracker::after(OutputPosition::default());
    let noted = |it: Option<OutputPosition>| it.map(|it| (it.out, it.err));
    counter.add(false, b"one\n", 1000, 0);
    assert_eq!(noted(tracker.step(&counter, [0, 0])), None);
    counter.add(true, b"oops\n", 1001, 0);
    assert_eq!(noted(tracker.step(&counter, [0, 0])), None, "it is not logged yet");
    assert_eq!(noted(tracker.step(&counter, [0, 5])), Some((0, 5)), "nobody has read the first");
    counter.add(false, b"two\n", 1002, 0);
    assert_eq!(noted(tracker.step(&counter, [4, 5])), Some((4, 5)), "nor the second");
    counter.add(false, b"thr", 1003, 0);
    assert_eq!(noted(tracker.step(&counter, [8, 5])), Some((8, 5)));
    assert_eq!(noted(tracker.step(&counter, [11, 5])), None, "half a line is not noted");
    assert!(tracker.is_done(&counter));
    // A quiet moment counts only once the output before it has been read,
    counter.add(false, b"ee\n", 1004, 0);
    tracker.step(&counter, [14, 5]);
    counter.add(true, b"late\n", 9000, 7996);
    counter.add(false, b"x\n", 9001, 0);
    let position = tracker.step(&counter, [14, 10]).unwrap();
    assert_eq!((position.out, position.err, position.quiet_second), (14, 10, 0));
    let position = tracker.step(&counter, [16, 10]).unwrap();
    assert_eq!((position.out, position.quiet_second, position.quiet_out), (16, 3, 14));
    // and once the stderr before it is logged.
    counter.add(true, b"slow\n", 9002, 0);
    counter.add(true, b"z\n", 20_000, 10_998);
    let position = tracker.step(&counter, [16, 12]).unwrap();
    assert_eq!((position.err, position.quiet_second, position.quiet_err), (12, 3, 5));
    let position = tracker.step(&counter, [16, 17]).unwrap();
    assert_eq!((position.err, position.quiet_second, position.quiet_err), (17, 11, 15));
}

/// Case, kept output, received bytes, known end of them, bytes that may lack, and expected offset.
type Row<'a> = (&'a str, &'a [u8], u64, Option<&'a [u8]>, u64, Option<usize>);

#[test]
fn resume_offset_uses_count_then_tail() {
    let long = (0..20).map(|it| format!("line {it}\n")).collect::<Vec<_>>().concat();
    let (long, known) = (long.as_bytes(), &long.as_bytes()[..100]);
    let twice = [known, known, b"x\n"].concat();
    let equal = b"tick\n".repeat(100);
    let table: [Row<'_>; 14] = [
        ("counted", b"one\ntwo\n", 4, None, 0, Some(4)),
        ("counted, and not all there", b"one", 4, None, 0, None),
        ("counted, and the end is not kept yet", b"one", 4, None, 9, Some(3)),
        ("as known", b"one\ntwo\n", 4, Some(b"one\n"), 0, Some(4)),
        (
            "more is known than was received since",
            b"one\ntwo\n",
            4,
            Some(b"zero\none\n"),
            0,
            Some(4),
        ),
        ("nothing was ever heard", b"one\n", 0, Some(b""), 0, Some(0)),
        ("nothing was received since", b"one\n", 0, Some(b"zero\n"), 0, Some(0)),
        ("known, and the end is not kept yet", b"one\ntw", 8, Some(b"one\ntwo\n"), 9, Some(6)),
        ("something else, and nothing to look for", b"six\ntwo\n", 4, Some(b"one\n"), 9, None),
        ("the beginning is not kept", &long[10..], 100, Some(&known[20..]), 0, Some(90)),
        ("less is kept than was heard", &long[10..], 5000, Some(&known[20..]), 9, Some(90)),
        ("it is there twice", &twice, 300, Some(known), 9, None),
        ("it is there twice, in part the same", &equal[..300], 5000, Some(&equal[..200]), 9, None),
        ("it is not there", &long[50..], 100, Some(known), 9, None),
    ];
    for (name, kept, received, known, unlogged, expected) in table {
        assert_eq!(resume_offset(kept, received, known, unlogged), expected, "{name}");
    }
}

#[test]
fn resume_offset_handles_binary_stored_as_text() {
    let said = |from: u32, to: u32| -> Vec<u8> {
        (from..to)
            .flat_map(|it| [b"caf\xe9 ".as_slice(), format!("{it}\n").as_bytes()].concat())
            .collect()
    };
    let (long, rest) = (said(10, 40), said(40, 50));
    let kept = [lossy_text(&long), lossy_text(&rest)].concat();
    let received = long.len() as u64;
    let at = lossy_text(&long).len();
    let inside = [b"\xa9".as_slice(), &long[100..]].concat();
    let text = [b"x\xe2\x82".as_slice(), &b"y".repeat(70), b"\n"].concat();
    let otherwise = [b"x\xef\xbf\xbd".as_slice(), &b"y".repeat(70), b"\nnext\n"].concat();
    let short = b"caf\xe9\nmore\n";
    let letters = "caf\u{e9}\n".repeat(40).into_bytes();
    let table: [Row<'_>; 7] = [
        (
            "it is text from its first whole letter on",
            &letters,
            151,
            Some(&letters[4..108]),
            0,
            None,
        ),
        ("all of it is known", &kept, received, Some(&long), 0, Some(at)),
        (
            "all of it is known, and that is little",
            "caf\u{fffd}\nnext\n".as_bytes(),
            5,
            Some(&short[..5]),
            0,
            Some(7),
        ),
        ("only its end is", &kept, received, Some(&long[100..]), 0, Some(at)),
        ("that begins inside of a letter", &kept, received, Some(&inside), 0, Some(at)),
        ("it is kept as another text", &otherwise, 5000, Some(&text), 0, Some(otherwise.len() - 5)),
        ("it cannot be looked for", &kept, 12, Some(&short[3..]), 0, Some(12)),
    ];
    for (name, kept, received, known, unlogged, expected) in table {
        assert_eq!(resume_offset(kept, received, known, unlogged), expected, "{name}");
    }
    assert_eq!(lossy_text("\u{e9}x\u{20ac}".as_bytes()), "\u{e9}x\u{20ac}".as_bytes());
    assert_eq!(lossy_text(b"a\xe2\x82b"), "a\u{fffd}\u{fffd}b".as_bytes());
}
