//! The local door: a Unix socket, one message per line, for `xy connect`.

mod socket;

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use xy_ipc::framing::{Line, LineSplitter};
use xy_mcp::edit::append_on_one_line;
use xy_protocol::control::quoted as shortened;
use xy_protocol::door::{self, Answer, DOOR_PROTOCOL, Hello};

use crate::error_log::FailedRequest;
use crate::frontend::{
    Accepted, ClientSession, Entry, Frontend, Lifetime, Refusal, Responder, Route, View,
};
use crate::large::{LARGE, LargeReader};
use crate::names;
use crate::reply;
use crate::upstream::pipes::READ_BYTES;
use crate::upstream::wire::MAX_MESSAGE;
use socket::Socket;

/// A client that has so much unread is not reading.
const MOST_UNREAD: usize = 64 * 1024 * 1024;

/// Clients at one time. Each costs a descriptor, and servers need theirs too.
const MOST_CLIENTS: usize = 2048;

/// The first line of a newcomer. The largest honest one holds a name.
const MOST_HELLO: usize = 64 * 1024;

/// So many profiles are named to who asks for one that there is not.
const MOST_PROFILES: usize = 10;

/// How long a newcomer may take to say what it wants.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// After a failed accept (too many open files) the door waits so long.
const BREATH: Duration = Duration::from_millis(100);

/// How long a client that has stopped asking gets to read the last answers. The bridge waits
/// half of it: it has to be the one that gives up, as it can say so.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(10);

/// How often it is looked whether such a client is still there.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How long all clients together may take to hear that the daemon goes.
const GOODBYE_WITHIN: Duration = Duration::from_millis(500);

/// Lets clients in until `leaving` says so, and tells them that the daemon goes. Where they
/// come in may be lost: then `again` brings another.
pub(crate) async fn serve(
    listener: UnixListener,
    again: mpsc::Receiver<std::os::unix::net::UnixListener>,
    front: Rc<dyn Frontend>,
    leaving: watch::Receiver<bool>,
) {
    let own_uid = rustix::process::geteuid().as_raw();
    let large = front.large_reader();
    let door = LocalListener { front, own_uid, most_clients: MOST_CLIENTS, large };
    door.serve(listener, again, leaving).await;
}

/// Who may come in, and where to.
struct LocalListener {
    front: Rc<dyn Frontend>,
    own_uid: u32,
    most_clients: usize,
    large: LargeReader,
}

impl LocalListener {
    async fn serve(
        &self,
        mut listener: UnixListener,
        mut again: mpsc::Receiver<std::os::unix::net::UnixListener>,
        mut leaving: watch::Receiver<bool>,
    ) {
        let mut clients = JoinSet::new();
        let is_leaving = leaving.clone();
        loop {
            let accepted = tokio::select! {
                biased;
                _ = leaving.wait_for(|is_leaving| *is_leaving) => break,
                Some(_) = clients.join_next() => continue,
                accepted = listener.accept() => accepted,
                Some(another) = again.recv() => {
                    match another.set_nonblocking(true).and_then(|()| UnixListener::from_std(another)) {
                        Ok(another) => listener = another,
                        Err(problem) => tracing::error!(%problem, "the MCP socket cannot be used"),
                    }
                    continue;
                }
            };
            match accepted {
                Ok((stream, _)) => match self.admit(&stream, clients.len()) {
                    Ok(()) => {
                        let (front, is_leaving) = (self.front.clone(), is_leaving.clone());
                        let large = self.large.clone();
                        clients.spawn_local(async move {
                            if let Err(problem) =
                                converse(stream, (&*front, &large), is_leaving).await
                            {
                                tracing::debug!(%problem, "a local client has gone");
                            }
                        });
                    }
                    Err(refusal) => reject_overload(stream, &refusal),
                },
                Err(problem) => {
                    tracing::warn!(%problem, "a local client could not come in");
                    sleep(BREATH).await;
                }
            }
        }
        let _ = timeout(GOODBYE_WITHIN, clients.join_all()).await; // The rest will see us gone.
    }

    /// Whether somebody may stay and say what it wants.
    fn admit(&self, stream: &UnixStream, clients: usize) -> Result<(), Answer> {
        if !stream.peer_cred().is_ok_and(|peer| peer.uid() == self.own_uid) {
            return Err(refused("this daemon is another user's", None));
        }
        if clients >= self.most_clients {
            let message =
                format!("{clients} clients are connected, which is the most there may be");
            return Err(refused(message, Some("end some of them")));
        }
        Ok(())
    }
}

/// One line that says why, and good-bye.
fn reject_overload(stream: UnixStream, refusal: &Answer) {
    tracing::warn!(?refusal, "a local client was turned away");
    let mut line = text_of(refusal);
    line.push('\n');
    // A fresh socket has room for one line, and who does not want it may leave.
    let _ = stream.into_std().and_then(|mut stream| stream.write(line.as_bytes()));
}

