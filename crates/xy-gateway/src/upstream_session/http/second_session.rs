//! The second session with an HTTP server that speaks both eras, for its legacy clients.
//!
//! Over HTTP nothing binds a server to one era, so xy speaks both at once: the modern era without a
//! session, and the legacy era in a session of its own. That session looks like a second instance.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use xy_config::settings::Isolation;
use xy_mcp::era::{Era, SpokenEras};
use xy_supervisor::instance::{Holder, InstanceKey};
use xy_supervisor::protocol::DriverEvent;
use xy_upstream::connection::handshake::ResumeNote;
use xy_upstream::connection::http_client::HttpClient;
use xy_upstream::fault::LossReason;

use super::HttpSession;
use crate::upstream::Upstream;

/// Capacity of the session's event channel, which is read here instead of by the supervisor.
const EVENT_QUEUE: usize = 16;

/// Delay before a lost session is opened again.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// The end of a session.
enum SessionEnd {
    /// The server does not speak the legacy era.
    Refused,
    /// The server could not be reached, or failed.
    Lost,
}

impl HttpSession {
    /// Keeps a legacy session beside the modern era, if the server speaks both. Never resolves.
    pub(super) async fn speak_legacy_too(&self) -> Infallible {
        let is_shared = self.settings.isolation == Isolation::Shared;
        let is_modern = self.upstream.era() == Era::Modern;
        let may = is_shared && is_modern && self.settings.only_era().is_none();
        while may && self.eras().legacy != Some(false) {
            match self.keep_session().await {
                SessionEnd::Refused => {
                    let mut hint = self.server.hint.borrow_mut();
                    hint.does_not_speak(&self.settings, Era::Legacy);
                    drop(hint);
                    self.router.remember(&self.server);
                }
                SessionEnd::Lost => sleep(RETRY_DELAY).await,
            }
        }
        std::future::pending().await
    }

    fn eras(&self) -> SpokenEras {
        self.server.hint.borrow().eras(&self.settings)
    }

    /// Opens a session and keeps it until it cannot go on.
    async fn keep_session(&self) -> SessionEnd {
        let Some(endpoint) = self.settings.endpoint() else { return SessionEnd::Lost };
        let Ok((transport, errors)) = HttpClient::new(&endpoint).await else {
            return SessionEnd::Lost;
        };
        let (sender, mut driver_events) = mpsc::channel(EVENT_QUEUE);
        let holder = Holder::Era(Era::Legacy);
        let key = InstanceKey { server: self.server.name.clone(), holder };
        let upstream = Upstream::new(key, sender, 1, false, transport.clone(), self.router.clone());
        transport.set_connection(&upstream);
        self.server.add(&upstream);
        self.legacy.set(upstream.clone(), transport.clone());
        let is_refused = Rc::new(Cell::new(false));
        let session_task = self.for_legacy_session(upstream, transport.clone(), is_refused.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn_local(transport.send_notifications());
        tasks.spawn_local(session_task.run(errors, ResumeNote::default()));
        let why = loop {
            match driver_events.recv().await {
                Some(DriverEvent::UnparsedOutput(lines)) => {
                    self.upstream.report(DriverEvent::UnparsedOutput(lines)).await;
                }
                Some(DriverEvent::Unrecoverable(why) | DriverEvent::Unreachable(why)) => break why,
                Some(_) => {}
                None => break "its session has ended".to_owned(),
            }
        };
        tracing::debug!(server = %self.server.name, %why, "no legacy session");
        let why = LossReason::Other(why.into());
        drop(self.legacy.end(&self.router, &self.server, &why));
        self.router.move_watchers_to_shared(&self.server);
        tasks.shutdown().await;
        if is_refused.get() { SessionEnd::Refused } else { SessionEnd::Lost }
    }
}
