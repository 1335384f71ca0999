//! `tcp` and `http` probes of local ports, for readiness and for health. Knows no protocol but the
//! status line of an HTTP response.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use xy_config::settings::{DEFAULT_PROBE_PATH, Probe, ServerSettings};

mod http;

/// Initial and maximum delay between attempts while a server is not ready.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
const RETRY_DELAY_MAX: Duration = Duration::from_millis(500);

/// The target of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) port: u16,
    pub(crate) check: Check,
}

/// The check that a probe performs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Check {
    /// The port accepts a connection.
    Connect,
    /// A GET of this path succeeds.
    Get(String),
}

/// Why a readiness probe failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReady {
    /// The probe and its result.
    pub why: String,
    /// Whether the probe timed out, so that the server may only be busy.
    pub is_timeout: bool,
}

impl Target {
    /// Returns the target of readiness probes, if the settings require one.
    pub(crate) fn readiness(settings: &ServerSettings) -> Option<Self> {
        let ready = &settings.rules.ready;
        match (ready.probe, settings.port()) {
            (Probe::Tcp, Some(port)) => Some(Self::tcp(port)),
            (Probe::Http, Some(port)) => Some(Self::http(port, ready.path.as_deref())),
            _ => None,
        }
    }

    pub(crate) fn tcp(port: u16) -> Self {
        Self { port, check: Check::Connect }
    }

    pub(crate) fn http(port: u16, path: Option<&str>) -> Self {
        Self { port, check: Check::Get(path.unwrap_or(DEFAULT_PROBE_PATH).to_owned()) }
    }

    /// Probes once. The error is the reason of a failure.
    pub(crate) async fn attempt(&self, within: Duration) -> Result<(), String> {
        self.check(within).await.map_err(|not_ready| not_ready.why)
    }

    /// Probes once. The error also tells whether the probe timed out.
    pub(crate) async fn check(&self, within: Duration) -> Result<(), NotReady> {
        let why = match timeout(within, self.probe()).await {
            Ok(tried) => return tried.map_err(|why| NotReady { why, is_timeout: false }),
            Err(_) => format!("{} gave no answer within {within:?}", self.description()),
        };
        Err(NotReady { why, is_timeout: true })
    }

    /// Probes until one attempt succeeds.
    pub(crate) async fn until_ready(&self, within: Duration) {
        let mut delay = RETRY_DELAY_MIN;
        while let Err(why) = self.attempt(within).await {
            tracing::debug!(why, "not ready yet");
            sleep(delay).await;
            delay = (delay * 2).min(RETRY_DELAY_MAX);
        }
    }

    async fn probe(&self) -> Result<(), String> {
        let failed = |why: std::io::Error| format!("{}: {why}", self.description());
        let stream = self.connect().await.map_err(failed)?;
        let Check::Get(path) = &self.check else { return Ok(()) };
        let status = http::get(stream, self.port, path).await.map_err(failed)?;
        match status {
            Some(200..=299) => Ok(()),
            Some(status) => {
                Err(format!("{} was answered with status {status}", self.description()))
            }
            None => {
                Err(format!("{} was answered with something other than HTTP", self.description()))
            }
        }
    }

    async fn connect(&self) -> std::io::Result<TcpStream> {
        let there = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let stream = TcpStream::connect(there).await?;
        // The kernel may pick the port itself as our local port, which connects to itself.
        if stream.local_addr()? == there {
            return Err(std::io::ErrorKind::ConnectionRefused.into());
        }
        Ok(stream)
    }

    fn description(&self) -> String {
        let port = self.port;
        match &self.check {
            Check::Connect => format!("port {port}"),
            Check::Get(path) => format!("GET http://127.0.0.1:{port}{path}"),
        }
    }
}

#[cfg(test)]
mod tests;
