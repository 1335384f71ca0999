//! The official conformance suite: what passes against a server passes through xy.
//!
//! The server is our fixture, which passes everything by itself, in either era. xy stands in
//! front of it as a daemon that asks nobody for a token, since the suite has none to give; the
//! fixture behind it may be of the other era. Compared are the checks, one by one, not what
//! the suite ends with. What no bridge between the eras can do is in a list, with the reason
//! (`conformance/excused.rs`): anything else is a fault, and so is an entry that passes.
//! `conformance/sdks.rs` does the same with fixtures on other people's SDKs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

mod excused;
mod sdks;

use self::excused::Excused;
use crate::lab::{Era, Fixture, Lab, Upstream};

/// A suite: the package, its arguments, and how many checks pass at least, so that one which
/// runs nothing is not taken for one that passes.
type Suite = (&'static str, &'static [&'static str], usize);

/// The suites of the legacy era.
const SUITES: [Suite; 3] =
    [("conformance", &["--suite", "active"], 38), ("conformance", &["--suite", "all"], 46), LEGACY];

/// What the last revision with `initialize` requires.
const LEGACY: Suite = ("conformance-next", &["--requirements", "2025-11-25"], 83);

/// What the revision after it requires, with the extensions that the suite knows.
const MODERN: Suite = ("conformance-next", &["--requirements", "2026-07-28"], 180);

/// The suite hangs up after 10 s if the server does not before, and comes back for 5 s. xy has
/// no reason to hang up, so behind it the call that is to be taken up again takes that long.
const AWAY: &str = "env { FIXTURE_AWAY_MS 12000 }\n";

/// What became of each check, by scenario and check: the worst, if there were several.
type Checks = BTreeMap<String, Outcome>;

/// From the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Success,
    /// Nothing was checked.
    Info,
    Warning,
    Failure,
}

#[test]
fn the_fixture_passes_every_suite_by_itself() {
    the_fixture_passes(Era::Legacy, &SUITES);
}

#[test]
fn the_modern_fixture_passes_the_modern_suite_by_itself() {
    the_fixture_passes(Era::Modern, &[MODERN]);
}

#[test]
fn the_fixture_of_both_eras_passes_the_suites_of_both_by_itself() {
    the_fixture_passes(Era::Both, &[LEGACY, MODERN]);
}

#[test]
fn every_check_passes_through_xy_with_a_server_over_stdio() {
    Passage::of(Era::Legacy, Upstream::Stdio, &SUITES).shows();
}

#[test]
fn every_check_passes_through_xy_with_a_server_over_streamable_http() {
    Passage::of(Era::Legacy, Upstream::Http, &SUITES).shows();
}

#[test]
fn every_check_passes_through_xy_with_a_server_over_the_older_http() {
    Passage::of(Era::Legacy, Upstream::Sse, &SUITES).shows();
}

#[test]
fn every_modern_check_passes_through_xy_with_a_modern_server_over_stdio() {
    Passage::of(Era::Modern, Upstream::Stdio, &[MODERN]).shows();
}

#[test]
fn every_modern_check_passes_through_xy_with_a_modern_server_over_http() {
    Passage::of(Era::Modern, Upstream::Http, &[MODERN]).shows();
}

#[test]
fn the_checks_of_both_eras_pass_through_xy_with_a_server_of_both_over_stdio() {
    Passage::of(Era::Both, Upstream::Stdio, &[LEGACY, MODERN]).shows();
}

#[test]
fn the_checks_of_both_eras_pass_through_xy_with_a_server_of_both_over_http() {
    Passage::of(Era::Both, Upstream::Http, &[LEGACY, MODERN]).shows();
}

#[test]
fn modern_checks_pass_through_xy_with_a_legacy_server_over_stdio() {
    let excused = &[excused::LEGACY_BEHIND, excused::SHARED];
    let passage = Passage::of(Era::Modern, Upstream::Stdio, &[MODERN]);
    Passage { behind: Era::Legacy, excused, ..passage }.shows();
}

#[test]
fn modern_checks_pass_through_xy_with_a_legacy_server_over_http() {
    let excused = &[excused::LEGACY_BEHIND, excused::SHARED];
    let passage = Passage::of(Era::Modern, Upstream::Http, &[MODERN]);
    Passage { behind: Era::Legacy, excused, ..passage }.shows();
}

#[test]
fn modern_checks_pass_through_xy_with_a_legacy_server_for_clients_of_one_token() {
    let passage = Passage::of(Era::Modern, Upstream::Stdio, &[MODERN]);
    let (more, excused) = ("isolation \"client\"\n", &[excused::LEGACY_BEHIND]);
    Passage { behind: Era::Legacy, more, excused, ..passage }.shows();
}

#[test]
fn legacy_checks_pass_through_xy_with_a_modern_server_over_stdio() {
    let passage = Passage::of(Era::Legacy, Upstream::Stdio, &[LEGACY]);
    Passage { behind: Era::Modern, ..passage }.shows();
}

#[test]
fn legacy_checks_pass_through_xy_with_a_modern_server_over_http() {
    let passage = Passage::of(Era::Legacy, Upstream::Http, &[LEGACY]);
    Passage { behind: Era::Modern, ..passage }.shows();
}

/// The suite `active`, with the fixture in a container. `./test engines` asks for these, as they
/// need an engine too.
fn in_a_container(engine: &'static str, is_http: bool) {
    let upstream = Upstream::Container { engine, is_http };
    let passage = Passage::of(Era::Legacy, upstream, &SUITES[..1]);
    Passage { more: "", ..passage }.shows();
}

#[test]
#[ignore = "it needs an engine"]
fn every_check_passes_through_xy_with_a_server_in_docker_over_stdio() {
    in_a_container("docker", false);
}

#[test]
#[ignore = "it needs an engine"]
fn every_check_passes_through_xy_with_a_server_in_docker_over_http() {
    in_a_container("docker", true);
}

#[test]
#[ignore = "it needs an engine"]
fn every_check_passes_through_xy_with_a_server_in_podman_over_stdio() {
    in_a_container("podman", false);
}

#[test]
#[ignore = "it needs an engine"]
fn every_check_passes_through_xy_with_a_server_in_podman_over_http() {
    in_a_container("podman", true);
}

#[track_caller]
fn the_fixture_passes(era: Era, suites: &[Suite]) {
    let lab = Lab::new();
    let fixture = Fixture::start(&lab, era);
    for suite in suites {
        directly(&lab, &fixture, *suite);
    }
    fixture.end(&lab.home);
    lab.home.finish();
}

/// Suites that a fixture passes by itself, and the way through xy on which they are to pass.
struct Passage {
    /// The era of the fixture by itself.
    by_itself: Era,
    /// The era of the one behind xy.
    behind: Era,
    upstream: Upstream,
    /// What else is in the file of that.
    more: &'static str,
    suites: &'static [Suite],
    excused: &'static [&'static [Excused]],
}

