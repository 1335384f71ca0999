//! One call over HTTP, from its first byte to its answer.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::{Method, Response, StatusCode};
use tokio::time::{sleep, timeout};
use xy_mcp::envelope::{self, Message, Outcome};
use xy_protocol::error::{CallError, ErrorKind};

use super::fetch::{Failed, Half, whole};
use super::listen::Streamed;
use super::meaning::{Meaning, Refusal, meaning};
use super::{Body, LAST_EVENT, Trouble, Web, heads};
use crate::modern::{HEADER_MISMATCH, UNSUPPORTED_VERSION};
use crate::upstream::Upstream;
use crate::upstream::ids;
use crate::upstream::probe::code_of;
use crate::upstream::retry::Stage;
use crate::upstream::wire::MAX_MESSAGE;

/// How long a call waits for what was said before it to be taken.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// How long a call waits for the lists of a server that found something wrong with its head.
const LEARNED_WITHIN: Duration = Duration::from_secs(10);

/// How much is read of what a server says to a call that it refuses.
const MOST_WORDS: usize = 64 * 1024;

/// How often an answer is asked for again whose stream has ended too early, if nothing comes.
const MOST_TRIES: u32 = 5;

/// Posts a call and hears its answer.
pub(super) async fn run(ours: u64, body: Body) {
    let web = body.web.clone();
    if let Some(upstream) = web.upstream() {
        let call = Call { web: web.clone(), upstream, ours, session: Cell::new(0) };
        call.run(body).await;
        call.upstream.log_unparsed().await;
    }
    web.call_is_over(ours);
}

struct Call {
    web: Rc<Web>,
    upstream: Rc<Upstream>,
    ours: u64,
    /// Within which session it was sent, by their count.
    session: Cell<u64>,
}

/// Whether a server that answers like this says in a message of its own what is wrong.
fn has_own_words(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND)
}

/// Whether somebody says like this that the server itself cannot be reached.
fn is_away(status: StatusCode) -> bool {
    use StatusCode as Is;

    matches!(status, Is::BAD_GATEWAY | Is::SERVICE_UNAVAILABLE | Is::GATEWAY_TIMEOUT)
}

impl Call {
    async fn run(&self, body: Body) {
        // What was said before comes first, unless the server does not take it.
        let _ = timeout(TOLD_WITHIN, self.web.told_before(body.after)).await;
        // Others may wait for a greeting, and must not keep it out.
        let _room = if self.web.needs_no_room(self.ours) {
            None
        } else {
            self.web.room.acquire().await.ok() // It is never closed.
        };
        let Some((had_session, mut response)) = self.post(&body).await else { return };
        if self.web.is_modern() && has_own_words(response.status()) {
            match self.answered_by_error(&body, response).await {
                Some(again) => response = again,
                None => return,
            }
        }
        drop(body); // It has been taken.
        let status = response.status();
        if self.web.is_older && status.is_success() {
            return; // An older server says everything where it is listened to.
        }
        match meaning(status, response.headers(), had_session) {
            Meaning::Message => self.hear_message(response.into_body()).await,
            Meaning::Events => self.hear_events(response.into_body()).await,
            Meaning::Taken => self.unknown(&format!("it answered {status}, without an answer")),
            Meaning::Forgotten => {} // That has been dealt with.
            Meaning::Refused(refusal) => {
                let refusal = refusal.explained(&self.web.headers);
                self.refused(&refusal, response.into_body()).await;
            }
            Meaning::Failed(status) => self.failed(status, response.into_body()).await,
            Meaning::Strange(why) => {
                self.unknown(&why);
                self.web.trouble(Trouble::Refused(why));
            }
        }
    }

