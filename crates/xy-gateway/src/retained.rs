//! How much is kept, by what it is: whoever keeps something that grows counts it here, so that
//! one look tells whether anything is left of those who have gone. Pure.

use std::collections::BTreeMap;

use crate::metrics;

/// The name of the numbers among the others.
const NAME: &str = "xy_kept";

/// How much is kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Retained(BTreeMap<&'static str, usize>);

impl Retained {
    /// So much more is kept of this. What nothing is kept of is told too.
    pub(crate) fn add(&mut self, what: &'static str, count: usize) {
        *self.0.entry(what).or_default() += count;
    }

    /// Writes all of it, for people and programs that watch.
    pub(crate) fn write(&self, out: &mut String) {
        let help = "What is kept in memory for clients, calls and servers, by what it is.";
        metrics::family(out, NAME, metrics::Kind::Gauge, help);
        for (what, count) in &self.0 {
            metrics::sample(out, NAME, &[("what", what)], count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_keep_is_added_up_and_nothing_is_told_too() {
        let mut census = Retained::default();
        census.add("calls", 2);
        census.add("calls", 3);
        census.add("bytes", 0);
        let mut out = String::new();
        census.write(&mut out);
        let numbers: Vec<&str> = out.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(numbers, ["xy_kept{what=\"bytes\"} 0", "xy_kept{what=\"calls\"} 5"]);
    }
}
