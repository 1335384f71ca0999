//! The launcher of servers that are processes of this machine, each under its own shim.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tracing::Instrument;
use xy_config::settings::ProcessSettings;
use xy_protocol::server::Transport;
use xy_shim::env_mark::MARK;
use xy_shim::wire::{self, EnforcedBy, LogOrder, Order, OrphanPolicy, StartOrder, StatusReport};

use super::fault::is_transient;
use super::home::home_id;
use super::limits;
use super::orphans::{self, Shims};
use super::process_runner::{OrphanCleanup, ProcessRunner};
use super::shim_link::ShimLink;
use super::shim_process::ShimProcess;
use super::{Launch, LaunchOrder, LifeEvent, LifeHandle};
use crate::lifecycle::LaunchFault;
use crate::locks::{self, lock_file};
use crate::logs::{FILE_BYTES, FILE_GENERATIONS, instance_log};
use crate::protocol::ProtocolDriver;
use crate::wait::millis;

/// The program that becomes a shim.
#[derive(Debug, Clone)]
pub struct ShimProgram {
    /// Path of the executable.
    pub path: PathBuf,
    /// Arguments that make it a shim.
    pub args: Vec<OsString>,
}

impl ShimProgram {
    /// Returns this executable, even after another has replaced it on disk.
    pub fn this_binary() -> io::Result<Self> {
        let running = Path::new("/proc/self/exe");
        let path = if running.exists() { running.to_owned() } else { std::env::current_exe()? };
        Ok(Self { path, args: vec!["shim".into()] })
    }
}

/// Starts processes.
pub struct ProcessLauncher {
    shim: ShimProgram,
    logs_dir: PathBuf,
    locks_dir: PathBuf,
    open_files: Option<u64>,
    memory_enforced_by: EnforcedBy,
    shims: Shims,
    /// Id of this home; part of the mark of all its processes.
    home: String,
    driver: Arc<dyn ProtocolDriver>,
}

impl fmt::Debug for ProcessLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessLauncher")
            .field("locks_dir", &self.locks_dir)
            .finish_non_exhaustive()
    }
}

impl ProcessLauncher {
    /// Creates a launcher that starts servers through `shim`.
    ///
    /// Their logs are in `logs_dir`; the locks in `locks_dir` keep an instance from running twice.
    /// Each server may have `open_files` descriptors. `driver` speaks their protocol.
    pub fn new(
        shim: ShimProgram,
        logs_dir: PathBuf,
        locks_dir: PathBuf,
        open_files: Option<u64>,
        driver: Arc<dyn ProtocolDriver>,
    ) -> Self {
        let home = home_id(&locks_dir);
        let shims = Shims::new(&home);
        let memory_enforced_by = limits::memory_enforced_by();
        Self { shim, logs_dir, locks_dir, open_files, memory_enforced_by, shims, home, driver }
    }

    pub(super) fn logs_dir(&self) -> &Path {
        &self.logs_dir
    }

    pub(super) fn locks_dir(&self) -> &Path {
        &self.locks_dir
    }

    /// Returns the executable that becomes a shim or a stream holder.
    pub fn program(&self) -> &Path {
        &self.shim.path
    }

    /// Returns the child processes of this daemon.
    pub fn shims(&self) -> &Shims {
        &self.shims
    }

    /// Returns a new id that distinguishes the processes of one life from all others.
    fn new_life(&self) -> String {
        orphans::new_life(&self.home)
    }

    /// Returns the socket of the shim of a life. The name is short, as socket paths are limited.
    fn socket(&self, life: &str) -> PathBuf {
        let name = life.rsplit('-').next().unwrap_or(life);
        self.locks_dir.join(format!("{name}.sock"))
    }

    pub(super) fn home(&self) -> &str {
        &self.home
    }

    fn spawn_shim(&self, server: &str, lock: Option<File>) -> io::Result<(Child, UnixStream)> {
        let (daemon_end, shim_end) = UnixStream::pair()?;
        let shim_end = OwnedFd::from(shim_end.into_std()?);
        let mut command = Command::new(&self.shim.path);
        command.arg0("xy").args(&self.shim.args).arg(server).env_remove(MARK);
        command.stdin(Stdio::from(shim_end)).stdout(lock.map_or_else(Stdio::null, Stdio::from));
        command.stderr(Stdio::inherit());
        Ok((self.shims.spawn(&mut command)?, daemon_end))
    }

