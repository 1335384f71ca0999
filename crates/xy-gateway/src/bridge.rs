//! Translation between clients and servers of different eras.
//!
//! A modern server that needs input answers with `input_required`, and the client repeats its
//! request with the answers. A legacy server makes a request of its own during the call, and waits.
//!
//! - `pending_input.rs` *parks* a modern client's call in which a legacy server requests input.
//! - `state.rs` signs the `requestState` by which the client finds the pending input again.
//! - `rounds.rs` asks a legacy client for what a modern server needs, in *rounds*.
//! - `translation.rs` rewrites requests and responses.
//!
//! `docs/design/eras.md` has the sequences.

pub(crate) mod pending_input;
pub(crate) mod rounds;
mod state;
mod translation;

pub(crate) use state::{Key, StateBinding, StateError};
pub(crate) use translation::{EraTranslation, binding, translation_for};
