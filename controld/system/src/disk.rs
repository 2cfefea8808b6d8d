//! Files on the real file system.
#![expect(clippy::disallowed_methods, reason = "the Disk seam itself")]

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use seam::{BoxFuture, Disk, EntryKind, FileEntry, Lock, LockRefused, Privacy};

use crate::entropy::RealEntropy;
use crate::failure::cannot;
use crate::off_thread::off_thread;

/// The host's file system. Every descriptor is close-on-exec, so that no child holds a file or a lock open.
#[derive(Clone, Copy, Debug)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn read<'a>(&'a self, path: &'a Path, limit: u64) -> BoxFuture<'a, io::Result<Vec<u8>>> {
        let path = path.to_owned();
        Box::pin(off_thread(move || {
            read(&path, limit).map_err(|error| cannot("read", path.display(), error))
        }))
    }

    fn write_atomic<'a>(
        &'a self,
        path: &'a Path,
        bytes: &'a [u8],
        privacy: Privacy,
    ) -> BoxFuture<'a, io::Result<()>> {
        let (path, bytes) = (path.to_owned(), bytes.to_owned());
        Box::pin(off_thread(move || {
            write_atomic(&path, &bytes, privacy).map_err(|error| cannot("write", path.display(), error))
        }))
    }

    fn remove_unfinished<'a>(&'a self, directory: &'a Path) -> BoxFuture<'a, io::Result<usize>> {
        let directory = directory.to_owned();
        Box::pin(off_thread(move || {
            remove_unfinished(&directory).map_err(|error| cannot("clean up", directory.display(), error))
        }))
    }

    fn append<'a>(
        &'a self,
        path: &'a Path,
        bytes: &'a [u8],
        privacy: Privacy,
    ) -> BoxFuture<'a, io::Result<u64>> {
        let (path, bytes) = (path.to_owned(), bytes.to_owned());
        Box::pin(off_thread(move || {
            append(&path, &bytes, privacy).map_err(|error| cannot("append to", path.display(), error))
        }))
    }

    fn rename<'a>(&'a self, from: &'a Path, to: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        let (from, to) = (from.to_owned(), to.to_owned());
        Box::pin(off_thread(move || {
            std::fs::rename(&from, &to).map_err(|error| {
                cannot("rename", format_args!("{} to {}", from.display(), to.display()), error)
            })
        }))
    }

    fn remove<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        let path = path.to_owned();
        Box::pin(off_thread(move || {
            std::fs::remove_file(&path).map_err(|error| cannot("remove", path.display(), error))
        }))
    }

    fn list<'a>(&'a self, directory: &'a Path) -> BoxFuture<'a, io::Result<Vec<FileEntry>>> {
        let directory = directory.to_owned();
        Box::pin(off_thread(move || {
            list(&directory).map_err(|error| cannot("list", directory.display(), error))
        }))
    }

    fn create_directory<'a>(&'a self, path: &'a Path, privacy: Privacy) -> BoxFuture<'a, io::Result<()>> {
        let path = path.to_owned();
        Box::pin(off_thread(move || {
            create_directory(&path, privacy)
                .map_err(|error| cannot("create directory", path.display(), error))
        }))
    }

    fn canonical<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<PathBuf>> {
        let path = path.to_owned();
        Box::pin(off_thread(move || {
            std::fs::canonicalize(&path).map_err(|error| cannot("resolve", path.display(), error))
        }))
    }

    fn lock<'a>(
        &'a self,
        path: &'a Path,
        note: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Lock>, LockRefused>> {
        let (path, note) = (path.to_owned(), note.to_owned());
        Box::pin(off_thread(move || lock(&path, &note)))
    }

    fn sqlite_vfs(&self) -> Option<&str> {
        None
    }
}

/// A locked file; the kernel releases the lock with the last descriptor, and this is the only one.
struct RealLock {
    _file: File,
}

impl Lock for RealLock {}

/// Creates a directory and its missing parents, each durable in its own parent.
pub(crate) fn create_directory(path: &Path, privacy: Privacy) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|ancestor| !ancestor.is_dir()).collect();
    let created = DirBuilder::new().recursive(true).mode(directory_mode(privacy)).create(path);
    created.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => io::Error::new(ErrorKind::NotADirectory, "a file is in the way"),
        _ => error,
    })?;
    for directory in missing {
        sync_parent(directory)?;
    }
    Ok(())
}

/// Creates a new file beside `path` that no other process names, writes and syncs it; its path. Nothing is left
/// behind on failure. (A kill in between leaves the file: small, private, and never read.)
pub(crate) fn write_beside(path: &Path, bytes: &[u8], privacy: Privacy) -> io::Result<PathBuf> {
    let beside = parent(path)?.join(format!("{UNFINISHED}{}", seam::random_hex(&RealEntropy, 8)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(file_mode(privacy)).open(&beside)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written {
        // The first error is the one worth telling.
        let _ = std::fs::remove_file(&beside);
        return Err(error);
    }
    Ok(beside)
}

/// Removes every file that [`write_beside`] has made in this directory and nobody will give its name any more.
pub(crate) fn remove_unfinished(directory: &Path) -> io::Result<usize> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
            std::fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// What the name of a file begins with that is written before it gets its own.
const UNFINISHED: &str = ".new-";

/// Makes durable what was last created, renamed or removed in `path`'s directory.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    File::open(parent(path)?)?.sync_all()
}

fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // Non-blocking, because opening a pipe without a writer would wait for ever; for files it means nothing.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::from(ErrorKind::IsADirectory));
    }
    if !metadata.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    // Read and not believed: a file may grow meanwhile, and those of /proc say 0.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > limit) {
        return Err(io::Error::new(ErrorKind::FileTooLarge, format!("it holds more than {limit} bytes")));
    }
    Ok(bytes)
}

