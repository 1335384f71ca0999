//! The note that a daemon leaves with a shim for a later daemon: a serialised life. Pure.
//!
//! An `Instant` of one process means nothing to another. So the note stores all times as ages, and
//! the shim reports the age of the note.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use xy_config::settings::{Probe, ServerSettings};
use xy_protocol::server::Wanted;
use xy_shim::wire::{MAX_NOTE, StatusReport};

use super::{AfterStop, Event, Life, Reason, STOP_MARGIN, State, Tally, WINDOW};
use crate::health::ProbeSupport;
use crate::wait::millis;

const FORMAT: u32 = 1;

/// Maximum number of stored exits; no sensible limit per minute is higher.
const MAX_EXITS: usize = 1000;

/// The note that a daemon leaves for a later one: a serialised life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    format: u32,
    /// The settings of the server.
    pub settings: Arc<ServerSettings>,
    restart_count: u32,
    restarts_total: u64,
    in_a_row: u32,
    /// The ages of its latest unexpected exits.
    exits_ms_ago: Vec<u64>,
    /// How long it had been ready.
    ready_for_ms: Option<u64>,
    /// The planned step after the stop in progress.
    after_stop: Option<NextStep>,
    /// Why it was stopped, if it violated the protocol or hung.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unfit: Option<String>,
    /// Whether its program is known to answer probes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    answers: bool,
    /// Whether its program is known to ignore probes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    ignores: bool,
    /// The note of the protocol driver for its successor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub speaker: String,
    /// The age of all other fields when the driver's note was added.
    #[serde(default, skip_serializing_if = "is_zero")]
    older_by_ms: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires it")]
fn is_zero(ms: &u64) -> bool {
    *ms == 0
}

/// Returns a note joined with the driver's note, which was left `age` after it. If both together
/// are too long for a shim, returns the note alone.
pub(crate) fn with_driver_note(note: &[u8], driver_note: &str, age: Duration) -> Vec<u8> {
    let Some(open) = note.strip_suffix(b"}").filter(|_| !driver_note.is_empty()) else {
        return note.to_vec();
    };
    let Ok(driver_note) = serde_json::to_string(driver_note) else { return note.to_vec() };
    let more = format!(r#","speaker":{driver_note},"older_by_ms":{}}}"#, millis(age));
    let joined = [open, more.as_bytes()].concat();
    if joined.len() <= MAX_NOTE { joined } else { note.to_vec() }
}

/// The planned step after a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NextStep {
    Stay,
    Start,
    Count,
    Retire,
}

impl Note {
    /// Creates the note of a life.
    pub fn of(life: &Life, settings: &Arc<ServerSettings>, now: Instant) -> Self {
        let Tally { restart_count, restarts_total, in_a_row, recent_exits, .. } = &life.tally;
        let age_of = |at: &Instant| millis(now.saturating_duration_since(*at));
        let latest = recent_exits.len().saturating_sub(MAX_EXITS);
        let after_stop = match life.state {
            State::Stopping { then, .. } => Some(match then {
                AfterStop::StayDown | AfterStop::Sleep => NextStep::Stay,
                // The next daemon finds out itself whether the server can be used.
                AfterStop::StartAgain | AfterStop::TryAgain | AfterStop::GiveUp => NextStep::Start,
                AfterStop::CountFailure => NextStep::Count,
                AfterStop::Retire => NextStep::Retire,
            }),
            _ => None,
        };
        let ready_for_ms = match &life.state {
            State::Running { ready_at, .. } => Some(age_of(ready_at)),
            _ => None,
        };
        Self {
            format: FORMAT,
            settings: settings.clone(),
            restart_count: *restart_count,
            restarts_total: *restarts_total,
            in_a_row: *in_a_row,
            exits_ms_ago: recent_exits.iter().skip(latest).map(age_of).collect(),
            ready_for_ms,
            after_stop,
            unfit: match &life.reason {
                Reason::ProtocolError(why) | Reason::Unhealthy(why) => Some(why.clone()),
                _ => None,
            },
            answers: false,
            ignores: false,
            speaker: String::new(),
            older_by_ms: 0,
        }
    }

    /// Sets whether the program answers probes.
    pub(crate) fn with_probe_support(self, probe_support: ProbeSupport) -> Self {
        let answers = probe_support == ProbeSupport::Supported;
        let ignores = probe_support == ProbeSupport::Unsupported;
        Self { answers, ignores, ..self }
    }

    /// Returns whether the program answers probes.
    pub(crate) fn probe_support(&self) -> ProbeSupport {
        match (self.answers, self.ignores) {
            (true, _) => ProbeSupport::Supported,
            (false, true) => ProbeSupport::Unsupported,
            (false, false) => ProbeSupport::Unknown,
        }
    }

