//! The features that may fail, each with its reason. An entry that is not needed any more
//! fails the test.

use crate::library::Library;
use crate::server::{Era, Transport};

/// The side on which a feature fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The feature fails without xy too.
    Direct,
    /// The feature works without xy. The reason starts with `fault:` if xy should do better.
    Through,
}

/// Features of some libraries that may fail.
#[derive(Debug)]
pub(crate) struct Allowed {
    pub(crate) side: Side,
    /// Keys of libraries.
    pub(crate) libraries: &'static [&'static str],
    pub(crate) transports: &'static [Transport],
    pub(crate) eras: &'static [Era],
    pub(crate) features: &'static [&'static str],
    pub(crate) why: &'static str,
}

impl Allowed {
    /// Returns true if the entry is about this feature of a library.
    pub(crate) fn covers(
        &self,
        side: Side,
        library: &Library,
        (transport, era): (Transport, Era),
        feature: &str,
    ) -> bool {
        self.side == side
            && self.libraries.contains(&library.key)
            && self.transports.contains(&transport)
            && self.eras.contains(&era)
            && self.features.contains(&feature)
    }
}

pub(crate) const ALLOWED: &[Allowed] = &[
    Allowed {
        side: Side::Direct,
        libraries: &[
            "python-sdk-2",
            "python-sdk-2-legacy",
            "fastmcp",
            "pydantic-ai",
            "openai-agents",
        ],
        transports: &[Transport::Sse],
        eras: &Era::ALL,
        features: &["large"],
        why: "The Python SDK 2 reads events of at most 1 MiB.",
    },
    Allowed {
        side: Side::Direct,
        libraries: &["fastmcp", "pydantic-ai", "openai-agents"],
        transports: &[Transport::Http],
        eras: &[Era::Legacy],
        features: &["large"],
        why: "The Python SDK 2 reads events of at most 1 MiB, unless `max_sse_event_size` is set.",
    },
];
