//! The Disk seam: a tree of files in memory, with locks, privacy and the ways in which a disk fails.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use seam::{BoxFuture, Disk, EntryKind, FileEntry, Lock, LockRefused, Privacy};

use crate::plan::Fault;
use crate::trace::{Fields, Kind, fields};
use crate::world::{Dead, Key, State, World};

/// The disk as one process sees it.
pub(crate) struct SimDisk {
    pub(crate) world: Arc<World>,
    pub(crate) key: Key,
}

/// Files, directories and locks of the run.
pub(crate) struct DiskState {
    nodes: BTreeMap<PathBuf, Node>,
    locks: BTreeMap<PathBuf, Held>,
    lock_count: u64,
    pub(crate) sqlite: crate::vfs::SqliteLocks,
}

enum Node {
    File { bytes: Vec<u8>, privacy: Privacy },
    Directory { privacy: Privacy, read_only: bool },
}

struct Held {
    by: Key,
    id: u64,
}

struct SimLock {
    world: Arc<World>,
    key: Key,
    path: PathBuf,
    id: u64,
}

impl Default for DiskState {
    fn default() -> Self {
        let shared = || Node::Directory { privacy: Privacy::Shared, read_only: false };
        Self {
            nodes: USUAL.iter().map(|path| (PathBuf::from(path), shared())).collect(),
            locks: BTreeMap::new(),
            lock_count: 0,
            sqlite: crate::vfs::SqliteLocks::default(),
        }
    }
}

impl DiskState {
    pub(crate) fn content(&self, path: &Path) -> Option<&[u8]> {
        match self.nodes.get(path)? {
            Node::File { bytes, .. } => Some(bytes),
            Node::Directory { .. } => None,
        }
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.nodes.iter().filter_map(|(path, node)| match node {
            Node::File { bytes, .. } => Some((path.as_path(), bytes.as_slice())),
            Node::Directory { .. } => None,
        })
    }

    pub(crate) fn content_mut(&mut self, path: &Path) -> Option<&mut Vec<u8>> {
        match self.nodes.get_mut(path)? {
            Node::File { bytes, .. } => Some(bytes),
            Node::Directory { .. } => None,
        }
    }

    pub(crate) fn is_directory(&self, path: &Path) -> bool {
        matches!(self.nodes.get(path), Some(Node::Directory { .. }))
    }

    pub(crate) fn exists(&self, path: &Path) -> bool {
        self.nodes.contains_key(path)
    }

    /// Who may read a file; the owner alone unless it says otherwise.
    pub(crate) fn privacy(&self, path: &Path) -> Option<Privacy> {
        self.nodes.get(path).map(|node| match node {
            Node::File { privacy, .. } | Node::Directory { privacy, .. } => *privacy,
        })
    }

    /// Makes a directory refuse new, renamed and removed entries, or allows them again.
    pub(crate) fn set_read_only(&mut self, directory: &Path, to: bool) {
        if let Some(Node::Directory { read_only, .. }) = self.nodes.get_mut(directory) {
            *read_only = to;
        }
    }

