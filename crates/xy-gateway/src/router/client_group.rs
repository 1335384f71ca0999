//! Clients that a door cannot tell apart, since they come with one request each: they share the
//! instances of servers that live for one client.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use xy_config::settings::Isolation;

use super::{ClientGroup, Router};
use crate::client::Client;

/// An instance for all whom the door cannot tell apart lives for so long after the last of
/// their requests.
const HOUSE_IDLE: Duration = Duration::from_mins(10);

/// So many such instances are told apart; more of one token share one.
const MAX_GROUPS: usize = 256;

/// What a client says of itself at greater length tells it from nobody.
const LONGEST_INFO: usize = 1024;

impl Router {
    /// Whether this is the number of clients that a door cannot tell apart.
    pub(crate) fn is_house(&self, number: u64) -> bool {
        self.groups.borrow().values().any(|group_id| group_id.number == number)
    }

    /// What clients of this number say of themselves, as it was written.
    pub(crate) fn info_of_house(&self, number: u64) -> Option<Box<str>> {
        let groups = self.groups.borrow();
        let found = groups.iter().find(|(_, group_id)| group_id.number == number);
        found.map(|((_, info), _)| info.clone())
    }

    /// Whether requests of such clients are open.
    pub(crate) fn is_open(&self, number: u64) -> bool {
        self.groups.borrow().values().any(|group_id| group_id.number == number && group_id.open > 0)
    }

    /// A request of somebody comes in whom the door cannot tell from others that have the same
    /// token and say the same of themselves.
    pub(crate) fn group_id(&self, client: &Client, info: Option<&str>) {
        if client.group_id() != client.number() {
            return; // It is in already.
        }
        let mut groups = self.groups.borrow_mut();
        let info = info.filter(|info| info.len() <= LONGEST_INFO).unwrap_or_default();
        let mut key = (client.entry().who, info.into());
        if groups.len() >= MAX_GROUPS && !groups.contains_key(&key) {
            key.1 = "".into(); // All others of this token.
        }
        let group_id = groups.entry(key).or_insert_with(|| ClientGroup {
            number: self.new_number(),
            token: client.token().id,
            open: 0,
            left_at: Instant::now(),
            is_closing: false,
        });
        group_id.open += 1;
        client.joins(group_id.number);
    }

    /// Such a request is over: their instances stay for a while.
    pub(super) fn left_house(&self, client: &Client) {
        let number = client.group_id();
        let mut groups = self.groups.borrow_mut();
        let Some(it) = groups.values_mut().find(|it| it.number == number) else { return };
        it.open -= 1;
        it.left_at = Instant::now();
        if it.open > 0 || it.is_closing {
            return;
        }
        it.is_closing = true;
        let (router, mut close_at) = (self.me(), it.left_at + HOUSE_IDLE);
        tokio::task::spawn_local(async move {
            loop {
                sleep_until(close_at).await;
                match router.close_house(number) {
                    Some(later) => close_at = later,
                    None => return,
                }
            }
        });
    }

    /// Ends the instances of those who have stayed away for long enough; otherwise when to look
    /// again, unless somebody else will.
    fn close_house(&self, number: u64) -> Option<Instant> {
        let mut groups = self.groups.borrow_mut();
        let it = groups.values_mut().find(|it| it.number == number)?;
        let close_at = it.left_at + HOUSE_IDLE;
        if it.open > 0 {
            it.is_closing = false; // The last of them looks again.
            return None;
        }
        if close_at > Instant::now() {
            return Some(close_at);
        }
        groups.retain(|_, it| it.number != number);
        drop(groups);
        // Also those that are not up just now: nobody would ever release them.
        for server in self.servers() {
            server.forget_user(number);
            if server.settings.borrow().isolation == Isolation::Client {
                tokio::task::spawn_local(self.control.release(&server.name, number));
            }
        }
        None
    }
}
