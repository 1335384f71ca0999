//! Calls of modern clients that legacy servers have asked something in: they are parked until
//! the client comes back.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{sleep, sleep_until};

use super::Router;
use crate::bridge::pending_input::{self, Kept, NewHold, PendingInput, ReplyTo};
use crate::bridge::{Across, Bond};
use crate::capabilities::{Capabilities, Wants};
use crate::client::Client;
use crate::frontend::StreamNo;
use crate::held::Held;
use crate::modern::{MISSING_CAPABILITY, RequestMeta, Wrong};
use crate::reply;
use crate::upstream::{Caller, Upstream, UpstreamEvents};

/// Why a server's question is refused: a code and a sentence.
type Refusal = (i64, &'static str);

/// The error that says that a user has to go elsewhere first.
const URL_ELICITATION_REQUIRED: i64 = -32042;

impl Router {
    /// For what is kept of requests that may have to be sent again.
    pub(crate) fn hold_bytes(&self) -> Held {
        let most = usize::try_from(self.lot.park.held_bytes).unwrap_or(usize::MAX);
        Held::of(&self.kept, most)
    }

    /// A legacy server asks something in a call of a modern client, which is parked for it.
    pub(super) fn park(
        &self,
        by: &Rc<Upstream>,
        ours: u64,
        (id, method, params): (&str, &str, Option<&str>),
    ) -> Result<(), Refusal> {
        let not_so = (-32603, "the client cannot be asked anything during this request");
        let Some(Caller::Client {
            client,
            asked,
            id: theirs,
            stream,
            token,
            follow,
            manner,
            across,
        }) = by.detach_call(ours)
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
            asked: asked.clone(),
            ours,
            info,
            lacks,
        };
        let hold = self.parked.park(new);
        let parked = hold.filter(|hold| {
            let is_asked = hold.ask(id, method, params);
            if !is_asked {
                self.parked.forget(hold.number);
            }
            is_asked
        });
        let Some(hold) = parked else {
            let across = Across::ToLegacy { method: call, bond: Some(bond), lacks };
            let across = Some(Box::new(across));
            let manner = Some(manner);
            let id = theirs;
            let back = Caller::Client { client, asked, id, stream, token, follow, manner, across };
            by.attach(ours, back);
            return Err((-32603, "too many calls wait for their clients"));
        };
        by.attach(ours, Caller::Parked(hold.clone()));
        self.flush_soon(hold);
        Ok(())
    }

    /// Has a client hear what is asked in its call, together with what is asked at the same
    /// time.
    pub(crate) fn flush_soon(&self, hold: Rc<PendingInput>) {
        let router = self.me();
        tokio::task::spawn_local(async move {
            sleep(pending_input::ASKED_AT_ONCE).await;
            router.flush(&hold);
            sleep(pending_input::HOLDS_UP).await;
            if let Some(upstream) = hold.upstream.upgrade() {
                router.is_over(&upstream); // It holds up no other of its client's any more.
            }
        });
    }

    fn flush(&self, hold: &Rc<PendingInput>) {
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
        client.answered(&id, stream, &reply::result(&id, &hold.asks(&state)));
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
        let router = self.me();
        tokio::task::spawn_local(async move {
            loop {
                let (overdue, next) = router.parked.overdue();
                for kept in overdue {
                    if let Kept::Call(hold) = kept {
                        give_up(&hold);
                    }
                }
                let Some(next) = next else { return router.is_sweeping.set(false) };
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

    /// A server refused a request until its client's user has done something elsewhere.
    pub(super) fn ask_elsewhere(
        &self,
        client: &Rc<Client>,
        (id, stream): (&str, StreamNo),
        manner: &RequestMeta,
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
        let Some(number) = self.parked.allow_again(client.group_id()) else { return false };
        let state = self.parked.state(number, bond);
        let result = pending_input::asking(&wanted, &state, None);
        client.answered(id, stream, &reply::result(id, &result));
        self.give_up_in_time();
        true
    }
}

/// Nobody comes back for a call: its server is told.
fn give_up(hold: &Rc<PendingInput>) {
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
