//! The start of the backend: eight steps, in this order, readable from top to bottom.
//!
//! 1. the home lock, before log, store or any contact
//! 2. the switch and the platform; the user-facing listener comes up
//! 3. the inventory is read and guards are taken: until then every launch is refused as retryable
//! 4. the recorded endpoint and identity are read; the bound starts at the first contact
//! 5. the gates: identity, proof, capabilities
//! 6. the credential is replaced, both writes are made, ownership is renewed from now on and the rotation confirmed in
//!    the background; or a server of our own is started elsewhere
//! 7. enumerate, correlate, read turn status, apply it, publish, release
//! 8. the re-tracked set is published and the remaining records are reconciled

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use seam::{Lock, Monotonic, Privacy, Seams};
use tracing::{error, info, warn};

use crate::adoption::{Admission, ProvenServer, admit};
use crate::api::Named;
use crate::backend::{Backend, chain};
use crate::config::Config;
use crate::confirmation::confirm;
use crate::control_server_record::{ControlServerRecord, Recorded};
use crate::correlation::admissible;
use crate::home::HomeUnusable;
use crate::leftovers;
use crate::reconciliation::{Survey, reconcile};
use crate::refusal::AdoptionRefused;
use crate::retracking::{carry_out, enumerate};
use crate::rotation::{NotAdopted, rotate};
use crate::routes::UserListener;
use crate::store::{InventoryRow, OpenFailed, Store, StoreFailed};
use crate::survivors;
use crate::switch::Survival;
use crate::tending::{settle_start, shut_down, start_own, tend};

/// Why the backend did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeFailed {
    #[error(transparent)]
    Home(#[from] HomeUnusable),
    #[error(transparent)]
    Open(#[from] OpenFailed),
    #[error(
        "{address} cannot be listened on for users: end whoever listens there, or name another address of this \
         host with server.listen or KANDEV_SERVER_LISTEN"
    )]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        cause: std::io::Error,
    },
    #[error("{what} could not be written: free some space and check the permissions of the home")]
    NotWritten {
        what: &'static str,
        #[source]
        cause: std::io::Error,
    },
    #[error("the recovery inventory could not be read")]
    Store(#[from] StoreFailed),
}

/// Runs the backend until it is asked to stop.
pub(crate) async fn serve(
    seams: Seams,
    config: Config,
    required: BTreeSet<String>,
) -> Result<(), ServeFailed> {
    for key in &config.unknown_keys {
        warn!(key, "unknown configuration key is ignored");
    }

    // (1) The home lock, before anything in the home is read or anybody is contacted. Held until the end.
    let lock = config.home.lock(&*seams.disk, &*seams.processes, config.listen).await?;
    // From here on under its one spelling, which the control server proves itself for.
    let config = Config { home: config.home.canonical(&*seams.disk).await?, ..config };
    remove_unfinished(&seams, &config).await;
    let store = Store::open(&*seams.disk, Arc::clone(&seams.blocking), config.home.database()).await?;

    // (2) Switch and platform; then the listener, so that users are answered while recovery runs.
    let survival = Survival::judge(config.agent_survival, &*seams.host);
    info!(survival = survival.as_str(), reason = survival.reason(), "capability judged");
    let backend = Arc::new(Backend::new(seams, config, store, survival, required));
    let listener = UserListener::open(&backend).await?;
    info!(address = %listener.address(), "backend listening");
    let serving = tokio::spawn(listener.serve());

    let stopping = Arc::clone(&backend);
    let outcome = tokio::select! {
        biased;
        () = stop_requested(&stopping) => Ok(()),
        recovered = recover(&backend) => match recovered {
            Ok(()) => {
                stop_requested(&stopping).await;
                Ok(())
            }
            Err(failed) => Err(failed),
        },
    };
    shut_down_backend(&backend, lock).await;
    serving.abort();
    outcome.map_err(ServeFailed::from)
}

/// A backend that was killed in the middle of a write may have left a whole credential without a name. With the lock
/// held nobody else writes there.
async fn remove_unfinished(seams: &Seams, config: &Config) {
    let secrets = seams.secrets.remove_unfinished().await;
    let run = seams.disk.remove_unfinished(&config.home.run()).await;
    for (place, removed) in [("secrets", secrets), ("run", run)] {
        match removed {
            Ok(0) => {}
            Ok(files) => info!(place, files, "unfinished writes of an earlier backend removed"),
            Err(error) => warn!(place, %error, "unfinished writes could not be removed"),
        }
    }
}

