//! The remembered eras of a server, and how to greet its next life. Pure.
//!
//! What is remembered belongs to one configuration: a server that is started otherwise is
//! another server. `docs/design/finding-the-era.md` has the rules.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xy_config::settings::ServerSettings;

use crate::era::{Era, Introduction};
use crate::upstream::probe::Hello;

/// The eras that a server is known to speak; `None` is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpokenEras {
    pub(crate) legacy: Option<bool>,
    pub(crate) modern: Option<bool>,
}

impl SpokenEras {
    /// Returns the eras of a server that was met in `era` by a version that learned only one.
    pub(crate) fn met_in(era: Era) -> Self {
        match era {
            Era::Legacy => Self { legacy: Some(true), modern: Some(false) },
            Era::Modern => Self { legacy: None, modern: Some(true) },
        }
    }

    /// Returns true if the server speaks both eras.
    pub(crate) fn are_both(self) -> bool {
        self.legacy == Some(true) && self.modern == Some(true)
    }

    /// Takes over what `newer` knows.
    fn merge(&mut self, newer: Self) {
        self.legacy = newer.legacy.or(self.legacy);
        self.modern = newer.modern.or(self.modern);
    }
}

/// What a server said of itself in each era, as far as it was asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Introductions {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    legacy: Option<Introduction>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    modern: Option<Introduction>,
}

impl Introductions {
    /// Returns what the server said of itself in an era.
    pub(crate) fn get(&self, era: Era) -> Option<&Introduction> {
        match era {
            Era::Legacy => self.legacy.as_ref(),
            Era::Modern => self.modern.as_ref(),
        }
    }

    /// Keeps what the server said of itself, in the era of that.
    pub(crate) fn set(&mut self, introduction: Introduction) {
        match introduction.era() {
            Era::Legacy => self.legacy = Some(introduction),
            Era::Modern => self.modern = Some(introduction),
        }
    }

    fn merge(&mut self, newer: Self) {
        newer.legacy.into_iter().chain(newer.modern).for_each(|it| self.set(it));
    }
}

/// How to greet one life of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// What is asked first.
    pub(crate) first: Hello,
    /// The other question is asked too, to learn whether the server speaks that era.
    pub(crate) learns: bool,
    /// The server is known to speak the modern era, so it has more time to discover itself.
    pub(crate) is_known_modern: bool,
}

/// What to do with a life that has been greeted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GreetingOutcome {
    /// Its clients use it.
    Use,
    /// Another process is needed, which is asked for this era first.
    StartOver(Era),
}

/// What is known of how to begin with a server.
#[derive(Debug, Clone)]
pub(crate) struct ProtocolHint {
    of: Arc<ServerSettings>,
    eras: SpokenEras,
    /// A process of it ended, or fell silent, when it was asked `backend/discover`.
    dies_on_discover: bool,
    introductions: Introductions,
}

impl ProtocolHint {
    /// Returns the hint for a server with these settings.
    pub(crate) fn new(
        of: Arc<ServerSettings>,
        eras: SpokenEras,
        introductions: Introductions,
    ) -> Self {
        Self { of, eras, dies_on_discover: false, introductions }
    }

    /// Returns what a server with these settings said of itself, if it speaks both eras.
    pub(crate) fn introductions(&self, settings: &ServerSettings) -> Introductions {
        let is_known = self.eras(settings).are_both();
        if is_known { self.introductions.clone() } else { Introductions::default() }
    }

    /// Keeps what a server with these settings says of itself.
    pub(crate) fn keep_introductions(
        &mut self,
        settings: &Arc<ServerSettings>,
        newer: Introductions,
    ) {
        if !self.is_of(settings) {
            *self = Self::new(settings.clone(), SpokenEras::default(), Introductions::default());
        }
        self.introductions.merge(newer);
    }

    /// Returns the eras that a server with these settings is known to speak.
    pub(crate) fn eras(&self, settings: &ServerSettings) -> SpokenEras {
        if self.is_of(settings) { self.eras } else { SpokenEras::default() }
    }

    /// Decides how to greet a life that is wanted in an era.
    pub(crate) fn greeting(&self, settings: &ServerSettings, wanted: Era) -> Greeting {
        let eras = self.eras(settings);
        let is_known_modern = eras.modern == Some(true);
        let ask = |first| Greeting { first, learns: false, is_known_modern };
        if self.is_of(settings) && self.dies_on_discover {
            return ask(Hello::Initialize);
        }
        match (settings.only_era(), eras.legacy, eras.modern) {
            (Some(era), ..) => ask(Hello::of(era)),
            (None, Some(true), Some(true)) => ask(Hello::of(wanted)),
            (None, Some(true), _) | (None, None, Some(false)) => ask(Hello::Initialize),
            (None, Some(false), Some(true)) => ask(Hello::Discover),
            // A process that has discovered itself may refuse `initialize` only for that.
            (None, None, Some(true)) => Greeting { learns: true, ..ask(Hello::Initialize) },
            (None, None | Some(false), _) => Greeting { learns: true, ..ask(Hello::Discover) },
        }
    }

