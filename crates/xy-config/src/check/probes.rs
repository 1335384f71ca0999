//! Decides which `ready` and `health` probes a server can have, once `defaults` are known.
//!
//! A probe in `defaults` applies to servers that can have it; the others use the default probe.
//! A probe in a server's own file must fit the server.

use xy_protocol::server::Transport;

use super::blocks::{HealthFields, ReadyFields};
use super::read::Spanned;
use super::rules::{ServerBuilder, value_or};
use crate::report::Problem;
use crate::settings::{HealthProbe, HealthRules, Probe, ReadyRules};
use crate::source::SourceSpan;

/// The requirement of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// A process on this machine.
    Process,
    /// A port of this machine.
    Port(&'static str),
}

fn ready_needs(probe: Probe) -> Needs {
    match probe {
        Probe::Mcp => Needs::Nothing,
        Probe::Process => Needs::Process,
        Probe::Tcp => Needs::Port("tcp"),
        Probe::Http => Needs::Port("http"),
    }
}

fn health_needs(probe: HealthProbe) -> Needs {
    match probe {
        HealthProbe::Off | HealthProbe::Mcp => Needs::Nothing,
        HealthProbe::Process => Needs::Process,
        HealthProbe::Tcp => Needs::Port("tcp"),
        HealthProbe::Http => Needs::Port("http"),
    }
}

impl ServerBuilder<'_> {
    /// Returns the readiness rules.
    pub(super) fn ready(&mut self) -> ReadyRules {
        let ReadyFields { probe, within, path, timeout } = self.fields.ready.clone();
        let defaults = ReadyRules::default();
        let is_http = probe.as_ref().is_some_and(|it| it.value == Probe::Http);
        let path = self.probed_path(path, is_http, "ready");
        let probe = self.fitting(probe, ready_needs).unwrap_or(defaults.probe);
        let within = value_or(within.as_ref(), defaults.within);
        ReadyRules { probe, within, path, timeout: value_or(timeout.as_ref(), defaults.timeout) }
    }

    /// Returns the health rules.
    pub(super) fn health(&mut self) -> HealthRules {
        let HealthFields { probe, interval, timeout, failures, path } = self.fields.health.clone();
        let defaults = self.environment.rules().health;
        let is_http = probe.as_ref().is_some_and(|it| it.value == HealthProbe::Http);
        let path = self.probed_path(path, is_http, "health");
        let probe = self.fitting(probe, health_needs).unwrap_or(defaults.probe);
        HealthRules {
            probe,
            interval: value_or(interval.as_ref(), defaults.interval),
            timeout: value_or(timeout.as_ref(), defaults.timeout),
            failures: value_or(failures.as_ref(), defaults.failures),
            path,
        }
    }

    /// Returns the probe if this server can have it; otherwise reports a problem.
    fn fitting<T: Copy>(&mut self, probe: Option<Spanned<T>>, needs: fn(T) -> Needs) -> Option<T> {
        let Spanned { value, at } = probe?;
        let problem = match needs(value) {
            Needs::Process if self.is_remote() => {
                let message = "a server with a `url` has no process that could be probed";
                Problem::error(&at, message).suggest("use `\"mcp\"`, or leave `probe` out")
            }
            Needs::Port(name) if self.is_remote() => {
                let message = format!("a server with a `url` cannot be probed by `{name}`");
                Problem::error(&at, message).suggest("use `\"mcp\"`, or leave `probe` out")
            }
            Needs::Port(name) if self.fields.port.is_none() => self.no_port(name, &at),
            Needs::Port("tcp") if self.is_container() => {
                if self.is_own(&at) {
                    let message = "an engine may accept connections before the server in the \
                                   container listens";
                    let problem = Problem::warning(&at, message);
                    self.problems.push(problem.suggest("use `\"http\"` or `\"mcp\"`"));
                }
                return Some(value);
            }
            Needs::Nothing | Needs::Process | Needs::Port(_) => return Some(value),
        };
        let is_unknown = ["port", "transport"].iter().any(|it| self.fields.is_broken(it));
        if self.is_own(&at) && !is_unknown {
            self.problems.push(problem);
        }
        None
    }

    fn no_port(&self, probe: &str, at: &SourceSpan) -> Problem {
        let message = format!("the probe `{probe}` needs a `port`");
        let problem = Problem::error(at, message);
        match &self.fields.transport {
            Some(Spanned { value: Transport::Stdio, at }) => problem
                .label("use `\"process\"` or `\"mcp\"`")
                .related(at, "this transport has no port"),
            _ => problem.suggest(
                "add the port of the server: `port 8421`, or use `\"process\"` or `\"mcp\"`",
            ),
        }
    }

    /// Returns the path of an `http` probe; other probes have none.
    fn probed_path(
        &mut self,
        path: Option<Spanned<String>>,
        is_http: bool,
        block: &'static str,
    ) -> Option<String> {
        let Spanned { value, at } = path?;
        if is_http {
            return Some(value);
        }
        if self.is_own(&at) && !self.fields.is_broken(block) {
            let message = format!("`path` in `{block}` is only for the probe `http`");
            let problem = Problem::error(&at, message);
            self.problems.push(problem.suggest("remove it, or add `probe \"http\"`"));
        }
        None
    }

    fn is_own(&self, at: &SourceSpan) -> bool {
        at.file.shown == self.file.shown
    }
}
