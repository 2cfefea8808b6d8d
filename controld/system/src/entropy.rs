//! Random bytes from the kernel.

use seam::Entropy;

/// The kernel's generator.
#[derive(Clone, Copy, Debug)]
pub struct RealEntropy;

impl Entropy for RealEntropy {
    fn fill(&self, buffer: &mut [u8]) {
        // Without chance no credential can be made, and there is nothing to fall back to.
        getrandom::fill(buffer).expect("the kernel gives random bytes");
    }
}
