//! Records who asks to change servers, and which commands run as a result, in the journal and the
//! log.

use xy_gateway::control::Requester;
use xy_protocol::control::{Add, Reload, Request};
use xy_protocol::mask;
use xy_protocol::server::{ServerName, ServerState};
use xy_supervisor::fleet::Member;
use xy_supervisor::journal::Change;

use crate::daemon::Daemon;

/// The origin of a request.
#[derive(Debug, Clone)]
pub(crate) enum Actor {
    /// A user, or a program of that user, at the control socket.
    User,
    /// An MCP client.
    Client(Requester),
}

/// Records who asks to change a server, if the request does. Of a user's requests only `add` is
/// recorded here; the state changes that follow show the others.
pub(crate) async fn record_request(daemon: &Daemon, actor: &Actor, request: &Request) {
    let is_user = matches!(actor, Actor::User);
    let (name, verb, command) = match request {
        Request::Add(add) => (&add.name, "add", added_command(add)),
        _ if is_user => return,
        Request::Remove(params) => (&params.name, "remove", None),
        Request::Restart(params) => match &params.name {
            Some(name) => (name, "restart", configured_command(daemon, name)),
            None => return,
        },
        _ => return,
    };
    record(daemon, actor, (name, verb), command).await;
}

/// Records which client had a server reloaded, and which command its file now configures. Called
/// after the file has been read.
pub(crate) async fn record_reload(daemon: &Daemon, actor: &Actor, params: &Reload) {
    if let (Actor::Client(_), Some(name)) = (actor, &params.name) {
        record(daemon, actor, (name, "reload"), configured_command(daemon, name)).await;
    }
}

async fn record(
    daemon: &Daemon,
    actor: &Actor,
    (name, verb): (&str, &str),
    command: Option<String>,
) {
    let Ok(server) = ServerName::new(name) else { return }; // The request will be refused.
    let who = describe(daemon, actor);
    let command = command.map(|it| format!(": `{it}`")).unwrap_or_default();
    let reason = format!("{who} asked to {verb} it{command}");
    tracing::info!(%server, "{reason}");
    let state = member(daemon, name).and_then(|it| it.instances.into_values().next());
    let state = state.map_or(ServerState::Stopped, |it| it.now().state());
    daemon.journal.record_request(Change::requested(server, state, reason)).await;
}

fn member(daemon: &Daemon, name: &str) -> Option<Member> {
    daemon.fleet.roster().get(name).cloned()
}

fn describe(daemon: &Daemon, actor: &Actor) -> String {
    let Actor::Client(Requester { client, token }) = actor else { return "a user".to_owned() };
    let client = client.as_deref().unwrap_or("unnamed");
    match token {
        None => format!("client `{client}` at the local socket"),
        Some(id) => {
            let tokens = daemon.tokens.lock();
            let tokens = tokens.unwrap_or_else(std::sync::PoisonError::into_inner);
            let token = tokens.describe(*id);
            let token = token.unwrap_or_else(|| "a token that is no longer valid".to_owned());
            format!("client `{client}` over HTTP with {token}")
        }
    }
}

/// Returns the command or URL of a server that is being added, without secrets.
fn added_command(add: &Add) -> Option<String> {
    match (&add.url, &add.command) {
        (Some(url), _) => Some(mask::url(url).0),
        (None, Some(command)) => Some(command_line(command, &add.args)),
        (None, None) => None,
    }
}

/// Returns the command, URL or image that a server's settings name, without secrets.
fn configured_command(daemon: &Daemon, name: &str) -> Option<String> {
    let settings = member(daemon, name)?.settings;
    match (settings.process(), settings.remote(), settings.container()) {
        (Some(process), ..) => Some(command_line(&process.command, &process.args)),
        (_, Some(remote), _) => Some(mask::url(&remote.url).0),
        (.., Some(container)) => Some(format!("container {}", container.image)),
        (None, None, None) => None,
    }
}

/// Returns a program and its arguments on one line, without what looks like a secret.
fn command_line(program: &str, args: &[String]) -> String {
    let quoted = |arg: String| {
        let is_plain = !arg.is_empty() && !arg.contains(|c: char| c.is_whitespace() || c == '\'');
        if is_plain { arg } else { format!("'{arg}'") }
    };
    let args = mask::args(args.iter().map(String::as_str)).args.into_iter().map(quoted);
    std::iter::once(program.to_owned()).chain(args).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_recorded_without_secrets() {
        let args = ["-y", "@x/y", "--token", "s3cr3t-value", "a b", ""].map(str::to_owned);
        let text = command_line("npx", &args);
        assert!(text.starts_with("npx -y @x/y --token ") && text.ends_with(" 'a b' ''"), "{text}");
        assert!(!text.contains("s3cr3t"), "{text}");
        let add = Add { url: Some("https://h/mcp?key=s3cr3t-value".into()), ..Add::default() };
        let text = added_command(&add).unwrap();
        assert!(text.contains("https://h/mcp") && !text.contains("s3cr3t"), "{text}");
    }
}
