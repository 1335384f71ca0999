//! Who may come in. Pure: what a request says of itself, against the rules.
//!
//! A page in a browser can send requests to this machine, under a name of its own that
//! leads here. So the name must be one of ours, the page must be one of ours, and neither
//! replaces the token.

use std::fmt;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use xy_config::profile::DEFAULT_PROFILE;

use super::refused::Refused;
use super::route::Endpoint;
use crate::share;

/// Who may come in.
#[derive(Debug, Clone)]
pub enum Auth {
    /// Whoever reaches the port. Nobody may manage servers then.
    None,
    /// Who shows one of these.
    Tokens(Vec<Token>),
}

/// What lets a client in.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Tells it from all others that there are and were, also in the next daemon.
    pub id: u64,
    /// The words that name it to people.
    pub name: String,
    /// What the client has to show.
    pub secret: Secret,
    /// Whether it may manage servers.
    pub may_manage: bool,
    /// The only profile it opens; `None` for all.
    pub profile: Option<String>,
}

/// What a client has to show.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// This.
    Plain(String),
    /// What has this digest.
    Digest(Digest),
}

impl Secret {
    /// Returns its digest.
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

/// What a secret is known by where the secret itself is not kept: its SHA-256.
pub type Digest = [u8; 32];

/// The digest of a secret.
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

/// Who somebody turned out to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity<'r> {
    /// Which token it was: a session belongs to the token that began it.
    pub(super) who: TokenId,
    pub(super) may_manage: bool,
    /// The only profile that its token is for.
    pub(super) profile: Option<&'r str>,
    secret: Option<&'r Secret>,
}

/// Stands for the token of every client where there are no tokens.
pub(crate) const ANYBODY: u64 = 1;

/// Which token somebody has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TokenId(u64);

impl TokenId {
    /// Where there are no tokens.
    const ANYBODY: Self = Self(ANYBODY);

    /// Returns true if it may take one more of something limited, of which it holds `own`, and
    /// all together hold `all`. Where there are no tokens, nobody can be told from others.
    pub(super) fn may_take(self, own: usize, all: usize, most: usize) -> bool {
        if self == Self::ANYBODY { all < most } else { share::may_take(own, all, most) }
    }

    /// A number that is nobody else's, and not that of the local door.
    pub(super) fn number(self) -> u64 {
        self.0
    }
}

impl<'r> Identity<'r> {
    /// Returns the digest of its token's secret, which sessions belong to. `None` where no token
    /// is needed.
    pub(super) fn owner(&self) -> Option<Digest> {
        self.secret.map(Secret::digest)
    }

    /// Where it is led by a path to `place`, if it may go there. What of a single server it may
    /// be shown is not known here.
    pub(super) fn led_to<'p>(&self, place: Endpoint<'p>) -> Result<Endpoint<'p>, Refused>
    where
        'r: 'p,
    {
        match (place, self.profile) {
            (Endpoint::Bare, profile) => Ok(Endpoint::Profile(profile.unwrap_or(DEFAULT_PROFILE))),
            (Endpoint::Profile(name), Some(only)) if name != only => {
                Err(Refused::OtherView(only.to_owned()))
            }
            (place, _) => Ok(place),
        }
    }

    /// Whether it may see what is of all servers.
    pub(super) fn is_free(&self) -> Result<(), Refused> {
        self.profile.map_or(Ok(()), |only| Err(Refused::OtherView(only.to_owned())))
    }
}

/// By what names and addresses clients may call this door, beside those of loopback.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    names: Vec<String>,
    addresses: Vec<IpAddr>,
    /// It listens at every address that the machine has, or will have.
    any_address: bool,
}

impl Hosts {
    /// Those of a door that listens at `ip` and is also called by `hosts`, names or addresses.
    pub fn of(ip: IpAddr, hosts: &[String]) -> Self {
        let is_address = |host: &&String| host.parse::<IpAddr>().is_ok();
        let (addresses, names): (Vec<_>, Vec<_>) = hosts.iter().partition(is_address);
        let addresses = addresses.into_iter().filter_map(|it| it.parse().ok()).chain([ip]);
        Self {
            names: names.into_iter().cloned().collect(),
            addresses: addresses.map(|it: IpAddr| it.to_canonical()).collect(),
            any_address: ip.is_unspecified(),
        }
    }

