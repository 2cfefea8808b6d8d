//! What every disk keeps to.

use std::io::ErrorKind;
use std::path::Path;

use tokio::io::AsyncReadExt as _;

use super::{ContractChild, line, soon};
use crate::{Disk, EntryKind, FileEntry, Lock, LockRefused, Privacy, Seams, Signal, Stdio, Target};

/// The contract of [`Disk`] within one process. `directory` is an absolute path that may still be missing;
/// it is used for files of this contract alone.
pub async fn disk(seams: &Seams, directory: &Path) {
    soon(seams, "the disk", async {
        let disk = seams.disk.as_ref();
        creates_directories(disk, directory).await;
        replaces_content(disk, &directory.join("replace")).await;
        appends(disk, &directory.join("append")).await;
        renames_and_removes(disk, &directory.join("rename")).await;
        lists(disk, &directory.join("list")).await;
        locks(disk, &directory.join("lock")).await;
        has_one_spelling(disk, &directory.join("spelling")).await;
    })
    .await;
}

/// The contract of [`Disk::lock`] between processes: held while its process lives, free as soon as it is gone,
/// also when it was killed.
pub async fn lock_across_processes(seams: &Seams, child: &ContractChild, directory: &Path) {
    let disk = seams.disk.as_ref();
    disk.create_directory(directory, Privacy::Owner).await.expect("created");
    let path = directory.join("held.lock");
    let path_text = path.to_str().expect("the contract's directory is Unicode");
    let mut holder = child.spawn(seams, &["hold-lock", path_text, "held by the child"], Stdio::Piped).await;
    let mut stdout = holder.stdout.take().expect("piped");
    assert_eq!(soon(seams, "the child's lock", line(&mut stdout)).await, "locked");

    match disk.lock(&path, "the parent").await {
        Err(LockRefused::Held { note }) => assert_eq!(note, "held by the child"),
        Err(LockRefused::Failed(error)) => panic!("the lock failed instead of being held: {error}"),
        Ok(_) => panic!("two processes hold one lock"),
    }

    let kill = seams.processes.signal(Target::Process(holder.identity.clone()), Signal::Kill).await;
    assert!(kill.expect("sent"), "the child lives");
    soon(seams, "the killed child's exit", holder.exit.wait()).await.expect("waited");
    let lock = taken(disk, &path, "the parent").await;

    // The other way round: what this process holds is not handed down to a child that it starts meanwhile.
    let mut bystander = child.spawn(seams, &["wait"], Stdio::Piped).await;
    let mut stdout = bystander.stdout.take().expect("piped");
    assert_eq!(soon(seams, "the bystander", line(&mut stdout)).await, "waiting");
    drop(lock);
    drop(taken(disk, &path, "again the parent").await);
    drop(bystander.stdin.take());
    soon(seams, "the bystander's exit", bystander.exit.wait()).await.expect("waited");
    let mut nothing = Vec::new();
    stdout.read_to_end(&mut nothing).await.expect("the bystander's output ends");
}

async fn creates_directories(disk: &dyn Disk, directory: &Path) {
    let nested = directory.join("a/b");
    disk.create_directory(&nested, Privacy::Owner).await.expect("created with its parents");
    disk.create_directory(&nested, Privacy::Shared).await.expect("it is fine if it exists");
    assert!(disk.list(&nested).await.expect("a new directory").is_empty());

    let file = directory.join("file");
    disk.write_atomic(&file, b"in the way", Privacy::Owner).await.expect("written");
    let refused = disk.create_directory(&file, Privacy::Owner).await.expect_err("a file is in the way");
    assert_eq!(refused.kind(), ErrorKind::NotADirectory);
    let refused = disk.create_directory(&file.join("below"), Privacy::Owner).await.expect_err("below a file");
    assert_eq!(refused.kind(), ErrorKind::NotADirectory);
}

async fn replaces_content(disk: &dyn Disk, directory: &Path) {
    let path = directory.join("record");
    let missing = disk.read(&path, 10).await.expect_err("nothing there");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let refused = disk.write_atomic(&path, b"x", Privacy::Owner).await.expect_err("the parent is missing");
    assert_eq!(refused.kind(), ErrorKind::NotFound);

    disk.create_directory(directory, Privacy::Owner).await.expect("created");
    disk.write_atomic(&path, b"first content", Privacy::Owner).await.expect("written");
    assert_eq!(read(disk, &path).await, b"first content");
    disk.write_atomic(&path, b"second", Privacy::Shared).await.expect("replaced");
    assert_eq!(read(disk, &path).await, b"second", "nothing of the longer old content is left");
    assert_eq!(
        disk.list(directory).await.expect("listed"),
        [FileEntry { path: path.clone(), kind: EntryKind::File, size: 6 }],
        "no trace of the writing is left"
    );

    assert_eq!(disk.read(&path, 6).await.expect("exactly the limit"), b"second");
    assert_eq!(disk.read(&path, 5).await.expect_err("over the limit").kind(), ErrorKind::FileTooLarge);
    disk.write_atomic(&path, b"", Privacy::Owner).await.expect("may be empty");
    assert_eq!(disk.read(&path, 0).await.expect("nothing fits into nothing"), b"");
}

