//! The index: the words of each tool and their weights.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::actions::Actions;
use crate::document::Document;
use crate::letters::LetterSet;
use crate::query::{self, Alternative, ParsedQuery, Vocabulary};
use crate::stem::stem;
use crate::synonyms::Synonyms;
use crate::tuning::Tuning;
use crate::words::{whole_words, words};
use crate::{MAX_HITS, MAX_TOOLS, MAX_TOOLS_PER_SERVER};

/// Maximum number of words of one field of a tool.
const MAX_WORDS_PER_FIELD: usize = 400;

/// Bonus for a tool whose name is the query. No sum of words is as high.
const EXACT_MATCH_BONUS: f32 = 1000.0;

/// The tools of all servers, ready to be searched.
#[derive(Debug)]
pub struct Index {
    tuning: Tuning,
    synonyms: &'static Synonyms,
    /// Each tool in its slot; slots of removed tools are reused.
    tools: Vec<Option<Tool>>,
    free: Vec<u32>,
    servers: BTreeMap<Arc<str>, Vec<u32>>,
    words: BTreeMap<Box<str>, IndexedWord>,
    /// Changes with every change, so that a [`VisibilityCache`] knows if it is still valid.
    version: u64,
}

#[derive(Debug)]
struct Tool {
    server: Arc<str>,
    name: Box<str>,
    own_name: Box<str>,
    actions: Actions,
}

/// A word and the tools that have it.
#[derive(Debug)]
struct IndexedWord {
    /// Stored here so that a scan of all words need not visit each string.
    letters: LetterSet,
    postings: Vec<Posting>,
}

/// A tool that has a word, and the weight of the word there, before its rarity is applied.
#[derive(Debug, Clone, Copy)]
struct Posting {
    tool: u32,
    weight: f32,
}

/// A tool that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit<'i> {
    /// The server it belongs to.
    pub server: &'i str,
    /// The exposed name.
    pub name: &'i str,
    /// The quality of the match. Scores of different queries do not compare.
    pub score: f32,
}

/// The tools that a client may see, cached between searches. The rule is then evaluated once per
/// change of the index instead of once per search. A cache belongs to one rule and one index.
#[derive(Debug, Default)]
pub struct VisibilityCache {
    version: Option<u64>,
    is_visible: Vec<bool>,
    count: u32,
}

impl Default for Index {
    fn default() -> Self {
        Self::new(Tuning::default())
    }
}

impl Index {
    /// Creates an empty index.
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

    /// Returns the number of tools.
    pub fn len(&self) -> usize {
        self.tools.len() - self.free.len()
    }

    /// Returns true if there are no tools.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces all tools of a server. Of several tools with the same name, the first counts.
    /// Returns how many were left out because of the limits.
    pub fn replace_server(&mut self, server: &str, documents: &[Document]) -> usize {
        self.remove_server(server);
        let room = MAX_TOOLS_PER_SERVER.min(MAX_TOOLS - self.len());
        let mut names = std::collections::BTreeSet::new();
        let unique: Vec<&Document> =
            documents.iter().filter(|it| names.insert(it.name.as_str())).collect();
        let left_out = unique.len().saturating_sub(room);
        let server: Arc<str> = server.into();
        let mut slots: Vec<u32> =
            unique.into_iter().take(room).map(|document| self.add(&server, document)).collect();
        slots.shrink_to_fit();
        if !slots.is_empty() {
            self.servers.insert(server, slots);
        }
        self.version += 1;
        left_out
    }

    /// Removes all tools of a server.
    pub fn remove_server(&mut self, server: &str) {
        let Some(slots) = self.servers.remove(server) else { return };
        for slot in &slots {
            self.tools[*slot as usize] = None;
        }
        let tools = &self.tools;
        self.words.retain(|_, word| {
            word.postings.retain(|it| tools[it.tool as usize].is_some());
            !word.postings.is_empty()
        });
        self.free.extend(slots);
        self.version += 1;
    }

    fn add(&mut self, server: &Arc<str>, document: &Document) -> u32 {
        let tool = Tool {
            server: Arc::clone(server),
            name: document.name.as_str().into(),
            own_name: document.own_name.as_str().into(),
            actions: self.actions(document),
        };
        let slot = if let Some(slot) = self.free.pop() {
            self.tools[slot as usize] = Some(tool);
            slot
        } else {
            self.tools.push(Some(tool));
            u32::try_from(self.tools.len() - 1).expect("there are at most MAX_TOOLS")
        };
        for (word, count) in self.word_weights(document) {
            let weight = count * (self.tuning.saturation + 1.0) / (self.tuning.saturation + count);
            let letters = LetterSet::of(&word);
            let known = self.words.entry(word.into());
            let known = known.or_insert_with(|| IndexedWord { letters, postings: Vec::new() });
            known.postings.push(Posting { tool: slot, weight });
        }
        slot
    }

    /// Returns the actions that a tool's name indicates.
    fn actions(&self, document: &Document) -> Actions {
        let words = words(&document.own_name, MAX_WORDS_PER_FIELD);
        words.iter().map(|it| Actions::of(&stem(it, self.tuning.stemming))).collect()
    }

