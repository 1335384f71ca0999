//! Routing of client calls to a process, at a server that speaks both eras over stdio.
//!
//! A process is bound to the era of its handshake. As long as the clients of a server use one era,
//! it has one process, in that era. When clients of both eras call it, a second process serves the
//! era that the shared one does not speak. The rule is [`route`], which is pure.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use xy_config::settings::{Isolation, ServerSettings};
use xy_mcp::era::{Era, Introduction, SpokenEras};
use xy_supervisor::instance::{Holder, SECOND_IDLE_STOP};
use xy_supervisor::protocol::DriverEvent;

use super::Backend;
use crate::call::CallClient;
pub(super) use xy_upstream::connection::handshake::HandshakeOutcome;

use crate::manifest::Traits;
use crate::upstream::Upstream;

/// The facts that decide where a call goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RoutingFacts {
    /// The server speaks both eras, and its settings allow a process for each.
    may_split: bool,
    /// The era of the call.
    call: Era,
    /// The shared process, if it accepts requests.
    shared: Option<SharedProcess>,
    /// The second process, in the era of the call.
    second: Second,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SharedProcess {
    era: Era,
    /// A client has called it or watches a resource of it.
    is_used: bool,
}

/// The second process of a server, as far as a call is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Second {
    /// It accepts requests, or is starting for other calls.
    Present,
    /// It does not run, and can be started.
    Absent,
    /// It could not be started since the shared process began.
    Refused,
}

/// A second process that does not run although it is wanted.
#[derive(Debug)]
pub(crate) struct SecondDown {
    /// Its holder.
    pub(crate) holder: Holder,
    /// Why it is down.
    pub(crate) why: String,
    /// It has not become ready, and is started again after a delay.
    pub(crate) is_retried: bool,
}

/// Where a call goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EraRoute {
    /// To the shared process, in its own era or translated.
    Shared,
    /// To the second process, which is started if necessary.
    Second,
    /// To the shared process, which is restarted in the era of the call.
    SharedStartedOver,
}

/// Decides where a call goes.
fn route(facts: RoutingFacts) -> EraRoute {
    let speaks_it = facts.shared.is_some_and(|shared| shared.era == facts.call);
    if !facts.may_split || speaks_it {
        return EraRoute::Shared;
    }
    match (facts.second, facts.shared) {
        (Second::Present, _) => EraRoute::Second,
        // Without a shared process the call waits: the next process begins in the call's era.
        (Second::Refused, _) | (Second::Absent, None) => EraRoute::Shared,
        (Second::Absent, Some(shared)) if shared.is_used => EraRoute::Second,
        (Second::Absent, Some(_)) => EraRoute::SharedStartedOver,
    }
}

impl Backend {
    /// Returns the holder of the instance whose lists a client sees. No process is started for
    /// lists.
    pub(crate) fn holder(&self, client: &dyn CallClient) -> Holder {
        match self.settings.borrow().isolation {
            Isolation::Client => Holder::Client(client.group_id()),
            Isolation::Shared => self.shared_holder(client, client.era()),
        }
    }

    /// Returns the holder of the instance that serves an era: the second one, if it accepts
    /// requests.
    fn shared_holder(&self, client: &dyn CallClient, era: Era) -> Holder {
        let (second, upstreams) = (Holder::Era(era), self.upstreams.borrow());
        let is_shared =
            upstreams.get(&Holder::Shared).is_some_and(|it| is_open(it) && it.era() == era);
        let is_fit = |it: &&Rc<Upstream>| {
            // Without a session the server cannot send a client any requests.
            let may_ask = speaks_at_pipes(&self.settings.borrow()) || it.has_session();
            is_open(it) && (may_ask || !client.accepts_server_requests())
        };
        let found = upstreams.get(&second).filter(|_| !is_shared).filter(is_fit);
        found.map_or(Holder::Shared, |_| second)
    }

