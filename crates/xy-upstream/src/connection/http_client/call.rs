//! One call over HTTP, from its first byte to its response.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::{Method, Response, StatusCode};
use tokio::time::{sleep, timeout};
use xy_mcp::envelope::{self, Message, Outcome};
use xy_mcp::modern::{HEADER_MISMATCH, UNSUPPORTED_VERSION};
use xy_transport::message_text::MAX_MESSAGE;

use super::fetch::{BodyError, FetchError, whole};
use super::listen::EventReader;
use super::response_class::{Refusal, ResponseClass, classify};
use super::{CallText, HttpClient, LAST_EVENT, SessionError, headers};
use crate::connection::{Connection, Delivery, code_of, ids};
use crate::fault::{LossReason, ServerFault};

/// Maximum time that a call waits until the server has accepted earlier notifications.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time that a call waits for new lists of a server that rejected its headers.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of an error body that is read.
const MAX_ERROR_BODY: usize = 64 * 1024;

/// Maximum number of consecutive attempts to resume a stream that has ended early.
const MAX_RESUMES: u32 = 5;

/// Posts a call and reads its response.
pub(super) async fn run(upstream_id: u64, body: CallText) {
    let transport = body.transport.clone();
    if let Some(connection) = transport.connection() {
        let call = HttpCall {
            transport: transport.clone(),
            connection,
            upstream_id,
            session: Cell::new(0),
        };
        call.run(body).await;
        call.connection.log_unparsed().await;
    }
    transport.finish_call(upstream_id);
}

struct HttpCall {
    transport: Rc<HttpClient>,
    connection: Rc<Connection>,
    upstream_id: u64,
    /// The number of the session in which it was sent.
    session: Cell<u64>,
}

/// Returns true if the server explains this status in a message of its own.
fn may_have_error_body(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND)
}

/// Returns true if a proxy reports with this status that the server cannot be reached.
fn is_gateway_error(status: StatusCode) -> bool {
    use StatusCode as Is;

    matches!(status, Is::BAD_GATEWAY | Is::SERVICE_UNAVAILABLE | Is::GATEWAY_TIMEOUT)
}

impl HttpCall {
    async fn run(&self, body: CallText) {
        // Earlier notifications come first, unless the server does not accept them.
        let _ = timeout(TURN_TIMEOUT, self.transport.wait_for_turns_before(body.after)).await;
        // Calls that wait for a handshake must not keep it out.
        let _room = if self.transport.bypasses_limit(self.upstream_id) {
            None
        } else {
            self.transport.call_permits.acquire().await.ok() // The semaphore is never closed.
        };
        let Some((had_session, mut response)) = self.post(&body).await else { return };
        if self.transport.is_modern() && may_have_error_body(response.status()) {
            match self.handle_error_response(&body, response).await {
                Some(again) => response = again,
                None => return,
            }
        }
        drop(body); // The server has accepted it.
        let status = response.status();
        if self.transport.is_legacy_sse && status.is_success() {
            return; // A legacy SSE server sends all responses on its one stream.
        }
        match classify(status, response.headers(), had_session) {
            ResponseClass::Message => self.read_message(response.into_body()).await,
            ResponseClass::Events => self.read_events(response.into_body()).await,
            ResponseClass::Accepted => {
                self.fail_unknown(&format!("it answered {status}, without an answer"));
            }
            ResponseClass::SessionUnknown => {} // Handled in `post`.
            ResponseClass::Refused(refusal) => {
                let refusal = refusal.explained(&self.transport.headers);
                self.refused(&refusal, response.into_body()).await;
            }
            ResponseClass::Failed(status) => self.failed(status, response.into_body()).await,
            ResponseClass::Invalid(why) => {
                self.fail_unknown(&why);
                self.transport.report(SessionError::Refused(why));
            }
        }
    }

