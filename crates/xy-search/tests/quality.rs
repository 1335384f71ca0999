//! How well the labelled queries are answered.

#[path = "../labelled/set.rs"]
mod set;

use set::{Figures, Set};
use xy_search::Tuning;

#[test]
fn the_set_is_large_enough_to_mean_something() {
    let set = Set::read();
    let tools: usize = set.servers.iter().map(|(_, tools)| tools.len()).sum();
    assert!(tools >= 300 && set.servers.len() >= 30 && set.queries.len() >= 150);
    for right in set.queries.iter().flat_map(|query| &query.right) {
        let is_there =
            |(_, tools): &(_, Vec<xy_search::Document>)| tools.iter().any(|it| it.name == *right);
        assert!(set.servers.iter().any(is_there), "{right} is a tool of the set");
    }
}

#[test]
fn what_users_ask_for_is_among_the_first_five() {
    let set = Set::read();
    let index = set.index(Tuning::default());
    let tuned = set.measure(&index, |it| !it.is_held_out);
    let held_out = set.measure(&index, |it| it.is_held_out);
    let told = |it: &Figures| {
        format!("{} queries: recall {:.3} mrr {:.3}", it.queries, it.recall, it.reciprocal_rank)
    };
    println!("tuned {}\nheld out {}", told(&tuned), told(&held_out));
    println!("{}", tuned.missed.join("\n"));
}
