//! Errors that name what was done to what.

use std::fmt::Display;
use std::io;

/// The same kind of error, whose text says what could not be done, to what, and why.
pub(crate) fn cannot(doing: &str, what: impl Display, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("cannot {doing} {what}: {error}"))
}
