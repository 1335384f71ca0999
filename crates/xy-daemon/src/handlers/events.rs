//! `events`: changes of state, those before if asked for, then all from now on.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;
use xy_ipc::server::{Feed, Outbox, OutboxClosed};
use xy_protocol::control::{Event, EventKind, Events, Skipped};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_supervisor::journal::{Entry, Follower, What};

use crate::daemon::Daemon;

pub(super) async fn handle(daemon: &Daemon, ask: Events) -> Result<Box<dyn Feed>, CallError> {
    let following = daemon.journal.follow().await;
    let server = ask.name;
    if let Some(name) = &server {
        check_known(daemon, name).await?;
    }
    let count = usize::try_from(ask.history.unwrap_or(0)).unwrap_or(usize::MAX);
    let (journal, name) = (daemon.journal.clone(), server.clone());
    let (history, live) = if count == 0 {
        (Vec::new(), following.live)
    } else {
        let read = move || (journal.before(&following, count, name.as_deref()), following.live);
        let ((history, problem), live) = away(read).await?;
        if let Some(problem) = problem {
            tracing::warn!("some events of before are not shown: {problem}");
        }
        (history, live)
    };
    let live = ask.follow.then_some(live);
    Ok(Box::new(EventFeed { id: daemon.new_subscription(), server, history, live }))
}

/// A server that has been removed is known as long as the journal has something about it.
async fn check_known(daemon: &Daemon, name: &str) -> Result<(), CallError> {
    if daemon.fleet.roster().contains_key(name) {
        return Ok(());
    }
    let server = ServerName::new(name).map_err(|_| daemon.not_found(name))?;
    let journal = daemon.journal.clone();
    let is_known = away(move || journal.knows(&server)).await?;
    if is_known { Ok(()) } else { Err(daemon.not_found(name)) }
}

/// Reads the disk, away from everything that has to stay quick.
async fn away<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, CallError> {
    tokio::task::spawn_blocking(read).await.map_err(|cause| {
        CallError::new(ErrorKind::Internal, "the events could not be read").cause(cause)
    })
}

struct EventFeed {
    id: u64,
    /// Only those of this server; of all, if absent.
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
            let _ = self.send_all(&outbox).await; // The reader has left: nobody to tell.
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
        if let What::Skipped { count } = &entry.what {
            return self.skipped(*count, outbox).await;
        }
        match event(self.id, entry) {
            Some(event) => outbox.notify("event", &event).await,
            None => Ok(()),
        }
    }

    async fn skipped(&self, count: u64, outbox: &Outbox) -> Result<(), OutboxClosed> {
        outbox.notify("event_skipped", &Skipped { subscription_id: self.id, count }).await
    }
}

/// Returns the change that an entry tells of, as front ends get it.
pub(crate) fn event(subscription_id: u64, entry: &Entry) -> Option<Event> {
    let (change, kind) = match &entry.what {
        What::Skipped { .. } => return None,
        What::Changed(change) => (change, EventKind::Changed),
        What::LastAttempt(change) => (change, EventKind::LastAttempt),
        What::Asked(change) => (change, EventKind::Asked),
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
