//! The gateway's numbers, read from the text in which it writes them.

use std::collections::BTreeMap;

/// Each number under its name, with what tells it from others of the same name.
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
    fn numbers_are_read_and_nothing_else() {
        let text = "# HELP a b\na 1\nb{server=\"x y\"} 2.5\nbad\nworse x\nc NaN\n";
        let read = read(text);
        assert_eq!(read.len(), 2);
        assert_eq!((read["a"], read["b{server=\"x y\"}"]), (1.0, 2.5));
    }
}
