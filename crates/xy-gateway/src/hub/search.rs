//! Tools by what they do: an index of what all servers offer, of which each asker finds what
//! it is shown.
//!
//! The index is made as it should be when somebody searches; until then it costs nothing.

use std::rc::Rc;

use xy_search::Document;

use super::Hub;
use crate::catalog::{Kind, Known};
use crate::client::Client;
use crate::scope::Scope;
use crate::server::Server;

/// How many are found when nobody says.
pub(crate) const DEFAULT_HITS: usize = 8;

/// What is said of a tool that was found: its first words.
const MOST_DESCRIPTION: usize = 200;

/// A longer query says no more.
const LONGEST_QUERY: usize = 2000;

/// A tool that was found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FoundTool {
    /// What its finder calls it.
    pub(crate) name: String,
    /// Whose it is.
    pub(crate) server: String,
    /// The first words of what is said of it.
    pub(crate) description: String,
    pub(crate) score: f32,
}

impl Hub {
    /// The tools that fit a query best, of those that a client is shown.
    pub(crate) fn find_tools(
        &self,
        client: &Client,
        query: &str,
        limit: usize,
        server: Option<&str>,
    ) -> Vec<FoundTool> {
        let scope = client.scope();
        self.search(scope.as_deref(), query, limit, server, |server| server.shown_to(client))
    }

    /// The same of everything, or of what a profile shows.
    pub(crate) fn find_any(
        &self,
        scope: Option<&Rc<Scope>>,
        query: &str,
        limit: usize,
        server: Option<&str>,
    ) -> Vec<FoundTool> {
        self.search(scope.map(|it| &**it), query, limit, server, |server| {
            let (name, known) = (server.name.as_str(), server.shown()?);
            match scope {
                Some(scope) if !scope.decide_server(name).shown => None,
                Some(scope) => Some(known.within(name, scope)),
                None => Some(known),
            }
        })
    }

    fn search(
        &self,
        scope: Option<&Scope>,
        query: &str,
        limit: usize,
        only: Option<&str>,
        shown_of: impl Fn(&Server) -> Option<Rc<Known>>,
    ) -> Vec<FoundTool> {
        self.keep_index();
        let limit = limit.clamp(1, xy_search::MOST_HITS);
        let query = &query[..query.floor_char_boundary(LONGEST_QUERY)];
        let index = self.index.borrow();
        let accepts = |server: &str, inside: &str| match scope {
            Some(scope) => scope.decide(Kind::Tools, server, inside).shown,
            None => true,
        };
        let hits = match (only, scope) {
            (None, Some(scope)) => {
                index.search_within(&mut scope.searched(), query, xy_search::MOST_HITS, accepts)
            }
            (None, None) => index.search(query, xy_search::MOST_HITS, accepts),
            (Some(only), _) => {
                let accepts =
                    |server: &str, inside: &str| server == only && accepts(server, inside);
                index.search(query, xy_search::MOST_HITS, accepts)
            }
        };
        let found = hits.into_iter().filter_map(|hit| {
            // An instance of its own may offer its client something else.
            let known = shown_of(&*self.server(hit.server)?)?;
            let items = known.lists.of(Kind::Tools);
            let mut shown = known.shown(Kind::Tools).iter();
            let shown =
                shown.find(|it| items.get(it.place).is_some_and(|it| *it.name == *hit.name))?;
            Some(FoundTool {
                name: shown.name.to_string(),
                server: hit.server.to_owned(),
                description: first_words(&shown.text),
                score: hit.score,
            })
        });
        found.take(limit).collect()
    }

    /// Makes the index what servers offer now.
    fn keep_index(&self) {
        let mut index = self.index.borrow_mut();
        let mut indexed = self.indexed.borrow_mut();
        let servers = self.servers.borrow();
        indexed.retain(|name, _| {
            let is_there = servers.get(name).is_some_and(|server| server.shown().is_some());
            if !is_there {
                index.remove_server(name.as_str());
            }
            is_there
        });
        for (name, server) in servers.iter() {
            let Some(known) = server.shown() else { continue };
            if indexed.get(name).is_some_and(|it| Rc::ptr_eq(it, &known)) {
                continue;
            }
            let documents: Vec<Document> = known
                .shown(Kind::Tools)
                .iter()
                .filter_map(|shown| known.lists.of(Kind::Tools).get(shown.place))
                .map(|item| Document::of(name.as_str(), &item.name, &item.raw))
                .collect();
            let left_out = index.replace_server(name.as_str(), &documents);
            if left_out > 0 {
                tracing::warn!(server = %name, left_out, "it has too many tools to find them all");
            }
            indexed.insert(name.clone(), known);
        }
    }
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
