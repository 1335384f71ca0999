//! Detects servers that are this daemon itself, which would serve its own tools endlessly. Pure.
//!
//! Only certain cases are detected here. A script, a container or a copy under another name is
//! detected by the gateway, when it speaks with the server.

use std::path::{Path, PathBuf};

use xy_protocol::server::ServerName;

use super::Machine;
use crate::settings::{GatewaySettings, ProcessSettings, RemoteSettings, ServerKind};

/// The name of the xy program.
const XY: &str = "xy";

/// The variables that decide which daemon `xy connect` reaches.
const FOLDERS: [&str; 4] = ["HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"];

/// Host names of this machine, whatever the gateway's address is.
const THIS_MACHINE: [&str; 4] = ["localhost", "127.0.0.1", "[::1]", "0.0.0.0"];

/// Returns why a server is this daemon itself; `None` if that is not certain.
pub(super) fn find(
    name: &ServerName,
    kind: &ServerKind,
    gateway: &GatewaySettings,
    machine: &dyn Machine,
) -> Option<String> {
    match kind {
        ServerKind::Process(process) => connects_to_itself(name, process, machine),
        ServerKind::Remote(remote) => is_own_address(remote, gateway),
        ServerKind::Container(_) => None,
    }
}

fn connects_to_itself(
    name: &ServerName,
    process: &ProcessSettings,
    machine: &dyn Machine,
) -> Option<String> {
    let verb = process.args.iter().find(|it| !it.starts_with('-'))?;
    let is_elsewhere = |folder: &&str| {
        let value = process.env.get(*folder);
        value.is_some_and(|it| machine.variable(folder).is_none_or(|own_value| own_value != **it))
    };
    if verb != "connect" || FOLDERS.iter().any(is_elsewhere) {
        return None;
    }
    if !is_xy(process, machine) {
        return None;
    }
    match direct(&process.args) {
        None => Some("`xy connect` connects to this daemon".to_owned()),
        Some(server) if server == name.as_str() => {
            Some(format!("`xy connect --direct {name}` starts this same server recursively"))
        }
        Some(_) => None,
    }
}

/// Returns the server that is run without a daemon.
fn direct(args: &[String]) -> Option<&str> {
    let position = args.iter().position(|it| it == "--direct" || it.starts_with("--direct="))?;
    match args[position].split_once('=') {
        Some((_, server)) => Some(server),
        None => Some(args.get(position + 1).map_or("", String::as_str)),
    }
}

fn is_xy(process: &ProcessSettings, machine: &dyn Machine) -> bool {
    let command = Path::new(&process.command);
    if command.file_name().is_some_and(|it| it == XY) {
        return true;
    }
    let program = if process.command.contains('/') {
        Some(PathBuf::from(command))
    } else {
        let own = process.env.get("PATH").map(Into::into);
        let path = own.or_else(|| machine.search_path()).unwrap_or_default();
        let mut found = std::env::split_paths(&path).map(|folder| folder.join(command));
        found.find(|it| machine.inspect(it) == super::PathKind::Program)
    };
    program.is_some_and(|program| machine.is_this_program(&program))
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
    let is_own = port == listen.port()
        && hosts.any(|it| it.eq_ignore_ascii_case(host))
        && ["/mcp", "/sse"].iter().any(|it| path.starts_with(it));
    is_own.then(|| format!("this daemon itself listens on `{listen}`"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use xy_protocol::server::Transport;

    use super::super::PathKind;
    use super::*;
    use crate::settings::Limits;

    /// A machine where `/opt/gate` and `/bin/other-name` are this program.
    struct Here;

    impl Machine for Here {
        fn search_path(&self) -> Option<OsString> {
            Some("/bin".into())
        }
        fn inspect(&self, path: &Path) -> PathKind {
            let is_there = ["/bin/other-name", "/bin/git"].iter().any(|it| Path::new(it) == path);
            if is_there { PathKind::Program } else { PathKind::Missing }
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
        find(&ServerName::new("me").unwrap(), &kind, &GatewaySettings::default(), &Here)
    }

    #[test]
    fn xy_connect_is_a_self_reference() {
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
    fn uncertain_cases_are_left_to_the_gateway() {
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
    fn own_address_is_a_self_reference() {
        let gateway = GatewaySettings {
            listen: Some("127.0.0.1:7979".parse().unwrap()),
            hosts: vec!["box.local".to_owned()],
            ..GatewaySettings::default()
        };
        let of = |url: &str, gateway: &GatewaySettings| {
            let (url, headers) = (url.to_owned(), std::collections::BTreeMap::new());
            let kind = ServerKind::Remote(RemoteSettings { url, headers, is_older: false });
            find(&ServerName::new("me").unwrap(), &kind, gateway, &Here).is_some()
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
