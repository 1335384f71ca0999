//! Whom the words of a server are for, when it does not say.
//!
//! A task that a message names has an owner, and so has an elicitation; what names neither
//! belongs to the client whose calls alone are in flight. What belongs to nobody is for the
//! log, or is refused.

use std::rc::Rc;

use tokio::time::Instant;
use xy_mcp::edit::Edits;
use xy_mcp::envelope::{self, Outcome};
use xy_supervisor::instance::{Holder, InstanceKey};

use super::Router;
use crate::bridge::Bond;
use crate::bridge::pending_input::PendingInput;
use crate::capabilities::{Capabilities, Wants};
use crate::catalog::Kind;
use crate::client::Client;
use crate::frontend::{Route, StreamNo};
use crate::large::LargeReader;
use crate::level::Level;
use crate::modern::RequestMeta;
use crate::names;
use crate::ownership::NewTask;
use crate::params::Params;
use crate::reply;
use crate::tasks::{self, Related};
use crate::upstream::{
    Answer, Cause, Follow, Told, UnansweredCall, Upstream, UpstreamEvents, Whose,
};
use crate::via::Via;

/// The error that says that a user has to go elsewhere first.
const URL_ELICITATION_REQUIRED: i64 = -32042;

/// Somebody whom a message is for.
enum Addressee {
    /// A client, where it asked, and in which call, if that is known.
    Client(Rc<Client>, Route, Option<u64>),
    /// One that is to come back for its call.
    Parked(Rc<PendingInput>),
}

impl From<Whose> for Addressee {
    fn from(whose: Whose) -> Self {
        match whose {
            Whose::Client(client, stream, ours) => {
                Self::Client(client, Route::Related(stream), Some(ours))
            }
            Whose::Parked(hold) => Self::Parked(hold),
        }
    }
}

impl Addressee {
    /// Our id of the call that the message is about, if that is known.
    fn call(&self) -> Option<u64> {
        match self {
            Self::Client(_, _, ours) => *ours,
            Self::Parked(hold) => Some(hold.ours),
        }
    }
}

impl Router {
    /// Whom a message of a server belongs to; `during` is the call it is about, if the way it
    /// came tells.
    fn addressee(
        &self,
        by: &Rc<Upstream>,
        params: Option<&str>,
        during: Option<u64>,
    ) -> Option<Addressee> {
        let about = during.map(|ours| by.whose(ours));
        if let Some(number) = self.only_one(by) {
            return about.flatten().map(Into::into).or_else(|| self.at(by, number));
        }
        if let Some(about) = about {
            // What was said where only one call is answered is about that call.
            return about.map(Into::into);
        }
        match tasks::related(params) {
            Some(Related::Route(id)) => self.owner_of_task(by, &id),
            Some(Related::Unreadable) => None,
            None => {
                let addressee = by.only_client()?.into();
                let number = match &addressee {
                    Addressee::Client(client, ..) => client.number(),
                    Addressee::Parked(hold) => hold.client,
                };
                let (owners, now) = (self.owners.borrow(), Instant::now());
                (!owners.works_for_others(by.key(), number, now)).then_some(addressee)
            }
        }
    }

    /// The client that an instance lives for, if that is one alone.
    fn only_one(&self, by: &Upstream) -> Option<u64> {
        match by.key().holder {
            Holder::Client(number) if self.is_house(number) => None,
            Holder::Client(number) => Some(number),
            Holder::Shared | Holder::Era(_) => None,
        }
    }

    /// A client, and what it has asked this server last.
    fn at(&self, by: &Rc<Upstream>, number: u64) -> Option<Addressee> {
        let client = self.client(number)?;
        let latest = by.latest_of(number).map(Into::into);
        latest.or(Some(Addressee::Client(client, Route::Broadcast, None)))
    }

    /// Whose a task of a server is.
    fn owner_of_task(&self, by: &Rc<Upstream>, id: &str) -> Option<Addressee> {
        if let Some(number) = self.only_one(by) {
            return self.at(by, number);
        }
        let owner = self.owners.borrow().owner_of_task(by.key(), id)?;
        self.at(by, owner)
    }

