//! A new session: durable first, then its workspace, then its executor record, then its agent.
//!
//! Between any two of these steps the backend may be killed: the next one finds a session without a record, or a
//! record without an instance, and repairs it; or the instance, and re-tracks it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use seam::{ChildOutput, ExitStatus, SpawnRequest, Stdio, within};
use tokio::io::AsyncReadExt as _;
use tracing::{info, warn};
use wire::client::CallFailed;
use wire::{CreateInstance, InstanceId, InstanceStatus, ProviderSessionId, SessionId};

use super::{readiness, stream, view};
use crate::api::{
    CreateSession, RefusalCode, Refused, SessionState, SessionView, TurnState, WorkspaceRequest,
};
use crate::backend::{Backend, ServerInUse, chain};
use crate::config::Profile;
use crate::ports::nobody_listens;
use crate::stop::stop_and_see_gone;
use crate::store::{ExecutorRecord, NewSession};
use crate::tending::{repair_without_server, seen_gone};

/// Makes the session durable and begins its launch; answers before the agent is up.
pub(crate) async fn create(backend: &Arc<Backend>, request: CreateSession) -> Result<SessionView, Refused> {
    let Some(profile) = backend.config.profiles.get(&request.profile).cloned() else {
        let known: Vec<_> = backend.config.profiles.keys().map(String::as_str).collect();
        let message = format!(
            "there is no profile {:?} in the configuration; it has: {}",
            request.profile,
            if known.is_empty() { "none".to_owned() } else { known.join(", ") }
        );
        return Err(Refused::for_good(RefusalCode::UnknownProfile, message));
    };
    let session = SessionId::new(backend.fresh_id("s"));
    let plan = plan_workspace(backend, &session, &request.workspace).await?;
    backend.executions().claim_launch(&session)?;
    let task = backend.fresh_id("k");
    let launch = Launch { session, task, profile_name: request.profile, profile, plan, resume: None };
    let durable = async {
        // Asked for after the claim: while recovery has not read the inventory, that is what the user is told.
        let server = backend.server()?;
        let title = request.title.unwrap_or_default();
        backend.store.create_session(launch.durable(backend, title), backend.wall_ms()).await?;
        Ok::<_, Refused>(server)
    };
    let server = match durable.await {
        Ok(server) => server,
        Err(refused) => {
            backend.executions().abandon_launch(&launch.session);
            return Err(refused);
        }
    };
    let session = launch.session.clone();
    info!(%session, profile = launch.profile_name, "session created");
    tokio::spawn(run(Arc::clone(backend), server, launch));
    view(backend, &session).await
}

/// Everything that one launch is made from.
pub(super) struct Launch {
    pub(super) session: SessionId,
    pub(super) task: String,
    pub(super) profile_name: String,
    pub(super) profile: Profile,
    pub(super) plan: WorkspacePlan,
    /// The provider's conversation to go on with.
    pub(super) resume: Option<ProviderSessionId>,
}

pub(super) struct WorkspacePlan {
    pub(super) directory: String,
    /// Repository and branch, if the directory is a worktree to be made.
    pub(super) worktree: Option<(String, String)>,
}

impl Launch {
    fn durable(&self, backend: &Backend, title: String) -> NewSession {
        let (repository, branch) = self.plan.worktree.clone().unzip();
        NewSession {
            session: self.session.clone(),
            task: self.task.clone(),
            title,
            environment: backend.fresh_id("e"),
            profile: self.profile_name.clone(),
            directory: self.plan.directory.clone(),
            repository,
            branch,
        }
    }
}

async fn plan_workspace(
    backend: &Backend,
    session: &SessionId,
    workspace: &WorkspaceRequest,
) -> Result<WorkspacePlan, Refused> {
    let (named, plan) = match workspace {
        WorkspaceRequest::Folder { path } => {
            (path, WorkspacePlan { directory: path.clone(), worktree: None })
        }
        WorkspaceRequest::Worktree { repository, branch } => {
            let directory = backend.config.home.worktree(session).display().to_string();
            let branch = branch.clone().unwrap_or_else(|| format!("kandev/{session}"));
            (repository, WorkspacePlan { directory, worktree: Some((repository.clone(), branch)) })
        }
    };
    let path = Path::new(named);
    if !path.is_absolute() {
        let message = format!("{named:?} is not an absolute path");
        return Err(Refused::for_good(RefusalCode::Workspace, message));
    }
    match backend.seams.disk.list(path).await {
        Ok(_) => Ok(plan),
        Err(error) => {
            let message = format!("the folder {named:?} cannot be used: {error}");
            Err(Refused::for_good(RefusalCode::Workspace, message))
        }
    }
}

