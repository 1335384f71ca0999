//! Two records of one script, and what may differ between them.

use std::cell::Cell;

use xy_testkit::text::{Text, differences};

use super::Way;
use super::drive::Record;

/// A difference, and why it must be there. One that is never seen is a mistake in the list.
#[derive(Debug)]
pub(crate) struct Differs {
    pub(crate) ways: &'static [Way],
    /// Labels of steps; `*` at the end of one stands for the rest of it.
    pub(crate) steps: &'static [&'static str],
    /// Which message, and where in it: `answer/result/x`, `notifications/message/params/data`.
    /// `*` at the end stands for the rest of it.
    pub(crate) path: &'static str,
    pub(crate) why: &'static str,
}

/// The list of what may differ, with how often each was seen, by step.
pub(crate) struct Allowed {
    all: Vec<(&'static Differs, &'static str, Cell<usize>)>,
}

impl Allowed {
    pub(crate) fn new(all: &[&'static [Differs]]) -> Self {
        let entries = all.iter().copied().flatten();
        let each =
            |it: &'static Differs| it.steps.iter().map(move |step| (it, *step, Cell::new(0)));
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

    /// How many messages come at each step in this way.
    pub(crate) fn expected(&self, way: Way, direct: &[Record]) -> Vec<usize> {
        let comes = |label: &str, message: &Text| {
            self.find(way, label, &format!("{}#missing", kind(message))).is_none()
        };
        let count = |it: &Record| it.heard.iter().filter(|text| comes(it.label, text)).count();
        direct.iter().map(count).collect()
    }

    /// What was never seen.
    pub(crate) fn unused(&self) -> Vec<String> {
        let unused = self.all.iter().filter(|(.., count)| count.get() == 0);
        let told = |(it, step, _): &(&Differs, &str, Cell<usize>)| {
            format!("listed, but never seen: {step}: {} ({})", it.path, it.why)
        };
        unused.map(told).collect()
    }
}

fn is_like(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => pattern == text,
    }
}

/// Every difference that is not allowed, as a sentence.
pub(crate) fn compare(
    way: Way,
    direct: &[Record],
    through: &[Record],
    allowed: &Allowed,
) -> Vec<String> {
    assert_eq!(direct.len(), through.len(), "one script has been driven");
    let mut problems = Vec::new();
    for (direct, through) in direct.iter().zip(through) {
        for (path, one, other) in step(direct, through) {
            if !allowed.allows(way, direct.label, &path) {
                let label = direct.label;
                let [one, other] = [one, other].map(|text| shortened(&text));
                problems
                    .push(format!("{way:?}, {label}: {path}\n  direct  {one}\n  through {other}"));
            }
        }
    }
    problems
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Compares what belongs to a call in its order, and what does not in its own.
fn step(direct: &Record, through: &Record) -> Vec<(String, String, String)> {
    let [(one, one_apart), (other, other_apart)] = [direct, through]
        .map(|record| record.heard.iter().partition::<Vec<&Text>, _>(|message| !is_apart(message)));
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
    // What one has and the other has not; then the rest, in order.
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

/// What a message is: an answer, or its method.
fn kind(message: &Text) -> String {
    match message.word("method") {
        "" => "answer".to_owned(),
        method => method.to_owned(),
    }
}

/// Whether it belongs to no call, so that over HTTP it comes on a stream of its own.
fn is_apart(message: &Text) -> bool {
    let method = message.word("method");
    method.ends_with("/list_changed") || method == "notifications/resources/updated"
}