    /// Runs a life that an earlier daemon started.
    pub(super) fn drive_adopted(
        &self,
        order: LaunchOrder,
        (shim, link): (ShimProcess, ShimLink),
        status: &StatusReport,
        life: String,
        driver_note: String,
    ) -> LifeHandle {
        let (handle, ends) = LifeHandle::pair();
        let (cleanup, driver) = (self.cleanup(life), self.driver.clone());
        let runner = ProcessRunner::new(order, shim, link, cleanup, driver, ends);
        tokio::spawn(runner.run_adopted(status.clone(), driver_note).in_current_span());
        handle
    }

    fn cleanup(&self, life: String) -> OrphanCleanup {
        OrphanCleanup { shims: self.shims.clone(), socket: self.socket(&life), life }
    }

    fn start_order(
        &self,
        process: &ProcessSettings,
        order: &LaunchOrder,
        life: &str,
        is_locked: bool,
    ) -> StartOrder {
        let mut env: Vec<_> =
            process.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        env.push(("XY_SERVER".into(), order.key.server.to_string()));
        env.push((MARK.into(), life.into()));
        let rules = &order.settings.rules;
        let is_stdio = process.transport == Transport::Stdio;
        StartOrder {
            protocol: wire::PROTOCOL,
            program: process.command.clone(),
            args: process.args.clone(),
            env,
            working_dir: process.working_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned()),
            // Output that is only logged goes straight to the shim, so that a killed daemon loses
            // none.
            stdout: if is_stdio { wire::Stdout::Passed } else { wire::Stdout::Logged },
            has_stdin: is_stdio,
            log: LogOrder {
                file: instance_log(&self.logs_dir, &order.key).to_string_lossy().into_owned(),
                max_bytes: FILE_BYTES,
                generations: FILE_GENERATIONS,
                next_seq: order.logs.next_seq(),
            },
            gone: OrphanPolicy {
                orphan_ms: millis(rules.orphan_timeout),
                grace_ms: millis(rules.stop.grace),
            },
            open_files: self.open_files,
            life: life.to_owned(),
            socket: is_locked.then(|| self.socket(life).to_string_lossy().into_owned()),
            note: String::from_utf8_lossy(&order.note).into_owned(),
            limits: limits::order(process.limits, self.memory_enforced_by),
        }
    }

    /// Takes the lock of an instance. Returns `None` if the lock file cannot be created, such as on
    /// a full disk.
    fn lock(&self, order: &LaunchOrder) -> Result<Option<File>, LaunchFault> {
        match locks::take(&lock_file(&self.locks_dir, &order.key)) {
            Ok(Some(lock)) => Ok(Some(lock)),
            Ok(None) => Err(LaunchFault {
                permanent: false,
                message: "another instance of it is still ending".to_owned(),
                hint: Some("wait a moment".into()),
            }),
            Err(error) => {
                tracing::warn!(server = %order.key, %error, "no lock: it ends with this daemon");
                Ok(None)
            }
        }
    }

    /// Starts a shim, or explains to the user why it could not.
    fn start(&self, order: &LaunchOrder, life: &str) -> Result<(Child, ShimLink), LaunchFault> {
        let process = order.settings.process().ok_or_else(|| LaunchFault {
            permanent: true,
            message: "there is no program to start".to_owned(),
            hint: None,
        })?;
        let lock = self.lock(order)?;
        let mut first = Vec::new();
        let start = self.start_order(process, order, life, lock.is_some());
        let start = Order::Start(Box::new(start));
        wire::put_order(&mut first, &start).map_err(|_| LaunchFault {
            permanent: true,
            message: "its arguments and environment are too large".to_owned(),
            hint: Some(format!("shorten them in {}", order.settings.source.file.display())),
        })?;
        let spawned = self.spawn_shim(order.key.server.as_str(), lock);
        let (shim, stream) = spawned.map_err(|error| LaunchFault {
            permanent: !is_transient(error.raw_os_error()),
            message: format!("its shim could not be started: {error}"),
            hint: None,
        })?;
        Ok((shim, ShimLink::new(stream, first)))
    }
}

impl Launch for ProcessLauncher {
    fn launch(&self, order: LaunchOrder) -> LifeHandle {
        let (handle, ends) = LifeHandle::pair();
        let life = self.new_life();
        match self.start(&order, &life) {
            Ok((shim, link)) => {
                let cleanup = self.cleanup(life);
                let (shim, driver) = (ShimProcess::Child(shim), self.driver.clone());
                let runner = ProcessRunner::new(order, shim, link, cleanup, driver, ends);
                tokio::spawn(runner.run().in_current_span());
            }
            Err(fault) => {
                // The channel is new and has room.
                let _ = ends.events.try_send(LifeEvent::LaunchFailed(fault));
            }
        }
        handle
    }
}
