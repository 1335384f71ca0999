//! Tests that the limits in the user guide match the code, and that the guide lists all of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const HTTP: &str = "crates/xy-http/src/limits.rs";

/// Folders and files without production code.
const TEST_CODE: [&str; 6] = ["xy-testkit", "tests", "harness", "examples", "benches", "labelled"];

/// The constants with a name of [`BOUND_NAMES`] that the guide need not list: those that refuse
/// nothing to a user, a client or a server. A file is named without `src`.
const INTERNAL: &str = "
# Shorten a text or a list that people read.
xy-catalog/catalog.rs: MAX_NAMED
xy-catalog/names/nearest.rs: MAX_SUGGESTIONS
xy-config/check/problems.rs: MAX_PROBLEMS
xy-config/check/read.rs: MAX_UNKNOWN
xy-config/raw.rs: MAX_SYNTAX_PROBLEMS MAX_UNREADABLE
xy-config/raw/mistakes.rs: MAX_ADVICE
xy-config/references.rs: MAX_WARNINGS
xy-container/engine.rs: MAX_VERSION_CHARS
xy-container/faults.rs: MAX_WORDS_CHARS
xy-daemon/bad_files.rs: MAX_PROBLEMS MAX_REASON
xy-daemon/diagnostics.rs: MAX_LINE_CHARS MAX_RESTARTS MAX_PROBLEMS
xy-daemon/self_test.rs: MAX_RESTARTS
xy-daemon/self_test/summary.rs: MAX_NAMED
xy-gateway/limit_hits.rs: MAX_ENTRIES
xy-gateway/local.rs: MAX_LISTED_PROFILES
xy-gateway/router/profiles.rs: MAX_WARNINGS
xy-http/failed_tokens.rs: MAX_ADDRESSES
xy-http/service.rs: LOGGED_PATH_MAX
xy-protocol/framing.rs: MAX_HEAD
xy-mcp/sse.rs: MAX_HEAD
xy-supervisor/fleet/capacity.rs: MAX_NAMES
xy-supervisor/health.rs: MAX_REASON_CHARS
xy-supervisor/instance.rs: MAX_STDERR_LINE_BYTES
xy-supervisor/journal/entry.rs: MAX_REASON_BYTES
xy-supervisor/lifecycle/reason.rs: MAX_UNPARSED_CHARS
xy-supervisor/protocol.rs: MAX_REASON_CHARS
xy-upstream/connection/http_client/response_class.rs: MAX_SHOWN_CHALLENGE
xy-upstream/connection/response.rs: MAX_SHOWN
xy/verbs/daemon.rs: MAX_STDERR

# Interpret a text: what is a word, a secret, a reference or a mistake.
xy-catalog/names/nearest.rs: MAX_WRONG
xy-config/check/secrets.rs: MAX_ARG_BYTES
xy-config/check/words.rs: MAX_WORD_BYTES
xy-config/raw.rs: MAX_BLOCK_LINES
xy-config/raw/lex.rs: MAX_TOKENS
xy-config/raw/shape.rs: MAX_LIST
xy-config/references.rs: MAX_REFERENCE_BYTES
xy-config/source/redact.rs: MAX_WORD_BYTES
xy-gateway/client_limits.rs: MAX_NAME_BYTES
xy-mcp/param_headers.rs: MAX_SAFE_INTEGER
xy-protocol/mask.rs: MAX_LABEL_LENGTH
xy-protocol/mask/message.rs: MAX_DEPTH MAX_LEARNED MAX_LEARNED_LENGTH
xy-search/document.rs: MAX_DEPTH MAX_VALUES
xy-search/index.rs: MAX_WORDS_PER_FIELD
xy-search/query.rs: MAX_VERB_GAP MAX_GUESSES
xy-search/synonyms.rs: MAX_PHRASE_WORDS
xy-search/words.rs: MAX_WORD MAX_WORD_WITH_DIGITS

# Bound a file that only xy writes.
xy-container/engines.rs: MAX_ENGINES MAX_FILE_BYTES
xy-container/log/ledger.rs: MAX_LEDGER_BYTES
xy-container/state_file.rs: MAX_FILE_BYTES
xy-daemon/tokens.rs: MAX_FILE
xy-gateway/manifest.rs: MAX_FILE_BYTES
xy-http/record.rs: FILE_BYTES_MAX
xy-supervisor/desired.rs: MAX_FILE
xy-supervisor/lifecycle/note.rs: MAX_EXITS
xy-supervisor/runtime_servers.rs: MAX_FILE

