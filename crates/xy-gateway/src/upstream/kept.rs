//! Copies of what clients wrote, for calls that may have to be sent again. Their bytes are
//! counted per server, also those of a large message, which is shared and not copied.

use std::cell::Cell;
use std::rc::Rc;

use crate::large::LARGE;
use crate::message_text::{MessageText, StoredText};

/// The text of one call.
pub(crate) struct Kept {
    text: StoredText,
    /// The method and the name of a large one, so that it need not be read for them again.
    about: Option<(Box<str>, Option<Box<str>>)>,
    all: Rc<Cell<usize>>,
}

impl Kept {
    /// `None` if there is no room: `all` of them may hold `most` bytes.
    pub(crate) fn of(
        text: MessageText<'_>,
        (method, name): (&str, Option<&str>),
        all: &Rc<Cell<usize>>,
        most: usize,
    ) -> Option<Self> {
        let total = all.get().saturating_add(text.len());
        (total <= most).then(|| {
            all.set(total);
            let about = (text.len() > LARGE).then(|| (method.into(), name.map(Into::into)));
            Self { text: text.store(), about, all: all.clone() }
        })
    }

    /// The method and the name of a large one.
    pub(crate) fn about(&self) -> Option<(&str, Option<&str>)> {
        self.about.as_ref().map(|(method, name)| (&**method, name.as_deref()))
    }

    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// From now on it is the copy of a call that is never sent again, whatever comes: nothing.
    pub(crate) fn forgo(&mut self) {
        self.give_back();
        self.text = StoredText::default();
    }

    /// What was kept, which is not counted any more.
    pub(crate) fn into_text(mut self) -> StoredText {
        self.give_back();
        std::mem::take(&mut self.text)
    }

    fn give_back(&self) {
        self.all.set(self.all.get().saturating_sub(self.text.len()));
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.give_back(); // Of what has been taken out nothing is left to give back.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_has_a_bound_and_gives_its_room_back() {
        let all = Rc::default();
        let text = |text: &'static [u8]| MessageText::from(text);
        let one = Kept::of(text(b"12345"), ("m", None), &all, 8).unwrap();
        assert!(Kept::of(text(b"1234"), ("m", None), &all, 8).is_none());
        let other = Kept::of(text(b"123"), ("m", None), &all, 8).unwrap();
        assert_eq!(all.get(), 8);
        assert_eq!(&*other.into_text(), b"123");
        assert_eq!(all.get(), 5);
        let mut third = Kept::of(text(b"123"), ("m", None), &all, 8).unwrap();
        third.forgo();
        assert_eq!((third.text(), all.get()), (&b""[..], 5));
        drop((one, third));
        assert_eq!(all.get(), 0);
    }
}
