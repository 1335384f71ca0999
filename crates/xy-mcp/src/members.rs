//! The members of a JSON object, each as a slice of the parsed text.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object, in order. Duplicate keys are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members<'t>(Vec<(Cow<'t, str>, &'t str)>);

impl<'t> Members<'t> {
    /// Parses an object; returns `None` if the text is not one.
    pub fn read(text: &'t str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns the first member of this name, as written.
    pub fn get(&self, name: &str) -> Option<&'t str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
    }

    /// Returns all members.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &'t str)> {
        self.0.iter().map(|(key, value)| (&**key, *value))
    }

    /// Returns the number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes the members whose key satisfies `excludes`.
    #[must_use]
    pub fn without(mut self, excludes: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|(key, _)| !excludes(key));
        self
    }
}

impl<'t> FromIterator<(&'t str, &'t str)> for Members<'t> {
    fn from_iter<I: IntoIterator<Item = (&'t str, &'t str)>>(members: I) -> Self {
        Self(members.into_iter().map(|(key, value)| (Cow::Borrowed(key), value)).collect())
    }
}

impl fmt::Display for Members<'_> {
    /// Writes an object, with the values as they were written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (index, (key, value)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let key = serde_json::to_string(key).map_err(|_| fmt::Error)?;
            write!(f, "{comma}{key}:{value}")?;
        }
        f.write_str("}")
    }
}

impl<'t> Deserialize<'t> for Members<'t> {
    fn deserialize<D: Deserializer<'t>>(value: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'t> Visitor<'t> for Object {
            type Value = Members<'t>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(Key(key)) = map.next_key()? {
                    let value: &RawValue = map.next_value()?;
                    all.push((key, value.get()));
                }
                Ok(Members(all))
            }
        }

        value.deserialize_map(Object)
    }
}

/// A key, borrowed unless it has escapes.
struct Key<'t>(Cow<'t, str>);

impl<'t> Deserialize<'t> for Key<'t> {
    fn deserialize<D: Deserializer<'t>>(value: D) -> Result<Self, D::Error> {
        struct Text;

        impl<'t> Visitor<'t> for Text {
            type Value = Key<'t>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E>(self, text: &'t str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }

        value.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_slices_of_the_text_in_order() {
        let text = r#"{ "b" : 1.50, "\u0061":{"x" : [1]},"b":2 }"#;
        let members = Members::read(text).unwrap();
        assert_eq!(members.to_string(), r#"{"b":1.50,"a":{"x" : [1]},"b":2}"#);
        assert_eq!((members.get("a"), members.get("b")), (Some(r#"{"x" : [1]}"#), Some("1.50")));
        assert_eq!(members.get("c"), None);
        let range = text.as_bytes().as_ptr_range();
        assert!(members.iter().all(|(_, value)| range.contains(&value.as_ptr())));
        assert_eq!(members.clone().without(|key| key == "b").to_string(), r#"{"a":{"x" : [1]}}"#);
    }

    #[test]
    fn other_values_have_no_members() {
        for text in ["", "[]", "7", "null", "{", r#"{"a"}"#, "{1:2}"] {
            assert_eq!(Members::read(text), None, "{text}");
        }
        assert!(Members::read("{}").unwrap().is_empty());
    }
}