    /// Posts the call, a second time if the server has forgotten the session, as it has done
    /// nothing then. Also returns whether the call was sent within a session.
    async fn post(&self, body: &CallText) -> Option<(bool, Response<Incoming>)> {
        for is_second in [false, true] {
            if !self.wait_until_sendable(body).await {
                self.fail_unsent("the session expired and could not be renewed");
                return None;
            }
            if body.is_modern.is_some_and(|it| it != self.transport.is_modern()) {
                self.fail_unsent("the server changed its MCP revision");
                return None;
            }
            // An earlier call may have found no server: this one must not overtake it.
            let is_clients = self.connection.client_of(self.upstream_id).is_some();
            if is_clients && self.connection.needs_handshake() {
                self.retry_unsent("it cannot be reached");
                return None;
            }
            if !self.connection.is_wanted(self.upstream_id) {
                return None; // It was cancelled before it was sent.
            }
            let count = *self.transport.session_count.borrow();
            self.session.set(count);
            let had_session = self.transport.has_session();
            self.transport.unsent.borrow_mut().remove(&self.upstream_id);
            let response = match self.transport.post_call(self.upstream_id, body.text.clone()).await
            {
                Ok(response) => response,
                Err(failed) => {
                    self.not_sent(&failed);
                    return None;
                }
            };
            let is_forgotten = classify(response.status(), response.headers(), had_session)
                == ResponseClass::SessionUnknown;
            if is_forgotten {
                if self.is_answer(response.into_body()).await {
                    return None;
                }
                if is_second {
                    self.fail_unsent("the session expired repeatedly");
                    return None;
                }
                self.transport.unsent.borrow_mut().insert(self.upstream_id);
                self.transport.send_orders.expect_again(self.upstream_id);
                self.transport.forget_session(count);
                if !self.next_session(count).await {
                    self.fail_unsent("the session expired and could not be renewed");
                    return None;
                }
                continue;
            }
            self.transport.unanswered.borrow_mut().remove(&self.upstream_id);
            self.transport.send_orders.remove(self.upstream_id);
            if response.status().is_success() {
                self.transport.take_session(self.upstream_id, response.headers());
            }
            return Some((had_session, response));
        }
        None
    }

    /// Handles the error response of a modern server.
    ///
    /// A server that rejects the headers of a call has done nothing. Its tools may want other
    /// headers by now, so the lists are refreshed and the call is sent again, once.
    async fn handle_error_response(
        &self,
        request: &CallText,
        response: Response<Incoming>,
    ) -> Option<Response<Incoming>> {
        let status = response.status();
        let text = self.error_body(response.into_body()).await.unwrap_or_default();
        let code = code_of(&text);
        if code == Some(HEADER_MISMATCH) && headers::is_of_tool(&request.text) {
            self.transport.unsent.borrow_mut().insert(self.upstream_id);
            let _ = timeout(REFRESH_TIMEOUT, self.connection.refresh_lists()).await;
            let (_, response) = self.post(request).await?;
            if !may_have_error_body(response.status()) {
                return Some(response);
            }
            let (status, body) = (response.status(), response.into_body());
            let text = self.error_body(body).await.unwrap_or_default();
            self.take_error(&request.text, status, &text);
            return None;
        }
        self.take_error(&request.text, status, &text);
        None
    }

    /// Passes on an error. If it is no JSON-RPC error or concerns the revision, another server may
    /// run there now, which new lists will show.
    fn take_error(&self, request: &[u8], status: StatusCode, text: &[u8]) {
        let is_answer = self.pass_on_error(text);
        if !is_answer {
            let refusal = Refusal::Other(status);
            self.connection.fail(self.upstream_id, &refusal.fault());
        }
        if is_answer && code_of(text) != Some(UNSUPPORTED_VERSION) {
            return;
        }
        if !is_answer && headers::is_list(request) {
            self.transport.forget_session(self.session.get());
        } else {
            self.connection.lists_changed();
        }
    }

