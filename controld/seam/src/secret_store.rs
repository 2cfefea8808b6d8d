//! Credentials at rest.

use std::io;

use crate::BoxFuture;

/// Secrets by name. A name is a short file-name-safe text (`[a-z0-9-]`, at most 128 characters); it is what
/// records may hold, the secret itself never (O-001.1).
pub trait SecretStore: Send + Sync + 'static {
    /// Stores a secret durably under a new name.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken: a secret is never overwritten (ruling 5). `InvalidInput` for a bad
    /// name; `StorageFull`, `PermissionDenied`.
    fn store<'a>(&'a self, name: &'a str, secret: &'a [u8]) -> BoxFuture<'a, io::Result<()>>;

    /// The secret of that name.
    ///
    /// # Errors
    /// `NotFound`; `PermissionDenied` also when others than the owner could have read or written it.
    fn load<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<u8>>>;

    /// Removes the secret; fine if it is not there.
    ///
    /// # Errors
    /// `PermissionDenied`.
    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<()>>;

    /// The names of all secrets, sorted.
    ///
    /// # Errors
    /// `PermissionDenied`.
    fn names(&self) -> BoxFuture<'_, io::Result<Vec<String>>>;
}
