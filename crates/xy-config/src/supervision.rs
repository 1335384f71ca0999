//! Whether servers are supervised at all: built in < environment < `supervisor` of `xy.kdl`.
//! Pure; `load.rs` reads what it is decided by.

use crate::environment::SUPERVISOR_ENABLED;

/// Whether there is to be a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Supervision {
    /// It looks after the servers.
    On,
    /// Each client runs its own; who says so.
    Off(SwitchedOff),
}

/// Who has switched supervision off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwitchedOff {
    /// The daemon's own file, as people know it.
    File(String),
    /// The environment, and no file says otherwise.
    Environment,
}

impl Supervision {
    /// Decides by what the file of this name and the environment say.
    pub fn of((name, said): (&str, Option<bool>), environment: Option<bool>) -> Self {
        match (said, environment) {
            (Some(false), _) => Self::Off(SwitchedOff::File(name.to_owned())),
            (None, Some(false)) => Self::Off(SwitchedOff::Environment),
            (Some(true), _) | (None, Some(true) | None) => Self::On,
        }
    }
}

impl SwitchedOff {
    /// How it comes, as a sentence.
    pub fn cause(&self) -> String {
        match self {
            Self::File(name) => format!("`supervisor` is false in `{name}`"),
            Self::Environment => format!("{SUPERVISOR_ENABLED} is false in the environment"),
        }
    }

    /// What to do to switch it on.
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
    fn the_file_has_the_last_word() {
        use Supervision::{Off, On};

        let file = |said| ("xy.kdl", said);
        let by_file = || Off(SwitchedOff::File("xy.kdl".to_owned()));
        for (said, environment, expected) in [
            (None, None, On),
            (None, Some(true), On),
            (None, Some(false), Off(SwitchedOff::Environment)),
            (Some(true), None, On),
            (Some(true), Some(false), On),
            (Some(false), None, by_file()),
            (Some(false), Some(true), by_file()),
        ] {
            assert_eq!(Supervision::of(file(said), environment), expected, "{said:?}");
        }
    }
}
