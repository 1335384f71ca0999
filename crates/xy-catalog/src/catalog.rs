//! The lists of a server, in original form and as exposed at combined endpoints. Pure.

mod item;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use xy_mcp::era::Introduction;
use xy_mcp::kind::Kind;
use xy_protocol::control::quoted;
use xy_protocol::server::ServerName;

use crate::names;
use crate::scope::Scope;
pub use item::{Item, Page};

/// Maximum number of items in a list. The rest is hidden, so that only the server itself is
/// affected.
pub const MAX_ITEMS: usize = 10_000;

/// Maximum size of a list in bytes.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Maximum number of aliases whose lists are cached.
const MAX_ALIASES: usize = 64;

/// Maximum number of names in a log message.
const MAX_NAMED: usize = 5;

/// All lists of one server, in original form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lists([Vec<Item>; 4]);

impl Lists {
    /// Returns the items of one list.
    pub fn of(&self, kind: Kind) -> &[Item] {
        &self.0[kind.index()]
    }

    /// Removes what may be private to one client.
    #[must_use]
    pub fn without_private(mut self) -> Self {
        self.set(Kind::Resources, Vec::new());
        self
    }

    /// Replaces one list.
    pub fn set(&mut self, kind: Kind, items: Vec<Item>) {
        self.0[kind.index()] = items;
    }
}

/// Everything that a server offers, and its exposed form.
#[derive(Debug)]
pub struct ServerCatalog {
    /// How the server introduced itself.
    pub introduction: Introduction,
    /// The lists in original form.
    pub lists: Lists,
    shown: [Vec<ExposedItem>; 4],
    /// A fingerprint of each list.
    fingerprints: [u64; 4],
    /// List index of each exposed name.
    indexes: [HashMap<Arc<str>, usize>; 2],
    /// Cached parts that profiles show.
    scoped: RefCell<Vec<(Weak<Scope>, Rc<Self>)>>,
    /// Cached copies under other aliases.
    named: RefCell<Vec<(ServerName, Rc<Self>)>>,
    /// Items hidden for a duplicate exposed name, until logged.
    duplicates: RefCell<Vec<Arc<str>>>,
}

/// An item in exposed form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExposedItem {
    /// The exposed name.
    pub name: Arc<str>,
    /// The whole item, on one line.
    pub text: Arc<str>,
    /// The index in the server's list.
    pub index: usize,
    /// False if the item is only found by search.
    pub is_listed: bool,
}

impl ServerCatalog {
    /// Creates the exposed form of the lists of `server`.
    pub fn new(server: &str, introduction: Introduction, lists: Lists) -> Self {
        let mut duplicates = Vec::new();
        let show = |kind: Kind| -> Vec<ExposedItem> {
            let mut names = HashSet::new();
            let shown = lists.of(kind).iter().enumerate().filter_map(|(index, item)| {
                let readable = item.readable.as_ref()?;
                let name = names::exposed_item(kind, server, &item.name);
                // Of two items with one name, the first is exposed.
                if !names.insert(name.clone()) {
                    duplicates.push(item.name.clone());
                    return None;
                }
                let text = readable.shown_as(&name);
                Some(ExposedItem { text, name: name.into(), index, is_listed: true })
            });
            shown.collect()
        };
        let shown = Kind::ALL.map(show);
        let fingerprints =
            Kind::ALL.map(|kind| fingerprint_of(lists.of(kind).iter().map(|item| &*item.raw)));
        Self::build(introduction, lists, shown, fingerprints, duplicates)
    }

    fn build(
        introduction: Introduction,
        lists: Lists,
        shown: [Vec<ExposedItem>; 4],
        fingerprints: [u64; 4],
        duplicates: Vec<Arc<str>>,
    ) -> Self {
        let indexes = [Kind::Tools, Kind::Prompts].map(|kind| {
            shown[kind.index()].iter().map(|shown| (shown.name.clone(), shown.index)).collect()
        });
        let (scoped, named) = (RefCell::default(), RefCell::default());
        let duplicates = RefCell::new(duplicates);
        Self { introduction, lists, shown, fingerprints, indexes, scoped, named, duplicates }
    }

