//! Compares two records of one script, and applies the list of allowed differences.

use std::cell::Cell;

use xy_testkit::text::{Text, differences};

use super::Way;
use super::drive::Record;

/// An allowed difference and its reason. An entry that matches nothing is a mistake in the list.
#[derive(Debug)]
pub(crate) struct AllowedDifference {
    pub(crate) ways: &'static [Way],
    /// Labels of steps; a final `*` matches the rest of a label.
    pub(crate) steps: &'static [&'static str],
    /// The message and the path in it: `answer/result/x`, `notifications/message/params/data`. A
    /// final `*` matches the rest of the path.
    pub(crate) path: &'static str,
    pub(crate) why: &'static str,
}

/// The allowed differences, with the number of matches by step.
pub(crate) struct Allowed {
    all: Vec<(&'static AllowedDifference, &'static str, Cell<usize>)>,
}

impl Allowed {
    pub(crate) fn new(all: &[&'static [AllowedDifference]]) -> Self {
        let entries = all.iter().copied().flatten();
        let each = |it: &'static AllowedDifference| {
            it.steps.iter().map(move |step| (it, *step, Cell::new(0)))
        };
        Self { all: entries.flat_map(each).collect() }
    }

    fn find(&self, way: Way, step: &str, path: &str) -> Option<&Cell<usize>> {
        let mut fits = self.all.iter().filter(|(it, steps, _)| {
            it.ways.contains(&way) && is_like(steps, step) && is_like(it.path, path)
        });
        fits.next().map(|(.., count)| count)
    }

    fn allows(&self, way: Way, step: &str, path: &str) -> bool {
        let Some(count) = self.find(way, step, path) else { return false };
        count.set(count.get() + 1);
        true
    }

    /// Returns the expected number of messages of each step in this way.
    pub(crate) fn expected(&self, way: Way, direct: &[Record]) -> Vec<usize> {
        let comes = |label: &str, message: &Text| {
            self.find(way, label, &format!("{}#missing", kind(message))).is_none()
        };
        let count = |it: &Record| it.messages.iter().filter(|text| comes(it.label, text)).count();
        direct.iter().map(count).collect()
    }

    /// Returns the entries that matched nothing.
    pub(crate) fn unused(&self) -> Vec<String> {
        let unused = self.all.iter().filter(|(.., count)| count.get() == 0);
        let describe = |(it, step, _): &(&AllowedDifference, &str, Cell<usize>)| {
            format!("listed, but never seen: {step}: {} ({})", it.path, it.why)
        };
        unused.map(describe).collect()
    }
}

fn is_like(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => pattern == text,
    }
}

/// Returns every difference that is not allowed, as text.
pub(crate) fn compare(
    way: Way,
    direct: &[Record],
    through: &[Record],
    allowed: &Allowed,
) -> Vec<String> {
    assert_eq!(direct.len(), through.len(), "both records have the same steps");
    let mut problems = Vec::new();
    for (direct, through) in direct.iter().zip(through) {
        for (path, one, other) in step(direct, through) {
            if !allowed.allows(way, direct.label, &path) {
                let label = direct.label;
                let [one, other] = [one, other].map(|text| shorten(&text));
                problems
                    .push(format!("{way:?}, {label}: {path}\n  direct  {one}\n  through {other}"));
            }
        }
    }
    problems
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Compares the messages of a call in their order, and other messages in theirs.
fn step(direct: &Record, through: &Record) -> Vec<(String, String, String)> {
    let [(one, one_apart), (other, other_apart)] = [direct, through].map(|record| {
        record.messages.iter().partition::<Vec<&Text>, _>(|message| !is_apart(message))
    });
    let mut all = sequence(&one, &other);
    all.extend(sequence(&one_apart, &other_apart));
    all
}

fn sequence(one: &[&Text], other: &[&Text]) -> Vec<(String, String, String)> {
    let nothing = || "(nothing)".to_owned();
    let [one_kinds, other_kinds] =
        [one, other].map(|all| all.iter().map(|it| kind(it)).collect::<Vec<_>>());
    if one_kinds == other_kinds {
        let pairs = one.iter().zip(other);
        return pairs.flat_map(|(one, other)| differences(&kind(one), one, other)).collect();
    }
    // The messages that only one side has; then the rest, in order.
    let mut all = Vec::new();
    let mut left: Vec<&&Text> = other.iter().collect();
    for message in one {
        match left.iter().position(|it| kind(it) == kind(message)) {
            Some(at) => all.extend(differences(&kind(message), message, left.remove(at))),
            None => {
                all.push((format!("{}#missing", kind(message)), message.to_string(), nothing()));
            }
        }
    }
    let more = left.into_iter().map(|it| (format!("{}#more", kind(it)), nothing(), it.to_string()));
    all.extend(more);
    if all.is_empty() {
        all.push(("#order".to_owned(), one_kinds.join(" "), other_kinds.join(" ")));
    }
    all
}

/// Returns the method of a message, or `answer`.
fn kind(message: &Text) -> String {
    match message.word("method") {
        "" => "answer".to_owned(),
        method => method.to_owned(),
    }
}

/// Returns true if the message belongs to no call, so that HTTP sends it on its own stream.
fn is_apart(message: &Text) -> bool {
    let method = message.word("method");
    method.ends_with("/list_changed") || method == "notifications/resources/updated"
}
