//! Lives that are processes of this machine, each under a shim of its own.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use xy_protocol::server::Transport;
use xy_shim::wire::{self, LogOrder, Order, StartOrder};

use super::driver::{Below, Driver};
use super::fault::is_transient;
use super::orphans::Shims;
use super::shim_link::ShimLink;
use super::{Instance, Launch, LaunchOrder, News, millis};
use crate::lifecycle::LaunchFault;
use crate::locks::lock_file;
use crate::logs::{FILE_BYTES, FILE_GENERATIONS, log_file};

/// The program that becomes a shim.
#[derive(Debug, Clone)]
pub struct ShimProgram {
    /// The file.
    pub path: PathBuf,
    /// What makes it a shim.
    pub args: Vec<OsString>,
}

impl ShimProgram {
    /// This very binary, also after another one has taken its place on disk.
    pub fn this_binary() -> io::Result<Self> {
        let running = Path::new("/proc/self/exe");
        let path = if running.exists() { running.to_owned() } else { std::env::current_exe()? };
        Ok(Self { path, args: vec!["shim".into()] })
    }
}

/// Starts processes.
#[derive(Debug)]
pub struct ProcessLauncher {
    shim: ShimProgram,
    logs_dir: PathBuf,
    locks_dir: PathBuf,
    open_files: Option<u64>,
    shims: Shims,
    lives: AtomicU64,
}

impl ProcessLauncher {
    /// Starts them through `shim`, their logs in `logs_dir`, the locks that keep each from
    /// being there twice in `locks_dir`; each may have `open_files`.
    pub fn new(
        shim: ShimProgram,
        logs_dir: PathBuf,
        locks_dir: PathBuf,
        open_files: Option<u64>,
    ) -> Self {
        let (shims, lives) = (Shims::default(), AtomicU64::new(0));
        Self { shim, logs_dir, locks_dir, open_files, shims, lives }
    }

    /// What tells the processes of one life from all others.
    fn new_mark(&self) -> String {
        let life = self.lives.fetch_add(1, Ordering::Relaxed);
        format!("XY_INSTANCE={}-{life}", std::process::id())
    }

    fn spawn_shim(&self, server: &str) -> io::Result<(Child, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let theirs = OwnedFd::from(theirs.into_std()?);
        let mut command = Command::new(&self.shim.path);
        command.arg0("xy").args(&self.shim.args).arg(server);
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::inherit());
        Ok((self.shims.spawn(&mut command)?, ours))
    }

    fn start_order(&self, order: &LaunchOrder, mark: &str) -> StartOrder {
        let process = &order.settings.process;
        let mut env: Vec<_> =
            process.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        env.push(("XY_SERVER".into(), order.key.server.to_string()));
        env.extend(mark.split_once('=').map(|(name, value)| (name.into(), value.into())));
        StartOrder {
            protocol: wire::PROTOCOL,
            program: process.command.clone(),
            args: process.args.clone(),
            env,
            working_dir: process.working_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned()),
            stdout: match process.transport {
                Transport::Stdio => wire::Stdout::Passed,
                Transport::Http | Transport::Sse => wire::Stdout::Logged,
            },
            log: LogOrder {
                file: log_file(&self.logs_dir, &order.key.server).to_string_lossy().into_owned(),
                max_bytes: FILE_BYTES,
                generations: FILE_GENERATIONS,
                next_seq: order.logs.next_seq(),
            },
            grace_ms: millis(order.settings.rules.stop.grace),
            open_files: process.limits.nofile.or(self.open_files),
            lock: Some(lock_file(&self.locks_dir, &order.key).to_string_lossy().into_owned()),
        }
    }
}

impl Launch for ProcessLauncher {
    fn launch(&self, order: LaunchOrder) -> Instance {
        let (instance, ends) = Instance::pair();
        let mut first = Vec::new();
        let mark = self.new_mark();
        let start = Order::Start(Box::new(self.start_order(&order, &mark)));
        if wire::put_order(&mut first, &start).is_err() {
            let message = "its arguments and environment are too large".to_owned();
            let hint = Some(format!("shorten them in {}", order.settings.source.file.display()));
            let fault = LaunchFault { permanent: true, message, hint };
            // The channel is new and has room.
            let _ = ends.news.try_send(News::LaunchFailed(fault));
            return instance;
        }
        match self.spawn_shim(order.key.server.as_str()) {
            Ok((shim, stream)) => {
                let link = ShimLink::new(stream, first);
                let below = Below { shims: self.shims.clone(), mark };
                tokio::spawn(Driver::new(order, shim, link, below, ends).run());
            }
            Err(error) => {
                let message = format!("its shim could not be started: {error}");
                let permanent = !is_transient(error.raw_os_error());
                let fault = LaunchFault { permanent, message, hint: None };
                // The channel is new and has room.
                let _ = ends.news.try_send(News::LaunchFailed(fault));
            }
        }
        instance
    }
}