    /// Records what a greeted life has shown, and decides whether its clients can use it. One that
    /// was greeted in a known era and speaks another is used all the same: a slow server would
    /// do the same in its next life.
    pub(crate) fn record_greeting(
        &mut self,
        settings: &Arc<ServerSettings>,
        shown: SpokenEras,
        (spoken, wanted): (Era, Era),
        learns: bool,
    ) -> GreetingOutcome {
        let (is_same, dies_on_discover) = (self.is_of(settings), self.dies_on_discover);
        let mut eras = self.eras(settings);
        eras.merge(shown);
        let dies_on_discover = is_same && dies_on_discover && spoken != Era::Modern;
        self.set(settings, eras, dies_on_discover);
        match settings.only_era() {
            None if spoken == Era::Modern && eras.legacy.is_none() => {
                GreetingOutcome::StartOver(Era::Legacy)
            }
            None if learns && eras.are_both() && spoken != wanted => {
                GreetingOutcome::StartOver(wanted)
            }
            _ => GreetingOutcome::Use,
        }
    }

    /// Records that the server does not speak an era, or that a process of it did not survive to
    /// be asked in that era.
    pub(crate) fn does_not_speak(&mut self, settings: &Arc<ServerSettings>, era: Era) {
        let mut eras = self.eras(settings);
        match era {
            Era::Legacy => eras.legacy = Some(false),
            Era::Modern => eras.modern = Some(false),
        }
        let dies_on_discover = self.is_of(settings) && self.dies_on_discover;
        self.set(settings, eras, dies_on_discover);
    }

    /// Records what a life has shown that was never used.
    pub(crate) fn ended(&mut self, settings: &Arc<ServerSettings>, shown: SpokenEras) {
        let dies_on_discover = self.is_of(settings) && self.dies_on_discover;
        self.set(settings, shown, dies_on_discover);
    }

    /// Forgets which eras the server speaks: it refused one that it is known to speak.
    pub(crate) fn forget(&mut self, settings: &Arc<ServerSettings>) {
        self.ended(settings, SpokenEras::default());
    }

    /// Records that a process ended, or fell silent, when it was asked `backend/discover`.
    pub(crate) fn died_on_discover(&mut self, settings: &Arc<ServerSettings>) {
        let eras = SpokenEras::default();
        self.set(settings, eras, true);
    }

    fn set(&mut self, settings: &Arc<ServerSettings>, eras: SpokenEras, dies_on_discover: bool) {
        let is_same = self.is_of(settings);
        let introductions = if is_same {
            std::mem::take(&mut self.introductions)
        } else {
            Introductions::default()
        };
        *self = Self { of: settings.clone(), eras, dies_on_discover, introductions };
    }

