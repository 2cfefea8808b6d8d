//! The tables, as a list of migrations; `user_version` counts how many were applied.

use rusqlite::Connection;

/// What opening found.
pub(super) enum Migrated {
    /// The schema is the one that this build knows.
    Ready,
    /// A newer build wrote it.
    Newer { found: i64 },
}

/// Brings the schema to this build's, one transaction per step.
pub(super) fn migrate(connection: &mut Connection) -> rusqlite::Result<Migrated> {
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if found > KNOWN {
        return Ok(Migrated::Newer { found });
    }
    for (step, migration) in (0_i64..).zip(MIGRATIONS).skip_while(|(step, _)| *step < found) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(migration)?;
        transaction.pragma_update(None, "user_version", step + 1)?;
        transaction.commit()?;
    }
    connection.execute_batch(ADDITIONS)?;
    Ok(Migrated::Ready)
}

/// The newest schema of this build.
pub(super) const KNOWN: i64 = MIGRATIONS.len() as i64;

/// Tables that an older build does not know and does not miss: without a step of their own, so that it still opens the
/// store after a downgrade.
const ADDITIONS: &str = "
CREATE TABLE IF NOT EXISTS survivors (
    server TEXT PRIMARY KEY NOT NULL,
    endpoint TEXT NOT NULL,
    secret TEXT NOT NULL,
    period_ms INTEGER NOT NULL,
    renewed_ms INTEGER NOT NULL,
    reason TEXT NOT NULL
) STRICT;
";

/// Append only: a released step is never edited.
const MIGRATIONS: [&str; 1] = ["
CREATE TABLE tasks (
    id TEXT PRIMARY KEY NOT NULL,
    title TEXT NOT NULL,
    state TEXT NOT NULL,
    updated_ms INTEGER NOT NULL
) STRICT;

CREATE TABLE sessions (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    task TEXT NOT NULL REFERENCES tasks (id),
    environment TEXT NOT NULL,
    profile TEXT NOT NULL,
    passthrough INTEGER NOT NULL,
    state TEXT NOT NULL,
    directory TEXT NOT NULL,
    repository TEXT,
    branch TEXT,
    provider_session TEXT,
    failure TEXT,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX sessions_at_work ON sessions (number) WHERE state NOT IN ('COMPLETED', 'FAILED', 'CANCELLED');

CREATE TABLE executor_records (
    session TEXT PRIMARY KEY NOT NULL,
    runtime TEXT NOT NULL,
    execution TEXT NOT NULL,
    server TEXT NOT NULL,
    address TEXT NOT NULL,
    task TEXT NOT NULL,
    workspace TEXT NOT NULL,
    profile TEXT NOT NULL,
    metadata TEXT NOT NULL,
    agent TEXT,
    live INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL
) STRICT;
CREATE INDEX executor_records_live ON executor_records (session) WHERE live = 1;

CREATE TABLE turns (
    number INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    session TEXT NOT NULL,
    state TEXT NOT NULL,
    server TEXT,
    control_turn INTEGER,
    stop_reason TEXT,
    error TEXT,
    via TEXT,
    created_ms INTEGER NOT NULL,
    ended_ms INTEGER
) STRICT;
CREATE INDEX turns_of_session ON turns (session, number);
CREATE INDEX turns_open ON turns (session) WHERE state IN ('PENDING', 'RUNNING');
CREATE UNIQUE INDEX turns_of_server ON turns (server, control_turn) WHERE control_turn IS NOT NULL;

CREATE TABLE transcript (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    session TEXT NOT NULL,
    server TEXT,
    instance TEXT,
    seq INTEGER,
    at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    turn TEXT,
    payload TEXT NOT NULL,
    UNIQUE (server, instance, seq)
) STRICT;
CREATE INDEX transcript_of_session ON transcript (session, position);

CREATE TABLE control_server (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    record
);
"];
