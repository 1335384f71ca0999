//! Whom the words of a server are for, when it does not say.

use std::rc::Rc;

use xy_supervisor::instance::{Holder, InstanceKey};

use super::Hub;
use crate::client::Client;
use crate::front::To;
use crate::level::Level;
use crate::names;
use crate::params::Params;
use crate::say;
use crate::upstream::{Company, Told, Upstream};

impl Hub {
    /// Whom a message of a server belongs to, and where they asked.
    fn addressee(&self, by: &Rc<Upstream>, during: Option<u64>) -> Option<(Rc<Client>, To)> {
        if let Some(ours) = during {
            // What was said where only one call is answered is about that call.
            return by.client_of(ours).map(|(client, stream)| (client, To::During(stream)));
        }
        if let Holder::Client(number) = by.key().holder {
            let client = self.clients.borrow().get(&number).cloned()?;
            let to = by.only_client().map_or(To::Anyone, |(_, stream)| To::During(stream));
            return Some((client, to));
        }
        by.only_client().map(|(client, stream)| (client, To::During(stream)))
    }

    fn resource_updated(&self, by: &InstanceKey, params: Option<&str>, line: &[u8]) {
        let Some(written) = Params::read(params).uri() else { return };
        let Some(uri) = xy_mcp::envelope::text_of(written) else { return };
        let watchers = self.subscriptions.borrow().watchers(&by.server, &uri, by.holder);
        for watcher in watchers {
            let Some(client) = self.client(watcher.client) else { continue };
            let mut edits = xy_mcp::edit::Edits::of(line);
            if watcher.by_outside_name {
                let outside = names::uri_outside(by.server.as_str(), &uri);
                edits.replace(written, names::quoted(&outside));
            }
            client.tell(&edits.to_vec(), To::Anyone);
        }
    }
}

impl Company for Hub {
    fn told(&self, by: &Rc<Upstream>, told: &Told<'_>) {
        let Told { method, params, line, during } = *told;
        match method {
            "notifications/tools/list_changed"
            | "notifications/prompts/list_changed"
            | "notifications/resources/list_changed" => by.lists_changed(),
            "notifications/resources/updated" => self.resource_updated(by.key(), params, line),
            "notifications/cancelled" => {
                if let Some(id) = Params::read(params).request_id() {
                    for client in self.clients() {
                        client.unask(by, id, line);
                    }
                }
            }
            _ => match self.addressee(by, during) {
                Some((client, to)) if wants(&client, method, params) => client.tell(line, to),
                Some(_) => {}
                None => by.stray(line),
            },
        }
    }

    fn asked(&self, by: &Rc<Upstream>, id: &str, asked: &Told<'_>) {
        let Told { method, line, during, .. } = *asked;
        let capability = match method {
            "sampling/createMessage" => "sampling",
            "elicitation/create" => "elicitation",
            "roots/list" => "roots",
            _ => "",
        };
        let refuse = |code, why: &str| by.send(&say::error(id, code, why));
        let Some((client, to)) = self.addressee(by, during) else {
            return refuse(
                -32603,
                "it is not clear which client this is for: several share this server",
            );
        };
        // What we do not know the client may: it says itself if not.
        if !capability.is_empty() && !client.can(capability) {
            return refuse(-32601, "the client cannot do that");
        }
        let stream = match to {
            To::During(stream) => Some(stream),
            _ => None,
        };
        if let Err(fault) = client.ask(by, id, line, stream) {
            by.send(&say::fault(id, &fault));
        }
    }
}

/// Whether a client wants to know something that belongs to it.
fn wants(client: &Client, method: &str, params: Option<&str>) -> bool {
    if method != "notifications/message" {
        return true;
    }
    let word = Params::read(params).level().and_then(xy_mcp::envelope::text_of);
    let level = word.and_then(|word| Level::read(&word));
    match (level, client.level()) {
        (Some(level), Some(least)) => level >= least,
        _ => true,
    }
}
