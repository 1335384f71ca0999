//! The cost of a call through the gateway, compared with the same call without it.
//!
//! The same client drives every route in turn, round after round. Ratios are taken within a
//! round, so that noise of the machine affects all routes alike.
//!
//! The latency budget applies with all processes on one core. On several cores the scheduler
//! dominates: waking an idle core takes longer than xy's own work for a call. Which processes
//! share a core also changes from minute to minute, and differently for each route.
//!
//! A route with four `cat` processes shows this cost: it wakes as many processes as the longest
//! route of xy, and they only copy. Latency is also printed with every hop between two cores, and
//! with the placement of the scheduler. The throughput budget applies to that placement, because
//! throughput is the purpose of several cores.

mod affinity;
pub(crate) mod bodies;
mod driver;
mod routes;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use xy_testkit::Home;

use self::affinity::Core;
use self::routes::{Role, Route, Work};
use crate::{check_budget, median, millis, now, print_line, print_row};

/// The number of rounds. Rounds are many and short, because the scheduler's placement of two
/// processes makes calls fast or slow for a while. The first round only warms up.
const ROUNDS: usize = 42;

const SEQUENTIAL_CALLS: u64 = 500;
const CONCURRENT_CALLS: u64 = 3_200;

/// The number of large calls; small, since each moves a megabyte.
const LARGE_CALLS: usize = 5;
const LARGE_SIZE: usize = 1 << 20;

const STARTS: usize = 21;

/// The environment variable with the path of `mcp-proxy`, a gateway to compare with.
const PEER: &str = "XY_BENCH_MCP_PROXY";

/// The figures of one route in one round.
#[derive(Debug, Clone, Copy)]
struct Sample {
    p50: Duration,
    per_second: f64,
    /// The p50 of large results.
    large: Duration,
}

/// The figures of one route in all rounds.
type Rounds = Vec<Sample>;

/// The time that the fastest real servers, made with an SDK, take for a call. The budgets apply to
/// such a server.
const WORK: Work = Duration::from_micros(50);

/// The figure that has a budget in one placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Budgeted {
    Latency,
    Throughput,
    Nothing,
}

/// Runs all measurements of the gateway.
pub(crate) fn measure(xy: &Path) {
    load("before");
    let works = format!("server works {} us per call", WORK.as_micros());
    match affinity::pin_to_one_core() {
        Ok(pinned) => {
            print_line(&format!("all processes on one core, {works}:"));
            measure_with(xy, WORK, Budgeted::Latency);
            drop(pinned);
        }
        Err(why) => not_measured(&format!("all processes on one core: {why}")),
    }
    print_line(&format!("every hop between two cores, {works}:"));
    if let Err(why) = hops(xy) {
        not_measured(&format!("every hop between two cores: {why}"));
    }
    print_line(&format!("placed by the scheduler, {works}:"));
    measure_with(xy, WORK, Budgeted::Throughput);
    print_line("placed by the scheduler, server does no work (the cost of each route itself):");
    measure_with(xy, Work::ZERO, Budgeted::Nothing);
    if let Ok(_pinned) = affinity::pin_to_one_core() {
        print_line("all processes on one core, server does no work (the cost of translation):");
        eras(xy);
    }
    print_line("placed by the scheduler, server does no work, beside clients with large bodies:");
    bodies::measure(xy);
    load("after");
}

/// Measures the longest route for stdio clients, with consecutive processes on different cores.
fn hops(xy: &Path) -> Result<(), String> {
    let home = home(xy, WORK);
    let answer = |method, params| home.call(method, params).map_err(|fault| fault.to_string());
    let daemon = pid_in(&answer("info", json!({}))?)?;
    let server = pid_in(&answer("status", json!({ "name": "one" }))?)?;
    let mut routes = [
        Route::direct_stdio(xy, WORK),
        Route::copied(xy, WORK),
        Route::connect(&home, "xy: connect -> stdio"),
    ];
    let here = affinity::pin_to_one_core()?;
    for route in &routes {
        for (pid, side) in route.pids().zip([Core::Second, Core::First].into_iter().cycle()) {
            affinity::pin(pid, side)?;
        }
    }
    affinity::pin(daemon, Core::First)?;
    affinity::pin(server, Core::Second)?;
    let rounds = run_rounds(&mut routes);
    for (route, measured) in routes.iter().zip(&rounds) {
        report_latency(route, measured, &rounds[0], &rounds[0], false);
    }
    report_beside_copying(&routes, &rounds);
    drop((routes, here));
    home.finish();
    Ok(())
}

