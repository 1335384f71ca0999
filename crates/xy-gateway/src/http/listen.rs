//! Listening on a port that somebody else may have: the daemon runs on without it, says so,
//! and tries again.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

/// The wait between two tries.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Whether there is a door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenState {
    /// Clients can come in.
    Listening {
        /// Where; with the port that was given, if any would do.
        addr: SocketAddr,
    },
    /// They cannot.
    Taken {
        /// Where they should.
        addr: SocketAddr,
        /// Why not.
        cause: String,
        /// Whether another program listens there.
        in_use: bool,
        /// How long until it is tried again.
        retry: Duration,
    },
}

/// Listens on `addr`, as soon as that can be done. `state` says meanwhile how things are; it
/// begins with nothing known.
pub async fn listen_patiently(
    addr: SocketAddr,
    state: &watch::Sender<Option<ListenState>>,
) -> TcpListener {
    loop {
        let cause = match listen(addr).await {
            Ok((listener, addr)) => {
                state.send_replace(Some(ListenState::Listening { addr }));
                return listener;
            }
            Err(cause) => cause,
        };
        let in_use = cause.kind() == std::io::ErrorKind::AddrInUse;
        let cause = cause.to_string();
        let taken = ListenState::Taken { addr, cause, in_use, retry: TRY_AGAIN_AFTER };
        state.send_if_modified(|state| {
            let is_news = state.as_ref() != Some(&taken);
            if is_news {
                tracing::warn!(?taken, "could not listen for HTTP, and will try again");
                *state = Some(taken);
            }
            is_news
        });
        tokio::time::sleep(TRY_AGAIN_AFTER).await;
    }
}

async fn listen(addr: SocketAddr) -> std::io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(addr).await?;
    let addr = listener.local_addr()?;
    Ok((listener, addr))
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_port_that_is_taken_is_tried_again_until_it_is_free() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = other.local_addr().unwrap();
        let (state, mut states) = watch::channel(None);
        let began = Instant::now();
        let listening = tokio::spawn(async move { listen_patiently(addr, &state).await });

        let taken = states.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        assert!(
            matches!(&taken, ListenState::Taken { addr: at, cause, in_use: true, .. }
            if *at == addr && cause.contains("in use")),
            "{taken:?}"
        );
        tokio::time::sleep(Duration::from_secs(12)).await; // Two more tries, and no other news.
        assert!(!states.has_changed().unwrap());

        drop(other);
        let listener = listening.await.unwrap();
        assert_eq!(listener.local_addr().unwrap(), addr);
        assert_eq!(began.elapsed(), 3 * TRY_AGAIN_AFTER);
        assert_eq!(*states.borrow(), Some(ListenState::Listening { addr }));
    }

    #[tokio::test]
    async fn any_port_will_do_if_none_is_named() {
        let (state, states) = watch::channel(None);
        let listener = listen_patiently("127.0.0.1:0".parse().unwrap(), &state).await;
        let addr = listener.local_addr().unwrap();
        assert_ne!(addr.port(), 0);
        assert_eq!(*states.borrow(), Some(ListenState::Listening { addr }));
    }
}
