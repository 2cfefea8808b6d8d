//! The durable store: SQLite, reached only through the Blocking seam.
//!
//! One connection, one writer, write-ahead log with the lock held for the store's whole life, so that no shared
//! memory is needed. Every commit is synced: what a peer may see follows the write that justifies it.
//! Queries read no clock and no environment; times come in as arguments.

mod executor_records;
mod schema;
mod sessions;
mod survivors;
mod transcript;
mod turns;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};
use seam::{Blocking, Disk, block};

pub(crate) use executor_records::{ExecutorRecord, InventoryRow};
pub(crate) use sessions::{NewSession, Picture};
pub(crate) use turns::{Applied, Begun, Settled};

/// The backend's durable store. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Store {
    connection: Arc<Mutex<Connection>>,
    blocking: Arc<dyn Blocking>,
}

/// A statement failed; nothing of its transaction took effect.
#[derive(Debug, thiserror::Error)]
#[error("the store could not {operation}")]
pub(crate) struct StoreFailed {
    operation: &'static str,
    #[source]
    cause: rusqlite::Error,
}

/// Why the store cannot be opened. The file is never deleted or changed for it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenFailed {
    #[error(
        "the store {path} cannot be read. It was left as it is: restore it from a copy, or move it away to start \
         with an empty one (sessions and transcripts are in it)", path = path.display()
    )]
    Unreadable {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },
    #[error(
        "the store {path} was written by a newer build (schema {found}, this build knows {known}). It was left as \
         it is: start the newer build, or restore a copy from before the upgrade", path = path.display()
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("the store {path} cannot be written: free some space and check its permissions", path = path.display())]
    NotWritable {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },
}

impl Store {
    /// Opens the store, creating or migrating it.
    pub(crate) async fn open(
        disk: &dyn Disk,
        blocking: Arc<dyn Blocking>,
        path: PathBuf,
    ) -> Result<Self, OpenFailed> {
        let vfs = disk.sqlite_vfs().map(str::to_owned);
        let connection = block(&*blocking, move || open(&path, vfs.as_deref())).await?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)), blocking })
    }

    /// Runs one piece of work as one transaction.
    async fn transaction<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreFailed> {
        let connection = Arc::clone(&self.connection);
        block(&*self.blocking, move || {
            let mut connection = connection.lock().expect("no work panics while it holds the connection");
            let transaction = connection.transaction()?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        })
        .await
        .map_err(|cause| StoreFailed { operation, cause })
    }

    /// The text of the one control-server record, whatever it holds.
    pub(crate) async fn control_server_record(&self) -> Result<Option<Vec<u8>>, StoreFailed> {
        self.transaction("read the control-server record", |db| {
            db.query_row("SELECT CAST(record AS BLOB) FROM control_server", [], |row| {
                row.get::<_, Option<Vec<u8>>>(0)
            })
            .optional()
            .map(|record| record.map(Option::unwrap_or_default))
        })
        .await
    }

    /// Replaces the one control-server record (O-001.1).
    pub(crate) async fn set_control_server_record(&self, record: String) -> Result<(), StoreFailed> {
        self.transaction("write the control-server record", move |db| {
            let insert = "INSERT INTO control_server (only_one, record) VALUES (1, ?1)
                          ON CONFLICT (only_one) DO UPDATE SET record = excluded.record";
            db.execute(insert, params![record]).map(drop)
        })
        .await
    }
}

