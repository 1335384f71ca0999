//! Counts of retained objects, by kind. Every component that keeps growing state counts it here, so
//! that leaks by disconnected clients become visible. Pure.

use std::collections::BTreeMap;

use crate::metrics;

/// The name of the metric.
const METRIC_NAME: &str = "xy_retained_objects";

/// The number of retained objects of each kind.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Retained(BTreeMap<&'static str, usize>);

impl Retained {
    /// Adds to the count of a kind. A count of 0 is reported too.
    pub fn add(&mut self, what: &'static str, count: usize) {
        *self.0.entry(what).or_default() += count;
    }

    /// Appends all counts in the format of `/metrics`.
    pub fn write(&self, out: &mut String) {
        let help = "Objects retained in memory, by kind.";
        metrics::family(out, METRIC_NAME, metrics::Kind::Gauge, help);
        for (what, count) in &self.0 {
            metrics::sample(out, METRIC_NAME, &[("what", what)], count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_and_zero_is_written() {
        let mut retained = Retained::default();
        retained.add("calls", 2);
        retained.add("calls", 3);
        retained.add("bytes", 0);
        let mut out = String::new();
        retained.write(&mut out);
        let numbers: Vec<&str> = out.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            numbers,
            ["xy_retained_objects{what=\"bytes\"} 0", "xy_retained_objects{what=\"calls\"} 5"]
        );
    }
}