fn pid_in(answer: &Value) -> Result<u32, String> {
    let pid = answer["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    pid.ok_or_else(|| format!("no pid in {answer}"))
}

/// Measures every pair of client and server eras, relative to a legacy client and server.
fn eras(xy: &Path) {
    let home = home(xy, Work::ZERO);
    let mut routes = [
        Route::http(&home, "legacy client -> legacy server", "/mcp/s/one", "echo"),
        Route::modern_http(&home, "modern client -> modern server", "/mcp/s/new", "echo"),
        Route::modern_http(&home, "modern client -> legacy server", "/mcp/s/one", "echo"),
        Route::http(&home, "legacy client -> modern server", "/mcp/s/new", "echo"),
    ];
    let rounds = run_rounds(&mut routes);
    for (route, measured) in routes.iter().zip(&rounds) {
        let of = |time: fn(&Sample) -> Duration| {
            let ratios = measured.iter().zip(&rounds[0]);
            let ratios =
                ratios.map(|(it, legacy)| time(it).as_secs_f64() / time(legacy).as_secs_f64());
            (median(measured.iter().map(time).collect()), median_of(ratios))
        };
        let of_first = "of legacy client -> legacy server";
        let (p50, ratio) = of(|it| it.p50);
        let p50 = format!("{:.1} us", p50.as_secs_f64() * 1e6);
        print_row(&format!("xy: {}, p50", route.name), &p50, Some(ratio), of_first);
        let (large, ratio) = of(|it| it.large);
        print_row(&format!("xy: {}, 1 MB", route.name), &millis(large), Some(ratio), of_first);
    }
    drop(routes);
    home.finish();
}

fn measure_with(xy: &Path, work: Work, what: Budgeted) {
    let home = xy.is_file().then(|| home(xy, work));
    let mut routes =
        vec![Route::direct_stdio(xy, work), Route::direct_http(xy, work), Route::copied(xy, work)];
    if let Some(home) = &home {
        routes.extend([
            Route::http(home, "xy: HTTP /mcp/s/one -> stdio", "/mcp/s/one", "echo"),
            Route::http(home, "xy: HTTP /mcp -> stdio", "/mcp", "one__echo"),
            Route::connect(home, "xy: connect -> stdio"),
            Route::http_to_http(home, "xy: HTTP /mcp/s/web -> HTTP", "/mcp/s/web", "echo"),
        ]);
    } else {
        not_measured(&format!("xy: {} does not exist", xy.display()));
    }
    match std::env::var_os(PEER) {
        Some(peer) => routes.push(Route::peer(Path::new(&peer), xy, work)),
        None => not_measured(&format!("mcp-proxy: set {PEER} to its path")),
    }
    let rounds = run_rounds(&mut routes);
    report(&routes, &rounds, what);
    drop(routes);
    if let Some(home) = home {
        if what == Budgeted::Throughput {
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
    print_line(&format!("!! NOT MEASURED !! {what}"));
}

/// Prints the load of the machine, because foreign load invalidates a run.
fn load(when: &str) {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_else(|_| "unknown".to_owned());
    print_line(&format!("load {when}: {}", load.trim_end()));
}

/// Drives every route once per round.
fn run_rounds(routes: &mut [Route]) -> Vec<Rounds> {
    let mut rounds = vec![Vec::new(); routes.len()];
    for round in 0..ROUNDS {
        for (route, rounds) in routes.iter_mut().zip(&mut rounds) {
            let p50 = route.driver.sequential_p50(SEQUENTIAL_CALLS);
            let per_second = route.driver.concurrent_rate(CONCURRENT_CALLS);
            let large = route.driver.large_p50(LARGE_CALLS, LARGE_SIZE);
            if round > 0 {
                rounds.push(Sample { p50, per_second, large });
            }
        }
    }
    rounds
}

fn report(routes: &[Route], rounds: &[Rounds], what: Budgeted) {
    let (stdio, http) = (&rounds[0], &rounds[1]);
    for (route, measured) in routes.iter().zip(rounds) {
        report_latency(route, measured, stdio, http, what == Budgeted::Latency);
    }
    report_beside_copying(routes, rounds);
    for (route, measured) in routes.iter().zip(rounds) {
        report_throughput(route, measured, stdio, http, what == Budgeted::Throughput);
    }
    for (route, measured) in routes.iter().zip(rounds) {
        report_large(route, measured, stdio, http);
    }
    let all = stdio.iter().map(|it| it.p50.as_secs_f64());
    let spread = all.clone().fold(0.0, f64::max) / all.fold(f64::MAX, f64::min);
    let what = "slowest / quickest round of direct stdio, p50";
    print_row(what, "", Some(spread), "should be near 1; else load or placement dominated");
}

fn report_latency(
    route: &Route,
    measured: &Rounds,
    stdio: &Rounds,
    http: &Rounds,
    has_budget: bool,
) {
    let ratio = ratio_to_baseline(route, measured, stdio, http, |round| round.p50);
    let budget = match (route.role, route.is_http, route.is_to_http) {
        (Role::Direct, ..) => String::new(),
        (Role::Xy, true, true) if has_budget => at_most(ratio, 1.20, BASELINE_TO_HTTP),
        (Role::Xy, true, false) if has_budget => at_most(ratio, 1.20, BASELINE),
        (Role::Xy, false, _) if has_budget => at_most(ratio, 2.2, "direct stdio"),
        _ => of_baseline(route),
    };
    let p50 = median(measured.iter().map(|it| it.p50).collect());
    let p50 = format!("{:.1} us", p50.as_secs_f64() * 1e6);
    let ratio = (route.role != Role::Direct).then_some(ratio);
    print_row(&format!("{}, p50", route.name), &p50, ratio, &budget);
}

/// Prints the latency of the stdio bridge relative to a route with as many processes that only
/// copy. The difference is xy's own work.
fn report_beside_copying(routes: &[Route], rounds: &[Rounds]) {
    let of = |is: fn(&Route) -> bool| routes.iter().position(is).map(|at| &rounds[at]);
    let copied = of(|route| route.role == Role::Copying);
    let bridged = of(|route| route.role == Role::Xy && !route.is_http);
    if let Some((copied, bridged)) = copied.zip(bridged) {
        let ratios = bridged.iter().zip(copied);
        let ratio =
            median_of(ratios.map(|(it, bare)| it.p50.as_secs_f64() / bare.p50.as_secs_f64()));
        print_row("xy: connect -> stdio, p50", "", Some(ratio), "of four cats and stdio");
    }
}

/// The minimum cost of a gateway from HTTP to stdio.
const BASELINE: &str = "direct HTTP + direct stdio";

/// The minimum cost of a gateway from HTTP to HTTP.
const BASELINE_TO_HTTP: &str = "2 x direct HTTP";

fn of_baseline(route: &Route) -> String {
    match (route.is_http, route.is_to_http) {
        (true, true) => format!("of {BASELINE_TO_HTTP}"),
        (true, false) => format!("of {BASELINE}"),
        (false, _) => "of direct stdio".to_owned(),
    }
}

/// Returns the ratio of a route's time to that of the direct calls that it consists of.
fn ratio_to_baseline(
    route: &Route,
    measured: &Rounds,
    stdio: &Rounds,
    http: &Rounds,
    time: impl Fn(&Sample) -> Duration,
) -> f64 {
    let ratios = measured.iter().zip(stdio.iter().zip(http)).map(|(round, (stdio, http))| {
        let least = match (route.is_http, route.is_to_http) {
            (true, true) => 2 * time(http),
            (true, false) => time(stdio) + time(http),
            (false, _) => time(stdio),
        };
        time(round).as_secs_f64() / least.as_secs_f64()
    });
    median_of(ratios)
}

fn report_large(route: &Route, measured: &Rounds, stdio: &Rounds, http: &Rounds) {
    let ratio = ratio_to_baseline(route, measured, stdio, http, |round| round.large);
    let p50 = median(measured.iter().map(|it| it.large).collect());
    let (ratio, of) = match route.role {
        Role::Direct => (None, String::new()),
        Role::Xy | Role::Peer | Role::Copying => (Some(ratio), of_baseline(route)),
    };
    print_row(&format!("{}, 1 MB results, p50", route.name), &millis(p50), ratio, &of);
}

fn report_throughput(
    route: &Route,
    measured: &Rounds,
    stdio: &Rounds,
    http: &Rounds,
    has_budget: bool,
) {
    let of = |direct: &Rounds| {
        let ratios = measured.iter().zip(direct);
        median_of(ratios.map(|(round, direct)| round.per_second / direct.per_second))
    };
    let (ratio, of_http) = (of(stdio), of(http));
    // Sixteen connections cost more than one pipe, even without a gateway.
    let also = format!("({of_http:.2} x direct HTTP)");
    let budget = match (route.role, route.is_http) {
        (Role::Xy, true) if has_budget && !route.is_to_http => {
            format!("{} {also}", at_least(ratio, 0.8, "direct stdio"))
        }
        (Role::Xy | Role::Peer, true) => format!("of direct stdio {also}"),
        (Role::Direct, false) => String::new(),
        _ => "of direct stdio".to_owned(),
    };
    let rate = median_of(measured.iter().map(|it| it.per_second));
    let rate = format!("{rate:.0} /s");
    print_row(&format!("{}, 16 in flight", route.name), &rate, Some(ratio), &budget);
}

/// Returns the text of an upper limit with its outcome.
fn at_most(ratio: f64, limit: f64, of: &str) -> String {
    check_budget(ratio <= limit, &format!("<= {limit:.2} x {of}"))
}

/// Returns the text of a lower limit with its outcome.
fn at_least(ratio: f64, limit: f64, of: &str) -> String {
    check_budget(ratio >= limit, &format!(">= {limit:.2} x {of}"))
}

fn median_of(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Measures the time from the start of a process to its answer to `initialize`.
fn starts(home: &Home, xy: &Path) {
    let (mut direct, mut through) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let began = now();
        let route = Route::direct_stdio(xy, Work::ZERO);
        direct.push(began.elapsed());
        drop(route);
        let began = now();
        let route = Route::connect(home, "");
        through.push(began.elapsed());
        drop(route);
    }
    let (direct, through) = (median(direct), median(through));
    print_row("xy-test-mcp: start -> initialize answered", &millis(direct), None, "");
    let budget = check_budget(through <= Duration::from_millis(20), "<= 20 ms");
    print_row("xy connect: start -> initialize answered", &millis(through), None, &budget);
}
