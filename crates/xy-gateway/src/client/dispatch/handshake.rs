//! The first words: who is there, for clients of each era, as far as that is known.

use std::rc::Rc;

use xy_mcp::edit::Edits;
use xy_protocol::error::CallError;

use super::{Outcome, Request};
use crate::backend::Backend;
use crate::client::{Client, Greeted};
use crate::era::{self, Era};
use crate::frontend::View;
use crate::modern;
use crate::names::quoted;
use crate::params::Params;
use crate::reply;

/// What the first answer to a client is when nothing is known of its server.
const ANYTHING: &str = r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"completions":{},"logging":{}}"#;

impl Client {
    /// The first request: who is there, and in which revision they speak.
    pub(super) fn greet(&self, request: &Request<'_>) -> Result<Outcome, CallError> {
        let wished = wished_version(&request.params, request.params_text)?;
        let version = era::offered(&wished);
        let capabilities = request.params.capabilities().unwrap_or("{}").into();
        let info = request.params.info().map(Into::into);
        *self.greeted.borrow_mut() = Some(Greeted { version, capabilities, info });
        self.router.tune();
        match &self.entry.view {
            View::Profile(_) | View::All => {
                Ok(Outcome::Result(self.router.introduction(self, version)))
            }
            View::Server(name) => Ok(self.greet_for(&name.clone(), version, request)),
        }
    }

    pub(super) fn greet_for(
        &self,
        name: &str,
        version: &'static str,
        request: &Request<'_>,
    ) -> Outcome {
        let Some(server) = self.router.server(name) else {
            return Outcome::Result(anything(name, version));
        };
        self.router.want_to_know(&server, &self.me());
        if let Some(result) = introduced(&server, self, version) {
            return Outcome::Result(result);
        }
        let (name, named) = (name.to_owned(), name.to_owned());
        self.later(
            request,
            move |client| match introduced(&server, client, version) {
                Some(result) => Some(Ok(result)),
                None => (!server.is_shown()).then(|| Ok(anything(&name, version))),
            },
            move |_| Ok(anything(&named, version)),
        )
    }

    /// Who is there, for a client that says everything by itself.
    pub(super) fn discover(&self, request: &Request<'_>) -> Outcome {
        let View::Server(name) = &self.entry.view else {
            return Outcome::Result(self.router.discovery(self));
        };
        let name = name.clone();
        let Some(server) = self.router.server(&name) else {
            return Outcome::Result(modern::discovered_from(&anything(&name, era::LATEST)));
        };
        self.router.want_to_know(&server, &self.me());
        let unknown = move || modern::discovered_from(&anything(&name, era::LATEST));
        let (when_down, at_last) = (unknown.clone(), unknown);
        let discovered = move |client: &Client| {
            said(&server, client).map_or_else(
                || (!server.is_shown()).then(&when_down),
                |(result, era)| match era {
                    Era::Modern => Some(result),
                    Era::Legacy => Some(modern::discovered_from(&result)),
                },
            )
        };
        match discovered(self) {
            Some(result) => Outcome::Result(result),
            None => self.later(request, move |it| discovered(it).map(Ok), move |_| Ok(at_last())),
        }
    }
}

/// The revision that a client wishes for in its first words, if these are as they have to be.
/// What it can do and who it is may be left out, since some clients do.
fn wished_version(params: &Params<'_>, text: Option<&str>) -> Result<String, CallError> {
    if !text.is_some_and(|text| text.starts_with('{')) {
        return Err(reply::invalid("`params` of `initialize` is not an object")
            .hint("it needs at least a `protocolVersion`"));
    }
    if params.version_as_written().is_none() {
        return Err(reply::invalid("`initialize` has no `protocolVersion`")
            .hint(format!("say which one you speak, such as `{}`", era::LATEST)));
    }
    let wished =
        params.version().ok_or_else(|| reply::invalid("`protocolVersion` is not a text"))?;
    for (key, written) in [("capabilities", params.capabilities()), ("clientInfo", params.info())] {
        if written.is_some_and(|written| !written.starts_with('{')) {
            return Err(reply::invalid(format!("`{key}` is not an object")));
        }
    }
    Ok(wished)
}

/// What a server said of itself, and in which era, if it is known.
pub(super) fn said(server: &Rc<Backend>, client: &Client) -> Option<(String, Era)> {
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

/// Introduces a server to a client that asks for revision `version`, in the one that the server
/// itself would name: its own, if that is older. The client is spoken with in that one.
fn introduced(server: &Rc<Backend>, client: &Client, version: &'static str) -> Option<String> {
    let (result, era) = said(server, client)?;
    if era == Era::Modern {
        return Some(modern::introduced_from(server.name.as_str(), &result, version));
    }
    let params = Params::read(Some(&result));
    let Some(written) = params.version_as_written() else {
        return Some(result);
    };
    let own = params.version().and_then(|own| era::known(&own));
    let version = own.map_or(version, |own| own.min(version)); // Revisions are dates.
    client.agree(version);
    let mut edits = Edits::of(result.as_bytes());
    edits.replace(written, quoted(version));
    Some(String::from_utf8_lossy(&edits.to_vec()).into_owned())
}

/// What is said of a server of which nothing is known yet.
fn anything(name: &str, version: &str) -> String {
    let name = quoted(name);
    format!(
        r#"{{"protocolVersion":"{version}","capabilities":{ANYTHING},"serverInfo":{{"name":{name},"version":"unknown"}}}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wished(text: Option<&str>) -> Result<String, String> {
        wished_version(&Params::read(text), text).map_err(|fault| fault.message)
    }

    #[test]
    fn first_words_need_a_version_and_nothing_of_another_kind() {
        for (params, says) in [
            (None, "`params` of `initialize` is not an object"),
            (Some("[]"), "`params` of `initialize` is not an object"),
            (Some("[1]"), "`params` of `initialize` is not an object"),
            (Some("{}"), "`initialize` has no `protocolVersion`"),
            (Some(r#"{"protocolVersion":null}"#), "`initialize` has no `protocolVersion`"),
            (Some(r#"{"protocolVersion":7}"#), "`protocolVersion` is not a text"),
            (Some(r#"{"protocolVersion":["x"]}"#), "`protocolVersion` is not a text"),
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
    fn who_a_client_is_and_what_it_can_do_may_be_left_out() {
        for params in [
            r#"{"protocolVersion":"x"}"#,
            r#"{"protocolVersion":"x","capabilities":null,"clientInfo":null}"#,
            r#"{"protocolVersion":"x","capabilities":{},"clientInfo":{}}"#,
        ] {
            assert_eq!(wished(Some(params)), Ok("x".to_owned()), "{params}");
        }
    }
}
