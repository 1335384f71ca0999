//! Tests of the search quality with the labelled queries.

#[path = "../labelled/set.rs"]
mod set;

use set::{Figures, MAX_RANK, Query, Set, exposed_name};
use xy_search::{Document, Tuning};

/// Asserts the quality of the answers to a part of the queries.
fn assert_quality(part: impl Fn(&Query) -> bool, min_recall: f64, min_rank: f64) {
    let set = Set::read();
    let figures = set.measure(&set.index(Tuning::default()), part);
    assert_figures(&figures, min_recall, min_rank);
}

/// Asserts minimum figures. A failure shows numbers only: a list of missed held-out queries would
/// invite tuning to them.
fn assert_figures(figures: &Figures, min_recall: f64, min_rank: f64) {
    let Figures { queries, recall, hits, reciprocal_rank, missed } = figures;
    assert!(
        *recall >= min_recall && *reciprocal_rank >= min_rank,
        "{queries} queries: recall@{MAX_RANK} {recall:.3}, MRR {reciprocal_rank:.3}, hit {hits:.3}, \
         {} without any right tool",
        missed.len()
    );
}

#[test]
fn labelled_set_has_enough_tools_servers_and_queries() {
    let set = Set::read();
    let tools: usize = set.servers.iter().map(|(_, tools)| tools.len()).sum();
    assert!(tools >= 300 && set.servers.len() >= 30 && set.queries.len() >= 150);
    assert!(set.fresh.len() >= 60 && set.other.len() >= 150);
    let all = [&set.queries, &set.fresh, &set.other, &set.unseen];
    for expected in all.into_iter().flatten().flat_map(|query| &query.expected) {
        let is_there =
            |(_, tools): &(_, Vec<Document>)| tools.iter().any(|it| it.name == *expected);
        assert!(set.servers.iter().any(is_there), "{expected} is a tool of the set");
    }
}

#[test]
fn tuned_queries_reach_the_expected_quality() {
    assert_quality(|_| true, 0.95, 0.8);
}

/// Misses among these were never inspected; but see `docs/design/search.md`.
#[test]
fn held_out_queries_reach_the_expected_quality() {
    assert_quality(|it| it.is_held_out, 0.9, 0.8);
}

/// Written after tuning: the difference shows how far tuning has overfitted.
#[test]
fn fresh_queries_reach_the_expected_quality() {
    let set = Set::read();
    assert_figures(&set.measure_fresh(&set.index(Tuning::default())), 0.77, 0.61);
}

/// Written by another author, and used for tuning.
#[test]
fn queries_of_another_author_reach_the_expected_quality() {
    let set = Set::read();
    assert_figures(&set.measure_other(&set.index(Tuning::default())), 0.93, 0.88);
}

/// Written by that author, and not used for tuning.
#[test]
fn unseen_queries_reach_the_expected_quality() {
    let set = Set::read();
    assert_figures(&set.measure_unseen(&set.index(Tuning::default())), 0.92, 0.86);
}

/// All four files together, most of which were not used for tuning.
#[test]
fn all_queries_reach_the_expected_quality() {
    let set = Set::read();
    assert_figures(&set.measure_every(&set.index(Tuning::default())), 0.93, 0.85);
}

#[test]
fn every_tool_is_found_by_its_name() {
    let set = Set::read();
    let index = set.index(Tuning::default());
    for tool in set.servers.iter().flat_map(|(_, tools)| tools) {
        let name = exposed_name(&tool.server, &tool.own_name);
        assert_eq!(index.search(&name, 1, |_, _| true)[0].name, name);
    }
}