/// Why a launch came to nothing.
#[derive(Debug, thiserror::Error)]
enum LaunchFailed {
    #[error("the git worktree could not be made: {0}")]
    Worktree(String),
    #[error("the executor record could not be written")]
    Store(#[from] crate::store::StoreFailed),
    #[error("the agent could not be started")]
    Create(#[source] CallFailed),
}

/// Carries the launch out. The session's launch is claimed; here it is published or given up.
pub(super) async fn run(backend: Arc<Backend>, server: ServerInUse, launch: Launch) {
    let instance = InstanceId::new(backend.fresh_id("i"));
    let session = launch.session.clone();
    let failed = match begin(&backend, &server, &launch, &instance).await {
        Ok(status) => return publish(&backend, &server, &session, status).await,
        Err(failed) => failed,
    };
    let reason = chain(&failed);
    warn!(%session, %instance, reason, "session launch failed");
    if let LaunchFailed::Create(_) = failed {
        // The request may have taken effect although its answer says nothing or was lost.
        let retries = backend.config.read_retries;
        if stop_and_see_gone(&*backend.seams.clock, &server.client, &instance, retries).await.is_err() {
            return not_gone(&backend, &server, &session, instance).await;
        }
    }
    let (to, turns) = (SessionState::Failed, TurnState::NotDelivered);
    let execution = match failed {
        LaunchFailed::Create(_) => Some(instance),
        LaunchFailed::Worktree(_) | LaunchFailed::Store(_) => None,
    };
    let record = async {
        let mut pause = FIRST_PAUSE;
        loop {
            let (execution, at) = (execution.clone(), backend.wall_ms());
            let ended = backend.store.end_execution(&session, execution, to, turns, reason.clone(), at).await;
            let Err(error) = ended else { return };
            let error = chain(&error);
            warn!(%session, error, "failed launch could not be recorded");
            let trouble = format!("{reason}; and that could not be recorded: {error}");
            backend.executions().note_trouble(&session, Some(trouble));
            backend.seams.clock.sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    };
    // What could not be recorded until our end is repaired by the next start.
    tokio::select! {
        biased;
        () = backend.closed() => {}
        () = record => {}
    }
    backend.executions().abandon_launch(&session);
}

/// An agent may live that nobody could stop. If its server is gone it is ended here; else its record stays live, so
/// that the next start finds it, and the guard keeps another one from being started beside it (S-002.16).
async fn not_gone(backend: &Arc<Backend>, server: &ServerInUse, session: &SessionId, instance: InstanceId) {
    let gone = match backend.server() {
        Ok(used) if used.identity == server.identity => {
            nobody_listens(&*backend.seams.network, server.address).await
        }
        // It was lost: it may still be on its way out.
        _ => seen_gone(backend, server.address, &server.identity).await,
    };
    backend.executions().guard_launch(session);
    info!(%session, gone, "guard taken");
    if gone {
        repair_without_server(backend, session, &instance, None, true).await;
    } else {
        backend.executions().hold(session, instance);
    }
}

/// Workspace, record, agent, in this order.
async fn begin(
    backend: &Arc<Backend>,
    server: &ServerInUse,
    launch: &Launch,
    instance: &InstanceId,
) -> Result<InstanceStatus, LaunchFailed> {
    if let Some((repository, branch)) = &launch.plan.worktree {
        make_worktree(backend, repository, branch, &launch.plan.directory)
            .await
            .map_err(LaunchFailed::Worktree)?;
        info!(session = %launch.session, branch, "worktree made");
    }
    let record = ExecutorRecord {
        session: launch.session.clone(),
        execution: instance.clone(),
        server: server.identity.clone(),
        address: server.address.to_string(),
        task: launch.task.clone(),
        workspace: launch.plan.directory.clone(),
        profile: launch.profile_name.clone(),
        agent: None,
        live: true,
    };
    backend.store.begin_execution(record, backend.wall_ms()).await?;
    info!(session = %launch.session, %instance, "executor record written");
    let run = backend.fresh_id("r");
    let request = CreateInstance {
        instance: instance.clone(),
        session: launch.session.clone(),
        command: launch.profile.command.clone(),
        args: launch.profile.args.clone(),
        env: backend.agent_environment(&launch.profile.env, &launch.session, &launch.task, &run),
        directory: launch.plan.directory.clone(),
        source_roots: vec![launch.plan.directory.clone()],
        mode: launch.profile.mode.clone(),
        resume: launch.resume.clone(),
    };
    // Asked again under the same id: that creates one instance, however often it arrives.
    crate::backend::answered(CREATE_RETRIES, || server.client.create_instance(&request))
        .await
        .map_err(LaunchFailed::Create)
}

/// The instance exists: it is followed from here on, also while its agent is still being initialized.
async fn publish(backend: &Arc<Backend>, server: &ServerInUse, session: &SessionId, status: InstanceStatus) {
    let instance = status.instance;
    let Some(execution) = backend.publish(session, instance.clone(), &server.identity) else {
        return not_gone(backend, server, session, instance).await;
    };
    info!(%session, %instance, pid = status.agent.as_ref().map(|agent| agent.pid), "session execution created");
    tokio::spawn(stream::follow(Arc::clone(backend), session.clone(), execution.clone(), Vec::new()));
    readiness::await_ready(Arc::clone(backend), session.clone(), execution).await;
}

/// The real `git worktree add`, with a branch of its own.
async fn make_worktree(
    backend: &Backend,
    repository: &str,
    branch: &str,
    directory: &str,
) -> Result<(), String> {
    let mut env = backend.seams.host.environment();
    // Git's own variables would point it at another repository than the one that was named.
    env.retain(|name, _| !name.starts_with("GIT_") && !name.starts_with("KANDEV_"));
    env.insert("GIT_TERMINAL_PROMPT".to_owned(), "0".to_owned());
    let args = ["-C", repository, "worktree", "add", "-b", branch, directory];
    let request = SpawnRequest {
        program: "git".to_owned(),
        args: args.map(str::to_owned).to_vec(),
        env,
        directory: Some(backend.config.home.path().to_owned()),
        stdio: Stdio::Piped,
    };
    let mut child = backend.seams.processes.spawn(request).await.map_err(|error| format!("git: {error}"))?;
    drop(child.stdin.take());
    let drained = tokio::spawn(last_words(child.stdout.take()));
    let said = tokio::spawn(last_words(child.stderr.take()));
    let clock = &*backend.seams.clock;
    let status = within(clock, GIT_LIMIT, child.exit.wait()).await;
    // Its end is that of the process: a hook may have left a child behind that holds the pipes.
    let said = within(clock, GIT_LAST_WORDS, said).await;
    let said = said.ok().and_then(Result::ok).unwrap_or_default();
    drained.abort();
    match status {
        Ok(Ok(ExitStatus::Code(0))) => Ok(()),
        Ok(Ok(status)) => Err(format!("git worktree add ended with {status}: {said}")),
        Ok(Err(error)) => Err(format!("git worktree add: {error}")),
        Err(_) => {
            let target = seam::Target::Group(child.identity.clone());
            let _gone = backend.seams.processes.signal(target, seam::Signal::Kill).await;
            Err(format!("git worktree add did not end within {GIT_LIMIT:?}"))
        }
    }
}

/// What a program said, as far as it can be of use; all of it is read, so that it is never held up.
async fn last_words(output: Option<ChildOutput>) -> String {
    let mut said = Vec::new();
    if let Some(output) = output {
        let mut output = output.take(GIT_OUTPUT_LIMIT);
        // What could not be read is missing from the message only.
        let _partial = output.read_to_end(&mut said).await;
        let _rest = tokio::io::copy(output.get_mut(), &mut tokio::io::sink()).await;
    }
    String::from_utf8_lossy(&said).trim().to_owned()
}

/// Starting an agent is the slowest request; a lost answer is asked for again this often.
const CREATE_RETRIES: u32 = 3;

/// Checking out a very large repository on a slow disk; a hung git must not hold its session for ever.
const GIT_LIMIT: Duration = Duration::from_secs(300);

/// How long what it wrote may take after its end.
const GIT_LAST_WORDS: Duration = Duration::from_millis(300);

/// A full disk often has room again within moments; until then the user is shown what is wrong.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What of git's words can be of use to people.
const GIT_OUTPUT_LIMIT: u64 = 64 * 1024;
