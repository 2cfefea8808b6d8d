//! The control server as a process: the real world, a runtime, the log, [`controld::run`].
#![forbid(unsafe_code)]

use std::process::ExitCode;

use tracing_subscriber::layer::SubscriberExt as _;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("controld: its runtime cannot be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(async {
        let seams = system::seams();
        let (layer, queue) = controld::logging(std::sync::Arc::clone(&seams.clock));
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))
            .expect("nobody set a subscriber before main");
        controld::run(seams, queue).await
    });
    // A read of standard input blocks its thread for as long as the launcher lives; nobody waits for it.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// The server waits far more than it works; two keep one busy task from delaying a heartbeat.
const WORKERS: usize = 2;
