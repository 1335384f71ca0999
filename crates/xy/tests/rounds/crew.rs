//! Twenty servers, of all sorts.

use xy_testkit::Home;

use crate::diary::{self, Tally};
use crate::is_full;

/// What a server is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Says nothing.
    Quiet,
    /// Says a lot, through the rotation of its log.
    Loud,
    /// Ends by itself now and then, each life with a code of its own.
    Mortal,
    /// Is started, stopped and restarted by the test.
    Asked,
}

/// One of them.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    is_http: bool,
    /// How long its lines are.
    pub(crate) width: usize,
    /// Milliseconds between its lines; 0 is silent.
    every: u64,
    ends_after: Option<u64>,
    port: u16,
}

/// So much a server writes at most: no file of its log is dropped.
const MOST_BYTES: usize = 45_000_000;

/// All of them. Those that say something are no stdio servers: what a daemon has read of
/// theirs and not passed on dies with it, and here it is killed.
pub(crate) fn crew() -> Vec<Server> {
    let mut crew = crew_of(&[
        (6, Kind::Quiet, SHORT),
        (2, Kind::Loud, if is_full() { (6000, 15) } else { FLOOD }),
        (2, Kind::Loud, FAST),
        (4, Kind::Mortal, (150, 20)),
        (3, Kind::Asked, SHORT),
        (3, Kind::Asked, (200, 10)),
    ]);
    for server in &mut crew {
        server.is_http |= server.every > 0;
    }
    crew
}

/// As many, of which none ends before it is told to.
pub(crate) fn immortals() -> Vec<Server> {
    crew_of(&[(14, Kind::Quiet, SHORT), (2, Kind::Loud, FLOOD), (4, Kind::Loud, FAST)])
}

/// How long lines are, and how many milliseconds are between them.
type Pace = (usize, u64);

/// Nothing is said.
const SHORT: Pace = (100, 0);

/// Hardly a moment in which nothing is in flight.
const FAST: Pace = (200, 2);

/// So much that a log is rotated within seconds.
const FLOOD: Pace = (30_000, 8);

fn crew_of(parts: &[(usize, Kind, Pace)]) -> Vec<Server> {
    let lives_for = if is_full() { 1200 } else { 700 };
    let each = parts.iter().flat_map(|&(count, kind, pace)| vec![(kind, pace); count]);
    let server = |(number, (kind, (width, every))): (u16, (Kind, Pace))| Server {
        name: format!("{}-{number:02}", format!("{kind:?}").to_lowercase()),
        kind,
        is_http: number % 2 == 1,
        width,
        every,
        ends_after: (kind == Kind::Mortal).then_some(lives_for),
        port: 8400 + number,
    };
    let crew: Vec<Server> = (0..).zip(each).map(server).collect();
    assert_eq!(crew.len(), 20);
    crew
}

impl Server {
    /// Its file.
    pub(crate) fn kdl(&self, home: &Home) -> String {
        let diary = diary::folder(home);
        let mut args = vec!["--diary".to_owned(), diary.to_str().unwrap().to_owned()];
        let mut flag = |name: &str, value: u64| args.extend([name.to_owned(), value.to_string()]);
        flag("--width", u64::try_from(self.width).unwrap());
        flag("--at-most", u64::try_from(MOST_BYTES / 2 / self.width).unwrap());
        if self.every > 0 {
            flag("--every", self.every);
        }
        if let Some(millis) = self.ends_after {
            flag("--ends-after", millis);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let command = home.kdl_command("xy-test-diary", &args);
        let port = if self.is_http { format!("port {}\n", self.port) } else { String::new() };
        format!("{command}{port}{RESTART}")
    }

    /// Whether a life of it is left alone by everybody but itself.
    pub(crate) fn is_left_alone(&self) -> bool {
        matches!(self.kind, Kind::Quiet | Kind::Loud)
    }
}

/// At once, without end.
const RESTART: &str = "restart { policy \"always\"; backoff-initial \"20ms\"; backoff-max \"100ms\"; \
                       max-retries-per-minute 0; max-attempts 0 }\n";

/// Writes the files of all.
pub(crate) fn enlist(home: &Home, crew: &[Server]) {
    home.expect_left("home/");
    for server in crew {
        home.server(&server.name, &server.kdl(home));
    }
}

/// Checks the logs of all; answers all that was counted.
pub(crate) fn check_logs(home: &Home, crew: &[Server]) -> Tally {
    let mut all = Tally::default();
    for server in crew {
        let one = diary::check_log(home, &server.name, server.width);
        assert!(one.lives > 0, "`{}` has never lived", server.name);
        assert!(server.every == 0 || one.lines > 0, "`{}` has said nothing", server.name);
        all.lives += one.lives;
        all.lines += one.lines;
        all.rotated += one.rotated;
    }
    all
}
