//! Handler of `logs`: sends the last lines of a server, and then new ones as they arrive.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;
use tokio::time::sleep;
use xy_ipc::server::{Feed, Outbox, OutboxClosed};
use xy_protocol::control::{DEFAULT_TAIL, LogLine, Logs, SkipNotice};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::jsonrpc::OutgoingNotification;
use xy_protocol::server::{ServerName, Stream};
use xy_protocol::time::Timestamp;
use xy_shim::wire::{Record, flags};
use xy_supervisor::instance::InstanceHandle;
use xy_supervisor::lifecycle::State;
use xy_supervisor::logs::{Follower, Item, Line, Page};

use crate::daemon::Daemon;
use crate::server_status;

/// The size at which collected notifications are sent.
const CHUNK: usize = 64 * 1024;

/// The pause between two full pages. In a flood no client reads every line, and skipped lines are
/// counted; the server and its shim need the processor more.
const PAGE_PAUSE: Duration = Duration::from_millis(5);

pub(super) async fn handle(daemon: &Daemon, params: &Logs) -> Result<Box<dyn Feed>, CallError> {
    let member = daemon.find(&params.name)?;
    let logged = server_status::instance_to_log(&member).cloned();
    let instance = logged.ok_or_else(|| no_instance(&params.name))?;
    let count = usize::try_from(params.tail.unwrap_or(DEFAULT_TAIL)).unwrap_or(usize::MAX);
    let book = instance.logs().clone();
    // Lines from before this daemon are read from disk, which may block.
    let (tail, follower) =
        tokio::task::spawn_blocking(move || book.tail(count)).await.map_err(|cause| {
            CallError::new(ErrorKind::Internal, "no lines could be read").cause(cause)
        })?;
    let follow = params.follow.then_some((follower, instance));
    let writer = Writer {
        id: daemon.next_subscription_id(),
        name: member.settings.name.clone(),
        chunk: Vec::new(),
    };
    Ok(Box::new(LogFeed { writer, tail, follow }))
}

pub(super) fn no_instance(name: &str) -> CallError {
    CallError::new(ErrorKind::NotRunning, format!("server `{name}` has no instance now"))
        .cause("each client gets its own instance, and no client is using it")
        .hint(format!("`xy request {name} ping` starts an instance and tests it"))
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
            let _ = self.send_all(&outbox).await; // It fails only if the client has left.
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
                sleep(PAGE_PAUSE).await;
            }
        }
    }
}

/// Collects log lines as notifications.
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

    /// Appends a log record without copying its line, since there may be very many.
    fn record(&mut self, record: Record<'_>) {
        let has_flag = |flag| record.flags & flag != 0;
        let log_line_params = LogLine {
            subscription_id: self.id,
            name: &self.name,
            stream: if has_flag(flags::STDERR) { Stream::Stderr } else { Stream::Stdout },
            line: String::from_utf8_lossy(record.line),
            ts: Some(Timestamp::from_unix_millis(record.unix_millis)),
            seq: Some(record.seq),
            continued: has_flag(flags::CONTINUED),
        };
        put(&mut self.chunk, "log", &log_line_params);
    }

    fn skipped(&mut self, count: u64) {
        put(&mut self.chunk, "log_skipped", &SkipNotice { subscription_id: self.id, count });
    }

    async fn send(&mut self, outbox: &Outbox) -> Result<(), OutboxClosed> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        outbox.send(std::mem::take(&mut self.chunk)).await
    }
}

/// Converts a line to the notification that clients receive.
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
    // Serialising plain values into memory cannot fail.
    let _ = serde_json::to_writer(&mut *chunk, &OutgoingNotification::new(method, params));
    chunk.push(b'\n');
}