fn write_atomic(path: &Path, bytes: &[u8], privacy: Privacy) -> io::Result<()> {
    let beside = write_beside(path, bytes, privacy)?;
    if let Err(error) = std::fs::rename(&beside, path) {
        let _ = std::fs::remove_file(&beside);
        return Err(error);
    }
    sync_parent(path)
}

/// Opened anew each time, so that a file which was moved or deleted comes back.
fn append(path: &Path, bytes: &[u8], privacy: Privacy) -> io::Result<u64> {
    let mut file = OpenOptions::new().append(true).create(true).mode(file_mode(privacy)).open(path)?;
    file.write_all(bytes)?;
    Ok(file.metadata()?.len())
}

fn list(directory: &Path) -> io::Result<Vec<FileEntry>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            // Removed since the directory was read.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let (kind, size) = if metadata.is_dir() {
            (EntryKind::Directory, 0)
        } else if metadata.is_file() {
            (EntryKind::File, metadata.len())
        } else {
            (EntryKind::Other, metadata.len())
        };
        entries.push(FileEntry { path: entry.path(), kind, size });
    }
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(entries)
}

fn lock(path: &Path, note: &str) -> Result<Box<dyn Lock>, LockRefused> {
    let failed = |error: io::Error| LockRefused::Failed(cannot("lock", path.display(), error));
    let mode = file_mode(Privacy::Owner);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(mode)
        .open(path)
        .map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(LockRefused::Held { note: read_note(&file) }),
        Err(error) => return Err(failed(error.into())),
    }
    // Never renamed or unlinked: a second file under the same name would be a second lock.
    file.set_len(0).and_then(|()| file.write_all(note.as_bytes())).map_err(failed)?;
    Ok(Box::new(RealLock { _file: file }))
}

/// For people only; whatever goes wrong, the lock is held.
fn read_note(file: &File) -> String {
    let mut bytes = Vec::new();
    let _ = file.take(NOTE_LIMIT_BYTES).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn parent(path: &Path) -> io::Result<&Path> {
    path.parent().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "it has no parent directory"))
}

fn file_mode(privacy: Privacy) -> u32 {
    match privacy {
        Privacy::Owner => 0o600,
        Privacy::Shared => 0o644,
    }
}

fn directory_mode(privacy: Privacy) -> u32 {
    match privacy {
        Privacy::Owner => 0o700,
        Privacy::Shared => 0o755,
    }
}

/// A note is a line for people. What a stranger wrote there must not fill our memory; the rest is cut off.
const NOTE_LIMIT_BYTES: u64 = 4096;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn private_files_and_directories_are_the_owners_alone() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("outer/inner");
        RealDisk.create_directory(&directory, Privacy::Owner).await.unwrap();
        assert_eq!((mode(&directory), mode(&home.path().join("outer"))), (0o700, 0o700));
        let (written, appended, lock) = (directory.join("a"), directory.join("b"), directory.join("c"));
        RealDisk.write_atomic(&written, b"x", Privacy::Owner).await.unwrap();
        RealDisk.append(&appended, b"x", Privacy::Owner).await.unwrap();
        let _held = RealDisk.lock(&lock, "x").await.ok().unwrap();
        assert_eq!((mode(&written), mode(&appended), mode(&lock)), (0o600, 0o600, 0o600));
    }

    #[tokio::test]
    async fn a_private_write_makes_a_file_private_that_was_not() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("record");
        RealDisk.write_atomic(&path, b"x", Privacy::Shared).await.unwrap();
        assert_eq!(mode(&path) & 0o600, 0o600);
        RealDisk.write_atomic(&path, b"y", Privacy::Owner).await.unwrap();
        assert_eq!(mode(&path), 0o600);
    }

    #[tokio::test]
    async fn a_full_device_is_told_as_full_and_by_name() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            return;
        }
        let error = RealDisk.append(full, b"x", Privacy::Owner).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(error.to_string().starts_with("cannot append to /dev/full: "), "{error}");
    }

    #[tokio::test]
    async fn a_failed_write_leaves_nothing_behind() {
        let home = tempfile::tempdir().unwrap();
        let in_the_way = home.path().join("directory");
        std::fs::create_dir(&in_the_way).unwrap();
        RealDisk.write_atomic(&in_the_way, b"x", Privacy::Owner).await.unwrap_err();
        let entries = RealDisk.list(home.path()).await.unwrap();
        assert_eq!(entries, [FileEntry { path: in_the_way, kind: EntryKind::Directory, size: 0 }]);
    }

    #[tokio::test]
    async fn reading_what_is_not_a_file_is_refused_and_does_not_hang() {
        let home = tempfile::tempdir().unwrap();
        let error = RealDisk.read(home.path(), 10).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
        let pipe = home.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .unwrap();
        let error = RealDisk.read(&pipe, 10).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let entries = RealDisk.list(home.path()).await.unwrap();
        assert_eq!(entries, [FileEntry { path: pipe, kind: EntryKind::Other, size: 0 }]);
    }

    #[tokio::test]
    async fn a_link_is_listed_as_a_link_and_a_dangling_one_too() {
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/no/such/file", home.path().join("link")).unwrap();
        let entries = RealDisk.list(home.path()).await.unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].kind, EntryKind::Other);
    }
}
