//! From the command line to the exit code.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use seam::{ChildInput, ChildOutput, Reaper, Seams, Signal, within};
use secrecy::SecretString;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tracing::{error, info, warn};
use wire::CAPABILITIES;

use crate::config::{Config, ConfigRefused};
use crate::log_sink::{LogQueue, LogSink};
use crate::ownership::ShutdownReason;
use crate::routes::router;
use crate::serve::serve;
use crate::server::{Launched, Server};

/// Runs the control server from its start to its end and gives its exit code: 0 after a shutdown, 2 for a bad
/// configuration, 3 if the address cannot be bound, 4 if agents were left that could not be ended, 1 for anything else. Arguments and environment come from the
/// host facts; `log` is written to the log file under the home.
pub async fn run(seams: Seams, log: LogQueue) -> u8 {
    let capabilities = CAPABILITIES.into_iter().map(str::to_owned).collect();
    run_with(seams, log, capabilities).await
}

/// [`run`] as a build does that has these capabilities.
pub async fn run_with(seams: Seams, log: LogQueue, capabilities: BTreeSet<String>) -> u8 {
    let stdio = seams.processes.own_stdio();
    let mut complaint = Complaint { seams: seams.clone(), stdout: stdio.stdout, stderr: stdio.stderr };
    let config = match Config::parse(seams.host.arguments(), &seams.host.environment()) {
        Ok(config) => config,
        Err(ConfigRefused::Help(help)) => {
            complaint.help(&help).await;
            return 0;
        }
        Err(refused) => return complaint.end(BAD_CONFIGURATION, &refused.to_string()).await,
    };
    let nonce = match read_nonce(&seams, &config.nonce_file).await {
        Ok(nonce) => nonce,
        Err(message) => return complaint.end(BAD_CONFIGURATION, &message).await,
    };

    let (disk, clock) = (Arc::clone(&seams.disk), Arc::clone(&seams.clock));
    let directory = config.home.join("logs");
    let (finish, finished) = oneshot::channel();
    let writing =
        tokio::spawn(async move { LogSink::open(disk, clock, log, directory).await.write(finished).await });
    let code = operate(&seams, config, nonce, capabilities, complaint, stdio.stdin).await;
    info!(code, "exiting");
    let _ = finish.send(());
    // A disk that hangs must not keep the server from ending.
    let _ = within(&*seams.clock, LOG_FLUSH_WAIT, writing).await;
    code
}

/// Binds, serves, and ends.
async fn operate(
    seams: &Seams,
    config: Config,
    nonce: SecretString,
    capabilities: BTreeSet<String>,
    complaint: Complaint,
    stdin: ChildOutput,
) -> u8 {
    match seams.processes.become_reaper() {
        Ok(Reaper::Here) => {}
        Ok(Reaper::Elsewhere) => warn!("orphaned descendants of agents are reaped elsewhere"),
        Err(error) => warn!(%error, "orphaned descendants of agents cannot be reaped here"),
    }
    let home = match seams.disk.canonical(&config.home).await {
        Ok(home) => home,
        Err(error) => {
            let message = format!("--home {} cannot be used: {error}", config.home.display());
            error!(home = %config.home.display(), %error, "home cannot be resolved");
            return complaint.end(FAILED, &message).await;
        }
    };
    let listener = match seams.network.listen(config.listen).await {
        Ok(listener) => listener,
        Err(error) => {
            let message = not_bound(&config, &error);
            error!(address = %config.listen, %error, "not listening");
            return complaint.end(NOT_BOUND, &message).await;
        }
    };
    // Nothing ties a detached server to its launcher's streams any more (S-001.3).
    drop(complaint);

    let address = listener.local_address();
    let (unowned_period, event_limit) = (config.unowned_period, config.event_limit);
    let launched = Launched {
        home,
        address,
        nonce,
        capabilities,
        unowned_period,
        idle_reaping: config.idle_reaping,
        event_limit,
    };
    let server = Arc::new(Server::new(seams.clone(), launched));
    for adjustment in &config.adjustments {
        warn!(%adjustment, "unowned period adjusted");
    }
    info!(
        %address, server = %server.identity(),
        unowned_period_ms = u64::try_from(config.unowned_period.as_millis()).unwrap_or(u64::MAX),
        idle_reaping = ?config.idle_reaping, event_limit = config.event_limit, until_stdin_closes = config.until_stdin_closes, "listening"
    );

    let (finish, finished) = oneshot::channel::<()>();
    let serving = serve(listener, router(Arc::clone(&server)), Arc::clone(&seams.clock), async {
        let _ = finished.await;
    });
    let serving = tokio::spawn(serving);
    tokio::select! {
        biased;
        _ = server.shutting_down() => {}
        () = server.watch_ownership() => {}
        () = await_signal(seams, &server) => {}
        () = await_launcher(&server, stdin, config.until_stdin_closes) => {}
    }
    let left = server.all_gone().await;
    info!(left, "instances stopped");
    let _ = finish.send(());
    let _ = serving.await;
    if left == 0 { 0 } else { AGENTS_LEFT }
}

