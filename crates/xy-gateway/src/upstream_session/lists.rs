//! Learning what a server offers: requests its lists, and again whenever they change.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use xy_config::profile::OWN_TOOLS;
use xy_config::settings::ServerSettings;
use xy_protocol::control::quoted;
use xy_protocol::error::CallError;

use crate::backend::Backend;
pub(super) use xy_catalog::catalog::{Item, Lists, MAX_BYTES, MAX_ITEMS, Page, ServerCatalog};
use xy_mcp::era::Introduction;
use xy_mcp::kind::Kind;
use xy_mcp::modern::UNSUPPORTED_VERSION;
use xy_mcp::param_headers;
use xy_mcp::revision::MODERN;
use xy_mcp::via::{self, Daemons};
use xy_upstream::connection::code_of;
use xy_upstream::connection::result_of;

use crate::router::Router;
use crate::upstream::Upstream;

/// Maximum time for answering a list. After that, the server is shown without it.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// Delays before an unanswered list is requested again.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Time for which list changes are collected before the lists are requested.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// Maximum time that list requests wait for the event subscription. Without one, the lists are
/// requested again later.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of pages of one list.
const MAX_PAGES: usize = 1000;

/// Error codes of a server that does not speak the revision of a list request.
const REFUSALS: [i64; 3] = [INVALID_REQUEST, METHOD_NOT_FOUND, UNSUPPORTED_VERSION];
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;

/// The reason why a server's lists are not requested any more.
pub(crate) enum LearnError {
    /// The server refuses its own revision. `was_good` tells that it did not do so at first.
    Refused { why: String, was_good: bool },
    /// The server leads back to this daemon.
    Loop,
}

/// Keeps the lists of a server up to date, until it is closed or refuses all lists. A list of an
/// earlier life stays valid until it is replaced: an unanswered request changes nothing.
pub(crate) async fn learn_lists(
    router: &Router,
    server: &Rc<Backend>,
    settings: &Arc<ServerSettings>,
    upstream: &Rc<Upstream>,
    introduction: &Rc<Introduction>,
) -> Option<LearnError> {
    let mut lists = server.reported().map_or_else(Lists::default, |it| it.lists.clone());
    let mut was_good = false;
    let mut retry_delay = MIN_RETRY_DELAY;
    let shown_at = Instant::now() + LIST_TIMEOUT;
    if upstream.is_modern() {
        let _ = timeout(SUBSCRIBE_TIMEOUT, upstream.subscription_settled()).await;
    }
    while !upstream.is_closed() {
        upstream.record_list_request();
        let mut behind = introduction.behind.clone();
        let answered = ask_all(upstream, introduction, &mut lists, &mut behind).await;
        if upstream.is_closed() {
            return None; // An unanswered request of a closed server says nothing about its lists.
        }
        let answered = match answered {
            Ok(answered) => answered,
            Err(why) => return Some(LearnError::Refused { why, was_good }),
        };
        if answered == ListsAnswered::Loop || behind.is_loop_with(router.this_daemon()) {
            return Some(LearnError::Loop);
        }
        was_good = true;
        // For a while, the lists that an earlier daemon has stored are better than none.
        let is_remembered = answered == ListsAnswered::Nothing && server.known.borrow().is_some();
        if is_remembered && Instant::now() < shown_at {
            wait_before_retry(upstream, &mut retry_delay).await;
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
        let introduction = Introduction { behind, ..(**introduction).clone() };
        let known = ServerCatalog::new(server.name.as_str(), introduction, lists.clone());
        if let Some(duplicates) = known.take_duplicates() {
            tracing::warn!(server = %upstream.key(), "{duplicates}");
            upstream.log_own(duplicates);
            upstream.log_unparsed().await;
        }
        let for_all = router.learn(server, upstream, known);
        if answered == ListsAnswered::All {
            if let Some(for_all) = for_all {
                router.manifests.remember(settings, &for_all, server.traits()).await;
            }
            retry_delay = MIN_RETRY_DELAY;
            upstream.lists_changed_again().await;
            sleep(DEBOUNCE).await;
        } else {
            wait_before_retry(upstream, &mut retry_delay).await;
        }
    }
    None
}

/// Waits before unanswered lists are requested again, longer each time.
async fn wait_before_retry(upstream: &Upstream, retry_delay: &mut Duration) {
    // A change ends the wait too.
    let _ = timeout(*retry_delay, upstream.lists_changed_again()).await;
    *retry_delay = (*retry_delay * 2).min(MAX_RETRY_DELAY);
    sleep(DEBOUNCE).await;
}

/// The number of requested lists that were answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListsAnswered {
    All,
    Some,
    Nothing,
    /// The server says that it leads back to this daemon.
    Loop,
}

