//! A server whose first thread has ended while another lives on: to the system it is dead
//! and alive at once. Says `ready` then, and ends with code 5 on TERM.

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
            until_headless();
            Output::Stderr.say("ready");
            wait.next(None);
            leave(libc::SYS_exit_group, 5);
        });
        leave(libc::SYS_exit, 0);
    }

    /// Waits until the first thread has ended: its process then counts as a zombie.
    fn until_headless() {
        let stat = format!("/proc/{}/stat", std::process::id());
        while !std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z ")) {
            thread::yield_now();
        }
    }

    /// Ends this thread, or all of them.
    fn leave(how: libc::c_long, code: libc::c_int) -> ! {
        // SAFETY: neither call touches memory of ours, and neither returns.
        #[expect(unsafe_code, reason = "no safe call ends one thread without its process")]
        unsafe {
            libc::syscall(how, code);
        }
        unreachable!("a thread that has ended")
    }
}
