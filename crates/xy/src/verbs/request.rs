//! `xy request`: sends a raw MCP request to a server.

use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use xy_protocol::control::{JsonText, REQUEST_TIMEOUT, RawRequest, Request};

use super::in_millis;
use crate::args::Json;
use crate::failure::{Exit, Failure};
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::safe_text;

/// Send any MCP request to a server
///
/// Prints the server's complete JSON-RPC response, with id 1. An error response is printed too,
/// and the exit code is 1.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy request github tools/list | jq '.result.tools | length'\n  \
    xy request github resources/read --params '{\"uri\": \"repo://me/xy\"}'"
)]
pub(crate) struct Args {
    /// The server's name
    server: String,
    /// The method, such as `tools/list`
    method: String,
    /// Params of the request, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = super::call::parse_json)]
    params: Option<JsonText>,
    /// Time limit of the request [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) json: Json,
}

/// The part of a response that decides the exit code.
#[derive(Debug, Deserialize)]
struct Response {
    #[serde(default)]
    error: Option<IgnoredAny>,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let params = RawRequest {
        server: args.server.clone(),
        method: args.method.clone(),
        params: args.params.clone(),
        timeout_ms: args.timeout.map(in_millis),
        id: None,
    };
    let within = args.timeout.unwrap_or(REQUEST_TIMEOUT);
    let mut link = Link::open()?;
    let spinner = output.spinner(format!("asking {}", safe_text(&args.server)));
    let result = link.call_with_timeout(&Request::Raw(params), Some(within))?;
    drop(spinner);
    output.json(&result)?;
    let response: Response = read(&result)?;
    if response.error.is_some() { Err(Failure::Reported(Exit::Failed)) } else { Ok(()) }
}
