//! What differs through xy, and why: what must, and what is a fault that is known.

use super::Way;
use super::compare::{Differs, Sort};

const EVERY: &[Way] = &Way::EVERY;
const ONE: &[Way] = &[Way::Connect, Way::Http];
const AMONG: &[Way] = &[Way::AllConnect, Way::AllHttp];

const fn must(
    ways: &'static [Way],
    steps: &'static [&'static str],
    path: &'static str,
    why: &'static str,
) -> Differs {
    Differs { sort: Sort::Must, ways, steps, path, why }
}

const fn fault(
    ways: &'static [Way],
    steps: &'static [&'static str],
    path: &'static str,
    why: &'static str,
) -> Differs {
    Differs { sort: Sort::Fault, ways, steps, path, why }
}

const fn sometimes(
    ways: &'static [Way],
    steps: &'static [&'static str],
    path: &'static str,
    why: &'static str,
) -> Differs {
    Differs { sort: Sort::SometimesFault, ways, steps, path, why }
}

const ITSELF: &str = "xy answers this itself, with the outermost keys in the usual order";
const OWN_IDS: &str = "two servers may ask under one id, so xy asks under ids of its own";
const XY_IS_THE_SERVER: &str = "where all servers stand behind one door, the server is xy";
const XY_IS_THE_CLIENT: &str = "a server's client is xy, which says who it is in its own order";
const OF_MANY: &str = "a list of all servers has no fields that one server gave its own list";
const NO_SERVER: &str = "nothing in it says which of all servers is meant";
const LEVEL: &str = "clients share a server's level, so xy keeps each one's";
const OUTSIDE_NAME: &str = "no server has that name, and xy says so with the name it was given";
const TASKS: &str = "tasks can be begun where all servers stand behind one door, and not be \
                     looked at: xy keeps no owners of tasks";
const REASON: &str = "a client's reason for cancelling, and all else it says of it, gets lost";
const GIVEN_UP: &str = "for a minute after a client has cancelled a call, nothing that a shared \
                        server says is taken to be for that client";
const NOT_CHANGED: &str = "whoever asks for a list of one server while xy asks for it too is told \
                           that it has changed, though it has not";

/// What differs with every server.
pub(crate) const ALWAYS: &[Differs] = &[
    must(EVERY, &["initialize", "ping"], "answer#order", ITSELF),
    must(EVERY, &["*"], "sampling/createMessage/id", OWN_IDS),
    must(EVERY, &["*"], "elicitation/create/id", OWN_IDS),
    must(EVERY, &["unknown level"], "answer/error/*", LEVEL),
    fault(AMONG, &["initialize"], "answer/result/capabilities/tasks", TASKS),
    must(AMONG, &["initialize"], "answer/result/serverInfo*", XY_IS_THE_SERVER),
    must(AMONG, &["initialize"], "answer/result/instructions", XY_IS_THE_SERVER),
    must(AMONG, &["initialize"], "answer/result/capabilities*", XY_IS_THE_SERVER),
    must(AMONG, &["list of *"], "answer#order", ITSELF),
    must(AMONG, &["unknown method"], "answer/error/message", NO_SERVER),
    sometimes(ONE, &["*"], "notifications/tools/list_changed#more", NOT_CHANGED),
    sometimes(ONE, &["*"], "notifications/prompts/list_changed#more", NOT_CHANGED),
    sometimes(ONE, &["*"], "notifications/resources/list_changed#more", NOT_CHANGED),
];

/// What differs with the fixture.
pub(crate) const FIXTURE: &[Differs] = &[
    must(EVERY, &["level error", "level debug", "ping with params"], "answer#order", ITSELF),
    must(EVERY, &["unknown level"], "answer#order", ITSELF),
    must(AMONG, &["unknown tool", "unknown prompt", "unknown method"], "answer#order", ITSELF),
    must(
        EVERY,
        &["more tools", "fewer tools"],
        "notifications/tools/list_changed/params",
        "xy says that a list has changed when it has seen so, and in its own words",
    ),
    must(ONE, &["client"], "answer/result/clientInfo/*", XY_IS_THE_CLIENT),
    must(ONE, &["client"], "answer/result#order", XY_IS_THE_CLIENT),
    must(AMONG, &["initialize"], "answer/result/x-first", XY_IS_THE_SERVER),
    must(AMONG, &["initialize"], "answer/result/_meta", XY_IS_THE_SERVER),
    must(AMONG, &["initialize"], "answer/result#order", XY_IS_THE_SERVER),
    must(AMONG, &["list of *"], "answer/result/x-*", OF_MANY),
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
    fault(
        AMONG,
        &[
            "look",
            "look again",
            "result",
            "cancel it",
            "cancel it again",
            "result of none",
            "result of a failure",
            "result after a question",
            "every task",
            "unknown task",
        ],
        "answer*",
        TASKS,
    ),
    fault(
        AMONG,
        &["look again", "cancel it", "result of a failure", "result after a question"],
        "notifications/tasks/status#missing",
        TASKS,
    ),
    fault(AMONG, &["result after a question"], "elicitation/create#missing", TASKS),
];

/// What differs with a fixture that each client has for itself.
pub(crate) const OF_ONE_CLIENT: &[Differs] = &[
    must(EVERY, &["roots"], "roots/list/id", OWN_IDS),
    fault(EVERY, &["cancellation"], "notifications/fixture/cancelled/params/*", REASON),
];

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
    fault(EVERY, &["cancellation"], "notifications/fixture/cancelled#missing", GIVEN_UP),
    fault(EVERY, &["sampling after a cancellation"], "sampling/createMessage#missing", GIVEN_UP),
    fault(EVERY, &["sampling after a cancellation"], "answer/result/content/0/text", GIVEN_UP),
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
        ONE,
        &["result of the task"],
        "answer/result/_meta/io.modelcontextprotocol/related-task/taskId",
        CHANCE,
    ),
    fault(AMONG, &["result of the task"], "answer*", TASKS),
    sometimes(AMONG, &["result of the task", "ping"], "notifications/tasks/status#*", TASKS),
    must(AMONG, &["unknown tool"], "answer/*", OUTSIDE_NAME),
    must(AMONG, &["unknown prompt"], "answer/error/message", OUTSIDE_NAME),
];

const TASK_STEPS: &[&str] = &["begin a task", "result of the task"];
const TIME: &str = "the server says what time it is";
const CHANCE: &str = "the server makes up an id by chance";
