//! Servers that are one process under several names.

use std::rc::Rc;

use xy_supervisor::fleet::Member;

use super::Hub;
use crate::catalog::Known;
use crate::server::Server;

impl Hub {
    /// Whose instances answer for a server.
    pub(crate) fn home_of(&self, server: &Rc<Server>) -> Rc<Server> {
        let owner = server.owner().and_then(|owner| self.server(owner.as_str()));
        owner.unwrap_or_else(|| server.clone())
    }

    /// Whose instances a server has is known, and whether its name is to be seen.
    pub(crate) fn shares(&self, server: &Rc<Server>, member: &Member) {
        if !server.shares(member.owner.clone(), member.is_hidden()) {
            return;
        }
        let home = self.home_of(server);
        let known = home.known.borrow().clone().filter(|_| !Rc::ptr_eq(&home, server));
        if let Some(known) = known {
            server.known_by(&known);
        }
        self.lists_changed();
        self.tell_news();
    }
}

impl Server {
    /// What another that answers for it has said is offered under its own name.
    pub(crate) fn known_by(&self, known: &Known) {
        let (introduction, lists) = (known.introduction.clone(), known.lists.clone());
        let known = Known::new(self.name.as_str(), introduction, lists);
        self.known.replace(Some(Rc::new(known)));
    }
}
