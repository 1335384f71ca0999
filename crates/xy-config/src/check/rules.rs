//! Combines the fields of a server, and checks rules about several fields at once.

use std::path::PathBuf;
use std::time::Duration;

use xy_protocol::server::{Era, Transport};

use super::Machine;
use super::blocks::{CallFields, RestartFields};
use super::container::{ContainerFields, NOT_FOR_CONTAINER};
use super::fields::Fields;
use super::problems::Problems;
use super::program::CommandRules;
use super::read::Spanned;
use super::secrets;
use crate::environment::EnvironmentDefaults;
use crate::references::{self, Holder};
use crate::report::Problem;
use crate::settings::{
    CallRules, ContainerSettings, Isolation, ProcessSettings, REMOTE_BACKOFF_MAX, RemoteSettings,
    RestartPolicy, RestartRules, Rules, ServerKind, StopRules,
};
use crate::source::{SourceFile, SourceSpan};

/// Fields that a remote server cannot have, and what to do instead.
const NOT_FOR_REMOTE: [(&str, &str); 8] = [
    ("args", "remove it: nothing is started here"),
    ("port", "write the port in the `url`"),
    ("path", "write the path in the `url`"),
    ("env", "remove it: nothing is started here; use `headers` to send it data"),
    ("working-dir", "remove it: nothing is started here"),
    ("limits", "remove it: it has no process here that could be limited"),
    ("stop", "remove it: xy cannot stop it"),
    ("share-key", "remove it: it has no process here that could be shared"),
];

/// A server whose fields are being combined with their defaults.
pub(super) struct ServerBuilder<'a> {
    pub(super) file: &'a SourceFile,
    pub(super) fields: Fields,
    pub(super) problems: &'a mut Problems,
    pub(super) machine: &'a dyn Machine,
    pub(super) environment: &'a EnvironmentDefaults,
}

