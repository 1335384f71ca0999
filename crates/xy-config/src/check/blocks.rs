//! The blocks of rules: `restart`, `stop`, `ready`, `calls`, `health`.

use std::time::Duration;

use super::read::{Reader, Spanned};
use super::values::Zero;
use super::words::{Word, word};
use crate::raw::RawNode;
use crate::settings::{Probe, RestartPolicy};
use crate::source::At;

const RESTART_WORDS: [Word; 7] = [
    word("policy", r#"policy "on-failure""#),
    word("backoff-initial", r#"backoff-initial "1s""#),
    word("backoff-max", r#"backoff-max "30s""#),
    word("max-retries-per-minute", "max-retries-per-minute 5"),
    word("max-attempts", "max-attempts 5"),
    word("reset-after", r#"reset-after "60s""#),
    word("jitter", "jitter #true"),
];
const POLICIES: [(&str, RestartPolicy); 3] = [
    ("always", RestartPolicy::Always),
    ("on-failure", RestartPolicy::OnFailure),
    ("never", RestartPolicy::Never),
];

const STOP_WORDS: [Word; 1] = [word("grace", r#"grace "10s""#)];

const READY_WORDS: [Word; 4] = [
    word("probe", r#"probe "mcp""#),
    word("within", r#"within "10s""#),
    word("path", r#"path "/health""#),
    word("timeout", r#"timeout "2s""#),
];
/// `None` stands for a probe that is not available yet.
const READY_PROBES: [(&str, Option<Probe>); 4] =
    [("mcp", Some(Probe::Mcp)), ("process", Some(Probe::Process)), ("tcp", None), ("http", None)];

const HEALTH_WORDS: [Word; 4] = [
    word("probe", r#"probe "off""#),
    word("interval", r#"interval "30s""#),
    word("timeout", r#"timeout "5s""#),
    word("failures", "failures 3"),
];
const HEALTH_PROBES: [(&str, HealthProbe); 5] = [
    ("off", HealthProbe::Off),
    ("process", HealthProbe::On),
    ("tcp", HealthProbe::On),
    ("http", HealthProbe::On),
    ("mcp", HealthProbe::On),
];

const CALLS_WORDS: [Word; 2] = [word("idle", r#"idle "5m""#), word("within", r#"within "1h""#)];

const SENSELESS_TIMEOUT: Zero = Zero::Senseless("nothing could answer in no time");

/// What a `restart` block says.
#[derive(Debug, Clone, Default)]
pub(super) struct RestartFields {
    /// The places of fields that say how often a process may die.
    pub(super) about_deaths: Vec<(&'static str, At)>,
    pub(super) policy: Option<Spanned<RestartPolicy>>,
    pub(super) backoff_initial: Option<Spanned<Duration>>,
    pub(super) backoff_max: Option<Spanned<Duration>>,
    pub(super) max_retries_per_minute: Option<Spanned<u32>>,
    pub(super) max_attempts: Option<Spanned<u32>>,
    pub(super) reset_after: Option<Spanned<Duration>>,
    pub(super) jitter: Option<Spanned<bool>>,
    /// Whether a delay is given but wrong.
    pub(super) delays_are_broken: bool,
}

impl RestartFields {
    /// These rules, and what `defaults` say where these say nothing.
    pub(super) fn or(self, defaults: &Self) -> Self {
        let other = defaults.clone();
        Self {
            policy: self.policy.or(other.policy),
            backoff_initial: self.backoff_initial.or(other.backoff_initial),
            backoff_max: self.backoff_max.or(other.backoff_max),
            max_retries_per_minute: self.max_retries_per_minute.or(other.max_retries_per_minute),
            max_attempts: self.max_attempts.or(other.max_attempts),
            reset_after: self.reset_after.or(other.reset_after),
            jitter: self.jitter.or(other.jitter),
            delays_are_broken: self.delays_are_broken,
            about_deaths: self.about_deaths,
        }
    }
}

/// What a `ready` block says.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadyFields {
    pub(super) probe: Option<Spanned<Probe>>,
    pub(super) within: Option<Spanned<Duration>>,
}

impl ReadyFields {
    /// These rules, and what `defaults` say where these say nothing.
    pub(super) fn or(self, defaults: &Self) -> Self {
        let other = defaults.clone();
        Self { probe: self.probe.or(other.probe), within: self.within.or(other.within) }
    }
}

/// What a `calls` block says.
#[derive(Debug, Clone, Default)]
pub(super) struct CallFields {
    pub(super) idle: Option<Spanned<Duration>>,
    pub(super) within: Option<Spanned<Duration>>,
}

impl CallFields {
    /// These rules, and what `defaults` say where these say nothing.
    pub(super) fn or(self, defaults: &Self) -> Self {
        let other = defaults.clone();
        Self { idle: self.idle.or(other.idle), within: self.within.or(other.within) }
    }
}

/// Whether health is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HealthProbe {
    Off,
    On,
}

/// What a `health` block says.
#[derive(Debug, Clone, Default)]
pub(super) struct HealthFields {
    /// Where the block is.
    pub(super) block: Option<At>,
    pub(super) probe: Option<Spanned<HealthProbe>>,
}

impl HealthFields {
    /// These rules, and what `defaults` say where these say nothing.
    pub(super) fn or(self, defaults: &Self) -> Self {
        let other = defaults.clone();
        Self { block: self.block.or(other.block), probe: self.probe.or(other.probe) }
    }
}

pub(super) fn restart(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> RestartFields {
    let mut fields = RestartFields::default();
    let Some(children) = reader.block(node, word) else { return fields };
    for (node, word) in reader.known(children, &RESTART_WORDS, Some("restart")) {
        if !matches!(word.name, "backoff-initial" | "backoff-max" | "jitter") {
            fields.about_deaths.push((word.name, reader.at(node.name_span)));
        }
        match word.name {
            "policy" => fields.policy = reader.choice(node, word, "restart policy", &POLICIES),
            "backoff-initial" => {
                fields.backoff_initial = reader.duration(node, word, Zero::Allowed);
                fields.delays_are_broken |= fields.backoff_initial.is_none();
            }
            "backoff-max" => {
                fields.backoff_max = reader.duration(node, word, Zero::Allowed);
                fields.delays_are_broken |= fields.backoff_max.is_none();
            }
            "max-retries-per-minute" => {
                fields.max_retries_per_minute = reader.count(node, word, 0..=u32::MAX);
            }
            "max-attempts" => fields.max_attempts = reader.count(node, word, 0..=u32::MAX),
            "reset-after" => {
                let zero = Zero::Senseless("every life would end the row, and no limit would hold");
                fields.reset_after = reader.duration(node, word, zero);
            }
            _ => fields.jitter = reader.flag(node, word),
        }
    }
    fields
}

pub(super) fn stop(
    reader: &mut Reader<'_>,
    node: &RawNode,
    word: Word,
) -> Option<Spanned<Duration>> {
    let children = reader.block(node, word)?;
    let (node, word) = reader.known(children, &STOP_WORDS, Some("stop")).into_iter().next()?;
    let zero = Zero::Senseless("the server would be killed before it could end by itself");
    reader.duration(node, word, zero)
}

pub(super) fn ready(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> ReadyFields {
    let mut fields = ReadyFields::default();
    let Some(children) = reader.block(node, word) else { return fields };
    for (node, word) in reader.known(children, &READY_WORDS, Some("ready")) {
        match word.name {
            "probe" => fields.probe = ready_probe(reader, node, word),
            "within" => {
                let zero = Zero::Senseless("nothing is ready in no time");
                fields.within = reader.duration(node, word, zero);
            }
            "path" => {
                if let Some(path) = reader.url_path(node, word) {
                    reader.unavailable(path.at.span, "`ready` with `path`", "leave `path` out");
                }
            }
            _ => {
                if let Some(timeout) = reader.duration(node, word, SENSELESS_TIMEOUT) {
                    let what = "`ready` with `timeout`";
                    reader.unavailable(timeout.at.span, what, "leave `timeout` out");
                }
            }
        }
    }
    fields
}

fn ready_probe(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<Spanned<Probe>> {
    let probe = reader.choice(node, word, "probe", &READY_PROBES)?;
    if probe.value.is_none() {
        let written = reader.file.slice(probe.at.span).to_owned();
        let instead = "use `\"process\"`, or leave `probe` out";
        reader.unavailable(probe.at.span, &format!("`probe {written}`"), instead);
    }
    Some(Spanned { value: probe.value?, at: probe.at })
}

pub(super) fn calls(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> CallFields {
    let mut fields = CallFields::default();
    let Some(children) = reader.block(node, word) else { return fields };
    for (node, word) in reader.known(children, &CALLS_WORDS, Some("calls")) {
        let zero = Zero::Senseless("every call would be over at once; leave it out for no limit");
        let limit = reader.duration(node, word, zero);
        match word.name {
            "idle" => fields.idle = limit,
            _ => fields.within = limit,
        }
    }
    fields
}

pub(super) fn health(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> HealthFields {
    let mut fields = HealthFields::default();
    let errors_before = reader.problems.errors();
    let Some(children) = reader.block(node, word) else { return fields };
    for (node, word) in reader.known(children, &HEALTH_WORDS, Some("health")) {
        match word.name {
            "probe" => fields.probe = reader.choice(node, word, "probe", &HEALTH_PROBES),
            "interval" => {
                reader.duration(node, word, Zero::Senseless("probes would never pause"));
            }
            "timeout" => {
                reader.duration(node, word, SENSELESS_TIMEOUT);
            }
            _ => {
                reader.count(node, word, 1..=u32::MAX);
            }
        }
    }
    // Whether the block can be used is asked once `defaults` are known, unless it is wrong.
    if reader.problems.errors() == errors_before {
        fields.block = Some(reader.at(node.name_span));
    }
    fields
}
