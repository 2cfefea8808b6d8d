//! One seed, split into named streams, so that one more draw in one of them does not move the others.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use sha2::{Digest, Sha256};

/// The named streams of one seed.
#[derive(Clone, Copy, Debug)]
pub struct Streams {
    seed: u64,
}

impl Streams {
    /// The streams of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The seed itself.
    pub const fn seed(self) -> u64 {
        self.seed
    }

    /// The stream of that name, from its start. The same name gives the same draws again.
    pub fn stream(self, name: &str) -> Rng {
        let mut hash = Sha256::new();
        hash.update(self.seed.to_le_bytes());
        hash.update(name.as_bytes());
        Rng(ChaCha8Rng::from_seed(hash.finalize().into()))
    }
}

/// Draws of one stream. Its own type, so that no version of a random crate can change what a seed means.
#[derive(Clone, Debug)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// A number in `0..bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of the remainder is far below anything that a simulation could notice.
        self.0.next_u64().checked_rem(bound).unwrap_or(0)
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low.saturating_add(self.below(high.saturating_sub(low).saturating_add(1)))
    }

    /// True in `part` of `whole` cases.
    pub fn chance(&mut self, part: u64, whole: u64) -> bool {
        self.below(whole) < part
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        assert!(!choices.is_empty(), "there is something to pick from");
        let index = self.below(choices.len() as u64);
        &choices[usize::try_from(index).expect("an index below a length fits")]
    }

    /// Puts `items` into a drawn order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = usize::try_from(self.below(last as u64 + 1)).expect("an index below a length fits");
            items.swap(last, other);
        }
    }

    /// Fills `buffer` with random bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        self.0.fill_bytes(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_draw_in_a_stream_does_not_move_another() {
        let streams = Streams::new(7);
        let mut untouched = streams.stream("faults");
        let mut world = streams.stream("world");
        world.below(10);
        world.below(10);
        let mut faults = streams.stream("faults");
        assert_eq!(faults.below(1 << 40), untouched.below(1 << 40));
    }

    #[test]
    fn seeds_and_names_give_different_draws() {
        let draw = |seed, name: &str| Streams::new(seed).stream(name).below(u64::MAX);
        assert_ne!(draw(1, "world"), draw(2, "world"));
        assert_ne!(draw(1, "world"), draw(1, "faults"));
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items = [1, 2, 3, 4, 5];
        Streams::new(3).stream("order").shuffle(&mut items);
        items.sort_unstable();
        assert_eq!(items, [1, 2, 3, 4, 5]);
    }
}
