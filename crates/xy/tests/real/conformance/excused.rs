//! The checks that pass at a fixture but not through xy, each with its reason.
//!
//! A reason that begins with `fault:` names a fault of xy. Its entry is removed when the fault is
//! fixed.

/// Excused checks, by scenario and check, and the reason.
pub(super) struct Excused {
    #[expect(dead_code, reason = "it is for people")]
    why: &'static str,
    pub(super) checks: &'static [&'static str],
}

/// Modern checks with a legacy server.
pub(super) const LEGACY_BEHIND: &[Excused] = &[
    Excused {
        why: "the suite wants the question to be called `user_name`: a legacy server's questions \
              have no names, and xy gives them its own",
        checks: &[
            "input-required-result-basic-elicitation/sep-2322-elicitation-complete",
            "input-required-result-basic-elicitation/sep-2322-elicitation-incomplete",
        ],
    },
    Excused {
        why: "the suite answers before anything is asked, by that name: a legacy server asks what \
              it wants to know in any case, and xy cannot tell that this is the answer",
        checks: &["input-required-result-ignore-extra-params/sep-2322-ignore-unexpected-params"],
    },
    Excused {
        why: "the tasks extension: a call becomes a task by the server's own decision, which no \
              legacy server can take, so xy does not offer the extension for it",
        checks: TASKS,
    },
];

const TASKS: &[&str] = &[
    "tasks-capability-negotiation/sep-2663-tasks-methods-non-declaring",
    "tasks-capability-negotiation/tasks-extension-advertised",
    "tasks-capability-negotiation/tasks-per-request-meta-opt-in",
    "tasks-dispatch-and-envelope/sep-2663-durable-create-strong-consistency",
    "tasks-dispatch-and-envelope/sep-2663-tasks-get-invalid-task-id-32602",
    "tasks-dispatch-and-envelope/tasks-server-directed-creation-no-hint",
    "tasks-lifecycle/sep-2663-cancel-ack-empty-result",
    "tasks-lifecycle/sep-2663-result-type-task-on-create",
    "tasks-lifecycle/sep-2663-tasks-get-status-completed",
    "tasks-lifecycle/sep-2663-tasks-get-status-failed",
    "tasks-lifecycle/sep-2663-tasks-get-status-working",
    "tasks-lifecycle/sep-2663-tool-error-uses-completed-status",
    "tasks-lifecycle/tasks-cancel-terminal-idempotent-ack",
    "tasks-mrtr-composition/sep-2663-mrtr-synchronous-before-task-creation",
    "tasks-mrtr-input/sep-2663-tasks-get-status-input-required",
    "tasks-mrtr-input/tasks-mrtr-partial-fulfillment",
    "tasks-mrtr-input/tasks-mrtr-tasks-update-resumes",
    "tasks-request-headers/sep-2663-routing-headers-accepted-on-tasks-get",
    "tasks-request-headers/sep-2663-server-rejects-mismatched-mcp-name-on-tasks-get",
    "tasks-request-state-removal/tasks-create-result-no-request-state",
    "tasks-request-state-removal/tasks-get-detailed-no-request-state",
    "tasks-request-state-removal/tasks-request-state-removal-setup",
    "tasks-required-task-error/sep-2663-server-returns-missing-capability-data-shape",
    "tasks-required-task-error/sep-2663-server-returns-missing-capability-when-required",
    "tasks-wire-fields/tasks-no-early-ttl-expiry",
    "tasks-wire-fields/tasks-no-related-task-meta-on-inlined-result",
    "tasks-wire-fields/tasks-wire-field-renames",
];

/// Modern checks with a legacy server that all clients share.
pub(super) const SHARED: &[Excused] = &[Excused {
    why: "a shared legacy server never learns of roots: it would use those of one client \
          for all",
    checks: &[
        "input-required-result-basic-list-roots/sep-2322-list-roots-complete",
        "input-required-result-basic-list-roots/sep-2322-list-roots-incomplete",
        "input-required-result-multiple-input-requests/sep-2322-multiple-inputs-complete",
        "input-required-result-multiple-input-requests/sep-2322-multiple-inputs-incomplete",
    ],
}];

/// A check of the streams that answer `tools/list`. These SDKs answer with streams; xy answers with
/// JSON unless the answer takes long. Streams are optional, so the suite then checks nothing. A
/// stream that is sent must pass.
pub(super) const OPTIONAL: &str = "server-sse-multiple-streams/server-sse-streams-functional";
