//! Adoption of containers that an earlier daemon started.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bollard::container::AttachContainerResults;
use bollard::errors::Error;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use xy_protocol::server::Transport;
use xy_shim::stream_holder::HolderCommand;
use xy_shim::wire::{self, Confinement, ExitReport, PastExit, StatusReport};
use xy_supervisor::instance::InstanceKey;
use xy_supervisor::launch::adopt::AdoptedLife;
use xy_supervisor::launch::{LaunchOrder, LifeHandle};
use xy_supervisor::lifecycle::Note;
use xy_supervisor::lifecycle::{Exit, Oom};
use xy_supervisor::logs::{LogBook, instance_log};
use xy_supervisor::wait::millis;
use xy_supervisor::wait::time_of_day;

use crate::create;
use crate::engine::{Engine, is_stopped_state};
use crate::exit_watch::{self, ContainerStatus, Termination};
use crate::launcher::ContainerLauncher;
use crate::log::{self, Ledger};
use crate::log_gap::{self, GapError, KnownTails, MissedOutput, OutputPosition, ResumePoint};
use crate::overlap::with_fresh;
use crate::owned_names::NameLease;
use crate::runner::ContainerRunner;
use crate::start::StartedContainer;
use crate::state_file::{self, PositionFile, SavedState, StateFile};
use crate::stream::{self, StreamPosition};
use crate::stream_holder::{self, StreamHolder};

/// How long a starting daemon waits for all engines before it accepts clients.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Time to adopt one container. After that its server is started anew; once the engine responds
/// again, the old container has no owner and is removed.
const CONTAINER_TIMEOUT: Duration = Duration::from_mins(2);

/// Time for the rest of a line to appear in the engine's log, when a dead daemon had read only its
/// beginning; and how often the log is read.
const LINE_REST_TIMEOUT: Duration = Duration::from_secs(5);
const LOG_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Time to remove a container of which nothing is known.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(20);

impl ContainerLauncher {
    /// Adopts all containers that earlier daemons left and whose engine answers.
    ///
    /// Containers of slow engines are returned as pending. Until they are decided, they count as
    /// owned, and no other instance of theirs starts. If an engine does not answer at all, its
    /// containers are removed once their servers are started anew.
    pub async fn adopt_all(&self) -> (Vec<AdoptedLife>, JoinSet<Option<AdoptedLife>>) {
        let mut attempts = JoinSet::new();
        let all = state_file::read_all(&self.shared.state_dir);
        self.end_unknown_stream_holders(&all).await;
        for (key, state, is_torn) in all {
            let name = create::name(&self.shared.home, &key);
            // The name is free: there is one file per instance, and nothing has been started yet.
            let lease = self.shared.owned.lease(&name).await;
            self.shared.engines.record_use(&state.socket);
            let launcher = self.clone();
            attempts.spawn(async move {
                let server = key.clone();
                let adopting = launcher.adopt(key, state, is_torn, lease);
                timeout(CONTAINER_TIMEOUT, adopting).await.unwrap_or_else(|_| {
                    tracing::error!(%server, "its engine takes too long to hand over its container");
                    None
                })
            });
        }
        let mut adopted = Vec::new();
        let give_up_at = Instant::now() + STARTUP_TIMEOUT;
        while let Ok(Some(attempt)) = timeout_at(give_up_at, attempts.join_next()).await {
            adopted.extend(attempt.ok().flatten());
        }
        (adopted, attempts)
    }

    /// Ends the stream holders of containers that have no state file. A daemon that is killed
    /// before it has written that file leaves one.
    async fn end_unknown_stream_holders(&self, known: &[(InstanceKey, SavedState, bool)]) {
        let folder = &self.shared.state_dir;
        let known: Vec<_> =
            known.iter().map(|it| stream_holder::path(folder, &it.1.container)).collect();
        for path in stream_holder::all(folder).iter().filter(|path| !known.contains(path)) {
            stream_holder::end_at(&self.shared, path).await;
        }
    }

