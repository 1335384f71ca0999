//! The index: which tool has which word, and how much that is worth.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::actions::Actions;
use crate::document::Document;
use crate::query::{self, Asked, Letters, Vocabulary, Way};
use crate::stem::stem;
use crate::synonyms::Synonyms;
use crate::tuning::Tuning;
use crate::words::{whole_words, words};
use crate::{MOST_HITS, MOST_TOOLS, MOST_TOOLS_OF_A_SERVER};

/// The most words that are read of one field of a tool.
const MOST_WORDS_OF_A_FIELD: usize = 400;

/// What the name of a tool is worth to one who asks for exactly it: more than words can be.
const EXACT: f32 = 1000.0;

/// All tools of all servers, ready to be searched.
#[derive(Debug)]
pub struct Index {
    tuning: Tuning,
    synonyms: &'static Synonyms,
    /// Each tool at its place; places of tools that went are used again.
    tools: Vec<Option<Tool>>,
    free: Vec<u32>,
    servers: BTreeMap<Arc<str>, Vec<u32>>,
    words: BTreeMap<Box<str>, Word>,
    /// Changes with every change, so that a `Visible` knows whether it still fits.
    version: u64,
}

#[derive(Debug)]
struct Tool {
    server: Arc<str>,
    name: Box<str>,
    own_name: Box<str>,
    actions: Actions,
}

/// A word of some tools.
#[derive(Debug)]
struct Word {
    /// Kept here so that a look over all words does not have to go to each.
    letters: Letters,
    postings: Vec<Posting>,
}

/// A tool that has a word, and what that is worth before it is known how rare the word is.
#[derive(Debug, Clone, Copy)]
struct Posting {
    tool: u32,
    worth: f32,
}

/// One tool that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit<'i> {
    /// The server it belongs to.
    pub server: &'i str,
    /// The name it is called by.
    pub name: &'i str,
    /// How well it fits. Only an order: scores of different queries say nothing together.
    pub score: f32,
}

/// What an asker may see of an index, kept from one search to the next, so that the rule is
/// asked about each tool once per change of the index and not once per search. One of them is
/// for one rule and one index.
#[derive(Debug, Default)]
pub struct Visible {
    version: Option<u64>,
    shows: Vec<bool>,
    count: u32,
}

impl Default for Index {
    fn default() -> Self {
        Self::new(Tuning::default())
    }
}

impl Index {
    /// An empty index.
    pub fn new(tuning: Tuning) -> Self {
        Self {
            synonyms: Synonyms::shared(tuning.stemming),
            tuning,
            tools: Vec::new(),
            free: Vec::new(),
            servers: BTreeMap::new(),
            words: BTreeMap::new(),
            version: 0,
        }
    }

    /// How many tools can be found.
    pub fn len(&self) -> usize {
        self.tools.len() - self.free.len()
    }

    /// Whether there is nothing to find.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts these tools in the place of all that the server had. Of two with one name the
    /// first counts. Answers with how many were left out because there are too many.
    pub fn replace_server(&mut self, server: &str, documents: &[Document]) -> usize {
        self.remove_server(server);
        let room = MOST_TOOLS_OF_A_SERVER.min(MOST_TOOLS - self.len());
        let mut names = std::collections::BTreeSet::new();
        let kept: Vec<&Document> =
            documents.iter().filter(|it| names.insert(it.name.as_str())).collect();
        let left_out = kept.len().saturating_sub(room);
        let server: Arc<str> = server.into();
        let mut places: Vec<u32> =
            kept.into_iter().take(room).map(|document| self.add(&server, document)).collect();
        places.shrink_to_fit();
        if !places.is_empty() {
            self.servers.insert(server, places);
        }
        self.version += 1;
        left_out
    }

    /// Forgets all tools of a server.
    pub fn remove_server(&mut self, server: &str) {
        let Some(places) = self.servers.remove(server) else { return };
        for place in &places {
            self.tools[*place as usize] = None;
        }
        let tools = &self.tools;
        self.words.retain(|_, word| {
            word.postings.retain(|it| tools[it.tool as usize].is_some());
            !word.postings.is_empty()
        });
        self.free.extend(places);
        self.version += 1;
    }

    fn add(&mut self, server: &Arc<str>, document: &Document) -> u32 {
        let tool = Tool {
            server: Arc::clone(server),
            name: document.name.as_str().into(),
            own_name: document.own_name.as_str().into(),
            actions: self.actions(document),
        };
        let place = if let Some(place) = self.free.pop() {
            self.tools[place as usize] = Some(tool);
            place
        } else {
            self.tools.push(Some(tool));
            u32::try_from(self.tools.len() - 1).expect("there are at most MOST_TOOLS")
        };
        for (word, count) in self.counted(document) {
            let worth = count * (self.tuning.saturation + 1.0) / (self.tuning.saturation + count);
            let letters = Letters::of(&word);
            let known = self.words.entry(word.into());
            let known = known.or_insert_with(|| Word { letters, postings: Vec::new() });
            known.postings.push(Posting { tool: place, worth });
        }
        place
    }

