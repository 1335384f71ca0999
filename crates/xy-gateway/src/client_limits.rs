//! How many tools known clients support. Pure.
//!
//! These limits belong to other programs and may change, so xy only warns about them.

/// A lowercase part of a client's name, and the number of tools that the client passes to its
/// model. The first match counts: Cursor calls itself `cursor-vscode`.
const KNOWN: [(&str, usize); 6] = [
    ("cursor", 40),
    ("windsurf", 100),
    ("cascade", 100),
    ("visual studio code", 128),
    ("vscode", 128),
    ("copilot", 128),
];

/// Maximum number of bytes of a client's name that are searched.
const MAX_NAME_BYTES: usize = 128;

/// Returns how many tools the client with this name supports, if known.
pub(crate) fn max_tools(client: &str) -> Option<usize> {
    let name = client.get(..MAX_NAME_BYTES).unwrap_or(client).to_lowercase();
    KNOWN.iter().find(|(word, _)| name.contains(word)).map(|(_, max)| *max)
}

/// Returns the warning for a client that gets more tools than it supports.
pub(crate) fn warning(client: &str, profile: &str, count: usize, max: usize) -> String {
    let client = xy_protocol::control::quoted(client);
    format!(
        "`{client}` was shown {count} tools by the profile `{profile}`, and is known to take \
         {max}: hide some, or write `tools \"search\"`, in `profiles/{profile}.kdl`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_limit_follows_from_the_client_name() {
        let table = [
            ("cursor-vscode", Some(40)),
            ("Cursor", Some(40)),
            ("Visual Studio Code - Insiders", Some(128)),
            ("windsurf-client", Some(100)),
            ("claude-code", None),
            ("", None),
        ];
        for (name, max) in table {
            assert_eq!(max_tools(name), max, "{name}");
        }
        assert_eq!(max_tools(&"é".repeat(200)), None);
    }
}