impl Passage {
    /// With fixtures of the same era, and nothing that is excused.
    const fn of(era: Era, upstream: Upstream, suites: &'static [Suite]) -> Self {
        Self { by_itself: era, behind: era, upstream, more: AWAY, suites, excused: &[] }
    }

    #[track_caller]
    fn shows(&self) {
        let lab = Lab::new();
        let fixture = Fixture::start(&lab, self.by_itself);
        let _daemon = lab.daemon(self.upstream, self.behind, self.more);
        let url = format!("http://{}/mcp/s/fixture", lab.home.gateway_address());
        let mut problems = Vec::new();
        let mut unused: BTreeSet<&str> = self.excused().collect();
        for suite in self.suites {
            let expected = directly(&lab, &fixture, *suite);
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

/// The checks that pass at a fixture and not through xy, and those that are bad only there.
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

/// Runs a suite against the fixture itself, which passes everything.
#[track_caller]
fn directly(lab: &Lab, fixture: &Fixture, suite: Suite) -> Checks {
    let checks = run(lab, suite, &fixture.url());
    let bad: Vec<_> = checks.iter().filter(|(_, it)| **it >= Outcome::Warning).collect();
    assert!(bad.is_empty(), "the fixture does not pass {suite:?}: {bad:#?}");
    let passed = checks.values().filter(|it| **it == Outcome::Success).count();
    let (.., least) = suite;
    assert!(passed >= least, "{suite:?} has {passed} checks that pass, not {least}");
    checks
}

/// Runs a suite: what became of each check.
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
    let said = || fs::read_to_string(&log).unwrap_or_default();
    assert!(!checks.is_empty(), "{package} {args:?} has checked nothing:\n{}", said());
    checks
}

/// Reads what a suite has written: a folder for each scenario, `server-<name>-<time>`.
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
