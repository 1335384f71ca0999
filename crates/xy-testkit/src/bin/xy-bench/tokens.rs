//! `tokens`: what a model pays for the list of tools before it has done anything, with
//! `tools "all"` and with `tools "search"`, and what finding one tool costs then.
//!
//! The tools are those of the labelled set, with real servers behind a real daemon. Bytes are
//! those of the definitions as a client gets them; tokens are an estimate from them.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use super::say;
use super::search::set::Set;

const COUNTS: [usize; 3] = [10, 100, 1000];

/// What the tokenizer `o200k_base` makes of these lists: 4.42, 4.51 and 4.56 bytes for a token
/// with 10, 100 and 482 tools. (`cl100k_base`: 4.54 to 4.67.)
const BYTES_PER_TOKEN: f64 = 4.5;

/// What one list costs, in bytes.
struct Cost {
    all: usize,
    search: usize,
    /// The answer to a search, the median of many.
    hits: usize,
    /// The answer that describes the first hit, the median of many.
    description: usize,
}

pub(crate) fn measure(xy: &Path) {
    let set = Set::read();
    say(&format!(
        "{:<8} {:>18} {:>18} {:>9} {:>18} {:>18}",
        "tools", "list, all", "list, search", "ratio", "one search", "one description"
    ));
    for count in COUNTS {
        let Cost { all, search, hits, description } = cost(xy, &set, count);
        say(&format!(
            "{count:<8} {:>18} {:>18} {:>8.1}x {:>18} {:>18}",
            priced(all),
            priced(search),
            ratio(all, search),
            priced(hits),
            priced(description)
        ));
    }
    say(&format!("bytes / tokens, at {BYTES_PER_TOKEN} bytes for a token"));
}

fn cost(xy: &Path, set: &Set, count: usize) -> Cost {
    let home = Home::new(xy);
    let tools_in = home.root().join("tools");
    add_servers(&home, &tools_in, count);
    home.write_config("profiles/listed.kdl", "tools \"all\"\nmanage #false");
    home.write_config("profiles/found.kdl", "tools \"search\"\nmanage #false");
    let daemon = home.daemon();
    let [listed, found] = ["listed", "found"].map(|profile| {
        let client = home.mcp_connect(&["--profile", profile]);
        client.initialize();
        client
    });
    let tools = home.wait_until("all tools are listed", || {
        let tools = listed.list("tools/list", "tools");
        (tools.len() == count).then_some(tools)
    });
    let few = found.list("tools/list", "tools");
    let (hits, descriptions) = set
        .queries
        .iter()
        .filter_map(|query| look_up(&found, &query.text))
        .unzip::<_, _, Vec<_>, Vec<_>>();
    for client in [listed, found] {
        client.close();
    }
    daemon.terminate();
    fs::remove_dir_all(&tools_in).expect("a folder of ours");
    home.finish();
    Cost {
        all: bytes_of(&tools),
        search: bytes_of(&few),
        hits: median(hits),
        description: median(descriptions),
    }
}

/// Servers of the labelled set, and copies of these, until there are so many tools.
fn add_servers(home: &Home, tools_in: &Path, count: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xy-search/labelled/servers");
    let mut files: Vec<_> = fs::read_dir(folder)
        .expect("the labelled set is there")
        .map(|it| it.expect("a folder of ours").path())
        .collect();
    files.sort();
    fs::create_dir(tools_in).expect("a folder in a home of ours");
    let mut missing = count;
    for (copy, file) in (0..).flat_map(|copy| files.iter().map(move |file| (copy, file))) {
        let text = fs::read_to_string(file).expect("a file of ours");
        let mut tools: Vec<Value> = serde_json::from_str(&text).expect("a list of definitions");
        tools.truncate(missing);
        missing -= tools.len();
        let name = file.file_stem().and_then(|it| it.to_str()).expect("a name of ours");
        let name = if copy == 0 { name.to_owned() } else { format!("{name}-{copy}") };
        let tool_file = tools_in.join(format!("{name}.json"));
        fs::write(&tool_file, Value::Array(tools).to_string()).expect("a file in a home of ours");
        let tool_file = tool_file.to_str().expect("a path of ours");
        home.mcp_server(&name, &["--only-tools", "--tool-file", tool_file]);
        if missing == 0 {
            break;
        }
    }
}

/// What a search answers, and what the description of its first hit does; nothing if it has none.
fn look_up(client: &McpClient, query: &str) -> Option<(usize, usize)> {
    let hits = client.call("search_tools", json!({ "query": query }));
    let hits = &hits["result"];
    let first = hits["structuredContent"]["tools"][0]["name"].as_str()?;
    let description = client.call_text("describe_tool", json!({ "name": first }));
    let hits = hits["content"][0]["text"].as_str().expect("a text beside the structure");
    Some((hits.len(), description.len()))
}

fn bytes_of(tools: &[Value]) -> usize {
    tools.iter().map(|tool| tool.to_string().len()).sum()
}

fn median(mut sizes: Vec<usize>) -> usize {
    sizes.sort_unstable();
    *sizes.get(sizes.len() / 2).expect("some query finds something")
}

#[expect(clippy::cast_precision_loss, reason = "they are far smaller")]
fn ratio(more: usize, less: usize) -> f64 {
    more as f64 / less as f64
}

#[expect(clippy::cast_precision_loss, reason = "they are far smaller")]
fn priced(bytes: usize) -> String {
    format!("{bytes} / {:.0}", bytes as f64 / BYTES_PER_TOKEN)
}
