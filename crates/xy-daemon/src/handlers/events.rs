//! `events`: every change of state from now on.

use std::future::Future;
use std::pin::Pin;

use tokio::sync::broadcast::{self, error::RecvError};
use xy_ipc::server::{Feed, Outbox};
use xy_protocol::control::{Event, Skipped};
use xy_protocol::time::Timestamp;
use xy_supervisor::instance::StateChange;

use crate::daemon::Daemon;
use crate::view::client_of;

pub(super) fn handle(daemon: &Daemon) -> Box<dyn Feed> {
    Box::new(EventFeed { id: daemon.new_subscription(), changes: daemon.fleet.changes() })
}

struct EventFeed {
    id: u64,
    changes: broadcast::Receiver<StateChange>,
}

impl Feed for EventFeed {
    fn id(&self) -> u64 {
        self.id
    }

    fn end_method(&self) -> &'static str {
        "event_end"
    }

    fn run(mut self: Box<Self>, outbox: Outbox) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            loop {
                let sent = match self.changes.recv().await {
                    Ok(change) => outbox.notify("event", &event(self.id, &change)).await,
                    Err(RecvError::Lagged(count)) => {
                        let skipped = Skipped { subscription_id: self.id, count };
                        outbox.notify("event_skipped", &skipped).await
                    }
                    Err(RecvError::Closed) => return,
                };
                if sent.is_err() {
                    return;
                }
            }
        })
    }
}

fn event(subscription_id: u64, change: &StateChange) -> Event {
    let transition = &change.transition;
    Event {
        subscription_id,
        name: change.key.server.clone(),
        client: client_of(&change.key),
        from: transition.from,
        state: transition.to,
        reason: transition.reason.to_string(),
        pid: change.pid,
        restart_count: change.restart_count,
        ts: Timestamp::from(transition.at),
    }
}
