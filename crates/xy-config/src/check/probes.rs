//! Which probe fits which server: `ready` and `health`, once `defaults` are known.
//!
//! A probe among the defaults is meant for those servers that can have it; the others have the
//! usual one. What a server's own file says of itself has to fit.

use xy_protocol::server::Transport;

use super::blocks::{HealthFields, ReadyFields};
use super::read::Spanned;
use super::rules::{Joining, said};
use crate::report::Problem;
use crate::settings::{HealthProbe, HealthRules, Probe, ReadyRules};
use crate::source::At;

/// What a probe needs of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// A process that can be looked at.
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

impl Joining<'_> {
    /// When it is ready.
    pub(super) fn ready(&mut self) -> ReadyRules {
        let ReadyFields { probe, within, path, timeout } = self.fields.ready.clone();
        let ours = ReadyRules::default();
        let asks = probe.as_ref().is_some_and(|it| it.value == Probe::Http);
        let path = self.probed_path(path, asks, "ready");
        let probe = self.fitting(probe, ready_needs).unwrap_or(ours.probe);
        let within = said(within.as_ref(), ours.within);
        ReadyRules { probe, within, path, timeout: said(timeout.as_ref(), ours.timeout) }
    }

    /// How it is found out whether it still works.
    pub(super) fn health(&mut self) -> HealthRules {
        let HealthFields { probe, interval, timeout, failures, path } = self.fields.health.clone();
        let ours = self.environment.rules().health;
        let asks = probe.as_ref().is_some_and(|it| it.value == HealthProbe::Http);
        let path = self.probed_path(path, asks, "health");
        let probe = self.fitting(probe, health_needs).unwrap_or(ours.probe);
        HealthRules {
            probe,
            interval: said(interval.as_ref(), ours.interval),
            timeout: said(timeout.as_ref(), ours.timeout),
            failures: said(failures.as_ref(), ours.failures),
            path,
        }
    }

    /// The probe, if this server can have it.
    fn fitting<T: Copy>(&mut self, probe: Option<Spanned<T>>, needs: fn(T) -> Needs) -> Option<T> {
        let Spanned { value, at } = probe?;
        let problem = match needs(value) {
            Needs::Process if self.is_remote() => {
                let message = "a server with a `url` has no process here that could be looked at";
                Problem::error(&at, message).suggest("use `\"mcp\"`, or leave `probe` out")
            }
            Needs::Port(name) if self.is_remote() => {
                let message = format!("a server with a `url` cannot be probed by `{name}`");
                Problem::error(&at, message).suggest("use `\"mcp\"`, or leave `probe` out")
            }
            Needs::Port(name) if self.fields.port.is_none() => self.no_port(name, &at),
            Needs::Port("tcp") if self.is_container() => {
                if self.is_own(&at) {
                    let message = "an engine may take connections for a container in which \
                                   nobody listens yet";
                    let problem = Problem::warning(&at, message);
                    self.problems.push(problem.suggest("use `\"http\"` or `\"mcp\"`"));
                }
                return Some(value);
            }
            Needs::Nothing | Needs::Process | Needs::Port(_) => return Some(value),
        };
        let is_unclear = ["port", "transport"].iter().any(|it| self.fields.is_broken(it));
        if self.is_own(&at) && !is_unclear {
            self.problems.push(problem);
        }
        None
    }

    fn no_port(&self, probe: &str, at: &At) -> Problem {
        let message = format!("the probe `{probe}` needs a `port`");
        let problem = Problem::error(at, message);
        match &self.fields.transport {
            Some(Spanned { value: Transport::Stdio, at }) => problem
                .label("use `\"process\"` or `\"mcp\"`")
                .related(at, "over this it listens nowhere"),
            _ => problem.suggest(
                "add the port it listens on: `port 8421`, or use `\"process\"` or `\"mcp\"`",
            ),
        }
    }

    /// The path that is asked for; only an `http` probe asks for any.
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

    fn is_own(&self, at: &At) -> bool {
        at.file.shown == self.file.shown
    }
}
