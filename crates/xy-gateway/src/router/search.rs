//! Tools by what they do, each in the words that its asker reads.
//!
//! There is one index, in layers: what every server says to everybody, and apart from that only
//! what somebody is shown otherwise, which is the tools that a profile gives other words, and
//! those of an instance that lives for one client. An asker searches the layers that are its
//! own, and what these replace is not there for it: so what is hidden, or said otherwise, finds
//! nothing and changes no order.
//!
//! The index is made as it should be when somebody searches; until then it costs nothing.

use std::collections::BTreeMap;
use std::rc::Rc;

use xy_protocol::server::ServerName;
use xy_search::{Document, Index};

use super::Router;
use crate::backend::Backend;
use crate::catalog::{Kind, Known, Shown};
use crate::client::{Client, Visibility};
use crate::names;
use crate::scope::Scope;
use crate::tools;

/// How many are found when nobody says.
pub(crate) const DEFAULT_HITS: usize = 8;

/// What is said of a tool that was found: its first words.
const MOST_DESCRIPTION: usize = 200;

/// Between the parts of a layer's name. No server's name has it in it.
const SLASH: char = '/';

/// A tool that was found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FoundTool {
    /// What its finder calls it.
    pub(crate) name: String,
    /// Whose it is; empty for xy's own.
    pub(crate) server: String,
    /// The first words of what is said of it.
    pub(crate) description: String,
    pub(crate) score: f32,
}

impl FoundTool {
    fn of(server: &str, shown: &Shown, score: f32) -> Self {
        let (name, server) = (shown.name.to_string(), server.to_owned());
        Self { name, server, description: first_words(&shown.text), score }
    }
}

/// Tools that are in the index together, and leave it together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layer {
    /// xy's own.
    Own,
    /// All of a server, in its own words and by its own names.
    Server(ServerName),
    /// Those of a server that a profile gives other words, as that shows them.
    Profile(ServerName, String),
    /// All of a server that an instance for these clients alone has, as they are shown them.
    Client(ServerName, u64),
}

impl Layer {
    /// What it is called in the index.
    fn key(&self) -> String {
        match self {
            Self::Own => SLASH.to_string(),
            Self::Server(server) => server.to_string(),
            Self::Profile(server, profile) => format!("{server}{SLASH}profile{SLASH}{profile}"),
            Self::Client(server, group_id) => format!("{server}{SLASH}client{SLASH}{group_id}"),
        }
    }
}

/// Who searches.
struct Asker<'a> {
    scope: Option<Rc<Scope>>,
    /// Nobody in particular is there, if it is a person who asks what a lens lets through.
    client: Option<&'a Client>,
    visibility: Option<&'a Visibility>,
}

impl Asker<'_> {
    /// What it is shown of a server.
    fn shown_of(&self, server: &Backend) -> Option<Rc<Known>> {
        match (self.client, self.visibility) {
            (Some(client), _) => server.shown_to(client),
            (None, Some(visibility)) => visibility.visible(&server.name, server.shown()?),
            (None, None) => None,
        }
    }

    /// Whether it may use xy's own tools at all.
    fn may_manage(&self) -> bool {
        self.client.is_some_and(|client| client.entry().may_manage)
    }

    /// Whether it is shown this tool of xy's own.
    fn sees_own(&self, name: &str) -> bool {
        self.may_manage() && self.client.is_some_and(|client| client.may_call_own(name))
    }

    /// Whether it is shown this tool of a server, in that server's own words.
    fn sees_plainly(&self, server: &str, inside: &str) -> bool {
        self.scope.as_ref().is_none_or(|scope| scope.shows_plainly(server, inside))
    }

    /// Which layer has what it is shown of a server otherwise than everybody, if one has, and
    /// what that is made of.
    fn layer(&self, server: &Backend) -> Option<(Layer, Rc<Known>)> {
        let name = &server.name;
        if let Some(client) = self.client.filter(|client| server.has_own_tools(client)) {
            return Some((Layer::Client(name.clone(), client.group_id()), self.shown_of(server)?));
        }
        let scope = self.scope.as_ref().filter(|it| it.changes_any_of(name.as_str()))?;
        let known = Visibility::Scope(scope.clone()).visible(name, server.shown()?)?;
        Some((Layer::Profile(name.clone(), scope.settings().name.clone()), known))
    }
}

