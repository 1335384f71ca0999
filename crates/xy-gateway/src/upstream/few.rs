//! A few messages in an array, which one revision has. Many are none: whoever reads them keeps
//! everybody waiting.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// So many are a few.
const MOST: usize = 1000;

/// The messages in an array, if there is nothing else in it.
pub(super) fn messages(text: &[u8]) -> Option<Vec<&RawValue>> {
    let Few(parts) = serde_json::from_slice(text).ok()?;
    let is_one = |part: &&RawValue| part.get().starts_with('{');
    (!parts.is_empty() && parts.iter().all(is_one)).then_some(parts)
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
    fn what_is_no_message_is_in_no_few() {
        let count = |text: &str| messages(text.as_bytes()).map(|all| all.len());
        assert_eq!(
            (count(" [{}, {\"a\":1}]"), count("[]"), count("[{},7]")),
            (Some(2), None, None)
        );
        assert_eq!((count("[[{}]]"), count("{}"), count("[{}")), (None, None, None));
    }

    #[test]
    fn a_few_are_read_and_many_are_not() {
        assert_eq!((count(0), count(MOST), count(MOST + 1)), (Some(0), Some(MOST), None));
    }
}
