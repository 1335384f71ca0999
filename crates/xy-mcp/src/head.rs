//! Facts known from the beginning of a message whose rest is missing.

/// Facts about a message, read from its top-level keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head<'h> {
    /// The ID, as written.
    pub id: Option<&'h str>,
    /// True for a response: only responses have a result or an error.
    pub is_response: bool,
    /// True for a request or a notification: responses have no method.
    pub has_method: bool,
    /// True if the message has a `jsonrpc` member.
    pub is_rpc: bool,
}

impl<'h> Head<'h> {
    /// Reads as much as possible.
    pub fn of(head: &'h [u8]) -> Self {
        let mut head_facts = Self::default();
        // If the rest cannot be read, the facts found so far still hold.
        let _ = head_facts.read(head);
        head_facts
    }

    fn read(&mut self, head: &'h [u8]) -> Option<()> {
        let mut depth = 0_usize;
        let mut at = 0;
        let mut is_key = false;
        // For a batch, only the kind of its messages is determined, not their IDs.
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
                    let end = end_of_string(head, at)?;
                    if is_key && depth == 1 && !is_batch {
                        self.record_key(&head[at..end], &head[end..]);
                    } else if is_key && depth == 2 && is_batch {
                        self.is_response |= is_response_key(&head[at..end]);
                    }
                    at = end;
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
        Some(())
    }

    /// Records a key of the message itself, and the value after it.
    fn record_key(&mut self, key: &[u8], after: &'h [u8]) {
        if key == b"\"id\"" && self.id.is_none() {
            self.id = value_in(after);
        }
        self.is_response |= is_response_key(key);
        self.has_method |= key == b"\"method\"";
        self.is_rpc |= key == b"\"jsonrpc\"";
    }
}

fn is_response_key(key: &[u8]) -> bool {
    matches!(key, b"\"result\"" | b"\"error\"")
}

/// Returns where the string that starts at `at` ends.
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

/// Returns the string or number after a key.
fn value_in(after: &[u8]) -> Option<&str> {
    let start = after.iter().position(|byte| !b" \t\r:".contains(byte))?;
    let end = if after[start] == b'"' {
        end_of_string(after, start)?
    } else {
        // A number at the end of the head may be incomplete.
        start + after[start..].iter().position(|byte| b" \t\r,}".contains(byte))?
    };
    let id = std::str::from_utf8(&after[start..end]).ok()?;
    let is_id = id.starts_with('"') || id.starts_with(|it: char| it.is_ascii_digit() || it == '-');
    (is_id && serde_json::from_str::<serde::de::IgnoredAny>(id).is_ok()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_top_level_id_is_found() {
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
    fn method_and_jsonrpc_keys_are_found() {
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
    fn only_result_or_error_makes_a_response() {
        for (head, is_response) in [
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
            assert_eq!(Head::of(head.as_bytes()).is_response, is_response, "{head}");
        }
    }
}
