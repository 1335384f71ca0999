//! Parses a query: its terms with their alternatives, and the intended action. Pure; the known
//! words come from an index.

use crate::actions::Actions;
use crate::letters::LetterSet;
use crate::stem::stem;
use crate::synonyms::{MAX_PHRASE_WORDS, Synonyms};
use crate::tuning::Tuning;
use crate::word_classes::{is_clock_time, is_particle, is_question, is_stop_word};
use crate::words::words;

/// Maximum length of a query, in bytes.
const MAX_QUERY: usize = 1024;

/// Maximum number of words of a query.
const MAX_WORDS: usize = 32;

/// Minimum length of a word that is completed.
const MIN_PREFIX: usize = 4;

/// Minimum length of a word that is corrected. Too many words are similar to a shorter one.
const MIN_CORRECTED: usize = 5;

/// Length from which a word may have two typing errors.
const LONG_WORD: usize = 8;

/// Minimum length of a part of a compound.
const MIN_COMPOUND_PART: usize = 3;

/// Maximum distance between the two words of a phrasal verb.
const MAX_VERB_GAP: usize = 5;

/// Maximum number of guesses for an unknown word.
const MAX_GUESSES: usize = 8;

/// The words of an index, as far as the client may see them.
pub(crate) trait Vocabulary {
    /// Returns true if a document that the client may see has the word.
    fn has(&self, word: &str) -> bool;
    /// Returns all words with this prefix, sorted, including those of hidden documents.
    fn words_with_prefix<'v>(&'v self, start: &'v str) -> impl Iterator<Item = &'v str>;
    /// Returns all words that may be within so many typing errors of a word with these letters,
    /// sorted, including those of hidden documents.
    fn similar_words(&self, letters: LetterSet, max_errors: usize) -> impl Iterator<Item = &str>;
}

/// The terms of a query, and the intended action.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ParsedQuery {
    pub(crate) terms: Vec<Term>,
    pub(crate) actions: Actions,
}

/// A term of the query. A document matches it if it has all words of one of the alternatives.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Term {
    pub(crate) alternatives: Vec<Alternative>,
}

/// Words that may stand for a term, with their weight.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Alternative {
    pub(crate) weight: f32,
    /// Set if the alternative stands for several words of the query together.
    pub(crate) is_of_phrase: bool,
    pub(crate) words: Vec<String>,
}

impl Alternative {
    fn word(word: &str, weight: f32) -> Self {
        Self { weight, is_of_phrase: false, words: vec![word.to_owned()] }
    }
}

/// Truncates a query to its maximum length.
pub(crate) fn truncate(query: &str) -> &str {
    query[..query.floor_char_boundary(MAX_QUERY)].trim()
}

/// Parses a query.
pub(crate) fn parse(
    query: &str,
    tuning: &Tuning,
    synonyms: &Synonyms,
    known: &impl Vocabulary,
) -> ParsedQuery {
    let plain = words(truncate(query), MAX_WORDS);
    let stems: Vec<String> = plain.iter().map(|it| stem(it, tuning.stemming)).collect();
    let parser = QueryParser { plain: &plain, stems: &stems, tuning, synonyms, known };
    let has_no_content = !(0..plain.len()).any(|at| parser.is_content_word(at));
    let mut parsed = ParsedQuery { terms: Vec::new(), actions: Actions::default() };
    if plain.first().is_some_and(|it| is_question(it)) {
        parsed.actions = Actions::READ;
    }
    for at in (0..plain.len()).filter(|at| !stems[..*at].contains(&stems[*at])) {
        let is_content = has_no_content || parser.is_content_word(at);
        let mut alternatives = parser.alternatives(at, is_content);
        // Words that no tool has also indicate the action.
        let words = alternatives.iter().flat_map(|it| &it.words);
        parsed.actions = parsed.actions | words.map(|it| Actions::of(it)).collect();
        parser.retain_known(at, is_content, &mut alternatives);
        if is_content || !alternatives.is_empty() {
            parsed.terms.push(Term { alternatives });
        }
    }
    if parsed.actions.is_empty() {
        parsed.actions = Actions::READ; // A query that only names a thing asks to see it.
    }
    deduplicate(&mut parsed.terms);
    parsed
}

