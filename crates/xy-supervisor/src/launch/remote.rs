//! The launcher of remote servers, which have no process and no shim here.
//!
//! Nothing of such a life outlasts the daemon: a later one connects anew. Output for its log
//! is kept in memory only, as there is no shim to write it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tracing::Instrument;
use xy_config::settings::RemoteSettings;
use xy_shim::wire::{MAX_LINE, Record, flags, put_record};

use super::{Launch, LaunchOrder, LifeChannels, LifeCommand, LifeEvent, LifeHandle};
use crate::lifecycle::Exit;
use crate::logs::LogBook;
use crate::protocol::{
    COMMAND_QUEUE_CAPACITY, Connection, DriverCommand, DriverEvent, EVENT_QUEUE_CAPACITY,
    ProtocolDriver, ServerIo, request_checkup, request_idle_stop, truncate_reason,
};
use crate::wait::millis;
use crate::wait::{time_of_day, until};

/// Time for a driver to drop its connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Minimum length of a redacted value. A shorter one may occur in any sentence, and is hardly a
/// secret.
const MIN_SECRET_CHARS: usize = 6;

const CONNECTION_DROPPED: &str = "its protocol driver closed the connection";

/// Connects to remote servers.
pub struct RemoteLauncher {
    driver: Arc<dyn ProtocolDriver>,
}

impl fmt::Debug for RemoteLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteLauncher").finish_non_exhaustive()
    }
}

impl RemoteLauncher {
    /// Creates a launcher whose servers `driver` speaks with.
    pub fn new(driver: Arc<dyn ProtocolDriver>) -> Self {
        Self { driver }
    }
}

impl Launch for RemoteLauncher {
    fn launch(&self, order: LaunchOrder) -> LifeHandle {
        let (handle, channels) = LifeHandle::pair();
        let (event_sender, driver_events) = mpsc::channel(EVENT_QUEUE_CAPACITY);
        let (driver_commands, command_receiver) = mpsc::channel(COMMAND_QUEUE_CAPACITY);
        self.driver.drive(Connection {
            key: order.key.clone(),
            settings: order.settings.clone(),
            pid: None,
            io: ServerIo::Endpoint,
            handover: None,
            events: event_sender,
            commands: command_receiver,
        });
        tokio::spawn(
            RemoteRunner { order, channels, driver_events, driver_commands, end: None }
                .run()
                .in_current_span(),
        );
        handle
    }
}

/// Runs one life until its last event.
struct RemoteRunner {
    order: LaunchOrder,
    channels: LifeChannels,
    driver_events: mpsc::Receiver<DriverEvent>,
    driver_commands: mpsc::Sender<DriverCommand>,
    /// The last event, and when the driver must have dropped its connection.
    end: Option<(LifeEvent, Instant)>,
}

impl RemoteRunner {
    async fn run(mut self) {
        let last = loop {
            tokio::select! {
                biased;
                command = self.channels.commands.recv() => match command {
                    Some(LifeCommand::Stop { is_hung, .. }) => self.close(is_hung),
                    Some(LifeCommand::SetOrphanRules { .. }) => {} // Only shims need them.
                    Some(LifeCommand::HandOver) => return self.hand_over().await,
                    Some(LifeCommand::Kill) => break Some(LifeEvent::Closed),
                    // The task has dropped the instance.
                    None => {
                        self.close(false);
                        return;
                    }
                },
                Some(checkup) = self.channels.checkups.recv() => {
                    request_checkup(&self.driver_commands, checkup);
                }
                Some(request) = self.channels.idle_stops.recv(), if self.end.is_none() => {
                    request_idle_stop(&self.driver_commands, request);
                }
                event = self.driver_events.recv() => match event {
                    Some(event) => self.on_driver_event(event).await,
                    None => break self.end.take().map(|(last, _)| last),
                },
                () = until(self.end.as_ref().map(|(_, by)| *by)) => {
                    tracing::warn!(server = %self.order.key, "its protocol driver does not close the connection");
                    break self.end.take().map(|(last, _)| last);
                }
            }
        };
        let last = last.unwrap_or_else(|| LifeEvent::Unreachable(CONNECTION_DROPPED.to_owned()));
        let _ = self.channels.events.send(last).await; // The task may have dropped the instance.
    }

