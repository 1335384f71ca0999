//! `token_add`, `token_list`, `token_remove`, `token_rotate`: who may come in over HTTP, and to what.

use std::sync::PoisonError;

use xy_protocol::control::{
    ByName, TokenAdd, TokenAdded, TokenList, TokenRemoved, TokenRotate, TokenRotated, quoted,
};
use xy_protocol::error::{CallError, ErrorKind};

use crate::daemon::{Daemon, nearest};
use crate::tokens::Tokens;

pub(super) async fn add(daemon: &Daemon, ask: TokenAdd) -> Result<TokenAdded, CallError> {
    if let Some(profile) = &ask.profile {
        check_profile(daemon, profile)?;
    }
    with(daemon, move |tokens| tokens.add(&ask)).await
}

pub(super) async fn list(daemon: &Daemon) -> Result<TokenList, CallError> {
    with(daemon, |tokens| Ok(TokenList { tokens: tokens.list() })).await
}

pub(super) async fn remove(daemon: &Daemon, ask: ByName) -> Result<TokenRemoved, CallError> {
    with(daemon, move |tokens| {
        tokens.remove(&ask.name).map(|()| TokenRemoved { name: ask.name.clone() })
    })
    .await
}

pub(super) async fn rotate(daemon: &Daemon, ask: TokenRotate) -> Result<TokenRotated, CallError> {
    with(daemon, move |tokens| tokens.rotate(ask.name.as_deref())).await
}

/// Whether there is such a profile: a token for none would open nothing.
pub(super) fn check_profile(daemon: &Daemon, name: &str) -> Result<(), CallError> {
    let profiles = daemon.profiles.borrow();
    if profiles.contains_key(name) || name == xy_config::profile::DEFAULT_PROFILE {
        return Ok(());
    }
    let hint = match nearest(name, profiles.keys().map(String::as_str)) {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("write `profiles/{}.kdl`, and `xy reload`", quoted(name)),
    };
    let message = format!("no profile named `{}`", quoted(name));
    Err(CallError::new(ErrorKind::InvalidParams, message).hint(hint))
}

/// Does something with the tokens, which may have to be written to a disk.
async fn with<T: Send + 'static>(
    daemon: &Daemon,
    work: impl FnOnce(&mut Tokens) -> Result<T, CallError> + Send + 'static,
) -> Result<T, CallError> {
    let tokens = daemon.tokens.clone();
    let done = tokio::task::spawn_blocking(move || {
        work(&mut tokens.lock().unwrap_or_else(PoisonError::into_inner))
    });
    let failed = || CallError::new(ErrorKind::Internal, "the tokens could not be looked at");
    done.await.map_err(|cause| failed().cause(cause))?
}