    /// Whose an elicitation is that has been completed.
    fn owner_of_elicitation(&self, by: &Rc<Upstream>, params: Option<&str>) -> Option<Addressee> {
        let id = Wants::read(params).elicitation()?;
        let owner = self.owners.borrow_mut().completed(by.key(), &id);
        self.at(by, self.only_one(by).or(owner)?)
    }

    /// How a task is doing.
    fn task_changed(
        &self,
        by: &Rc<Upstream>,
        params: Option<&str>,
        during: Option<u64>,
    ) -> Option<Addressee> {
        let (id, is_over) = tasks::told(params?)?;
        let is_known = self.owners.borrow().knows_task(by.key(), &id);
        let addressee = if is_known {
            self.owner_of_task(by, &id)
        } else {
            // It may be told of before the call that began it is answered.
            self.addressee(by, None, during).filter(|addressee| match addressee {
                Addressee::Client(client, ..) => during.is_some() || by.begins_task(client),
                Addressee::Parked(_) => false,
            })
        };
        if is_over {
            self.owners.borrow_mut().ended(by.key(), &id);
        }
        addressee
    }

    /// Whom a server may ask this, as its question stands.
    fn asked_one(
        &self,
        by: &Rc<Upstream>,
        method: &str,
        params: Option<&str>,
        during: Option<u64>,
    ) -> Asking {
        if !method.starts_with("tasks/") {
            let found = self.addressee(by, params, during).ok_or((
                -32603,
                "it is not clear which client this is for: several share this server",
            ))?;
            let call = found.call();
            if call != during && call.is_some_and(|call| !by.is_clear(call)) {
                return Err((-32603, "it is not clear in which call this is: several are open"));
            }
            return Ok(found);
        }
        let only = self.only_one(by);
        let clients = match only {
            Some(number) => self.client(number).into_iter().collect(),
            None => self.clients(),
        };
        let id = Params::read(params).task_id();
        let found = match (method, id, only) {
            ("tasks/list", _, Some(_)) => clients.into_iter().next(),
            ("tasks/list", _, None) => {
                return Err((-32601, "several clients share this server: none lists its tasks"));
            }
            (_, Some(id), _) => clients.into_iter().find(|it| it.does_task(by, &id)),
            (_, None, _) => None,
        };
        let client = found.ok_or((-32602, "Task not found"))?;
        self.at(by, client.number()).ok_or((-32602, "Task not found"))
    }

    /// A shared server has asked something: from now on its clients take turns.
    fn has_asked(&self, by: &Rc<Upstream>) {
        let Some(server) = self.server(by.key().server.as_str()) else { return };
        if !server.has_asked(by) {
            return;
        }
        self.remember(&server);
        self.tell_asking();
    }

    fn resource_updated(&self, by: &InstanceKey, params: Option<&str>, line: &[u8]) {
        let Some(written) = Params::read(params).uri() else { return };
        let Some(uri) = envelope::text_of(written) else { return };
        let Some(home) = self.server(by.server.as_str()) else { return };
        // Each hears it of the name that it watches.
        for server in self.names_of(&home) {
            let watchers = self.subscriptions.borrow().watchers(&server.name, &uri, by.holder);
            for watcher in watchers {
                let Some(client) = self.client(watcher.client) else { continue };
                if !client.may_see(Kind::Resources, &server.name, &uri) {
                    continue; // It was shown when it was watched, or is below what was.
                }
                let mut edits = Edits::of(line);
                if watcher.by_outside_name {
                    let outside = names::uri_outside(server.name.as_str(), &uri);
                    edits.replace(written, names::quoted(&outside));
                }
                client.tell_updated(&server, &uri, &edits.to_vec());
            }
        }
    }

    /// A server asks something of a client that cannot be asked in the middle of a call.
    fn ask_modern(
        &self,
        by: &Rc<Upstream>,
        (id, ours): (&str, u64),
        manner: &RequestMeta,
        asked: &Told<'_>,
    ) -> Result<(), (i64, &'static str)> {
        can_be_asked(manner, asked).inspect_err(|_| lacks(by, ours, asked))?;
        self.park(by, ours, (id, asked.method, asked.params))
    }
}

