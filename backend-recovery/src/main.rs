//! The backend as a process: the real world, a runtime, the log, [`backend_recovery::run`].
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("backend-recovery: its runtime cannot be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(log).with(LevelFilter::INFO))
        .expect("nobody set a subscriber before main");
    let code = runtime.block_on(async {
        let mut seams = system::seams();
        // The configuration file may name another home than the environment does: the secrets are in that one.
        if let Some(home) = backend_recovery::configured_home(&seams).await {
            seams.secrets = Arc::new(system::RealSecretStore::at(home.join("secrets")));
        }
        backend_recovery::run(seams).await
    });
    // A connection that is still open, or a read that blocks its thread, does not hold the process.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// The backend waits for others far more than it works.
const WORKERS: usize = 2;
