//! `xy add`: begin a server that no file configures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use xy_protocol::control::{Add, Added, Request};
use xy_protocol::error::CallError;

use crate::cli::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::{error, outcome, safe_text};

/// Add a server while the daemon runs
///
/// Starts it and waits until it runs; if it does not, nothing is added. It is there again
/// after a restart of the daemon, and `xy reload` leaves it alone. With --persist it gets a
/// file of its own among the others. When it fails it is restarted, as a server with a file
/// is. With --url it is a server that runs somewhere else: it is tried until it
/// answers, and if it cannot be reached now, nothing is added.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy add everything -- npx -y @modelcontextprotocol/server-everything\n  \
    xy add notes --cwd ~/notes --env LEVEL=debug --restart always -- ./serve --all\n  \
    xy add docs --url https://example.com/mcp --header 'Authorization: Bearer …'"
)]
pub(crate) struct Args {
    /// The server's name: letters, digits, `-` and single `_`
    name: String,
    /// The folder it runs in; the daemon's own if absent
    #[arg(long, value_name = "FOLDER")]
    cwd: Option<PathBuf>,
    /// A variable for its environment; may be given several times
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Write a file for it, so that it is a server like all others
    #[arg(long)]
    persist: bool,
    /// When to start it again: always, on-failure, which is the default, or never
    #[arg(long, value_name = "POLICY")]
    restart: Option<String>,
    /// How long it may take to end by itself: 5s unless told otherwise
    #[arg(long, value_name = "DURATION")]
    grace: Option<String>,
    /// How long it may take to be ready: 10s unless told otherwise
    #[arg(long, value_name = "DURATION")]
    ready_within: Option<String>,
    /// Where it is, if it runs somewhere else
    #[arg(long, conflicts_with_all = ["command", "cwd", "env", "restart", "grace"])]
    url: Option<String>,
    /// Sent with every request to its URL; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", conflicts_with = "command")]
    headers: Vec<String>,
    /// How to speak with its URL: http, which is the default, or the older sse
    #[arg(long, value_name = "TRANSPORT", conflicts_with = "command")]
    transport: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
    /// The program and its arguments, after `--`
    #[arg(last = true, required_unless_present = "url", value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let request = Request::Add(ask(args)?);
    let mut link = Link::open()?;
    let spinner = output.spinner(format!("adding {}", safe_text(&args.name)));
    let result = link.ask(&request)?;
    drop(spinner);
    if args.json.json {
        return output.json(&result);
    }
    let done: Added = read(&result)?;
    let warnings: String = done.problems.iter().map(error::problem).collect();
    output.tell(&warnings);
    output.print(&outcome::added(&done))
}

/// What is asked: paths that start here are not known to the daemon, which is elsewhere.
fn ask(args: &Args) -> Result<Add, Failure> {
    let cwd = args.cwd.as_deref().map(from_here).transpose()?;
    let starts_here =
        |program: &str| program.contains('/') && Path::new(program).is_relative() && cwd.is_none();
    let command = match args.command.first() {
        Some(program) if starts_here(program) => Some(from_here(Path::new(program))?),
        program => program.cloned(),
    };
    Ok(Add {
        name: args.name.clone(),
        command,
        args: args.command.iter().skip(1).cloned().collect(),
        env: args.env.iter().cloned().collect::<BTreeMap<_, _>>(),
        cwd,
        url: args.url.clone(),
        headers: args.headers.iter().map(|text| header(text)).collect::<Result<_, _>>()?,
        transport: args.transport.clone(),
        persist: args.persist,
        restart_policy: args.restart.clone(),
        grace: args.grace.clone(),
        ready_within: args.ready_within.clone(),
    })
}

/// A path that is the same wherever one is.
fn from_here(path: &Path) -> Result<String, Failure> {
    let absolute = std::path::absolute(path)
        .map_err(|cause| Failure::internal("the current folder is not known", cause))?;
    Ok(absolute.to_string_lossy().into_owned())
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it like NAME=VALUE".to_owned()),
    }
}

/// `Name: value`. What is wrong is not quoted, as it may be a secret.
fn header(text: &str) -> Result<(String, String), Failure> {
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
    struct Typed {
        #[command(flatten)]
        args: Args,
    }

    fn typed(line: &str) -> Add {
        let words = std::iter::once("add").chain(line.split(' '));
        ask(&Typed::parse_from(words).args).unwrap()
    }

    #[test]
    fn what_is_typed_is_what_is_asked() {
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
    fn a_server_somewhere_else_is_asked_for_by_its_url() {
        let words = ["add", "a", "--url", "https://a/b", "--transport", "sse"];
        let headers = ["--header", "Authorization: Bearer x:y", "--header", "X-Y:z"];
        let typed = Typed::parse_from(words.into_iter().chain(headers)).args;
        let expected = Add {
            name: "a".into(),
            url: Some("https://a/b".into()),
            headers: [("Authorization".into(), "Bearer x:y".into()), ("X-Y".into(), "z".into())]
                .into(),
            transport: Some("sse".into()),
            ..Add::default()
        };
        assert_eq!(ask(&typed).unwrap(), expected);
    }

    #[test]
    fn a_url_and_a_program_do_not_go_together() {
        for wrong in [
            &["add", "a"][..],
            &["add", "a", "--url", "http://a", "--", "npx"],
            &["add", "a", "--url", "http://a", "--env", "A=b"],
            &["add", "a", "--header", "A: b", "--", "npx"],
            &["add", "a", "--transport", "sse", "--", "npx"],
        ] {
            assert!(Typed::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["s3cret", ": s3cret"] {
            let words = ["add", "a", "--url", "http://a", "--header", wrong];
            let Err(Failure::Failed(error)) = ask(&Typed::parse_from(words).args) else {
                panic!("{wrong}");
            };
            assert!(!format!("{error:?}").contains("s3cret"));
        }
    }

    #[test]
    fn paths_start_where_one_is() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        assert_eq!(typed("a -- ./run").command, Some(format!("{here}/run")));
        let from_its_folder = typed("a --cwd sub -- ./run").command;
        assert_eq!(from_its_folder.as_deref(), Some("./run"));
        assert_eq!(typed("a --cwd sub -- run").cwd, Some(format!("{here}/sub")));
        assert_eq!(typed("a -- run").command.as_deref(), Some("run"));
    }

    #[test]
    fn a_variable_needs_a_name() {
        for wrong in ["=b", "A", ""] {
            let words = ["add", "a", "--env", wrong, "--", "x"];
            assert!(Typed::try_parse_from(words).is_err(), "{wrong}");
        }
        assert!(Typed::try_parse_from(["add", "a", "npx"]).is_err(), "there is no `--`");
    }
}
