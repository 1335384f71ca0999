//! Defaults from environment variables.
//!
//! Precedence, lowest first: built-in values, the environment, `defaults` of `xy.kdl`, the server's
//! file. A variable that cannot be parsed is an error, like one in a file. An empty variable counts
//! as unset.

use std::ffi::OsString;
use std::time::Duration;

use crate::report::{Problem, quote};
use crate::settings::{MAX_DURATION, Rules};

/// The file name in reports about environment variables.
pub const ENVIRONMENT: &str = "environment";

/// The variable that turns supervision on or off.
pub const SUPERVISOR_ENABLED: &str = "XY_SUPERVISOR_ENABLED";

/// The variable for `max-attempts`.
const MAX_ATTEMPTS: &str = "XY_MAX_RESTART_ATTEMPTS";

/// The variable for `backoff-initial`.
const RESTART_DELAY: &str = "XY_RESTART_DELAY_MS";

/// The variable for `interval` of `health`.
const HEALTH_INTERVAL: &str = "XY_HEALTH_CHECK_INTERVAL_MS";

/// The variable for `timeout` of `health`.
const HEALTH_TIMEOUT: &str = "XY_HEALTH_CHECK_TIMEOUT_MS";

/// The defaults from the environment; `None` for each unset variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EnvironmentDefaults {
    /// Whether the daemon supervises servers; otherwise each client runs its own.
    pub supervisor_enabled: Option<bool>,
    /// Maximum number of restarts in a row; 0 disables the limit.
    pub max_attempts: Option<u32>,
    /// The first delay before a restart.
    pub restart_delay: Option<Duration>,
    /// The interval between health probes.
    pub health_interval: Option<Duration>,
    /// The timeout of a health probe.
    pub health_timeout: Option<Duration>,
}

impl EnvironmentDefaults {
    /// Reads all variables, and returns their values with every problem.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> (Self, Vec<Problem>) {
        let mut problems = Vec::new();
        let defaults = Self {
            supervisor_enabled: ok_or_report(supervisor_enabled(&variable), &mut problems),
            max_attempts: ok_or_report(
                read_one(&variable, MAX_ATTEMPTS, parse_attempts),
                &mut problems,
            ),
            restart_delay: ok_or_report(
                read_one(&variable, RESTART_DELAY, parse_time),
                &mut problems,
            ),
            health_interval: ok_or_report(
                read_one(&variable, HEALTH_INTERVAL, parse_nonzero_time),
                &mut problems,
            ),
            health_timeout: ok_or_report(
                read_one(&variable, HEALTH_TIMEOUT, parse_nonzero_time),
                &mut problems,
            ),
        };
        (defaults, problems)
    }

    /// Returns the rules of a server for which no file sets any.
    pub fn rules(&self) -> Rules {
        let mut rules = Rules::default();
        if let Some(parse_attempts) = self.max_attempts {
            rules.restart.max_attempts = parse_attempts;
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

/// Returns whether servers are supervised according to the environment; `None` if it is unset.
pub fn supervisor_enabled(
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<bool>, Problem> {
    read_one(variable, SUPERVISOR_ENABLED, parse_bool)
}

fn ok_or_report<T>(read: Result<Option<T>, Problem>, problems: &mut Vec<Problem>) -> Option<T> {
    read.unwrap_or_else(|problem| {
        problems.push(problem);
        None
    })
}

/// A parsed value, or a description of what is expected instead.
type ParseResult<T> = Result<T, &'static str>;

fn read_one<T>(
    variable: impl Fn(&str) -> Option<OsString>,
    name: &str,
    parse: fn(&str) -> ParseResult<T>,
) -> Result<Option<T>, Problem> {
    let given = variable(name).unwrap_or_default();
    let text = given.to_string_lossy();
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    parse(text).map(Some).map_err(|expected| {
        let message = format!("the variable `{name}` cannot be {}", quote(text));
        Problem::in_file(ENVIRONMENT, message).suggest(format!("give it {expected}, or unset it"))
    })
}

fn parse_bool(text: &str) -> ParseResult<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("`true` or `false`"),
    }
}

fn parse_attempts(text: &str) -> ParseResult<u32> {
    text.parse().map_err(|_| "a whole number, 0 for no limit")
}

fn parse_time(text: &str) -> ParseResult<Duration> {
    millis(text).ok_or("a whole number of milliseconds, a year at most")
}

fn parse_nonzero_time(text: &str) -> ParseResult<Duration> {
    millis(text)
        .filter(|time| !time.is_zero())
        .ok_or("a whole number of milliseconds, 1 at least and a year at most")
}

fn millis(text: &str) -> Option<Duration> {
    let time = Duration::from_millis(text.parse().ok()?);
    (time <= MAX_DURATION).then_some(time)
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
    fn unset_and_empty_variables_have_no_effect() {
        let nothing = (EnvironmentDefaults::default(), Vec::new());
        assert_eq!(read(&[]), nothing);
        assert_eq!(read(&[(MAX_ATTEMPTS, ""), (RESTART_DELAY, " ")]), nothing);
        assert_eq!(EnvironmentDefaults::default().rules(), Rules::default());
    }

    #[test]
    fn every_variable_is_parsed() {
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
        assert_eq!(restart.backoff_max, Duration::from_secs(45), "no delay exceeds the maximum");
    }

    #[test]
    fn invalid_variables_are_reported() {
        let (defaults, problems) = read(&[
            (SUPERVISOR_ENABLED, "maybe"),
            (MAX_ATTEMPTS, "-1"),
            (RESTART_DELAY, "1s"),
            (HEALTH_INTERVAL, "0"),
            (HEALTH_TIMEOUT, "99999999999999999999\u{1b}[31m"),
        ]);
        assert_eq!(defaults, EnvironmentDefaults::default());
        let described: Vec<String> = problems.iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(described.join("\n"), @r"
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
