//! Parameters of the search. The product uses the defaults; a benchmark shows the effect of each
//! parameter.

/// How words are reduced to stems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stemming {
    /// Words are not changed.
    None,
    /// Only the `s` of a plural is removed.
    Plural,
    /// Porter's rules for English.
    Porter,
}

/// Weights of fields and of matches, and how words are compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// How words are reduced to stems.
    pub stemming: Stemming,
    /// Weight of a word in the server's name.
    pub server: f32,
    /// Weight of a word in the tool's name.
    pub name: f32,
    /// Weight of a word in the title.
    pub title: f32,
    /// Weight of a word in the description.
    pub description: f32,
    /// Weight of a word in the name of an argument.
    pub argument: f32,
    /// Weight of a word in the description of an argument.
    pub argument_description: f32,
    /// How soon repetitions of a word stop to count: BM25's `k1`.
    pub saturation: f32,
    /// How much a long text reduces the weight of each of its words: BM25's `b`.
    pub length: f32,
    /// Weight of a synonym; 0 disables synonyms.
    pub synonym: f32,
    /// Factor on the weight of a synonym for each further word of a phrase.
    pub phrase: f32,
    /// Recognises phrasal verbs whose words stand apart, as in `roll it back`. Particles such as
    /// `off` and `up` are then ignored where they are not part of a verb.
    pub apart: bool,
    /// How much each word counts by its own rarity, instead of by the rarity of all its
    /// alternatives together.
    pub own_rarity: f32,
    /// Exponent of the share of the query that a tool matches.
    pub coverage: f32,
    /// Share of the score that is deducted from a tool whose action contradicts the query.
    pub contradiction: f32,
    /// Weight of a word that is one typing error away from an unknown one; 0 disables corrections.
    pub slip: f32,
    /// Joins and splits words to find known ones: `drop down`, `webpage`.
    pub compounds: bool,
    /// Removes stop words from queries.
    pub stop_words: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            stemming: Stemming::Porter,
            server: 1.0,
            name: 2.0,
            title: 2.0,
            description: 1.0,
            argument: 0.2,
            argument_description: 0.4,
            saturation: 1.3,
            length: 0.25,
            synonym: 0.7,
            phrase: 0.85,
            apart: true,
            own_rarity: 0.3,
            coverage: 0.3,
            contradiction: 0.1,
            slip: 0.7,
            compounds: true,
            stop_words: true,
        }
    }
}
