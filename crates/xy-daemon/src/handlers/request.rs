//! `request`: any request to one server, and its whole response.
//!
//! A server that sleeps is woken, and one with `isolation "client"` gets an instance for as long
//! as the request lasts.

use std::time::Duration;

use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};
use xy_config::settings::Isolation;
use xy_gateway::instance_failed;
use xy_protocol::control::{REQUEST_WITHIN, RawRequest};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{ServerState, Wanted};
use xy_supervisor::fleet::Member;
use xy_supervisor::instance::{Holder, InstanceHandle};

use crate::daemon::Daemon;
use crate::gateway::not_held;
use crate::own_instance::OwnInstance;

pub(super) async fn handle(daemon: &Daemon, ask: RawRequest) -> Result<Box<RawValue>, CallError> {
    let member = daemon.find(&ask.server)?; // It knows the nearest name.
    let within = ask.timeout_ms.map_or(REQUEST_WITHIN, Duration::from_millis);
    let give_up_at = Instant::now() + within;
    let is_isolated = member.settings.isolation == Isolation::Client;
    // Ends with the request.
    let own = if is_isolated && member.wanted == Wanted::Up {
        let started = OwnInstance::start(daemon, &member.settings.name).await;
        Some(started.map_err(|why| not_held(&member.settings.name, &why))?)
    } else {
        None
    };
    let started = match &own {
        Some(own) => Some(own.handle().clone()),
        None if is_asleep(&member) => {
            let woken = daemon.fleet.hold(&member.settings.name, Holder::Shared).await;
            Some(woken.map_err(|why| not_held(&member.settings.name, &why))?)
        }
        None => None,
    };
    if let Some(instance) = &started {
        comes_up(&member, instance, within, give_up_at).await?;
    }
    // Errors name the time that is given here.
    let left = match &started {
        Some(_) => give_up_at.saturating_duration_since(Instant::now()),
        None => within,
    };
    let ask = xy_gateway::RawRequest {
        server: ask.server,
        holder: own.as_ref().map_or(Holder::Shared, |own| own.handle().key().holder),
        is_started: started.is_some(),
        method: ask.method,
        params: ask.params.map(|it| it.get().to_owned()),
        id: ask.id.map_or_else(|| "1".to_owned(), |it| it.get().to_owned()),
        within: left,
    };
    daemon.admin()?.request(ask).await
}

/// Returns true if the instance that all clients share sleeps.
fn is_asleep(member: &Member) -> bool {
    let shared = member.instances.get(&Holder::Shared);
    !member.is_hidden() && shared.is_some_and(|it| it.now().life.state.is_away())
}

/// Waits until an instance that was started for the request runs. A first failure is enough: the
/// request does not wait for later tries.
async fn comes_up(
    member: &Member,
    instance: &InstanceHandle,
    within: Duration,
    give_up_at: Instant,
) -> Result<(), CallError> {
    let name = &member.settings.name;
    match timeout_at(give_up_at, instance.settled()).await {
        Ok(now) if now.state() == ServerState::Running => Ok(()),
        Ok(_) => Err(instance_failed(name, &instance.explain())
            .hint(format!("fix the problem above and retry; `xy logs {name}` shows more"))),
        Err(_) => {
            let now = instance.now();
            let message = format!("`{name}` did not come up within {within:?}");
            let cause = format!("nothing was sent; it is {}: {}", now.state(), instance.explain());
            let hint = "give it more time with `--timeout`";
            Err(CallError::new(ErrorKind::TimedOut, message).cause(cause).hint(hint))
        }
    }
}
