//! What a client sees and may use of the servers.

use std::rc::Rc;

use xy_catalog::catalog::ExposedItem;
use xy_catalog::names;
use xy_catalog::scope::Scope;
use xy_http::frontend::View;
use xy_mcp::kind::Kind;
use xy_protocol::control::quoted as shortened;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;

use super::Client;
use crate::backend::Backend;
use crate::tools::{self, search};
use crate::visibility::Visibility;

impl Client {
    /// Replaces the visibility filter.
    pub(crate) fn set_visibility(&self, visibility: Visibility) {
        self.visibility.replace(visibility);
    }

    /// Returns the rule of the client's profile, if there is one.
    pub(crate) fn scope(&self) -> Option<Rc<Scope>> {
        self.visibility.borrow().scope().cloned()
    }

    /// Returns true if the client sees any part of a server.
    pub(crate) fn allows_server(&self, server: &str) -> bool {
        self.visibility.borrow().allows_server(server) && !self.is_hidden_by_loop(server)
    }

    /// Returns true if a server is hidden from the combined view of this client, to break a loop.
    pub(super) fn is_hidden_by_loop(&self, server: &str) -> bool {
        !matches!(self.entry.view, View::Server(_)) && self.router.is_beyond_horizon(self, server)
    }

    /// Returns true if the client's view includes a server, ignoring loop protection.
    pub(crate) fn reaches(&self, server: &str) -> bool {
        match &self.entry.view {
            View::Server(only) => only == server,
            View::Profile(_) | View::All => self.visibility.borrow().allows_server(server),
        }
    }

    /// Returns true if the client may use an item of a server. `name` is the server's own name for
    /// it.
    pub(crate) fn may_see(&self, kind: Kind, server: &ServerName, name: &str) -> bool {
        if let View::Server(only) = &self.entry.view {
            return only == server.as_str() && self.check_bound(only).is_ok();
        }
        self.visibility.borrow().allows_item(kind, server, name)
            && !self.is_hidden_by_loop(server.as_str())
    }

    /// Finds the visible tool or prompt with this exposed name: its server, and the server's name
    /// for it.
    pub(crate) fn resolve(&self, kind: Kind, exposed: &str) -> Option<(Rc<Backend>, String)> {
        let scope = self.scope();
        let renamed = scope.as_ref().filter(|_| kind == Kind::Tools);
        let renamed = renamed.and_then(|scope| scope.renamed(exposed));
        let (server, rest) = renamed.or_else(|| names::split_exposed(exposed))?;
        let server = self.router.server_for(self, server)?;
        if let Some(known) = server.known_to(self) {
            let original = known.original_name(kind, exposed)?.to_owned();
            return Some((server, original));
        }
        // The server is not known yet: ask it, if the profile shows an item of this name.
        let is_shown = scope.as_ref().is_none_or(|scope| {
            let name = server.name.as_str();
            let has_name = |look: xy_catalog::scope::Appearance<'_>| look.name == exposed;
            scope.decide(kind, name, rest).shown
                && scope.appearance(kind, name, rest).is_some_and(has_name)
        });
        is_shown.then(|| (server, rest.to_owned()))
    }

    /// Returns true if `name` is a visible management tool of xy. Does not check the client's right
    /// to call it.
    pub(crate) fn may_call_own(&self, name: &str) -> bool {
        tools::is_own(name) && !self.is_daemon() && self.visibility.borrow().allows_own_tool(name)
    }

    /// Returns the tools of xy itself that appear in the client's lists.
    pub(crate) fn own_tools(&self, kind: Kind) -> Vec<ExposedItem> {
        if self.is_daemon() {
            return Vec::new();
        }
        let mut own = tools::exposed(kind, self.entry.may_manage);
        match &*self.visibility.borrow() {
            Visibility::All => {}
            Visibility::Scope(scope) => {
                own.retain(|it| {
                    let is_listed = !scope.is_search() || scope.is_own_pinned(&it.name);
                    is_listed && scope.decide_own(&it.name).shown
                });
                if scope.is_search() && kind == Kind::Tools {
                    own.splice(0..0, search::exposed());
                }
            }
            Visibility::Nothing => own.clear(),
        }
        own
    }

    /// Returns all tools of xy itself that the client may use, listed or not.
    pub(crate) fn offered_own(&self, kind: Kind) -> Vec<ExposedItem> {
        let mut own = tools::exposed(kind, self.entry.may_manage);
        own.retain(|it| self.may_call_own(&it.name));
        let is_search = self.scope().is_some_and(|scope| scope.is_search());
        if kind == Kind::Tools && is_search && !self.is_daemon() {
            own.extend(search::exposed());
        }
        own
    }

    /// Checks that the client's profile still exists.
    pub(crate) fn check_profile(&self) -> Result<(), CallError> {
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

    /// Checks that the client's token may use `server` directly.
    pub(crate) fn check_bound(&self, server: &str) -> Result<(), CallError> {
        let Some(profile) = &self.entry.bound else { return Ok(()) };
        self.router
            .check_bound(profile, server)
            .map_err(|refusal| CallError::new(ErrorKind::NotAllowed, refusal.to_string()))
    }
}
