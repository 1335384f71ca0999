//! Learning what a server offers: its lists, again and again.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use xy_config::profile::OWN_TOOLS;
use xy_config::settings::ServerSettings;
use xy_protocol::control::quoted;
use xy_protocol::error::CallError;

use crate::backend::Backend;
use crate::catalog::{Item, Kind, Known, Lists, MOST_BYTES, MOST_ITEMS, Page};
use crate::era::{Introduction, MODERN};
use crate::modern::UNSUPPORTED_VERSION;
use crate::param_headers;
use crate::router::Router;
use crate::upstream::probe::code_of;
use crate::upstream::{Upstream, result_of};
use crate::via::{self, Daemons};

/// How long a server has to answer a list before it is shown without it.
const LIST_WITHIN: Duration = Duration::from_secs(30);

/// A list that was not answered is asked for again after the first time, and ever later.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
const ASK_AGAIN_AT_MOST: Duration = Duration::from_secs(30);

/// How many changes of its lists a server may tell at once before they are asked for.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// How long lists wait until changes of them are heard. Without that they are asked for again.
const LISTENED_WITHIN: Duration = Duration::from_millis(500);

/// Pages of one list.
const MOST_PAGES: usize = 1000;

/// Codes by which a server refuses lists of a revision that it does not speak.
const REFUSALS: [i64; 3] = [INVALID_REQUEST, METHOD_NOT_FOUND, UNSUPPORTED_VERSION];
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;

/// Why a server's lists are not asked for any more.
pub(crate) enum Ended {
    /// It refuses what it said that it speaks; it `was_good` if it did not at first.
    Refused { why: String, was_good: bool },
    /// It leads back to this daemon.
    Loop,
}

/// Learns what a server offers, again whenever that may have changed, until it is closed or
/// refuses to be asked at all. What it has said in an earlier life stands until it says something
/// else: a list that is not answered says nothing.
pub(crate) async fn learn_lists(
    router: &Router,
    server: &Rc<Backend>,
    settings: &Arc<ServerSettings>,
    upstream: &Rc<Upstream>,
    introduction: &Rc<Introduction>,
) -> Option<Ended> {
    let mut lists = server.said().map_or_else(Lists::default, |said| said.lists.clone());
    let mut was_good = false;
    let mut again_after = ASK_AGAIN_AFTER;
    let shown_at = Instant::now() + LIST_WITHIN;
    if upstream.is_modern() {
        let _ = timeout(LISTENED_WITHIN, upstream.listens_before_lists()).await;
    }
    while !upstream.is_closed() {
        upstream.lists_are_asked();
        let mut behind = introduction.behind.clone();
        let asked = ask_all(upstream, introduction, &mut lists, &mut behind).await;
        if upstream.is_closed() {
            return None; // What it could not answer any more says nothing of what it offers.
        }
        let asked = match asked {
            Ok(asked) => asked,
            Err(why) => return Some(Ended::Refused { why, was_good }),
        };
        if asked == Asked::Loop || behind.is_loop_with(router.this_daemon()) {
            return Some(Ended::Loop);
        }
        was_good = true;
        // What an earlier daemon remembers is better than nothing, for a while.
        let is_remembered = asked == Asked::Nothing && server.known.borrow().is_some();
        if is_remembered && Instant::now() < shown_at {
            ask_later(upstream, &mut again_after).await;
            continue;
        }
        let count = |kind| lists.of(kind).len();
        tracing::debug!(
            server = %upstream.key(),
            tools = count(Kind::Tools),
            prompts = count(Kind::Prompts),
            resources = count(Kind::Resources),
            templates = count(Kind::Templates),
            "lists learned"
        );
        let said = Introduction { behind, ..(**introduction).clone() };
        let known = Known::new(server.name.as_str(), said, lists.clone());
        if let Some(doubles) = known.take_doubles() {
            tracing::warn!(server = %upstream.key(), "{doubles}");
            upstream.log_own(doubles);
            upstream.log_unparsed().await;
        }
        let for_all = router.learn(server, upstream, known);
        if asked == Asked::All {
            if let Some(for_all) = for_all {
                router.manifests.remember(settings, &for_all, server.traits()).await;
            }
            again_after = ASK_AGAIN_AFTER;
            upstream.until_lists_change().await;
            sleep(DEBOUNCE).await;
        } else {
            ask_later(upstream, &mut again_after).await;
        }
    }
    None
}

/// Waits before lists that were not answered are asked for again, each time for longer.
async fn ask_later(upstream: &Upstream, again_after: &mut Duration) {
    let _ = timeout(*again_after, upstream.until_lists_change()).await; // Either will do.
    *again_after = (*again_after * 2).min(ASK_AGAIN_AT_MOST);
    sleep(DEBOUNCE).await;
}

/// How much of what a server was asked it has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    All,
    Some,
    Nothing,
    /// It leads back to this daemon, and says so.
    Loop,
}

