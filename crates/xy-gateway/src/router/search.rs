//! Search for tools, in the names and descriptions that the searcher sees.
//!
//! One index holds layers: the lists of each server, the tools that a profile renames or describes
//! differently, and the lists of isolated instances. A searcher uses its own layers instead of
//! those they replace. So hidden or changed text never matches and never affects the order.
//!
//! The index is updated by the next search, and costs nothing before.

use std::collections::BTreeMap;
use std::rc::Rc;

use xy_catalog::catalog::{ExposedItem, ServerCatalog};
use xy_catalog::names;
use xy_catalog::scope::Scope;
use xy_mcp::kind::Kind;
use xy_protocol::server::ServerName;
use xy_search::{Document, Index};

use super::{RoutedClient, Router};
use crate::backend::Backend;
use crate::tools;
use crate::visibility::Visibility;

/// Default number of results.
pub(crate) const DEFAULT_HITS: usize = 8;

/// Maximum length of a result's description, in bytes.
const MAX_DESCRIPTION: usize = 200;

/// Separates the parts of a layer's key. Server names do not contain it.
const SLASH: char = '/';

/// A search result.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FoundTool {
    /// The name that the searcher sees.
    pub(crate) name: String,
    /// The server; empty for tools of xy itself.
    pub(crate) server: String,
    /// The beginning of the description.
    pub(crate) description: String,
    pub(crate) score: f32,
}

impl FoundTool {
    fn of(server: &str, shown: &ExposedItem, score: f32) -> Self {
        let (name, server) = (shown.name.to_string(), server.to_owned());
        Self { name, server, description: first_words(&shown.text), score }
    }
}

/// A set of tools that enters and leaves the index together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layer {
    /// The tools of xy itself.
    Own,
    /// All tools of a server, with the server's names and descriptions.
    Server(ServerName),
    /// The tools of a server that a profile changes, as the profile shows them.
    Profile(ServerName, String),
    /// All tools of an isolated instance, as this client group sees them.
    Client(ServerName, u64),
}

impl Layer {
    /// Returns the key of the layer in the index.
    fn key(&self) -> String {
        match self {
            Self::Own => SLASH.to_string(),
            Self::Server(server) => server.to_string(),
            Self::Profile(server, profile) => format!("{server}{SLASH}profile{SLASH}{profile}"),
            Self::Client(server, group_id) => format!("{server}{SLASH}client{SLASH}{group_id}"),
        }
    }
}

/// The searching client or profile.
struct Searcher<'a> {
    scope: Option<Rc<Scope>>,
    /// The client; `None` if an operator searches through a visibility filter.
    client: Option<&'a dyn RoutedClient>,
    visibility: Option<&'a Visibility>,
}

impl Searcher<'_> {
    /// Returns the visible part of a server.
    fn shown_of(&self, server: &Backend) -> Option<Rc<ServerCatalog>> {
        match (self.client, self.visibility) {
            (Some(client), _) => server.shown_to(client),
            (None, Some(visibility)) => visibility.visible(&server.name, server.shown()?),
            (None, None) => None,
        }
    }

    /// Returns true if the searcher may use management tools.
    fn may_manage(&self) -> bool {
        self.client.is_some_and(|client| client.entry().may_manage)
    }

    /// Returns true if the searcher sees this management tool.
    fn sees_own_tool(&self, name: &str) -> bool {
        self.may_manage() && self.client.is_some_and(|client| client.may_call_own(name))
    }

    /// Returns true if the searcher sees this tool with the server's own name and description.
    fn sees_unchanged(&self, server: &str, original: &str) -> bool {
        self.scope.as_ref().is_none_or(|scope| scope.shows_unchanged(server, original))
    }

    /// Returns the layer that replaces a server's own for this searcher, and its source.
    fn layer(&self, server: &Backend) -> Option<(Layer, Rc<ServerCatalog>)> {
        let name = &server.name;
        if let Some(client) = self.client.filter(|client| server.has_own_tools(&**client)) {
            return Some((Layer::Client(name.clone(), client.group_id()), self.shown_of(server)?));
        }
        let scope = self.scope.as_ref().filter(|it| it.overrides_any_of(name.as_str()))?;
        let known = Visibility::Scope(scope.clone()).visible(name, server.shown()?)?;
        Some((Layer::Profile(name.clone(), scope.settings().name.clone()), known))
    }
}

impl Router {
    /// Finds the tools that match a query best, of those that a client sees.
    pub(crate) fn find_tools(
        &self,
        client: &dyn RoutedClient,
        query: &str,
        limit: usize,
        server: Option<&str>,
    ) -> Vec<FoundTool> {
        let searcher = Searcher { scope: client.scope(), client: Some(client), visibility: None };
        self.search(&searcher, query, limit, server)
    }

