//! From the daemon to the client: socket to stdout; and the connection itself, since whoever
//! reads is the first to know that it is gone.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use xy_mcp::envelope::parse;
use xy_protocol::door::{Answer, DOOR_PROTOCOL, Hello};
use xy_protocol::error::{CallError, ErrorKind};

use super::News;
use super::carry::{self, MAX_LINE, Parcel};
use super::dial::Dial;
use super::hub::Hub;
use super::ledger::Verdict;
use super::lines::{Lines, each};
use crate::failure::Failure;

/// How long a daemon may take to let us in, and to grant what the one before it granted.
const WELCOME_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Downward {
    hub: Arc<Hub>,
    dial: Dial,
    hello: Hello,
    lines: Lines,
    parcel: Parcel,
    stage: Stage,
}

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not let in yet.
    Outside,
    /// The greeting is not answered yet.
    Greeting,
    /// Both sides say what they like.
    Talking,
}

impl Downward {
    pub(super) fn new(hub: Arc<Hub>, dial: Dial, hello: Hello) -> Self {
        let (lines, parcel) = (Lines::new(), Parcel::default());
        Self { hub, dial, hello, lines, parcel, stage: Stage::Outside }
    }

    /// Keeps the client connected until it has left, or that cannot be done.
    pub(super) fn run(mut self, news: &SyncSender<News>) {
        let result = self.keep_connected();
        let mut client_knows = true;
        if let Err(Failure::Failed(why) | Failure::Unreachable(why)) = &result {
            self.hub.note("bridge gave up", Some(&why.to_string()));
            let (told, is_all) = self.hub.over(why.clone());
            let is_told = self.hub.tell_client(&told).is_ok();
            client_knows = is_all || !is_told;
        }
        // If nobody waits for it, all is over already.
        let _ = news.send(News::Ended { result, client_knows });
    }

    fn keep_connected(&mut self) -> Result<(), Failure> {
        let mut is_first = true;
        loop {
            let stream = Arc::new(self.dial.reach()?);
            let talked = self.converse(&stream, is_first);
            self.hub.sever(&stream);
            let cause = talked?;
            let (has_left, is_awaited) = (self.hub.has_left(), self.hub.is_awaited());
            if has_left && !is_awaited {
                return Ok(());
            }
            self.hub.note("daemon lost", Some(&cause));
            let told = self.hub.lost(&cause);
            self.hub.tell_client(&told)?;
            if has_left {
                return Err(Failure::Unreachable(went_away(&cause)));
            }
            self.dial.lost(cause);
            is_first = false;
        }
    }

    /// Talks until the connection is lost, and answers how.
    fn converse(&mut self, stream: &Arc<UnixStream>, is_first: bool) -> Result<String, Failure> {
        self.lines.clear();
        self.stage = Stage::Outside;
        if let Err(cause) = self.knock(stream, is_first) {
            return Ok(cause.to_string());
        }
        loop {
            if self.stage == Stage::Talking {
                // On Linux, who sleeps in a read of a Unix socket is also woken when the other
                // side has read what went there: once for every call, and for nothing.
                carry::wait_for(stream.as_fd());
            }
            match (&**stream).read(self.lines.room()) {
                Ok(0) => return Ok("it hung up".to_owned()),
                Ok(count) => self.lines.read(count),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {
                    let waited = WELCOME_WITHIN.as_secs();
                    return Ok(format!("it did not answer within {waited} s"));
                }
                Err(cause) => return Ok(cause.to_string()),
            }
            if self.lines.unfinished() > MAX_LINE {
                return Ok(format!("it sent a message of more than {MAX_LINE} bytes"));
            }
            if self.stage == Stage::Outside {
                self.enter(stream, is_first)?;
            }
            if self.stage != Stage::Outside {
                self.pass_on(stream)?;
            }
        }
    }

    /// Says hello. The first time, the client's words follow without waiting for an answer.
    fn knock(&mut self, stream: &Arc<UnixStream>, is_first: bool) -> io::Result<()> {
        stream.set_read_timeout(Some(WELCOME_WITHIN))?;
        stream.set_write_timeout(Some(WELCOME_WITHIN))?;
        let mut line = serde_json::to_vec(&self.hello)?;
        line.push(b'\n');
        (&**stream).write_all(&line)?;
        if is_first {
            stream.set_write_timeout(None)?;
            self.hub.up(Arc::clone(stream));
        }
        Ok(())
    }

