//! Handler of `events`: streams changes of state, optionally with earlier ones first.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;
use xy_ipc::server::{Feed, Outbox, OutboxClosed};
use xy_protocol::control::{Event, EventKind, Events, SkipNotice};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_supervisor::journal::{Entry, EntryKind, Follower};

use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, params: Events) -> Result<Box<dyn Feed>, CallError> {
    let following = daemon.journal.follow().await;
    let server = params.name;
    if let Some(name) = &server {
        check_known(daemon, name).await?;
    }
    let count = usize::try_from(params.history.unwrap_or(0)).unwrap_or(usize::MAX);
    let (journal, name) = (daemon.journal.clone(), server.clone());
    let (history, live) = if count == 0 {
        (Vec::new(), following.live)
    } else {
        let read = move || (journal.before(&following, count, name.as_deref()), following.live);
        let ((history, problem), live) = run_blocking(read).await?;
        if let Some(problem) = problem {
            tracing::warn!("some earlier events are missing: {problem}");
        }
        (history, live)
    };
    let live = params.follow.then_some(live);
    Ok(Box::new(EventFeed { id: daemon.next_subscription_id(), server, history, live }))
}

/// Returns an error if a server is unknown. A removed server is known as long as the journal has
/// events about it.
async fn check_known(daemon: &Daemon, name: &str) -> Result<(), CallError> {
    if daemon.fleet.roster().contains_key(name) {
        return Ok(());
    }
    let server = ServerName::new(name).map_err(|_| daemon.not_found(name))?;
    let journal = daemon.journal.clone();
    let is_known = run_blocking(move || journal.knows(&server)).await?;
    if is_known { Ok(()) } else { Err(daemon.not_found(name)) }
}

/// Runs a read from disk on a blocking thread.
async fn run_blocking<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CallError> {
    tokio::task::spawn_blocking(read).await.map_err(|cause| {
        CallError::new(ErrorKind::Internal, "the events could not be read").cause(cause)
    })
}

struct EventFeed {
    id: u64,
    /// The server whose events are sent; all servers, if `None`.
    server: Option<String>,
    history: Vec<Arc<Entry>>,
    live: Option<Follower>,
}

impl Feed for EventFeed {
    fn id(&self) -> u64 {
        self.id
    }

    fn end_method(&self) -> &'static str {
        "event_end"
    }

    fn run(self: Box<Self>, outbox: Outbox) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let _ = self.send_all(&outbox).await; // It fails only if the client has left.
        })
    }
}

impl EventFeed {
    async fn send_all(mut self, outbox: &Outbox) -> Result<(), OutboxClosed> {
        for entry in std::mem::take(&mut self.history) {
            self.send(&entry, outbox).await?;
        }
        let Some(mut live) = self.live.take() else { return Ok(()) };
        loop {
            match live.recv().await {
                Ok(entry) => self.send(&entry, outbox).await?,
                Err(RecvError::Lagged(count)) => self.skipped(count, outbox).await?,
                Err(RecvError::Closed) => return Ok(()),
            }
        }
    }

    async fn send(&self, entry: &Entry, outbox: &Outbox) -> Result<(), OutboxClosed> {
        if self.server.as_deref().is_some_and(|server| !entry.is_about(server)) {
            return Ok(());
        }
        if let EntryKind::Skipped { count } = &entry.kind {
            return self.skipped(*count, outbox).await;
        }
        match event(self.id, entry) {
            Some(event) => outbox.notify("event", &event).await,
            None => Ok(()),
        }
    }

    async fn skipped(&self, count: u64, outbox: &Outbox) -> Result<(), OutboxClosed> {
        outbox.notify("event_skipped", &SkipNotice { subscription_id: self.id, count }).await
    }
}

/// Converts a journal entry to the event that clients receive. Returns `None` for a gap.
pub(crate) fn event(subscription_id: u64, entry: &Entry) -> Option<Event> {
    let (change, kind) = match &entry.kind {
        EntryKind::Skipped { .. } => return None,
        EntryKind::Changed(change) => (change, EventKind::Changed),
        EntryKind::LastAttempt(change) => (change, EventKind::LastAttempt),
        EntryKind::Requested(change) => (change, EventKind::Asked),
    };
    Some(Event {
        subscription_id,
        name: change.server.clone(),
        client: change.holder,
        era: change.era,
        from: change.from,
        state: change.to,
        reason: change.reason.clone(),
        pid: change.pid,
        restart_count: change.restart_count,
        ts: entry.time,
        kind,
        seq: entry.seq,
        boot: entry.boot.clone(),
    })
}
