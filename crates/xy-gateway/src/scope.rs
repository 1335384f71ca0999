//! What a profile shows: one rule for lists, calls, prompts, resources, completion, search and
//! whatever else names something of a server. Pure.
//!
//! The order of a profile's lines does not matter. Something is shown if
//!
//! 1. its server is: `deny-servers` does not name that, and `servers` does, if there is one;
//! 2. no `deny` names it;
//! 3. an `allow` names it, if there is any that is about its kind and its server.
//!
//! What a server offers is judged once, when it has said so ([`crate::catalog::Known::within`]).

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::sync::Arc;

use xy_config::profile::{
    Filter, NAME_BUDGET, Pattern, ProfileSettings, ServerBlock, ToolMode, ToolOverride,
};

use crate::catalog::Kind;
use crate::names;

/// A resource whose URI is longer is not shown where resources are judged.
const LONGEST_URI: usize = 8 * 1024;

/// The rule of one profile.
#[derive(Debug)]
pub(crate) struct Scope {
    settings: Arc<ProfileSettings>,
    /// Tools that have other names here, by these.
    renamed: HashMap<Box<str>, usize>,
    /// Tools that are shown otherwise, by their servers' names and their own.
    changed: HashMap<(Box<str>, Box<str>), usize>,
    /// What it said of all tools when they were last searched: by who may not manage servers,
    /// and by who may.
    searched: [RefCell<xy_search::Visible>; 2],
}

/// Whether something is shown, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) shown: bool,
    /// As the end of a sentence that begins with whether it is shown.
    pub(crate) why: &'static str,
    /// The line that decided, if one did.
    pub(crate) line: Option<u32>,
}

impl Decision {
    fn shown(why: &'static str, line: Option<u32>) -> Self {
        Self { shown: true, why, line }
    }

    fn hidden(why: &'static str, line: Option<u32>) -> Self {
        Self { shown: false, why, line }
    }
}

/// How something looks that is shown.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Look<'s> {
    /// What it is called.
    pub(crate) name: String,
    /// What is said of it instead of what its server says.
    pub(crate) description: Option<&'s str>,
    /// Whether it stands in the list: else it is found, or called by whoever knows it.
    pub(crate) is_listed: bool,
}

/// Whether any server has an item of a kind of which a server's name and its own fit.
pub(crate) type Has<'h> = dyn Fn(Kind, &dyn Fn(&str, &str) -> bool) -> bool + 'h;

/// What there is that lines of profiles can be about.
pub(crate) struct There<'h> {
    /// The names of all servers.
    pub(crate) servers: &'h [&'h str],
    /// Those of them that have not said what they offer: what may be about that is not judged.
    pub(crate) unknown: &'h [&'h str],
    /// What the others offer.
    pub(crate) has: &'h Has<'h>,
}

impl Scope {
    pub(crate) fn new(settings: Arc<ProfileSettings>) -> Self {
        let overrides = settings.overrides.iter().enumerate();
        let renamed = overrides
            .clone()
            .filter_map(|(place, one)| Some((one.name.as_deref()?.into(), place)))
            .collect();
        let changed = overrides
            .map(|(place, one)| ((one.server.as_str().into(), one.tool.as_str().into()), place))
            .collect();
        Self { settings, renamed, changed, searched: Default::default() }
    }

    /// What the files say.
    pub(crate) fn settings(&self) -> &Arc<ProfileSettings> {
        &self.settings
    }