    fn have(&self, authority: &str) -> bool {
        let host = without_port(authority);
        if let Some(ip) = address(host) {
            // No page can have a name of its own lead to an address that stands there itself.
            return ip.is_loopback() || self.any_address || self.addresses.contains(&ip);
        }
        let is_it = |name: &str| name.eq_ignore_ascii_case(host);
        is_it("localhost") || self.names.iter().any(|name| is_it(name))
    }

    /// The same for where a page comes from. One that comes from any address may be anybody's.
    fn have_page(&self, authority: &str) -> bool {
        let is_known =
            |ip: IpAddr| ip.is_loopback() || (self.addresses.contains(&ip) && !ip.is_unspecified());
        self.have(authority) && address(without_port(authority)).is_none_or(is_known)
    }
}

/// Checks that the request was sent to a name of ours.
pub(super) fn check_host(head: &Parts, hosts: &Hosts) -> Result<(), Refused> {
    let is_ours = |authority: &str| hosts.have(authority);
    // A request line may name a host too, and then counts for more than the header.
    let in_line = head.uri.authority().map(hyper::http::uri::Authority::as_str);
    let host = only_one(&head.headers, &HOST);
    match (host, in_line) {
        (Ok(Some(host)), None) if is_ours(host) => Ok(()),
        (Ok(Some(host)), Some(line)) if is_ours(host) && is_ours(line) => Ok(()),
        (Ok(host), line) => Err(Refused::Host(line.or(host).unwrap_or_default().to_owned())),
        (Err(()), _) => Err(Refused::Host("more than one, or not text".to_owned())),
    }
}

/// Checks that the page it comes from, if it comes from one, is on this machine.
pub(super) fn check_origin<'h>(
    headers: &'h HeaderMap,
    hosts: &Hosts,
) -> Result<Option<&'h HeaderValue>, Refused> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(None) };
    let text = only_one(headers, &ORIGIN).ok().flatten().unwrap_or_default();
    let authority = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let is_ours = authority.is_some_and(|authority| hosts.have_page(authority));
    if is_ours { Ok(Some(origin)) } else { Err(Refused::Origin(text.to_owned())) }
}

/// Finds out by its token who it is.
pub(super) fn identify<'r>(headers: &HeaderMap, auth: &'r Auth) -> Result<Identity<'r>, Refused> {
    let tokens = match auth {
        Auth::None => {
            return Ok(Identity {
                who: TokenId::ANYBODY,
                may_manage: false,
                profile: None,
                secret: None,
            });
        }
        Auth::Tokens(tokens) => tokens,
    };
    // Of two nobody knows which is meant, and somebody on the way may have judged by the other.
    let shown = only_one(headers, &AUTHORIZATION).ok().flatten().ok_or(Refused::NoToken)?;
    let shown = bearer(shown.as_bytes()).ok_or(Refused::NoToken)?;
    let is_digested = tokens.iter().any(|token| matches!(token.secret, Secret::Digest(_)));
    let shown_digest = is_digested.then(|| digest(shown));
    let mut found = None;
    // All are compared, so that the time says nothing about which one was nearly right.
    for token in tokens {
        let is_it = match &token.secret {
            Secret::Plain(secret) => same(shown, secret.as_bytes()) && !secret.is_empty(),
            Secret::Digest(digest) => shown_digest.is_some_and(|shown| same(&shown, digest)),
        };
        if is_it {
            found = Some(token);
        }
    }
    let Token { id, may_manage, profile, secret, .. } = found.ok_or(Refused::WrongToken)?;
    let (who, profile, secret) = (TokenId(*id), profile.as_deref(), Some(secret));
    Ok(Identity { who, may_manage: *may_manage, profile, secret })
}