    /// Returns the words of a document, each with the sum of its weights in all fields.
    ///
    /// The usual length of a field is a constant, not the mean of all tools. So the score of one
    /// tool depends on no other, and nothing must be recomputed when a tool is removed.
    fn word_weights(&self, document: &Document) -> BTreeMap<String, f32> {
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
        let mut word_weights = BTreeMap::new();
        for (text, weight, usual_length) in fields {
            let words = words(&text, MAX_WORDS_PER_FIELD);
            let length = f32::from(u16::try_from(words.len()).unwrap_or(u16::MAX));
            let each = weight / (1.0 + tuning.length * (length / usual_length - 1.0));
            for word in words.into_iter().chain(whole_words(&text, MAX_WORDS_PER_FIELD)) {
                *word_weights.entry(stem(&word, tuning.stemming)).or_insert(0.0) += each;
            }
        }
        word_weights
    }

    /// Returns the best matches among the tools that `accepts` allows, best first, at most `limit`.
    /// Ties are ordered by name.
    pub fn search(
        &self,
        query: &str,
        limit: usize,
        accepts: impl Fn(&str, &str) -> bool,
    ) -> Vec<Hit<'_>> {
        self.search_cached(&mut VisibilityCache::default(), query, limit, accepts)
    }

    /// Searches, and caches the results of `accepts` for the next search.
    pub fn search_cached(
        &self,
        visible: &mut VisibilityCache,
        query: &str,
        limit: usize,
        accepts: impl Fn(&str, &str) -> bool,
    ) -> Vec<Hit<'_>> {
        if visible.version != Some(self.version) {
            *visible = self.visible(accepts);
        }
        let visible_index = VisibleIndex { index: self, visible };
        let parsed = query::parse(query, &self.tuning, self.synonyms, &visible_index);
        let mut found = visible_index.scores(&parsed);
        self.boost_exact_matches(query::truncate(query), &mut found);
        let limit = limit.min(MAX_HITS);
        let by_score_and_name = |a: &Hit<'_>, b: &Hit<'_>| {
            b.score.total_cmp(&a.score).then_with(|| (a.name, a.server).cmp(&(b.name, b.server)))
        };
        let mut hits: Vec<Hit<'_>> =
            select_best(found, limit).into_iter().filter_map(|it| self.to_hit(it)).collect();
        hits.sort_unstable_by(by_score_and_name);
        hits.truncate(limit);
        hits
    }

    fn visible(&self, accepts: impl Fn(&str, &str) -> bool) -> VisibilityCache {
        let is_visible = |tool: &Tool| accepts(&tool.server, &tool.name);
        let is_visible: Vec<bool> =
            self.tools.iter().map(|it| it.as_ref().is_some_and(is_visible)).collect();
        let count = is_visible.iter().map(|it| u32::from(*it)).sum();
        VisibilityCache { version: Some(self.version), is_visible, count }
    }

    /// Moves tools whose name is the query to the top.
    fn boost_exact_matches(&self, query: &str, found: &mut [Scored]) {
        if query.contains(char::is_whitespace) {
            return; // No exposed name contains a space.
        }
        for (slot, score) in found {
            let tool = self.tools[*slot as usize].as_ref();
            let is_named = |it: &Tool| {
                it.name.eq_ignore_ascii_case(query) || it.own_name.eq_ignore_ascii_case(query)
            };
            *score += if tool.is_some_and(is_named) { EXACT_MATCH_BONUS } else { 0.0 };
        }
    }

    fn to_hit(&self, (slot, score): Scored) -> Option<Hit<'_>> {
        let tool = self.tools[slot as usize].as_ref()?;
        Some(Hit { server: &tool.server, name: &tool.name, score })
    }
}

/// The slot of a tool, and its score.
type Scored = (u32, f32);

/// Returns the first `limit` tools by score, and all that tie with the last of them.
fn select_best(mut found: Vec<Scored>, limit: usize) -> Vec<Scored> {
    if limit == 0 {
        return Vec::new();
    }
    if found.len() > limit {
        let (_, nth, _) = found.select_nth_unstable_by(limit - 1, |a, b| b.1.total_cmp(&a.1));
        let threshold = nth.1;
        found.retain(|(_, score)| *score >= threshold);
    }
    found
}

/// The part of an index that a client may see.
struct VisibleIndex<'i> {
    index: &'i Index,
    visible: &'i VisibilityCache,
}

impl Vocabulary for VisibleIndex<'_> {
    fn has(&self, word: &str) -> bool {
        self.postings(word).next().is_some()
    }

    fn words_with_prefix<'v>(&'v self, start: &'v str) -> impl Iterator<Item = &'v str> {
        let from = (std::ops::Bound::Included(start), std::ops::Bound::Unbounded);
        let words = self.index.words.range::<str, _>(from).map(|(word, _)| &**word);
        words.take_while(move |word| word.starts_with(start))
    }

    fn similar_words(&self, letters: LetterSet, max_errors: usize) -> impl Iterator<Item = &str> {
        let is_like = move |word: &IndexedWord| word.letters.may_be_within(letters, max_errors);
        let words = self.index.words.iter().filter(move |(_, it)| is_like(it));
        words.map(|(word, _)| &**word)
    }
}

