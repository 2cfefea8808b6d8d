//! Chance.

/// A source of random bytes, fit for credentials.
pub trait Entropy: Send + Sync + 'static {
    /// Fills the whole buffer.
    fn fill(&self, buffer: &mut [u8]);
}

/// `bytes` random bytes as lower-case hex (twice as many characters).
pub fn random_hex(entropy: &dyn Entropy, bytes: usize) -> String {
    use std::fmt::Write as _;
    let mut raw = vec![0_u8; bytes];
    entropy.fill(&mut raw);
    raw.iter().fold(String::with_capacity(bytes * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        text
    })
}
