//! Routes paths. Pure.

use hyper::Method;
use xy_config::profile::DEFAULT_PROFILE;

use crate::frontend::View;

/// The target of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HttpRoute<'p> {
    /// The Streamable HTTP endpoint of a view.
    Mcp(Endpoint<'p>),
    /// The event stream of the legacy transport.
    LegacySse(Endpoint<'p>),
    /// The path to which clients of the legacy transport post messages.
    LegacyMessages,
    /// `/healthz`: whether the daemon is running.
    Health,
    /// `/readyz`: whether all servers are up.
    Ready,
    /// `/metrics`.
    Metrics,
}

/// A [`View`] that borrows its name from the path, so that calls do not copy it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint<'p> {
    /// The profile of the client's token, or the default profile.
    Bare,
    Profile(&'p str),
    Server(&'p str),
}

impl Endpoint<'_> {
    pub(super) fn matches(self, view: &View) -> bool {
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

/// Returns the route of a path. A trailing slash is ignored.
pub(super) fn route(path: &str) -> Option<HttpRoute<'_>> {
    let path = path.strip_suffix('/').unwrap_or(path);
    match path {
        "/mcp" => return Some(HttpRoute::Mcp(Endpoint::Bare)),
        "/sse" => return Some(HttpRoute::LegacySse(Endpoint::Bare)),
        "/messages" => return Some(HttpRoute::LegacyMessages),
        "/healthz" => return Some(HttpRoute::Health),
        "/readyz" => return Some(HttpRoute::Ready),
        "/metrics" => return Some(HttpRoute::Metrics),
        _ => {}
    }
    if let Some(rest) = path.strip_prefix("/mcp/") {
        return parse_endpoint(rest).map(HttpRoute::Mcp);
    }
    parse_endpoint(path.strip_prefix("/sse/")?).map(HttpRoute::LegacySse)
}

fn parse_endpoint(path: &str) -> Option<Endpoint<'_>> {
    let endpoint = match path.split_once('/')? {
        ("p", name) => Endpoint::Profile(name),
        ("s", name) => Endpoint::Server(name),
        _ => return None,
    };
    let (Endpoint::Profile(name) | Endpoint::Server(name)) = endpoint else { return None };
    (!name.is_empty() && !name.contains('/')).then_some(endpoint)
}

/// Returns the methods of a route for the `Allow` header.
pub(super) fn allowed_methods(route: HttpRoute<'_>) -> &'static str {
    match route {
        HttpRoute::Mcp(_) => "GET, POST, DELETE, OPTIONS",
        HttpRoute::LegacySse(_) => "GET, OPTIONS",
        HttpRoute::LegacyMessages => "POST, OPTIONS",
        HttpRoute::Health | HttpRoute::Ready | HttpRoute::Metrics => "GET, HEAD, OPTIONS",
    }
}

/// Returns true if a route has a method.
pub(super) fn allows_method(route: HttpRoute<'_>, method: &Method) -> bool {
    match route {
        HttpRoute::Mcp(_) => {
            matches!(*method, Method::POST | Method::GET | Method::DELETE | Method::OPTIONS)
        }
        HttpRoute::LegacySse(_) => matches!(*method, Method::GET | Method::OPTIONS),
        HttpRoute::LegacyMessages => matches!(*method, Method::POST | Method::OPTIONS),
        HttpRoute::Health | HttpRoute::Ready | HttpRoute::Metrics => {
            matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_has_one_route() {
        let profile = |name| Some(HttpRoute::Mcp(Endpoint::Profile(name)));
        let server = |name| Some(HttpRoute::Mcp(Endpoint::Server(name)));
        for (path, expected) in [
            ("/mcp", Some(HttpRoute::Mcp(Endpoint::Bare))),
            ("/mcp/", Some(HttpRoute::Mcp(Endpoint::Bare))),
            ("/mcp/p/default", profile("default")),
            ("/mcp/p/work", profile("work")),
            ("/mcp/p/work/", profile("work")),
            ("/mcp/s/git", server("git")),
            ("/mcp/s/%2e%2e", server("%2e%2e")), // No server has this name, so the lookup fails.
            ("/sse", Some(HttpRoute::LegacySse(Endpoint::Bare))),
            ("/sse/p/work", Some(HttpRoute::LegacySse(Endpoint::Profile("work")))),
            ("/sse/s/git/", Some(HttpRoute::LegacySse(Endpoint::Server("git")))),
            ("/sse/git", None),
            ("/messages", Some(HttpRoute::LegacyMessages)),
            ("/messages/p/work", None),
            ("/healthz", Some(HttpRoute::Health)),
            ("/readyz", Some(HttpRoute::Ready)),
            ("/metrics", Some(HttpRoute::Metrics)),
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
    fn endpoint_matches_only_its_own_view() {
        assert!(Endpoint::Profile("a").matches(&Endpoint::Profile("a").to_view()));
        assert!(Endpoint::Server("a").matches(&Endpoint::Server("a").to_view()));
        assert!(!Endpoint::Server("a").matches(&Endpoint::Profile("a").to_view()));
        assert!(!Endpoint::Server("a").matches(&Endpoint::Server("b").to_view()));
    }

    #[test]
    fn only_listed_methods_are_allowed() {
        let endpoint = Endpoint::Profile("a");
        let conversations =
            [HttpRoute::Mcp(endpoint), HttpRoute::LegacySse(endpoint), HttpRoute::LegacyMessages];
        let routes = conversations.into_iter().chain([
            HttpRoute::Health,
            HttpRoute::Ready,
            HttpRoute::Metrics,
        ]);
        for route in routes {
            for method in ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "X"] {
                let listed = allowed_methods(route).split(", ").any(|listed| listed == method);
                let method = Method::from_bytes(method.as_bytes()).unwrap();
                assert_eq!(allows_method(route, &method), listed, "{method} {route:?}");
            }
        }
    }
}
