//! Parsing of tasks in messages, as parts of the message's text. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::edit::quoted;
use crate::envelope::text_of;
use crate::members::Members;
use crate::modern::{CAPABILITIES, TASKS_CAPABILITIES};

/// Time for which messages of the server may still refer to a cancelled call, or to a call of an
/// earlier daemon's client.
pub const CANCELLED_RETENTION: Duration = Duration::from_secs(60);

/// The task members of a message.
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

    /// Returns the lifetime; `None` if it is unlimited or malformed.
    fn ttl(&self) -> Option<Duration> {
        let millis: f64 = self.ttl.or(self.ttl_ms)?.get().parse().ok()?;
        Duration::try_from_secs_f64(millis / 1000.0).ok()
    }
}

/// Returns the task that a legacy result creates: its id and lifetime.
pub fn created_legacy(result: &str) -> Option<(String, Option<Duration>)> {
    #[derive(Deserialize)]
    struct Begun<'t> {
        #[serde(borrow)]
        task: Task<'t>,
    }
    let Begun { task } = serde_json::from_str(result).ok()?;
    Some((task.id()?, task.ttl()))
}

/// Returns the task that a modern result creates, which is the task itself: its id and lifetime.
pub fn created_modern(result: &str) -> Option<(String, Option<Duration>)> {
    // Search first: task results are rare, and parsing reads the whole result.
    memchr::memmem::find(result.as_bytes(), br#""task""#)?;
    let task: Task<'_> = serde_json::from_str(result).ok()?;
    (task.kind?.get() == r#""task""#).then(|| Some((task.id()?, task.ttl())))?
}

/// Returns the lifetime in a modern result, if it states one; `null` means unlimited.
pub fn time_to_live(result: &str) -> Option<Duration> {
    match Members::read(result)?.get("ttlMs")? {
        "null" => Some(Duration::MAX),
        millis => Duration::try_from_secs_f64(millis.parse::<f64>().ok()? / 1000.0).ok(),
    }
}

/// Returns the params of a query to a modern server about a task without a client.
pub fn params_for_modern(id: &str) -> String {
    let meta = format!(r#"{{"{CAPABILITIES}":{TASKS_CAPABILITIES}}}"#);
    format!(r#"{{"taskId":{},"_meta":{meta}}}"#, quoted(id))
}

/// Returns the task id in a result or notification, and true if the task has finished.
pub fn status(text: &str) -> Option<(String, bool)> {
    let task: Task<'_> = serde_json::from_str(text).ok()?;
    let status = task.status.and_then(|status| text_of(status.get()));
    let is_over = status.is_some_and(|it| matches!(&*it, "completed" | "failed" | "cancelled"));
    Some((task.id()?, is_over))
}

/// Returns the task that a message is related to.
pub fn related(params: Option<&str>) -> Option<Related> {
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
    // An object that cannot be read, such as one with a duplicate key, may name any task.
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
    Some(id.map_or(Related::Unreadable, Related::Task))
}

/// The task that a message is related to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Related {
    /// The task with this id.
    Task(String),
    /// A task whose id cannot be read.
    Unreadable,
}

/// Filters the task list in a result: returns the list's text and its replacement, or `None` if
/// there is no list.
pub fn filter_list<'t>(
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
    fn legacy_result_names_the_created_task() {
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
            assert_eq!(created_legacy(result), expected, "{result}");
        }
    }

    #[test]
    fn modern_result_is_the_task_itself() {
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
            assert_eq!(created_modern(result), expected, "{result}");
        }
        assert_eq!(time_to_live(r#"{"taskId":"a","ttlMs":1000}"#), second);
        assert_eq!(time_to_live(r#"{"ttlMs":null}"#), Some(Duration::MAX));
        for odd in ["{}", r#"{"ttlMs":"x"}"#, r#"{"ttlMs":-1}"#, r#"{"ttlMs":1e999}"#] {
            assert_eq!(time_to_live(odd), None, "{odd}");
        }
    }

    #[test]
    fn final_task_statuses_are_recognized() {
        let is_over =
            |word| super::status(&format!(r#"{{"taskId":"a","status":"{word}"}}"#)).unwrap().1;
        assert!(is_over("completed") && is_over("failed") && is_over("cancelled"));
        assert!(!is_over("working") && !is_over("input_required") && !is_over("later"));
        assert_eq!(status(r#"{"status":"failed"}"#), None);
    }

    #[test]
    fn related_task_is_read_from_meta() {
        let key = "io.modelcontextprotocol/related-task";
        let of = |task: &str| related(Some(&format!(r#"{{"_meta":{{"x":1,"{key}":{task}}}}}"#)));
        assert_eq!(of(r#"{"taskId":"a"}"#), Some(Related::Task("a".to_owned())));
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
    fn task_list_is_filtered_and_otherwise_unchanged() {
        let text =
            r#"{"x":1.50,"tasks":[{"taskId":"a","n":1.0},{"taskId":"b"},7],"nextCursor":"c"}"#;
        let (part, left) = filter_list(text, |id| id == "a").unwrap();
        assert_eq!(
            text.replace(part, &left),
            r#"{"x":1.50,"tasks":[{"taskId":"a","n":1.0}],"nextCursor":"c"}"#
        );
        assert_eq!(filter_list(text, |_| false).unwrap().1, "[]");
        assert_eq!(filter_list(r#"{"tasks":7}"#, |_| true), Some(("7", "[]".to_owned())));
        assert_eq!(filter_list("{}", |_| true), None);
    }
}
