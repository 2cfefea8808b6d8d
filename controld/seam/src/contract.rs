//! One contract test per seam, run against the real implementation and against the simulated one.
