//! Servers that are this daemon itself: xy would serve its own tools without end. Pure.
//!
//! Only what is certain is said here. Through a script, a container or another name for the
//! program, the gateway finds it out when it speaks with the server.

use std::path::{Path, PathBuf};

use xy_protocol::server::ServerName;

use super::Surroundings;
use crate::settings::{GatewaySettings, ProcessSettings, RemoteSettings, ServerKind};

/// The name of the program.
const XY: &str = "xy";

/// The variables that decide which daemon `xy connect` reaches.
const FOLDERS: [&str; 4] = ["HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"];

/// Hosts that are this machine, whatever the gateway's address is.
const THIS_MACHINE: [&str; 4] = ["localhost", "127.0.0.1", "[::1]", "0.0.0.0"];

/// Why a server is this daemon itself; `None` if that is not certain.
pub(super) fn why(
    name: &ServerName,
    kind: &ServerKind,
    gateway: &GatewaySettings,
    surroundings: &dyn Surroundings,
) -> Option<String> {
    match kind {
        ServerKind::Process(process) => connects(name, process, surroundings),
        ServerKind::Remote(remote) => is_own_address(remote, gateway),
        ServerKind::Container(_) => None,
    }
}

fn connects(
    name: &ServerName,
    process: &ProcessSettings,
    surroundings: &dyn Surroundings,
) -> Option<String> {
    let verb = process.args.iter().find(|it| !it.starts_with('-'))?;
    let is_elsewhere = |folder: &&str| {
        let value = process.env.get(*folder);
        value.is_some_and(|it| surroundings.variable(folder).is_none_or(|ours| ours != **it))
    };
    if verb != "connect" || FOLDERS.iter().any(is_elsewhere) {
        return None;
    }
    if !is_xy(process, surroundings) {
        return None;
    }
    match direct(&process.args) {
        None => Some("`xy connect` leads back to this daemon".to_owned()),
        Some(server) if server == name.as_str() => {
            Some(format!("`xy connect --direct {name}` starts this same server, again and again"))
        }
        Some(_) => None,
    }
}

/// The server that is run without a daemon.
fn direct(args: &[String]) -> Option<&str> {
    let place = args.iter().position(|it| it == "--direct" || it.starts_with("--direct="))?;
    match args[place].split_once('=') {
        Some((_, server)) => Some(server),
        None => Some(args.get(place + 1).map_or("", String::as_str)),
    }
}

fn is_xy(process: &ProcessSettings, surroundings: &dyn Surroundings) -> bool {
    let command = Path::new(&process.command);
    if command.file_name().is_some_and(|it| it == XY) {
        return true;
    }
    let program = if process.command.contains('/') {
        Some(PathBuf::from(command))
    } else {
        let own = process.env.get("PATH").map(Into::into);
        let path = own.or_else(|| surroundings.search_path()).unwrap_or_default();
        let mut found = std::env::split_paths(&path).map(|folder| folder.join(command));
        found.find(|it| surroundings.look(it) == super::Found::Program)
    };
    program.is_some_and(|program| surroundings.is_this_program(&program))
}

