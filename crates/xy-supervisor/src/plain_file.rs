//! Opening files of ours that somebody may have replaced by something else.

pub(crate) use xy_config::trust::{open as open_file, open_own};
