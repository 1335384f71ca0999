//! `xy request`: any request to one server.

use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use xy_protocol::control::{JsonText, REQUEST_WITHIN, RawRequest, Request};

use super::in_millis;
use crate::cli::Json;
use crate::failure::{Exit, Failure};
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::safe_text;

/// Ask one server anything
///
/// Sends one request of the protocol, whichever it is, and prints the server's whole
/// response, under the id 1. A response that is an error ends this with 1, and is printed
/// all the same.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy request github tools/list | jq '.result.tools | length'\n  \
    xy request github resources/read --params '{\"uri\": \"repo://me/xy\"}'"
)]
pub(crate) struct Args {
    /// The server's name
    server: String,
    /// What is asked, such as `tools/list`
    method: String,
    /// The params of the request, a JSON object
    #[arg(long, value_name = "JSON", value_parser = super::call::json)]
    params: Option<JsonText>,
    /// How long it may take: 10s unless told otherwise
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) json: Json,
}

/// What there is to know of a response: whether it is an error.
#[derive(Debug, Deserialize)]
struct Response {
    #[serde(default)]
    error: Option<IgnoredAny>,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let ask = RawRequest {
        server: args.server.clone(),
        method: args.method.clone(),
        params: args.params.clone(),
        timeout_ms: args.timeout.map(in_millis),
        id: None,
    };
    let within = args.timeout.unwrap_or(REQUEST_WITHIN);
    let mut link = Link::open()?;
    let spinner = output.spinner(format!("asking {}", safe_text(&args.server)));
    let result = link.ask_within(&Request::Raw(ask), Some(within))?;
    drop(spinner);
    output.json(&result)?;
    let response: Response = read(&result)?;
    if response.error.is_some() { Err(Failure::Told(Exit::Failed)) } else { Ok(()) }
}
