//! Handler of `add`: starts a server that no file configures, and answers once it has settled.
//!
//! A failed add leaves nothing behind: the server is registered only once it runs.

use std::sync::Arc;

use xy_config::settings::ServerSettings;
use xy_config::write::NewServer;
use xy_config::{FileText, LoadedConfig};
use xy_protocol::control::{Add, AddResult};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{ServerName, ServerState};
use xy_supervisor::fleet::{AddError, EstablishError};
use xy_supervisor::instance::{InstanceHandle, Snapshot};
use xy_supervisor::lifecycle::{Reason, State};

use super::settle::{SettledServer, did_not_start};
use crate::check::{problems_of, refusal};
use crate::daemon::{Daemon, Phase};
use crate::{last_good, limits, server_file};

const DEFAULT_GRACE: &str = "5s";

pub(super) async fn handle(daemon: &Arc<Daemon>, params: Add) -> Result<AddResult, CallError> {
    let daemon = daemon.clone();
    // The add is completed, or undone, even if the requester leaves.
    tokio::spawn(async move { AddRequest::new(&daemon, params)?.run().await }).await.map_err(
        |cause| CallError::new(ErrorKind::Internal, "the server was not added").cause(cause),
    )?
}

/// Returns the settings that a file of this server would hold. A server with a program speaks over
/// stdin and stdout, whatever `defaults` say. A remote server is neither restarted nor stopped.
fn new_server(params: Add) -> NewServer {
    let is_process = params.url.is_none();
    let default = |word: &str| is_process.then(|| word.to_owned());
    NewServer {
        transport: params.transport.or_else(|| default("stdio")),
        policy: params.restart_policy,
        grace: params.grace.or_else(|| default(DEFAULT_GRACE)),
        ready_within: params.ready_within,
        command: params.command,
        args: params.args,
        url: params.url,
        headers: params.headers,
        env: params.env,
        working_dir: params.cwd,
    }
}

/// A request to add a server.
struct AddRequest<'a> {
    daemon: &'a Daemon,
    name: ServerName,
    /// The text of its file, which is written only if `persist` is set.
    text: FileText,
    persist: bool,
}

impl<'a> AddRequest<'a> {
    fn new(daemon: &'a Daemon, params: Add) -> Result<Self, CallError> {
        let name = ServerName::new(&params.name)
            .map_err(|why| CallError::invalid_params(why.to_string()))?;
        // xy's own tools bypass the control socket, which checks params.
        let params = params.checked()?;
        let path = daemon.paths.servers_dir.join(format!("{name}.kdl"));
        let persist = params.persist;
        // Reports must not name a file that does not exist.
        let shown = if persist { daemon.paths.shown(&path) } else { format!("added {name}") };
        let text = FileText { path, shown, text: new_server(params).to_kdl() };
        Ok(Self { daemon, name, text, persist })
    }

    async fn run(self) -> Result<AddResult, CallError> {
        let reservation = self.daemon.reserve_name(&self.name);
        let _reservation = reservation.ok_or_else(|| self.add_error(&AddError::Exists))?;
        self.check_is_new()?;
        let loaded = self.check().await?;
        if let Some(why) = loaded.self_references.get(&self.name) {
            return Err(self.itself_error(why));
        }
        let Some(settings) = loaded.settings.servers.get(&self.name).filter(|_| loaded.is_valid())
        else {
            return Err(refusal(&loaded, &self.not_added()).hint("fix the problem above and retry"));
        };
        let mut settings = ServerSettings::clone(settings);
        settings.source.added = true;
        settings.source.file.clone_from(&self.daemon.paths.runtime_servers_file);
        let settings = Arc::new(settings);
        let instance =
            self.daemon.add(settings.clone()).await.map_err(|why| self.add_error(&why))?;
        if let Err(error) = self.settle(instance.as_ref(), settings).await {
            self.undo().await;
            return Err(error);
        }
        let now = instance.map(|instance| instance.now());
        Ok(AddResult {
            name: self.name.clone(),
            state: now.as_ref().map_or(ServerState::Stopped, Snapshot::state),
            pid: now.and_then(|now| now.pid),
            problems: problems_of(&loaded),
        })
    }

    fn not_added(&self) -> String {
        format!("server `{}` was not added", self.name)
    }

    fn check_is_new(&self) -> Result<(), CallError> {
        if self.daemon.fleet.roster().contains_key(&self.name) {
            return Err(self.add_error(&AddError::Exists));
        }
        if self.persist && self.text.path.symlink_metadata().is_ok() {
            return Err(self.file_exists_error());
        }
        if let Some((name, bad)) = self.daemon.bad_file(self.name.as_str()) {
            let message = self.not_added();
            let kind = ErrorKind::AlreadyRunning;
            return Err(CallError { kind, message, ..bad.refusal(&name) });
        }
        Ok(())
    }

    /// Checks the settings on a blocking thread, as if they were in a file.
    async fn check(&self) -> Result<LoadedConfig, CallError> {
        let (paths, text) = (self.daemon.paths.clone(), self.text.clone());
        let check = move || {
            let last_good = last_good::read_only(&paths.last_good_file);
            xy_config::check_new(&paths, &limits::supported(), &text, &last_good)
        };
        tokio::task::spawn_blocking(check).await.map_err(|cause| self.internal(&cause))
    }

