//! Updates of the page `docs/compatibility.md`. Each test run replaces only the sections that it
//! has measured.

use std::fs;
use std::path::Path;

/// Replaces one section of the compatibility page and keeps all other text.
///
/// A section is the text between `<!-- name -->` and `<!-- end of name -->`.
///
/// # Panics
///
/// Panics if the page cannot be read or written, or has no such section.
#[track_caller]
pub fn write_compatibility(page: &Path, section: &str, text: &str) {
    let before = fs::read_to_string(page).expect("the compatibility page can be read");
    let after = replace_section(&before, section, text)
        .unwrap_or_else(|| panic!("{} has no section `{section}`", page.display()));
    fs::write(page, after).expect("the compatibility page can be written");
}

/// Returns `page` with `text` as the content of `section`, or `None` if there is no such section.
fn replace_section(page: &str, section: &str, text: &str) -> Option<String> {
    let (head, rest) = page.split_once(&format!("<!-- {section} -->\n"))?;
    let end = format!("<!-- end of {section} -->");
    let (_, tail) = rest.split_once(&end)?;
    Some(format!("{head}<!-- {section} -->\n{}\n{end}{tail}", text.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::replace_section;

    const PAGE: &str =
        "# Page\n<!-- a -->\nold\n<!-- end of a -->\n<!-- b -->\n<!-- end of b -->\n";

    #[test]
    fn section_is_replaced_and_others_stay() {
        let page = replace_section(PAGE, "a", "new\n").unwrap();
        assert_eq!(page, PAGE.replace("old", "new"));
        let page = replace_section(&page, "b", "two").unwrap();
        assert!(page.ends_with("<!-- b -->\ntwo\n<!-- end of b -->\n"), "{page}");
    }

    #[test]
    fn missing_section_is_refused() {
        assert_eq!(replace_section(PAGE, "c", "x"), None);
    }
}