impl ServerBuilder<'_> {
    /// Returns what the server is; `None` if that is unknown.
    pub(super) fn kind(&mut self) -> Option<ServerKind> {
        self.check_kind();
        if self.is_remote() {
            return self.remote().map(ServerKind::Remote);
        }
        if self.is_container() {
            return self.container().map(|it| ServerKind::Container(Box::new(it)));
        }
        let has_url = self.fields.kinds.iter().any(|(name, _)| *name == "url");
        let headers = self.fields.own.iter().find(|(name, _)| *name == "headers");
        if let Some((_, at)) = headers.filter(|_| !has_url && !self.fields.is_incomplete) {
            let problem = Problem::error(at, "only a server with a `url` has `headers`");
            self.problems.push(problem.suggest("remove them, or add the `url` they are for"));
        }
        self.process().map(ServerKind::Process)
    }

    /// Returns true if the server's only kind is `url`.
    pub(super) fn is_remote(&self) -> bool {
        matches!(self.fields.kinds.as_slice(), [("url", _)])
    }

    /// Returns true if the server's only kind is `container`.
    pub(super) fn is_container(&self) -> bool {
        matches!(self.fields.kinds.as_slice(), [("container", _)])
    }

    fn container(&mut self) -> Option<ContainerSettings> {
        for (name, at) in &self.fields.own {
            if *name == "headers" {
                let problem = Problem::error(at, "only a server with a `url` has `headers`");
                self.problems.push(problem.suggest("remove them"));
            }
            let Some((_, instead)) = NOT_FOR_CONTAINER.iter().find(|(it, _)| it == name) else {
                continue;
            };
            let message = format!("a server with a `container` has no `{name}` beside it");
            self.problems.push(Problem::error(at, message).suggest(*instead));
        }
        let transport = self.transport();
        let path = self.path(transport);
        let port = self.fields.port.as_ref().map(|port| port.value);
        let ContainerFields { settings, port: inner_port, network } =
            std::mem::take(&mut self.fields.container);
        if let (Some(inner), Transport::Stdio) = (&inner_port, transport) {
            let message = "`port` inside `container` has no effect without a `port` beside it";
            let problem = Problem::error(&inner.at, message);
            self.problems.push(problem.suggest("add the port of this machine: `port 8421`"));
        }
        if let (Some(network), Some(port)) = (&network, &self.fields.port)
            && matches!(network.value.as_str(), "none" | "host")
        {
            let message = format!("a port cannot be published in the network `{}`", network.value);
            let problem = Problem::error(&network.at, message).label("use another network");
            self.problems.push(problem.related(&port.at, "the port is given here"));
        }
        let inner_port = inner_port.map(|port| port.value);
        Some(ContainerSettings { transport, port, inner_port, path, ..settings? })
    }

    fn remote(&mut self) -> Option<RemoteSettings> {
        for (name, at) in &self.fields.own {
            let Some((_, instead)) = NOT_FOR_REMOTE.iter().find(|(it, _)| it == name) else {
                continue;
            };
            let message = format!("a server with a `url` has no `{name}`");
            self.problems.push(Problem::error(at, message).suggest(*instead));
        }
        // A transport in `defaults` applies only to servers that can have it.
        let transport = self.fields.transport.as_ref().map(|it| it.value);
        if let Some(Spanned { value: Transport::Stdio, at }) = &self.fields.transport
            && at.file.shown == self.file.shown
        {
            let message = "a server with a `url` cannot use transport `stdio`";
            let problem = Problem::error(at, message);
            self.problems.push(problem.suggest("use `\"http\"` or `\"sse\"`, or leave it out"));
        }
        if let Some(url) = &self.fields.url
            && let Some((header, host)) =
                secrets::sent_unencrypted(&url.value, self.fields.headers.keys())
        {
            let message = format!("`{header}` is sent to `{host}` without encryption");
            let problem = Problem::warning(&url.at, message);
            self.problems.push(problem.suggest("use `https://` if the server supports it"));
        }
        Some(RemoteSettings {
            url: self.fields.url.take()?.value,
            headers: std::mem::take(&mut self.fields.headers),
            is_older: transport == Some(Transport::Sse),
        })
    }

    fn process(&mut self) -> Option<ProcessSettings> {
        let transport = self.transport();
        let path = self.path(transport);
        let command = self.command();
        self.warn_of_references();
        Some(ProcessSettings {
            command: command?,
            args: self.args(),
            env: self
                .fields
                .env
                .iter()
                .map(|(name, it)| (name.clone(), it.value.clone()))
                .collect(),
            working_dir: self.working_dir(),
            transport,
            port: self.fields.port.as_ref().map(|port| port.value),
            path,
            limits: self.fields.limits.to_limits(),
        })
    }

    /// Returns which clients share an instance.
    pub(super) fn isolation(&self) -> Isolation {
        value_or(self.fields.isolation.as_ref(), Isolation::default())
    }

    /// Returns the only era in which xy speaks with the server, if its file sets one.
    pub(super) fn era(&self) -> Option<Era> {
        self.fields.era.as_ref().and_then(|it| it.value)
    }

    /// Returns the lifecycle rules.
    pub(super) fn rules(&mut self) -> Rules {
        let restart = self.restart();
        let ready = self.ready();
        let calls = self.calls();
        let health = self.health();
        let mut rules = Rules { restart, ready, calls, health, ..self.environment.rules() };
        if let Some(grace) = &self.fields.grace {
            rules.stop = StopRules { grace: grace.value };
        }
        rules.start = value_or(self.fields.start.as_ref(), rules.start);
        rules.idle_stop = self.fields.idle_stop.as_ref().map(|it| it.value);
        rules
    }

    /// Returns the restart rules. A remote server has no exits to count: xy retries until it
    /// answers. Exit limits and the maximum delay in `defaults` are for processes only.
    fn restart(&mut self) -> RestartRules {
        let fields = &self.fields.restart;
        let mut rules = restart_rules(fields, self.environment);
        if !self.is_remote() {
            check_restart(fields, &rules, self.problems);
            return rules;
        }
        for (name, at) in &fields.exit_limits {
            let message = format!("a server with a `url` has no `{name}`");
            let instead = "remove it: xy retries until the server answers";
            self.problems.push(Problem::error(at, message).suggest(instead));
        }
        let is_own = |at: &SourceSpan| at.file.shown == self.file.shown;
        if !fields.backoff_max.as_ref().is_some_and(|it| is_own(&it.at)) {
            rules.backoff_max = REMOTE_BACKOFF_MAX.max(rules.backoff_initial);
        }
        let defaults = RestartRules::default();
        let rules = RestartRules {
            backoff_initial: rules.backoff_initial,
            backoff_max: rules.backoff_max,
            jitter: rules.jitter,
            ..defaults
        };
        check_restart(fields, &rules, self.problems);
        rules
    }

    /// Returns the time limits of calls.
    fn calls(&mut self) -> CallRules {
        let CallFields { idle, within } = &self.fields.calls;
        if let (Some(idle), Some(within)) = (idle, within)
            && idle.value > within.value
        {
            let message = "`idle` is longer than `within`, so it has no effect";
            let problem = Problem::warning(&idle.at, message).label("never reached");
            self.problems.push(problem.related(&within.at, "calls time out after this"));
        }
        CallRules {
            idle: idle.as_ref().map(|it| it.value),
            within: within.as_ref().map(|it| it.value),
        }
    }

    /// Returns the transport: the given one, or the one that follows from other fields.
    pub(super) fn effective_transport(&self) -> Transport {
        match &self.fields.transport {
            Some(transport) => transport.value,
            None if self.fields.port.is_some() => Transport::Http,
            None => Transport::Stdio,
        }
    }

    /// Checks that exactly one field defines what the server is.
    fn check_kind(&mut self) {
        match self.fields.kinds.as_slice() {
            [] if self.fields.is_incomplete => {}
            [] => {
                let message = "missing `command`, `container` or `url`";
                let problem = Problem::in_file(&self.file.shown, message);
                self.problems
                    .push(problem.suggest("add one of them, for example `command \"npx\"`"));
            }
            [_] => {}
            [(first, first_at), rest @ ..] => {
                for (other, at) in rest {
                    let message = format!("a server cannot have both `{first}` and `{other}`");
                    let problem = Problem::error(at, message).label("remove one of them");
                    self.problems.push(problem.related(first_at, "the other one"));
                }
            }
        }
    }

    fn transport(&mut self) -> Transport {
        let port = self.fields.port.as_ref();
        match &self.fields.transport {
            Some(Spanned { value: Transport::Stdio, at }) => {
                if let Some(port) = port {
                    let message = "a server with transport `stdio` has no `port`";
                    let problem = Problem::error(&port.at, message)
                        .label("remove it, or use transport `http`")
                        .related(at, "the transport is given here");
                    self.problems.push(problem);
                }
            }
            Some(Spanned { value, at }) if port.is_none() && !self.fields.is_broken("port") => {
                let problem = self.port_is_missing(*value, at);
                self.problems.push(problem);
            }
            _ => {}
        }
        self.effective_transport()
    }

    fn port_is_missing(&self, transport: Transport, at: &SourceSpan) -> Problem {
        let message = format!("transport `{}` needs a `port`", transport.as_str());
        if at.file.shown == self.file.shown {
            return Problem::error(at, message).suggest("add the port it listens on: `port 8421`");
        }
        // The transport is from `defaults`, so the server's own file has to be named.
        let problem = Problem::error(at, format!("{message} in `{}`", self.file.shown));
        problem.suggest("add the `port` there, or give that server another `transport`")
    }

    fn path(&mut self, transport: Transport) -> Option<String> {
        let path = self.fields.path.take()?;
        if transport != Transport::Stdio {
            return Some(path.value);
        }
        // A `path` in `defaults` applies only to servers that can have one.
        let is_own = path.at.file.shown == self.file.shown;
        let is_unknown = self.fields.is_broken("transport") || self.fields.is_broken("port");
        if is_own && !is_unknown {
            let message = format!("a server with transport `{}` has no `path`", transport.as_str());
            let problem = Problem::error(&path.at, message);
            self.problems.push(problem.suggest("remove it, or use transport `http` with a `port`"));
        }
        None
    }

    fn working_dir(&self) -> Option<PathBuf> {
        self.fields.working_dir.as_ref().map(|folder| folder.value.clone())
    }

    fn command(&mut self) -> Option<String> {
        let command = self.fields.command.as_ref()?;
        let working_dir = self.working_dir();
        let rules = CommandRules {
            working_dir: working_dir.as_deref(),
            working_dir_is_broken: self.fields.is_broken("working-dir"),
            env: &self.fields.env,
            args: &self.args(),
            machine: self.machine,
        };
        let (command, missing) = match rules.resolve(command) {
            Ok((command, missing)) => (Some(command), missing),
            Err(problem) => (None, Some(problem)),
        };
        if let Some(problem) = missing {
            self.problems.push(problem);
        }
        if let Some(problem) = self.container_by_cli() {
            self.problems.push(problem);
        }
        command
    }

    fn args(&self) -> Vec<String> {
        self.fields.args.iter().flatten().map(|it| it.value.clone()).collect()
    }

    /// Warns about references in arguments, which only a shell would expand.
    fn warn_of_references(&mut self) {
        let Some(args) = &self.fields.args else { return };
        let command = self.fields.command.as_ref().map_or("", |it| &it.value);
        for (at, reference) in references::in_args(command, args.iter().map(|it| &*it.value)) {
            let problem = Problem::warning(&args[at].at, reference.message());
            self.problems.push(problem.suggest(reference.advice(Holder::Value)));
        }
    }

    /// Warns about `docker run …` as a command, which hides the container from xy.
    fn container_by_cli(&self) -> Option<Problem> {
        let command = self.fields.command.as_ref()?;
        let name = command.value.rsplit('/').next().unwrap_or_default();
        let args = self.args();
        let args = args.as_slice();
        let runs = args.first().is_some_and(|it| it == "run")
            || matches!(args, [first, second, ..] if first == "container" && second == "run");
        if !matches!(name, "docker" | "podman") || !runs {
            return None;
        }
        let message = format!("xy sees this container only as the process `{name}`");
        let instead = "this works, but with `container { image \"…\"; }` it survives the daemon, its \
                       limits are enforced, and its exit is reported";
        Some(Problem::warning(&command.at, message).suggest(instead))
    }
}