# Bound what processes of xy tell each other, and the ids that xy makes.
xy-daemon/self_test/http_listener.rs: MAX_RESPONSE_BYTES
xy-daemon/self_test/sockets.rs: MAX_RESPONSE_BYTES
xy-gateway/local.rs: MAX_HELLO_BYTES
xy-http/session_id.rs: ID_CHARS_MAX KEYS_MAX
xy-ipc/client.rs: MAX_QUEUED
xy-mcp/via.rs: MAX_ID_LENGTH
xy-shim/identity.rs: MAX_IDENTITY
xy-shim/stream_holder.rs: MAX_COMMAND_BYTES
xy-shim/wire.rs: MAX_FRAME MAX_NOTE
xy-supervisor/launch/shim_link.rs: MAX_FDS

# Bound files and answers of the system, of container engines and of programs that are asked.
xy-container/cli.rs: MAX_LIST_BYTES
xy-container/log_gap.rs: MAX_UNLOGGED_BYTES
xy-container/login.rs: MAX_FILE_BYTES MAX_OUTPUT_BYTES
xy-container/overlap.rs: FRESH_BYTES_MAX
xy-container/pull.rs: MAX_LAYERS
xy-container/stream.rs: MAX_HEAD_BYTES
xy-shim/cgroup/group.rs: MAX_DEPTH
xy-shim/cgroup/oom_kills.rs: MAX_FILE_BYTES
xy-shim/cpu.rs: MAX_PROCESSES
xy-shim/memory.rs: MAX_PROCESSES
xy-shim/proc_stat.rs: MAX_DEPTH
xy-shim/sockets.rs: MAX_PROCESSES
xy-shim/tree.rs: MAX_DEPTH
xy-supervisor/probe/http.rs: MAX_INTERIM_RESPONSES

# Bound attempts and intervals.
xy-container/relay.rs: MAX_POLL_INTERVAL
xy-container/runner.rs: MAX_SHORT_STREAMS
xy-daemon/files.rs: MAX_POLLS
xy-daemon/limits.rs: MAX_POLLS
xy-gateway/bridge/pending_input.rs: MAX_SLOT_HOLD
xy-gateway/upstream_session.rs: MAX_POLLS
xy-gateway/upstream_session/http.rs: MAX_RETRY_DELAY
xy-gateway/upstream_session/lists.rs: MAX_RETRY_DELAY
xy-http/session.rs: MAX_SWEEP_INTERVAL
xy-shim/cgroup/groups.rs: MAX_REMOVE_ATTEMPTS MAX_GATHER_ROUNDS
xy-shim/life.rs: MAX_PIPE_READS
xy-shim/leader.rs: MAX_KILL_ROUNDS
xy-shim/stop.rs: MAX_STDIN_GRACE
xy-supervisor/fleet.rs: MAX_HOLD_ATTEMPTS
xy-supervisor/health.rs: MAX_DELAY
xy-supervisor/launch/orphans.rs: MAX_READS
xy-supervisor/launch/reap.rs: MAX_ATTEMPTS
xy-supervisor/probe.rs: RETRY_DELAY_MAX
xy-supervisor/protocol/log_only.rs: MAX_FINAL_READS
xy-upstream/connection/event_subscription.rs: MAX_RETRY_DELAY
xy-upstream/connection/http_client/listen.rs: MAX_DELAY MAX_BACKOFF MAX_CONNECT_FAILURES
xy/verbs/connect/connector.rs: MAX_FAILED_STARTS
xy/verbs/demo.rs: MAX_WAIT
xy/verbs/demo/home.rs: MAX_REMOVE_ATTEMPTS

# Size a buffer, a cache or a step of work: the rest waits, or is done without it.
xy-catalog/catalog.rs: MAX_ALIASES
xy-container/cli.rs: MAX_CONCURRENT_REMOVALS
xy-daemon/self_test/servers.rs: MAX_CONCURRENT
xy-gateway/client/listen.rs: MAX_PENDING
xy-gateway/exclusive.rs: MAX_URGENT
xy-gateway/gateway.rs: MAX_WAITING_CONNECTIONS MAX_WAITING_QUERIES MAX_BLOCKING_THREADS
xy-gateway/router/lists.rs: MAX_COMPARED_NAMES
xy-gateway/router/profiles.rs: MAX_COMPARISONS
xy-ipc/server/outbox.rs: MAX_WRITE
xy-shim/disk_log.rs: MAX_BUFFERED
xy-shim/log.rs: MAX_BATCH MAX_RECENT
xy-upstream/connection/http_client/fetch.rs: MAX_IDLE_CONNECTIONS
xy-upstream/connection/pipes.rs: MAX_WRITE
xy/verbs/connect.rs: MAX_EVENTS
xy/verbs/connect/lines.rs: MAX_IDLE_BUFFER

