//! The remembered eras of a server, and the handshake with its next life. Pure.
//!
//! The memory belongs to one configuration: a server that is started otherwise is another server.
//! `docs/design/finding-the-era.md` has the rules.

use std::sync::Arc;

use xy_config::settings::ServerSettings;
use xy_mcp::era::{Era, Introductions, SpokenEras};
use xy_upstream::connection::handshake::{FALLBACK_DELAY, FALLBACK_DELAY_IF_MODERN};
pub(super) use xy_upstream::connection::handshake::{HandshakeOutcome, HandshakePlan};
pub(super) use xy_upstream::connection::probe::Hello;

/// The remembered eras of a server.
#[derive(Debug, Clone)]
pub(crate) struct ProtocolHint {
    of: Arc<ServerSettings>,
    eras: SpokenEras,
    /// A process ended or fell silent when it was asked `server/discover`.
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

    /// Returns the introductions of a server with these settings, if it speaks both eras.
    pub(crate) fn introductions(&self, settings: &ServerSettings) -> Introductions {
        let is_known = self.eras(settings).are_both();
        if is_known { self.introductions.clone() } else { Introductions::default() }
    }

    /// Stores introductions of a server with these settings.
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

    /// Decides how to begin the handshake with an instance that is wanted in an era.
    pub(crate) fn handshake_plan(&self, settings: &ServerSettings, wanted: Era) -> HandshakePlan {
        let eras = self.eras(settings);
        let is_known_modern = eras.modern == Some(true);
        let delay = if is_known_modern { FALLBACK_DELAY_IF_MODERN } else { FALLBACK_DELAY };
        let ask = |first| HandshakePlan { first, learns: false, fallback_delay: Some(delay) };
        if self.is_of(settings) && self.dies_on_discover {
            return ask(Hello::Initialize);
        }
        match (settings.only_era(), eras.legacy, eras.modern) {
            (Some(era), ..) => ask(Hello::of(era)),
            (None, Some(true), Some(true)) => ask(Hello::of(wanted)),
            (None, Some(true), _) | (None, None, Some(false)) => ask(Hello::Initialize),
            // The server may ignore `initialize`, or start too slowly for any delay.
            (None, Some(false), Some(true)) => {
                HandshakePlan { fallback_delay: None, ..ask(Hello::Discover) }
            }
            // A process that was asked `server/discover` may refuse `initialize` only for that
            // reason.
            (None, None, Some(true)) => HandshakePlan { learns: true, ..ask(Hello::Initialize) },
            (None, None | Some(false), _) => HandshakePlan { learns: true, ..ask(Hello::Discover) },
        }
    }

    /// Records which eras an instance has shown, and decides whether clients can use it.
    ///
    /// An instance that was begun in a known era and speaks another one is used all the same: a
    /// slow server would do the same after a restart.
    pub(crate) fn record_handshake(
        &mut self,
        settings: &Arc<ServerSettings>,
        shown: SpokenEras,
        (spoken, wanted): (Era, Era),
        learns: bool,
    ) -> HandshakeOutcome {
        let (is_same, dies_on_discover) = (self.is_of(settings), self.dies_on_discover);
        let mut eras = self.eras(settings);
        eras.merge(shown);
        let dies_on_discover = is_same && dies_on_discover && spoken != Era::Modern;
        self.set(settings, eras, dies_on_discover);
        match settings.only_era() {
            None if spoken == Era::Modern && eras.legacy.is_none() => {
                HandshakeOutcome::StartOver(Era::Legacy)
            }
            None if learns && eras.are_both() && spoken != wanted => {
                HandshakeOutcome::StartOver(wanted)
            }
            _ => HandshakeOutcome::Use,
        }
    }

    /// Records that the server does not speak an era, or that a process did not survive the
    /// question.
    pub(crate) fn does_not_speak(&mut self, settings: &Arc<ServerSettings>, era: Era) {
        let mut eras = self.eras(settings);
        match era {
            Era::Legacy => eras.legacy = Some(false),
            Era::Modern => eras.modern = Some(false),
        }
        let dies_on_discover = self.is_of(settings) && self.dies_on_discover;
        self.set(settings, eras, dies_on_discover);
    }

    /// Records what an instance has shown that was never used.
    pub(crate) fn ended(&mut self, settings: &Arc<ServerSettings>, shown: SpokenEras) {
        let dies_on_discover = self.is_of(settings) && self.dies_on_discover;
        self.set(settings, shown, dies_on_discover);
    }

    /// Forgets which eras the server speaks, as it refused one of them.
    pub(crate) fn forget(&mut self, settings: &Arc<ServerSettings>) {
        self.ended(settings, SpokenEras::default());
    }

    /// Records that a process ended or fell silent when it was asked `server/discover`.
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

    fn plan(first: Hello, learns: bool, is_known_modern: bool) -> HandshakePlan {
        let delay = if is_known_modern { FALLBACK_DELAY_IF_MODERN } else { FALLBACK_DELAY };
        HandshakePlan { first, learns, fallback_delay: Some(delay) }
    }

