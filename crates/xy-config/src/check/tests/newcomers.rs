//! Tests of files with newcomers' mistakes: each is reported once, with a correction, and the rest
//! of the file is checked.

use std::fmt::Write as _;

use super::super::check_text;

/// Files with one mistake each, and an unknown field at the end that shows that the rest was read.
const TEXTS: &[(&str, &str)] = &[
    ("a list as in JSON", "command \"npx\"\nargs [\"-y\", \"@scope/x\"]\n"),
    ("a list over lines", "command \"npx\"\nargs [\n  \"-y\",\n  \"x\",\n]\n"),
    ("a list that is not closed", "command \"npx\"\nargs [\"-y\", \"x\"\n"),
    ("a list after a colon", "command \"npx\"\nargs: [\"-p\", 8080]\n"),
    (
        "a client's whole file",
        "{\n  \"mcpServers\": {\n    \"files\": {\n      \"command\": \"npx\",\n      \"args\": [\"-y\", \"x\", \"--token\", \"s3cret\"],\n      \"env\": { \"API_KEY\": \"s3cret\" }\n    }\n  }\n}\n",
    ),
    (
        "two servers of a client",
        "{\"mcpServers\": {\"a\": {\"command\": \"x\"}, \"b\": {\"url\": \"y\"}}}\n",
    ),
    ("one entry", "{ \"command\": \"npx\", \"args\": [\"-y\"], }\n"),
    (
        "members without braces",
        "\"command\": \"npx\",\n\"args\": [\"-y\", \"x\"],\n\"env\": { \"A\": \"1\" },\n",
    ),
    ("an equals sign", "command = \"npx\"\n"),
    ("an equals sign without spaces", "command=\"npx\"\n"),
    ("a colon", "command: \"npx\"\n"),
    ("a command line without quotes", "command npx -y @scope/x\n"),
    ("a command line of plain words", "command npx -y x\n"),
    ("a command line in quotes", "command \"npx -y @scope/x /tmp\"\n"),
    ("a command line with a secret", "command \"npx x --token s3cret\"\nargs \"more\"\n"),
    ("a command line for a shell", "command \"cd /x && npx y\"\n"),
    ("a command line with a variable", "command \"API_KEY=s3cret npx y\"\n"),
    ("two fields in one line", "command \"npx\" args \"-y\"\n"),
    ("a missing quote", "command \"npx\nargs \"-y\"\n"),
    ("a missing quote in a block", "command \"npx\"\nenv { A \"b }\nport 0\n"),
    ("a missing first quote", "command npx\"\n"),
    ("a missing brace", "command \"npx\"\nenv {\n  A \"1\"\nport 0\n"),
    (
        "a missing inner brace",
        "command \"npx\"\nrestart {\n  policy \"always\"\n  x {\n    y 1\n}\nport 0\n",
    ),
    ("a missing first brace", "command \"npx\"\nenv\n  A \"1\"\n  B \"2\"\n}\n"),
    ("text of several lines", "command \"npx\"\nargs \"\"\"\n  a\n b\n  \"\"\"\n"),
    ("a stray brace", "command \"npx\"\n}\n"),
    ("a brace in a line of its own", "command \"npx\"\nenv\n{\n  A \"1\"\n}\n"),
    ("variables as in a shell", "command \"npx\"\nenv { KEY=value }\n"),
    ("variables as in JSON", "command \"npx\"\nenv { \"A\": \"1\", \"B\": \"2\" }\n"),
    ("variables as in YAML", "command \"npx\"\nenv {\n  A: 1\n  API_KEY: s3cret\n}\n"),
    ("a keyword", "command \"npx\"\nrestart { jitter true }\nenv { A null }\n"),
    ("typographic quotes", "command “npx”\n"),
    ("single quotes", "command 'npx'\nargs '-y' 'a b'\n"),
    ("commas", "command \"npx\"\nargs \"-y\", \"x\",\n"),
    ("a comma after a block", "command \"npx\"\nenv { A \"1\" },\n"),
    ("a comment of a shell", "# it's {mine}\ncommand \"npx\" # runs it\n"),
    (
        "comments of a shell in a block",
        "command \"x\"\nenv {\n  # the key\n  A \"1\" # it\n} # end\n",
    ),
    ("a URL without quotes", "url https://example.com/mcp\n"),
    ("a duration without quotes", "command \"npx\"\nstop { grace 10s }\n"),
    ("no space", "command\"npx\"\n"),
    ("a lone backslash", "command \"C:\\programs\\x\"\n"),
    ("TOML", "[mcp_servers.x]\ncommand = \"npx\"\nargs = [\"-y\", \"x\"]\n"),
    ("YAML", "mcpServers:\n  x:\n    command: npx\n    args:\n      - -y\n      - x\n"),
    ("YAML with a command line", "command: npx x --token s3cret\nenv:\n  A: b\n"),
    ("YAML of one server", "command: npx\nargs:\n  - -y\n  - x\n"),
];

#[test]
fn each_mistake_is_reported_once_with_a_correction() {
    let mut all = String::new();
    for (what, text) in TEXTS {
        let text = format!("{text}prot 1\n");
        let _ = writeln!(all, "=== {what}");
        for problem in check_text("servers/a.kdl", &text).problems {
            let _ = writeln!(all, "{problem}");
        }
    }
    assert!(!all.contains("s3cret"), "{all}");
    insta::assert_snapshot!(all);
}

#[test]
fn tabs_byte_order_marks_and_line_ends_are_accepted() {
    for text in [
        "\u{feff}command \"npx\"\r\nargs \"-y\"\r\n",
        "command\t\"npx\"\t// a comment\nenv\t{\n\tA\t\"1\"\n}\n",
        "command \"npx\"; args -y x:y a=b // no mistake\n".replace(" a=b", "").as_str(),
        "command \"/x\" /* more */\nenv { A \"it's\"; B it's; C \"a, b\" }\n",
    ] {
        let problems = check_text("servers/a.kdl", text).problems;
        assert!(problems.is_empty(), "{text}: {}", problems[0]);
    }
}

#[test]
fn garbage_causes_few_problems() {
    let words = "lorem ipsum dolor sit amet\n";
    let bytes: String = (0..40_000_u32).filter_map(|it| char::from_u32(it * 7 % 0x2ff)).collect();
    for part in [words, "}{][\"',:=\n", "= = =\n", "[\n", "{\n", "a { \"\n", "# x\n", &bytes] {
        let garbage = part.repeat((1 << 18) / part.len());
        let problems = check_text("servers/a.kdl", &garbage).problems;
        assert!((1..=25).contains(&problems.len()), "{}: {}", &part[..1], problems.len());
    }
}
