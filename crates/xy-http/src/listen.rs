//! Binds the HTTP port. If another program has it, the daemon runs without it, reports that, and
//! tries again.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

/// The delay between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The state of the listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenState {
    /// Clients can connect.
    Listening {
        /// The bound address. Its port was assigned if the configured one is 0.
        addr: SocketAddr,
    },
    /// The address cannot be bound.
    Unavailable {
        /// The configured address.
        addr: SocketAddr,
        /// The reason.
        cause: String,
        /// Whether another program listens there.
        in_use: bool,
        /// The time until the next attempt.
        retry: Duration,
    },
}

/// Binds `addr`, and retries until that succeeds. Reports the result of each attempt in `state`,
/// which is `None` before the first one.
pub async fn listen_with_retry(
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
        let unavailable = ListenState::Unavailable { addr, cause, in_use, retry: RETRY_INTERVAL };
        state.send_if_modified(|state| {
            let is_news = state.as_ref() != Some(&unavailable);
            if is_news {
                tracing::warn!(?unavailable, "could not listen for HTTP, and will try again");
                *state = Some(unavailable);
            }
            is_news
        });
        tokio::time::sleep(RETRY_INTERVAL).await;
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
    async fn taken_port_is_retried_until_it_is_free() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = other.local_addr().unwrap();
        let (state, mut states) = watch::channel(None);
        let began = Instant::now();
        let listening = tokio::spawn(async move { listen_with_retry(addr, &state).await });

        let unavailable = states.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        assert!(
            matches!(&unavailable, ListenState::Unavailable { addr: at, cause, in_use: true, .. }
            if *at == addr && cause.contains("in use")),
            "{unavailable:?}"
        );
        tokio::time::sleep(Duration::from_secs(12)).await; // Two more attempts, and no change.
        assert!(!states.has_changed().unwrap());

        drop(other);
        let listener = listening.await.unwrap();
        assert_eq!(listener.local_addr().unwrap(), addr);
        assert_eq!(began.elapsed(), 3 * RETRY_INTERVAL);
        assert_eq!(*states.borrow(), Some(ListenState::Listening { addr }));
    }

    #[tokio::test]
    async fn port_zero_binds_any_port() {
        let (state, states) = watch::channel(None);
        let listener = listen_with_retry("127.0.0.1:0".parse().unwrap(), &state).await;
        let addr = listener.local_addr().unwrap();
        assert_ne!(addr.port(), 0);
        assert_eq!(*states.borrow(), Some(ListenState::Listening { addr }));
    }
}
