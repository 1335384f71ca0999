//! A server whose main thread has exited while another one keeps running.
//!
//! The system lists such a process as a zombie, though it is alive. It writes `ready` to stderr
//! in that state, and exits with code 5 on TERM or at the end of stdin.

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    xy_testkit::standin::Output::Stderr.say("no thread can end like this here");
    std::process::ExitCode::FAILURE
}

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::thread;

    use xy_testkit::standin::{self, Output, Wait};

    pub(super) fn main() {
        standin::live_at_most(standin::SAFETY_LIMIT);
        let mut wait = Wait::new();
        thread::spawn(move || {
            wait_until_headless();
            Output::Stderr.say("ready");
            wait.next(None);
            exit(libc::SYS_exit_group, 5);
        });
        exit(libc::SYS_exit, 0);
    }

    /// Waits until the main thread has exited, which makes the process a zombie.
    fn wait_until_headless() {
        let stat = format!("/proc/{}/stat", std::process::id());
        while !std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z ")) {
            thread::yield_now();
        }
    }

    /// Exits this thread or the whole process, depending on the system call.
    fn exit(how: libc::c_long, code: libc::c_int) -> ! {
        // SAFETY: neither call accesses memory of this process, and neither returns.
        #[expect(unsafe_code, reason = "no safe call ends one thread without its process")]
        unsafe {
            libc::syscall(how, code);
        }
        unreachable!("a thread that has ended")
    }
}
