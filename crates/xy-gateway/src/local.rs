//! The local door: a Unix socket, one message per line, for `xy connect`.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use xy_ipc::framing::{Line, LineSplitter};
use xy_ipc::is_hung_up;
use xy_protocol::door::{self, Answer, DOOR_PROTOCOL, Hello};

use crate::front::{Conversation, Entry, Front, Heard, Outlet, To, View};
use crate::say;
use crate::upstream::wire::{MAX_LINE, READ_BYTES, with_scratch};

/// A client that has so much unread is not reading.
const MOST_UNREAD: usize = 64 * 1024 * 1024;

/// How long a newcomer may take to say what it wants.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// After a failed accept (too many open files) the door waits so long.
const BREATH: Duration = Duration::from_millis(100);

/// How long a client that has stopped asking gets to read the last answers.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(5);

/// How often it is looked whether such a client is still there.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long all clients together may take to hear that the daemon goes.
const GOODBYE_WITHIN: Duration = Duration::from_millis(500);

/// Lets clients in until `leaving` says so, and tells them that the daemon goes.
pub(crate) async fn serve(
    listener: UnixListener,
    front: Rc<dyn Front>,
    mut leaving: watch::Receiver<bool>,
) {
    let mut clients = JoinSet::new();
    let is_leaving = leaving.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = clients.join_next() => continue,
            _ = leaving.wait_for(|is_leaving| *is_leaving) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let (front, is_leaving) = (front.clone(), is_leaving.clone());
                clients.spawn_local(async move {
                    if let Err(problem) = converse(stream, &*front, is_leaving).await {
                        tracing::debug!(%problem, "a local client has gone");
                    }
                });
            }
            Err(problem) => {
                tracing::warn!(%problem, "a local client could not come in");
                sleep(BREATH).await;
            }
        }
    }
    let _ = timeout(GOODBYE_WITHIN, clients.join_all()).await; // The rest will see us gone.
}

/// What goes to one client.
#[derive(Default)]
struct Lines {
    out: RefCell<Vec<u8>>,
    /// What is being written, and how much of it is: kept here, so that whoever stops writing
    /// in the middle of a line can be followed by another.
    going: RefCell<Vec<u8>>,
    written: Cell<usize>,
    flush: Notify,
    /// It does not read what it is sent.
    is_full: Cell<bool>,
    overflow: Notify,
}

impl Lines {
    fn push(&self, line: &[u8]) {
        let mut out = self.out.borrow_mut();
        if out.len() > MOST_UNREAD {
            self.is_full.set(true);
            self.overflow.notify_one();
        } else {
            out.extend_from_slice(line);
            out.push(b'\n');
        }
        self.flush.notify_one();
    }
}

impl Lines {
    /// Whether there is something to write in `going`.
    fn take_more(&self) -> bool {
        let mut going = self.going.borrow_mut();
        if self.written.get() < going.len() {
            return true;
        }
        going.clear();
        going.shrink_to(READ_BYTES);
        self.written.set(0);
        std::mem::swap(&mut *going, &mut *self.out.borrow_mut()); // Its room is used again.
        !going.is_empty()
    }
}

impl Outlet for Lines {
    fn put(&self, message: &[u8], to: To) {
        if !matches!(to, To::Nobody(_)) {
            self.push(message);
        }
    }
}

async fn converse(
    stream: UnixStream,
    front: &dyn Front,
    mut leaving: watch::Receiver<bool>,
) -> io::Result<()> {
    let ours = rustix::process::geteuid().as_raw();
    let is_ours = stream.peer_cred()?.uid() == ours;
    let (mut reader, writer) = stream.into_split();
    let lines = Rc::new(Lines::default());
    let mut splitter = LineSplitter::new(MAX_LINE);
    let mut ahead = Vec::new();
    let hello = timeout(HELLO_WITHIN, first_line(&mut reader, &mut splitter, &mut ahead)).await;
    let opened = match hello {
        Ok(hello) => welcome(&hello?, is_ours, front, lines.clone()),
        Err(_) => Err(refused("nothing was said for 10 s", None)),
    };
    let (answer, conversation) = match opened {
        Ok(conversation) => (Answer::Welcome { protocol: DOOR_PROTOCOL }, Some(conversation)),
        Err(refusal) => (refusal, None),
    };
    lines.push(serde_json::to_string(&answer).unwrap_or_default().as_bytes());
    let Some(conversation) = conversation else {
        return timeout(LAST_WORDS_WITHIN, last_words(&lines, &writer)).await.unwrap_or(Ok(()));
    };
    take(&*conversation, &mut splitter, &ahead, &lines);
    let ended = tokio::select! {
        ended = hear(&mut reader, &*conversation, &mut splitter, &lines) => ended,
        ended = speak(&lines, &writer) => ended,
        Ok(_) = leaving.wait_for(|is_leaving| *is_leaving) => {
            lines.push(serde_json::to_string(&Answer::Goodbye).unwrap_or_default().as_bytes());
            let said = timeout(GOODBYE_WITHIN, last_words(&lines, &writer)).await;
            conversation.close();
            return said.unwrap_or(Ok(()));
        }
    };
    if ended.is_ok() {
        // It asks no more; what it has asked is answered as long as it listens.
        let _ = timeout(LAST_WORDS_WITHIN, answers(&*conversation, &lines, &writer)).await;
    }
    conversation.close();
    ended
}

