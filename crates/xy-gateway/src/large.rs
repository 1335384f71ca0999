//! Messages so large that reading them would keep other clients waiting. They are read on a
//! thread of their own, and the thread that carries calls only gets the places of what it needs.

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::Semaphore;
use xy_mcp::envelope::{self, Malformed, Message, Outcome};

use crate::params::{ParamPlaces, Params};

/// A message that is longer is read elsewhere. A shorter one is read in less time than it takes
/// to wake another thread and to come back.
pub(crate) const LARGE: usize = 1024 * 1024;

/// Large messages that are read at the same time; others wait. Their bytes count as those of
/// bodies that are not whole.
const READ_AT_ONCE: usize = 2;

/// A large message, and where in its text everything stands.
#[derive(Debug)]
pub struct LargeMessage {
    text: String,
    read: Result<Outside, Malformed>,
}

#[derive(Debug)]
enum Outside {
    Request {
        id: Place,
        method: String,
        params: Option<Place>,
        places: Result<Box<ParamPlaces>, String>,
    },
    Notification {
        method: String,
        params: Option<Place>,
    },
    Answer {
        id: Option<Place>,
        result: Option<Place>,
        error: Option<Place>,
    },
}

type Place = Range<usize>;

/// Returns where `part`, a piece of `text`, stands in it.
pub(crate) fn place_of(text: &str, part: &str) -> Place {
    let begins = (part.as_ptr() as usize).wrapping_sub(text.as_ptr() as usize);
    begins..begins.wrapping_add(part.len())
}

impl LargeMessage {
    /// Reads all of a message. This takes long.
    pub(crate) fn read(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self { read: read(&text), text },
            Err(cause) => {
                let cause = Malformed::NotJson(cause.utf8_error().to_string());
                Self { text: String::new(), read: Err(cause) }
            }
        }
    }

    /// Its text; empty if that was no text at all.
    pub(crate) fn text(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// Returns its outside, as [`envelope::parse`] does.
    pub(crate) fn message(&self) -> Result<Message<'_>, Malformed> {
        let at = |place: &Place| self.text.get(place.clone()).unwrap_or_default();
        Ok(match self.read.as_ref().map_err(Clone::clone)? {
            Outside::Request { id, method, params, .. } => Message::Request {
                id: at(id),
                method: method.as_str().into(),
                params: params.as_ref().map(at),
            },
            Outside::Notification { method, params } => {
                let params = params.as_ref().map(at);
                Message::Notification { method: method.as_str().into(), params }
            }
            Outside::Answer { id, result, error } => {
                let outcome = match (result, error) {
                    (Some(result), _) => Outcome::Result(at(result)),
                    (None, error) => Outcome::Error(error.as_ref().map(at).unwrap_or_default()),
                };
                Message::Answer { id: id.as_ref().map(at), outcome }
            }
        })
    }

    /// Returns the params of a request, as [`Params::checked`] does.
    pub(crate) fn params(&self) -> Result<Params<'_>, String> {
        match &self.read {
            Ok(Outside::Request { params: Some(params), places, .. }) => {
                let text = self.text.get(params.clone()).unwrap_or_default();
                places.as_ref().map(|places| Params::at(text, places)).map_err(Clone::clone)
            }
            _ => Ok(Params::default()),
        }
    }
}

fn read(text: &str) -> Result<Outside, Malformed> {
    let place = |part: &str| place_of(text, part);
    Ok(match envelope::parse(text.as_bytes())? {
        Message::Request { id, method, params } => Outside::Request {
            id: place(id),
            method: method.into_owned(),
            params: params.map(place),
            places: Params::checked(params)
                .map(|it| Box::new(it.places(params.unwrap_or_default()))),
        },
        Message::Notification { method, params } => {
            Outside::Notification { method: method.into_owned(), params: params.map(place) }
        }
        Message::Answer { id, outcome } => {
            let (result, error) = match outcome {
                Outcome::Result(result) => (Some(place(result)), None),
                Outcome::Error(error) => (None, Some(place(error))),
            };
            Outside::Answer { id: id.map(place), result, error }
        }
    })
}

/// Reads large messages, a few at a time.
#[derive(Debug, Clone)]
pub(crate) struct LargeReader(Arc<Semaphore>);

impl Default for LargeReader {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(READ_AT_ONCE)))
    }
}

impl LargeReader {
    /// Reads a message on another thread. If nobody waits for it any more it is still read to
    /// its end, and counts until then.
    pub(crate) async fn read(&self, bytes: Vec<u8>) -> Option<LargeMessage> {
        let turn = self.0.clone().acquire_owned().await.ok()?;
        let reading = tokio::task::spawn_blocking(move || {
            let message = LargeMessage::read(bytes);
            drop(turn);
            message
        });
        reading.await.ok()
    }

    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.0.available_permits() == READ_AT_ONCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that can be known of a message.
    fn told(
        message: &Result<Message<'_>, Malformed>,
        params: &Result<Params<'_>, String>,
    ) -> String {
        format!("{message:?} {params:?}")
    }

    #[test]
    fn message_read_elsewhere_is_the_same_message() {
        for text in [
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a__b","arguments":{"x":[1, 2]},"_meta":{"progressToken":"p"}}}"#,
            r#" {"params" : {"uri":"x","name":null}, "id":"a\"b","method":"t\u006fols","jsonrpc":"2.0"} "#,
            r#"{"jsonrpc":"2.0","id":7,"method":"m"}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"m","params":[1]}"#,
            r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"name":1,"name":2}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"ü":1}}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":1}}"#,
            r#"{"jsonrpc":"1.0","id":1,"method":"m"}"#,
            "[]",
            "{",
            "",
        ] {
            let large = LargeMessage::read(text.as_bytes().to_vec());
            let here = envelope::parse(text.as_bytes());
            let params = match &here {
                Ok(Message::Request { params, .. }) => Params::checked(*params),
                _ => Ok(Params::default()),
            };
            assert_eq!(told(&large.message(), &large.params()), told(&here, &params), "{text}");
            assert_eq!(large.text(), text.as_bytes());
        }
        let no_text = LargeMessage::read(b"{\"\xff\"}".to_vec());
        assert!(matches!(no_text.message(), Err(Malformed::NotJson(_))));
    }

    #[test]
    fn pieces_can_be_edited_where_they_stand() {
        let text = r#"{"jsonrpc":"2.0","id":7,"method":"m","params":{"name":"a"}}"#;
        let large = LargeMessage::read(text.as_bytes().to_vec());
        let Ok(Message::Request { id, .. }) = large.message() else { panic!("it is a request") };
        let mut edits = xy_mcp::edit::Edits::of(large.text());
        edits.replace(id, "8");
        let params = large.params().unwrap();
        edits.replace(params.name().unwrap(), "\"b\"");
        let edited = String::from_utf8(edits.to_vec()).unwrap();
        assert_eq!(edited, r#"{"jsonrpc":"2.0","id":8,"method":"m","params":{"name":"b"}}"#);
    }

    #[tokio::test]
    async fn only_a_few_are_read_at_once_and_those_nobody_waits_for_end() {
        let reader = LargeReader::default();
        let all: Vec<_> = (0..5)
            .map(|_| {
                let reader = reader.clone();
                tokio::spawn(async move { reader.read(b"{}".to_vec()).await.is_some() })
            })
            .collect();
        all[0].abort();
        for one in all.into_iter().skip(1) {
            assert!(one.await.unwrap());
        }
        while !reader.is_idle() {
            tokio::task::yield_now().await;
        }
    }
}
