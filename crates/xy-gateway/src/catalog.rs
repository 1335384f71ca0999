//! What a server offers: its lists, each item as the server wrote it, and how that looks
//! when all servers stand behind one door. Pure.

mod item;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use xy_protocol::control::quoted;
use xy_protocol::server::ServerName;

use crate::era::Introduction;
use crate::names;
use crate::scope::Scope;
pub(crate) use item::{Item, Page};

/// A list that is longer affects only its own server: the rest of it is not shown.
pub(crate) const MOST_ITEMS: usize = 10_000;

/// The same, in bytes.
pub(crate) const MOST_BYTES: usize = 16 * 1024 * 1024;

/// So many other names of one server are kept in mind.
const MOST_NAMES: usize = 64;

/// So many of a row of names are told.
const TOLD: usize = 5;

/// What can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Tools,
    Prompts,
    Resources,
    Templates,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] =
        [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// What is asked for by `method`, if it is a list.
    pub(crate) fn listed_by(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method)
    }

    /// What asks for it.
    pub(crate) fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
        }
    }

    /// Where it stands in the answer.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// What tells that it has changed.
    pub(crate) fn changed(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources | Self::Templates => "notifications/resources/list_changed",
        }
    }

    /// Which field of an item is its name.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    fn outside(self, server: &str, name: &str) -> String {
        match self {
            Self::Tools | Self::Prompts => names::outside(server, name),
            Self::Resources | Self::Templates => names::uri_outside(server, name),
        }
    }

    /// Whether its items are told apart by URI.
    pub(crate) fn is_by_uri(self) -> bool {
        matches!(self, Self::Resources | Self::Templates)
    }

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Tools => 0,
            Self::Prompts => 1,
            Self::Resources => 2,
            Self::Templates => 3,
        }
    }
}

/// All lists of one server, as it wrote them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lists([Vec<Item>; 4]);

impl Lists {
    pub(crate) fn of(&self, kind: Kind) -> &[Item] {
        &self.0[kind.index()]
    }

    /// The same without what may be one client's alone.
    pub(crate) fn for_everybody(mut self) -> Self {
        self.set(Kind::Resources, Vec::new());
        self
    }

    pub(crate) fn set(&mut self, kind: Kind, items: Vec<Item>) {
        self.0[kind.index()] = items;
    }
}

/// Everything that is known of a server, and how it is shown.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) introduction: Introduction,
    pub(crate) lists: Lists,
    shown: [Vec<Shown>; 4],
    /// Differs whenever a list does.
    prints: [u64; 4],
    /// From names outside to the place in the list.
    places: [HashMap<Arc<str>, usize>; 2],
    /// What profiles show of it, as far as somebody has looked.
    scoped: RefCell<Vec<(Weak<Scope>, Rc<Self>)>>,
    /// The same under other names of its server, as far as somebody has looked.
    named: RefCell<Vec<(ServerName, Rc<Self>)>>,
    /// What cannot be shown since another has its name outside, until somebody is told.
    doubles: RefCell<Vec<Arc<str>>>,
}

/// An item as it is shown beside those of other servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    /// What it is called there.
    pub(crate) name: Arc<str>,
    /// All of it, on one line.
    pub(crate) text: Arc<str>,
    /// Which of its server's items it is.
    pub(crate) place: usize,
    /// Whether it stands in lists: else it is only found.
    pub(crate) is_listed: bool,
}

impl Known {
    pub(crate) fn new(server: &str, introduction: Introduction, lists: Lists) -> Self {
        let mut doubles = Vec::new();
        let show = |kind: Kind| -> Vec<Shown> {
            let mut names = HashSet::new();
            let shown = lists.of(kind).iter().enumerate().filter_map(|(place, item)| {
                let readable = item.for_all.as_ref()?;
                let name = kind.outside(server, &item.name);
                // Of two with one name the first is meant.
                if !names.insert(name.clone()) {
                    doubles.push(item.name.clone());
                    return None;
                }
                let text = readable.shown_as(&name);
                Some(Shown { text, name: name.into(), place, is_listed: true })
            });
            shown.collect()
        };
        let shown = Kind::ALL.map(show);
        let prints = Kind::ALL.map(|kind| print_of(lists.of(kind).iter().map(|item| &*item.raw)));
        Self::made(introduction, lists, shown, prints, doubles)
    }

    fn made(
        introduction: Introduction,
        lists: Lists,
        shown: [Vec<Shown>; 4],
        prints: [u64; 4],
        doubles: Vec<Arc<str>>,
    ) -> Self {
        let places = [Kind::Tools, Kind::Prompts].map(|kind| {
            shown[kind.index()].iter().map(|shown| (shown.name.clone(), shown.place)).collect()
        });
        let (scoped, named) = (RefCell::default(), RefCell::default());
        let doubles = RefCell::new(doubles);
        Self { introduction, lists, shown, prints, places, scoped, named, doubles }
    }

