//! Handlers of `token_add`, `token_list`, `token_remove` and `token_rotate`: the tokens of HTTP
//! clients, and the profile of each.

use std::sync::PoisonError;

use xy_protocol::control::{
    ByName, TokenAdd, TokenAddResult, TokenList, TokenRemoveResult, TokenRotate, TokenRotateResult,
    quoted,
};
use xy_protocol::error::{CallError, ErrorKind};

use crate::daemon::{Daemon, nearest};
use crate::tokens::Tokens;

pub(super) async fn add(daemon: &Daemon, params: TokenAdd) -> Result<TokenAddResult, CallError> {
    if let Some(profile) = &params.profile {
        check_profile(daemon, profile)?;
    }
    with_tokens(daemon, move |tokens| tokens.add(&params)).await
}

pub(super) async fn list(daemon: &Daemon) -> Result<TokenList, CallError> {
    with_tokens(daemon, |tokens| Ok(TokenList { tokens: tokens.list() })).await
}

pub(super) async fn remove(
    daemon: &Daemon,
    params: ByName,
) -> Result<TokenRemoveResult, CallError> {
    with_tokens(daemon, move |tokens| {
        tokens.remove(&params.name).map(|()| TokenRemoveResult { name: params.name.clone() })
    })
    .await
}

pub(super) async fn rotate(
    daemon: &Daemon,
    params: TokenRotate,
) -> Result<TokenRotateResult, CallError> {
    with_tokens(daemon, move |tokens| tokens.rotate(params.name.as_deref())).await
}

/// Returns an error if there is no such profile. A token for it would give access to nothing.
pub(super) fn check_profile(daemon: &Daemon, name: &str) -> Result<(), CallError> {
    let profiles = daemon.profiles.borrow();
    if profiles.contains_key(name) || name == xy_config::profile::DEFAULT_PROFILE {
        return Ok(());
    }
    let hint = match nearest(name, profiles.keys().map(String::as_str)) {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("create `profiles/{}.kdl`, then run `xy reload`", quoted(name)),
    };
    let message = format!("no profile named `{}`", quoted(name));
    Err(CallError::new(ErrorKind::InvalidParams, message).hint(hint))
}

/// Runs an operation on the tokens on a blocking thread, as it may write to disk.
async fn with_tokens<T: Send + 'static>(
    daemon: &Daemon,
    work: impl FnOnce(&mut Tokens) -> Result<T, CallError> + Send + 'static,
) -> Result<T, CallError> {
    let tokens = daemon.tokens.clone();
    let done = tokio::task::spawn_blocking(move || {
        work(&mut tokens.lock().unwrap_or_else(PoisonError::into_inner))
    });
    let failed = || CallError::new(ErrorKind::Internal, "the tokens could not be accessed");
    done.await.map_err(|cause| failed().cause(cause))?
}
