//! How a server is to be greeted, as far as anybody knows. What is started otherwise is
//! another server, of which nothing is known. Pure.

use std::sync::Arc;

use xy_config::settings::ServerSettings;

use crate::era::Era;
use crate::upstream::probe::Hello;

/// What is known of how to begin with a server.
#[derive(Debug, Clone)]
pub(crate) struct Hunch {
    of: Arc<ServerSettings>,
    era: Option<Era>,
    /// It did not bear to be asked for what it does not know.
    dies_on_probe: bool,
}

impl Hunch {
    /// What is remembered of a server with these settings.
    pub(crate) fn new(of: Arc<ServerSettings>, era: Option<Era>) -> Self {
        Self { of, era, dies_on_probe: false }
    }

    /// What to ask first.
    pub(crate) fn first(&self, settings: &ServerSettings) -> Hello {
        let is_older = self.era == Some(Era::Legacy) || self.dies_on_probe;
        if self.is_of(settings) && is_older { Hello::Initialize } else { Hello::Discover }
    }

    /// Returns true if an earlier life with these settings spoke the revision without sessions.
    pub(crate) fn is_modern(&self, settings: &ServerSettings) -> bool {
        self.is_of(settings) && self.era == Some(Era::Modern)
    }

    /// It has said how it is spoken with, or (`None`) has not in all of a life.
    pub(crate) fn speaks(&mut self, settings: &Arc<ServerSettings>, era: Option<Era>) {
        let dies_on_probe = self.is_of(settings) && self.dies_on_probe && era != Some(Era::Modern);
        *self = Self { of: settings.clone(), era, dies_on_probe };
    }

    /// It has ended, or fallen silent, when it was asked.
    pub(crate) fn died_on_probe(&mut self, settings: &Arc<ServerSettings>) {
        *self = Self { of: settings.clone(), era: None, dies_on_probe: true };
    }

    fn is_of(&self, settings: &ServerSettings) -> bool {
        self.of.kind == settings.kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::play::settings;

    fn of(command: &str) -> Arc<ServerSettings> {
        let mut settings = settings(xy_config::settings::CallRules::default());
        if let xy_config::settings::ServerKind::Process(process) = &mut settings.kind {
            command.clone_into(&mut process.command);
        }
        Arc::new(settings)
    }

    #[test]
    fn what_is_known_decides_what_is_asked_first() {
        let (a, b) = (of("a"), of("b"));
        let mut hunch = Hunch::new(a.clone(), None);
        assert_eq!(hunch.first(&a), Hello::Discover);
        hunch.speaks(&a, Some(Era::Legacy));
        assert_eq!((hunch.first(&a), hunch.first(&b)), (Hello::Initialize, Hello::Discover));
        hunch.speaks(&a, Some(Era::Modern));
        assert_eq!(hunch.first(&a), Hello::Discover);
        assert_eq!((hunch.is_modern(&a), hunch.is_modern(&b)), (true, false));
        hunch.speaks(&a, Some(Era::Legacy));
        hunch.speaks(&a, None);
        assert_eq!((hunch.first(&a), hunch.is_modern(&a)), (Hello::Discover, false));
    }

    #[test]
    fn what_it_does_not_bear_is_remembered_until_it_is_another() {
        let (a, b) = (of("a"), of("b"));
        let mut hunch = Hunch::new(a.clone(), Some(Era::Modern));
        hunch.died_on_probe(&a);
        hunch.speaks(&a, None);
        assert_eq!((hunch.first(&a), hunch.first(&b)), (Hello::Initialize, Hello::Discover));
        hunch.speaks(&b, None);
        assert_eq!(hunch.first(&a), Hello::Discover);
        hunch.died_on_probe(&a);
        hunch.speaks(&a, Some(Era::Modern));
        hunch.speaks(&a, None);
        assert_eq!(hunch.first(&a), Hello::Discover, "it was somebody else's doing");
    }
}