    /// What is not shown since another has its name outside, as words for a log; once.
    pub(crate) fn take_doubles(&self) -> Option<String> {
        let doubles = self.doubles.take();
        let first = doubles.iter().take(TOLD).map(|it| format!("`{}`", quoted(it)));
        let (first, count) = (first.collect::<Vec<_>>().join(", "), doubles.len());
        let rest = if count > TOLD { " …" } else { "" };
        (count > 0).then(|| {
            format!("{count} not shown, as others have the same names outside: {first}{rest}")
        })
    }

    /// What the server offers under another of its names. Each is made once, and then looked
    /// up.
    pub(crate) fn under(&self, server: &ServerName) -> Rc<Self> {
        let mut named = self.named.borrow_mut();
        if let Some((_, found)) = named.iter().find(|(of, _)| of == server) {
            return found.clone();
        }
        if named.len() >= MOST_NAMES {
            named.clear(); // Most of them are of names that are gone.
        }
        let (introduction, lists) = (self.introduction.clone(), self.lists.clone());
        let made = Rc::new(Self::new(server.as_str(), introduction, lists));
        named.push((server.clone(), made.clone()));
        made
    }

    /// What a profile shows of it. Each is made once, and then looked up.
    pub(crate) fn within(&self, server: &str, scope: &Rc<Scope>) -> Rc<Self> {
        let is_it = |of: &Weak<Scope>| std::ptr::eq(of.as_ptr(), Rc::as_ptr(scope));
        let mut scoped = self.scoped.borrow_mut();
        if let Some((_, found)) = scoped.iter().find(|(of, _)| is_it(of)) {
            return found.clone();
        }
        scoped.retain(|(of, _)| of.strong_count() > 0);
        let made = Rc::new(self.scoped_to(server, scope));
        scoped.push((Rc::downgrade(scope), made.clone()));
        made
    }

    fn scoped_to(&self, server: &str, scope: &Scope) -> Self {
        let (mut lists, mut all_shown) = (Lists::default(), <[Vec<Shown>; 4]>::default());
        let mut doubles = Vec::new();
        for kind in Kind::ALL {
            let before: HashMap<usize, &Shown> =
                self.shown(kind).iter().map(|shown| (shown.place, shown)).collect();
            let (mut items, mut shown, mut names) = (Vec::new(), Vec::new(), HashSet::new());
            for (place, item) in self.lists.of(kind).iter().enumerate() {
                if !scope.decide(kind, server, &item.name).shown {
                    continue;
                }
                items.push(item.clone());
                let look = scope.look(kind, server, &item.name).zip(item.for_all.as_ref());
                let Some((look, readable)) = look else { continue };
                if !names.insert(look.name.clone()) {
                    // What has no name of its own in any profile was told to its server's log.
                    doubles.extend(before.contains_key(&place).then(|| item.name.clone()));
                    continue;
                }
                let same = before.get(&place).filter(|it| *it.name == *look.name);
                let text = match (look.description, same) {
                    (Some(description), _) => readable.described_as(&look.name, description),
                    (None, Some(same)) => same.text.clone(),
                    (None, None) => readable.shown_as(&look.name),
                };
                let (name, is_listed) = (look.name.into(), look.is_listed);
                shown.push(Shown { name, text, place: items.len() - 1, is_listed });
            }
            lists.set(kind, items);
            all_shown[kind.index()] = shown;
        }
        let prints = Kind::ALL.map(|kind| {
            let shown = all_shown[kind.index()].iter();
            print_of(shown.filter(|it| it.is_listed).map(|it| &*it.text))
        });
        Self::made(self.introduction.clone(), lists, all_shown, prints, doubles)
    }

    /// Differs whenever the list does.
    pub(crate) fn print(&self, kind: Kind) -> u64 {
        self.prints[kind.index()]
    }

    /// How its items are shown beside those of other servers.
    pub(crate) fn shown(&self, kind: Kind) -> &[Shown] {
        &self.shown[kind.index()]
    }

    /// What the server calls the tool or prompt of this name outside.
    pub(crate) fn inside(&self, kind: Kind, outside: &str) -> Option<&str> {
        let place = self.places.get(kind.index())?.get(outside)?;
        Some(&self.lists.of(kind)[*place].name)
    }

    /// Whether it has a resource, or a template that fits.
    pub(crate) fn has_resource(&self, uri: &str) -> bool {
        self.lists.of(Kind::Resources).iter().any(|item| &*item.name == uri)
            || self.lists.of(Kind::Templates).iter().any(|item| names::fits(&item.name, uri))
    }
}

