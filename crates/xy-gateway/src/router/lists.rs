//! Lists for clients, from what is known of the servers. Never asks a server.

use std::rc::Rc;

use xy_catalog::catalog::{self, ServerCatalog};
use xy_catalog::{instructions, names};
use xy_mcp::kind::Kind;
use xy_mcp::{edit, reply, revision};
use xy_protocol::error::CallError;

use super::{ListVersion, RoutedClient, Router};
use crate::backend::{Availability, Backend};

/// Approximate maximum size of a page: some clients limit lines to 8 MiB.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// Maximum number of names to compare with an unknown one. All clients wait meanwhile: this many
/// take about 20 ms.
const MAX_COMPARED_NAMES: usize = 50_000;

impl Router {
    /// Returns true if every server that the client sees is known, or was awaited long enough.
    pub(crate) fn is_known(&self, client: &dyn RoutedClient) -> bool {
        let is_missed = |server: &Rc<Backend>| server.is_shown() && !server.was_waited_for.get();
        let servers = self.servers.borrow();
        let mut seen = servers.values().filter(|it| client.allows_server(it.name.as_str()));
        seen.all(|server| server.known_to(client).is_some() || !is_missed(server))
    }

    /// Marks all unknown servers as awaited in vain. Later lists do not wait for them; clients are
    /// notified when they become known.
    pub(crate) fn give_up_waiting(&self) {
        let servers = self.servers.borrow();
        for server in servers.values().filter(|server| server.known.borrow().is_none()) {
            server.was_waited_for.set(true);
        }
    }