    async fn adopt(
        &self,
        key: InstanceKey,
        state: SavedState,
        is_torn: bool,
        lease: NameLease,
    ) -> Option<AdoptedLife> {
        let server = &key;
        let state_file = StateFile::of(&self.shared.state_dir, &key, state);
        let note = Note::parse(state_file.state().note.as_bytes());
        let speaks = |note: &Note| note.settings.transport() == Transport::Stdio;
        // The log comes first: recorded output must reach it, whatever has become of the container.
        let log = self.recover_output(&key, &state_file, note.as_ref().is_none_or(speaks)).await?;
        let engine = match Engine::at(&state_file.state().socket).await {
            Ok(engine) => engine,
            Err(why) => {
                tracing::error!(%server, "its container cannot be taken over: {why}");
                return None;
            }
        };
        let Some(note) = note else {
            tracing::error!(%server, "no saved state of this server: starting a new instance");
            stream_holder::end_for(&self.shared, &state_file.state().container).await;
            let _ = timeout(REMOVE_TIMEOUT, engine.remove(&state_file.state().container)).await;
            state_file.remove();
            return None;
        };
        let memory = note.settings.container().and_then(|it| it.memory);
        let id = state_file.state().container.clone();
        let mut now = exit_watch::query_settled(&engine, &id, memory).await;
        if state_file.state().held && is_unsettled(&now) {
            // The engine waits until the last output is read, or cannot be read any more.
            stream_holder::end_for(&self.shared, &id).await;
            now = exit_watch::query_settled(&engine, &id, memory).await;
        }
        let termination = match now {
            Ok(ContainerStatus::Running { .. } | ContainerStatus::Paused { .. }) => None,
            Ok(ContainerStatus::Exited(end)) => Some(Termination::Exited(end)),
            Ok(ContainerStatus::Removed) => {
                tracing::warn!(%server, "its container was removed: starting a new instance");
                stream_holder::end_for(&self.shared, &id).await;
                state_file.remove();
                return None;
            }
            Err(why) => {
                tracing::error!(%server, %why, "its container cannot be taken over");
                return None;
            }
        };
        let pid = match now {
            Ok(ContainerStatus::Running { pid } | ContainerStatus::Paused { pid }) => pid,
            _ => 0,
        };
        let is_stdio = speaks(&note);
        let runs = termination.is_none().then_some(pid);
        let position = log.position.noted();
        let mut known = log.known.clone();
        if is_stdio {
            known[0] = None; // Its log contains only a part of its stdout.
        }
        let resume = ResumePoint { position, tails: &known };
        let attachment = self.reattach(&key, &engine, &state_file, resume, runs, is_stdio).await?;
        let Attachment { attached, stream_holder, missed, is_held } = attachment;
        // If it has exited, or does not use stdio, no client waits for its stdout.
        let needs_out = is_stdio && termination.is_none();
        let (missed, is_torn) = match log_gap::tolerate_gaps(missed, needs_out, server) {
            Ok(missed) => (missed, is_torn),
            Err(why) => {
                tracing::error!(%server, "{why}: starting a new instance");
                (MissedOutput { gaps: [false, true], ..MissedOutput::default() }, true)
            }
        };
        tracing::info!(%server, pid, container = id, "taken over from an earlier daemon");
        let can_be_cut_off = engine.closes_stdin && is_stdio && !state_file.state().stopping;
        let is_cut_off = can_be_cut_off && is_cut_off(is_held, termination.as_ref().map(exit_of));
        let status = status(state_file.state(), pid, is_torn || is_cut_off, termination.as_ref());
        let RecoveredOutput { position, ledger, logs, .. } = log;
        let order = LaunchOrder {
            key: key.clone(),
            settings: note.settings.clone(),
            logs: logs.clone(),
            note: Vec::new(),
        };
        let (handle, channels) = LifeHandle::pair();
        let started = StartedContainer {
            engine,
            id,
            pid,
            attached,
            stream_holder,
            state_file,
            position,
            ledger,
            lease,
        };
        let runner = ContainerRunner::new(self.shared.clone(), order, channels, started);
        tokio::spawn(runner.run_adopted(
            missed,
            note.speaker.clone(),
            termination,
            status.stopping,
        ));
        Some(AdoptedLife { key, note, status, status_at: Instant::now(), handle, logs })
    }
}

/// The recovered log of a container, and how far it reaches.
struct RecoveredOutput {
    position: PositionFile,
    ledger: Ledger,
    logs: Arc<LogBook>,
    /// The end of the logged stdout and stderr.
    known: KnownTails,
}

