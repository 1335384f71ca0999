//! The command line: parses arguments, runs a verb, and turns its result into an exit code.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind as UsageKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::verbs;

#[derive(Debug, Parser)]
#[command(
    name = "xy",
    version,
    about = "Keeps MCP servers alive",
    long_about = "Keeps MCP servers alive. A daemon runs the servers that are configured in \
        ~/.config/xy/servers; the commands below control it.",
    after_help = "Example:\n  xy daemon --detach && xy list\n\n\
        Exit codes:\n   0  done\n   1  the operation failed\n   2  the daemon cannot be reached\n   \
        3  the configuration is invalid\n  64  wrong usage",
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Daemon(verbs::daemon::Args),
    List(verbs::list::Args),
    Status(verbs::status::Args),
    Start(verbs::start::Args),
    Stop(verbs::stop::Args),
    Restart(verbs::restart::Args),
    Reload(verbs::reload::Args),
    Add(verbs::add::Args),
    Remove(verbs::remove::Args),
    Logs(verbs::logs::Args),
    Events(verbs::events::Args),
    Tools(verbs::tools::Args),
    Call(verbs::call::Args),
    Request(verbs::request::Args),
    Search(verbs::search::Args),
    Explain(verbs::explain::Args),
    Token(verbs::token::Args),
    Check(verbs::check::Args),
    SelfTest(verbs::self_test::Args),
    Diagnostics(verbs::diagnostics::Args),
    Connect(verbs::connect::Args),
    Info(verbs::info::Args),
    Version(verbs::version::Args),
    Shutdown(verbs::shutdown::Args),
    Demo(verbs::demo::Args),
    SampleServer(verbs::sample_server::Args),
}

/// Runs the command line and returns its exit code.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut output = Output::new();
    let parsed = Cli::command()
        .try_get_matches_from(arguments)
        .and_then(|matches| Ok((Cli::from_arg_matches(&matches)?.verb, wants_json(&matches))));
    let (verb, json) = match parsed {
        Ok(parsed) => parsed,
        Err(usage) => return explain_usage(&usage, &mut output).into(),
    };
    let done = verb.run(&mut output).and_then(|()| output.flush());
    let exit = match done {
        Ok(()) => Exit::Done,
        Err(failure) => explain(failure, json, &mut output),
    };
    exit.into()
}

fn explain_usage(usage: &clap::Error, output: &mut Output) -> Exit {
    let text = usage.render().ansi().to_string();
    if matches!(usage.kind(), UsageKind::DisplayHelp | UsageKind::DisplayVersion) {
        return match output.print(&text).and_then(|()| output.flush()) {
            Ok(()) | Err(Failure::StdoutClosed) => Exit::Done,
            Err(_) => Exit::Failed,
        };
    }
    output.print_stderr(&text);
    Exit::Usage
}

fn explain(failure: Failure, json: bool, output: &mut Output) -> Exit {
    let exit = failure.exit();
    let (Failure::Failed(error) | Failure::Unreachable(error)) = failure else {
        return exit;
    };
    // Earlier output must appear before the error.
    let flushed = output.flush();
    if json {
        if let Err(failure) = flushed.and_then(|()| output.json_error(&error)) {
            return failure.exit();
        }
    } else {
        output.print_stderr(&crate::render::error::render(&error));
    }
    exit
}

impl Verb {
    fn run(&self, output: &mut Output) -> Result<(), Failure> {
        match self {
            Self::Daemon(args) => verbs::daemon::run(args, output),
            Self::List(args) => verbs::list::run(args, output),
            Self::Status(args) => verbs::status::run(args, output),
            Self::Start(args) => verbs::start::run(args, output),
            Self::Stop(args) => verbs::stop::run(args, output),
            Self::Restart(args) => verbs::restart::run(args, output),
            Self::Reload(args) => verbs::reload::run(args, output),
            Self::Add(args) => verbs::add::run(args, output),
            Self::Remove(args) => verbs::remove::run(args, output),
            Self::Logs(args) => verbs::logs::run(args, output),
            Self::Events(args) => verbs::events::run(args, output),
            Self::Tools(args) => verbs::tools::run(args, output),
            Self::Call(args) => verbs::call::run(args, output),
            Self::Request(args) => verbs::request::run(args, output),
            Self::Search(args) => verbs::search::run(args, output),
            Self::Explain(args) => verbs::explain::run(args, output),
            Self::Token(args) => verbs::token::run(args, output),
            Self::Check(args) => verbs::check::run(args, output),
            Self::SelfTest(args) => verbs::self_test::run(args, output),
            Self::Diagnostics(args) => verbs::diagnostics::run(args, output),
            Self::Connect(args) => verbs::connect::run(args, output),
            Self::Info(args) => verbs::info::run(args, output),
            Self::Version(args) => verbs::version::run(args, output),
            Self::Shutdown(args) => verbs::shutdown::run(args, output),
            Self::Demo(args) => verbs::demo::run(args, output),
            Self::SampleServer(args) => verbs::sample_server::run(args, output),
        }
    }
}

/// Returns true if the command was called with `--json`.
fn wants_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, verb)) => wants_json(verb),
        None => matches.try_get_one("json").ok().flatten().is_some_and(|json| *json),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage_of(line: &str) -> clap::Error {
        Cli::try_parse_from(line.split(' ')).unwrap_err()
    }

    #[test]
    fn command_line_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_texts_match_snapshots() {
        let mut command = Cli::command().term_width(80);
        command.build();
        insta::assert_snapshot!("help-xy", command.render_long_help());
        for verb in command.get_subcommands_mut() {
            if verb.is_hide_set() || verb.get_name() == "help" {
                continue;
            }
            let help = verb.clone().term_width(80).render_long_help().to_string();
            assert!(help.contains("Example"), "{} has no example", verb.get_name());
            insta::assert_snapshot!(format!("help-{}", verb.get_name()), help);
        }
    }

    #[test]
    fn json_is_recognised_at_every_depth() {
        let json =
            |line: &str| wants_json(&Cli::command().try_get_matches_from(line.split(' ')).unwrap());
        for line in ["xy list --json", "xy start one --json", "xy token list --json"] {
            assert!(json(line), "{line}");
        }
        for line in ["xy list", "xy token list", "xy connect", "xy demo"] {
            assert!(!json(line), "{line}");
        }
    }

    #[test]
    fn server_verbs_take_a_name_or_all() {
        for verb in ["start", "stop", "restart"] {
            let neither = usage_of(&format!("xy {verb}"));
            assert_eq!(neither.kind(), UsageKind::MissingRequiredArgument);
            let both = usage_of(&format!("xy {verb} github --all"));
            assert_eq!(both.kind(), UsageKind::ArgumentConflict);
        }
    }
}
