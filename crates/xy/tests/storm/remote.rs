//! A remote server, from xy's point of view: the test starts it, and restarts it after a kill.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::pause;

/// Maximum number of connection attempts, `A_WHILE` apart.
const MAX_ATTEMPTS: usize = 1000;
const A_WHILE: Duration = Duration::from_millis(10);

/// The server. Its process ends with this value.
pub(crate) struct RemoteServer {
    program: PathBuf,
    args: Vec<String>,
    port: u16,
    process: Mutex<Child>,
}

impl RemoteServer {
    /// Starts the server on this port of the loopback.
    #[track_caller]
    pub(crate) fn start(program: PathBuf, args: Vec<String>, port: u16) -> Self {
        let process = Mutex::new(begin(&program, &args));
        let remote = Self { program, args, port, process };
        remote.wait_until_reachable();
        remote
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process().id()
    }

    /// Kills the server at any moment, and starts the next one after a while.
    #[track_caller]
    pub(crate) fn kill(&self, away: Duration) {
        let mut process = self.process();
        process.kill().expect("it is a child of this test");
        process.wait().expect("it is a child of this test");
        pause(away);
        *process = begin(&self.program, &self.args);
    }

    #[track_caller]
    fn wait_until_reachable(&self) {
        let is_there = |_: &usize| {
            let is_there = TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            if !is_there {
                pause(A_WHILE);
            }
            is_there
        };
        (0..MAX_ATTEMPTS).find(is_there).expect("it listens");
    }

    fn process(&self) -> MutexGuard<'_, Child> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RemoteServer {
    fn drop(&mut self) {
        let mut process = self.process();
        let _ = process.kill(); // The process may have ended.
        let _ = process.wait();
    }
}

#[track_caller]
fn begin(program: &PathBuf, args: &[String]) -> Child {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it can be started")
}