/// A server wants in a call what its modern client cannot do: if it fails, that is why.
fn lacks(by: &Upstream, ours: u64, asked: &Told<'_>) {
    if let Some(needed) = Wants::read(asked.params).needs(asked.method) {
        by.lacks(ours, needed);
    }
}

/// Whether a modern client can be asked this.
fn can_be_asked(manner: &RequestMeta, asked: &Told<'_>) -> Result<(), (i64, &'static str)> {
    if !matches!(asked.method, "elicitation/create" | "sampling/createMessage" | "roots/list") {
        return Err((-32601, "the client does not know this"));
    }
    let wants = Wants::read(asked.params);
    Capabilities::read(&manner.capabilities).allow(asked.method, &wants, false)
}

/// Whom a server may ask, or why nobody: a code and a sentence.
type Asking = Result<Addressee, (i64, &'static str)>;

impl UpstreamEvents for Router {
    fn breaks_framing(&self, by: &Upstream) {
        self.seen.send_modify(|seen| {
            seen.unframed.insert(by.key().server.clone());
        });
    }

    fn large_reader(&self) -> &LargeReader {
        &self.large
    }

    fn daemons_before(&self, upstream: &Upstream) -> Via {
        Router::daemons_before(self, upstream)
    }

    fn told(&self, by: &Rc<Upstream>, told: &Told<'_>) {
        let Told { method, params, line, during } = *told;
        let addressee = match method {
            "notifications/tools/list_changed"
            | "notifications/prompts/list_changed"
            | "notifications/resources/list_changed" => {
                self.pass_changed(by, method, line);
                return by.lists_changed();
            }
            "notifications/resources/updated" => {
                return self.resource_updated(by.key(), params, line);
            }
            "notifications/cancelled" => {
                if let Some(id) = Params::read(params).request_id() {
                    for client in self.clients() {
                        client.unask(by, id, line);
                    }
                    self.parked.unask(by, id);
                }
                return;
            }
            "notifications/tasks/status" => self.task_changed(by, params, during),
            "notifications/tasks" if by.is_modern() => {
                return self.task_told(by, params, line);
            }
            "notifications/elicitation/complete" => self.owner_of_elicitation(by, params),
            _ => self.addressee(by, params, during),
        };
        match addressee {
            Some(Addressee::Client(client, to, ours)) => {
                let manner = ours.and_then(|ours| by.manner_of(ours));
                if wants(&client, manner.as_deref(), method, params) {
                    tell(by, &client, to, line);
                }
            }
            // Between two rounds there is nobody to hear it.
            Some(Addressee::Parked(_)) => {}
            None => by.unparsed(line),
        }
    }

    fn asked(&self, by: &Rc<Upstream>, id: &str, asked: &Told<'_>) {
        let Told { method, params, line, during } = *asked;
        if during.is_none() {
            self.has_asked(by);
        }
        let refuse = |(code, why): (i64, &str)| by.send(&reply::error(id, code, why));
        let (client, to, ours) = match self.asked_one(by, method, params, during) {
            Ok(Addressee::Client(client, to, ours)) => (client, to, ours),
            Ok(Addressee::Parked(hold)) => {
                let can = can_be_asked(&hold.manner, asked);
                let asked = can.inspect_err(|_| lacks(by, hold.ours, asked)).and_then(|()| {
                    let too_many = (-32603, "the client is asked too much at once");
                    hold.ask(id, method, params).then_some(()).ok_or(too_many)
                });
                return asked.unwrap_or_else(refuse);
            }
            Err(refusal) => return refuse(refusal),
        };
        let manner = ours.and_then(|ours| by.manner_of(ours)).zip(ours);
        if let Some((manner, ours)) = manner {
            by.touch(client.number());
            let asked = self.ask_modern(by, (id, ours), &manner, asked);
            return asked.unwrap_or_else(refuse);
        }
        let wants = Wants::read(params);
        if let Err(refusal) = client.allows(method, &wants) {
            return refuse(refusal);
        }
        if let Some(elicitation) = wants.elicitation() {
            self.owners.borrow_mut().elicited(by.key(), client.number(), &elicitation);
        }
        by.touch(client.number());
        match client.ask(by, id, line, to) {
            // Its waiting calls may be needed for an answer.
            Ok(()) => {
                by.has_asked(client.number(), during);
                self.is_over(by);
            }
            Err(fault) => by.send(&reply::fault(id, &fault)),
        }
    }

    fn answers<'t>(&self, by: &Rc<Upstream>, answer: &Answer<'t>) -> Option<(&'t str, String)> {
        if by.is_modern() && answer.follow != &Follow::Nothing {
            self.follow_modern(by.key(), answer);
            return None;
        }
        let mut owners = self.owners.borrow_mut();
        let (key, client) = (by.key(), answer.client.number());
        match (answer.follow, answer.outcome) {
            (Follow::NewTask, Outcome::Result(result)) => {
                let (id, life) = tasks::begun(result)?;
                let token = answer.token.map(|token| (answer.ours, token.into()));
                let asked = &answer.asked.name;
                owners.begun(key, client, NewTask { id: &id, asked, life, token }, Instant::now());
            }
            (Follow::Task, Outcome::Result(result)) => {
                if let Some((id, true)) = tasks::told(result) {
                    owners.ended(key, &id);
                }
            }
            // Whether it failed or not, there is nothing more to come.
            (Follow::Outcome(id), _) => owners.ended(key, id),
            (Follow::Tasks, Outcome::Result(result)) if !key.holder.is_client() => {
                return tasks::only(result, |id| owners.owner_of_task(key, id) == Some(client));
            }
            _ => {}
        }
        if let Outcome::Error(error) = answer.outcome {
            for id in elicitations_in(error) {
                owners.elicited(key, client, &id);
            }
        }
        None
    }

    fn progressed(&self, by: &Rc<Upstream>, token: u64, part: &str, line: &[u8]) {
        let owners = self.owners.borrow();
        let found = owners.by_token(by.key(), token).map(|(it, token)| (it, token.to_owned()));
        drop(owners);
        let Some((number, token)) = found else { return };
        if let Some(Addressee::Client(client, to, _)) = self.at(by, number) {
            let mut edits = Edits::of(line);
            edits.replace(part, token);
            tell(by, &client, to, &edits.to_vec());
        }
    }

    fn is_over(&self, by: &Rc<Upstream>) {
        if let Some(server) = self.server(by.key().server.as_str()) {
            server.release();
        }
    }

    fn lost(&self, by: &Upstream, calls: Vec<UnansweredCall>, why: Cause<'_>) {
        self.lose(by, calls, why);
    }

    fn wants_elsewhere(
        &self,
        client: &Rc<Client>,
        request: (&str, StreamNo),
        manner: &RequestMeta,
        bond: &Bond,
        error: &str,
    ) -> bool {
        self.ask_elsewhere(client, request, manner, bond, error)
    }
}

