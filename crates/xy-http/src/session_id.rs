//! Session ids that outlive the daemon: sealed claims that only xy can create. Pure.
//!
//! ```text
//!  base64url( format │ key number │ nonce │ AEAD{ claims } )
//! ```
//!
//! An id contains nothing that can change during its session. The journal knows whether the session
//! still exists.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf;
use xy_mcp::revision;

use crate::error::HttpError;
use crate::frontend::View;
use crate::guard::Digest;

/// Maximum length of an id, in characters.
pub(super) const ID_CHARS_MAX: usize = 512;

/// Maximum number of keys: the current one, and older ones that sessions still need.
pub(super) const KEYS_MAX: usize = 4;

const ID_FORMAT: u8 = 1;
/// The length of the format and the key number.
const HEAD_LEN: usize = 1 + 4;
const REVISION_LEN: usize = 10;
const CLAIMS_LEN: usize = 16 + 8 + 8 + 1 + 32 + 16 + REVISION_LEN + 8;
const TAG_LEN: usize = 16;
const ID_LEN: usize = HEAD_LEN + NONCE_LEN + CLAIMS_LEN + TAG_LEN;

/// The contents of a session id.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Claims {
    /// The session's number: 128 random bits.
    pub(super) session: u128,
    /// The epoch of the journal with the session's record.
    pub(super) epoch: u64,
    /// The state folder of the journal.
    pub(super) home: u64,
    /// The digest of the token's secret; `None` if no token was needed.
    pub(super) owner: Option<Digest>,
    /// The endpoint at which the session was opened.
    pub(super) endpoint: EndpointDigest,
    /// The negotiated protocol revision.
    pub(super) revision: &'static str,
    /// When the session was opened, in seconds since 1970.
    pub(super) made_at: u64,
}

/// A digest of a view.
pub(super) type EndpointDigest = [u8; 16];

/// Returns the digest of a view.
pub(super) fn endpoint_digest(view: &View) -> EndpointDigest {
    let text = match view {
        View::All => "all".to_owned(),
        View::Profile(name) => format!("profile {name}"),
        View::Server(name) => format!("server {name}"),
    };
    let mut endpoint = EndpointDigest::default();
    endpoint.copy_from_slice(&crate::digest(text.as_bytes())[..16]);
    endpoint
}

/// The bytes of a key.
pub(super) type KeyBytes = [u8; 32];

/// Derives the key for session ids from the state key.
pub(super) fn derive(state_key: &[u8]) -> KeyBytes {
    let mut key = KeyBytes::default();
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"xy");
    let pseudorandom = salt.extract(state_key);
    let expanded = pseudorandom.expand(&[b"http session id, format 1"], hkdf::HKDF_SHA256);
    // The length equals that of the digest, which is always possible.
    let _ = expanded.and_then(|expanded| expanded.fill(&mut key));
    key
}

/// The keys for session ids, by number. The newest seals; all of them open.
pub(super) struct Keyring(Vec<(u32, LessSafeKey)>);

impl Keyring {
    /// Creates a keyring of numbered keys, the newest last.
    pub(super) fn new(keys: &[(u32, KeyBytes)]) -> Self {
        let key = |(number, bytes): &(u32, KeyBytes)| {
            let unbound = UnboundKey::new(&AES_256_GCM, bytes).ok()?;
            Some((*number, LessSafeKey::new(unbound)))
        };
        Self(keys.iter().filter_map(key).collect())
    }

    /// Returns the number of the key that seals.
    pub(super) fn current(&self) -> u32 {
        self.0.last().map_or(0, |(number, _)| *number)
    }

    /// Returns the id with these claims.
    pub(super) fn seal(&self, claims: &Claims) -> Result<String, HttpError> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|cause| HttpError::NoRandomness(cause.to_string()))?;
        self.seal_with(claims, nonce)
            .ok_or_else(|| HttpError::NoRandomness("no key seals session ids".to_owned()))
    }

    fn seal_with(&self, claims: &Claims, nonce: [u8; NONCE_LEN]) -> Option<String> {
        let (number, key) = self.0.last()?;
        let mut head = vec![ID_FORMAT];
        head.extend_from_slice(&number.to_be_bytes());
        let mut sealed = encode_claims(claims);
        let unique = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(unique, Aad::from(&head), &mut sealed).ok()?;
        let all = [head.as_slice(), nonce.as_slice(), sealed.as_slice()].concat();
        Some(encode_base64url(&all))
    }

    /// Returns the claims of an id; `None` if none of these keys sealed it.
    pub(super) fn open(&self, id: &str) -> Option<Claims> {
        let mut bytes = decode_base64url(id.as_bytes())?;
        if bytes.len() != ID_LEN || bytes[0] != ID_FORMAT {
            return None;
        }
        let (head, rest) = bytes.split_at_mut(HEAD_LEN);
        let (nonce, sealed) = rest.split_at_mut(NONCE_LEN);
        let number = u32::from_be_bytes(head[1..].try_into().ok()?);
        let (_, key) = self.0.iter().find(|(it, _)| *it == number)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        decode_claims(key.open_in_place(nonce, Aad::from(&*head), sealed).ok()?)
    }
}

/// Returns true if the text may be a session id. Other text need not be looked up.
pub(super) fn is_plausible(id: &[u8]) -> bool {
    let is_in_alphabet = |byte: &u8| base64url_value(*byte).is_some();
    (1..=ID_CHARS_MAX).contains(&id.len()) && id.iter().all(is_in_alphabet)
}

