//! Who watches which resource. Pure.
//!
//! A resource is watched under the name of its server that the client used: a process with
//! several names has what is watched under each of them.

use std::collections::BTreeMap;

use xy_protocol::server::ServerName;
use xy_supervisor::instance::Holder;

use crate::era::Era;
use crate::retained::Retained;

/// How many resources may be watched, over all servers and clients.
const MOST: usize = 10_000;

/// The same, in bytes of their URIs.
const MOST_BYTES: usize = 4 * 1024 * 1024;

/// A URI that is longer is not watched.
const LONGEST_URI: usize = 64 * 1024;

/// Who watches which resource of which server.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    watchers: BTreeMap<(ServerName, String), BTreeMap<u64, Watcher>>,
    /// Of their URIs.
    bytes: usize,
}

/// Somebody who watches a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Watcher {
    /// Which client.
    pub(crate) client: u64,
    /// Whose instance it watches at, where each has its own.
    pub(crate) at: u64,
    /// The era of the second process that it watches at, if it is that one.
    pub(crate) era: Option<Era>,
    /// Whether it knows the resource by its name outside.
    pub(crate) by_outside_name: bool,
}

/// A resource that a client watches no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unwatched {
    pub(crate) server: ServerName,
    pub(crate) uri: String,
}

impl Subscriptions {
    /// A client watches a resource from now on.
    pub(crate) fn add(
        &mut self,
        server: &ServerName,
        uri: &str,
        watcher: Watcher,
    ) -> Result<(), String> {
        if uri.len() > LONGEST_URI {
            return Err("this URI is too long to be watched".to_owned());
        }
        let (key, count) = ((server.clone(), uri.to_owned()), self.watchers.len());
        if !self.watchers.contains_key(&key) {
            if count >= MOST || self.bytes + uri.len() > MOST_BYTES {
                return Err(format!(
                    "{count} resources are watched, and there is no room for more"
                ));
            }
            self.bytes += uri.len();
        }
        self.watchers.entry(key).or_default().insert(watcher.client, watcher);
        Ok(())
    }

    /// A server is there no more.
    pub(crate) fn forget_server(&mut self, server: &ServerName) {
        self.watchers.retain(|(of, _), _| of != server);
        self.bytes = self.watchers.keys().map(|(_, uri)| uri.len()).sum();
    }

    /// Has all who watch at the second instance of a server watch at the shared one. Returns true
    /// if there are any.
    pub(crate) fn move_to_shared(&mut self, server: &ServerName) -> bool {
        let of_server = self.watchers.iter_mut().filter(|((of, _), _)| of == server);
        let all = of_server.flat_map(|(_, watchers)| watchers.values_mut());
        let moved = all.filter_map(|watcher| watcher.era.take());
        moved.count() > 0
    }

    /// A client watches a resource no more.
    pub(crate) fn remove(&mut self, server: &ServerName, uri: &str, client: u64) {
        let key = (server.clone(), uri.to_owned());
        let Some(watchers) = self.watchers.get_mut(&key) else { return };
        watchers.remove(&client);
        if watchers.is_empty() {
            self.watchers.remove(&key);
            self.bytes -= uri.len();
        }
    }

    /// Whether anybody watches this very resource at the instance that lives for `holder`.
    pub(crate) fn is_watched(&self, server: &ServerName, uri: &str, holder: Holder) -> bool {
        let watchers = self.watchers.get(&(server.clone(), uri.to_owned()));
        watchers.is_some_and(|all| all.values().any(|watcher| is_for(holder, watcher)))
    }

    /// A client has gone; answers what it has watched.
    pub(crate) fn forget(&mut self, client: u64) -> Vec<Unwatched> {
        let mut unwatched = Vec::new();
        self.watchers.retain(|(server, uri), watchers| {
            if watchers.remove(&client).is_some() {
                unwatched.push(Unwatched { server: server.clone(), uri: uri.clone() });
            }
            !watchers.is_empty()
        });
        self.bytes = self.watchers.keys().map(|(_, uri)| uri.len()).sum();
        unwatched
    }

    /// Who watches a resource of the instance that lives for `holder`: that very one, or what
    /// it is a part of.
    pub(crate) fn watchers(&self, server: &ServerName, uri: &str, holder: Holder) -> Vec<Watcher> {
        let found = self.watchers.get(&(server.clone(), uri.to_owned()));
        let exact: Vec<Watcher> = found.into_iter().flat_map(BTreeMap::values).copied().collect();
        let all = if exact.is_empty() { self.watchers_around(server, uri) } else { exact };
        all.into_iter().filter(|watcher| is_for(holder, watcher)).collect()
    }

