use std::io::Read;
use std::os::unix::net::UnixStream;

use super::*;
use crate::clock;
use crate::control::Control;
use crate::wire::Frame;

/// A log, its connection, and the daemon's end of that.
struct Play {
    log: Log,
    control: Control,
    daemon: UnixStream,
    _folder: tempfile::TempDir,
}

impl Play {
    fn new() -> Self {
        let (ours, daemon) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        daemon.set_nonblocking(true).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.log").to_str().unwrap().to_owned();
        let order = LogOrder { file, max_bytes: 1 << 30, generations: 1, next_seq: 10 };
        let log = Log::open(&order, clock::now());
        Self { log, control: Control::new(ours.into()), daemon, _folder: folder }
    }

    fn take(&mut self, stream: Stream, bytes: &[u8]) {
        self.log.take(stream, bytes, clock::moment(), &mut self.control.outbox);
    }

    fn end_round(&mut self) {
        self.log.end_round(clock::now(), &mut self.control.outbox);
        self.control.flush();
    }

    /// Per batch: the number it tells, and its records as text.
    fn heard(&mut self) -> Vec<(u64, Vec<String>)> {
        let mut bytes = Vec::new();
        loop {
            let before = bytes.len();
            let _ = self.daemon.read_to_end(&mut bytes);
            self.end_round();
            if bytes.len() == before {
                break;
            }
        }
        let mut heard = Vec::new();
        let mut at = 0;
        while let Some((frame, length)) = wire::parse(&bytes[at..]).unwrap() {
            if let Frame::Log { next_seq, batch } = frame {
                let words = |it: Record<'_>| {
                    format!("{} {} {}", it.seq, it.flags, String::from_utf8_lossy(it.line))
                };
                heard.push((next_seq, wire::records(batch).map(words).collect()));
            }
            at += length;
        }
        heard
    }
}

#[test]
fn a_round_is_one_batch_with_one_counter_for_both_streams() {
    let mut play = Play::new();
    play.take(Stream::Err, b"one\ntw");
    play.take(Stream::Out, b"three\n");
    play.take(Stream::Err, b"o\n");
    play.end_round();
    play.end_round();
    let records = ["10 1 one", "11 0 three", "12 1 two"].map(str::to_owned).to_vec();
    assert_eq!(play.heard(), [(13, records)]);
}

#[test]
fn a_daemon_that_missed_records_is_told_of_them_and_gets_the_latest_even_if_nothing_more_comes() {
    let mut play = Play::new();
    let line = [&[b'x'; 1000][..], b"\n"].concat();
    for _ in 0..10_000 {
        play.take(Stream::Err, &line);
        play.end_round();
    }
    let heard = play.heard();
    let count: usize = heard.iter().map(|(_, records)| records.len()).sum();
    assert!(count < 10_000);
    let (told, records) = heard.last().unwrap();
    assert_eq!(*told, 10_010);
    // What it missed was in the middle: the latest is there.
    assert!(records.last().unwrap().starts_with("10009 "));

    play.take(Stream::Err, b"after\n");
    play.end_round();
    assert_eq!(play.heard(), [(10_011, vec!["10010 1 after".to_owned()])]);
}

#[test]
fn the_last_batch_is_kept_for_a_daemon_that_does_not_read() {
    let mut play = Play::new();
    for _ in 0..10_000 {
        play.take(Stream::Err, &[&[b'x'; 1000][..], b"\n"].concat());
        play.end_round();
    }
    play.take(Stream::Err, b"the end");
    play.log.finish(clock::moment(), &mut play.control.outbox);
    let heard = play.heard();
    assert_eq!(heard.last().unwrap(), &(10_011, vec!["10010 5 the end".to_owned()]));
}

#[test]
fn very_many_empty_lines_make_several_batches_and_not_one_too_long() {
    let mut play = Play::new();
    play.take(Stream::Out, &vec![b'\n'; 40_000]);
    play.end_round();
    let heard = play.heard();
    assert!(heard.len() > 1);
    assert_eq!(heard.iter().map(|(_, records)| records.len()).sum::<usize>(), 40_000);
}
