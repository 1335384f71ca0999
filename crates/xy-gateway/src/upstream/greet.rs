//! The first words with a server, and the word left for a later daemon, which does not
//! greet it again.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use xy_supervisor::speak::Said;

use super::{Stage, Upstream, result_of};
use crate::era::{self, Introduction};

/// No daemon has come so far by counting.
const FAR_AWAY: u64 = 1 << 40;

/// The second half of a greeting.
pub(crate) const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// What the speaker of a later daemon has to know of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    /// No id below this is free.
    pub(crate) first_id: u64,
    /// What it said of itself, if it was greeted.
    pub(crate) introduction: Option<Introduction>,
    /// Whether it was told what to log.
    #[serde(default)]
    pub(crate) is_tuned: bool,
    /// What the server calls the session, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<String>,
}

impl Note {
    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string(self).expect("a plain struct always serialises")
    }

    /// The note that an earlier daemon left. What cannot be read of it is as good as nothing,
    /// but ids must not be used twice.
    pub(crate) fn read(text: &str) -> Self {
        #[derive(Deserialize)]
        struct Ids {
            first_id: u64,
        }
        serde_json::from_str(text).unwrap_or_else(|_| {
            let ids: Option<Ids> = serde_json::from_str(text).ok();
            let first_id = ids.map_or(FAR_AWAY, |ids| ids.first_id);
            Self { first_id, ..Self::default() }
        })
    }
}

impl Upstream {
    /// Greets the server; `Err` if it cannot be spoken with, and why.
    pub(crate) async fn greet(
        self: &Rc<Self>,
        capabilities: &str,
    ) -> Result<Rc<Introduction>, String> {
        let introduction = self.introduce(capabilities).await?;
        self.send(INITIALIZED);
        Ok(self.open(introduction).await)
    }

    /// The first half of a greeting: who are you? The second is [`INITIALIZED`].
    pub(crate) async fn introduce(
        self: &Rc<Self>,
        capabilities: &str,
    ) -> Result<Introduction, String> {
        self.leave_note_surely().await;
        let greeting = era::greeting(capabilities);
        let asked = self.ask("initialize", Some(&greeting)).map_err(|fault| fault.to_string())?;
        let answer = asked.answer().await.map_err(|fault| fault.to_string())?;
        let result =
            result_of(&answer).map_err(|error| format!("it refused `initialize`: {error}"))?;
        Introduction::read(result)
    }

    /// Goes on with a server that an earlier daemon has greeted.
    pub(crate) async fn resume(
        &self,
        introduction: Introduction,
        is_tuned: bool,
    ) -> Rc<Introduction> {
        self.is_tuned.set(is_tuned);
        self.open(introduction).await
    }

    /// The server can be asked from now on.
    pub(crate) async fn open(&self, introduction: Introduction) -> Rc<Introduction> {
        let introduction = Rc::new(introduction);
        self.stage.replace(Stage::Open(introduction.clone()));
        self.leave_note_surely().await;
        introduction
    }

    /// Tells the supervisor.
    pub(crate) async fn say(&self, said: Said) {
        let _ = self.said.send(said).await; // Whoever drove it may be gone.
    }
}

impl Upstream {
    /// An id that has never been used towards this server.
    pub(super) fn new_id(&self) -> u64 {
        let (id, is_recorded) = self.ids.borrow_mut().next();
        if !is_recorded {
            self.leave_note();
        }
        id
    }

    /// Leaves word for the speaker of a later daemon; if there is no room for it, with the
    /// next id.
    pub(super) fn leave_note(&self) {
        let (note, recorded) = self.note();
        if self.said.try_send(note).is_ok() {
            self.ids.borrow_mut().recorded(recorded);
        }
    }

    /// The same, when there is time to wait for room.
    pub(super) async fn leave_note_surely(&self) {
        let (note, recorded) = self.note();
        self.say(note).await;
        self.ids.borrow_mut().recorded(recorded);
    }

    pub(super) fn note(&self) -> (Said, u64) {
        let first_id = self.ids.borrow().to_record();
        let introduction = self.introduction().map(|it| (*it).clone());
        let (is_tuned, session) = (self.is_tuned.get(), self.wire.session());
        let note = Note { first_id, introduction, is_tuned, session };
        (Said::Note(note.to_text()), first_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_comes_back_as_it_was_and_an_older_one_is_read() {
        let result = r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}"#;
        let introduction = Introduction::read(result).ok();
        let session = Some("s".to_owned());
        let note = Note { first_id: 7, introduction, is_tuned: true, session };
        assert_eq!(Note::read(&note.to_text()), note);
        let older = note.to_text().replace(r#","is_tuned":true,"session":"s""#, "");
        assert_eq!(Note::read(&older), Note { is_tuned: false, session: None, ..note });
    }

    #[test]
    fn what_is_no_note_leaves_its_ids_alone() {
        for (text, first_id) in [
            ("", FAR_AWAY),
            ("{", FAR_AWAY),
            (r#"{"first_id":-1}"#, FAR_AWAY),
            (r#"{"first_id":9,"introduction":7}"#, 9),
        ] {
            assert_eq!(Note::read(text), Note { first_id, ..Note::default() }, "{text}");
        }
    }
}