/// Asks for all lists. One that it does not answer stays what it was. `Err` if it refuses them
/// all, in a revision that it said it speaks. Adds the daemons that they come from to `behind`.
async fn ask_all(
    upstream: &Rc<Upstream>,
    introduction: &Introduction,
    lists: &mut Lists,
    behind: &mut Daemons,
) -> Result<Asked, String> {
    let abilities = introduction.abilities;
    let (mut is_whole, mut is_any_answered, mut refused) = (true, false, None);
    for kind in Kind::ALL {
        let has = match kind {
            Kind::Tools => abilities.tools,
            Kind::Prompts => abilities.prompts,
            Kind::Resources | Kind::Templates => abilities.resources,
        };
        if !has {
            lists.set(kind, Vec::new());
            continue;
        }
        match list(upstream, kind, behind).await {
            Listed::Items(items) => {
                is_any_answered = true;
                lists.set(kind, items);
            }
            Listed::Unanswered => is_whole = false,
            Listed::Loop => return Ok(Asked::Loop),
            Listed::Refused(why) => {
                lists.set(kind, Vec::new());
                refused.get_or_insert_with(|| {
                    let method = kind.method();
                    format!("it says that it speaks revision {MODERN}, and refuses `{method}` of it: {why}")
                });
            }
        }
    }
    match refused {
        Some(why) if is_whole && !is_any_answered => Err(why),
        _ if is_whole => Ok(Asked::All),
        _ if is_any_answered => Ok(Asked::Some),
        _ => Ok(Asked::Nothing),
    }
}

/// What came of asking for a list.
enum Listed {
    Items(Vec<Item>),
    Unanswered,
    /// The server does not know it, or not the revision it is asked in.
    Refused(String),
    /// The server leads back to this daemon.
    Loop,
}

/// One list of a server. What is wrong with it is its own trouble, and stands in its log: what
/// is good of it is shown.
async fn list(upstream: &Rc<Upstream>, kind: Kind, behind: &mut Daemons) -> Listed {
    let mut items = Vec::new();
    let asked = timeout(LIST_WITHIN, pages(upstream, kind, (&mut items, behind))).await;
    let late = || Unlisted::Unanswered(format!("it took longer than {LIST_WITHIN:?}"));
    let (problem, listed) = match asked.unwrap_or_else(|_| Err(late())) {
        Ok(()) => return Listed::Items(items),
        Err(Unlisted::Unanswered(problem)) => (problem, Listed::Unanswered),
        Err(Unlisted::Wrong(problem)) => (problem, Listed::Items(items)),
        Err(Unlisted::Loop) => return Listed::Loop,
        Err(Unlisted::Refused(problem)) => (problem.clone(), Listed::Refused(problem)),
    };
    let method = kind.method();
    tracing::warn!(server = %upstream.key(), method, problem, "a list is not shown whole");
    upstream.log_own(format_args!("{method}: {problem}"));
    upstream.log_unparsed().await;
    listed
}

/// Why there is no whole list.
enum Unlisted {
    /// The server has not answered, which it may do another time.
    Unanswered(String),
    /// The server has answered with something that is none.
    Wrong(String),
    /// The server does not know it, or not the revision it is asked in.
    Refused(String),
    /// The server leads back to this daemon.
    Loop,
}

/// Whether a tool can be called as its server wants it to be. One that cannot is said to its
/// log.
fn can_be_called(upstream: &Upstream, tool: &Item) -> bool {
    let unfit = if upstream.has_heads() { param_headers::of_tool(&tool.raw).err() } else { None };
    if let Some(why) = &unfit {
        let name = quoted(&tool.name);
        tracing::warn!(server = %upstream.key(), tool = name, %why, "a tool is not shown");
        upstream.log_own(format_args!("tool `{name}` is not shown: {why}"));
    }
    unfit.is_none()
}

async fn pages(
    upstream: &Rc<Upstream>,
    kind: Kind,
    (items, behind): (&mut Vec<Item>, &mut Daemons),
) -> Result<(), Unlisted> {
    use Unlisted::{Refused, Unanswered, Wrong};

    let unanswered = |fault: CallError| Unanswered(fault.to_string());
    let is_gateway = upstream.introduction().is_some_and(|it| it.is_gateway);
    let mut cursor: Option<String> = None;
    let mut bytes = 0;
    for _ in 0..MOST_PAGES {
        let params = cursor.take().map(|cursor| format!(r#"{{"cursor":{cursor}}}"#));
        let question = upstream.ask(kind.method(), params.as_deref()).map_err(unanswered)?;
        let answer = question.answer().await.map_err(unanswered)?;
        let code = code_of(answer.as_bytes());
        if via::is_refusal(code, &answer) {
            return Err(Unlisted::Loop);
        }
        let is_refusal = code.is_some_and(|code| REFUSALS.contains(&code));
        let result = result_of(&answer);
        let result =
            result.map_err(if is_refusal && upstream.is_modern() { Refused } else { Wrong })?;
        behind.add(&via::of_result(result).0);
        let page = Page::read(kind, result).map_err(Wrong)?;
        if page.nameless > 0 {
            let count = page.nameless;
            upstream.log_own(format_args!("{count} of {} have no name", kind.method()));
        }
        if let Some(odd) = page.odd {
            upstream.log_own(odd);
        }
        for item in page.items {
            if kind == Kind::Tools && !can_be_called(upstream, &item) {
                continue;
            }
            // Another xy is managed by who may manage it, and not through this one.
            if kind == Kind::Tools && is_gateway && OWN_TOOLS.contains(&&*item.name) {
                continue;
            }
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