fn is_own_address(remote: &RemoteSettings, gateway: &GatewaySettings) -> Option<String> {
    let listen = gateway.listen.filter(|it| it.port() != 0)?;
    let rest = remote.url.strip_prefix("http://")?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (authority, 80),
    };
    let own = match listen.ip() {
        std::net::IpAddr::V4(ip) => ip.to_string(),
        std::net::IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let hosts = gateway.hosts.iter().map(String::as_str);
    let mut hosts = THIS_MACHINE.into_iter().chain([own.as_str()]).chain(hosts);
    let is_ours = port == listen.port()
        && hosts.any(|it| it.eq_ignore_ascii_case(host))
        && ["/mcp", "/sse"].iter().any(|it| path.starts_with(it));
    is_ours.then(|| format!("this daemon listens at `{listen}` itself"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use xy_protocol::server::Transport;

    use super::super::Found;
    use super::*;
    use crate::settings::Limits;

    /// A machine where `/opt/gate` and `/bin/other-name` are this program.
    struct Here;

    impl Surroundings for Here {
        fn search_path(&self) -> Option<OsString> {
            Some("/bin".into())
        }
        fn look(&self, path: &Path) -> Found {
            let is_there = ["/bin/other-name", "/bin/git"].iter().any(|it| Path::new(it) == path);
            if is_there { Found::Program } else { Found::Nothing }
        }
        fn is_this_program(&self, path: &Path) -> bool {
            ["/opt/gate", "/bin/other-name"].iter().any(|it| Path::new(it) == path)
        }
        fn variable(&self, name: &str) -> Option<OsString> {
            (name == "HOME").then(|| "/home/me".into())
        }
    }

    fn of_process(command: &str, args: &[&str], env: &[(&str, &str)]) -> Option<String> {
        let text = |it: &&str| (*it).to_owned();
        let process = ProcessSettings {
            command: command.to_owned(),
            args: args.iter().map(text).collect(),
            env: env.iter().map(|(name, value)| (text(name), text(value))).collect(),
            working_dir: None,
            transport: Transport::Stdio,
            port: None,
            path: None,
            limits: Limits::default(),
        };
        let kind = ServerKind::Process(process);
        why(&ServerName::new("me").unwrap(), &kind, &GatewaySettings::default(), &Here)
    }

    #[test]
    fn xy_connect_is_this_daemon() {
        for (command, args) in [
            ("xy", &["connect"][..]),
            ("/usr/local/bin/xy", &["connect", "--profile", "work"]),
            ("/opt/gate", &["connect", "--server", "git"]),
            ("other-name", &["--quiet", "connect"]),
            ("xy", &["connect", "--direct", "me"]),
            ("xy", &["connect", "--direct=me"]),
        ] {
            assert!(of_process(command, args, &[]).is_some(), "{command} {args:?}");
        }
        assert!(of_process("xy", &["connect"], &[("HOME", "/home/me"), ("X", "1")]).is_some());
    }

    #[test]
    fn what_may_be_another_daemon_or_none_is_left_to_the_protocol() {
        for (command, args) in [
            ("xy", &["connect", "--direct", "git"][..]),
            ("xy", &["sample-server"]),
            ("xy", &[]),
            ("git", &["connect"]),
            ("missing", &["connect"]),
            ("/opt/wrapper", &["connect"]),
            ("ssh", &["host", "xy", "connect"]),
        ] {
            assert_eq!(of_process(command, args, &[]), None, "{command} {args:?}");
        }
        for folder in ["HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"] {
            assert_eq!(of_process("xy", &["connect"], &[(folder, "/elsewhere")]), None);
        }
    }

    #[test]
    fn the_own_address_is_this_daemon() {
        let gateway = GatewaySettings {
            listen: Some("127.0.0.1:7979".parse().unwrap()),
            hosts: vec!["box.local".to_owned()],
            ..GatewaySettings::default()
        };
        let of = |url: &str, gateway: &GatewaySettings| {
            let (url, headers) = (url.to_owned(), std::collections::BTreeMap::new());
            let kind = ServerKind::Remote(RemoteSettings { url, headers, is_older: false });
            why(&ServerName::new("me").unwrap(), &kind, gateway, &Here).is_some()
        };
        for url in [
            "http://127.0.0.1:7979/mcp",
            "http://localhost:7979/mcp/p/work",
            "http://LOCALHOST:7979/mcp/s/git?x=1",
            "http://[::1]:7979/sse",
            "http://box.local:7979/mcp",
        ] {
            assert!(of(url, &gateway), "{url}");
        }
        for url in [
            "http://127.0.0.1:7980/mcp",
            "http://other.host:7979/mcp",
            "https://127.0.0.1:7979/mcp",
            "http://127.0.0.1/mcp",
            "http://127.0.0.1:7979/other",
            "http://127.0.0.1:x/mcp",
        ] {
            assert!(!of(url, &gateway), "{url}");
        }
        let any_port = GatewaySettings { listen: "127.0.0.1:0".parse().ok(), ..gateway.clone() };
        let closed = GatewaySettings { listen: None, ..gateway };
        assert!(
            !of("http://127.0.0.1:0/mcp", &any_port) && !of("http://127.0.0.1:7979/mcp", &closed)
        );
    }
}
