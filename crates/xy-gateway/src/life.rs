//! One life of a server, from its first word to its last: greets it, learns what it offers,
//! and says what the supervisor has to know.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use xy_supervisor::instance::Holder;
use xy_supervisor::speak::{Before, Line, Said, Told};

use crate::catalog::{Item, Kind, Known, Lists, MOST_BYTES, MOST_ITEMS, Page};
use crate::era::Introduction;
use crate::hub::Hub;
use crate::server::Server;
use crate::upstream::greet::Note;
use crate::upstream::{Upstream, result_of};

/// How long a server has to answer a list before it is shown without it.
const LIST_WITHIN: Duration = Duration::from_secs(30);

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

/// What a shared server is told that its clients can do. Not roots: they are one client's.
const SHARED_CAPABILITIES: &str = r#"{"sampling":{},"elicitation":{}}"#;

/// Speaks with a server until that life is over.
pub(crate) async fn live(hub: Rc<Hub>, line: Line) {
    let Line { key, settings, stdin, stdout, before, said, mut told, .. } = line;
    let server = hub.server_of(&settings);
    let Before { note, unread } = before.unwrap_or_default();
    let note = Note::read(&note);
    let upstream = Upstream::new(key, said, note.first_id, hub.clone());
    let (stdin, stdout) = match pipes(stdin, stdout) {
        Ok(pipes) => pipes,
        Err(problem) => {
            return upstream.say(Said::Unfit(format!("its pipes cannot be used: {problem}"))).await;
        }
    };
    server.add(&upstream);
    let (ended, at_end) = oneshot::channel();
    let tasks = [
        tokio::task::spawn_local(read(upstream.clone(), stdout, ended)),
        tokio::task::spawn_local(learn(
            hub.clone(),
            server.clone(),
            upstream.clone(),
            note.introduction,
        )),
    ];
    let stdin = Rc::new(stdin);
    upstream.speak_to(&stdin);
    let writer = tokio::task::spawn_local(write(upstream.clone(), stdin));
    upstream.take(&unread);
    upstream.tell_strays().await;
    let (why, reply) = loop {
        match told.recv().await {
            Some(Told::Close) => {
                upstream.take_no_more();
                writer.abort();
            }
            Some(Told::LetGo(reply)) => break ("another daemon took over".to_owned(), Some(reply)),
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
        return over(&hub, &server, &upstream, &why);
    };
    upstream.take_no_more();
    let _ = timeout(FINISH_WITHIN, whole_messages(&upstream)).await; // Or it is torn.
    writer.abort();
    let _ = writer.await; // Its pipe is closed before anybody hears that it is.
    upstream.tell_strays().await;
    let _ = reply.send(upstream.take_partial()); // Whoever asked may have gone.
    over(&hub, &server, &upstream, &why);
}

fn over(hub: &Hub, server: &Rc<Server>, upstream: &Rc<Upstream>, why: &str) {
    upstream.close(why);
    server.drop_upstream(upstream);
    if server.is_removed.get() {
        hub.remove(server);
    }
    hub.tell_news();
}

/// Resolves once no message is written in part.
async fn whole_messages(upstream: &Upstream) {
    while upstream.is_amid_writing() {
        sleep(LOOK_AGAIN).await;
    }
}

fn pipes(stdin: OwnedFd, stdout: OwnedFd) -> std::io::Result<(pipe::Sender, pipe::Receiver)> {
    Ok((pipe::Sender::from_owned_fd(stdin)?, pipe::Receiver::from_owned_fd(stdout)?))
}

/// Hears a server until it closes its stdout; one that lives on without it cannot answer.
async fn read(upstream: Rc<Upstream>, stdout: pipe::Receiver, ended: oneshot::Sender<()>) {
    if let Err(problem) = upstream.clone().read_all(stdout).await {
        tracing::warn!(server = %upstream.key(), %problem, "its stdout cannot be read");
    }
    let _ = ended.send(()); // Nobody may wait for it.
    upstream.say(Said::Mute).await;
    sleep(ENDS_WITHIN).await;
    upstream.close(&format!("`{}` closed its stdout", upstream.key().server));
}

/// Speaks to a server until it closes its stdin; one that lives on without it cannot hear.
async fn write(upstream: Rc<Upstream>, stdin: Rc<pipe::Sender>) {
    if upstream.clone().write_all(stdin).await.is_err() {
        sleep(ENDS_WITHIN).await;
        upstream.close(&format!("`{}` closed its stdin", upstream.key().server));
        upstream.say(Said::Unfit("it closed its stdin".to_owned())).await;
    }
}

/// Greets a server, unless an earlier daemon has, and learns what it offers, again and again.
async fn learn(
    hub: Rc<Hub>,
    server: Rc<Server>,
    upstream: Rc<Upstream>,
    introduction: Option<Introduction>,
) {
    let introduction = match introduction {
        Some(introduction) => upstream.open(introduction),
        None => match upstream.greet(&capabilities(&hub, &upstream)).await {
            Ok(introduction) => introduction,
            Err(why) => return upstream.say(Said::Unfit(why)).await,
        },
    };
    upstream.say(Said::Ready).await;
    hub.opened(&upstream);
    loop {
        let lists = all_lists(&upstream, &introduction).await;
        let known = Known::new(server.name.as_str(), (*introduction).clone(), lists);
        let settings = server.settings.borrow().clone();
        hub.manifests.remember(&settings, &known);
        upstream.set_listed();
        hub.learn(&server, known);
        upstream.until_lists_change().await;
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
        Holder::Shared => SHARED_CAPABILITIES.to_owned(),
        Holder::Client(_) => greeted.map_or_else(|| "{}".to_owned(), |it| it.capabilities.into()),
    }
}

async fn all_lists(upstream: &Rc<Upstream>, introduction: &Introduction) -> Lists {
    let abilities = introduction.abilities;
    let mut lists = Lists::default();
    for kind in Kind::ALL {
        let has = match kind {
            Kind::Tools => abilities.tools,
            Kind::Prompts => abilities.prompts,
            Kind::Resources | Kind::Templates => abilities.resources,
        };
        if has {
            lists.set(kind, list(upstream, kind).await);
        }
    }
    lists
}

/// One list of a server; what is wrong with it is its own trouble, and stands in its log.
async fn list(upstream: &Rc<Upstream>, kind: Kind) -> Vec<Item> {
    let mut items = Vec::new();
    let within = timeout(LIST_WITHIN, pages(upstream, kind, &mut items)).await;
    let problem = match within {
        Ok(Ok(())) => return items,
        Ok(Err(problem)) => problem,
        Err(_) => format!("{} was not answered within {LIST_WITHIN:?}", kind.method()),
    };
    tracing::warn!(server = %upstream.key(), problem, "a list is not shown whole");
    upstream.stray(format!("xy: {problem}").as_bytes());
    upstream.tell_strays().await;
    items
}

async fn pages(upstream: &Rc<Upstream>, kind: Kind, items: &mut Vec<Item>) -> Result<(), String> {
    let mut cursor: Option<String> = None;
    let mut bytes = 0;
    for _ in 0..MOST_PAGES {
        let params = cursor.take().map(|cursor| format!(r#"{{"cursor":{cursor}}}"#));
        let (_, answered) =
            upstream.ask(kind.method(), params.as_deref()).map_err(|fault| fault.to_string())?;
        let answer = answered.await.map_err(|_| "it has ended".to_owned())?;
        let answer = answer.map_err(|fault| fault.to_string())?;
        let result = result_of(&answer).map_err(|why| format!("{}: {why}", kind.method()))?;
        let page = Page::read(kind, result)?;
        if page.nameless > 0 {
            let count = page.nameless;
            upstream.stray(format!("xy: {count} of {} have no name", kind.method()).as_bytes());
        }
        for item in page.items {
            bytes += item.raw.len();
            if items.len() >= MOST_ITEMS || bytes > MOST_BYTES {
                return Err(format!(
                    "{} is longer than {MOST_ITEMS} items or {} MiB: the rest is not shown",
                    kind.method(),
                    MOST_BYTES >> 20
                ));
            }
            items.push(item);
        }
        let Some(next) = page.next else { return Ok(()) };
        cursor = Some(next);
    }
    Err(format!("{} has more than {MOST_PAGES} pages: the rest is not shown", kind.method()))
}
