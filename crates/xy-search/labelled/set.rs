//! The labelled set: tools as servers define them, and queries in users' words with the
//! tools that would be right. Which of them may be tuned to, `docs/design/search.md` says. Read by the test of quality and by the benchmark.

use std::fs;
use std::path::Path;

use serde_json::Value;
use xy_search::{Document, Index, Tuning};

/// Every third query is held out: no miss among these was looked at.
const HELD_OUT: usize = 3;

/// How many hits count.
pub(crate) const WITHIN: usize = 5;

/// One query with the tools that would be right.
pub(crate) struct Query {
    pub(crate) text: String,
    pub(crate) right: Vec<String>,
    pub(crate) is_held_out: bool,
}

pub(crate) struct Set {
    pub(crate) servers: Vec<(String, Vec<Document>)>,
    pub(crate) queries: Vec<Query>,
    /// Queries that were written after everything was frozen.
    pub(crate) fresh: Vec<Query>,
    /// Queries of another hand, tuned to.
    pub(crate) other: Vec<Query>,
    /// Queries of that hand that nobody has tuned to; none while the file is not there.
    pub(crate) unseen: Vec<Query>,
}

/// How well queries were answered.
pub(crate) struct Figures {
    pub(crate) queries: usize,
    /// Of the right tools of a query, the share among its first hits; the mean over queries.
    pub(crate) recall: f64,
    /// The share of queries with any right tool among their first hits.
    pub(crate) hits: f64,
    /// One over the place of the first right hit, 0 if it is not among the first 100; the
    /// mean over queries.
    pub(crate) reciprocal_rank: f64,
    /// Queries without any right tool among the first hits, with the best that it got.
    pub(crate) missed: Vec<String>,
}

/// The name that a tool has behind the door.
pub(crate) fn exposed(server: &str, tool: &str) -> String {
    format!("{server}__{tool}")
}

impl Set {
    /// Reads the set.
    pub(crate) fn read() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xy-search/labelled");
        let mut files: Vec<_> = fs::read_dir(folder.join("servers"))
            .expect("the labelled set is there")
            .map(|it| it.expect("a folder of ours").path())
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

    /// An index of all tools.
    pub(crate) fn index(&self, tuning: Tuning) -> Index {
        let mut index = Index::new(tuning);
        for (server, documents) in &self.servers {
            index.replace_server(server, documents);
        }
        index
    }

    /// Asks the queries of one part, and counts.
    pub(crate) fn measure(&self, index: &Index, part: impl Fn(&Query) -> bool) -> Figures {
        measure(index, self.queries.iter().filter(|it| part(it)))
    }

    /// Asks the queries that were written last, and counts.
    pub(crate) fn measure_fresh(&self, index: &Index) -> Figures {
        measure(index, &self.fresh)
    }

    /// Asks the queries of another hand that may be tuned to, and counts.
    pub(crate) fn measure_other(&self, index: &Index) -> Figures {
        measure(index, &self.other)
    }

    /// Asks the queries of that hand that nobody has tuned to, and counts.
    pub(crate) fn measure_unseen(&self, index: &Index) -> Figures {
        measure(index, &self.unseen)
    }

    /// Asks all that there are, of every hand, and counts.
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
        let is_right = |name: &&&str| query.right.iter().any(|it| it == **name);
        let found = names.iter().take(WITHIN).filter(is_right).count();
        let most = query.right.len().min(WITHIN);
        recall += share(found, most);
        let place = names.iter().position(|name| is_right(&name));
        reciprocal_rank += place.map_or(0.0, |place| share(1, place + 1));
        if found == 0 {
            let place = place.map_or("nowhere".to_owned(), |it| format!("at place {}", it + 1));
            let (right, best) = (query.right.join(" or "), names.first().unwrap_or(&"nothing"));
            missed.push(format!("{:?}: {right} stands {place}, first is {best}", query.text));
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
    let server = file.file_stem().and_then(|it| it.to_str()).expect("a name of ours").to_owned();
    let text = fs::read_to_string(file).expect("a file of ours");
    let tools: Vec<Value> = serde_json::from_str(&text).expect("a list of definitions");
    let document = |tool: &Value| {
        let name = exposed(&server, tool["name"].as_str().expect("it has a name"));
        Document::of(&server, &name, &tool.to_string())
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
    let (text, right) = line.split_once(" => ").expect("a query and its tools");
    let right = right.split(", ").map(|it| it.replacen('/', "__", 1)).collect();
    Query { text: text.to_owned(), right, is_held_out: number.is_multiple_of(HELD_OUT) }
}