/// Steps 3 to 8.
async fn recover(backend: &Arc<Backend>) -> Result<(), StoreFailed> {
    // (3) Which executions were live, and a guard for each, before anybody is contacted.
    let rows = take_guards(backend).await?;

    // (4) What was recorded. The bound over everything that follows starts with the first contact.
    let recorded = ControlServerRecord::read(&backend.store).await?;
    let recorded_server = match &recorded {
        Recorded::Server(record) => Some(record.clone()),
        Recorded::Nothing | Recorded::Garbage { .. } => None,
    };
    let begun = backend.now();
    let bound = begun.after(backend.config.recovery_deadline);

    // (5) The gates.
    let admission = admit(backend, recorded).await;
    info!(outcome = admission.as_str(), "recorded control server judged");
    backend.report().adoption = Some(admission.as_str().to_owned());

    // (6) and (7): a proven server is adopted and worked with; otherwise a server of our own is.
    let survey = match admission {
        Admission::Proven(server) if backend.survival.is_on() => adopt(backend, server, &rows, bound).await,
        Admission::Proven(server) | Admission::Incompatible { server, .. } => {
            stop_unusable(backend, server).await
        }
        Admission::NothingRecorded | Admission::GarbageRecord => Survey::NobodyAnswered { server: None },
        Admission::Refused(AdoptionRefused::NoAnswer) => silent(backend, recorded_server.clone()).await,
        Admission::Refused(AdoptionRefused::IdentityMismatch) => Survey::LeftRunning { survivor: None },
        Admission::Refused(reason) => Survey::LeftRunning { survivor: Some(reason.as_str()) },
        Admission::ShuttingDown => Survey::LeftRunning { survivor: Some("shutting_down") },
    };
    match (&survey, &recorded_server) {
        (Survey::Enumerated(_) | Survey::NotEnumerated, _) => {}
        (Survey::LeftRunning { survivor: Some(reason) }, Some(record)) => {
            go_on_beside(backend, record.clone(), reason).await;
        }
        _ => go_on_alone(backend).await,
    }

    // (8) What was re-tracked is published; every other record is reconciled from its outcome.
    let gone = match &survey {
        Survey::NobodyAnswered { server } => server.clone(),
        _ => None,
    };
    let report = reconcile(backend, &rows, survey).await?;
    if let Some(server) = gone {
        leftovers::end_entries_of(backend, &server).await;
    }
    survivors::sweep_secrets(backend).await;
    tokio::spawn(survivors::watch(Arc::clone(backend)));
    let elapsed = backend.now().since(begun);
    info!(
        retracked = report.retracked.len(),
        stopped = report.stopped.len(),
        left = report.left.len(),
        elapsed_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        "recovery complete"
    );
    let mut shown = backend.report();
    shown.recovered = true;
    shown.recovery = Some(elapsed);
    shown.retracked = report.retracked;
    shown.stopped = report.stopped;
    shown.left = report.left;
    Ok(())
}

/// Nobody is in the way: a server of our own.
async fn go_on_alone(backend: &Arc<Backend>) {
    start_own(backend).await;
    tokio::spawn(tend(Arc::clone(backend)));
}

/// A server of ours was left running: it is noted before the record that names it is rewritten (ruling 11). While it
/// cannot be noted there is no server of our own.
async fn go_on_beside(backend: &Arc<Backend>, record: ControlServerRecord, reason: &'static str) {
    let Err(failed) = survivors::note(backend, &record, reason).await else {
        return go_on_alone(backend).await;
    };
    error!(server = %record.identity, error = %chain(&failed), "survivor could not be noted");
    backend.lose_server(format!(
        "the control server that was left running could not be noted: {}",
        chain(&failed)
    ));
    let backend = Arc::clone(backend);
    tokio::spawn(async move {
        let noted = async {
            while survivors::note(&backend, &record, reason).await.is_err() {
                backend.seams.clock.sleep(NOTE_AGAIN).await;
            }
        };
        tokio::select! {
            biased;
            () = backend.closed() => return,
            () = noted => {}
        }
        go_on_alone(&backend).await;
        survivors::watch(backend).await;
    });
}

async fn take_guards(backend: &Backend) -> Result<Vec<InventoryRow>, StoreFailed> {
    let rows = backend.store.live_records().await?;
    let admitted = rows.iter().filter(|row| admissible(row).is_ok());
    let mut executions = backend.executions();
    let mut guards = 0_u64;
    for row in admitted {
        let taken = executions.guard(&row.record.session);
        guards += u64::from(taken == crate::recovery_guard::Taken::Acquired);
        info!(session = %row.record.session, instance = %row.record.execution, ?taken, "guard taken");
    }
    executions.open();
    info!(records = rows.len(), guards, "inventory read");
    drop(executions);
    Ok(rows)
}

