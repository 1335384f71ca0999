//! `logs`: the last lines of a server, and new ones as they come.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use tokio::time::sleep;
use xy_ipc::server::{Feed, Outbox, OutboxClosed};
use xy_protocol::control::{DEFAULT_TAIL, LogLine, Logs, Skipped};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::jsonrpc::OutgoingNotification;
use xy_protocol::server::{ServerName, Stream};
use xy_protocol::time::Timestamp;
use xy_shim::wire::{Record, flags};
use xy_supervisor::instance::InstanceHandle;
use xy_supervisor::lifecycle::State;
use xy_supervisor::logs::{Follower, Item, Line, Page};

use crate::daemon::Daemon;
use crate::view;

/// Notifications are gathered up to this size and sent together.
const CHUNK: usize = 64 * 1024;

/// Between two full pages. In a flood nobody reads every line; the server and its shim
/// have better use for the processor, and what is skipped is counted.
const BREATH: Duration = Duration::from_millis(5);

pub(super) async fn handle(daemon: &Daemon, ask: &Logs) -> Result<Box<dyn Feed>, CallError> {
    let member = daemon.find(&ask.name)?;
    let logged = view::logged_one(&member).cloned();
    let instance = logged.ok_or_else(|| nobody_speaks(&ask.name))?;
    let count = usize::try_from(ask.tail.unwrap_or(DEFAULT_TAIL)).unwrap_or(usize::MAX);
    let book = instance.logs().clone();
    // Lines from before this daemon are read from disk, which may take its time.
    let (tail, follower) =
        tokio::task::spawn_blocking(move || book.tail(count)).await.map_err(|cause| {
            CallError::new(ErrorKind::Internal, "no lines could be read").cause(cause)
        })?;
    let follow = ask.follow.then_some((follower, instance));
    let writer = Writer {
        id: daemon.new_subscription(),
        name: member.settings.name.clone(),
        chunk: Vec::new(),
    };
    Ok(Box::new(LogFeed { writer, tail, follow }))
}

pub(super) fn nobody_speaks(name: &str) -> CallError {
    CallError::new(ErrorKind::NotRunning, format!("server `{name}` says nothing now"))
        .cause("it has an instance for each client, and no client uses it")
        .hint(format!("`xy request {name} ping` starts an instance and says whether it works"))
}

struct LogFeed {
    writer: Writer,
    tail: Vec<Line>,
    follow: Option<(Follower, InstanceHandle)>,
}

impl Feed for LogFeed {
    fn id(&self) -> u64 {
        self.writer.id
    }

    fn end_method(&self) -> &'static str {
        "log_end"
    }

    fn run(self: Box<Self>, outbox: Outbox) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let _ = self.send_all(&outbox).await; // The reader has left: nobody to tell.
        })
    }
}

impl LogFeed {
    async fn send_all(mut self, outbox: &Outbox) -> Result<(), OutboxClosed> {
        let mut expected = None;
        for line in std::mem::take(&mut self.tail) {
            if let (Some(expected), Some(seq)) = (expected, line.seq)
                && seq > expected
            {
                self.writer.skipped(seq - expected);
            }
            expected = line.seq.map(|seq| seq + 1);
            self.writer.line(&line);
            if self.writer.chunk.len() >= CHUNK {
                self.writer.send(outbox).await?;
            }
        }
        self.writer.send(outbox).await?;
        let Some((mut follower, instance)) = self.follow else {
            return Ok(());
        };
        let is_retired = instance.wait_until(|snapshot| snapshot.life.state == State::Retired);
        tokio::pin!(is_retired);
        loop {
            let page = tokio::select! {
                biased;
                page = follower.next() => page,
                _ = &mut is_retired => return Ok(()),
            };
            self.writer.page(&page, outbox).await?;
            if page.is_full() {
                sleep(BREATH).await;
            }
        }
    }
}

/// Turns lines into notifications.
struct Writer {
    id: u64,
    name: ServerName,
    chunk: Vec<u8>,
}

impl Writer {
    async fn page(&mut self, page: &Page, outbox: &Outbox) -> Result<(), OutboxClosed> {
        let mut chunks = Vec::new();
        page.for_each(|item| {
            match item {
                Item::Shown(record) => self.record(record),
                Item::Skipped(count) => self.skipped(count),
            }
            if self.chunk.len() >= CHUNK {
                chunks.push(std::mem::take(&mut self.chunk));
            }
        });
        for chunk in chunks {
            outbox.send(chunk).await?;
        }
        self.send(outbox).await
    }

    fn line(&mut self, line: &Line) {
        put(&mut self.chunk, "log", &log_line(self.id, &self.name, line));
    }

    /// The same without a copy in between: of these there are very many.
    fn record(&mut self, record: Record<'_>) {
        let has = |flag| record.flags & flag != 0;
        let told = LogLine {
            subscription_id: self.id,
            name: &self.name,
            stream: if has(flags::STDERR) { Stream::Stderr } else { Stream::Stdout },
            line: String::from_utf8_lossy(record.line),
            ts: Some(Timestamp::from_unix_millis(record.unix_millis)),
            seq: Some(record.seq),
            continued: has(flags::CONTINUED),
        };
        put(&mut self.chunk, "log", &told);
    }

    fn skipped(&mut self, count: u64) {
        put(&mut self.chunk, "log_skipped", &Skipped { subscription_id: self.id, count });
    }

    async fn send(&mut self, outbox: &Outbox) -> Result<(), OutboxClosed> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        outbox.send(std::mem::take(&mut self.chunk)).await
    }
}

/// Returns a line as front ends get it.
pub(crate) fn log_line<'a>(id: u64, name: &'a ServerName, line: &'a Line) -> LogLine<'a> {
    LogLine {
        subscription_id: id,
        name,
        stream: if line.is_stderr { Stream::Stderr } else { Stream::Stdout },
        line: String::from_utf8_lossy(&line.bytes),
        ts: line.unix_millis.map(Timestamp::from_unix_millis),
        seq: line.seq,
        continued: line.continued,
    }
}

fn put(chunk: &mut Vec<u8>, method: &str, params: &impl Serialize) {
    // Plain values into memory: this cannot fail.
    let _ = serde_json::to_writer(&mut *chunk, &OutgoingNotification::new(method, params));
    chunk.push(b'\n');
}
