//! The official conformance suite: each check that passes at a server must pass through xy.
//!
//! The server is `xy-test-fixture`, which passes everything directly, in either era. xy stands in
//! front of it as a daemon without authentication, because the suite sends no token. The fixture
//! behind xy may be of the other era.
//!
//! The tests compare single checks, not the exit code of the suite. `conformance/excused.rs` lists
//! the checks that no bridge between the eras can pass, each with its reason. Any other difference
//! is a fault, and so is an excused check that passes. `conformance/sdks.rs` runs the suite with
//! fixtures on published SDKs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

mod excused;
mod sdks;

use self::excused::Excused;
use crate::lab::{Era, Fixture, Lab, Upstream};

/// A suite: its package, its arguments, and the minimum number of passed checks. The minimum
/// catches a suite that runs nothing.
type Suite = (&'static str, &'static [&'static str], usize);

/// The suites of the legacy era.
const SUITES: [Suite; 3] =
    [("conformance", &["--suite", "active"], 38), ("conformance", &["--suite", "all"], 46), LEGACY];

/// The requirements of the last revision with `initialize`.
const LEGACY: Suite = ("conformance-next", &["--requirements", "2025-11-25"], 83);

/// The requirements of the revision after it, with the extensions that the suite knows.
const MODERN: Suite = ("conformance-next", &["--requirements", "2026-07-28"], 180);

/// Delay of the call that the client is to resume. The suite disconnects after 10 s if the server
/// has not done so, and reconnects for 5 s. xy has no reason to disconnect, so the call must take
/// longer than 10 s.
const RESUME_DELAY: &str = "env { FIXTURE_AWAY_MS 12000 }\n";

/// The outcome of each check, by scenario and check: the worst, if there are several.
type Checks = BTreeMap<String, Outcome>;

/// The outcome of a check, from best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Success,
    /// Nothing was checked.
    Info,
    Warning,
    Failure,
}

#[test]
fn fixture_passes_every_suite_directly() {
    assert_fixture_passes(Era::Legacy, &SUITES);
}

#[test]
fn modern_fixture_passes_modern_suite_directly() {
    assert_fixture_passes(Era::Modern, &[MODERN]);
}

#[test]
fn dual_era_fixture_passes_both_suites_directly() {
    assert_fixture_passes(Era::Both, &[LEGACY, MODERN]);
}

#[test]
fn legacy_checks_pass_with_stdio_server() {
    Comparison::of(Era::Legacy, Upstream::Stdio, &SUITES).check();
}

#[test]
fn legacy_checks_pass_with_streamable_http_server() {
    Comparison::of(Era::Legacy, Upstream::Http, &SUITES).check();
}

#[test]
fn legacy_checks_pass_with_legacy_sse_server() {
    Comparison::of(Era::Legacy, Upstream::Sse, &SUITES).check();
}

#[test]
fn modern_checks_pass_with_modern_stdio_server() {
    Comparison::of(Era::Modern, Upstream::Stdio, &[MODERN]).check();
}

#[test]
fn modern_checks_pass_with_modern_http_server() {
    Comparison::of(Era::Modern, Upstream::Http, &[MODERN]).check();
}

#[test]
fn checks_of_both_eras_pass_with_dual_era_stdio_server() {
    Comparison::of(Era::Both, Upstream::Stdio, &[LEGACY, MODERN]).check();
}

#[test]
fn checks_of_both_eras_pass_with_dual_era_http_server() {
    Comparison::of(Era::Both, Upstream::Http, &[LEGACY, MODERN]).check();
}

#[test]
fn modern_checks_pass_with_legacy_stdio_server() {
    let excused = &[excused::LEGACY_BEHIND, excused::SHARED];
    let comparison = Comparison::of(Era::Modern, Upstream::Stdio, &[MODERN]);
    Comparison { behind: Era::Legacy, excused, ..comparison }.check();
}

#[test]
fn modern_checks_pass_with_legacy_http_server() {
    let excused = &[excused::LEGACY_BEHIND, excused::SHARED];
    let comparison = Comparison::of(Era::Modern, Upstream::Http, &[MODERN]);
    Comparison { behind: Era::Legacy, excused, ..comparison }.check();
}

#[test]
fn modern_checks_pass_with_isolated_legacy_server() {
    let comparison = Comparison::of(Era::Modern, Upstream::Stdio, &[MODERN]);
    let (more, excused) = ("isolation \"client\"\n", &[excused::LEGACY_BEHIND]);
    Comparison { behind: Era::Legacy, more, excused, ..comparison }.check();
}

#[test]
fn legacy_checks_pass_with_modern_stdio_server() {
    let comparison = Comparison::of(Era::Legacy, Upstream::Stdio, &[LEGACY]);
    Comparison { behind: Era::Modern, ..comparison }.check();
}

#[test]
fn legacy_checks_pass_with_modern_http_server() {
    let comparison = Comparison::of(Era::Legacy, Upstream::Http, &[LEGACY]);
    Comparison { behind: Era::Modern, ..comparison }.check();
}

/// Runs the suite `active` with the fixture in a container. `./test engines` runs these tests,
/// because they need an engine too.
fn check_in_container(engine: &'static str, is_http: bool) {
    let upstream = Upstream::Container { engine, is_http };
    let comparison = Comparison::of(Era::Legacy, upstream, &SUITES[..1]);
    Comparison { more: "", ..comparison }.check();
}

#[test]
#[ignore = "it needs an engine"]
fn checks_pass_with_docker_stdio_server() {
    check_in_container("docker", false);
}

#[test]
#[ignore = "it needs an engine"]
fn checks_pass_with_docker_http_server() {
    check_in_container("docker", true);
}

#[test]
#[ignore = "it needs an engine"]
fn checks_pass_with_podman_stdio_server() {
    check_in_container("podman", false);
}

#[test]
#[ignore = "it needs an engine"]
fn checks_pass_with_podman_http_server() {
    check_in_container("podman", true);
}

#[track_caller]
fn assert_fixture_passes(era: Era, suites: &[Suite]) {
    let lab = Lab::new();
    let fixture = Fixture::start(&lab, era);
    for suite in suites {
        run_directly(&lab, &fixture, *suite);
    }
    fixture.end(&lab.home);
    lab.home.finish();
}

/// Suites that a fixture passes directly, and the way through xy on which they must pass.
struct Comparison {
    /// The era of the fixture without xy.
    direct: Era,
    /// The era of the fixture behind xy.
    behind: Era,
    upstream: Upstream,
    /// Further lines for the file of the fixture behind xy.
    more: &'static str,
    suites: &'static [Suite],
    excused: &'static [&'static [Excused]],
}

