//! The features that may fail, each with its reason. An entry that is not needed any more
//! fails the test.

use crate::library::Library;
use crate::server::{Era, Sharing, Transport, Way};

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
    pub(crate) sharing: &'static [Sharing],
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
        (way, era): (Way, Era),
        feature: &str,
    ) -> bool {
        self.side == side
            && self.libraries.contains(&library.key)
            && self.transports.contains(&way.transport)
            && self.sharing.contains(&way.sharing)
            && self.eras.contains(&era)
            && self.features.contains(&feature)
    }
}

const ROOTS: &str =
    "Roots belong to one client, so a legacy server that clients share may not ask for them.";

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
        sharing: &Sharing::ALL,
        eras: &Era::ALL,
        features: &["large"],
        why: "The Python SDK 2 reads events of at most 1 MiB.",
    },
    Allowed {
        side: Side::Direct,
        libraries: &["fastmcp", "pydantic-ai", "openai-agents"],
        transports: &[Transport::Http],
        sharing: &Sharing::ALL,
        eras: &[Era::Legacy],
        features: &["large"],
        why: "The Python SDK 2 reads events of at most 1 MiB, unless `max_sse_event_size` is set.",
    },
    Allowed {
        side: Side::Through,
        libraries: &["python-sdk-1", "typescript-sdk-1"],
        transports: &Transport::ALL,
        sharing: &[Sharing::Shared],
        eras: &Era::ALL,
        features: &["roots"],
        why: ROOTS,
    },
    Allowed {
        side: Side::Through,
        libraries: &["python-sdk-2", "typescript-client-2-auto"],
        transports: &Transport::ALL,
        sharing: &[Sharing::Shared],
        eras: &[Era::Legacy],
        features: &["roots"],
        why: ROOTS,
    },
    // The older HTTP has the legacy era only.
    Allowed {
        side: Side::Through,
        libraries: &["python-sdk-2", "typescript-client-2-auto"],
        transports: &[Transport::Sse],
        sharing: &[Sharing::Shared],
        eras: &[Era::Both],
        features: &["roots"],
        why: ROOTS,
    },
];
