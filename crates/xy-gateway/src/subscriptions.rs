//! Subscriptions of clients to resources. Pure.
//!
//! A subscription belongs to the alias that the client used. A process with several aliases has the
//! subscriptions of all of them.

use std::collections::BTreeMap;

use xy_mcp::era::Era;
use xy_protocol::server::ServerName;
use xy_supervisor::instance::Holder;
use xy_transport::retained::Retained;

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
}

/// A subscriber of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subscriber {
    /// The client.
    pub(crate) client: u64,
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
        if !self.subscribers.contains_key(&key) {
            if count >= MAX_RESOURCES || self.bytes + uri.len() > MAX_BYTES {
                return Err(format!(
                    "{count} resources are watched, and there is no room for more"
                ));
            }
            self.bytes += uri.len();
        }
        self.subscribers.entry(key).or_default().insert(subscriber.client, subscriber);
        Ok(())
    }

    /// Removes all subscriptions of a server.
    pub(crate) fn forget_server(&mut self, server: &ServerName) {
        self.subscribers.retain(|(of, _), _| of != server);
        self.bytes = self.subscribers.keys().map(|(_, uri)| uri.len()).sum();
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
        subscribers.remove(&client);
        if subscribers.is_empty() {
            self.subscribers.remove(&key);
            self.bytes -= uri.len();
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
        self.bytes = self.subscribers.keys().map(|(_, uri)| uri.len()).sum();
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
    use super::*;

    #[test]
    fn subscription_covers_uris_below_it() {
        let server = ServerName::new("s").unwrap();
        let mut all = Subscriptions::default();
        let subscriber =
            |client| Subscriber { client, group_id: client, era: None, by_exposed_uri: false };
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
        let subscriber =
            |client| Subscriber { client, group_id: client, era: None, by_exposed_uri: false };
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
        let subscriber =
            |client| Subscriber { client, group_id: client, era: None, by_exposed_uri: true };
        all.add(&server, &"x".repeat(MAX_URI_BYTES + 1), subscriber(1)).unwrap_err();
        for number in 0..MAX_RESOURCES {
            all.add(&server, &number.to_string(), subscriber(1)).unwrap();
        }
        all.add(&server, "one more", subscriber(1)).unwrap_err();
        all.add(&server, "0", subscriber(2)).unwrap(); // Already watched.
        all.forget_server(&server);
        assert_eq!(all.len(), 0);
    }
}
