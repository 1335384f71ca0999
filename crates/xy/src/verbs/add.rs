//! `xy add`: begin a server that no file configures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use xy_protocol::control::{Add, Added, Request};

use crate::cli::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::{error, outcome, safe_text};

/// Add a server while the daemon runs
///
/// Starts it and waits until it runs; if it does not, nothing is added. It is there again
/// after a restart of the daemon, and `xy reload` leaves it alone. With --persist it gets a
/// file of its own among the others. Unless told otherwise it is not started again when
/// it dies.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy add everything -- npx -y @modelcontextprotocol/server-everything\n  \
    xy add notes --cwd ~/notes --env LEVEL=debug --restart always -- ./serve --all"
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
    /// When to start it again: always, on-failure or never, which is the default
    #[arg(long, value_name = "POLICY")]
    restart: Option<String>,
    /// How long it may take to end by itself: 5s unless told otherwise
    #[arg(long, value_name = "DURATION")]
    grace: Option<String>,
    #[command(flatten)]
    pub(crate) json: Json,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
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
    let (program, rest) = args.command.split_first().expect("clap asks for one");
    let cwd = args.cwd.as_deref().map(from_here).transpose()?;
    let is_relative = program.contains('/') && Path::new(program).is_relative();
    let command =
        if is_relative && cwd.is_none() { from_here(Path::new(program))? } else { program.clone() };
    Ok(Add {
        name: args.name.clone(),
        command,
        args: rest.to_vec(),
        env: args.env.iter().cloned().collect::<BTreeMap<_, _>>(),
        cwd,
        persist: args.persist,
        restart_policy: args.restart.clone(),
        grace: args.grace.clone(),
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
            "a --cwd /srv --env A=b=c --env D= --persist --restart always --grace 1s -- npx -y --json",
        );
        let expected = Add {
            name: "a".into(),
            command: "npx".into(),
            args: vec!["-y".into(), "--json".into()],
            env: [("A".into(), "b=c".into()), ("D".into(), String::new())].into(),
            cwd: Some("/srv".into()),
            persist: true,
            restart_policy: Some("always".into()),
            grace: Some("1s".into()),
        };
        assert_eq!(asked, expected);
    }

    #[test]
    fn paths_start_where_one_is() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        assert_eq!(typed("a -- ./run").command, format!("{here}/run"));
        assert_eq!(typed("a --cwd sub -- ./run").command, "./run", "it starts from its folder");
        assert_eq!(typed("a --cwd sub -- run").cwd, Some(format!("{here}/sub")));
        assert_eq!(typed("a -- run").command, "run");
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
