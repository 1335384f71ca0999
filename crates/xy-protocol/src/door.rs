//! The first words on the MCP socket, before MCP itself: who comes, and whether they may.
//!
//! One line each way: the bridge (`xy connect`) says [`Hello`], the daemon gives its
//! [`Answer`]. After that both sides speak MCP, one message per line. The bridge need not
//! wait for the answer before it goes on.

use serde::{Deserialize, Serialize};

/// The revision of these words; it grows when one changes its meaning.
pub const DOOR_PROTOCOL: u32 = 1;

/// The bridge's first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "xy", rename = "hello", expecting = "an object")]
pub struct Hello {
    /// The revision that the bridge speaks.
    pub protocol: u32,
    /// What the client wants to be shown.
    pub view: View,
    /// The process that started the bridge, for people; the bridge's own is known to the
    /// system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_pid: Option<u32>,
}

/// What a client is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// What a profile shows of all servers.
    Profile(String),
    /// One server, as if there were nothing between.
    Server(String),
}

/// The daemon's first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "xy", rename_all = "snake_case")]
pub enum Answer {
    /// Come in.
    Welcome {
        /// The revision that the daemon speaks.
        protocol: u32,
    },
    /// Not so; the daemon hangs up after it.
    Refused {
        /// Why.
        message: String,
        /// What to do about it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    },
    /// Somebody ended the daemon: it hangs up, and is not to be started again for this
    /// client's sake. The only word that may come later than the first line.
    Goodbye,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn is_written<T>(value: &T, text: &str)
    where
        T: Serialize + for<'t> Deserialize<'t> + PartialEq + std::fmt::Debug,
    {
        assert_eq!(serde_json::to_string(value).unwrap(), text);
        assert_eq!(&serde_json::from_str::<T>(text).unwrap(), value);
    }

    #[test]
    fn the_words_are_written_as_agreed() {
        let hello = |view, client_pid| Hello { protocol: 1, view, client_pid };
        is_written(
            &hello(View::Profile("default".into()), Some(123)),
            r#"{"xy":"hello","protocol":1,"view":{"profile":"default"},"client_pid":123}"#,
        );
        is_written(
            &hello(View::Server("x".into()), None),
            r#"{"xy":"hello","protocol":1,"view":{"server":"x"}}"#,
        );
        is_written(&Answer::Welcome { protocol: 1 }, r#"{"xy":"welcome","protocol":1}"#);
        is_written(&Answer::Goodbye, r#"{"xy":"goodbye"}"#);
        is_written(
            &Answer::Refused { message: "no".into(), hint: Some("ask".into()) },
            r#"{"xy":"refused","message":"no","hint":"ask"}"#,
        );
    }

    #[test]
    fn words_that_came_later_are_passed_over() {
        let text = r#"{"xy":"welcome","protocol":2,"mood":"good"}"#;
        let answer: Answer = serde_json::from_str(text).unwrap();
        assert_eq!(answer, Answer::Welcome { protocol: 2 });
        assert!(serde_json::from_str::<Hello>(text).is_err(), "a welcome is no hello");
    }
}
