//! What differs through xy, and why it must.

use super::compare::Differs;

/// A fixture that each client has for itself.
pub(crate) const FIXTURE_OF_ONE_CLIENT: &[Differs] = &[];

/// A fixture that all clients share.
pub(crate) const SHARED_FIXTURE: &[Differs] = &[];

/// The everything server, which each client has for itself.
pub(crate) const EVERYTHING: &[Differs] = &[];
