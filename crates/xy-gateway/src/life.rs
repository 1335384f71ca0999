//! One life of a server, from its first word to its last: greets it, learns what it offers,
//! and says what the supervisor has to know.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use xy_config::settings::ServerSettings;
use xy_protocol::error::CallError;
use xy_supervisor::instance::Holder;
use xy_supervisor::speak::{Before, Line, Said, Told, Way};

use crate::catalog::{Item, Kind, Known, Lists, MOST_BYTES, MOST_ITEMS, Page};
use crate::era::Introduction;
use crate::hub::Hub;
use crate::server::Server;
use crate::upstream::greet::Note;
use crate::upstream::pipes::Pipes;
use crate::upstream::{Upstream, result_of};

mod web;

/// How long a server has to answer a list before it is shown without it.
const LIST_WITHIN: Duration = Duration::from_secs(30);

/// A list that was not answered is asked for again after this time.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// How many changes of its lists a server may tell at once before they are asked for.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// A server that has closed a pipe and ends within this time has simply ended.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// How long a message that is begun may take to be written whole when another daemon comes.
const FINISH_WITHIN: Duration = Duration::from_millis(1500);

/// How often that is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How long the last words of a server that has ended may take to be read.
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(500);

/// Pages of one list.
const MOST_PAGES: usize = 1000;

/// Speaks with a server until that life is over.
pub(crate) async fn live(hub: Rc<Hub>, line: Line) {
    match line.way {
        Way::Pipes { .. } => live_at_pipes(hub, line).await,
        Way::Endpoint => web::live(hub, line).await,
    }
}

