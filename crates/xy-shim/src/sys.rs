//! System calls without a safe API. All unsafe code of the shim is here.

#![expect(unsafe_code, reason = "dispositions, close_range, pre_exec and si_pid have no safe API")]

use std::io;
#[cfg(not(target_os = "linux"))]
use std::os::fd::AsRawFd;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};

use crate::wire::{EnforcedBy, StartOrder};

/// The highest signal number of Linux. Other systems refuse the numbers they lack.
const LAST_SIGNAL: libc::c_int = 64;

/// Closes all inherited descriptors except 0–2. A shim that held a pipe of another server would
/// keep it from ending.
pub(crate) fn close_inherited() {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: close_range reads no memory, and nothing has been opened here yet.
        if unsafe { libc::close_range(3, libc::c_uint::MAX, 0) } == 0 {
            return;
        }
    }
    let open_limit = getrlimit(Resource::Nofile).current;
    let end = open_limit.unwrap_or(u64::MAX).min(65_536);
    for descriptor in 3..i32::try_from(end).unwrap_or(i32::MAX) {
        // SAFETY: nothing has been opened here yet; a closed number is only an error.
        unsafe { libc::close(descriptor) };
    }
}

/// Unblocks every signal that the parent of this process had blocked.
pub(crate) fn clear_signal_mask() {
    // SAFETY: a zeroed set is valid to be overwritten by sigemptyset; both calls only
    // read and write that set, and are async-signal-safe.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Limits that a server gets and control groups that it enters, between fork and exec.
pub(crate) struct ChildSetup {
    entries: Vec<OwnedFd>,
    /// Soft limit of open files, which the server may raise.
    open_files: Option<u64>,
    /// Hard limit of open files.
    nofile: Option<u64>,
    /// Limit of private memory in each process.
    data: Option<u64>,
}

impl ChildSetup {
    pub(crate) fn new(order: &StartOrder, entries: Vec<OwnedFd>) -> Self {
        let memory = order.limits.memory.filter(|it| it.kept_by == EnforcedBy::Rlimit);
        Self {
            entries,
            open_files: order.open_files,
            nofile: order.limits.nofile,
            data: memory.map(|it| it.bytes),
        }
    }

    /// Runs between fork and exec. Errors of limits are tagged, to distinguish them from errors of
    /// exec.
    fn enter(&self) -> io::Result<()> {
        let tagged =
            |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error() | LIMIT_ERROR);
        for entry in &self.entries {
            rustix::io::retry_on_intr(|| rustix::io::write(entry, b"0")).map_err(tagged)?;
        }
        if let Some(current) = self.open_files.filter(|_| self.nofile.is_none()) {
            let maximum = getrlimit(Resource::Nofile).maximum;
            setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum })?;
        }
        let hard_and_soft = |limit| Rlimit { current: Some(limit), maximum: Some(limit) };
        if let Some(files) = self.nofile {
            setrlimit(Resource::Nofile, hard_and_soft(files)).map_err(tagged)?;
        }
        if let Some(bytes) = self.data {
            setrlimit(Resource::Data, hard_and_soft(bytes)).map_err(tagged)?;
        }
        Ok(())
    }
}

/// Bit added to the error number of a limit that could not be applied. No error number is so high.
const LIMIT_ERROR: i32 = 1 << 16;

/// Returns the error of a limit that could not be applied, if that kept the server from starting.
pub(crate) fn limit_error(cause: &io::Error) -> Option<io::Error> {
    let errno = cause.raw_os_error()?;
    (errno & LIMIT_ERROR != 0).then(|| io::Error::from_raw_os_error(errno & !LIMIT_ERROR))
}

/// Makes the command start in its own session, with its limits and default signals, and die with
/// the shim.
pub(crate) fn prepare_child(command: &mut Command, setup: ChildSetup) {
    let shim = rustix::process::getpid();
    // SAFETY: `set_up_child` makes only async-signal-safe calls and does not allocate.
    unsafe { command.pre_exec(move || set_up_child(shim, &setup)) };
}

/// Runs between fork and exec.
fn set_up_child(shim: Pid, setup: &ChildSetup) -> io::Result<()> {
    rustix::process::setsid()?;
    setup.enter()?;
    for signal in (1..=LAST_SIGNAL).filter(|it| ![libc::SIGKILL, libc::SIGSTOP].contains(it)) {
        set_default_action(signal);
    }
    clear_signal_mask();
    set_parent_death_signal(shim)
}

/// Restores the default action of a signal.
///
/// Calls the kernel directly: the C library reserves a few signals and would leave those ignored.
#[cfg(target_os = "linux")]
fn set_default_action(signal: libc::c_int) {
    /// At least as long as the kernel's `sigaction`; all zeroes mean the default.
    const DEFAULT: [u64; 8] = [0; 8];
    const SET_SIZE: usize = 8;
    // SAFETY: the kernel reads within `DEFAULT` and writes nothing; SIG_DFL installs no
    // handler; a system call is async-signal-safe.
    unsafe {
        let nothing = std::ptr::null_mut::<libc::c_void>();
        libc::syscall(libc::SYS_rt_sigaction, signal, DEFAULT.as_ptr(), nothing, SET_SIZE);
    }
}

