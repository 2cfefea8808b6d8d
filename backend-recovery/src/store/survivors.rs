//! The notes of survivors (ruling 11).

use rusqlite::params;
use wire::ServerIdentity;

use super::{Store, StoreFailed, int, uint};
use crate::survivors::Survivor;

impl Store {
    /// Keeps the note; one of the same server is replaced.
    pub(crate) async fn note_survivor(&self, survivor: Survivor) -> Result<(), StoreFailed> {
        self.transaction("note the survivor", move |db| {
            db.execute(
                "INSERT OR REPLACE INTO survivors (server, endpoint, secret, period_ms, renewed_ms, reason)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![
                    survivor.server.as_str(),
                    survivor.endpoint.to_string(),
                    survivor.secret,
                    int(survivor.period_ms),
                    int(survivor.renewed_ms),
                    survivor.reason
                ],
            )
            .map(drop)
        })
        .await
    }

    /// Every note.
    pub(crate) async fn survivors(&self) -> Result<Vec<Survivor>, StoreFailed> {
        self.transaction("read the survivors", |db| {
            let mut statement = db.prepare(
                "SELECT server, endpoint, secret, period_ms, renewed_ms, reason FROM survivors ORDER BY server",
            )?;
            let rows = statement.query_map([], |row| {
                let endpoint: String = row.get(1)?;
                Ok(endpoint.parse().ok().map(|endpoint| Survivor {
                    server: ServerIdentity::new(row.get::<_, String>(0).unwrap_or_default()),
                    endpoint,
                    secret: row.get(2).unwrap_or_default(),
                    period_ms: uint(row.get(3).unwrap_or_default()),
                    renewed_ms: uint(row.get(4).unwrap_or_default()),
                    reason: row.get(5).unwrap_or_default(),
                }))
            })?;
            Ok(rows.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten().collect())
        })
        .await
    }

    /// The survivor is gone, or its time is over.
    pub(crate) async fn forget_survivor(&self, server: &ServerIdentity) -> Result<(), StoreFailed> {
        let server = server.clone();
        self.transaction("forget the survivor", move |db| {
            db.execute("DELETE FROM survivors WHERE server = ?1", params![server.as_str()]).map(drop)
        })
        .await
    }

    /// The live records of executions on this server.
    pub(crate) async fn live_records_of(
        &self,
        server: &ServerIdentity,
    ) -> Result<Vec<super::ExecutorRecord>, StoreFailed> {
        let rows = self.live_records().await?;
        Ok(rows.into_iter().map(|row| row.record).filter(|record| record.server == *server).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::{now, store};

    #[test]
    fn a_note_comes_back_as_it_was_kept_until_it_is_forgotten() {
        let (_guard, store) = store();
        let survivor = Survivor {
            server: ServerIdentity::new("abc"),
            endpoint: "127.0.0.1:39429".parse().unwrap(),
            secret: "controld-abc".to_owned(),
            period_ms: 600_000,
            renewed_ms: 1_700_000_000_000,
            reason: "authentication_failure".to_owned(),
        };
        now(store.note_survivor(survivor.clone())).unwrap();
        now(store.note_survivor(survivor.clone())).unwrap();
        assert_eq!(now(store.survivors()).unwrap(), std::slice::from_ref(&survivor));
        now(store.forget_survivor(&survivor.server)).unwrap();
        assert_eq!(now(store.survivors()).unwrap(), []);
    }
}