impl Comparison {
    /// Returns a passage with fixtures of the same era and no excused checks.
    const fn of(era: Era, upstream: Upstream, suites: &'static [Suite]) -> Self {
        Self { direct: era, behind: era, upstream, more: RESUME_DELAY, suites, excused: &[] }
    }

    #[track_caller]
    fn check(&self) {
        let lab = Lab::new();
        let fixture = Fixture::start(&lab, self.direct);
        let _daemon = lab.daemon(self.upstream, self.behind, self.more);
        let url = format!("http://{}/mcp/s/fixture", lab.home.gateway_address());
        let mut problems = Vec::new();
        let mut unused: BTreeSet<&str> = self.excused().collect();
        for suite in self.suites {
            let expected = run_directly(&lab, &fixture, *suite);
            let seen = run(&lab, *suite, &url);
            for (check, problem) in differences(&expected, &seen) {
                if self.excused().any(|it| it == check) {
                    unused.remove(check.as_str());
                } else {
                    problems.push(format!("{suite:?}: {check} {problem}"));
                }
            }
        }
        problems.extend(unused.iter().map(|it| format!("{it} is excused, but passes")));
        assert!(problems.is_empty(), "{}", problems.join("\n"));
        fixture.end(&lab.home);
        lab.home.finish();
    }