    /// Sends it, a second time if its session was forgotten: then nobody has taken it. Also
    /// answers whether it was sent within a session.
    async fn post(&self, body: &Body) -> Option<(bool, Response<Incoming>)> {
        for is_second in [false, true] {
            if !self.in_session(body).await {
                self.undone("it forgot the session, and there is no other");
                return None;
            }
            if body.is_modern.is_some_and(|it| it != self.web.is_modern()) {
                self.undone("it speaks another revision since");
                return None;
            }
            // One that went before it may have found nobody: it must not overtake that one.
            let is_clients = self.upstream.client_of(self.ours).is_some();
            if is_clients && self.upstream.is_to_be_greeted() {
                self.unsent("it cannot be reached");
                return None;
            }
            if !self.upstream.is_wanted(self.ours) {
                return None; // It was given up before anybody has taken it.
            }
            let count = *self.web.sessions.borrow();
            self.session.set(count);
            let had_session = self.web.has_session();
            self.web.unsent.borrow_mut().remove(&self.ours);
            let response = match self.web.post_call(self.ours, body.text.clone()).await {
                Ok(response) => response,
                Err(failed) => {
                    self.not_sent(&failed);
                    return None;
                }
            };
            let is_forgotten =
                meaning(response.status(), response.headers(), had_session) == Meaning::Forgotten;
            if is_forgotten {
                if self.is_answer(response.into_body()).await {
                    return None;
                }
                if is_second {
                    self.undone("it forgot the session again and again");
                    return None;
                }
                self.web.unsent.borrow_mut().insert(self.ours);
                self.web.rows.comes_back(self.ours);
                self.web.forgotten(count);
                if !self.next_session(count).await {
                    self.undone("it forgot the session, and there is no other");
                    return None;
                }
                continue;
            }
            self.web.unheard.borrow_mut().remove(&self.ours);
            self.web.rows.leave(self.ours);
            if response.status().is_success() {
                self.web.take_session(self.ours, response.headers());
            }
            return Some((had_session, response));
        }
        None
    }

    /// Takes the error with which a server of the revision without sessions has answered. One
    /// that says that the head of a call is not what it should be has done nothing: what its
    /// tools want there may have changed, so it is sent again when that is known, once.
    async fn answered_by_error(
        &self,
        asked: &Body,
        response: Response<Incoming>,
    ) -> Option<Response<Incoming>> {
        let status = response.status();
        let text = self.words(response.into_body()).await.unwrap_or_default();
        let code = code_of(&text);
        if code == Some(HEADER_MISMATCH) && heads::is_of_tool(&asked.text) {
            self.web.unsent.borrow_mut().insert(self.ours);
            let _ = timeout(LEARNED_WITHIN, self.upstream.learn_anew()).await;
            let (_, response) = self.post(asked).await?;
            if !has_own_words(response.status()) {
                return Some(response);
            }
            let (status, body) = (response.status(), response.into_body());
            let text = self.words(body).await.unwrap_or_default();
            self.take_error(&asked.text, status, &text);
            return None;
        }
        self.take_error(&asked.text, status, &text);
        None
    }

    /// If that is no answer at all, or not of the revision that is spoken, it may be another
    /// server by now, which its lists will tell.
    fn take_error(&self, asked: &[u8], status: StatusCode, text: &[u8]) {
        let is_answer = self.own_text(text);
        if !is_answer {
            let refusal = Refusal::Other(status);
            self.upstream.fail(self.ours, &refusal.fault(self.server()));
        }
        if is_answer && code_of(text) != Some(UNSUPPORTED_VERSION) {
            return;
        }
        if !is_answer && heads::is_list(asked) {
            self.web.forgotten(self.session.get());
        } else {
            self.upstream.lists_changed();
        }
    }

    /// Whether it was answered after all, by the server's own error under our own id.
    async fn is_answer(&self, body: Incoming) -> bool {
        let Some(text) = self.words(body).await else { return false };
        let is_ours = |id| ids::ours(id) == Some(self.ours);
        if !matches!(envelope::parse(&text), Ok(Message::Answer { id: Some(id), .. }) if is_ours(id))
        {
            return false;
        }
        self.upstream.handle(&text, Some(self.ours));
        !self.upstream.is_open(self.ours)
    }