/// A stream, its holder, and the output that was missed.
struct Attachment {
    /// `None` if the container has exited.
    attached: Option<AttachContainerResults>,
    stream_holder: Option<StreamHolder>,
    missed: Result<MissedOutput, GapError>,
    /// True if its stdin was held open all the time, except by its own end.
    is_held: bool,
}

/// A stream that a holder has kept open.
struct HeldStream {
    attached: AttachContainerResults,
    stream_holder: StreamHolder,
    /// Position within the stream.
    at: StreamPosition,
}

impl ContainerLauncher {
    /// Recovers the log where the last daemon left it. Returns `None` only if this daemon is
    /// shutting down.
    async fn recover_output(
        &self,
        key: &InstanceKey,
        state_file: &StateFile,
        is_stdio: bool,
    ) -> Option<RecoveredOutput> {
        let (mut position, lines) = (state_file.position_file(), state_file.ledger_path());
        let file = instance_log(&self.shared.logs_dir, key);
        let recovering = spawn_blocking(move || {
            let noted = position.noted();
            let log::RecoveredLog { ledger, book, known } =
                log::recover(lines, &file, noted, is_stdio);
            // Stdout that is protocol was consumed only up to the noted position.
            let [out, err] = ledger.logged();
            position.write(&OutputPosition { out: noted.out.max(out), err, ..noted });
            RecoveredOutput { position, ledger, logs: Arc::new(book), known }
        });
        recovering.await.ok()
    }

    /// Attaches to a container that `runs` with this leader, or has exited. Returns `None` if its
    /// engine refuses.
    async fn reattach(
        &self,
        server: &InstanceKey,
        engine: &Engine,
        state_file: &StateFile,
        resume: ResumePoint<'_>,
        runs: Option<u32>,
        is_stdio: bool,
    ) -> Option<Attachment> {
        let id = &state_file.state().container;
        let folder = &self.shared.state_dir;
        if let Some(pid) = runs.filter(|_| is_stdio)
            && let Some(HeldStream { attached, stream_holder, at }) =
                self.find_held_stream(server, state_file).await
        {
            stream_holder.send(HolderCommand::Leader(pid));
            // All later output is still in the stream.
            let missed = read_taken(server, engine, id, resume, at).await;
            let (attached, stream_holder) = (Some(attached), Some(stream_holder));
            return Some(Attachment { attached, stream_holder, missed, is_held: true });
        }
        let was_held = state_file.state().held;
        let is_held = runs.is_none() && was_held && !stream_holder::is_lost(folder, id);
        if was_held {
            stream_holder::end_for(&self.shared, id).await;
        }
        // The stream is attached before the log is read: output in between comes twice rather than
        // not at all.
        let mut attached = match runs {
            Some(_) => Some(engine.attach(id).await.ok()?),
            None => None,
        };
        let mut missed = log_gap::read_after(engine, id, resume).await;
        if let (Ok(so_far), Some(attached)) = (&mut missed, &mut attached) {
            *so_far = with_fresh(std::mem::take(so_far), &mut attached.output).await;
        }
        Some(Attachment { attached, stream_holder: None, missed, is_held })
    }

    /// Returns the stream of a running container from its holder.
    async fn find_held_stream(
        &self,
        server: &InstanceKey,
        state_file: &StateFile,
    ) -> Option<HeldStream> {
        let state = state_file.state();
        if !state.held {
            return None; // It was never held.
        }
        let found = async {
            let taken = state_file.read_journal()?;
            let (stream_holder, stream) =
                StreamHolder::find(&self.shared.state_dir, &state.container).await?;
            let (attached, at) = stream::resume(stream, Some(taken))?;
            Ok::<_, std::io::Error>(HeldStream { attached, stream_holder, at })
        };
        let found = found.await.inspect_err(|error| {
            tracing::error!(%server, %error, "its stream holder is gone");
        });
        found.ok()
    }
}

