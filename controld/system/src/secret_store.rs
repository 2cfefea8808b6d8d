//! Credentials in files of their own.
#![expect(clippy::disallowed_methods, reason = "the SecretStore seam itself")]

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use seam::{BoxFuture, Privacy, SecretStore};

use crate::disk::{create_directory, remove_unfinished, sync_parent, write_beside};
use crate::failure::cannot;
use crate::off_thread::off_thread;

/// One file of mode 0600 per secret, in a directory of mode 0700 that is created with the first of them.
#[derive(Clone, Debug)]
pub struct RealSecretStore {
    directory: PathBuf,
}

impl RealSecretStore {
    /// The store in `directory`, whose parent may be missing too.
    pub fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    fn path(&self, name: &str) -> io::Result<PathBuf> {
        if !is_name(name) {
            let text = format!("{name:?} cannot name a secret: 1 to {NAME_LIMIT} of a-z, 0-9 and -");
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        Ok(self.directory.join(name))
    }
}

impl SecretStore for RealSecretStore {
    fn store<'a>(&'a self, name: &'a str, secret: &'a [u8]) -> BoxFuture<'a, io::Result<()>> {
        let (path, directory, secret) = (self.path(name), self.directory.clone(), secret.to_owned());
        Box::pin(off_thread(move || {
            let path = path?;
            store(&directory, &path, &secret).map_err(|error| cannot("store secret", path.display(), error))
        }))
    }

    fn remove_unfinished(&self) -> BoxFuture<'_, io::Result<usize>> {
        let directory = self.directory.clone();
        Box::pin(off_thread(move || {
            remove_unfinished(&directory).map_err(|error| cannot("clean up", directory.display(), error))
        }))
    }

    fn load<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<Vec<u8>>> {
        let (path, directory) = (self.path(name), self.directory.clone());
        Box::pin(off_thread(move || {
            let path = path?;
            load(&directory, &path).map_err(|error| cannot("load secret", path.display(), error))
        }))
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, io::Result<()>> {
        let path = self.path(name);
        Box::pin(off_thread(move || {
            let path = path?;
            match std::fs::remove_file(&path) {
                Ok(()) => sync_parent(&path),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            }
            .map_err(|error| cannot("remove secret", path.display(), error))
        }))
    }

    fn names(&self) -> BoxFuture<'_, io::Result<Vec<String>>> {
        let directory = self.directory.clone();
        Box::pin(off_thread(move || {
            names(&directory).map_err(|error| cannot("list secrets in", directory.display(), error))
        }))
    }
}

fn store(directory: &Path, path: &Path, secret: &[u8]) -> io::Result<()> {
    create_directory(directory, Privacy::Owner)?;
    refuse_others(directory, &std::fs::metadata(directory)?, "700")?;
    // Under its name only when whole, and by linking: that refuses a taken name, where renaming would replace it.
    let beside = write_beside(path, secret, Privacy::Owner)?;
    let linked = std::fs::hard_link(&beside, path);
    let removed = std::fs::remove_file(&beside);
    linked?;
    removed?;
    sync_parent(path)
}

fn load(directory: &Path, path: &Path) -> io::Result<Vec<u8>> {
    // Links are not followed: what they lead to is not ours to trust.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    refuse_others(directory, &std::fs::metadata(directory)?, "700")?;
    refuse_others(path, &file.metadata()?, "600")?;
    read_bounded(file)
}

fn read_bounded(file: File) -> io::Result<Vec<u8>> {
    let mut secret = Vec::new();
    file.take(SECRET_LIMIT_BYTES + 1).read_to_end(&mut secret)?;
    if u64::try_from(secret.len()).is_ok_and(|length| length > SECRET_LIMIT_BYTES) {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "this is no secret of ours"));
    }
    Ok(secret)
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string().ok().filter(|name| is_name(name)));
    }
    names.sort();
    Ok(names)
}

