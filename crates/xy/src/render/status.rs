//! Rendering of `status`: one server in detail.

use std::time::Duration;

use xy_protocol::server::{
    FailedEntry, Health, InstanceClients, InstanceEntry, LastExit, Oom, ReasonKind, RestartLimits,
    ServerEntry, ServerStatus, Wanted,
};
use xy_protocol::size::Size;
use xy_protocol::time::Timestamp;

use super::list::next_step;
use super::{BOLD, DIM, YELLOW, ago, clock, paint, safe_text, span, style_of};
use super::{confine, error};

/// Renders a server's status as of `now`.
pub(crate) fn render(status: &ServerStatus, now: Timestamp) -> String {
    let mut text = format!("{}\n", paint(BOLD, &status.entry.name));
    let rows = facts(status, now).into_iter();
    let protocol = status.protocol.as_deref();
    let protocol = protocol.map(|revision| ("protocol", safe_text(revision).into_owned()));
    let instances = instances(status).map(|value| ("instances", value));
    let uses = uses(status).map(|value| ("uses", value));
    let clients = clients(status).map(|value| ("clients", value));
    let queued = queued(status.parked).map(|value| ("queued", value));
    let rows = rows.chain(protocol).chain(queued).chain(uses).chain(clients).chain(instances);
    for (label, value) in rows.chain(confine::facts(status)).chain(files(status)) {
        text += &format!("  {}  {value}\n", paint(DIM, format_args!("{label:<9}")));
    }
    text += &transitions(status, now);
    if !status.problems.is_empty() {
        let problems: String = status.problems.iter().map(error::problem).collect();
        text += &format!("\n{}\n", problems.trim_end());
    }
    let failed = status.last_failed.iter().flat_map(|failed| &failed.last_stderr);
    let (heading, lines): (_, Vec<&String>) = if status.last_stderr.is_empty() {
        ("last lines of stderr of the instance that failed", failed.collect())
    } else {
        ("last lines of stderr", status.last_stderr.iter().collect())
    };
    if !lines.is_empty() {
        text += &format!("\n{}\n", paint(BOLD, heading));
        for line in lines {
            text += &format!("  {} {}\n", paint(DIM, "|"), safe_text(line));
        }
    }
    text
}

fn facts(status: &ServerStatus, now: Timestamp) -> Vec<(&'static str, String)> {
    let server = &status.entry;
    let mut facts = vec![("state", paint(style_of(server.state), server.state))];
    let mut say = |label, value: Option<String>| facts.extend(value.map(|value| (label, value)));
    let shares = server.shares.as_ref();
    say("shares", shares.map(|owner| format!("the process of `{owner}`")));
    say("reason", server.reason.as_deref().map(|reason| safe_text(reason).into_owned()));
    say("health", health(server.health).map(str::to_owned));
    say("checked", status.last_health_check.map(|at| ago(at, now)));
    say("pid", server.pid.map(|pid| pid.to_string()));
    say("uptime", server.uptime_secs.map(|seconds| span(Duration::from_secs(seconds))));
    say("wanted", Some(wanted(server.wanted).to_owned()));
    // A server with an invalid file has no known settings but its name.
    let is_known = server.reason_kind != Some(ReasonKind::BadFile);
    say("transport", is_known.then(|| server.transport.as_str().to_owned()));
    say("url", server.url.as_deref().map(|url| safe_text(url).into_owned()));
    say("port", server.port.map(|port| port.to_string()));
    let used = limits_used(&status.limits_used);
    let used = used.map(|used| format!("; {used}")).unwrap_or_default();
    say("restarts", is_known.then(|| restarts(server) + &used));
    say("policy", server.not_restarted.as_deref().map(|it| safe_text(it).into_owned()));
    say("last exit", server.last_exit.as_ref().map(|exit| last_exit(exit, now)));
    say("next", next_step(server));
    say("failed", status.last_failed.as_ref().map(|it| last_failed(it, now)));
    for warning in &server.warnings {
        say("warning", Some(paint(YELLOW, safe_text(warning))));
    }
    facts
}

