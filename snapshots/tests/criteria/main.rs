//! One test per criterion: a run, and what its trace shows.
#![forbid(unsafe_code)]

mod admission;
mod shown;
mod survival;
mod tenure;
