//! Authentication, and checks of `Host` and `Origin`. Pure.
//!
//! A web page can send requests to this machine under a host name of its own that resolves here. So
//! the host must be a known one, and the page must come from this machine. Neither check replaces
//! the token.

use std::fmt;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use xy_config::profile::DEFAULT_PROFILE;
use xy_transport::share::{self, ANONYMOUS};

use crate::error::HttpError;
use crate::route::Endpoint;

/// The clients that may connect.
#[derive(Debug, Clone)]
pub enum Auth {
    /// Every client. No client may manage servers.
    None,
    /// A client with one of these tokens.
    Tokens(Vec<Token>),
}

/// A token of the HTTP listener.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// A number that no other token has or had, in any daemon.
    pub id: u64,
    /// The name for users.
    pub name: String,
    /// The secret that the client sends.
    pub secret: Secret,
    /// Whether the client may manage servers.
    pub may_manage: bool,
    /// The only profile that the token is valid for; `None` for all.
    pub profile: Option<String>,
}

/// The secret of a token.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The secret itself.
    Plain(String),
    /// The digest of the secret.
    Digest(Digest),
}

impl Secret {
    /// Returns the digest of the secret.
    pub(super) fn digest(&self) -> Digest {
        match self {
            Self::Plain(secret) => digest(secret.as_bytes()),
            Self::Digest(digest) => *digest,
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The SHA-256 of a secret, for places that must not store the secret itself.
pub type Digest = [u8; 32];

/// Returns the digest of a secret.
pub fn digest(secret: &[u8]) -> Digest {
    let digest = ring::digest::digest(&ring::digest::SHA256, secret);
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest.as_ref());
    bytes
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, secret: _, may_manage, profile } = self;
        f.debug_struct("Token")
            .field("id", id)
            .field("name", name)
            .field("may_manage", may_manage)
            .field("profile", profile)
            .finish_non_exhaustive()
    }
}

/// The identity that a request has shown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity<'r> {
    /// The token of the request. A session belongs to the token that opened it.
    pub(super) token_id: TokenId,
    pub(super) may_manage: bool,
    /// The only profile that the token is valid for.
    pub(super) profile: Option<&'r str>,
    secret: Option<&'r Secret>,
}

/// The id of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TokenId(u64);

impl TokenId {
    /// The id of every client if there are no tokens.
    const ANONYMOUS: Self = Self(ANONYMOUS);

    /// Returns true if this token may take one more of a limited resource. It holds `own`, and all
    /// tokens hold `all`. Without tokens, clients cannot be told apart and have no shares.
    pub(super) fn may_take(self, own: usize, all: usize, max: usize) -> bool {
        if self == Self::ANONYMOUS { all < max } else { share::may_take(own, all, max) }
    }

    /// Returns the id as a number. It differs from 0, which stands for local clients.
    pub(super) fn number(self) -> u64 {
        self.0
    }
}

impl<'r> Identity<'r> {
    /// Returns the digest of the token's secret, which sessions belong to. `None` if no token is
    /// needed.
    pub(super) fn owner(&self) -> Option<Digest> {
        self.secret.map(Secret::digest)
    }

    /// Returns the endpoint that a path leads to, if this identity may use it. Does not check
    /// whether the profile of the token shows a single server.
    pub(super) fn authorize<'p>(&self, endpoint: Endpoint<'p>) -> Result<Endpoint<'p>, HttpError>
    where
        'r: 'p,
    {
        match (endpoint, self.profile) {
            (Endpoint::Bare, profile) => Ok(Endpoint::Profile(profile.unwrap_or(DEFAULT_PROFILE))),
            (Endpoint::Profile(name), Some(only)) if name != only => {
                Err(HttpError::WrongProfile(only.to_owned()))
            }
            (endpoint, _) => Ok(endpoint),
        }
    }

    /// Checks that the token is valid for all profiles, as data about all servers requires.
    pub(super) fn check_unrestricted(&self) -> Result<(), HttpError> {
        self.profile.map_or(Ok(()), |only| Err(HttpError::WrongProfile(only.to_owned())))
    }
}

/// The names and addresses by which clients may address the listener, besides those of loopback.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    names: Vec<String>,
    addresses: Vec<IpAddr>,
    /// The listener is bound to all addresses of the machine.
    any_address: bool,
}

