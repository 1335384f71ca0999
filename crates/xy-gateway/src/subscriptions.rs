//! Subscriptions of clients to resources. Pure.
//!
//! A subscription belongs to the alias that the client used. A process with several aliases has the
//! subscriptions of all of them.

use std::collections::BTreeMap;

use xy_mcp::era::Era;
use xy_protocol::server::ServerName;
use xy_supervisor::instance::Holder;
use xy_transport::retained::Retained;
use xy_transport::share::{Holdings, TokenUse};

/// Maximum number of watched resources, over all servers and clients.
const MAX_RESOURCES: usize = 10_000;

/// Maximum size of their URIs in bytes.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Maximum length of a URI in bytes.
const MAX_URI_BYTES: usize = 64 * 1024;

/// The subscribers of each resource.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    subscribers: BTreeMap<(ServerName, String), BTreeMap<u64, Subscriber>>,
    /// Total size of the URIs in bytes.
    bytes: usize,
    /// The resources that each token watches, and the size of their URIs. A resource counts for
    /// each token that watches it.
    of_tokens: Holdings,
    bytes_of_tokens: Holdings,
}

/// A subscriber of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subscriber {
    /// The client.
    pub(crate) client: u64,
    /// The token of the client.
    pub(crate) token: TokenUse,
    /// The group whose instance it uses on an isolated server.
    pub(crate) group_id: u64,
    /// The era of the second process, if the client watches there.
    pub(crate) era: Option<Era>,
    /// True if the client uses the exposed URI.
    pub(crate) by_exposed_uri: bool,
}

/// A subscription of a closed client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemovedSubscription {
    pub(crate) server: ServerName,
    pub(crate) uri: String,
}

impl Subscriptions {
    /// Adds a subscription.
    pub(crate) fn add(
        &mut self,
        server: &ServerName,
        uri: &str,
        subscriber: Subscriber,
    ) -> Result<(), String> {
        if uri.len() > MAX_URI_BYTES {
            return Err("this URI is too long to be watched".to_owned());
        }
        let (key, count) = ((server.clone(), uri.to_owned()), self.subscribers.len());
        let known = self.subscribers.get(&key);
        let is_full = count >= MAX_RESOURCES || self.bytes + uri.len() > MAX_BYTES;
        if known.is_none() && is_full {
            return Err(format!("{count} resources are watched, and there is no room for more"));
        }
        let token = subscriber.token;
        if !known.is_some_and(|all| is_watched_by(token, all)) {
            let own = self.of_tokens.of(token);
            let own_bytes = self.bytes_of_tokens.of(token);
            let has_share = token.may_take(own, count, MAX_RESOURCES)
                && token.may_take_more(uri.len(), own_bytes, self.bytes, MAX_BYTES);
            if known.is_none() && !has_share {
                return Err(format!(
                    "this token watches {own} resources, and the rest is reserved for other tokens"
                ));
            }
            self.of_tokens.add(token, 1);
            self.bytes_of_tokens.add(token, uri.len());
        }
        if known.is_none() {
            self.bytes += uri.len();
        }
        self.subscribers.entry(key).or_default().insert(subscriber.client, subscriber);
        Ok(())
    }

    /// Removes all subscriptions of a server.
    pub(crate) fn forget_server(&mut self, server: &ServerName) {
        self.subscribers.retain(|(of, _), _| of != server);
        self.recount();
    }

    /// Moves the subscriptions of a server's second process to the shared one. Returns true if
    /// there were any.
    pub(crate) fn move_to_shared(&mut self, server: &ServerName) -> bool {
        let of_server = self.subscribers.iter_mut().filter(|((of, _), _)| of == server);
        let all = of_server.flat_map(|(_, subscribers)| subscribers.values_mut());
        let moved = all.filter_map(|subscriber| subscriber.era.take());
        moved.count() > 0
    }

    /// Removes a subscription.
    pub(crate) fn remove(&mut self, server: &ServerName, uri: &str, client: u64) {
        let key = (server.clone(), uri.to_owned());
        let Some(subscribers) = self.subscribers.get_mut(&key) else { return };
        let Some(Subscriber { token, .. }) = subscribers.remove(&client) else { return };
        if !is_watched_by(token, subscribers) {
            self.of_tokens.remove(token, 1);
            self.bytes_of_tokens.remove(token, uri.len());
        }
        if subscribers.is_empty() {
            self.subscribers.remove(&key);
            self.bytes -= uri.len();
        }
    }

