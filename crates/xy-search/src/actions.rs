//! What a tool does, as far as its name says: whether it looks, writes or removes.
//!
//! Who asks `what is on Friday` does not want to delete it, though `delete-event` has as many
//! of the words as `list-events`. To make and to change are not told apart: who adds a label
//! changes a mail.

use std::ops::BitOr;

/// Some of the three kinds of action, or none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Actions(u8);

impl Actions {
    pub(crate) const LOOK: Self = Self(1);
    const WRITE: Self = Self(2);
    const REMOVE: Self = Self(4);

    /// What a stem says in the name of a tool or in a query; nothing for most.
    pub(crate) fn of(stem: &str) -> Self {
        let kinds = [(Self::LOOK, LOOK), (Self::WRITE, WRITE), (Self::REMOVE, REMOVE)];
        let found = kinds.into_iter().find(|(_, verbs)| verbs.contains(&stem));
        found.map_or(Self::default(), |(kind, _)| kind)
    }

    /// Whether both say what they do, and have nothing in common.
    pub(crate) fn contradict(self, other: Self) -> bool {
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

const LOOK: &[&str] = &[
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
    fn verbs_are_written_as_their_stems() {
        let verbs = "query describe retrieve explain analyse status inspect browse create generate \
            append schedule reply update modify change rename move resolve transition resize \
            replace overwrite approve merge delete remove purge revoke erase";
        for verb in verbs.split_whitespace() {
            assert!(!of(verb).is_empty(), "{verb}");
        }
    }

    #[test]
    fn only_who_says_something_else_contradicts() {
        assert!(of("list events").contradict(of("delete event")));
        assert!(of("create event").contradict(of("delete event")));
        assert!(!of("create event").contradict(of("update event")));
        assert!(!of("post search").contradict(of("find")));
        assert!(!of("turn on").contradict(of("delete")));
    }
}
