//! Messages of the daemon, parsed without copying: answers, notifications and refusals.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use xy_protocol::error::CallError;
use xy_protocol::jsonrpc::RequestId;

use super::CallFailure;

/// A notification of a stream.
#[derive(Debug)]
pub struct Notification<'a> {
    /// The method: `log`, `event_end`.
    pub method: Cow<'a, str>,
    /// The params, as written.
    pub params: &'a RawValue,
}

pub(super) enum Message<'a> {
    Answer {
        id: RequestId,
        outcome: Result<Box<RawValue>, CallError>,
    },
    Notification(Notification<'a>),
    /// An error without a request ID: the daemon has rejected the connection.
    Refusal(CallError),
}

#[derive(Deserialize)]
struct Envelope<'a> {
    id: Option<RequestId>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<CallError>,
}

impl<'a> Message<'a> {
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, CallFailure> {
        let not_xy = |what: String| CallFailure::NotXy { what };
        let envelope: Envelope<'a> =
            serde_json::from_slice(line).map_err(|cause| not_xy(cause.to_string()))?;
        match envelope {
            Envelope { method: Some(method), params, .. } => {
                let params = params.unwrap_or(RawValue::NULL);
                Ok(Self::Notification(Notification { method, params }))
            }
            Envelope { id: Some(id), error: Some(error), .. } => {
                Ok(Self::Answer { id, outcome: Err(error) })
            }
            Envelope { id: Some(id), result, .. } => {
                let result = result.unwrap_or(RawValue::NULL).to_owned();
                Ok(Self::Answer { id, outcome: Ok(result) })
            }
            Envelope { error: Some(error), .. } => Ok(Self::Refusal(error)),
            _ => Err(not_xy("the message is neither an answer nor a notification".to_owned())),
        }
    }
}