    /// What it said of all tools when they were last searched by who may manage servers, or not.
    pub(crate) fn searched(&self, may_manage: bool) -> RefMut<'_, xy_search::Visible> {
        self.searched[usize::from(may_manage)].borrow_mut()
    }

    /// Whether tools are found instead of listed.
    pub(crate) fn is_search(&self) -> bool {
        self.settings.mode == ToolMode::Search
    }

    /// Whether an item of a server is shown, by what the server calls it.
    pub(crate) fn decide(&self, kind: Kind, server: &str, name: &str) -> Decision {
        let of_server = self.decide_server(server);
        if !of_server.shown {
            return of_server;
        }
        let outside = (kind == Kind::Tools).then(|| format!("{server}{}{name}", names::SEPARATOR));
        let top = outside.iter().map(|whole| (&self.settings.tools, whole.as_str()));
        let blocks = self.blocks_of(server).map(|block| (filter_of(block, kind), name));
        let filters: Vec<(&Filter, &str)> =
            top.chain(blocks).filter(|(filter, _)| !filter.is_empty()).collect();
        if !filters.is_empty() && kind.is_by_uri() && !is_straight(name) {
            let line = first_line(&filters);
            return Decision::hidden("its URI could be a roundabout name of another", line);
        }
        judge(&filters).unwrap_or(of_server)
    }

    /// Whether a server is shown at all.
    pub(crate) fn decide_server(&self, server: &str) -> Decision {
        let ProfileSettings { servers, deny_servers, .. } = &*self.settings;
        if let Some(denied) = deny_servers.iter().find(|it| it.matches(server)) {
            return Decision::hidden("`deny-servers` names its server", Some(denied.line));
        }
        match (servers.iter().find(|it| it.matches(server)), servers.first()) {
            (Some(named), _) => Decision::shown("`servers` names its server", Some(named.line)),
            (None, Some(first)) => {
                Decision::hidden("`servers` names only others", Some(first.line))
            }
            (None, None) => Decision::shown("nothing hides it", None),
        }
    }

    /// Whether a managing tool of xy's own is shown to who may use it.
    pub(crate) fn decide_own(&self, name: &str) -> Decision {
        if self.settings.hides_managing {
            let line = self.settings.managing_line;
            return Decision::hidden("`manage #false` hides all that manage servers", line);
        }
        judge(&[(&self.settings.tools, name)]).unwrap_or(Decision::shown("nothing hides it", None))
    }

    /// Whether nothing of a server is hidden.
    pub(crate) fn shows_whole(&self, server: &str) -> bool {
        let says_nothing = |it: &ServerBlock| {
            it.tools.is_empty() && it.prompts.is_empty() && it.resources.is_empty()
        };
        self.decide_server(server).shown
            && self.settings.tools.is_empty()
            && self.blocks_of(server).all(says_nothing)
    }

    /// How an item looks that is shown; `None` if another tool has its name here.
    pub(crate) fn look(&self, kind: Kind, server: &str, name: &str) -> Option<Look<'_>> {
        let plain = |name| Look { name, description: None, is_listed: true };
        match kind {
            Kind::Resources | Kind::Templates => Some(plain(names::uri_outside(server, name))),
            Kind::Prompts => Some(plain(names::outside_within(server, name, self.budget()))),
            Kind::Tools => {
                let change = self.change(server, name);
                let natural = || names::outside_within(server, name, self.budget());
                let shown = match change.and_then(|it| it.name.clone()) {
                    Some(shown) => shown,
                    None => Some(natural()).filter(|it| !self.renamed.contains_key(it.as_str()))?,
                };
                let is_pinned = || self.is_pinned(&shown, server, name);
                let is_listed = !self.is_search() || is_pinned();
                let description = change.and_then(|it| it.description.as_deref());
                Some(Look { name: shown, description, is_listed })
            }
        }
    }

    /// The tool that has another name here, this one: whose it is, and what that calls it.
    pub(crate) fn renamed(&self, name: &str) -> Option<(&str, &str)> {
        let one = &self.settings.overrides[*self.renamed.get(name)?];
        Some((&one.server, &one.tool))
    }

    /// The line that gives a tool's own name to another.
    pub(crate) fn line_of_name(&self, server: &str, name: &str) -> Option<u32> {
        let natural = names::outside_within(server, name, self.budget());
        self.renamed.get(natural.as_str()).map(|place| self.settings.overrides[*place].line)
    }

    /// What is shown otherwise of a tool.
    pub(crate) fn change(&self, server: &str, name: &str) -> Option<&ToolOverride> {
        if self.changed.is_empty() {
            return None;
        }
        let place = self.changed.get(&(server.into(), name.into()))?;
        self.settings.overrides.get(*place)
    }

    /// Whether any tool of a server is shown otherwise.
    pub(crate) fn changes_any_of(&self, server: &str) -> bool {
        self.settings.overrides.iter().any(|it| it.server == server)
    }

    /// Whether a tool is shown, in the words of its server.
    pub(crate) fn shows_plainly(&self, server: &str, name: &str) -> bool {
        self.decide(Kind::Tools, server, name).shown
            && self.change(server, name).is_none()
            && (self.renamed.is_empty() || self.line_of_name(server, name).is_none())
    }

    /// Whether a tool is listed although others are found.
    pub(crate) fn is_own_pinned(&self, name: &str) -> bool {
        self.settings.pins.iter().any(|pin| pin.matches(name))
    }

    /// How important a server is: less is more. Those that `servers` names come in that order.
    pub(crate) fn rank(&self, server: &str) -> usize {
        let servers = &self.settings.servers;
        servers.iter().position(|it| it.matches(server)).unwrap_or(usize::MAX)
    }

    /// The longest name outside.
    pub(crate) fn budget(&self) -> usize {
        self.settings.name_budget.unwrap_or(NAME_BUDGET)
    }

    /// The lines that are about nothing there is.
    pub(crate) fn idle_lines(&self, there: &There<'_>) -> Vec<(u32, String)> {
        let mut idle = Vec::new();
        let settings = &*self.settings;
        for pattern in settings.servers.iter().chain(&settings.deny_servers) {
            if !there.servers.iter().any(|it| pattern.matches(it)) {
                idle.push((pattern.line, format!("no server is named `{}`", pattern.text)));
            }
        }
        let tools = settings.tools.allow.iter().chain(&settings.tools.deny).chain(&settings.pins);
        for pattern in tools {
            let fits = |server: &str, name: &str| {
                pattern.matches(&format!("{server}{}{name}", names::SEPARATOR))
            };
            let is_there = crate::tools::is_any_own(|own| pattern.matches(own))
                || there.unknown.iter().any(|server| may_name_tool_of(pattern, server))
                || (there.has)(Kind::Tools, &fits);
            if !is_there {
                idle.push((pattern.line, format!("no tool is named `{}`", pattern.text)));
            }
        }
        for one in &settings.overrides {
            let is_it = |server: &str, name: &str| server == one.server && name == one.tool;
            let is_unknown = there.unknown.contains(&one.server.as_str());
            if !is_unknown && !(there.has)(Kind::Tools, &is_it) {
                let whole = format!("{}{}{}", one.server, names::SEPARATOR, one.tool);
                idle.push((one.line, format!("no tool is named `{whole}`")));
            }
        }
        for block in &settings.blocks {
            idle_in_block(block, there, &mut idle);
        }
        idle.sort();
        idle
    }

    /// Why the lines leave too little together, although each may be about something.
    pub(crate) fn emptiness(&self, there: &There<'_>) -> Option<&'static str> {
        let settings = &*self.settings;
        let allowed = |own: &str| settings.tools.allow.iter().any(|it| it.matches(own));
        if crate::tools::is_any_own(|own| allowed(own) && self.decide_own(own).shown) {
            return None; // It is for managing servers.
        }
        let offers = |kind: &Kind| (there.has)(*kind, &|_, _| true);
        let shows = |kind: &Kind| {
            there.unknown.iter().any(|server| self.may_show_of(*kind, server))
                || (there.has)(*kind, &|server, name| self.decide(*kind, server, name).shown)
        };
        let blocks = settings.blocks.iter().map(|block| &block.tools);
        let has_allow = blocks.chain([&settings.tools]).any(|filter| !filter.allow.is_empty());
        if Kind::ALL.iter().any(offers) && !Kind::ALL.iter().any(shows) {
            Some("shows nothing at all: its lines together hide everything of every server")
        } else if has_allow && offers(&Kind::Tools) && !shows(&Kind::Tools) {
            Some("shows no tool: of those that `allow` names, its other lines leave none")
        } else {
            None
        }
    }

    /// Whether something may be shown of a server that has not said what it offers.
    fn may_show_of(&self, kind: Kind, server: &str) -> bool {
        let top: &[Pattern] = if kind == Kind::Tools { &self.settings.tools.allow } else { &[] };
        let mut inside = self.blocks_of(server).flat_map(|block| &filter_of(block, kind).allow);
        let has_inside = inside.next().is_some();
        self.decide_server(server).shown
            && (has_inside || top.is_empty() || top.iter().any(|it| may_name_tool_of(it, server)))
    }

    fn is_pinned(&self, shown: &str, server: &str, name: &str) -> bool {
        let whole = format!("{server}{}{name}", names::SEPARATOR);
        self.settings.pins.iter().any(|pin| pin.matches(shown) || pin.matches(&whole))
    }

    fn blocks_of<'s>(&'s self, server: &'s str) -> impl Iterator<Item = &'s ServerBlock> {
        self.settings.blocks.iter().filter(move |it| it.server.matches(server))
    }
}

