//! Lives of servers that are somewhere else: no process, no shim, only somebody who speaks
//! with them.
//!
//! Nothing of such a life outlasts the daemon: another one begins a new life. What it says
//! that is for its log is kept in memory only, as there is no shim that would write it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use xy_config::settings::RemoteSettings;
use xy_shim::wire::{MAX_LINE, Record, flags, put_record};

use super::{Ask, Instance, InstanceEnds, Launch, LaunchOrder, News, millis};
use crate::lifecycle::Exit;
use crate::logs::LogBook;
use crate::speak::{Line, SAID, Said, Speak, TOLD, Told, Way, let_rest, look_after, plain_why};
use crate::wait::{time_of_day, until};

/// How long a speaker may take to hang up.
const HANG_UP_WITHIN: Duration = Duration::from_secs(2);

/// A header shorter than this may stand in any sentence, and is hardly a secret.
const SHORTEST_SECRET: usize = 6;

const HUNG_UP: &str = "whoever spoke with it has hung up";

/// Begins lives of servers that are somewhere else.
pub struct RemoteLauncher {
    speaker: Arc<dyn Speak>,
}

impl fmt::Debug for RemoteLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteLauncher").finish_non_exhaustive()
    }
}

impl RemoteLauncher {
    /// `speaker` speaks with them.
    pub fn new(speaker: Arc<dyn Speak>) -> Self {
        Self { speaker }
    }
}

impl Launch for RemoteLauncher {
    fn launch(&self, order: LaunchOrder) -> Instance {
        let (instance, ends) = Instance::pair();
        let (said_to_us, said) = mpsc::channel(SAID);
        let (told, told_by_us) = mpsc::channel(TOLD);
        self.speaker.speak(Line {
            key: order.key.clone(),
            settings: order.settings.clone(),
            pid: None,
            way: Way::Endpoint,
            before: None,
            said: said_to_us,
            told: told_by_us,
        });
        tokio::spawn(Driver { order, ends, said, told, end: None }.run());
        instance
    }
}

/// Drives one life to its last news.
struct Driver {
    order: LaunchOrder,
    ends: InstanceEnds,
    said: mpsc::Receiver<Said>,
    told: mpsc::Sender<Told>,
    /// How it ended, and when whoever speaks with it must have hung up.
    end: Option<(News, Instant)>,
}

impl Driver {
    async fn run(mut self) {
        let last = loop {
            tokio::select! {
                biased;
                ask = self.ends.asks.recv() => match ask {
                    Some(Ask::Stop { is_hung, .. }) => self.close(is_hung),
                    Some(Ask::Rules { .. }) => {} // They are for shims.
                    Some(Ask::LetGo) => return self.let_go().await,
                    Some(Ask::Kill) => break Some(News::Closed),
                    // Nobody holds this life any more.
                    None => {
                        self.close(false);
                        return;
                    }
                },
                Some(checkup) = self.ends.checkups.recv() => look_after(&self.told, checkup),
                Some(rest) = self.ends.rests.recv(), if self.end.is_none() => {
                    let_rest(&self.told, rest);
                }
                said = self.said.recv() => match said {
                    Some(said) => self.hear(said).await,
                    None => break self.end.take().map(|(last, _)| last),
                },
                () = until(self.end.as_ref().map(|(_, by)| *by)) => {
                    tracing::warn!(server = %self.order.key, "whoever speaks with it does not hang up");
                    break self.end.take().map(|(last, _)| last);
                }
            }
        };
        let last = last.unwrap_or_else(|| News::Unreachable(HUNG_UP.to_owned()));
        let _ = self.ends.news.send(last).await; // Nobody may hold this life any more.
    }

    /// Does what one thing said means. At its end only its log matters.
    async fn hear(&mut self, said: Said) {
        match said {
            Said::Ready if self.end.is_none() => {
                let _ = self.ends.news.send(News::Ready).await; // It may not be held any more.
            }
            Said::Idle(why) if self.end.is_none() => {
                let _ = self.ends.news.send(News::Idle(plain_why(&why))).await; // The same.
            }
            Said::Unreachable(why) => self.ends_with(News::Unreachable(self.plain(&why))),
            // There is nobody here who could end it so that it begins anew.
            Said::Unfit(why) | Said::Hopeless(why) | Said::Unusable(why) => {
                self.ends_with(News::Hopeless(self.plain(&why)));
            }
            Said::Stray(lines) => {
                let lines = self.order.settings.remote().map_or_else(
                    || lines.clone(),
                    |remote| without(remote, &String::from_utf8_lossy(&lines)).into_bytes(),
                );
                keep(&self.order.logs, &lines, time_of_day());
            }
            Said::WriteBegins(known) => {
                let _ = known.send(()); // There is no shim that has to know.
            }
            Said::Ready
            | Said::Idle(_)
            | Said::StartOver(_)
            | Said::Probing(_)
            | Said::Mute
            | Said::Note(_)
            | Said::WriteEnds => {}
        }
    }

    /// What a speaker says, on one line, without what is sent to the server in confidence.
    fn plain(&self, why: &str) -> String {
        let why = plain_why(why);
        self.order.settings.remote().map_or_else(|| why.clone(), |remote| without(remote, &why))
    }

    fn close(&mut self, is_hung: bool) {
        self.tell(Told::Close { is_hung });
        self.ends_with(News::Closed);
    }

    /// The first end is the one that is told of.
    fn ends_with(&mut self, last: News) {
        if self.end.is_none() {
            self.tell(Told::Over(Exit::UNSEEN));
            self.end = Some((last, Instant::now() + HANG_UP_WITHIN));
        }
    }

    /// Another daemon begins anew with it; nothing is kept.
    async fn let_go(mut self) {
        let (answer, answered) = oneshot::channel();
        self.tell(Told::LetGo(answer));
        let hear = async {
            while let Some(said) = self.said.recv().await {
                self.hear(said).await;
            }
        };
        let letting_go = async {
            tokio::select! {
                _ = answered => {}
                () = hear => {}
            }
        };
        if timeout(HANG_UP_WITHIN, letting_go).await.is_err() {
            tracing::warn!(server = %self.order.key, "whoever speaks with it did not let go");
        }
    }

    fn tell(&self, told: Told) {
        let _ = self.told.try_send(told); // There is room for everything there is to tell.
    }
}

/// A sentence without the query and the headers that may be secrets.
fn without(remote: &RemoteSettings, text: &str) -> String {
    let query = remote.url.split_once('?').map(|(_, query)| query);
    let values = query.into_iter().flat_map(|query| query.split(['&', '=']));
    // `Bearer x`: the second word alone is told as easily.
    let words = remote.headers.values().flat_map(|value| value.split(' ').chain([value.as_str()]));
    let mut secrets: Vec<&str> =
        words.chain(query).chain(values).filter(|it| it.len() >= SHORTEST_SECRET).collect();
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.into_iter().fold(text.to_owned(), |text, secret| text.replace(secret, "…"))
}

/// Keeps lines among the latest of a server, as if it had said them on its stderr.
fn keep(logs: &LogBook, lines: &[u8], at: SystemTime) {
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
