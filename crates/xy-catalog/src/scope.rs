//! The rule of a profile, which decides what its clients see in lists, calls, prompts, resources,
//! completion and search. Pure.
//!
//! The order of a profile's lines does not matter. An item is shown if
//!
//! 1. its server is: `deny-servers` does not name it, and `servers` does, if present;
//! 2. no `deny` names the item;
//! 3. an `allow` names the item, if there is any for its kind and server.
//!
//! The lists of a server are filtered once, when they are read: see
//! [`crate::catalog::ServerCatalog::within`].

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::sync::Arc;

use xy_config::profile::{
    Filter, NAME_BUDGET, Pattern, ProfileSettings, ServerBlock, ToolMode, ToolOverride,
};
use xy_mcp::kind::Kind;

use crate::names;

/// Maximum length of a resource URI that filters can match; longer ones are hidden.
const MAX_URI_BYTES: usize = 8 * 1024;

/// The rule of one profile.
#[derive(Debug)]
pub struct Scope {
    settings: Arc<ProfileSettings>,
    /// Renamed tools: index of the override by new name.
    renamed: HashMap<Box<str>, usize>,
    /// Overridden tools: index of the override by server and tool.
    overrides: HashMap<(Box<str>, Box<str>), usize>,
    /// The visible part of the search index as of the last search, without and with the right to
    /// manage.
    searched: [RefCell<xy_search::VisibilityCache>; 2],
}

/// The decision about an item, and its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// True if the item is shown.
    pub shown: bool,
    /// The reason, as the end of a sentence.
    pub why: &'static str,
    /// The deciding line of the profile.
    pub line: Option<u32>,
}

impl Decision {
    fn shown(why: &'static str, line: Option<u32>) -> Self {
        Self { shown: true, why, line }
    }

    fn hidden(why: &'static str, line: Option<u32>) -> Self {
        Self { shown: false, why, line }
    }
}

/// The name and description under which an item is shown.
#[derive(Debug, PartialEq, Eq)]
pub struct Appearance<'s> {
    /// The exposed name.
    pub name: String,
    /// The description that replaces the server's.
    pub description: Option<&'s str>,
    /// False if the item is only found by search or called by name.
    pub is_listed: bool,
}

/// Returns true if any server has an item of a kind for which the predicate of server and name
/// holds.
pub(crate) type HasItem<'h> = dyn Fn(Kind, &dyn Fn(&str, &str) -> bool) -> bool + 'h;

/// Everything that the lines of a profile can match.
pub struct Inventory<'h> {
    /// The names of all servers.
    pub servers: &'h [&'h str],
    /// The names of xy's own tools.
    pub own_tools: &'h [&'h str],
    /// The servers whose lists are not known yet; lines about them are not judged.
    pub unknown: &'h [&'h str],
    /// Searches the lists of the other servers.
    pub has: &'h HasItem<'h>,
}

impl Scope {
    /// Creates the scope of a profile.
    pub fn new(settings: Arc<ProfileSettings>) -> Self {
        let overrides = settings.overrides.iter().enumerate();
        let renamed = overrides
            .clone()
            .filter_map(|(place, one)| Some((one.name.as_deref()?.into(), place)))
            .collect();
        let by_tool = overrides
            .map(|(place, one)| ((one.server.as_str().into(), one.tool.as_str().into()), place))
            .collect();
        Self { settings, renamed, overrides: by_tool, searched: Default::default() }
    }

    /// Returns the profile's settings.
    pub fn settings(&self) -> &Arc<ProfileSettings> {
        &self.settings
    }

