//! Secrets that are written down: who may read them, and how they are sent.

use std::net::IpAddr;

use xy_protocol::mask;

use crate::references::is_reference;
use crate::report::Problem;
use crate::settings::ServerKind;
use crate::source::SourceFile;

/// Whether a file has to hold secrets to say this of a server.
pub(super) fn are_in(kind: &ServerKind) -> bool {
    let in_env = |(name, value): (&String, &String)| {
        mask::is_secret_name(name) && !value.is_empty() && !is_reference(value)
    };
    let in_args = |args: &[String]| {
        let args = args.iter().map(String::as_str).filter(|it| it.len() <= LONGEST_ARG);
        !mask::args(args).found.is_empty()
    };
    match kind {
        ServerKind::Process(process) => process.env.iter().any(in_env) || in_args(&process.args),
        ServerKind::Container(container) => container.env.iter().any(in_env),
        ServerKind::Remote(remote) => {
            remote.headers.iter().any(in_env) || !mask::url(&remote.url).1.is_empty()
        }
    }
}

/// Longer arguments are documents and not keys.
const LONGEST_ARG: usize = 4 * 1024;

/// The warning that a file with secrets is not private.
pub(super) fn readable_by_others(file: &SourceFile) -> Problem {
    let problem = Problem::in_file(&file.shown, "this file holds secrets, and others may read it");
    problem.warn().suggest(format!("run `chmod 600 {}`", file.path.display()))
}

/// The name of a secret header that a URL sends without encryption to another machine, and the
/// host of that machine.
pub(super) fn sent_in_the_open<'a>(
    url: &'a str,
    mut headers: impl Iterator<Item = &'a String>,
) -> Option<(&'a str, &'a str)> {
    let rest = url.strip_prefix("http://")?;
    let authority = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
    let host = match authority.strip_prefix('[') {
        Some(inside) => inside.split(']').next()?,
        None => authority.split(':').next()?,
    };
    let is_loopback = if let Ok(address) = host.parse::<IpAddr>() {
        address.to_canonical().is_loopback()
    } else {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        host == "localhost" || host.ends_with(".localhost")
    };
    let header = headers.find(|name| mask::is_secret_name(name))?;
    (!is_loopback).then_some((header, host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_safe_on_this_machine_and_over_https() {
        let table = [
            ("http://example.com/mcp", Some("example.com")),
            ("http://192.168.0.7:80/mcp", Some("192.168.0.7")),
            ("http://[2001:db8::1]:80/", Some("2001:db8::1")),
            ("http://localhost.example.com/", Some("localhost.example.com")),
            ("https://example.com/mcp", None),
            ("http://localhost:1/", None),
            ("http://LOCALHOST/", None),
            ("http://127.8.9.1/", None),
            ("http://[::1]:80/", None),
            ("http://[::ffff:127.0.0.1]/", None),
        ];
        let (secret, other) = ("Authorization".to_owned(), "X-Region".to_owned());
        for (url, host) in table {
            let found = sent_in_the_open(url, [&other, &secret].into_iter());
            assert_eq!(found, host.map(|host| ("Authorization", host)), "{url}");
            assert_eq!(sent_in_the_open(url, [&other].into_iter()), None, "{url}");
        }
    }
}