    /// Counts the resources and their bytes again.
    fn recount(&mut self) {
        self.bytes = 0;
        (self.of_tokens, self.bytes_of_tokens) = Default::default();
        for ((_, uri), subscribers) in &self.subscribers {
            self.bytes += uri.len();
            let mut tokens: Vec<u64> = subscribers.values().map(|it| it.token.id).collect();
            tokens.sort_unstable();
            tokens.dedup();
            for token in tokens.into_iter().map(|id| TokenUse { id }) {
                self.of_tokens.add(token, 1);
                self.bytes_of_tokens.add(token, uri.len());
            }
        }
    }

    /// Returns true if a client watches exactly this resource at the holder's instance.
    pub(crate) fn has_subscriber(&self, server: &ServerName, uri: &str, holder: Holder) -> bool {
        let subscribers = self.subscribers.get(&(server.clone(), uri.to_owned()));
        subscribers.is_some_and(|all| all.values().any(|subscriber| is_for(holder, subscriber)))
    }

    /// Removes a closed client; returns its subscriptions.
    pub(crate) fn forget(&mut self, client: u64) -> Vec<RemovedSubscription> {
        let mut removed = Vec::new();
        self.subscribers.retain(|(server, uri), subscribers| {
            if subscribers.remove(&client).is_some() {
                removed.push(RemovedSubscription { server: server.clone(), uri: uri.clone() });
            }
            !subscribers.is_empty()
        });
        if !removed.is_empty() {
            self.recount();
        }
        removed
    }

    /// Returns the subscribers of a resource at the holder's instance. Without any, returns those
    /// of enclosing resources.
    pub(crate) fn subscribers(
        &self,
        server: &ServerName,
        uri: &str,
        holder: Holder,
    ) -> Vec<Subscriber> {
        let found = self.subscribers.get(&(server.clone(), uri.to_owned()));
        let exact: Vec<Subscriber> =
            found.into_iter().flat_map(BTreeMap::values).copied().collect();
        let all = if exact.is_empty() { self.enclosing_subscribers(server, uri) } else { exact };
        all.into_iter().filter(|subscriber| is_for(holder, subscriber)).collect()
    }

    /// Returns the subscribers of enclosing resources, each client once.
    fn enclosing_subscribers(&self, server: &ServerName, uri: &str) -> Vec<Subscriber> {
        let is_around = |key: &(ServerName, String)| key.0 == *server && is_part_of(uri, &key.1);
        let around = self.subscribers.iter().filter(|(key, _)| is_around(key));
        let all: BTreeMap<u64, Subscriber> = around
            .flat_map(|(_, subscribers)| subscribers)
            .map(|(client, it)| (*client, *it))
            .collect();
        all.into_values().collect()
    }

    /// Returns the resources that are watched at the holder's instance.
    pub(crate) fn of(&self, server: &ServerName, holder: Holder) -> Vec<String> {
        let all = self.subscribers.iter().filter(|((of, _), _)| of == server);
        all.filter(|(_, subscribers)| {
            subscribers.values().any(|subscriber| is_for(holder, subscriber))
        })
        .map(|((_, uri), _)| uri.clone())
        .collect()
    }

    /// Returns the number of watched resources.
    pub(crate) fn len(&self) -> usize {
        self.subscribers.len()
    }

    /// Adds the retained counts to `counts`.
    pub(crate) fn count(&self, counts: &mut Retained) {
        counts.add("subscriptions", self.subscribers.values().map(BTreeMap::len).sum());
        counts.add("subscriptions_bytes", self.bytes);
    }
}

/// Returns true if one of these subscribers has this token.
fn is_watched_by(token: TokenUse, subscribers: &BTreeMap<u64, Subscriber>) -> bool {
    subscribers.values().any(|it| it.token == token)
}

fn is_for(holder: Holder, subscriber: &Subscriber) -> bool {
    match holder {
        Holder::Shared => subscriber.era.is_none(),
        Holder::Client(client) => client == subscriber.group_id,
        Holder::Era(era) => subscriber.era == Some(era),
    }
}

/// Returns true if subscribers of `whole` are notified of a change of `uri`.
pub(crate) fn covers(whole: &str, uri: &str) -> bool {
    whole == uri || is_part_of(uri, whole)
}

/// Returns true if `uri` is below `whole`.
fn is_part_of(uri: &str, whole: &str) -> bool {
    let below = uri.strip_prefix(whole);
    below.is_some_and(|rest| whole.ends_with('/') || rest.starts_with(['/', '?', '#']))
}

