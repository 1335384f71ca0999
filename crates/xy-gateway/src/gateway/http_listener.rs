//! Starts and stops the HTTP listener.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::rc::Rc;

use tokio::sync::{oneshot, watch};
use xy_http::{HttpRules, ListenState, ListeningSocket, SessionFile, TokenWatch};

use crate::router::Router;

/// The settings of the HTTP listener.
#[derive(Debug)]
pub struct HttpParts {
    /// The address to listen at.
    pub address: SocketAddr,
    /// The authentication rules and limits.
    pub rules: HttpRules,
    /// The socket that another daemon has handed over.
    pub inherited: Option<TcpListener>,
    /// The path of the session journal.
    pub sessions_file: PathBuf,
    /// The number of the state folder with the journal.
    pub home: u64,
}

/// Serves clients over HTTP until `closed` resolves.
pub(super) async fn serve(
    parts: Option<HttpParts>,
    (tokens, state_key, socket): (TokenWatch, String, ListeningSocket),
    router: Rc<Router>,
    state: watch::Sender<Option<ListenState>>,
    closed: oneshot::Receiver<()>,
) {
    // Dropping `state` without a value reports that there is no listener.
    let Some(HttpParts { address, rules, inherited, sessions_file, home }) = parts else { return };
    let mut closed = std::pin::pin!(async {
        let _ = closed.await; // Dropped or sent: both end the listener.
    });
    let listener = tokio::select! {
        listener = xy_http::listen(address, inherited, &state, &socket) => listener,
        () = &mut closed => return,
    };
    let generation = router.generation;
    let file = SessionFile { path: sessions_file, home, state_key, generation };
    xy_http::serve(listener, router.clone(), (rules, tokens), Some(file), router, closed).await;
}
