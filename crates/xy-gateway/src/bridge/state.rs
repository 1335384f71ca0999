//! What a client carries for us from one round of a call to the next: a `requestState` that
//! only we can have written, for one client, one request, and a while. Pure.

use std::fmt::Write as _;

use ring::digest::{self, SHA256};
use ring::hmac;
use xy_mcp::members::Members;

/// What ours begin with.
const PREFIX: &str = "xy1.";

/// Bytes before the signature: a number, a time, whose it is, and which request.
const PAYLOAD: usize = 8 + 8 + 8 + 16;
const SIGNATURE: usize = 32;

/// What we sign with.
pub(crate) struct Key(hmac::Key);

impl Key {
    pub(crate) fn of(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }
}

/// Whose a state is, and for which request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bond {
    whose: u64,
    request: [u8; 16],
}

impl Bond {
    /// Of whoever the door knows as `who`, at what it is shown, with a request of these params.
    /// What only a repetition says, and what says nothing of what is asked, does not count.
    pub(crate) fn new(who: u64, view: &str, method: &str, params: Option<&str>) -> Self {
        let mut whose = digest::Context::new(&SHA256);
        whose.update(&who.to_be_bytes());
        whose.update(view.as_bytes());
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
            whose: u64::from_be_bytes(first(&whose.finish())),
            request: first(&request.finish()),
        }
    }
}

/// Each part with its length, so that no two lists of parts look alike.
fn put(context: &mut digest::Context, part: &str) {
    context.update(&(part.len() as u64).to_be_bytes());
    context.update(part.as_bytes());
}

fn first<const N: usize>(digest: &digest::Digest) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&digest.as_ref()[..N]);
    bytes
}

/// The state of parked call `number`, which holds until `until` (seconds since 1970).
pub(crate) fn sign(key: &Key, number: u64, until: u64, bond: &Bond) -> String {
    let mut bytes = Vec::with_capacity(PAYLOAD + SIGNATURE);
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&until.to_be_bytes());
    bytes.extend_from_slice(&bond.whose.to_be_bytes());
    bytes.extend_from_slice(&bond.request);
    let signature = hmac::sign(&key.0, &bytes);
    bytes.extend_from_slice(signature.as_ref());
    bytes.iter().fold(PREFIX.to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // A string takes everything.
        text
    })
}

/// Why a state is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// We have not written it, or not like this.
    NotOurs,
    /// It was good for a while, which is over.
    Expired,
    /// It was given to somebody else.
    Foreign,
    /// It was given for another request.
    OtherRequest,
}

/// The number of the parked call that a state stands for.
pub(crate) fn verify(key: &Key, state: &str, now: u64, bond: &Bond) -> Result<u64, Unfit> {
    let bytes = state.strip_prefix(PREFIX).and_then(bytes_of).ok_or(Unfit::NotOurs)?;
    let (payload, signature) = bytes.split_at(PAYLOAD);
    hmac::verify(&key.0, payload, signature).map_err(|_| Unfit::NotOurs)?;
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&payload[at..at + 8]);
        u64::from_be_bytes(bytes)
    };
    if number(16) != bond.whose {
        return Err(Unfit::Foreign);
    }
    if payload[24..] != bond.request {
        return Err(Unfit::OtherRequest);
    }
    if number(8) <= now {
        return Err(Unfit::Expired);
    }
    Ok(number(0))
}

/// The bytes that a text of exactly the right length spells.
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

    fn bond(params: &str) -> Bond {
        Bond::new(1, "p/default", "tools/call", Some(params))
    }

    #[test]
    fn a_state_is_for_one_client_one_request_and_a_while() {
        let key = Key::of(b"secret");
        let state = sign(&key, 7, 100, &bond(PARAMS));
        let verified = |bond: &Bond, now| verify(&key, &state, now, bond);
        assert_eq!(verified(&bond(PARAMS), 99), Ok(7));
        assert_eq!(verified(&bond(PARAMS), 100), Err(Unfit::Expired));
        let other = Bond::new(2, "p/default", "tools/call", Some(PARAMS));
        assert_eq!(verified(&other, 99), Err(Unfit::Foreign));
        let other = Bond::new(1, "s/one", "tools/call", Some(PARAMS));
        assert_eq!(verified(&other, 99), Err(Unfit::Foreign));
        let other = Bond::new(1, "p/default", "prompts/get", Some(PARAMS));
        assert_eq!(verified(&other, 99), Err(Unfit::OtherRequest));
        let other = bond(r#"{"name":"t","arguments":{"a":2}}"#);
        assert_eq!(verified(&other, 99), Err(Unfit::OtherRequest));
        assert_eq!(verify(&Key::of(b"other"), &state, 99, &bond(PARAMS)), Err(Unfit::NotOurs));
    }

    #[test]
    fn a_repetition_is_the_same_request() {
        let again = r#"{"requestState":"x","arguments":{"a":1},"inputResponses":{"q":{}},"_meta":{"progressToken":2},"name":"t"}"#;
        assert_eq!(bond(again), bond(PARAMS));
        assert_ne!(bond(r#"{"name":"t"}"#), bond(PARAMS));
        assert_ne!(bond(r#"{"nam":"et"}"#), bond(r#"{"name":"t"}"#));
    }

    proptest! {
        #[test]
        fn one_that_was_altered_is_not_ours(at in 0_usize..148, other in "[0-9a-fA-Fx.é]") {
            let key = Key::of(b"secret");
            let state = sign(&key, 7, 100, &bond(PARAMS));
            prop_assert_eq!(state.len(), 148);
            let mut altered = state.clone();
            altered.replace_range(at..=at, &other);
            if altered != state {
                prop_assert_eq!(verify(&key, &altered, 0, &bond(PARAMS)), Err(Unfit::NotOurs));
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            let _ = verify(&Key::of(b"k"), &text, 0, &bond(PARAMS));
            let _ = verify(&Key::of(b"k"), &format!("xy1.{text}"), 0, &bond(&text));
        }
    }
}
