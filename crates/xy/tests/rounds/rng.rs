//! Random numbers from one seed.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// A random number generator.
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    /// Creates a generator from `XY_ROUNDS_SEED`, or from a new seed that it prints.
    pub(crate) fn new() -> Self {
        let given = std::env::var("XY_ROUNDS_SEED").ok();
        let seed = given.map_or_else(
            || RandomState::new().build_hasher().finish(),
            |text| text.parse().expect("XY_ROUNDS_SEED is a number"),
        );
        crate::print_figure(&format!("XY_ROUNDS_SEED={seed}"));
        Self { state: seed }
    }

    /// Returns an independent generator, for another thread.
    #[allow(dead_code, reason = "not every test has threads that draw")]
    pub(crate) fn part(&mut self) -> Self {
        Self { state: self.below(u64::MAX) }
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // SplitMix64: short, and uniform enough for delays.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// Returns true with a probability of one in `count`.
    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Returns a duration below this many milliseconds.
    pub(crate) fn millis_below(&mut self, millis: u64) -> Duration {
        Duration::from_micros(self.below(millis * 1000))
    }

    /// Returns one of several.
    pub(crate) fn pick<'a, T>(&mut self, several: &'a [T]) -> &'a T {
        let count = u64::try_from(several.len()).unwrap();
        &several[usize::try_from(self.below(count)).unwrap()]
    }
}
