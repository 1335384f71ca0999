//! Drives one life under its shim, from the first order to the last news.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use xy_protocol::server::Transport;
use xy_shim::wire::{ExitReport, GoneRules, Order, Report, StatusReport};

use super::adopt::is_of_home;
use super::fault::explain;
use super::limits;
use super::orphans::{Lives, Shims};
use super::shim_link::{Heard, ShimLink};
use super::shim_process::ShimProcess;
use super::{Ask, InstanceEnds, LaunchOrder, News, millis};
use crate::lifecycle::{Exit, LaunchFault};
use crate::logs::LogBook;
use crate::wait::until;

/// After an exit, the shim has this long to bring its log to disk: more than its own limits.
const FINISH_WITHIN: Duration = Duration::from_secs(20);

/// How long a shim may take to hear our goodbye.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// What knows the processes of one life, should its shim die.
pub(super) struct Below {
    pub(super) shims: Shims,
    /// The mark in the environment of each.
    pub(super) life: String,
    /// Where the shim listens; a killed one leaves it.
    pub(super) socket: PathBuf,
}

/// The life that is over; it is named after its home.
struct OneLife(String);

impl Lives for OneLife {
    fn is_ours(&self, life: &str) -> bool {
        is_of_home(life, self.0.rsplit_once('-').map_or("", |(home, _)| home))
    }

    fn is_over(&self, life: &str) -> bool {
        life == self.0
    }
}

/// Drives one life from the first order to the last news.
pub(super) struct Driver {
    order: LaunchOrder,
    shim: ShimProcess,
    link: ShimLink,
    /// Our end of a stdio server's stdin, open as long as the server shall live.
    stdin: Option<OwnedFd>,
    ends: InstanceEnds,
    /// Whether anybody still holds this life.
    is_held: bool,
    /// Whether a task has gone on with it: not at once, if an earlier daemon began it.
    has_task: bool,
    /// Whether it has been told to end: then a stdin that is only now passed on is closed too.
    is_ending: bool,
    below: Below,
    /// Why it is ended although it has been started.
    refused: Option<LaunchFault>,
    /// How it ended, and when the shim must have ended too.
    end: Option<(News, Instant)>,
}

/// One thing that happens while a life goes on.
enum Turn {
    Heard(Report),
    ShimGone,
    LinkBroken(io::Error),
    Asked(Ask),
    Noted,
    Dropped,
    Overdue,
}

impl Driver {
    pub(super) fn new(
        order: LaunchOrder,
        shim: ShimProcess,
        link: ShimLink,
        below: Below,
        ends: InstanceEnds,
    ) -> Self {
        Self {
            order,
            shim,
            link,
            stdin: None,
            ends,
            is_held: true,
            has_task: true,
            is_ending: false,
            below,
            refused: None,
            end: None,
        }
    }

    /// Goes on with a life that an earlier daemon began.
    pub(super) async fn run_adopted(mut self, status: StatusReport) {
        self.has_task = false;
        let stdin = self.link.take_fd();
        self.is_ending = status.stopping;
        self.tell(News::Confined(status.confined)).await;
        match status.exited {
            Some(exited) => {
                if !self.is_listened_to().await {
                    return self.let_go().await;
                }
                self.has_task = true;
                self.over(exited.report).await;
            }
            None => self.begin(status.pid, stdin).await,
        }
        self.run().await;
    }

    /// Drives it to its end.
    pub(super) async fn run(mut self) {
        loop {
            match self.next_turn().await {
                Turn::Heard(report) => self.hear(report).await,
                Turn::Noted => {
                    self.has_task = true;
                    self.leave_note();
                }
                Turn::Asked(ask) => {
                    self.has_task = true;
                    if self.ends.notes.has_changed().unwrap_or(false) {
                        self.leave_note(); // It was left before this was asked.
                    }
                    match ask {
                        Ask::Stop { grace, for_good } => self.stop(grace, for_good),
                        Ask::Kill => self.shim.kill(),
                        Ask::Rules { orphan_timeout, grace } => {
                            let (orphan_ms, grace_ms) = (millis(orphan_timeout), millis(grace));
                            self.link.queue(&Order::Rules(GoneRules { orphan_ms, grace_ms }));
                        }
                        Ask::LetGo => return self.let_go().await,
                    }
                }
                // Whoever took it over has gone before anybody could go on with it.
                Turn::Dropped if !self.has_task => return self.let_go().await,
                Turn::Dropped => {
                    self.is_held = false;
                    self.stop(self.order.settings.rules.stop.grace, true);
                }
                Turn::ShimGone => break,
                Turn::LinkBroken(error) => {
                    tracing::warn!(server = %self.order.key, %error, "lost the shim");
                    self.shim.kill();
                    break;
                }
                Turn::Overdue => {
                    self.shim.kill();
                    break;
                }
            }
        }
        let child_pid = self.shim.child_pid();
        while timeout(FINISH_WITHIN, self.shim.wait()).await.is_err() {
            self.shim.kill();
        }
        self.below.shims.forget(child_pid);
        let _ = std::fs::remove_file(&self.below.socket); // Most take it with them.
        if self.end.is_none() {
            xy_shim::cgroup::end_stale(); // All at once, where the server had a group.
            let life = OneLife(self.below.life.clone());
            let left = self.below.shims.end_orphans(Arc::new(life)).await;
            xy_shim::cgroup::remove_stale();
            if !left.is_empty() {
                self.tell(News::Survivors(left)).await;
            }
        }
        let last = self.end.map_or(News::Exited(Exit::UNSEEN), |(news, _)| news);
        let _ = self.ends.news.send(last).await; // Nobody may hold this life any more.
    }

