//! SQLite's files on the simulated disk: the production code opens its database through this VFS.
//!
//! SQLite calls at once and from the thread of its process, so that every write, truncation, sync and removal
//! is an effect like any other: a kill can fall before or after each. To the dead every call fails.
//!
//! There is no shared memory: a database in WAL mode needs `locking_mode=EXCLUSIVE`, which the store uses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::Duration;

use rsqlite_vfs::{
    AccessMode, LockLevel, OpenAccess, OpenOptions, OpenRequest, OpenedFile, OsCallback, SQLiteIoMethods,
    SQLiteVfs, SyncOptions, VfsError, VfsErrorCode, VfsFile, VfsResult, VfsStore, register_vfs,
};
use seam::Privacy;

use crate::clock::EPOCH_MS;
use crate::slots::current;
use crate::trace::{Fields, fields};
use crate::world::{Key, State, World};

/// The name under which SQLite finds it.
pub(crate) const NAME: &str = "simulated";

/// Makes the VFS known to SQLite, once for the whole process.
#[expect(unsafe_code, reason = "SQLite takes a VFS as pointers; the crate makes them")]
pub(crate) fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: nothing is overridden of what the crate's own structures agree on, the registration lives as
        // long as the process, and all state is found through the calling thread.
        let registered = unsafe { register_vfs::<Methods, Vfs>(NAME, (), false) };
        // Kept for ever: connections may exist until the process ends.
        registered.expect("the name is ours and taken once").into_raw();
    });
}

/// Who holds which lock on which database.
#[derive(Default)]
pub(crate) struct SqliteLocks {
    count: u64,
    held: BTreeMap<PathBuf, BTreeMap<u64, (Key, u8)>>,
}

impl SqliteLocks {
    pub(crate) fn release_all_of(&mut self, key: Key) {
        for held in self.held.values_mut() {
            held.retain(|_, (by, _)| *by != key);
        }
    }

    fn others(&self, path: &Path, handle: u64) -> u8 {
        let held = self.held.get(path).into_iter().flatten();
        held.filter(|(other, _)| **other != handle).map(|(_, (_, level))| *level).max().unwrap_or(NONE)
    }

    fn take(&mut self, path: &Path, handle: u64, key: Key, level: u8) -> VfsResult<()> {
        let others = self.others(path, handle);
        let allowed = match level {
            SHARED => others < PENDING,
            RESERVED | PENDING => others < RESERVED,
            _ => others == NONE,
        };
        if !allowed {
            return Err(VfsError::new(VfsErrorCode::Busy, "held by another connection".into()));
        }
        let entry = self.held.entry(path.to_owned()).or_default().entry(handle).or_insert((key, NONE));
        entry.1 = entry.1.max(level);
        Ok(())
    }

    fn drop_to(&mut self, path: &Path, handle: u64, level: u8) {
        let Some(held) = self.held.get_mut(path) else { return };
        match held.get_mut(&handle) {
            Some(_) if level == NONE => {
                held.remove(&handle);
            }
            Some(entry) => entry.1 = entry.1.min(level),
            None => {}
        }
    }
}

struct Store;
struct Methods;
struct Vfs;
struct Os;

/// One open file.
struct File {
    world: Arc<World>,
    key: Key,
    handle: u64,
    place: Place,
}

enum Place {
    Named(PathBuf),
    /// A temporary file, of this handle alone.
    Anonymous(Vec<u8>),
}

impl SQLiteIoMethods for Methods {
    type Store = Store;
}

impl SQLiteVfs<Methods> for Vfs {
    type Os = Os;

    fn os(_data: &()) -> &Os {
        &Os
    }
}

impl OsCallback for Os {
    fn sleep(&self, _length: Duration) {
        // Time stands still inside a step; a busy handler gives up after its count instead.
    }

    fn random(&self, buffer: &mut [u8]) -> usize {
        buffer.fill(0x5a);
        buffer.len()
    }

    fn epoch_timestamp_in_ms(&self) -> VfsResult<i64> {
        let now = current().map_or(0, |(world, _)| world.lock().now_ms());
        i64::try_from(EPOCH_MS + now)
            .map_err(|_| VfsError::new(VfsErrorCode::Error, "past the end of time".into()))
    }
}

impl VfsStore for Store {
    type File = File;
    type AppData = ();