/// Returns the restart rules of a block, with the defaults of the environment and of xy.
pub(super) fn restart_rules(
    fields: &RestartFields,
    environment: &EnvironmentDefaults,
) -> RestartRules {
    let defaults = environment.rules().restart;
    let backoff_max = value_or(fields.backoff_max.as_ref(), defaults.backoff_max);
    // The variable must not make a file invalid, so the file limits it.
    let first = match environment.restart_delay {
        Some(delay) => delay.min(backoff_max),
        None => defaults.backoff_initial,
    };
    RestartRules {
        policy: value_or(fields.policy.as_ref(), defaults.policy),
        backoff_initial: value_or(fields.backoff_initial.as_ref(), first),
        backoff_max,
        max_retries_per_minute: value_or(
            fields.max_retries_per_minute.as_ref(),
            defaults.max_retries_per_minute,
        ),
        max_attempts: value_or(fields.max_attempts.as_ref(), defaults.max_attempts),
        reset_after: value_or(fields.reset_after.as_ref(), defaults.reset_after),
        jitter: value_or(fields.jitter.as_ref(), defaults.jitter),
    }
}

pub(super) fn value_or<T: Copy>(field: Option<&Spanned<T>>, otherwise: T) -> T {
    field.map_or(otherwise, |field| field.value)
}