    /// Finds the tools that match a query best, of those that a visibility filter admits.
    pub(crate) fn find_tools_in(
        &self,
        visibility: &Visibility,
        query: &str,
        limit: usize,
        server: Option<&str>,
    ) -> Vec<FoundTool> {
        let searcher = Searcher {
            scope: visibility.scope().cloned(),
            client: None,
            visibility: Some(visibility),
        };
        self.search(&searcher, query, limit, server)
    }

    fn search(
        &self,
        searcher: &Searcher<'_>,
        query: &str,
        limit: usize,
        only: Option<&str>,
    ) -> Vec<FoundTool> {
        self.update_index();
        let layers = self.update_layers(searcher);
        let limit = limit.clamp(1, xy_search::MAX_HITS);
        let index = self.index.borrow();
        let is_replaced = |server: &str| {
            layers.values().any(|it| matches!(it, Layer::Client(of, _) if of.as_str() == server))
        };
        // Hidden tools must affect neither the order nor the number of results. Results are then
        // looked up for their visible names and descriptions.
        let accepts = |key: &str, name: &str| match key.split_once(SLASH) {
            Some(("", _)) => only.is_none() && searcher.sees_own_tool(name),
            Some((server, _)) => only.is_none_or(|only| only == server) && layers.contains_key(key),
            None => {
                only.is_none_or(|only| only == key)
                    && !is_replaced(key)
                    && searcher.sees_unchanged(key, name)
            }
        };
        let is_alone = layers.values().any(|it| matches!(it, Layer::Client(..)));
        let hits = match &searcher.scope {
            Some(scope) if only.is_none() && !is_alone => {
                let mut visible = scope.searched(searcher.may_manage());
                index.search_cached(&mut visible, query, xy_search::MAX_HITS, accepts)
            }
            _ => index.search(query, xy_search::MAX_HITS, accepts),
        };
        let best = hits.first().map_or(0.0, |hit| hit.score);
        let named = self.named(searcher, query.trim(), only, best);
        let is_named = |it: &FoundTool| named.as_ref().is_some_and(|named| named.name == it.name);
        let found =
            hits.iter().filter_map(|hit| self.found(searcher, hit)).filter(|it| !is_named(it));
        named.clone().into_iter().chain(found).take(limit).collect()
    }

    /// Returns a hit as the searcher sees it.
    fn found(&self, searcher: &Searcher<'_>, hit: &xy_search::Hit<'_>) -> Option<FoundTool> {
        let (server, rest) = hit.server.split_once(SLASH).unwrap_or((hit.server, ""));
        if server.is_empty() {
            let own = tools::exposed(Kind::Tools, true);
            let own = own.iter().find(|it| *it.name == *hit.name)?;
            return Some(FoundTool::of("", own, hit.score));
        }
        let known = searcher.shown_of(&*self.server(server)?)?;
        let items = known.lists.of(Kind::Tools);
        let is_it = |it: &&ExposedItem| {
            if rest.is_empty() {
                items.get(it.index).is_some_and(|it| *it.name == *hit.name)
            } else {
                *it.name == *hit.name
            }
        };
        let shown = known.exposed(Kind::Tools).iter().find(is_it)?;
        Some(FoundTool::of(server, shown, hit.score))
    }

    /// Returns the tool with exactly this name, whatever its score.
    fn named(
        &self,
        searcher: &Searcher<'_>,
        name: &str,
        only: Option<&str>,
        score: f32,
    ) -> Option<FoundTool> {
        let renamed = searcher.scope.as_ref().and_then(|scope| scope.renamed(name));
        let (server, _) = renamed.or_else(|| names::split_exposed(name))?;
        let server = self.server(server)?;
        let known = searcher
            .shown_of(&server)
            .filter(|_| only.is_none_or(|it| it == server.name.as_str()))?;
        let shown = known.exposed(Kind::Tools).iter().find(|it| *it.name == *name)?;
        Some(FoundTool::of(server.name.as_str(), shown, score))
    }

    /// Updates the servers' layers in the index.
    fn update_index(&self) {
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
                    scope.is_some_and(|scope| scope.overrides_any_of(name.as_str()))
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
            let own = tools::exposed(Kind::Tools, true);
            let documents: Vec<Document> =
                own.iter().map(|it| Document::from_definition("", &it.name, &it.text)).collect();
            put(&mut index, &mut indexed, Layer::Own, None, &documents);
        }
        for (name, server) in servers.iter() {
            let Some(known) = server.shown() else { continue };
            let layer = Layer::Server(name.clone());
            if has(&indexed, &layer, &known) {
                continue;
            }
            let tools = known.exposed(Kind::Tools).iter();
            let items = tools.filter_map(|shown| known.lists.of(Kind::Tools).get(shown.index));
            let documents: Vec<Document> = items
                .map(|item| Document::from_definition(name.as_str(), &item.name, &item.raw))
                .collect();
            put(&mut index, &mut indexed, layer, Some(known.clone()), &documents);
        }
    }

    /// Updates the searcher's layers in the index; returns them by key.
    fn update_layers(&self, searcher: &Searcher<'_>) -> BTreeMap<String, Layer> {
        let mut layers = BTreeMap::new();
        let mut index = self.index.borrow_mut();
        let mut indexed = self.indexed.borrow_mut();
        for (name, server) in self.servers.borrow().iter() {
            let Some((layer, known)) = searcher.layer(server) else { continue };
            if !has(&indexed, &layer, &known) {
                let is_alone = matches!(layer, Layer::Client(..));
                let documents = documents(searcher.scope.as_deref(), name, &known, is_alone);
                put(&mut index, &mut indexed, layer.clone(), Some(known), &documents);
            }
            layers.insert(layer.key(), layer);
        }
        // Adding a layer may have evicted another: then its server's own layer is searched.
        layers.retain(|_, layer| indexed.contains_key(layer));
        layers
    }
}

