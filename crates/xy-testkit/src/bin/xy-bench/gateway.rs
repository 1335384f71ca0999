//! What a call through the gateway costs, beside the same call without it.
//!
//! Every way is driven by the same client in turn, round after round, and a ratio is taken
//! within its round: what disturbs the machine disturbs all of them.
//!
//! How long a call takes is judged with everything on one core. Elsewhere it is mostly the
//! system that is measured: to wake an idle core takes longer than all that xy does with a
//! call, and whether two processes share one changes from minute to minute, for one way and
//! not for the other. Four `cat` in the way show it: they do nothing with a call, and wake as
//! many processes as our longest way. What becomes of both is also shown with each hop from one
//! core to the other, and as the system places them. How many calls are done at a time is judged
//! as the system places them, since that is the use of cores.

pub(crate) mod bodies;
mod core;
mod drive;
mod ways;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::Home;

use self::core::Side;
use self::ways::{Role, Way, Work};
use crate::{judged, median, millis, now, row, say};

/// Many and short: on a few cores a call is quick or slow by where the system puts the two
/// processes, for a while. The first round only warms up.
const ROUNDS: usize = 42;

const CALLS_ONE_BY_ONE: u64 = 500;
const CALLS_TOGETHER: u64 = 3_200;

/// Few, since each moves a megabyte.
const CALLS_LARGE: usize = 5;
const LARGE: usize = 1 << 20;

const STARTS: usize = 21;

/// The other gateway to compare with, a path of `mcp-proxy`.
const PEER: &str = "XY_BENCH_MCP_PROXY";

/// What one way did in one round.
#[derive(Debug, Clone, Copy)]
struct Measured {
    p50: Duration,
    per_second: f64,
    /// The p50 of large results.
    large: Duration,
}

/// All rounds of one way.
type Rounds = Vec<Measured>;

/// What the quickest servers of real life take for a call: those made with an SDK. The
/// budgets are for such a server.
const WORK: Work = Duration::from_micros(50);

/// What is judged of what is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judged {
    Latency,
    Throughput,
    Nothing,
}

/// Measures everything there is.
pub(crate) fn measure(xy: &Path) {
    load("before");
    let works = format!("with a server that works {} us for each call", WORK.as_micros());
    match core::stay_on_one() {
        Ok(on_one) => {
            say(&format!("everything on one core, {works}:"));
            measure_with(xy, WORK, Judged::Latency);
            drop(on_one);
        }
        Err(why) => not_measured(&format!("everything on one core: {why}")),
    }
    say(&format!("every hop from one core to the other, {works}:"));
    if let Err(why) = hops(xy) {
        not_measured(&format!("every hop from one core to the other: {why}"));
    }
    say(&format!("as the system places it, {works}:"));
    measure_with(xy, WORK, Judged::Throughput);
    say("the same with a server that does nothing, which shows what each way costs by itself:");
    measure_with(xy, Work::ZERO, Judged::Nothing);
    if let Ok(_on_one) = core::stay_on_one() {
        say("everything on one core, a server that does nothing: what it costs to translate");
        eras(xy);
    }
    say("as the system places it, a server that does nothing, beside clients with large bodies:");
    bodies::measure(xy);
    load("after");
}

/// The longest way for stdio clients, with each process on another core than the one before.
fn hops(xy: &Path) -> Result<(), String> {
    let home = home(xy, WORK);
    let answer = |method, params| home.call(method, params).map_err(|fault| fault.to_string());
    let daemon = pid_in(&answer("info", json!({}))?)?;
    let server = pid_in(&answer("status", json!({ "name": "one" }))?)?;
    let mut ways = [
        Way::direct_stdio(xy, WORK),
        Way::copied(xy, WORK),
        Way::connect(&home, "xy: connect -> stdio"),
    ];
    let here = core::stay_on_one()?;
    for way in &ways {
        for (pid, side) in way.pids().zip([Side::There, Side::Here].into_iter().cycle()) {
            core::put(pid, side)?;
        }
    }
    core::put(daemon, Side::Here)?;
    core::put(server, Side::There)?;
    let rounds = in_turns(&mut ways);
    for (way, measured) in ways.iter().zip(&rounds) {
        latency(way, measured, &rounds[0], &rounds[0], false);
    }
    beside_copies(&ways, &rounds);
    drop((ways, here));
    home.finish();
    Ok(())
}

