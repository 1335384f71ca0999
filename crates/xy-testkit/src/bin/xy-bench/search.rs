//! `search`: the quality of the search for tools, the contribution of each part of it, and its
//! speed among ten thousand tools.

#[path = "../../../../xy-search/labelled/set.rs"]
pub(crate) mod set;

use std::time::Duration;

use self::set::{Figures, Query, Set, exposed_name};
use xy_search::{Document, Index, Stemming, Tuning, VisibilityCache};

use super::{check_budget, median, now, print_line, print_row};

const TOOLS: usize = 10_000;
const BUILDS: usize = 5;
const UPDATES: usize = 50;
const ROUNDS: usize = 21;
const SLOWEST: usize = 3;

/// One in so many words of a generated tool is replaced.
const REPLACED_WORD_RATIO: u64 = 4;

pub(crate) fn measure() {
    let set = Set::read();
    let tools: usize = set.servers.iter().map(|(_, tools)| tools.len()).sum();
    print_line(&format!(
        "{tools} tools of {} servers, {} queries",
        set.servers.len(),
        set.queries.len()
    ));
    quality(&set);
    parts(&set);
    speed(&set);
}

fn quality(set: &Set) {
    let index = set.index(Tuning::default());
    print_line(&format!(
        "\n{:<46} {:>8} {:>8} {:>8} {:>8}",
        "queries", "count", "recall@5", "hit@5", "MRR"
    ));
    let print_figures = |name: &str, found: Figures| {
        let Figures { queries, recall, hits, reciprocal_rank, .. } = found;
        print_line(&format!(
            "{name:<46} {queries:>8} {recall:>8.3} {hits:>8.3} {reciprocal_rank:>8.3}"
        ));
        found.missed
    };
    let all = set.measure(&index, |_| true);
    let is_met = all.recall >= 0.95 && all.reciprocal_rank >= 0.80;
    print_figures("all", all);
    let missed = print_figures("tuning set", set.measure(&index, |it| !it.is_held_out));
    print_figures("held out", set.measure(&index, |it| it.is_held_out));
    print_figures("written last (not in `all`)", set.measure_fresh(&index));
    let others_missed =
        print_figures("second author, tuning set (not in `all`)", set.measure_other(&index));
    print_figures("second author, unseen (not in `all`)", set.measure_unseen(&index));
    print_figures("all of these together", set.measure_every(&index));
    print_line(&format!(
        "budget: {}",
        check_budget(is_met, "recall@5 >= 0.95, MRR >= 0.80, over `all`")
    ));
    print_line("queries of the tuning sets whose tool is not among the first five:");
    for line in missed.into_iter().chain(others_missed) {
        print_line(&format!("  {line}"));
    }
}

/// Prints the quality as each part is added, and then without each part.
fn parts(set: &Set) {
    let best = Tuning::default();
    let flat = Tuning {
        stemming: Stemming::None,
        server: 1.0,
        name: 1.0,
        title: 1.0,
        description: 1.0,
        argument: 1.0,
        argument_description: 1.0,
        saturation: 1.2,
        length: 0.75,
        synonym: 0.0,
        phrase: best.phrase,
        apart: false,
        own_rarity: 0.0,
        coverage: 0.0,
        contradiction: 0.0,
        slip: 0.0,
        compounds: false,
        stop_words: false,
    };
    let stopped = Tuning { stop_words: true, ..flat.clone() };
    let bare = Tuning {
        stemming: Stemming::None,
        synonym: 0.0,
        apart: false,
        own_rarity: 0.0,
        coverage: 0.0,
        contradiction: 0.0,
        slip: 0.0,
        compounds: false,
        ..best.clone()
    };
    let plural = Tuning { stemming: Stemming::Plural, ..bare.clone() };
    let porter = Tuning { stemming: Stemming::Porter, ..bare.clone() };
    let joined = Tuning { compounds: true, ..porter.clone() };
    let slips = Tuning { slip: best.slip, ..joined.clone() };
    let synonyms = Tuning { synonym: best.synonym, phrase: 1.0, ..slips.clone() };
    let phrases = Tuning { phrase: best.phrase, ..synonyms.clone() };
    let apart = Tuning { apart: true, ..phrases.clone() };
    let rare = Tuning { own_rarity: best.own_rarity, ..apart.clone() };
    let covering = Tuning { coverage: best.coverage, ..rare.clone() };
    let rows = [
        ("BM25 with equal weights", flat),
        ("+ stop words removed", stopped),
        ("+ weights of fields, k1 and b", bare),
        ("+ plural stems", plural),
        ("+ Porter stems instead", porter),
        ("+ compounds joined and split", joined),
        ("+ typos and prefixes", slips),
        ("+ synonyms", synonyms),
        ("+ phrases worth less", phrases),
        ("+ verbs apart", apart),
        ("+ rarity of each word", rare),
        ("+ coverage", covering),
        ("+ penalty for another action (default)", best.clone()),
        ("default, without stems", Tuning { stemming: Stemming::None, ..best.clone() }),
        ("default, without typos", Tuning { slip: 0.0, ..best.clone() }),
        ("default, without compounds", Tuning { compounds: false, ..best.clone() }),
        ("default, with stop words", Tuning { stop_words: false, ..best.clone() }),
        ("default, without verbs apart", Tuning { apart: false, ..best.clone() }),
        ("default, without rarity of each word", Tuning { own_rarity: 0.0, ..best.clone() }),
        ("default, without coverage", Tuning { coverage: 0.0, ..best.clone() }),
        ("default, without that penalty", Tuning { contradiction: 0.0, ..best.clone() }),
        ("default, with full weight of phrases", Tuning { phrase: 1.0, ..best.clone() }),
        ("default, with synonyms worth 0.5", Tuning { synonym: 0.5, ..best.clone() }),
        ("default, with synonyms worth 0.9", Tuning { synonym: 0.9, ..best.clone() }),
        ("default, without argument descriptions", Tuning { argument_description: 0.0, ..best }),
    ];
    print_line(&format!(
        "\n{:<46} {:>17} {:>17} {:>17} {:>17}",
        "search", "tuning set", "second author", "held out", "written last"
    ));
    print_line(&format!("{:<46}{}", "", " recall@5      MRR".repeat(4)));
    for (name, tuning) in rows {
        let index = set.index(tuning);
        let tuned = set.measure(&index, |it| !it.is_held_out);
        let others = set.measure(&index, |it| it.is_held_out);
        let cells = [tuned, set.measure_other(&index), others, set.measure_fresh(&index)]
            .map(|it| format!(" {:>8.3} {:>8.3}", it.recall, it.reciprocal_rank));
        print_line(&format!("{name:<46}{}", cells.concat()));
    }
}

