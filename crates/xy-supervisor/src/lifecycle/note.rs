//! What one daemon leaves with a shim for the next: a life, in words.
//!
//! Moments of one process mean nothing to another, so all times are told as how long ago
//! something was, and the shim tells how old the note is. Pure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use xy_config::settings::{Probe, ServerSettings};
use xy_protocol::server::Wanted;
use xy_shim::wire::{MAX_NOTE, StatusReport};

use super::{AfterStop, Event, Life, Reason, STOP_MARGIN, State, Tally, WINDOW};
use crate::health::Habit;
use crate::launch::millis;

const FORMAT: u32 = 1;

/// More exits than this are not written down: no limit per minute is that high in earnest.
const MAX_EXITS: usize = 1000;

/// A life, as it was left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    format: u32,
    /// What its file said.
    pub(crate) settings: Arc<ServerSettings>,
    restart_count: u32,
    restarts_total: u64,
    in_a_row: u32,
    /// How long ago each of its latest unexpected exits was.
    exits_ms_ago: Vec<u64>,
    /// How long it had been ready.
    ready_for_ms: Option<u64>,
    /// What was to come after its stop.
    after_stop: Option<Next>,
    /// Why it was ended, if it could not be spoken with, or did not answer any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unfit: Option<String>,
    /// Whether it is known to answer probes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    answers: bool,
    /// Whether it is known to ignore them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    ignores: bool,
    /// What whoever spoke with it left for whoever does next.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) speaker: String,
    /// How old all the rest was when that was left.
    #[serde(default, skip_serializing_if = "is_zero")]
    older_by_ms: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks like this")]
fn is_zero(ms: &u64) -> bool {
    *ms == 0
}

/// A note, and what the speaker of that life has to say, left so long after it. If both
/// are too long for a shim, the note alone.
pub(crate) fn with_speaker(note: &[u8], speaker: &str, later: Duration) -> Vec<u8> {
    let Some(open) = note.strip_suffix(b"}").filter(|_| !speaker.is_empty()) else {
        return note.to_vec();
    };
    let Ok(speaker) = serde_json::to_string(speaker) else { return note.to_vec() };
    let more = format!(r#","speaker":{speaker},"older_by_ms":{}}}"#, millis(later));
    let joined = [open, more.as_bytes()].concat();
    if joined.len() <= MAX_NOTE { joined } else { note.to_vec() }
}

/// What was to come after a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Next {
    Stay,
    Start,
    Count,
    Retire,
}

impl Note {
    /// What is to be left of a life.
    pub(crate) fn of(life: &Life, settings: &Arc<ServerSettings>, now: Instant) -> Self {
        let Tally { restart_count, restarts_total, in_a_row, recent_exits, .. } = &life.tally;
        let ago = |moment: &Instant| millis(now.saturating_duration_since(*moment));
        let latest = recent_exits.len().saturating_sub(MAX_EXITS);
        let after_stop = match life.state {
            State::Stopping { then, .. } => Some(match then {
                AfterStop::StayDown | AfterStop::Sleep => Next::Stay,
                // The next daemon finds out itself whether it can be used.
                AfterStop::StartAgain | AfterStop::TryAgain | AfterStop::GiveUp => Next::Start,
                AfterStop::CountFailure => Next::Count,
                AfterStop::Retire => Next::Retire,
            }),
            _ => None,
        };
        let ready_for_ms = match &life.state {
            State::Running { ready_at, .. } => Some(ago(ready_at)),
            _ => None,
        };
        Self {
            format: FORMAT,
            settings: settings.clone(),
            restart_count: *restart_count,
            restarts_total: *restarts_total,
            in_a_row: *in_a_row,
            exits_ms_ago: recent_exits.iter().skip(latest).map(ago).collect(),
            ready_for_ms,
            after_stop,
            unfit: match &life.reason {
                Reason::Unfit(why) | Reason::Unhealthy(why) => Some(why.clone()),
                _ => None,
            },
            answers: false,
            ignores: false,
            speaker: String::new(),
            older_by_ms: 0,
        }
    }

    /// The same of one that takes to being probed like this.
    pub(crate) fn of_one_with(self, habit: Habit) -> Self {
        Self { answers: habit == Habit::Answers, ignores: habit == Habit::Ignores, ..self }
    }

    /// How it took to being probed.
    pub(crate) fn habit(&self) -> Habit {
        match (self.answers, self.ignores) {
            (true, _) => Habit::Answers,
            (false, true) => Habit::Ignores,
            (false, false) => Habit::Unknown,
        }
    }

