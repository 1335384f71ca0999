//! Idle stop and wake-up of instances.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;
use xy_supervisor::instance::Holder;
use xy_upstream::fault::ServerFault;

use super::{RoutedClient, Router};
use crate::backend::{Backend, SecondDown};
use crate::idle::{IdleDecision, Idleness, Use};
use crate::upstream::Upstream;

impl Router {
    /// Returns the current uses of an instance.
    pub(crate) fn use_of(&self, server: &Rc<Backend>, upstream: &Upstream) -> Use {
        let key = upstream.key();
        let watched = self.watched(server, key.holder);
        let beside =
            server.companion(upstream).map(|it| self.use_of(server, &it)).unwrap_or_default();
        Use {
            calls: upstream.external_calls() + beside.calls,
            waiting: server.waiting_for(key.holder) + beside.waiting,
            tasks: self.ownership.borrow().task_count_at(key, Instant::now()) + beside.tasks,
            watched: watched.uris.len() + watched.tasks.len() + beside.watched,
            has_client: match key.holder {
                Holder::Shared | Holder::Era(_) => false,
                Holder::Client(number) => {
                    self.client(number).is_some() || self.has_open_requests(number)
                }
            },
            is_new: upstream.introduction().is_none() || upstream.known().is_none(),
        }
    }

    /// Returns how long an instance has been unused; `None` if it is in use.
    pub(crate) fn idle_for(&self, server: &Rc<Backend>, upstream: &Upstream) -> Option<Duration> {
        let called_at = called_at(server, upstream);
        Idleness::duration(self.use_of(server, upstream), called_at, Instant::now())
    }

    /// Stops accepting calls for an unused instance; returns true if it may stop. Later calls wait
    /// for the next life.
    pub(crate) fn close_if_idle(&self, server: &Rc<Backend>, upstream: &Upstream) -> bool {
        let may = server.may_sleep(upstream.key().holder);
        let goes = may && !self.use_of(server, upstream).is_any();
        if goes {
            stop_accepting(server, upstream);
        }
        goes
    }

    /// Decides whether an instance has been idle long enough to stop, or when to look again.
    pub(crate) fn check_idle(
        &self,
        server: &Rc<Backend>,
        upstream: &Upstream,
        idle: &mut Idleness,
        idle_stop: Duration,
    ) -> IdleDecision {
        let used = self.use_of(server, upstream);
        let decision = idle.check(used, called_at(server, upstream), idle_stop, Instant::now());
        if decision == IdleDecision::Stop {
            stop_accepting(server, upstream);
        }
        decision
    }

    /// Requests an instance for an introduction, unless the server may sleep and is known.
    pub(crate) fn request_introduction(&self, server: &Rc<Backend>, client: &dyn RoutedClient) {
        let may_sleep = server.primary_or_self().settings.borrow().rules.may_sleep();
        if !may_sleep || server.shown_to(client).is_none() {
            self.request_instance(server, client);
        }
    }

    /// Requests the instance that serves a client: an isolated or a sleeping one.
    pub(crate) fn request_instance(&self, server: &Rc<Backend>, client: &dyn RoutedClient) {
        self.request_instance_for(server, server.holder(client));
    }

    /// Requests the instance of a holder.
    pub(crate) fn request_instance_for(&self, server: &Rc<Backend>, holder: Holder) {
        let server = &server.primary_or_self();
        if server.upstream(holder).is_some() {
            return;
        }
        if holder == Holder::Shared {
            server.need_shared(); // The instance may be about to stop.
            if !server.is_asleep(holder) {
                return; // The instance starts by itself.
            }
        }
        self.start_instance(server, holder);
    }

    /// Wakes the sleeping instances of a server that are needed.
    pub(crate) fn wake_needed(&self, server: &Rc<Backend>) {
        if server.primary().is_some() {
            return; // Its primary looks for all aliases.
        }
        for holder in server.all_asleep() {
            let watched = self.watched(server, holder);
            let is_watched = !watched.uris.is_empty() || !watched.tasks.is_empty();
            let is_needed = holder == Holder::Shared && server.was_needed();
            if is_needed || is_watched || server.waiting_for(holder) > 0 {
                self.start_instance(server, holder);
            }
        }
    }

    /// Falls back to the shared process for clients of a second process that has failed. While it
    /// is tried again, later calls must not wait for it either.
    pub(crate) fn second_failed(&self, server: &Rc<Backend>, down: &SecondDown) {
        let second = down.holder;
        let is_needed = down.is_retried || server.waiting_for(second) > 0;
        if is_needed || !self.watched(server, second).uris.is_empty() {
            self.fall_back_to_shared(server, second, &server.down_fault(&down.why));
        }
    }

    /// Serves the clients of a second process that does not start from the shared one.
    fn fall_back_to_shared(&self, server: &Rc<Backend>, second: Holder, why: &ServerFault) {
        server.refuse_second(&why.named(&server.name).to_string());
        self.move_watchers_to_shared(server);
        server.send_again_all(second);
    }

    /// Moves the subscriptions of a server's second process to the shared one.
    pub(crate) fn move_watchers_to_shared(&self, server: &Rc<Backend>) {
        if !self.subscriptions.borrow_mut().move_to_shared(&server.name) {
            return;
        }
        if let Some(shared) = server.upstream(Holder::Shared) {
            self.restore_subscriptions(server, &shared);
        }
    }

    /// Starts an instance, unless it is being started.
    fn start_instance(&self, server: &Rc<Backend>, holder: Holder) {
        if !server.begin_wake(holder) {
            return;
        }
        let coming = match self.check_instance_share(&server.name, holder) {
            Ok(()) => self.control.hold(&server.name, holder),
            Err(full) => Box::pin(std::future::ready(Err(full))),
        };
        let (router, server, looks) = (self.me(), server.clone(), server.report_count());
        tokio::task::spawn_local(async move {
            let result = coming.await;
            server.end_wake(holder, result.is_ok());
            if result.is_ok() && server.report_count() != looks {
                router.wake_needed(&server); // The instance may have started and stopped meanwhile.
            }
            match result {
                Ok(()) => {}
                Err(fault) if holder.era().is_some() => {
                    router.fall_back_to_shared(&server, holder, &fault);
                }
                Err(fault) => {
                    let waiting = server.take_all_waiting(Some(holder));
                    router.record_refused_instance(holder, &waiting, &fault);
                    for waited in waiting {
                        waited.fail(&fault);
                    }
                }
            }
        });
    }
}

/// Returns when a call of a process last began or ended.
fn called_at(server: &Backend, upstream: &Upstream) -> Instant {
    let beside = server.companion(upstream).map(|it| it.called_at());
    beside.map_or(upstream.called_at(), |beside| beside.max(upstream.called_at()))
}

/// Sends nothing more to a process.
fn stop_accepting(server: &Backend, upstream: &Upstream) {
    upstream.stop_accepting();
    if let Some(beside) = server.companion(upstream) {
        beside.stop_accepting();
    }
}
