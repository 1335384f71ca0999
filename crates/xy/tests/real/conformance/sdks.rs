//! The official suite with fixtures on other people's SDKs (`real/servers`): every check that
//! passes at such a fixture passes through xy.
//!
//! The fixture behind xy is reached over stdio or by its `url`. A check that fails at the
//! fixture itself counts for nothing: that is between the SDK and the suite. A number of
//! checks must pass there, so that a fixture which does nothing is not taken for a good one.

use xy_testkit::Home;

use super::excused::{self, Excused};
use super::{Checks, Outcome, Suite, differences, run};
use crate::lab::{Fixture, Lab};
use crate::sdk::Sdk;

/// The suite `active` is a part of this one.
const ALL: Suite = ("conformance", &["--suite", "all"], 44);
const LEGACY: Suite = ("conformance-next", &["--requirements", "2025-11-25"], 84);
const MODERN: &[&str] = &["--requirements", "2026-07-28"];

/// How long the fixture behind xy lets a client wait that is to take up its call again, as
/// `super::AWAY` has it.
const AWAY: (&str, &str) = ("FIXTURE_AWAY_MS", "12000");

/// How xy reaches the fixture.
#[derive(Debug, Clone, Copy)]
enum Way {
    Stdio,
    Url,
}

/// A fixture, and what is expected of it.
struct Passage {
    sdk: Sdk,
    /// What the fixture is told besides when it serves HTTP.
    args: &'static [&'static str],
    /// The legacy checks that may fail.
    excused: &'static [Excused],
    /// The modern suite, of which no check may fail.
    modern: Option<Suite>,
}

const TYPESCRIPT_1: Passage =
    Passage { sdk: Sdk::TypeScript1, args: &[], excused: &[], modern: None };

const TYPESCRIPT_2: Passage = Passage {
    sdk: Sdk::TypeScript2,
    args: &["sessions"],
    excused: &[],
    modern: Some(("conformance-next", MODERN, 148)),
};

const PYTHON_2: Passage = Passage {
    sdk: Sdk::Python2,
    args: &[],
    excused: &[],
    modern: Some(("conformance-next", MODERN, 153)),
};

#[test]
fn every_check_passes_through_xy_with_a_server_on_typescript_1_over_stdio() {
    TYPESCRIPT_1.shows(Way::Stdio);
}

#[test]
fn every_check_passes_through_xy_with_a_server_on_typescript_1_by_url() {
    TYPESCRIPT_1.shows(Way::Url);
}

#[test]
fn every_check_passes_through_xy_with_a_server_on_typescript_2_over_stdio() {
    TYPESCRIPT_2.shows(Way::Stdio);
}

#[test]
fn every_check_passes_through_xy_with_a_server_on_typescript_2_by_url() {
    TYPESCRIPT_2.shows(Way::Url);
}

#[test]
fn every_check_passes_through_xy_with_a_server_on_python_2_over_stdio() {
    PYTHON_2.shows(Way::Stdio);
}

#[test]
fn every_check_passes_through_xy_with_a_server_on_python_2_by_url() {
    PYTHON_2.shows(Way::Url);
}

#[test]
fn a_check_that_is_excused_and_passes_is_a_problem() {
    let checks = |outcome| Checks::from([("scenario/check".to_owned(), outcome)]);
    let excused = ["scenario/check"];
    let [passes, fails] = [Outcome::Success, Outcome::Failure].map(checks);
    assert!(problems(&passes, &passes, &[]).is_empty());
    assert_eq!(problems(&passes, &fails, &[]).len(), 1);
    assert!(problems(&passes, &fails, &excused).is_empty());
    assert_eq!(problems(&passes, &passes, &excused), ["scenario/check is excused, but passes"]);
}

#[test]
fn only_an_optional_check_may_be_left_unchecked() {
    for (check, is_optional) in [(excused::OPTIONAL, true), ("scenario/check", false)] {
        let checks = |outcome| Checks::from([(check.to_owned(), outcome)]);
        let [passes, unchecked, fails] =
            [Outcome::Success, Outcome::Info, Outcome::Failure].map(checks);
        assert_eq!(problems(&passes, &unchecked, &[]).is_empty(), is_optional, "{check}");
        assert_eq!(problems(&passes, &fails, &[]).len(), 1, "{check}");
    }
}

impl Passage {
    #[track_caller]
    fn shows(&self, way: Way) {
        let lab = Lab::new();
        let by_itself = self.sdk.serve(&lab.home, self.args, &[]);
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
            let expected = directly(&lab, &by_itself, suite);
            let seen = run(&lab, suite, &url);
            let more = problems(&expected, &seen, excused);
            found.extend(more.into_iter().map(|problem| format!("{suite:?}: {problem}")));
        }
        assert!(found.is_empty(), "{}", found.join("\n"));

        for fixture in [Some(by_itself), behind].into_iter().flatten() {
            fixture.end(&lab.home);
        }
        lab.home.finish();
    }

    /// Writes the file of the fixture behind xy, which is a process of this test if xy reaches
    /// it by its URL.
    #[track_caller]
    fn behind(&self, home: &Home, way: Way) -> Option<Fixture> {
        let (name, millis) = AWAY;
        let (kdl, fixture) = match way {
            Way::Stdio => (self.sdk.kdl(&format!("{name} {millis};")), None),
            Way::Url => {
                let fixture = self.sdk.serve(home, self.args, &[AWAY]);
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
fn directly(lab: &Lab, fixture: &Fixture, suite: Suite) -> Checks {
    let checks = run(lab, suite, &fixture.url());
    let passed = checks.values().filter(|it| **it == Outcome::Success).count();
    let (.., least) = suite;
    assert!(passed >= least, "{suite:?} has {passed} checks that pass, not {least}");
    checks
}
