//! What can be tuned. Everybody uses the default; a benchmark shows what each part gives.

/// How words are brought to their stems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stemming {
    /// Not at all.
    None,
    /// Only the `s` of a plural goes.
    Plural,
    /// By Porter's rules for English.
    Porter,
}

/// What a word found in a field is worth, and how words are compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// How words are brought to their stems.
    pub stemming: Stemming,
    /// Weight of a word in the name of the server.
    pub server: f32,
    /// Weight of a word in the name of the tool.
    pub name: f32,
    /// Weight of a word in the title.
    pub title: f32,
    /// Weight of a word in the description.
    pub description: f32,
    /// Weight of a word in the name of an argument.
    pub argument: f32,
    /// Weight of a word in the description of an argument.
    pub argument_description: f32,
    /// How soon more of the same word stops to count: BM25's `k1`.
    pub saturation: f32,
    /// How much a long text makes each of its words count less: BM25's `b`.
    pub length: f32,
    /// Weight of another word for the same thing; 0 for none.
    pub synonym: f32,
    /// What is left of that for each further word of a phrase, which counts for all of its
    /// words.
    pub phrase: f32,
    /// Whether the two words of a verb may stand apart: `roll it back`. Then `off` and `up`
    /// say nothing where they make no verb.
    pub apart: bool,
    /// How much each word counts by its own rarity, and not by that of all words for the
    /// same thing together.
    pub own_rarity: f32,
    /// How much it counts to have more of what is asked for: a power.
    pub coverage: f32,
    /// The share that is taken from a tool that does something else than is asked for.
    pub contradiction: f32,
    /// Weight of a word that is one slip from the one asked for, where that is unknown; 0
    /// for none.
    pub slip: f32,
    /// Whether words are joined and taken apart to find what is known: `drop down`,
    /// `webpage`.
    pub compounds: bool,
    /// Whether words that say nothing are left out of queries.
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