/// Formats the last instance that failed.
fn last_failed(failed: &FailedEntry, now: Timestamp) -> String {
    let log = failed.log_file.as_ref().map(|log| format!(", log {}", safe_text(log)));
    let whose = match failed.holder {
        Some(client) => format!("the instance of client {client}, which disconnected"),
        None => "an instance that xy started for a request or a self-test".to_owned(),
    };
    format!(
        "{whose} {}: {}{}",
        ago(failed.at, now),
        safe_text(&failed.reason),
        log.unwrap_or_default()
    )
}

/// Formats the instances for single clients or eras. The shared instance is the server itself.
fn instances(status: &ServerStatus) -> Option<String> {
    let one = |it: &InstanceEntry| {
        let whose = match (it.holder, it.era) {
            (Some(client), _) => format!("client {client}"),
            (None, Some(era)) => {
                let protocol = it.protocol.as_ref().map(|it| format!(" ({})", safe_text(it)));
                let protocol = protocol.unwrap_or_default();
                format!("{era} clients{protocol}, with separate state")
            }
            (None, None) => return None,
        };
        let pid = it.pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
        let who = it.clients.first().filter(|it| !it.name.is_empty());
        let who = who.map(|it| format!(" ({})", safe_text(&it.name))).unwrap_or_default();
        let state = paint(style_of(it.state), it.state);
        let used = used(it).map(|used| format!(", {used}")).unwrap_or_default();
        let log = it.log_file.as_ref().map(|log| format!(", log {}", safe_text(log)));
        Some(format!("{state} for {whose}{who}{pid}{used}{}", log.unwrap_or_default()))
    };
    let all: Vec<String> = status.instances.iter().filter_map(one).collect();
    (!all.is_empty()).then(|| format!("{}: {}", all.len(), all.join("; ")))
}

/// Formats the memory and CPU time of an instance, if they are known.
fn used(instance: &InstanceEntry) -> Option<String> {
    let memory = instance.memory_bytes.map(|bytes| format!("{} of memory", rounded(bytes)));
    let time = |ms| format!("{:.1}s of CPU", Duration::from_millis(ms).as_secs_f64());
    let all: Vec<String> = memory.into_iter().chain(instance.cpu_ms.map(time)).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Rounds down to mebibytes, or to kibibytes below one mebibyte.
fn rounded(bytes: u64) -> Size {
    let unit = if bytes >= 1 << 20 { 20 } else { 10 };
    Size(bytes >> unit << unit)
}

/// Formats the memory and CPU time of all instances together.
fn uses(status: &ServerStatus) -> Option<String> {
    let sum = |one: fn(&InstanceEntry) -> Option<u64>| {
        let known: Vec<u64> = status.instances.iter().filter_map(one).collect();
        (!known.is_empty()).then(|| known.iter().sum())
    };
    let first = status.instances.first()?;
    let (memory_bytes, cpu_ms) = (sum(|it| it.memory_bytes), sum(|it| it.cpu_ms));
    used(&InstanceEntry { memory_bytes, cpu_ms, ..first.clone() })
}

/// Formats the clients of the shared instance.
fn clients(status: &ServerStatus) -> Option<String> {
    let shared = status.instances.iter().find(|it| it.holder.is_none() && it.era.is_none())?;
    let total: usize = shared.clients.iter().map(|it| it.count).sum();
    let named = |it: &InstanceClients| {
        let name = if it.name.is_empty() { "(no name)".into() } else { safe_text(&it.name) };
        if it.count == 1 { name.into_owned() } else { format!("{name} × {}", it.count) }
    };
    let all: Vec<String> = shared.clients.iter().map(named).collect();
    (total > 0).then(|| format!("{total}: {}", all.join(", ")))
}

/// Returns the rows for command, configuration file and log. Remote servers lack some of them.
fn files(status: &ServerStatus) -> Vec<(&'static str, String)> {
    let words: Vec<String> = status.command.iter().map(|word| quoted(word)).collect();
    let command = Some(words.join(" ")).filter(|words| !words.is_empty());
    let config = Some(status.config_file.clone());
    let facts = [("command", command), ("config", config), ("log", status.log_file.clone())];
    let shown =
        |(label, value): (_, Option<String>)| Some((label, safe_text(&value?).into_owned()));
    facts.into_iter().filter_map(shown).collect()
}

/// Quotes a word of a command for a shell, if necessary.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=@,+%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn health(health: Health) -> Option<&'static str> {
    match health {
        Health::Unknown => None,
        Health::Healthy => Some("healthy"),
        Health::Unhealthy => Some("unhealthy: several probes in a row failed"),
        Health::Unreachable => Some("unreachable: the remote server does not respond"),
    }
}

