//! One life of a server that listens somewhere: greets it, again if it forgets us, and says
//! what the supervisor has to know.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use xy_config::settings::{Probe, ServerSettings};
use xy_protocol::error::CallError;
use xy_supervisor::speak::{Line, Said, Told};

use super::checkup::Pulse;
use super::legacy_session::LegacySession;
use super::{Ended, capabilities, end_of, give_up_loop, idle_stop, learn_lists};
use crate::backend::{Backend, Greeting, SpokenEras};
use crate::era::{Era, Introduction};
use crate::router::Router;
use crate::upstream::handshake::{INITIALIZED, Meeting, Note};
use crate::upstream::http_client::{GOOD_AFTER, TAKEN_WITHIN, Trouble, Web};
use crate::upstream::probe::{Came, Hello};
use crate::upstream::{Cause, Upstream};

/// How soon a server that was started here is tried again while it comes up.
const FIRST_AGAIN: Duration = Duration::from_millis(25);
const SOON_AGAIN: Duration = Duration::from_millis(800);

/// The same for one that need not speak MCP and has not after so many tries.
const SOON_TRIES: u32 = 30;
const LATE_AGAIN: Duration = Duration::from_secs(30);

/// After so many tries its log says why: at first nobody wonders.
const WONDER_AT: u32 = 8;

/// A server here that does not listen for so long will not do so again.
const DEAF_AFTER: Duration = Duration::from_secs(5);

/// How long calls that are under way may take to be answered by a server that is given up.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// How often that is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Greetings in a row that were each forgotten at once.
const MOST_FORGOTTEN: u32 = 5;

/// Speaks with a server until that life is over.
pub(super) async fn live(router: Rc<Router>, line: Line) {
    let Line { key, settings, before, said, mut told, .. } = line;
    let server = router.server_of_life(&settings).await;
    let is_adopted = before.is_some();
    let note = before.map_or_else(Note::default, |before| Note::read(&before.note));
    let endpoint = settings.endpoint().ok_or_else(|| "it has no address".to_owned());
    let web = match endpoint {
        Ok(endpoint) => Web::to(&endpoint).await,
        Err(why) => Err(why),
    };
    let (web, troubles) = match web {
        Ok(web) => web,
        Err(why) => {
            let _ = said.send(Said::Hopeless(why)).await; // Whoever drove it may be gone.
            return;
        }
    };
    let upstream = Upstream::new(key, said, note.first_id, is_adopted, web.clone(), router.clone());
    web.speak_for(&upstream);
    server.add(&upstream);
    let legacy = Rc::new(LegacySession::default());
    let leader = Leader {
        router: router.clone(),
        server: server.clone(),
        settings,
        upstream: upstream.clone(),
        web: web.clone(),
        shown: Cell::default(),
        legacy: legacy.clone(),
        session: None,
    };
    let mut tasks = JoinSet::new();
    tasks.spawn_local(web.clone().tell_all());
    tasks.spawn_local(idle_stop::when_idle(router.clone(), server.clone(), upstream.clone()));
    let leading = tasks.spawn_local(leader.lead(troubles, note));
    let mut pulse = Pulse::default();
    let mut by_xy = false;
    let (why, reply) = loop {
        match told.recv().await {
            Some(Told::Checkup(checkup)) => pulse.take((&router, &server, &upstream), checkup),
            Some(Told::Rest(rest)) => idle_stop::if_idle(&router, &server, &upstream, rest).await,
            // What is under way may still be answered, where everything is on one stream.
            Some(Told::Close { is_hung }) => {
                by_xy = true;
                if is_hung {
                    upstream.mark_hung();
                }
                upstream.take_no_more();
                legacy.take_no_more(is_hung);
                if !web.is_older() {
                    leading.abort();
                }
            }
            Some(Told::LetGo(reply)) => break ("another daemon took over".to_owned(), Some(reply)),
            Some(Told::Over(exit)) => break (end_of(&upstream, exit, by_xy), None),
            None => break (format!("`{}` has ended", server.name), None),
        }
    };
    let session = legacy.end(&router, &server, &why);
    match reply {
        None => upstream.close(Cause::end(&why)),
        Some(reply) => {
            upstream.log_unparsed().await;
            upstream.leave();
            let _ = reply.send(Vec::new()); // Whoever asked may have gone.
        }
    }
    tasks.shutdown().await;
    router.over(&server, &upstream, &why);
    if web.is_remote() {
        web.end().await; // Nobody goes on with it.
    }
    if let Some(session) = session {
        session.end().await; // The next daemon begins its own.
    }
}

