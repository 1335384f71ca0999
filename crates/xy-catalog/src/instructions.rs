//! The combined instructions of all servers, short enough that clients do not truncate them. Pure.
//!
//! The caller orders the servers by importance. If not all texts fit, short ones stay whole and
//! long ones are truncated to equal length, at a word boundary. If too little would be left of
//! each, the last ones are omitted.

/// Maximum size in bytes: some clients truncate longer instructions.
const MAX_BYTES: usize = 2000;

/// Minimum number of bytes per server; fewer would be meaningless.
const MIN_SHARE: usize = 60;

/// Marks a truncated text.
const ELLIPSIS: &str = " […]";

/// Combines an introduction with the instructions of the named servers.
pub fn combine(first: &str, servers: &[(String, String)]) -> String {
    let parts: Vec<String> = servers
        .iter()
        .filter(|(_, words)| !words.trim().is_empty())
        .map(|(name, words)| format!("\n\n{name}: {}", words.trim()))
        .collect();
    let room = MAX_BYTES.saturating_sub(first.len());
    let mut count = parts.len().min(room / MIN_SHARE);
    let mut most = fair_share(&parts[..count], room);
    while count > 1 && most < MIN_SHARE {
        count -= 1;
        most = fair_share(&parts[..count], room);
    }
    let kept = parts[..count].iter().map(|part| truncate(part, most));
    std::iter::once(first.to_owned()).chain(kept).collect()
}

/// Returns the maximum length of each part so that all fit together.
fn fair_share(parts: &[String], room: usize) -> usize {
    let fits = |most: usize| parts.iter().map(|part| part.len().min(most)).sum::<usize>() <= room;
    if fits(usize::MAX) {
        return usize::MAX;
    }
    let (mut fitting, mut too_much) = (0, room + 1);
    while too_much - fitting > 1 {
        let middle = usize::midpoint(fitting, too_much);
        if fits(middle) { fitting = middle } else { too_much = middle }
    }
    fitting
}

/// Truncates a text at a word boundary.
fn truncate(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let most = text.floor_char_boundary(most.saturating_sub(ELLIPSIS.len()));
    let kept = &text[..most];
    // A very long word is split.
    let end = kept.rfind(char::is_whitespace).filter(|end| *end > most / 2).unwrap_or(most);
    format!("{}{ELLIPSIS}", kept[..end].trim_end())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(texts: &[&str]) -> String {
        let named = |(place, text): (usize, &&str)| (format!("s{place}"), (*text).to_owned());
        combine("first", &texts.iter().enumerate().map(named).collect::<Vec<_>>())
    }

    #[test]
    fn instructions_that_fit_are_complete_and_in_order() {
        assert_eq!(all(&[" one ", "", "three"]), "first\n\ns0: one\n\ns2: three");
        assert_eq!(all(&[]), "first");
    }

    #[test]
    fn long_instructions_are_cut_at_a_word() {
        let long = "word ".repeat(1000);
        let text = all(&[&long, "short", &long]);
        assert!(text.len() <= MAX_BYTES && text.len() > MAX_BYTES - 40, "{}", text.len());
        assert!(text.contains("s1: short\n"));
        let cut: Vec<&str> = text.split("\n\n").filter(|it| it.ends_with("word […]")).collect();
        assert_eq!(cut.len(), 2, "{text}");
    }

    #[test]
    fn too_many_instructions_keep_the_first() {
        let texts = vec!["some words that are long enough to be cut off somewhere"; 500];
        let text = all(&texts);
        assert!(text.len() <= MAX_BYTES && text.contains("s0: some") && !text.contains("s499:"));
    }

    proptest! {
        #[test]
        fn instructions_never_exceed_the_limit(texts in proptest::collection::vec(".{0,900}", 0..60)) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            prop_assert!(all(&texts).len() <= MAX_BYTES);
        }
    }
}
