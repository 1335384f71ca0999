//! Going on with containers that an earlier daemon began.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bollard::container::AttachContainerResults;
use bollard::errors::Error;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use xy_protocol::server::Transport;
use xy_shim::grip::Word;
use xy_shim::wire::{self, Confined, ExitReport, PastExit, StatusReport};

use super::engine::{Engine, is_between};
use super::fate::{self, Fate, Now};
use super::grip::{self, Grip};
use super::kept::{self, Keeper, Kept, PlaceFile};
use super::life::Driver;
use super::log::{self, Ledger};
use super::missed::{self, Heard, Known, Missed, NotKept, Place};
use super::overlap::with_fresh;
use super::reconcile::Hold;
use super::start::Begun;
use super::stream::{self, At};
use super::{ContainerLauncher, create};
use crate::instance::InstanceKey;
use crate::launch::adopt::Adopted;
use crate::launch::{Instance, LaunchOrder, millis};
use crate::lifecycle::note::Note;
use crate::lifecycle::{Exit, Oom};
use crate::logs::{LogBook, instance_log};
use crate::wait::time_of_day;

/// How long a daemon waits for all engines before it opens its door.
const MOST_WITHIN: Duration = Duration::from_secs(10);

/// How long all of it may take for one container. Then its server is started anew: an engine
/// that moves again after that finds that nobody owns what it has.
const ONE_WITHIN: Duration = Duration::from_mins(2);

/// How long the rest of a line may take that a dead daemon had heard half of, and how often that is
/// looked for.
const REST_OF_LINE_WITHIN: Duration = Duration::from_secs(5);
const LOGGED_YET: Duration = Duration::from_millis(250);

/// How long one that nothing is known of may take to be removed.
const REMOVE_WITHIN: Duration = Duration::from_secs(20);

impl ContainerLauncher {
    /// Goes on with everything that earlier daemons left, where its engine answers. Those whose
    /// engine is slow are among the rest: until it is known what becomes of one, nobody takes it
    /// for left, and no other life of it begins. What is left of an engine that does not answer
    /// at all is removed when its servers are started anew.
    pub async fn adopt_all(&self) -> (Vec<Adopted>, JoinSet<Option<Adopted>>) {
        let mut tries = JoinSet::new();
        let all = kept::all(&self.shared.kept_dir);
        self.end_unknown_grips(&all).await;
        for (key, kept, is_torn) in all {
            let name = create::name(&self.shared.home, &key);
            // Nobody else has it: there is a file per instance, and nothing was started yet.
            let hold = self.shared.owned.hold(&name).await;
            self.shared.engines.saw(&kept.socket);
            let launcher = self.clone();
            tries.spawn(async move {
                let server = key.clone();
                let adopting = launcher.adopt(key, kept, is_torn, hold);
                timeout(ONE_WITHIN, adopting).await.unwrap_or_else(|_| {
                    tracing::error!(%server, "its engine takes too long to hand over its container");
                    None
                })
            });
        }
        let mut adopted = Vec::new();
        let give_up_at = Instant::now() + MOST_WITHIN;
        while let Ok(Some(tried)) = timeout_at(give_up_at, tries.join_next()).await {
            adopted.extend(tried.ok().flatten());
        }
        (adopted, tries)
    }

    /// Ends those that hold the stream of a container that nobody knows: a daemon that is killed
    /// before it has written down what it began leaves one.
    async fn end_unknown_grips(&self, known: &[(InstanceKey, Kept, bool)]) {
        let folder = &self.shared.kept_dir;
        let known: Vec<_> = known.iter().map(|it| grip::path(folder, &it.1.container)).collect();
        for path in grip::all(folder).iter().filter(|path| !known.contains(path)) {
            grip::end_at(&self.shared, path).await;
        }
    }

