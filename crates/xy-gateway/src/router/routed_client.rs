//! The client as the router sees it.

use std::rc::Rc;

use xy_catalog::catalog::ExposedItem;
use xy_catalog::scope::Scope;
use xy_http::frontend::{ClientSession, Route, StreamNo};
use xy_mcp::kind::Kind;
use xy_mcp::level::Level;
use xy_mcp::via::Via;
use xy_protocol::error::CallError;
use xy_protocol::server::ServerName;
use xy_supervisor::instance::InstanceKey;
use xy_transport::retained::Retained;

use crate::backend::Backend;
use crate::call::CallClient;
use crate::ownership::Owner;
use crate::upstream::Upstream;
use crate::visibility::Visibility;

/// A client session: what the router needs to know of it, and sends to it.
pub(crate) trait RoutedClient: CallClient + ClientSession {
    /// Returns the daemons on the client's path, if the client is another xy.
    fn via(&self) -> Option<Via>;
    /// Returns true if the client is another xy, which is offered no management tools.
    fn is_daemon(&self) -> bool;
    /// Returns the client's capabilities as JSON text: from the handshake, otherwise from the
    /// latest request.
    fn declared_capabilities(&self) -> Option<Box<str>>;
    /// Returns true if there was an `initialize` handshake.
    fn has_handshake(&self) -> bool;
    /// Returns the minimum log level that the client has set, if it has.
    fn level(&self) -> Option<Level>;
    /// Adds the client to a group that the listener cannot tell apart.
    fn set_group_id(&self, group_id: u64);

    /// Replaces the visibility filter.
    fn set_visibility(&self, visibility: Visibility);
    /// Returns the rule of the client's profile, if there is one.
    fn scope(&self) -> Option<Rc<Scope>>;
    /// Returns true if the client sees any part of a server.
    fn allows_server(&self, server: &str) -> bool;
    /// Returns true if the client's view includes a server, ignoring loop protection.
    fn reaches(&self, server: &str) -> bool;
    /// Returns true if the client may use an item of a server. `name` is the server's own name for
    /// it.
    fn may_see(&self, kind: Kind, server: &ServerName, name: &str) -> bool;
    /// Checks that the client's token may use `server` directly.
    fn check_bound(&self, server: &str) -> Result<(), CallError>;
    /// Returns true if `name` is a visible management tool of xy.
    fn may_call_own(&self, name: &str) -> bool;
    /// Returns the tools of xy itself that appear in the client's lists.
    fn own_tools(&self, kind: Kind) -> Vec<ExposedItem>;
    /// Returns all tools of xy itself that the client may use, listed or not.
    fn offered_own(&self, kind: Kind) -> Vec<ExposedItem>;

    /// Returns the version of a list that the client knows.
    fn list_version(&self, kind: Kind) -> ListVersion;
    /// Records the version of a list that the client knows.
    fn set_list_version(&self, kind: Kind, version: ListVersion);
    /// Notifies the client that a list has changed.
    fn notify_list_changed(&self, changed: &str);
    /// Forwards a server's notification that a list has changed.
    fn forward_list_changed(&self, changed: &str, line: &[u8]);
    /// Notifies the client of a changed resource, if it watches it.
    fn notify_updated(&self, server: &Backend, uri: &str, line: &[u8]);
    /// Sends the status of a task to the client's subscriptions; returns true if there is one.
    fn notify_task(
        &self,
        at: &InstanceKey,
        id_and_owner: (&str, Option<Owner>),
        line: &[u8],
        is_over: bool,
    ) -> bool;
    /// Returns the tasks of an instance that the client follows.
    fn followed_tasks(&self, at: &InstanceKey) -> Vec<String>;
    /// Returns true if the client has ever subscribed to a resource.
    fn has_watched(&self) -> bool;

    /// Forwards a server's request to the client; `line` is the whole message.
    fn ask(&self, by: &Rc<Upstream>, id: &str, line: &[u8], to: Route) -> Result<(), CallError>;
    /// Forwards a server's cancellation of its request.
    fn cancel_question(&self, by: &Rc<Upstream>, id: &str, line: &[u8]);
    /// Returns true if the client runs this task for this server.
    fn does_task_for(&self, by: &Rc<Upstream>, id: &str) -> bool;
    /// Cancels all requests of a server that has ended.
    fn cancel_all_from(&self, by: &Rc<Upstream>);
    /// Marks request `id` as queued for a server.
    fn set_queued(&self, id: &str, server: Rc<Backend>, ticket: u64, stream: StreamNo);
    /// Adds the number of retained objects to `counts`.
    fn count(&self, counts: &mut Retained);
}

/// The version of a list that a client knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ListVersion {
    /// The client has not requested the list.
    #[default]
    NotListed,
    /// The client received the list from its server, and xy has not read it yet.
    Unknown,
    /// The list with this fingerprint.
    Fingerprint(u64),
}
