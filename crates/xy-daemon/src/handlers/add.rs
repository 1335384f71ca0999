//! `add`: begin a server that no file configures, answer once it has settled.
//!
//! An add that fails leaves nothing behind: the server is registered only when it runs.

use std::sync::Arc;

use xy_config::settings::ServerSettings;
use xy_config::write::NewServer;
use xy_config::{FileText, Loaded};
use xy_protocol::control::{Add, Added};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{ServerName, ServerState};
use xy_supervisor::fleet::{AddError, EstablishError};
use xy_supervisor::instance::{InstanceHandle, Snapshot};
use xy_supervisor::lifecycle::{Reason, State};

use super::asks::{Settled, did_not_start};
use crate::check::{problems_of, refusal};
use crate::daemon::{Daemon, Ending};
use crate::{last_good, limits, server_file};

const GRACE: &str = "5s";

pub(super) async fn handle(daemon: &Arc<Daemon>, ask: Add) -> Result<Added, CallError> {
    let daemon = daemon.clone();
    // What has begun is finished, or undone, also if the asker leaves.
    tokio::spawn(async move { Adding::new(&daemon, ask)?.run().await })
        .await
        .map_err(|cause| CallError::new(ErrorKind::Internal, "it was not added").cause(cause))?
}

/// What its file would say. One with a program speaks over stdin and stdout, whatever
/// `defaults` say; of one that lives somewhere else there is nothing to restart or to end.
fn new_server(ask: Add) -> NewServer {
    let is_process = ask.url.is_none();
    let usual = |word: &str| is_process.then(|| word.to_owned());
    NewServer {
        transport: ask.transport.or_else(|| usual("stdio")),
        policy: ask.restart_policy,
        grace: ask.grace.or_else(|| usual(GRACE)),
        ready_within: ask.ready_within,
        command: ask.command,
        args: ask.args,
        url: ask.url,
        headers: ask.headers,
        env: ask.env,
        working_dir: ask.cwd,
    }
}

/// A server that is being added.
struct Adding<'a> {
    daemon: &'a Daemon,
    name: ServerName,
    /// Its file, if it shall have one.
    text: FileText,
    persist: bool,
}

impl<'a> Adding<'a> {
    fn new(daemon: &'a Daemon, ask: Add) -> Result<Self, CallError> {
        let name =
            ServerName::new(&ask.name).map_err(|why| CallError::invalid_params(why.to_string()))?;
        let ask = ask.checked()?; // xy's own tools ask without the wire.
        let path = daemon.paths.servers_dir.join(format!("{name}.kdl"));
        let persist = ask.persist;
        // Reports must not name a file that there is not.
        let shown = if persist { daemon.paths.shown(&path) } else { format!("added {name}") };
        let text = FileText { path, shown, text: new_server(ask).to_kdl() };
        Ok(Self { daemon, name, text, persist })
    }

