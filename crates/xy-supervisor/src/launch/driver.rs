//! Drives one life under its shim, from the first order to the last news.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio::time::{Instant, timeout};
use xy_protocol::server::Transport;
use xy_shim::wire::{Order, Report};

use super::fault::explain;
use super::orphans::Shims;
use super::shim_link::{Heard, ShimLink};
use super::{Ask, InstanceEnds, LaunchOrder, News, millis};
use crate::lifecycle::{Exit, LaunchFault};
use crate::wait::until;

/// What a dead server can have left in its stdout: no pipe holds more by default.
const PIPE_REST: usize = 1024 * 1024;

/// After an exit, the shim has this long to bring its log to disk: more than its own limits.
const FINISH_WITHIN: Duration = Duration::from_secs(20);

/// Our ends of a stdio server.
#[derive(Default)]
struct Pipes {
    /// Open as long as the server shall live.
    stdin: Option<OwnedFd>,
    stdout: Option<pipe::Receiver>,
}

/// What knows the processes of one life, should its shim die.
pub(super) struct Below {
    pub(super) shims: Shims,
    /// In the environment of each: `NAME=value`.
    pub(super) mark: String,
}

/// Drives one life from the first order to the last news.
pub(super) struct Driver {
    order: LaunchOrder,
    shim: Child,
    link: ShimLink,
    pipes: Pipes,
    ends: InstanceEnds,
    /// Whether anybody still holds this life.
    is_held: bool,
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
    Room,
    ShimGone,
    LinkBroken(io::Error),
    Asked(Ask),
    Dropped,
    Output,
    Overdue,
}

impl Driver {
    pub(super) fn new(
        order: LaunchOrder,
        shim: Child,
        link: ShimLink,
        below: Below,
        ends: InstanceEnds,
    ) -> Self {
        let pipes = Pipes::default();
        Self {
            order,
            shim,
            link,
            pipes,
            ends,
            is_held: true,
            is_ending: false,
            below,
            refused: None,
            end: None,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            match self.next_turn().await {
                Turn::Heard(report) => self.hear(report).await,
                Turn::Room => {} // So output is read again.
                Turn::Asked(Ask::Stop { grace }) => self.stop(grace),
                Turn::Asked(Ask::Kill) => self.kill(),
                Turn::Dropped => {
                    self.is_held = false;
                    self.close_stdin();
                    self.link.hang_up();
                }
                Turn::Output => self.forward_stdout(),
                Turn::ShimGone => break,
                Turn::LinkBroken(error) => {
                    tracing::warn!(server = %self.order.key, %error, "lost the shim");
                    self.kill();
                    break;
                }
                Turn::Overdue => {
                    self.kill();
                    break;
                }
            }
        }
        let shim_pid = self.shim.id();
        if timeout(FINISH_WITHIN, self.shim.wait()).await.is_err() {
            let _ = self.shim.kill().await; // It may have ended this instant.
        }
        self.below.shims.forget(shim_pid);
        if self.end.is_none() {
            let left = self.below.shims.end_orphans(&self.below.mark).await;
            if !left.is_empty() {
                self.tell(News::Survivors(left)).await;
            }
        }
        let last = self.end.map_or(News::Exited(Exit::UNSEEN), |(news, _)| news);
        let _ = self.ends.news.send(last).await; // Nobody may hold this life any more.
    }

    /// Waits for one thing; every arm is cancel-safe.
    async fn next_turn(&mut self) -> Turn {
        let may_read = self.link.has_room() && self.end.is_none();
        let deadline = self.end.as_ref().map(|(_, finish_by)| *finish_by);
        tokio::select! {
            report = self.link.next(&self.order.logs) => match report {
                Ok(Heard::Report(report)) => Turn::Heard(report),
                Ok(Heard::Room) => Turn::Room,
                Ok(Heard::End) => Turn::ShimGone,
                Err(error) => Turn::LinkBroken(error),
            },
            ask = self.ends.asks.recv(), if self.is_held => ask.map_or(Turn::Dropped, Turn::Asked),
            () = readable(self.pipes.stdout.as_ref()), if may_read => Turn::Output,
            () = until(deadline) => Turn::Overdue,
        }
    }

    async fn hear(&mut self, report: Report) {
        match report {
            Report::Started { pid } => {
                let (stdin, stdout) = (self.link.take_fd(), self.link.take_fd());
                if self.is_stdio() && stdout.is_none() {
                    self.refuse_half();
                    return;
                }
                self.pipes.stdin = stdin.filter(|_| !self.is_ending);
                self.pipes.stdout = stdout.and_then(|fd| pipe::Receiver::from_owned_fd(fd).ok());
                self.tell(News::Launched { pid }).await;
            }
            Report::LogTrouble { problem } => self.tell(News::LogTrouble(problem)).await,
            Report::StartFailed(fault) => {
                self.ends_with(News::LaunchFailed(explain(fault, &self.order)));
            }
            Report::Exited(exit) => {
                if !exit.survivors.is_empty() {
                    self.tell(News::Survivors(exit.survivors.clone())).await;
                }
                self.forward_rest();
                self.link.queue(&Order::Finish);
                let exited = News::Exited(Exit { code: exit.code, signal: exit.signal });
                let last = self.refused.take().map_or(exited, News::LaunchFailed);
                self.ends_with(last);
            }
        }
    }

    fn is_stdio(&self) -> bool {
        self.order.settings.process.transport == Transport::Stdio
    }

    /// Its pipes did not come with it: the daemon had no descriptor left for them.
    fn refuse_half(&mut self) {
        let message = "the daemon has too many files open".to_owned();
        let hint = Some("raise the limit of open files (`ulimit -n`) and restart it".to_owned());
        let fault = LaunchFault { permanent: false, message, hint };
        self.stop(Duration::ZERO);
        self.refused = Some(fault);
    }

    async fn tell(&self, news: News) {
        let _ = self.ends.news.send(news).await; // Nobody may hold this life any more.
    }

    fn ends_with(&mut self, news: News) {
        self.end = Some((news, Instant::now() + FINISH_WITHIN));
    }

    fn stop(&mut self, grace: Duration) {
        self.close_stdin();
        self.link.queue(&Order::Stop { grace_ms: millis(grace) });
    }

    fn close_stdin(&mut self) {
        self.is_ending = true;
        self.pipes.stdin = None;
    }

    fn kill(&mut self) {
        let _ = self.shim.start_kill(); // It may have ended this instant.
    }

    /// Hands over what the dead had left in its stdout; one that escaped may go on writing.
    fn forward_rest(&mut self) {
        let Pipes { stdout, .. } = std::mem::take(&mut self.pipes);
        let Some(stdout) = stdout else { return };
        let mut forwarded = 0;
        while forwarded < PIPE_REST {
            // Read from the pipe itself: the runtime may not have heard of the last bytes yet.
            let read = |scratch: &mut [u8]| Ok(rustix::io::read(&stdout, scratch)?);
            match self.link.forward(read) {
                Ok(got @ 1..) => forwarded += got,
                Ok(0) | Err(_) => return,
            }
        }
    }

    /// Until somebody speaks MCP with it, all a stdio server says on stdout is log.
    fn forward_stdout(&mut self) {
        let Some(stdout) = &self.pipes.stdout else {
            return;
        };
        match self.link.forward(|scratch| stdout.try_read(scratch)) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => self.pipes.stdout = None,
        }
    }
}

async fn readable(pipe: Option<&pipe::Receiver>) {
    match pipe {
        None => std::future::pending().await,
        Some(pipe) => _ = pipe.readable().await, // An error shows itself at the read that follows.
    }
}
