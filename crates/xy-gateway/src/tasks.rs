//! What messages say of tasks, each as a piece of the message's own text. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use xy_mcp::envelope::text_of;
use xy_mcp::members::Members;

use crate::modern::{CAN_TASKS, CAPABILITIES};
use crate::names::quoted;

/// A task, as it is told of.
#[derive(Debug, Default, Deserialize)]
struct Task<'t> {
    #[serde(borrow, default, rename = "taskId")]
    id: Option<&'t RawValue>,
    #[serde(borrow, default)]
    status: Option<&'t RawValue>,
    #[serde(borrow, default)]
    ttl: Option<&'t RawValue>,
    #[serde(borrow, default, rename = "ttlMs")]
    ttl_ms: Option<&'t RawValue>,
    #[serde(borrow, default, rename = "resultType")]
    kind: Option<&'t RawValue>,
}

impl Task<'_> {
    fn id(&self) -> Option<String> {
        self.id.and_then(|id| text_of(id.get())).map(Into::into)
    }

    /// How long it is kept; `None` for ever, or if that cannot be read.
    fn life(&self) -> Option<Duration> {
        let millis: f64 = self.ttl.or(self.ttl_ms)?.get().parse().ok()?;
        Duration::try_from_secs_f64(millis / 1000.0).ok()
    }
}

/// The task that a result says was begun: its id, and how long it is kept.
pub(crate) fn begun(result: &str) -> Option<(String, Option<Duration>)> {
    #[derive(Deserialize)]
    struct Begun<'t> {
        #[serde(borrow)]
        task: Task<'t>,
    }
    let Begun { task } = serde_json::from_str(result).ok()?;
    Some((task.id()?, task.life()))
}

/// The same in the revision without sessions, where the result itself is the task.
pub(crate) fn created(result: &str) -> Option<(String, Option<Duration>)> {
    // Hardly any result is one, and all of it has to be read to know.
    memchr::memmem::find(result.as_bytes(), br#""task""#)?;
    let task: Task<'_> = serde_json::from_str(result).ok()?;
    (task.kind?.get() == r#""task""#).then(|| Some((task.id()?, task.life())))?
}

/// How long a task is kept of which a result tells, if it says that; `null` is for ever.
pub(crate) fn kept(result: &str) -> Option<Duration> {
    match Members::read(result)?.get("ttlMs")? {
        "null" => Some(Duration::MAX),
        millis => Duration::try_from_secs_f64(millis.parse::<f64>().ok()? / 1000.0).ok(),
    }
}

/// What a modern server is asked with about a task that is nobody's.
pub(crate) fn params_for_modern(id: &str) -> String {
    let meta = format!(r#"{{"{CAPABILITIES}":{CAN_TASKS}}}"#);
    format!(r#"{{"taskId":{},"_meta":{meta}}}"#, quoted(id))
}

/// The task that a result or a notification tells of, and whether it has come to its end.
pub(crate) fn told(text: &str) -> Option<(String, bool)> {
    let task: Task<'_> = serde_json::from_str(text).ok()?;
    let status = task.status.and_then(|status| text_of(status.get()));
    let is_over = status.is_some_and(|it| matches!(&*it, "completed" | "failed" | "cancelled"));
    Some((task.id()?, is_over))
}

/// The task that a message belongs to.
pub(crate) fn related(params: Option<&str>) -> Option<Related> {
    #[derive(Deserialize)]
    struct Params<'t> {
        #[serde(borrow, default, rename = "_meta")]
        meta: Option<&'t RawValue>,
    }
    #[derive(Deserialize)]
    struct Meta<'t> {
        #[serde(borrow, default, rename = "io.modelcontextprotocol/related-task")]
        task: Option<&'t RawValue>,
    }
    // What is an object and cannot be read, such as one with a key twice, may say anything.
    let is_object = |text: &str| text.starts_with('{');
    let params: Params<'_> = match serde_json::from_str(params.filter(|it| is_object(it))?) {
        Ok(params) => params,
        Err(_) => return Some(Related::Unreadable),
    };
    let meta: Meta<'_> = match serde_json::from_str(params.meta?.get()) {
        Ok(meta) => meta,
        Err(_) => return is_object(params.meta?.get()).then_some(Related::Unreadable),
    };
    let task = meta.task?.get();
    let id = serde_json::from_str(task).ok().and_then(|task: Task<'_>| task.id());
    Some(id.map_or(Related::Unreadable, Related::Route))
}

/// Which task a message belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Related {
    Route(String),
    /// To one, but nobody knows to which.
    Unreadable,
}