/// What others could have read is no secret, and what they could have written is not ours.
fn refuse_others(path: &Path, metadata: &std::fs::Metadata, mode: &str) -> io::Result<()> {
    let path = path.display();
    let text = if metadata.mode() & 0o077 != 0 {
        format!(
            "{path} is open to others than its owner (mode {:03o}); if nobody has used that, run: chmod {mode} {path}",
            metadata.mode() & 0o777
        )
    } else if metadata.uid() != rustix::process::geteuid().as_raw() {
        format!("{path} belongs to user {}, not to the one this runs as", metadata.uid())
    } else {
        return Ok(());
    };
    Err(io::Error::new(ErrorKind::PermissionDenied, text))
}

fn is_name(name: &str) -> bool {
    let allowed = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'-');
    (1..=NAME_LIMIT).contains(&name.len()) && name.bytes().all(allowed)
}

/// What the seam allows; half of what file systems do.
const NAME_LIMIT: usize = 128;

/// Credentials are some dozen bytes. A larger file is a mistake, and is refused instead of filling the memory.
const SECRET_LIMIT_BYTES: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    async fn stored() -> (tempfile::TempDir, RealSecretStore, PathBuf) {
        let home = tempfile::tempdir().unwrap();
        let store = RealSecretStore::at(home.path().join("deep/secrets"));
        store.store("server-1", b"hidden").await.unwrap();
        let path = home.path().join("deep/secrets/server-1");
        (home, store, path)
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[tokio::test]
    async fn what_a_dead_process_left_half_stored_is_removed_and_nothing_else() {
        let (_home, store, path) = stored().await;
        let half = path.with_file_name(".new-0123456789abcdef");
        std::fs::hard_link(&path, &half).unwrap();
        assert_eq!(store.remove_unfinished().await.unwrap(), 1);
        assert!(!half.exists());
        assert_eq!(store.load("server-1").await.unwrap(), b"hidden");
        let missing = RealSecretStore::at(path.with_file_name("missing"));
        assert_eq!(
            missing.remove_unfinished().await.unwrap(),
            0,
            "a store that is not there has nothing left over"
        );
    }

    #[tokio::test]
    async fn a_secret_lies_in_a_private_file_in_a_private_directory() {
        let (_home, _store, path) = stored().await;
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().mode() & 0o777, 0o700);
        let entries = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(entries, 1, "nothing beside it");
    }

    #[tokio::test]
    async fn a_secret_that_others_could_have_read_is_refused_with_the_way_out() {
        let (_home, store, path) = stored().await;
        for mode in [0o640, 0o604, 0o620, 0o601] {
            set_mode(&path, mode);
            let error = store.load("server-1").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            let text = error.to_string();
            assert!(text.contains(&format!("chmod 600 {}", path.display())), "{text}");
            assert!(!text.contains("hidden"));
        }
        set_mode(&path, 0o600);
        assert_eq!(store.load("server-1").await.unwrap(), b"hidden");
    }

    #[tokio::test]
    async fn a_directory_that_others_may_enter_is_refused_with_the_way_out() {
        let (_home, store, path) = stored().await;
        let directory = path.parent().unwrap();
        set_mode(directory, 0o755);
        for error in [store.load("server-1").await.unwrap_err(), store.store("new", b"x").await.unwrap_err()]
        {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert!(error.to_string().contains(&format!("chmod 700 {}", directory.display())), "{error}");
        }
    }

    #[tokio::test]
    async fn a_link_is_not_a_secret() {
        let (home, store, path) = stored().await;
        let elsewhere = home.path().join("elsewhere");
        std::fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        store.load("server-1").await.unwrap_err();
    }

    #[tokio::test]
    async fn what_a_killed_process_left_half_written_is_no_secret() {
        let (_home, store, path) = stored().await;
        std::fs::write(path.with_file_name(".new-0123456789abcdef"), b"hal").unwrap();
        assert_eq!(store.names().await.unwrap(), ["server-1"]);
    }
}
