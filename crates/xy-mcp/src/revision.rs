//! The revisions of MCP that xy speaks.

/// The revisions that begin with `initialize`, oldest first.
pub const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// The latest legacy revision.
pub const LATEST: &str = VERSIONS[VERSIONS.len() - 1];

/// The modern revision, without `initialize`: every request stands for itself.
pub const MODERN: &str = "2026-07-28";

/// Returns the static text of a legacy revision that xy knows.
pub fn known(version: &str) -> Option<&'static str> {
    VERSIONS.into_iter().find(|known| *known == version)
}

/// Returns the revision to answer a client that requests `version`: the same if xy knows it, else
/// the latest, which the client may refuse.
pub fn offered(version: &str) -> &'static str {
    known(version).unwrap_or(LATEST)
}

/// Returns true if the revision has batches.
pub fn has_batches(version: &str) -> bool {
    version == "2025-03-26"
}

/// Returns true if clients of the revision accept an event without data, and resume a stream that
/// was closed before its response.
pub fn has_polling(version: &str) -> bool {
    version >= "2025-11-25" // Revisions are dates.
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_gets_its_revision_or_the_latest() {
        assert_eq!(offered("2024-11-05"), "2024-11-05");
        assert_eq!(offered("2099-01-01"), LATEST);
        assert_eq!(offered(""), LATEST);
    }

    #[test]
    fn only_the_latest_revision_polls() {
        assert_eq!(VERSIONS.map(has_polling), [false, false, false, true]);
    }
}