    pub(crate) fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        match self.nodes.get(path) {
            None => Err(self.missing(path)),
            Some(Node::Directory { .. }) => Err(failed(io::ErrorKind::IsADirectory, "is a directory")),
            Some(Node::File { bytes, .. }) if bytes.len() as u64 > limit => {
                Err(failed(io::ErrorKind::FileTooLarge, "file too large"))
            }
            Some(Node::File { bytes, .. }) => Ok(bytes.clone()),
        }
    }

    fn missing(&self, path: &Path) -> io::Error {
        let through_file = path.ancestors().skip(1).any(|above| self.content(above).is_some());
        if through_file {
            failed(io::ErrorKind::NotADirectory, "not a directory")
        } else {
            failed(io::ErrorKind::NotFound, "no such file or directory")
        }
    }

    /// Whether entries of this path's parent may be changed.
    pub(crate) fn check_parent(&self, path: &Path) -> io::Result<()> {
        let parent = path.parent().unwrap_or(Path::new("/"));
        match self.nodes.get(parent) {
            None => Err(self.missing(parent)),
            Some(Node::File { .. }) => Err(failed(io::ErrorKind::NotADirectory, "not a directory")),
            Some(Node::Directory { read_only: true, .. }) => {
                Err(failed(io::ErrorKind::PermissionDenied, "permission denied"))
            }
            Some(Node::Directory { .. }) => Ok(()),
        }
    }

    pub(crate) fn replace(&mut self, path: &Path, bytes: &[u8], privacy: Privacy) -> io::Result<()> {
        self.check_parent(path)?;
        if self.is_directory(path) {
            return Err(failed(io::ErrorKind::IsADirectory, "is a directory"));
        }
        self.nodes.insert(path.to_owned(), Node::File { bytes: bytes.to_vec(), privacy });
        Ok(())
    }

    fn append(&mut self, path: &Path, more: &[u8], privacy: Privacy) -> io::Result<u64> {
        match self.nodes.get_mut(path) {
            Some(Node::Directory { .. }) => Err(failed(io::ErrorKind::IsADirectory, "is a directory")),
            Some(Node::File { bytes, .. }) => {
                bytes.extend_from_slice(more);
                Ok(bytes.len() as u64)
            }
            None => {
                self.replace(path, more, privacy)?;
                Ok(more.len() as u64)
            }
        }
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        if !self.exists(from) {
            return Err(self.missing(from));
        }
        self.check_parent(from)?;
        self.check_parent(to)?;
        if self.is_directory(to) && !self.is_directory(from) {
            return Err(failed(io::ErrorKind::IsADirectory, "is a directory"));
        }
        let moved: Vec<PathBuf> = self.nodes.keys().filter(|path| path.starts_with(from)).cloned().collect();
        for path in moved {
            let below = path.strip_prefix(from).expect("it was found by this prefix");
            let target = if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) };
            let node = self.nodes.remove(&path).expect("it was just found");
            self.nodes.insert(target, node);
        }
        Ok(())
    }

    pub(crate) fn remove(&mut self, path: &Path) -> io::Result<()> {
        match self.nodes.get(path) {
            None => Err(self.missing(path)),
            Some(Node::Directory { .. }) => Err(failed(io::ErrorKind::IsADirectory, "is a directory")),
            Some(Node::File { .. }) => {
                self.check_parent(path)?;
                self.nodes.remove(path);
                Ok(())
            }
        }
    }

    pub(crate) fn list(&self, directory: &Path) -> io::Result<Vec<FileEntry>> {
        match self.nodes.get(directory) {
            None => Err(self.missing(directory)),
            Some(Node::File { .. }) => Err(failed(io::ErrorKind::NotADirectory, "not a directory")),
            Some(Node::Directory { .. }) => Ok(self
                .nodes
                .range::<Path, _>((std::ops::Bound::Excluded(directory), std::ops::Bound::Unbounded))
                .take_while(|(path, _)| path.starts_with(directory))
                .filter(|(path, _)| path.parent() == Some(directory))
                .map(|(path, node)| match node {
                    Node::File { bytes, .. } => {
                        FileEntry { path: path.clone(), kind: EntryKind::File, size: bytes.len() as u64 }
                    }
                    Node::Directory { .. } => {
                        FileEntry { path: path.clone(), kind: EntryKind::Directory, size: 0 }
                    }
                })
                .collect()),
        }
    }

    pub(crate) fn create_directory(&mut self, path: &Path, privacy: Privacy) -> io::Result<()> {
        let missing: Vec<&Path> = path.ancestors().take_while(|above| !self.exists(above)).collect();
        let above = path.ancestors().find(|above| self.exists(above)).unwrap_or(Path::new("/"));
        if !self.is_directory(above) {
            return Err(failed(io::ErrorKind::NotADirectory, "not a directory"));
        }
        if let Some(topmost) = missing.last() {
            self.check_parent(topmost)?;
        }
        for directory in missing.into_iter().rev() {
            self.nodes.insert(directory.to_owned(), Node::Directory { privacy, read_only: false });
        }
        Ok(())
    }

    /// There are no links here; what is left is to walk `.` and `..`, each step through a directory that exists.
    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        let mut walked = PathBuf::from("/");
        for step in path.components() {
            match step {
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
                Component::ParentDir => drop(walked.pop()),
                Component::Normal(name) => walked.push(name),
            }
            if !self.exists(&walked) {
                return Err(self.missing(&walked));
            }
        }
        Ok(walked)
    }

    fn lock(&mut self, key: Key, path: &Path, note: &str) -> Result<u64, LockRefused> {
        if self.locks.contains_key(path) {
            let note = self.content(path).unwrap_or_default();
            return Err(LockRefused::Held { note: String::from_utf8_lossy(note).into_owned() });
        }
        let privacy = self.privacy(path).unwrap_or(Privacy::Owner);
        match self.nodes.get_mut(path) {
            Some(Node::File { bytes, .. }) => *bytes = note.as_bytes().to_vec(),
            _ => self.replace(path, note.as_bytes(), privacy).map_err(LockRefused::Failed)?,
        }
        self.lock_count += 1;
        self.locks.insert(path.to_owned(), Held { by: key, id: self.lock_count });
        Ok(self.lock_count)
    }

    pub(crate) fn release_locks_of(&mut self, key: Key) {
        self.locks.retain(|_, held| held.by != key);
        self.sqlite.release_all_of(key);
    }
}

impl State {
    /// The fault, if any, that this write of a process meets.
    pub(crate) fn write_fault(&mut self, key: Key) -> io::Result<()> {
        let process = self.processes.get_mut(&key).expect("a caller is in the table");
        process.writes += 1;
        let (name, life_now, nth) = (process.name.clone(), process.life, process.writes);
        let hit = self.faults().find_map(|(index, fault)| match fault {
            Fault::StorageFull { process, life, from_write }
                if *process == name && *life == life_now && nth >= *from_write =>
            {
                Some((index, io::ErrorKind::StorageFull, "no space left on device"))
            }
            Fault::WriteFails { process, life, write }
                if *process == name && *life == life_now && nth == *write =>
            {
                Some((index, io::ErrorKind::Other, "input/output error"))
            }
            _ => None,
        });
        let Some((index, kind, text)) = hit else { return Ok(()) };
        self.fault_fired(index, true, false);
        self.say(key, Kind::Fault, "write failed", fields([("why", text.to_owned())]));
        Err(failed(kind, text))
    }
}