    /// Waits until it can be sent: within a session, and behind those of its client that have
    /// waited before it. Whether it can.
    async fn in_session(&self, body: &Body) -> bool {
        loop {
            // The session that it was meant for may have been forgotten before it was sent.
            let count = *self.web.sessions.borrow();
            let is_missed = || body.is_modern.is_some() && !self.web.is_in_session();
            if is_missed() && !self.next_session(count).await {
                return false;
            }
            self.web.rows.turn(self.ours).await;
            if !is_missed() {
                return true;
            }
            self.web.rows.comes_back(self.ours);
        }
    }

    async fn next_session(&self, count: u64) -> bool {
        let mut sessions = self.web.sessions.subscribe();
        let next = sessions.wait_for(|now| *now > count);
        matches!(timeout(self.upstream.patience(), next).await, Ok(Ok(_)))
    }

    fn not_sent(&self, failed: &Failed) {
        let why = failed.words();
        match failed {
            Failed::Unconnected(_) => {
                let is_bearable = self.upstream.is_ear(self.ours) && self.web.misses_another();
                if !is_bearable {
                    self.upstream.begin_anew(); // Who calls now waits too.
                }
                self.unsent(&why);
                if !is_bearable {
                    self.web.trouble(Trouble::Unreachable(why));
                }
            }
            Failed::Broken(_) => self.broken(why),
            Failed::LedAway(_) | Failed::NoTrust(_) => {
                self.undone(&why);
                self.web.trouble(Trouble::Refused(why));
            }
        }
    }

    async fn hear_message(&self, mut body: Incoming) {
        match whole(&mut body, MAX_MESSAGE, &mut self.web.reading()).await {
            Ok(text) => {
                self.upstream.hear_whole(text, Some(self.ours)).await;
                if self.upstream.is_open(self.ours) {
                    self.upstream.fail_badly(self.ours, "it answered something else");
                }
            }
            Err(Half::TooLong) => self.upstream.too_long_for(self.ours),
            Err(Half::TooMany) => self.upstream.fail(self.ours, &self.too_many()),
            Err(Half::Failed(failed)) => self.broken(failed.words()),
        }
    }

    fn too_many(&self) -> CallError {
        let server = self.server();
        CallError::new(ErrorKind::OutcomeUnknown, format!("the answer of `{server}` was not read"))
            .cause("too many of its answers are large and unfinished")
            .hint("find out whether it was done before you repeat it")
    }

    /// Hears the stream of a call; one that ends too early is asked for again, as far as the
    /// server has said where to go on.
    async fn hear_events(&self, body: Incoming) {
        let mut streamed = Streamed::default();
        let mut body = Some(body);
        let mut tries = 0;
        loop {
            let ended = match body.take() {
                Some(body) => {
                    let reading = self.web.reading();
                    streamed.handle(&self.upstream, body, Some(self.ours), reading).await
                }
                None => Ok(()),
            };
            self.upstream.log_unparsed().await;
            if !self.upstream.is_open(self.ours) || self.web.is_closed.get() {
                return;
            }
            // Without sessions, nothing can be taken up again.
            let last = streamed.last.clone().filter(|_| !self.web.is_modern());
            let Some(last) = last else {
                let why = ended.err().map_or_else(
                    || "its answer ended before it was whole".to_owned(),
                    |failed| failed.words(),
                );
                return self.broken(why);
            };
            tries = if std::mem::take(&mut streamed.has_heard) { 0 } else { tries + 1 };
            sleep(streamed.wait()).await;
            // What another session calls by the same id is somebody else's.
            if *self.web.sessions.borrow() != self.session.get() || !self.web.is_in_session() {
                return self.unknown("it forgot the session");
            }
            match self.again(&last).await {
                Ok(more) if tries < MOST_TRIES => body = Some(more),
                Ok(_) => return self.broken("its answer breaks off again and again".to_owned()),
                Err(_) if tries < MOST_TRIES => {}
                Err(why) => return self.broken(why),
            }
        }
    }

