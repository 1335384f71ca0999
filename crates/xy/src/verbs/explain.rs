//! `xy explain`: reports if a profile shows an item, and which line of a file decides it.

use xy_protocol::control::{Explain, ExplainResult, ItemKind, Request};

use crate::args::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::safe_text;

/// Explain why a profile shows or hides a tool, prompt or resource
///
/// Also prints the line of the file that decides it. Name a tool or prompt as `server__name` or
/// by its name in the profile, and a resource by its URI or as `xy://server/uri`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy explain work git__push\n  \
    xy explain work --resource file:///etc/hosts")]
pub(crate) struct Args {
    /// The profile; clients that name none get `default`
    profile: String,
    /// The tool, prompt or resource
    name: String,
    /// NAME is a prompt
    #[arg(long, conflicts_with = "resource")]
    prompt: bool,
    /// NAME is a resource or a resource template
    #[arg(long)]
    resource: bool,
    #[command(flatten)]
    pub(crate) json: Json,
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let kind = match (args.prompt, args.resource) {
        (true, _) => ItemKind::Prompt,
        (_, true) => ItemKind::Resource,
        _ => ItemKind::Tool,
    };
    let (profile, name) = (args.profile.clone(), args.name.clone());
    let request = Request::Explain(Explain { profile, name, kind });
    let result = Link::open()?.query(&request)?;
    if args.json.json {
        return output.json(&result);
    }
    output.print(&format_result(&read(&result)?))
}

fn format_result(it: &ExplainResult) -> String {
    let what = match it.kind {
        ItemKind::Tool => "tool",
        ItemKind::Prompt => "prompt",
        ItemKind::Resource => "resource",
    };
    let (name, profile) = (safe_text(&it.name), safe_text(&it.profile));
    let verdict = match (it.shown, it.listed) {
        (true, true) => "shown",
        (true, false) => "shown, but found by `search_tools` instead of listed",
        (false, _) => "hidden",
    };
    let mut text = format!("{what} {name} in profile {profile}: {verdict}\n");
    let mut say = |label: &str, words: &str| {
        text.extend(["  ", label, ": ", &*safe_text(words), "\n"]);
    };
    say("because", &it.why);
    match (&it.file, it.line) {
        (Some(file), Some(line)) => say("at", &format!("{file}:{line}")),
        (Some(file), None) => say("in", file),
        _ => {}
    }
    if let (Some(file), Some(line)) = (&it.file, it.found_line) {
        say("found by search because of", &format!("{file}:{line}"));
    }
    if let Some(exposed) = it.exposed.as_ref().filter(|exposed| **exposed != it.name) {
        say("called", exposed);
    }
    if let Some(description) = &it.description {
        say("described as", description);
    }
    if !it.known {
        say("note", "no server currently offers it");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explanation_shows_reason_and_line() {
        let hidden = ExplainResult {
            profile: "work".into(),
            name: "git__push".into(),
            why: "`deny` names it".into(),
            file: Some("profiles/work.kdl".into()),
            line: Some(3),
            known: true,
            ..ExplainResult::default()
        };
        insta::assert_snapshot!(format_result(&hidden), @r"
        tool git__push in profile work: hidden
          because: `deny` names it
          at: profiles/work.kdl:3
        ");
        let shown = ExplainResult {
            shown: true,
            exposed: Some("push".into()),
            description: Some("Careful".into()),
            known: false,
            line: None,
            found_line: Some(9),
            why: "nothing hides it".into(),
            ..hidden
        };
        insta::assert_snapshot!(format_result(&shown), @r"
        tool git__push in profile work: shown, but found by `search_tools` instead of listed
          because: nothing hides it
          in: profiles/work.kdl
          found by search because of: profiles/work.kdl:9
          called: push
          described as: Careful
          note: no server currently offers it
        ");
    }
}