/// Keeps each alternative only for the first term that has it; literal matches come before
/// synonyms. Otherwise `open it and show me what is there` would count `read` three times.
fn deduplicate(terms: &mut [Term]) {
    let mut used: Vec<Vec<String>> = Vec::new();
    for is_literal in [true, false] {
        for term in &mut *terms {
            term.alternatives.retain(|alternative| {
                if (alternative.weight >= 1.0) != is_literal || alternative.is_of_phrase {
                    return true;
                }
                let is_unused = !used.contains(&alternative.words);
                if is_unused {
                    used.push(alternative.words.clone());
                }
                is_unused
            });
        }
    }
}

struct QueryParser<'q, V> {
    plain: &'q [String],
    stems: &'q [String],
    tuning: &'q Tuning,
    synonyms: &'q Synonyms,
    known: &'q V,
}

impl<V: Vocabulary> QueryParser<'_, V> {
    /// Returns true if the word has a meaning of its own. A particle such as `off` has one only as
    /// part of a verb: things are switched off, but also taken off the list.
    fn is_content_word(&self, at: usize) -> bool {
        let word = &self.plain[at];
        if self.tuning.stop_words && is_stop_word(word) {
            return false;
        }
        let is_verb_with =
            |before: usize| !self.synonyms.of(&self.phrasal_verb(before, at)).is_empty();
        let nearest = at.saturating_sub(MAX_VERB_GAP)..at;
        !self.tuning.apart || !is_particle(word) || nearest.into_iter().any(is_verb_with)
    }

    /// Returns the stems of a phrasal verb.
    fn phrasal_verb(&self, first: usize, second: usize) -> [String; 2] {
        [self.stems[first].clone(), self.stems[second].clone()]
    }

    /// Returns the alternatives of the word at this position. A stop word may still be part of a
    /// known phrase: `how many`.
    fn alternatives(&self, at: usize, is_content: bool) -> Vec<Alternative> {
        let mut alternatives = Vec::new();
        if is_content {
            alternatives.push(Alternative::word(&self.stems[at], 1.0));
        }
        if self.tuning.synonym > 0.0 {
            self.add_synonyms(at, &mut alternatives);
        }
        alternatives
    }

    /// Retains the alternatives that occur in a visible tool. If there are none, adds guesses of
    /// the intended word.
    fn retain_known(&self, at: usize, is_content: bool, alternatives: &mut Vec<Alternative>) {
        if self.tuning.compounds && is_content {
            self.add_joined_words(at, alternatives);
        }
        let is_known =
            |alternative: &Alternative| alternative.words.iter().all(|it| self.known.has(it));
        alternatives.retain(is_known);
        if alternatives.is_empty() && self.tuning.compounds && is_content {
            self.add_split_words(at, alternatives);
        }
        if alternatives.is_empty() && self.tuning.slip > 0.0 && is_content {
            self.add_completions(at, alternatives);
        }
        if alternatives.is_empty()
            && self.tuning.slip > 0.0
            && self.tuning.synonym > 0.0
            && is_content
        {
            self.add_synonyms_of_corrections(at, alternatives);
            alternatives.retain(is_known);
        }
    }

    /// Adds the synonyms of the word, and of each phrase that it is part of.
    fn add_synonyms(&self, at: usize, alternatives: &mut Vec<Alternative>) {
        for length in 1..=MAX_PHRASE_WORDS {
            for start in (at + 1).saturating_sub(length)..=at {
                let Some(phrase) = self.stems.get(start..start + length) else { continue };
                self.add_alternatives(phrase, alternatives);
            }
        }
        if self.tuning.apart {
            self.add_separated_verbs(at, alternatives);
        }
        if is_clock_time(&self.plain[at]) {
            for word in ["time", "timezone"] {
                alternatives.push(Alternative::word(
                    &stem(word, self.tuning.stemming),
                    self.tuning.synonym,
                ));
            }
        }
    }

    fn add_alternatives(&self, phrase: &[String], alternatives: &mut Vec<Alternative>) {
        let further = i32::try_from(phrase.len() - 1).unwrap_or(i32::MAX);
        let weight = self.tuning.synonym * self.tuning.phrase.powi(further);
        for words in self.synonyms.of(phrase) {
            alternatives.push(Alternative {
                weight,
                is_of_phrase: phrase.len() > 1,
                words: words.clone(),
            });
        }
    }

    /// Adds the synonyms of a phrasal verb whose words stand apart: `roll it back`.
    fn add_separated_verbs(&self, at: usize, alternatives: &mut Vec<Alternative>) {
        for gap in 2..=MAX_VERB_GAP {
            if at >= gap && is_particle(&self.plain[at]) {
                self.add_alternatives(&self.phrasal_verb(at - gap, at), alternatives);
            }
            if self.plain.get(at + gap).is_some_and(|it| is_particle(it)) {
                self.add_alternatives(&self.phrasal_verb(at, at + gap), alternatives);
            }
        }
    }

    /// Adds the word joined with a neighbour: `drop down`.
    fn add_joined_words(&self, at: usize, alternatives: &mut Vec<Alternative>) {
        let starts = [at.checked_sub(1), Some(at)];
        for pair in
            starts.into_iter().flatten().filter_map(|start| self.plain.get(start..start + 2))
        {
            let joined = stem(&pair.concat(), self.tuning.stemming);
            alternatives.push(Alternative::word(&joined, 1.0));
        }
    }

    /// Adds the word split into two known words: `webpage`.
    fn add_split_words(&self, at: usize, alternatives: &mut Vec<Alternative>) {
        let word = &self.plain[at];
        let positions = word.char_indices().map(|(position, _)| position);
        for position in
            positions.filter(|it| *it >= MIN_COMPOUND_PART && word.len() - it >= MIN_COMPOUND_PART)
        {
            let (head, tail) = word.split_at(position);
            let parts = [head, tail].map(|it| stem(it, self.tuning.stemming));
            if parts.iter().all(|it| self.known.has(it)) {
                alternatives.push(Alternative {
                    weight: self.tuning.slip,
                    is_of_phrase: false,
                    words: parts.into(),
                });
            }
        }
    }

    /// Adds known words that begin with an unknown one or, if there are none, are similar to it.
    fn add_completions(&self, at: usize, alternatives: &mut Vec<Alternative>) {
        let word = &self.stems[at];
        let length = word.chars().count();
        if length < MIN_PREFIX {
            return;
        }
        let longer = self.known.words_with_prefix(word).filter(|it| self.known.has(it));
        alternatives
            .extend(longer.take(MAX_GUESSES).map(|it| Alternative::word(it, self.tuning.slip)));
        if alternatives.is_empty() && length >= MIN_CORRECTED {
            self.add_corrections(word, if length >= LONG_WORD { 2 } else { 1 }, alternatives);
        }
    }

    /// Adds the synonyms of a corrected word that no tool has: `umbrela`.
    fn add_synonyms_of_corrections(&self, at: usize, alternatives: &mut Vec<Alternative>) {
        let word = &self.stems[at];
        if word.chars().count() < MIN_CORRECTED {
            return;
        }
        for similar in self.synonyms.similar_words(LetterSet::of(word)) {
            if strsim::osa_distance(word, similar) == 1 {
                self.add_alternatives(&[similar.to_owned()], alternatives);
            }
        }
    }

    /// Adds known words within so many typing errors of an unknown one.
    fn add_corrections(&self, word: &str, max_errors: usize, alternatives: &mut Vec<Alternative>) {
        let similar = self.known.similar_words(LetterSet::of(word), max_errors);
        let similar = similar.map(|known| (strsim::osa_distance(word, known), known));
        let mut similar: Vec<(usize, &str)> =
            similar.filter(|(errors, _)| *errors <= max_errors).collect();
        similar.retain(|(_, known)| self.known.has(known));
        similar.sort_unstable();
        for (errors, known) in similar.into_iter().take(MAX_GUESSES) {
            let weight = if errors > 1 { self.tuning.slip / 2.0 } else { self.tuning.slip };
            alternatives.push(Alternative::word(known, weight));
        }
    }
}