# How long xy waits for its own parts, for other programs of xy, and for the disk.
xy-container/adopt.rs: LINE_REST_TIMEOUT STARTUP_TIMEOUT
xy-container/log.rs: HANG_TIMEOUT
xy-container/runner.rs: LOG_WRITE_TIMEOUT
xy-container/runner/protocol.rs: RELAY_EXIT_TIMEOUT
xy-container/stream_holder.rs: EXIT_TIMEOUT GREETING_TIMEOUT
xy-container/reconcile.rs: ADOPTION_TIMEOUT
xy-daemon/logging.rs: WRITE_TIMEOUT
xy-daemon/run.rs: DRAIN_TIMEOUT JOURNAL_TIMEOUT MIN_SHUTDOWN_TIMEOUT RELEASE_TIMEOUT
xy-daemon/self_test/folders.rs: DISK_TIMEOUT
xy-daemon/self_test/history.rs: DISK_TIMEOUT
xy-daemon/self_test/http_listener.rs: RESPONSE_TIMEOUT
xy-daemon/self_test/sockets.rs: RESPONSE_TIMEOUT
xy-daemon/self_test/supervisor.rs: RESPONSE_TIMEOUT
xy-daemon/takeover.rs: SUCCESSOR_TIMEOUT
xy-gateway/gateway.rs: SHUTDOWN_TIMEOUT
xy-gateway/manifest.rs: RECALL_TIMEOUT
xy-gateway/tools/remove_server.rs: REMOVAL_TIMEOUT
xy-ipc/client/connect.rs: CONNECT_TIMEOUT
xy-shim/control.rs: FLUSH_TIMEOUT
xy-shim/controller.rs: HELLO_TIMEOUT
xy-shim/life.rs: FINISH_TIMEOUT
xy-supervisor/fleet/capacity.rs: SLEEP_TIMEOUT
xy-supervisor/instance.rs: DRIVER_REPLY_TIMEOUT
xy-supervisor/launch/adopt.rs: EXIT_TIMEOUT REPLY_TIMEOUT SILENCE_LIMIT STARTUP_TIMEOUT
xy-supervisor/launch/process_runner.rs: FINISH_TIMEOUT HANDOVER_ACK_TIMEOUT
xy-supervisor/launch/protocol_link.rs: DRIVER_EXIT_TIMEOUT HANDOVER_TIMEOUT
xy-supervisor/launch/remote.rs: CLOSE_TIMEOUT
xy-supervisor/launch/shim_link.rs: OUTBOX_LIMIT
xy-supervisor/monitor.rs: DRIVER_REPLY_TIMEOUT
xy/verbs/connect.rs: INFORM_TIMEOUT
xy/verbs/connect/connector.rs: HINT_TIMEOUT
xy/verbs/connect/recording.rs: FLUSH_TIMEOUT
xy/verbs/demo.rs: SETTLE_TIMEOUT
xy/verbs/demo/demo_home.rs: SHUTDOWN_TIMEOUT
xy/verbs/diagnostics.rs: REQUEST_TIMEOUT
xy/verbs/self_test.rs: REQUEST_TIMEOUT

# How long the end of a life, of a connection or of a container may take, and its cleanup.
xy-container/adopt.rs: CONTAINER_TIMEOUT REMOVE_TIMEOUT
xy-container/cli.rs: REMOVE_TIMEOUT
xy-container/engine.rs: CLEANUP_TIMEOUT HELLO_TIMEOUT LONG_TIMEOUT
xy-container/exit_watch.rs: REMOVAL_TIMEOUT SETTLE_TIMEOUT
xy-container/oom_watch.rs: RESULT_TIMEOUT
xy-container/reconcile.rs: ENGINE_TIMEOUT
xy-container/runner.rs: ATTACH_TIMEOUT ENGINE_RETURN_TIMEOUT
xy-container/runner/ending.rs: DRAIN_TIMEOUT KILL_TIMEOUT REMOVE_TIMEOUT
xy-container/start.rs: UNDO_TIMEOUT
xy-container/stream.rs: REASON_TIMEOUT
xy-daemon/self_test/orphans.rs: ENGINE_TIMEOUT
xy-daemon/self_test/servers.rs: EXIT_NOTICE_TIMEOUT RECONNECT_TIMEOUT STOP_TIMEOUT
xy-gateway/local.rs: GOODBYE_TIMEOUT
xy-gateway/upstream/ending.rs: DEATH_TIMEOUT
xy-gateway/upstream_session.rs: DRAIN_TIMEOUT EXIT_TIMEOUT FLUSH_TIMEOUT
xy-gateway/upstream_session/http.rs: DRAIN_TIMEOUT LISTEN_TIMEOUT
xy-gateway/upstream_session/lists.rs: SUBSCRIBE_TIMEOUT
xy-gateway/tools/report.rs: TOOLS_TIMEOUT
xy-ipc/server.rs: FLUSH_TIMEOUT
xy-supervisor/journal.rs: FOLLOWERS_TIMEOUT
xy-supervisor/launch/adopt.rs: UNKNOWN_GRACE
xy-supervisor/launch/orphans.rs: KILL_TIMEOUT
xy-supervisor/launch/protocol_link.rs: STDOUT_CLOSED_ON_PROBE_TIMEOUT
xy-upstream/connection/http_client.rs: CANCELLED_READ_TIMEOUT END_SESSION_TIMEOUT
xy-upstream/connection/http_client/fetch.rs: IDLE_TIMEOUT
xy-upstream/connection/http_client/listen.rs: LEGACY_PROBE_TIMEOUT STREAM_END_TIMEOUT
xy-upstream/connection/http_client/send_order.rs: SEND_TIMEOUT