    /// As bytes; empty, which is no note, if a shim would not keep it.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        if bytes.len() <= MAX_NOTE { bytes } else { Vec::new() }
    }

    /// `None` for what cannot be understood, or is of a version that is not known.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let note: Self = serde_json::from_slice(bytes).ok()?;
        (note.format == FORMAT && note.settings.rules.are_sane()).then_some(note)
    }

    /// The life that was left, as it goes on now.
    pub(crate) fn life(&self, status: &StatusReport, wanted: Wanted, now: Instant) -> Life {
        // Of one that has ended, the time since does not count.
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
                // The daemon was killed before it had noted that; but its program runs.
                Probe::Process => State::Running { launched_at, ready_at: launched_at },
                // It has all its time again: nobody may have spoken with it.
                Probe::Mcp | Probe::Tcp | Probe::Http => {
                    let ready_by = now + self.settings.rules.ready.within;
                    State::Starting { launched_at, ready_by }
                }
            }
        };
        let reason = match (&state, &self.unfit) {
            (State::Stopping { then: AfterStop::CountFailure, .. }, Some(why)) => {
                Reason::Unfit(why.clone())
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
            unreached: 0, // No shim has a note of one that lives somewhere else.
            is_forgiven: false,
        };
        Life { state, wanted, tally, reason }
    }

    /// What was to happen to it and did not, as far as can be told.
    pub(crate) fn unheard(&self, status: &StatusReport) -> Option<Event> {
        let is_asked_to_restart = self.after_stop == Some(Next::Start) && !status.stopping;
        if status.torn {
            Some(Event::Torn)
        } else {
            is_asked_to_restart.then_some(Event::RestartRequested)
        }
    }

    /// A daemon that was ending when it was killed is followed by one that begins.
    fn then(&self, wanted: Wanted) -> AfterStop {
        match (self.after_stop, wanted) {
            (_, Wanted::Down) => AfterStop::StayDown,
            (Some(Next::Count), Wanted::Up) => AfterStop::CountFailure,
            (Some(Next::Stay), Wanted::Up) if self.settings.rules.may_sleep() => AfterStop::Sleep,
            (_, Wanted::Up) => AfterStop::StartAgain,
        }
    }
}