    /// Returns the holder of the instance that a client's call goes to. May restart the shared
    /// process.
    pub(crate) fn holder_of_call(self: &Rc<Self>, client: &dyn CallClient, era: Era) -> Holder {
        if self.settings.borrow().isolation == Isolation::Client {
            return Holder::Client(client.group_id());
        }
        if self.primary().is_some() {
            return Holder::Shared;
        }
        if !self.may_split() {
            return self.shared_holder(client, era);
        }
        self.last_called.set(Some(era));
        let shared = self.upstreams.borrow().get(&Holder::Shared).filter(|it| is_open(it)).cloned();
        let facts = RoutingFacts {
            may_split: true,
            call: era,
            shared: shared
                .as_ref()
                .map(|it| SharedProcess { era: it.era(), is_used: it.was_used() }),
            second: self.second(era),
        };
        match route(facts) {
            EraRoute::Shared => Holder::Shared,
            EraRoute::Second => Holder::Era(era),
            EraRoute::SharedStartedOver => {
                if let Some(shared) = shared {
                    start_over(&shared, era);
                }
                Holder::Shared
            }
        }
    }

    /// Records which eras an instance has shown in its handshake, and decides whether clients can
    /// use it.
    pub(crate) fn record_handshake(
        &self,
        settings: &Arc<ServerSettings>,
        shown: SpokenEras,
        eras: (Era, Era),
        learns: bool,
    ) -> HandshakeOutcome {
        self.hint.borrow_mut().record_handshake(settings, shown, eras, learns)
    }

    /// Returns true if the server may have a process for each era.
    pub(crate) fn may_split(&self) -> bool {
        let settings = self.settings.borrow();
        settings.isolation == Isolation::Shared
            && speaks_at_pipes(&settings)
            && settings.only_era().is_none()
            && self.hint.borrow().eras(&settings).are_both()
    }

    /// Returns the instance that shares the process of this one: an HTTP server that speaks both
    /// eras has a legacy session beside the modern one.
    pub(crate) fn companion(&self, upstream: &Upstream) -> Option<Rc<Upstream>> {
        let is_one = upstream.key().holder == Holder::Shared;
        let is_split = speaks_at_pipes(&self.settings.borrow());
        let found = self.upstreams.borrow().get(&Holder::Era(Era::Legacy)).cloned();
        found.filter(|_| is_one && !is_split)
    }

    /// Returns true if each call is served by a process of its era, whether or not that runs now.
    fn serves_both(&self) -> bool {
        self.may_split() && !self.is_second_refused.get()
    }

    fn second(&self, era: Era) -> Second {
        let holder = Holder::Era(era);
        if self.is_second_refused.get() {
            return Second::Refused;
        }
        let is_present = self.upstreams.borrow().contains_key(&holder)
            || self.holders_to_come().contains(&holder);
        if is_present { Second::Present } else { Second::Absent }
    }

    /// Returns the era in which a new instance is wanted.
    pub(crate) fn wanted_era(&self, holder: Holder, client: Option<Era>) -> Era {
        match holder {
            Holder::Era(era) => era,
            Holder::Client(_) => client.unwrap_or(Era::Legacy),
            Holder::Shared => {
                let seconds = [Era::Legacy, Era::Modern];
                let has = |era: &Era| self.upstreams.borrow().contains_key(&Holder::Era(*era));
                // Both processes restart together, and the second one may come later.
                let served = seconds.into_iter().find(has).or(self.second_era.get());
                // A waiting call is served in its era; later ones may need a second process.
                let wanted = self.era_of_first_waiting().or(self.last_called.get());
                served.map_or(wanted.unwrap_or(Era::Legacy), Era::other)
            }
        }
    }

    /// Records that the shared process is called in its own era. Returns true if the stored era
    /// differs.
    pub(crate) fn is_new_era(&self, upstream: &Upstream) -> bool {
        let era = upstream.era();
        let is_shared = upstream.key().holder == Holder::Shared && self.may_split();
        is_shared && self.remembered_era.replace(Some(era)) != Some(era)
    }

    /// Returns what is stored of the server beside its lists.
    pub(crate) fn traits(&self) -> Traits {
        let (hint, settings) = (self.hint.borrow(), self.settings.borrow());
        let (eras, introductions) = (hint.eras(&settings), hint.introductions(&settings));
        Traits { asks: self.asks(), eras, last_called: self.remembered_era.get(), introductions }
    }

