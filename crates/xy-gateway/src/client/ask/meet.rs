//! The first words: who is there, for clients of each era, as far as that is known.

use std::rc::Rc;

use xy_mcp::edit::Edits;

use super::{Request, Verdict};
use crate::client::{Client, Greeted};
use crate::era::{self, Era};
use crate::front::View;
use crate::modern;
use crate::names::quoted;
use crate::params::Params;
use crate::server::Server;

/// What the first answer to a client is when nothing is known of its server.
const ANYTHING: &str = r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"completions":{},"logging":{}}"#;

impl Client {
    /// The first request: who is there, and in which revision they speak.
    pub(super) fn greet(&self, request: &Request<'_>) -> Verdict {
        let version = era::offered(&request.params.version().unwrap_or_default());
        let capabilities = request.params.capabilities().unwrap_or("{}").into();
        let info = request.params.info().map(Into::into);
        *self.greeted.borrow_mut() = Some(Greeted { version, capabilities, info });
        self.hub.tune();
        match &self.entry.view {
            View::Profile(_) | View::All => Verdict::Result(self.hub.introduction(self, version)),
            View::Server(name) => self.greet_for(&name.clone(), version, request),
        }
    }

    pub(super) fn greet_for(
        &self,
        name: &str,
        version: &'static str,
        request: &Request<'_>,
    ) -> Verdict {
        let Some(server) = self.hub.server(name) else {
            return Verdict::Result(anything(name, version));
        };
        self.hub.want_to_know(&server, &self.me());
        if let Some(result) = introduced(&server, self, version) {
            return Verdict::Result(result);
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
    pub(super) fn discover(&self, request: &Request<'_>) -> Verdict {
        let View::Server(name) = &self.entry.view else {
            return Verdict::Result(self.hub.discovery(self));
        };
        let name = name.clone();
        let Some(server) = self.hub.server(&name) else {
            return Verdict::Result(modern::discovered_from(&anything(&name, era::LATEST)));
        };
        self.hub.want_to_know(&server, &self.me());
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
            Some(result) => Verdict::Result(result),
            None => self.later(request, move |it| discovered(it).map(Ok), move |_| Ok(at_last())),
        }
    }
}

/// What a server said of itself, and in which era, if it is known.
pub(super) fn said(server: &Rc<Server>, client: &Client) -> Option<(String, Era)> {
    let living = server.upstream(server.holder(client)).and_then(|it| it.introduction());
    if let Some(living) = living {
        return Some((living.result.clone(), living.era()));
    }
    let known = server.shown_to(client)?;
    Some((known.introduction.result.clone(), known.introduction.era()))
}

/// What a server said of itself, for a client of this revision.
fn introduced(server: &Rc<Server>, client: &Client, version: &'static str) -> Option<String> {
    let (result, era) = said(server, client)?;
    if era == Era::Modern {
        return Some(modern::introduced_from(server.name.as_str(), &result, version));
    }
    let Some(written) = Params::read(Some(&result)).version_as_written() else {
        return Some(result);
    };
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
