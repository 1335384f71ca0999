//! The door: every server's tools, prompts and resources, to every client.

pub mod front;