impl Router {
    /// The tools that fit a query best, of those that a client is shown.
    pub(crate) fn find_tools(
        &self,
        client: &Client,
        query: &str,
        limit: usize,
        server: Option<&str>,
    ) -> Vec<FoundTool> {
        let asker = Asker { scope: client.scope(), client: Some(client), visibility: None };
        self.search(&asker, query, limit, server)
    }

    /// The same of what a lens lets through, without any client.
    pub(crate) fn find_through(
        &self,
        visibility: &Visibility,
        query: &str,
        limit: usize,
        server: Option<&str>,
    ) -> Vec<FoundTool> {
        let asker = Asker {
            scope: visibility.scope().cloned(),
            client: None,
            visibility: Some(visibility),
        };
        self.search(&asker, query, limit, server)
    }

    fn search(
        &self,
        asker: &Asker<'_>,
        query: &str,
        limit: usize,
        only: Option<&str>,
    ) -> Vec<FoundTool> {
        self.keep_index();
        let layers = self.keep_layers(asker);
        let limit = limit.clamp(1, xy_search::MOST_HITS);
        let index = self.index.borrow();
        let is_replaced = |server: &str| {
            layers.values().any(|it| matches!(it, Layer::Client(of, _) if of.as_str() == server))
        };
        // Who is hidden must not change the order of the others, nor take their place; whoever
        // is found is then looked up in what is shown, for its name and its words there.
        let accepts = |key: &str, name: &str| match key.split_once(SLASH) {
            Some(("", _)) => only.is_none() && asker.sees_own(name),
            Some((server, _)) => only.is_none_or(|only| only == server) && layers.contains_key(key),
            None => {
                only.is_none_or(|only| only == key)
                    && !is_replaced(key)
                    && asker.sees_plainly(key, name)
            }
        };
        let is_alone = layers.values().any(|it| matches!(it, Layer::Client(..)));
        let hits = match &asker.scope {
            Some(scope) if only.is_none() && !is_alone => {
                let mut searched = scope.searched(asker.may_manage());
                index.search_within(&mut searched, query, xy_search::MOST_HITS, accepts)
            }
            _ => index.search(query, xy_search::MOST_HITS, accepts),
        };
        let best = hits.first().map_or(0.0, |hit| hit.score);
        let named = self.named(asker, query.trim(), only, best);
        let is_named = |it: &FoundTool| named.as_ref().is_some_and(|named| named.name == it.name);
        let found = hits.iter().filter_map(|hit| self.found(asker, hit)).filter(|it| !is_named(it));
        named.clone().into_iter().chain(found).take(limit).collect()
    }

    /// What was found, as its finder is shown it.
    fn found(&self, asker: &Asker<'_>, hit: &xy_search::Hit<'_>) -> Option<FoundTool> {
        let (server, rest) = hit.server.split_once(SLASH).unwrap_or((hit.server, ""));
        if server.is_empty() {
            let own = tools::shown(Kind::Tools, true);
            let own = own.iter().find(|it| *it.name == *hit.name)?;
            return Some(FoundTool::of("", own, hit.score));
        }
        let known = asker.shown_of(&*self.server(server)?)?;
        let items = known.lists.of(Kind::Tools);
        let is_it = |it: &&Shown| {
            if rest.is_empty() {
                items.get(it.place).is_some_and(|it| *it.name == *hit.name)
            } else {
                *it.name == *hit.name
            }
        };
        let shown = known.shown(Kind::Tools).iter().find(is_it)?;
        Some(FoundTool::of(server, shown, hit.score))
    }

