//! `xy call`: one call of a tool.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::value::RawValue;
use xy_protocol::control::{Call, JsonText, Request};
use xy_protocol::error::CallError;

use super::in_millis;
use crate::cli::Json;
use crate::failure::{Exit, Failure};
use crate::link::Link;
use crate::output::Output;
use crate::render::{called, safe_text};

/// Call a tool
///
/// Prints the texts of its result as they are, and a line for everything else. A value is
/// JSON if it looks like a number, true, false, null, an object or an array, and a text
/// otherwise; `key:=json` is JSON in any case. A tool that says that it has failed ends
/// this with 1, and what it says is on stderr.
///
/// There is no limit of time unless one is given. Ctrl-C cancels the call.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy call github__get_issue owner=me repo=xy number=7\n  \
    xy call db__query --args '{\"sql\": \"select 1\"}' --timeout 30s --json")]
pub(crate) struct Args {
    /// The tool, as `xy tools` names it: `<server>__<tool>`
    tool: String,
    /// Its arguments
    #[arg(value_name = "KEY=VALUE", value_parser = pair, conflicts_with = "whole")]
    pairs: Vec<(String, JsonText)>,
    /// All its arguments, as one JSON object
    #[arg(long = "args", value_name = "JSON", value_parser = object)]
    whole: Option<JsonText>,
    /// How long it may take
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let arguments = match &args.whole {
        Some(whole) => whole.clone(),
        None => together(&args.pairs)?,
    };
    let timeout_ms = args.timeout.map(in_millis);
    let call = Call { name: args.tool.clone(), arguments: Some(arguments), timeout_ms };
    let mut link = Link::open()?;
    let spinner = output.spinner(format!("calling {}", safe_text(&args.tool)));
    let result = link.ask_within(&Request::Call(call), args.timeout)?;
    drop(spinner);
    show(&result, args.json.json, output)
}

fn show(result: &RawValue, as_json: bool, output: &mut Output) -> Result<(), Failure> {
    let called: called::Called<'_> = serde_json::from_str(result.get())
        .map_err(|cause| Failure::internal("the tool's result could not be read", cause))?;
    match (as_json, called.is_error) {
        (true, _) => output.json(result)?,
        (false, true) => output.pass_on(&called::render(&called, true)),
        (false, false) => {
            let is_terminal = output.is_terminal();
            output.write(&called::render(&called, is_terminal))?;
        }
    }
    if called.is_error { Err(Failure::Told(Exit::Failed)) } else { Ok(()) }
}

/// One object of all arguments.
fn together(pairs: &[(String, JsonText)]) -> Result<JsonText, Failure> {
    let mut seen = BTreeSet::new();
    let mut members = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        if !seen.insert(key) {
            let message = format!("the argument `{}` is given twice", safe_text(key));
            return Err(CallError::invalid_params(message).into());
        }
        members.push(format!("{}:{}", text(key).get(), value.get()));
    }
    let object = format!("{{{}}}", members.join(","));
    JsonText::read(&object)
        .map_err(|cause| Failure::internal("the arguments could not be written", cause))
}

/// `key=value` or `key:=json`.
fn pair(written: &str) -> Result<(String, JsonText), String> {
    let Some((key, value)) = written.split_once('=') else {
        return Err("write it like KEY=VALUE".to_owned());
    };
    let (key, value) = match key.strip_suffix(':') {
        Some(key) => (key, json(value)?),
        None => (key, guessed(value)),
    };
    if key.is_empty() {
        return Err("write it like KEY=VALUE".to_owned());
    }
    Ok((key.to_owned(), value))
}

/// A value of which nobody said what it is.
fn guessed(value: &str) -> JsonText {
    match JsonText::read(value) {
        Ok(json) if !json.get().starts_with('"') => json,
        _ => text(value),
    }
}

fn text(value: &str) -> JsonText {
    let quoted = serde_json::Value::from(value).to_string();
    JsonText::read(&quoted).expect("a text is JSON")
}

pub(super) fn json(text: &str) -> Result<JsonText, String> {
    JsonText::read(text).map_err(|cause| format!("it is not JSON: {cause}"))
}

fn object(text: &str) -> Result<JsonText, String> {
    json(text)?.into_object().ok_or_else(|| "it is not a JSON object".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(words: &[&str]) -> String {
        let pairs: Vec<_> = words.iter().map(|word| pair(word).unwrap()).collect();
        together(&pairs).unwrap().get().to_owned()
    }

    #[test]
    fn a_value_is_json_if_it_looks_like_it_and_a_text_otherwise() {
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
    fn what_is_no_argument_is_refused() {
        for word in ["a", "=b", ":=1", "a:=b", "a:="] {
            assert!(pair(word).is_err(), "{word}");
        }
        let twice = [pair("a=1").unwrap(), pair("a=2").unwrap()];
        assert!(together(&twice).is_err());
        assert!(object("[]").is_err() && object("{").is_err() && object(" {} ").is_ok());
    }
}
