//! The handshake: `initialize` for legacy clients, `server/discover` for modern ones.

use std::rc::Rc;

use xy_http::frontend::View;
use xy_mcp::edit::{Edits, quoted};
use xy_mcp::era::Era;
use xy_mcp::params::Params;
use xy_mcp::{modern, reply, revision};
use xy_protocol::error::CallError;

use super::{Outcome, Request};
use crate::backend::Backend;
use crate::call::CallClient;
use crate::client::{Client, Handshake};

/// The capabilities in the handshake when nothing is known of the server.
const PLACEHOLDER_CAPABILITIES: &str = r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"completions":{},"logging":{}}"#;

impl Client {
    /// Answers `initialize` and fixes the protocol revision.
    pub(super) fn initialize(&self, request: &Request<'_>) -> Result<Outcome, CallError> {
        let wished = requested_version(&request.params, request.params_text)?;
        let version = revision::offered(&wished);
        let capabilities = request.params.capabilities().unwrap_or("{}").into();
        let info = request.params.info().map(Into::into);
        *self.handshake.borrow_mut() = Some(Handshake { version, capabilities, info });
        self.router.update_log_level();
        match &self.entry.view {
            View::Profile(_) | View::All => {
                Ok(Outcome::Result(self.router.introduction(self, version)))
            }
            View::Server(name) => Ok(self.initialize_for_server(&name.clone(), version, request)),
        }
    }

    pub(super) fn initialize_for_server(
        &self,
        name: &str,
        version: &'static str,
        request: &Request<'_>,
    ) -> Outcome {
        let Some(server) = self.router.server(name) else {
            return Outcome::Result(placeholder_introduction(name, version));
        };
        self.router.request_introduction(&server, self);
        if let Some(result) = introduce(&server, self, version) {
            return Outcome::Result(result);
        }
        let (name, named) = (name.to_owned(), name.to_owned());
        self.respond_later(
            request,
            move |client| match introduce(&server, client, version) {
                Some(result) => Some(Ok(result)),
                None => (!server.is_shown()).then(|| Ok(placeholder_introduction(&name, version))),
            },
            move |_| Ok(placeholder_introduction(&named, version)),
        )
    }

    /// Answers `server/discover`.
    pub(super) fn discover(&self, request: &Request<'_>) -> Outcome {
        let View::Server(name) = &self.entry.view else {
            return Outcome::Result(self.router.discovery(self));
        };
        let name = name.clone();
        let Some(server) = self.router.server(&name) else {
            return Outcome::Result(modern::discovered_from(&placeholder_introduction(
                &name,
                revision::LATEST,
            )));
        };
        self.router.request_introduction(&server, self);
        let unknown =
            move || modern::discovered_from(&placeholder_introduction(&name, revision::LATEST));
        let (when_down, at_last) = (unknown.clone(), unknown);
        let discovered = move |client: &Client| {
            introduction_of(&server, client).map_or_else(
                || (!server.is_shown()).then(&when_down),
                |(result, era)| match era {
                    Era::Modern => Some(result),
                    Era::Legacy => Some(modern::discovered_from(&result)),
                },
            )
        };
        match discovered(self) {
            Some(result) => Outcome::Result(result),
            None => self.respond_later(
                request,
                move |it| discovered(it).map(Ok),
                move |_| Ok(at_last()),
            ),
        }
    }
}

/// Returns the revision that a client requests in `initialize`. `capabilities` and `clientInfo` may
/// be missing, since some clients omit them.
fn requested_version(params: &Params<'_>, text: Option<&str>) -> Result<String, CallError> {
    if !text.is_some_and(|text| text.starts_with('{')) {
        return Err(reply::invalid("`params` of `initialize` is not an object")
            .hint("it needs at least a `protocolVersion`"));
    }
    if params.version_as_written().is_none() {
        return Err(reply::invalid("`initialize` has no `protocolVersion`")
            .hint(format!("say which one you speak, such as `{}`", revision::LATEST)));
    }
    let wished =
        params.version().ok_or_else(|| reply::invalid("`protocolVersion` is not a string"))?;
    for (key, written) in [("capabilities", params.capabilities()), ("clientInfo", params.info())] {
        if written.is_some_and(|written| !written.starts_with('{')) {
            return Err(reply::invalid(format!("`{key}` is not an object")));
        }
    }
    Ok(wished)
}

