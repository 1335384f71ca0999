//! What all servers say of how to use them, as one text that clients do not cut off. Pure.
//!
//! The order is the caller's: what is most important comes first. Where there is not enough
//! room for all, short ones are kept whole and long ones are cut to the same length, at a
//! word; if that left too little of each, the last are left out.

/// What clients show to their models of it; more is cut off by some.
const MOST_BYTES: usize = 2000;

/// With less of one nobody knows what it says.
const LEAST_OF_ONE: usize = 60;

/// Stands where something was cut off.
const CUT: &str = " […]";

/// What is said first, and then what each of the named servers says.
pub(crate) fn combined(first: &str, servers: &[(String, String)]) -> String {
    let parts: Vec<String> = servers
        .iter()
        .filter(|(_, words)| !words.trim().is_empty())
        .map(|(name, words)| format!("\n\n{name}: {}", words.trim()))
        .collect();
    let room = MOST_BYTES.saturating_sub(first.len());
    let mut count = parts.len().min(room / LEAST_OF_ONE);
    let mut most = fair_share(&parts[..count], room);
    while count > 1 && most < LEAST_OF_ONE {
        count -= 1;
        most = fair_share(&parts[..count], room);
    }
    let kept = parts[..count].iter().map(|part| cut(part, most));
    std::iter::once(first.to_owned()).chain(kept).collect()
}

/// The most that each may have so that all fit together.
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

/// The beginning of a text, up to the end of a word.
fn cut(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let most = text.floor_char_boundary(most.saturating_sub(CUT.len()));
    let kept = &text[..most];
    // A word that is longer than half of it is cut where it must be.
    let end = kept.rfind(char::is_whitespace).filter(|end| *end > most / 2).unwrap_or(most);
    format!("{}{CUT}", kept[..end].trim_end())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(texts: &[&str]) -> String {
        let named = |(place, text): (usize, &&str)| (format!("s{place}"), (*text).to_owned());
        combined("first", &texts.iter().enumerate().map(named).collect::<Vec<_>>())
    }

    #[test]
    fn what_fits_is_whole_and_in_order() {
        assert_eq!(all(&[" one ", "", "three"]), "first\n\ns0: one\n\ns2: three");
        assert_eq!(all(&[]), "first");
    }

    #[test]
    fn short_ones_are_kept_and_long_ones_are_cut_at_a_word() {
        let long = "word ".repeat(1000);
        let text = all(&[&long, "short", &long]);
        assert!(text.len() <= MOST_BYTES && text.len() > MOST_BYTES - 40, "{}", text.len());
        assert!(text.contains("s1: short\n"));
        let cut: Vec<&str> = text.split("\n\n").filter(|it| it.ends_with("word […]")).collect();
        assert_eq!(cut.len(), 2, "{text}");
    }

    #[test]
    fn of_too_many_the_first_are_told() {
        let texts = vec!["some words that are long enough to be cut off somewhere"; 500];
        let text = all(&texts);
        assert!(text.len() <= MOST_BYTES && text.contains("s0: some") && !text.contains("s499:"));
    }

    proptest! {
        #[test]
        fn there_is_never_too_much(texts in proptest::collection::vec(".{0,900}", 0..60)) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            prop_assert!(all(&texts).len() <= MOST_BYTES);
        }
    }
}
