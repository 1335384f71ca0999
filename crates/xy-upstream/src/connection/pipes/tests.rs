//! Which messages a server has not read when it dies.

use std::io::{PipeReader, Read};
use std::os::fd::OwnedFd;

use super::*;
use crate::connection::wire::Wire;

/// Returns the pipes to a server, and the server's reading end.
async fn pipes() -> (Rc<Pipes>, PipeReader) {
    let (reader, writer) = io::pipe().unwrap();
    (pipes_at(writer.into()).await, reader)
}

async fn pipes_at(writer: OwnedFd) -> Rc<Pipes> {
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    let stdin = Rc::new(pipe::Sender::from_owned_fd(writer).unwrap());
    stdin.writable().await.unwrap();
    let (events, _) = mpsc::channel(1);
    Pipes::new(&stdin, events)
}

/// Sends a message, and returns its offset.
fn put(pipes: &Pipes, text: &str) -> u64 {
    let place = pipes.put(None, &mut |out| out.tail().extend_from_slice(text.as_bytes()));
    pipes.flush(true);
    assert_eq!(pipes.waiting(), 0, "it is written at once");
    place
}

fn read(reader: &mut PipeReader, bytes: usize) {
    reader.read_exact(&mut vec![0; bytes]).unwrap();
}

#[tokio::test]
async fn unread_offset_of_a_dead_server_is_exact() {
    let (pipes, mut reader) = pipes().await;
    let [_, begun, unread] = ["first", "second", "third"].map(|text| put(&pipes, text));
    read(&mut reader, 7); // The first line, and one letter of the second.
    drop(reader);
    pipes.close();
    assert_eq!(pipes.unread_from(), Some(begun + 1));
    assert!(unread >= pipes.unread_from().unwrap());
}

#[tokio::test]
async fn server_that_has_read_everything_left_nothing_unread() {
    let (pipes, mut reader) = pipes().await;
    put(&pipes, "first");
    read(&mut reader, 6);
    drop(reader);
    pipes.close();
    assert_eq!(pipes.unread_from(), Some(6));
}

#[tokio::test]
async fn unread_offset_is_unknown_while_a_reader_exists() {
    let (pipes, reader) = pipes().await;
    put(&pipes, "first");
    pipes.close();
    assert_eq!(pipes.unread_from(), None);
    drop(reader);
    assert_eq!(pipes.unread_from(), None);
}

#[tokio::test]
async fn stopping_server_may_read_until_its_death() {
    let (pipes, mut reader) = pipes().await;
    let [_, second] = ["first", "second"].map(|text| put(&pipes, text));
    pipes.close();
    read(&mut reader, 6);
    pipes.mark_dead();
    assert_eq!(pipes.unread_from(), Some(second));
    let mut rest = String::new();
    // The stdin is closed, although this process still reads it.
    reader.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "second\n");
}

#[tokio::test]
async fn unread_bytes_of_an_earlier_daemon_come_first() {
    let (reader, writer) = io::pipe().unwrap();
    let mut earlier = writer.try_clone().unwrap();
    io::Write::write_all(&mut earlier, b"from an earlier daemon\n").unwrap();
    drop(earlier);
    let pipes = pipes_at(writer.into()).await;
    assert_eq!(put(&pipes, "ours"), 0);
    drop(reader);
    pipes.close();
    assert_eq!(pipes.unread_from(), Some(0));
}

/// The message counts as never written, so another process gets it.
#[tokio::test]
async fn message_not_started_at_close_is_never_written() {
    let (reader, writer) = io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    let stdin = Rc::new(pipe::Sender::from_owned_fd(writer.into()).unwrap());
    let (events, _) = mpsc::channel(1);
    let pipes = Pipes::new(&stdin, events);
    let place = pipes.put(None, &mut |out| out.tail().extend_from_slice(b"late"));
    pipes.close();
    pipes.write_block(&stdin, 5, (ATOMIC, &Pace::default())).await.unwrap();
    assert!(!pipes.is_written(place));
    assert_eq!(rustix::io::ioctl_fionread(&reader).unwrap(), 0);
}

/// From then on its copy is useless if the call must not be repeated.
#[tokio::test]
async fn message_larger_than_the_pipe_is_started_once_it_is_written() {
    let (reader, writer) = io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    let stdin = Rc::new(pipe::Sender::from_owned_fd(writer.into()).unwrap());
    let capacity = capacity(&stdin);
    let (events, _) = mpsc::channel(1);
    let pipes = Pipes::new(&stdin, events);
    let text = |length: usize| std::iter::repeat_n(b'x', length);
    let put = |length: usize| pipes.put(None, &mut |out| out.tail().extend(text(length)));
    let [_, long, fitting] = [10, capacity, capacity - 1].map(put);
    pipes.flush(false);
    let begun = RefCell::new(Vec::new());
    let mut reader = pipe::Receiver::from_owned_fd(reader.into()).unwrap();
    let write = async {
        pipes
            .write_all(&stdin, &Pace::default(), |place| begun.borrow_mut().push(place))
            .await
            .unwrap();
    };
    let read = async {
        let mut buffer = vec![0; capacity];
        // The message is not started while its first byte is still in the pipe.
        while pipes.out.borrow().written() <= long {
            tokio::task::yield_now().await;
        }
        tokio::io::AsyncReadExt::read_exact(&mut reader, &mut buffer[..11]).await.unwrap();
        assert_eq!(*begun.borrow(), [0; 0]);
        while begun.borrow().is_empty() {
            let _ = tokio::io::AsyncReadExt::read(&mut reader, &mut buffer[..1]).await.unwrap();
        }
        while pipes.waiting() > 0 {
            let _ = tokio::io::AsyncReadExt::read(&mut reader, &mut buffer).await.unwrap();
        }
        assert!(pipes.is_written(fitting));
    };
    tokio::select! {
        () = write => {}
        () = read => {}
    }
    assert_eq!(*begun.borrow(), [long], "a message that fits may be in the pipe completely");
}