/// Checks that the delays fit each other, and that the limits can be reached.
pub(super) fn check_restart(fields: &RestartFields, rules: &RestartRules, problems: &mut Problems) {
    if fields.delays_are_broken {
        return; // A delay that seems missing is given, but invalid.
    }
    if rules.backoff_initial > rules.backoff_max {
        problems.extend(delays_crossed(fields, rules));
    } else if limit_never_trips(rules) {
        problems.extend(idle_limit(fields, rules));
    }
}

fn delays_crossed(fields: &RestartFields, rules: &RestartRules) -> Option<Problem> {
    let message = "`backoff-initial` is longer than `backoff-max`";
    let initial = humantime::format_duration(rules.backoff_initial);
    let max = humantime::format_duration(rules.backoff_max);
    Some(match (&fields.backoff_initial, &fields.backoff_max) {
        (Some(first), Some(last)) => Problem::error(&first.at, message)
            .label("the first delay")
            .related(&last.at, "the longest delay"),
        (Some(first), None) => Problem::error(&first.at, message)
            .suggest(format!("`backoff-max` is \"{max}\" unless you raise it too")),
        (None, Some(last)) => Problem::error(&last.at, message)
            .suggest(format!("`backoff-initial` is \"{initial}\" unless you lower it too")),
        (None, None) => return None,
    })
}