impl Hosts {
    /// Creates the hosts of a listener at `ip` that is also known as `hosts`, names or addresses.
    pub fn new(ip: IpAddr, hosts: &[String]) -> Self {
        let is_address = |host: &&String| host.parse::<IpAddr>().is_ok();
        let (addresses, names): (Vec<_>, Vec<_>) = hosts.iter().partition(is_address);
        let addresses = addresses.into_iter().filter_map(|it| it.parse().ok()).chain([ip]);
        Self {
            names: names.into_iter().cloned().collect(),
            addresses: addresses.map(|it: IpAddr| it.to_canonical()).collect(),
            any_address: ip.is_unspecified(),
        }
    }

    fn contains(&self, authority: &str) -> bool {
        let host = without_port(authority);
        if let Some(ip) = address(host) {
            // No page can make a host name that is itself an address resolve elsewhere.
            return ip.is_loopback() || self.any_address || self.addresses.contains(&ip);
        }
        let matches_host = |name: &str| name.eq_ignore_ascii_case(host);
        matches_host("localhost") || self.names.iter().any(|name| matches_host(name))
    }

    /// Returns true if a page may come from this host. Of addresses, only those that are certainly
    /// this machine's count.
    fn contains_origin(&self, authority: &str) -> bool {
        let is_known =
            |ip: IpAddr| ip.is_loopback() || (self.addresses.contains(&ip) && !ip.is_unspecified());
        self.contains(authority) && address(without_port(authority)).is_none_or(is_known)
    }
}

/// Checks that the request was sent to a known host.
pub(super) fn check_host(head: &Parts, hosts: &Hosts) -> Result<(), HttpError> {
    let is_own = |authority: &str| hosts.contains(authority);
    // A host in the request line takes precedence over the header.
    let in_line = head.uri.authority().map(hyper::http::uri::Authority::as_str);
    let host = single_value(&head.headers, &HOST);
    match (host, in_line) {
        (Ok(Some(host)), None) if is_own(host) => Ok(()),
        (Ok(Some(host)), Some(line)) if is_own(host) && is_own(line) => Ok(()),
        (Ok(host), line) => Err(HttpError::Host(line.or(host).unwrap_or_default().to_owned())),
        (Err(()), _) => Err(HttpError::Host("more than one, or not text".to_owned())),
    }
}

/// Checks that the page which sent the request, if any, comes from this machine.
pub(super) fn check_origin<'h>(
    headers: &'h HeaderMap,
    hosts: &Hosts,
) -> Result<Option<&'h HeaderValue>, HttpError> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(None) };
    let text = single_value(headers, &ORIGIN).ok().flatten().unwrap_or_default();
    let authority = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let is_own = authority.is_some_and(|authority| hosts.contains_origin(authority));
    if is_own { Ok(Some(origin)) } else { Err(HttpError::Origin(text.to_owned())) }
}

/// Identifies the client by its token.
pub(super) fn identify<'r>(headers: &HeaderMap, auth: &'r Auth) -> Result<Identity<'r>, HttpError> {
    let tokens = match auth {
        Auth::None => {
            return Ok(Identity {
                token_id: TokenId::ANONYMOUS,
                may_manage: false,
                profile: None,
                secret: None,
            });
        }
        Auth::Tokens(tokens) => tokens,
    };
    // With two tokens it is unclear which one counts, and a proxy may have checked the other.
    let shown = single_value(headers, &AUTHORIZATION).ok().flatten().ok_or(HttpError::NoToken)?;
    let shown = bearer(shown.as_bytes()).ok_or(HttpError::NoToken)?;
    let is_digested = tokens.iter().any(|token| matches!(token.secret, Secret::Digest(_)));
    let shown_digest = is_digested.then(|| digest(shown));
    let mut found = None;
    // All tokens are compared, so that the time does not depend on which one matches.
    for token in tokens {
        let matches_host = match &token.secret {
            Secret::Plain(secret) => {
                constant_time_eq(shown, secret.as_bytes()) && !secret.is_empty()
            }
            Secret::Digest(digest) => {
                shown_digest.is_some_and(|shown| constant_time_eq(&shown, digest))
            }
        };
        if matches_host {
            found = Some(token);
        }
    }
    let Token { id, may_manage, profile, secret, .. } = found.ok_or(HttpError::WrongToken)?;
    let (token_id, profile, secret) = (TokenId(*id), profile.as_deref(), Some(secret));
    Ok(Identity { token_id, may_manage: *may_manage, profile, secret })
}

