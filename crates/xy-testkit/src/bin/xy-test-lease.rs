//! Takes a lease on a file, to simulate a disk that hangs.
//!
//! A process that opens the file blocks in the kernel until this program exits, or until the
//! kernel breaks the lease (after `fs.lease-break-time`, 45 s by default).
//!
//! `xy-test-lease FILE` writes `held` to stdout, then `wanted` once a process waits. It exits at
//! the end of stdin, or on TERM.

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    xy_testkit::standin::Output::Stderr.say("no file can be held back like this here");
    std::process::ExitCode::FAILURE
}

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io::{self, Read};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use signal_hook::consts::SIGIO;
    use signal_hook::low_level::pipe;
    use xy_testkit::standin::{self, Flags, Output, Wait};

    pub(super) fn main() {
        standin::live_at_most(standin::SAFETY_LIMIT);
        let file = Flags::of_this_process().next_flag().expect("a file");
        let mut wait = Wait::new();
        // The kernel announces a waiting process with SIGIO. By default, it
        // would end this program.
        let (mut wanted, wake) = UnixStream::pair().expect("there are descriptors");
        pipe::register(SIGIO, wake).expect("it can be caught");
        let held = File::options().read(true).write(true).open(file).expect("it is there");
        take_lease(&held).expect("the owner of a file can take a lease");
        Output::Stdout.say("held");
        thread::spawn(move || {
            while wanted.read_exact(&mut [0]).is_ok() {
                Output::Stdout.say("wanted");
            }
        });
        wait.next(None);
        drop(held);
    }

    fn take_lease(file: &File) -> io::Result<()> {
        // SAFETY: the descriptor is open, and the call takes no pointers.
        #[expect(unsafe_code, reason = "no safe call takes a lease")]
        let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        if taken == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
