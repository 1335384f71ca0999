//! Whether somebody listens at a port of this machine: `tcp` and `http` probes, for readiness
//! and for health alike. Knows no protocol but the first line of an HTTP answer.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use xy_config::settings::{PROBED_PATH, Probe, ServerSettings};

mod http;

/// Between two tries of one that is not ready: at first, and at most.
const FIRST_AGAIN: Duration = Duration::from_millis(50);
const LAST_AGAIN: Duration = Duration::from_millis(500);

/// Where a server is probed, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) port: u16,
    pub(crate) what: What,
}

/// What has to happen there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum What {
    /// A connection is taken.
    Connects,
    /// A GET of this path is answered with success.
    Answers(String),
}

/// Why a server that was asked whether it is ready is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unready {
    /// What was asked, and what came of it.
    pub why: String,
    /// It gave no answer in time, so it may only be busy.
    pub is_late: bool,
}

impl Target {
    /// Where it says that it is ready, if a port has to say so.
    pub(crate) fn of_ready(settings: &ServerSettings) -> Option<Self> {
        let ready = &settings.rules.ready;
        match (ready.probe, settings.port()) {
            (Probe::Tcp, Some(port)) => Some(Self::tcp(port)),
            (Probe::Http, Some(port)) => Some(Self::http(port, ready.path.as_deref())),
            _ => None,
        }
    }

    pub(crate) fn tcp(port: u16) -> Self {
        Self { port, what: What::Connects }
    }

    pub(crate) fn http(port: u16, path: Option<&str>) -> Self {
        Self { port, what: What::Answers(path.unwrap_or(PROBED_PATH).to_owned()) }
    }

    /// Tries once; the error says why it does not work.
    pub(crate) async fn attempt(&self, within: Duration) -> Result<(), String> {
        self.is_good(within).await.map_err(|unready| unready.why)
    }

    /// The same, and the error also says whether there was an answer at all.
    pub(crate) async fn is_good(&self, within: Duration) -> Result<(), Unready> {
        let why = match timeout(within, self.try_once()).await {
            Ok(tried) => return tried.map_err(|why| Unready { why, is_late: false }),
            Err(_) => format!("{} gave no answer within {within:?}", self.shown()),
        };
        Err(Unready { why, is_late: true })
    }

    /// Tries until it works.
    pub(crate) async fn until_good(&self, within: Duration) {
        let mut again = FIRST_AGAIN;
        while let Err(why) = self.attempt(within).await {
            tracing::debug!(why, "not ready yet");
            sleep(again).await;
            again = (again * 2).min(LAST_AGAIN);
        }
    }

    async fn try_once(&self) -> Result<(), String> {
        let failed = |why: std::io::Error| format!("{}: {why}", self.shown());
        let stream = self.connect().await.map_err(failed)?;
        let What::Answers(path) = &self.what else { return Ok(()) };
        let status = http::get(stream, self.port, path).await.map_err(failed)?;
        match status {
            Some(200..=299) => Ok(()),
            Some(status) => Err(format!("{} was answered with status {status}", self.shown())),
            None => Err(format!("{} was answered with what is no HTTP", self.shown())),
        }
    }

    async fn connect(&self) -> std::io::Result<TcpStream> {
        let there = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let stream = TcpStream::connect(there).await?;
        // A port that nobody listens at may be given to our own end, which then meets itself.
        if stream.local_addr()? == there {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        Ok(stream)
    }

    fn shown(&self) -> String {
        let port = self.port;
        match &self.what {
            What::Connects => format!("port {port}"),
            What::Answers(path) => format!("GET http://127.0.0.1:{port}{path}"),
        }
    }
}

#[cfg(test)]
mod tests;