/// Returns the only value of a header. Several values, or one that is not ASCII, are an error.
fn single_value<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ()> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(());
    }
    first.to_str().map(Some).map_err(|_| ())
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

/// Returns the address that stands in place of a host name. IPv6 addresses need brackets.
fn address(host: &str) -> Option<IpAddr> {
    let ip = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inside) => inside.parse::<Ipv6Addr>().ok().map(IpAddr::from),
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::from),
    };
    ip.map(|ip| ip.to_canonical())
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}

/// Returns true if two secrets are equal, in a time that depends on their lengths only.
fn constant_time_eq(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    one.len() == other.len() && black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn head(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn only_the_exact_secret_matches() {
        for other in ["", "s", "secre", "secret2", "Secret", "secreu", "tecret"] {
            assert!(!constant_time_eq(b"secret", other.as_bytes()), "{other}");
            assert!(!constant_time_eq(other.as_bytes(), b"secret"), "{other}");
        }
        assert!(constant_time_eq(b"secret", b"secret"));
    }

    fn hosts(listen: &str, named: &[&str]) -> Hosts {
        let named: Vec<String> = named.iter().map(|it| (*it).to_owned()).collect();
        Hosts::new(listen.parse().unwrap(), &named)
    }

    #[test]
    fn only_local_host_names_are_accepted() {
        let one = hosts("192.168.1.5", &["xy.lan", "2001:db8::2"]);
        let every = hosts("0.0.0.0", &["xy.lan"]);
        for (host, is_of_one, is_of_every) in [
            ("localhost", true, true),
            ("localhost:7777", true, true),
            ("LocalHost:1", true, true),
            ("127.0.0.1:7777", true, true),
            ("127.8.9.1", true, true),
            ("[::1]:7777", true, true),
            ("[::1]", true, true),
            ("[::ffff:127.0.0.1]", true, true),
            ("xy.lan:80", true, true),
            ("XY.lan", true, true),
            ("192.168.1.5", true, true),
            ("192.168.1.5:7979", true, true),
            ("192.168.1.6", false, true),
            ("[2001:db8::2]:7979", true, true),
            ("[2001:DB8:0::2]", true, true),
            ("[2001:db8::3]", false, true),
            ("0.0.0.0", false, true),
            ("evil.example", false, false),
            ("xy.lan.evil.example", false, false),
            ("localhost.evil.example", false, false),
            ("127.0.0.1.evil.example:80", false, false),
            ("localhost:evil", false, false),
            ("[::1].evil", false, false),
            ("[::1]:80:80", false, false),
            ("::1", false, false),
            ("2001:db8::2", false, false),
            ("", false, false),
        ] {
            let head = head("/mcp", &[("host", host)]);
            assert_eq!(check_host(&head, &one).is_ok(), is_of_one, "{host}");
            assert_eq!(check_host(&head, &every).is_ok(), is_of_every, "{host}");
        }
        assert!(check_host(&head("/mcp", &[]), &every).is_err());
        let twice = head("/mcp", &[("host", "localhost"), ("host", "localhost")]);
        assert!(check_host(&twice, &every).is_err());
    }

    #[test]
    fn host_in_the_request_line_must_be_local() {
        let (host, upstream_id) = ([("host", "localhost")], Hosts::default());
        assert!(check_host(&head("http://localhost:80/mcp", &host), &upstream_id).is_ok());
        assert!(check_host(&head("http://evil.example/mcp", &host), &upstream_id).is_err());
    }

    #[test]
    fn only_local_origins_are_accepted() {
        let upstream_id = [hosts("0.0.0.0", &["xy.lan"]), hosts("192.168.1.5", &["xy.lan"])];
        for (origin, is_own) in [
            ("http://localhost", [true; 2]),
            ("https://localhost:3000", [true; 2]),
            ("http://127.0.0.1:6274", [true; 2]),
            ("http://[::1]:1", [true; 2]),
            ("https://xy.lan", [true; 2]),
            ("http://192.168.1.5:7979", [false, true]),
            ("http://192.168.1.6", [false; 2]),
            ("http://0.0.0.0", [false; 2]),
            ("http://evil.example", [false; 2]),
            ("http://localhost.evil.example", [false; 2]),
            ("http://localhost@evil.example", [false; 2]),
            ("http://evil.example#localhost", [false; 2]),
            ("ftp://localhost", [false; 2]),
            ("localhost", [false; 2]),
            ("null", [false; 2]),
            ("", [false; 2]),
        ] {
            let head = head("/mcp", &[("origin", origin)]);
            let answered = upstream_id.each_ref().map(|it| check_origin(&head.headers, it).is_ok());
            assert_eq!(answered, is_own, "{origin}");
        }
        assert!(check_origin(&head("/mcp", &[]).headers, &upstream_id[0]).unwrap().is_none());
    }

    fn token(id: u64, secret: &str, may_manage: bool) -> Token {
        let (name, secret) = (String::new(), Secret::Plain(secret.to_owned()));
        Token { id, name, secret, may_manage, profile: None }
    }

    /// Returns a token of which only the digest is stored.
    fn digested(id: u64, secret: &str, profile: Option<&str>) -> Token {
        let secret = Secret::Digest(digest(secret.as_bytes()));
        let profile = profile.map(str::to_owned);
        Token { id, name: String::new(), secret, may_manage: false, profile }
    }

    #[test]
    fn token_identifies_its_owner() {
        let auth = Auth::Tokens(vec![
            token(1, "alpha", true),
            digested(7, "beta", Some("work")),
            token(3, "", true),
        ]);
        for (shown, expected) in [
            (Some("Bearer alpha"), Ok((1, true))),
            (Some("bearer  beta "), Ok((7, false))),
            (Some("Bearer betb"), Err(HttpError::WrongToken)),
            (Some("Bearer alphA"), Err(HttpError::WrongToken)),
            (Some("Bearer alpha2"), Err(HttpError::WrongToken)),
            (Some("Bearer "), Err(HttpError::WrongToken)),
            (Some("Basic alpha"), Err(HttpError::NoToken)),
            (Some("alpha"), Err(HttpError::NoToken)),
            (None, Err(HttpError::NoToken)),
        ] {
            let headers: Vec<_> = shown.map(|shown| ("authorization", shown)).into_iter().collect();
            let found = identify(&head("/", &headers).headers, &auth)
                .map(|identity| (identity.token_id.0, identity.may_manage));
            assert_eq!(found, expected, "{shown:?}");
        }
    }

    #[test]
    fn two_tokens_are_refused() {
        let auth = Auth::Tokens(vec![token(1, "alpha", true)]);
        let twice = [("authorization", "Bearer alpha"), ("authorization", "Bearer alpha")];
        assert_eq!(identify(&head("/", &twice).headers, &auth).err(), Some(HttpError::NoToken));
    }

    #[test]
    fn without_tokens_clients_are_accepted_but_may_not_manage() {
        let identity = identify(&HeaderMap::new(), &Auth::None).unwrap();
        assert!(!identity.may_manage);
        assert!(
            identity.authorize(Endpoint::Server("any")).is_ok()
                && identity.check_unrestricted().is_ok()
        );
        assert_eq!(identity.authorize(Endpoint::Bare), Ok(Endpoint::Profile("default")));
    }

    #[test]
    fn token_of_one_profile_opens_no_other() {
        let auth = Auth::Tokens(vec![digested(5, "beta", Some("work"))]);
        let head = head("/", &[("authorization", "Bearer beta")]);
        let identity = identify(&head.headers, &auth).unwrap();
        assert_eq!(identity.authorize(Endpoint::Bare), Ok(Endpoint::Profile("work")));
        assert_eq!(identity.authorize(Endpoint::Profile("work")), Ok(Endpoint::Profile("work")));
        assert_eq!(identity.authorize(Endpoint::Server("git")), Ok(Endpoint::Server("git")));
        let other = Err(HttpError::WrongProfile("work".to_owned()));
        assert_eq!(identity.authorize(Endpoint::Profile("default")), other);
        assert!(identity.check_unrestricted().is_err());
    }

    #[test]
    fn debug_output_hides_the_secret() {
        assert!(!format!("{:?}", token(1, "alpha", true)).contains("alpha"));
    }
}