/// Formats the number of queued calls, if there are any.
fn queued(calls: u64) -> Option<String> {
    match calls {
        0 => None,
        1 => Some("1 call".to_owned()),
        calls => Some(format!("{calls} calls")),
    }
}

fn wanted(wanted: Wanted) -> &'static str {
    match wanted {
        Wanted::Up => "up",
        Wanted::Down => "down",
    }
}

fn restarts(server: &ServerEntry) -> String {
    match (server.restart_count, server.restarts_total) {
        (0, 0) => "none".to_owned(),
        (since_start, total) => format!("{since_start} since it was last started, {total} in all"),
    }
}

/// Formats how much of the restart limits is used; `None` if nothing has failed.
fn limits_used(used: &RestartLimits) -> Option<String> {
    let row = (used.in_a_row, used.max_attempts, "in a row");
    let minute = (used.exits_last_minute, used.max_retries_per_minute, "within the last minute");
    if used.in_a_row == 0 && used.exits_last_minute == 0 {
        return None;
    }
    let shown = |(count, limit, what): (u32, u32, &str)| {
        (limit != 0).then(|| format!("{count} of {limit} {what}"))
    };
    let all: Vec<String> = [row, minute].into_iter().filter_map(shown).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn last_exit(exit: &LastExit, now: Timestamp) -> String {
    let how = match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".to_owned(),
    };
    let memory = match exit.oom {
        None => "",
        Some(Oom::Limit) => ", over its memory limit",
        Some(Oom::Machine) => ", the machine was out of memory",
    };
    let requested = match (exit.expected, exit.by_xy) {
        (true, _) => "as requested",
        (false, true) => "ended by xy",
        (false, false) => "unexpected",
    };
    format!("{how} ({requested}){memory}, {}", ago(exit.at, now))
}