    async fn adopt(
        &self,
        key: InstanceKey,
        kept: Kept,
        is_torn: bool,
        hold: Hold,
    ) -> Option<Adopted> {
        let server = &key;
        let keeper = Keeper::of(&self.shared.kept_dir, &key, kept);
        let note = Note::parse(keeper.kept().note.as_bytes());
        let speaks = |note: &Note| note.settings.transport() == Transport::Stdio;
        // First of all: what was to be logged is, whatever has become of the container.
        let log = self.take_up_log(&key, &keeper, note.as_ref().is_none_or(speaks)).await?;
        let engine = match Engine::at(&keeper.kept().socket).await {
            Ok(engine) => engine,
            Err(why) => {
                tracing::error!(%server, "its container cannot be taken over: {why}");
                return None;
            }
        };
        let Some(note) = note else {
            tracing::error!(%server, "nothing is known of this server: it is started anew");
            let grip = grip::path(&self.shared.kept_dir, &keeper.kept().container);
            grip::end_at(&self.shared, &grip).await;
            let _ = timeout(REMOVE_WITHIN, engine.remove(&keeper.kept().container)).await;
            keeper.forget();
            return None;
        };
        let memory = note.settings.container().and_then(|it| it.memory);
        let id = keeper.kept().container.clone();
        let mut now = fate::look_settled(&engine, &id, memory).await;
        if keeper.kept().held && is_unsettled(&now) {
            // Its engine waits until somebody hears what it said at last, or nobody can.
            grip::end_at(&self.shared, &grip::path(&self.shared.kept_dir, &id)).await;
            now = fate::look_settled(&engine, &id, memory).await;
        }
        let fate = match now {
            Ok(Now::Runs { .. } | Now::Paused { .. }) => None,
            Ok(Now::Ended(end)) => Some(Fate::Ended(end)),
            Ok(Now::Removed) => {
                tracing::warn!(%server, "its container is gone: it is started anew");
                grip::end_at(&self.shared, &grip::path(&self.shared.kept_dir, &id)).await;
                keeper.forget();
                return None;
            }
            Err(why) => {
                tracing::error!(%server, %why, "its container cannot be taken over");
                return None;
            }
        };
        let pid = match now {
            Ok(Now::Runs { pid } | Now::Paused { pid }) => pid,
            _ => 0,
        };
        let is_stdio = speaks(&note);
        let runs = fate.is_none().then_some(pid);
        let place = log.place.noted();
        let mut known = log.known.clone();
        if is_stdio {
            known[0] = None; // What is in the log of its stdout is not all of it.
        }
        let heard = Heard { place, known: &known };
        let taken_up = self.take_up(&key, &engine, &keeper, heard, runs, is_stdio).await?;
        let TakenUp { attached, grip, missed, is_held } = taken_up;
        // Of one that has ended, or that speaks otherwise, nobody waits for an answer in it.
        let needs_out = is_stdio && fate.is_none();
        let (missed, is_torn) = match missed::or_gaps(missed, needs_out, server) {
            Ok(missed) => (missed, is_torn),
            Err(why) => {
                tracing::error!(%server, "{why}: it is started anew");
                (Missed { gaps: [false, true], ..Missed::default() }, true)
            }
        };
        tracing::info!(%server, pid, container = id, "taken over from an earlier daemon");
        let can_be_cut_off = engine.closes_stdin && is_stdio && !keeper.kept().stopping;
        let is_cut_off = can_be_cut_off && is_cut_off(is_held, fate.as_ref().map(exit_of));
        let status = status(keeper.kept(), pid, is_torn || is_cut_off, fate.as_ref());
        let TakenUpLog { place, ledger, logs, .. } = log;
        let order = LaunchOrder {
            key: key.clone(),
            settings: note.settings.clone(),
            logs: logs.clone(),
            note: Vec::new(),
        };
        let (instance, ends) = Instance::pair();
        let begun = Begun { engine, id, pid, attached, grip, keeper, place, ledger, hold };
        let driver = Driver::new(self.shared.clone(), order, ends, begun);
        tokio::spawn(driver.run_adopted(missed, note.speaker.clone(), fate, status.stopping));
        Some(Adopted { key, note, status, greeted_at: Instant::now(), instance, logs })
    }
}