    fn is_of(&self, settings: &ServerSettings) -> bool {
        self.of.kind == settings.kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::settings;

    const BOTH: SpokenEras = SpokenEras { legacy: Some(true), modern: Some(true) };

    fn of(command: &str) -> Arc<ServerSettings> {
        let mut settings = settings(xy_config::settings::CallRules::default());
        if let xy_config::settings::ServerKind::Process(process) = &mut settings.kind {
            command.clone_into(&mut process.command);
        }
        Arc::new(settings)
    }

    fn hint(eras: SpokenEras) -> ProtocolHint {
        ProtocolHint::new(of("a"), eras, Introductions::default())
    }

    fn greeting(first: Hello, learns: bool, is_known_modern: bool) -> Greeting {
        Greeting { first, learns, is_known_modern }
    }

    #[test]
    fn known_eras_decide_the_first_question() {
        use Era::{Legacy, Modern};
        use Hello::{Discover, Initialize};
        let (yes, no) = (Some(true), Some(false));
        for (legacy, modern, wanted, expected) in [
            (None, None, Legacy, greeting(Discover, true, false)),
            (None, None, Modern, greeting(Discover, true, false)),
            (yes, no, Modern, greeting(Initialize, false, false)),
            (yes, None, Modern, greeting(Initialize, false, false)),
            (None, no, Modern, greeting(Initialize, false, false)),
            (no, yes, Legacy, greeting(Discover, false, true)),
            (None, yes, Modern, greeting(Initialize, true, true)),
            (yes, yes, Legacy, greeting(Initialize, false, true)),
            (yes, yes, Modern, greeting(Discover, false, true)),
            (no, no, Modern, greeting(Discover, true, false)),
        ] {
            let hint = hint(SpokenEras { legacy, modern });
            assert_eq!(hint.greeting(&of("a"), wanted), expected, "{legacy:?} {modern:?} {wanted}");
            let other = greeting(Discover, true, false);
            assert_eq!(hint.greeting(&of("b"), wanted), other, "another server");
        }
    }

    #[test]
    fn setting_binds_a_server_to_one_era() {
        let mut bound = (*of("a")).clone();
        let mut hint = hint(BOTH);
        for (era, hello) in [(Era::Legacy, Hello::Initialize), (Era::Modern, Hello::Discover)] {
            bound.era = Some(era);
            assert_eq!(hint.greeting(&bound, era.other()), greeting(hello, false, true));
            let met =
                hint.record_greeting(&Arc::new(bound.clone()), BOTH, (era, era.other()), true);
            assert_eq!(met, GreetingOutcome::Use);
        }
        bound.era = None;
        bound.share_key = Some("k".to_owned());
        assert_eq!(hint.greeting(&bound, Era::Modern).first, Hello::Initialize, "one state");
    }

    #[test]
    fn process_that_was_greeted_is_used_or_started_over() {
        use Era::{Legacy, Modern};
        let (yes, no) = (Some(true), Some(false));
        for (legacy, modern, spoken, wanted, expected) in [
            (yes, no, Legacy, Modern, GreetingOutcome::Use),
            (no, yes, Modern, Legacy, GreetingOutcome::Use),
            (None, yes, Modern, Modern, GreetingOutcome::StartOver(Legacy)),
            (yes, yes, Legacy, Legacy, GreetingOutcome::Use),
            (yes, yes, Legacy, Modern, GreetingOutcome::StartOver(Modern)),
            (yes, yes, Modern, Legacy, GreetingOutcome::StartOver(Legacy)),
            (yes, None, Legacy, Modern, GreetingOutcome::Use),
        ] {
            let mut hint = hint(SpokenEras::default());
            let shown = SpokenEras { legacy, modern };
            let met = hint.record_greeting(&of("a"), shown, (spoken, wanted), true);
            assert_eq!(met, expected, "{shown:?} {spoken} {wanted}");
            let met = hint.record_greeting(&of("a"), shown, (spoken, wanted), false);
            let is_learned = legacy.is_some() || spoken == Legacy;
            assert_eq!(met == GreetingOutcome::Use, is_learned, "it is not asked for ever");
            assert_eq!(hint.eras(&of("a")), shown);
        }
    }

    #[test]
    fn learning_takes_one_process_more_at_most() {
        // Whatever the fresh process shows, both eras are known afterwards.
        for (shown, spoken) in [
            (BOTH, Era::Legacy),
            (SpokenEras { legacy: Some(true), modern: None }, Era::Legacy),
            (SpokenEras { legacy: Some(false), modern: Some(true) }, Era::Modern),
        ] {
            let mut hint = hint(SpokenEras::default());
            let first = SpokenEras { legacy: None, modern: Some(true) };
            let met = hint.record_greeting(&of("a"), first, (Era::Modern, Era::Legacy), true);
            assert_eq!(met, GreetingOutcome::StartOver(Era::Legacy));
            assert_eq!(hint.greeting(&of("a"), Era::Legacy).first, Hello::Initialize);
            let met = hint.record_greeting(&of("a"), shown, (spoken, Era::Legacy), true);
            assert_eq!(met, GreetingOutcome::Use, "{shown:?}");
        }
    }

    #[test]
    fn refused_era_is_forgotten_and_asked_for_again() {
        let mut hint = hint(BOTH);
        hint.forget(&of("a"));
        assert_eq!(hint.greeting(&of("a"), Era::Legacy), greeting(Hello::Discover, true, false));
        hint =
            ProtocolHint::new(of("a"), SpokenEras::met_in(Era::Modern), Introductions::default());
        hint.does_not_speak(&of("a"), Era::Legacy);
        assert_eq!(hint.greeting(&of("a"), Era::Legacy), greeting(Hello::Discover, false, true));
    }

    #[test]
    fn server_that_dies_on_discover_is_only_initialized() {
        let mut hint = hint(SpokenEras::met_in(Era::Modern));
        hint.died_on_discover(&of("a"));
        hint.ended(&of("a"), SpokenEras::default());
        assert_eq!(hint.greeting(&of("a"), Era::Modern).first, Hello::Initialize);
        assert_eq!(hint.greeting(&of("b"), Era::Modern).first, Hello::Discover);
        hint.ended(&of("b"), SpokenEras::default());
        assert_eq!(hint.greeting(&of("a"), Era::Modern).first, Hello::Discover);
        hint.died_on_discover(&of("a"));
        let modern = SpokenEras { legacy: Some(false), modern: Some(true) };
        hint.record_greeting(&of("a"), modern, (Era::Modern, Era::Modern), true);
        assert_eq!(hint.greeting(&of("a"), Era::Modern).first, Hello::Discover, "another's doing");
    }
}
