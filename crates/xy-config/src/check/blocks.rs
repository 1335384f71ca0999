//! Parses the blocks of rules: `restart`, `stop`, `ready`, `calls`, `health`.

use std::time::Duration;

use super::read::{Reader, Spanned};
use super::values::Zero;
use super::words::{Word, word};
use crate::raw::RawNode;
use crate::settings::{HealthProbe, Probe, RestartPolicy};
use crate::source::SourceSpan;

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
const READY_PROBES: [(&str, Probe); 4] =
    [("mcp", Probe::Mcp), ("process", Probe::Process), ("tcp", Probe::Tcp), ("http", Probe::Http)];

const HEALTH_WORDS: [Word; 5] = [
    word("probe", r#"probe "mcp""#),
    word("interval", r#"interval "30s""#),
    word("timeout", r#"timeout "5s""#),
    word("failures", "failures 3"),
    word("path", r#"path "/health""#),
];
const HEALTH_PROBES: [(&str, HealthProbe); 5] = [
    ("off", HealthProbe::Off),
    ("process", HealthProbe::Process),
    ("tcp", HealthProbe::Tcp),
    ("http", HealthProbe::Http),
    ("mcp", HealthProbe::Mcp),
];

const CALLS_WORDS: [Word; 2] = [word("idle", r#"idle "5m""#), word("within", r#"within "1h""#)];

const ZERO_TIMEOUT: Zero = Zero::Forbidden("no server could answer in time");

/// The fields of a `restart` block.
#[derive(Debug, Clone, Default)]
pub(super) struct RestartFields {
    /// The spans of fields that limit how often a process may exit.
    pub(super) exit_limits: Vec<(&'static str, SourceSpan)>,
    pub(super) policy: Option<Spanned<RestartPolicy>>,
    pub(super) backoff_initial: Option<Spanned<Duration>>,
    pub(super) backoff_max: Option<Spanned<Duration>>,
    pub(super) max_retries_per_minute: Option<Spanned<u32>>,
    pub(super) max_attempts: Option<Spanned<u32>>,
    pub(super) reset_after: Option<Spanned<Duration>>,
    pub(super) jitter: Option<Spanned<bool>>,
    /// True if a delay is given but invalid.
    pub(super) delays_are_broken: bool,
}

impl RestartFields {
    /// Fills absent fields from `defaults`.
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
            exit_limits: self.exit_limits,
        }
    }
}

/// The fields of a `ready` block.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadyFields {
    pub(super) probe: Option<Spanned<Probe>>,
    pub(super) within: Option<Spanned<Duration>>,
    pub(super) path: Option<Spanned<String>>,
    pub(super) timeout: Option<Spanned<Duration>>,
}

impl ReadyFields {
    /// Fills absent fields from `defaults`.
    pub(super) fn or(self, defaults: &Self) -> Self {
        let other = defaults.clone();
        Self {
            probe: self.probe.or(other.probe),
            within: self.within.or(other.within),
            path: self.path.or(other.path),
            timeout: self.timeout.or(other.timeout),
        }
    }
}

/// The fields of a `calls` block.
#[derive(Debug, Clone, Default)]
pub(super) struct CallFields {
    pub(super) idle: Option<Spanned<Duration>>,
    pub(super) within: Option<Spanned<Duration>>,
}

impl CallFields {
    /// Fills absent fields from `defaults`.
    pub(super) fn or(self, defaults: &Self) -> Self {
        let other = defaults.clone();
        Self { idle: self.idle.or(other.idle), within: self.within.or(other.within) }
    }
}

/// The fields of a `health` block.
#[derive(Debug, Clone, Default)]
pub(super) struct HealthFields {
    pub(super) probe: Option<Spanned<HealthProbe>>,
    pub(super) interval: Option<Spanned<Duration>>,
    pub(super) timeout: Option<Spanned<Duration>>,
    pub(super) failures: Option<Spanned<u32>>,
    pub(super) path: Option<Spanned<String>>,
}

impl HealthFields {
    /// Fills absent fields from `defaults`.
    pub(super) fn or(self, defaults: &Self) -> Self {
        let other = defaults.clone();
        Self {
            probe: self.probe.or(other.probe),
            interval: self.interval.or(other.interval),
            timeout: self.timeout.or(other.timeout),
            failures: self.failures.or(other.failures),
            path: self.path.or(other.path),
        }
    }
}

pub(super) fn restart(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> RestartFields {
    let mut fields = RestartFields::default();
    let Some(children) = reader.block(node, word) else { return fields };
    for (node, word) in reader.known(children, &RESTART_WORDS, Some("restart")) {
        if !matches!(word.name, "backoff-initial" | "backoff-max" | "jitter") {
            fields.exit_limits.push((word.name, reader.at(node.name_span)));
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
                let zero =
                    Zero::Forbidden("the count would always be reset, and no limit would apply");
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
    let zero = Zero::Forbidden("the server would be killed before it could stop");
    reader.duration(node, word, zero)
}

pub(super) fn ready(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> ReadyFields {
    let mut fields = ReadyFields::default();
    let Some(children) = reader.block(node, word) else { return fields };
    for (node, word) in reader.known(children, &READY_WORDS, Some("ready")) {
        match word.name {
            "probe" => fields.probe = reader.choice(node, word, "probe", &READY_PROBES),
            "within" => {
                let zero = Zero::Forbidden("no server could be ready in time");
                fields.within = reader.duration(node, word, zero);
            }
            "path" => fields.path = reader.url_path(node, word),
            _ => fields.timeout = reader.duration(node, word, ZERO_TIMEOUT),
        }
    }
    fields
}

pub(super) fn calls(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> CallFields {
    let mut fields = CallFields::default();
    let Some(children) = reader.block(node, word) else { return fields };
    for (node, word) in reader.known(children, &CALLS_WORDS, Some("calls")) {
        let zero = Zero::Forbidden("every call would time out at once; leave it out for no limit");
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
    let Some(children) = reader.block(node, word) else { return fields };
    for (node, word) in reader.known(children, &HEALTH_WORDS, Some("health")) {
        match word.name {
            "probe" => fields.probe = reader.choice(node, word, "probe", &HEALTH_PROBES),
            "interval" => {
                let zero = Zero::Forbidden("probes would never pause");
                fields.interval = reader.duration(node, word, zero);
            }
            "timeout" => fields.timeout = reader.duration(node, word, ZERO_TIMEOUT),
            "failures" => fields.failures = reader.count(node, word, 1..=u32::MAX),
            _ => fields.path = reader.url_path(node, word),
        }
    }
    fields
}
