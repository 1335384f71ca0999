use super::*;

#[test]
fn a_place_survives_being_bytes() {
    let place = Place { out: 1, err: 2, quiet_second: 3, quiet_out: 4, quiet_err: u64::MAX };
    assert_eq!(Place::from_bytes(&place.to_bytes()), place);
}

#[test]
fn only_whole_lines_count_as_heard() {
    let mut counter = Counter::after(Place::default());
    counter.hear(false, b"one\ntw", 1000, 0);
    assert_eq!((counter.place().out, counter.heard().out), (4, 6));
    counter.hear(false, b"o\n", 1001, 0);
    counter.hear(true, b"oops", 1002, 0);
    assert_eq!((counter.place().out, counter.place().err), (8, 4));
}

#[test]
fn a_quiet_moment_is_where_a_log_can_be_read_from() {
    let mut counter = Counter::after(Place::default());
    counter.hear(false, b"a\n", 10_900, 0);
    counter.hear(false, b"b\n", 13_000, 2100); // Not long enough.
    assert_eq!(counter.place().quiet_second, 0);
    counter.hear(false, b"c\n", 20_000, 10); // We were busy: nobody knows whether it was quiet.
    assert_eq!(counter.place().quiet_second, 0);
    counter.hear(true, b"d\n", 23_999, 3999);
    let place = counter.place();
    assert_eq!((place.quiet_second, place.quiet_out, place.quiet_err), (22, 6, 0));
    assert_eq!((place.out, place.err), (6, 2));
}

#[test]
fn what_is_logged_or_read_is_noted_as_soon_as_it_is() {
    let mut counter = Counter::after(Place::default());
    let mut noting = Noting::after(Place::default());
    let noted = |it: Option<Place>| it.map(|it| (it.out, it.err));
    counter.hear(false, b"one\n", 1000, 0);
    assert_eq!(noted(noting.step(&counter, [0, 0])), None);
    counter.hear(true, b"oops\n", 1001, 0);
    assert_eq!(noted(noting.step(&counter, [0, 0])), None, "it is not logged yet");
    assert_eq!(noted(noting.step(&counter, [0, 5])), Some((0, 5)), "nobody has read the first");
    counter.hear(false, b"two\n", 1002, 0);
    assert_eq!(noted(noting.step(&counter, [4, 5])), Some((4, 5)), "nor the second");
    counter.hear(false, b"thr", 1003, 0);
    assert_eq!(noted(noting.step(&counter, [8, 5])), Some((8, 5)));
    assert_eq!(noted(noting.step(&counter, [11, 5])), None, "half a line is not noted");
    assert!(noting.is_done(&counter));
    // What comes after a quiet moment is not counted from there before it has been read.
    counter.hear(false, b"ee\n", 1004, 0);
    noting.step(&counter, [14, 5]);
    counter.hear(true, b"late\n", 9000, 7996);
    counter.hear(false, b"x\n", 9001, 0);
    let place = noting.step(&counter, [14, 10]).unwrap();
    assert_eq!((place.out, place.err, place.quiet_second), (14, 10, 0));
    let place = noting.step(&counter, [16, 10]).unwrap();
    assert_eq!((place.out, place.quiet_second, place.quiet_out), (16, 3, 14));
    // Nor before what was said up to there is logged.
    counter.hear(true, b"slow\n", 9002, 0);
    counter.hear(true, b"z\n", 20_000, 10_998);
    let place = noting.step(&counter, [16, 12]).unwrap();
    assert_eq!((place.err, place.quiet_second, place.quiet_err), (12, 3, 5));
    let place = noting.step(&counter, [16, 17]).unwrap();
    assert_eq!((place.err, place.quiet_second, place.quiet_err), (17, 11, 15));
}

/// What is kept, how much was heard, how that ends, how much may lack, and where it goes on.
type Row<'a> = (&'a str, &'a [u8], u64, Option<&'a [u8]>, u64, Option<usize>);

#[test]
fn what_comes_next_is_found_by_count_and_if_that_is_wrong_by_what_came_before() {
    let long = (0..20).map(|it| format!("line {it}\n")).collect::<Vec<_>>().concat();
    let (long, known) = (long.as_bytes(), &long.as_bytes()[..100]);
    let twice = [known, known, b"x\n"].concat();
    let equal = b"tick\n".repeat(100);
    let table: [Row<'_>; 14] = [
        ("counted", b"one\ntwo\n", 4, None, 0, Some(4)),
        ("counted, and not all there", b"one", 4, None, 0, None),
        ("counted, and the end is not kept yet", b"one", 4, None, 9, Some(3)),
        ("as known", b"one\ntwo\n", 4, Some(b"one\n"), 0, Some(4)),
        ("more is known than was heard since", b"one\ntwo\n", 4, Some(b"zero\none\n"), 0, Some(4)),
        ("nothing was ever heard", b"one\n", 0, Some(b""), 0, Some(0)),
        ("nothing was heard since", b"one\n", 0, Some(b"zero\n"), 0, Some(0)),
        ("known, and the end is not kept yet", b"one\ntw", 8, Some(b"one\ntwo\n"), 9, Some(6)),
        ("something else, and nothing to look for", b"six\ntwo\n", 4, Some(b"one\n"), 9, None),
        ("the beginning is not kept", &long[10..], 100, Some(&known[20..]), 0, Some(90)),
        ("less is kept than was heard", &long[10..], 5000, Some(&known[20..]), 9, Some(90)),
        ("it is there twice", &twice, 300, Some(known), 9, None),
        ("it is there twice, in part the same", &equal[..300], 5000, Some(&equal[..200]), 9, None),
        ("it is not there", &long[50..], 100, Some(known), 9, None),
    ];
    for (name, kept, heard, known, unlogged, expected) in table {
        assert_eq!(goes_on_at(kept, heard, known, unlogged), expected, "{name}");
    }
}

#[test]
fn what_comes_next_is_found_also_if_what_came_before_is_no_text_and_is_kept_as_text() {
    let said = |from: u32, to: u32| -> Vec<u8> {
        (from..to)
            .flat_map(|it| [b"caf\xe9 ".as_slice(), format!("{it}\n").as_bytes()].concat())
            .collect()
    };
    let (long, rest) = (said(10, 40), said(40, 50));
    let kept = [as_text(&long), as_text(&rest)].concat();
    let heard = long.len() as u64;
    let at = as_text(&long).len();
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
        ("all of it is known", &kept, heard, Some(&long), 0, Some(at)),
        (
            "all of it is known, and that is little",
            "caf\u{fffd}\nnext\n".as_bytes(),
            5,
            Some(&short[..5]),
            0,
            Some(7),
        ),
        ("only its end is", &kept, heard, Some(&long[100..]), 0, Some(at)),
        ("that begins inside of a letter", &kept, heard, Some(&inside), 0, Some(at)),
        ("it is kept as another text", &otherwise, 5000, Some(&text), 0, Some(otherwise.len() - 5)),
        ("it cannot be looked for", &kept, 12, Some(&short[3..]), 0, Some(12)),
    ];
    for (name, kept, heard, known, unlogged, expected) in table {
        assert_eq!(goes_on_at(kept, heard, known, unlogged), expected, "{name}");
    }
    assert_eq!(as_text("\u{e9}x\u{20ac}".as_bytes()), "\u{e9}x\u{20ac}".as_bytes());
    assert_eq!(as_text(b"a\xe2\x82b"), "a\u{fffd}\u{fffd}b".as_bytes());
}
