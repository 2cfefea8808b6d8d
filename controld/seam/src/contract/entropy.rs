//! What every source of random bytes keeps to.

use crate::{Seams, random_hex};

/// The contract of [`Entropy`](crate::Entropy).
pub async fn entropy(seams: &Seams) {
    let entropy = seams.entropy.as_ref();
    entropy.fill(&mut []);

    let (mut first, mut second) = ([0_u8; 32], [0_u8; 32]);
    entropy.fill(&mut first);
    entropy.fill(&mut second);
    assert_ne!(first, second, "two draws of 32 bytes are never the same");

    // Larger than the 256 bytes up to which some kernels fill a buffer in one piece.
    let mut large = vec![0_u8; 4096];
    entropy.fill(&mut large);
    assert!(large.chunks(64).all(|piece| piece.iter().any(|byte| *byte != 0)), "a part was left unfilled");

    let text = random_hex(entropy, 16);
    assert_eq!(text.len(), 32);
    assert!(text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')), "not lower-case hex: {text}");
}
