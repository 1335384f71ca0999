//! The rule that turns supervision on or off. Pure.
//!
//! Precedence, lowest first: the built-in default, the environment, `supervisor` of `xy.kdl`.
//! `load.rs` reads these inputs.

use crate::environment::SUPERVISOR_ENABLED;

/// The supervision of servers by a daemon: on or off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Supervision {
    /// The daemon supervises the servers.
    On,
    /// Each client runs its own servers, because of this setting.
    Off(DisabledBy),
}

/// The setting that turns supervision off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DisabledBy {
    /// The daemon's own file, by its name in reports.
    File(String),
    /// The environment; no file sets it.
    Environment,
}

impl Supervision {
    /// Decides from the value in the file of this name, and the value in the environment.
    pub fn of((name, in_file): (&str, Option<bool>), environment: Option<bool>) -> Self {
        match (in_file, environment) {
            (Some(false), _) => Self::Off(DisabledBy::File(name.to_owned())),
            (None, Some(false)) => Self::Off(DisabledBy::Environment),
            (Some(true), _) | (None, Some(true) | None) => Self::On,
        }
    }
}

impl DisabledBy {
    /// Returns the cause as a sentence.
    pub fn cause(&self) -> String {
        match self {
            Self::File(name) => format!("`supervisor` is false in `{name}`"),
            Self::Environment => format!("{SUPERVISOR_ENABLED} is false in the environment"),
        }
    }

    /// Returns how to turn supervision on.
    pub fn remedy(&self) -> String {
        match self {
            Self::File(name) => format!("remove `supervisor #false` from `{name}`"),
            Self::Environment => format!("unset {SUPERVISOR_ENABLED}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_overrides_the_environment() {
        use Supervision::{Off, On};

        let file = |said| ("xy.kdl", said);
        let by_file = || Off(DisabledBy::File("xy.kdl".to_owned()));
        for (said, environment, expected) in [
            (None, None, On),
            (None, Some(true), On),
            (None, Some(false), Off(DisabledBy::Environment)),
            (Some(true), None, On),
            (Some(true), Some(false), On),
            (Some(false), None, by_file()),
            (Some(false), Some(true), by_file()),
        ] {
            assert_eq!(Supervision::of(file(said), environment), expected, "{said:?}");
        }
    }
}