fn text_of(answer: &Answer) -> String {
    serde_json::to_string(answer).expect("wire types always serialise")
}

/// What goes to one client.
#[derive(Default)]
struct Lines {
    out: RefCell<Out>,
    flush: Notify,
    /// Told when more is unread than may be.
    full: Notify,
}

#[derive(Default)]
struct Out {
    /// What is being written. It stays here until it is, as those who write it may be dropped
    /// amid a line.
    going: Vec<u8>,
    /// So much of that is.
    written: usize,
    /// What comes after it.
    next: Vec<u8>,
}

impl Out {
    fn unread(&self) -> usize {
        self.going.len() - self.written + self.next.len()
    }

    /// What is to be written now.
    fn rest(&mut self) -> &[u8] {
        if self.going.is_empty() {
            std::mem::swap(&mut self.going, &mut self.next);
        }
        &self.going[self.written..]
    }

    fn wrote(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written == self.going.len() {
            self.written = 0;
            self.going.clear();
            self.going.shrink_to(READ_BYTES); // The room is used again, unless it is large.
        }
    }
}

impl Lines {
    fn push(&self, line: &[u8]) {
        let mut out = self.out.borrow_mut();
        if out.unread() > MOST_UNREAD {
            self.full.notify_one();
        } else {
            append_on_one_line(&mut out.next, line);
            out.next.push(b'\n');
        }
        self.flush.notify_one();
    }

    /// Writes what there is. May be dropped at any time: who calls it next goes on.
    async fn write(&self, socket: &Socket) -> io::Result<()> {
        while self.out.borrow().unread() > 0 {
            if !self.write_once(socket)? {
                socket.room().await?;
            } else if self.out.borrow().unread() > 0 {
                // Others have their turn, however fast this client reads.
                yield_now().await;
            }
        }
        Ok(())
    }

