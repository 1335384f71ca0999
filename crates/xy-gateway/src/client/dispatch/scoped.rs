//! Visibility checks for requests that began under an earlier profile.

use xy_catalog::names;
use xy_http::frontend::View;
use xy_mcp::envelope::text_of;
use xy_mcp::kind::Kind;

use super::Request;
use crate::client::Client;

impl Client {
    /// Returns true unless the client's profile hides the target of a request. A target that does
    /// not exist is reported by the dispatcher.
    pub(super) fn is_still_shown(&self, request: &Request<'_>) -> bool {
        if matches!(self.entry.view, View::Server(_)) || self.scope().is_none() {
            return self.check_profile().is_ok();
        }
        let by_name = |kind| {
            let name = request.params.name().and_then(text_of);
            name.is_some_and(|name| self.resolve(kind, &name).is_some())
        };
        match request.method {
            "tools/call" => by_name(Kind::Tools),
            "prompts/get" => by_name(Kind::Prompts),
            "resources/read" => request.params.uri().and_then(text_of).is_some_and(|uri| {
                match names::split_exposed_uri(&uri) {
                    Some((server, inside)) => self
                        .router
                        .server_for(self, server)
                        .is_some_and(|it| self.may_see(Kind::Resources, &it.name, inside)),
                    None => self.router.owner_of(self, &uri).is_ok(),
                }
            }),
            _ => true,
        }
    }
}
