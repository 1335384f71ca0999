//! Opens xy's own files, which another program may have replaced by something else.

pub(crate) use xy_config::trust::{open as open_file, open_own};
