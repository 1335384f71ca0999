//! One life of a server, from its first word to its last: greets it, learns what it offers,
//! and says what the supervisor has to know.

use std::cell::Cell;
use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use xy_config::settings::ServerSettings;
use xy_protocol::error::{CallError, ErrorKind};
use xy_supervisor::instance::Holder;
use xy_supervisor::lifecycle::Exit;
use xy_supervisor::speak::{Before, Line, Said, Told, Way};

use crate::backend::{Backend, Greeting, GreetingOutcome, SpokenEras};
use crate::era::{Era, Introduction};
use crate::router::Router;
use crate::upstream::handshake::{INITIALIZED, Meeting, Note};
use crate::upstream::http_client::Trouble;
use crate::upstream::pipes::Pipes;
use crate::upstream::probe::{Came, Hello};
use crate::upstream::{Cause, Upstream};
use crate::via;

mod checkup;
mod http;
pub(crate) mod idle_stop;
mod legacy_session;
mod lists;

pub(crate) use lists::{Ended, learn_lists};

/// A server that has closed a pipe and ends within this time has simply ended.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// How long a message that is begun may take to be written whole when another daemon comes.
const FINISH_WITHIN: Duration = Duration::from_millis(1500);

/// How often that is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How long the last words of a server that has ended may take to be read.
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(500);

/// How often it is looked whether a server has read what it need not know.
const LOOK_AT_PROBE: Duration = Duration::from_millis(250);

/// If it has and lives after so many looks, it bears that.
const ENOUGH_LOOKS: u32 = 8;

/// So often it is looked.
const MOST_LOOKS: u32 = 240;

/// Speaks with a server until that life is over.
pub(crate) async fn live(router: Rc<Router>, line: Line) {
    match line.way {
        Way::Pipes { .. } => run_at_pipes(router, line).await,
        Way::Endpoint => http::live(router, line).await,
    }
}

async fn run_at_pipes(router: Rc<Router>, line: Line) {
    let Line { key, settings, way, before, said, mut told, .. } = line;
    let Way::Pipes { stdin, stdout } = way else { return };
    let server = router.server_of_life(&settings).await;
    let is_adopted = before.is_some();
    let (note, unread) = match before {
        Some(Before { note, unread }) => (Note::read(&note), unread),
        None => (Note::default(), Vec::new()),
    };
    let (stdin, stdout) = match open(stdin, stdout) {
        Ok(pipes) => pipes,
        Err(problem) => {
            let unfit = Said::Unfit(format!("its pipes cannot be used: {problem}"));
            let _ = said.send(unfit).await; // Whoever drove it may be gone.
            return;
        }
    };
    let stdin = Rc::new(stdin);
    let pipes = Pipes::new(&stdin, said.clone());
    let upstream =
        Upstream::new(key, said, note.first_id, is_adopted, pipes.clone(), router.clone());
    server.add(&upstream);
    upstream.was_listened_to(note.listening);
    let living = Rc::new(Life {
        router: router.clone(),
        server: server.clone(),
        settings,
        upstream: upstream.clone(),
        pipes: pipes.clone(),
        probing: Cell::new(None),
        is_mute: Cell::new(false),
        shown: Cell::default(),
        is_met: Cell::new(false),
    });
    let (ended, at_end) = oneshot::channel();
    let idle = idle_stop::when_idle(router.clone(), server.clone(), upstream.clone());
    let tasks = [
        tokio::task::spawn_local(read(living.clone(), stdout, ended)),
        tokio::task::spawn_local(learn(living.clone(), note, is_adopted)),
        tokio::task::spawn_local(idle),
    ];
    let writer = tokio::task::spawn_local(write(upstream.clone(), pipes.clone(), stdin));
    pipes.take(&upstream, &unread);
    upstream.log_unparsed().await;
    let mut pulse = checkup::Pulse::default();
    let mut by_xy = false;
    let (why, reply) = loop {
        match told.recv().await {
            Some(Told::Checkup(checkup)) => pulse.take((&router, &server, &upstream), checkup),
            Some(Told::Rest(rest)) => idle_stop::if_idle(&router, &server, &upstream, rest).await,
            Some(Told::Close { is_hung }) => {
                by_xy = true;
                if is_hung {
                    upstream.mark_hung();
                }
                living.is_ended();
                upstream.take_no_more();
                writer.abort();
                if living.is_mute.get() {
                    living.is_cut_off(); // That is why it is ended: it did not die of itself.
                }
            }
            Some(Told::LetGo(reply)) => break (String::new(), Some(reply)),
            Some(Told::Over(exit)) => {
                // What it said last is still in the pipe.
                if timeout(LAST_WORDS_WITHIN, at_end).await.is_err() {
                    tasks[0].abort(); // It reads.
                    pipes.hear_rest(&upstream);
                }
                living.is_over(exit).await;
                if exit != Exit::UNSEEN {
                    pipes.is_dead(); // Its shim has killed whoever was left.
                }
                break (end_of(&upstream, exit, by_xy), None);
            }
            None => break (format!("`{}` has ended", server.name), None),
        }
    };
    for task in tasks {
        task.abort();
    }
    let Some(reply) = reply else {
        if !living.is_met.get() && !by_xy && upstream.key().holder.era().is_none() {
            // Another life is not asked in the same way.
            let shown = living.shown.get();
            living.server.hint.borrow_mut().ended(&living.settings, shown);
        }
        writer.abort();
        upstream.close(Cause::end(&why));
        return router.over(&server, &upstream, &why);
    };
    upstream.take_no_more();
    let _ = timeout(FINISH_WITHIN, whole_messages(&pipes)).await; // Or it is torn.
    writer.abort();
    let _ = writer.await; // Its pipe is closed before anybody hears that it is.
    upstream.log_unparsed().await;
    let _ = reply.send(pipes.take_partial()); // Whoever asked may have gone.
    upstream.leave();
    router.over(&server, &upstream, "another daemon took over");
}

