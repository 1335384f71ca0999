//! The second session with an HTTP server that speaks both eras, for its legacy clients.
//!
//! Over HTTP nothing binds a server to one era, so xy speaks both at once: the modern era without
//! a session, and the legacy era in a session of its own, which looks like a second instance.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use xy_config::settings::Isolation;
use xy_supervisor::instance::{Holder, InstanceKey};
use xy_supervisor::speak::Said;

use super::http::Leader;
use crate::backend::{Backend, SpokenEras};
use crate::era::Era;
use crate::router::Router;
use crate::upstream::handshake::Note;
use crate::upstream::http_client::Web;
use crate::upstream::{Cause, Upstream};

/// Messages of the session to the supervisor, which are read here.
const MESSAGES: usize = 16;

/// How long xy waits before it opens a session again that was lost.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// How a session ended.
enum SessionEnd {
    /// The server does not speak the legacy era.
    Refused,
    /// The server could not be reached, or failed.
    UnansweredCall,
}

/// The legacy session of a server, while there is one.
#[derive(Default)]
pub(super) struct LegacySession {
    open: RefCell<Option<(Rc<Upstream>, Rc<Web>)>>,
}

impl LegacySession {
    /// Sends nothing more to the server.
    pub(super) fn take_no_more(&self, is_hung: bool) {
        if let Some((upstream, _)) = &*self.open.borrow() {
            if is_hung {
                upstream.mark_hung();
            }
            upstream.take_no_more();
        }
    }

    /// Ends the session, for this reason. Returns the connection, whose session the server may
    /// still have.
    pub(super) fn end(&self, router: &Router, server: &Rc<Backend>, why: &str) -> Option<Rc<Web>> {
        let (upstream, web) = self.open.take()?;
        upstream.close(Cause::end(why));
        router.over(server, &upstream, why);
        Some(web)
    }
}

impl Leader {
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
                SessionEnd::UnansweredCall => sleep(AGAIN_AFTER).await,
            }
        }
        std::future::pending().await
    }

    fn eras(&self) -> SpokenEras {
        self.server.hint.borrow().eras(&self.settings)
    }

    /// Opens a session and keeps it until it cannot go on.
    async fn keep_session(&self) -> SessionEnd {
        let Some(endpoint) = self.settings.endpoint() else { return SessionEnd::UnansweredCall };
        let Ok((web, troubles)) = Web::to(&endpoint).await else {
            return SessionEnd::UnansweredCall;
        };
        let (said, mut heard) = mpsc::channel(MESSAGES);
        let holder = Holder::Era(Era::Legacy);
        let key = InstanceKey { server: self.server.name.clone(), holder };
        let upstream = Upstream::new(key, said, 1, false, web.clone(), self.router.clone());
        web.speak_for(&upstream);
        self.server.add(&upstream);
        *self.legacy.open.borrow_mut() = Some((upstream.clone(), web.clone()));
        let is_refused = Rc::new(Cell::new(false));
        let leader = self.of_session(upstream, web.clone(), is_refused.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn_local(web.tell_all());
        tasks.spawn_local(leader.lead(troubles, Note::default()));
        let why = loop {
            match heard.recv().await {
                Some(Said::Stray(lines)) => self.upstream.say(Said::Stray(lines)).await,
                Some(Said::Hopeless(why) | Said::Unreachable(why)) => break why,
                Some(_) => {}
                None => break "its session has ended".to_owned(),
            }
        };
        tracing::debug!(server = %self.server.name, %why, "no legacy session");
        drop(self.legacy.end(&self.router, &self.server, &why));
        self.router.move_watchers_to_shared(&self.server);
        tasks.shutdown().await;
        if is_refused.get() { SessionEnd::Refused } else { SessionEnd::UnansweredCall }
    }
}
