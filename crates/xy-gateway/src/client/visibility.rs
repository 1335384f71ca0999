//! What of all servers a client is shown, and what it may ask for.

use std::rc::Rc;

use xy_protocol::control::quoted as shortened;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;

use super::Client;
use super::dispatch::find;
use crate::backend::Backend;
use crate::catalog::{Kind, Known, Shown};
use crate::frontend::View;
use crate::names;
use crate::scope::Scope;
use crate::tools;

/// What of all servers a client is shown.
#[derive(Debug, Clone)]
pub(crate) enum Visibility {
    /// Everything: nobody has to be asked.
    All,
    /// What a profile shows.
    Scope(Rc<Scope>),
    /// Nothing: its profile is not there any more.
    Nothing,
}

impl Visibility {
    /// What it lets through of what is known of a server.
    pub(crate) fn visible(&self, server: &ServerName, known: Rc<Known>) -> Option<Rc<Known>> {
        match self {
            Self::All => Some(known),
            Self::Scope(scope) => {
                let is_shown = scope.decide_server(server.as_str()).shown;
                let seen = is_shown.then(|| known.within(server.as_str(), scope))?;
                if let Some(doubles) = seen.take_doubles() {
                    tracing::warn!(%server, profile = scope.settings().name, "{doubles}");
                }
                Some(seen)
            }
            Self::Nothing => None,
        }
    }

    /// Whether it lets anything of a server through.
    fn allows_server(&self, server: &str) -> bool {
        match self {
            Self::All => true,
            Self::Scope(scope) => scope.decide_server(server).shown,
            Self::Nothing => false,
        }
    }

    /// Whether it lets an item of a server through, by what the server calls it.
    fn sees_item(&self, kind: Kind, server: &ServerName, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Scope(scope) => scope.decide(kind, server.as_str(), name).shown,
            Self::Nothing => false,
        }
    }

    /// Whether it lets a managing tool of xy's own through.
    fn sees_own(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Scope(scope) => scope.decide_own(name).shown,
            Self::Nothing => false,
        }
    }

    /// Its rule, if there is one.
    pub(crate) fn scope(&self) -> Option<&Rc<Scope>> {
        match self {
            Self::Scope(scope) => Some(scope),
            Self::All | Self::Nothing => None,
        }
    }
}

impl Client {
    /// What it is shown from now on.
    pub(crate) fn look_through(&self, visibility: Visibility) {
        self.visibility.replace(visibility);
    }

    /// What it calls itself, if it has said.
    pub(crate) fn called(&self) -> Option<String> {
        #[derive(serde::Deserialize)]
        struct Info {
            name: String,
        }
        let greeted = self.greeted.borrow().as_ref().and_then(|it| it.info.clone());
        let info =
            greeted.or_else(|| self.manner.borrow().as_ref().and_then(|it| it.info.clone()))?;
        serde_json::from_str::<Info>(&info).ok().map(|info| info.name)
    }

    /// The rule it lives by, if there is one.
    pub(crate) fn scope(&self) -> Option<Rc<Scope>> {
        self.visibility.borrow().scope().cloned()
    }

    /// What it is shown of what is known of a server.
    pub(crate) fn visible(&self, server: &ServerName, known: Rc<Known>) -> Option<Rc<Known>> {
        if self.is_hidden_by_loop(server.as_str()) {
            return None;
        }
        self.visibility.borrow().visible(server, known)
    }

    /// Whether it is shown anything of a server.
    pub(crate) fn allows_server(&self, server: &str) -> bool {
        self.visibility.borrow().allows_server(server) && !self.is_hidden_by_loop(server)
    }

    /// Returns true if a server is left out of its view of all servers, to end a loop.
    fn is_hidden_by_loop(&self, server: &str) -> bool {
        !matches!(self.entry.view, View::Server(_)) && self.router.is_beyond_horizon(self, server)
    }

    /// Returns true if its view includes a server, ignoring loop protection.
    pub(crate) fn reaches(&self, server: &str) -> bool {
        match &self.entry.view {
            View::Server(only) => only == server,
            View::Profile(_) | View::All => self.visibility.borrow().allows_server(server),
        }
    }