    #[test]
    fn known_eras_decide_the_first_request() {
        use Era::{Legacy, Modern};
        use Hello::{Discover, Initialize};
        let (yes, no) = (Some(true), Some(false));
        for (legacy, modern, wanted, expected) in [
            (None, None, Legacy, plan(Discover, true, false)),
            (None, None, Modern, plan(Discover, true, false)),
            (yes, no, Modern, plan(Initialize, false, false)),
            (yes, None, Modern, plan(Initialize, false, false)),
            (None, no, Modern, plan(Initialize, false, false)),
            (
                no,
                yes,
                Legacy,
                HandshakePlan { fallback_delay: None, ..plan(Discover, false, true) },
            ),
            (None, yes, Modern, plan(Initialize, true, true)),
            (yes, yes, Legacy, plan(Initialize, false, true)),
            (yes, yes, Modern, plan(Discover, false, true)),
            (no, no, Modern, plan(Discover, true, false)),
        ] {
            let hint = hint(SpokenEras { legacy, modern });
            assert_eq!(
                hint.handshake_plan(&of("a"), wanted),
                expected,
                "{legacy:?} {modern:?} {wanted}"
            );
            let other = plan(Discover, true, false);
            assert_eq!(hint.handshake_plan(&of("b"), wanted), other, "another server");
        }
    }

    #[test]
    fn setting_binds_a_server_to_one_era() {
        let mut bound = (*of("a")).clone();
        let mut hint = hint(BOTH);
        for (era, hello) in [(Era::Legacy, Hello::Initialize), (Era::Modern, Hello::Discover)] {
            bound.era = Some(era);
            assert_eq!(hint.handshake_plan(&bound, era.other()), plan(hello, false, true));
            let outcome =
                hint.record_handshake(&Arc::new(bound.clone()), BOTH, (era, era.other()), true);
            assert_eq!(outcome, HandshakeOutcome::Use);
        }
        bound.era = None;
        bound.share_key = Some("k".to_owned());
        assert_eq!(hint.handshake_plan(&bound, Era::Modern).first, Hello::Initialize, "one state");
    }

    #[test]
    fn greeted_process_is_used_or_restarted() {
        use Era::{Legacy, Modern};
        let (yes, no) = (Some(true), Some(false));
        for (legacy, modern, spoken, wanted, expected) in [
            (yes, no, Legacy, Modern, HandshakeOutcome::Use),
            (no, yes, Modern, Legacy, HandshakeOutcome::Use),
            (None, yes, Modern, Modern, HandshakeOutcome::StartOver(Legacy)),
            (yes, yes, Legacy, Legacy, HandshakeOutcome::Use),
            (yes, yes, Legacy, Modern, HandshakeOutcome::StartOver(Modern)),
            (yes, yes, Modern, Legacy, HandshakeOutcome::StartOver(Legacy)),
            (yes, None, Legacy, Modern, HandshakeOutcome::Use),
        ] {
            let mut hint = hint(SpokenEras::default());
            let shown = SpokenEras { legacy, modern };
            let outcome = hint.record_handshake(&of("a"), shown, (spoken, wanted), true);
            assert_eq!(outcome, expected, "{shown:?} {spoken} {wanted}");
            let outcome = hint.record_handshake(&of("a"), shown, (spoken, wanted), false);
            let is_learned = legacy.is_some() || spoken == Legacy;
            assert_eq!(outcome == HandshakeOutcome::Use, is_learned, "it is not asked for ever");
            assert_eq!(hint.eras(&of("a")), shown);
        }
    }

    #[test]
    fn learning_takes_at_most_one_more_process() {
        // Whatever the new process shows, both eras are known afterwards.
        for (shown, spoken) in [
            (BOTH, Era::Legacy),
            (SpokenEras { legacy: Some(true), modern: None }, Era::Legacy),
            (SpokenEras { legacy: Some(false), modern: Some(true) }, Era::Modern),
        ] {
            let mut hint = hint(SpokenEras::default());
            let first = SpokenEras { legacy: None, modern: Some(true) };
            let outcome = hint.record_handshake(&of("a"), first, (Era::Modern, Era::Legacy), true);
            assert_eq!(outcome, HandshakeOutcome::StartOver(Era::Legacy));
            assert_eq!(hint.handshake_plan(&of("a"), Era::Legacy).first, Hello::Initialize);
            let outcome = hint.record_handshake(&of("a"), shown, (spoken, Era::Legacy), true);
            assert_eq!(outcome, HandshakeOutcome::Use, "{shown:?}");
        }
    }

    #[test]
    fn refused_era_is_forgotten_and_probed_again() {
        let mut hint = hint(BOTH);
        hint.forget(&of("a"));
        assert_eq!(hint.handshake_plan(&of("a"), Era::Legacy), plan(Hello::Discover, true, false));
        hint =
            ProtocolHint::new(of("a"), SpokenEras::met_in(Era::Modern), Introductions::default());
        hint.does_not_speak(&of("a"), Era::Legacy);
        let expected = HandshakePlan { fallback_delay: None, ..plan(Hello::Discover, false, true) };
        assert_eq!(hint.handshake_plan(&of("a"), Era::Legacy), expected);
    }

    #[test]
    fn server_that_dies_on_discover_is_only_initialized() {
        let mut hint = hint(SpokenEras::met_in(Era::Modern));
        hint.died_on_discover(&of("a"));
        hint.ended(&of("a"), SpokenEras::default());
        assert_eq!(hint.handshake_plan(&of("a"), Era::Modern).first, Hello::Initialize);
        assert_eq!(hint.handshake_plan(&of("b"), Era::Modern).first, Hello::Discover);
        hint.ended(&of("b"), SpokenEras::default());
        assert_eq!(hint.handshake_plan(&of("a"), Era::Modern).first, Hello::Discover);
        hint.died_on_discover(&of("a"));
        let modern = SpokenEras { legacy: Some(false), modern: Some(true) };
        hint.record_handshake(&of("a"), modern, (Era::Modern, Era::Modern), true);
        assert_eq!(
            hint.handshake_plan(&of("a"), Era::Modern).first,
            Hello::Discover,
            "another's doing"
        );
    }
}
