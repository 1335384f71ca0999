//! Sends single HTTP requests: keeps connections, and follows redirects within the same origin.

use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body as _, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{HeaderMap, LOCATION};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_rustls::builderstates::WantsSchemes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::sync::{OnceCell, oneshot};
use xy_transport::body::{self, BodyChunks};
use xy_transport::budget::Reservation;
use xy_transport::pace::Pace;

use super::endpoint::{is_same_origin, resolve, shown};

/// Maximum time for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which an unused connection is kept. Node closes its own after 5 s, and a request sent
/// at that moment would be lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Interval of TCP keep-alive probes.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum number of redirects in a row.
const MAX_REDIRECTS: usize = 5;

/// Maximum number of idle connections per server.
const MAX_IDLE_CONNECTIONS: usize = 32;

/// The HTTP client of one server.
#[derive(Debug, Clone)]
pub(super) enum RequestSender {
    Plain(Client<HttpConnector, Body>),
    Tls(Client<HttpsConnector<HttpConnector>, Body>),
}

/// The reason why there is no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FetchError {
    /// There is no connection: nothing was sent.
    Unconnected(String),
    /// The request was sent, and no response came.
    Broken(String),
    /// The response redirects to another origin.
    Redirected(String),
    /// The certificates that the system trusts cannot be loaded.
    NoTrustStore(String),
}

/// One request.
#[derive(Debug)]
pub(super) struct OutgoingRequest {
    pub(super) method: Method,
    pub(super) to: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Gets a message when the body is handed to a connection, which sends it before other tasks
    /// run.
    pub(super) sent: Option<oneshot::Sender<()>>,
}

/// A request body that reports when it is sent.
#[derive(Debug)]
pub(super) struct Body {
    text: Full<Bytes>,
    sent: Option<oneshot::Sender<()>>,
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = Pin::new(&mut self.text).poll_frame(context);
        let sent = self.sent.take().filter(|_| frame.is_ready());
        let _ = sent.map(|sent| sent.send(())); // The receiver may be gone.
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.text.size_hint()
    }
}

/// The TLS connector, created once, as loading the trust store takes a while.
static TLS_CONNECTOR: OnceCell<HttpsConnector<HttpConnector>> = OnceCell::const_new();

impl RequestSender {
    /// Creates the HTTP client of the server at this URL.
    pub(super) async fn new(url: &Uri) -> Result<Self, FetchError> {
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS);
        if url.scheme_str() != Some("https") {
            return Ok(Self::Plain(builder.build(connector())));
        }
        let trusting = TLS_CONNECTOR.get_or_try_init(load_trust_store).await?.clone();
        Ok(Self::Tls(builder.build(trusting)))
    }

    /// Sends a request, and follows redirects within the same origin.
    pub(super) async fn send(
        &self,
        mut request: OutgoingRequest,
    ) -> Result<Response<Incoming>, FetchError> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_once(&mut request).await?;
            if !is_redirect(response.status()) {
                return Ok(response);
            }
            request.to = redirect_target(&request.to, response.headers())?;
        }
        Err(FetchError::Redirected(format!(
            "it redirects more than {MAX_REDIRECTS} times in a row"
        )))
    }

    async fn send_once(
        &self,
        request: &mut OutgoingRequest,
    ) -> Result<Response<Incoming>, FetchError> {
        let body = Body { text: Full::new(request.body.clone()), sent: request.sent.take() };
        let mut outgoing = Request::new(body);
        *outgoing.method_mut() = request.method.clone();
        *outgoing.uri_mut() = request.to.clone();
        *outgoing.headers_mut() = request.headers.clone();
        let sent = match self {
            Self::Plain(client) => client.request(outgoing),
            Self::Tls(client) => client.request(outgoing),
        };
        sent.await.map_err(|problem| {
            let why = with_advice(innermost(&problem));
            if problem.is_connect() {
                FetchError::Unconnected(why)
            } else {
                FetchError::Broken(why)
            }
        })
    }
}

/// Returns true if the request is repeated elsewhere. Not for 303, which would drop the body.
fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 307 | 308)
}

fn redirect_target(from: &Uri, headers: &HeaderMap) -> Result<Uri, FetchError> {
    let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
    let to = location.and_then(|location| resolve(from, location)).ok_or_else(|| {
        FetchError::Redirected("it redirects without a valid `Location`".to_owned())
    })?;
    if is_same_origin(from, &to) {
        return Ok(to);
    }
    Err(FetchError::Redirected(format!(
        "it redirects to `{}`, which is another server",
        shown(&to)
    )))
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEP_ALIVE_INTERVAL));
    connector.enforce_http(false);
    connector
}

/// Returns a connector that trusts the certificates of the system.
#[cfg(not(target_os = "macos"))]
fn trust_store() -> io::Result<HttpsConnectorBuilder<WantsSchemes>> {
    HttpsConnectorBuilder::new().with_native_roots()
}

/// Returns a connector that trusts the certificates of Mozilla.
#[cfg(target_os = "macos")]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it can fail")]
fn trust_store() -> io::Result<HttpsConnectorBuilder<WantsSchemes>> {
    Ok(HttpsConnectorBuilder::new().with_webpki_roots())
}

async fn load_trust_store() -> Result<HttpsConnector<HttpConnector>, FetchError> {
    let read = tokio::task::spawn_blocking(trust_store);
    let read = read.await.unwrap_or_else(|problem| Err(io::Error::other(problem)));
    match read {
        Ok(trusting) => Ok(trusting.https_only().enable_http1().wrap_connector(connector())),
        Err(problem) => Err(FetchError::NoTrustStore(format!(
            "the certificates that this machine trusts: {problem}"
        ))),
    }
}

/// Returns the innermost cause of an error; the outer ones only tell where it was noticed.
fn innermost(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Adds advice about a certificate that is not trusted.
fn with_advice(why: String) -> String {
    let advice = if why.contains("CaUsedAsEndEntity") {
        "its certificate is one of an authority (`CA:TRUE`); make one for the server with \
         `openssl req -x509 -addext basicConstraints=critical,CA:FALSE …`"
    } else if why.contains("UnknownIssuer") {
        "if you trust it, have `SSL_CERT_FILE` name a file with its certificate, and restart the \
         daemon"
    } else {
        return why;
    };
    format!("{why}: {advice}")
}

/// Returns the next chunk of a body, or `None` at its end.
pub(super) async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, FetchError> {
    body::next_piece(body).await.map_err(|problem| FetchError::Broken(innermost(&problem)))
}

/// Reads a whole body of at most `most` bytes, if the budget allows.
pub(super) async fn whole(
    body: &mut Incoming,
    most: usize,
    (budget, pace): (&mut Reservation, &Pace),
) -> Result<Bytes, BodyError> {
    let first = next_piece(body).await.map_err(BodyError::Fetch)?.unwrap_or_default();
    if body.is_end_stream() && first.len() <= most {
        return Ok(first); // The usual case: nothing is copied.
    }
    let mut all = BodyChunks::default();
    all.append(&first, pace).await;
    while all.byte_count() <= most {
        if !budget.resize(all.byte_count()) {
            return Err(BodyError::TooMany);
        }
        match next_piece(body).await.map_err(BodyError::Fetch)? {
            None => return Ok(all.join().into()),
            Some(piece) => all.append(&piece, pace).await,
        }
    }
    Err(BodyError::TooLong)
}

/// The reason why a body was not read completely.
#[derive(Debug)]
pub(super) enum BodyError {
    Fetch(FetchError),
    /// The body is too long.
    TooLong,
    /// Too many other bodies are incomplete.
    TooMany,
}
