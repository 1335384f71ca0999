//! What there is, for clients that ask: from what is known, never by asking a server.

use std::rc::Rc;

use xy_protocol::error::CallError;

use super::Router;
use crate::backend::{Availability, Backend};
use crate::catalog::{self, Kind, Known};
use crate::client::{Client, Shown};
use crate::era;
use crate::instructions;
use crate::names;
use crate::reply;

/// One answer to a list is at most about this long: some clients read lines of 8 MiB.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// Where there are more names than this, an unknown one is compared with none, as everybody
/// waits meanwhile: that many cost some 20 ms.
const MOST_COMPARED: usize = 50_000;

impl Router {
    /// Whether something is known of every server that a client is shown, or has been waited
    /// for long enough.
    pub(crate) fn is_known(&self, client: &Client) -> bool {
        let is_missed = |server: &Rc<Backend>| server.is_shown() && !server.was_waited_for.get();
        let servers = self.servers.borrow();
        let mut seen = servers.values().filter(|it| client.allows_server(it.name.as_str()));
        seen.all(|server| server.known_to(client).is_some() || !is_missed(server))
    }

    /// Somebody has waited for what is not known yet, in vain. Nobody else does: whoever
    /// comes later is told when there is more.
    pub(crate) fn give_up_waiting(&self) {
        let servers = self.servers.borrow();
        for server in servers.values().filter(|server| server.known.borrow().is_none()) {
            server.was_waited_for.set(true);
        }
    }

    /// One answer to a client that asks for a list of everything.
    pub(crate) fn list(
        &self,
        client: &Client,
        kind: Kind,
        after: Option<&str>,
    ) -> Result<String, CallError> {
        client.shows(kind, Shown::Print(self.print(kind, client)));
        let own = client.own_tools(kind);
        let servers = self.servers.borrow();
        let known: Vec<Rc<Known>> =
            servers.values().filter_map(|server| server.shown_to(client)).collect();
        // Another daemon searches by itself.
        let is_listed = |shown: &&catalog::Shown| shown.is_listed || client.is_daemon();
        let all = known.iter().flat_map(|known| known.shown(kind).iter().filter(is_listed));
        let all = own.iter().chain(all);
        if kind == Kind::Tools && after.is_none() {
            self.look_at_crowd(client, all.clone().count());
        }
        let cut = catalog::cut(all, after, PAGE_BYTES)
            .ok_or_else(|| reply::invalid("there is no such `cursor` any more: begin again"))?;
        let items: Vec<&str> = cut.shown.iter().map(|shown| &*shown.text).collect();
        let next = cut.next.map(|cursor| format!(r#","nextCursor":{}"#, names::quoted(&cursor)));
        let (key, next) = (kind.key(), next.unwrap_or_default());
        Ok(format!(r#"{{"{key}":[{}]{next}}}"#, items.join(",")))
    }

    /// How xy introduces itself to a client.
    pub(crate) fn introduction(&self, client: &Client, version: &str) -> String {
        let ours = env!("CARGO_PKG_VERSION");
        let instructions = names::quoted(&self.instructions(client));
        let tasks = self.task_capabilities(client).filter(|_| version == era::LATEST);
        let tasks = tasks.map(|tasks| format!(r#","tasks":{tasks}"#)).unwrap_or_default();
        format!(
            r#"{{"protocolVersion":"{version}","capabilities":{{"tools":{{"listChanged":true}},"prompts":{{"listChanged":true}},"resources":{{"subscribe":true,"listChanged":true}},"completions":{{}},"logging":{{}}{tasks}}},"serverInfo":{{"name":"xy","title":"xy","version":"{ours}"}},"instructions":{instructions}}}"#
        )
    }

    /// What servers say of how to use them, as far as there is room. Those that the profile
    /// names come first, in the order in which it does, and then all others by name.
    fn instructions(&self, client: &Client) -> String {
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
            servers.sort_by_key(|server| scope.rank(server.name.as_str())); // Else as they were.
        }
        let said: Vec<(String, String)> = servers
            .iter()
            .filter_map(|server| {
                let words = server.shown()?.introduction.instructions.clone()?;
                Some((server.name.to_string(), words))
            })
            .collect();
        instructions::combined(first, &said)
    }

    /// There is no tool or prompt of this name.
    pub(crate) fn unknown(&self, client: &Client, kind: Kind, name: &str) -> CallError {
        let what = if kind == Kind::Tools { "tool" } else { "prompt" };
        let shown = xy_protocol::control::quoted(name);
        let fault = reply::invalid(format!("Unknown {what}: {shown}"));
        let known: Vec<Rc<Known>> =
            self.servers().iter().filter_map(|it| it.shown_to(client)).collect();
        let own = client.offered_own(kind);
        let names = known.iter().flat_map(|known| known.shown(kind)).chain(&own);
        let names = names.map(|shown| &*shown.name).filter(|it| *it != name);
        let are_few = known.iter().map(|it| it.shown(kind).len()).sum::<usize>() <= MOST_COMPARED;
        let near = if are_few { names::nearest(name, names) } else { Vec::new() };
        if let Some(question) = names::did_you_mean(&near) {
            return fault.hint(question);
        }
        match names::inside(name).and_then(|(server, _)| self.server_for(client, server)) {
            Some(server) => match &*server.standing.borrow() {
                Availability::Down(why) => {
                    fault.cause(format!("`{}` is not running: {why}", server.name))
                }
                Availability::Up => fault,
            },
            None => fault,
        }
    }

    /// The only server that has this resource.
    pub(crate) fn owner_of(&self, client: &Client, uri: &str) -> Result<Rc<Backend>, CallError> {
        let has = |server: &Rc<Backend>| {
            server.shown_to(client).is_some_and(|known| known.has_resource(uri))
                && client.may_see(Kind::Resources, &server.name, uri)
        };
        let mut owners: Vec<Rc<Backend>> = Vec::new();
        for server in self.servers().into_iter().filter(has) {
            // Several names of one process have the same resources.
            let is_another =
                |it: &Rc<Backend>| it.primary_or_self().name != server.primary_or_self().name;
            if owners.iter().all(is_another) {
                owners.push(server);
            }
        }
        match (owners.pop(), owners.is_empty()) {
            (Some(owner), true) => Ok(owner),
            (None, _) => Err(no_resource(uri)),
            (Some(last), false) => {
                owners.push(last);
                let names: Vec<String> =
                    owners.iter().map(|it| names::uri_outside(it.name.as_str(), uri)).collect();
                Err(reply::invalid("several servers have this resource")
                    .hint(format!("say which: {}", names.join(", "))))
            }
        }
    }
}

/// There is no resource of this URI.
pub(crate) fn no_resource(uri: &str) -> CallError {
    reply::invalid(format!("Resource not found: {}", xy_protocol::control::quoted(uri)))
}
