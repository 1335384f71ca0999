//! Stopping a single thread of a process, to simulate a hang.

use std::path::PathBuf;
use std::ptr::null_mut;
use std::{fs, io};

/// A stopped thread, which continues when this is dropped. A process can do this only to its own
/// children, and must drop it on the thread that created it.
#[derive(Debug)]
pub struct Standstill {
    thread: libc::pid_t,
}

impl Standstill {
    /// Stops the thread with this name.
    ///
    /// # Panics
    ///
    /// Panics if there is none, or if it cannot be stopped.
    pub fn of(pid: u32, name: &str) -> Self {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
        let mut threads = threads.map(|it| it.expect("it lives").path());
        let is_it = |thread: &PathBuf| {
            fs::read_to_string(thread.join("comm")).is_ok_and(|it| it.trim_end() == name)
        };
        let thread = threads.find(is_it).expect("it has such a thread");
        let thread = thread.file_name().and_then(|it| it.to_str()?.parse().ok());
        let still = Self { thread: thread.expect("threads are numbers") };
        assert!(still.begin(), "{}", io::Error::last_os_error());
        still
    }

    fn begin(&self) -> bool {
        // SAFETY: nothing of ours is read or written through a pointer.
        #[expect(unsafe_code, reason = "no safe call stops one thread without its process")]
        unsafe {
            let nothing = null_mut::<libc::c_void>();
            libc::ptrace(libc::PTRACE_SEIZE, self.thread, nothing, nothing) == 0
                && libc::ptrace(libc::PTRACE_INTERRUPT, self.thread, nothing, nothing) == 0
                && libc::waitpid(self.thread, null_mut(), libc::__WALL) == self.thread
        }
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        // SAFETY: as above. A thread that is gone need not go on.
        #[expect(unsafe_code, reason = "no safe call lets it go on")]
        unsafe {
            let nothing = null_mut::<libc::c_void>();
            libc::ptrace(libc::PTRACE_DETACH, self.thread, nothing, nothing);
        }
    }
}