#[cfg(test)]
mod tests {
    use xy_transport::share::LOCAL;

    use super::*;

    fn subscriber(client: u64, token: u64) -> Subscriber {
        let token = TokenUse { id: token };
        Subscriber { client, token, group_id: client, era: None, by_exposed_uri: false }
    }

    #[test]
    fn subscription_covers_uris_below_it() {
        let server = ServerName::new("s").unwrap();
        let mut all = Subscriptions::default();
        let subscriber = |client| subscriber(client, LOCAL);
        all.add(&server, "file:///dir", subscriber(1)).unwrap();
        all.add(&server, "file:///", subscriber(2)).unwrap();
        for (uri, expected) in [
            ("file:///dir", vec![1]),
            ("file:///dir/file", vec![1, 2]),
            ("file:///dir2", vec![2]),
            ("other:///dir", vec![]),
        ] {
            let found = all.subscribers(&server, uri, Holder::Shared);
            let found: Vec<u64> = found.into_iter().map(|it| it.client).collect();
            assert_eq!(found, expected, "{uri}");
        }
    }

    #[test]
    fn last_unsubscription_is_reported() {
        let server = ServerName::new("s").unwrap();
        let mut all = Subscriptions::default();
        let subscriber = |client| subscriber(client, LOCAL);
        for client in [1, 2] {
            all.add(&server, "a", subscriber(client)).unwrap();
        }
        all.add(&server, "b", subscriber(2)).unwrap();
        assert_eq!(all.subscribers(&server, "a", Holder::Shared), [subscriber(1), subscriber(2)]);
        assert_eq!(all.subscribers(&server, "a", Holder::Client(2)), [subscriber(2)]);
        assert_eq!(all.of(&server, Holder::Client(1)), ["a"]);
        all.remove(&server, "a", 1);
        assert!(all.has_subscriber(&server, "a", Holder::Shared));
        assert!(!all.has_subscriber(&server, "a", Holder::Client(1)), "its own instance");
        all.remove(&server, "never", 1);
        assert!(!all.has_subscriber(&server, "never", Holder::Shared));
        assert_eq!(all.forget(2).len(), 2);
        assert_eq!(all.len(), 0);
    }

    #[test]
    fn subscriptions_are_limited_and_removed_with_their_server() {
        let server = ServerName::new("s").unwrap();
        let mut all = Subscriptions::default();
        let subscriber = |client| subscriber(client, LOCAL);
        all.add(&server, &"x".repeat(MAX_URI_BYTES + 1), subscriber(1)).unwrap_err();
        for number in 0..MAX_RESOURCES {
            all.add(&server, &number.to_string(), subscriber(1)).unwrap();
        }
        all.add(&server, "one more", subscriber(1)).unwrap_err();
        all.add(&server, "0", subscriber(2)).unwrap(); // Already watched.
        all.forget_server(&server);
        assert_eq!(all.len(), 0);
    }

    #[test]
    fn each_token_has_its_share_of_resources_and_bytes() {
        let server = ServerName::new("s").unwrap();
        for (length, share) in [(8, MAX_RESOURCES / 4 * 3), (MAX_URI_BYTES, 48)] {
            let mut all = Subscriptions::default();
            let uri = |number: usize| format!("{}{number:08}", "x".repeat(length - 8));
            for number in 0..share {
                all.add(&server, &uri(number), subscriber(1, 70)).unwrap();
            }
            let refused = all.add(&server, &uri(share), subscriber(2, 70)).unwrap_err();
            assert!(refused.contains("this token watches"), "{refused}");
            all.add(&server, &uri(0), subscriber(2, 70)).unwrap(); // Needs no room.
            all.add(&server, &uri(share), subscriber(3, 71)).unwrap();
            all.add(&server, &uri(share + 1), subscriber(4, LOCAL)).unwrap();
            // A resource counts until no client of the token watches it.
            all.remove(&server, &uri(0), 1);
            all.add(&server, &uri(share + 2), subscriber(1, 70)).unwrap_err();
            for number in 0..9 {
                all.remove(&server, &uri(number), 2);
                all.remove(&server, &uri(number), 1);
            }
            all.add(&server, &uri(share + 2), subscriber(1, 70)).unwrap();
            all.forget(1);
            all.forget_server(&server);
            assert_eq!((all.of_tokens.all(), all.bytes_of_tokens.all(), all.bytes), (0, 0, 0));
        }
    }
}