    /// Returns one page of a list over all servers.
    pub(crate) fn list(
        &self,
        client: &dyn RoutedClient,
        kind: Kind,
        after: Option<&str>,
    ) -> Result<String, CallError> {
        client.set_list_version(kind, ListVersion::Fingerprint(self.fingerprint(kind, client)));
        let own = client.own_tools(kind);
        let servers = self.servers.borrow();
        let known: Vec<Rc<ServerCatalog>> =
            servers.values().filter_map(|server| server.shown_to(client)).collect();
        // Another daemon searches by itself.
        let is_listed = |shown: &&catalog::ExposedItem| shown.is_listed || client.is_daemon();
        let all = known.iter().flat_map(|known| known.exposed(kind).iter().filter(is_listed));
        let all = own.iter().chain(all);
        if kind == Kind::Tools && after.is_none() {
            self.check_client_limit(client, all.clone().count());
        }
        let page = catalog::paginate(all, after, PAGE_BYTES)
            .ok_or_else(|| reply::invalid("the `cursor` has expired: list again without it"))?;
        let items: Vec<&str> = page.shown.iter().map(|shown| &*shown.text).collect();
        let next = page.next.map(|cursor| format!(r#","nextCursor":{}"#, edit::quoted(&cursor)));
        let (key, next) = (kind.key(), next.unwrap_or_default());
        Ok(format!(r#"{{"{key}":[{}]{next}}}"#, items.join(",")))
    }

    /// Returns the introduction of xy to a client.
    pub(crate) fn introduction(&self, client: &dyn RoutedClient, version: &str) -> String {
        let own_version = env!("CARGO_PKG_VERSION");
        let instructions = edit::quoted(&self.instructions(client));
        let tasks = self.task_capabilities(client).filter(|_| version == revision::LATEST);
        let tasks = tasks.map(|tasks| format!(r#","tasks":{tasks}"#)).unwrap_or_default();
        format!(
            r#"{{"protocolVersion":"{version}","capabilities":{{"tools":{{"listChanged":true}},"prompts":{{"listChanged":true}},"resources":{{"subscribe":true,"listChanged":true}},"completions":{{}},"logging":{{}}{tasks}}},"serverInfo":{{"name":"xy","title":"xy","version":"{own_version}"}},"instructions":{instructions}}}"#
        )
    }

    /// Combines the instructions of all visible servers, as far as there is room. The order is that
    /// of the profile, and then alphabetical.
    fn instructions(&self, client: &dyn RoutedClient) -> String {
        let scope = client.scope();
        let is_search =
            scope.as_ref().is_some_and(|scope| scope.is_search()) && !client.is_daemon();
        let first = if is_search {
            "Tools of several servers: find them with `search_tools`, read how one is used with \
             `describe_tool`, and use it with `call_tool`. Each name begins with its server's \
             name and `__`."
        } else {
            "Tools and prompts of several servers: each name begins with its server's name and `__`."
        };
        let mut servers = self.servers_of(client);
        if let Some(scope) = scope {
            servers.sort_by_key(|server| scope.rank(server.name.as_str())); // Stable.
        }
        let instructions_of_servers: Vec<(String, String)> = servers
            .iter()
            .filter_map(|server| {
                let words = server.shown()?.introduction.instructions.clone()?;
                Some((server.name.to_string(), words))
            })
            .collect();
        instructions::combine(first, &instructions_of_servers)
    }

    /// Returns the error for an unknown tool or prompt, with suggestions.
    pub(crate) fn unknown_name(
        &self,
        client: &dyn RoutedClient,
        kind: Kind,
        name: &str,
    ) -> CallError {
        let what = if kind == Kind::Tools { "tool" } else { "prompt" };
        let shown = xy_protocol::control::quoted(name);
        let fault = reply::invalid(format!("Unknown {what}: {shown}"));
        let known: Vec<Rc<ServerCatalog>> =
            self.servers().iter().filter_map(|it| it.shown_to(client)).collect();
        let own = client.offered_own(kind);
        let names = known.iter().flat_map(|known| known.exposed(kind)).chain(&own);
        let names = names.map(|shown| &*shown.name).filter(|it| *it != name);
        let are_few =
            known.iter().map(|it| it.exposed(kind).len()).sum::<usize>() <= MAX_COMPARED_NAMES;
        let near = if are_few { names::nearest(name, names) } else { Vec::new() };
        if let Some(question) = names::did_you_mean(&near) {
            return fault.hint(question);
        }
        match names::split_exposed(name).and_then(|(server, _)| self.server_for(client, server)) {
            Some(server) => match &*server.availability.borrow() {
                Availability::Down(why) => {
                    fault.cause(format!("`{}` is not running: {why}", server.name))
                }
                Availability::Up => fault,
            },
            None => fault,
        }
    }

    /// Returns the only visible server with this resource.
    pub(crate) fn owner_of(
        &self,
        client: &dyn RoutedClient,
        uri: &str,
    ) -> Result<Rc<Backend>, CallError> {
        let has = |server: &Rc<Backend>| {
            server.shown_to(client).is_some_and(|known| known.has_resource(uri))
                && client.may_see(Kind::Resources, &server.name, uri)
        };
        let mut owners: Vec<Rc<Backend>> = Vec::new();
        for server in self.servers().into_iter().filter(has) {
            // Aliases of one process have the same resources.
            let is_another =
                |it: &Rc<Backend>| it.primary_or_self().name != server.primary_or_self().name;
            if owners.iter().all(is_another) {
                owners.push(server);
            }
        }
        match (owners.pop(), owners.is_empty()) {
            (Some(owner), true) => Ok(owner),
            (None, _) => Err(unknown_resource(uri)),
            (Some(last), false) => {
                owners.push(last);
                let names: Vec<String> =
                    owners.iter().map(|it| names::exposed_uri(it.name.as_str(), uri)).collect();
                Err(reply::invalid("several servers have this resource")
                    .hint(format!("say which: {}", names.join(", "))))
            }
        }
    }
}

/// Returns the error for an unknown resource.
pub(crate) fn unknown_resource(uri: &str) -> CallError {
    reply::invalid(format!("Resource not found: {}", xy_protocol::control::quoted(uri)))
}