    fn open_file(_data: &(), request: OpenRequest<'_>) -> VfsResult<OpenedFile<File>> {
        let (world, key) = here()?;
        let options = request.options;
        let place = match request.filename {
            None => Place::Anonymous(Vec::new()),
            Some(name) => {
                let path = PathBuf::from(name.path());
                let mut state = world.lock();
                if !state.alive(key) {
                    return Err(dead(VfsErrorCode::CantOpen));
                }
                let exists = state.disk.content(&path).is_some();
                if exists && options.exclusive() || !exists && !options.create() {
                    return Err(VfsError::new(VfsErrorCode::CantOpen, "unable to open database file".into()));
                }
                if !exists {
                    change(&mut state, key, "sqlite.create", told(&path), VfsErrorCode::CantOpen, |state| {
                        state
                            .disk
                            .replace(&path, &[], Privacy::Owner)
                            .map_err(|error| VfsError::new(VfsErrorCode::CantOpen, error.to_string().into()))
                    })?;
                }
                Place::Named(path)
            }
        };
        let handle = {
            let mut state = world.lock();
            state.disk.sqlite.count += 1;
            state.disk.sqlite.count
        };
        Ok(OpenedFile { file: File { world, key, handle, place }, access: options.access() })
    }

    fn close_file(_data: &(), name: Option<&str>, file: File, options: OpenOptions) -> VfsResult<()> {
        let Place::Named(path) = &file.place else { return Ok(()) };
        let mut state = file.world.lock();
        if !state.alive(file.key) {
            return Ok(());
        }
        state.disk.sqlite.drop_to(path, file.handle, NONE);
        if options.delete_on_close() && name.is_some() && options.access() == OpenAccess::ReadWrite {
            let code = VfsErrorCode::IoClose;
            change(&mut state, file.key, "sqlite.delete", told(path), code, |state| {
                let _gone_already = state.disk.remove(path);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn access(_data: &(), name: &str, _mode: AccessMode) -> VfsResult<bool> {
        let (world, key) = here()?;
        let state = world.lock();
        if !state.alive(key) {
            return Err(dead(VfsErrorCode::IoAccess));
        }
        Ok(state.disk.content(Path::new(name)).is_some())
    }

    fn full_pathname(_data: &(), name: &str) -> VfsResult<String> {
        Ok(if name.starts_with('/') { name.to_owned() } else { format!("/{name}") })
    }

    fn delete_file(_data: &(), name: &str, _sync_dir: bool) -> VfsResult<()> {
        let (world, key) = here()?;
        let path = Path::new(name);
        let mut state = world.lock();
        change(&mut state, key, "sqlite.delete", told(path), VfsErrorCode::IoDelete, |state| {
            state
                .disk
                .remove(path)
                .map_err(|error| VfsError::new(VfsErrorCode::IoDeleteNoEntry, error.to_string().into()))
        })
    }
}

impl VfsFile for File {
    fn read(&mut self, buf: &mut [u8], offset: u64) -> VfsResult<usize> {
        match &self.place {
            Place::Anonymous(bytes) => Ok(copy_from(bytes, buf, offset)),
            Place::Named(path) => {
                let state = self.world.lock();
                if !state.alive(self.key) {
                    return Err(dead(VfsErrorCode::IoRead));
                }
                let bytes = state.disk.content(path).ok_or_else(|| dead(VfsErrorCode::IoRead))?;
                Ok(copy_from(bytes, buf, offset))
            }
        }
    }

    fn write(&mut self, buf: &[u8], offset: u64) -> VfsResult<()> {
        let code = VfsErrorCode::IoWrite;
        let start = usize::try_from(offset).map_err(|_| dead(VfsErrorCode::Full))?;
        match &mut self.place {
            Place::Anonymous(bytes) => {
                copy_to(bytes, buf, start);
                Ok(())
            }
            Place::Named(path) => {
                let mut told = told(path);
                told.extend(fields([("bytes", buf.len().to_string()), ("offset", offset.to_string())]));
                let mut state = self.world.lock();
                change(&mut state, self.key, "sqlite.write", told, code, |state| {
                    state.write_fault(self.key).map_err(|error| match error.kind() {
                        std::io::ErrorKind::StorageFull => {
                            VfsError::new(VfsErrorCode::Full, "no space left on device".into())
                        }
                        _ => VfsError::new(code, "input/output error".into()),
                    })?;
                    copy_to(state.disk.content_mut(path).ok_or_else(|| dead(code))?, buf, start);
                    Ok(())
                })
            }
        }
    }

    fn truncate(&mut self, size: u64) -> VfsResult<()> {
        let code = VfsErrorCode::IoTruncate;
        let length = usize::try_from(size).map_err(|_| dead(code))?;
        match &mut self.place {
            Place::Anonymous(bytes) => {
                bytes.resize(length, 0);
                Ok(())
            }
            Place::Named(path) => {
                let mut told = told(path);
                told.insert("size".to_owned(), size.to_string());
                let mut state = self.world.lock();
                change(&mut state, self.key, "sqlite.truncate", told, code, |state| {
                    state.disk.content_mut(path).ok_or_else(|| dead(code))?.resize(length, 0);
                    Ok(())
                })
            }
        }
    }

    fn sync(&mut self, _options: SyncOptions) -> VfsResult<()> {
        let Place::Named(path) = &self.place else { return Ok(()) };
        let mut state = self.world.lock();
        change(&mut state, self.key, "sqlite.sync", told(path), VfsErrorCode::IoSync, |_| Ok(()))
    }

    fn size(&self) -> VfsResult<u64> {
        match &self.place {
            Place::Anonymous(bytes) => Ok(bytes.len() as u64),
            Place::Named(path) => {
                let state = self.world.lock();
                let bytes = state.disk.content(path).filter(|_| state.alive(self.key));
                bytes.map(|bytes| bytes.len() as u64).ok_or_else(|| dead(VfsErrorCode::IoStat))
            }
        }
    }

    fn lock(&mut self, level: LockLevel) -> VfsResult<()> {
        let Place::Named(path) = &self.place else { return Ok(()) };
        let mut state = self.world.lock();
        if !state.alive(self.key) {
            return Err(dead(VfsErrorCode::IoLock));
        }
        state.disk.sqlite.take(path, self.handle, self.key, rank(level))
    }

    fn unlock(&mut self, level: LockLevel) -> VfsResult<()> {
        let Place::Named(path) = &self.place else { return Ok(()) };
        let mut state = self.world.lock();
        if state.alive(self.key) {
            state.disk.sqlite.drop_to(path, self.handle, rank(level));
        }
        Ok(())
    }

    fn check_reserved_lock(&self) -> VfsResult<bool> {
        let Place::Named(path) = &self.place else { return Ok(false) };
        let state = self.world.lock();
        let held = state.disk.sqlite.held.get(path).into_iter().flatten();
        Ok(held.into_iter().any(|(_, (_, level))| *level >= RESERVED))
    }
}

/// One effect; the dead get an error without it, and so does who dies right after it.
fn change(
    state: &mut State,
    key: Key,
    call: &'static str,
    told: Fields,
    code: VfsErrorCode,
    change: impl FnOnce(&mut State) -> VfsResult<()>,
) -> VfsResult<()> {
    let done = state.effect(key, call, |state, line| {
        line.extend(told);
        let done = change(state);
        if let Err(error) = &done {
            line.insert("failed".to_owned(), error.message().to_owned());
        }
        done
    });
    done.unwrap_or_else(|_| Err(dead(code)))
}

fn here() -> VfsResult<(Arc<World>, Key)> {
    current().ok_or_else(|| VfsError::new(VfsErrorCode::CantOpen, "not inside a simulated process".into()))
}

fn dead(code: VfsErrorCode) -> VfsError {
    VfsError::new(code, "the process is dead".into())
}

fn told(path: &Path) -> Fields {
    fields([("path", path.display().to_string())])
}

fn copy_from(bytes: &[u8], buf: &mut [u8], offset: u64) -> usize {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    let length = buf.len().min(bytes.len() - start);
    buf[..length].copy_from_slice(&bytes[start..start + length]);
    length
}

fn copy_to(bytes: &mut Vec<u8>, buf: &[u8], start: usize) {
    let end = start + buf.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[start..end].copy_from_slice(buf);
}

const fn rank(level: LockLevel) -> u8 {
    match level {
        LockLevel::None => NONE,
        LockLevel::Shared => SHARED,
        LockLevel::Reserved => RESERVED,
        LockLevel::Pending => PENDING,
        LockLevel::Exclusive => EXCLUSIVE,
    }
}

const NONE: u8 = 0;
const SHARED: u8 = 1;
const RESERVED: u8 = 2;
const PENDING: u8 = 3;
const EXCLUSIVE: u8 = 4;
