//! Warns about secrets in files: readable by other users, or sent unencrypted.

use std::net::IpAddr;

use xy_protocol::mask;

use crate::references::is_reference;
use crate::report::Problem;
use crate::settings::ServerKind;
use crate::source::SourceFile;

/// Returns true if the settings of a server contain secrets.
pub(super) fn contains_secrets(kind: &ServerKind) -> bool {
    let in_env = |(name, value): (&String, &String)| {
        mask::is_secret_name(name) && !value.is_empty() && !is_reference(value)
    };
    let in_args = |args: &[String]| {
        let args = args.iter().map(String::as_str).filter(|it| it.len() <= MAX_ARG_BYTES);
        !mask::args(args).secrets.is_empty()
    };
    match kind {
        ServerKind::Process(process) => process.env.iter().any(in_env) || in_args(&process.args),
        ServerKind::Container(container) => {
            container.env.iter().any(in_env) || container.args.as_deref().is_some_and(in_args)
        }
        ServerKind::Remote(remote) => {
            remote.headers.iter().any(in_env) || !mask::url(&remote.url).1.is_empty()
        }
    }
}

/// Maximum length of an argument that may be a secret; longer ones are documents.
const MAX_ARG_BYTES: usize = 4 * 1024;

/// Returns the warning that other users can read a file with secrets.
pub(super) fn readable_by_others(file: &SourceFile) -> Problem {
    let problem =
        Problem::in_file(&file.shown, "this file contains secrets, and other users can read it");
    problem.warn().suggest(format!("run `chmod 600 {}`", file.path.display()))
}

/// Returns the name of a secret header that a URL sends unencrypted to another machine, and that
/// machine's host.
pub(super) fn sent_unencrypted<'a>(
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
    use crate::settings::ContainerSettings;

    #[test]
    fn arguments_of_a_container_may_be_secret() {
        let has_secrets = |args: &[&str]| {
            let args = args.iter().map(|it| (*it).to_owned()).collect();
            let image = ContainerSettings::of_image("example.com/x:1".to_owned());
            let container = ContainerSettings { args: Some(args), ..image };
            contains_secrets(&ServerKind::Container(Box::new(container)))
        };
        assert!(has_secrets(&["--token", "s3cret"]) && has_secrets(&["--api-key=s3cret"]));
        assert!(!has_secrets(&["--port", "8080"]) && !has_secrets(&[]));
    }

    #[test]
    fn loopback_and_https_are_safe_for_secrets() {
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
            let found = sent_unencrypted(url, [&other, &secret].into_iter());
            assert_eq!(found, host.map(|host| ("Authorization", host)), "{url}");
            assert_eq!(sent_unencrypted(url, [&other].into_iter()), None, "{url}");
        }
    }
}