fn idle_limit(fields: &RestartFields, rules: &RestartRules) -> Option<Problem> {
    let at = [
        fields.max_retries_per_minute.as_ref().map(|it| &it.at),
        fields.backoff_initial.as_ref().map(|it| &it.at),
        fields.backoff_max.as_ref().map(|it| &it.at),
        fields.max_attempts.as_ref().map(|it| &it.at),
    ];
    let at = at.into_iter().flatten().next()?;
    let exits = u64::from(rules.max_retries_per_minute) + 1;
    let message = "`max-retries-per-minute` can never be exceeded with these delays";
    let why = format!("{exits} exits take more than a minute, so it is retried forever");
    Some(Problem::warning(at, message).label(why).suggest("set `max-attempts` to limit retries"))
}

/// Returns true if the delays alone keep the exits further apart than the limit per minute.
fn limit_never_trips(rules: &RestartRules) -> bool {
    let no_limit = rules.policy == RestartPolicy::Never || rules.max_retries_per_minute == 0;
    if no_limit || rules.max_attempts > 0 || rules.backoff_initial.is_zero() {
        return false;
    }
    let mut waited = Duration::ZERO;
    let mut delay = rules.backoff_initial;
    for _ in 0..rules.max_retries_per_minute {
        waited = waited.saturating_add(delay); // Jitter only increases it.
        if waited > Duration::from_mins(1) {
            return true;
        }
        delay = delay.saturating_mul(2).min(rules.backoff_max);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_minute_limit_trips_unless_delays_are_longer() {
        let rules = |initial: u64, max: u64, per_minute, jitter| RestartRules {
            backoff_initial: Duration::from_secs(initial),
            backoff_max: Duration::from_secs(max),
            max_retries_per_minute: per_minute,
            max_attempts: 0,
            jitter,
            ..RestartRules::default()
        };
        let table = [
            (rules(1, 30, 5, true), false), // 1 + 2 + 4 + 8 + 16 = 31 s
            (rules(1, 30, 6, false), true), // 31 + 30 = 61 s
            (rules(1, 30, 6, true), true),
            (rules(1, 30, 9, true), true),
            (rules(0, 30, 900, false), false),
            (rules(1, 30, 0, false), false), // There is no limit to trip.
            (rules(1, 1, u32::MAX, false), true),
            (RestartRules { max_attempts: 5, ..rules(1, 30, 9, false) }, false),
            (RestartRules { policy: RestartPolicy::Never, ..rules(1, 30, 9, false) }, false),
        ];
        for (rules, never) in table {
            assert_eq!(limit_never_trips(&rules), never, "{rules:?}");
        }
    }
}