/// Reads output that was taken off the stream but not used.
///
/// Docker passes an unfinished line on at once, but logs the end of it only with the rest of the
/// line. Missing stderr only leaves a gap in the log, so it is not an error.
async fn read_taken(
    server: &InstanceKey,
    engine: &Engine,
    id: &str,
    resume: ResumePoint<'_>,
    at: StreamPosition,
) -> Result<MissedOutput, GapError> {
    let give_up_at = Instant::now() + LINE_REST_TIMEOUT;
    let is_late = || engine.closes_stdin || Instant::now() >= give_up_at;
    let out = loop {
        match log_gap::read_out(engine, id, resume.position, at.out).await {
            Err(GapError::TooMuch) if !is_late() => sleep(LOG_POLL_INTERVAL).await,
            read => break read?,
        }
    };
    let err = loop {
        match log_gap::read_some(engine, id, resume, [resume.position.out, at.err]).await {
            Ok((_, [_, false])) if !is_late() => sleep(LOG_POLL_INTERVAL).await,
            Ok((read, _)) => break read.err,
            Err(why) => {
                tracing::warn!(%server, "{why}");
                break Vec::new();
            }
        }
    };
    let err_lost = at.err.saturating_sub(resume.position.err + err.len() as u64);
    if err_lost > 0 {
        tracing::warn!(%server, bytes = err_lost, "lines are missing in its log");
    }
    Ok(MissedOutput { out, err, err_lost, ..MissedOutput::default() })
}

/// Returns true if it has exited but its engine cannot say how yet. Pure.
fn is_unsettled(now: &Result<ContainerStatus, Error>) -> bool {
    match now {
        Ok(ContainerStatus::Exited(end)) => end.at.is_none(),
        Ok(_) => false,
        Err(why) => is_stopped_state(why),
    }
}

/// Returns true if the loss of its stdin ended it, or if it runs but can no longer be reached. It
/// is then started anew, which does not count as a failure. Pure.
///
/// A clean exit without a daemon counts as such a loss even if the stream was held. An engine that
/// shuts down closes both at once, and an idle server had no other reason to exit.
///
/// A kill for lack of memory is no consequence of it, and is reported as such.
fn is_cut_off(is_held: bool, ended: Option<Exit>) -> bool {
    match ended {
        None => !is_held,
        Some(exit) => exit.oom.is_none() && (!is_held || exit.is_clean()),
    }
}

fn exit_of(termination: &Termination) -> Exit {
    match termination {
        Termination::Exited(end) => end.exit,
        Termination::Removed | Termination::EngineLost(_) => Exit::UNKNOWN,
    }
}

/// Returns the status report that a shim would have sent.
fn status(
    state: &SavedState,
    pid: u32,
    torn: bool,
    termination: Option<&Termination>,
) -> StatusReport {
    let now = time_of_day();
    let since = |ms: u64| {
        millis(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()).saturating_sub(ms)
    };
    let exited = termination.map(|termination| {
        let exit = exit_of(termination);
        let at = match termination {
            Termination::Exited(end) => end.at,
            Termination::Removed | Termination::EngineLost(_) => None,
        };
        let ago = at.and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
        let report = ExitReport {
            code: exit.code,
            signal: exit.signal,
            asked: state.stopping,
            survivors: Vec::new(),
            oom: exit.oom.map(|oom| match oom {
                Oom::Limit { .. } => wire::Oom::Limit,
                Oom::Machine => wire::Oom::Machine,
            }),
        };
        PastExit { report, ms_ago: millis(ago) }
    });
    StatusReport {
        protocol: wire::PROTOCOL,
        pid,
        age_ms: since(state.began_ms),
        note_age_ms: since(state.noted_ms),
        passed: [false; 2],
        torn,
        stopping: state.stopping,
        exited,
        confined: Confinement::default(),
        logged: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: Exit = Exit { signal: Some(9), ..Exit::UNKNOWN };

    #[test]
    fn cut_off_differs_from_own_exit() {
        let out_of_memory = Exit { oom: Some(Oom::Machine), ..KILLED };
        // Whether its stream was held, how it exited, and whether it was cut off.
        let table = [
            (true, None, false),
            (false, None, true),
            (true, Some(Exit::code(0)), true),
            (true, Some(Exit::code(1)), false),
            (true, Some(KILLED), false),
            (false, Some(Exit::code(0)), true),
            (false, Some(Exit::code(1)), true),
            (false, Some(KILLED), true),
            (true, Some(out_of_memory), false),
            (false, Some(out_of_memory), false),
        ];
        for (is_held, ended, expected) in table {
            assert_eq!(is_cut_off(is_held, ended), expected, "{is_held} {ended:?}");
        }
    }
}
