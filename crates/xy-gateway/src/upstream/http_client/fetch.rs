//! One request over HTTP, and its answer's head: connections are kept, redirects are followed
//! as far as the same server goes.

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

use super::endpoint::{is_same_origin, resolve, shown};
use crate::body::{self, BodyChunks};
use crate::held::Held;

/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// A connection that is not used for so long is closed. Node closes its own after 5 s: what is
/// sent at that moment would be lost.
const IDLE: Duration = Duration::from_secs(4);

/// How often the system asks whether the other side is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// Redirects in a row.
const MOST_REDIRECTS: usize = 5;

/// Connections that are kept for each server.
const MOST_IDLE: usize = 32;

/// What sends requests.
#[derive(Debug, Clone)]
pub(super) enum Fetch {
    Plain(Client<HttpConnector, Body>),
    Tls(Client<HttpsConnector<HttpConnector>, Body>),
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failed {
    /// There is no connection: nothing was sent.
    Unconnected(String),
    /// Something was sent, and no answer came.
    Broken(String),
    /// The answer leads to somebody else.
    LedAway(String),
    /// The system trusts nobody.
    NoTrust(String),
}

/// One request.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) method: Method,
    pub(super) to: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Hears when it is handed to a connection, which sends it before anybody else goes on.
    pub(super) sent: Option<oneshot::Sender<()>>,
}

/// What is sent, and who hears of it.
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
        let _ = sent.map(|sent| sent.send(())); // Nobody need want to know.
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.text.size_hint()
    }
}

/// What connects to servers that the system trusts. Made once: it takes a while.
static TRUSTING: OnceCell<HttpsConnector<HttpConnector>> = OnceCell::const_new();

impl Fetch {
    /// What sends requests to this place.
    pub(super) async fn to(place: &Uri) -> Result<Self, Failed> {
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(MOST_IDLE);
        if place.scheme_str() != Some("https") {
            return Ok(Self::Plain(builder.build(connector())));
        }
        let trusting = TRUSTING.get_or_try_init(read_trust).await?.clone();
        Ok(Self::Tls(builder.build(trusting)))
    }

    /// Sends a request, also to where the same server says that it should go.
    pub(super) async fn send(&self, mut ask: Ask) -> Result<Response<Incoming>, Failed> {
        for _ in 0..=MOST_REDIRECTS {
            let response = self.send_once(&mut ask).await?;
            if !is_redirect(response.status()) {
                return Ok(response);
            }
            ask.to = led_to(&ask.to, response.headers())?;
        }
        Err(Failed::LedAway(format!("it leads on and on, more than {MOST_REDIRECTS} times")))
    }

    async fn send_once(&self, ask: &mut Ask) -> Result<Response<Incoming>, Failed> {
        let body = Body { text: Full::new(ask.body.clone()), sent: ask.sent.take() };
        let mut request = Request::new(body);
        *request.method_mut() = ask.method.clone();
        *request.uri_mut() = ask.to.clone();
        *request.headers_mut() = ask.headers.clone();
        let sent = match self {
            Self::Plain(client) => client.request(request),
            Self::Tls(client) => client.request(request),
        };
        sent.await.map_err(|problem| {
            let why = advised(innermost(&problem));
            if problem.is_connect() { Failed::Unconnected(why) } else { Failed::Broken(why) }
        })
    }
}

/// 303 is none: what was sent would be lost.
fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 307 | 308)
}

fn led_to(from: &Uri, headers: &HeaderMap) -> Result<Uri, Failed> {
    let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
    let to = location.and_then(|location| resolve(from, location)).ok_or_else(|| {
        Failed::LedAway("it leads somewhere else, and does not say where".to_owned())
    })?;
    if is_same_origin(from, &to) {
        return Ok(to);
    }
    Err(Failed::LedAway(format!("it leads to `{}`, which is another server", shown(&to))))
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT_WITHIN));
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEP_ALIVE));
    connector.enforce_http(false);
    connector
}

/// Knows whom the system trusts.
#[cfg(not(target_os = "macos"))]
fn trusted() -> io::Result<HttpsConnectorBuilder<WantsSchemes>> {
    HttpsConnectorBuilder::new().with_native_roots()
}

/// Knows whom Mozilla trusts.
#[cfg(target_os = "macos")]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it can fail")]
fn trusted() -> io::Result<HttpsConnectorBuilder<WantsSchemes>> {
    Ok(HttpsConnectorBuilder::new().with_webpki_roots())
}

async fn read_trust() -> Result<HttpsConnector<HttpConnector>, Failed> {
    let read = tokio::task::spawn_blocking(trusted);
    let read = read.await.unwrap_or_else(|problem| Err(io::Error::other(problem)));
    match read {
        Ok(trusting) => Ok(trusting.https_only().enable_http1().wrap_connector(connector())),
        Err(problem) => {
            Err(Failed::NoTrust(format!("the certificates that this machine trusts: {problem}")))
        }
    }
}

/// What is at the bottom of an error: the rest is where it was noticed.
fn innermost(error: &dyn Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Adds what to do about a certificate that is not trusted.
fn advised(why: String) -> String {
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

/// The next piece of a body; `None` at its end.
pub(super) async fn next_piece(body: &mut Incoming) -> Result<Option<Bytes>, Failed> {
    body::next_piece(body).await.map_err(|problem| Failed::Broken(innermost(&problem)))
}

/// A whole body, unless it is longer than `most`, or there is too much of others.
pub(super) async fn whole(
    body: &mut Incoming,
    most: usize,
    reading: &mut Held,
) -> Result<Bytes, Half> {
    let first = next_piece(body).await.map_err(Half::Failed)?.unwrap_or_default();
    if body.is_end_stream() && first.len() <= most {
        return Ok(first); // As most are: nothing is copied.
    }
    let mut all = BodyChunks::default();
    all.append(&first).await;
    while all.len() <= most {
        if !reading.holds(all.len()) {
            return Err(Half::TooMany);
        }
        match next_piece(body).await.map_err(Half::Failed)? {
            None => return Ok(all.join().into()),
            Some(piece) => all.append(&piece).await,
        }
    }
    Err(Half::TooLong)
}

/// Why there is no whole body.
#[derive(Debug)]
pub(super) enum Half {
    Failed(Failed),
    /// It is too long.
    TooLong,
    /// Too many others are not whole either.
    TooMany,
}
