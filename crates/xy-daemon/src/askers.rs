//! Who asks to change servers, and which commands run then: for the journal and the log.

use xy_gateway::control::Asker;
use xy_protocol::control::{Add, Reload, Request};
use xy_protocol::mask;
use xy_protocol::server::{ServerName, ServerState};
use xy_supervisor::fleet::Member;
use xy_supervisor::journal::Change;

use crate::daemon::Daemon;

/// Who asks for something.
#[derive(Debug, Clone)]
pub(crate) enum By {
    /// A person, or a program of theirs, at the control socket.
    Person,
    /// An MCP client.
    Client(Asker),
}

/// Notes who asks to change a server, if that is what is asked. A person's other requests are
/// told by what comes of them.
pub(crate) async fn note(daemon: &Daemon, by: &By, request: &Request) {
    let is_person = matches!(by, By::Person);
    let (name, what, runs) = match request {
        Request::Add(add) => (&add.name, "add", added(add)),
        _ if is_person => return,
        Request::Remove(ask) => (&ask.name, "remove", None),
        Request::Restart(ask) => match &ask.name {
            Some(name) => (name, "restart", configured(daemon, name)),
            None => return,
        },
        _ => return,
    };
    tell(daemon, by, (name, what), runs).await;
}

/// Notes which client had a server reloaded, and what runs now by its file. Called when the file
/// has been read.
pub(crate) async fn note_reload(daemon: &Daemon, by: &By, ask: &Reload) {
    if let (By::Client(_), Some(name)) = (by, &ask.name) {
        tell(daemon, by, (name, "reload"), configured(daemon, name)).await;
    }
}

async fn tell(daemon: &Daemon, by: &By, (name, what): (&str, &str), runs: Option<String>) {
    let Ok(server) = ServerName::new(name) else { return }; // It is refused.
    let who = words(daemon, by);
    let runs = runs.map(|it| format!(": `{it}`")).unwrap_or_default();
    let reason = format!("{who} asked to {what} it{runs}");
    tracing::info!(%server, "{reason}");
    let state = member(daemon, name).and_then(|it| it.instances.into_values().next());
    let state = state.map_or(ServerState::Stopped, |it| it.now().state());
    daemon.journal.note_asked(Change::asked(server, state, reason)).await;
}

fn member(daemon: &Daemon, name: &str) -> Option<Member> {
    daemon.fleet.roster().get(name).cloned()
}

fn words(daemon: &Daemon, by: &By) -> String {
    let By::Client(Asker { client, token }) = by else { return "a person".to_owned() };
    let client = client.as_deref().unwrap_or("without a name");
    match token {
        None => format!("client `{client}` at the local socket"),
        Some(id) => {
            let tokens = daemon.tokens.lock();
            let tokens = tokens.unwrap_or_else(std::sync::PoisonError::into_inner);
            let token = tokens.describe(*id);
            let token = token.unwrap_or_else(|| "a token that is not valid any more".to_owned());
            format!("client `{client}` over HTTP with {token}")
        }
    }
}

/// What is about to run.
fn added(add: &Add) -> Option<String> {
    match (&add.url, &add.command) {
        (Some(url), _) => Some(mask::url(url).0),
        (None, Some(command)) => Some(line(command, &add.args)),
        (None, None) => None,
    }
}

/// What runs by the server's settings.
fn configured(daemon: &Daemon, name: &str) -> Option<String> {
    let settings = member(daemon, name)?.settings;
    match (settings.process(), settings.remote(), settings.container()) {
        (Some(process), ..) => Some(line(&process.command, &process.args)),
        (_, Some(remote), _) => Some(mask::url(&remote.url).0),
        (.., Some(container)) => Some(format!("container {}", container.image)),
        (None, None, None) => None,
    }
}

/// A program and its arguments on one line, without what looks like a secret.
fn line(program: &str, args: &[String]) -> String {
    let quoted = |arg: String| {
        let is_plain = !arg.is_empty() && !arg.contains(|c: char| c.is_whitespace() || c == '\'');
        if is_plain { arg } else { format!("'{arg}'") }
    };
    let args = mask::args(args.iter().map(String::as_str)).words.into_iter().map(quoted);
    std::iter::once(program.to_owned()).chain(args).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_without_secrets() {
        let args = ["-y", "@x/y", "--token", "s3cr3t-value", "a b", ""].map(str::to_owned);
        let told = line("npx", &args);
        assert!(told.starts_with("npx -y @x/y --token ") && told.ends_with(" 'a b' ''"), "{told}");
        assert!(!told.contains("s3cr3t"), "{told}");
        let add = Add { url: Some("https://h/mcp?key=s3cr3t-value".into()), ..Add::default() };
        let told = added(&add).unwrap();
        assert!(told.contains("https://h/mcp") && !told.contains("s3cr3t"), "{told}");
    }
}
