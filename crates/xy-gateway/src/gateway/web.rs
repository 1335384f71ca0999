//! HTTP, from the gateway's side: what it needs, and when it begins and ends.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::rc::Rc;

use tokio::sync::{oneshot, watch};

use crate::http::{self, HttpRules, ListenState, ListeningSocket, SessionFile, TokenWatch};
use crate::router::Router;

/// Where clients come in over HTTP.
#[derive(Debug)]
pub struct HttpParts {
    /// Where to listen.
    pub address: SocketAddr,
    /// Who may come in, and how many.
    pub rules: HttpRules,
    /// The socket that another daemon has handed over.
    pub inherited: Option<TcpListener>,
    /// The journal of sessions.
    pub sessions_file: PathBuf,
    /// The number of the state folder that the journal is in.
    pub home: u64,
}

/// Serves clients over HTTP until `closed`.
pub(super) async fn serve(
    parts: Option<HttpParts>,
    (tokens, state_key, socket): (TokenWatch, String, ListeningSocket),
    router: Rc<Router>,
    state: watch::Sender<Option<ListenState>>,
    closed: oneshot::Receiver<()>,
) {
    // Without an address, dropping the state says that there is nothing to know.
    let Some(HttpParts { address, rules, inherited, sessions_file, home }) = parts else { return };
    let mut closed = std::pin::pin!(async {
        let _ = closed.await; // Dropped or sent: either way it is time.
    });
    let listener = tokio::select! {
        listener = http::listen(address, inherited, &state, &socket) => listener,
        () = &mut closed => return,
    };
    let generation = router.generation;
    let file = SessionFile { path: sessions_file, home, state_key, generation };
    http::serve(listener, router.clone(), (rules, tokens), Some(file), router, closed).await;
}
