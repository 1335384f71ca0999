//! `tokens`: the size of the tool list in a model's context with `tools "all"` and with
//! `tools "search"`, and the size of one search.
//!
//! The tools are those of the labelled set, served by real processes behind a real daemon. Bytes
//! count the definitions that a client receives; tokens are estimated from the bytes.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use xy_testkit::{Home, McpClient};

use super::print_line;
use super::search::set::Set;

const COUNTS: [usize; 3] = [10, 100, 1000];

/// The average bytes per token. The tokenizer `o200k_base` yields 4.42, 4.51 and 4.56 bytes per
/// token for lists of 10, 100 and 482 tools; `cl100k_base` yields 4.54 to 4.67.
const BYTES_PER_TOKEN: f64 = 4.5;

/// The sizes for one number of tools, in bytes.
struct Cost {
    all: usize,
    search: usize,
    /// The median size of the answer to a search.
    hits: usize,
    /// The median size of the description of the first hit.
    description: usize,
}

pub(crate) fn measure(xy: &Path) {
    let set = Set::read();
    print_line(&format!(
        "{:<8} {:>18} {:>18} {:>9} {:>18} {:>18}",
        "tools", "list, all", "list, search", "ratio", "one search", "one description"
    ));
    for count in COUNTS {
        let Cost { all, search, hits, description } = cost(xy, &set, count);
        print_line(&format!(
            "{count:<8} {:>18} {:>18} {:>8.1}x {:>18} {:>18}",
            bytes_and_tokens(all),
            bytes_and_tokens(search),
            ratio(all, search),
            bytes_and_tokens(hits),
            bytes_and_tokens(description)
        ));
    }
    print_line(&format!("bytes / tokens, at {BYTES_PER_TOKEN} bytes per token"));
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
        .filter_map(|query| search_sizes(&found, &query.text))
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

/// Adds servers of the labelled set, and copies of them, until there are `count` tools.
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

/// Returns the sizes of the answer to a search and of the description of its first hit. Returns
/// `None` without a hit.
fn search_sizes(client: &McpClient, query: &str) -> Option<(usize, usize)> {
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
fn bytes_and_tokens(bytes: usize) -> String {
    format!("{bytes} / {:.0}", bytes as f64 / BYTES_PER_TOKEN)
}
