//! The server's own log file: bounded, and unable to end or to block the server (S-001.3).
//!
//! Events are formatted where they happen and handed over through a bounded queue; one writer appends them through
//! the Disk seam. A full queue or a failing disk loses lines and counts them; the count is written as soon as
//! something can be written again. The file is renamed away when it is full; backups carry the time of that in their
//! name and go by count and by age.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use seam::{Clock, Disk, Privacy, Wall};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, info};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::Context;

/// The two ends of the log: what takes events, and what [`crate::run`] writes out.
pub fn logging(clock: Arc<dyn Clock>) -> (LogLayer, LogQueue) {
    let (sender, lines) = mpsc::channel(QUEUED_LINES);
    let lost = Arc::new(AtomicU64::new(0));
    (LogLayer { sender, lost: Arc::clone(&lost), clock }, LogQueue { lines, lost })
}

/// Takes events. Never waits.
pub struct LogLayer {
    sender: mpsc::Sender<String>,
    lost: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
}

impl LogLayer {
    /// Queues one event as a line, if the log holds events of its level and origin; counts it if the queue is full.
    pub fn record(&self, event: &Event<'_>) {
        if !is_wanted(event.metadata()) {
            return;
        }
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        let line = line(self.clock.wall(), *event.metadata().level(), event.metadata().target(), fields.0);
        if self.sender.try_send(line).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<S: Subscriber> Layer<S> for LogLayer {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        is_wanted(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.record(event);
    }
}

/// What was recorded and is not written yet.
pub struct LogQueue {
    lines: mpsc::Receiver<String>,
    lost: Arc<AtomicU64>,
}

/// The log file as one writer sees it.
pub(crate) struct LogSink {
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    queue: LogQueue,
    directory: PathBuf,
    size: u64,
}

impl LogSink {
    /// Prepares `directory` as well as it can; what fails there fails again at the first write, and is counted then.
    pub(crate) async fn open(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        queue: LogQueue,
        directory: PathBuf,
    ) -> Self {
        let _ = disk.create_directory(&directory, Privacy::Owner).await;
        let mut sink = Self { disk, clock, queue, directory, size: 0 };
        for entry in sink.disk.list(&sink.directory).await.unwrap_or_default() {
            if entry.path == sink.file() {
                sink.size = entry.size;
            }
        }
        sink.prune().await;
        let (path, days) = (sink.file(), BACKUP_AGE.as_secs() / (24 * 3600));
        info!(path = %path.display(), file_bytes = FILE_BYTES, backups = BACKUPS, days, "log file bounded");
        sink
    }

    /// Writes until `finish` fires or its sender is gone, then what is queued at that moment.
    pub(crate) async fn write(mut self, mut finish: oneshot::Receiver<()>) {
        let mut lines = Vec::new();
        loop {
            let received = tokio::select! {
                biased;
                received = self.queue.lines.recv_many(&mut lines, BATCH_LINES) => received,
                _ = &mut finish => 0,
            };
            if received == 0 {
                return;
            }
            self.write_lines(&mut lines).await;
        }
    }

    async fn write_lines(&mut self, lines: &mut Vec<String>) {
        let lost = self.queue.lost.swap(0, Ordering::Relaxed);
        // The notice below is no line of anybody's: it is written again, not counted.
        let at_stake = lost + lines.len() as u64;
        if lost > 0 {
            let mut fields = Map::new();
            fields.insert("message".into(), "log lines lost".into());
            fields.insert("lines".into(), lost.into());
            lines.insert(0, line(self.clock.wall(), Level::WARN, "controld::log_sink", fields));
        }
        let text = lines.concat();
        if must_rotate(self.size, text.len() as u64) && !self.rotate().await {
            self.queue.lost.fetch_add(at_stake, Ordering::Relaxed);
            lines.clear();
            return;
        }
        match self.disk.append(&self.file(), text.as_bytes(), Privacy::Owner).await {
            Ok(size) => self.size = size,
            Err(_) => {
                self.queue.lost.fetch_add(at_stake, Ordering::Relaxed);
                // The directory may have been removed under a server that lives for weeks.
                let _ = self.disk.create_directory(&self.directory, Privacy::Owner).await;
            }
        }
        lines.clear();
    }

    /// Renames the full file away. False if it could not be: then it may not grow.
    async fn rotate(&mut self) -> bool {
        let backup = self.directory.join(backup_name(self.clock.wall()));
        let moved = match self.disk.rename(&self.file(), &backup).await {
            Ok(()) => true,
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        if moved {
            self.size = 0;
            self.prune().await;
        }
        moved
    }

    async fn prune(&self) {
        let entries = self.disk.list(&self.directory).await.unwrap_or_default();
        let backups: Vec<_> =
            entries.iter().filter_map(|entry| Some((rotated_at(&entry.path)?, &entry.path))).collect();
        for path in expired(self.clock.wall(), backups) {
            let _ = self.disk.remove(path).await;
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.join(FILE_NAME)
    }
}

/// Collects an event's fields.
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

/// Decisions of this project at the level at which operators read them; of others only what is wrong.
fn is_wanted(metadata: &Metadata<'_>) -> bool {
    let ours = metadata.target().split("::").next().is_some_and(|name| OUR_CRATES.contains(&name));
    *metadata.level() <= if ours { Level::DEBUG } else { Level::WARN }
}

fn line(at: Wall, level: Level, target: &str, fields: Map<String, Value>) -> String {
    let mut object = Map::new();
    object.insert("at".into(), at.rfc3339().into());
    object.insert("level".into(), level.as_str().into());
    object.insert("target".into(), target.into());
    object.extend(fields);
    let mut text = Value::Object(object).to_string();
    if text.len() > LINE_BYTES {
        let mut end = LINE_BYTES;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text.push('\n');
    text
}

/// Whether the file has to be renamed away before `more` bytes may follow. An empty one never has.
fn must_rotate(size: u64, more: u64) -> bool {
    size > 0 && size + more > FILE_BYTES
}

/// Which backups go: all but the newest [`BACKUPS`], and what is older than [`BACKUP_AGE`]. A backup from the future
/// (the wall clock was set back) counts as new.
fn expired(now: Wall, mut backups: Vec<(Wall, &PathBuf)>) -> Vec<&PathBuf> {
    backups.sort_by(|left, right| right.cmp(left));
    let oldest =
        now.unix_millis.saturating_sub(u64::try_from(BACKUP_AGE.as_millis()).expect("a constant that fits"));
    let gone = |(place, (at, _)): &(usize, (Wall, &PathBuf))| *place >= BACKUPS || at.unix_millis < oldest;
    backups.into_iter().enumerate().filter(gone).map(|(_, (_, path))| path).collect()
}

fn backup_name(at: Wall) -> String {
    format!("{FILE_NAME}.{}", at.unix_millis)
}

fn rotated_at(path: &Path) -> Option<Wall> {
    let time = path.file_name()?.to_str()?.strip_prefix(FILE_NAME)?.strip_prefix('.')?;
    Some(Wall { unix_millis: time.parse().ok()? })
}

/// The name of the file that is written.
pub(crate) const FILE_NAME: &str = "controld.log";

/// The crates whose decisions the log holds.
const OUR_CRATES: [&str; 4] = ["controld", "seam", "system", "wire"];

/// The file's bound: months of ordinary decisions, minutes of the worst storm.
const FILE_BYTES: u64 = 8 * 1024 * 1024;

/// How many full files are kept: with the open one a log never takes more than 32 MiB.
const BACKUPS: usize = 3;

/// How long a full file is kept: an incident that is older is no longer being looked into.
const BACKUP_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// How many lines may wait for the disk, about 1 MiB; beyond that lines are lost and counted.
const QUEUED_LINES: usize = 4096;

/// How many lines are appended at once.
const BATCH_LINES: usize = 256;

/// One line's bound: an error text of a foreign program may be of any length.
const LINE_BYTES: usize = 8 * 1024;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    use seam::{BoxFuture, FileEntry, Lock, LockRefused, Monotonic};

    use super::*;

    fn at(days: u64) -> Wall {
        Wall { unix_millis: days * 24 * 3600 * 1000 }
    }

    #[test]
    fn a_file_is_renamed_away_before_it_would_pass_its_bound() {
        assert!(!must_rotate(FILE_BYTES - 10, 10));
        assert!(must_rotate(FILE_BYTES - 10, 11));
        assert!(!must_rotate(0, FILE_BYTES + 1), "an empty file would be renamed for ever");
    }

    #[test]
    fn backups_go_by_count_and_by_age() {
        let paths: Vec<_> = (0..6).map(|n| PathBuf::from(format!("/b{n}"))).collect();
        let of =
            |days: &[(u64, usize)]| days.iter().map(|(day, n)| (at(*day), &paths[*n])).collect::<Vec<_>>();
        assert_eq!(
            vec![&paths[1], &paths[0]],
            expired(at(100), of(&[(95, 0), (96, 1), (97, 2), (98, 3), (99, 4)]))
        );
        assert_eq!(vec![&paths[0]], expired(at(100), of(&[(60, 0), (99, 1)])));
        assert!(expired(at(100), of(&[(120, 0)])).is_empty(), "the clock was set back");
    }

    #[test]
    fn a_backup_is_known_by_its_name_and_nothing_else_is_touched() {
        let backup = Path::new("/home/logs").join(backup_name(at(3)));
        assert_eq!(Some(at(3)), rotated_at(&backup));
        for foreign in ["/l/controld.log", "/l/controld.log.old", "/l/backend.log.5", "/l/controld.log.5.gz"]
        {
            assert_eq!(None, rotated_at(Path::new(foreign)));
        }
    }

    #[tokio::test]
    async fn a_failing_disk_loses_lines_and_says_so_when_it_works_again() {
        let (disk, mut sink) = sink_on(0);
        disk.fails.store(true, Ordering::Relaxed);
        sink.write_lines(&mut vec!["one\n".into(), "two\n".into()]).await;
        sink.write_lines(&mut vec!["three\n".into()]).await;
        disk.fails.store(false, Ordering::Relaxed);
        sink.write_lines(&mut vec!["four\n".into()]).await;
        sink.write_lines(&mut vec!["five\n".into()]).await;
        let text = disk.text(FILE_NAME).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].contains("log lines lost") && lines[0].contains(r#""lines":3"#), "{text}");
        assert_eq!(["four", "five"], lines[1..]);
    }

    #[tokio::test]
    async fn a_full_file_is_renamed_away_and_one_that_cannot_be_does_not_grow() {
        let (disk, mut sink) = sink_on(FILE_BYTES);
        disk.files.lock().unwrap().insert(FILE_NAME.into(), "old\n".into());
        disk.fails.store(true, Ordering::Relaxed);
        sink.write_lines(&mut vec!["lost\n".into()]).await;
        assert_eq!(Some("old\n".to_owned()), disk.text(FILE_NAME));
        disk.fails.store(false, Ordering::Relaxed);
        sink.write_lines(&mut vec!["new\n".into()]).await;
        assert_eq!(Some("old\n".to_owned()), disk.text(&backup_name(at(100))));
        assert!(disk.text(FILE_NAME).unwrap().ends_with("new\n"));
    }

    fn sink_on(size: u64) -> (Arc<FlakyDisk>, LogSink) {
        let disk = Arc::new(FlakyDisk::default());
        let clock: Arc<dyn Clock> = Arc::new(StillClock);
        let (_, queue) = logging(Arc::clone(&clock));
        let sink = LogSink { disk: Arc::clone(&disk) as _, clock, queue, directory: "/l".into(), size };
        (disk, sink)
    }

    /// Files by name in memory; every call fails while `fails` is set.
    #[derive(Default)]
    struct FlakyDisk {
        fails: AtomicBool,
        files: Mutex<BTreeMap<String, String>>,
    }

    impl FlakyDisk {
        fn text(&self, name: &str) -> Option<String> {
            self.files.lock().unwrap().get(name).cloned()
        }

        fn step<T: Send + 'static>(
            &self,
            step: impl FnOnce(&mut BTreeMap<String, String>) -> io::Result<T>,
        ) -> BoxFuture<'_, io::Result<T>> {
            let outcome = match self.fails.load(Ordering::Relaxed) {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => step(&mut self.files.lock().unwrap()),
            };
            Box::pin(std::future::ready(outcome))
        }
    }

    fn name(path: &Path) -> String {
        path.file_name().unwrap().to_str().unwrap().to_owned()
    }

    impl Disk for FlakyDisk {
        fn append<'a>(
            &'a self,
            path: &'a Path,
            bytes: &'a [u8],
            _: Privacy,
        ) -> BoxFuture<'a, io::Result<u64>> {
            self.step(|files| {
                let file = files.entry(name(path)).or_default();
                file.push_str(std::str::from_utf8(bytes).unwrap());
                Ok(file.len() as u64)
            })
        }

        fn rename<'a>(&'a self, from: &'a Path, to: &'a Path) -> BoxFuture<'a, io::Result<()>> {
            self.step(|files| {
                let text = files.remove(&name(from)).ok_or(io::ErrorKind::NotFound)?;
                files.insert(name(to), text);
                Ok(())
            })
        }

        fn list<'a>(&'a self, _: &'a Path) -> BoxFuture<'a, io::Result<Vec<FileEntry>>> {
            self.step(|_| Ok(Vec::new()))
        }

        fn create_directory<'a>(&'a self, _: &'a Path, _: Privacy) -> BoxFuture<'a, io::Result<()>> {
            self.step(|_| Ok(()))
        }

        fn remove<'a>(&'a self, _: &'a Path) -> BoxFuture<'a, io::Result<()>> {
            unreachable!("nothing is listed")
        }

        fn read<'a>(&'a self, _: &'a Path, _: u64) -> BoxFuture<'a, io::Result<Vec<u8>>> {
            unreachable!("a log is not read")
        }

        fn write_atomic<'a>(&'a self, _: &'a Path, _: &'a [u8], _: Privacy) -> BoxFuture<'a, io::Result<()>> {
            unreachable!("a log is only appended to")
        }

        fn canonical<'a>(&'a self, _: &'a Path) -> BoxFuture<'a, io::Result<PathBuf>> {
            unreachable!("a log is found by the path it was given")
        }

        fn lock<'a>(&'a self, _: &'a Path, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Lock>, LockRefused>> {
            unreachable!("a log is not locked")
        }

        fn sqlite_vfs(&self) -> Option<&str> {
            None
        }
    }

    struct StillClock;

    impl Clock for StillClock {
        fn monotonic(&self) -> Monotonic {
            Monotonic::from_origin(Duration::ZERO)
        }

        fn wall(&self) -> Wall {
            at(100)
        }

        fn sleep_until(&self, _: Monotonic) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }

        fn yield_now(&self) -> BoxFuture<'static, ()> {
            Box::pin(std::future::ready(()))
        }
    }

    #[test]
    fn a_line_is_bounded_and_ends() {
        let mut fields = Map::new();
        fields.insert("message".into(), "ä".repeat(LINE_BYTES).into());
        let line = line(at(1), Level::INFO, "controld", fields);
        assert!(line.len() <= LINE_BYTES + 1 && line.ends_with('\n'));
    }
}
