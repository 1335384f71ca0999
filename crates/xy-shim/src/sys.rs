//! The few system calls without a safe name. All unsafe code of the shim is here.

#![expect(unsafe_code, reason = "dispositions, close_range, pre_exec and si_pid have no safe API")]

use std::io;
#[cfg(not(target_os = "linux"))]
use std::os::fd::AsRawFd;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};

use crate::wire::{KeptBy, StartOrder};

/// The highest signal number of Linux; numbers a system lacks are refused by it.
const LAST_SIGNAL: libc::c_int = 64;

/// Makes sure that nothing but 0–2 and what is opened from here on is held by a shim: a
/// pipe of another server would never come to its end.
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

/// Lets every signal through, whatever the starter of this process had blocked.
pub(crate) fn clear_signal_mask() {
    // SAFETY: a zeroed set is valid to be overwritten by sigemptyset; both calls only
    // read and write that set, and are async-signal-safe.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// What a server may use, and the groups that it enters.
pub(crate) struct Confine {
    doors: Vec<OwnedFd>,
    /// How many files it may have open, unless it raises that itself.
    open_files: Option<u64>,
    /// How many it may have open at all.
    nofile: Option<u64>,
    /// How much memory of its own each of its processes may have.
    data: Option<u64>,
}

impl Confine {
    pub(crate) fn new(order: &StartOrder, doors: Vec<OwnedFd>) -> Self {
        let memory = order.limits.memory.filter(|it| it.kept_by == KeptBy::Rlimit);
        Self {
            doors,
            open_files: order.open_files,
            nofile: order.limits.nofile,
            data: memory.map(|it| it.bytes),
        }
    }

    /// Runs between fork and exec. An error is marked, so that it is told from one of exec.
    fn enter(&self) -> io::Result<()> {
        let marked = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error() | CONFINE);
        for door in &self.doors {
            rustix::io::retry_on_intr(|| rustix::io::write(door, b"0")).map_err(marked)?;
        }
        if let Some(current) = self.open_files.filter(|_| self.nofile.is_none()) {
            let maximum = getrlimit(Resource::Nofile).maximum;
            setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum })?;
        }
        let both = |limit| Rlimit { current: Some(limit), maximum: Some(limit) };
        if let Some(files) = self.nofile {
            setrlimit(Resource::Nofile, both(files)).map_err(marked)?;
        }
        if let Some(bytes) = self.data {
            setrlimit(Resource::Data, both(bytes)).map_err(marked)?;
        }
        Ok(())
    }
}

/// Added to the number of an error between fork and exec; no error has one so high.
const CONFINE: i32 = 1 << 16;

/// The error of a server that could not be confined, if that is what kept it from starting.
pub(crate) fn confine_error(cause: &io::Error) -> Option<io::Error> {
    let errno = cause.raw_os_error()?;
    (errno & CONFINE != 0).then(|| io::Error::from_raw_os_error(errno & !CONFINE))
}

/// Has the command start in its own session, confined, with default signals, and die with us.
pub(crate) fn start_clean(command: &mut Command, confine: Confine) {
    let shim = rustix::process::getpid();
    // SAFETY: `clean_child` makes only async-signal-safe calls and does not allocate.
    unsafe { command.pre_exec(move || clean_child(shim, &confine)) };
}

/// Runs between fork and exec.
fn clean_child(shim: Pid, confine: &Confine) -> io::Result<()> {
    rustix::process::setsid()?;
    confine.enter()?;
    for signal in (1..=LAST_SIGNAL).filter(|it| ![libc::SIGKILL, libc::SIGSTOP].contains(it)) {
        set_default(signal);
    }
    clear_signal_mask();
    die_with(shim)
}