/// Adds the lines of a block that are about nothing there is.
fn idle_in_block(block: &ServerBlock, there: &There<'_>, idle: &mut Vec<(u32, String)>) {
    if !there.servers.iter().any(|it| block.server.matches(it)) {
        let problem = format!("no server is named `{}`", block.server.text);
        return idle.push((block.server.line, problem));
    }
    if there.unknown.iter().any(|it| block.server.matches(it)) {
        return;
    }
    let kinds: [(&[Kind], &str); 3] = [
        (&[Kind::Tools], "tool"),
        (&[Kind::Prompts], "prompt"),
        (&[Kind::Resources, Kind::Templates], "resource"),
    ];
    for (kinds, what) in kinds {
        let filter = filter_of(block, kinds[0]);
        for pattern in filter.allow.iter().chain(&filter.deny) {
            let fits =
                |server: &str, name: &str| block.server.matches(server) && pattern.matches(name);
            // What a template makes is not known.
            let is_there = kinds.iter().any(|kind| (there.has)(*kind, &fits));
            if !is_there && (what != "resource" || pattern.is_plain()) {
                let problem =
                    format!("no {what} of `{}` is named `{}`", block.server.text, pattern.text);
                idle.push((pattern.line, problem));
            }
        }
    }
}

/// Whether a pattern may stand for a tool of a server that has not said what it offers.
fn may_name_tool_of(pattern: &Pattern, server: &str) -> bool {
    let start = format!("{server}{}", names::SEPARATOR);
    match pattern.text.split_once('*') {
        Some((first, _)) => first.starts_with(&start) || start.starts_with(first),
        None => pattern.text.starts_with(&start),
    }
}

