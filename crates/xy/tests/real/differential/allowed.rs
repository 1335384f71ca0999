//! The differences that must exist through xy, each with its reason.

use super::Way;
use super::compare::AllowedDifference;

const EVERY: &[Way] = &Way::EVERY;
const ONE: &[Way] = &[Way::Connect, Way::Http];
const AMONG: &[Way] = &[Way::AllConnect, Way::AllHttp];

const fn must(
    ways: &'static [Way],
    steps: &'static [&'static str],
    path: &'static str,
    why: &'static str,
) -> AllowedDifference {
    AllowedDifference { ways, steps, path, why }
}

const ITSELF: &str = "xy answers this request itself, with the outermost keys in its usual order";
const OWN_IDS: &str = "two servers may use one request id, so xy uses ids of its own";
const XY_IS_THE_SERVER: &str = "at the endpoint of all servers, the server is xy";
const XY_IS_THE_CLIENT: &str = "a server's client is xy, which sends its own `clientInfo`";
const OF_MANY: &str = "a combined list has no extra fields of single servers";
const NO_SERVER: &str = "the request names no server";
const LEVEL: &str = "clients share a server's level, so xy stores a level per client";
const OUTSIDE_NAME: &str = "no server has that name, and the error of xy repeats it";
const OWNERS: &str = "xy tracks the owners of tasks, and answers for tasks without an owner";

/// Differences with every server.
pub(crate) const ALWAYS: &[AllowedDifference] = &[
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

/// Differences with the fixture.
pub(crate) const FIXTURE: &[AllowedDifference] = &[
    must(EVERY, &["level error", "level debug", "ping with params"], "answer#order", ITSELF),
    must(EVERY, &["unknown level"], "answer#order", ITSELF),
    must(AMONG, &["unknown tool", "unknown prompt", "unknown method"], "answer#order", ITSELF),
    must(
        AMONG,
        &["more tools", "fewer tools"],
        "notifications/tools/list_changed/params",
        "xy announces a changed list itself, once it has read the list",
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
        "with its server's prefix, a name has at most 50 characters",
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
        "at the endpoint of all servers, xy reads each task of the client",
    ),
];

/// Differences with an isolated fixture.
pub(crate) const OF_ONE_CLIENT: &[AllowedDifference] =
    &[must(EVERY, &["roots"], "roots/list/id", OWN_IDS)];

/// Differences with a shared fixture.
pub(crate) const SHARED: &[AllowedDifference] = &[
    must(EVERY, &["roots"], "roots/list#missing", NO_ROOTS),
    must(EVERY, &["roots"], "answer/result/*", NO_ROOTS),
    must(
        ONE,
        &["client"],
        "answer/result/capabilities*",
        "a shared server gets the capabilities that any client may have",
    ),
];

const NO_ROOTS: &str = "roots belong to one client, so a shared server gets none";

/// Differences with the everything server, which is isolated.
pub(crate) const EVERYTHING: &[AllowedDifference] = &[
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
const TIME: &str = "the server sends the current time";
const CHANCE: &str = "the server generates a random id";