/// Requests all lists. An unanswered list stays as it was. Returns `Err` if the server refuses all
/// of them, in a revision that it claims to speak. Adds the daemons that the lists come from to
/// `behind`.
async fn ask_all(
    upstream: &Rc<Upstream>,
    introduction: &Introduction,
    lists: &mut Lists,
    behind: &mut Daemons,
) -> Result<ListsAnswered, String> {
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
            ListResult::Items(items) => {
                is_any_answered = true;
                lists.set(kind, items);
            }
            ListResult::Unanswered => is_whole = false,
            ListResult::Loop => return Ok(ListsAnswered::Loop),
            ListResult::Refused(why) => {
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
        _ if is_whole => Ok(ListsAnswered::All),
        _ if is_any_answered => Ok(ListsAnswered::Some),
        _ => Ok(ListsAnswered::Nothing),
    }
}

/// The result of a list request.
enum ListResult {
    Items(Vec<Item>),
    Unanswered,
    /// The server knows neither the list nor the revision of the request.
    Refused(String),
    /// The server leads back to this daemon.
    Loop,
}

/// Requests one list. Problems are written to the server's log, and the valid part of the list is
/// shown.
async fn list(upstream: &Rc<Upstream>, kind: Kind, behind: &mut Daemons) -> ListResult {
    let mut items = Vec::new();
    let answered = timeout(LIST_TIMEOUT, pages(upstream, kind, (&mut items, behind))).await;
    let late = || ListError::Unanswered(format!("it took longer than {LIST_TIMEOUT:?}"));
    let (problem, listed) = match answered.unwrap_or_else(|_| Err(late())) {
        Ok(()) => return ListResult::Items(items),
        Err(ListError::Unanswered(problem)) => (problem, ListResult::Unanswered),
        Err(ListError::Invalid(problem)) => (problem, ListResult::Items(items)),
        Err(ListError::Loop) => return ListResult::Loop,
        Err(ListError::Refused(problem)) => (problem.clone(), ListResult::Refused(problem)),
    };
    let method = kind.method();
    tracing::warn!(server = %upstream.key(), method, problem, "a list is not shown whole");
    upstream.log_own(format_args!("{method}: {problem}"));
    upstream.log_unparsed().await;
    listed
}

/// The reason why a list is not complete.
enum ListError {
    /// The server has not answered, and may do so another time.
    Unanswered(String),
    /// The response is malformed.
    Invalid(String),
    /// The server knows neither the list nor the revision of the request.
    Refused(String),
    /// The server leads back to this daemon.
    Loop,
}

/// Returns true if a tool can be called as its server requires. Writes to the server's log if it
/// cannot.
fn can_be_called(upstream: &Upstream, tool: &Item) -> bool {
    let invalid =
        if upstream.mirrors_params() { param_headers::of_tool(&tool.raw).err() } else { None };
    if let Some(why) = &invalid {
        let name = quoted(&tool.name);
        tracing::warn!(server = %upstream.key(), tool = name, %why, "a tool is not shown");
        upstream.log_own(format_args!("tool `{name}` is not shown: {why}"));
    }
    invalid.is_none()
}

async fn pages(
    upstream: &Rc<Upstream>,
    kind: Kind,
    (items, behind): (&mut Vec<Item>, &mut Daemons),
) -> Result<(), ListError> {
    use ListError::{Invalid, Refused, Unanswered};

    let unanswered = |fault: CallError| Unanswered(fault.to_string());
    let is_gateway = upstream.introduction().is_some_and(|it| it.is_gateway);
    let mut cursor: Option<String> = None;
    let mut bytes = 0;
    for _ in 0..MAX_PAGES {
        let params = cursor.take().map(|cursor| format!(r#"{{"cursor":{cursor}}}"#));
        let request = upstream.ask(kind.method(), params.as_deref()).map_err(unanswered)?;
        let answer = request.answer().await.map_err(unanswered)?;
        let code = code_of(answer.as_bytes());
        if via::is_refusal(code, &answer) {
            return Err(ListError::Loop);
        }
        let is_refusal = code.is_some_and(|code| REFUSALS.contains(&code));
        let result = result_of(&answer);
        let result =
            result.map_err(if is_refusal && upstream.is_modern() { Refused } else { Invalid })?;
        behind.add(&via::of_result(result).0);
        let page = Page::read(kind, result).map_err(Invalid)?;
        if page.nameless > 0 {
            let count = page.nameless;
            upstream.log_own(format_args!("{count} of {} have no name", kind.method()));
        }
        if let Some(odd) = page.report {
            upstream.log_own(odd);
        }
        for item in page.items {
            if kind == Kind::Tools && !can_be_called(upstream, &item) {
                continue;
            }
            // Another xy is managed by its own users, and not through this one.
            if kind == Kind::Tools && is_gateway && OWN_TOOLS.contains(&&*item.name) {
                continue;
            }
            bytes += item.raw.len();
            if items.len() >= MAX_ITEMS || bytes > MAX_BYTES {
                let limit = MAX_BYTES >> 20;
                return Err(Invalid(format!(
                    "longer than {MAX_ITEMS} items or {limit} MiB: the rest is not shown"
                )));
            }
            items.push(item);
        }
        let Some(next) = page.next else { return Ok(()) };
        cursor = Some(next);
    }
    Err(Invalid(format!("more than {MAX_PAGES} pages: the rest is not shown")))
}