    /// Whether it may ask for an item of a server, by what the server calls it.
    pub(crate) fn may_see(&self, kind: Kind, server: &ServerName, name: &str) -> bool {
        if let View::Server(only) = &self.entry.view {
            return only == server.as_str() && self.check_bound(only).is_ok();
        }
        self.visibility.borrow().sees_item(kind, server, name)
            && !self.is_hidden_by_loop(server.as_str())
    }

    /// The server that has the tool or prompt of this name outside, and what that calls it;
    /// `None` if there is none that this client is shown.
    pub(crate) fn resolve(&self, kind: Kind, outside: &str) -> Option<(Rc<Backend>, String)> {
        let scope = self.scope();
        let renamed = scope.as_ref().filter(|_| kind == Kind::Tools);
        let renamed = renamed.and_then(|scope| scope.renamed(outside));
        let (server, rest) = renamed.or_else(|| names::inside(outside))?;
        let server = self.router.server_for(self, server)?;
        if let Some(known) = server.known_to(self) {
            let inside = known.inside(kind, outside)?.to_owned();
            return Some((server, inside));
        }
        // It says itself whether it has that, if it may be asked.
        let is_shown = scope.as_ref().is_none_or(|scope| {
            let name = server.name.as_str();
            let has_name = |look: crate::scope::Look<'_>| look.name == outside;
            scope.decide(kind, name, rest).shown
                && scope.look(kind, name, rest).is_some_and(has_name)
        });
        is_shown.then(|| (server, rest.to_owned()))
    }

    /// Whether a name is that of a managing tool of xy's own, which its profile does not hide.
    /// Whether it has the right is another question.
    pub(crate) fn may_call_own(&self, name: &str) -> bool {
        tools::is_own(name) && !self.is_daemon() && self.visibility.borrow().sees_own(name)
    }

    /// The tools of xy's own that it is shown in a list.
    pub(crate) fn own_tools(&self, kind: Kind) -> Vec<Shown> {
        if self.is_daemon() {
            return Vec::new();
        }
        let mut own = tools::shown(kind, self.entry.may_manage);
        match &*self.visibility.borrow() {
            Visibility::All => {}
            Visibility::Scope(scope) => {
                own.retain(|it| {
                    let is_listed = !scope.is_search() || scope.is_own_pinned(&it.name);
                    is_listed && scope.decide_own(&it.name).shown
                });
                if scope.is_search() && kind == Kind::Tools {
                    own.splice(0..0, find::shown());
                }
            }
            Visibility::Nothing => own.clear(),
        }
        own
    }

    /// The tools of xy's own that it may use, in a list or not.
    pub(crate) fn offered_own(&self, kind: Kind) -> Vec<Shown> {
        let mut own = tools::shown(kind, self.entry.may_manage);
        own.retain(|it| self.may_call_own(&it.name));
        let is_search = self.scope().is_some_and(|scope| scope.is_search());
        if kind == Kind::Tools && is_search && !self.is_daemon() {
            own.extend(find::shown());
        }
        own
    }

    /// Whether there is anything that it can be shown.
    pub(crate) fn check_lens(&self) -> Result<(), CallError> {
        if !matches!(*self.visibility.borrow(), Visibility::Nothing) {
            return Ok(());
        }
        let name = match &self.entry.view {
            View::Profile(name) => shortened(name),
            View::All | View::Server(_) => String::new(),
        };
        let message = format!("there is no profile named `{name}` any more");
        Err(CallError::new(ErrorKind::NotAllowed, message)
            .hint(format!("make `profiles/{name}.kdl` again and `xy reload`, or use another")))
    }

    /// Whether its token may still be used with this server alone.
    pub(crate) fn check_bound(&self, server: &str) -> Result<(), CallError> {
        let Some(profile) = &self.entry.bound else { return Ok(()) };
        self.router
            .check_bound(profile, server)
            .map_err(|refusal| CallError::new(ErrorKind::NotAllowed, refusal.to_string()))
    }
}