    /// Returns a log message about items hidden for a duplicate exposed name, once.
    pub fn take_duplicates(&self) -> Option<String> {
        let duplicates = self.duplicates.take();
        let first = duplicates.iter().take(MAX_NAMED).map(|it| format!("`{}`", quoted(it)));
        let (first, count) = (first.collect::<Vec<_>>().join(", "), duplicates.len());
        let rest = if count > MAX_NAMED { " …" } else { "" };
        (count > 0)
            .then(|| format!("{count} hidden, as their exposed names are taken: {first}{rest}"))
    }

    /// Returns what the server offers under another alias. Cached.
    pub fn for_alias(&self, server: &ServerName) -> Rc<Self> {
        let mut named = self.named.borrow_mut();
        if let Some((_, found)) = named.iter().find(|(of, _)| of == server) {
            return found.clone();
        }
        if named.len() >= MAX_ALIASES {
            named.clear(); // Most entries belong to removed aliases.
        }
        let (introduction, lists) = (self.introduction.clone(), self.lists.clone());
        let made = Rc::new(Self::new(server.as_str(), introduction, lists));
        named.push((server.clone(), made.clone()));
        made
    }

    /// Returns what a profile shows. Cached.
    pub fn within(&self, server: &str, scope: &Rc<Scope>) -> Rc<Self> {
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
        let (mut lists, mut all_shown) = (Lists::default(), <[Vec<ExposedItem>; 4]>::default());
        let mut duplicates = Vec::new();
        for kind in Kind::ALL {
            let before: HashMap<usize, &ExposedItem> =
                self.exposed(kind).iter().map(|shown| (shown.index, shown)).collect();
            let (mut items, mut shown, mut names) = (Vec::new(), Vec::new(), HashSet::new());
            for (index, item) in self.lists.of(kind).iter().enumerate() {
                if !scope.decide(kind, server, &item.name).shown {
                    continue;
                }
                items.push(item.clone());
                let look = scope.appearance(kind, server, &item.name).zip(item.readable.as_ref());
                let Some((look, readable)) = look else { continue };
                if !names.insert(look.name.clone()) {
                    // Duplicates without a profile were logged for the server.
                    duplicates.extend(before.contains_key(&index).then(|| item.name.clone()));
                    continue;
                }
                let same = before.get(&index).filter(|it| *it.name == *look.name);
                let text = match (look.description, same) {
                    (Some(description), _) => readable.described_as(&look.name, description),
                    (None, Some(same)) => same.text.clone(),
                    (None, None) => readable.shown_as(&look.name),
                };
                let (name, is_listed) = (look.name.into(), look.is_listed);
                shown.push(ExposedItem { name, text, index: items.len() - 1, is_listed });
            }
            lists.set(kind, items);
            all_shown[kind.index()] = shown;
        }
        let fingerprints = Kind::ALL.map(|kind| {
            let shown = all_shown[kind.index()].iter();
            fingerprint_of(shown.filter(|it| it.is_listed).map(|it| &*it.text))
        });
        Self::build(self.introduction.clone(), lists, all_shown, fingerprints, duplicates)
    }

    /// Returns a fingerprint that differs whenever the list does.
    pub fn fingerprint(&self, kind: Kind) -> u64 {
        self.fingerprints[kind.index()]
    }

    /// Returns the exposed items.
    pub fn exposed(&self, kind: Kind) -> &[ExposedItem] {
        &self.shown[kind.index()]
    }

    /// Returns the server's name for the tool or prompt with this exposed name.
    pub fn original_name(&self, kind: Kind, exposed: &str) -> Option<&str> {
        let index = self.indexes.get(kind.index())?.get(exposed)?;
        Some(&self.lists.of(kind)[*index].name)
    }

    /// Returns true if the server has this resource, or a template that matches it.
    pub fn has_resource(&self, uri: &str) -> bool {
        self.lists.of(Kind::Resources).iter().any(|item| &*item.name == uri)
            || self
                .lists
                .of(Kind::Templates)
                .iter()
                .any(|item| names::matches_template(&item.name, uri))
    }
}

/// Returns a fingerprint of texts.
fn fingerprint_of<'t>(texts: impl Iterator<Item = &'t str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    texts.for_each(|text| text.hash(&mut hasher));
    hasher.finish()
}

/// One page of a list.
#[derive(Debug, PartialEq, Eq)]
pub struct ListPage<'s> {
    /// The items of the page.
    pub shown: Vec<&'s ExposedItem>,
    /// The cursor of the next page.
    pub next: Option<String>,
}

