//! The environment of a daemon that is started for a client.
//!
//! The daemon outlives the client and serves other clients too. It must not inherit an editor's
//! runtime settings, project folders or secrets, but only the variables of a login session.

use std::ffi::{OsStr, OsString};

/// The variables that are kept: the user, paths, the session, and network settings.
const KEPT: [&str; 27] = [
    "HOME",
    "PATH",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "SSH_AUTH_SOCK",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "DOCKER_HOST",
    "CONTAINER_HOST",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "NIX_SSL_CERT_FILE",
    "__CF_USER_TEXT_ENCODING",
];

/// The prefixes of variables that are kept: those of a login session and of xy.
const KEPT_PREFIXES: [&str; 4] = ["XDG_", "LC_", "DBUS_", "XY_"];

/// Returns the variables that are kept.
pub(super) fn cleaned(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> impl Iterator<Item = (OsString, OsString)> {
    variables.filter(|(name, _)| is_kept(name))
}

fn is_kept(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else {
        return false;
    };
    KEPT.contains(&name) || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_login_variables_are_kept() {
        let kept = ["HOME", "PATH", "XDG_RUNTIME_DIR", "LC_ALL", "DBUS_SESSION_BUS_ADDRESS"];
        let dropped = [
            "ELECTRON_RUN_AS_NODE",
            "VSCODE_PID",
            "npm_config_prefix",
            "NODE_OPTIONS",
            "VIRTUAL_ENV",
            "PYTHONPATH",
            "LD_LIBRARY_PATH",
            "DYLD_INSERT_LIBRARIES",
            "GITHUB_TOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "TERM",
            "PWD",
            "HOMEBREW",
        ];
        let all = kept.iter().chain(&dropped).map(|name| (name.into(), "1".into()));
        let left: Vec<OsString> = cleaned(all).map(|(name, _)| name).collect();
        assert_eq!(left, kept);
    }
}