/// Differs whenever the texts do.
fn print_of<'t>(texts: impl Iterator<Item = &'t str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    texts.for_each(|text| text.hash(&mut hasher));
    hasher.finish()
}

/// What one answer holds of a long list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cut<'s> {
    pub(crate) shown: Vec<&'s Shown>,
    /// The cursor that asks for the next answer.
    pub(crate) next: Option<String>,
}

/// Cuts a list for one answer: from where `cursor` says, at most `bytes` long but never
/// empty. `None` if the cursor does not fit the list, or not any more.
pub(crate) fn cut<'s>(
    all: impl Iterator<Item = &'s Shown> + Clone,
    cursor: Option<&str>,
    bytes: usize,
) -> Option<Cut<'s>> {
    let passed = match cursor {
        Some(cursor) => place_after(all.clone(), cursor)?,
        None => 0,
    };
    let mut rest = all.clone().skip(passed).peekable();
    let mut cut = Cut { shown: Vec::new(), next: None };
    let mut used = 0;
    while let Some(shown) = rest.next() {
        used += shown.text.len() + 1;
        cut.shown.push(shown);
        if used >= bytes && rest.peek().is_some() {
            let until_here = all.take(passed + cut.shown.len());
            cut.next = Some(cursor_after(until_here, &shown.name));
            break;
        }
    }
    Some(cut)
}

/// What asks for all after the last item of `until_here`, which is called `name`. It says
/// which of those with this name it is, since a server may give several the same: with the
/// name alone one would come back to the first of them for ever.
fn cursor_after<'s>(until_here: impl Iterator<Item = &'s Shown>, name: &str) -> String {
    let count = until_here.filter(|shown| &*shown.name == name).count();
    format!("{count}:{name}")
}