/// Returns the page after `cursor`: about `bytes` long, but never empty. Returns `None` if the
/// cursor does not fit the list any more.
pub fn paginate<'s>(
    all: impl Iterator<Item = &'s ExposedItem> + Clone,
    cursor: Option<&str>,
    bytes: usize,
) -> Option<ListPage<'s>> {
    let passed = match cursor {
        Some(cursor) => position_after(all.clone(), cursor)?,
        None => 0,
    };
    let mut rest = all.clone().skip(passed).peekable();
    let mut page = ListPage { shown: Vec::new(), next: None };
    let mut used = 0;
    while let Some(shown) = rest.next() {
        used += shown.text.len() + 1;
        page.shown.push(shown);
        if used >= bytes && rest.peek().is_some() {
            let until_here = all.take(passed + page.shown.len());
            page.next = Some(cursor_after(until_here, &shown.name));
            break;
        }
    }
    Some(page)
}

/// Returns the cursor after the last item of `until_here`, called `name`. It counts items of this
/// name, since duplicates would lead back to the first one forever.
fn cursor_after<'s>(until_here: impl Iterator<Item = &'s ExposedItem>, name: &str) -> String {
    let count = until_here.filter(|shown| &*shown.name == name).count();
    format!("{count}:{name}")
}

/// Returns the number of items before the page at `cursor`.
fn position_after<'s>(
    mut all: impl Iterator<Item = &'s ExposedItem>,
    cursor: &str,
) -> Option<usize> {
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

    /// Returns a server with these tools and prompts.
    fn known(items: &str) -> ServerCatalog {
        let introduction = Introduction::read(r#"{"protocolVersion":"2025-11-25"}"#).unwrap();
        let mut lists = Lists::default();
        for kind in [Kind::Tools, Kind::Prompts] {
            let result = format!(r#"{{"{}":{items}}}"#, kind.key());
            lists.set(kind, Page::read(kind, &result).unwrap().items);
        }
        ServerCatalog::new("s", introduction, lists)
    }

    #[test]
    fn only_the_tool_name_is_changed() {
        let tool = "{ \"x\" : 1.50,\n\"name\":\"a.b\",\"inputSchema\":{\"name\":\"a.b\",\"type\":\"object\"} }";
        let known = known(&format!("[{tool}]"));
        let [shown] = known.exposed(Kind::Tools) else { panic!() };
        let expected = format!(
            r#"{{ "x" : 1.50, "name":"{}","inputSchema":{{"name":"a.b","type":"object"}} }}"#,
            names::exposed("s", "a.b")
        );
        assert_eq!(&*shown.text, expected);
        assert_eq!(known.original_name(Kind::Tools, &shown.name), Some("a.b"));
        assert_eq!(known.original_name(Kind::Tools, "s__a.b"), None);
        assert_eq!(known.original_name(Kind::Resources, &shown.name), None);
    }

    #[test]
    fn malformed_tools_are_repaired_or_hidden() {
        let tools = [
            r#"{"name":"a","inputSchema":{"type":"object"},"x":null}"#,
            r#"{"name":"b"}"#,
            r#"{"name":"c","inputSchema":{},"description":5}"#,
            r#"{"name":"a","inputSchema":{},"title":"again"}"#,
        ];
        let list = format!("[{}]", tools.join(","));
        let known = known(&list);
        let shown: Vec<&str> = known.exposed(Kind::Tools).iter().map(|it| &*it.text).collect();
        let expected = [
            r#"{"name":"s__a","inputSchema":{"type":"object"},"x":null}"#,
            r#"{"name":"s__c","inputSchema":{"type":"object"}}"#,
        ];
        assert_eq!(shown, expected);
        assert_eq!(known.original_name(Kind::Tools, "s__c"), Some("c"));
        let raw: Vec<&str> = known.lists.of(Kind::Tools).iter().map(|it| &*it.raw).collect();
        assert_eq!(raw, tools, "alone it is as it was written");
        let page = Page::read(Kind::Tools, &format!(r#"{{"tools":{list}}}"#)).unwrap();
        assert_eq!(
            page.report.unwrap(),
            "3 items of tools/list are malformed: `b` is hidden for its inputSchema, `c` is \
             shown with its description, inputSchema repaired, `a` is shown with its inputSchema repaired"
        );
    }

    #[test]
    fn duplicate_exposed_name_is_hidden_and_reported_once() {
        let taken = names::exposed("s", "a.b").replace("s__", "");
        let tool = |name: &str| format!(r#"{{"name":"{name}","inputSchema":{{}}}}"#);
        let known = known(&format!("[{},{},{}]", tool("a.b"), tool(&taken), tool("c")));
        let names: Vec<&str> = known.exposed(Kind::Tools).iter().map(|it| &*it.name).collect();
        assert_eq!(names, [&*names::exposed("s", "a.b"), "s__c"]);
        assert_eq!(known.original_name(Kind::Tools, names[0]), Some("a.b"), "as it is listed");
        // Each counts twice, as a tool and as a prompt.
        let told = known.take_duplicates().unwrap();
        let expected = format!("2 hidden, as their exposed names are taken: `{taken}`, `{taken}`");
        assert_eq!((told, known.take_duplicates()), (expected, None));
    }

    #[test]
    fn nameless_items_are_left_out() {
        let page =
            Page::read(Kind::Tools, r#"{"tools":[{"name":"a"},{},7,{"name":3}],"nextCursor":"c"}"#);
        let page = page.unwrap();
        assert_eq!((page.items.len(), page.nameless, page.next.as_deref()), (1, 3, Some(r#""c""#)));
    }

    #[test]
    fn malformed_list_is_an_error() {
        for result in ["[]", "{}", r#"{"tools":{}}"#, r#"{"tools":null}"#, "7"] {
            assert!(
                Page::read(Kind::Tools, result).unwrap_err().contains("tools/list"),
                "{result}"
            );
        }
    }

    #[test]
    fn long_list_is_paged() {
        let known = known(r#"[{"name":"a"},{"name":"b"},{"name":"c"}]"#);
        let all = || known.exposed(Kind::Prompts).iter();
        let names = |page: &ListPage<'_>| -> Vec<String> {
            page.shown.iter().map(|shown| shown.name.to_string()).collect()
        };
        let first = paginate(all(), None, 20).unwrap();
        assert_eq!(names(&first), ["s__a", "s__b"]);
        let second = paginate(all(), first.next.as_deref(), 20).unwrap();
        assert_eq!((names(&second), second.next), (vec!["s__c".to_owned()], None));
        assert_eq!(names(&paginate(all(), None, 1000).unwrap()).len(), 3);
    }

    #[test]
    fn paging_of_duplicate_names_ends() {
        let item = |name: &str| ExposedItem {
            name: name.into(),
            text: name.into(),
            index: 0,
            is_listed: true,
        };
        let items = ["a", "b", "a", "a"].map(item);
        let (mut cursor, mut seen) = (None::<String>, Vec::new());
        for _ in 0..4 {
            let page = paginate(items.iter(), cursor.as_deref(), 1).unwrap();
            seen.extend(page.shown.iter().map(|shown| shown.name.to_string()));
            cursor = page.next;
        }
        assert_eq!((seen.join(" ").as_str(), cursor), ("a b a a", None));
    }

    #[test]
    fn stale_cursor_is_rejected() {
        let known = known(r#"[{"name":"a"},{"name":"b"}]"#);
        let page_at = |cursor| paginate(known.exposed(Kind::Prompts).iter(), Some(cursor), 1);
        assert!(page_at("1:s__a").is_some());
        let stale = ["", ":", "1:", "1:gone", "2:s__a", "s__a", "x:s__a", "-1:s__a", "0:gone"];
        for stale in stale {
            assert_eq!(page_at(stale), None, "{stale}");
        }
    }

    #[test]
    fn resource_is_known_by_uri_or_template() {
        let mut lists = Lists::default();
        let read = |kind, raw| vec![Item::read(kind, raw).unwrap()];
        lists.set(Kind::Resources, read(Kind::Resources, r#"{"uri":"a://b","name":"n"}"#));
        lists
            .set(Kind::Templates, read(Kind::Templates, r#"{"uriTemplate":"t://{x}","name":"n"}"#));
        let introduction = Introduction::read(r#"{"protocolVersion":"2025-11-25"}"#).unwrap();
        let known = ServerCatalog::new("s", introduction, lists);
        assert!(known.has_resource("a://b") && known.has_resource("t://1"));
        assert!(!known.has_resource("a://c"));
        assert_eq!(&*known.exposed(Kind::Templates)[0].name, "xy://s/t://{x}");
    }
}