/// (6) and (7) for a server that is ours.
async fn adopt(
    backend: &Arc<Backend>,
    server: ProvenServer,
    rows: &[InventoryRow],
    bound: Monotonic,
) -> Survey {
    let identity = server.identity.server.clone();
    let server = match rotate(backend, server, bound).await {
        Ok(adopted) => adopted,
        Err(NotAdopted::Refused(reason)) => {
            info!(server = %identity, %reason, "control server refused");
            backend.report().adoption = Some(reason.as_str().to_owned());
            return Survey::LeftRunning { survivor: Some(reason.as_str()) };
        }
        Err(NotAdopted::ShuttingDown) => {
            info!(server = %identity, "control server is shutting down");
            backend.report().adoption = Some(Admission::ShuttingDown.as_str().to_owned());
            return Survey::LeftRunning { survivor: Some("shutting_down") };
        }
    };
    backend.report().adoption = Some("adopted".to_owned());
    let in_use = server.in_use(backend);
    let client = in_use.client.clone();
    backend.use_server(in_use);
    tokio::spawn(tend(Arc::clone(backend)));
    tokio::spawn(confirm(Arc::clone(backend), client, identity.clone(), server.rotation()));
    match enumerate(backend, &server).await {
        // Not complete within the bound: nothing is stopped (S-003.7, S-002.12).
        Ok(_) if backend.now() >= bound => {
            error!(server = %identity, "adopted control server was enumerated after the bound over recovery");
            Survey::NotEnumerated
        }
        Ok(listed) => Survey::Enumerated(carry_out(backend, &server, rows, listed, bound).await),
        Err(failed) => {
            // S-002.12: nothing recovered, nothing stopped, no second server.
            error!(server = %identity, error = %chain(&failed), "adopted control server could not be enumerated");
            Survey::NotEnumerated
        }
    }
}

/// A server of ours that cannot be used, because the capability is off (S-005.5) or a capability is missing
/// (O-004.3): it is stopped, on the strength of the same proof.
async fn stop_unusable(backend: &Arc<Backend>, server: ProvenServer) -> Survey {
    info!(server = %server.identity.server, "own control server is not used and is shut down");
    if shut_down(backend, server.client(), &server.identity.server).await {
        backend.report().stopped.push(Named {
            id: server.identity.server.to_string(),
            reason: "the control server was shut down".to_owned(),
        });
        Survey::NobodyAnswered { server: Some(server.identity.server.clone()) }
    } else {
        Survey::LeftRunning { survivor: Some("stop_failed") }
    }
}

/// Nothing answered: gone if nobody listens there, else silent, and silence is not gone.
async fn silent(backend: &Backend, recorded: Option<ControlServerRecord>) -> Survey {
    match recorded {
        Some(record) if crate::ports::nobody_listens(&*backend.seams.network, record.endpoint).await => {
            Survey::NobodyAnswered { server: Some(record.identity) }
        }
        Some(_) => Survey::LeftRunning { survivor: Some(AdoptionRefused::NoAnswer.as_str()) },
        None => Survey::NobodyAnswered { server: None },
    }
}

async fn stop_requested(backend: &Backend) {
    let signal = backend.seams.processes.stop_requested().await;
    info!(?signal, "stop requested");
}

/// With the capability on this lets go and stops nothing (S-001.1); with it off the server goes with us.
async fn shut_down_backend(backend: &Arc<Backend>, lock: Box<dyn Lock>) {
    backend.close();
    settle_start(backend).await;
    if let Ok(server) = backend.server() {
        if backend.survival.is_on() {
            let dropped = backend.executions().remove_all().len();
            info!(server = %server.identity, sessions = dropped, "detached from the control server");
        } else {
            let gone = shut_down(backend, &server.client, &server.identity).await;
            info!(server = %server.identity, gone, "control server shut down with its backend");
            if let Some(process) = &server.process {
                drop(process.lifeline.lock().expect("nobody panics holding the lifeline").take());
            }
        }
    }
    if let Err(error) = backend.seams.disk.remove(&backend.config.home.contact()).await
        && error.kind() != std::io::ErrorKind::NotFound
    {
        warn!(%error, "contact file could not be removed");
    }
    info!("backend stopped");
    drop(lock);
}

/// After a note that could not be written; a full disk often has room again within moments.
const NOTE_AGAIN: Duration = Duration::from_secs(2);

/// Writes how the command line finds us.
pub(crate) async fn write_contact(
    backend: &Backend,
    contact: &crate::api::BackendContact,
) -> Result<(), ServeFailed> {
    let bytes = serde_json::to_vec(contact).expect("a contact always serializes");
    let path = backend.config.home.contact();
    backend
        .seams
        .disk
        .write_atomic(&path, &bytes, Privacy::Owner)
        .await
        .map_err(|cause| ServeFailed::NotWritten { what: "run/backend.json", cause })
}