#[cfg(not(target_os = "linux"))]
fn set_default_action(signal: libc::c_int) {
    // SAFETY: SIG_DFL installs no handler; signal is async-signal-safe.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

#[cfg(target_os = "linux")]
fn set_parent_death_signal(shim: Pid) -> io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};

    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A shim that died before that call is not noticed by the kernel.
    if getppid() == Some(shim) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature on every system")]
fn set_parent_death_signal(_shim: Pid) -> io::Result<()> {
    Ok(()) // There is no such signal here; the daemon's sweep finds leftover processes.
}

/// Returns the capacity of a pipe.
#[cfg(target_os = "linux")]
pub(crate) fn pipe_bytes(pipe: BorrowedFd<'_>) -> usize {
    rustix::pipe::fcntl_getpipe_size(pipe).unwrap_or(4096)
}

/// Returns the initial capacity of a pipe; the system does not report the current one.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pipe_bytes(_pipe: BorrowedFd<'_>) -> usize {
    16 * 1024
}

/// Returns a child that is dead and not reaped yet. The child stays unreaped.
pub(crate) fn first_dead_child() -> Option<Pid> {
    // SAFETY: a zeroed siginfo_t is valid; waitid overwrites it or leaves it zero, and
    // for an exited child si_pid is the member that is set.
    let pid = unsafe {
        let mut found: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        if libc::waitid(libc::P_ALL, 0, &raw mut found, options) != 0 {
            return None; // There are no children.
        }
        found.si_pid()
    };
    Pid::from_raw(pid)
}

/// Returns the user of the process at the other end of a socket.
#[cfg(target_os = "linux")]
pub(crate) fn peer_uid(socket: BorrowedFd<'_>) -> Option<u32> {
    rustix::net::sockopt::socket_peercred(socket).ok().map(|peer| peer.uid.as_raw())
}

/// Returns the user of the process at the other end of a socket.
#[cfg(not(target_os = "linux"))]
pub(crate) fn peer_uid(socket: BorrowedFd<'_>) -> Option<u32> {
    let (mut uid, mut gid) = (0, 0);
    // SAFETY: the descriptor is open, and both pointers are to integers of our own.
    let failed = unsafe { libc::getpeereid(socket.as_raw_fd(), &raw mut uid, &raw mut gid) };
    (failed == 0).then_some(uid)
}

/// Returns when a process started, in microseconds, or `None` if there is no such process.
#[cfg(target_os = "macos")]
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let pid = libc::c_int::try_from(pid).ok()?;
    let size = libc::c_int::try_from(size_of::<libc::proc_bsdinfo>()).ok()?;
    // SAFETY: a zeroed proc_bsdinfo is valid, and the call writes at most `size` bytes to it.
    let found = unsafe {
        let mut found: libc::proc_bsdinfo = std::mem::zeroed();
        let into = (&raw mut found).cast::<libc::c_void>();
        let written = libc::proc_pidinfo(pid, libc::PROC_PIDTBSDINFO, 0, into, size);
        (written == size).then_some(found)
    }?;
    Some(found.pbi_start_tvsec * 1_000_000 + found.pbi_start_tvusec)
}

/// Returns an ID that differs between boots of the machine.
#[cfg(target_os = "macos")]
pub(crate) fn boot_id() -> String {
    let mut text = [0_u8; 64];
    let mut length = text.len();
    // SAFETY: the name ends with a zero, and at most `length` bytes are written to `text`.
    let failed = unsafe {
        let into = text.as_mut_ptr().cast::<libc::c_void>();
        let name = c"kern.bootsessionuuid".as_ptr();
        libc::sysctlbyname(name, into, &raw mut length, std::ptr::null_mut(), 0)
    };
    let bytes = if failed == 0 { &text[..length.min(text.len())] } else { &[] };
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

/// Returns the IDs of all processes.
#[cfg(target_os = "macos")]
pub(crate) fn all_pids() -> Vec<u32> {
    let mut pids: Vec<libc::pid_t> = vec![0; 16 * 1024];
    let size = libc::c_int::try_from(size_of_val(&pids[..])).unwrap_or(libc::c_int::MAX);
    // SAFETY: at most `size` bytes are written to `pids`, which is that long.
    let count = unsafe { libc::proc_listallpids(pids.as_mut_ptr().cast(), size) };
    pids.truncate(usize::try_from(count).unwrap_or(0));
    pids.into_iter().filter_map(|pid| pid.try_into().ok()).collect()
}

/// Returns the arguments and the environment of a process, each entry followed by a NUL.
#[cfg(target_os = "macos")]
pub(crate) fn arguments_and_environment(pid: u32) -> Option<Vec<u8>> {
    let mut name = [libc::CTL_KERN, libc::KERN_PROCARGS2, libc::c_int::try_from(pid).ok()?];
    let mut bytes = vec![0_u8; 1024 * 1024];
    let mut length = bytes.len();
    // SAFETY: `name` has three parts, and at most `length` bytes are written to `bytes`.
    let failed = unsafe {
        let into = bytes.as_mut_ptr().cast::<libc::c_void>();
        libc::sysctl(name.as_mut_ptr(), 3, into, &raw mut length, std::ptr::null_mut(), 0)
    };
    bytes.truncate(length);
    (failed == 0).then_some(bytes)
}

/// Returns freed memory to the system.
pub(crate) fn release_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim only releases what the allocator holds free.
    unsafe {
        libc::malloc_trim(0);
    }
}
