//! Groups of one-request clients that the listener cannot tell apart. Each group shares isolated
//! instances.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use xy_config::settings::Isolation;

use super::{ClientGroup, RoutedClient, Router};

/// How long the isolated instances of a group outlive its last request.
const GROUP_IDLE_TIMEOUT: Duration = Duration::from_mins(10);

/// Maximum number of groups; further clients of one token share one.
const MAX_GROUPS: usize = 256;

/// Maximum length of a `clientInfo` that distinguishes groups.
const MAX_INFO: usize = 1024;

impl Router {
    /// Returns true if `number` is the number of a group.
    pub(crate) fn is_group(&self, number: u64) -> bool {
        self.groups.borrow().values().any(|group| group.number == number)
    }

    /// Returns the `clientInfo` of a group, as JSON text.
    pub(crate) fn group_info(&self, number: u64) -> Option<Box<str>> {
        let groups = self.groups.borrow();
        let found = groups.iter().find(|(_, group)| group.number == number);
        found.map(|((_, info), _)| info.clone())
    }

    /// Returns true if the group has open requests.
    pub(crate) fn has_open_requests(&self, number: u64) -> bool {
        self.groups.borrow().values().any(|group| group.number == number && group.open > 0)
    }

    /// Adds a one-request client to the group of its token and `clientInfo`.
    pub(crate) fn join_group(&self, client: &dyn RoutedClient, info: Option<&str>) {
        if client.group_id() != client.number() {
            return; // The client has joined already.
        }
        let mut groups = self.groups.borrow_mut();
        let info = info.filter(|info| info.len() <= MAX_INFO).unwrap_or_default();
        let mut key = (client.entry().principal, info.into());
        if groups.len() >= MAX_GROUPS && !groups.contains_key(&key) {
            key.1 = "".into(); // All other clients of this token.
        }
        let group = groups.entry(key).or_insert_with(|| ClientGroup {
            number: self.new_number(),
            token: client.token().id,
            open: 0,
            left_at: Instant::now(),
            is_closing: false,
        });
        group.open += 1;
        client.set_group_id(group.number);
    }

    /// Removes a client from its group. The group's instances stay for a while.
    pub(super) fn leave_group(&self, client: &dyn RoutedClient) {
        let number = client.group_id();
        let mut groups = self.groups.borrow_mut();
        let Some(it) = groups.values_mut().find(|it| it.number == number) else { return };
        it.open -= 1;
        it.left_at = Instant::now();
        if it.open > 0 || it.is_closing {
            return;
        }
        it.is_closing = true;
        let (router, mut close_at) = (self.me(), it.left_at + GROUP_IDLE_TIMEOUT);
        tokio::task::spawn_local(async move {
            loop {
                sleep_until(close_at).await;
                match router.close_group(number) {
                    Some(later) => close_at = later,
                    None => return,
                }
            }
        });
    }

    /// Closes a group that was idle for long enough and ends its instances. Otherwise returns when
    /// to look again, or `None` if a later departure will.
    fn close_group(&self, number: u64) -> Option<Instant> {
        let mut groups = self.groups.borrow_mut();
        let it = groups.values_mut().find(|it| it.number == number)?;
        let close_at = it.left_at + GROUP_IDLE_TIMEOUT;
        if it.open > 0 {
            it.is_closing = false; // The next departure looks again.
            return None;
        }
        if close_at > Instant::now() {
            return Some(close_at);
        }
        groups.retain(|_, it| it.number != number);
        drop(groups);
        // Release instances that are down as well, or they would stay forever.
        for server in self.servers() {
            server.forget_user(number);
            if server.settings.borrow().isolation == Isolation::Client {
                tokio::task::spawn_local(self.control.release(&server.name, number));
            }
        }
        None
    }
}
