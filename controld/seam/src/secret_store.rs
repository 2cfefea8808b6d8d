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

    /// Removes what stores have left that were cut off by the death of their process, whole secrets among them; tells
    /// how many. Nobody else may be storing. A store that leaves nothing has nothing to do.
    ///
    /// # Errors
    /// `PermissionDenied`.
    fn remove_unfinished(&self) -> BoxFuture<'_, io::Result<usize>> {
        Box::pin(std::future::ready(Ok(0)))
    }

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
