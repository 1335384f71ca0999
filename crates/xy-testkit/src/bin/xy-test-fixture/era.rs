//! Protocol eras: which ones the process supports, and which one a message belongs to.

use xy_testkit::json::Members;

use crate::meta::Meta;

/// The era of a request.
#[derive(Debug, Clone)]
pub(crate) enum Era {
    /// The revisions with `initialize`.
    Legacy,
    /// The revision with stateless requests: each carries its own metadata.
    Modern(Meta),
}

/// The eras that the process supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SupportedEras {
    Legacy,
    Modern,
    Both,
}

impl SupportedEras {
    /// Parses the value of `--era`.
    pub(crate) fn from_flag(word: &str) -> Self {
        match word {
            "legacy" => Self::Legacy,
            "modern" => Self::Modern,
            "both" => Self::Both,
            other => panic!("`--era legacy`, `modern` or `both`, not {other:?}"),
        }
    }
}

/// Returns true if a message belongs to the modern era: by its method or by its `_meta`.
pub(crate) fn is_modern(message: &Members) -> bool {
    let method = message.string("method");
    let is_ours = matches!(method.as_deref(), Some("server/discover" | "subscriptions/listen"));
    is_ours || Meta::is_present_in(&message.members("params"))
}

/// Returns true if a message starts a legacy session.
pub(crate) fn begins_legacy(message: &Members) -> bool {
    message.string("method").as_deref() == Some("initialize") && !is_modern(message)
}
