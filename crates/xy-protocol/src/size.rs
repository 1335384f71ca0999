//! Byte counts in human-readable form.

use std::fmt;

/// A number of bytes, displayed in the largest unit that divides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

const UNITS: [(u64, &str); 6] = [
    (1 << 30, "GiB"),
    (1_000_000_000, "GB"),
    (1 << 20, "MiB"),
    (1_000_000, "MB"),
    (1 << 10, "KiB"),
    (1_000, "kB"),
];

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.into_iter().find(|(unit, _)| self.0.is_multiple_of(*unit)) {
            Some((unit, name)) if self.0 > 0 => write!(f, "{} {name}", self.0 / unit),
            _ => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_shown_in_the_largest_exact_unit() {
        let table = [
            (64 << 20, "64 MiB"),
            (2 << 30, "2 GiB"),
            (1536 << 20, "1536 MiB"),
            (500_000_000, "500 MB"),
            (3_000_000_000, "3 GB"),
            (4 << 10, "4 KiB"),
            (2_000, "2 kB"),
            (1_234_567, "1234567 bytes"),
            (0, "0 bytes"),
        ];
        for (bytes, expected) in table {
            assert_eq!(Size(bytes).to_string(), expected);
        }
    }
}
