//! The daemon's side of the gateway: the control plane, and the parts that start the HTTP gateway.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use serde_json::Value;
use tokio::runtime::Handle;
use xy_config::Paths;
use xy_config::settings::GatewaySettings;
use xy_gateway::HttpParts;
use xy_gateway::control::{BoxFuture, Control, Requester};
use xy_http::{Auth, Hosts, HttpRules, random_token, read_or_create_token};
use xy_ipc::server::Answer;
use xy_protocol::control::Request;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::{ServerName, ServerState};
use xy_supervisor::instance::Holder;
use xy_supervisor::launch::home::home_id;
use xy_upstream::fault::ServerFault;

use crate::audit::Actor;
use crate::daemon::Daemon;
use crate::handlers::Handlers;
use crate::hold_error;
use crate::tokens::Tokens;

/// The daemon's operations that the gateway can call.
pub(crate) struct ControlPlane {
    daemon: Arc<Daemon>,
    runtime: Handle,
}

impl ControlPlane {
    /// Creates the control plane of a gateway in this process.
    pub(crate) fn here(daemon: Arc<Daemon>) -> Self {
        Self { daemon, runtime: Handle::current() }
    }

    fn send(&self, actor: Actor, request: Request) -> BoxFuture<Result<Value, CallError>> {
        let handlers = Handlers(self.daemon.clone());
        // The handler runs on the daemon's own threads, so that it blocks no client. Once started,
        // it completes even if the client leaves.
        let answering = self.runtime.spawn(async move { handlers.call_as(&actor, request).await });
        Box::pin(async move {
            let unreadable = |cause: &dyn std::fmt::Display| {
                CallError::new(ErrorKind::Internal, "the answer could not be read").cause(cause)
            };
            match answering.await.map_err(|cause| unreadable(&cause))?? {
                Answer::Result(result) | Answer::WithDescriptor(result, _) => {
                    serde_json::from_str(result.get()).map_err(|cause| unreadable(&cause))
                }
                Answer::Stream(_) => {
                    Err(unreadable(&"it is a stream, which the gateway cannot use"))
                }
            }
        })
    }
}

impl Control for ControlPlane {
    fn call(&self, request: Request) -> BoxFuture<Result<Value, CallError>> {
        self.send(Actor::User, request)
    }

    fn manage(&self, by: Requester, request: Request) -> BoxFuture<Result<Value, CallError>> {
        self.send(Actor::Client(by), request)
    }

    fn hold(&self, server: &ServerName, holder: Holder) -> BoxFuture<Result<(), ServerFault>> {
        let (fleet, server) = (self.daemon.fleet.clone(), server.clone());
        Box::pin(async move {
            let held = fleet.hold(&server, holder).await;
            let held = held.map_err(|why| hold_error::fault(holder, &why))?;
            let is_decided = |state| {
                use ServerState::{Asleep, Failed, Running, Stopped};
                matches!(state, Running | Failed | Stopped | Asleep)
            };
            let now = held.wait_until(|now| is_decided(now.state())).await;
            match now.state() {
                // An instance that is asleep again is woken when it is needed.
                ServerState::Running | ServerState::Asleep => Ok(()),
                ServerState::Failed if holder != Holder::Shared => {
                    Err(ServerFault::InstanceFailed(held.explain()))
                }
                _ => Err(ServerFault::NoInstance(holder, now.life.reason.to_string())),
            }
        })
    }

    fn release(&self, server: &ServerName, client: u64) -> BoxFuture<()> {
        let (fleet, server) = (self.daemon.fleet.clone(), server.clone());
        Box::pin(async move { fleet.release(&server, client).await })
    }
}

/// Returns the parts of the HTTP gateway that the files configure, and the problem that keeps it
/// from listening. Such a problem does not stop the daemon: everything else works, and `xy status`
/// and the log report it.
pub(crate) fn http_parts(
    settings: &GatewaySettings,
    paths: &Paths,
    tokens: &mut Tokens,
    inherited: Option<TcpListener>,
) -> (Option<HttpParts>, Option<String>) {
    let Some(listen) = settings.listen else { return (None, None) };
    match rules(listen, settings, tokens) {
        Ok(rules) => {
            let home = u64::from_str_radix(&home_id(&paths.shims_dir), 16).unwrap_or_default();
            let sessions_file = paths.http_sessions_file.clone();
            (Some(HttpParts { address: listen, rules, inherited, sessions_file, home }), None)
        }
        Err(cause) => {
            let file = paths.token_file.display();
            let problem = format!(
                "HTTP gateway is not listening: cannot store the token in `{file}`: {cause}"
            );
            tracing::error!("{problem}");
            (None, Some(problem))
        }
    }
}

/// Returns the key that signs state which clients carry. A key that cannot be stored works until
/// the next daemon starts.
pub(crate) fn state_key(paths: &Paths) -> io::Result<String> {
    read_or_create_token(&paths.state_key_file).or_else(|cause| {
        let file = paths.state_key_file.display();
        tracing::warn!("the key `{file}` cannot be stored: {cause}");
        random_token()
    })
}

fn rules(
    listen: SocketAddr,
    settings: &GatewaySettings,
    tokens: &mut Tokens,
) -> io::Result<HttpRules> {
    let auth = match settings.auth {
        xy_config::settings::Auth::None => Auth::None,
        xy_config::settings::Auth::Token => {
            tokens.read_own()?;
            Auth::Tokens(Vec::new()) // The gateway receives them through a `watch`.
        }
    };
    Ok(HttpRules {
        auth,
        sessions_max: settings.sessions,
        streams_per_session_max: settings.streams,
        body_max_bytes: usize::try_from(settings.body).unwrap_or(usize::MAX),
        idle: settings.idle,
        hosts: Hosts::new(listen.ip(), &settings.hosts),
    })
}
