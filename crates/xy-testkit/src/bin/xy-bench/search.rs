//! `search`: how well tools are found in users' words, what each part of the search gives to
//! that, and how long it takes among ten thousand tools.

#[path = "../../../../xy-search/labelled/set.rs"]
pub(crate) mod set;

use std::time::Duration;

use self::set::{Figures, Query, Set, exposed};
use xy_search::{Document, Index, Stemming, Tuning, Visible};

use super::{judged, median, now, row, say};

const TOOLS: usize = 10_000;
const BUILDS: usize = 5;
const UPDATES: usize = 50;
const ROUNDS: usize = 21;
const SLOWEST: usize = 3;

/// A share of the words of a made-up tool is another word of the set.
const VARIED: u64 = 4;

pub(crate) fn measure() {
    let set = Set::read();
    let tools: usize = set.servers.iter().map(|(_, tools)| tools.len()).sum();
    say(&format!("{tools} tools of {} servers, {} queries", set.servers.len(), set.queries.len()));
    quality(&set);
    parts(&set);
    speed(&set);
}

fn quality(set: &Set) {
    let index = set.index(Tuning::default());
    say(&format!(
        "\n{:<46} {:>8} {:>8} {:>8} {:>8}",
        "queries", "count", "recall@5", "hit@5", "MRR"
    ));
    let tell = |name: &str, found: Figures| {
        let Figures { queries, recall, hits, reciprocal_rank, .. } = found;
        say(&format!("{name:<46} {queries:>8} {recall:>8.3} {hits:>8.3} {reciprocal_rank:>8.3}"));
        found.missed
    };
    let all = set.measure(&index, |_| true);
    let is_met = all.recall >= 0.95 && all.reciprocal_rank >= 0.80;
    tell("all", all);
    let missed = tell("tuned to", set.measure(&index, |it| !it.is_held_out));
    tell("held out", set.measure(&index, |it| it.is_held_out));
    tell("written last (not in all)", set.measure_fresh(&index));
    let others_missed = tell("of another hand, tuned to (not in all)", set.measure_other(&index));
    tell("unseen, of that hand (not in all)", set.measure_unseen(&index));
    tell("every one of these together", set.measure_every(&index));
    say(&format!("budget: {}", judged(is_met, "recall@5 >= 0.95, MRR >= 0.80, over `all`")));
    say("not among the first five, of those tuned to:");
    for line in missed.into_iter().chain(others_missed) {
        say(&format!("  {line}"));
    }
}

/// What was tried, one on top of the other, and what each is worth at the end.
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
        ("BM25 over all words alike", flat),
        ("and without stop words", stopped),
        ("and with weights of fields, k1 and b", bare),
        ("and without the s of plurals", plural),
        ("and with Porter's stems instead", porter),
        ("and with compounds joined and taken apart", joined),
        ("and with slips and beginnings", slips),
        ("and with synonyms", synonyms),
        ("and with phrases worth less", phrases),
        ("and with verbs apart", apart),
        ("and with a share of each word's own rarity", rare),
        ("and with coverage", covering),
        ("and less for what does else: as it is", best.clone()),
        ("as it is, without stems", Tuning { stemming: Stemming::None, ..best.clone() }),
        ("as it is, without slips", Tuning { slip: 0.0, ..best.clone() }),
        ("as it is, without compounds", Tuning { compounds: false, ..best.clone() }),
        ("as it is, with stop words", Tuning { stop_words: false, ..best.clone() }),
        ("as it is, without verbs apart", Tuning { apart: false, ..best.clone() }),
        ("as it is, with rarities together only", Tuning { own_rarity: 0.0, ..best.clone() }),
        ("as it is, without coverage", Tuning { coverage: 0.0, ..best.clone() }),
        ("as it is, whatever a tool does", Tuning { contradiction: 0.0, ..best.clone() }),
        ("as it is, with phrases worth as much", Tuning { phrase: 1.0, ..best.clone() }),
        ("as it is, with synonyms worth 0.5", Tuning { synonym: 0.5, ..best.clone() }),
        ("as it is, with synonyms worth 0.9", Tuning { synonym: 0.9, ..best.clone() }),
        (
            "as it is, without descriptions of arguments",
            Tuning { argument_description: 0.0, ..best },
        ),
    ];
    say(&format!(
        "\n{:<46} {:>17} {:>17} {:>17} {:>17}",
        "what", "tuned to", "another hand", "held out", "written last"
    ));
    say(&format!("{:<46}{}", "", " recall@5      MRR".repeat(4)));
    for (name, tuning) in rows {
        let index = set.index(tuning);
        let tuned = set.measure(&index, |it| !it.is_held_out);
        let others = set.measure(&index, |it| it.is_held_out);
        let cells = [tuned, set.measure_other(&index), others, set.measure_fresh(&index)]
            .map(|it| format!(" {:>8.3} {:>8.3}", it.recall, it.reciprocal_rank));
        say(&format!("{name:<46}{}", cells.concat()));
    }
}

