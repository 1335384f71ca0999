use std::io::Read;
use std::os::unix::net::UnixStream;

use super::*;
use crate::clock;
use crate::control::Control;
use crate::wire::Frame;

/// A log, its connection, and the daemon's end of that.
struct Setup {
    log: Log,
    control: Control,
    daemon: UnixStream,
    _folder: tempfile::TempDir,
}

impl Setup {
    fn new() -> Self {
        let (shim_end, daemon) = UnixStream::pair().unwrap();
        shim_end.set_nonblocking(true).unwrap();
        daemon.set_nonblocking(true).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.log").to_str().unwrap().to_owned();
        let order = LogOrder { file, max_bytes: 1 << 30, generations: 1, next_seq: 10 };
        let log = Log::open(&order, clock::now());
        Self { log, control: Control::new(shim_end.into()), daemon, _folder: folder }
    }

    fn append(&mut self, stream: Stream, bytes: &[u8]) {
        self.log.append(stream, bytes, clock::moment(), &mut self.control.outbox);
    }

    fn finish_round(&mut self) {
        self.log.finish_round(clock::now(), &mut self.control.outbox);
        self.control.flush();
    }

    /// Returns for each batch its `next_seq` and its records as text.
    fn received(&mut self) -> Vec<(u64, Vec<String>)> {
        let mut bytes = Vec::new();
        loop {
            let before = bytes.len();
            let _ = self.daemon.read_to_end(&mut bytes);
            self.finish_round();
            if bytes.len() == before {
                break;
            }
        }
        let mut received = Vec::new();
        let mut at = 0;
        while let Some((frame, length)) = wire::parse(&bytes[at..]).unwrap() {
            if let Frame::Log { next_seq, batch } = frame {
                let words = |it: Record<'_>| {
                    format!("{} {} {}", it.seq, it.flags, String::from_utf8_lossy(it.line))
                };
                received.push((next_seq, wire::records(batch).map(words).collect()));
            }
            at += length;
        }
        received
    }
}

#[test]
fn streams_share_a_batch_and_a_counter() {
    let mut setup = Setup::new();
    setup.append(Stream::Err, b"one\ntw");
    setup.append(Stream::Out, b"three\n");
    setup.append(Stream::Err, b"o\n");
    setup.finish_round();
    setup.finish_round();
    let records = ["10 1 one", "11 0 three", "12 1 two"].map(str::to_owned).to_vec();
    assert_eq!(setup.received(), [(13, records)]);
}

#[test]
fn slow_daemon_gets_the_latest_records() {
    let mut setup = Setup::new();
    let line = [&[b'x'; 1000][..], b"\n"].concat();
    for _ in 0..10_000 {
        setup.append(Stream::Err, &line);
        setup.finish_round();
    }
    let received = setup.received();
    let count: usize = received.iter().map(|(_, records)| records.len()).sum();
    assert!(count < 10_000);
    let (end_seq, records) = received.last().unwrap();
    assert_eq!(*end_seq, 10_010);
    // The daemon missed records in the middle: the latest is there.
    assert!(records.last().unwrap().starts_with("10009 "));

    setup.append(Stream::Err, b"after\n");
    setup.finish_round();
    assert_eq!(setup.received(), [(10_011, vec!["10010 1 after".to_owned()])]);
}

#[test]
fn last_batch_reaches_a_slow_daemon() {
    let mut setup = Setup::new();
    for _ in 0..10_000 {
        setup.append(Stream::Err, &[&[b'x'; 1000][..], b"\n"].concat());
        setup.finish_round();
    }
    setup.append(Stream::Err, b"the end");
    setup.log.finish(clock::moment(), &mut setup.control.outbox);
    let received = setup.received();
    assert_eq!(received.last().unwrap(), &(10_011, vec!["10010 5 the end".to_owned()]));
}

#[test]
fn many_empty_lines_are_split_into_batches() {
    let mut setup = Setup::new();
    setup.append(Stream::Out, &vec![b'\n'; 40_000]);
    setup.finish_round();
    let received = setup.received();
    assert!(received.len() > 1);
    assert_eq!(received.iter().map(|(_, records)| records.len()).sum::<usize>(), 40_000);
}
