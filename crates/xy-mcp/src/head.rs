//! The id of a message of which only the beginning is known.

/// The id, as it is written, if it stands in this beginning of a message, outside of all
/// that is inside of it.
pub fn id_in(head: &[u8]) -> Option<&str> {
    let mut depth = 0_usize;
    let mut at = 0;
    let mut is_key = false;
    while let Some(&byte) = head.get(at) {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                is_key = byte == b'{';
            }
            b'}' | b']' => depth = depth.checked_sub(1)?,
            b',' => is_key = true,
            b':' => is_key = false,
            b'"' => {
                let ends = end_of_string(head, at)?;
                if depth == 1 && is_key && &head[at..ends] == b"\"id\"" {
                    return value_after(head, ends);
                }
                at = ends;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Where the string that begins at `at` is over.
fn end_of_string(head: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        match head.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The string or number after a key's colon.
fn value_after(head: &[u8], at: usize) -> Option<&str> {
    let begins = at + head[at..].iter().position(|byte| !b" \t\r:".contains(byte))?;
    let ends = if head[begins] == b'"' {
        end_of_string(head, begins)?
    } else {
        // One that goes on past the beginning may be longer.
        begins + head[begins..].iter().position(|byte| b" \t\r,}".contains(byte))?
    };
    let id = std::str::from_utf8(&head[begins..ends]).ok()?;
    let is_id = id.starts_with('"') || id.starts_with(|it: char| it.is_ascii_digit() || it == '-');
    (is_id && serde_json::from_str::<serde::de::IgnoredAny>(id).is_ok()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_where_it_belongs_and_nowhere_else() {
        let cases: [(&str, Option<&str>); 13] = [
            (r#"{"jsonrpc":"2.0","id":7,"method":"x","params":{"te"#, Some("7")),
            (r#"{ "id" : "a\"b" , "par"#, Some(r#""a\"b""#)),
            (r#"{"id":-1.5e3}"#, Some("-1.5e3")),
            (r#"{"params":{"id":1,"x":["id",{"id":2}]},"id":3,"#, Some("3")),
            (r#"{"method":"id","x":"{\"id\":1","id":4,"#, Some("4")),
            (r#"{"params":{"id":1,"#, None),
            (r#"{"id":12"#, None),
            (r#"{"id":"12"#, None),
            (r#"{"id":null,"#, None),
            (r#"{"id":{},"#, None),
            (r#"["id",1,"#, None),
            ("}}}", None),
            ("", None),
        ];
        for (head, id) in cases {
            assert_eq!(id_in(head.as_bytes()), id, "{head}");
        }
    }
}