    /// Returns the visible part of the search index as of the last search.
    pub fn searched(&self, may_manage: bool) -> RefMut<'_, xy_search::VisibilityCache> {
        self.searched[usize::from(may_manage)].borrow_mut()
    }

    /// Returns true if tools are searched instead of listed.
    pub fn is_search(&self) -> bool {
        self.settings.mode == ToolMode::Search
    }

    /// Decides whether an item of a server is shown. `name` is the server's own name for it.
    pub fn decide(&self, kind: Kind, server: &str, name: &str) -> Decision {
        let of_server = self.decide_server(server);
        if !of_server.shown {
            return of_server;
        }
        let exposed = (kind == Kind::Tools).then(|| format!("{server}{}{name}", names::SEPARATOR));
        let top = exposed.iter().map(|whole| (&self.settings.tools, whole.as_str()));
        let blocks = self.blocks_of(server).map(|block| (filter_of(block, kind), name));
        let filters: Vec<(&Filter, &str)> =
            top.chain(blocks).filter(|(filter, _)| !filter.is_empty()).collect();
        if !filters.is_empty() && kind.is_by_uri() && !is_canonical_uri(name) {
            let line = first_line(&filters);
            return Decision::hidden(
                "its URI is not canonical and could name a hidden resource",
                line,
            );
        }
        apply_filters(&filters).unwrap_or(of_server)
    }

    /// Decides whether a server is shown.
    pub fn decide_server(&self, server: &str) -> Decision {
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

    /// Decides whether a management tool of xy is shown to clients that may use it.
    pub fn decide_own(&self, name: &str) -> Decision {
        if self.settings.hides_managing {
            let line = self.settings.managing_line;
            return Decision::hidden("`manage #false` hides all that manage servers", line);
        }
        apply_filters(&[(&self.settings.tools, name)])
            .unwrap_or(Decision::shown("nothing hides it", None))
    }

    /// Returns true if nothing of a server is hidden.
    pub fn shows_all_of(&self, server: &str) -> bool {
        let says_nothing = |it: &ServerBlock| {
            it.tools.is_empty() && it.prompts.is_empty() && it.resources.is_empty()
        };
        self.decide_server(server).shown
            && self.settings.tools.is_empty()
            && self.blocks_of(server).all(says_nothing)
    }

    /// Returns how an item is shown; `None` if another tool has its name.
    pub fn appearance(&self, kind: Kind, server: &str, name: &str) -> Option<Appearance<'_>> {
        let plain = |name| Appearance { name, description: None, is_listed: true };
        match kind {
            Kind::Resources | Kind::Templates => Some(plain(names::exposed_uri(server, name))),
            Kind::Prompts => Some(plain(names::exposed_within(server, name, self.budget()))),
            Kind::Tools => {
                let change = self.override_of(server, name);
                let natural = || names::exposed_within(server, name, self.budget());
                let shown = match change.and_then(|it| it.name.clone()) {
                    Some(shown) => shown,
                    None => Some(natural()).filter(|it| !self.renamed.contains_key(it.as_str()))?,
                };
                let is_pinned = || self.is_pinned(&shown, server, name);
                let is_listed = !self.is_search() || is_pinned();
                let description = change.and_then(|it| it.description.as_deref());
                Some(Appearance { name: shown, description, is_listed })
            }
        }
    }

    /// Returns the server and original name of the tool that is renamed to `name`.
    pub fn renamed(&self, name: &str) -> Option<(&str, &str)> {
        let one = &self.settings.overrides[*self.renamed.get(name)?];
        Some((&one.server, &one.tool))
    }

    /// Returns the line that gives a tool's exposed name to another tool.
    pub fn line_of_name(&self, server: &str, name: &str) -> Option<u32> {
        let natural = names::exposed_within(server, name, self.budget());
        self.renamed.get(natural.as_str()).map(|place| self.settings.overrides[*place].line)
    }

    /// Returns the override of a tool.
    pub fn override_of(&self, server: &str, name: &str) -> Option<&ToolOverride> {
        if self.overrides.is_empty() {
            return None;
        }
        let place = self.overrides.get(&(server.into(), name.into()))?;
        self.settings.overrides.get(*place)
    }

    /// Returns true if any tool of a server is overridden.
    pub fn overrides_any_of(&self, server: &str) -> bool {
        self.settings.overrides.iter().any(|it| it.server == server)
    }

    /// Returns true if a tool is shown without an override.
    pub fn shows_unchanged(&self, server: &str, name: &str) -> bool {
        self.decide(Kind::Tools, server, name).shown
            && self.override_of(server, name).is_none()
            && (self.renamed.is_empty() || self.line_of_name(server, name).is_none())
    }

    /// Returns true if a tool of xy is listed even in search mode.
    pub fn is_own_pinned(&self, name: &str) -> bool {
        self.settings.pins.iter().any(|pin| pin.matches(name))
    }

    /// Returns the rank of a server, lower first: its position in `servers`.
    pub fn rank(&self, server: &str) -> usize {
        let servers = &self.settings.servers;
        servers.iter().position(|it| it.matches(server)).unwrap_or(usize::MAX)
    }

    /// Returns the maximum length of an exposed name.
    pub fn budget(&self) -> usize {
        self.settings.name_budget.unwrap_or(NAME_BUDGET)
    }

    /// Returns the lines that match nothing, with the reason.
    pub fn unmatched_lines(&self, inventory: &Inventory<'_>) -> Vec<(u32, String)> {
        let mut idle = Vec::new();
        let settings = &*self.settings;
        for pattern in settings.servers.iter().chain(&settings.deny_servers) {
            if !inventory.servers.iter().any(|it| pattern.matches(it)) {
                idle.push((pattern.line, format!("no server is named `{}`", pattern.text)));
            }
        }
        let tools = settings.tools.allow.iter().chain(&settings.tools.deny).chain(&settings.pins);
        for pattern in tools {
            let fits = |server: &str, name: &str| {
                pattern.matches(&format!("{server}{}{name}", names::SEPARATOR))
            };
            let is_there = inventory.own_tools.iter().any(|own| pattern.matches(own))
                || inventory.unknown.iter().any(|server| may_name_tool_of(pattern, server))
                || (inventory.has)(Kind::Tools, &fits);
            if !is_there {
                idle.push((pattern.line, format!("no tool is named `{}`", pattern.text)));
            }
        }
        for one in &settings.overrides {
            let is_it = |server: &str, name: &str| server == one.server && name == one.tool;
            let is_unknown = inventory.unknown.contains(&one.server.as_str());
            if !is_unknown && !(inventory.has)(Kind::Tools, &is_it) {
                let whole = format!("{}{}{}", one.server, names::SEPARATOR, one.tool);
                idle.push((one.line, format!("no tool is named `{whole}`")));
            }
        }
        for block in &settings.blocks {
            unmatched_in_block(block, inventory, &mut idle);
        }
        idle.sort();
        idle
    }

    /// Returns why the lines together show nothing, although each may match something.
    pub fn empty_reason(&self, inventory: &Inventory<'_>) -> Option<&'static str> {
        let settings = &*self.settings;
        let allowed = |own: &str| settings.tools.allow.iter().any(|it| it.matches(own));
        if inventory.own_tools.iter().any(|own| allowed(own) && self.decide_own(own).shown) {
            return None; // The profile is for managing servers.
        }
        let offers = |kind: &Kind| (inventory.has)(*kind, &|_, _| true);
        let shows = |kind: &Kind| {
            inventory.unknown.iter().any(|server| self.may_show_of(*kind, server))
                || (inventory.has)(*kind, &|server, name| self.decide(*kind, server, name).shown)
        };
        let blocks = settings.blocks.iter().map(|block| &block.tools);
        let has_allow = blocks.chain([&settings.tools]).any(|filter| !filter.allow.is_empty());
        if Kind::ALL.iter().any(offers) && !Kind::ALL.iter().any(shows) {
            Some("shows nothing: its lines together hide all items of all servers")
        } else if has_allow && offers(&Kind::Tools) && !shows(&Kind::Tools) {
            Some("shows no tools: its other lines hide every tool that `allow` names")
        } else {
            None
        }
    }

    /// Returns true if something may be shown of a server whose lists are not known.
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

/// Adds the lines of a block that match nothing.
fn unmatched_in_block(
    block: &ServerBlock,
    inventory: &Inventory<'_>,
    idle: &mut Vec<(u32, String)>,
) {
    if !inventory.servers.iter().any(|it| block.server.matches(it)) {
        let problem = format!("no server is named `{}`", block.server.text);
        return idle.push((block.server.line, problem));
    }
    if inventory.unknown.iter().any(|it| block.server.matches(it)) {
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
            // The resources of a template are not known.
            let is_there = kinds.iter().any(|kind| (inventory.has)(*kind, &fits));
            if !is_there && (what != "resource" || pattern.is_plain()) {
                let problem =
                    format!("no {what} of `{}` is named `{}`", block.server.text, pattern.text);
                idle.push((pattern.line, problem));
            }
        }
    }
}

/// Returns true if a pattern may match a tool of a server whose lists are not known.
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

/// Applies filters to their names; `None` if they decide nothing.
fn apply_filters(filters: &[(&Filter, &str)]) -> Option<Decision> {
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

/// Returns true if a URI is canonical. With `..`, `%2e` and the like, it could be another name for
/// a hidden resource.
fn is_canonical_uri(uri: &str) -> bool {
    if uri.len() > MAX_URI_BYTES || uri.contains('\\') || uri.chars().any(char::is_control) {
        return false;
    }
    let scheme = uri.split(':').next().unwrap_or_default();
    if scheme.chars().any(|it| it.is_ascii_uppercase()) {
        return false;
    }
    let path = uri.split_once("://").map_or(uri, |(_, path)| path);
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let segments: Vec<&str> = path.split('/').collect();
    // An empty segment may only be the host or the last one.
    let is_odd = |(at, part): (usize, &&str)| match *part {
        "." | ".." => true,
        "" => at != 0 && at + 1 != segments.len(),
        _ => false,
    };
    !segments.iter().enumerate().any(is_odd) && !has_needless_escape(uri)
}

/// Returns true if a URI escapes a character that needs no escape, or a slash.
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