/// Has a server's message reach somebody.
fn tell(by: &Rc<Upstream>, client: &Client, to: Route, line: &[u8]) {
    client.tell(line, to);
    by.touch(client.number());
}

/// The elicitations that have to be completed before a request can be done, if an error
/// names any.
fn elicitations_in(error: &str) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct Named {
        #[serde(default)]
        code: i64,
        #[serde(default)]
        data: serde_json::Value,
    }
    let Ok(Named { code: URL_ELICITATION_REQUIRED, data }) = serde_json::from_str(error) else {
        return Vec::new();
    };
    let all = data["elicitations"].as_array().into_iter().flatten();
    all.filter_map(|it| it["elicitationId"].as_str()).map(str::to_owned).collect()
}

/// Whether a client wants to know something that belongs to it.
fn wants(
    client: &Client,
    manner: Option<&RequestMeta>,
    method: &str,
    params: Option<&str>,
) -> bool {
    if method != "notifications/message" {
        return manner.is_none() || method != "notifications/elicitation/complete";
    }
    let word = Params::read(params).level().and_then(envelope::text_of);
    let level = word.and_then(|word| Level::read(&word));
    let least = match manner {
        Some(RequestMeta { level: None, .. }) => return false, // It did not ask for any.
        Some(manner) => manner.level,
        None => client.level(),
    };
    match (level, least) {
        (Some(level), Some(least)) => level >= least,
        _ => true,
    }
}