    /// Asks for what comes after an event.
    async fn again(&self, last: &str) -> Result<Incoming, String> {
        let web = &self.web;
        let mut ask = web.ask(Method::GET, web.place.clone(), Bytes::new());
        let last = last.parse().map_err(|_| "its ids of events cannot be sent".to_owned())?;
        ask.headers.insert(LAST_EVENT, last);
        let response = web.fetch.send(ask).await.map_err(|failed| failed.words())?;
        match meaning(response.status(), response.headers(), web.has_session()) {
            Meaning::Events => Ok(response.into_body()),
            _ => Err(format!(
                "its answer broke off, and it answered {} when it was asked for the rest",
                response.status()
            )),
        }
    }

    /// What is said of a call that was refused: the server's own words, if they are an answer.
    async fn refused(&self, refusal: &Refusal, body: Incoming) {
        if !self.own_words(body).await {
            self.upstream.fail(self.ours, &refusal.fault(self.server()));
        }
        // Whoever called is told before the server is given up.
        self.web.trouble(match refusal {
            Refusal::Unauthorized(_) => Trouble::Hopeless(refusal.words()),
            Refusal::TooMany(_) => Trouble::Failing(refusal.words()),
            Refusal::Forbidden => Trouble::Forbidden(refusal.words()),
            Refusal::Other(_) => Trouble::Refused(refusal.words()),
        });
    }

    async fn failed(&self, status: StatusCode, body: Incoming) {
        let why = format!("it answered {status}");
        if !self.own_words(body).await {
            // That whoever is behind it is away for a while is no answer of its own.
            self.lose(Stage::Written, &why, !is_away(status));
        }
        self.web.trouble(Trouble::Failing(why));
    }

    /// What a server says to a call that it does not answer as it should.
    async fn words(&self, mut body: Incoming) -> Option<Bytes> {
        whole(&mut body, MOST_WORDS, &mut self.web.reading()).await.ok()
    }

    /// Passes on an error that a server wrote itself; whether it did.
    async fn own_words(&self, body: Incoming) -> bool {
        let Some(text) = self.words(body).await else { return false };
        self.own_text(&text)
    }

    fn own_text(&self, text: &[u8]) -> bool {
        let Ok(Message::Answer { outcome: Outcome::Error(error), .. }) = envelope::parse(text)
        else {
            return false;
        };
        let mut answer = Vec::new();
        xy_mcp::edit::append_on_one_line(&mut answer, error.as_bytes());
        let error = String::from_utf8_lossy(&answer);
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, self.ours);
        self.upstream.handle(answer.as_bytes(), Some(self.ours));
        !self.upstream.is_open(self.ours)
    }

    fn server(&self) -> &str {
        self.upstream.key().server.as_str()
    }

    /// Nobody has taken it: it waits until the server is there again.
    fn unsent(&self, why: &str) {
        self.lose(Stage::Unwritten, why, false);
    }

    /// The same, and it will not be taken.
    fn undone(&self, why: &str) {
        self.lose(Stage::Unwritten, why, true);
    }

    /// The answer broke off: it is sent again if that does no harm.
    fn broken(&self, why: String) {
        self.lose(Stage::Written, &why, false);
        self.web.trouble(Trouble::Failing(why));
    }

    /// The server may have done it, and would say the same again.
    fn unknown(&self, why: &str) {
        self.lose(Stage::Written, why, true);
    }

    fn lose(&self, stage: Stage, why: &str, is_final: bool) {
        let why = format!("`{}`: {why}", self.server());
        self.upstream.lose(self.ours, stage, &why, is_final);
    }
}
