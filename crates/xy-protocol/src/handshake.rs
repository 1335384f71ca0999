//! The handshake on the MCP socket, before MCP itself: it identifies and admits a client.
//!
//! Each side sends one line: the bridge (`xy connect`) a [`Hello`], the daemon its [`Answer`].
//! After that both sides exchange MCP, one message per line. The bridge need not wait for the
//! answer before it sends messages.

use serde::{Deserialize, Serialize};

/// The version of this handshake. It is raised when a message changes its meaning.
pub const HANDSHAKE_VERSION: u32 = 1;

/// The bridge's first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "xy", rename = "hello", expecting = "an object")]
pub struct Hello {
    /// The version that the bridge speaks.
    pub protocol: u32,
    /// The requested view.
    pub view: View,
    /// The process that started the bridge, for people. The bridge's own process is known to the
    /// system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_pid: Option<u32>,
}

/// A client's view of the servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// The servers and tools of a profile.
    Profile(String),
    /// One server, as if the client were connected to it directly.
    Server(String),
}

/// The daemon's first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "xy", rename_all = "snake_case")]
pub enum Answer {
    /// The client is admitted.
    Welcome {
        /// The version that the daemon speaks.
        protocol: u32,
    },
    /// The client is refused; the daemon then hangs up.
    Refused {
        /// The reason.
        message: String,
        /// A hint for the user.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    },
    /// A user has stopped the daemon: it hangs up, and must not be started again for this client.
    /// The only message that may also come later than the first line.
    Goodbye,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_round_trip<T>(value: &T, text: &str)
    where
        T: Serialize + for<'t> Deserialize<'t> + PartialEq + std::fmt::Debug,
    {
        assert_eq!(serde_json::to_string(value).unwrap(), text);
        assert_eq!(&serde_json::from_str::<T>(text).unwrap(), value);
    }

    #[test]
    fn messages_have_the_agreed_form() {
        let hello = |view, client_pid| Hello { protocol: 1, view, client_pid };
        assert_round_trip(
            &hello(View::Profile("default".into()), Some(123)),
            r#"{"xy":"hello","protocol":1,"view":{"profile":"default"},"client_pid":123}"#,
        );
        assert_round_trip(
            &hello(View::Server("x".into()), None),
            r#"{"xy":"hello","protocol":1,"view":{"server":"x"}}"#,
        );
        assert_round_trip(&Answer::Welcome { protocol: 1 }, r#"{"xy":"welcome","protocol":1}"#);
        assert_round_trip(&Answer::Goodbye, r#"{"xy":"goodbye"}"#);
        assert_round_trip(
            &Answer::Refused { message: "no".into(), hint: Some("ask".into()) },
            r#"{"xy":"refused","message":"no","hint":"ask"}"#,
        );
    }

    #[test]
    fn unknown_fields_are_ignored() {
        let text = r#"{"xy":"welcome","protocol":2,"mood":"good"}"#;
        let answer: Answer = serde_json::from_str(text).unwrap();
        assert_eq!(answer, Answer::Welcome { protocol: 2 });
        assert!(serde_json::from_str::<Hello>(text).is_err(), "a welcome is no hello");
    }
}