/// Leads one conversation with a server: greets it, and serves it.
pub(super) struct Leader {
    pub(super) router: Rc<Router>,
    pub(super) server: Rc<Backend>,
    pub(super) settings: Arc<ServerSettings>,
    pub(super) upstream: Rc<Upstream>,
    web: Rc<Web>,
    /// The eras that the server has shown to speak, or not to.
    shown: Cell<SpokenEras>,
    /// The legacy session beside it, if the server speaks both eras.
    pub(super) legacy: Rc<LegacySession>,
    /// If it is that session itself: set once the server refuses the legacy era.
    session: Option<Rc<Cell<bool>>>,
}

/// What to do when a server could not be greeted.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// Try again after this time.
    Again(Duration),
    /// It is somewhere else, and does not answer.
    Unreachable(String),
    /// There is no use in trying.
    Hopeless(String),
}

/// What has been.
#[derive(Debug, Clone, Copy)]
struct SoFar {
    is_remote: bool,
    /// It could be spoken with once.
    is_ready: bool,
    /// Its file says that it is ready without speaking MCP, and it never did.
    speaks_no_mcp: bool,
    /// How often it was greeted in vain, or for a moment only.
    tries: u32,
}

/// Decides that. How long a server here may take to come up is not ours
/// to say.
fn after(trouble: Trouble, so_far: SoFar) -> Next {
    let SoFar { is_remote, is_ready, speaks_no_mcp, tries } = so_far;
    match trouble {
        Trouble::Unreachable(why) | Trouble::Failing(why) if is_remote => Next::Unreachable(why),
        Trouble::Failing(why) if is_ready && tries >= MOST_FORGOTTEN => Next::Hopeless(why),
        Trouble::Unreachable(_) | Trouble::Failing(_) => {
            let wait = FIRST_AGAIN.saturating_mul(2_u32.saturating_pow(tries.min(20)));
            let is_late = speaks_no_mcp && tries >= SOON_TRIES;
            Next::Again(wait.min(if is_late { LATE_AGAIN } else { SOON_AGAIN }))
        }
        Trouble::Forgotten if tries < MOST_FORGOTTEN => Next::Again(FIRST_AGAIN),
        Trouble::Forgotten => Next::Hopeless("it forgets each session at once".to_owned()),
        Trouble::Refused(why) | Trouble::Forbidden(why) | Trouble::Hopeless(why) => {
            Next::Hopeless(why)
        }
        Trouble::Loop => Next::Hopeless(trouble.words()),
    }
}

/// What came of a question, and of how it was sent. Where there is nobody, or nobody lets us
/// in, there is no use in asking otherwise.
fn came(of: Hello, answer: Result<Box<str>, CallError>, trouble: Option<Trouble>) -> Came {
    let read = answer.map(|answer| of.read(&answer));
    match (read, trouble) {
        (Ok(Came::Good(introduction)), _) => Came::Good(introduction),
        (Ok(Came::Never(Trouble::Loop)), _) => Came::Never(Trouble::Loop),
        (_, Some(trouble @ (Trouble::Unreachable(_) | Trouble::Forbidden(_)))) => {
            Came::Never(trouble)
        }
        (_, Some(trouble @ Trouble::Hopeless(_))) => Came::Never(trouble),
        (Err(_), Some(trouble)) | (_, Some(trouble @ Trouble::Failing(_))) => Came::No(trouble),
        (Ok(came), _) => came,
        (Err(fault), None) => Came::No(Trouble::Hopeless(fault.to_string())),
    }
}

