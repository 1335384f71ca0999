use std::io::{Read, Write};
use std::os::unix::net;

use proptest::prelude::*;
use tokio::io::AsyncReadExt;

use super::*;
use crate::engine::next;

fn frame(kind: u8, said: &[u8]) -> Vec<u8> {
    let length = u32::try_from(said.len()).unwrap().to_be_bytes();
    [&[kind, 0, 0, 0], length.as_slice(), said].concat()
}

#[test]
fn frame_is_read_in_any_pieces() {
    let bytes = frame(STDOUT, b"hello");
    assert_eq!(
        step(StreamPosition::default(), &bytes[..7]).unwrap(),
        None,
        "nobody knows yet how long it is"
    );
    let first = step(StreamPosition::default(), &bytes[..10]).unwrap().unwrap();
    assert_eq!((first.length, first.output_len), (10, 2));
    assert_eq!(first.after, StreamPosition { out: 2, err: 0, kind: STDOUT, left: 3 });
    let second = step(first.after, &[&bytes[10..], b"next"].concat()).unwrap().unwrap();
    assert_eq!((second.length, second.output_len), (3, 3));
    assert_eq!(second.after, StreamPosition { out: 5, err: 0, kind: STDOUT, left: 0 });
    assert_eq!(step(first.after, b"").unwrap(), None);
}

#[test]
fn invalid_frame_is_rejected() {
    assert!(step(StreamPosition::default(), b"HTTP/1.1").is_err());
    let empty = step(StreamPosition::default(), &frame(STDERR, b"")).unwrap().unwrap();
    assert_eq!((empty.length, empty.output_len, empty.after.left), (8, 0, 0));
}

#[test]
fn read_intent_round_trips_and_recovers_position() {
    let before = StreamPosition { out: 7, err: 8, kind: STDERR, left: u32::MAX };
    let after = StreamPosition { out: 7, err: 9, kind: STDERR, left: 3 };
    let intent = ReadIntent { before, after, length: 4, fingerprint: fingerprint(b"abcd") };
    assert_eq!(ReadIntent::from_bytes(&intent.to_bytes()), intent);
    assert_eq!(intent.position_after_restart(b"abcdef"), before, "it was not taken any more");
    for next in [&b"efgh"[..], b"", b"abc"] {
        assert_eq!(intent.position_after_restart(next), after);
    }
    let done = ReadIntent { before: after, after, ..ReadIntent::default() };
    assert_eq!(done.position_after_restart(b"abcdef"), after);
}

proptest! {
    #[test]
    fn any_split_yields_output_once(
        frames in prop::collection::vec((1_u8..=2, prop::collection::vec(any::<u8>(), 0..50)), 0..20),
        cuts in prop::collection::vec(1_usize..40, 1..50),
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(kind, said)| frame(*kind, said)).collect();
        let (mut at, mut begin, mut end) = (StreamPosition::default(), 0, 0);
        let mut heard = [Vec::new(), Vec::new()];
        let mut cuts = cuts.iter().cycle();
        while begin < bytes.len() {
            end = (end + cuts.next().unwrap()).min(bytes.len());
            while let Some(step) = step(at, &bytes[begin..end]).unwrap() {
                let said = &bytes[begin + step.length - step.output_len..begin + step.length];
                heard[usize::from(step.after.kind) - 1].extend_from_slice(said);
                (at, begin) = (step.after, begin + step.length);
            }
        }
        for kind in [STDOUT, STDERR] {
            let said = frames.iter().filter(|it| it.0 == kind).flat_map(|it| it.1.clone());
            prop_assert_eq!(&heard[usize::from(kind) - 1], &said.collect::<Vec<_>>());
        }
        prop_assert_eq!((at.out, at.err), (heard[0].len() as u64, heard[1].len() as u64));
    }

    #[test]
    fn step_never_exceeds_input(
        kind in 0_u8..=2, left in any::<u32>(), next in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        if let Ok(Some(step)) = step(StreamPosition { out: 0, err: 0, kind, left }, &next) {
            prop_assert!(step.length <= next.len() && step.output_len <= step.length && step.length > 0);
        }
    }
}

/// Returns the next output of a stream as text, and whether it is stderr.
async fn heard(attached: &mut AttachContainerResults) -> Option<(bool, String)> {
    let piece = next(&mut attached.output).await?.unwrap();
    let is_stderr = matches!(piece, LogOutput::StdErr { .. });
    Some((is_stderr, String::from_utf8_lossy(piece.as_ref()).into_owned()))
}

