//! Twenty servers of several kinds.

use xy_testkit::Home;

use crate::is_full;
use crate::run_log::{self, Tally};

/// The role of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Prints nothing.
    Quiet,
    /// Prints so much that its log rotates.
    Loud,
    /// Exits from time to time, each life with its own code.
    Mortal,
    /// Started, stopped and restarted by the test.
    Controlled,
}

/// A server of the rounds.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    is_http: bool,
    /// The length of its lines.
    pub(crate) width: usize,
    /// Milliseconds between its lines; 0 for none.
    every: u64,
    ends_after: Option<u64>,
    port: u16,
}

/// Maximum output of a server, so that no file of its log is dropped.
const MAX_BYTES: usize = 45_000_000;

/// Returns all servers. Those that print are HTTP servers: a killed daemon loses output of stdio
/// servers that it has read but not passed on.
pub(crate) fn fleet() -> Vec<Server> {
    let mut fleet = fleet_of(&[
        (6, Kind::Quiet, SHORT),
        (2, Kind::Loud, if is_full() { (6000, 15) } else { FLOOD }),
        (2, Kind::Loud, FAST),
        (4, Kind::Mortal, (150, 20)),
        (3, Kind::Controlled, SHORT),
        (3, Kind::Controlled, (200, 10)),
    ]);
    for server in &mut fleet {
        server.is_http |= server.every > 0;
    }
    fleet
}

/// Returns twenty servers that run until they are stopped.
pub(crate) fn immortals() -> Vec<Server> {
    fleet_of(&[(14, Kind::Quiet, SHORT), (2, Kind::Loud, FLOOD), (4, Kind::Loud, FAST)])
}

/// The length of lines, and the milliseconds between them.
type Pace = (usize, u64);

/// No lines.
const SHORT: Pace = (100, 0);

/// Almost always a line in flight.
const FAST: Pace = (200, 2);

/// Enough to rotate a log within seconds.
const FLOOD: Pace = (30_000, 8);

fn fleet_of(parts: &[(usize, Kind, Pace)]) -> Vec<Server> {
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
    let fleet: Vec<Server> = (0..).zip(each).map(server).collect();
    assert_eq!(fleet.len(), 20);
    fleet
}

impl Server {
    /// Returns the server's file.
    pub(crate) fn kdl(&self, home: &Home) -> String {
        let run_log = run_log::folder(home);
        let mut args = vec!["--run-log".to_owned(), run_log.to_str().unwrap().to_owned()];
        let mut flag = |name: &str, value: u64| args.extend([name.to_owned(), value.to_string()]);
        flag("--width", u64::try_from(self.width).unwrap());
        flag("--at-most", u64::try_from(MAX_BYTES / 2 / self.width).unwrap());
        if self.every > 0 {
            flag("--every", self.every);
        }
        if let Some(millis) = self.ends_after {
            flag("--ends-after", millis);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let command = home.kdl_command("xy-test-run-log", &args);
        let port = if self.is_http { format!("port {}\n", self.port) } else { String::new() };
        format!("{command}{port}{RESTART}")
    }

    /// Returns true if only the server itself ends its lives.
    pub(crate) fn is_undisturbed(&self) -> bool {
        matches!(self.kind, Kind::Quiet | Kind::Loud)
    }
}

/// Restarts without a limit, almost immediately.
const RESTART: &str = "restart { policy \"always\"; backoff-initial \"20ms\"; backoff-max \"100ms\"; \
                       max-retries-per-minute 0; max-attempts 0 }\n";

/// Writes the files of all servers.
pub(crate) fn write_files(home: &Home, fleet: &[Server]) {
    home.expect_left("home/");
    for server in fleet {
        home.server(&server.name, &server.kdl(home));
    }
}

/// Checks the logs of all servers, and returns the totals.
pub(crate) fn check_logs(home: &Home, fleet: &[Server]) -> Tally {
    let mut all = Tally::default();
    for server in fleet {
        let one = run_log::check_log(home, &server.name, server.width);
        assert!(one.lives > 0, "`{}` has never lived", server.name);
        assert!(server.every == 0 || one.lines > 0, "`{}` has printed nothing", server.name);
        all.lives += one.lives;
        all.lines += one.lines;
        all.rotated += one.rotated;
    }
    all
}