type Indexed = BTreeMap<Layer, Option<Rc<ServerCatalog>>>;

/// Returns true if the layer is built from this source.
fn has(indexed: &Indexed, layer: &Layer, known: &Rc<ServerCatalog>) -> bool {
    let made_of = indexed.get(layer).and_then(Option::as_ref);
    made_of.is_some_and(|it| Rc::ptr_eq(it, known))
}

/// Replaces a layer in the index.
fn put(
    index: &mut Index,
    indexed: &mut Indexed,
    layer: Layer,
    known: Option<Rc<ServerCatalog>>,
    documents: &[Document],
) {
    let key = layer.key();
    index.remove_server(&key); // Frees the old version's room.
    if index.len() + documents.len() > xy_search::MAX_TOOLS {
        // Layers of isolated instances are rebuilt on demand, and make room for shared ones.
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
        tracing::warn!(server = %key, left_out, "too many tools: some cannot be found");
    }
    indexed.insert(layer, known);
}

/// Returns the searchable tools of a layer, as shown: all of them, or only those that the profile
/// changes.
fn documents(
    scope: Option<&Scope>,
    server: &ServerName,
    known: &ServerCatalog,
    is_alone: bool,
) -> Vec<Document> {
    let document = |shown: &ExposedItem| {
        let item = known.lists.of(Kind::Tools).get(shown.index)?;
        let change = scope.and_then(|scope| scope.override_of(server.as_str(), &item.name));
        if change.is_none() && !is_alone {
            return None;
        }
        let mut document = Document::from_definition(server.as_str(), &shown.name, &shown.text);
        if change.is_none_or(|it| it.name.is_none()) {
            document.own_name = item.name.to_string(); // Its server's name is not searchable.
        }
        Some(document)
    };
    known.exposed(Kind::Tools).iter().filter_map(document).collect()
}

/// Returns the beginning of a tool's description.
fn first_words(definition: &str) -> String {
    #[derive(serde::Deserialize)]
    struct Definition {
        #[serde(default)]
        description: String,
    }
    let description = serde_json::from_str::<Definition>(definition)
        .map_or_else(|_| String::new(), |it| it.description);
    let description = description.trim();
    if description.len() <= MAX_DESCRIPTION {
        return description.to_owned();
    }
    let kept = &description[..description.floor_char_boundary(MAX_DESCRIPTION)];
    let end = kept.rfind(char::is_whitespace).unwrap_or(kept.len());
    format!("{} …", kept[..end].trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn many(server: &str, count: usize) -> Vec<Document> {
        let tool = |number| Document::from_definition(server, &format!("tool{number}"), "{}");
        (0..count).map(tool).collect()
    }

    #[test]
    fn full_index_evicts_only_private_tools() {
        let (mut index, mut indexed) = (Index::default(), Indexed::new());
        let name = |number: usize| ServerName::new(&format!("s{number}")).unwrap();
        let each = xy_search::MAX_TOOLS_PER_SERVER;
        let servers = xy_search::MAX_TOOLS / each - 1;
        let all = many("s", each);
        for number in 0..servers {
            put(&mut index, &mut indexed, Layer::Server(name(number)), None, &all);
        }
        let clients = [1, 2].map(|group_id| Layer::Client(name(0), group_id));
        for client in &clients {
            put(&mut index, &mut indexed, client.clone(), None, &all[..each / 2]);
        }
        assert_eq!((index.len(), indexed.len()), (xy_search::MAX_TOOLS, servers + 2));
        // A replaced layer reuses its room.
        put(&mut index, &mut indexed, clients[1].clone(), None, &all[..each / 2]);
        assert_eq!(indexed.len(), servers + 2);
        let late = Layer::Server(name(servers));
        put(&mut index, &mut indexed, late.clone(), None, &all[..1]);
        assert_eq!((index.len(), indexed.len()), (servers * each + 1, servers + 1));
        assert!(indexed.contains_key(&late) && !indexed.contains_key(&clients[0]));
        // A layer without any room is logged, and the index stays within its limit.
        put(&mut index, &mut indexed, Layer::Server(name(servers + 1)), None, &all);
        assert_eq!(index.len(), xy_search::MAX_TOOLS);
    }
}
