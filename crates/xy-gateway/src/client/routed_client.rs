//! The client as the router sees it.

use std::rc::Rc;

use xy_catalog::catalog::ExposedItem;
use xy_catalog::scope::Scope;
use xy_http::frontend::{Route, StreamNo};
use xy_mcp::kind::Kind;
use xy_mcp::level::Level;
use xy_mcp::via::Via;
use xy_protocol::error::CallError;
use xy_protocol::server::ServerName;
use xy_supervisor::instance::InstanceKey;
use xy_transport::retained::Retained;

use super::{Client, RequestPhase};
use crate::backend::Backend;
use crate::ownership::Owner;
use crate::router::{ListVersion, RoutedClient};
use crate::upstream::Upstream;
use crate::visibility::Visibility;

impl RoutedClient for Client {
    fn via(&self) -> Option<Via> {
        Self::via(self)
    }

    fn is_daemon(&self) -> bool {
        Self::is_daemon(self)
    }

    fn declared_capabilities(&self) -> Option<Box<str>> {
        Self::declared_capabilities(self)
    }

    fn has_handshake(&self) -> bool {
        self.handshake.borrow().is_some()
    }

    fn level(&self) -> Option<Level> {
        Self::level(self)
    }

    fn set_group_id(&self, group_id: u64) {
        Self::set_group_id(self, group_id);
    }

    fn set_visibility(&self, visibility: Visibility) {
        Self::set_visibility(self, visibility);
    }

    fn scope(&self) -> Option<Rc<Scope>> {
        Self::scope(self)
    }

    fn allows_server(&self, server: &str) -> bool {
        Self::allows_server(self, server)
    }

    fn reaches(&self, server: &str) -> bool {
        Self::reaches(self, server)
    }

    fn may_see(&self, kind: Kind, server: &ServerName, name: &str) -> bool {
        Self::may_see(self, kind, server, name)
    }

    fn check_bound(&self, server: &str) -> Result<(), CallError> {
        Self::check_bound(self, server)
    }

    fn may_call_own(&self, name: &str) -> bool {
        Self::may_call_own(self, name)
    }

    fn own_tools(&self, kind: Kind) -> Vec<ExposedItem> {
        Self::own_tools(self, kind)
    }

    fn offered_own(&self, kind: Kind) -> Vec<ExposedItem> {
        Self::offered_own(self, kind)
    }

    fn list_version(&self, kind: Kind) -> ListVersion {
        Self::list_version(self, kind)
    }

    fn set_list_version(&self, kind: Kind, version: ListVersion) {
        Self::set_list_version(self, kind, version);
    }

    fn notify_list_changed(&self, changed: &str) {
        Self::notify_list_changed(self, changed);
    }

    fn forward_list_changed(&self, changed: &str, line: &[u8]) {
        Self::forward_list_changed(self, changed, line);
    }

    fn notify_updated(&self, server: &Backend, uri: &str, line: &[u8]) {
        Self::notify_updated(self, server, uri, line);
    }

    fn notify_task(
        &self,
        at: &InstanceKey,
        id_and_owner: (&str, Option<Owner>),
        line: &[u8],
        is_over: bool,
    ) -> bool {
        Self::notify_task(self, at, id_and_owner, line, is_over)
    }

    fn followed_tasks(&self, at: &InstanceKey) -> Vec<String> {
        Self::followed_tasks(self, at)
    }

    fn has_watched(&self) -> bool {
        Self::has_watched(self)
    }

    fn ask(&self, by: &Rc<Upstream>, id: &str, line: &[u8], to: Route) -> Result<(), CallError> {
        Self::ask(self, by, id, line, to)
    }

    fn cancel_question(&self, by: &Rc<Upstream>, id: &str, line: &[u8]) {
        Self::cancel_question(self, by, id, line);
    }

    fn does_task_for(&self, by: &Rc<Upstream>, id: &str) -> bool {
        Self::does_task_for(self, by, id)
    }

    fn cancel_all_from(&self, by: &Rc<Upstream>) {
        Self::cancel_all_from(self, by);
    }

    fn set_queued(&self, id: &str, server: Rc<Backend>, ticket: u64, stream: StreamNo) {
        self.set_phase(id, RequestPhase::Queued { server, ticket }, stream);
    }

    fn count(&self, counts: &mut Retained) {
        Self::count(self, counts);
    }
}