async fn await_signal(seams: &Seams, server: &Server) {
    let signal = seams.processes.stop_requested().await;
    let name = match signal {
        Signal::Terminate => "SIGTERM",
        Signal::Interrupt => "SIGINT",
        Signal::Kill => unreachable!("SIGKILL cannot be received"),
    };
    info!(signal = name, "signal received");
    server.shut_down(ShutdownReason::Signalled);
}

/// Watches standard input if the server may not outlive its launcher; else lets go of it and never resolves.
async fn await_launcher(server: &Server, mut stdin: ChildOutput, until_stdin_closes: bool) {
    if !until_stdin_closes {
        drop(stdin);
        return std::future::pending().await;
    }
    let mut ignored = [0; 256];
    while stdin.read(&mut ignored).await.is_ok_and(|length| length > 0) {}
    server.shut_down(ShutdownReason::LauncherGone);
}

async fn read_nonce(seams: &Seams, file: &Path) -> Result<SecretString, String> {
    let way_out = "the launcher writes it before it starts controld, and names it with --nonce-file";
    let bytes = match seams.disk.read(file, NONCE_BYTES).await {
        Ok(bytes) => bytes,
        Err(error) => {
            return Err(format!("the nonce file {} cannot be read: {error}; {way_out}", file.display()));
        }
    };
    match std::str::from_utf8(&bytes).map(str::trim) {
        Ok(nonce) if !nonce.is_empty() => Ok(SecretString::from(nonce)),
        _ => Err(format!("the nonce file {} holds no nonce; {way_out}", file.display())),
    }
}

fn not_bound(config: &Config, error: &io::Error) -> String {
    let address = config.listen;
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "{address} is in use by another process: end that process, or name another address with --listen"
            )
        }
        _ => format!("{address} cannot be listened on: {error}; name an address of this host with --listen"),
    }
}

/// The standard streams, for what has to be said before there is a log.
struct Complaint {
    seams: Seams,
    stdout: ChildInput,
    stderr: ChildInput,
}

impl Complaint {
    async fn end(mut self, code: u8, message: &str) -> u8 {
        let text = format!("controld: {}\n", message.trim_end());
        Self::say(&self.seams, &mut self.stderr, &text).await;
        code
    }

    async fn help(&mut self, text: &str) {
        Self::say(&self.seams, &mut self.stdout, text).await;
    }

    async fn say(seams: &Seams, to: &mut ChildInput, text: &str) {
        let saying = async {
            to.write_all(text.as_bytes()).await?;
            to.flush().await
        };
        // Nobody may be reading; that is no reason to stay.
        let _ = within(&*seams.clock, SAY_WAIT, saying).await;
    }
}

const FAILED: u8 = 1;
const BAD_CONFIGURATION: u8 = 2;
const NOT_BOUND: u8 = 3;
const AGENTS_LEFT: u8 = 4;

/// A nonce is one line; anything longer is another file.
const NONCE_BYTES: u64 = 4096;

/// How long a message on a standard stream may take.
const SAY_WAIT: Duration = Duration::from_secs(1);

/// How long the last log lines may take.
const LOG_FLUSH_WAIT: Duration = Duration::from_secs(2);
