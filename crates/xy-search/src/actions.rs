//! The action of a tool according to its name: reading, writing or removing.
//!
//! A client that asks `what is on Friday` does not want `delete-event`, although it matches as many
//! words as `list-events`. Creating and changing are not distinguished: adding a label changes a
//! mail.

use std::ops::BitOr;

/// A set of the three kinds of action.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Actions(u8);

impl Actions {
    pub(crate) const READ: Self = Self(1);
    const WRITE: Self = Self(2);
    const REMOVE: Self = Self(4);

    /// Returns the action that a stem indicates; empty for most stems.
    pub(crate) fn of(stem: &str) -> Self {
        let kinds = [(Self::READ, READ), (Self::WRITE, WRITE), (Self::REMOVE, REMOVE)];
        let found = kinds.into_iter().find(|(_, verbs)| verbs.contains(&stem));
        found.map_or(Self::default(), |(kind, _)| kind)
    }

    /// Returns true if both sets are non-empty and have no action in common.
    pub(crate) fn contradicts(self, other: Self) -> bool {
        !self.is_empty() && !other.is_empty() && self.0 & other.0 == 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Actions {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl FromIterator<Self> for Actions {
    fn from_iter<I: IntoIterator<Item = Self>>(all: I) -> Self {
        all.into_iter().fold(Self::default(), Self::bitor)
    }
}

const READ: &[&str] = &[
    "get", "list", "search", "find", "read", "queri", "fetch", "show", "describ", "retriev",
    "lookup", "view", "count", "explain", "analyz", "detect", "check", "status", "inspect",
    "brows", "track", "grep", "info", "diff", "log",
];

const WRITE: &[&str] = &[
    "creat", "add", "insert", "new", "post", "send", "write", "upload", "make", "publish", "gener",
    "append", "schedul", "draft", "repli", "fork", "put", "push", "updat", "edit", "modifi",
    "patch", "set", "chang", "renam", "move", "resolv", "adjust", "transit", "format", "resiz",
    "replac", "overwrit", "close", "approv", "merg",
];

const REMOVE: &[&str] = &[
    "delet", "remov", "drop", "purg", "trash", "cancel", "ban", "kick", "kill", "stop", "revok",
    "clear", "eras",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stem::stem;
    use crate::tuning::Stemming;

    fn of(text: &str) -> Actions {
        text.split(' ').map(|it| Actions::of(&stem(it, Stemming::Porter))).collect()
    }

    #[test]
    fn action_verbs_are_recognised_by_their_stems() {
        let verbs = "query describe retrieve explain analyse status inspect browse create generate \
            append schedule reply update modify change rename move resolve transition resize \
            replace overwrite approve merge delete remove purge revoke erase";
        for verb in verbs.split_whitespace() {
            assert!(!of(verb).is_empty(), "{verb}");
        }
    }

    #[test]
    fn only_different_actions_contradict() {
        assert!(of("list events").contradicts(of("delete event")));
        assert!(of("create event").contradicts(of("delete event")));
        assert!(!of("create event").contradicts(of("update event")));
        assert!(!of("post search").contradicts(of("find")));
        assert!(!of("turn on").contradicts(of("delete")));
    }
}
