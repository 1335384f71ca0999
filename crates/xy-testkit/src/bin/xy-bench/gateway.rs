//! What a call through the gateway costs, beside the same call without it.
//!
//! Every way is driven by the same client in turn, round after round, and a ratio is taken
//! within its round: what disturbs the machine disturbs all of them. Budgets stand beside
//! the figures; whoever reads them judges, nothing is asserted.

mod drive;
mod ways;

use std::path::Path;
use std::time::Duration;

use xy_testkit::Home;

use self::ways::Way;
use crate::{median, millis, now, row, say};

/// The first round only warms up.
const ROUNDS: usize = 9;

const CALLS_ONE_BY_ONE: u64 = 2_000;
const CALLS_TOGETHER: u64 = 16_000;
const STARTS: usize = 21;

/// The other gateway to compare with, a path of `mcp-proxy`.
const PEER: &str = "XY_BENCH_MCP_PROXY";

/// What one way did in one round.
#[derive(Debug, Clone, Copy)]
struct Measured {
    p50: Duration,
    per_second: f64,
}

/// All rounds of one way.
type Rounds = Vec<Measured>;

/// Measures everything there is.
pub(crate) fn measure(xy: &Path) {
    load("before");
    let home = xy.is_file().then(|| home(xy));
    let mut ways = vec![Way::direct_stdio(xy), Way::direct_http(xy)];
    if let Some(home) = &home {
        ways.extend([
            Way::http(home, "xy: HTTP /mcp/s/one -> stdio", "/mcp/s/one", "echo"),
            Way::http(home, "xy: HTTP /mcp -> stdio", "/mcp", "one__echo"),
            Way::connect(home, "xy: connect -> stdio"),
        ]);
    } else {
        not_measured(&format!("xy: there is no {}", xy.display()));
    }
    match std::env::var_os(PEER) {
        Some(peer) => ways.push(Way::peer(Path::new(&peer), xy, "mcp-proxy: HTTP -> stdio")),
        None => not_measured(&format!("mcp-proxy: {PEER} does not say where it is")),
    }
    let rounds = in_turns(&mut ways);
    report(&ways, &rounds);
    drop(ways);
    if let Some(home) = home {
        starts(&home, xy);
        home.finish();
    }
    load("after");
}

fn home(xy: &Path) -> Home {
    let home = Home::new(xy);
    home.write_config("xy.kdl", "gateway { listen \"127.0.0.1:0\"; }\n");
    home.mcp_server("one", &[]);
    home.daemon();
    home.wait_for_state("one", "running");
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
            if round > 0 {
                rounds.push(Measured { p50, per_second });
            }
        }
    }
    rounds
}

fn report(ways: &[Way], rounds: &[Rounds]) {
    let (stdio, http) = (&rounds[0], &rounds[1]);
    for (way, measured) in ways.iter().zip(rounds) {
        let p50 = median(measured.iter().map(|it| it.p50).collect());
        // Direct calls over both: what a gateway between HTTP and stdio cannot avoid.
        let ratio = |round: &Measured, stdio: &Measured, http: &Measured| {
            let least = stdio.p50 + if way.is_http { http.p50 } else { Duration::ZERO };
            round.p50.as_secs_f64() / least.as_secs_f64()
        };
        let ratios = measured.iter().zip(stdio.iter().zip(http));
        let ratio = middle(ratios.map(|(round, (stdio, http))| ratio(round, stdio, http)));
        let p50 = format!("{:.1} us", p50.as_secs_f64() * 1e6);
        let what = format!("{}, p50", way.name);
        if way.is_direct {
            row(&what, &p50, None, "");
        } else if way.is_http {
            row(&what, &p50, Some(ratio), &judged(ratio, "<=", 1.20, "direct HTTP + direct stdio"));
        } else {
            row(&what, &p50, Some(ratio), &judged(ratio, "<=", 2.2, "direct stdio"));
        }
    }
    for (way, measured) in ways.iter().zip(rounds) {
        let rate = middle(measured.iter().map(|it| it.per_second));
        let ratios = measured.iter().zip(stdio);
        let ratio = middle(ratios.map(|(round, stdio)| round.per_second / stdio.per_second));
        let what = format!("{}, 16 in flight", way.name);
        let budget = if way.is_http && !way.is_direct {
            judged(ratio, ">=", 0.8, "direct stdio")
        } else {
            String::new()
        };
        row(&what, &format!("{rate:.0} /s"), Some(ratio), &budget);
    }
    let all = stdio.iter().map(|it| it.p50.as_secs_f64());
    let spread = all.clone().fold(0.0, f64::max) / all.fold(f64::MAX, f64::min);
    row(
        "slowest / quickest round of direct stdio, p50",
        "",
        Some(spread),
        "near 1, or the machine was busy",
    );
}

/// A budget and whether it is kept.
fn judged(ratio: f64, how: &str, limit: f64, of: &str) -> String {
    let is_met = if how == "<=" { ratio <= limit } else { ratio >= limit };
    let verdict = if is_met { "met" } else { "MISSED" };
    format!("{how} {limit:.2} x {of}: {verdict}")
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
        let way = Way::direct_stdio(xy);
        direct.push(began.elapsed());
        drop(way);
        let began = now();
        let way = Way::connect(home, "");
        through.push(began.elapsed());
        drop(way);
    }
    let (direct, through) = (median(direct), median(through));
    row("xy-test-mcp: start -> answered initialize", &millis(direct), None, "");
    let verdict = if through <= Duration::from_millis(20) { "met" } else { "MISSED" };
    row(
        "xy connect: start -> answered initialize",
        &millis(through),
        None,
        &format!("<= 20 ms: {verdict}"),
    );
}
