//! Explains why a profile shows or hides an item. Uses the rule that clients are subject to.

use xy_catalog::catalog::ServerCatalog;
use xy_catalog::names;
use xy_catalog::scope::{Decision, Scope};
use xy_http::frontend::View;
use xy_mcp::kind::Kind;
use xy_mcp::reply;
use xy_protocol::control::{Explain, ExplainResult, ItemKind};
use xy_protocol::error::{CallError, ErrorKind};

use super::Router;
use crate::tools::{self, search};
use crate::visibility::Visibility;

/// An item to explain.
struct Target {
    server: String,
    /// The server's name for it.
    item: String,
    /// True if the server is known to have it.
    is_known: bool,
}

impl Router {
    /// Explains whether a profile shows an item, and why.
    pub(crate) fn explain(&self, ask: &Explain) -> Result<ExplainResult, CallError> {
        let visibility = self
            .visibility_of(&View::Profile(ask.profile.clone()))
            .map_err(|refusal| CallError::new(ErrorKind::InvalidParams, refusal.to_string()))?;
        let scope = match visibility {
            Visibility::Scope(scope) => Some(scope),
            Visibility::All | Visibility::Nothing => None,
        };
        let scope = scope.as_deref();
        let Explain { profile, name, kind } = ask.clone();
        let basis = ExplainResult { profile, name, kind, ..ExplainResult::default() };
        if ask.kind == ItemKind::Tool && tools::is_own(&ask.name) {
            return Ok(explain_own_tool(scope, basis));
        }
        if ask.kind == ItemKind::Tool && search::is_search_tool(&ask.name) {
            return Ok(explain_search_tool(scope, basis));
        }
        let kind = match ask.kind {
            ItemKind::Tool => Kind::Tools,
            ItemKind::Prompt => Kind::Prompts,
            ItemKind::Resource => Kind::Resources,
        };
        let target = if kind == Kind::Resources {
            self.target_by_uri(&ask.name)?
        } else {
            self.target_by_name(scope, kind, &ask.name)?
        };
        Ok(explain_item(scope, kind, target, basis))
    }

    fn target_by_name(
        &self,
        scope: Option<&Scope>,
        kind: Kind,
        name: &str,
    ) -> Result<Target, CallError> {
        let renamed = scope.filter(|_| kind == Kind::Tools).and_then(|it| it.renamed(name));
        let (server, rest) = renamed.or_else(|| names::split_exposed(name)).ok_or_else(|| {
            reply::invalid(format!("`{}` names no server", xy_protocol::control::quoted(name)))
                .hint("write it as `server__name`: `xy tools` shows all")
        })?;
        let known = self.server(server).and_then(|it| it.known.borrow().clone());
        let budget = scope.map_or(names::MAX_NAME, Scope::budget);
        let is_it = |item: &str| {
            item == rest
                || names::exposed(server, item) == name
                || names::exposed_within(server, item, budget) == name
        };
        let found = known.and_then(|known| {
            known.lists.of(kind).iter().find(|it| is_it(&it.name)).map(|it| it.name.to_string())
        });
        let (server, is_known) = (server.to_owned(), found.is_some());
        Ok(Target { server, item: found.unwrap_or_else(|| rest.to_owned()), is_known })
    }

    fn target_by_uri(&self, uri: &str) -> Result<Target, CallError> {
        let has = |known: &ServerCatalog, uri: &str| {
            let is_template = |it: &xy_catalog::catalog::Item| *it.name == *uri;
            known.has_resource(uri) || known.lists.of(Kind::Templates).iter().any(is_template)
        };
        if let Some((server, item)) = names::split_exposed_uri(uri) {
            let known = self.server(server).and_then(|it| it.known.borrow().clone());
            let is_known = known.is_some_and(|known| has(&known, item));
            return Ok(Target { server: server.to_owned(), item: item.to_owned(), is_known });
        }
        let servers = self.servers();
        let mut owners = servers
            .iter()
            .filter(|it| it.known.borrow().as_ref().is_some_and(|known| has(known, uri)))
            .map(|it| it.name.to_string());
        match (owners.next(), owners.next()) {
            (Some(server), None) => Ok(Target { server, item: uri.to_owned(), is_known: true }),
            _ => Err(reply::invalid("no server, or more than one, is known to have this resource")
                .hint(format!("say whose it is: `xy://<server>/{uri}`"))),
        }
    }
}

/// Explains one of the search tools.
fn explain_search_tool(scope: Option<&Scope>, basis: ExplainResult) -> ExplainResult {
    let shown = scope.is_some_and(Scope::is_search);
    let why = if shown { "tools are found here" } else { "tools are listed here, not found" };
    let file = scope.map(|it| it.settings().file.clone());
    let exposed = shown.then(|| basis.name.clone());
    let line = scope.and_then(|it| it.settings().mode_line);
    let why = why.to_owned();
    ExplainResult { known: true, shown, listed: shown, why, file, line, exposed, ..basis }
}

/// Returns the line that makes an item searchable instead of listed, if one does.
fn found_line(scope: &Scope, is_shown: bool, is_listed: bool) -> Option<u32> {
    scope.settings().mode_line.filter(|_| is_shown && !is_listed)
}

/// Explains a management tool of xy.
fn explain_own_tool(scope: Option<&Scope>, basis: ExplainResult) -> ExplainResult {
    let decision = match scope {
        None => Decision { shown: true, why: "nothing hides it", line: None },
        Some(scope) => scope.decide_own(&basis.name),
    };
    let is_listed = scope.is_none_or(|it| !it.is_search() || it.is_own_pinned(&basis.name));
    ExplainResult {
        known: true,
        shown: decision.shown,
        listed: decision.shown && is_listed,
        found_line: scope.and_then(|it| found_line(it, decision.shown, is_listed)),
        why: format!("{}; it is for those who may manage servers", decision.why),
        file: scope.map(|it| it.settings().file.clone()),
        line: decision.line,
        exposed: decision.shown.then(|| basis.name.clone()),
        ..basis
    }
}

fn explain_item(
    scope: Option<&Scope>,
    kind: Kind,
    target: Target,
    basis: ExplainResult,
) -> ExplainResult {
    let Target { server, item, is_known } = target;
    let basis = ExplainResult {
        server: Some(server.clone()),
        item: Some(item.clone()),
        known: is_known,
        ..basis
    };
    let Some(scope) = scope else {
        let exposed = match kind {
            Kind::Tools | Kind::Prompts => names::exposed(&server, &item),
            Kind::Resources | Kind::Templates => names::exposed_uri(&server, &item),
        };
        let why = "there is no file for the default profile, so nothing hides it".to_owned();
        return ExplainResult { shown: true, listed: true, why, exposed: Some(exposed), ..basis };
    };
    let decision = scope.decide(kind, &server, &item);
    let look = scope.appearance(kind, &server, &item);
    let is_taken = decision.shown && look.is_none();
    let (why, line) = if is_taken {
        ("another tool has its name here", scope.line_of_name(&server, &item))
    } else {
        (decision.why, decision.line)
    };
    let look = look.filter(|_| decision.shown);
    let is_listed = look.as_ref().is_some_and(|look| look.is_listed);
    ExplainResult {
        shown: look.is_some(),
        listed: is_listed,
        found_line: found_line(scope, look.is_some(), is_listed),
        why: why.to_owned(),
        file: Some(scope.settings().file.clone()),
        line,
        description: look.as_ref().and_then(|look| look.description.map(str::to_owned)),
        exposed: look.map(|look| look.name),
        ..basis
    }
}