    /// Who watches what a resource is a part of, each once.
    fn watchers_around(&self, server: &ServerName, uri: &str) -> Vec<Watcher> {
        let is_around = |key: &(ServerName, String)| key.0 == *server && is_part_of(uri, &key.1);
        let around = self.watchers.iter().filter(|(key, _)| is_around(key));
        let all: BTreeMap<u64, Watcher> =
            around.flat_map(|(_, watchers)| watchers).map(|(client, it)| (*client, *it)).collect();
        all.into_values().collect()
    }

    /// What is watched of the instance that lives for `holder`.
    pub(crate) fn of(&self, server: &ServerName, holder: Holder) -> Vec<String> {
        let all = self.watchers.iter().filter(|((of, _), _)| of == server);
        all.filter(|(_, watchers)| watchers.values().any(|watcher| is_for(holder, watcher)))
            .map(|((_, uri), _)| uri.clone())
            .collect()
    }

    /// How many resources are watched.
    pub(crate) fn len(&self) -> usize {
        self.watchers.len()
    }

    /// How much is kept.
    pub(crate) fn count(&self, census: &mut Retained) {
        census.add("subscriptions", self.watchers.values().map(BTreeMap::len).sum());
        census.add("subscriptions_bytes", self.bytes);
    }
}

fn is_for(holder: Holder, watcher: &Watcher) -> bool {
    match holder {
        Holder::Shared => watcher.era.is_none(),
        Holder::Client(client) => client == watcher.at,
        Holder::Era(era) => watcher.era == Some(era),
    }
}

/// Whether who watches `whole` is told of a change of `uri`.
pub(crate) fn covers(whole: &str, uri: &str) -> bool {
    whole == uri || is_part_of(uri, whole)
}

/// Whether a resource is below another.
fn is_part_of(uri: &str, whole: &str) -> bool {
    let below = uri.strip_prefix(whole);
    below.is_some_and(|rest| whole.ends_with('/') || rest.starts_with(['/', '?', '#']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_what_is_watched_is_watched() {
        let server = ServerName::new("s").unwrap();
        let mut all = Subscriptions::default();
        let watcher = |client| Watcher { client, at: client, era: None, by_outside_name: false };
        all.add(&server, "file:///dir", watcher(1)).unwrap();
        all.add(&server, "file:///", watcher(2)).unwrap();
        for (uri, expected) in [
            ("file:///dir", vec![1]),
            ("file:///dir/file", vec![1, 2]),
            ("file:///dir2", vec![2]),
            ("other:///dir", vec![]),
        ] {
            let found = all.watchers(&server, uri, Holder::Shared);
            let found: Vec<u64> = found.into_iter().map(|it| it.client).collect();
            assert_eq!(found, expected, "{uri}");
        }
    }

    #[test]
    fn the_last_to_leave_is_known() {
        let server = ServerName::new("s").unwrap();
        let mut all = Subscriptions::default();
        let watcher = |client| Watcher { client, at: client, era: None, by_outside_name: false };
        for client in [1, 2] {
            all.add(&server, "a", watcher(client)).unwrap();
        }
        all.add(&server, "b", watcher(2)).unwrap();
        assert_eq!(all.watchers(&server, "a", Holder::Shared), [watcher(1), watcher(2)]);
        assert_eq!(all.watchers(&server, "a", Holder::Client(2)), [watcher(2)]);
        assert_eq!(all.of(&server, Holder::Client(1)), ["a"]);
        all.remove(&server, "a", 1);
        assert!(all.is_watched(&server, "a", Holder::Shared));
        assert!(!all.is_watched(&server, "a", Holder::Client(1)), "its own instance");
        all.remove(&server, "never", 1);
        assert!(!all.is_watched(&server, "never", Holder::Shared));
        assert_eq!(all.forget(2).len(), 2);
        assert_eq!(all.len(), 0);
    }

    #[test]
    fn what_is_too_much_is_refused_and_a_removed_server_is_forgotten() {
        let server = ServerName::new("s").unwrap();
        let mut all = Subscriptions::default();
        let watcher = |client| Watcher { client, at: client, era: None, by_outside_name: true };
        all.add(&server, &"x".repeat(LONGEST_URI + 1), watcher(1)).unwrap_err();
        for number in 0..MOST {
            all.add(&server, &number.to_string(), watcher(1)).unwrap();
        }
        all.add(&server, "one more", watcher(1)).unwrap_err();
        all.add(&server, "0", watcher(2)).unwrap(); // It is watched already.
        all.forget_server(&server);
        assert_eq!(all.len(), 0);
    }
}
