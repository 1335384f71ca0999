//! KDL files to trusted settings: raw (with spans) → check (all problems at once) → settings.

pub mod settings;