    /// Handles a body that answers the call under its own id. Returns true if it did.
    async fn is_answer(&self, body: Incoming) -> bool {
        let Some(text) = self.error_body(body).await else { return false };
        let is_ours = |id| ids::parse(id) == Some(self.upstream_id);
        if !matches!(envelope::parse(&text), Ok(Message::Response { id: Some(id), .. }) if is_ours(id))
        {
            return false;
        }
        self.connection.handle(&text, Some(self.upstream_id));
        !self.connection.is_open(self.upstream_id)
    }

    /// Waits for a session, and for the earlier delayed calls of the same client. Returns false if
    /// there is no session.
    async fn wait_until_sendable(&self, body: &CallText) -> bool {
        loop {
            // The session may have been forgotten before the call was sent.
            let count = *self.transport.session_count.borrow();
            let is_missed = || body.is_modern.is_some() && !self.transport.is_in_session();
            if is_missed() && !self.next_session(count).await {
                return false;
            }
            self.transport.send_orders.wait_for_turn(self.upstream_id).await;
            if !is_missed() {
                return true;
            }
            self.transport.send_orders.expect_again(self.upstream_id);
        }
    }

    async fn next_session(&self, count: u64) -> bool {
        let mut sessions = self.transport.session_count.subscribe();
        let next = sessions.wait_for(|now| *now > count);
        matches!(timeout(self.connection.session_timeout.get(), next).await, Ok(Ok(_)))
    }

    fn not_sent(&self, failed: &FetchError) {
        let why = failed.words();
        match failed {
            FetchError::Unconnected(_) => {
                let is_bearable = self.connection.is_subscription(self.upstream_id)
                    && self.transport.tolerates_connect_failure();
                if !is_bearable {
                    self.connection.reset(); // Calls that come now wait too.
                }
                self.retry_unsent(&why);
                if !is_bearable {
                    self.transport.report(SessionError::Unreachable(why));
                }
            }
            FetchError::Broken(_) => self.retry_broken(why),
            FetchError::Redirected(_) | FetchError::NoTrustStore(_) => {
                self.fail_unsent(&why);
                self.transport.report(SessionError::Refused(why));
            }
        }
    }

    async fn read_message(&self, mut body: Incoming) {
        let mut budget = self.transport.partial_budget();
        match whole(&mut body, MAX_MESSAGE, (&mut budget, self.connection.pace())).await {
            Ok(text) => {
                self.connection.handle_whole(text, Some(self.upstream_id)).await;
                if self.connection.is_open(self.upstream_id) {
                    self.connection.fail_malformed_request(
                        self.upstream_id,
                        "its body has no response to this request",
                    );
                }
            }
            Err(BodyError::TooLong) => self.connection.too_long_for(self.upstream_id),
            Err(BodyError::TooMany) => {
                self.connection.fail(self.upstream_id, &ServerFault::TooManyPartial);
            }
            Err(BodyError::Fetch(failed)) => self.retry_broken(failed.words()),
        }
    }

    /// Reads the event stream of a call. If it ends early, it is resumed where the server has said.
    async fn read_events(&self, body: Incoming) {
        let mut reader = EventReader::default();
        let mut body = Some(body);
        let mut tries = 0;
        loop {
            let ended = match body.take() {
                Some(body) => {
                    let budget = self.transport.partial_budget();
                    reader.handle(&self.connection, body, Some(self.upstream_id), budget).await
                }
                None => Ok(()),
            };
            self.connection.log_unparsed().await;
            if !self.connection.is_open(self.upstream_id) || self.transport.is_closed.get() {
                return;
            }
            // Without sessions, no stream can be resumed.
            let last = reader.last.clone().filter(|_| !self.transport.is_modern());
            let Some(last) = last else {
                let why = ended.err().map_or_else(
                    || "its answer ended before it was whole".to_owned(),
                    |failed| failed.words(),
                );
                return self.retry_broken(why);
            };
            tries = if std::mem::take(&mut reader.has_received) { 0 } else { tries + 1 };
            sleep(reader.wait()).await;
            // The same event id means something else in another session.
            if *self.transport.session_count.borrow() != self.session.get()
                || !self.transport.is_in_session()
            {
                return self.fail_unknown("the session expired");
            }
            match self.again(&last).await {
                Ok(more) if tries < MAX_RESUMES => body = Some(more),
                Ok(_) => {
                    return self.retry_broken("its answer breaks off again and again".to_owned());
                }
                Err(_) if tries < MAX_RESUMES => {}
                Err(why) => return self.retry_broken(why),
            }
        }
    }