fn open(path: &Path, vfs: Option<&str>) -> Result<Connection, OpenFailed> {
    let failed = |cause: rusqlite::Error| {
        let path = path.to_owned();
        if is_about_writing(&cause) {
            OpenFailed::NotWritable { path, cause }
        } else {
            OpenFailed::Unreadable { path, cause }
        }
    };
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = match vfs {
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs),
        None => Connection::open_with_flags(path, flags),
    }
    .map_err(failed)?;
    // Exclusive before the write-ahead log is first touched: SQLite then needs no shared memory for it.
    for pragma in [
        "PRAGMA locking_mode = EXCLUSIVE",
        "PRAGMA journal_mode = WAL",
        "PRAGMA synchronous = FULL",
        "PRAGMA temp_store = MEMORY",
        "PRAGMA foreign_keys = ON",
    ] {
        run_pragma(&connection, pragma).map_err(failed)?;
    }
    match schema::migrate(&mut connection).map_err(failed)? {
        schema::Migrated::Ready => Ok(connection),
        schema::Migrated::Newer { found } => {
            Err(OpenFailed::Newer { path: path.to_owned(), found, known: schema::KNOWN })
        }
    }
}

/// Whether the store was refused for what is around it, not for what is in it.
fn is_about_writing(cause: &rusqlite::Error) -> bool {
    use rusqlite::{ErrorCode, ffi};
    let writing = [
        ffi::SQLITE_IOERR_WRITE,
        ffi::SQLITE_IOERR_FSYNC,
        ffi::SQLITE_IOERR_DIR_FSYNC,
        ffi::SQLITE_IOERR_TRUNCATE,
    ];
    let extended = cause.sqlite_error().map(|error| error.extended_code);
    let code = cause.sqlite_error_code();
    matches!(code, Some(ErrorCode::DiskFull | ErrorCode::ReadOnly | ErrorCode::PermissionDenied))
        || extended.is_some_and(|extended| writing.contains(&extended))
}

/// Some pragmas answer with a row and some do not.
fn run_pragma(connection: &Connection, pragma: &str) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(pragma)?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    Ok(())
}

/// SQLite's integers are signed; ours are counters and times far below its limit.
fn int(number: u64) -> i64 {
    i64::try_from(number).expect("counters and times stay below 2^63")
}

/// The way back: what we stored as a counter is one.
fn uint(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) struct Inline;

    impl Blocking for Inline {
        fn run(&self, work: Box<dyn FnOnce() + Send>) -> seam::BoxFuture<'static, ()> {
            work();
            Box::pin(std::future::ready(()))
        }
    }

    /// A store of its own in a directory that goes with the guard.
    pub(crate) fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let connection = open(&directory.path().join("backend.db"), None).unwrap();
        (directory, Store { connection: Arc::new(Mutex::new(connection)), blocking: Arc::new(Inline) })
    }

    /// Drives a future that never waits.
    pub(crate) fn now<T>(work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match work.as_mut().poll(&mut context) {
            std::task::Poll::Ready(value) => value,
            std::task::Poll::Pending => panic!("work over an inline store never waits"),
        }
    }

    #[test]
    fn a_garbage_file_is_refused_by_name_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("backend.db");
        let garbage = vec![0x5a; 8192];
        #[expect(clippy::disallowed_methods, reason = "the test prepares a real file")]
        std::fs::write(&path, &garbage).unwrap();
        let said = open(&path, None).unwrap_err().to_string();
        assert!(said.contains("backend.db cannot be read"), "{said}");
        #[expect(clippy::disallowed_methods, reason = "the test reads a real file")]
        let after = std::fs::read(&path).unwrap();
        assert_eq!(after, garbage);
    }

    #[test]
    fn a_newer_schema_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("backend.db");
        open(&path, None).unwrap().pragma_update(None, "user_version", 99).unwrap();
        let said = open(&path, None).unwrap_err().to_string();
        assert!(said.contains("schema 99, this build knows 1"), "{said}");
    }

    #[test]
    fn a_garbage_record_is_given_as_it_is() {
        let (_guard, store) = store();
        assert_eq!(now(store.control_server_record()).unwrap(), None);
        now(store.set_control_server_record("{not json".to_owned())).unwrap();
        assert_eq!(now(store.control_server_record()).unwrap(), Some(b"{not json".to_vec()));
    }
}