impl VisibleIndex<'_> {
    fn postings(&self, word: &str) -> impl Iterator<Item = Posting> {
        let all = self.index.words.get(word).map_or(&[][..], |it| &it.postings);
        all.iter().copied().filter(|it| self.visible.is_visible[it.tool as usize])
    }

    /// Returns the score of each tool that matches any term.
    fn scores(&self, query: &ParsedQuery) -> Vec<Scored> {
        let tuning = &self.index.tuning;
        let mut sums = vec![ScoreSum::default(); self.index.tools.len()];
        let mut best = BestScores::new(self.index.tools.len());
        let mut all = 0.0;
        for term in &query.terms {
            let matches: Vec<Vec<Scored>> =
                term.alternatives.iter().map(|it| self.match_alternative(it)).collect();
            matches.iter().flatten().for_each(|(slot, weight)| best.offer(*slot, *weight));
            if best.found.is_empty() {
                continue;
            }
            let term_rarity = self.rarity(best.found.len());
            best.take(|_, _| ());
            all += term_rarity;
            for found in &matches {
                let own = self.rarity(found.len());
                let rarity = term_rarity + tuning.own_rarity * (own - term_rarity);
                for (slot, weight) in found {
                    best.offer(*slot, rarity * weight);
                }
            }
            best.take(|slot, weight| sums[slot as usize].add(weight, term_rarity));
        }
        let slots = 0..u32::try_from(sums.len()).expect("there are at most MAX_TOOLS");
        let found = slots.zip(sums).filter(|(_, sum)| sum.weight > 0.0);
        found
            .map(|(slot, sum)| (slot, sum.score(all, tuning) * self.action_factor(slot, query)))
            .collect()
    }

    /// Returns the factor on the score for a contradicting action.
    fn action_factor(&self, slot: u32, query: &ParsedQuery) -> f32 {
        let tool = self.index.tools[slot as usize].as_ref();
        let contradicts = tool.is_some_and(|it| it.actions.contradicts(query.actions));
        if contradicts { 1.0 - self.index.tuning.contradiction } else { 1.0 }
    }

    /// Returns the tools that have all words of an alternative, with their weight before rarity.
    fn match_alternative(&self, alternative: &Alternative) -> Vec<Scored> {
        let mut sums: Vec<Scored> = Vec::new();
        for (number, word) in alternative.words.iter().enumerate() {
            if number == 0 {
                sums.extend(self.postings(word).map(|it| (it.tool, it.weight)));
                continue;
            }
            // Only tools with the first words are checked for the next.
            sums.sort_unstable_by_key(|(slot, _)| *slot);
            let mut both = Vec::new();
            for posting in self.postings(word) {
                if let Ok(at) = sums.binary_search_by_key(&posting.tool, |(slot, _)| *slot) {
                    both.push((posting.tool, sums[at].1 + posting.weight));
                }
            }
            sums = both;
        }
        let share = alternative.weight / count_as_f32(alternative.words.len());
        for (_, weight) in &mut sums {
            *weight *= share;
        }
        sums
    }

    /// Returns the weight of a word by the number of visible tools that have it.
    fn rarity(&self, found: usize) -> f32 {
        let (all, found) = (count_as_f32(self.visible.count as usize), count_as_f32(found));
        (1.0 + (all - found + 0.5) / (found + 0.5)).ln()
    }
}

/// The score of a tool over all terms.
#[derive(Debug, Clone, Copy, Default)]
struct ScoreSum {
    weight: f32,
    /// The sum of the rarities of the matched terms.
    covered: f32,
}

impl ScoreSum {
    fn add(&mut self, weight: f32, rarity: f32) {
        self.weight += weight;
        self.covered += rarity;
    }

    /// Returns the score, reduced by the missing share of `all`.
    fn score(self, all: f32, tuning: &Tuning) -> f32 {
        self.weight * (self.covered / all).powf(tuning.coverage)
    }
}

/// The best score of each tool for one term.
struct BestScores {
    weight: Vec<f32>,
    found: Vec<u32>,
}

impl BestScores {
    fn new(slots: usize) -> Self {
        Self { weight: vec![0.0; slots], found: Vec::new() }
    }

    fn offer(&mut self, slot: u32, weight: f32) {
        let known = &mut self.weight[slot as usize];
        if *known == 0.0 {
            self.found.push(slot);
        }
        *known = known.max(weight);
    }

    /// Passes on all scores, and resets them.
    fn take(&mut self, mut each: impl FnMut(u32, f32)) {
        for slot in self.found.drain(..) {
            each(slot, std::mem::take(&mut self.weight[slot as usize]));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "there are at most MAX_TOOLS")]
fn count_as_f32(count: usize) -> f32 {
    count as f32
}

#[cfg(test)]
mod tests;
