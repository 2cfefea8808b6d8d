//! The programs of an installation, by the names under which they are started: the production code's own entry
//! points, and the scripted agent.

use std::sync::Arc;

use crate::program::{ProcessContext, Program};

/// Every program that a simulated machine has.
pub fn table() -> Vec<Program> {
    vec![
        Program::new("controld", control_server),
        Program::new("backend-recovery", |context: ProcessContext| backend_recovery::run(context.seams)),
        Program::new("scripted-agent", |context: ProcessContext| crate::scripted_agent::run(context.seams)),
    ]
}

/// As its `main` does: the log layer beside the process, its queue inside.
async fn control_server(context: ProcessContext) -> u8 {
    let (layer, queue) = controld::logging(Arc::clone(&context.seams.clock));
    context.on_log(move |event| layer.record(event));
    controld::run(context.seams, queue).await
}
