//! Calls that a server does not answer: waiting for its successor, or answered with what is
//! known. `upstream/fate.rs` decides which.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use xy_protocol::error::CallError;
use xy_supervisor::instance::InstanceKey;

use super::Router;
use crate::backend::{Backend, ToWait};
use crate::catalog::Known;
use crate::reply;
use crate::upstream::retry::{self, Facts, Retry, Stage, Why};
use crate::upstream::{Cause, UnansweredCall, Upstream};

/// A call that was lost by a server that seems to be there is sent again after this time: one
/// that dies is known to do so by then. An engine takes longer to tell of a container's death, and
/// something of its own may take calls meanwhile at the port of that.
const AGAIN_AFTER: Duration = Duration::from_millis(250);
const AGAIN_AFTER_CONTAINED: Duration = Duration::from_secs(3);

impl Router {
    /// A server does not answer these calls, in the order in which they were sent.
    pub(crate) fn lose(&self, by: &Upstream, calls: Vec<UnansweredCall>, why: Cause<'_>) {
        if calls.is_empty() {
            return;
        }
        let server = self.server(by.key().server.as_str());
        let holder = by.key().holder;
        let loss = Loss {
            router: self,
            by,
            why,
            known: by.known().or_else(|| server.as_ref().and_then(|server| server.said())),
        };
        for lost in calls {
            loss.settle(lost);
        }
        let Some(server) = server else { return };
        if let Some(living) = server.upstream(holder) {
            let is_contained = server.settings.borrow().container().is_some();
            let wait = if is_contained { AGAIN_AFTER_CONTAINED } else { AGAIN_AFTER };
            let at = Instant::now() + wait;
            living.hold_back(at);
            tokio::task::spawn_local(async move {
                sleep_until(at).await;
                server.release_for(holder);
            });
        }
    }
}

/// How calls were lost.
struct Loss<'l> {
    router: &'l Router,
    by: &'l Upstream,
    why: Cause<'l>,
    /// What it said that it offers.
    known: Option<Rc<Known>>,
}

impl Loss<'_> {
    fn settle(&self, lost: UnansweredCall) {
        let asked = self.router.server(lost.asked.name.as_str());
        let server = asked.as_ref().map(Backend::primary_or_self);
        // Its settings may have changed since: then another instance is its client's, or has the
        // name that the client used.
        let key = server.as_ref().map(|server| InstanceKey {
            server: server.name.clone(),
            holder: server.holder(&lost.client),
        });
        let no_successor = match asked.as_ref().zip(key.as_ref()) {
            Some((asked, key)) => asked.no_successor(key.holder),
            None => Some("it has been removed".to_owned()),
        };
        let retry = retry::fate(self.facts(&lost, no_successor.is_none()));
        let fault = match (retry, server) {
            (Retry::Drop, _) => return,
            (Retry::Resend, Some(_)) if key.as_ref() != Some(self.by.key()) => {
                return look_again(lost);
            }
            (Retry::Resend, Some(server)) => match self.wait(&server, lost) {
                None => return,
                Some((lost, full)) => return self.fail(&lost, &full),
            },
            (Retry::Resend, None) => self.not_done(None, None, Why::NoSuccessor),
            (Retry::NotSent(why), _) => self.not_done(asked.as_ref(), no_successor.as_deref(), why),
            (Retry::Unknown(why), _) => self.unknown(why),
        };
        self.fail(&lost, &fault);
    }

    /// It is told in the words of the name that its client used.
    fn fail(&self, lost: &UnansweredCall, fault: &CallError) {
        let fault = reply::under(&lost.asked.name, &self.by.key().server, fault);
        lost.asked.fail(&lost.client, (&lost.id, lost.stream), &lost.past, &fault);
    }

    fn facts(&self, lost: &UnansweredCall, has_successor: bool) -> Facts {
        let written = lost.written.as_deref().unwrap_or_default();
        let view = &lost.client.entry().view;
        // What it is called depends on what its client is shown, under the name that it used.
        let shown = |known| self.by.shown_as(&lost.asked, &lost.client, known);
        let known = self.known.clone().and_then(shown);
        Facts {
            stage: lost.stage,
            sort: retry::sort(written, &lost.follow, view, known.as_deref()),
            is_wanted: lost.client.waits_for(&lost.id),
            has_asked: lost.has_asked,
            was_written: lost.past.was_written,
            text: lost.text,
            has_successor,
            is_hung: self.by.is_hung(),
        }
    }

    /// Has it wait for the successor; it comes back if there is no room.
    fn wait(
        &self,
        server: &Rc<Backend>,
        mut lost: UnansweredCall,
    ) -> Option<(UnansweredCall, CallError)> {
        lost.past.was_written |= lost.stage == Stage::Written;
        let text = lost.written.take().unwrap_or_default();
        if let Err(full) = server.check_room(text.len()) {
            return Some((lost, full));
        }
        let call = ToWait {
            client: lost.client.clone(),
            asked: lost.asked.clone(),
            holder: self.by.key().holder,
            id: lost.id.clone(),
            text,
            stream: lost.stream,
            is_modern: lost.is_modern,
            past: lost.past.clone(),
        };
        let (open, _) = server.wait(call);
        lost.client.is_at(&lost.id, open, lost.stream);
        None
    }

    /// What is said of a call that the server never saw.
    fn not_done(
        &self,
        server: Option<&Rc<Backend>>,
        no_successor: Option<&str>,
        why: Why,
    ) -> CallError {
        if let (Some(server), Some(down)) = (server, no_successor) {
            return server.down(down);
        }
        let fault = self.by.lost(false, self.why);
        match why.words() {
            Some(words) => fault.cause(words),
            None => fault,
        }
    }

    /// What is said of a call that the server may have done.
    fn unknown(&self, why: Why) -> CallError {
        let fault = self.by.lost(true, self.why);
        match (why.words(), fault.cause.clone()) {
            (Some(words), Some(cause)) => {
                fault.cause(format!("{cause}; it was not sent again: {words}"))
            }
            _ => fault,
        }
    }
}

/// It is another instance that its client has now, which may have to be begun.
fn look_again(mut lost: UnansweredCall) {
    lost.past.was_written |= lost.stage == Stage::Written;
    let text = lost.written.take().unwrap_or_default();
    lost.client.clone().again_after(&lost.id, text.borrow(), lost.stream, lost.past);
}