fn speed(set: &Set) {
    let servers = many_servers(set);
    let tools: usize = servers.iter().map(|(_, tools)| tools.len()).sum();
    say(&format!(
        "\n{tools} tools of {} servers, made of the set by a seeded change of words",
        servers.len()
    ));
    say(&format!("{:<46} {:>12} {:>12}  budget", "what", "figure", ""));
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
    row("an index of all is built", &micros(median(times)), None, "");

    let mut index = build();
    let mut times = Vec::new();
    for (server, documents) in servers.iter().take(UPDATES) {
        let began = now();
        index.replace_server(server, documents);
        times.push(began.elapsed());
    }
    row("one server's tools are replaced", &micros(median(times)), None, "");

    let mut visible = Visible::default();
    let mut once = |query: &Query| {
        let began = now();
        let found = index.search_within(&mut visible, &query.text, 10, |_, _| true).len();
        let took = began.elapsed();
        assert!(found > 0, "{} finds something", query.text);
        took
    };
    // The median of each, so that what else the machine does is not a property of a query.
    let mut times: Vec<(Duration, &str)> = set
        .queries
        .iter()
        .chain(&set.other)
        .map(|query| (median((0..ROUNDS).map(|_| once(query)).collect()), query.text.as_str()))
        .collect();
    times.sort();
    row("a query, p50", &micros(times[times.len() / 2].0), None, "");
    let p99 = times[times.len() * 99 / 100].0;
    let budget = judged(p99 <= Duration::from_millis(1), "<= 1 ms");
    row("a query, p99", &micros(p99), None, &budget);
    for (time, query) in times.iter().rev().take(SLOWEST) {
        row(&format!("slowest: {query}"), &micros(*time), None, "");
    }
}

fn micros(time: Duration) -> String {
    format!("{:.0} us", time.as_secs_f64() * 1e6)
}

/// Servers like those of the set, until there are enough tools.
fn many_servers(set: &Set) -> Vec<(String, Vec<Document>)> {
    let words: Vec<&str> = set
        .servers
        .iter()
        .flat_map(|(_, tools)| tools.iter().flat_map(|it| it.description.split(' ')))
        .collect();
    let mut chance = Chance(7);
    let mut servers: Vec<(String, Vec<Document>)> = Vec::new();
    let mut missing = TOOLS;
    for (copy, (server, tools)) in
        (0..).flat_map(|copy| set.servers.iter().map(move |it| (copy, it)))
    {
        let name = format!("{server}-{copy}");
        let varied = |tool: &Document, chance: &mut Chance| Document {
            server: name.clone(),
            name: exposed(&name, &tool.own_name),
            description: chance.varied(&tool.description, &words),
            ..tool.clone()
        };
        let documents: Vec<Document> =
            tools.iter().take(missing).map(|tool| varied(tool, &mut chance)).collect();
        missing -= documents.len();
        servers.push((name.clone(), documents));
        if missing == 0 {
            break;
        }
    }
    servers
}

/// Numbers that look like chance, the same in every run (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("it is below a usize")
    }

    /// A text with some of its words changed, and now and then a word that nobody else has.
    fn varied(&mut self, text: &str, words: &[&str]) -> String {
        let other = |chance: &mut Self, word: &str| match chance.0 % VARIED {
            0 if chance.0.is_multiple_of(5) => format!("{word}{}", chance.below(10_000)),
            0 => words[chance.below(words.len())].to_owned(),
            _ => word.to_owned(),
        };
        let varied = text.split(' ').map(|word| {
            self.below(2);
            other(self, word)
        });
        varied.collect::<Vec<_>>().join(" ")
    }
}
