//! A small in-memory index of tools, searched in the user's words.
//!
//! [`Document::from_definition`] extracts the words of one tool from its definition. [`Index`]
//! holds the documents of all servers and answers searches with BM25 over weighted fields. Names
//! are split into words, words are stemmed, synonyms are looked up in a table, and a mistyped word
//! finds the intended one.
//!
//! Pure: no I/O, no clock, no runtime. The result depends only on the query and on the documents
//! that the client may see: not on the order in which servers were added, nor on hidden documents.
//! `docs/design/search.md` gives the reasons for this design and the alternatives.
#![forbid(unsafe_code)]

mod actions;
mod document;
mod index;
mod irregular_forms;
mod letters;
mod query;
mod stem;
mod synonyms;
mod tuning;
mod word_classes;
mod words;

pub use document::Document;
pub use index::{Hit, Index, VisibilityCache};
pub use tuning::{Stemming, Tuning};

/// Maximum number of indexed tools of one server.
pub const MAX_TOOLS_PER_SERVER: usize = 5_000;

/// Maximum number of indexed tools.
pub const MAX_TOOLS: usize = 50_000;

/// Maximum number of hits of a search.
pub const MAX_HITS: usize = 100;
