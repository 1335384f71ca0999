//! Whether a server is connected with anybody: then it may wait for them, and one that waits
//! does not look otherwise than one that hangs.
//!
//! Only Linux tells. Where nobody can tell it may wait.

/// Whether the server whose leader this is may wait for somebody: it has a connection, or begins
/// one, besides those at its own port, or it cannot be seen whether it has. Reads a few files, so
/// it may block for a moment.
pub fn may_wait(leader: u32, own_port: Option<u16>) -> bool {
    #[cfg(target_os = "linux")]
    return linux::may_wait(leader, own_port);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (leader, own_port);
        true
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeSet;
    use std::{fs, io};

    use rustix::process::Pid;

    use crate::tree::children_of;

    /// No more processes are looked at.
    const MOST: usize = 1000;

    /// How the kernel calls a connection that is there, and one that is being begun.
    const CONNECTED: [&str; 2] = ["01", "02"];

    /// The same in the table of Unix sockets.
    const UNIX_CONNECTED: [&str; 2] = ["03", "02"];

    pub(super) fn may_wait(leader: u32, own_port: Option<u16>) -> bool {
        let Some(leader) = i32::try_from(leader).ok().and_then(Pid::from_raw) else {
            return false;
        };
        let (mut left, mut looked_at) = (vec![leader], 0);
        while let Some(pid) = left.pop() {
            looked_at += 1;
            if looked_at > MOST || has_connection(pid, own_port) {
                return true;
            }
            left.extend(children_of(pid));
        }
        false
    }

    /// Whether a process has one, or nobody may see whether it has.
    fn has_connection(pid: Pid, own_port: Option<u16>) -> bool {
        let pid = pid.as_raw_nonzero();
        let sockets = match sockets_of(pid.get()) {
            Ok(sockets) => sockets,
            Err(cause) => return cause.kind() == io::ErrorKind::PermissionDenied,
        };
        let table =
            |name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
        let is_its = |socket: &u64| sockets.contains(socket);
        !sockets.is_empty()
            && (["tcp", "tcp6", "udp", "udp6"]
                .into_iter()
                .any(|name| connections(&table(name), own_port).any(|it| is_its(&it)))
                || leads_out(&unix_connections(&table("unix")).filter(is_its).collect()))
    }

    /// The sockets of a process, by their numbers.
    fn sockets_of(pid: i32) -> io::Result<BTreeSet<u64>> {
        let socket = |link: std::path::PathBuf| {
            let link = link.into_os_string().into_string().ok()?;
            link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        };
        let files = fs::read_dir(format!("/proc/{pid}/fd"))?;
        Ok(files.filter_map(|file| socket(fs::read_link(file.ok()?.path()).ok()?)).collect())
    }

    /// Whether any of a process's connected Unix sockets leads to somebody else. The kernel's
    /// table does not say where they lead; but many programs have a pair of them to wake
    /// themselves, and the two ends of a pair are made one after the other.
    fn leads_out(sockets: &BTreeSet<u64>) -> bool {
        let mut pair_of = None;
        let mut alone = 0;
        for socket in sockets {
            if pair_of == Some(*socket) {
                (pair_of, alone) = (None, alone - 1);
            } else {
                (pair_of, alone) = (Some(socket + 1), alone + 1);
            }
        }
        alone > 0
    }

    /// The Unix sockets in a table of the kernel that are connected.
    fn unix_connections(table: &str) -> impl Iterator<Item = u64> + '_ {
        table.lines().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (state, socket) = (words.get(5)?, words.get(6)?);
            UNIX_CONNECTED.contains(state).then(|| socket.parse().ok()).flatten()
        })
    }

    /// The sockets in a table of the kernel that are connected, but for those at this port.
    fn connections(table: &str, own_port: Option<u16>) -> impl Iterator<Item = u64> + '_ {
        let port = |address: &str| u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok();
        table.lines().filter_map(move |line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (local, state, socket) = (words.get(1)?, words.get(3)?, words.get(9)?);
            let is_own = own_port.is_some() && port(local) == own_port;
            (CONNECTED.contains(state) && !is_own).then(|| socket.parse().ok()).flatten()
        })
    }

    #[cfg(test)]
    mod tests {
        use std::net::{TcpListener, TcpStream};
        use std::os::fd::OwnedFd;
        use std::os::unix::net::UnixStream;
        use std::process::Stdio;

        use super::*;

        #[test]
        fn only_connections_count_and_not_those_at_its_own_port() {
            let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 0 0 11 1\n   1: 0100007F:1F90 0100007F:9C40 01 0:0 0:0 0 0 0 12 1\n   2: 0100007F:9C40 0100007F:0050 01 0:0 0:0 0 0 0 13 1\n   3: 0100007F:9C41 0100007F:0050 02 0:0 0:0 0 0 0 14 1\n   4: 0100007F:9C42 0100007F:0050 06 0:0 0:0 0 0 0 0 1\nnonsense\n";
            assert_eq!(connections(table, Some(0x1F90)).collect::<Vec<_>>(), [13, 14]);
            assert_eq!(connections(table, None).collect::<Vec<_>>(), [12, 13, 14]);
        }

        #[test]
        fn of_unix_sockets_only_connected_ones_count() {
            let table = "Num       RefCount Protocol Flags    Type St Inode Path\n0000000000000000: 00000002 00000000 00010000 0001 01 21 /run/x.sock\n0000000000000000: 00000003 00000000 00000000 0001 03 22\n0000000000000000: 00000003 00000000 00000000 0001 03 23 /run/x.sock\nnonsense\n";
            assert_eq!(unix_connections(table).collect::<Vec<_>>(), [22, 23]);
        }

        #[test]
        fn a_pair_of_its_own_leads_nowhere() {
            let sockets: [(&[u64], bool); 6] = [
                (&[], false),
                (&[7, 8], false),
                (&[7, 8, 20, 21], false),
                (&[7], true),
                (&[7, 9], true),
                (&[7, 8, 9], true),
            ];
            for (sockets, is_out) in sockets {
                assert_eq!(leads_out(&sockets.iter().copied().collect()), is_out, "{sockets:?}");
            }
        }

        #[test]
        fn a_process_that_is_connected_is_seen_to_be() {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let _connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            assert!(may_wait(std::process::id(), None));
            let mut sleep = std::process::Command::new("sleep");
            let mut alone = sleep.arg("60").stdin(Stdio::null()).spawn().unwrap();
            assert!(!may_wait(alone.id(), None));
            alone.kill().unwrap();
            alone.wait().unwrap();
            let (one, _other) = UnixStream::pair().unwrap();
            let mut connected = sleep.stdin(Stdio::from(OwnedFd::from(one))).spawn().unwrap();
            assert!(may_wait(connected.id(), None));
            connected.kill().unwrap();
            connected.wait().unwrap();
            assert!(!may_wait(u32::MAX, None));
        }
    }
}
