use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::*;

fn connected() -> (Control, UnixStream) {
    let (shim_end, daemon_end) = UnixStream::pair().unwrap();
    shim_end.set_nonblocking(true).unwrap();
    daemon_end.set_nonblocking(true).unwrap();
    (Control::new(shim_end.into()), daemon_end)
}

fn log_problem(problem: &str) -> Report {
    Report::LogTrouble { problem: Some(problem.to_owned()) }
}

/// Reads everything that has arrived.
fn received(daemon: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let ended = daemon.read_to_end(&mut bytes);
    assert!(ended.is_err_and(|cause| cause.kind() == std::io::ErrorKind::WouldBlock));
    bytes
}

#[test]
fn orders_arrive_in_pieces() {
    let (mut control, mut daemon) = connected();
    let mut bytes = Vec::new();
    wire::put_unparsed_output(&mut bytes, b"stray");
    wire::put_order(&mut bytes, &Order::Stop { grace_ms: 7, for_good: false }).unwrap();
    wire::put_order(&mut bytes, &Order::Finish).unwrap();

    let mut unparsed = Vec::new();
    let mut orders = Vec::new();
    for byte in bytes {
        daemon.write_all(&[byte]).unwrap();
        control.read(&mut [0; 10]);
        orders.extend(control.next_order(|data, _| {
            if let DaemonData::UnparsedOutput(bytes) = data {
                unparsed.extend_from_slice(bytes);
            }
        }));
    }
    assert_eq!(unparsed, b"stray");
    assert_eq!(orders, [Order::Stop { grace_ms: 7, for_good: false }, Order::Finish]);
}

#[test]
fn invalid_frames_close_the_connection() {
    let mut report = Vec::new();
    wire::put_report(&mut report, &log_problem("not for a shim"));
    for garbage in [&u32::MAX.to_le_bytes()[..], &[1, 0, 0, 0, 99], &[2, 0, 0, 0, 1, b'{'], &report]
    {
        let (mut control, mut daemon) = connected();
        daemon.write_all(garbage).unwrap();
        control.read(&mut [0; 1000]);
        assert_eq!(control.next_order(|_, _| ()), None);
        assert!(control.is_gone());
    }
}

#[test]
fn closed_connection_discards_output() {
    let (mut control, daemon) = connected();
    drop(daemon);
    control.read(&mut [0; 10]);
    assert!(control.is_gone());
    assert!(control.outbox.put_log(1, b""));
    control.outbox.put_report(&log_problem("discarded"));
    assert_eq!(control.outbox.bytes, b"");
}

#[test]
fn slow_daemon_loses_batches_but_no_reports() {
    let (mut control, mut daemon) = connected();
    let batch = vec![0; 100 * 1024];
    let mut kept = 0;
    while control.outbox.put_log(kept, &batch) {
        control.flush();
        kept += 1;
        assert!(kept < 1000, "there is a limit");
    }
    control.outbox.put_report(&log_problem("kept"));

    let mut bytes = Vec::new();
    while control.outbox.waiting() > 0 {
        bytes.extend(received(&mut daemon));
        control.flush();
    }
    bytes.extend(received(&mut daemon));
    let mut at = 0;
    for number in 0..kept {
        let (frame, length) = wire::parse(&bytes[at..]).unwrap().unwrap();
        assert_eq!(frame, Frame::Log { next_seq: number, batch: &batch });
        at += length;
    }
    let (frame, _) = wire::parse(&bytes[at..]).unwrap().unwrap();
    assert_eq!(frame, Frame::Report(log_problem("kept")));
    assert!(control.outbox.put_log(kept, &batch));
}

#[test]
fn final_flush_waits_for_a_limited_time() {
    let (mut control, daemon) = connected();
    control.outbox.set_unbounded();
    for _ in 0..30 {
        assert!(control.outbox.put_log(0, &vec![0; 100 * 1024]));
    }
    control.flush_within(Duration::from_millis(10));
    assert!(control.outbox.waiting() > 0);

    daemon.set_nonblocking(false).unwrap();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        (&daemon).read_to_end(&mut bytes).map(|_| bytes.len()).unwrap()
    });
    control.flush_within(Duration::from_secs(20));
    assert_eq!(control.outbox.waiting(), 0);
    drop(control);
    assert_eq!(reader.join().unwrap(), 30 * (100 * 1024 + 13));
}

#[test]
fn descriptors_arrive_with_their_frame() {
    let (mut control, daemon) = connected();
    let (read_end, write_end) = std::io::pipe().unwrap();
    let started = Report::Started { pid: 7, lasting: true, confined: wire::Confinement::default() };
    control.outbox.put_report(&log_problem("before"));
    control.outbox.put_report_with(&started, vec![write_end.into(), read_end.into()]);
    control.outbox.put_log(1, b"");
    control.flush();

    let mut before = Vec::new();
    wire::put_report(&mut before, &log_problem("before"));
    let (reports, descriptors) = receive(&daemon, before.len());
    assert_eq!(reports, [log_problem("before")]);
    assert!(descriptors.is_empty());
    let (reports, descriptors) = receive(&daemon, 1000);
    assert_eq!(reports[0], started);
    let [to_pipe, from_pipe] = <[OwnedFd; 2]>::try_from(descriptors).unwrap();
    rustix::io::write(&to_pipe, b"x").unwrap();
    let mut byte = [0];
    rustix::io::read(&from_pipe, &mut byte).unwrap();
    assert_eq!(byte, *b"x");
}

fn receive(daemon: &UnixStream, at_most: usize) -> (Vec<Report>, Vec<OwnedFd>) {
    let mut bytes = vec![0; at_most];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
    let count = recvmsg(daemon, &mut parts, &mut ancillary, RecvFlags::empty()).unwrap().bytes;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let mut reports = Vec::new();
    let mut at = 0;
    while let Some((frame, length)) = wire::parse(&bytes[at..count]).unwrap() {
        if let Frame::Report(report) = frame {
            reports.push(report);
        }
        at += length;
    }
    (reports, descriptors)
}