    /// Waits until the server runs, then registers it permanently.
    async fn settle(
        &self,
        instance: Option<&InstanceHandle>,
        settings: Arc<ServerSettings>,
    ) -> Result<(), CallError> {
        if let Some(instance) = instance {
            let settled = SettledServer::of(instance).await;
            self.daemon.check_not_handed_over()?;
            if settled.after.state() != ServerState::Running {
                return Err(self.did_not_run(&settled));
            }
        }
        if self.persist {
            return self.write_file(settings).await;
        }
        self.daemon.fleet.establish(settings).await.map_err(|why| self.establish_error(&why))
    }

    /// Writes the server's file, which determines its settings from now on.
    async fn write_file(&self, settings: Arc<ServerSettings>) -> Result<(), CallError> {
        // A reload must not read a partial file.
        let config_lock = self.daemon.lock_configuration().await?;
        let file = self.text.clone();
        let writing = tokio::task::spawn_blocking(move || server_file::create(&file)).await;
        match writing.map_err(|cause| self.internal(&cause))? {
            Ok(()) => {}
            Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(self.file_exists_error());
            }
            Err(cause) => {
                return Err(self.internal(&format!("`{}`: {cause}", self.text.path.display())));
            }
        }
        let mut settings = ServerSettings::clone(&settings);
        settings.source.added = false;
        settings.source.file.clone_from(&self.text.path);
        let established = self.daemon.fleet.establish(Arc::new(settings)).await;
        if established.is_err() {
            let _ = std::fs::remove_file(&self.text.path); // Just written above, and useless now.
        }
        drop(config_lock);
        established.map_err(|why| self.establish_error(&why))
    }

    /// Removes the server again, as if it had never been added.
    async fn undo(&self) {
        let Ok(config_lock) = self.daemon.lock_configuration().await else { return };
        let roster = self.daemon.fleet.roster();
        if !roster.get(&self.name).is_some_and(|it| it.settings.source.added) {
            return; // A file configures it meanwhile.
        }
        let Ok(Some(removed)) = self.daemon.fleet.remove(&self.name).await else { return };
        drop(config_lock);
        for instance in removed.leaving {
            instance.wait_until(|it| it.life.state == State::Retired).await;
        }
    }

    fn did_not_run(&self, settled: &SettledServer) -> CallError {
        let is_ending = *self.daemon.phase.borrow() != Phase::Serving;
        if settled.after.life.state == State::Retired && !is_ending {
            return CallError::new(ErrorKind::NotRunning, self.not_added())
                .cause("it was removed while it was starting");
        }
        let error = did_not_start(settled);
        let hint = match settled.after.life.reason {
            // xy's own tools have no flags, so the hint names the command line and the file.
            Reason::NeverReady { unparsed_output: None, .. } => format!(
                "if it downloads packages at its first start, give it more time: \
                 `xy add {} --ready-within 2m …` in a shell, or `ready {{ within \"2m\" }}` in a \
                 file; otherwise fix the problem above and retry",
                self.name
            ),
            ref reason @ Reason::NeverReady { .. } => reason.hint().unwrap_or_default().to_owned(),
            _ => "fix the problem above and retry".to_owned(),
        };
        CallError { message: self.not_added(), ..error }.hint(hint)
    }

    fn add_error(&self, why: &AddError) -> CallError {
        let (kind, hint) = match why {
            AddError::Exists => {
                let roster = self.daemon.fleet.roster();
                let has_file = roster.get(&self.name).is_some_and(|it| !it.settings.source.added);
                let persist = if has_file { " --persist" } else { "" };
                let name = &self.name;
                let hint =
                    format!("choose another name, or remove it first: `xy remove {name}{persist}`");
                (ErrorKind::AlreadyRunning, hint)
            }
            AddError::PortTaken { .. } => {
                (ErrorKind::PortConflict, "give one of them another port".to_owned())
            }
            AddError::Full => (ErrorKind::NotAllowed, "remove unused servers".to_owned()),
            AddError::Closed => {
                (ErrorKind::NotAllowed, "start it again with `xy daemon`".to_owned())
            }
        };
        CallError::new(kind, self.not_added()).cause(why).hint(hint)
    }

    /// Returns the error for a server that is xy itself, which would serve its own tools endlessly.
    fn itself_error(&self, why: &str) -> CallError {
        CallError::new(ErrorKind::NotAllowed, self.not_added())
            .cause(why)
            .hint("xy would serve itself endlessly: add other servers, or another daemon")
    }

    fn file_exists_error(&self) -> CallError {
        CallError::new(ErrorKind::AlreadyRunning, self.not_added())
            .cause(format!("the file `{}` exists", self.text.shown))
            .hint("`xy reload` starts the server that it configures; the file is never overwritten")
    }

    fn establish_error(&self, why: &EstablishError) -> CallError {
        CallError::new(ErrorKind::Internal, self.not_added()).cause(why)
    }

    fn internal(&self, cause: &dyn std::fmt::Display) -> CallError {
        CallError::new(ErrorKind::Internal, self.not_added()).cause(cause)
    }
}