/// Resolves once no message is written in part.
async fn whole_messages(pipes: &Pipes) {
    while pipes.is_amid_writing() {
        sleep(LOOK_AGAIN).await;
    }
}

fn open(stdin: OwnedFd, stdout: OwnedFd) -> std::io::Result<(pipe::Sender, pipe::Receiver)> {
    Ok((pipe::Sender::from_owned_fd(stdin)?, pipe::Receiver::from_owned_fd(stdout)?))
}

/// One life of a server that is spoken with at its pipes.
struct Life {
    router: Rc<Router>,
    server: Rc<Backend>,
    settings: Arc<ServerSettings>,
    upstream: Rc<Upstream>,
    pipes: Rc<Pipes>,
    /// The question that the server need not know, while it is open.
    probing: Cell<Option<Hello>>,
    /// Whether it has closed its stdout.
    is_mute: Cell<bool>,
    /// The eras that this life has shown to speak, or not to.
    shown: Cell<SpokenEras>,
    /// It was greeted, here or by an earlier daemon.
    is_met: Cell<bool>,
}

impl Life {
    /// Returns the era in which this life is wanted.
    fn wanted_era(&self) -> Era {
        let holder = self.upstream.key().holder;
        let client = holder.client().and_then(|number| self.router.era_of(number));
        self.server.wanted_era(holder, client)
    }

    /// Records that the server did not survive a question, or fell silent on it.
    fn record_death_on(&self, question: Hello) {
        let mut hint = self.server.hint.borrow_mut();
        match question {
            Hello::Discover => hint.died_on_discover(&self.settings),
            Hello::Initialize => {
                let shown = SpokenEras { legacy: Some(false), ..self.shown.get() };
                self.shown.set(shown);
                hint.ended(&self.settings, shown);
            }
        }
    }

    /// Resolves never. What it was asked and has read for a while is not why it ends.
    async fn outlast_probe(&self) -> Infallible {
        let mut looks = 0;
        for _ in 0..MOST_LOOKS {
            sleep(LOOK_AT_PROBE).await;
            looks += u32::from(self.probing.get().is_some() && self.pipes.is_all_read());
            if looks >= ENOUGH_LOOKS {
                break;
            }
        }
        if self.probing.take().is_some() {
            self.upstream.say(Said::Probing(false)).await;
        }
        std::future::pending().await
    }

