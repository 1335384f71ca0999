//! Masks secrets in settings. Pure.
//!
//! [`xy_protocol::mask`] does the masking. This module also collects the secrets that settings
//! hold.

use xy_protocol::mask;
pub(super) use xy_protocol::mask::{Secrets, for_each_text, text};

/// Masks what looks like a secret in arguments, and adds it to the known secrets.
pub(super) fn args(args: &[String], secrets: &mut Secrets) -> Vec<String> {
    let masked = mask::args(args.iter().map(String::as_str));
    for it in &masked.secrets {
        secrets.add(it);
    }
    masked.args
}

/// Masks what may be secret in a URL, and adds it to the known secrets.
pub(super) fn url(url: &str, secrets: &mut Secrets) -> String {
    let (masked, found) = mask::url(url);
    for it in &found {
        secrets.add_exact(it);
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_arguments_are_masked_elsewhere() {
        let mut secrets = Secrets::default();
        let given =
            ["--token", "ab c def", "-H", "X-Api-Key: hijklmn", "--url", "http://a/?k=opqrstu"];
        let given = given.map(str::to_owned);
        assert_eq!(
            args(&given, &mut secrets),
            ["--token", "***", "-H", "X-Api-Key: ***", "--url", "http://a/?***"]
        );
        assert_eq!(secrets.scrub("ab c def hijklmn opqrstu"), "*** *** ***");
        let given =
            ["-H", "Authorization: SSWS first12", "--header=Cookie: s=second3; t=x", "last"];
        let given = given.map(str::to_owned);
        let masked =
            ["-H", "Authorization: *** ***", "--header=Cookie: *** ***", "last"].map(str::to_owned);
        assert_eq!(args(&given, &mut secrets), masked);
        assert_eq!(secrets.scrub("first12 second3"), "*** ***");
        let given = ["Authorization: Bearer", "third345", "last"].map(str::to_owned);
        assert_eq!(args(&given, &mut secrets), ["Authorization: Bearer", "***", "last"]);
        assert_eq!(url("https://u:longpass@h/x?y", &mut secrets), "https://***@h/x?***");
        assert_eq!(secrets.scrub("longpass"), "***");
    }
}
