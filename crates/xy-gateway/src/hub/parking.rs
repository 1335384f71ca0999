//! Calls of modern clients that legacy servers have asked something in, and what such clients
//! and servers want otherwise of each other.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use xy_config::settings::Isolation;
use xy_protocol::error::CallError;
use xy_supervisor::instance::Holder;

use super::{House, Hub};
use crate::bridge::hold::{self, Hold, Kept, NewHold, ReplyTo};
use crate::bridge::{Across, Bond};
use crate::capabilities::{Capabilities, Wants};
use crate::client::Client;
use crate::era::Era;
use crate::front::StreamNo;
use crate::held::Held;
use crate::level::Level;
use crate::modern::{MISSING_CAPABILITY, Manner, Wrong};
use crate::names::quoted;
use crate::say;
use crate::server::Server;
use crate::upstream::{Caller, Company, Upstream};

/// What is kept of requests that may have to be sent again, in bytes.
const MOST_KEPT: usize = 64 * 1024 * 1024;

/// How long a server may take to be there, and to say whether a resource can be watched.
const WATCHED_WITHIN: Duration = Duration::from_secs(10);

/// An instance for all whom the door cannot tell apart lives for so long after the last of
/// their requests.
const HOUSE_IDLE: Duration = Duration::from_mins(10);

/// So many such instances are told apart; more of one token share one.
const MOST_HOUSES: usize = 256;

/// What a client says of itself at greater length tells it from nobody.
const LONGEST_INFO: usize = 1024;

