//! Parses the gateway's metrics from their text format.

use std::collections::BTreeMap;

/// Returns each sample by its name and labels.
pub(super) fn read(text: &str) -> BTreeMap<String, f64> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let pair = |line: &str| {
        let (name, number) = line.rsplit_once(' ')?;
        let number: f64 = number.parse().ok()?;
        number.is_finite().then(|| (name.to_owned(), number))
    };
    samples.filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finite_samples_are_parsed() {
        let text = "# HELP a b\na 1\nb{server=\"x y\"} 2.5\nbad\nworse x\nc NaN\n";
        let read = read(text);
        assert_eq!(read.len(), 2);
        assert_eq!((read["a"], read["b{server=\"x y\"}"]), (1.0, 2.5));
    }
}
