//! What is told by the beginning of a message whose rest is not known.

/// What stands in a beginning, outside of all that is inside of the message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head<'h> {
    /// The id, as it is written.
    pub id: Option<&'h str>,
    /// Whether it is an answer: requests and notifications have neither result nor error.
    pub is_answer: bool,
    /// Whether it asks or tells something: answers have no method.
    pub has_method: bool,
    /// Whether it says of itself that it is a message.
    pub is_rpc: bool,
}

impl<'h> Head<'h> {
    /// Reads as much as can be read.
    pub fn of(head: &'h [u8]) -> Self {
        let mut found = Self::default();
        // Where it cannot be read any further, what was found before still holds.
        let _ = found.read(head);
        found
    }

    fn read(&mut self, head: &'h [u8]) -> Option<()> {
        let mut depth = 0_usize;
        let mut at = 0;
        let mut is_key = false;
        // Of several messages in one, it is told of what kind they are, and not which.
        let is_batch = head.trim_ascii_start().starts_with(b"[");
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
                    if is_key && depth == 1 && !is_batch {
                        self.note(&head[at..ends], &head[ends..]);
                    } else if is_key && depth == 2 && is_batch {
                        self.is_answer |= is_of_answer(&head[at..ends]);
                    }
                    at = ends;
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
        Some(())
    }

    /// Notes a key of the message itself, and what stands after it.
    fn note(&mut self, key: &[u8], after: &'h [u8]) {
        if key == b"\"id\"" && self.id.is_none() {
            self.id = value_in(after);
        }
        self.is_answer |= is_of_answer(key);
        self.has_method |= key == b"\"method\"";
        self.is_rpc |= key == b"\"jsonrpc\"";
    }
}

fn is_of_answer(key: &[u8]) -> bool {
    matches!(key, b"\"result\"" | b"\"error\"")
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

/// The string or number after a key.
fn value_in(after: &[u8]) -> Option<&str> {
    let begins = after.iter().position(|byte| !b" \t\r:".contains(byte))?;
    let ends = if after[begins] == b'"' {
        end_of_string(after, begins)?
    } else {
        // One that goes on past the beginning may be longer.
        begins + after[begins..].iter().position(|byte| b" \t\r,}".contains(byte))?
    };
    let id = std::str::from_utf8(&after[begins..ends]).ok()?;
    let is_id = id.starts_with('"') || id.starts_with(|it: char| it.is_ascii_digit() || it == '-');
    (is_id && serde_json::from_str::<serde::de::IgnoredAny>(id).is_ok()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_where_it_belongs_and_nowhere_else() {
        let cases: [(&str, Option<&str>); 14] = [
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
            (r#"[{"id":1,"result":"#, None),
            ("}}}", None),
            ("", None),
        ];
        for (head, id) in cases {
            assert_eq!(Head::of(head.as_bytes()).id, id, "{head}");
        }
    }

    #[test]
    fn a_message_tells_that_it_is_one_and_whether_it_has_a_method() {
        for (head, is_rpc, has_method) in [
            (r#"{"jsonrpc":"2.0","id":7,"#, true, false),
            (r#"{"method":"x","params":{"jsonrpc":1"#, false, true),
            (r#"{"params":{"method":1},"x":"method","y":"jsonrpc"}"#, false, false),
        ] {
            let read = Head::of(head.as_bytes());
            assert_eq!((read.is_rpc, read.has_method), (is_rpc, has_method), "{head}");
        }
    }

    #[test]
    fn only_what_has_a_result_or_an_error_is_an_answer() {
        for (head, is_answer) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{"te"#, true),
            (r#"{"error" : {"message":"x"#, true),
            (r#"{"result":{"id":8,"x":"#, true),
            (r#"{"jsonrpc":"2.0","id":7,"method":"x","params":{"result":1,"te"#, false),
            (r#"{"id":7,"params":{"te"#, false),
            (r#"{"id":"result","x":"error","#, false),
            (r#"["result","#, false),
            (r#" [{"id":7,"result":{"te"#, true),
            (r#"[{"id":7,"method":"x","params":{"result":"te"#, false),
            (r#"{"method":"result","#, false),
            ("resultresult", false),
            ("", false),
        ] {
            assert_eq!(Head::of(head.as_bytes()).is_answer, is_answer, "{head}");
        }
    }
}