async fn live_at_pipes(hub: Rc<Hub>, line: Line) {
    let Line { key, settings, way, before, said, mut told, .. } = line;
    let Way::Pipes { stdin, stdout } = way else { return };
    let server = hub.server_of(&settings);
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
    let upstream = Upstream::new(key, said, note.first_id, is_adopted, pipes.clone(), hub.clone());
    server.add(&upstream);
    let (ended, at_end) = oneshot::channel();
    let tasks = [
        tokio::task::spawn_local(read(upstream.clone(), pipes.clone(), stdout, ended)),
        tokio::task::spawn_local(learn(
            hub.clone(),
            server.clone(),
            settings,
            upstream.clone(),
            note,
        )),
    ];
    let writer = tokio::task::spawn_local(write(upstream.clone(), pipes.clone(), stdin));
    pipes.take(&upstream, &unread);
    upstream.tell_strays().await;
    let (why, reply) = loop {
        match told.recv().await {
            Some(Told::Close) => {
                upstream.take_no_more();
                writer.abort();
            }
            Some(Told::LetGo(reply)) => break (String::new(), Some(reply)),
            Some(Told::Over(exit)) => {
                // What it said last is still in the pipe.
                let _ = timeout(LAST_WORDS_WITHIN, at_end).await;
                break (format!("`{}` {exit}", server.name), None);
            }
            None => break (format!("`{}` has ended", server.name), None),
        }
    };
    for task in tasks {
        task.abort();
    }
    let Some(reply) = reply else {
        writer.abort();
        upstream.close(&why);
        return hub.over(&server, &upstream, &why);
    };
    upstream.take_no_more();
    let _ = timeout(FINISH_WITHIN, whole_messages(&pipes)).await; // Or it is torn.
    writer.abort();
    let _ = writer.await; // Its pipe is closed before anybody hears that it is.
    upstream.tell_strays().await;
    let _ = reply.send(pipes.take_partial()); // Whoever asked may have gone.
    upstream.leave();
    hub.over(&server, &upstream, "another daemon took over");
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

/// Hears a server until it closes its stdout; one that lives on without it cannot answer.
async fn read(
    upstream: Rc<Upstream>,
    pipes: Rc<Pipes>,
    stdout: pipe::Receiver,
    ended: oneshot::Sender<()>,
) {
    if let Err(problem) = pipes.read_all(&upstream, stdout).await {
        tracing::warn!(server = %upstream.key(), %problem, "its stdout cannot be read");
    }
    let _ = ended.send(()); // Nobody may wait for it.
    upstream.say(Said::Mute).await;
    sleep(ENDS_WITHIN).await;
    upstream.close(&format!("`{}` closed its stdout", upstream.key().server));
}

/// Speaks to a server until it closes its stdin; one that lives on without it cannot hear.
async fn write(upstream: Rc<Upstream>, pipes: Rc<Pipes>, stdin: Rc<pipe::Sender>) {
    tokio::select! {
        _ = pipes.write_all(&stdin) => {} // It only ends if it cannot go on.
        // Also if there is nothing to write: what was written may never have been read.
        _ = stdin.ready(Interest::ERROR) => {}
    }
    sleep(ENDS_WITHIN).await;
    upstream.close(&format!("`{}` closed its stdin", upstream.key().server));
    upstream.say(Said::Unfit("it closed its stdin".to_owned())).await;
}

/// Greets a server, unless an earlier daemon has, and learns what it offers, again and again.
async fn learn(
    hub: Rc<Hub>,
    server: Rc<Server>,
    settings: Arc<ServerSettings>,
    upstream: Rc<Upstream>,
    note: Note,
) {
    let introduction = match note.introduction {
        Some(introduction) => upstream.resume(introduction, note.is_tuned).await,
        None => match upstream.greet(&capabilities(&hub, &upstream)).await {
            Ok(introduction) => introduction,
            Err(why) => return upstream.say(Said::Unfit(why)).await,
        },
    };
    upstream.say(Said::Ready).await;
    hub.opened(&upstream);
    learn_lists(&hub, &server, &settings, &upstream, &introduction).await;
}

/// Learns what a server offers, again whenever that may have changed.
async fn learn_lists(
    hub: &Hub,
    server: &Rc<Server>,
    settings: &Arc<ServerSettings>,
    upstream: &Rc<Upstream>,
    introduction: &Rc<Introduction>,
) {
    let mut lists = Lists::default();
    while !upstream.is_closed() {
        let is_whole = ask_all(upstream, introduction, &mut lists).await;
        if upstream.is_closed() {
            return; // What it could not answer any more says nothing of what it offers.
        }
        let known = Known::new(server.name.as_str(), (**introduction).clone(), lists.clone());
        let known = hub.learn(server, upstream, known);
        if is_whole {
            hub.manifests.remember(settings, &known, server.asks()).await;
            upstream.until_lists_change().await;
        } else {
            let _ = timeout(ASK_AGAIN_AFTER, upstream.until_lists_change()).await;
        }
        sleep(DEBOUNCE).await;
    }
}

/// What a server is told that its clients can do.
fn capabilities(hub: &Hub, upstream: &Upstream) -> String {
    let client = match upstream.key().holder {
        Holder::Shared => None,
        Holder::Client(number) => hub.client(number),
    };
    let greeted = client.and_then(|client| client.greeted());
    match upstream.key().holder {
        Holder::Shared => crate::capabilities::SHARED.to_owned(),
        Holder::Client(number) if hub.is_house(number) => crate::capabilities::SHARED.to_owned(),
        Holder::Client(_) => greeted.map_or_else(|| "{}".to_owned(), |it| it.capabilities.into()),
    }
}

/// Asks for all lists. One that it does not answer stays what it was; whether all were
/// answered.
async fn ask_all(upstream: &Rc<Upstream>, introduction: &Introduction, lists: &mut Lists) -> bool {
    let abilities = introduction.abilities;
    let mut is_whole = true;
    for kind in Kind::ALL {
        let has = match kind {
            Kind::Tools => abilities.tools,
            Kind::Prompts => abilities.prompts,
            Kind::Resources | Kind::Templates => abilities.resources,
        };
        if !has {
            continue;
        }
        match list(upstream, kind).await {
            Some(items) => lists.set(kind, items),
            None => is_whole = false,
        }
    }
    is_whole
}

/// One list of a server; `None` if it was not answered. What is wrong with it is its own
/// trouble, and stands in its log: what is good of it is shown.
async fn list(upstream: &Rc<Upstream>, kind: Kind) -> Option<Vec<Item>> {
    let mut items = Vec::new();
    let asked = timeout(LIST_WITHIN, pages(upstream, kind, &mut items)).await;
    let late = || Unlisted::Unanswered(format!("it took longer than {LIST_WITHIN:?}"));
    let (problem, items) = match asked.unwrap_or_else(|_| Err(late())) {
        Ok(()) => return Some(items),
        Err(Unlisted::Unanswered(problem)) => (problem, None),
        Err(Unlisted::Wrong(problem)) => (problem, Some(items)),
    };
    let method = kind.method();
    tracing::warn!(server = %upstream.key(), method, problem, "a list is not shown whole");
    upstream.stray(format!("xy: {method}: {problem}").as_bytes());
    upstream.tell_strays().await;
    items
}

/// Why there is no whole list.
enum Unlisted {
    /// The server has not answered, which it may do another time.
    Unanswered(String),
    /// The server has answered with something that is none.
    Wrong(String),
}

async fn pages(upstream: &Rc<Upstream>, kind: Kind, items: &mut Vec<Item>) -> Result<(), Unlisted> {
    use Unlisted::{Unanswered, Wrong};

    let unanswered = |fault: CallError| Unanswered(fault.to_string());
    let mut cursor: Option<String> = None;
    let mut bytes = 0;
    for _ in 0..MOST_PAGES {
        let params = cursor.take().map(|cursor| format!(r#"{{"cursor":{cursor}}}"#));
        let question = upstream.ask(kind.method(), params.as_deref()).map_err(unanswered)?;
        let answer = question.answer().await.map_err(unanswered)?;
        let page = result_of(&answer).and_then(|result| Page::read(kind, result)).map_err(Wrong)?;
        if page.nameless > 0 {
            let count = page.nameless;
            upstream.stray(format!("xy: {count} of {} have no name", kind.method()).as_bytes());
        }
        for item in page.items {
            bytes += item.raw.len();
            if items.len() >= MOST_ITEMS || bytes > MOST_BYTES {
                let limit = MOST_BYTES >> 20;
                return Err(Wrong(format!(
                    "longer than {MOST_ITEMS} items or {limit} MiB: the rest is not shown"
                )));
            }
            items.push(item);
        }
        let Some(next) = page.next else { return Ok(()) };
        cursor = Some(next);
    }
    Err(Wrong(format!("more than {MOST_PAGES} pages: the rest is not shown")))
}
