//! What the environment says where no file does.
//!
//! Built in < environment < `defaults` of `xy.kdl` < the file of a server. A variable that
//! cannot be understood is an error like one in a file; one that is empty is not there.

use std::ffi::OsString;
use std::time::Duration;

use crate::report::{Problem, quote};
use crate::settings::{LONGEST, Rules};

/// The place of problems that are in no file.
pub const ENVIRONMENT: &str = "environment";

/// Whether servers are supervised at all.
pub const SUPERVISOR_ENABLED: &str = "XY_SUPERVISOR_ENABLED";

/// `max-attempts`.
const MAX_ATTEMPTS: &str = "XY_MAX_RESTART_ATTEMPTS";

/// `backoff-initial`.
const RESTART_DELAY: &str = "XY_RESTART_DELAY_MS";

/// `interval` of `health`.
const HEALTH_INTERVAL: &str = "XY_HEALTH_CHECK_INTERVAL_MS";

/// `timeout` of `health`.
const HEALTH_TIMEOUT: &str = "XY_HEALTH_CHECK_TIMEOUT_MS";

/// What the environment says; nothing, where it says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EnvironmentDefaults {
    /// Whether servers are supervised; if not, each client runs its own.
    pub supervisor_enabled: Option<bool>,
    /// More restarts in a row than this are too many; 0 turns the limit off.
    pub max_attempts: Option<u32>,
    /// The first delay before a restart.
    pub restart_delay: Option<Duration>,
    /// How often health is looked at.
    pub health_interval: Option<Duration>,
    /// How long an answer to that may take.
    pub health_timeout: Option<Duration>,
}

impl EnvironmentDefaults {
    /// Reads all variables; what is wrong with them is told at once.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> (Self, Vec<Problem>) {
        let mut problems = Vec::new();
        let defaults = Self {
            supervisor_enabled: kept(supervisor_enabled(&variable), &mut problems),
            max_attempts: kept(read_one(&variable, MAX_ATTEMPTS, attempts), &mut problems),
            restart_delay: kept(read_one(&variable, RESTART_DELAY, any_time), &mut problems),
            health_interval: kept(read_one(&variable, HEALTH_INTERVAL, some_time), &mut problems),
            health_timeout: kept(read_one(&variable, HEALTH_TIMEOUT, some_time), &mut problems),
        };
        (defaults, problems)
    }

    /// The rules of a server of which no file says anything.
    pub fn rules(&self) -> Rules {
        let mut rules = Rules::default();
        if let Some(attempts) = self.max_attempts {
            rules.restart.max_attempts = attempts;
        }
        if let Some(delay) = self.restart_delay {
            rules.restart.backoff_initial = delay;
            rules.restart.backoff_max = rules.restart.backoff_max.max(delay);
        }
        if let Some(interval) = self.health_interval {
            rules.health.interval = interval;
        }
        if let Some(timeout) = self.health_timeout {
            rules.health.timeout = timeout;
        }
        rules
    }
}

/// Whether servers are supervised, as far as the environment says.
pub fn supervisor_enabled(
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<bool>, Problem> {
    read_one(variable, SUPERVISOR_ENABLED, switch)
}

fn kept<T>(read: Result<Option<T>, Problem>, problems: &mut Vec<Problem>) -> Option<T> {
    read.unwrap_or_else(|problem| {
        problems.push(problem);
        None
    })
}

/// A value, or what is expected instead.
type Understood<T> = Result<T, &'static str>;

fn read_one<T>(
    variable: impl Fn(&str) -> Option<OsString>,
    name: &str,
    understand: fn(&str) -> Understood<T>,
) -> Result<Option<T>, Problem> {
    let given = variable(name).unwrap_or_default();
    let text = given.to_string_lossy();
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    understand(text).map(Some).map_err(|expected| {
        let message = format!("the variable `{name}` cannot be {}", quote(text));
        Problem::in_file(ENVIRONMENT, message).suggest(format!("give it {expected}, or unset it"))
    })
}

fn switch(text: &str) -> Understood<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("`true` or `false`"),
    }
}

fn attempts(text: &str) -> Understood<u32> {
    text.parse().map_err(|_| "a whole number, 0 for no limit")
}

fn any_time(text: &str) -> Understood<Duration> {
    millis(text).ok_or("a whole number of milliseconds, a year at most")
}

fn some_time(text: &str) -> Understood<Duration> {
    millis(text)
        .filter(|time| !time.is_zero())
        .ok_or("a whole number of milliseconds, 1 at least and a year at most")
}

fn millis(text: &str) -> Option<Duration> {
    let time = Duration::from_millis(text.parse().ok()?);
    (time <= LONGEST).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (EnvironmentDefaults, Vec<Problem>) {
        EnvironmentDefaults::read(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn what_is_not_there_or_empty_says_nothing() {
        let nothing = (EnvironmentDefaults::default(), Vec::new());
        assert_eq!(read(&[]), nothing);
        assert_eq!(read(&[(MAX_ATTEMPTS, ""), (RESTART_DELAY, " ")]), nothing);
        assert_eq!(EnvironmentDefaults::default().rules(), Rules::default());
    }

    #[test]
    fn every_variable_is_understood() {
        let (defaults, problems) = read(&[
            (SUPERVISOR_ENABLED, "False"),
            (MAX_ATTEMPTS, "0"),
            (RESTART_DELAY, "45000"),
            (HEALTH_INTERVAL, "30000"),
            (HEALTH_TIMEOUT, "5000"),
        ]);
        let expected = EnvironmentDefaults {
            supervisor_enabled: Some(false),
            max_attempts: Some(0),
            restart_delay: Some(Duration::from_secs(45)),
            health_interval: Some(Duration::from_secs(30)),
            health_timeout: Some(Duration::from_secs(5)),
        };
        assert_eq!((defaults, problems), (expected, Vec::new()));
        let restart = defaults.rules().restart;
        assert_eq!(restart.max_attempts, 0);
        assert_eq!(restart.backoff_initial, Duration::from_secs(45));
        assert_eq!(restart.backoff_max, Duration::from_secs(45), "no delay is over the longest");
    }

    #[test]
    fn all_that_cannot_be_understood_is_told() {
        let (defaults, problems) = read(&[
            (SUPERVISOR_ENABLED, "maybe"),
            (MAX_ATTEMPTS, "-1"),
            (RESTART_DELAY, "1s"),
            (HEALTH_INTERVAL, "0"),
            (HEALTH_TIMEOUT, "99999999999999999999\u{1b}[31m"),
        ]);
        assert_eq!(defaults, EnvironmentDefaults::default());
        let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(told.join("\n"), @r"
        error: the variable `XY_SUPERVISOR_ENABLED` cannot be `maybe`
         --> environment
          = hint: give it `true` or `false`, or unset it

        error: the variable `XY_MAX_RESTART_ATTEMPTS` cannot be `-1`
         --> environment
          = hint: give it a whole number, 0 for no limit, or unset it

        error: the variable `XY_RESTART_DELAY_MS` cannot be `1s`
         --> environment
          = hint: give it a whole number of milliseconds, a year at most, or unset it

        error: the variable `XY_HEALTH_CHECK_INTERVAL_MS` cannot be `0`
         --> environment
          = hint: give it a whole number of milliseconds, 1 at least and a year at most, or unset it

        error: the variable `XY_HEALTH_CHECK_TIMEOUT_MS` cannot be `99999999999999999999\u{1b}[31m`
         --> environment
          = hint: give it a whole number of milliseconds, 1 at least and a year at most, or unset it
        ");
    }
}
