//! A query to what is looked for: each of its words, with the other words that may stand for
//! it. Pure; what words there are, an index says.

use crate::stem::stem;
use crate::synonyms::{LONGEST_PHRASE, Synonyms};
use crate::tuning::Tuning;
use crate::words::{is_stop_word, words};

/// The longest query that is read, in bytes.
const LONGEST_QUERY: usize = 1024;

/// The most words that are read of a query.
const MOST_WORDS: usize = 32;

/// A word shorter than this is not taken for the beginning of another.
const SHORTEST_BEGINNING: usize = 4;

/// A word shorter than this is not taken for a mistyped one: too many are near it.
const SHORTEST_MISTYPED: usize = 5;

/// From this length on, a word may be two slips away from the one that was meant.
const LONG: usize = 8;

/// The shortest part that a word is taken apart into.
const SHORTEST_PART: usize = 3;

/// The most words that are tried for an unknown one.
const MOST_GUESSES: usize = 8;

/// The words of an index, as far as the asker may see them.
pub(crate) trait Vocabulary {
    /// Whether a document that the asker may see has the word.
    fn has(&self, word: &str) -> bool;
    /// All words that start like this, in their order, also those that nobody may see.
    fn starting_with<'v>(&'v self, start: &'v str) -> impl Iterator<Item = &'v str>;
    /// All words whose letters allow that they are at most so many slips away from these,
    /// in their order, also those that nobody may see.
    fn with_letters_like(&self, letters: Letters, most: usize) -> impl Iterator<Item = &str>;
}

/// Which letters a word has, and how many: a quick look at two words before the slow one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Letters {
    set: u32,
    count: usize,
}

impl Letters {
    pub(crate) fn of(word: &str) -> Self {
        let set = word.chars().fold(0, |set, it| set | 1 << (u32::from(it) % 32));
        Self { set, count: word.chars().count() }
    }

    /// Whether one word may become the other by so many slips: each takes a letter away at
    /// most, and brings another.
    pub(crate) fn are_like(self, other: Self, most: usize) -> bool {
        let apart = (self.set ^ other.set).count_ones() as usize;
        self.count.abs_diff(other.count) <= most && apart <= 2 * most
    }
}

/// One thing that is looked for. A document has it if it has all words of one of the ways.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) ways: Vec<Way>,
}

/// Words that may stand for a thing, and how well they do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Way {
    pub(crate) weight: f32,
    /// Whether it stands for several words of the query together.
    pub(crate) of_phrase: bool,
    pub(crate) words: Vec<String>,
}

impl Way {
    fn word(word: &str, weight: f32) -> Self {
        Self { weight, of_phrase: false, words: vec![word.to_owned()] }
    }
}

/// As much of a query as is read.
pub(crate) fn read(query: &str) -> &str {
    query[..query.floor_char_boundary(LONGEST_QUERY)].trim()
}

/// What is looked for with a query.
pub(crate) fn wanted(
    query: &str,
    tuning: &Tuning,
    synonyms: &Synonyms,
    known: &impl Vocabulary,
) -> Vec<Wanted> {
    let plain = words(read(query), MOST_WORDS);
    let stems: Vec<String> = plain.iter().map(|it| stem(it, tuning.stemming)).collect();
    let reader = Reader { plain: &plain, stems: &stems, tuning, synonyms, known };
    let says_something = |at: &usize| !tuning.stop_words || !is_stop_word(&plain[*at]);
    let only_stop_words = !(0..plain.len()).any(|at| says_something(&at));
    let mut wanted: Vec<Wanted> = Vec::new();
    for at in (0..plain.len()).filter(|at| !stems[..*at].contains(&stems[*at])) {
        let itself = only_stop_words || says_something(&at);
        let found = reader.wanted(at, itself);
        if itself || !found.ways.is_empty() {
            wanted.push(found);
        }
    }
    count_once(&mut wanted);
    wanted
}

/// Leaves each way only to the first thing that is looked for by it, those who ask for it
/// literally before those for whom it is another word: `open it and show me what is there`
/// wants to read once, not three times.
fn count_once(wanted: &mut [Wanted]) {
    let mut taken: Vec<Vec<String>> = Vec::new();
    for is_literal in [true, false] {
        for wanted in &mut *wanted {
            wanted.ways.retain(|way| {
                if (way.weight >= 1.0) != is_literal || way.of_phrase {
                    return true;
                }
                let is_free = !taken.contains(&way.words);
                if is_free {
                    taken.push(way.words.clone());
                }
                is_free
            });
        }
    }
}