    /// Reads the daemon's first line, once it is there.
    fn enter(&mut self, stream: &Arc<UnixStream>, is_first: bool) -> Result<(), Failure> {
        let Some(line) = each(self.lines.whole()).next() else {
            return Ok(());
        };
        let answer = serde_json::from_slice(&self.lines.whole()[line.clone()]);
        self.lines.consume(line.end);
        match answer {
            Ok(Answer::Welcome { protocol: DOOR_PROTOCOL }) => {}
            Ok(Answer::Welcome { protocol }) => return Err(other_protocol(protocol).into()),
            Ok(Answer::Refused { message, hint }) => {
                let mut error = CallError::new(ErrorKind::NotAllowed, message);
                error.hint = hint;
                return Err(error.into());
            }
            Ok(Answer::Goodbye) => {
                self.dial.sent_off();
                self.hub.note("daemon said goodbye", None);
                return Ok(());
            }
            Err(cause) => return Err(not_xy(&cause).into()),
        }
        self.dial.welcomed();
        self.hub.note("daemon connected", None);
        if is_first {
            self.talk(stream);
            return Ok(());
        }
        match self.hub.greeting() {
            // If it cannot be written, the next read tells.
            Some(greeting) => {
                self.stage = Stage::Greeting;
                let _ = (&**stream).write_all(&greeting);
            }
            None => self.replay(stream),
        }
        Ok(())
    }

    fn talk(&mut self, stream: &UnixStream) {
        self.stage = Stage::Talking;
        // They cannot fail for a socket; and then a daemon that is silent would be left.
        let _ = stream.set_read_timeout(None);
        let _ = stream.set_write_timeout(None);
    }

    /// Says again what the daemon before has heard. By a thread of its own: if this one
    /// wrote, nobody would read, and the daemon might wait for that.
    fn replay(&mut self, stream: &Arc<UnixStream>) {
        self.talk(stream);
        let (said, tidings) = self.hub.begin_replay();
        let (hub, to) = (Arc::clone(&self.hub), Arc::clone(stream));
        let spawned = super::spawn("replay", move || {
            let is_written = (&*to).write_all(&said).is_ok();
            hub.end_replay(is_written.then_some(to));
            if is_written {
                let _ = hub.tell_client(tidings.as_bytes()); // Whoever reads will notice too.
            }
        });
        if spawned.is_err() {
            self.hub.end_replay(None);
            let _ = stream.shutdown(std::net::Shutdown::Both); // Then try again.
        }
    }

    /// Gives the client all whole lines that are for it, in one write if possible.
    fn pass_on(&mut self, stream: &Arc<UnixStream>) -> Result<(), Failure> {
        self.parcel.clear();
        let mut greeted = None;
        let whole = self.lines.whole();
        for range in each(whole) {
            let line = &whole[range.clone()];
            if is_goodbye(line) {
                self.dial.sent_off();
                self.hub.note("daemon said goodbye", None);
                continue;
            }
            match self.hub.daemon_says(parse(line).ok().as_ref(), line) {
                Verdict::Pass => self.parcel.pass(range),
                Verdict::Replace(other) => self.parcel.put(other),
                Verdict::Greeted(result) => greeted = Some(result),
                Verdict::Swallow | Verdict::Refuse(_) => {}
            }
        }
        for piece in self.parcel.pieces(whole) {
            self.hub.pass_to_client(piece)?;
        }
        self.lines.consume(whole.len());
        match greeted {
            Some(Ok(())) if self.stage == Stage::Greeting => self.replay(stream),
            Some(Err(why)) => return Err(goes_not_on(&why).into()),
            _ => {}
        }
        Ok(())
    }
}

/// Whether the daemon has been ended on purpose. No message of MCP begins like this.
fn is_goodbye(line: &[u8]) -> bool {
    line.starts_with(br#"{"xy""#) && matches!(serde_json::from_slice(line), Ok(Answer::Goodbye))
}

fn other_protocol(protocol: u32) -> CallError {
    CallError::new(ErrorKind::InvalidRequest, "the daemon speaks another protocol than this `xy`")
        .cause(format!("its version is {protocol}, and ours {DOOR_PROTOCOL}"))
        .hint("replace it with `xy daemon --detach --replace`, or update this `xy`")
}

fn not_xy(cause: &serde_json::Error) -> CallError {
    CallError::new(ErrorKind::InvalidRequest, "whoever listens at the MCP socket is not xy")
        .cause(cause)
        .hint("check XDG_RUNTIME_DIR and XDG_STATE_HOME, which say where the socket is")
}

/// For a client that has left and is not brought to another daemon, but may still listen.
fn went_away(cause: &str) -> CallError {
    CallError::new(ErrorKind::NotRunning, "the daemon went away before it answered")
        .cause(cause)
        .hint("ask again: `xy connect` starts a daemon if there is none")
}

fn goes_not_on(why: &str) -> CallError {
    CallError::new(ErrorKind::Internal, "the new daemon does not go on where the old one was")
        .cause(why)
        .hint("start this MCP connection again")
}
