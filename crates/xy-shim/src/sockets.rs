//! Detects whether a server has network or socket connections.
//!
//! A server that waits for a peer looks like one that hangs, so a connected server is given the
//! benefit of the doubt. Only Linux lists connections; elsewhere every server counts as connected.

/// Returns true if the server of this leader has a connection, or is opening one, besides those at
/// its own port. Also returns true if that cannot be determined.
///
/// Reads a few files, so it may block for a moment.
pub fn may_have_connections(leader: u32, own_port: Option<u16>) -> bool {
    #[cfg(target_os = "linux")]
    return linux::may_have_connections(leader, own_port);
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

    /// Maximum number of processes that are checked.
    const MAX_PROCESSES: usize = 1000;

    /// The kernel's codes for an established TCP connection and for one being opened.
    const TCP_CONNECTED: [&str; 2] = ["01", "02"];

    /// The kernel's codes for a connected Unix socket and for one that is connecting.
    const UNIX_CONNECTED: [&str; 2] = ["03", "02"];

    pub(super) fn may_have_connections(leader: u32, own_port: Option<u16>) -> bool {
        let Some(leader) = i32::try_from(leader).ok().and_then(Pid::from_raw) else {
            return false;
        };
        let (mut left, mut visited) = (vec![leader], 0);
        while let Some(pid) = left.pop() {
            visited += 1;
            if visited > MAX_PROCESSES || has_connection(pid, own_port) {
                return true;
            }
            left.extend(children_of(pid));
        }
        false
    }

    /// Returns true if a process has a connection, or if its descriptors may not be read.
    fn has_connection(pid: Pid, own_port: Option<u16>) -> bool {
        let pid = pid.as_raw_nonzero();
        let sockets = match sockets_of(pid.get()) {
            Ok(sockets) => sockets,
            Err(cause) => return cause.kind() == io::ErrorKind::PermissionDenied,
        };
        let table =
            |name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
        let is_own_socket = |socket: &u64| sockets.contains(socket);
        !sockets.is_empty()
            && (["tcp", "tcp6", "udp", "udp6"]
                .into_iter()
                .any(|name| connections(&table(name), own_port).any(|it| is_own_socket(&it)))
                || has_outside_peer(
                    &unix_connections(&table("unix")).filter(is_own_socket).collect(),
                ))
    }

    /// Returns the inodes of the sockets of a process.
    fn sockets_of(pid: i32) -> io::Result<BTreeSet<u64>> {
        let socket = |link: std::path::PathBuf| {
            let link = link.into_os_string().into_string().ok()?;
            link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        };
        let files = fs::read_dir(format!("/proc/{pid}/fd"))?;
        Ok(files.filter_map(|file| socket(fs::read_link(file.ok()?.path()).ok()?)).collect())
    }

    /// Returns true if any of a process's connected Unix sockets leads to another process.
    ///
    /// The kernel's table does not name the peer. Many programs hold a socket pair to wake
    /// themselves, and the two ends of a pair have consecutive inodes.
    fn has_outside_peer(sockets: &BTreeSet<u64>) -> bool {
        let mut pair_of = None;
        let mut unpaired = 0;
        for socket in sockets {
            if pair_of == Some(*socket) {
                (pair_of, unpaired) = (None, unpaired - 1);
            } else {
                (pair_of, unpaired) = (Some(socket + 1), unpaired + 1);
            }
        }
        unpaired > 0
    }

    /// Returns the inodes of the connected sockets in a kernel table of Unix sockets.
    fn unix_connections(table: &str) -> impl Iterator<Item = u64> + '_ {
        table.lines().filter_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let (state, socket) = (columns.get(5)?, columns.get(6)?);
            UNIX_CONNECTED.contains(state).then(|| socket.parse().ok()).flatten()
        })
    }

    /// Returns the inodes of the connections in a kernel table of TCP or UDP sockets, except those
    /// at `own_port`.
    fn connections(table: &str, own_port: Option<u16>) -> impl Iterator<Item = u64> + '_ {
        let port = |address: &str| u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok();
        table.lines().filter_map(move |line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let (local, state, socket) = (columns.get(1)?, columns.get(3)?, columns.get(9)?);
            let is_own = own_port.is_some() && port(local) == own_port;
            (TCP_CONNECTED.contains(state) && !is_own).then(|| socket.parse().ok()).flatten()
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
        fn connections_at_the_own_port_are_ignored() {
            let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 0 0 11 1\n   1: 0100007F:1F90 0100007F:9C40 01 0:0 0:0 0 0 0 12 1\n   2: 0100007F:9C40 0100007F:0050 01 0:0 0:0 0 0 0 13 1\n   3: 0100007F:9C41 0100007F:0050 02 0:0 0:0 0 0 0 14 1\n   4: 0100007F:9C42 0100007F:0050 06 0:0 0:0 0 0 0 0 1\nnonsense\n";
            assert_eq!(connections(table, Some(0x1F90)).collect::<Vec<_>>(), [13, 14]);
            assert_eq!(connections(table, None).collect::<Vec<_>>(), [12, 13, 14]);
        }

        #[test]
        fn unconnected_unix_sockets_are_ignored() {
            let table = "Num       RefCount Protocol Flags    Type St Inode Path\n0000000000000000: 00000002 00000000 00010000 0001 01 21 /run/x.sock\n0000000000000000: 00000003 00000000 00000000 0001 03 22\n0000000000000000: 00000003 00000000 00000000 0001 03 23 /run/x.sock\nnonsense\n";
            assert_eq!(unix_connections(table).collect::<Vec<_>>(), [22, 23]);
        }

        #[test]
        fn socket_pair_has_no_outside_peer() {
            let sockets: [(&[u64], bool); 6] = [
                (&[], false),
                (&[7, 8], false),
                (&[7, 8, 20, 21], false),
                (&[7], true),
                (&[7, 9], true),
                (&[7, 8, 9], true),
            ];
            for (sockets, is_out) in sockets {
                assert_eq!(
                    has_outside_peer(&sockets.iter().copied().collect()),
                    is_out,
                    "{sockets:?}"
                );
            }
        }

        #[test]
        fn connected_process_is_detected() {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let _connection = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            assert!(may_have_connections(std::process::id(), None));
            let mut sleep = std::process::Command::new("sleep");
            let mut unpaired = sleep.arg("60").stdin(Stdio::null()).spawn().unwrap();
            assert!(!may_have_connections(unpaired.id(), None));
            unpaired.kill().unwrap();
            unpaired.wait().unwrap();
            let (one, _other) = UnixStream::pair().unwrap();
            let mut connected = sleep.stdin(Stdio::from(OwnedFd::from(one))).spawn().unwrap();
            assert!(may_have_connections(connected.id(), None));
            connected.kill().unwrap();
            connected.wait().unwrap();
            assert!(!may_have_connections(u32::MAX, None));
        }
    }
}