    /// Waits for one thing; every arm is cancel-safe.
    async fn next_turn(&mut self) -> Turn {
        let deadline = self.end.as_ref().map(|(_, finish_by)| *finish_by);
        tokio::select! {
            report = self.link.next(&self.order.logs) => match report {
                Ok(Heard::Report(report)) => Turn::Heard(report),
                Ok(Heard::End) => Turn::ShimGone,
                Err(error) => Turn::LinkBroken(error),
            },
            ask = self.ends.asks.recv(), if self.is_held => ask.map_or(Turn::Dropped, Turn::Asked),
            Ok(()) = self.ends.notes.changed(), if self.is_held => Turn::Noted,
            () = until(deadline) => Turn::Overdue,
        }
    }

    async fn hear(&mut self, report: Report) {
        match report {
            Report::Started { pid, lasting, confined } => {
                let stdin = self.link.take_fd();
                if self.is_stdio() && stdin.is_none() {
                    self.refuse_half();
                    return;
                }
                if !lasting {
                    self.tell(News::NotLasting).await;
                }
                self.tell(News::Confined(confined)).await;
                self.begin(pid, stdin).await;
            }
            Report::Status(_) | Report::Refused { .. } => {} // Nobody asked.
            Report::LogTrouble { problem } => self.tell(News::LogTrouble(problem)).await,
            Report::StartFailed(fault) => {
                self.ends_with(News::LaunchFailed(explain(fault, &self.order)));
            }
            Report::Confined(confined) => self.tell(News::Confined(confined)).await,
            Report::Exited(exit) => self.over(exit).await,
        }
    }

    async fn begin(&mut self, pid: u32, stdin: Option<OwnedFd>) {
        self.stdin = stdin.filter(|_| !self.is_ending);
        self.tell(News::Launched { pid }).await;
    }

    /// Waits until there is a task to be told; `false` if there will be none. How a server
    /// ended is forgotten by its shim once we have taken note, so we do not before that: a
    /// daemon that starts may be killed in between.
    async fn is_listened_to(&mut self) -> bool {
        tokio::select! {
            first_note = self.ends.notes.changed() => first_note.is_ok(),
            () = until_gone(&mut self.link, &self.order.logs) => true,
        }
    }

    async fn over(&mut self, exit: ExitReport) {
        if !exit.survivors.is_empty() {
            self.tell(News::Survivors(exit.survivors.clone())).await;
        }
        let oom = limits::oom(exit.oom, &self.order.settings.process);
        let exit = Exit { code: exit.code, signal: exit.signal, oom };
        // From here on only we know it, and may be killed before anybody is told.
        tracing::info!(server = %self.order.key, "{exit}");
        self.link.queue(&Order::Finish);
        let last = self.refused.take().map_or(News::Exited(exit), News::LaunchFailed);
        self.ends_with(last);
    }

    fn leave_note(&mut self) {
        let note = self.ends.notes.borrow_and_update();
        if !note.is_empty() {
            self.link.leave_note(&note); // One that is too long is none: the last one stays.
        }
    }

    /// Leaves the server to its shim. What it says from now on is for another daemon.
    async fn let_go(mut self) {
        self.stdin = None;
        let leaving = self.link.leave(&self.order.logs);
        if !matches!(timeout(LEAVE_WITHIN, leaving).await, Ok(Ok(()))) {
            tracing::warn!(server = %self.order.key, "its shim did not hear our goodbye");
        }
        // The shim stays known as one: until we are gone it is still our child.
    }

    fn is_stdio(&self) -> bool {
        self.order.settings.process.transport == Transport::Stdio
    }

    /// Its pipes did not come with it: the daemon had no descriptor left for them.
    fn refuse_half(&mut self) {
        let message = "the daemon has too many files open".to_owned();
        let hint = Some("raise the limit of open files (`ulimit -n`) and restart it".to_owned());
        let fault = LaunchFault { permanent: false, message, hint };
        self.stop(Duration::ZERO, false);
        self.refused = Some(fault);
    }

    async fn tell(&self, news: News) {
        let _ = self.ends.news.send(news).await; // Nobody may hold this life any more.
    }

    fn ends_with(&mut self, news: News) {
        self.end = Some((news, Instant::now() + FINISH_WITHIN));
    }

    fn stop(&mut self, grace: Duration, for_good: bool) {
        self.is_ending = true;
        self.stdin = None;
        self.link.queue(&Order::Stop { grace_ms: millis(grace), for_good });
    }
}

/// Says and hears what there is until the shim is gone.
async fn until_gone(link: &mut ShimLink, logs: &LogBook) {
    while let Ok(Heard::Report(_)) = link.next(logs).await {}
}
