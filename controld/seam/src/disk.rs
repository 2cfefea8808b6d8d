//! Files and advisory locks.

use std::io;
use std::path::{Path, PathBuf};

use crate::BoxFuture;

/// Who may read a file or enter a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// The owner alone: 0600 for files, 0700 for directories.
    Owner,
    /// Whatever the process's umask leaves of 0644 and 0755.
    Shared,
}

/// What a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// Anything else (symbolic link, socket, device).
    Other,
}

/// One entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// The full path.
    pub path: PathBuf,
    /// What it is; links are not followed.
    pub kind: EntryKind,
    /// Size in bytes; 0 for directories.
    pub size: u64,
}

/// A held advisory lock; released when dropped or when its process ends, however it ends.
pub trait Lock: Send + Sync + 'static {}

/// Why a lock was not taken.
#[derive(Debug)]
pub enum LockRefused {
    /// Another process holds it; `note` is what that process wrote, for people only.
    Held {
        /// What the holder wrote into the file.
        note: String,
    },
    /// The lock file could not be opened or locked.
    Failed(io::Error),
}

/// Files of one host. Every path is absolute.
pub trait Disk: Send + Sync + 'static {
    /// The whole content.
    ///
    /// # Errors
    /// `NotFound`; `FileTooLarge` if it holds more than `limit` bytes.
    fn read<'a>(&'a self, path: &'a Path, limit: u64) -> BoxFuture<'a, io::Result<Vec<u8>>>;

    /// Replaces the content as one step: after a crash the file holds the old bytes or the new ones, and after
    /// success the new ones survive a power cut. The parent directory must exist.
    ///
    /// # Errors
    /// `NotFound` for the parent, `StorageFull`, `PermissionDenied`.
    fn write_atomic<'a>(
        &'a self,
        path: &'a Path,
        bytes: &'a [u8],
        privacy: Privacy,
    ) -> BoxFuture<'a, io::Result<()>>;

    /// Removes what replacements in this directory have left that were cut off by the death of their process; tells how
    /// many. Nobody else may be replacing anything in it. A disk whose replacements leave nothing has nothing to do.
    ///
    /// # Errors
    /// `PermissionDenied`.
    fn remove_unfinished<'a>(&'a self, directory: &'a Path) -> BoxFuture<'a, io::Result<usize>> {
        let _ = directory;
        Box::pin(std::future::ready(Ok(0)))
    }

    /// Adds bytes at the end, creating the file if needed; gives the new size. Not synced.
    ///
    /// # Errors
    /// `NotFound` for the parent, `StorageFull`, `PermissionDenied`.
    fn append<'a>(
        &'a self,
        path: &'a Path,
        bytes: &'a [u8],
        privacy: Privacy,
    ) -> BoxFuture<'a, io::Result<u64>>;

    /// Renames within one file system, replacing what is there.
    ///
    /// # Errors
    /// `NotFound` for the source.
    fn rename<'a>(&'a self, from: &'a Path, to: &'a Path) -> BoxFuture<'a, io::Result<()>>;

    /// Removes one file.
    ///
    /// # Errors
    /// `NotFound`.
    fn remove<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>>;

    /// The entries of one directory, sorted by path.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`.
    fn list<'a>(&'a self, directory: &'a Path) -> BoxFuture<'a, io::Result<Vec<FileEntry>>>;

    /// Creates the directory and its missing parents; fine if it exists. The privacy is that of what it creates.
    ///
    /// # Errors
    /// `PermissionDenied`, `NotADirectory`, `StorageFull`.
    fn create_directory<'a>(&'a self, path: &'a Path, privacy: Privacy) -> BoxFuture<'a, io::Result<()>>;

    /// The one spelling of an existing path: absolute, without `.`, `..` or a link in it. A link and its target agree.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`.
    fn canonical<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<PathBuf>>;

    /// Takes an exclusive advisory lock on the file (created if missing) without waiting, and writes `note` into
    /// it. No child inherits it (O-002.4).
    ///
    /// # Errors
    /// See [`LockRefused`].
    fn lock<'a>(&'a self, path: &'a Path, note: &'a str)
    -> BoxFuture<'a, Result<Box<dyn Lock>, LockRefused>>;

    /// The name of the SQLite VFS over this disk; none means SQLite's own one on the real file system.
    fn sqlite_vfs(&self) -> Option<&str>;
}