/// Returns the introduction of a server and its era, if known.
pub(super) fn introduction_of(server: &Rc<Backend>, client: &Client) -> Option<(String, Era)> {
    let living = server.upstream(server.holder(client)).and_then(|it| it.introduction());
    let speaks_it = living.as_ref().is_some_and(|it| it.era() == client.era());
    if !speaks_it && let Some(own) = server.primary_or_self().introduction_in(client.era()) {
        return Some((own.result, client.era()));
    }
    if let Some(living) = living {
        return Some((living.result.clone(), living.era()));
    }
    let known = server.shown_to(client)?;
    Some((known.introduction.result.clone(), known.introduction.era()))
}

/// Introduces a server to a client that requests revision `version`. The older of the two revisions
/// is used with the client.
fn introduce(server: &Rc<Backend>, client: &Client, version: &'static str) -> Option<String> {
    let (result, era) = introduction_of(server, client)?;
    if era == Era::Modern {
        return Some(modern::introduced_from(server.name.as_str(), &result, version));
    }
    let params = Params::read(Some(&result));
    let Some(written) = params.version_as_written() else {
        return Some(result);
    };
    let own = params.version().and_then(|own| revision::known(&own));
    let version = own.map_or(version, |own| own.min(version)); // Revisions are dates.
    client.set_version(version);
    let mut edits = Edits::of(result.as_bytes());
    edits.replace(written, quoted(version));
    Some(String::from_utf8_lossy(&edits.to_vec()).into_owned())
}

/// Returns the introduction of a server that is not known yet.
fn placeholder_introduction(name: &str, version: &str) -> String {
    let name = quoted(name);
    format!(
        r#"{{"protocolVersion":"{version}","capabilities":{PLACEHOLDER_CAPABILITIES},"serverInfo":{{"name":{name},"version":"unknown"}}}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wished(text: Option<&str>) -> Result<String, String> {
        requested_version(&Params::read(text), text).map_err(|fault| fault.message)
    }

    #[test]
    fn malformed_initialize_params_are_rejected() {
        for (params, says) in [
            (None, "`params` of `initialize` is not an object"),
            (Some("[]"), "`params` of `initialize` is not an object"),
            (Some("[1]"), "`params` of `initialize` is not an object"),
            (Some("{}"), "`initialize` has no `protocolVersion`"),
            (Some(r#"{"protocolVersion":null}"#), "`initialize` has no `protocolVersion`"),
            (Some(r#"{"protocolVersion":7}"#), "`protocolVersion` is not a string"),
            (Some(r#"{"protocolVersion":["x"]}"#), "`protocolVersion` is not a string"),
            (
                Some(r#"{"protocolVersion":"x","capabilities":7}"#),
                "`capabilities` is not an object",
            ),
            (Some(r#"{"protocolVersion":"x","clientInfo":[]}"#), "`clientInfo` is not an object"),
        ] {
            assert_eq!(wished(params), Err(says.to_owned()), "{params:?}");
        }
    }

    #[test]
    fn client_info_and_capabilities_are_optional() {
        for params in [
            r#"{"protocolVersion":"x"}"#,
            r#"{"protocolVersion":"x","capabilities":null,"clientInfo":null}"#,
            r#"{"protocolVersion":"x","capabilities":{},"clientInfo":{}}"#,
        ] {
            assert_eq!(wished(Some(params)), Ok("x".to_owned()), "{params}");
        }
    }
}
