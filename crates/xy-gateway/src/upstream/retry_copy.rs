//! Copies of client requests that may have to be sent again. Their size is counted per server,
//! including large messages, which are shared and not copied.

use std::cell::Cell;
use std::rc::Rc;

use xy_transport::budget::Reservation;
use xy_transport::large::LARGE_THRESHOLD;
use xy_transport::message_text::{MessageText, StoredText};

/// The text of one call.
pub(crate) struct RetryCopy {
    text: StoredText,
    /// The method and the name of a large call, so that it is not parsed again for them.
    about: Option<(Box<str>, Option<Box<str>>)>,
    held: Reservation,
}

impl RetryCopy {
    /// Creates a copy, or returns `None` without room: all copies together may hold `most` bytes.
    pub(crate) fn of(
        text: MessageText<'_>,
        (method, name): (&str, Option<&str>),
        all: &Rc<Cell<usize>>,
        most: usize,
    ) -> Option<Self> {
        let mut held = Reservation::new(all, most);
        held.resize(text.len()).then(|| {
            let about =
                (text.len() > LARGE_THRESHOLD).then(|| (method.into(), name.map(Into::into)));
            Self { text: text.store(), about, held }
        })
    }

    /// Returns the method and the name of a large call.
    pub(crate) fn about(&self) -> Option<(&str, Option<&str>)> {
        self.about.as_ref().map(|(method, name)| (&**method, name.as_deref()))
    }

    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Empties the copy: the call will not be sent again.
    pub(crate) fn discard(&mut self) {
        self.held.resize(0);
        self.text = StoredText::default();
    }

    /// Returns the text, which is not counted any more.
    pub(crate) fn into_text(self) -> StoredText {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_copies_share_a_budget_and_free_it() {
        let all = Rc::default();
        let text = |text: &'static [u8]| MessageText::from(text);
        let one = RetryCopy::of(text(b"12345"), ("m", None), &all, 8).unwrap();
        assert!(RetryCopy::of(text(b"1234"), ("m", None), &all, 8).is_none());
        let other = RetryCopy::of(text(b"123"), ("m", None), &all, 8).unwrap();
        assert_eq!(all.get(), 8);
        assert_eq!(&*other.into_text(), b"123");
        assert_eq!(all.get(), 5);
        let mut third = RetryCopy::of(text(b"123"), ("m", None), &all, 8).unwrap();
        third.discard();
        assert_eq!((third.text(), all.get()), (&b""[..], 5));
        drop((one, third));
        assert_eq!(all.get(), 0);
    }
}
