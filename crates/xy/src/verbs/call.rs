//! `xy call`: calls a tool.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::value::RawValue;
use xy_protocol::control::{Call, JsonText, Request};
use xy_protocol::error::CallError;

use super::in_millis;
use crate::args::Json;
use crate::failure::{Exit, Failure};
use crate::link::Link;
use crate::output::Output;
use crate::render::{called, safe_text};

/// Call a tool
///
/// Prints the text of the result unchanged, and one line for each other content item. An
/// argument value is JSON if it is a number, true, false, null, an object or an array, and a
/// string otherwise; `key:=json` is always JSON. If the tool reports an error, its text goes to
/// stderr and the exit code is 1.
///
/// A call has no time limit unless --timeout is given. Ctrl-C cancels the call.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy call github__get_issue owner=me repo=xy number=7\n  \
    xy call db__query --args '{\"sql\": \"select 1\"}' --timeout 30s --json")]
pub(crate) struct Args {
    /// The tool, as `xy tools` shows it: `<server>__<tool>`
    tool: String,
    /// Arguments of the tool
    #[arg(value_name = "KEY=VALUE", value_parser = parse_pair, conflicts_with = "whole")]
    pairs: Vec<(String, JsonText)>,
    /// All arguments as one JSON object
    #[arg(long = "args", value_name = "JSON", value_parser = parse_object)]
    whole: Option<JsonText>,
    /// Time limit of the call
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let arguments = match &args.whole {
        Some(whole) => whole.clone(),
        None => join_arguments(&args.pairs)?,
    };
    let timeout_ms = args.timeout.map(in_millis);
    let call = Call { name: args.tool.clone(), arguments: Some(arguments), timeout_ms };
    let mut link = Link::open()?;
    let spinner = output.spinner(format!("calling {}", safe_text(&args.tool)));
    let result = link.call_with_timeout(&Request::Call(call), args.timeout)?;
    drop(spinner);
    show(&result, args.json.json, output)
}

fn show(result: &RawValue, as_json: bool, output: &mut Output) -> Result<(), Failure> {
    let called: called::Called<'_> = serde_json::from_str(result.get())
        .map_err(|cause| Failure::internal("the tool's result could not be read", cause))?;
    match (as_json, called.is_error) {
        (true, _) => output.json(result)?,
        (false, true) => output.write_stderr(&called::render(&called, true)),
        (false, false) => {
            let is_terminal = output.is_terminal();
            output.write(&called::render(&called, is_terminal))?;
        }
    }
    if called.is_error { Err(Failure::Reported(Exit::Failed)) } else { Ok(()) }
}

/// Joins all arguments into one JSON object.
fn join_arguments(pairs: &[(String, JsonText)]) -> Result<JsonText, Failure> {
    let mut seen = BTreeSet::new();
    let mut members = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        if !seen.insert(key) {
            let message = format!("the argument `{}` is given twice", safe_text(key));
            return Err(CallError::invalid_params(message).into());
        }
        members.push(format!("{}:{}", json_string(key).get(), value.get()));
    }
    let object = format!("{{{}}}", members.join(","));
    JsonText::read(&object)
        .map_err(|cause| Failure::internal("the arguments could not be written", cause))
}

/// Parses `key=value` or `key:=json`.
fn parse_pair(written: &str) -> Result<(String, JsonText), String> {
    let Some((key, value)) = written.split_once('=') else {
        return Err("write it like KEY=VALUE".to_owned());
    };
    let (key, value) = match key.strip_suffix(':') {
        Some(key) => (key, parse_json(value)?),
        None => (key, parse_value(value)),
    };
    if key.is_empty() {
        return Err("write it like KEY=VALUE".to_owned());
    }
    Ok((key.to_owned(), value))
}

/// Returns the value as JSON if it is JSON other than a string, else as a string.
fn parse_value(value: &str) -> JsonText {
    match JsonText::read(value) {
        Ok(json) if !json.get().starts_with('"') => json,
        _ => json_string(value),
    }
}

fn json_string(value: &str) -> JsonText {
    let quoted = serde_json::Value::from(value).to_string();
    JsonText::read(&quoted).expect("a text is JSON")
}

pub(super) fn parse_json(text: &str) -> Result<JsonText, String> {
    JsonText::read(text).map_err(|cause| format!("it is not JSON: {cause}"))
}

fn parse_object(text: &str) -> Result<JsonText, String> {
    parse_json(text)?.into_object().ok_or_else(|| "it is not a JSON object".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(words: &[&str]) -> String {
        let pairs: Vec<_> = words.iter().map(|word| parse_pair(word).unwrap()).collect();
        join_arguments(&pairs).unwrap().get().to_owned()
    }

    #[test]
    fn value_is_json_or_a_string() {
        for (word, expected) in [
            ("a=1", r#"{"a":1}"#),
            ("a=-1.50", r#"{"a":-1.50}"#),
            ("a=123456789012345678901234567890", r#"{"a":123456789012345678901234567890}"#),
            ("a=true", r#"{"a":true}"#),
            ("a=null", r#"{"a":null}"#),
            ("a=[1, 2]", r#"{"a":[1, 2]}"#),
            (r#"a={"b":"c"}"#, r#"{"a":{"b":"c"}}"#),
            ("a=", r#"{"a":""}"#),
            ("a=b=c", r#"{"a":"b=c"}"#),
            ("a=1.2.3", r#"{"a":"1.2.3"}"#),
            ("a=007", r#"{"a":"007"}"#),
            (r#"a="b""#, r#"{"a":"\"b\""}"#),
            (r#"a:="b""#, r#"{"a":"b"}"#),
            ("a:=7", r#"{"a":7}"#),
            ("é\"=x", r#"{"é\"":"x"}"#),
        ] {
            assert_eq!(arguments(&[word]), expected, "{word}");
        }
        assert_eq!(arguments(&[]), "{}");
        assert_eq!(arguments(&["b=1", "a=2"]), r#"{"b":1,"a":2}"#);
    }

    #[test]
    fn invalid_arguments_are_rejected() {
        for word in ["a", "=b", ":=1", "a:=b", "a:="] {
            assert!(parse_pair(word).is_err(), "{word}");
        }
        let twice = [parse_pair("a=1").unwrap(), parse_pair("a=2").unwrap()];
        assert!(join_arguments(&twice).is_err());
        assert!(
            parse_object("[]").is_err()
                && parse_object("{").is_err()
                && parse_object(" {} ").is_ok()
        );
    }
}