/// How many items stand before those that `cursor` asks for.
fn place_after<'s>(mut all: impl Iterator<Item = &'s Shown>, cursor: &str) -> Option<usize> {
    let (count, name) = cursor.split_once(':')?;
    let mut left: usize = count.parse().ok()?;
    let last = all.position(|shown| {
        left = left.saturating_sub(usize::from(&*shown.name == name));
        left == 0 && &*shown.name == name
    })?;
    Some(last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server whose tools and prompts are these.
    fn known(items: &str) -> Known {
        let introduction = Introduction::read(r#"{"protocolVersion":"2025-11-25"}"#).unwrap();
        let mut lists = Lists::default();
        for kind in [Kind::Tools, Kind::Prompts] {
            let result = format!(r#"{{"{}":{items}}}"#, kind.key());
            lists.set(kind, Page::read(kind, &result).unwrap().items);
        }
        Known::new("s", introduction, lists)
    }

    #[test]
    fn only_the_name_of_a_tool_is_changed() {
        let tool = "{ \"x\" : 1.50,\n\"name\":\"a.b\",\"inputSchema\":{\"name\":\"a.b\",\"type\":\"object\"} }";
        let known = known(&format!("[{tool}]"));
        let [shown] = known.shown(Kind::Tools) else { panic!() };
        let expected = format!(
            r#"{{ "x" : 1.50, "name":"{}","inputSchema":{{"name":"a.b","type":"object"}} }}"#,
            names::outside("s", "a.b")
        );
        assert_eq!(&*shown.text, expected);
        assert_eq!(known.inside(Kind::Tools, &shown.name), Some("a.b"));
        assert_eq!(known.inside(Kind::Tools, "s__a.b"), None);
        assert_eq!(known.inside(Kind::Resources, &shown.name), None);
    }

    #[test]
    fn what_some_clients_cannot_read_is_mended_beside_others_or_not_shown() {
        let tools = [
            r#"{"name":"a","inputSchema":{"type":"object"},"x":null}"#,
            r#"{"name":"b"}"#,
            r#"{"name":"c","inputSchema":{},"description":5}"#,
            r#"{"name":"a","inputSchema":{},"title":"again"}"#,
        ];
        let list = format!("[{}]", tools.join(","));
        let known = known(&list);
        let shown: Vec<&str> = known.shown(Kind::Tools).iter().map(|it| &*it.text).collect();
        let expected = [
            r#"{"name":"s__a","inputSchema":{"type":"object"},"x":null}"#,
            r#"{"name":"s__c","inputSchema":{"type":"object"}}"#,
        ];
        assert_eq!(shown, expected);
        assert_eq!(known.inside(Kind::Tools, "s__c"), Some("c"));
        let raw: Vec<&str> = known.lists.of(Kind::Tools).iter().map(|it| &*it.raw).collect();
        assert_eq!(raw, tools, "alone it is as it was written");
        let page = Page::read(Kind::Tools, &format!(r#"{{"tools":{list}}}"#)).unwrap();
        assert_eq!(
            page.odd.unwrap(),
            "3 of tools/list are not as all clients can read them: `b` is not shown for its inputSchema, `c` is \
             shown with its description, inputSchema mended, `a` is shown with its inputSchema mended"
        );
    }

    #[test]
    fn of_two_with_one_name_outside_the_first_is_shown_and_the_other_told_of_once() {
        let taken = names::outside("s", "a.b").replace("s__", "");
        let tool = |name: &str| format!(r#"{{"name":"{name}","inputSchema":{{}}}}"#);
        let known = known(&format!("[{},{},{}]", tool("a.b"), tool(&taken), tool("c")));
        let names: Vec<&str> = known.shown(Kind::Tools).iter().map(|it| &*it.name).collect();
        assert_eq!(names, [&*names::outside("s", "a.b"), "s__c"]);
        assert_eq!(known.inside(Kind::Tools, names[0]), Some("a.b"), "as it is listed");
        // Each of them twice, as they are prompts as well.
        let told = known.take_doubles().unwrap();
        let expected =
            format!("2 not shown, as others have the same names outside: `{taken}`, `{taken}`");
        assert_eq!((told, known.take_doubles()), (expected, None));
    }

    #[test]
    fn what_has_no_name_is_left_out() {
        let page =
            Page::read(Kind::Tools, r#"{"tools":[{"name":"a"},{},7,{"name":3}],"nextCursor":"c"}"#);
        let page = page.unwrap();
        assert_eq!((page.items.len(), page.nameless, page.next.as_deref()), (1, 3, Some(r#""c""#)));
    }

    #[test]
    fn what_is_no_list_is_said_to_be_none() {
        for result in ["[]", "{}", r#"{"tools":{}}"#, r#"{"tools":null}"#, "7"] {
            assert!(
                Page::read(Kind::Tools, result).unwrap_err().contains("tools/list"),
                "{result}"
            );
        }
    }

    #[test]
    fn a_long_list_is_cut_and_goes_on() {
        let known = known(r#"[{"name":"a"},{"name":"b"},{"name":"c"}]"#);
        let all = || known.shown(Kind::Prompts).iter();
        let names = |cut: &Cut<'_>| -> Vec<String> {
            cut.shown.iter().map(|shown| shown.name.to_string()).collect()
        };
        let first = cut(all(), None, 20).unwrap();
        assert_eq!(names(&first), ["s__a", "s__b"]);
        let second = cut(all(), first.next.as_deref(), 20).unwrap();
        assert_eq!((names(&second), second.next), (vec!["s__c".to_owned()], None));
        assert_eq!(names(&cut(all(), None, 1000).unwrap()).len(), 3);
    }

    #[test]
    fn a_list_in_which_names_come_again_has_an_end() {
        let item =
            |name: &str| Shown { name: name.into(), text: name.into(), place: 0, is_listed: true };
        let items = ["a", "b", "a", "a"].map(item);
        let (mut cursor, mut seen) = (None::<String>, Vec::new());
        for _ in 0..4 {
            let page = cut(items.iter(), cursor.as_deref(), 1).unwrap();
            seen.extend(page.shown.iter().map(|shown| shown.name.to_string()));
            cursor = page.next;
        }
        assert_eq!((seen.join(" ").as_str(), cursor), ("a b a a", None));
    }

    #[test]
    fn a_cursor_that_does_not_fit_any_more_is_none() {
        let known = known(r#"[{"name":"a"},{"name":"b"}]"#);
        let cut = |cursor| cut(known.shown(Kind::Prompts).iter(), Some(cursor), 1);
        assert!(cut("1:s__a").is_some());
        let stale = ["", ":", "1:", "1:gone", "2:s__a", "s__a", "x:s__a", "-1:s__a", "0:gone"];
        for stale in stale {
            assert_eq!(cut(stale), None, "{stale}");
        }
    }

    #[test]
    fn a_resource_is_known_by_its_uri_or_a_template() {
        let mut lists = Lists::default();
        let read = |kind, raw| vec![Item::read(kind, raw).unwrap()];
        lists.set(Kind::Resources, read(Kind::Resources, r#"{"uri":"a://b","name":"n"}"#));
        lists
            .set(Kind::Templates, read(Kind::Templates, r#"{"uriTemplate":"t://{x}","name":"n"}"#));
        let introduction = Introduction::read(r#"{"protocolVersion":"2025-11-25"}"#).unwrap();
        let known = Known::new("s", introduction, lists);
        assert!(known.has_resource("a://b") && known.has_resource("t://1"));
        assert!(!known.has_resource("a://c"));
        assert_eq!(&*known.shown(Kind::Templates)[0].name, "xy://s/t://{x}");
    }
}
