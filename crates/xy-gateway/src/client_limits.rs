//! How many tools clients can take, as far as that is known. Pure.
//!
//! Their limits are facts of others, and change: they are only ever warned of.

/// A word in the name that a client gives itself, in small letters, and how many tools of all
/// servers it shows to its model. The first that fits counts: Cursor calls itself
/// `cursor-vscode`.
const KNOWN: [(&str, usize); 6] = [
    ("cursor", 40),
    ("windsurf", 100),
    ("cascade", 100),
    ("visual studio code", 128),
    ("vscode", 128),
    ("copilot", 128),
];

/// What a client calls itself is short.
const LONGEST_NAME: usize = 128;

/// How many tools a client of this name can take, if that is known.
pub(crate) fn most_tools(client: &str) -> Option<usize> {
    let name = client.get(..LONGEST_NAME).unwrap_or(client).to_lowercase();
    KNOWN.iter().find(|(word, _)| name.contains(word)).map(|(_, most)| *most)
}

/// What is said of a client that is shown more than it can take.
pub(crate) fn warning(client: &str, profile: &str, count: usize, most: usize) -> String {
    let client = xy_protocol::control::quoted(client);
    format!(
        "`{client}` was shown {count} tools by the profile `{profile}`, and is known to take \
         {most}: hide some, or write `tools \"search\"`, in `profiles/{profile}.kdl`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_known_by_what_they_call_themselves() {
        let table = [
            ("cursor-vscode", Some(40)),
            ("Cursor", Some(40)),
            ("Visual Studio Code - Insiders", Some(128)),
            ("windsurf-client", Some(100)),
            ("claude-code", None),
            ("", None),
        ];
        for (name, most) in table {
            assert_eq!(most_tools(name), most, "{name}");
        }
        assert_eq!(most_tools(&"é".repeat(200)), None);
    }
}