impl Leader {
    /// Returns the leader of the legacy session beside this one.
    pub(super) fn of_session(
        &self,
        upstream: Rc<Upstream>,
        web: Rc<Web>,
        is_refused: Rc<Cell<bool>>,
    ) -> Self {
        Self {
            router: self.router.clone(),
            server: self.server.clone(),
            settings: self.settings.clone(),
            upstream,
            web,
            shown: Cell::default(),
            legacy: Rc::default(),
            session: Some(is_refused),
        }
    }

    /// Leads a life: from greeting to greeting.
    pub(super) async fn lead(self, mut troubles: mpsc::Receiver<Trouble>, note: Note) {
        // Without a session there is nothing to go on with, unless there are none at all.
        let has_session = note.session.is_some();
        let goes_on = |it: &Introduction| it.era() == Era::Modern || has_session;
        let introduction = note.introduction.filter(goes_on);
        let mut earlier =
            introduction.filter(|_| !self.web.is_remote()).map(|it| (it, note.session));
        let (mut tries, mut is_ready) = (0, false);
        let is_remote = self.web.is_remote();
        loop {
            let began = Instant::now();
            let mut streams = JoinSet::new();
            let opened = match earlier.take() {
                Some(earlier) => Ok(self.resume(earlier, note.is_tuned).await),
                None => self.greet_in_time(&mut streams, &mut troubles).await,
            };
            let lost = match opened {
                Ok(introduction) => {
                    self.router.tell_spoken();
                    if !std::mem::replace(&mut is_ready, true) {
                        tries = 0;
                        self.upstream.say(Said::Ready).await;
                    }
                    let lost = self.serve(&introduction, &mut streams, &mut troubles).await;
                    let why = lost.clone().words();
                    drop(self.legacy.end(&self.router, &self.server, &why));
                    lost
                }
                Err(trouble) => trouble,
            };
            if self.session.is_some() && lost != Trouble::Forgotten {
                return self.upstream.say(Said::Unreachable(lost.words())).await;
            }
            if lost == Trouble::Loop {
                let Self { router, server, settings, upstream, .. } = &self;
                return give_up_loop(router, server, settings, upstream).await;
            }
            if began.elapsed() >= GOOD_AFTER {
                tries = 0;
            }
            let speaks_no_mcp = !is_ready && self.settings.rules.ready.probe != Probe::Mcp;
            if !speaks_no_mcp && (is_ready || tries == WONDER_AT) {
                self.log(&lost).await;
            }
            let next = match lost {
                Trouble::Unreachable(_) if is_ready && !is_remote => self.deaf().await,
                trouble => after(trouble, SoFar { is_remote, is_ready, speaks_no_mcp, tries }),
            };
            tries += 1;
            match next {
                Next::Again(wait) => sleep(wait).await,
                Next::Hopeless(_) if speaks_no_mcp => return, // Its file says as much.
                Next::Hopeless(why) if is_ready => {
                    // Each call under way is about to hear the same in words of its own. If it
                    // was refused, nobody need wonder whether it was done.
                    self.upstream.begin_anew();
                    let _ = timeout(ANSWERED_WITHIN, self.web.until_answered()).await;
                    return self.upstream.say(Said::Hopeless(why)).await;
                }
                Next::Unreachable(why) => return self.upstream.say(Said::Unreachable(why)).await,
                Next::Hopeless(why) => return self.upstream.say(Said::Hopeless(why)).await,
            }
        }
    }

    /// Goes on with the session that an earlier daemon began.
    async fn resume(
        &self,
        earlier: (Introduction, Option<String>),
        is_tuned: bool,
    ) -> Rc<Introduction> {
        let (introduction, session) = earlier;
        if let Some(session) = session {
            self.web.resume(&session);
        }
        self.web.agree(&introduction.version);
        let introduction = self.upstream.resume(introduction, is_tuned).await;
        self.web.open();
        introduction
    }

