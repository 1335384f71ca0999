//! A server that runs somewhere else, as far as xy knows: whoever tests starts it, and another in
//! its place when it was killed.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::pause;

/// Tries to reach it, until it must be there; a while apart.
const TRIES: usize = 1000;
const A_WHILE: Duration = Duration::from_millis(10);

/// The server; its process ends with it.
pub(crate) struct Far {
    program: PathBuf,
    args: Vec<String>,
    port: u16,
    process: Mutex<Child>,
}

impl Far {
    /// Starts it on this port of the loopback.
    #[track_caller]
    pub(crate) fn start(program: PathBuf, args: Vec<String>, port: u16) -> Self {
        let process = Mutex::new(begin(&program, &args));
        let far = Self { program, args, port, process };
        far.until_reached();
        far
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process().id()
    }

    /// Kills it in the middle of whatever it does, and starts another after a while.
    #[track_caller]
    pub(crate) fn kill(&self, away: Duration) {
        let mut process = self.process();
        process.kill().expect("it is ours");
        process.wait().expect("it is ours");
        pause(away);
        *process = begin(&self.program, &self.args);
    }

    #[track_caller]
    fn until_reached(&self) {
        let is_there = |_: &usize| {
            let is_there = TcpStream::connect(("127.0.0.1", self.port)).is_ok();
            if !is_there {
                pause(A_WHILE);
            }
            is_there
        };
        (0..TRIES).find(is_there).expect("it listens");
    }

    fn process(&self) -> MutexGuard<'_, Child> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let mut process = self.process();
        let _ = process.kill(); // It may have ended.
        let _ = process.wait();
    }
}

#[track_caller]
fn begin(program: &PathBuf, args: &[String]) -> Child {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it can be started")
}
