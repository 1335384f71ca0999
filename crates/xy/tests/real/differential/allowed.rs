//! What must differ through xy, and why.

use super::Way;
use super::compare::Differs;

const EVERY: &[Way] = &Way::EVERY;
const ONE: &[Way] = &[Way::Connect, Way::Http];
const AMONG: &[Way] = &[Way::AllConnect, Way::AllHttp];

const fn must(
    ways: &'static [Way],
    steps: &'static [&'static str],
    path: &'static str,
    why: &'static str,
) -> Differs {
    Differs { ways, steps, path, why }
}

const ITSELF: &str = "xy answers this itself, with the outermost keys in the usual order";
const OWN_IDS: &str = "two servers may ask under one id, so xy asks under ids of its own";
const XY_IS_THE_SERVER: &str = "where all servers stand behind one door, the server is xy";
const XY_IS_THE_CLIENT: &str = "a server's client is xy, which says who it is in its own order";
const OF_MANY: &str = "a list of all servers has no fields that one server gave its own list";
const NO_SERVER: &str = "nothing in it says which of all servers is meant";
const LEVEL: &str = "clients share a server's level, so xy keeps each one's";
const OUTSIDE_NAME: &str = "no server has that name, and xy says so with the name it was given";
const OWNERS: &str = "xy keeps whose tasks there are, and answers for what is nobody's";

/// What differs with every server.
pub(crate) const ALWAYS: &[Differs] = &[
    must(EVERY, &["initialize", "ping"], "answer#order", ITSELF),
    must(EVERY, &["*"], "sampling/createMessage/id", OWN_IDS),
    must(EVERY, &["*"], "elicitation/create/id", OWN_IDS),
    must(EVERY, &["unknown level"], "answer/error/*", LEVEL),
    must(AMONG, &["initialize"], "answer/result/serverInfo*", XY_IS_THE_SERVER),
    must(AMONG, &["initialize"], "answer/result/instructions", XY_IS_THE_SERVER),
    must(AMONG, &["initialize"], "answer/result/capabilities*", XY_IS_THE_SERVER),
    must(AMONG, &["list of *"], "answer#order", ITSELF),
    must(AMONG, &["unknown method"], "answer/error/message", NO_SERVER),
];

/// What differs with the fixture.
pub(crate) const FIXTURE: &[Differs] = &[
    must(EVERY, &["level error", "level debug", "ping with params"], "answer#order", ITSELF),
    must(EVERY, &["unknown level"], "answer#order", ITSELF),
    must(AMONG, &["unknown tool", "unknown prompt", "unknown method"], "answer#order", ITSELF),
    must(
        AMONG,
        &["more tools", "fewer tools"],
        "notifications/tools/list_changed/params",
        "xy says that a list has changed when it has seen so, and in its own words",
    ),
    must(ONE, &["client"], "answer/result/clientInfo/*", XY_IS_THE_CLIENT),
    must(ONE, &["client"], "answer/result/_meta", "xy names its daemon, so that loops are found"),
    must(ONE, &["client"], "answer/result#order", XY_IS_THE_CLIENT),
    must(AMONG, &["initialize"], "answer/result/x-first", XY_IS_THE_SERVER),
    must(AMONG, &["initialize"], "answer/result/_meta", XY_IS_THE_SERVER),
    must(AMONG, &["initialize"], "answer/result#order", XY_IS_THE_SERVER),
    must(AMONG, &["list of *"], "answer/result/x-*", OF_MANY),
    must(
        AMONG,
        &["list of *"],
        "answer/result/tools/38/name",
        "with its server's name before it, a name has 50 characters at most",
    ),
    must(AMONG, &["list of *"], "answer/result/_meta", OF_MANY),
    must(AMONG, &["unknown tool", "unknown prompt"], "answer/error/message", OUTSIDE_NAME),
    must(
        AMONG,
        &["nameless tool", "placeless resource", "watch nothing"],
        "answer/error/*",
        NO_SERVER,
    ),
    must(AMONG, &["nameless tool", "placeless resource", "watch nothing"], "answer#order", ITSELF),
    must(AMONG, &["echo", "poked", "client"], "answer*", NO_SERVER),
    must(EVERY, &["unknown task"], "answer/error/message", OWNERS),
    must(EVERY, &["unknown task"], "answer#order", ITSELF),
    must(AMONG, &["every task"], "answer/result/x-count", OF_MANY),
    must(AMONG, &["every task"], "answer#order", ITSELF),
    must(
        AMONG,
        &["every task"],
        "answer/result/tasks/*",
        "where all servers stand behind one door, xy looks at each task of the client",
    ),
];

/// What differs with a fixture that each client has for itself.
pub(crate) const OF_ONE_CLIENT: &[Differs] = &[must(EVERY, &["roots"], "roots/list/id", OWN_IDS)];

/// What differs with a fixture that all clients share.
pub(crate) const SHARED: &[Differs] = &[
    must(EVERY, &["roots"], "roots/list#missing", NO_ROOTS),
    must(EVERY, &["roots"], "answer/result/*", NO_ROOTS),
    must(
        ONE,
        &["client"],
        "answer/result/capabilities*",
        "a shared server is told of what any client may be able to do",
    ),
];

const NO_ROOTS: &str = "roots are one client's, so a shared server is not told of any";

/// What differs with the everything server, which each client has for itself.
pub(crate) const EVERYTHING: &[Differs] = &[
    must(EVERY, &["level"], "answer#order", ITSELF),
    must(EVERY, &["reference"], "answer/result/content/1/resource/text", TIME),
    must(EVERY, &["read dynamic"], "answer/result/contents/0/text", TIME),
    must(EVERY, &["url needed"], "answer/error/data/elicitations/0/elicitationId", CHANCE),
    must(EVERY, TASK_STEPS, "notifications/tasks/status/params/taskId", CHANCE),
    must(EVERY, TASK_STEPS, "notifications/tasks/status/params/createdAt", TIME),
    must(EVERY, TASK_STEPS, "notifications/tasks/status/params/lastUpdatedAt", TIME),
    must(EVERY, &["begin a task"], "answer/result/task/taskId", CHANCE),
    must(EVERY, &["begin a task"], "answer/result/task/createdAt", TIME),
    must(EVERY, &["begin a task"], "answer/result/task/lastUpdatedAt", TIME),
    must(
        EVERY,
        &["result of the task"],
        "answer/result/_meta/io.modelcontextprotocol/related-task/taskId",
        CHANCE,
    ),
    must(AMONG, &["unknown tool"], "answer/*", OUTSIDE_NAME),
    must(AMONG, &["unknown prompt"], "answer/error/message", OUTSIDE_NAME),
];

const TASK_STEPS: &[&str] = &["begin a task", "result of the task"];
const TIME: &str = "the server says what time it is";
const CHANCE: &str = "the server makes up an id by chance";
