//! Passes the listening socket from one daemon to the next, so that no connection is refused
//! meanwhile.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::listen::{ListenState, listen_with_retry};

/// The listening socket, shared with the code that hands it over.
#[derive(Debug, Clone, Default)]
pub struct ListeningSocket(Arc<Mutex<SharedSocket>>);

#[derive(Debug, Default)]
struct SharedSocket {
    socket: Option<OwnedFd>,
    is_handed_over: bool,
}

impl ListeningSocket {
    /// Returns true if a socket is listening.
    pub fn is_there(&self) -> bool {
        self.shared().socket.is_some()
    }

    /// Returns a copy of the socket for another daemon. The socket then stays open until this
    /// process ends, so that new connections wait for the other daemon.
    pub fn hand_over(&self) -> Option<OwnedFd> {
        let mut shared = self.shared();
        let handed = shared.socket.as_ref()?.try_clone().ok()?;
        shared.is_handed_over = true;
        Some(handed)
    }

    /// Closes the socket, unless another daemon has it.
    pub fn close(&self) {
        let mut shared = self.shared();
        if !shared.is_handed_over {
            shared.socket = None;
        }
    }

    fn share(&self, listener: &TcpListener) {
        // Without a copy, the next daemon binds the address itself.
        self.shared().socket = listener.as_fd().try_clone_to_owned().ok();
    }

    fn shared(&self) -> MutexGuard<'_, SharedSocket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Listens at `addr`: on the inherited socket if it has this address, otherwise on a new one.
pub async fn listen(
    addr: SocketAddr,
    inherited: Option<StdListener>,
    state: &watch::Sender<Option<ListenState>>,
    socket: &ListeningSocket,
) -> TcpListener {
    let listener = match inherited.and_then(|it| take_over(it, addr)) {
        Some((listener, addr)) => {
            state.send_replace(Some(ListenState::Listening { addr }));
            listener
        }
        None => listen_with_retry(addr, state).await,
    };
    socket.share(&listener);
    listener
}

/// Returns the socket if it has the address `addr`. Port 0 matches any port.
fn take_over(inherited: StdListener, addr: SocketAddr) -> Option<(TcpListener, SocketAddr)> {
    let there = inherited.local_addr().ok()?;
    let is_it = there.ip() == addr.ip() && (addr.port() == 0 || addr.port() == there.port());
    if !is_it {
        return None;
    }
    inherited.set_nonblocking(true).ok()?;
    Some((TcpListener::from_std(inherited).ok()?, there))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn handed_over_socket_is_used_if_its_address_fits() {
        let any = "127.0.0.1:0".parse().unwrap();
        let (state, states) = watch::channel(None);
        let socket = ListeningSocket::default();
        let first = listen(any, None, &state, &socket).await;
        let addr = first.local_addr().unwrap();
        let waiting = std::net::TcpStream::connect(addr).unwrap();
        let handed: StdListener = socket.hand_over().unwrap().into();
        drop(first);
        socket.close();
        let more = std::net::TcpStream::connect(addr).unwrap();

        let second = listen(addr, Some(handed), &state, &ListeningSocket::default()).await;
        assert_eq!(*states.borrow(), Some(ListenState::Listening { addr }));
        for client in [waiting, more] {
            let (_, from) = second.accept().await.unwrap();
            assert_eq!(from, client.local_addr().unwrap());
        }
        let other = StdListener::bind("127.0.0.1:0").unwrap();
        assert!(take_over(other.try_clone().unwrap(), addr).is_none());
        assert!(take_over(other, any).is_some());
    }

    #[tokio::test]
    async fn unclaimed_socket_is_closed() {
        let (state, _) = watch::channel(None);
        let socket = ListeningSocket::default();
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = listen(any, None, &state, &socket).await;
        let addr = listener.local_addr().unwrap();
        drop(listener);
        socket.close();
        assert!(!socket.is_there() && socket.hand_over().is_none());
        assert!(std::net::TcpStream::connect(addr).is_err());
    }
}