    /// The tool that has exactly this name for whoever asks, whatever its words are worth.
    fn named(
        &self,
        asker: &Asker<'_>,
        name: &str,
        only: Option<&str>,
        score: f32,
    ) -> Option<FoundTool> {
        let renamed = asker.scope.as_ref().and_then(|scope| scope.renamed(name));
        let (server, _) = renamed.or_else(|| names::inside(name))?;
        let server = self.server(server)?;
        let known =
            asker.shown_of(&server).filter(|_| only.is_none_or(|it| it == server.name.as_str()))?;
        let shown = known.shown(Kind::Tools).iter().find(|it| *it.name == *name)?;
        Some(FoundTool::of(server.name.as_str(), shown, score))
    }

    /// Makes the index what servers offer to everybody now.
    fn keep_index(&self) {
        let mut index = self.index.borrow_mut();
        let mut indexed = self.indexed.borrow_mut();
        let servers = self.servers.borrow();
        let scopes = self.scopes.borrow();
        let shown = |name: &ServerName| servers.get(name).filter(|it| it.is_shown());
        indexed.retain(|layer, _| {
            let is_there = match layer {
                Layer::Own => true,
                Layer::Server(name) => shown(name).is_some_and(|it| it.shown().is_some()),
                Layer::Profile(name, profile) => {
                    let scope = scopes.get(profile).filter(|_| shown(name).is_some());
                    scope.is_some_and(|scope| scope.changes_any_of(name.as_str()))
                }
                Layer::Client(name, group_id) => {
                    shown(name).is_some_and(|it| it.is_alone_with(*group_id))
                }
            };
            if !is_there {
                index.remove_server(&layer.key());
            }
            is_there
        });
        if !indexed.contains_key(&Layer::Own) {
            let own = tools::shown(Kind::Tools, true);
            let documents: Vec<Document> =
                own.iter().map(|it| Document::of("", &it.name, &it.text)).collect();
            put(&mut index, &mut indexed, Layer::Own, None, &documents);
        }
        for (name, server) in servers.iter() {
            let Some(known) = server.shown() else { continue };
            let layer = Layer::Server(name.clone());
            if has(&indexed, &layer, &known) {
                continue;
            }
            let tools = known.shown(Kind::Tools).iter();
            let items = tools.filter_map(|shown| known.lists.of(Kind::Tools).get(shown.place));
            let documents: Vec<Document> =
                items.map(|item| Document::of(name.as_str(), &item.name, &item.raw)).collect();
            put(&mut index, &mut indexed, layer, Some(known.clone()), &documents);
        }
    }

    /// Makes the layers of an asker what that is shown now: by what they are called.
    fn keep_layers(&self, asker: &Asker<'_>) -> BTreeMap<String, Layer> {
        let mut layers = BTreeMap::new();
        let mut index = self.index.borrow_mut();
        let mut indexed = self.indexed.borrow_mut();
        for (name, server) in self.servers.borrow().iter() {
            let Some((layer, known)) = asker.layer(server) else { continue };
            if !has(&indexed, &layer, &known) {
                let is_alone = matches!(layer, Layer::Client(..));
                let documents = documents(asker.scope.as_deref(), name, &known, is_alone);
                put(&mut index, &mut indexed, layer.clone(), Some(known), &documents);
            }
            layers.insert(layer.key(), layer);
        }
        // One may have had to make room for the next: then what all find is searched instead.
        layers.retain(|_, layer| indexed.contains_key(layer));
        layers
    }
}

type Indexed = BTreeMap<Layer, Option<Rc<Known>>>;

/// Whether a layer is made of this.
fn has(indexed: &Indexed, layer: &Layer, known: &Rc<Known>) -> bool {
    let made_of = indexed.get(layer).and_then(Option::as_ref);
    made_of.is_some_and(|it| Rc::ptr_eq(it, known))
}