/// Why a server's question is refused: a code and a sentence.
type Refusal = (i64, &'static str);

/// The error that says that a user has to go elsewhere first.
const URL_ELICITATION_REQUIRED: i64 = -32042;

impl Hub {
    /// Whether this is the number of clients that a door cannot tell apart.
    pub(crate) fn is_house(&self, number: u64) -> bool {
        self.houses.borrow().values().any(|house| house.number == number)
    }

    /// For what is kept of requests that may have to be sent again.
    pub(crate) fn hold_bytes(&self) -> Held {
        Held::of(&self.kept, MOST_KEPT)
    }

    /// A legacy server asks something in a call of a modern client, which is parked for it.
    pub(super) fn park(
        &self,
        by: &Rc<Upstream>,
        ours: u64,
        (id, method, params): (&str, &str, Option<&str>),
    ) -> Result<(), Refusal> {
        let not_so = (-32603, "the client cannot be asked anything during this request");
        let Some(Caller::Client { client, id: theirs, stream, token, follow, manner, across }) =
            by.unhand(ours)
        else {
            return Err(not_so);
        };
        let (Some(manner), Some(across)) = (manner, across) else { return Err(not_so) };
        let Across::ToLegacy { method: call, bond: Some(bond), lacks } = *across else {
            return Err(not_so);
        };
        let info = by.introduction().and_then(|it| it.info.clone());
        let reply_to = ReplyTo { client: client.clone(), id: theirs.clone(), stream };
        let new = NewHold {
            reply_to,
            manner: manner.clone(),
            method: call.clone(),
            bond,
            upstream: Rc::downgrade(by),
            ours,
            info,
            lacks,
        };
        let hold = self.parked.park(new);
        let asked = hold.filter(|hold| {
            let is_asked = hold.ask(id, method, params);
            if !is_asked {
                self.parked.forget(hold.number);
            }
            is_asked
        });
        let Some(hold) = asked else {
            let across = Across::ToLegacy { method: call, bond: Some(bond), lacks };
            let across = Some(Box::new(across));
            let manner = Some(manner);
            let back = Caller::Client { client, id: theirs, stream, token, follow, manner, across };
            by.rejoin(ours, back);
            return Err((-32603, "too many calls wait for their clients"));
        };
        by.rejoin(ours, Caller::Parked(hold.clone()));
        self.flush_soon(hold);
        Ok(())
    }

    /// Has a client hear what is asked in its call, together with what is asked at the same
    /// time.
    pub(crate) fn flush_soon(&self, hold: Rc<Hold>) {
        let hub = self.me();
        tokio::task::spawn_local(async move {
            sleep(hold::ASKED_AT_ONCE).await;
            hub.flush(&hold);
            sleep(hold::HOLDS_UP).await;
            if let Some(upstream) = hold.upstream.upgrade() {
                hub.is_over(&upstream); // It holds up no other of its client's any more.
            }
        });
    }

    fn flush(&self, hold: &Rc<Hold>) {
        let Some((ReplyTo { client, id, stream }, came)) = hold.flush() else { return };
        if let Some(came) = came {
            self.parked.forget(hold.number);
            hold.end();
            return match hold.answer(came, &id) {
                Ok(line) => client.answered(&id, stream, &line),
                Err(fault) => client.failed(&id, stream, &fault),
            };
        }
        if !hold.upstream.upgrade().is_some_and(|upstream| upstream.is_parked(hold)) {
            // It was cancelled meanwhile.
            self.parked.forget(hold.number);
            hold.end();
            return;
        }
        let state = self.parked.state(hold.number, &hold.bond);
        client.answered(&id, stream, &say::result(&id, &hold.asks(&state)));
        self.give_up_in_time();
        if let Some(upstream) = hold.upstream.upgrade() {
            self.is_over(&upstream); // It may hold up no other of its client's.
        }
    }

    /// Has calls given up that nobody comes back for.
    fn give_up_in_time(&self) {
        if self.is_sweeping.replace(true) {
            return;
        }
        let hub = self.me();
        tokio::task::spawn_local(async move {
            loop {
                let (overdue, next) = hub.parked.overdue();
                for kept in overdue {
                    if let Kept::Call(hold) = kept {
                        give_up(&hold);
                    }
                }
                let Some(next) = next else { return hub.is_sweeping.set(false) };
                sleep_until(next).await;
            }
        });
    }

    /// A client has gone that would have to come back for these.
    pub(super) fn give_up_parked(&self, client: &Client) {
        for hold in self.parked.tied_to(client.number()) {
            self.parked.forget(hold.number);
            give_up(&hold);
        }
    }

    /// A modern client wants to know so much of what servers log. They go on with it: whoever
    /// wants to know less is told less.
    pub(crate) fn wants_level(&self, level: Level) {
        let wanted = self.modern_level.get();
        if wanted.is_some_and(|wanted| wanted <= level) {
            return;
        }
        self.modern_level.set(Some(level));
        self.tune();
    }

    /// Has resources of a server watched, which are among those that are; answers which can be.
    pub(crate) async fn watch(
        &self,
        server: &Rc<Server>,
        client: &Rc<Client>,
        uris: BTreeSet<String>,
    ) -> Result<Rc<BTreeSet<String>>, CallError> {
        let (holder, by) = (server.holder(client), Instant::now() + WATCHED_WITHIN);
        self.want(server, client);
        let upstream = self.once_there(server, holder, by).await;
        let upstream = upstream.ok_or_else(|| server.down("it is not ready yet"))?;
        if upstream.era() == Era::Modern {
            return upstream.listen_to(self.watched(server, holder)).await;
        }
        if !upstream.introduction().is_some_and(|it| it.abilities.subscribe) {
            return Ok(Rc::default());
        }
        let mut asked = Vec::new();
        for uri in uris {
            let params = format!(r#"{{"uri":{}}}"#, quoted(&uri));
            asked.push((uri, upstream.ask("resources/subscribe", Some(&params))?));
        }
        let mut watched = BTreeSet::new();
        for (uri, question) in asked {
            let answer = timeout_at(by, question.answer()).await;
            if let Ok(Ok(answer)) = answer
                && crate::upstream::result_of(&answer).is_ok()
            {
                watched.insert(uri);
            }
        }
        Ok(Rc::new(watched))
    }

    /// An instance, as soon as it can be asked, if that is by then.
    async fn once_there(
        &self,
        server: &Server,
        holder: Holder,
        by: Instant,
    ) -> Option<Rc<Upstream>> {
        let mut news = self.news();
        loop {
            let living = server.upstream(holder);
            if living.is_some() || !server.is_shown() {
                return living;
            }
            timeout_at(by, news.changed()).await.ok()?.ok()?;
        }
    }

    /// Nobody of this client watches a resource any more.
    pub(crate) fn unwatch(&self, server: &Rc<Server>, client: &Client, uri: &str) {
        if self.unsubscribe(server, uri, client) {
            self.unwatched(server, server.holder(client), uri);
        }
    }

    /// Nobody watches a resource any more.
    pub(super) fn unwatched(&self, server: &Rc<Server>, holder: Holder, uri: &str) {
        let Some(upstream) = server.upstream(holder) else { return };
        if upstream.era() == Era::Modern {
            let watched = self.watched(server, holder);
            tokio::task::spawn_local(async move {
                let _ = upstream.listen_to(watched).await; // Nobody waits for it.
            });
            return;
        }
        let params = format!(r#"{{"uri":{}}}"#, quoted(uri));
        super::let_be(upstream.ask("resources/unsubscribe", Some(&params)));
    }

    /// What is watched at an instance.
    pub(crate) fn watched(&self, server: &Server, holder: Holder) -> BTreeSet<String> {
        self.subscriptions.borrow().of(&server.name, holder).into_iter().collect()
    }

    /// A server refused a request until its client's user has done something elsewhere.
    pub(super) fn ask_elsewhere(
        &self,
        client: &Rc<Client>,
        (id, stream): (&str, StreamNo),
        manner: &Manner,
        bond: &Bond,
        error: &str,
    ) -> bool {
        let Some(wanted) = elsewhere(error) else { return false };
        let wants = Wants::read(Some(r#"{"mode":"url"}"#));
        let capabilities = Capabilities::read(&manner.capabilities);
        if capabilities.allow("elicitation/create", &wants, false).is_err() {
            let message = "the user has to go elsewhere first, which this client cannot show";
            let data = r#"{"requiredCapabilities":{"elicitation":{"url":{}}}}"#.to_owned();
            let wrong = Wrong { data: Some(data), ..Wrong::new(MISSING_CAPABILITY, message) };
            client.answered(id, stream, &wrong.line(id));
            return true;
        }
        let Some(number) = self.parked.allow_again(client.house()) else { return false };
        let state = self.parked.state(number, bond);
        let result = hold::asking(&wanted, &state, None);
        client.answered(id, stream, &say::result(id, &result));
        self.give_up_in_time();
        true
    }

    /// A request of somebody comes in whom the door cannot tell from others that have the same
    /// token and say the same of themselves.
    pub(crate) fn house(&self, client: &Client, info: Option<&str>) {
        if client.house() != client.number() {
            return; // It is in already.
        }
        let mut houses = self.houses.borrow_mut();
        let info = info.filter(|info| info.len() <= LONGEST_INFO).unwrap_or_default();
        let mut key = (client.entry().who, info.into());
        if houses.len() >= MOST_HOUSES && !houses.contains_key(&key) {
            key.1 = "".into(); // All others of this token.
        }
        let house = houses.entry(key).or_insert_with(|| House {
            number: self.new_number(),
            open: 0,
            left_at: Instant::now(),
            is_closing: false,
        });
        house.open += 1;
        client.joins(house.number);
    }

    /// Such a request is over: their instances stay for a while.
    pub(super) fn left_house(&self, client: &Client) {
        let number = client.house();
        let mut houses = self.houses.borrow_mut();
        let Some(it) = houses.values_mut().find(|it| it.number == number) else { return };
        it.open -= 1;
        it.left_at = Instant::now();
        if it.open > 0 || it.is_closing {
            return;
        }
        it.is_closing = true;
        let (hub, mut close_at) = (self.me(), it.left_at + HOUSE_IDLE);
        tokio::task::spawn_local(async move {
            loop {
                sleep_until(close_at).await;
                match hub.close_house(number) {
                    Some(later) => close_at = later,
                    None => return,
                }
            }
        });
    }

    /// Ends the instances of those who have stayed away for long enough; otherwise when to look
    /// again, unless somebody else will.
    fn close_house(&self, number: u64) -> Option<Instant> {
        let mut houses = self.houses.borrow_mut();
        let it = houses.values_mut().find(|it| it.number == number)?;
        let close_at = it.left_at + HOUSE_IDLE;
        if it.open > 0 {
            it.is_closing = false; // The last of them looks again.
            return None;
        }
        if close_at > Instant::now() {
            return Some(close_at);
        }
        houses.retain(|_, it| it.number != number);
        drop(houses);
        // Also those that are not up just now: nobody would ever release them.
        for server in self.servers() {
            if server.settings.borrow().isolation == Isolation::Client {
                tokio::task::spawn_local(self.control.release(&server.name, number));
            }
        }
        None
    }
}

/// Nobody comes back for a call: its server is told.
fn give_up(hold: &Rc<Hold>) {
    if hold.end()
        && let Some(upstream) = hold.upstream.upgrade()
        && upstream.is_parked(hold)
    {
        upstream.cancel(hold.ours, "its client did not come back");
    }
}

/// What a user has to do elsewhere before a request can be done, if an error says so, as what
/// a modern client is asked.
fn elsewhere(error: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Named<'t> {
        code: i64,
        #[serde(borrow)]
        data: Data<'t>,
    }
    #[derive(Deserialize)]
    struct Data<'t> {
        #[serde(borrow)]
        elicitations: Vec<Elsewhere<'t>>,
    }
    #[derive(Deserialize)]
    struct Elsewhere<'t> {
        #[serde(borrow)]
        url: &'t RawValue,
        #[serde(borrow)]
        message: &'t RawValue,
    }
    let Ok(Named { code: URL_ELICITATION_REQUIRED, data }) = serde_json::from_str(error) else {
        return None;
    };
    let all = data.elicitations.iter().enumerate().map(|(place, Elsewhere { url, message })| {
        format!(
            r#""q{}":{{"method":"elicitation/create","params":{{"mode":"url","url":{url},"message":{message}}}}}"#,
            place + 1
        )
    });
    let all: Vec<String> = all.collect();
    (!all.is_empty()).then(|| format!("{{{}}}", all.join(",")))
}