    /// Handles an event of the protocol driver. After the end only output for the log matters.
    async fn on_driver_event(&mut self, event: DriverEvent) {
        match event {
            DriverEvent::Ready if self.end.is_none() => {
                // The task may be gone.
                let _ = self.channels.events.send(LifeEvent::Ready).await;
            }
            DriverEvent::Idle(why) if self.end.is_none() => {
                // The task may be gone.
                let _ = self.channels.events.send(LifeEvent::Idle(truncate_reason(&why))).await;
            }
            DriverEvent::Unreachable(why) => {
                self.set_last_event(LifeEvent::Unreachable(self.redact(&why)));
            }
            // xy cannot restart a remote server.
            DriverEvent::ProtocolError(why)
            | DriverEvent::Unrecoverable(why)
            | DriverEvent::Unusable(why) => {
                self.set_last_event(LifeEvent::Unrecoverable(self.redact(&why)));
            }
            DriverEvent::UnparsedOutput(lines) => {
                let lines = self.order.settings.remote().map_or_else(
                    || lines.clone(),
                    |remote| redacted(remote, &String::from_utf8_lossy(&lines)).into_bytes(),
                );
                log_lines(&self.order.logs, &lines, time_of_day());
            }
            DriverEvent::WriteBegins(known) => {
                let _ = known.send(()); // No shim has to know.
            }
            DriverEvent::Ready
            | DriverEvent::Idle(_)
            | DriverEvent::RestartRequired(_)
            | DriverEvent::Probing(_)
            | DriverEvent::UnansweredCalls(_)
            | DriverEvent::StdoutClosed
            | DriverEvent::Note(_)
            | DriverEvent::WriteEnds => {}
        }
    }

    /// Returns a reason on one line, without the secrets that are sent to the server.
    fn redact(&self, why: &str) -> String {
        let why = truncate_reason(why);
        self.order.settings.remote().map_or_else(|| why.clone(), |remote| redacted(remote, &why))
    }

    fn close(&mut self, is_hung: bool) {
        self.send(DriverCommand::Close { is_hung });
        self.set_last_event(LifeEvent::Closed);
    }

    /// Ends the instance. Only the first end is reported.
    fn set_last_event(&mut self, last: LifeEvent) {
        if self.end.is_none() {
            self.send(DriverCommand::Exited(Exit::UNKNOWN));
            self.end = Some((last, Instant::now() + CLOSE_TIMEOUT));
        }
    }

    /// Ends the connection; a later daemon connects anew.
    async fn hand_over(mut self) {
        let (answer, answered) = oneshot::channel();
        self.send(DriverCommand::HandOver(answer));
        let on_driver_event = async {
            while let Some(event) = self.driver_events.recv().await {
                self.on_driver_event(event).await;
            }
        };
        let letting_go = async {
            tokio::select! {
                _ = answered => {}
                () = on_driver_event => {}
            }
        };
        if timeout(CLOSE_TIMEOUT, letting_go).await.is_err() {
            tracing::warn!(server = %self.order.key, "its protocol driver did not hand over in time");
        }
    }

    fn send(&self, command: DriverCommand) {
        let _ = self.driver_commands.try_send(command); // The queue has room for all commands.
    }
}

/// Returns a text without the query and the header values that may be secrets.
fn redacted(remote: &RemoteSettings, text: &str) -> String {
    let query = remote.url.split_once('?').map(|(_, query)| query);
    let values = query.into_iter().flat_map(|query| query.split(['&', '=']));
    // In `Bearer x` the second word alone is a secret too.
    let words = remote.headers.values().flat_map(|value| value.split(' ').chain([value.as_str()]));
    let mut secrets: Vec<&str> =
        words.chain(query).chain(values).filter(|it| it.len() >= MIN_SECRET_CHARS).collect();
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.into_iter().fold(text.to_owned(), |text, secret| text.replace(secret, "…"))
}

/// Appends lines to the in-memory log of a server, as if they came from its stderr.
fn log_lines(logs: &LogBook, lines: &[u8], at: SystemTime) {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut batch = Vec::new();
    let mut seq = logs.next_seq();
    for line in lines.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let pieces = line.chunks(MAX_LINE).chain(line.is_empty().then_some(line));
        for (nth, line) in pieces.enumerate() {
            let continued = if nth == 0 { 0 } else { flags::CONTINUED };
            let flags = flags::STDERR | continued;
            put_record(&mut batch, Record { seq, unix_millis: millis(since), flags, line });
            seq += 1;
        }
    }
    logs.push(seq, &batch);
}

#[cfg(test)]
mod tests;
