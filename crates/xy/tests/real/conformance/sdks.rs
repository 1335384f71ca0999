//! The official suite with fixtures on published SDKs (`real/servers`): each check that passes at
//! such a fixture must pass through xy.
//!
//! xy reaches the fixture over stdio or by its `url`. A check that fails at the fixture itself is
//! ignored: the cause is the SDK or the suite. A minimum number of checks must pass there, so that
//! an idle fixture fails.

use xy_testkit::Home;

use super::excused::{self, Excused};
use super::{Checks, Outcome, Suite, differences, run};
use crate::lab::{Fixture, Lab};
use crate::sdk::Sdk;

/// The suite `active` is part of this one.
const ALL: Suite = ("conformance", &["--suite", "all"], 44);
const LEGACY: Suite = ("conformance-next", &["--requirements", "2025-11-25"], 84);
const MODERN: &[&str] = &["--requirements", "2026-07-28"];

/// The delay of the call that the client is to resume; see `super::AWAY`.
const RESUME_DELAY: (&str, &str) = ("FIXTURE_AWAY_MS", "12000");

/// The transport between xy and the fixture.
#[derive(Debug, Clone, Copy)]
enum Way {
    Stdio,
    Url,
}

/// A fixture, and its expected results.
struct Comparison {
    sdk: Sdk,
    /// Further arguments for the fixture over HTTP.
    args: &'static [&'static str],
    /// The legacy checks that may fail.
    excused: &'static [Excused],
    /// The modern suite, which has no excused checks.
    modern: Option<Suite>,
}

const TYPESCRIPT_1: Comparison =
    Comparison { sdk: Sdk::TypeScript1, args: &[], excused: &[], modern: None };

const TYPESCRIPT_2: Comparison = Comparison {
    sdk: Sdk::TypeScript2,
    args: &["sessions"],
    excused: &[],
    modern: Some(("conformance-next", MODERN, 148)),
};

const PYTHON_2: Comparison = Comparison {
    sdk: Sdk::Python2,
    args: &[],
    excused: &[],
    modern: Some(("conformance-next", MODERN, 153)),
};

#[test]
fn checks_pass_with_typescript_1_over_stdio() {
    TYPESCRIPT_1.check(Way::Stdio);
}

#[test]
fn checks_pass_with_typescript_1_by_url() {
    TYPESCRIPT_1.check(Way::Url);
}

#[test]
fn checks_pass_with_typescript_2_over_stdio() {
    TYPESCRIPT_2.check(Way::Stdio);
}

#[test]
fn checks_pass_with_typescript_2_by_url() {
    TYPESCRIPT_2.check(Way::Url);
}

#[test]
fn checks_pass_with_python_2_over_stdio() {
    PYTHON_2.check(Way::Stdio);
}

#[test]
fn checks_pass_with_python_2_by_url() {
    PYTHON_2.check(Way::Url);
}

#[test]
fn excused_check_that_passes_is_a_problem() {
    let checks = |outcome| Checks::from([("scenario/check".to_owned(), outcome)]);
    let excused = ["scenario/check"];
    let [passes, fails] = [Outcome::Success, Outcome::Failure].map(checks);
    assert!(problems(&passes, &passes, &[]).is_empty());
    assert_eq!(problems(&passes, &fails, &[]).len(), 1);
    assert!(problems(&passes, &fails, &excused).is_empty());
    assert_eq!(problems(&passes, &passes, &excused), ["scenario/check is excused, but passes"]);
}

#[test]
fn only_optional_checks_may_be_skipped() {
    for (check, is_optional) in [(excused::OPTIONAL, true), ("scenario/check", false)] {
        let checks = |outcome| Checks::from([(check.to_owned(), outcome)]);
        let [passes, unchecked, fails] =
            [Outcome::Success, Outcome::Info, Outcome::Failure].map(checks);
        assert_eq!(problems(&passes, &unchecked, &[]).is_empty(), is_optional, "{check}");
        assert_eq!(problems(&passes, &fails, &[]).len(), 1, "{check}");
    }
}

impl Comparison {
    #[track_caller]
    fn check(&self, way: Way) {
        let lab = Lab::new();
        let direct = self.sdk.serve(&lab.home, self.args, &[]);
        let behind = self.behind(&lab.home, way);
        let _daemon = lab.home.daemon();
        lab.home.wait_for_state("fixture", "running");
        let url = format!("http://{}/mcp/s/fixture", lab.home.gateway_address());

        let excused: Vec<&str> =
            self.excused.iter().flat_map(|it| it.checks.iter().copied()).collect();
        let legacy = [ALL, LEGACY].map(|suite| (suite, excused.as_slice()));
        let modern = self.modern.map(|suite| (suite, [].as_slice()));
        let mut found = Vec::new();
        for (suite, excused) in legacy.into_iter().chain(modern) {
            let expected = run_directly(&lab, &direct, suite);
            let seen = run(&lab, suite, &url);
            let more = problems(&expected, &seen, excused);
            found.extend(more.into_iter().map(|problem| format!("{suite:?}: {problem}")));
        }
        assert!(found.is_empty(), "{}", found.join("\n"));

        for fixture in [Some(direct), behind].into_iter().flatten() {
            fixture.end(&lab.home);
        }
        lab.home.finish();
    }

    /// Writes the file of the fixture behind xy. Starts the fixture first if xy reaches it by its
    /// URL.
    #[track_caller]
    fn behind(&self, home: &Home, way: Way) -> Option<Fixture> {
        let (name, millis) = RESUME_DELAY;
        let (kdl, fixture) = match way {
            Way::Stdio => (self.sdk.kdl(&format!("{name} {millis};")), None),
            Way::Url => {
                let fixture = self.sdk.serve(home, self.args, &[RESUME_DELAY]);
                (format!("url {:?}\n", fixture.url()), Some(fixture))
            }
        };
        home.write_config("servers/fixture.kdl", &kdl);
        fixture
    }
}

/// Returns the differences that are not excused, and the excused checks that do not differ.
fn problems(expected: &Checks, seen: &Checks, excused: &[&str]) -> Vec<String> {
    let mut differ = differences(expected, seen);
    let is_unchecked = |check: &str| seen.get(check) == Some(&Outcome::Info);
    differ.retain(|(check, _)| check != excused::OPTIONAL || !is_unchecked(check));
    let is_known = |check: &str| excused.contains(&check);
    let bad = differ.iter().filter(|(check, _)| !is_known(check));
    let bad = bad.map(|(check, problem)| format!("{check} {problem}"));
    let passes = |check: &&&str| !differ.iter().any(|(differing, _)| differing == **check);
    let stale = excused.iter().filter(passes);
    bad.chain(stale.map(|check| format!("{check} is excused, but passes"))).collect()
}

/// Runs a suite against the fixture itself.
#[track_caller]
fn run_directly(lab: &Lab, fixture: &Fixture, suite: Suite) -> Checks {
    let checks = run(lab, suite, &fixture.url());
    let passed = checks.values().filter(|it| **it == Outcome::Success).count();
    let (.., least) = suite;
    assert!(passed >= least, "{suite:?} has {passed} checks that pass, not {least}");
    checks
}