/// Puts a layer in the place of what it was.
fn put(
    index: &mut Index,
    indexed: &mut Indexed,
    layer: Layer,
    known: Option<Rc<Known>>,
    documents: &[Document],
) {
    let key = layer.key();
    index.remove_server(&key); // What it was takes no room.
    if index.len() + documents.len() > xy_search::MOST_TOOLS {
        // What is one client's alone is made again when that searches, and takes no room from
        // what all find.
        indexed.retain(|it, _| {
            let stays = !matches!(it, Layer::Client(..));
            if !stays {
                index.remove_server(&it.key());
            }
            stays
        });
    }
    let left_out = index.replace_server(&key, documents);
    if left_out > 0 {
        tracing::warn!(server = %key, left_out, "it has too many tools to find them all");
    }
    indexed.insert(layer, known);
}

/// What is searched of the tools that a server shows to somebody, in the words that are shown: all
/// of them, or only those that a profile gives other words.
fn documents(
    scope: Option<&Scope>,
    server: &ServerName,
    known: &Known,
    is_alone: bool,
) -> Vec<Document> {
    let document = |shown: &Shown| {
        let item = known.lists.of(Kind::Tools).get(shown.place)?;
        let change = scope.and_then(|scope| scope.change(server.as_str(), &item.name));
        if change.is_none() && !is_alone {
            return None;
        }
        let mut document = Document::of(server.as_str(), &shown.name, &shown.text);
        if change.is_none_or(|it| it.name.is_none()) {
            document.own_name = item.name.to_string(); // Its server's name is no word of it.
        }
        Some(document)
    };
    known.shown(Kind::Tools).iter().filter_map(document).collect()
}

/// The first words of what is said of a tool.
fn first_words(definition: &str) -> String {
    #[derive(serde::Deserialize)]
    struct Said {
        #[serde(default)]
        description: String,
    }
    let said = serde_json::from_str::<Said>(definition)
        .map_or_else(|_| String::new(), |it| it.description);
    let said = said.trim();
    if said.len() <= MOST_DESCRIPTION {
        return said.to_owned();
    }
    let kept = &said[..said.floor_char_boundary(MOST_DESCRIPTION)];
    let end = kept.rfind(char::is_whitespace).unwrap_or(kept.len());
    format!("{} …", kept[..end].trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many(server: &str, count: usize) -> Vec<Document> {
        let tool = |number| Document::of(server, &format!("tool{number}"), "{}");
        (0..count).map(tool).collect()
    }

    #[test]
    fn a_full_index_lets_go_of_what_is_one_clients_alone_and_of_nothing_else() {
        let (mut index, mut indexed) = (Index::default(), Indexed::new());
        let name = |number: usize| ServerName::new(&format!("s{number}")).unwrap();
        let each = xy_search::MOST_TOOLS_OF_A_SERVER;
        let servers = xy_search::MOST_TOOLS / each - 1;
        let all = many("s", each);
        for number in 0..servers {
            put(&mut index, &mut indexed, Layer::Server(name(number)), None, &all);
        }
        let clients = [1, 2].map(|group_id| Layer::Client(name(0), group_id));
        for client in &clients {
            put(&mut index, &mut indexed, client.clone(), None, &all[..each / 2]);
        }
        assert_eq!((index.len(), indexed.len()), (xy_search::MOST_TOOLS, servers + 2));
        // What is put anew takes the room of what it was.
        put(&mut index, &mut indexed, clients[1].clone(), None, &all[..each / 2]);
        assert_eq!(indexed.len(), servers + 2);
        let late = Layer::Server(name(servers));
        put(&mut index, &mut indexed, late.clone(), None, &all[..1]);
        assert_eq!((index.len(), indexed.len()), (servers * each + 1, servers + 1));
        assert!(indexed.contains_key(&late) && !indexed.contains_key(&clients[0]));
        // One that has no room at all is told, and what is found stays within the bound.
        put(&mut index, &mut indexed, Layer::Server(name(servers + 1)), None, &all);
        assert_eq!(index.len(), xy_search::MOST_TOOLS);
    }
}