/// The moment that was so long ago; now, if no clock goes back so far.
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

    /// A life 40 s after it was launched, ready for 30 s, with an exit 45 s ago.
    fn left() -> (Note, Instant) {
        let now = tokio::time::Instant::now().into_std();
        let tally = Tally {
            restart_count: 2,
            restarts_total: 5,
            in_a_row: 2,
            recent_exits: [ago(now, 55), ago(now, 45)].into(),
            unreached: 0,
            is_forgiven: false,
        };
        let state = State::Running { launched_at: ago(now, 40), ready_at: ago(now, 30) };
        let life = Life { state, tally, wanted: Wanted::Up, reason: Reason::Ready };
        (Note::of(&life, &Arc::new(settings("a")), now), now + 10 * SECOND)
    }

    #[test]
    fn a_note_survives_being_bytes() {
        let (note, _) = left();
        assert_eq!(Note::parse(&note.to_bytes()).unwrap(), note);
    }

    #[test]
    fn a_life_goes_on_as_it_was() {
        let (note, now) = left();
        let life = note.life(&status(), Wanted::Up, now);
        let running = State::Running { launched_at: ago(now, 50), ready_at: ago(now, 40) };
        assert_eq!(life.state, running);
        // Of the two exits one is by now too long ago to count.
        assert_eq!(life.tally.recent_exits, [ago(now, 55)]);
        assert_eq!((life.tally.restart_count, life.tally.restarts_total), (2, 5));
        assert_eq!(life.tally.in_a_row, 2);
    }

    #[test]
    fn one_that_ended_meanwhile_has_lived_until_then() {
        let (note, now) = left();
        let report =
            ExitReport { code: Some(1), signal: None, asked: false, survivors: vec![], oom: None };
        let exited = Some(PastExit { report, ms_ago: 9_000 });
        let life = note.life(&StatusReport { exited, ..status() }, Wanted::Up, now);
        let running = State::Running { launched_at: ago(now, 41), ready_at: ago(now, 31) };
        assert_eq!(life.state, running);
    }

    #[test]
    fn one_that_is_being_stopped_goes_on_with_what_is_wanted_now() {
        let (note, now) = left();
        let stopping = StatusReport { stopping: true, ..status() };
        let then = |after_stop, wanted| {
            let note = Note { after_stop, ..note.clone() };
            match note.life(&stopping, wanted, now).state {
                State::Stopping { then, overdue_at: Some(_) } => then,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(then(Some(Next::Stay), Wanted::Down), AfterStop::StayDown);
        assert_eq!(then(Some(Next::Start), Wanted::Down), AfterStop::StayDown);
        assert_eq!(then(Some(Next::Start), Wanted::Up), AfterStop::StartAgain);
        assert_eq!(then(Some(Next::Count), Wanted::Up), AfterStop::CountFailure);
        // Its daemon was ending; there is a new one now, and nobody asked for a stop.
        assert_eq!(then(Some(Next::Retire), Wanted::Up), AfterStop::StartAgain);
        assert_eq!(then(None, Wanted::Up), AfterStop::StartAgain);
    }

    #[test]
    fn a_restart_that_was_only_noted_is_still_to_come() {
        let (note, _) = left();
        let asked = Note { after_stop: Some(Next::Start), ..note.clone() };
        assert_eq!(asked.unheard(&status()), Some(Event::RestartRequested));
        assert_eq!(asked.unheard(&StatusReport { stopping: true, ..status() }), None);
        assert_eq!(note.unheard(&status()), None);
        assert_eq!(note.unheard(&StatusReport { torn: true, ..status() }), Some(Event::Torn));
    }

    #[test]
    fn what_its_speaker_left_is_joined_and_makes_nothing_younger() {
        let (note, now) = left();
        let joined = with_speaker(&note.to_bytes(), "era \"x\"\n", 10 * SECOND);
        let read = Note::parse(&joined).unwrap();
        assert_eq!(read.speaker, "era \"x\"\n");
        // The shim only knows when both were left.
        let later = StatusReport { note_age_ms: 0, ..status() };
        assert_eq!(read.life(&later, Wanted::Up, now), note.life(&status(), Wanted::Up, now));
        assert_eq!(with_speaker(&note.to_bytes(), "", SECOND), note.to_bytes());
        assert_eq!(with_speaker(b"", "x", SECOND), b"");
    }

    #[test]
    fn what_its_speaker_left_is_not_kept_if_it_is_too_long() {
        let (note, _) = left();
        let endless = "x".repeat(MAX_NOTE);
        assert_eq!(with_speaker(&note.to_bytes(), &endless, SECOND), note.to_bytes());
    }

    #[test]
    fn one_that_has_not_answered_yet_has_all_its_time_again() {
        let (note, now) = left();
        let note = Note { ready_for_ms: None, ..note };
        let within = note.settings.rules.ready.within;
        let state = State::Starting { launched_at: ago(now, 50), ready_by: now + within };
        assert_eq!(note.life(&status(), Wanted::Up, now).state, state);
    }

    #[test]
    fn why_one_is_being_ended_is_still_known() {
        let now = tokio::time::Instant::now().into_std();
        let state = State::Stopping { overdue_at: None, then: AfterStop::CountFailure };
        let reason = Reason::Unfit("it speaks gibberish".into());
        let life = Life { state, reason: reason.clone(), ..Life::new(Wanted::Up) };
        let note = Note::of(&life, &Arc::new(settings("a")), now);
        let note = Note::parse(&note.to_bytes()).unwrap();
        let stopping = StatusReport { stopping: true, ..status() };
        assert_eq!(note.life(&stopping, Wanted::Up, now).reason, reason);
        assert_eq!(note.life(&stopping, Wanted::Down, now).reason, Reason::Adopted);
    }

    #[test]
    fn one_whose_program_runs_is_ready_though_nobody_noted_it() {
        let (note, now) = left();
        let mut settings = ServerSettings::clone(&note.settings);
        settings.rules.ready.probe = Probe::Process;
        let note = Note { ready_for_ms: None, settings: Arc::new(settings), ..note };
        let status = StatusReport { age_ms: 30_000, ..status() };
        let state = State::Running { launched_at: ago(now, 30), ready_at: ago(now, 30) };
        assert_eq!(note.life(&status, Wanted::Up, now).state, state);
    }

    #[test]
    fn what_is_no_note_is_not_one() {
        let (note, _) = left();
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
        fn no_numbers_make_it_panic(
            times in proptest::array::uniform6(proptest::prelude::any::<u64>()),
            stopping in proptest::prelude::any::<bool>(),
        ) {
            let [age_ms, note_age_ms, ms_ago, exit, ready, count] = times;
            let (note, now) = left();
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
    fn times_that_cannot_be_do_no_harm() {
        let (note, now) = left();
        let status = StatusReport { age_ms: u64::MAX, note_age_ms: u64::MAX, ..status() };
        let life = note.life(&status, Wanted::Up, now);
        assert!(matches!(life.state, State::Running { ready_at, .. } if ready_at <= now));
        assert!(life.tally.recent_exits.is_empty());
    }

    #[test]
    fn a_note_of_a_version_that_made_no_probes_is_still_read() {
        let text = include_str!("note/fixtures/format-1-http.json");
        let note = Note::parse(text.as_bytes()).unwrap();
        let ours = xy_config::settings::Rules::default();
        assert_eq!(note.settings.rules.health, ours.health);
        assert_eq!(note.settings.rules.ready.timeout, ours.ready.timeout);
        assert_eq!(note.habit(), Habit::Unknown);
    }

    #[test]
    fn the_note_of_a_server_behind_a_port_is_read_as_this_version_wrote_it() {
        let text = include_str!("note/fixtures/format-1-probes.json");
        let note = Note::parse(text.as_bytes()).unwrap();
        assert_eq!(note.settings.endpoint().unwrap().url, "http://127.0.0.1:8421/x");
        assert_eq!(note.settings.rules.calls.within, Some(Duration::from_hours(1)));
        assert_eq!(note.to_bytes(), text.trim_end().as_bytes());
    }

    #[test]
    fn the_note_of_the_first_version_is_still_read() {
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