fn transitions(status: &ServerStatus, now: Timestamp) -> String {
    if status.transitions.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{}\n", paint(BOLD, "recent changes"));
    for change in &status.transitions {
        let when = format!("{}  {:>10}", clock(change.at), ago(change.at, now));
        let (from, to) =
            (change.from, paint(style_of(change.to), format_args!("{:<10}", change.to)));
        let reason = safe_text(&change.reason);
        text += &format!("  {}  {from:>10} → {to}  {reason}\n", paint(DIM, &when));
        if let Some(why) = &change.last_attempt {
            let last = paint(YELLOW, format_args!("{:>23}", "last attempt"));
            text += &format!("  {}  {last}  {}\n", paint(DIM, when), safe_text(why));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use xy_protocol::server::ServerState;

    use super::super::{samples, uncoloured};
    use super::*;

    #[test]
    fn failed_server_shows_reason_and_stderr() {
        let text = render(&samples::failed_status(), samples::at(0));
        insta::assert_snapshot!(uncoloured(&text));
    }

    #[test]
    fn running_server_is_short() {
        let mut status = samples::failed_status();
        status.entry = samples::entries().remove(1);
        status.protocol = Some("2025-11-25".to_owned());
        status.parked = 3;
        status.last_health_check = Some(samples::at(12));
        status.transitions.clear();
        status.last_stderr.clear();
        status.limits_used = RestartLimits::default();
        insta::assert_snapshot!(uncoloured(&render(&status, samples::at(0))));
    }

    #[test]
    fn remote_server_shows_only_its_url() {
        let mut status = samples::failed_status();
        status.entry = samples::unreachable();
        (status.command, status.log_file) = (Vec::new(), None);
        status.transitions.clear();
        status.last_stderr.clear();
        status.limits_used = RestartLimits::default();
        insta::assert_snapshot!(uncoloured(&render(&status, samples::at(0))));
    }

    #[test]
    fn last_failed_instance_is_shown_beside_others() {
        let mut status = samples::failed_status();
        status.entry = samples::entries().remove(1);
        status.transitions.clear();
        status.last_failed = Some(FailedEntry {
            holder: Some(7),
            reason: "exited with code 3".to_owned(),
            at: samples::at(90),
            last_exit: None,
            last_stderr: std::mem::take(&mut status.last_stderr),
            log_file: Some("/logs/own@7.log".to_owned()),
        });
        let text = uncoloured(&render(&status, samples::at(0)));
        let told = "the instance of client 7, which disconnected 1m 30s ago: exited with code 3, log /logs/own@7.log";
        assert!(text.contains(told), "{text}");
        let lines = "last lines of stderr of the instance that failed\n  | panic: ";
        assert!(text.contains(lines), "{text}");
        let own = FailedEntry { holder: None, ..status.last_failed.clone().unwrap() };
        let told = "an instance that xy started for a request or a self-test 1m 30s ago: exited";
        assert!(last_failed(&own, samples::at(0)).starts_with(told));
    }

    #[test]
    fn instances_for_clients_are_counted() {
        let mut status = samples::failed_status();
        let one = |holder, pid, state| InstanceEntry {
            holder,
            era: None,
            protocol: None,
            pid,
            state,
            clients: vec![InstanceClients { name: "editor".to_owned(), count: 2 }],
            memory_bytes: pid.map(|_| (12 << 20) + 5),
            cpu_ms: pid.map(|_| 1234),
            log_file: pid.map(|_| "/logs/own@1.log".to_owned()),
        };
        status.instances = vec![one(None, Some(1), ServerState::Running)];
        assert_eq!(instances(&status), None);
        assert_eq!(clients(&status).unwrap(), "2: editor × 2");
        assert_eq!(uses(&status).unwrap(), "12 MiB of memory, 1.2s of CPU");
        assert_eq!(rounded(399_360).to_string(), "390 KiB");
        status.instances = vec![
            one(Some(1), Some(7), ServerState::Running),
            one(Some(4), None, ServerState::Failed),
        ];
        let told = uncoloured(&instances(&status).unwrap());
        assert_eq!(
            told,
            "2: running for client 1 (editor), pid 7, 12 MiB of memory, 1.2s of CPU, log /logs/own@1.log; failed for client 4 (editor)"
        );
    }

    #[test]
    fn restart_limits_are_shown_once_used() {
        let used = |in_a_row, max_attempts, exits_last_minute, max_retries_per_minute| {
            let used =
                RestartLimits { in_a_row, max_attempts, exits_last_minute, max_retries_per_minute };
            limits_used(&used)
        };
        assert_eq!(used(0, 5, 0, 5), None);
        assert_eq!(used(3, 0, 1, 0), None, "no limit, nothing used");
        let both = used(2, 5, 1, 6).unwrap();
        assert_eq!(both, "2 of 5 in a row, 1 of 6 within the last minute");
        assert_eq!(used(2, 5, 1, 0).unwrap(), "2 of 5 in a row");
    }

    #[test]
    fn signals_of_xy_are_marked() {
        let exit = |expected, by_xy| {
            let (code, signal, oom) = (None, Some(15), None);
            let exit = LastExit { code, signal, expected, by_xy, at: samples::at(5), oom };
            last_exit(&exit, samples::at(0))
        };
        assert_eq!(exit(true, true), "signal 15 (as requested), 5s ago");
        assert_eq!(exit(false, true), "signal 15 (ended by xy), 5s ago");
        assert_eq!(exit(false, false), "signal 15 (unexpected), 5s ago");
    }

    #[test]
    fn out_of_memory_exit_is_marked() {
        let exit = |oom| LastExit {
            code: None,
            signal: Some(9),
            expected: false,
            by_xy: false,
            at: samples::at(5),
            oom,
        };
        let told = [Some(Oom::Limit), Some(Oom::Machine), None]
            .map(|oom| last_exit(&exit(oom), samples::at(0)));
        insta::assert_snapshot!(told.join("\n"), @"
        signal 9 (unexpected), over its memory limit, 5s ago
        signal 9 (unexpected), the machine was out of memory, 5s ago
        signal 9 (unexpected), 5s ago
        ");
    }
}
