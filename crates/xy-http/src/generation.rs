//! A number that tells one daemon from earlier and later ones.

/// A random number of each daemon. It is part of request ids for clients and of event ids over
/// HTTP. So an id from an earlier daemon is not mistaken for a current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    /// Draws a random generation.
    pub fn draw() -> Self {
        let mut bits = [0; 4];
        match getrandom::fill(&mut bits) {
            Ok(()) => Self(u32::from_ne_bytes(bits)),
            Err(_) => Self(std::process::id()),
        }
    }

    /// Returns the tag of a session's events. No other session has it if `salt` is unique.
    pub(crate) fn event_tag(self, salt: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(salt)
    }

    /// Returns the id of request `number` to a client, as JSON text.
    pub fn request_id(self, number: u64) -> String {
        format!("\"{:08x}-{number}\"", self.0)
    }

    /// Returns the number of a request to a client; `None` if another daemon created the id.
    pub fn request_number(self, id: &str) -> Option<u64> {
        let (_, number) = id.strip_suffix('"')?.rsplit_once('-')?;
        let number = number.parse().ok()?;
        (self.request_id(number) == id).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_ids_of_another_generation_have_no_number() {
        let (ours, other) = (Generation(1), Generation(2));
        let id = ours.request_id(7);
        assert_eq!(id, r#""00000001-7""#);
        assert_eq!((ours.request_number(&id), other.request_number(&id)), (Some(7), None));
        for id in ["7", r#""7""#, r#""00000001-07""#, r#""00000001-""#, r#""-7""#, "\"", ""] {
            assert_eq!(ours.request_number(id), None, "{id}");
        }
    }

    #[test]
    fn event_tags_differ_by_generation_and_session() {
        let tag = Generation(1).event_tag(5);
        assert_ne!(tag, Generation(2).event_tag(5));
        assert_ne!(tag, Generation(1).event_tag(6));
    }
}
