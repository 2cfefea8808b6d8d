//! The scripted agent as a process.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a fresh process can have a runtime");
    let code = runtime.block_on(async {
        let seams = system::seams();
        if seams.host.environment().contains_key(LOG_VARIABLE) {
            tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).init();
        }
        sim::scripted_agent::run(seams).await
    });
    // A read of the standard input may block a thread for ever; it must not keep the process.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// If set, what the agent does is logged on its standard error.
const LOG_VARIABLE: &str = "SCRIPTED_AGENT_LOG";