    /// Serialises the note. Returns no bytes, which is no note, if it is too long for a shim.
    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        if bytes.len() <= MAX_NOTE { bytes } else { Vec::new() }
    }

    /// Parses a note. Returns `None` if it is malformed or of an unknown version.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let note: Self = serde_json::from_slice(bytes).ok()?;
        (note.format == FORMAT && note.settings.rules.are_sane()).then_some(note)
    }

    /// Returns the life as it goes on now.
    pub(crate) fn life(&self, status: &StatusReport, wanted: Wanted, now: Instant) -> Life {
        // The time since its end does not count.
        let ended_ago = status.exited.as_ref().map_or(0, |exited| exited.ms_ago);
        let before = |ms: u64| earlier(now, ms.saturating_sub(ended_ago));
        let launched_at = before(status.age_ms);
        let noted = status.note_age_ms.saturating_add(self.older_by_ms);
        let state = if status.stopping {
            let grace = self.settings.rules.stop.grace;
            State::Stopping { overdue_at: Some(now + grace + STOP_MARGIN), then: self.then(wanted) }
        } else if let Some(ready_for_ms) = self.ready_for_ms {
            let ready_at = before(ready_for_ms.saturating_add(noted)).max(launched_at);
            State::Running { launched_at, ready_at }
        } else {
            match self.settings.rules.ready.probe {
                // The daemon was killed before it noted readiness, but the program runs.
                Probe::Process => State::Running { launched_at, ready_at: launched_at },
                // It gets its whole time again, as no driver may have connected to it.
                Probe::Mcp | Probe::Tcp | Probe::Http => {
                    let ready_by = now + self.settings.rules.ready.within;
                    State::Starting { launched_at, ready_by }
                }
            }
        };
        let reason = match (&state, &self.unfit) {
            (State::Stopping { then: AfterStop::CountFailure, .. }, Some(why)) => {
                Reason::ProtocolError(why.clone())
            }
            _ => Reason::Adopted,
        };
        let exits = self.exits_ms_ago.iter().map(|ms| ms.saturating_add(noted));
        let tally = Tally {
            restart_count: self.restart_count,
            restarts_total: self.restarts_total,
            in_a_row: self.in_a_row,
            recent_exits: exits
                .filter(|ms| *ms < millis(WINDOW))
                .map(|ms| earlier(now, ms))
                .collect(),
            unreachable_count: 0, // Remote servers have no shim, and so no note.
            probe_forgiven: false,
        };
        Life { state, wanted, tally, reason }
    }

    /// Returns the event that no daemon has processed, if there is one.
    pub(crate) fn missed_event(&self, status: &StatusReport) -> Option<Event> {
        let needs_restart = self.after_stop == Some(NextStep::Start) && !status.stopping;
        if status.torn {
            Some(Event::WriteInterrupted)
        } else {
            needs_restart.then_some(Event::RestartRequested)
        }
    }

    /// Returns what follows the stop in progress. A retirement by the earlier daemon's own end
    /// becomes a new start.
    fn then(&self, wanted: Wanted) -> AfterStop {
        match (self.after_stop, wanted) {
            (_, Wanted::Down) => AfterStop::StayDown,
            (Some(NextStep::Count), Wanted::Up) => AfterStop::CountFailure,
            (Some(NextStep::Stay), Wanted::Up) if self.settings.rules.may_sleep() => {
                AfterStop::Sleep
            }
            (_, Wanted::Up) => AfterStop::StartAgain,
        }
    }
}