async fn appends(disk: &dyn Disk, directory: &Path) {
    let path = directory.join("log");
    let refused = disk.append(&path, b"x", Privacy::Owner).await.expect_err("the parent is missing");
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    disk.create_directory(directory, Privacy::Owner).await.expect("created");
    assert_eq!(disk.append(&path, b"one\n", Privacy::Owner).await.expect("created"), 4);
    assert_eq!(disk.append(&path, b"two\n", Privacy::Owner).await.expect("added"), 8);
    assert_eq!(disk.append(&path, b"", Privacy::Owner).await.expect("nothing added"), 8);
    assert_eq!(read(disk, &path).await, b"one\ntwo\n");

    let backup = directory.join("log.1");
    disk.rename(&path, &backup).await.expect("rotated");
    assert_eq!(disk.append(&path, b"new\n", Privacy::Owner).await.expect("comes back"), 4);
    assert_eq!(read(disk, &backup).await, b"one\ntwo\n", "the moved file is written no more");
    disk.remove(&path).await.expect("removed by somebody");
    assert_eq!(disk.append(&path, b"again\n", Privacy::Owner).await.expect("comes back"), 6);
}

async fn renames_and_removes(disk: &dyn Disk, directory: &Path) {
    disk.create_directory(directory, Privacy::Owner).await.expect("created");
    let (from, to) = (directory.join("from"), directory.join("to"));
    assert_eq!(disk.rename(&from, &to).await.expect_err("no source").kind(), ErrorKind::NotFound);
    disk.write_atomic(&from, b"moved", Privacy::Owner).await.expect("written");
    disk.write_atomic(&to, b"replaced", Privacy::Owner).await.expect("written");
    disk.rename(&from, &to).await.expect("renamed");
    assert_eq!(read(disk, &to).await, b"moved");
    assert_eq!(disk.read(&from, LIMIT).await.expect_err("moved away").kind(), ErrorKind::NotFound);
    disk.remove(&to).await.expect("removed");
    assert_eq!(disk.remove(&to).await.expect_err("already gone").kind(), ErrorKind::NotFound);
    assert!(disk.list(directory).await.expect("listed").is_empty());
}

async fn lists(disk: &dyn Disk, directory: &Path) {
    assert_eq!(disk.list(directory).await.expect_err("missing").kind(), ErrorKind::NotFound);
    disk.create_directory(&directory.join("middle"), Privacy::Owner).await.expect("created");
    disk.write_atomic(&directory.join("z"), b"last", Privacy::Owner).await.expect("written");
    disk.write_atomic(&directory.join("a"), b"1", Privacy::Owner).await.expect("written");
    disk.write_atomic(&directory.join("middle/inside"), b"not listed", Privacy::Owner)
        .await
        .expect("written");
    assert_eq!(
        disk.list(directory).await.expect("listed"),
        [
            FileEntry { path: directory.join("a"), kind: EntryKind::File, size: 1 },
            FileEntry { path: directory.join("middle"), kind: EntryKind::Directory, size: 0 },
            FileEntry { path: directory.join("z"), kind: EntryKind::File, size: 4 },
        ],
        "sorted by path, one level"
    );
    assert_eq!(disk.list(&directory.join("a")).await.expect_err("a file").kind(), ErrorKind::NotADirectory);
}

async fn has_one_spelling(disk: &dyn Disk, directory: &Path) {
    assert_eq!(disk.canonical(directory).await.expect_err("missing").kind(), ErrorKind::NotFound);
    disk.create_directory(&directory.join("below"), Privacy::Owner).await.expect("created");
    let canonical = disk.canonical(directory).await.expect("it is there");
    assert!(canonical.is_absolute(), "{canonical:?}");
    for spelling in [".", "below/..", "./below/../", "../spelling"] {
        let other = disk.canonical(&directory.join(spelling)).await.expect("the same place");
        assert_eq!(other, canonical, "{spelling}");
    }
    assert_eq!(disk.canonical(&canonical).await.expect("it is there"), canonical, "its own spelling");
}

async fn locks(disk: &dyn Disk, directory: &Path) {
    let path = directory.join("home.lock");
    match disk.lock(&path, "x").await {
        Err(LockRefused::Failed(error)) => assert_eq!(error.kind(), ErrorKind::NotFound),
        Err(LockRefused::Held { .. }) => panic!("a missing directory holds no lock"),
        Ok(_) => panic!("the parent is missing"),
    }
    disk.create_directory(directory, Privacy::Owner).await.expect("created");

    let first = taken(disk, &path, "the first holder, with a long note").await;
    match disk.lock(&path, "second").await {
        Err(LockRefused::Held { note }) => assert_eq!(note, "the first holder, with a long note"),
        Err(LockRefused::Failed(error)) => panic!("the lock failed instead of being held: {error}"),
        Ok(_) => panic!("one lock was taken twice"),
    }
    let other = taken(disk, &directory.join("other.lock"), "another file is another lock").await;
    drop(first);

    let second = taken(disk, &path, "second").await;
    match disk.lock(&path, "third").await {
        Err(LockRefused::Held { note }) => assert_eq!(note, "second", "the longer old note is gone"),
        Err(LockRefused::Failed(error)) => panic!("the lock failed instead of being held: {error}"),
        Ok(_) => panic!("one lock was taken twice"),
    }
    drop((second, other));
}

async fn taken(disk: &dyn Disk, path: &Path, note: &str) -> Box<dyn Lock> {
    match disk.lock(path, note).await {
        Ok(lock) => lock,
        Err(LockRefused::Held { note }) => {
            panic!("{} is held by {note:?}, but should be free", path.display())
        }
        Err(LockRefused::Failed(error)) => panic!("{} could not be locked: {error}", path.display()),
    }
}

async fn read(disk: &dyn Disk, path: &Path) -> Vec<u8> {
    disk.read(path, LIMIT).await.expect("readable")
}

/// More than any file here holds.
const LIMIT: u64 = 1000;