    /// It is being ended: for falling silent when it was asked, or for what is no matter here.
    fn is_ended(&self) {
        if let Some(question) = self.probing.take().filter(|_| self.is_mute.get()) {
            self.record_death_on(question);
        }
    }

    /// It says nothing more, and lives.
    fn is_cut_off(&self) {
        let upstream = &self.upstream;
        upstream.close(Cause::breach(&format!("`{}` closed its stdout", upstream.key().server)));
    }

    /// It has ended like this. If it was asked what it need not know, that may be why.
    async fn is_over(&self, exit: Exit) {
        if let Some(question) = self.read_probe().await.filter(|_| !exit.is_by_somebody()) {
            self.record_death_on(question);
        }
    }

    /// Returns the question that the server need not know, if it has read that. If it has not,
    /// that is not why it says nothing more.
    async fn read_probe(&self) -> Option<Hello> {
        if self.probing.get().is_some() && !self.pipes.is_all_read() {
            self.probing.set(None);
            self.upstream.say(Said::Probing(false)).await;
        }
        self.probing.get()
    }
}

/// Hears a server until it closes its stdout; one that lives on without it cannot answer.
async fn read(life: Rc<Life>, stdout: pipe::Receiver, ended: oneshot::Sender<()>) {
    let upstream = &life.upstream;
    if let Err(problem) = life.pipes.read_all(upstream, stdout).await {
        tracing::warn!(server = %upstream.key(), %problem, "its stdout cannot be read");
    }
    tokio::task::yield_now().await; // Whoever has got an answer may want to do something first.
    life.is_mute.set(true);
    life.read_probe().await;
    let _ = ended.send(()); // Nobody may wait for it.
    upstream.say(Said::Mute).await;
    sleep(ENDS_WITHIN).await;
    life.is_cut_off();
}

/// Speaks to a server until it closes its stdin; one that lives on without it cannot hear.
async fn write(upstream: Rc<Upstream>, pipes: Rc<Pipes>, stdin: Rc<pipe::Sender>) {
    tokio::select! {
        _ = pipes.write_all(&stdin, |place| upstream.drop_retry_copy(place)) => {} // It only ends if it cannot go on.
        // Also if there is nothing to write: what was written may never have been read.
        _ = stdin.ready(Interest::ERROR) => {}
    }
    sleep(ENDS_WITHIN).await;
    upstream.close(Cause::breach(&format!("`{}` closed its stdin", upstream.key().server)));
    upstream.say(Said::Unfit("it closed its stdin".to_owned())).await;
}

/// Greets a server, unless an earlier daemon has, and learns what it offers, again and again.
async fn learn(life: Rc<Life>, note: Note, is_adopted: bool) {
    let Life { router, server, settings, upstream, .. } = &*life;
    let greeted = match note.introduction {
        Some(introduction) => {
            life.is_met.set(true);
            Ok(Some(upstream.resume(introduction, note.is_tuned).await))
        }
        None => greet(&life, is_adopted).await,
    };
    let introduction = match greeted {
        Ok(Some(introduction)) => introduction,
        Ok(None) => return, // It is ended.
        Err(Trouble::Loop) => return give_up_loop(router, server, settings, upstream).await,
        Err(trouble) => return upstream.say(Said::Unfit(trouble.words())).await,
    };
    router.tell_spoken();
    upstream.say(Said::Ready).await;
    router.opened(upstream);
    tokio::select! {
        refused = learn_lists(router, server, settings, upstream, &introduction) => {
            match refused {
                None => {}
                Some(Ended::Refused { why, .. }) => {
                    // The next life is asked as if nothing were remembered.
                    server.hint.borrow_mut().forget(settings);
                    upstream.say(Said::Unfit(why)).await;
                }
                Some(Ended::Loop) => give_up_loop(router, server, settings, upstream).await,
            }
        }
        () = upstream.keep_listening() => {}
    }
}

/// Ends a server for good that leads back to this daemon. What it offers is shown to nobody.
async fn give_up_loop(
    router: &Rc<Router>,
    server: &Rc<Backend>,
    settings: &Arc<ServerSettings>,
    upstream: &Rc<Upstream>,
) {
    tracing::warn!(server = %server.name, "{}", via::REASON);
    router.hide_loop(server);
    upstream.say(Said::Unusable(via::REASON.to_owned())).await;
    router.manifests.erase(&settings.name).await;
}