    /// What a tool does by its name.
    fn actions(&self, document: &Document) -> Actions {
        let words = words(&document.own_name, MOST_WORDS_OF_A_FIELD);
        words.iter().map(|it| Actions::of(&stem(it, self.tuning.stemming))).collect()
    }

    /// How often a document has each of its words, by the weight of the fields they are in.
    ///
    /// How long a field is usually is a constant and no mean over all tools: so what one
    /// tool is worth depends on no other, and nothing has to be counted again when one goes.
    fn counted(&self, document: &Document) -> BTreeMap<String, f32> {
        let tuning = &self.tuning;
        let names = document.arguments.iter().map(|(name, _)| name.as_str());
        let about = document.arguments.iter().map(|(_, about)| about.as_str());
        let fields = [
            (document.server.clone(), tuning.server, 1.0),
            (document.own_name.clone(), tuning.name, 3.0),
            (document.title.clone(), tuning.title, 3.0),
            (document.description.clone(), tuning.description, 12.0),
            (names.collect::<Vec<_>>().join(" "), tuning.argument, 6.0),
            (about.collect::<Vec<_>>().join(" "), tuning.argument_description, 20.0),
        ];
        let mut counted = BTreeMap::new();
        for (text, weight, usual) in fields {
            let words = words(&text, MOST_WORDS_OF_A_FIELD);
            let length = f32::from(u16::try_from(words.len()).unwrap_or(u16::MAX));
            let each = weight / (1.0 + tuning.length * (length / usual - 1.0));
            for word in words.into_iter().chain(whole_words(&text, MOST_WORDS_OF_A_FIELD)) {
                *counted.entry(stem(&word, tuning.stemming)).or_insert(0.0) += each;
            }
        }
        counted
    }

    /// The tools that fit the query best, best first, at most `limit`, of those that
    /// `accepts` lets through. Of two that fit alike, the first by name stands first.
    pub fn search(
        &self,
        query: &str,
        limit: usize,
        accepts: impl Fn(&str, &str) -> bool,
    ) -> Vec<Hit<'_>> {
        self.search_within(&mut Visible::default(), query, limit, accepts)
    }

    /// As [`Self::search`]; what `accepts` said is kept for the next search.
    pub fn search_within(
        &self,
        visible: &mut Visible,
        query: &str,
        limit: usize,
        accepts: impl Fn(&str, &str) -> bool,
    ) -> Vec<Hit<'_>> {
        if visible.version != Some(self.version) {
            *visible = self.visible(accepts);
        }
        let seen = Seen { index: self, visible };
        let asked = query::asked(query, &self.tuning, self.synonyms, &seen);
        let mut found = seen.scores(&asked);
        self.raise_exact(query::read(query), &mut found);
        let limit = limit.min(MOST_HITS);
        let order = |a: &Hit<'_>, b: &Hit<'_>| {
            b.score.total_cmp(&a.score).then_with(|| (a.name, a.server).cmp(&(b.name, b.server)))
        };
        let mut hits: Vec<Hit<'_>> =
            best_of(found, limit).into_iter().filter_map(|it| self.hit(it)).collect();
        hits.sort_unstable_by(order);
        hits.truncate(limit);
        hits
    }

    fn visible(&self, accepts: impl Fn(&str, &str) -> bool) -> Visible {
        let shows = |tool: &Tool| accepts(&tool.server, &tool.name);
        let shows: Vec<bool> = self.tools.iter().map(|it| it.as_ref().is_some_and(shows)).collect();
        let count = shows.iter().map(|it| u32::from(*it)).sum();
        Visible { version: Some(self.version), shows, count }
    }

    /// Who is asked for by name stands first.
    fn raise_exact(&self, asked: &str, found: &mut [Found]) {
        if asked.contains(char::is_whitespace) {
            return; // No name behind the door has a space in it.
        }
        for (place, score) in found {
            let tool = self.tools[*place as usize].as_ref();
            let is_named = |it: &Tool| {
                it.name.eq_ignore_ascii_case(asked) || it.own_name.eq_ignore_ascii_case(asked)
            };
            *score += if tool.is_some_and(is_named) { EXACT } else { 0.0 };
        }
    }

    fn hit(&self, (place, score): Found) -> Option<Hit<'_>> {
        let tool = self.tools[place as usize].as_ref()?;
        Some(Hit { server: &tool.server, name: &tool.name, score })
    }
}

/// A tool by its place, and what it is worth.
type Found = (u32, f32);

/// Those that are among the first `limit` whatever the names of those that are worth the
/// same: all of these are kept.
fn best_of(mut found: Vec<Found>, limit: usize) -> Vec<Found> {
    if limit == 0 {
        return Vec::new();
    }
    if found.len() > limit {
        let (_, nth, _) = found.select_nth_unstable_by(limit - 1, |a, b| b.1.total_cmp(&a.1));
        let least = nth.1;
        found.retain(|(_, score)| *score >= least);
    }
    found
}

/// An index, as far as an asker may see it.
struct Seen<'i> {
    index: &'i Index,
    visible: &'i Visible,
}

