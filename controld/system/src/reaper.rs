//! Own children and adopted orphans.
//!
//! Who becomes a subreaper gets the orphans of all its descendants as children and must reap them. Whom it has
//! spawned itself it must not reap here: their exit status belongs to who waits for them. So the pids of its own
//! children are kept, and orphans are reaped pid by pid, never with "any child".

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard};

use rustix::process::{Pid, WaitOptions, set_child_subreaper, waitpid};
use seam::ProcessIdentity;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::cannot;
use crate::off_thread::off_thread;
use crate::process_table;

/// The start times of the children that this process has spawned, by pid. Locked from before a spawn until the
/// child is entered, so that one which exits at once is not taken for an orphan.
pub(crate) struct OwnChildren {
    started: MutexGuard<'static, BTreeMap<u32, u64>>,
}

impl OwnChildren {
    /// Waits for whoever spawns or reaps at this moment.
    pub(crate) fn lock() -> Self {
        Self { started: OWN_CHILDREN.lock().expect("nobody panics while holding the table of own children") }
    }

    /// Enters a child that was just spawned.
    pub(crate) fn enter(&mut self, identity: &ProcessIdentity) {
        self.started.insert(identity.pid, identity.start_time);
    }

    /// Forgets a child that was waited for, unless its pid already is another child's.
    pub(crate) fn forget(&mut self, identity: &ProcessIdentity) {
        if self.started.get(&identity.pid) == Some(&identity.start_time) {
            self.started.remove(&identity.pid);
        }
    }
}

/// Makes this process the parent of all orphans among its descendants, and reaps them as they exit, as long as
/// the runtime lives.
pub(crate) fn become_reaper(own: &ProcessIdentity) -> io::Result<()> {
    let runtime = Handle::try_current().map_err(io::Error::other)?;
    let mut exits = signal(SignalKind::child()).map_err(|error| cannot("listen for", "SIGCHLD", error))?;
    // Only that there is one matters, not which.
    let flag = Pid::from_raw(1);
    set_child_subreaper(flag).map_err(|error| cannot("adopt", "orphaned descendants", error))?;
    let own_pid = own.pid;
    runtime.spawn(async move {
        while exits.recv().await.is_some() {
            off_thread(move || reap_orphans(own_pid)).await;
        }
    });
    Ok(())
}

/// Reaps every zombie child of ours that we have not spawned.
fn reap_orphans(own_pid: u32) {
    // A table that cannot be read now is read at the next exit; until then zombies only occupy their pids.
    let Ok(entries) = process_table::entries() else { return };
    let dead = entries.into_iter().filter(|entry| entry.parent == own_pid && entry.is_zombie());
    for pid in dead.map(|entry| entry.pid) {
        let mut own = OwnChildren::lock();
        // Looked at again under the lock: meanwhile it may have been reaped, and its pid given to a new child.
        let Ok(Some(now)) = process_table::entry(pid) else { continue };
        if now.parent != own_pid || !now.is_zombie() || own.started.get(&pid) == Some(&now.start_time) {
            continue;
        }
        // An entry of that pid is a child that was dropped unawaited and reaped by the runtime.
        own.started.remove(&pid);
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // Fails only if it was reaped in this moment, which is all that is wanted.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

/// Of the whole process, as its children are: two sets of seams must not reap each other's.
static OWN_CHILDREN: Mutex<BTreeMap<u32, u64>> = Mutex::new(BTreeMap::new());
