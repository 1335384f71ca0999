//! The labelled set: tools as servers define them, and queries in users' words with the expected
//! tools.
//!
//! Read by the quality test and by the benchmark. `docs/design/search.md` says which queries may be
//! used for tuning.

use std::fs;
use std::path::Path;

use serde_json::Value;
use xy_search::{Document, Index, Tuning};

/// Every third query is held out: its misses were never inspected.
const HELD_OUT: usize = 3;

/// Number of first hits that count.
pub(crate) const MAX_RANK: usize = 5;

/// A query with its expected tools.
pub(crate) struct Query {
    pub(crate) text: String,
    pub(crate) expected: Vec<String>,
    pub(crate) is_held_out: bool,
}

pub(crate) struct Set {
    pub(crate) servers: Vec<(String, Vec<Document>)>,
    pub(crate) queries: Vec<Query>,
    /// Queries written after tuning was finished.
    pub(crate) fresh: Vec<Query>,
    /// Queries by another author, used for tuning.
    pub(crate) other: Vec<Query>,
    /// Queries by that author that were not used for tuning.
    pub(crate) unseen: Vec<Query>,
}

/// The quality of the answers.
pub(crate) struct Figures {
    pub(crate) queries: usize,
    /// The mean share of a query's expected tools among its first hits.
    pub(crate) recall: f64,
    /// The share of queries with an expected tool among the first hits.
    pub(crate) hits: f64,
    /// The mean of one over the rank of the first expected hit; 0 if it is not among the first 100.
    pub(crate) reciprocal_rank: f64,
    /// Queries without an expected tool among the first hits, with their best hit.
    pub(crate) missed: Vec<String>,
}

/// Returns the exposed name of a tool.
pub(crate) fn exposed_name(server: &str, tool: &str) -> String {
    format!("{server}__{tool}")
}

impl Set {
    /// Reads the set.
    pub(crate) fn read() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xy-search/labelled");
        let mut files: Vec<_> = fs::read_dir(folder.join("servers"))
            .expect("the labelled set is there")
            .map(|it| it.expect("a readable folder").path())
            .collect();
        files.sort();
        Self {
            servers: files.iter().map(|file| read_server(file)).collect(),
            queries: read_queries(&folder.join("queries.txt")),
            fresh: read_queries(&folder.join("fresh.txt")),
            other: read_queries(&folder.join("other.txt")),
            unseen: read_queries(&folder.join("unseen.txt")),
        }
    }

    /// Builds an index of all tools.
    pub(crate) fn index(&self, tuning: Tuning) -> Index {
        let mut index = Index::new(tuning);
        for (server, documents) in &self.servers {
            index.replace_server(server, documents);
        }
        index
    }

    /// Measures the queries of one part.
    pub(crate) fn measure(&self, index: &Index, part: impl Fn(&Query) -> bool) -> Figures {
        measure(index, self.queries.iter().filter(|it| part(it)))
    }

    /// Measures the queries written after tuning.
    pub(crate) fn measure_fresh(&self, index: &Index) -> Figures {
        measure(index, &self.fresh)
    }

    /// Measures the queries of another author that were used for tuning.
    pub(crate) fn measure_other(&self, index: &Index) -> Figures {
        measure(index, &self.other)
    }

    /// Measures the queries of that author that were not used for tuning.
    pub(crate) fn measure_unseen(&self, index: &Index) -> Figures {
        measure(index, &self.unseen)
    }

    /// Measures all queries.
    pub(crate) fn measure_every(&self, index: &Index) -> Figures {
        let all = [&self.queries, &self.fresh, &self.other, &self.unseen];
        measure(index, all.into_iter().flatten())
    }
}

fn measure<'q>(index: &Index, queries: impl IntoIterator<Item = &'q Query>) -> Figures {
    let (mut count, mut recall, mut reciprocal_rank, mut missed) = (0, 0.0, 0.0, Vec::new());
    for query in queries {
        count += 1;
        let names: Vec<&str> =
            index.search(&query.text, 100, |_, _| true).iter().map(|it| it.name).collect();
        let is_right = |name: &&&str| query.expected.iter().any(|it| it == **name);
        let found = names.iter().take(MAX_RANK).filter(is_right).count();
        let max_found = query.expected.len().min(MAX_RANK);
        recall += share(found, max_found);
        let rank = names.iter().position(|name| is_right(&name));
        reciprocal_rank += rank.map_or(0.0, |rank| share(1, rank + 1));
        if found == 0 {
            let rank = rank.map_or("nowhere".to_owned(), |it| format!("rank {}", it + 1));
            let (expected, best) =
                (query.expected.join(" or "), names.first().unwrap_or(&"nothing"));
            missed.push(format!("{:?}: {expected} is {rank}, the first hit is {best}", query.text));
        }
    }
    Figures {
        queries: count,
        hits: share(count - missed.len(), count),
        recall: recall * share(1, count),
        reciprocal_rank: reciprocal_rank * share(1, count),
        missed,
    }
}

#[expect(clippy::cast_precision_loss, reason = "there are few queries")]
fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}

fn read_server(file: &Path) -> (String, Vec<Document>) {
    let server = file.file_stem().and_then(|it| it.to_str()).expect("a UTF-8 name").to_owned();
    let text = fs::read_to_string(file).expect("a readable file");
    let tools: Vec<Value> = serde_json::from_str(&text).expect("a list of definitions");
    let document = |tool: &Value| {
        let name = exposed_name(&server, tool["name"].as_str().expect("it has a name"));
        Document::from_definition(&server, &name, &tool.to_string())
    };
    let documents = tools.iter().map(document).collect();
    (server, documents)
}

fn read_queries(file: &Path) -> Vec<Query> {
    let text = fs::read_to_string(file).expect("the queries are there");
    let lines = text.lines().filter(|line| !line.starts_with('#')).enumerate();
    lines.map(|(number, line)| read_query(number, line)).collect()
}

fn read_query(number: usize, line: &str) -> Query {
    let (text, expected) = line.split_once(" => ").expect("a query and its tools");
    let expected = expected.split(", ").map(|it| it.replacen('/', "__", 1)).collect();
    Query { text: text.to_owned(), expected, is_held_out: number.is_multiple_of(HELD_OUT) }
}