/// Finds out how to speak with a server, and begins to. Returns `None` if this process is of no
/// use: it is ended, and started over if another one may be.
async fn greet(life: &Life, is_adopted: bool) -> Result<Option<Rc<Introduction>>, Trouble> {
    let Life { router, server, settings, upstream, .. } = life;
    let capabilities = capabilities(router, upstream);
    let mut greeting = server.hint.borrow().greeting(settings, life.wanted_era());
    if is_adopted {
        // An earlier daemon may have sent `initialize` already, and only its answer counts then.
        greeting = Greeting { first: Hello::Initialize, learns: false, ..greeting };
    }
    let meeting = Meeting {
        capabilities: &capabilities,
        daemon: router.this_daemon(),
        greeting,
        is_one_process: true,
        probing: Some(&life.probing),
        shown: &life.shown,
    };
    let met = tokio::select! {
        met = upstream.meet(meeting, said_to) => met,
        never = life.outlast_probe() => match never {},
    };
    let (introduction, introductions) = match met {
        // It answered one question, and may be bound to either era by the other.
        Err(Trouble::Hopeless(why)) if greeting.learns && life.shown.get().modern == Some(true) => {
            let shown = SpokenEras { legacy: Some(false), ..life.shown.get() };
            server.hint.borrow_mut().ended(settings, shown);
            upstream.say(Said::StartOver(why)).await;
            return Ok(None);
        }
        met => met?,
    };
    life.is_met.set(true);
    let (spoken, wanted) = (introduction.era(), life.wanted_era());
    server.hint.borrow_mut().keep_introductions(settings, introductions);
    let (shown, eras) = (life.shown.get(), (spoken, wanted));
    match server.record_greeting(settings, shown, eras, greeting.learns) {
        GreetingOutcome::StartOver(era) if !is_adopted => {
            upstream.say(Said::StartOver(format!("to speak {era} MCP with it"))).await;
            return Ok(None);
        }
        GreetingOutcome::StartOver(_) | GreetingOutcome::Use => {}
    }
    if spoken != wanted && upstream.key().holder.era().is_some() {
        let why = format!("its second process does not speak {wanted} MCP");
        upstream.say(Said::Unusable(why)).await;
        return Ok(None);
    }
    if spoken != wanted {
        upstream.mark_used(); // It is not started over for the next call either.
    }
    if introduction.era() == Era::Legacy {
        upstream.send(INITIALIZED);
    }
    Ok(Some(upstream.open(introduction).await))
}

/// What came of a question. One that was not answered will not be: its server is gone. One that
/// was answered with what is no answer, or with more than can be read, is like any that was
/// refused.
fn said_to(of: Hello, answer: Result<Box<str>, CallError>) -> Came {
    match answer {
        Ok(answer) => of.read(&answer),
        Err(fault) if fault.kind == ErrorKind::Internal => {
            let what = match of {
                Hello::Discover => crate::modern::DISCOVER,
                Hello::Initialize => "initialize",
            };
            let why = format!("what it answered to `{what}` cannot be read: {fault}");
            Came::Unreadable(Trouble::Hopeless(why))
        }
        Err(fault) => Came::Never(Trouble::Hopeless(fault.to_string())),
    }
}

/// Says how a server ended: by itself, or by xy, which then sent any signal.
fn end_of(upstream: &Upstream, exit: Exit, by_xy: bool) -> String {
    let server = &upstream.key().server;
    match by_xy {
        true if upstream.is_hung() => format!("`{server}` hung and was ended by xy"),
        true => format!("`{server}` was ended by xy"),
        false => format!("`{server}` {exit}"),
    }
}

/// What a server is told that its clients can do.
pub(crate) fn capabilities(router: &Router, upstream: &Upstream) -> String {
    let Holder::Client(number) = upstream.key().holder else {
        return crate::capabilities::SHARED.to_owned();
    };
    let declared = router.client(number).and_then(|client| client.declared());
    declared.map_or_else(|| crate::capabilities::ALONE.to_owned(), Into::into)
}
