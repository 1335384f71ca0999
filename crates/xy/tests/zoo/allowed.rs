//! The differences that must exist through xy, each with its reason.

use crate::Way;
use crate::compare::{AllowedDifference, Of};

const MODERN: &[Way] = &[Way::ModernHttp, Way::ModernStdio];

const fn must(
    of: Of,
    ways: &'static [Way],
    step: &'static str,
    path: &'static str,
    why: &'static str,
) -> AllowedDifference {
    AllowedDifference { of, ways, step, path, why }
}

const TASKS: &str = "tasks of the two eras are incompatible, so xy hides legacy tasks from a \
                     modern client";
const NOT_MODERN: &str = "the modern era has neither `ping` nor `logging/setLevel`; xy refuses \
                          both with its own message";
const NOT_FOUND: &str = "the code for a missing resource is -32602 in the modern era and -32002 \
                         in the legacy one";

/// The allowed differences.
pub(crate) const ALLOWED: &[AllowedDifference] = &[
    must(Of::Legacy, MODERN, "handshake", "result/capabilities/tasks", TASKS),
    must(Of::Modern, MODERN, "level", "error/message", NOT_MODERN),
    must(Of::Modern, MODERN, "level", "error/data", NOT_MODERN),
    must(Of::Modern, MODERN, "ping", "error/message", NOT_MODERN),
    must(Of::Modern, MODERN, "ping", "error/data", NOT_MODERN),
    must(Of::Legacy, MODERN, "unknown resource", "error/code", NOT_FOUND),
];
