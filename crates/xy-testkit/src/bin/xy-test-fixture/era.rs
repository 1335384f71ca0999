//! Which era is on offer, and which one a message is of.

use xy_testkit::json::Members;

use crate::meta::Meta;

/// The era of a request.
#[derive(Debug, Clone)]
pub(crate) enum Era {
    /// The revisions with `initialize`.
    Legacy,
    /// The revision in which each request says everything by itself.
    Modern(Meta),
}

/// What the process speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offer {
    Legacy,
    Modern,
    Both,
}

impl Offer {
    /// By its word on the command line.
    pub(crate) fn of(word: &str) -> Self {
        match word {
            "legacy" => Self::Legacy,
            "modern" => Self::Modern,
            "both" => Self::Both,
            other => panic!("`--era legacy`, `modern` or `both`, not {other:?}"),
        }
    }
}

/// Whether a message says by itself that it is modern.
pub(crate) fn is_modern(message: &Members) -> bool {
    let method = message.string("method");
    let is_ours = matches!(method.as_deref(), Some("server/discover" | "subscriptions/listen"));
    is_ours || Meta::is_in(&message.members("params"))
}

/// Whether a message begins a legacy conversation.
pub(crate) fn begins_legacy(message: &Members) -> bool {
    message.string("method").as_deref() == Some("initialize") && !is_modern(message)
}