    /// Returns the server's introduction in an era, if a process of that era serves its callers.
    pub(crate) fn introduction_in(&self, era: Era) -> Option<Introduction> {
        if !self.serves_both() {
            return None;
        }
        let hint = self.hint.borrow();
        hint.introductions(&self.settings.borrow()).get(era).cloned()
    }

    /// Records that the second process could not be started: its clients use the other one.
    pub(crate) fn refuse_second(&self, why: &str) {
        if self.is_second_refused.replace(true) {
            return;
        }
        let name = &self.name;
        tracing::warn!(server = %name, "the second process did not start, so clients of both eras share one: {why}");
        let shared = self.upstreams.borrow().get(&Holder::Shared).cloned();
        if let Some(shared) = shared {
            shared.log_own(format_args!(
                "a second process for clients of the other MCP era did not start, so they share \
                 this one: {why}"
            ));
            tokio::task::spawn_local(async move { shared.log_unparsed().await });
        }
    }

    /// Sets the era of the second process, if the supervisor runs one or will.
    pub(crate) fn set_second_era(&self, era: Option<Era>) {
        self.second_era.set(era);
    }

    /// Allows a second process again: the shared one was started anew, or the second one is ready.
    pub(crate) fn allow_second(&self) {
        self.is_second_refused.set(false);
    }

    /// Returns how long an instance may be idle before it is stopped, if it is at all.
    pub(crate) fn idle_stop(&self, holder: Holder) -> Option<Duration> {
        let own = self.settings.borrow().rules.idle_stop;
        own.or(holder.era().map(|_| SECOND_IDLE_STOP))
    }

    /// Returns true if an instance may be stopped when idle.
    pub(crate) fn may_sleep(&self, holder: Holder) -> bool {
        self.settings.borrow().rules.may_sleep() || holder.era().is_some()
    }
}

fn is_open(upstream: &Rc<Upstream>) -> bool {
    upstream.introduction().is_some()
}

/// Returns true if the server uses stdio, so that each process is bound to an era.
fn speaks_at_pipes(settings: &ServerSettings) -> bool {
    settings.transport() == xy_protocol::server::Transport::Stdio
}

/// Restarts a process in another era. No client has used it.
fn start_over(upstream: &Rc<Upstream>, era: Era) {
    upstream.stop_accepting();
    let upstream = upstream.clone();
    tokio::task::spawn_local(async move {
        let why = format!("its clients speak {era} MCP");
        upstream.report(DriverEvent::RestartRequired(why)).await;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(call: Era, shared: Option<(Era, bool)>, second: Second) -> RoutingFacts {
        let shared = shared.map(|(era, is_used)| SharedProcess { era, is_used });
        RoutingFacts { may_split: true, call, shared, second }
    }

    #[test]
    fn call_goes_to_a_process_of_its_era() {
        use Era::{Legacy, Modern};
        use Second::{Absent, Present, Refused};
        for call in [Legacy, Modern] {
            let other = call.other();
            for (shared, second, expected) in [
                (None, Absent, EraRoute::Shared),
                (None, Present, EraRoute::Second),
                (None, Refused, EraRoute::Shared),
                (Some((call, false)), Absent, EraRoute::Shared),
                (Some((call, true)), Present, EraRoute::Shared),
                (Some((call, true)), Refused, EraRoute::Shared),
                (Some((other, false)), Absent, EraRoute::SharedStartedOver),
                (Some((other, true)), Absent, EraRoute::Second),
                (Some((other, false)), Present, EraRoute::Second),
                (Some((other, true)), Present, EraRoute::Second),
                (Some((other, false)), Refused, EraRoute::Shared),
                (Some((other, true)), Refused, EraRoute::Shared),
            ] {
                let facts = facts(call, shared, second);
                assert_eq!(route(facts), expected, "{facts:?}");
                assert_eq!(route(RoutingFacts { may_split: false, ..facts }), EraRoute::Shared);
            }
        }
    }
}