# Repeat a limit of the guide, or are described there in words.
xy-catalog/names.rs: MAX_NAME
xy-config/paths.rs: MAX_SOCKET_PATH
xy-shim/listener.rs: MAX_SOCKET_PATH
xy-supervisor/fleet.rs: MAX_SERVERS
xy-supervisor/protocol/log_only.rs: MAX_LINE_BYTES
xy-transport/share.rs: MAX_RATIO
xy/verbs/connect/recording.rs: QUEUE_TIMEOUT

# The name of a variable, a setting, or a message about one.
xy-config/check.rs: ZERO_ORPHAN_TIMEOUT
xy-config/check/blocks.rs: ZERO_TIMEOUT
xy-config/environment.rs: HEALTH_TIMEOUT MAX_ATTEMPTS
xy-config/settings.rs: DEFAULT_ORPHAN_TIMEOUT
xy-daemon/handlers/add.rs: DEFAULT_GRACE
";

/// A constant: its file and its name.
type Constant = (String, String);

/// A row of the guide.
struct Row {
    text: String,
    value: u64,
    has_setting: bool,
    constant: Option<Constant>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn file(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|cause| panic!("{path}: {cause}"))
}

/// Returns the rows of all tables of the guide.
fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for line in file("docs/guide/limits.md").lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [limit, value, setting, _, place] = cells[..] else { panic!("{line}") };
        if limit == "limit" {
            continue;
        }
        let value = written(value).unwrap_or_else(|| panic!("{line}"));
        let mut words = place.split('`').filter(|word| !word.trim().is_empty() && *word != " in ");
        let constant =
            words.next().map(|name| (words.next().unwrap_or(HTTP).to_owned(), name.to_owned()));
        rows.push(Row { text: line.to_owned(), value, has_setting: !setting.is_empty(), constant });
    }
    rows
}

/// Returns the constants of [`INTERNAL`].
fn internal() -> BTreeSet<Constant> {
    let mut internal = BTreeSet::new();
    for line in INTERNAL.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (file, names) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        let (name_of_crate, file) = file.split_once('/').unwrap_or_else(|| panic!("{line}"));
        for name in names.split(' ') {
            let is_new =
                internal.insert((format!("crates/{name_of_crate}/src/{file}"), name.to_owned()));
            assert!(is_new, "twice: {line}");
        }
    }
    internal
}

/// The ends of the names of bounds, besides the prefix `MAX_`.
const BOUND_NAMES: [&str; 4] = ["_MAX", "_TIMEOUT", "_LIMIT", "GRACE"];

/// Returns the name of the constant that a line declares, if it is that of a bound.
fn declared_bound(line: &str) -> Option<String> {
    let (before, after) = line.split_once("const ")?;
    let is_declared = before.trim().is_empty() || before.trim_start().starts_with("pub");
    let name = after.split(':').next()?;
    let is_bound = name.starts_with("MAX_") || BOUND_NAMES.iter().any(|end| name.ends_with(end));
    (is_declared && is_bound).then(|| name.to_owned())
}

/// Returns the bounds of the production code of all crates.
fn bounds() -> BTreeSet<Constant> {
    let (root, mut bounds) = (root(), BTreeSet::new());
    let mut folders = vec![root.join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if TEST_CODE.contains(&stem) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                let file = path.strip_prefix(&root).unwrap().to_str().unwrap();
                let names = code.lines().filter_map(declared_bound);
                bounds.extend(names.map(|name| (file.to_owned(), name)));
            }
        }
    }
    bounds
}