    /// Requests the events after this one.
    async fn again(&self, last: &str) -> Result<Incoming, String> {
        let transport = &self.transport;
        let mut request = transport.request(Method::GET, transport.url.clone(), Bytes::new());
        let last = last.parse().map_err(|_| "its ids of events cannot be sent".to_owned())?;
        request.headers.insert(LAST_EVENT, last);
        let response = transport.sender.send(request).await.map_err(|failed| failed.words())?;
        match classify(response.status(), response.headers(), transport.has_session()) {
            ResponseClass::Events => Ok(response.into_body()),
            _ => Err(format!(
                "the response stream broke, and the request to resume it was answered with {}",
                response.status()
            )),
        }
    }

    /// Fails a refused call, with the server's own error if the body holds one.
    async fn refused(&self, refusal: &Refusal, body: Incoming) {
        if !self.pass_on_error_body(body).await {
            self.connection.fail(self.upstream_id, &refusal.fault());
        }
        // The call fails before the server is given up.
        self.transport.report(match refusal {
            Refusal::Unauthorized(_) => SessionError::Hopeless(refusal.words()),
            Refusal::TooMany(_) => SessionError::Failing(refusal.words()),
            Refusal::Forbidden => SessionError::Forbidden(refusal.words()),
            Refusal::Other(_) => SessionError::Refused(refusal.words()),
        });
    }

    async fn failed(&self, status: StatusCode, body: Incoming) {
        let why = format!("it answered {status}");
        if !self.pass_on_error_body(body).await {
            // A proxy's report that the server is away is no response of the server.
            self.lose(Delivery::Written, &why, !is_gateway_error(status));
        }
        self.transport.report(SessionError::Failing(why));
    }

    /// Reads the body of an error response.
    async fn error_body(&self, mut body: Incoming) -> Option<Bytes> {
        let mut budget = self.transport.partial_budget();
        whole(&mut body, MAX_ERROR_BODY, (&mut budget, self.connection.pace())).await.ok()
    }

    /// Passes on the server's own error. Returns true if the body holds one.
    async fn pass_on_error_body(&self, body: Incoming) -> bool {
        let Some(text) = self.error_body(body).await else { return false };
        self.pass_on_error(&text)
    }

    fn pass_on_error(&self, text: &[u8]) -> bool {
        let Ok(Message::Response { outcome: Outcome::Error(error), .. }) = envelope::parse(text)
        else {
            return false;
        };
        let mut answer = Vec::new();
        xy_mcp::edit::append_on_one_line(&mut answer, error.as_bytes());
        let error = String::from_utf8_lossy(&answer);
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, self.upstream_id);
        self.connection.handle(answer.as_bytes(), Some(self.upstream_id));
        !self.connection.is_open(self.upstream_id)
    }

    /// Fails a call that the server has not received: it waits until the server is back.
    fn retry_unsent(&self, why: &str) {
        self.lose(Delivery::Unwritten, why, false);
    }

    /// Fails a call that the server has not received, without a retry.
    fn fail_unsent(&self, why: &str) {
        self.lose(Delivery::Unwritten, why, true);
    }

    /// Fails a call whose response broke off: it is sent again if that is safe.
    fn retry_broken(&self, why: String) {
        self.lose(Delivery::Written, &why, false);
        self.transport.report(SessionError::Failing(why));
    }

    /// Fails a call that the server may have done, and that would fail again.
    fn fail_unknown(&self, why: &str) {
        self.lose(Delivery::Written, why, true);
    }

    fn lose(&self, delivery: Delivery, why: &str, is_final: bool) {
        let why = LossReason::Report(why.to_owned());
        self.connection.lose(self.upstream_id, delivery, why, is_final);
    }
}
