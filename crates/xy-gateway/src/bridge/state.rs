//! The signed `requestState` of a pending input: valid for one client, one request and a limited
//! time. Pure.

use std::fmt::Write as _;

use ring::digest::{self, SHA256};
use ring::hmac;
use xy_mcp::members::Members;
use xy_mcp::reply;
use xy_protocol::error::CallError;

/// The prefix of every state.
const PREFIX: &str = "xy1.";

/// Payload length in bytes: number, expiry, client digest and request digest.
const PAYLOAD: usize = 8 + 8 + 8 + 16;
const SIGNATURE: usize = 32;

/// The signing key.
pub(crate) struct Key(hmac::Key);

impl Key {
    pub(crate) fn of(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }
}

/// The client and the request that a state is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateBinding {
    client: u64,
    request: [u8; 16],
}

impl StateBinding {
    /// Binds to the identity `who`, its view, and a request. Members that only a repetition has,
    /// and `_meta`, are ignored.
    pub(crate) fn new(who: u64, view: &str, method: &str, params: Option<&str>) -> Self {
        let mut client = digest::Context::new(&SHA256);
        client.update(&who.to_be_bytes());
        client.update(view.as_bytes());
        let mut request = digest::Context::new(&SHA256);
        put(&mut request, method);
        let members = params.and_then(Members::read).unwrap_or_default();
        let members =
            members.without(|key| matches!(key, "_meta" | "inputResponses" | "requestState"));
        let mut members: Vec<(&str, &str)> = members.iter().collect();
        members.sort_unstable();
        for (key, value) in members {
            put(&mut request, key);
            put(&mut request, value);
        }
        Self {
            client: u64::from_be_bytes(first(&client.finish())),
            request: first(&request.finish()),
        }
    }
}

/// Adds a part with its length, so that different lists never have the same digest.
fn put(context: &mut digest::Context, part: &str) {
    context.update(&(part.len() as u64).to_be_bytes());
    context.update(part.as_bytes());
}

fn first<const N: usize>(digest: &digest::Digest) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&digest.as_ref()[..N]);
    bytes
}

/// Signs a state for pending input `number` that expires at `until`, in seconds since 1970.
pub(crate) fn sign(key: &Key, number: u64, until: u64, binding: &StateBinding) -> String {
    let mut bytes = Vec::with_capacity(PAYLOAD + SIGNATURE);
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&until.to_be_bytes());
    bytes.extend_from_slice(&binding.client.to_be_bytes());
    bytes.extend_from_slice(&binding.request);
    let signature = hmac::sign(&key.0, &bytes);
    bytes.extend_from_slice(signature.as_ref());
    bytes.iter().fold(PREFIX.to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // Writing to a string cannot fail.
        text
    })
}

/// The reason why a state is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateError {
    /// xy has not issued it, or it was altered.
    Unknown,
    /// It has expired.
    Expired,
    /// It was issued to another client.
    OtherClient,
    /// It was issued for another request.
    OtherRequest,
}

impl StateError {
    /// Returns the error for a client that sent this state.
    pub(crate) fn call_error(self) -> CallError {
        let why = match self {
            Self::Unknown => "it was not issued here, or was altered",
            Self::Expired => "it expired after 10 minutes, and the call was cancelled",
            Self::OtherClient => "it was issued to another client or endpoint",
            Self::OtherRequest => "it was issued for another request",
        };
        let hint = match self {
            Self::Expired => "check whether the call was executed before repeating it",
            Self::Unknown | Self::OtherClient | Self::OtherRequest => "repeat the call without it",
        };
        reply::invalid("`requestState` is not accepted").cause(why).hint(hint)
    }
}

/// Verifies a state; returns the number of its pending input.
pub(crate) fn verify(
    key: &Key,
    state: &str,
    now: u64,
    binding: &StateBinding,
) -> Result<u64, StateError> {
    let bytes = state.strip_prefix(PREFIX).and_then(bytes_of).ok_or(StateError::Unknown)?;
    let (payload, signature) = bytes.split_at(PAYLOAD);
    hmac::verify(&key.0, payload, signature).map_err(|_| StateError::Unknown)?;
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&payload[at..at + 8]);
        u64::from_be_bytes(bytes)
    };
    if number(16) != binding.client {
        return Err(StateError::OtherClient);
    }
    if payload[24..] != binding.request {
        return Err(StateError::OtherRequest);
    }
    if number(8) <= now {
        return Err(StateError::Expired);
    }
    Ok(number(0))
}

/// Decodes hexadecimal digits of exactly the right length.
fn bytes_of(hex: &str) -> Option<[u8; PAYLOAD + SIGNATURE]> {
    let hex = hex.as_bytes();
    if hex.len() != 2 * (PAYLOAD + SIGNATURE) {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; PAYLOAD + SIGNATURE];
    for (byte, pair) in bytes.iter_mut().zip(hex.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARAMS: &str = r#"{"name":"t","arguments":{"a":1}}"#;

    fn binding(params: &str) -> StateBinding {
        StateBinding::new(1, "p/default", "tools/call", Some(params))
    }

    #[test]
    fn state_is_valid_for_one_client_and_request_until_it_expires() {
        let key = Key::of(b"secret");
        let state = sign(&key, 7, 100, &binding(PARAMS));
        let verified = |binding: &StateBinding, now| verify(&key, &state, now, binding);
        assert_eq!(verified(&binding(PARAMS), 99), Ok(7));
        assert_eq!(verified(&binding(PARAMS), 100), Err(StateError::Expired));
        let other = StateBinding::new(2, "p/default", "tools/call", Some(PARAMS));
        assert_eq!(verified(&other, 99), Err(StateError::OtherClient));
        let other = StateBinding::new(1, "s/one", "tools/call", Some(PARAMS));
        assert_eq!(verified(&other, 99), Err(StateError::OtherClient));
        let other = StateBinding::new(1, "p/default", "prompts/get", Some(PARAMS));
        assert_eq!(verified(&other, 99), Err(StateError::OtherRequest));
        let other = binding(r#"{"name":"t","arguments":{"a":2}}"#);
        assert_eq!(verified(&other, 99), Err(StateError::OtherRequest));
        assert_eq!(
            verify(&Key::of(b"other"), &state, 99, &binding(PARAMS)),
            Err(StateError::Unknown)
        );
    }

    #[test]
    fn retried_request_has_the_same_binding() {
        let again = r#"{"requestState":"x","arguments":{"a":1},"inputResponses":{"q":{}},"_meta":{"progressToken":2},"name":"t"}"#;
        assert_eq!(binding(again), binding(PARAMS));
        assert_ne!(binding(r#"{"name":"t"}"#), binding(PARAMS));
        assert_ne!(binding(r#"{"nam":"et"}"#), binding(r#"{"name":"t"}"#));
    }

    proptest! {
        #[test]
        fn altered_state_is_rejected(at in 0_usize..148, other in "[0-9a-fA-Fx.é]") {
            let key = Key::of(b"secret");
            let state = sign(&key, 7, 100, &binding(PARAMS));
            prop_assert_eq!(state.len(), 148);
            let mut altered = state.clone();
            altered.replace_range(at..=at, &other);
            if altered != state {
                let verified = verify(&key, &altered, 0, &binding(PARAMS));
                prop_assert_eq!(verified, Err(StateError::Unknown));
            }
        }

        #[test]
        fn arbitrary_state_never_panics(text in ".*") {
            let _ = verify(&Key::of(b"k"), &text, 0, &binding(PARAMS));
            let _ = verify(&Key::of(b"k"), &format!("xy1.{text}"), 0, &binding(&text));
        }
    }
}
