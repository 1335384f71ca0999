//! A small index of tools in memory, searched in a user's words.
