//! Published MCP servers, each compared with itself through xy.
//!
//! A test drives one script directly at a server and then through xy: as a legacy and as a modern
//! client, over HTTP and over `xy connect`. The results and errors must be the same text.
//!
//! A difference is a fault unless `allowed.rs` lists it, and an entry that matches no server fails
//! the run. `./test zoo` installs the servers and writes the table of `docs/compatibility.md`.

mod allowed;
mod compare;
mod drive;
mod feature;
mod script;
mod servers;
mod stage;
mod table;

use std::collections::BTreeSet;

use xy_testkit::McpStdio;

use self::compare::{Masks, differences};
use self::drive::{Era, Record, Session};
use self::feature::Features;
use self::script::Step;
use self::servers::Server;
use self::stage::Stage;
use self::table::{Count, Row};

/// A way through xy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// A legacy client at `/mcp/s/<server>`.
    LegacyHttp,
    /// A legacy client at `xy connect --server <server>`.
    LegacyStdio,
    /// A modern client at `/mcp/s/<server>`.
    ModernHttp,
    /// A modern client at `xy connect --server <server>`.
    ModernStdio,
}

impl Way {
    pub(crate) const EVERY: [Self; 4] =
        [Self::LegacyHttp, Self::LegacyStdio, Self::ModernHttp, Self::ModernStdio];

    pub(crate) fn era(self) -> Era {
        match self {
            Self::LegacyHttp | Self::LegacyStdio => Era::Legacy,
            Self::ModernHttp | Self::ModernStdio => Era::Modern,
        }
    }
}

/// The answers of a server to clients of one era, without xy: from before and after the runs
/// through xy. Values that change by themselves differ between the two.
struct Direct {
    before: Vec<Record>,
    after: Vec<Record>,
}

/// The answers of a server through xy.
struct Through {
    way: Way,
    /// The era that xy spoke with the server.
    spoken: Era,
    records: Vec<Record>,
}

/// Compares a server with itself through xy, and writes its row of the table.
#[track_caller]
pub(crate) fn compare_server(server: &Server) {
    table::remove_row(server);
    let (legacy, steps) = read_script(server);
    let is_dual = speaks_modern(server);
    let modern = is_dual.then(|| run_directly(server, Era::Modern, &steps));
    let through = Way::EVERY.map(|way| run_through(server, is_dual, way, &steps));
    let legacy = Direct { before: legacy, after: run_directly(server, Era::Legacy, &steps) };
    let modern =
        modern.map(|before| Direct { before, after: run_directly(server, Era::Modern, &steps) });
    judge(server, &legacy, modern.as_ref(), &through);
}

#[track_caller]
fn judge(server: &Server, legacy: &Direct, modern: Option<&Direct>, through: &[Through]) {
    let (mut problems, mut seen, mut counts) = (Vec::new(), BTreeSet::new(), Vec::new());
    let mut features = Features::default();
    for Through { way, spoken, records } in through {
        let bridged = compare::bridged(legacy);
        let (direct, records) = match (way.era(), modern) {
            (Era::Legacy, _) => (legacy, records.clone()),
            (Era::Modern, Some(modern)) if *spoken == Era::Modern => (modern, records.clone()),
            (Era::Modern, _) => (&bridged, compare::comparable(records)),
        };
        let masks = Masks::between(&direct.before, &direct.after);
        let found = differences(&direct.before, &records);
        let left: Vec<_> = found.into_iter().filter(|it| !masks.hide(it)).collect();
        let different: BTreeSet<&str> = left.iter().map(|it| it.label.as_str()).collect();
        counts.push(Count::new(*way, direct.before.len(), different.len()));
        for record in &direct.before {
            features.add(way.era(), record);
        }
        for difference in &left {
            match compare::find_reason(*spoken, *way, difference) {
                Some(key) => {
                    features.add_difference(way.era(), &difference.label, key.clone());
                    seen.insert(key);
                }
                None => problems.push(format!("{way:?}, {difference}")),
            }
        }
    }
    let count = problems.len();
    assert!(problems.is_empty(), "{count} differences:\n{}", problems.join("\n"));
    table::write_row(server, &Row::new(server, modern.is_some(), (counts, features), seen));
}

/// Runs the script without xy, as a legacy client. Returns the answers, and the steps that follow
/// from the lists.
#[track_caller]
fn read_script(server: &Server) -> (Vec<Record>, Vec<Step>) {
    let stage = Stage::new(server);
    let session = Session::direct(&stage, server, Era::Legacy);
    let mut records = drive::ask_lists(&session, &stage);
    let steps = script::steps(server, &records);
    records.extend(drive::ask_steps(&session, &stage, &steps));
    session.end();
    stage.home.finish();
    (records, steps)
}

/// Returns all answers of a server without xy.
#[track_caller]
fn run_directly(server: &Server, era: Era, steps: &[Step]) -> Vec<Record> {
    let stage = Stage::new(server);
    let session = Session::direct(&stage, server, era);
    let records = drive::run(&session, &stage, steps);
    session.end();
    stage.home.finish();
    records
}

/// Returns true if a server that was just started answers `server/discover`.
#[track_caller]
fn speaks_modern(server: &Server) -> bool {
    let stage = Stage::new(server);
    let client = McpStdio::start(stage.command(server));
    let speaks = drive::discovers(&client);
    drop(client);
    stage.home.finish();
    speaks
}

/// Returns all answers of a server through xy. A modern client first makes a call: until then xy
/// serves the lists of a server of both eras from its legacy process.
#[track_caller]
fn run_through(server: &Server, is_dual: bool, way: Way, steps: &[Step]) -> Through {
    let stage = Stage::new(server);
    let _daemon = stage.daemon(server);
    let session = Session::through(&stage, server, way);
    if is_dual && way.era() == Era::Modern {
        session.call_unknown_tool();
    }
    let records = drive::run(&session, &stage, steps);
    session.end();
    let spoken = stage.spoken(server);
    let expected = if is_dual { way.era() } else { Era::Legacy };
    assert_eq!(spoken, expected, "the era that xy speaks with the server, {way:?}");
    stage.home.finish();
    Through { way, spoken, records }
}
