//! The listening socket, from one daemon to the next: nobody who connects in between is refused.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::TcpListener;
use tokio::sync::watch;

use super::listen::{ListenState, listen_patiently};

/// The listening socket, for a daemon that takes over.
#[derive(Debug, Clone, Default)]
pub struct ListeningSocket(Arc<Mutex<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    socket: Option<OwnedFd>,
    is_handed_over: bool,
}

impl ListeningSocket {
    /// Returns true if there is one.
    pub fn is_there(&self) -> bool {
        self.shared().socket.is_some()
    }

    /// Returns the socket for another daemon. From then on it stays open until this process
    /// ends, so that who connects meanwhile waits for the other.
    pub fn hand_over(&self) -> Option<OwnedFd> {
        let mut shared = self.shared();
        let handed = shared.socket.as_ref()?.try_clone().ok()?;
        shared.is_handed_over = true;
        Some(handed)
    }

    /// Closes it, unless another daemon has it.
    pub(crate) fn close(&self) {
        let mut shared = self.shared();
        if !shared.is_handed_over {
            shared.socket = None;
        }
    }

    fn share(&self, listener: &TcpListener) {
        // Without it the next daemon binds the address itself.
        self.shared().socket = listener.as_fd().try_clone_to_owned().ok();
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Listens at `addr`: with the socket that another daemon has handed over if it does so, and
/// else as soon as that can be done.
pub(crate) async fn listen(
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
        None => listen_patiently(addr, state).await,
    };
    socket.share(&listener);
    listener
}

/// Returns the socket if it listens at `addr`, where any port may be meant.
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
    async fn handed_socket_is_used_if_it_fits() {
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
    async fn socket_that_nobody_took_is_closed() {
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