/// The log of a container, and how far it is.
struct TakenUpLog {
    place: PlaceFile,
    ledger: Ledger,
    logs: Arc<LogBook>,
    /// How what has been logged of stdout and of stderr ends.
    known: Known,
}

/// A stream, who holds it, and what was missed of it.
struct TakenUp {
    /// None of one that has ended.
    attached: Option<AttachContainerResults>,
    grip: Option<Grip>,
    missed: Result<Missed, NotKept>,
    /// Nobody but itself has closed its stdin.
    is_held: bool,
}

/// A stream that somebody held.
struct Held {
    attached: AttachContainerResults,
    grip: Grip,
    /// Where it is.
    at: At,
}

impl ContainerLauncher {
    /// Takes up its log where the last daemon has left it. `None` only if this one is ending.
    async fn take_up_log(
        &self,
        key: &InstanceKey,
        keeper: &Keeper,
        is_stdio: bool,
    ) -> Option<TakenUpLog> {
        let (mut place, lines) = (keeper.place(), keeper.lines());
        let file = instance_log(&self.shared.logs_dir, key);
        let taking_up = spawn_blocking(move || {
            let noted = place.noted();
            let log::Past { ledger, book, known } = log::take_up(lines, &file, noted, is_stdio);
            // Of stdout that is for somebody else, only what was noted has been used.
            let [out, err] = ledger.logged();
            place.write(&Place { out: noted.out.max(out), err, ..noted });
            TakenUpLog { place, ledger, logs: Arc::new(book), known }
        });
        taking_up.await.ok()
    }

    /// Takes up the stream of a container that `runs` as this process, or has ended. `None` if its
    /// engine refuses.
    async fn take_up(
        &self,
        server: &InstanceKey,
        engine: &Engine,
        keeper: &Keeper,
        heard: Heard<'_>,
        runs: Option<u32>,
        is_stdio: bool,
    ) -> Option<TakenUp> {
        let id = &keeper.kept().container;
        let folder = &self.shared.kept_dir;
        if let Some(pid) = runs.filter(|_| is_stdio)
            && let Some(Held { attached, grip, at }) = self.held(server, keeper).await
        {
            grip.tell(Word::Leader(pid));
            // All that came later is still in the stream.
            let missed = read_taken(server, engine, id, heard, at).await;
            let (attached, grip) = (Some(attached), Some(grip));
            return Some(TakenUp { attached, grip, missed, is_held: true });
        }
        let was_held = keeper.kept().held;
        let is_held = runs.is_none() && was_held && !grip::is_lost(folder, id);
        if was_held {
            grip::end_at(&self.shared, &grip::path(folder, id)).await;
        }
        // First the stream, then the log: what comes in between comes twice, and never not at all.
        let mut attached = match runs {
            Some(_) => Some(engine.attach(id).await.ok()?),
            None => None,
        };
        let mut missed = missed::read_after(engine, id, heard).await;
        if let (Ok(so_far), Some(attached)) = (&mut missed, &mut attached) {
            *so_far = with_fresh(std::mem::take(so_far), &mut attached.output).await;
        }
        Some(TakenUp { attached, grip: None, missed, is_held })
    }

    /// The stream of a container that runs, from whoever holds it.
    async fn held(&self, server: &InstanceKey, keeper: &Keeper) -> Option<Held> {
        let kept = keeper.kept();
        if !kept.held {
            return None; // Nobody ever did.
        }
        let found = async {
            let taken = keeper.taken()?;
            let (grip, stream) = Grip::find(&self.shared.kept_dir, &kept.container).await?;
            let (attached, at) = stream::resume(stream, Some(taken))?;
            Ok::<_, std::io::Error>(Held { attached, grip, at })
        };
        let found = found.await.inspect_err(|error| {
            tracing::error!(%server, %error, "nobody holds its stream any more");
        });
        found.ok()
    }
}

