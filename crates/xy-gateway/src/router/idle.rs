//! Instances that sleep while nobody uses them: who goes, and who is woken.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use xy_protocol::error::CallError;
use xy_supervisor::instance::Holder;

use super::Router;
use crate::backend::Backend;
use crate::client::Client;
use crate::idle::{Idleness, Use, Verdict};
use crate::upstream::Upstream;

impl Router {
    /// What an instance is used for.
    pub(crate) fn use_of(&self, server: &Rc<Backend>, upstream: &Upstream) -> Use {
        let key = upstream.key();
        let watched = self.watched(server, key.holder);
        let beside = server.beside(upstream).map(|it| self.use_of(server, &it)).unwrap_or_default();
        Use {
            calls: upstream.calls_of_others() + beside.calls,
            waiting: server.waiting_for(key.holder) + beside.waiting,
            tasks: self.owners.borrow().kept_at(key, Instant::now()) + beside.tasks,
            watched: watched.uris.len() + watched.tasks.len() + beside.watched,
            has_client: match key.holder {
                Holder::Shared | Holder::Era(_) => false,
                Holder::Client(number) => self.client(number).is_some() || self.is_open(number),
            },
            is_new: upstream.introduction().is_none() || upstream.known().is_none(),
        }
    }

    /// For how long nobody has used an instance; `None` if somebody does.
    pub(crate) fn idle_for(&self, server: &Rc<Backend>, upstream: &Upstream) -> Option<Duration> {
        let called_at = called_at(server, upstream);
        Idleness::so_far(self.use_of(server, upstream), called_at, Instant::now())
    }

    /// Closes an instance if nobody uses it: whether it goes. Whoever wants it from here on
    /// waits for its next life.
    pub(crate) fn close_if_idle(&self, server: &Rc<Backend>, upstream: &Upstream) -> bool {
        let may = server.may_sleep(upstream.key().holder);
        let goes = may && !self.use_of(server, upstream).is_any();
        if goes {
            take_no_more(server, upstream);
        }
        goes
    }

    /// Closes an instance if nobody has used it for long enough; else when to look again.
    pub(crate) fn looks_at_use(
        &self,
        server: &Rc<Backend>,
        upstream: &Upstream,
        idle: &mut Idleness,
        idle_stop: Duration,
    ) -> Verdict {
        let used = self.use_of(server, upstream);
        let verdict = idle.look(used, called_at(server, upstream), idle_stop, Instant::now());
        if verdict == Verdict::Rest {
            take_no_more(server, upstream);
        }
        verdict
    }

    /// A client wants to know who a server is: one that is known and may sleep is not woken
    /// for that.
    pub(crate) fn want_to_know(&self, server: &Rc<Backend>, client: &Rc<Client>) {
        let may_sleep = server.primary_or_self().settings.borrow().rules.may_sleep();
        if !may_sleep || server.shown_to(client).is_none() {
            self.want(server, client);
        }
    }

    /// An instance is wanted: one that lives for a single client, or that sleeps.
    pub(crate) fn want(&self, server: &Rc<Backend>, client: &Rc<Client>) {
        self.want_for(server, server.holder(client));
    }

    /// The same, by for whom it lives.
    pub(crate) fn want_for(&self, server: &Rc<Backend>, holder: Holder) {
        let server = &server.primary_or_self();
        if server.upstream(holder).is_some() {
            return;
        }
        if holder == Holder::Shared {
            server.need(); // It may be about to sleep, which we do not know yet.
            if !server.is_away(holder) {
                return; // It comes by itself.
            }
        }
        self.hold(server, holder);
    }

    /// Wakes those of a server's instances that sleep though somebody needs them.
    pub(crate) fn wake_needed(&self, server: &Rc<Backend>) {
        if server.home().is_some() {
            return; // They are another's, who looks for all names.
        }
        for holder in server.all_away() {
            let watched = self.watched(server, holder);
            let is_watched = !watched.uris.is_empty() || !watched.tasks.is_empty();
            let is_needed = holder == Holder::Shared && server.was_needed();
            if is_needed || is_watched || server.waiting_for(holder) > 0 {
                self.hold(server, holder);
            }
        }
    }

    /// Has the shared process serve those who need a second one, which has failed.
    pub(crate) fn second_failed(&self, server: &Rc<Backend>, second: Holder, why: &str) {
        let is_needed = server.waiting_for(second) > 0;
        if is_needed || !self.watched(server, second).uris.is_empty() {
            self.fall_back_to_shared(server, second, &server.down(why));
        }
    }

    /// Has the shared process serve the clients of a second one, which does not start.
    fn fall_back_to_shared(&self, server: &Rc<Backend>, second: Holder, why: &CallError) {
        server.refuse_second(&why.to_string());
        self.move_watchers_to_shared(server);
        server.send_again_all(second);
    }

    /// Has all who watch resources at the second instance of a server watch at the shared one.
    pub(crate) fn move_watchers_to_shared(&self, server: &Rc<Backend>) {
        if !self.subscriptions.borrow_mut().move_to_shared(&server.name) {
            return;
        }
        if let Some(shared) = server.upstream(Holder::Shared) {
            self.restore_watched(server, &shared);
        }
    }

    /// Has an instance come, unless that is being done.
    fn hold(&self, server: &Rc<Backend>, holder: Holder) {
        if !server.begins_to_hold(holder) {
            return;
        }
        let coming = match self.check_instance_share(&server.name, holder) {
            Ok(()) => self.control.hold(&server.name, holder),
            Err(full) => Box::pin(std::future::ready(Err(full))),
        };
        let (router, server, looks) = (self.me(), server.clone(), server.looks());
        tokio::task::spawn_local(async move {
            let came = coming.await;
            server.has_held(holder, came.is_ok());
            if came.is_ok() && server.looks() != looks {
                router.wake_needed(&server); // It may have come and gone meanwhile.
            }
            match came {
                Ok(()) => {}
                Err(fault) if holder.era().is_some() => {
                    router.fall_back_to_shared(&server, holder, &fault);
                }
                Err(fault) => {
                    for waited in server.take_all_waiting(Some(holder)) {
                        server.give_up(&waited, &fault);
                    }
                }
            }
        });
    }
}

/// Returns when a call of a process last began or ended.
fn called_at(server: &Backend, upstream: &Upstream) -> Instant {
    let beside = server.beside(upstream).map(|it| it.called_at());
    beside.map_or(upstream.called_at(), |beside| beside.max(upstream.called_at()))
}

/// Sends nothing more to a process.
fn take_no_more(server: &Backend, upstream: &Upstream) {
    upstream.take_no_more();
    if let Some(beside) = server.beside(upstream) {
        beside.take_no_more();
    }
}
