//! A few messages in an array, which one revision has. Many are none: whoever reads them keeps
//! everybody waiting.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// So many are a few.
const MOST: usize = 1000;

/// What is in an array, if there is a message in it.
pub(super) fn parts(text: &[u8]) -> Option<Vec<&RawValue>> {
    let Few(parts) = serde_json::from_slice(text).ok()?;
    parts.iter().any(|part| part.get().starts_with('{')).then_some(parts)
}

struct Few<'t>(Vec<&'t RawValue>);

impl<'t> Deserialize<'t> for Few<'t> {
    fn deserialize<D: Deserializer<'t>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Reader)
    }
}

struct Reader;

impl<'t> Visitor<'t> for Reader {
    type Value = Few<'t>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MOST} messages")
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut parts: A) -> Result<Few<'t>, A::Error> {
        let mut all = Vec::new();
        while let Some(part) = parts.next_element()? {
            if all.len() == MOST {
                return Err(A::Error::invalid_length(MOST + 1, &self));
            }
            all.push(part);
        }
        Ok(Few(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(parts: usize) -> Option<usize> {
        let text = format!("[{}]", vec!["{}"; parts].join(","));
        serde_json::from_str(&text).ok().map(|Few(parts)| parts.len())
    }

    #[test]
    fn an_array_without_a_message_is_none() {
        let count = |text: &str| parts(text.as_bytes()).map(|all| all.len());
        assert_eq!((count(" [{}, {\"a\":1}]"), count("[7,{}]")), (Some(2), Some(2)));
        for text in ["[]", "[7,[{}]]", "{}", "[{}"] {
            assert_eq!(count(text), None, "{text}");
        }
    }

    #[test]
    fn a_few_are_read_and_many_are_not() {
        assert_eq!((count(0), count(MOST), count(MOST + 1)), (Some(0), Some(MOST), None));
    }
}