/// Reads what was taken and not used. Docker logs the end of an unfinished line, which it has passed
/// on already, only with the rest of it. Nobody waits for what is missing on stderr.
async fn read_taken(
    server: &InstanceKey,
    engine: &Engine,
    id: &str,
    heard: Heard<'_>,
    at: At,
) -> Result<Missed, NotKept> {
    let give_up_at = Instant::now() + REST_OF_LINE_WITHIN;
    let is_late = || engine.closes_stdin || Instant::now() >= give_up_at;
    let out = loop {
        match missed::read_out(engine, id, heard.place, at.out).await {
            Err(NotKept::TooMuch) if !is_late() => sleep(LOGGED_YET).await,
            read => break read?,
        }
    };
    let err = loop {
        match missed::read_some(engine, id, heard, [heard.place.out, at.err]).await {
            Ok((_, [_, false])) if !is_late() => sleep(LOGGED_YET).await,
            Ok((read, _)) => break read.err,
            Err(why) => {
                tracing::warn!(%server, "{why}");
                break Vec::new();
            }
        }
    };
    let err_lost = at.err.saturating_sub(heard.place.err + err.len() as u64);
    if err_lost > 0 {
        tracing::warn!(%server, bytes = err_lost, "lines are missing in its log");
    }
    Ok(Missed { out, err, err_lost, ..Missed::default() })
}

/// Whether it has ended, and its engine cannot say how. Pure.
fn is_unsettled(now: &Result<Now, Error>) -> bool {
    match now {
        Ok(Now::Ended(end)) => end.at.is_none(),
        Ok(_) => false,
        Err(why) => is_between(why),
    }
}

/// Whether it was the closing of its stdin that ended it, or nobody can reach it any more. Then
/// nothing is counted, and it is started anew. Pure.
///
/// One that ends cleanly while there is no daemon is taken for cut off though its stream was held:
/// an engine that goes closes both at once, and a server that heard nobody had no reason to end.
/// What was killed for want of memory would have been in any case, and is told as such.
fn is_cut_off(is_held: bool, ended: Option<Exit>) -> bool {
    match ended {
        None => !is_held,
        Some(exit) => exit.oom.is_none() && (!is_held || exit.is_clean()),
    }
}

fn exit_of(fate: &Fate) -> Exit {
    match fate {
        Fate::Ended(end) => end.exit,
        Fate::Removed | Fate::Lost(_) => Exit::UNSEEN,
    }
}

/// What a shim would have said.
fn status(kept: &Kept, pid: u32, torn: bool, fate: Option<&Fate>) -> StatusReport {
    let now = time_of_day();
    let since = |ms: u64| {
        millis(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()).saturating_sub(ms)
    };
    let exited = fate.map(|fate| {
        let exit = exit_of(fate);
        let at = match fate {
            Fate::Ended(end) => end.at,
            Fate::Removed | Fate::Lost(_) => None,
        };
        let ago = at.and_then(|at| now.duration_since(at).ok()).unwrap_or_default();
        let report = ExitReport {
            code: exit.code,
            signal: exit.signal,
            asked: kept.stopping,
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
        age_ms: since(kept.began_ms),
        note_age_ms: since(kept.noted_ms),
        passed: [false; 2],
        torn,
        stopping: kept.stopping,
        exited,
        confined: Confined::default(),
        logged: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: Exit = Exit { code: None, signal: Some(9), oom: None };

    #[test]
    fn one_that_is_cut_off_is_told_from_one_that_ended_by_itself() {
        let out_of_memory = Exit { oom: Some(Oom::Machine), ..KILLED };
        // Whether its stream was held, how it has ended, and whether it was cut off.
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