    /// `false` if there is no room.
    fn write_once(&self, socket: &Socket) -> io::Result<bool> {
        let mut out = self.out.borrow_mut();
        match socket.write(out.rest()) {
            Ok(written) => out.wrote(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Resolves when more is unread than may be.
    async fn overflow(&self) -> io::Result<()> {
        self.full.notified().await;
        Err(io::Error::other("it does not read what it is sent"))
    }
}

impl Responder for Lines {
    fn put(&self, message: &[u8], to: Route) {
        if !matches!(to, Route::Cancelled(_)) {
            self.push(message);
        }
    }
}

async fn converse(
    stream: UnixStream,
    (front, large): (&dyn Frontend, &LargeReader),
    mut leaving: watch::Receiver<bool>,
) -> io::Result<()> {
    let socket = Socket::new(stream)?;
    let lines = Rc::new(Lines::default());
    let mut ahead = Vec::new();
    let opened = match timeout(HELLO_WITHIN, first_line(&socket, &mut ahead)).await {
        Ok(hello) => hello?.and_then(|hello| welcome(&hello, front, lines.clone())),
        Err(_) => Err(refused("nothing was said for 10 s", None)),
    };
    let (answer, client_session) = match opened {
        Ok(client_session) => (Answer::Welcome { protocol: DOOR_PROTOCOL }, Some(client_session)),
        Err(refusal) => {
            tracing::debug!(?refusal, "refused a local client");
            (refusal, None)
        }
    };
    lines.push(text_of(&answer).as_bytes());
    let Some(client_session) = client_session else {
        return timeout(LAST_WORDS_WITHIN, lines.write(&socket)).await.unwrap_or(Ok(()));
    };
    let ended = tokio::select! {
        ended = handle(&socket, (&*client_session, large), ahead, &lines) => ended,
        ended = speak(&lines, &socket) => ended,
        ended = lines.overflow() => ended,
        Ok(_) = leaving.wait_for(|is_leaving| *is_leaving) => {
            lines.push(text_of(&Answer::Goodbye).as_bytes());
            let said = timeout(GOODBYE_WITHIN, lines.write(&socket)).await;
            client_session.close();
            return said.unwrap_or(Ok(()));
        }
    };
    if ended.is_ok() {
        // It asks no more; what it has asked is answered as long as it listens.
        let answers = answers(&*client_session, &lines, &socket);
        let _ = timeout(LAST_WORDS_WITHIN, answers).await;
    }
    client_session.close();
    ended
}

/// Lets somebody in, or says why not.
fn welcome(
    hello: &[u8],
    front: &dyn Frontend,
    responder: Rc<Lines>,
) -> Result<Rc<dyn ClientSession>, Answer> {
    let hello: Hello = serde_json::from_slice(hello).map_err(|problem| {
        refused(format!("the first line is not a hello: {problem}"), Some("use `xy connect`"))
    })?;
    if hello.protocol != DOOR_PROTOCOL {
        let message = format!(
            "this daemon speaks revision {DOOR_PROTOCOL} of the local protocol, and `xy connect` {}",
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
    let entry = Entry { view, may_manage: true, lifetime: Lifetime::Session, who: 0, bound: None };
    front.open(entry, responder).map_err(|refusal| {
        let hint = match &refusal {
            Refusal::NoServer(_) => Some("see `xy list`".to_owned()),
            Refusal::NoProfile(name) => Some(other_profiles(name, &front.profiles())),
            Refusal::Outside { .. } | Refusal::TooMany(_) => None,
        };
        refused(refusal.to_string(), hint.as_deref())
    })
}

/// Which profile may have been meant, or which there are.
fn other_profiles(name: &str, all: &[String]) -> String {
    if let Some(question) =
        names::did_you_mean(&names::nearest(name, all.iter().map(String::as_str)))
    {
        return question;
    }
    let listed: Vec<String> =
        all.iter().take(MOST_PROFILES).map(|it| format!("`{}`", shortened(it))).collect();
    let more = match all.len().saturating_sub(MOST_PROFILES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let there = if listed.is_empty() {
        String::new()
    } else {
        format!("there are {}{more}; ", listed.join(", "))
    };
    format!("{there}a new one is a file in the folder `profiles`, and `xy reload`")
}

fn refused(message: impl Into<String>, hint: Option<&str>) -> Answer {
    Answer::Refused { message: message.into(), hint: hint.map(str::to_owned) }
}

/// Reads up to the end of the first line; what came after it is put in `ahead`.
async fn first_line(socket: &Socket, ahead: &mut Vec<u8>) -> io::Result<Result<Vec<u8>, Answer>> {
    let mut splitter = LineSplitter::new(MOST_HELLO);
    loop {
        let mut first = None;
        let read = socket.read(|mut bytes| {
            first = splitter.next_line(&mut bytes).map(|line| match line {
                Line::Whole(line) => Ok(line.to_vec()),
                Line::TooLong(_) => Err(refused(
                    format!("the first line is longer than {} KiB", MOST_HELLO >> 10),
                    Some("use `xy connect`"),
                )),
            });
            *ahead = bytes.to_vec();
        });
        let more = read.await?;
        match first {
            Some(first) => return Ok(first),
            None if more => {}
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Hears a client until it stops speaking.
async fn handle(
    socket: &Socket,
    (client_session, large): (&dyn ClientSession, &LargeReader),
    ahead: Vec<u8>,
    lines: &Lines,
) -> io::Result<()> {
    let mut splitter = LineSplitter::new(MAX_MESSAGE);
    let mut later = Vec::new();
    take(client_session, &mut splitter, &ahead, lines, &mut later);
    drop(ahead);
    loop {
        // Nothing more is read until these are heard.
        for line in later.drain(..) {
            let heard = if line.len() > LARGE {
                let message = large.read(line).await;
                message.map(|message| client_session.handle_large(&message, 0))
            } else {
                Some(client_session.handle(&line, 0))
            };
            if let Some(Accepted::Refused(error)) = heard {
                lines.push(&error);
            }
        }
        let take = |bytes: &[u8]| take(client_session, &mut splitter, bytes, lines, &mut later);
        if !socket.read(take).await? {
            return Ok(());
        }
    }
}

/// Hears every line that is whole, up to one that is large: that and all after it are heard
/// `later`, in their order.
fn take(
    client_session: &dyn ClientSession,
    splitter: &mut LineSplitter,
    mut bytes: &[u8],
    lines: &Lines,
    later: &mut Vec<Bytes>,
) {
    while let Some(line) = splitter.next_line(&mut bytes) {
        match line {
            Line::Whole(line) if line.len() > LARGE || !later.is_empty() => {
                later.push(Bytes::copy_from_slice(line));
            }
            Line::Whole(line) => {
                if let Accepted::Refused(error) = client_session.handle(line, 0) {
                    lines.push(&error);
                }
            }
            Line::TooLong(_) => {
                let problem = format!("the message is longer than {} MiB", MAX_MESSAGE >> 20);
                let (outcome, code) = ("too-long", -32600);
                FailedRequest { client: "local", outcome, code, ..FailedRequest::default() }.log();
                lines.push(&reply::error("null", code, &problem));
            }
        }
    }
}

/// Says what there is to say, for ever.
async fn speak(lines: &Lines, socket: &Socket) -> io::Result<()> {
    loop {
        lines.write(socket).await?;
        lines.flush.notified().await;
    }
}

/// Says what is still asked for, as it comes.
async fn answers(
    client_session: &dyn ClientSession,
    lines: &Lines,
    socket: &Socket,
) -> io::Result<()> {
    loop {
        tokio::select! {
            written = lines.write(socket) => written?,
            ended = lines.overflow() => return ended,
        }
        // It may have gone altogether: then nobody waits for these answers.
        if !client_session.is_busy() || socket.is_hung_up() {
            return Ok(());
        }
        let _ = timeout(LOOK_AGAIN, lines.flush.notified()).await;
    }
}

#[cfg(test)]
mod tests;
