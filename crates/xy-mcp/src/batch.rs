//! Batches: several messages in an array, which one revision of MCP supports.
//!
//! The size is bounded, because parsing a long batch delays every client.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Maximum number of messages in a batch.
const MAX_BATCH: usize = 1000;

/// Splits an array into its elements, if one of them is an object and it is not too long.
pub fn split(text: &[u8]) -> Option<Vec<&RawValue>> {
    let Batch(parts) = serde_json::from_slice(text).ok()?;
    parts.iter().any(|part| part.get().starts_with('{')).then_some(parts)
}

struct Batch<'t>(Vec<&'t RawValue>);

impl<'t> Deserialize<'t> for Batch<'t> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(BatchVisitor)
    }
}

struct BatchVisitor;

impl<'t> Visitor<'t> for BatchVisitor {
    type Value = Batch<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX_BATCH} messages")
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut parts: A) -> Result<Batch<'t>, A::Error> {
        let mut all = Vec::new();
        while let Some(part) = parts.next_element()? {
            if all.len() == MAX_BATCH {
                return Err(A::Error::invalid_length(MAX_BATCH + 1, &self));
            }
            all.push(part);
        }
        Ok(Batch(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(parts: usize) -> Option<usize> {
        let text = format!("[{}]", vec!["{}"; parts].join(","));
        serde_json::from_str(&text).ok().map(|Batch(parts)| parts.len())
    }

    #[test]
    fn array_without_an_object_is_no_batch() {
        let count = |text: &str| split(text.as_bytes()).map(|all| all.len());
        assert_eq!((count(" [{}, {\"a\":1}]"), count("[7,{}]")), (Some(2), Some(2)));
        for text in ["[]", "[7,[{}]]", "{}", "[{}"] {
            assert_eq!(count(text), None, "{text}");
        }
    }

    #[test]
    fn batch_has_a_maximum_size() {
        assert_eq!(
            (count(0), count(MAX_BATCH), count(MAX_BATCH + 1)),
            (Some(0), Some(MAX_BATCH), None)
        );
    }
}
