//! Handler of `request`: sends any request to one server, and returns its whole response.
//!
//! A sleeping server is woken. A server with `isolation "client"` gets an instance for the duration
//! of the request.

use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};
use xy_config::settings::Isolation;
use xy_protocol::control::{REQUEST_TIMEOUT, RawRequest};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{ServerState, Wanted};
use xy_supervisor::fleet::Member;
use xy_supervisor::instance::{Holder, InstanceHandle};
use xy_upstream::fault::ServerFault;

use crate::daemon::Daemon;
use crate::hold_error;
use crate::temporary_instance::TemporaryInstance;

pub(super) async fn handle(
    daemon: &Daemon,
    params: RawRequest,
) -> Result<Box<RawValue>, CallError> {
    let member = daemon.find(&params.server)?; // Its error suggests the nearest name.
    let within = params.timeout_ms.map_or(REQUEST_TIMEOUT, Duration::from_millis);
    let give_up_at = Instant::now() + within;
    let is_isolated = member.settings.isolation == Isolation::Client;
    // The instance ends with the request.
    let own = if is_isolated && member.wanted == Wanted::Up {
        let started = TemporaryInstance::start(daemon, &member.settings.name).await;
        Some(started.map_err(|why| hold_error::for_user(&member.settings.name, &why))?)
    } else {
        None
    };
    let started = match &own {
        Some(own) => Some(own.handle().clone()),
        None if is_asleep(&member) => {
            let woken = daemon.fleet.hold(&member.settings.name, Holder::Shared).await;
            Some(woken.map_err(|why| hold_error::for_user(&member.settings.name, &why))?)
        }
        None => None,
    };
    if let Some(instance) = &started {
        wait_until_running(&member, instance, within, give_up_at).await?;
    }
    // Error messages name this time.
    let left = match &started {
        Some(_) => give_up_at.saturating_duration_since(Instant::now()),
        None => within,
    };
    let request = xy_gateway::RawRequest {
        server: params.server,
        holder: own.as_ref().map_or(Holder::Shared, |own| own.handle().key().holder),
        is_started: started.is_some(),
        method: params.method,
        params: params.params.map(|it| it.get().to_owned()),
        id: params.id.map_or_else(|| "1".to_owned(), |it| it.get().to_owned()),
        within: left,
    };
    daemon.admin()?.request(request).await
}

/// Returns true if the instance that all clients share is asleep.
fn is_asleep(member: &Member) -> bool {
    let shared = member.instances.get(&Holder::Shared);
    !member.is_hidden() && shared.is_some_and(|it| it.now().life.state.is_sleeping())
}

/// Waits until an instance that was started for the request runs. Fails at its first failure,
/// without waiting for later attempts.
async fn wait_until_running(
    member: &Member,
    instance: &InstanceHandle,
    within: Duration,
    give_up_at: Instant,
) -> Result<(), CallError> {
    let name = &member.settings.name;
    match timeout_at(give_up_at, instance.settled()).await {
        Ok(now) if now.state() == ServerState::Running => Ok(()),
        Ok(_) => Err(ServerFault::InstanceFailed(instance.explain())
            .named(name)
            .hint(format!("fix the problem above and retry; `xy logs {name}` shows more"))),
        Err(_) => {
            let now = instance.now();
            let message = format!("`{name}` did not start within {within:?}");
            let cause = format!(
                "the request was not sent; the server is {}: {}",
                now.state(),
                instance.explain()
            );
            let hint = "give it more time with `--timeout`";
            Err(CallError::new(ErrorKind::TimedOut, message).cause(cause).hint(hint))
        }
    }
}