impl SimDisk {
    /// One effect on the tree, its outcome in the trace.
    async fn change<R>(
        &self,
        call: &'static str,
        told: Fields,
        writes: bool,
        change: impl FnOnce(&mut DiskState) -> io::Result<R>,
    ) -> io::Result<R> {
        self.world
            .act(self.key, call, |state, line| {
                line.extend(told);
                let free = if writes { state.write_fault(self.key) } else { Ok(()) };
                let done = free.and_then(|()| change(&mut state.disk));
                if let Err(error) = &done {
                    line.insert("failed".to_owned(), error.to_string());
                }
                done
            })
            .await
    }
}

impl Disk for SimDisk {
    fn read<'a>(&'a self, path: &'a Path, limit: u64) -> BoxFuture<'a, io::Result<Vec<u8>>> {
        Box::pin(self.world.look(self.key, "disk.read", move |state| state.disk.read(path, limit)))
    }

    fn write_atomic<'a>(
        &'a self,
        path: &'a Path,
        bytes: &'a [u8],
        privacy: Privacy,
    ) -> BoxFuture<'a, io::Result<()>> {
        let told = with_bytes(path, bytes);
        Box::pin(self.change("disk.write", told, true, move |disk| disk.replace(path, bytes, privacy)))
    }

    fn append<'a>(
        &'a self,
        path: &'a Path,
        bytes: &'a [u8],
        privacy: Privacy,
    ) -> BoxFuture<'a, io::Result<u64>> {
        let told = with_bytes(path, bytes);
        Box::pin(self.change("disk.append", told, true, move |disk| disk.append(path, bytes, privacy)))
    }

    fn rename<'a>(&'a self, from: &'a Path, to: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        let told = fields([("path", shown(from)), ("to", shown(to))]);
        Box::pin(self.change("disk.rename", told, false, move |disk| disk.rename(from, to)))
    }

    fn remove<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<()>> {
        let told = fields([("path", shown(path))]);
        Box::pin(self.change("disk.remove", told, false, move |disk| disk.remove(path)))
    }

    fn list<'a>(&'a self, directory: &'a Path) -> BoxFuture<'a, io::Result<Vec<FileEntry>>> {
        Box::pin(self.world.look(self.key, "disk.list", move |state| state.disk.list(directory)))
    }

    fn create_directory<'a>(&'a self, path: &'a Path, privacy: Privacy) -> BoxFuture<'a, io::Result<()>> {
        let told = fields([("path", shown(path))]);
        Box::pin(
            self.change("disk.create_directory", told, true, move |disk| {
                disk.create_directory(path, privacy)
            }),
        )
    }

    fn canonical<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, io::Result<PathBuf>> {
        Box::pin(self.world.look(self.key, "disk.canonical", move |state| state.disk.canonical(path)))
    }

    fn lock<'a>(
        &'a self,
        path: &'a Path,
        note: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Lock>, LockRefused>> {
        Box::pin(async move {
            let id = self
                .world
                .act(self.key, "disk.lock", |state, told| {
                    told.insert("path".to_owned(), shown(path));
                    let locked = state.disk.lock(self.key, path, note);
                    if let Err(refused) = &locked {
                        told.insert("failed".to_owned(), why(refused));
                    }
                    locked
                })
                .await?;
            let lock: Box<dyn Lock> = Box::new(SimLock {
                world: Arc::clone(&self.world),
                key: self.key,
                path: path.to_owned(),
                id,
            });
            Ok(lock)
        })
    }

    fn sqlite_vfs(&self) -> Option<&str> {
        Some(crate::vfs::NAME)
    }
}

impl Lock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let done = self.world.lock().effect(self.key, "disk.unlock", |state, told| {
            told.insert("path".to_owned(), shown(&self.path));
            if state.disk.locks.get(&self.path).is_some_and(|held| held.id == self.id) {
                state.disk.locks.remove(&self.path);
            }
        });
        // The lock of a dead process went with it.
        let (Ok(()) | Err(Dead)) = done;
    }
}

pub(crate) fn failed(kind: io::ErrorKind, text: &'static str) -> io::Error {
    io::Error::new(kind, text)
}

fn why(refused: &LockRefused) -> String {
    match refused {
        LockRefused::Held { note } => format!("held: {note}"),
        LockRefused::Failed(error) => error.to_string(),
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn with_bytes(path: &Path, bytes: &[u8]) -> Fields {
    fields([("path", shown(path)), ("bytes", bytes.len().to_string())])
}

/// What a machine has before anything is installed on it.
const USUAL: [&str; 7] = ["/", "/home", "/home/user", "/tmp", "/usr", "/usr/bin", "/data"];
