//! Recognition of processes that are the CLI of a container engine, such as `docker run …`. Pure.

use std::path::Path;

use xy_config::settings::{EngineKind, ProcessSettings};

/// Returns whose CLI a process is, and at which argument options for a new container may be
/// inserted. Pure.
pub fn run_by_cli(process: &ProcessSettings) -> Option<(EngineKind, usize)> {
    let program = Path::new(&process.command).file_name()?.to_str()?;
    let engine = match program {
        "docker" => EngineKind::Docker,
        "podman" => EngineKind::Podman,
        _ => return None,
    };
    let own = own_options(engine, &process.args)?;
    let words: Vec<&str> = process.args[own..].iter().map(String::as_str).take(2).collect();
    match words.as_slice() {
        ["run", ..] => Some((engine, own + 1)),
        ["container", "run"] => Some((engine, own + 2)),
        _ => None,
    }
}

/// Returns how many arguments are options of the CLI itself, before its subcommand. Returns `None`
/// at an unknown option, which may or may not take a value. Pure.
pub fn own_options(engine: EngineKind, args: &[String]) -> Option<usize> {
    let (with_value, alone): (&[&str], &[&str]) = match engine {
        EngineKind::Docker => (
            &[
                "--config",
                "--context",
                "--host",
                "--log-level",
                "--tlscacert",
                "--tlscert",
                "--tlskey",
                "-H",
                "-c",
                "-l",
            ],
            &["--debug", "--tls", "--tlsverify", "-D"],
        ),
        EngineKind::Podman => (
            &[
                "--cgroup-manager",
                "--conmon",
                "--connection",
                "--events-backend",
                "--identity",
                "--log-level",
                "--module",
                "--network-config-dir",
                "--root",
                "--runroot",
                "--runtime",
                "--runtime-flag",
                "--storage-driver",
                "--storage-opt",
                "--tmpdir",
                "--url",
                "-c",
            ],
            &["--remote", "--syslog", "--transient-store", "-r"],
        ),
    };
    let mut at = 0;
    loop {
        let word = args.get(at)?.as_str();
        at += match word.split_once('=') {
            _ if !word.starts_with('-') => return Some(at),
            Some((name, _)) if with_value.contains(&name) || alone.contains(&name) => 1,
            None if with_value.contains(&word) => 2,
            None if alone.contains(&word) => 1,
            _ => return None,
        };
    }
}

/// Returns true if the server runs in a container and its process is only the CLI. Pure.
pub fn is_run_by_cli(process: &ProcessSettings) -> bool {
    run_by_cli(process).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{process_of, settings};

    fn at(command: &str, args: &[&str]) -> Option<usize> {
        let mut settings = settings("a");
        let process = process_of(&mut settings);
        process.command = command.into();
        process.args = args.iter().map(|it| (*it).to_owned()).collect();
        run_by_cli(process).map(|(_, at)| at)
    }

    #[test]
    fn only_run_commands_are_labelled() {
        assert_eq!(at("docker", &["run", "--rm", "-i", "x"]), Some(1));
        assert_eq!(at("/usr/bin/podman", &["container", "run", "x"]), Some(2));
        assert_eq!(at("docker", &["compose", "run", "x"]), None);
        assert_eq!(at("docker", &["--context", "x", "run", "-i", "y"]), Some(3));
        assert_eq!(at("docker", &["-D", "--host=unix:///x", "container", "run", "y"]), Some(4));
        assert_eq!(at("podman", &["--remote", "--url", "unix:///x", "run", "y"]), Some(4));
        // It is unknown whether that option takes a value.
        assert_eq!(at("docker", &["--new-option", "run", "run"]), None);
        assert_eq!(at("docker", &["--context", "run"]), None);
        assert_eq!(at("docker", &[]), None);
        assert_eq!(at("npx", &["run"]), None);
    }
}
