//! Who watches which resource. Pure.

use std::collections::{BTreeMap, BTreeSet};

use xy_protocol::server::ServerName;
use xy_supervisor::instance::Holder;

/// How many resources may be watched, over all servers and clients.
const MOST: usize = 10_000;

/// Who watches which resource of which server.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    watchers: BTreeMap<(ServerName, String), BTreeSet<u64>>,
}

impl Subscriptions {
    /// A client watches a resource from now on.
    pub(crate) fn add(
        &mut self,
        server: &ServerName,
        uri: &str,
        client: u64,
    ) -> Result<(), String> {
        if self.watchers.len() >= MOST {
            return Err(format!("{MOST} resources are watched, which is the most there may be"));
        }
        self.watchers.entry((server.clone(), uri.to_owned())).or_default().insert(client);
        Ok(())
    }

    /// A client watches a resource no more; whether nobody does now.
    pub(crate) fn remove(&mut self, server: &ServerName, uri: &str, client: u64) -> bool {
        let key = (server.clone(), uri.to_owned());
        let Some(watchers) = self.watchers.get_mut(&key) else { return true };
        watchers.remove(&client);
        let is_last = watchers.is_empty();
        if is_last {
            self.watchers.remove(&key);
        }
        is_last
    }

    /// A client has gone; answers what nobody watches now.
    pub(crate) fn forget(&mut self, client: u64) -> Vec<(ServerName, String)> {
        let mut unwatched = Vec::new();
        self.watchers.retain(|key, watchers| {
            if watchers.remove(&client) && watchers.is_empty() {
                unwatched.push(key.clone());
            }
            !watchers.is_empty()
        });
        unwatched
    }

    /// Who watches a resource of the instance that lives for `holder`.
    pub(crate) fn watchers(&self, server: &ServerName, uri: &str, holder: Holder) -> Vec<u64> {
        let found = self.watchers.get(&(server.clone(), uri.to_owned()));
        found.into_iter().flatten().copied().filter(|client| is_for(holder, *client)).collect()
    }

    /// What is watched of the instance that lives for `holder`.
    pub(crate) fn of(&self, server: &ServerName, holder: Holder) -> Vec<String> {
        let all = self.watchers.iter().filter(|((of, _), _)| of == server);
        all.filter(|(_, watchers)| watchers.iter().any(|client| is_for(holder, *client)))
            .map(|((_, uri), _)| uri.clone())
            .collect()
    }

    /// How many resources are watched.
    pub(crate) fn len(&self) -> usize {
        self.watchers.len()
    }
}

fn is_for(holder: Holder, client: u64) -> bool {
    holder == Holder::Shared || holder == Holder::Client(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_to_leave_is_known() {
        let server = ServerName::new("s").unwrap();
        let mut all = Subscriptions::default();
        for client in [1, 2] {
            all.add(&server, "a", client).unwrap();
        }
        all.add(&server, "b", 2).unwrap();
        assert_eq!(all.watchers(&server, "a", Holder::Shared), [1, 2]);
        assert_eq!(all.watchers(&server, "a", Holder::Client(2)), [2]);
        assert_eq!(all.of(&server, Holder::Client(1)), ["a"]);
        assert!(!all.remove(&server, "a", 1));
        assert!(all.remove(&server, "never", 1));
        assert_eq!(all.forget(2).len(), 2);
        assert_eq!(all.len(), 0);
    }
}
