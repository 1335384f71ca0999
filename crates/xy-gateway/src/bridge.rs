//! Between the eras: a client and a server that speak different revisions of MCP.
//!
//! A request of a modern client says everything by itself, and what a server wants to know of
//! the client comes back as a result that asks for input (`input_required`): the client asks
//! again, with answers. A legacy server asks in the middle of a call, and waits. So a call of
//! a modern client that a legacy server asks something in is *parked* (`pending_input.rs`, found again
//! by a signed word that the client carries, `state.rs`), and what a modern server wants of a
//! legacy client is asked in *rounds* (`rounds.rs`). `across.rs` changes what is sent and
//! answered. `docs/design/eras.md` has the sequences.

mod across;
pub(crate) mod pending_input;
pub(crate) mod rounds;
mod state;

pub(crate) use across::{Across, between, bond};
pub(crate) use state::{Bond, Key, Unfit};