fn filter_of(block: &ServerBlock, kind: Kind) -> &Filter {
    match kind {
        Kind::Tools => &block.tools,
        Kind::Prompts => &block.prompts,
        Kind::Resources | Kind::Templates => &block.resources,
    }
}

/// What filters say of the names that go with them; `None` if they say nothing.
fn judge(filters: &[(&Filter, &str)]) -> Option<Decision> {
    fn found<'f>(
        filters: &[(&'f Filter, &str)],
        side: impl Fn(&'f Filter) -> &'f [Pattern],
    ) -> Option<&'f Pattern> {
        filters.iter().find_map(|(filter, name)| side(filter).iter().find(|it| it.matches(name)))
    }
    if let Some(denied) = found(filters, |it| &it.deny) {
        return Some(Decision::hidden("`deny` names it", Some(denied.line)));
    }
    if let Some(allowed) = found(filters, |it| &it.allow) {
        return Some(Decision::shown("`allow` names it", Some(allowed.line)));
    }
    let only = filters.iter().find_map(|(filter, _)| filter.allow.first())?;
    Some(Decision::hidden("`allow` names only others", Some(only.line)))
}

fn first_line(filters: &[(&Filter, &str)]) -> Option<u32> {
    filters.iter().flat_map(|(it, _)| it.allow.iter().chain(&it.deny)).map(|it| it.line).min()
}

/// Whether a URI has one spelling only, as far as can be seen: with `..`, `%2e` and the like
/// in it, it could be a name for something else than what it looks like.
fn is_straight(uri: &str) -> bool {
    if uri.len() > LONGEST_URI || uri.contains('\\') || uri.chars().any(char::is_control) {
        return false;
    }
    let scheme = uri.split(':').next().unwrap_or_default();
    if scheme.chars().any(|it| it.is_ascii_uppercase()) {
        return false;
    }
    let path = uri.split_once("://").map_or(uri, |(_, path)| path);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let segments: Vec<&str> = path.split('/').collect();
    // An empty one may only be the host, or after the last slash.
    let is_odd = |(at, part): (usize, &&str)| match *part {
        "." | ".." => true,
        "" => at != 0 && at + 1 != segments.len(),
        _ => false,
    };
    !segments.iter().enumerate().any(is_odd) && !has_needless_escape(uri)
}

/// Whether something is written as an escape that need not be, or that is a slash.
fn has_needless_escape(uri: &str) -> bool {
    uri.split('%').skip(1).any(|rest| {
        let code = rest.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        code.is_none_or(|byte| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'/' | b'\\')
        })
    })
}

#[cfg(test)]
mod tests;