/// Lets somebody in, or says why not.
fn welcome(
    hello: &[u8],
    is_ours: bool,
    front: &dyn Front,
    outlet: Rc<Lines>,
) -> Result<Rc<dyn Conversation>, Answer> {
    if !is_ours {
        return Err(refused("this daemon is another user's", None));
    }
    let hello: Hello = serde_json::from_slice(hello).map_err(|problem| {
        refused(format!("the first line is not a hello: {problem}"), Some("use `xy connect`"))
    })?;
    if hello.protocol != DOOR_PROTOCOL {
        let message = format!(
            "this daemon speaks revision {DOOR_PROTOCOL} of the local door, and `xy connect` {}",
            hello.protocol
        );
        return Err(refused(
            message,
            Some("they are of different versions: `xy daemon --replace`"),
        ));
    }
    let view = match hello.view {
        door::View::Profile(name) => View::Profile(name),
        door::View::Server(name) => View::Server(name),
    };
    let entry = Entry { view, may_manage: true };
    front.open(entry, outlet).map_err(|refusal| refused(refusal.to_string(), Some("see `xy list`")))
}

fn refused(message: impl Into<String>, hint: Option<&str>) -> Answer {
    Answer::Refused { message: message.into(), hint: hint.map(str::to_owned) }
}

/// Reads up to the end of the first line; what came after it is put in `ahead`.
async fn first_line(
    reader: &mut OwnedReadHalf,
    splitter: &mut LineSplitter,
    ahead: &mut Vec<u8>,
) -> io::Result<Vec<u8>> {
    loop {
        let mut first = None;
        let more = read_some(reader, |mut bytes| {
            if let Some(Line::Whole(line)) = splitter.next_line(&mut bytes) {
                first = Some(line.to_vec());
                *ahead = bytes.to_vec();
            }
        })
        .await?;
        match first {
            Some(first) => return Ok(first),
            None if more => {}
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Hears a client until it stops speaking.
async fn hear(
    reader: &mut OwnedReadHalf,
    conversation: &dyn Conversation,
    splitter: &mut LineSplitter,
    lines: &Lines,
) -> io::Result<()> {
    while read_some(reader, |bytes| take(conversation, splitter, bytes, lines)).await? {}
    Ok(())
}

fn take(
    conversation: &dyn Conversation,
    splitter: &mut LineSplitter,
    mut bytes: &[u8],
    lines: &Lines,
) {
    while let Some(line) = splitter.next_line(&mut bytes) {
        match line {
            Line::Whole(line) => {
                if let Heard::Refused(error) = conversation.hear(line, 0) {
                    lines.push(&error);
                }
            }
            Line::TooLong(_) => {
                let problem = format!("the message is longer than {} MiB", MAX_LINE >> 20);
                lines.push(&say::error("null", -32600, &problem));
            }
        }
    }
}

/// One read; `false` at the end.
async fn read_some(reader: &mut OwnedReadHalf, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
    poll_fn(|context| {
        with_scratch(|scratch| {
            let mut buffer = ReadBuf::new(scratch);
            Pin::new(&mut *reader).poll_read(context, &mut buffer).map_ok(|()| {
                take(buffer.filled());
                !buffer.filled().is_empty()
            })
        })
    })
    .await
}

/// Says what there is to say, until the client does not read it.
async fn speak(lines: &Lines, writer: &OwnedWriteHalf) -> io::Result<()> {
    let saying = async {
        loop {
            last_words(lines, writer).await?;
            lines.flush.notified().await;
        }
    };
    tokio::select! {
        ended = saying => ended,
        () = lines.overflow.notified() => Err(io::Error::other("it does not read what it is sent")),
    }
}

/// Says what there is to say now. Cancel-safe: the next call goes on where this one stopped.
async fn last_words(lines: &Lines, writer: &OwnedWriteHalf) -> io::Result<()> {
    while lines.take_more() {
        writer.writable().await?;
        let going = lines.going.borrow();
        match writer.try_write(&going[lines.written.get()..]) {
            Ok(more) => lines.written.set(lines.written.get() + more),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Says what is still asked for, as it comes.
async fn answers(
    conversation: &dyn Conversation,
    lines: &Lines,
    writer: &OwnedWriteHalf,
) -> io::Result<()> {
    loop {
        last_words(lines, writer).await?;
        // It may have gone altogether: then nobody waits for these answers.
        if !conversation.is_busy() || is_hung_up(writer.as_ref()) {
            return Ok(());
        }
        let _ = timeout(LOOK_AGAIN, lines.flush.notified()).await;
    }
}