    async fn greet_in_time(
        &self,
        streams: &mut JoinSet<String>,
        troubles: &mut mpsc::Receiver<Trouble>,
    ) -> Result<Rc<Introduction>, Trouble> {
        let within = self.settings.rules.ready.within;
        let late = || {
            Trouble::Failing(format!(
                "it has answered neither `server/discover` nor `initialize` within {within:?}"
            ))
        };
        timeout(within, self.greet(streams, troubles)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn greet(
        &self,
        streams: &mut JoinSet<String>,
        troubles: &mut mpsc::Receiver<Trouble>,
    ) -> Result<Rc<Introduction>, Trouble> {
        self.upstream.begin_anew();
        self.web.begin_anew();
        self.router.begun_anew(&self.upstream);
        while troubles.try_recv().is_ok() {} // What was before does not matter any more.
        if self.web.is_older() {
            streams.spawn_local(self.web.open_older().await?);
        }
        let introduction = tokio::select! {
            met = self.meet(troubles) => met?,
            Some(ended) = streams.join_next() => {
                return Err(Trouble::Failing(ended.unwrap_or_default()));
            }
        };
        self.web.agree(&introduction.version);
        let eras = (introduction.era(), introduction.era());
        self.server.record_greeting(&self.settings, self.shown.get(), eras, false);
        if self.session.is_some() {
            self.router.remember(&self.server);
        }
        if introduction.era() == Era::Legacy {
            self.upstream.send(INITIALIZED);
        }
        let late = || Trouble::Failing(format!("it was not greeted within {TAKEN_WITHIN:?}"));
        timeout(TAKEN_WITHIN, self.web.all_told()).await.map_err(|_| late())?;
        self.web.line_up(); // Who calls from now on stands behind those who waited.
        let introduction = self.upstream.open(introduction).await;
        self.web.open();
        Ok(introduction)
    }

    /// Decides what to ask first.
    fn first_question(&self) -> Hello {
        let eras = self.server.hint.borrow().eras(&self.settings);
        match self.settings.only_era() {
            _ if self.web.is_older() || self.session.is_some() => Hello::Initialize,
            Some(era) => Hello::of(era),
            None if eras.modern == Some(true) => Hello::Discover,
            None if eras.legacy == Some(true) => Hello::Initialize,
            None => Hello::Discover,
        }
    }

    /// Finds out how to speak with it.
    async fn meet(&self, troubles: &mut mpsc::Receiver<Trouble>) -> Result<Introduction, Trouble> {
        let capabilities = capabilities(&self.router, &self.upstream);
        // Each request is for itself: both eras may be asked at once.
        let greeting =
            Greeting { first: self.first_question(), learns: false, is_known_modern: false };
        let is_older = self.web.is_older() || self.session.is_some();
        let meeting = Meeting {
            capabilities: &capabilities,
            daemon: self.router.this_daemon(),
            greeting,
            is_one_process: false,
            probing: None,
            shown: &self.shown,
        };
        let judge = |of, answer| match came(of, answer, troubles.try_recv().ok()) {
            Came::No(Trouble::Failing(why)) if self.session.is_some() => {
                Came::Never(Trouble::Unreachable(why))
            }
            Came::No(trouble) | Came::Pinned(trouble) if self.session.is_some() => {
                self.session.iter().for_each(|is_refused| is_refused.set(true));
                Came::Never(trouble)
            }
            // There is no other way.
            Came::No(trouble) | Came::Unreadable(trouble) if is_older => Came::Never(trouble),
            came => came,
        };
        match self.upstream.meet(meeting, judge).await {
            Err(Trouble::Refused(why) | Trouble::Hopeless(why))
                if !is_older && self.web.speaks_older().await =>
            {
                Err(Trouble::Hopeless(format!(
                    "{why}; it speaks the older HTTP with SSE: write `transport \"sse\"` in its file"
                )))
            }
            Ok((introduction, introductions)) => {
                let mut hint = self.server.hint.borrow_mut();
                hint.keep_introductions(&self.settings, introductions);
                Ok(introduction)
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// Serves a server that can be asked, until something is wrong.
    async fn serve(
        &self,
        introduction: &Rc<Introduction>,
        streams: &mut JoinSet<String>,
        troubles: &mut mpsc::Receiver<Trouble>,
    ) -> Trouble {
        self.router.opened(&self.upstream);
        let mut listening = JoinSet::new();
        if !self.web.is_older() && !self.web.is_modern() {
            listening.spawn_local(self.web.clone().listen());
        }
        let learning =
            learn_lists(&self.router, &self.server, &self.settings, &self.upstream, introduction);
        tokio::select! {
            refused = learning => match refused {
                None => {} // It is closed, and only heard from now on.
                Some(Ended::Loop) => return Trouble::Loop,
                Some(Ended::Refused { was_good: true, .. }) => return Trouble::Forgotten, // By another one.
                Some(Ended::Refused { why, .. }) => return Trouble::Hopeless(why),
            },
            () = self.upstream.keep_listening() => {}
            never = self.speak_legacy_too() => match never {},
            trouble = until_lost(troubles) => return trouble,
            () = self.web.until_forgotten() => return Trouble::Forgotten,
            Some(ended) = streams.join_next() => {
                let why = ended.unwrap_or_default();
                self.upstream.begin_anew();
                let why = format!("`{}`: {why}", self.server.name);
                self.upstream.lose_all(Cause::breach(&why));
                return Trouble::Forgotten;
            }
        }
        while streams.join_next().await.is_some() {}
        std::future::pending().await
    }

    /// Finds out whether a server here has stopped to listen.
    async fn deaf(&self) -> Next {
        let give_up_at = Instant::now() + DEAF_AFTER;
        while Instant::now() < give_up_at {
            if self.web.listens().await {
                return Next::Again(Duration::ZERO);
            }
            sleep(LOOK_AGAIN).await;
        }
        Next::Hopeless("it does not listen any more".to_owned())
    }

    /// Says in its log why it is not spoken with.
    async fn log(&self, trouble: &Trouble) {
        let why = trouble.clone().words();
        self.upstream.log_own(format_args!("{}: {why}", self.web.shown()));
        self.upstream.log_unparsed().await;
    }
}

/// Waits for something that cannot go on as it is.
async fn until_lost(troubles: &mut mpsc::Receiver<Trouble>) -> Trouble {
    loop {
        match troubles.recv().await {
            // Whoever asked has been told.
            Some(Trouble::Failing(_) | Trouble::Refused(_) | Trouble::Forbidden(_)) => {}
            Some(trouble) => return trouble,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn so_far(is_remote: bool, is_ready: bool, tries: u32) -> SoFar {
        SoFar { is_remote, is_ready, speaks_no_mcp: false, tries }
    }

    #[test]
    fn what_is_somewhere_else_is_unreachable_and_what_is_here_is_waited_for() {
        let why = || "why".to_owned();
        for trouble in [Trouble::Unreachable(why()), Trouble::Failing(why())] {
            let next = |is_remote, tries| after(trouble.clone(), so_far(is_remote, false, tries));
            assert_eq!(next(true, 0), Next::Unreachable(why()));
            assert_eq!(next(false, 0), Next::Again(FIRST_AGAIN));
            assert_eq!(next(false, 99), Next::Again(SOON_AGAIN), "however long it takes");
            let no_mcp = SoFar { speaks_no_mcp: true, ..so_far(false, false, 99) };
            assert_eq!(after(trouble.clone(), no_mcp), Next::Again(LATE_AGAIN));
        }
    }

    #[test]
    fn what_is_here_and_cannot_be_greeted_any_more_is_given_up() {
        let failing = || Trouble::Failing("why".to_owned());
        assert!(matches!(after(failing(), so_far(false, true, 0)), Next::Again(_)));
        let given_up = after(failing(), so_far(false, true, MOST_FORGOTTEN));
        assert_eq!(given_up, Next::Hopeless("why".to_owned()));
    }

    #[test]
    fn whoever_refuses_is_not_asked_again() {
        for is_remote in [false, true] {
            let hopeless = Trouble::Hopeless("no".to_owned());
            let first = so_far(is_remote, true, 0);
            assert_eq!(after(hopeless, first), Next::Hopeless("no".to_owned()));
            assert_eq!(after(Trouble::Forgotten, first), Next::Again(FIRST_AGAIN));
            let fifth = so_far(is_remote, true, MOST_FORGOTTEN);
            assert!(matches!(after(Trouble::Forgotten, fifth), Next::Hopeless(_)));
        }
    }
}