#[tokio::test]
async fn stream_is_resumed_inside_frame() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("taken");
    ReadJournal::begin(&file).unwrap();
    let taken = || ReadJournal::find(&file).unwrap();
    let (ours, mut engine) = net::UnixStream::pair().unwrap();
    let ours = OwnedFd::from(ours);
    let bytes = frame(STDOUT, b"one two");
    engine.write_all(&bytes[..11]).unwrap();
    let (mut first, _) = resume(ours.try_clone().unwrap(), Some(taken())).unwrap();
    assert_eq!(heard(&mut first).await, Some((false, "one".into())));
    drop(first);
    engine.write_all(&bytes[11..]).unwrap();
    engine.write_all(&frame(STDERR, b"oops")).unwrap();
    let (mut second, at) = resume(ours, Some(taken())).unwrap();
    assert_eq!((at.out, at.err), (3, 0));
    assert_eq!(heard(&mut second).await, Some((false, " two".into())));
    assert_eq!(heard(&mut second).await, Some((true, "oops".into())));
    second.input.write_all(b"hello").await.unwrap();
    let mut said = [0; 5];
    engine.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"hello");
    // Half of a header, and then nothing more.
    engine.write_all(&[1, 0, 0]).unwrap();
    drop(engine);
    assert_eq!(heard(&mut second).await, None);
}

#[tokio::test]
async fn interrupted_read_is_repeated_by_next_daemon() {
    for was_taken in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("taken");
        let (ours, mut engine) = net::UnixStream::pair().unwrap();
        let (one, two) = (frame(STDOUT, b"one"), frame(STDOUT, b"two"));
        engine.write_all(&[one.clone(), two].concat()).unwrap();
        let step = step(StreamPosition::default(), &one).unwrap().unwrap();
        let fingerprint = fingerprint(&one);
        let length = one.len() as u64;
        let intent = ReadIntent {
            before: StreamPosition::default(),
            after: step.after,
            length,
            fingerprint,
        };
        ReadJournal::begin(&file).unwrap().write(intent).unwrap();
        if was_taken {
            (&ours).read_exact(&mut vec![0; one.len()]).unwrap();
        }
        let (mut attached, at) = resume(ours.into(), ReadJournal::find(&file).ok()).unwrap();
        assert_eq!(at.out, if was_taken { 3 } else { 0 });
        let expected = if was_taken { "two" } else { "one" };
        assert_eq!(heard(&mut attached).await, Some((false, expected.into())));
    }
}

/// `/dev/full` refuses every write, like a full disk.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn full_disk_does_not_stop_reading() {
    let folder = tempfile::tempdir().unwrap();
    assert!(ReadJournal::begin(Path::new("/dev/full")).is_err(), "so nobody relies on it");
    let full = ReadJournal(File::options().read(true).write(true).open("/dev/full").unwrap());
    let (ours, mut engine) = net::UnixStream::pair().unwrap();
    let (mut attached, _) = resume(ours.into(), Some(full)).unwrap();
    for word in ["one", "two"] {
        engine.write_all(&frame(STDOUT, word.as_bytes())).unwrap();
        assert_eq!(heard(&mut attached).await, Some((false, word.to_owned())));
    }
    let file = folder.path().join("taken");
    ReadJournal::begin(&file).unwrap().give_up();
    assert!(ReadJournal::find(&file).is_err());
    assert!(ReadJournal::find(&folder.path().join("none")).is_err());
}

#[test]
fn refusal_reason_is_parsed() {
    assert_eq!(status(b"HTTP/1.1 404 Not Found\r\nX: y\r\n\r\n"), Some(404));
    assert_eq!(status(b"HTTP/1.0 101 UPGRADED\r\n\r\n"), Some(101));
    for odd in [&b""[..], b"\r\n\r\n", b"hello\r\n\r\n", b"HTTP/1.1 x\r\n\r\n"] {
        assert_eq!(status(odd), None);
    }
    let wrapped = b"2f\r\n{\"cause\":\"x\",\"message\":\"no such container\"}\r\n0\r\n\r\n";
    assert_eq!(message(wrapped).as_deref(), Some("no such container"));
    assert_eq!(message(b"no such container"), None);
    assert_eq!(message(b"}{"), None);
    assert_eq!(plain(b"No such container: abc\r\n").as_deref(), Some("No such container: abc"));
    for nothing in [&b""[..], b"\r\n", b"{\"cause\":\"x\"}"] {
        assert_eq!(plain(nothing), None);
    }
}

/// Attaches to an engine that sends these bytes; returns the rest of the stream.
async fn attached_at(says: &'static [u8]) -> Result<Vec<u8>, String> {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("engine.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let engine = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let asked = stream.read(&mut [0; 4096]).await.unwrap();
        assert!(asked > 0);
        stream.write_all(says).await.unwrap();
    });
    let attached = attach(&socket, "abc").await.map_err(|why| why.to_string())?;
    engine.await.unwrap();
    let mut rest = Vec::new();
    let mut stream = net::UnixStream::from(attached);
    stream.set_nonblocking(false).unwrap();
    stream.read_to_end(&mut rest).unwrap();
    Ok(rest)
}

#[tokio::test]
async fn response_head_takes_no_stream_bytes() {
    let rest =
        attached_at(b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\n\x01\0\0\0\0\0\0\x01x").await;
    assert_eq!(rest.unwrap(), b"\x01\0\0\0\0\0\0\x01x");
    let gone = attached_at(
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 31\r\n\r\n{\"message\":\"no such container\"}",
    );
    assert!(gone.await.unwrap_err().contains("no such container"));
    assert!(attached_at(b"I am a shell\r\n\r\n").await.is_err());
    assert!(attached_at(b"HTTP/1.1 101").await.is_err());
}