    async fn run(self) -> Result<Added, CallError> {
        let underway = self.daemon.begin_adding(&self.name);
        let _underway = underway.ok_or_else(|| self.refused(&AddError::Exists))?;
        self.check_is_new()?;
        let loaded = self.check().await?;
        if let Some(why) = loaded.itself.get(&self.name) {
            return Err(self.is_itself(why));
        }
        let Some(settings) = loaded.settings.servers.get(&self.name).filter(|_| loaded.is_valid())
        else {
            return Err(refusal(&loaded, &self.not_added()).hint("correct it, and add it again"));
        };
        let mut settings = ServerSettings::clone(settings);
        settings.source.added = true;
        settings.source.file.clone_from(&self.daemon.paths.added_file);
        let settings = Arc::new(settings);
        let instance = self.daemon.add(settings.clone()).await.map_err(|why| self.refused(&why))?;
        if let Err(error) = self.settle(instance.as_ref(), settings).await {
            self.undo().await;
            return Err(error);
        }
        let now = instance.map(|instance| instance.now());
        Ok(Added {
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
            return Err(self.refused(&AddError::Exists));
        }
        if self.persist && self.text.path.symlink_metadata().is_ok() {
            return Err(self.has_file());
        }
        if let Some((name, bad)) = self.daemon.bad_file(self.name.as_str()) {
            let message = self.not_added();
            let kind = ErrorKind::AlreadyRunning;
            return Err(CallError { kind, message, ..bad.refusal(&name) });
        }
        Ok(())
    }

    /// Judges it as if it had a file, away from everything that has to stay quick.
    async fn check(&self) -> Result<Loaded, CallError> {
        let (paths, text) = (self.daemon.paths.clone(), self.text.clone());
        let check = move || {
            let last_good = last_good::look(&paths.last_good_file);
            xy_config::check_new(&paths, &limits::kept(), &text, &last_good)
        };
        tokio::task::spawn_blocking(check).await.map_err(|cause| self.internal(&cause))
    }

    /// Waits until it runs, and has it stay.
    async fn settle(
        &self,
        instance: Option<&InstanceHandle>,
        settings: Arc<ServerSettings>,
    ) -> Result<(), CallError> {
        if let Some(instance) = instance {
            let settled = Settled::of(instance).await;
            self.daemon.check_not_handed_over()?;
            if settled.after.state() != ServerState::Running {
                return Err(self.did_not_run(&settled));
            }
        }
        if self.persist {
            return self.write_file(settings).await;
        }
        self.daemon.fleet.establish(settings).await.map_err(|why| self.not_kept(&why))
    }

    /// Gives it a file, which from now on decides.
    async fn write_file(&self, settings: Arc<ServerSettings>) -> Result<(), CallError> {
        let turn = self.daemon.turn().await?; // Nobody reads half of it.
        let file = self.text.clone();
        let writing = tokio::task::spawn_blocking(move || server_file::create(&file)).await;
        match writing.map_err(|cause| self.internal(&cause))? {
            Ok(()) => {}
            Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(self.has_file());
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
            let _ = std::fs::remove_file(&self.text.path); // It is ours, and of no use.
        }
        drop(turn);
        established.map_err(|why| self.not_kept(&why))
    }

    /// As if it had never been asked for.
    async fn undo(&self) {
        let Ok(turn) = self.daemon.turn().await else { return };
        let roster = self.daemon.fleet.roster();
        if !roster.get(&self.name).is_some_and(|it| it.settings.source.added) {
            return; // It has got a file meanwhile, which decides.
        }
        let Ok(Some(removed)) = self.daemon.fleet.remove(&self.name).await else { return };
        drop(turn);
        for instance in removed.leaving {
            instance.wait_until(|it| it.life.state == State::Retired).await;
        }
    }

    fn did_not_run(&self, settled: &Settled) -> CallError {
        let is_ending = *self.daemon.ending.borrow() != Ending::No;
        if settled.after.life.state == State::Retired && !is_ending {
            return CallError::new(ErrorKind::NotRunning, self.not_added())
                .cause("it was removed while it was starting");
        }
        let error = did_not_start(settled);
        let hint = match settled.after.life.reason {
            // Whoever reads it may have no flags: xy's own tools have none.
            Reason::NeverReady { stray: None, .. } => format!(
                "what is fetched at the first start takes longer: `xy add {} --ready-within 2m …` \
                 in a shell gives it more time, or `ready {{ within \"2m\" }}` in a file; or \
                 fix the problem above",
                self.name
            ),
            ref reason @ Reason::NeverReady { .. } => reason.hint().unwrap_or_default().to_owned(),
            _ => "fix the problem above and retry".to_owned(),
        };
        CallError { message: self.not_added(), ..error }.hint(hint)
    }

    fn refused(&self, why: &AddError) -> CallError {
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
            AddError::Full => (ErrorKind::NotAllowed, "remove some that nobody uses".to_owned()),
            AddError::Closed => {
                (ErrorKind::NotAllowed, "start it again with `xy daemon`".to_owned())
            }
        };
        CallError::new(kind, self.not_added()).cause(why).hint(hint)
    }

    /// xy would serve its own tools without end.
    fn is_itself(&self, why: &str) -> CallError {
        CallError::new(ErrorKind::NotAllowed, self.not_added())
            .cause(why)
            .hint("xy would serve itself without end: add the servers you want, or another daemon")
    }

    fn has_file(&self) -> CallError {
        CallError::new(ErrorKind::AlreadyRunning, self.not_added())
            .cause(format!("there is a file `{}`", self.text.shown))
            .hint("`xy reload` starts what it describes; it is never overwritten")
    }

    fn not_kept(&self, why: &EstablishError) -> CallError {
        CallError::new(ErrorKind::Internal, self.not_added()).cause(why)
    }

    fn internal(&self, cause: &dyn std::fmt::Display) -> CallError {
        CallError::new(ErrorKind::Internal, self.not_added()).cause(cause)
    }
}
