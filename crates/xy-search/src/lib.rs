//! A small index of tools in memory, searched in a user's words.
//!
//! [`Document::of`] takes the words of one tool out of its definition, [`Index`] holds the
//! documents of all servers and answers searches with BM25 over fields of different weight.
//! Names are split into words, words are stemmed, and what people call a thing besides its
//! name is looked up in a table; a mistyped word finds the one that was meant.
//!
//! Pure: no I/O, no clock, no runtime. What is found is a function of the documents that the
//! asker may see and of the query: not of the order in which servers came, and of nothing
//! that is hidden from the asker. `docs/design/search.md` says why it is built this way and
//! what else was tried.
#![forbid(unsafe_code)]

mod actions;
mod document;
mod forms;
mod index;
mod kinds;
mod query;
mod stem;
mod synonyms;
mod tuning;
mod words;

pub use document::Document;
pub use index::{Hit, Index, Visible};
pub use tuning::{Stemming, Tuning};

/// The most tools that are kept of one server.
pub const MOST_TOOLS_OF_A_SERVER: usize = 5_000;

/// The most tools that are kept of all servers together.
pub const MOST_TOOLS: usize = 50_000;

/// The most hits that a search answers with.
pub const MOST_HITS: usize = 100;
