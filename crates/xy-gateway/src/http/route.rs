//! Which path means what. Pure.

use hyper::Method;

use crate::frontend::View;
use xy_config::profile::DEFAULT_PROFILE;

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route<'p> {
    /// A conversation with what is shown there.
    Mcp(Endpoint<'p>),
    /// The same over the older transport: the stream of it.
    Older(Endpoint<'p>),
    /// Where messages of the older transport are posted to.
    Messages,
    /// Whether there is anybody.
    Health,
    /// Whether everything is up.
    Ready,
    /// Numbers.
    Metrics,
}

/// A [`View`] that is borrowed from the path, so that no call has to copy its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint<'p> {
    /// What a client's token is for, or else the default profile.
    Bare,
    Profile(&'p str),
    Server(&'p str),
}

impl Endpoint<'_> {
    pub(super) fn is(self, view: &View) -> bool {
        match (self, view) {
            (Self::Bare, View::Profile(other)) => other == DEFAULT_PROFILE,
            (Self::Profile(name), View::Profile(other))
            | (Self::Server(name), View::Server(other)) => name == other,
            _ => false,
        }
    }

    pub(super) fn to_view(self) -> View {
        match self {
            Self::Bare => View::Profile(DEFAULT_PROFILE.to_owned()),
            Self::Profile(name) => View::Profile(name.to_owned()),
            Self::Server(name) => View::Server(name.to_owned()),
        }
    }
}

/// What `path` leads to, if anything. A slash at its end changes nothing.
pub(super) fn route(path: &str) -> Option<Route<'_>> {
    let path = path.strip_suffix('/').unwrap_or(path);
    match path {
        "/mcp" => return Some(Route::Mcp(Endpoint::Bare)),
        "/sse" => return Some(Route::Older(Endpoint::Bare)),
        "/messages" => return Some(Route::Messages),
        "/healthz" => return Some(Route::Health),
        "/readyz" => return Some(Route::Ready),
        "/metrics" => return Some(Route::Metrics),
        _ => {}
    }
    if let Some(rest) = path.strip_prefix("/mcp/") {
        return place(rest).map(Route::Mcp);
    }
    place(path.strip_prefix("/sse/")?).map(Route::Older)
}

fn place(path: &str) -> Option<Endpoint<'_>> {
    let place = match path.split_once('/')? {
        ("p", name) => Endpoint::Profile(name),
        ("s", name) => Endpoint::Server(name),
        _ => return None,
    };
    let (Endpoint::Profile(name) | Endpoint::Server(name)) = place else { return None };
    (!name.is_empty() && !name.contains('/')).then_some(place)
}

/// The methods a route answers, as the `Allow` header lists them.
pub(super) fn allowed(route: Route<'_>) -> &'static str {
    match route {
        Route::Mcp(_) => "GET, POST, DELETE, OPTIONS",
        Route::Older(_) => "GET, OPTIONS",
        Route::Messages => "POST, OPTIONS",
        Route::Health | Route::Ready | Route::Metrics => "GET, HEAD, OPTIONS",
    }
}

/// Whether a route answers a method.
pub(super) fn answers(route: Route<'_>, method: &Method) -> bool {
    match route {
        Route::Mcp(_) => {
            matches!(*method, Method::POST | Method::GET | Method::DELETE | Method::OPTIONS)
        }
        Route::Older(_) => matches!(*method, Method::GET | Method::OPTIONS),
        Route::Messages => matches!(*method, Method::POST | Method::OPTIONS),
        Route::Health | Route::Ready | Route::Metrics => {
            matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_leads_to_one_place() {
        let profile = |name| Some(Route::Mcp(Endpoint::Profile(name)));
        let server = |name| Some(Route::Mcp(Endpoint::Server(name)));
        for (path, expected) in [
            ("/mcp", Some(Route::Mcp(Endpoint::Bare))),
            ("/mcp/", Some(Route::Mcp(Endpoint::Bare))),
            ("/mcp/p/default", profile("default")),
            ("/mcp/p/work", profile("work")),
            ("/mcp/p/work/", profile("work")),
            ("/mcp/s/git", server("git")),
            ("/mcp/s/%2e%2e", server("%2e%2e")), // No server has that name, and none is found.
            ("/sse", Some(Route::Older(Endpoint::Bare))),
            ("/sse/p/work", Some(Route::Older(Endpoint::Profile("work")))),
            ("/sse/s/git/", Some(Route::Older(Endpoint::Server("git")))),
            ("/sse/git", None),
            ("/messages", Some(Route::Messages)),
            ("/messages/p/work", None),
            ("/healthz", Some(Route::Health)),
            ("/readyz", Some(Route::Ready)),
            ("/metrics", Some(Route::Metrics)),
            ("/", None),
            ("", None),
            ("/mcp/p", None),
            ("/mcp/p/", None),
            ("/mcp/p//", None),
            ("/mcp/s/a/b", None),
            ("/mcp/x/a", None),
            ("/mcpx", None),
            ("/MCP", None),
            ("//mcp", None),
            ("*", None),
        ] {
            assert_eq!(route(path), expected, "{path}");
        }
    }

    #[test]
    fn a_place_is_its_own_view_and_no_other() {
        assert!(Endpoint::Profile("a").is(&Endpoint::Profile("a").to_view()));
        assert!(Endpoint::Server("a").is(&Endpoint::Server("a").to_view()));
        assert!(!Endpoint::Server("a").is(&Endpoint::Profile("a").to_view()));
        assert!(!Endpoint::Server("a").is(&Endpoint::Server("b").to_view()));
    }

    #[test]
    fn the_methods_that_are_listed_are_answered_and_no_others() {
        let place = Endpoint::Profile("a");
        let conversations = [Route::Mcp(place), Route::Older(place), Route::Messages];
        let routes = conversations.into_iter().chain([Route::Health, Route::Ready, Route::Metrics]);
        for route in routes {
            for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "X"] {
                let listed = allowed(route).split(", ").any(|listed| listed == method);
                let method = Method::from_bytes(method.as_bytes()).unwrap();
                assert_eq!(answers(route, &method), listed, "{method} {route:?}");
            }
        }
    }
}