/// Returns the value of a constant in the source: a number, bytes, or a time in milliseconds.
fn constant(source: &str, name: &str) -> Option<u64> {
    let at = source.find(&format!("const {name}: "))?;
    let (_, value) = source[at..].split_once(" = ")?;
    let value = value.split_once(';')?.0;
    let time = |word: &str, unit: u64| {
        let inside = value.strip_prefix(word)?.strip_suffix(')')?;
        Some(calculated(source, inside)? * unit)
    };
    time("Duration::from_millis(", 1)
        .or_else(|| time("Duration::from_secs(", 1000))
        .or_else(|| time("Duration::from_mins(", 60_000))
        .or_else(|| time("Duration::from_hours(", 3_600_000))
        .or_else(|| calculated(source, value))
}

/// Evaluates an expression of numbers and constants from left to right.
fn calculated(source: &str, text: &str) -> Option<u64> {
    let term = |word: &str| match word.replace('_', "").parse() {
        Ok(number) => Some(number),
        Err(_) => constant(source, word),
    };
    let mut words = text.split_whitespace();
    let mut value = term(words.next()?)?;
    while let (Some(operator), Some(word)) = (words.next(), words.next()) {
        let other = term(word)?;
        value = match operator {
            "*" => value * other,
            "/" => value / other,
            "-" => value - other,
            "<<" => value << other,
            _ => return None,
        };
    }
    Some(value)
}

/// Parses a value of the guide.
fn written(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let unit = match unit {
        "" | "ms" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "MB" => 1_000_000,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        "days" => 24 * 3_600_000,
        _ => return None,
    };
    Some(number.parse::<u64>().ok()? * unit)
}

#[test]
fn guide_lists_the_limits_of_the_code() {
    let mut in_guide = BTreeSet::new();
    for Row { text, value, has_setting, constant: at } in rows() {
        let Some((source, name)) = at else {
            assert!(has_setting, "neither a setting nor a constant: {text}");
            continue;
        };
        assert_eq!(constant(&file(&source), &name), Some(value), "{text}");
        in_guide.insert((source, name));
    }
    for line in file(HTTP).lines().filter(|line| line.starts_with("pub(super) const ")) {
        let name = line["pub(super) const ".len()..].split(':').next().unwrap().to_owned();
        assert!(in_guide.contains(&(HTTP.to_owned(), name.clone())), "not in the guide: {name}");
    }
}

#[test]
fn guide_misses_no_limit_of_any_crate() {
    let in_guide: BTreeSet<Constant> = rows().into_iter().filter_map(|row| row.constant).collect();
    let (internal, bounds) = (internal(), bounds());
    let known: BTreeSet<Constant> = in_guide.union(&internal).cloned().collect();
    let missing: Vec<&Constant> = bounds.difference(&known).collect();
    assert!(missing.is_empty(), "neither in docs/guide/limits.md nor internal: {missing:?}");
    let stale: Vec<&Constant> = internal.difference(&bounds).collect();
    assert!(stale.is_empty(), "internal, but not in the code: {stale:?}");
    let both: Vec<&Constant> = internal.intersection(&in_guide).collect();
    assert!(both.is_empty(), "internal, but in docs/guide/limits.md: {both:?}");
}

#[test]
fn guide_lists_the_default_settings() {
    use xy_config::settings::{GatewaySettings, InstanceSettings, ParkSettings};
    let (gateway, park) = (GatewaySettings::default(), ParkSettings::default());
    let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap();
    let number = |number: usize| u64::try_from(number).unwrap();
    let defaults = [
        ("gateway { sessions }", number(gateway.sessions)),
        ("gateway { streams }", number(gateway.streams)),
        ("gateway { body }", gateway.body),
        ("gateway { idle }", millis(gateway.idle)),
        ("park { calls }", number(park.calls)),
        ("park { bytes }", park.bytes),
        ("park { total-calls }", number(park.total_calls)),
        ("park { total-bytes }", park.total_bytes),
        ("park { queue }", millis(park.queue)),
        ("park { held-calls }", number(park.held_calls)),
        ("park { held-bytes }", park.held_bytes),
        ("instances { most }", number(InstanceSettings::default().most)),
    ];
    let guide = file("docs/guide/limits.md");
    for (setting, default) in defaults {
        let line = guide.lines().find(|line| line.contains(&format!("| `{setting}` |")));
        let value = line.and_then(|line| line.split('|').nth(2)).map(str::trim);
        assert_eq!(value.and_then(written), Some(default), "{setting}");
    }
}