/// Returns the instant `ms` before `now`; `now` itself if the clock does not go back that far.
fn earlier(now: Instant, ms: u64) -> Instant {
    now.checked_sub(Duration::from_millis(ms)).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use xy_shim::wire::{ExitReport, PastExit};

    use super::*;
    use crate::fake::{process_of, settings, shim_status as status};

    const SECOND: Duration = Duration::from_secs(1);

    fn ago(now: Instant, seconds: u32) -> Instant {
        now.checked_sub(seconds * SECOND).unwrap()
    }

    /// Returns the note of a life that was launched 40 s ago, ready for 30 s, with an exit 45 s
    /// ago, and the time 10 s later.
    fn old_note() -> (Note, Instant) {
        let now = tokio::time::Instant::now().into_std();
        let tally = Tally {
            restart_count: 2,
            restarts_total: 5,
            in_a_row: 2,
            recent_exits: [ago(now, 55), ago(now, 45)].into(),
            unreachable_count: 0,
            probe_forgiven: false,
        };
        let state = State::Running { launched_at: ago(now, 40), ready_at: ago(now, 30) };
        let life = Life { state, tally, wanted: Wanted::Up, reason: Reason::Ready };
        (Note::of(&life, &Arc::new(settings("a")), now), now + 10 * SECOND)
    }

    #[test]
    fn note_survives_serialisation() {
        let (note, _) = old_note();
        assert_eq!(Note::parse(&note.to_bytes()).unwrap(), note);
    }

    #[test]
    fn life_continues_from_note() {
        let (note, now) = old_note();
        let life = note.life(&status(), Wanted::Up, now);
        let running = State::Running { launched_at: ago(now, 50), ready_at: ago(now, 40) };
        assert_eq!(life.state, running);
        // One of the two exits has left the window by now.
        assert_eq!(life.tally.recent_exits, [ago(now, 55)]);
        assert_eq!((life.tally.restart_count, life.tally.restarts_total), (2, 5));
        assert_eq!(life.tally.in_a_row, 2);
    }

    #[test]
    fn life_that_ended_meanwhile_lasted_until_its_end() {
        let (note, now) = old_note();
        let report =
            ExitReport { code: Some(1), signal: None, asked: false, survivors: vec![], oom: None };
        let exited = Some(PastExit { report, ms_ago: 9_000 });
        let life = note.life(&StatusReport { exited, ..status() }, Wanted::Up, now);
        let running = State::Running { launched_at: ago(now, 41), ready_at: ago(now, 31) };
        assert_eq!(life.state, running);
    }

    #[test]
    fn stop_in_progress_follows_current_wish() {
        let (note, now) = old_note();
        let stopping = StatusReport { stopping: true, ..status() };
        let then = |after_stop, wanted| {
            let note = Note { after_stop, ..note.clone() };
            match note.life(&stopping, wanted, now).state {
                State::Stopping { then, overdue_at: Some(_) } => then,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(then(Some(NextStep::Stay), Wanted::Down), AfterStop::StayDown);
        assert_eq!(then(Some(NextStep::Start), Wanted::Down), AfterStop::StayDown);
        assert_eq!(then(Some(NextStep::Start), Wanted::Up), AfterStop::StartAgain);
        assert_eq!(then(Some(NextStep::Count), Wanted::Up), AfterStop::CountFailure);
        // The earlier daemon was ending. There is a new one now, and no stop was requested.
        assert_eq!(then(Some(NextStep::Retire), Wanted::Up), AfterStop::StartAgain);
        assert_eq!(then(None, Wanted::Up), AfterStop::StartAgain);
    }

    #[test]
    fn noted_restart_is_a_missed_event() {
        let (note, _) = old_note();
        let asked = Note { after_stop: Some(NextStep::Start), ..note.clone() };
        assert_eq!(asked.missed_event(&status()), Some(Event::RestartRequested));
        assert_eq!(asked.missed_event(&StatusReport { stopping: true, ..status() }), None);
        assert_eq!(note.missed_event(&status()), None);
        assert_eq!(
            note.missed_event(&StatusReport { torn: true, ..status() }),
            Some(Event::WriteInterrupted)
        );
    }

    #[test]
    fn driver_note_is_joined_and_keeps_ages() {
        let (note, now) = old_note();
        let joined = with_driver_note(&note.to_bytes(), "era \"x\"\n", 10 * SECOND);
        let read = Note::parse(&joined).unwrap();
        assert_eq!(read.speaker, "era \"x\"\n");
        // The shim only knows the age of the joined note.
        let later = StatusReport { note_age_ms: 0, ..status() };
        assert_eq!(read.life(&later, Wanted::Up, now), note.life(&status(), Wanted::Up, now));
        assert_eq!(with_driver_note(&note.to_bytes(), "", SECOND), note.to_bytes());
        assert_eq!(with_driver_note(b"", "x", SECOND), b"");
    }

    #[test]
    fn oversized_driver_note_is_dropped() {
        let (note, _) = old_note();
        let endless = "x".repeat(MAX_NOTE);
        assert_eq!(with_driver_note(&note.to_bytes(), &endless, SECOND), note.to_bytes());
    }

    #[test]
    fn starting_server_gets_its_whole_time_again() {
        let (note, now) = old_note();
        let note = Note { ready_for_ms: None, ..note };
        let within = note.settings.rules.ready.within;
        let state = State::Starting { launched_at: ago(now, 50), ready_by: now + within };
        assert_eq!(note.life(&status(), Wanted::Up, now).state, state);
    }

    #[test]
    fn reason_of_stop_in_progress_is_kept() {
        let now = tokio::time::Instant::now().into_std();
        let state = State::Stopping { overdue_at: None, then: AfterStop::CountFailure };
        let reason = Reason::ProtocolError("it speaks gibberish".into());
        let life = Life { state, reason: reason.clone(), ..Life::new(Wanted::Up) };
        let note = Note::of(&life, &Arc::new(settings("a")), now);
        let note = Note::parse(&note.to_bytes()).unwrap();
        let stopping = StatusReport { stopping: true, ..status() };
        assert_eq!(note.life(&stopping, Wanted::Up, now).reason, reason);
        assert_eq!(note.life(&stopping, Wanted::Down, now).reason, Reason::Adopted);
    }

    #[test]
    fn running_program_is_ready_without_noted_readiness() {
        let (note, now) = old_note();
        let mut settings = ServerSettings::clone(&note.settings);
        settings.rules.ready.probe = Probe::Process;
        let note = Note { ready_for_ms: None, settings: Arc::new(settings), ..note };
        let status = StatusReport { age_ms: 30_000, ..status() };
        let state = State::Running { launched_at: ago(now, 30), ready_at: ago(now, 30) };
        assert_eq!(note.life(&status, Wanted::Up, now).state, state);
    }

    #[test]
    fn invalid_notes_are_rejected() {
        let (note, _) = old_note();
        let newer = Note { format: FORMAT + 1, ..note.clone() };
        for bytes in [&b""[..], b"{", b"[]", &[0xff; 10], &newer.to_bytes()] {
            assert_eq!(Note::parse(bytes), None);
        }
        let mut endless = ServerSettings::clone(&note.settings);
        endless.rules.stop.grace = Duration::MAX;
        let endless = Note { settings: Arc::new(endless), ..note.clone() };
        assert_eq!(Note::parse(&endless.to_bytes()), None);
        let mut huge = ServerSettings::clone(&note.settings);
        process_of(&mut huge).args = vec!["x".repeat(MAX_NOTE)];
        assert!(Note { settings: Arc::new(huge), ..note }.to_bytes().is_empty());
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_numbers_never_panic(
            times in proptest::array::uniform6(proptest::prelude::any::<u64>()),
            stopping in proptest::prelude::any::<bool>(),
        ) {
            let [age_ms, note_age_ms, ms_ago, exit, ready, count] = times;
            let (note, now) = old_note();
            let note = Note {
                exits_ms_ago: vec![exit],
                ready_for_ms: Some(ready),
                restarts_total: count,
                ..note
            };
            let report =
                ExitReport { code: None, signal: None, asked: false, survivors: vec![], oom: None };
            let exited = Some(PastExit { report, ms_ago });
            let status = StatusReport { age_ms, note_age_ms, stopping, exited, ..status() };
            let _ = note.life(&status, Wanted::Up, now);
        }
    }

    #[test]
    fn impossible_times_are_harmless() {
        let (note, now) = old_note();
        let status = StatusReport { age_ms: u64::MAX, note_age_ms: u64::MAX, ..status() };
        let life = note.life(&status, Wanted::Up, now);
        assert!(matches!(life.state, State::Running { ready_at, .. } if ready_at <= now));
        assert!(life.tally.recent_exits.is_empty());
    }

    #[test]
    fn note_of_version_without_probes_is_still_read() {
        let text = include_str!("note/fixtures/format-1-http.json");
        let note = Note::parse(text.as_bytes()).unwrap();
        let ours = xy_config::settings::Rules::default();
        assert_eq!(note.settings.rules.health, ours.health);
        assert_eq!(note.settings.rules.ready.timeout, ours.ready.timeout);
        assert_eq!(note.probe_support(), ProbeSupport::Unknown);
    }

    #[test]
    fn note_of_server_with_port_keeps_its_format() {
        let text = include_str!("note/fixtures/format-1-probes.json");
        let note = Note::parse(text.as_bytes()).unwrap();
        assert_eq!(note.settings.endpoint().unwrap().url, "http://127.0.0.1:8421/x");
        assert_eq!(note.settings.rules.calls.within, Some(Duration::from_hours(1)));
        assert_eq!(note.to_bytes(), text.trim_end().as_bytes());
    }

    #[test]
    fn note_of_first_version_is_still_read() {
        let text = r#"{"format":1,"settings":{"name":"a","source":{"file":"/c/a.kdl","command_line":1},
            "process":{"command":"x","args":[],"env":{},"working_dir":null,"transport":"stdio",
            "port":null,"path":null},"rules":{"restart":{"policy":"OnFailure",
            "backoff_initial":{"secs":1,"nanos":0},"backoff_max":{"secs":30,"nanos":0},
            "max_retries_per_minute":5,"max_attempts":5,"reset_after":{"secs":60,"nanos":0},
            "jitter":true},"stop":{"grace":{"secs":10,"nanos":0}},"ready":{"probe":"Process",
            "within":{"secs":10,"nanos":0}},"orphan_timeout":{"secs":60,"nanos":0}}},
            "restart_count":1,"restarts_total":2,"in_a_row":1,"exits_ms_ago":[5],
            "ready_for_ms":3,"after_stop":null}"#;
        let note = Note::parse(text.as_bytes()).unwrap();
        assert_eq!((note.restarts_total, note.exits_ms_ago.len()), (2, 1));
    }
}