struct Reader<'q, V> {
    plain: &'q [String],
    stems: &'q [String],
    tuning: &'q Tuning,
    synonyms: &'q Synonyms,
    known: &'q V,
}

impl<V: Vocabulary> Reader<'_, V> {
    /// What is looked for with the word at this place. A word that says nothing itself may
    /// still be a part of what is known by other words: `how many`.
    fn wanted(&self, at: usize, itself: bool) -> Wanted {
        let mut ways = Vec::new();
        if itself {
            ways.push(Way::word(&self.stems[at], 1.0));
        }
        if self.tuning.synonym > 0.0 {
            self.add_synonyms(at, &mut ways);
        }
        if self.tuning.compounds && itself {
            self.add_joined(at, &mut ways);
        }
        let is_known = |way: &Way| way.words.iter().all(|it| self.known.has(it));
        ways.retain(is_known);
        if ways.is_empty() && self.tuning.compounds && itself {
            self.add_taken_apart(at, &mut ways);
        }
        if ways.is_empty() && self.tuning.slip > 0.0 && itself {
            self.add_guesses(at, &mut ways);
        }
        Wanted { ways }
    }

    /// Other words for it, and for each phrase that it is a part of.
    fn add_synonyms(&self, at: usize, ways: &mut Vec<Way>) {
        for length in 1..=LONGEST_PHRASE {
            for start in (at + 1).saturating_sub(length)..=at {
                let Some(phrase) = self.stems.get(start..start + length) else { continue };
                for other in self.synonyms.of(phrase) {
                    ways.push(Way {
                        weight: self.tuning.synonym,
                        of_phrase: length > 1,
                        words: other.clone(),
                    });
                }
            }
        }
    }

    /// It and a neighbour as one word: `drop down`.
    fn add_joined(&self, at: usize, ways: &mut Vec<Way>) {
        let starts = [at.checked_sub(1), Some(at)];
        for pair in
            starts.into_iter().flatten().filter_map(|start| self.plain.get(start..start + 2))
        {
            let joined = stem(&pair.concat(), self.tuning.stemming);
            ways.push(Way::word(&joined, 1.0));
        }
    }

    /// It as two known words: `webpage`.
    fn add_taken_apart(&self, at: usize, ways: &mut Vec<Way>) {
        let word = &self.plain[at];
        let places = word.char_indices().map(|(place, _)| place);
        for place in places.filter(|it| *it >= SHORTEST_PART && word.len() - it >= SHORTEST_PART) {
            let (head, tail) = word.split_at(place);
            let parts = [head, tail].map(|it| stem(it, self.tuning.stemming));
            if parts.iter().all(|it| self.known.has(it)) {
                ways.push(Way { weight: self.tuning.slip, of_phrase: false, words: parts.into() });
            }
        }
    }

    /// Known words that begin with an unknown one, or are near it.
    fn add_guesses(&self, at: usize, ways: &mut Vec<Way>) {
        let word = &self.stems[at];
        let length = word.chars().count();
        if length < SHORTEST_BEGINNING {
            return;
        }
        let longer = self.known.starting_with(word).filter(|it| self.known.has(it));
        ways.extend(longer.take(MOST_GUESSES).map(|it| Way::word(it, self.tuning.slip)));
        if ways.is_empty() && length >= SHORTEST_MISTYPED {
            self.add_near(word, if length >= LONG { 2 } else { 1 }, ways);
        }
    }

    /// Known words that are at most so many slips from an unknown one.
    fn add_near(&self, word: &str, most: usize, ways: &mut Vec<Way>) {
        let near = self.known.with_letters_like(Letters::of(word), most);
        let near = near.map(|known| (strsim::osa_distance(word, known), known));
        let mut near: Vec<(usize, &str)> = near.filter(|(slips, _)| *slips <= most).collect();
        near.retain(|(_, known)| self.known.has(known));
        near.sort_unstable();
        for (slips, known) in near.into_iter().take(MOST_GUESSES) {
            let weight = if slips > 1 { self.tuning.slip / 2.0 } else { self.tuning.slip };
            ways.push(Way::word(known, weight));
        }
    }
}