/// The list of tasks in a result, and what is left of it without those that are not one's
/// own; `None` if there is no such list.
pub(crate) fn only<'t>(
    result: &'t str,
    is_own: impl Fn(&str) -> bool,
) -> Option<(&'t str, String)> {
    let fields: BTreeMap<Cow<'_, str>, &'t RawValue> = serde_json::from_str(result).ok()?;
    let list = fields.get("tasks")?.get();
    let all: Vec<&RawValue> = serde_json::from_str(list).unwrap_or_default();
    let own = all.into_iter().map(RawValue::get).filter(|raw| {
        let task: Option<Task<'_>> = serde_json::from_str(raw).ok();
        task.and_then(|task| task.id()).is_some_and(|id| is_own(&id))
    });
    let own: Vec<&str> = own.collect();
    Some((list, format!("[{}]", own.join(","))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_says_which_task_was_begun() {
        let second = Some(Duration::from_secs(1));
        for (result, expected) in [
            (r#"{"task":{"taskId":"a","ttl":1000}}"#, Some(("a", second))),
            (r#"{"task":{"taskId":"a","ttl":null}}"#, Some(("a", None))),
            (r#"{"task":{"taskId":"a","ttl":-1}}"#, Some(("a", None))),
            (r#"{"task":{"taskId":"a"}}"#, Some(("a", None))),
            (r#"{"task":{"taskId":7}}"#, None),
            (r#"{"content":[]}"#, None),
            ("[]", None),
        ] {
            let expected = expected.map(|(id, life)| (id.to_owned(), life));
            assert_eq!(begun(result), expected, "{result}");
        }
    }

    #[test]
    fn without_sessions_a_result_is_the_task_itself() {
        let second = Some(Duration::from_secs(1));
        for (result, expected) in [
            (r#"{"resultType":"task","taskId":"a","ttlMs":1000}"#, Some(("a", second))),
            (r#"{"resultType":"task","taskId":"a","ttlMs":null}"#, Some(("a", None))),
            (r#"{"resultType":"task","taskId":"a","ttlMs":-1}"#, Some(("a", None))),
            (r#"{"resultType":"complete","taskId":"a","x":"task"}"#, None),
            (r#"{"resultType":"task","task":{"taskId":"a"}}"#, None),
            (r#"{"resultType":"task","taskId":7}"#, None),
            (r#"{"resultType":"task","taskId":"a","taskId":"b"}"#, None),
            (r#"{"taskId":"a"}"#, None),
            (r#"["task"]"#, None),
        ] {
            let expected = expected.map(|(id, life)| (id.to_owned(), life));
            assert_eq!(created(result), expected, "{result}");
        }
        assert_eq!(kept(r#"{"taskId":"a","ttlMs":1000}"#), second);
        assert_eq!(kept(r#"{"ttlMs":null}"#), Some(Duration::MAX));
        for odd in ["{}", r#"{"ttlMs":"x"}"#, r#"{"ttlMs":-1}"#, r#"{"ttlMs":1e999}"#] {
            assert_eq!(kept(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_task_comes_to_its_end() {
        let is_over = |status| told(&format!(r#"{{"taskId":"a","status":"{status}"}}"#)).unwrap().1;
        assert!(is_over("completed") && is_over("failed") && is_over("cancelled"));
        assert!(!is_over("working") && !is_over("input_required") && !is_over("later"));
        assert_eq!(told(r#"{"status":"failed"}"#), None);
    }

    #[test]
    fn a_message_says_which_task_it_belongs_to() {
        let key = "io.modelcontextprotocol/related-task";
        let of = |task: &str| related(Some(&format!(r#"{{"_meta":{{"x":1,"{key}":{task}}}}}"#)));
        assert_eq!(of(r#"{"taskId":"a"}"#), Some(Related::Route("a".to_owned())));
        for odd in ["7", "{}", r#"{"taskId":null}"#, "null"] {
            let expected = (odd != "null").then_some(Related::Unreadable);
            assert_eq!(of(odd), expected, "{odd}");
        }
        let twice = format!(r#"{{"_meta":{{"{key}":{{"taskId":"a"}},"{key}":{{"taskId":"b"}}}}}}"#);
        assert_eq!(related(Some(&twice)), Some(Related::Unreadable));
        assert_eq!(related(Some(r#"{"_meta":{},"_meta":{}}"#)), Some(Related::Unreadable));
        for none in [None, Some("{}"), Some("[]"), Some(r#"{"_meta":7}"#)] {
            assert_eq!(related(none), None);
        }
    }

    #[test]
    fn only_ones_own_tasks_are_left_and_the_rest_is_untouched() {
        let text =
            r#"{"x":1.50,"tasks":[{"taskId":"a","n":1.0},{"taskId":"b"},7],"nextCursor":"c"}"#;
        let (part, left) = only(text, |id| id == "a").unwrap();
        assert_eq!(
            text.replace(part, &left),
            r#"{"x":1.50,"tasks":[{"taskId":"a","n":1.0}],"nextCursor":"c"}"#
        );
        assert_eq!(only(text, |_| false).unwrap().1, "[]");
        assert_eq!(only(r#"{"tasks":7}"#, |_| true), Some(("7", "[]".to_owned())));
        assert_eq!(only("{}", |_| true), None);
    }
}