impl Vocabulary for Seen<'_> {
    fn has(&self, word: &str) -> bool {
        self.postings(word).next().is_some()
    }

    fn starting_with<'v>(&'v self, start: &'v str) -> impl Iterator<Item = &'v str> {
        let from = (std::ops::Bound::Included(start), std::ops::Bound::Unbounded);
        let words = self.index.words.range::<str, _>(from).map(|(word, _)| &**word);
        words.take_while(move |word| word.starts_with(start))
    }

    fn with_letters_like(&self, letters: Letters, most: usize) -> impl Iterator<Item = &str> {
        let is_like = move |word: &Word| word.letters.are_like(letters, most);
        let words = self.index.words.iter().filter(move |(_, it)| is_like(it));
        words.map(|(word, _)| &**word)
    }
}

impl Seen<'_> {
    fn postings(&self, word: &str) -> impl Iterator<Item = Posting> {
        let all = self.index.words.get(word).map_or(&[][..], |it| &it.postings);
        all.iter().copied().filter(|it| self.visible.shows[it.tool as usize])
    }

    /// What each tool that has anything of what is wanted is worth.
    fn scores(&self, asked: &Asked) -> Vec<Found> {
        let tuning = &self.index.tuning;
        let mut sums = vec![Sum::default(); self.index.tools.len()];
        let mut best = Best::new(self.index.tools.len());
        let mut all = 0.0;
        for wanted in &asked.wanted {
            let ways: Vec<Vec<Found>> = wanted.ways.iter().map(|it| self.found_by(it)).collect();
            ways.iter().flatten().for_each(|(place, worth)| best.offer(*place, *worth));
            if best.found.is_empty() {
                continue;
            }
            let together = self.rarity(best.found.len());
            best.take(|_, _| ());
            all += together;
            for found in &ways {
                let own = self.rarity(found.len());
                let rare = together + tuning.own_rarity * (own - together);
                for (place, worth) in found {
                    best.offer(*place, rare * worth);
                }
            }
            best.take(|place, worth| sums[place as usize].add(worth, together));
        }
        let places = 0..u32::try_from(sums.len()).expect("there are at most MOST_TOOLS");
        let found = places.zip(sums).filter(|(_, sum)| sum.worth > 0.0);
        found.map(|(place, sum)| (place, sum.score(all, tuning) * self.fit(place, asked))).collect()
    }

    /// What is left of a tool's worth by what it does.
    fn fit(&self, place: u32, asked: &Asked) -> f32 {
        let tool = self.index.tools[place as usize].as_ref();
        let contradicts = tool.is_some_and(|it| it.actions.contradict(asked.actions));
        if contradicts { 1.0 - self.index.tuning.contradiction } else { 1.0 }
    }

    /// The tools that have all words of a way, and what that is worth before rarity.
    fn found_by(&self, way: &Way) -> Vec<Found> {
        let mut sums: Vec<Found> = Vec::new();
        for (number, word) in way.words.iter().enumerate() {
            if number == 0 {
                sums.extend(self.postings(word).map(|it| (it.tool, it.worth)));
                continue;
            }
            // Only who has the first words is looked at for the next.
            sums.sort_unstable_by_key(|(place, _)| *place);
            let mut both = Vec::new();
            for posting in self.postings(word) {
                if let Ok(at) = sums.binary_search_by_key(&posting.tool, |(place, _)| *place) {
                    both.push((posting.tool, sums[at].1 + posting.worth));
                }
            }
            sums = both;
        }
        let share = way.weight / count_as_f32(way.words.len());
        for (_, worth) in &mut sums {
            *worth *= share;
        }
        sums
    }

    /// What a word that so many tools have is worth, among those that the asker may see.
    fn rarity(&self, found: usize) -> f32 {
        let (all, found) = (count_as_f32(self.visible.count as usize), count_as_f32(found));
        (1.0 + (all - found + 0.5) / (found + 0.5)).ln()
    }
}

/// What a tool has of all things that are wanted.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    worth: f32,
    /// The rarities of the things that it has, together.
    covered: f32,
}

impl Sum {
    fn add(&mut self, worth: f32, rarity: f32) {
        self.worth += worth;
        self.covered += rarity;
    }

    /// Its worth, less if much of `all` is missing.
    fn score(self, all: f32, tuning: &Tuning) -> f32 {
        self.worth * (self.covered / all).powf(tuning.coverage)
    }
}

/// The best that each tool has for one thing that is wanted.
struct Best {
    worth: Vec<f32>,
    found: Vec<u32>,
}

impl Best {
    fn new(places: usize) -> Self {
        Self { worth: vec![0.0; places], found: Vec::new() }
    }

    fn offer(&mut self, place: u32, worth: f32) {
        let known = &mut self.worth[place as usize];
        if *known == 0.0 {
            self.found.push(place);
        }
        *known = known.max(worth);
    }

    /// Hands out what was found, and starts anew.
    fn take(&mut self, mut each: impl FnMut(u32, f32)) {
        for place in self.found.drain(..) {
            each(place, std::mem::take(&mut self.worth[place as usize]));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "there are at most MOST_TOOLS")]
fn count_as_f32(count: usize) -> f32 {
    count as f32
}

#[cfg(test)]
mod tests;