/// Straight to the kernel: the C library keeps a few signals to itself and would leave
/// those ignored.
#[cfg(target_os = "linux")]
fn set_default(signal: libc::c_int) {
    /// At least as long as the kernel's `sigaction`, whose zeroes mean the default.
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
fn set_default(signal: libc::c_int) {
    // SAFETY: SIG_DFL installs no handler; signal is async-signal-safe.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

#[cfg(target_os = "linux")]
fn die_with(shim: Pid) -> io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};

    set_parent_process_death_signal(Some(Signal::KILL))?;
    // A shim that died before that call will not be noticed by it.
    if getppid() == Some(shim) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature on every system")]
fn die_with(_shim: Pid) -> io::Result<()> {
    Ok(()) // There is no such thing here; the daemon's sweep finds what is left.
}

/// How much fits into a pipe.
#[cfg(target_os = "linux")]
pub(crate) fn pipe_bytes(pipe: BorrowedFd<'_>) -> usize {
    rustix::pipe::fcntl_getpipe_size(pipe).unwrap_or(4096)
}

/// How much fits into a pipe, at first; nothing tells more.
#[cfg(not(target_os = "linux"))]
pub(crate) fn pipe_bytes(_pipe: BorrowedFd<'_>) -> usize {
    16 * 1024
}

/// A child that is dead and not reaped yet, if there is one. It stays unreaped.
pub(crate) fn first_dead_child() -> Option<Pid> {
    // SAFETY: a zeroed siginfo_t is valid; waitid overwrites it or leaves it zero, and
    // for an exited child si_pid is the member that is set.
    let pid = unsafe {
        let mut found: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        if libc::waitid(libc::P_ALL, 0, &raw mut found, options) != 0 {
            return None; // No children at all.
        }
        found.si_pid()
    };
    Pid::from_raw(pid)
}

/// Who is at the other end of a socket.
#[cfg(target_os = "linux")]
pub(crate) fn peer_uid(socket: BorrowedFd<'_>) -> Option<u32> {
    rustix::net::sockopt::socket_peercred(socket).ok().map(|peer| peer.uid.as_raw())
}

/// Who is at the other end of a socket.
#[cfg(not(target_os = "linux"))]
pub(crate) fn peer_uid(socket: BorrowedFd<'_>) -> Option<u32> {
    let (mut uid, mut gid) = (0, 0);
    // SAFETY: the descriptor is open, and both pointers are to integers of our own.
    let failed = unsafe { libc::getpeereid(socket.as_raw_fd(), &raw mut uid, &raw mut gid) };
    (failed == 0).then_some(uid)
}

/// When a process began, in microseconds; `None` if there is none.
#[cfg(target_os = "macos")]
pub(crate) fn began(pid: u32) -> Option<u64> {
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

/// What tells this boot of the machine from all others.
#[cfg(target_os = "macos")]
pub(crate) fn boot() -> String {
    let mut text = [0_u8; 64];
    let mut length = text.len();
    // SAFETY: the name ends with a zero, and at most `length` bytes are written to `text`.
    let failed = unsafe {
        let into = text.as_mut_ptr().cast::<libc::c_void>();
        let name = c"kern.bootsessionuuid".as_ptr();
        libc::sysctlbyname(name, into, &raw mut length, std::ptr::null_mut(), 0)
    };
    let said = if failed == 0 { &text[..length.min(text.len())] } else { &[] };
    String::from_utf8_lossy(said).trim_end_matches('\0').to_owned()
}

/// Every process there is.
#[cfg(target_os = "macos")]
pub(crate) fn all_pids() -> Vec<u32> {
    let mut pids: Vec<libc::pid_t> = vec![0; 16 * 1024];
    let size = libc::c_int::try_from(size_of_val(&pids[..])).unwrap_or(libc::c_int::MAX);
    // SAFETY: at most `size` bytes are written to `pids`, which is that long.
    let count = unsafe { libc::proc_listallpids(pids.as_mut_ptr().cast(), size) };
    pids.truncate(usize::try_from(count).unwrap_or(0));
    pids.into_iter().filter_map(|pid| pid.try_into().ok()).collect()
}

/// What a process was given at its start, each entry with a zero after it.
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

/// Gives freed memory back to the system.
pub(crate) fn release_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim only releases what the allocator holds free.
    unsafe {
        libc::malloc_trim(0);
    }
}