fn pid_in(answer: &Value) -> Result<u32, String> {
    let pid = answer["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    pid.ok_or_else(|| format!("no pid in {answer}"))
}

/// Clients and servers of both eras: each pair beside the two that need no translation.
fn eras(xy: &Path) {
    let home = home(xy, Work::ZERO);
    let mut ways = [
        Way::http(&home, "legacy client -> legacy server", "/mcp/s/one", "echo"),
        Way::modern_http(&home, "modern client -> modern server", "/mcp/s/new", "echo"),
        Way::modern_http(&home, "modern client -> legacy server", "/mcp/s/one", "echo"),
        Way::http(&home, "legacy client -> modern server", "/mcp/s/new", "echo"),
    ];
    let rounds = in_turns(&mut ways);
    for (way, measured) in ways.iter().zip(&rounds) {
        let of = |time: fn(&Measured) -> Duration| {
            let ratios = measured.iter().zip(&rounds[0]);
            let ratios =
                ratios.map(|(it, legacy)| time(it).as_secs_f64() / time(legacy).as_secs_f64());
            (median(measured.iter().map(time).collect()), middle(ratios))
        };
        let of_first = "of legacy client -> legacy server";
        let (p50, ratio) = of(|it| it.p50);
        let p50 = format!("{:.1} us", p50.as_secs_f64() * 1e6);
        row(&format!("xy: {}, p50", way.name), &p50, Some(ratio), of_first);
        let (large, ratio) = of(|it| it.large);
        row(&format!("xy: {}, 1 MB", way.name), &millis(large), Some(ratio), of_first);
    }
    drop(ways);
    home.finish();
}

fn measure_with(xy: &Path, work: Work, what: Judged) {
    let home = xy.is_file().then(|| home(xy, work));
    let mut ways =
        vec![Way::direct_stdio(xy, work), Way::direct_http(xy, work), Way::copied(xy, work)];
    if let Some(home) = &home {
        ways.extend([
            Way::http(home, "xy: HTTP /mcp/s/one -> stdio", "/mcp/s/one", "echo"),
            Way::http(home, "xy: HTTP /mcp -> stdio", "/mcp", "one__echo"),
            Way::connect(home, "xy: connect -> stdio"),
            Way::http_to_http(home, "xy: HTTP /mcp/s/web -> HTTP", "/mcp/s/web", "echo"),
        ]);
    } else {
        not_measured(&format!("xy: there is no {}", xy.display()));
    }
    match std::env::var_os(PEER) {
        Some(peer) => ways.push(Way::peer(Path::new(&peer), xy, work)),
        None => not_measured(&format!("mcp-proxy: {PEER} does not say where it is")),
    }
    let rounds = in_turns(&mut ways);
    report(&ways, &rounds, what);
    drop(ways);
    if let Some(home) = home {
        if what == Judged::Throughput {
            starts(&home, xy);
        }
        home.finish();
    }
}

fn home(xy: &Path, work: Work) -> Home {
    let home = Home::new(xy);
    home.write_config("xy.kdl", "gateway { listen \"127.0.0.1:0\"; }\n");
    let work = work.as_micros().to_string();
    home.mcp_server("one", &["--work-us", &work]);
    home.mcp_server("new", &["--work-us", &work, "--era", "modern"]);
    let port = xy_testkit::free_port();
    let web = home.kdl_mcp(&["--work-us", &work, "--http", &port.to_string()]);
    home.write_config("servers/web.kdl", &format!("{web}transport \"http\"\nport {port}\n"));
    home.daemon();
    for server in ["one", "new", "web"] {
        home.wait_for_state(server, "running");
    }
    home
}

fn not_measured(what: &str) {
    say(&format!("!! NOT MEASURED !! {what}"));
}

/// Foreign load makes a run worthless, so it is shown.
fn load(when: &str) {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_else(|_| "unknown".to_owned());
    say(&format!("load {when}: {}", load.trim_end()));
}

/// Every way once, and again, and again.
fn in_turns(ways: &mut [Way]) -> Vec<Rounds> {
    let mut rounds = vec![Vec::new(); ways.len()];
    for round in 0..ROUNDS {
        for (way, rounds) in ways.iter_mut().zip(&mut rounds) {
            let p50 = way.driver.one_by_one(CALLS_ONE_BY_ONE);
            let per_second = way.driver.together(CALLS_TOGETHER);
            let large = way.driver.large(CALLS_LARGE, LARGE);
            if round > 0 {
                rounds.push(Measured { p50, per_second, large });
            }
        }
    }
    rounds
}

fn report(ways: &[Way], rounds: &[Rounds], what: Judged) {
    let (stdio, http) = (&rounds[0], &rounds[1]);
    for (way, measured) in ways.iter().zip(rounds) {
        latency(way, measured, stdio, http, what == Judged::Latency);
    }
    beside_copies(ways, rounds);
    for (way, measured) in ways.iter().zip(rounds) {
        throughput(way, measured, stdio, http, what == Judged::Throughput);
    }
    for (way, measured) in ways.iter().zip(rounds) {
        large(way, measured, stdio, http);
    }
    let all = stdio.iter().map(|it| it.p50.as_secs_f64());
    let spread = all.clone().fold(0.0, f64::max) / all.fold(f64::MAX, f64::min);
    let what = "slowest / quickest round of direct stdio, p50";
    row(what, "", Some(spread), "near 1, or something else decided: load, or where they ran");
}

fn latency(way: &Way, measured: &Rounds, stdio: &Rounds, http: &Rounds, is_judged: bool) {
    let ratio = over_least(way, measured, stdio, http, |round| round.p50);
    let budget = match (way.role, way.is_http, way.is_to_http) {
        (Role::Direct, ..) => String::new(),
        (Role::Ours, true, true) if is_judged => at_most(ratio, 1.20, LEAST_TO_HTTP),
        (Role::Ours, true, false) if is_judged => at_most(ratio, 1.20, LEAST),
        (Role::Ours, false, _) if is_judged => at_most(ratio, 2.2, "direct stdio"),
        _ => of_least(way),
    };
    let p50 = median(measured.iter().map(|it| it.p50).collect());
    let p50 = format!("{:.1} us", p50.as_secs_f64() * 1e6);
    let ratio = (way.role != Role::Direct).then_some(ratio);
    row(&format!("{}, p50", way.name), &p50, ratio, &budget);
}

/// How long a call through the bridge takes, beside one that wakes as many processes of which
/// none does more than copy: the rest is what xy does.
fn beside_copies(ways: &[Way], rounds: &[Rounds]) {
    let of = |is: fn(&Way) -> bool| ways.iter().position(is).map(|at| &rounds[at]);
    let copied = of(|way| way.role == Role::Copies);
    let bridged = of(|way| way.role == Role::Ours && !way.is_http);
    if let Some((copied, bridged)) = copied.zip(bridged) {
        let ratios = bridged.iter().zip(copied);
        let ratio = middle(ratios.map(|(it, bare)| it.p50.as_secs_f64() / bare.p50.as_secs_f64()));
        row("xy: connect -> stdio, p50", "", Some(ratio), "of four cats and stdio");
    }
}

/// What a gateway between HTTP and stdio cannot avoid.
const LEAST: &str = "direct HTTP + direct stdio";

/// What a gateway between HTTP and HTTP cannot avoid.
const LEAST_TO_HTTP: &str = "2 x direct HTTP";

fn of_least(way: &Way) -> String {
    match (way.is_http, way.is_to_http) {
        (true, true) => format!("of {LEAST_TO_HTTP}"),
        (true, false) => format!("of {LEAST}"),
        (false, _) => "of direct stdio".to_owned(),
    }
}

/// How many times as long a way takes as the direct calls it is made of.
fn over_least(
    way: &Way,
    measured: &Rounds,
    stdio: &Rounds,
    http: &Rounds,
    time: impl Fn(&Measured) -> Duration,
) -> f64 {
    let ratios = measured.iter().zip(stdio.iter().zip(http)).map(|(round, (stdio, http))| {
        let least = match (way.is_http, way.is_to_http) {
            (true, true) => 2 * time(http),
            (true, false) => time(stdio) + time(http),
            (false, _) => time(stdio),
        };
        time(round).as_secs_f64() / least.as_secs_f64()
    });
    middle(ratios)
}

fn large(way: &Way, measured: &Rounds, stdio: &Rounds, http: &Rounds) {
    let ratio = over_least(way, measured, stdio, http, |round| round.large);
    let p50 = median(measured.iter().map(|it| it.large).collect());
    let (ratio, of) = match way.role {
        Role::Direct => (None, String::new()),
        Role::Ours | Role::Peer | Role::Copies => (Some(ratio), of_least(way)),
    };
    row(&format!("{}, 1 MB results, p50", way.name), &millis(p50), ratio, &of);
}

fn throughput(way: &Way, measured: &Rounds, stdio: &Rounds, http: &Rounds, is_judged: bool) {
    let of = |direct: &Rounds| {
        let ratios = measured.iter().zip(direct);
        middle(ratios.map(|(round, direct)| round.per_second / direct.per_second))
    };
    let (ratio, of_http) = (of(stdio), of(http));
    // Sixteen connections cost what one pipe does not, with and without a gateway.
    let also = format!("({of_http:.2} x direct HTTP)");
    let budget = match (way.role, way.is_http) {
        (Role::Ours, true) if is_judged && !way.is_to_http => {
            format!("{} {also}", at_least(ratio, 0.8, "direct stdio"))
        }
        (Role::Ours | Role::Peer, true) => format!("of direct stdio {also}"),
        (Role::Direct, false) => String::new(),
        _ => "of direct stdio".to_owned(),
    };
    let rate = middle(measured.iter().map(|it| it.per_second));
    let rate = format!("{rate:.0} /s");
    row(&format!("{}, 16 in flight", way.name), &rate, Some(ratio), &budget);
}

/// A longest or a least ratio, and whether it is kept.
fn at_most(ratio: f64, limit: f64, of: &str) -> String {
    judged(ratio <= limit, &format!("<= {limit:.2} x {of}"))
}

fn at_least(ratio: f64, limit: f64, of: &str) -> String {
    judged(ratio >= limit, &format!(">= {limit:.2} x {of}"))
}

fn middle(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// How long it takes from the start of a process to its answer to `initialize`.
fn starts(home: &Home, xy: &Path) {
    let (mut direct, mut through) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let began = now();
        let way = Way::direct_stdio(xy, Work::ZERO);
        direct.push(began.elapsed());
        drop(way);
        let began = now();
        let way = Way::connect(home, "");
        through.push(began.elapsed());
        drop(way);
    }
    let (direct, through) = (median(direct), median(through));
    row("xy-test-mcp: start -> answered initialize", &millis(direct), None, "");
    let budget = judged(through <= Duration::from_millis(20), "<= 20 ms");
    row("xy connect: start -> answered initialize", &millis(through), None, &budget);
}