/// The only value of a header; more than one, or one that is not ASCII, is an error.
fn only_one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ()> {
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

/// The address that stands in place of a name, one of IPv6 in brackets.
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

/// Whether two secrets are the same, in a time that depends on their lengths only.
fn same(one: &[u8], other: &[u8]) -> bool {
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
    fn only_the_whole_secret_is_the_secret() {
        for other in ["", "s", "secre", "secret2", "Secret", "secreu", "tecret"] {
            assert!(!same(b"secret", other.as_bytes()), "{other}");
            assert!(!same(other.as_bytes(), b"secret"), "{other}");
        }
        assert!(same(b"secret", b"secret"));
    }

    fn hosts(listen: &str, named: &[&str]) -> Hosts {
        let named: Vec<String> = named.iter().map(|it| (*it).to_owned()).collect();
        Hosts::of(listen.parse().unwrap(), &named)
    }

    #[test]
    fn only_names_of_this_machine_are_answered() {
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
    fn the_host_in_the_request_line_must_be_ours_too() {
        let (host, ours) = ([("host", "localhost")], Hosts::default());
        assert!(check_host(&head("http://localhost:80/mcp", &host), &ours).is_ok());
        assert!(check_host(&head("http://evil.example/mcp", &host), &ours).is_err());
    }

    #[test]
    fn only_pages_of_this_machine_are_answered() {
        let ours = [hosts("0.0.0.0", &["xy.lan"]), hosts("192.168.1.5", &["xy.lan"])];
        for (origin, is_ours) in [
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
            let answered = ours.each_ref().map(|it| check_origin(&head.headers, it).is_ok());
            assert_eq!(answered, is_ours, "{origin}");
        }
        assert!(check_origin(&head("/mcp", &[]).headers, &ours[0]).unwrap().is_none());
    }

    fn token(id: u64, secret: &str, may_manage: bool) -> Token {
        let (name, secret) = (String::new(), Secret::Plain(secret.to_owned()));
        Token { id, name, secret, may_manage, profile: None }
    }

    /// The same, of which only the digest is kept.
    fn digested(id: u64, secret: &str, profile: Option<&str>) -> Token {
        let secret = Secret::Digest(digest(secret.as_bytes()));
        let profile = profile.map(str::to_owned);
        Token { id, name: String::new(), secret, may_manage: false, profile }
    }

    #[test]
    fn a_token_says_who_somebody_is() {
        let auth = Auth::Tokens(vec![
            token(1, "alpha", true),
            digested(7, "beta", Some("work")),
            token(3, "", true),
        ]);
        for (shown, expected) in [
            (Some("Bearer alpha"), Ok((1, true))),
            (Some("bearer  beta "), Ok((7, false))),
            (Some("Bearer betb"), Err(Refused::WrongToken)),
            (Some("Bearer alphA"), Err(Refused::WrongToken)),
            (Some("Bearer alpha2"), Err(Refused::WrongToken)),
            (Some("Bearer "), Err(Refused::WrongToken)),
            (Some("Basic alpha"), Err(Refused::NoToken)),
            (Some("alpha"), Err(Refused::NoToken)),
            (None, Err(Refused::NoToken)),
        ] {
            let headers: Vec<_> = shown.map(|shown| ("authorization", shown)).into_iter().collect();
            let found = identify(&head("/", &headers).headers, &auth)
                .map(|identity| (identity.who.0, identity.may_manage));
            assert_eq!(found, expected, "{shown:?}");
        }
    }

    #[test]
    fn of_two_tokens_neither_counts() {
        let auth = Auth::Tokens(vec![token(1, "alpha", true)]);
        let twice = [("authorization", "Bearer alpha"), ("authorization", "Bearer alpha")];
        assert_eq!(identify(&head("/", &twice).headers, &auth).err(), Some(Refused::NoToken));
    }

    #[test]
    fn without_tokens_everyone_comes_in_and_nobody_manages() {
        let identity = identify(&HeaderMap::new(), &Auth::None).unwrap();
        assert!(!identity.may_manage);
        assert!(identity.led_to(Endpoint::Server("any")).is_ok() && identity.is_free().is_ok());
        assert_eq!(identity.led_to(Endpoint::Bare), Ok(Endpoint::Profile("default")));
    }

    #[test]
    fn a_token_for_one_profile_opens_no_other() {
        let auth = Auth::Tokens(vec![digested(5, "beta", Some("work"))]);
        let head = head("/", &[("authorization", "Bearer beta")]);
        let identity = identify(&head.headers, &auth).unwrap();
        assert_eq!(identity.led_to(Endpoint::Bare), Ok(Endpoint::Profile("work")));
        assert_eq!(identity.led_to(Endpoint::Profile("work")), Ok(Endpoint::Profile("work")));
        assert_eq!(identity.led_to(Endpoint::Server("git")), Ok(Endpoint::Server("git")));
        let other = Err(Refused::OtherView("work".to_owned()));
        assert_eq!(identity.led_to(Endpoint::Profile("default")), other);
        assert!(identity.is_free().is_err());
    }

    #[test]
    fn a_secret_is_never_shown() {
        assert!(!format!("{:?}", token(1, "alpha", true)).contains("alpha"));
    }
}
