//! `xy add`: adds a server at run time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use xy_protocol::control::{Add, AddResult, Request};
use xy_protocol::error::CallError;

use crate::args::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::{error, outcome, safe_text};

/// Add a server while the daemon runs
///
/// Starts the server and waits until it is ready; if it fails to start, it is not added. The
/// server survives a restart of the daemon, and `xy reload` does not change it. With --persist,
/// xy writes a server file for it. A server that fails is restarted, like a server with a file.
///
/// With --url, the server is remote. xy tries to connect until it answers; if it cannot be
/// reached now, it is not added.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy add everything -- npx -y @modelcontextprotocol/server-everything\n  \
    xy add notes --cwd ~/notes --env LEVEL=debug --restart always -- ./serve --all\n  \
    xy add docs --url https://example.com/mcp --header 'Authorization: Bearer …'"
)]
pub(crate) struct Args {
    /// The server's name: letters, digits, `-` and single `_`
    name: String,
    /// Working directory of the server [default: the daemon's]
    #[arg(long, value_name = "FOLDER")]
    cwd: Option<PathBuf>,
    /// Environment variable of the server; can be repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Write a server file for it
    #[arg(long)]
    persist: bool,
    /// When to restart it: always, on-failure or never [default: on-failure]
    #[arg(long, value_name = "POLICY")]
    restart: Option<String>,
    /// Time to exit by itself before it is killed [default: 5s]
    #[arg(long, value_name = "DURATION")]
    grace: Option<String>,
    /// Time to become ready [default: 10s]
    #[arg(long, value_name = "DURATION")]
    ready_within: Option<String>,
    /// URL of a remote server
    #[arg(long, conflicts_with_all = ["command", "cwd", "env", "restart", "grace"])]
    url: Option<String>,
    /// Header to send with each request to the URL; can be repeated
    #[arg(long = "header", value_name = "NAME: VALUE", conflicts_with = "command")]
    headers: Vec<String>,
    /// Transport of the URL: http, or sse for older servers [default: http]
    #[arg(long, value_name = "TRANSPORT", conflicts_with = "command")]
    transport: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
    /// The program of the server and its arguments, after `--`
    #[arg(last = true, required_unless_present = "url", value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let request = Request::Add(build_request(args)?);
    let mut link = Link::open()?;
    let spinner = output.spinner(format!("adding {}", safe_text(&args.name)));
    let result = link.call(&request)?;
    drop(spinner);
    if args.json.json {
        return output.json(&result);
    }
    let done: AddResult = read(&result)?;
    let warnings: String = done.problems.iter().map(error::problem).collect();
    output.print_stderr(&warnings);
    output.print(&outcome::added(&done))
}

/// Builds the request. Relative paths become absolute, as the daemon has another working
/// directory.
fn build_request(args: &Args) -> Result<Add, Failure> {
    let cwd = args.cwd.as_deref().map(to_absolute).transpose()?;
    let starts_here =
        |program: &str| program.contains('/') && Path::new(program).is_relative() && cwd.is_none();
    let command = match args.command.first() {
        Some(program) if starts_here(program) => Some(to_absolute(Path::new(program))?),
        program => program.cloned(),
    };
    Ok(Add {
        name: args.name.clone(),
        command,
        args: args.command.iter().skip(1).cloned().collect(),
        env: args.env.iter().cloned().collect::<BTreeMap<_, _>>(),
        cwd,
        url: args.url.clone(),
        headers: args.headers.iter().map(|text| parse_header(text)).collect::<Result<_, _>>()?,
        transport: args.transport.clone(),
        persist: args.persist,
        restart_policy: args.restart.clone(),
        grace: args.grace.clone(),
        ready_within: args.ready_within.clone(),
    })
}

/// Returns the absolute form of a path.
fn to_absolute(path: &Path) -> Result<String, Failure> {
    let absolute = std::path::absolute(path)
        .map_err(|cause| Failure::internal("the current folder is not known", cause))?;
    Ok(absolute.to_string_lossy().into_owned())
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it like NAME=VALUE".to_owned()),
    }
}

/// Parses `Name: value`. The error does not quote the text, which may hold a secret.
fn parse_header(text: &str) -> Result<(String, String), Failure> {
    match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(CallError::invalid_params("a header has no name")
            .hint("write it like --header 'NAME: VALUE'")
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        args: Args,
    }

    fn typed(line: &str) -> Add {
        let words = std::iter::once("add").chain(line.split(' '));
        build_request(&CommandLine::parse_from(words).args).unwrap()
    }

    #[test]
    fn arguments_become_the_request() {
        let asked = typed(
            "a --cwd /srv --env A=b=c --env D= --persist --restart always --grace 1s --ready-within 1m -- npx -y --json",
        );
        let expected = Add {
            name: "a".into(),
            command: Some("npx".into()),
            args: vec!["-y".into(), "--json".into()],
            env: [("A".into(), "b=c".into()), ("D".into(), String::new())].into(),
            cwd: Some("/srv".into()),
            persist: true,
            restart_policy: Some("always".into()),
            grace: Some("1s".into()),
            ready_within: Some("1m".into()),
            ..Add::default()
        };
        assert_eq!(asked, expected);
    }

    #[test]
    fn url_adds_a_remote_server() {
        let words = ["add", "a", "--url", "https://a/b", "--transport", "sse"];
        let headers = ["--header", "Authorization: Bearer x:y", "--header", "X-Y:z"];
        let typed = CommandLine::parse_from(words.into_iter().chain(headers)).args;
        let expected = Add {
            name: "a".into(),
            url: Some("https://a/b".into()),
            headers: [("Authorization".into(), "Bearer x:y".into()), ("X-Y".into(), "z".into())]
                .into(),
            transport: Some("sse".into()),
            ..Add::default()
        };
        assert_eq!(build_request(&typed).unwrap(), expected);
    }

    #[test]
    fn url_conflicts_with_a_program() {
        for wrong in [
            &["add", "a"][..],
            &["add", "a", "--url", "http://a", "--", "npx"],
            &["add", "a", "--url", "http://a", "--env", "A=b"],
            &["add", "a", "--header", "A: b", "--", "npx"],
            &["add", "a", "--transport", "sse", "--", "npx"],
        ] {
            assert!(CommandLine::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["s3cret", ": s3cret"] {
            let words = ["add", "a", "--url", "http://a", "--header", wrong];
            let Err(Failure::Failed(error)) = build_request(&CommandLine::parse_from(words).args)
            else {
                panic!("{wrong}");
            };
            assert!(!format!("{error:?}").contains("s3cret"));
        }
    }

    #[test]
    fn relative_paths_become_absolute() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        assert_eq!(typed("a -- ./run").command, Some(format!("{here}/run")));
        let from_its_folder = typed("a --cwd sub -- ./run").command;
        assert_eq!(from_its_folder.as_deref(), Some("./run"));
        assert_eq!(typed("a --cwd sub -- run").cwd, Some(format!("{here}/sub")));
        assert_eq!(typed("a -- run").command.as_deref(), Some("run"));
    }

    #[test]
    fn variable_needs_a_name() {
        for wrong in ["=b", "A", ""] {
            let words = ["add", "a", "--env", wrong, "--", "x"];
            assert!(CommandLine::try_parse_from(words).is_err(), "{wrong}");
        }
        assert!(CommandLine::try_parse_from(["add", "a", "npx"]).is_err(), "there is no `--`");
    }
}
