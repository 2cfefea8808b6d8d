//! SQLite on the simulated disk: a kill at any of its effects leaves a sound database with every transaction
//! that was spoken of.

use rusqlite::{Connection, OpenFlags};
use seam::block;
use sim::{Fault, Plan, Program, RunReport, Side, Start};
use tracing::info;

use crate::support::{Story, effects, grain, logged};

const TRANSACTIONS: u64 = 4;
const ROWS_EACH: u64 = 3;

fn open(vfs: &str) -> rusqlite::Result<Connection> {
    let database = Connection::open_with_flags_and_vfs("/data/store.db", OpenFlags::default(), vfs)?;
    database.execute_batch(
        "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;
         CREATE TABLE IF NOT EXISTS rows (id INTEGER PRIMARY KEY, text TEXT NOT NULL);",
    )?;
    Ok(database)
}

/// In its first life it writes; in every life it says what it finds.
fn keeper() -> Program {
    Program::new("keeper", |process| async move {
        let vfs = process.seams.disk.sqlite_vfs().unwrap().to_owned();
        let blocking = process.seams.blocking.clone();
        let writes = process.seams.host.arguments() == ["write"];
        let opened = block(blocking.as_ref(), move || open(&vfs)).await;
        let mut database = opened.unwrap();
        if writes {
            for number in 1..=TRANSACTIONS {
                database = block(blocking.as_ref(), move || {
                    let transaction = database.transaction().unwrap();
                    for _ in 0..ROWS_EACH {
                        transaction.execute("INSERT INTO rows (text) VALUES ('x')", []).unwrap();
                    }
                    transaction.commit().unwrap();
                    database
                })
                .await;
                info!(number, "committed");
            }
        }
        let (rows, check) = block(blocking.as_ref(), move || {
            let rows: i64 = database.query_row("SELECT count(*) FROM rows", [], |row| row.get(0)).unwrap();
            let check: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
            (rows, check)
        })
        .await;
        info!(rows, %check, "found");
        0
    })
}

fn run(plan: Plan) -> RunReport {
    Story::new([keeper()], |director| async move {
        for what in ["write", "read"] {
            let mut life = director.start(Start::new("keeper").args([what])).await.unwrap();
            life.exit().await.unwrap();
        }
        Ok(())
    })
    .planned(plan)
    .passes(1)
}

#[test]
fn a_kill_at_any_write_of_the_store_loses_nothing_that_was_committed() {
    let whole = run(grain(5));
    let of_first_life = whole.lines.iter().filter(|line| line.process == "keeper#1");
    let count = of_first_life
        .filter(|line| line.text.starts_with("sqlite.") || line.text.starts_with("process."))
        .count();
    assert!(count > 20, "SQLite's own writes are effects: {:?}", effects(&whole, "keeper"));
    for effect in 1..=count as u64 {
        for side in [Side::Before, Side::After] {
            let kill = Fault::Kill { process: "keeper".into(), life: 1, effect, side };
            let report = run(grain(5).with(kill));
            let committed = logged(&report, "keeper", "committed").len() as u64;
            let found = logged(&report, "keeper", "found");
            let found = found.last().unwrap();
            assert_eq!(found.field("check"), "ok", "killed {side:?} effect {effect}");
            let rows: u64 = found.field("rows").parse().unwrap();
            assert_eq!(rows % ROWS_EACH, 0, "half a transaction, killed {side:?} effect {effect}");
            let kept = rows / ROWS_EACH;
            assert!(
                (committed..=committed + 1).contains(&kept),
                "{committed} committed, {kept} kept, killed {side:?} effect {effect}"
            );
        }
    }
}

#[test]
fn a_full_disk_is_an_error_and_not_a_broken_store() {
    for from_write in 1..12 {
        let full = Fault::StorageFull { process: "keeper".into(), life: 1, from_write };
        let report = Story::new([keeper()], |director| async move {
            let mut life = director.start(Start::new("keeper").args(["read"])).await.unwrap();
            life.exit().await.unwrap();
            Ok(())
        })
        .planned(grain(5).with(full))
        .run(1);
        // The program of this test panics at an error: that is the run's failure, and names the reason.
        if let Err(failure) = report.outcome {
            assert!(failure.violation.seen.contains("full"), "{}", failure.violation);
            assert!(report.faults["storage_full"].bitten > 0);
        }
    }
}