fn speed(set: &Set) {
    let servers = many_servers(set);
    let tools: usize = servers.iter().map(|(_, tools)| tools.len()).sum();
    print_line(&format!(
        "\n{tools} tools of {} servers, generated from the set by seeded changes of words",
        servers.len()
    ));
    print_line(&format!("{:<46} {:>12} {:>12}  budget", "measurement", "figure", ""));
    let build = || {
        let mut index = Index::default();
        for (server, documents) in &servers {
            index.replace_server(server, documents);
        }
        index
    };
    let mut times = Vec::new();
    for _ in 0..BUILDS {
        let began = now();
        let index = build();
        times.push(began.elapsed());
        assert_eq!(index.len(), tools);
    }
    print_row("build the index of all tools", &micros(median(times)), None, "");

    let mut index = build();
    let mut times = Vec::new();
    for (server, documents) in servers.iter().take(UPDATES) {
        let began = now();
        index.replace_server(server, documents);
        times.push(began.elapsed());
    }
    print_row("replace the tools of one server", &micros(median(times)), None, "");

    let mut visible = VisibilityCache::default();
    let mut once = |query: &Query| {
        let began = now();
        let found = index.search_cached(&mut visible, &query.text, 10, |_, _| true).len();
        let took = began.elapsed();
        assert!(found > 0, "{} finds something", query.text);
        took
    };
    // The median of each query, to exclude the noise of the machine.
    let mut times: Vec<(Duration, &str)> = set
        .queries
        .iter()
        .chain(&set.other)
        .map(|query| (median((0..ROUNDS).map(|_| once(query)).collect()), query.text.as_str()))
        .collect();
    times.sort();
    print_row("a query, p50", &micros(times[times.len() / 2].0), None, "");
    let p99 = times[times.len() * 99 / 100].0;
    let budget = check_budget(p99 <= Duration::from_millis(1), "<= 1 ms");
    print_row("a query, p99", &micros(p99), None, &budget);
    for (time, query) in times.iter().rev().take(SLOWEST) {
        print_row(&format!("slowest: {query}"), &micros(*time), None, "");
    }
}

fn micros(time: Duration) -> String {
    format!("{:.0} us", time.as_secs_f64() * 1e6)
}

/// Returns variations of the servers of the set, until there are `TOOLS` tools.
fn many_servers(set: &Set) -> Vec<(String, Vec<Document>)> {
    let words: Vec<&str> = set
        .servers
        .iter()
        .flat_map(|(_, tools)| tools.iter().flat_map(|it| it.description.split(' ')))
        .collect();
    let mut random = Random(7);
    let mut servers: Vec<(String, Vec<Document>)> = Vec::new();
    let mut missing = TOOLS;
    for (copy, (server, tools)) in
        (0..).flat_map(|copy| set.servers.iter().map(move |it| (copy, it)))
    {
        let name = format!("{server}-{copy}");
        let varied = |tool: &Document, random: &mut Random| Document {
            server: name.clone(),
            name: exposed_name(&name, &tool.own_name),
            description: random.varied(&tool.description, &words),
            ..tool.clone()
        };
        let documents: Vec<Document> =
            tools.iter().take(missing).map(|tool| varied(tool, &mut random)).collect();
        missing -= documents.len();
        servers.push((name.clone(), documents));
        if missing == 0 {
            break;
        }
    }
    servers
}

/// A seeded random number generator (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("it is below a usize")
    }

    /// Returns a text with some words replaced, occasionally by a unique word.
    fn varied(&mut self, text: &str, words: &[&str]) -> String {
        let other = |random: &mut Self, word: &str| match random.0 % REPLACED_WORD_RATIO {
            0 if random.0.is_multiple_of(5) => format!("{word}{}", random.below(10_000)),
            0 => words[random.below(words.len())].to_owned(),
            _ => word.to_owned(),
        };
        let varied = text.split(' ').map(|word| {
            self.below(2);
            other(self, word)
        });
        varied.collect::<Vec<_>>().join(" ")
    }
}
