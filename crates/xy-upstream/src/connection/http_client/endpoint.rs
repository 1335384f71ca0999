//! The URL of a server, and the resolution of references to other URLs. Pure.

use hyper::Uri;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};

/// Resolves `reference` relative to `base`; `None` if it is no HTTP reference.
pub(super) fn resolve(base: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.trim();
    if let Some(rest) = reference.strip_prefix("//") {
        return format!("{}://{rest}", base.scheme_str()?).parse().ok();
    }
    if has_scheme(reference) {
        let is_http = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https"));
        return reference.parse().ok().filter(is_http);
    }
    let reference = reference.split('#').next().unwrap_or_default();
    let path = match reference.as_bytes().first() {
        None => return None,
        Some(b'/') => reference.to_owned(),
        Some(b'?') => format!("{}{reference}", base.path()),
        Some(_) => {
            let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{folder}/{reference}")
        }
    };
    let mut parts = base.clone().into_parts();
    parts.path_and_query = Some(path.parse::<PathAndQuery>().ok()?);
    Uri::from_parts(parts).ok()
}

fn has_scheme(reference: &str) -> bool {
    let Some((scheme, _)) = reference.split_once(':') else { return false };
    let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(is_scheme)
}

/// Returns true if both have the same origin, so that secrets for one may be sent to the other.
pub(super) fn is_same_origin(one: &Uri, other: &Uri) -> bool {
    one.scheme() == other.scheme()
        && one.host().zip(other.host()).is_some_and(|(one, other)| one.eq_ignore_ascii_case(other))
        && port(one) == port(other)
}

fn port(uri: &Uri) -> Option<u16> {
    let usual = if uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
    uri.authority().map(|authority: &Authority| authority.port_u16().unwrap_or(usual))
}

/// Returns the URL for people, without its query, which may hold keys.
pub(super) fn shown(uri: &Uri) -> String {
    let host = uri.authority().map_or("", Authority::as_str);
    format!("{}://{host}{}", uri.scheme_str().unwrap_or("http"), uri.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn led(reference: &str) -> Option<String> {
        let base: Uri = "http://Host:81/a/b?q=1".parse().unwrap();
        resolve(&base, reference).map(|uri| uri.to_string())
    }

    #[test]
    fn relative_reference_resolves_against_its_base() {
        for (reference, expected) in [
            ("/messages?id=1", Some("http://Host:81/messages?id=1")),
            ("messages", Some("http://Host:81/a/messages")),
            ("?x", Some("http://Host:81/a/b?x")),
            ("https://other/x#f", Some("https://other/x")),
            ("//other/x", Some("http://other/x")),
            (" /x \n", Some("http://Host:81/x")),
            ("/a:b", Some("http://Host:81/a:b")),
            ("", None),
            ("mailto:x", None),
            ("/with space", None),
        ] {
            assert_eq!(led(reference).as_deref(), expected, "{reference}");
        }
    }

    #[test]
    fn origin_is_scheme_host_and_port() {
        let same =
            |one: &str, other: &str| is_same_origin(&one.parse().unwrap(), &other.parse().unwrap());
        assert!(same("http://a/x", "http://A:80/y"));
        assert!(same("https://a:443", "https://a/"));
        assert!(!same("http://a", "https://a"));
        assert!(!same("http://a:80", "http://a:81"));
        assert!(!same("http://a", "http://a.b"));
    }

    #[test]
    fn displayed_url_has_no_query() {
        assert_eq!(shown(&"https://h:1/p?key=secret".parse().unwrap()), "https://h:1/p");
    }
}