    fn excused(&self) -> impl Iterator<Item = &'static str> {
        self.excused.iter().copied().flatten().flat_map(|it| it.checks).copied()
    }
}

/// Returns the checks that pass directly but not through xy, and those that are bad only through
/// xy.
fn differences(expected: &Checks, seen: &Checks) -> Vec<(String, String)> {
    let fails = |(check, outcome): (&String, &Outcome)| match (outcome, seen.get(check)) {
        (Outcome::Success, Some(Outcome::Success)) => None,
        (Outcome::Success, seen) => Some((check.clone(), format!("passes, but then: {seen:?}"))),
        _ => None,
    };
    let is_bad = |(_, outcome): &(&String, &Outcome)| **outcome >= Outcome::Warning;
    let more = seen.iter().filter(is_bad).filter(|(check, _)| !expected.contains_key(*check));
    let more = more.map(|(check, seen)| (check.clone(), format!("is {seen:?}")));
    expected.iter().filter_map(fails).chain(more).collect()
}

/// Runs a suite against the fixture directly; the fixture must pass every check.
#[track_caller]
fn run_directly(lab: &Lab, fixture: &Fixture, suite: Suite) -> Checks {
    let checks = run(lab, suite, &fixture.url());
    let bad: Vec<_> = checks.iter().filter(|(_, it)| **it >= Outcome::Warning).collect();
    assert!(bad.is_empty(), "the fixture does not pass {suite:?}: {bad:#?}");
    let passed = checks.values().filter(|it| **it == Outcome::Success).count();
    let (.., least) = suite;
    assert!(passed >= least, "{suite:?} has {passed} checks that pass, not {least}");
    checks
}

/// Runs a suite, and returns the outcome of each check.
#[track_caller]
fn run(lab: &Lab, (package, args, _): Suite, url: &str) -> Checks {
    let output = tempfile::tempdir_in(lab.home.root().join("harness")).unwrap();
    let log = output.path().join("log");
    let results = output.path().join("results");
    let script = format!("npm/node_modules/{package}/dist/index.js");
    let mut command = lab.node(&script);
    command.arg("server").args(args).arg("--url").arg(url).arg("-o").arg(&results);
    let file = File::create(&log).unwrap();
    command.stdin(Stdio::null()).stderr(file.try_clone().unwrap()).stdout(file);
    let mut child = command.spawn().unwrap();
    Lab::wait_for(&mut child, package);
    let checks = read(&results);
    let read_log = || fs::read_to_string(&log).unwrap_or_default();
    assert!(!checks.is_empty(), "{package} {args:?} has checked nothing:\n{}", read_log());
    checks
}

/// Reads the results of a suite: a folder per scenario, `server-<name>-<time>`.
#[track_caller]
fn read(results: &Path) -> Checks {
    let mut all = Checks::new();
    for folder in fs::read_dir(results).into_iter().flatten().flatten() {
        let name = folder.file_name().into_string().unwrap();
        let time = "-2026-11-16T04-29-49-945Z".len();
        let scenario = name[..name.len() - time].strip_prefix("server-").unwrap();
        let text = fs::read_to_string(folder.path().join("checks.json")).unwrap();
        let checks: Vec<Value> = serde_json::from_str(&text).unwrap();
        for check in checks {
            let outcome = match check["status"].as_str() {
                Some("SUCCESS") => Outcome::Success,
                Some("INFO" | "SKIPPED") => Outcome::Info,
                Some("WARNING") => Outcome::Warning,
                _ => Outcome::Failure,
            };
            let name = format!("{scenario}/{}", check["id"].as_str().unwrap());
            let worst = all.entry(name).or_insert(outcome);
            *worst = outcome.max(*worst);
        }
    }
    all
}