fn encode_claims(claims: &Claims) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(CLAIMS_LEN + TAG_LEN);
    bytes.extend_from_slice(&claims.session.to_be_bytes());
    bytes.extend_from_slice(&claims.epoch.to_be_bytes());
    bytes.extend_from_slice(&claims.home.to_be_bytes());
    bytes.push(u8::from(claims.owner.is_some()));
    bytes.extend_from_slice(&claims.owner.unwrap_or_default());
    bytes.extend_from_slice(&claims.endpoint);
    bytes.extend_from_slice(claims.revision.as_bytes());
    bytes.extend_from_slice(&claims.made_at.to_be_bytes());
    bytes
}

fn decode_claims(bytes: &[u8]) -> Option<Claims> {
    let mut rest = bytes;
    let session = u128::from_be_bytes(take(&mut rest)?);
    let epoch = u64::from_be_bytes(take(&mut rest)?);
    let home = u64::from_be_bytes(take(&mut rest)?);
    let [has_owner] = take(&mut rest)?;
    let owner = take(&mut rest)?;
    let endpoint = take(&mut rest)?;
    let revision: [u8; REVISION_LEN] = take(&mut rest)?;
    let revision = revision::VERSIONS.into_iter().find(|it| it.as_bytes() == revision)?;
    let made_at = u64::from_be_bytes(take(&mut rest)?);
    let owner = (has_owner == 1).then_some(owner);
    rest.is_empty().then_some(Claims { session, epoch, home, owner, endpoint, revision, made_at })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(*taken)
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn encode_base64url(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for index in 0..=group.len() {
            let value = (bits >> (18 - 6 * index)) & 0x3f;
            text.push(char::from(ALPHABET[value as usize]));
        }
    }
    text
}

/// Decodes the output of [`encode_base64url`], and no other spelling of it.
fn decode_base64url(text: &[u8]) -> Option<Vec<u8>> {
    if text.len() > ID_CHARS_MAX {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let mut bits = 0;
        for byte in group {
            bits = bits << 6 | base64url_value(*byte)?;
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    (encode_base64url(&bytes).as_bytes() == text).then_some(bytes)
}

fn base64url_value(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claims() -> Claims {
        Claims {
            session: 7,
            epoch: 3,
            home: 9,
            owner: Some([5; 32]),
            endpoint: endpoint_digest(&View::Profile("default".to_owned())),
            revision: "2025-11-25",
            made_at: 1_700_000_000,
        }
    }

    fn keyring(keys: &[(u32, &str)]) -> Keyring {
        let keys: Vec<_> = keys.iter().map(|(no, key)| (*no, derive(key.as_bytes()))).collect();
        Keyring::new(&keys)
    }

    #[test]
    fn session_id_opens_to_its_claims() {
        let keys = keyring(&[(1, "one")]);
        for claims in [claims(), Claims { owner: None, ..claims() }] {
            let id = keys.seal(&claims).unwrap();
            assert!(keys.open(&id) == Some(claims));
            assert!(id.len() <= ID_CHARS_MAX && is_plausible(id.as_bytes()), "{id}");
            assert_ne!(id, keys.seal(&claims).unwrap());
        }
    }

    #[test]
    fn altered_session_id_does_not_open() {
        let keys = keyring(&[(1, "one")]);
        let id = keys.seal(&claims()).unwrap();
        for at in 0..id.len() {
            let mut other = id.clone().into_bytes();
            other[at] = if other[at] == b'A' { b'B' } else { b'A' };
            assert!(keys.open(std::str::from_utf8(&other).unwrap()).is_none(), "at {at}");
        }
        for other in [&id[1..], &id[..id.len() - 1], &format!("{id}A"), &format!("{id}="), ""] {
            assert!(keys.open(other).is_none(), "{other}");
        }
    }

    #[test]
    fn session_id_of_another_key_does_not_open() {
        let id = keyring(&[(1, "one")]).seal(&claims()).unwrap();
        assert!(keyring(&[(1, "other")]).open(&id).is_none());
        assert!(keyring(&[(2, "one")]).open(&id).is_none());
        assert!(keyring(&[]).open(&id).is_none() && keyring(&[]).seal(&claims()).is_err());
    }

    #[test]
    fn previous_key_still_opens_and_newest_seals() {
        let old = keyring(&[(1, "one")]).seal(&claims()).unwrap();
        let keys = keyring(&[(1, "one"), (2, "two")]);
        assert!(keys.open(&old) == Some(claims()));
        let new = keys.seal(&claims()).unwrap();
        assert!(keyring(&[(1, "one")]).open(&new).is_none());
        assert!(keyring(&[(2, "two")]).open(&new).is_some());
    }

    #[test]
    fn session_id_contains_every_claim() {
        let keys = keyring(&[(1, "one")]);
        let mine = claims();
        let others = [
            Claims { session: 8, ..mine },
            Claims { epoch: 4, ..mine },
            Claims { home: 8, ..mine },
            Claims { owner: None, ..mine },
            Claims { owner: Some([6; 32]), ..mine },
            Claims { endpoint: endpoint_digest(&View::Server("default".to_owned())), ..mine },
            Claims { revision: "2025-06-18", ..mine },
            Claims { made_at: 1, ..mine },
        ];
        for other in others {
            assert!(keys.open(&keys.seal(&other).unwrap()) == Some(other));
            assert!(other != mine);
        }
    }

    #[test]
    fn all_revisions_have_the_same_length() {
        assert!(revision::VERSIONS.iter().all(|it| it.len() == REVISION_LEN));
        assert!(encode_claims(&claims()).len() == CLAIMS_LEN);
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,600}") {
            prop_assert!(keyring(&[(1, "one")]).open(&text).is_none());
        }

        #[test]
        fn base64url_reads_back(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(decode_base64url(encode_base64url(&bytes).as_bytes()), Some(bytes));
        }
    }
}
