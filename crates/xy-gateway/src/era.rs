//! Which revision of MCP a peer speaks. Everything that depends on it is here.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

pub use xy_protocol::server::Era;

use crate::via::{self, Daemons, Via};

/// The revisions that begin with `initialize`, oldest first.
pub const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// The latest of them.
pub const LATEST: &str = VERSIONS[VERSIONS.len() - 1];

/// The revision without `initialize`: every request says by itself what it has to say.
pub const MODERN: &str = "2026-07-28";

/// A revision that we know, as one of ours.
pub fn known(version: &str) -> Option<&'static str> {
    VERSIONS.into_iter().find(|known| *known == version)
}

/// What a client that asks for `version` gets: the same if we know it, else our latest,
/// which it may refuse.
pub fn offered(version: &str) -> &'static str {
    known(version).unwrap_or(LATEST)
}

/// Whether a revision has several messages in one array.
pub fn has_batches(version: &str) -> bool {
    version == "2025-03-26"
}

/// Whether a revision's clients know an event without data, and come back to a stream that was
/// closed before its answer.
pub fn has_polling(version: &str) -> bool {
    version >= "2025-11-25" // Revisions are dates.
}

/// What a server said of itself when it was greeted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// The revision it speaks.
    pub version: String,
    /// Its whole answer, as it was written.
    pub result: String,
    /// What it can do.
    pub abilities: Abilities,
    /// How it wants to be used.
    pub instructions: Option<String>,
    /// Who it is, as it was written.
    #[serde(default)]
    pub info: Option<String>,
    /// The daemons that it is or has behind it, if it is another xy.
    #[serde(default, skip_serializing_if = "Daemons::is_empty")]
    pub behind: Daemons,
    /// Whether it is another xy with all its servers, which has tools of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_gateway: bool,
}

/// What a server can do, as far as it matters here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "these are independent of each other")]
pub struct Abilities {
    /// It has tools.
    pub tools: bool,
    /// It has prompts.
    pub prompts: bool,
    /// It has resources.
    pub resources: bool,
    /// Its resources can be watched.
    pub subscribe: bool,
    /// It completes arguments.
    pub completions: bool,
    /// It can be told what to log.
    pub logging: bool,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "protocolVersion")]
    version: String,
    /// Whatever it is: a server that writes one of them oddly can still be spoken with.
    #[serde(default)]
    capabilities: Value,
    #[serde(default)]
    instructions: Value,
    #[serde(default, rename = "serverInfo")]
    info: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Discovered {
    #[serde(rename = "supportedVersions")]
    versions: Vec<String>,
    #[serde(default)]
    capabilities: Value,
    #[serde(default)]
    instructions: Value,
}

impl Introduction {
    /// Reads a server's answer to `initialize`; an error is for its status.
    pub fn read(result: &str) -> Result<Self, String> {
        let answer: Answer = serde_json::from_str(result)
            .map_err(|cause| format!("its answer to `initialize` is not one: {cause}"))?;
        if known(&answer.version).is_none() {
            return Err(unknown(&answer.version));
        }
        let (behind, is_gateway) = via::of_result(result);
        Ok(Self {
            behind,
            is_gateway,
            abilities: Abilities::read(&answer.capabilities),
            version: answer.version,
            result: result.to_owned(),
            instructions: answer.instructions.as_str().map(str::to_owned),
            info: answer.info.map(|info| info.get().to_owned()),
        })
    }

    /// Reads a server's answer to `backend/discover`; an error is for its status.
    pub fn discovered(result: &str) -> Result<Self, String> {
        let answer: Discovered = serde_json::from_str(result)
            .map_err(|cause| format!("its answer to `server/discover` is not one: {cause}"))?;
        if !answer.versions.iter().any(|version| version == MODERN) {
            return Err(unknown(&answer.versions.join(", ")));
        }
        let (behind, is_gateway) = via::of_result(result);
        Ok(Self {
            behind,
            is_gateway,
            abilities: Abilities::read(&answer.capabilities),
            version: MODERN.to_owned(),
            result: result.to_owned(),
            instructions: answer.instructions.as_str().map(str::to_owned),
            info: crate::modern::server_info(result).map(str::to_owned),
        })
    }

    /// Which kind of revision it speaks.
    pub fn era(&self) -> Era {
        if self.version == MODERN { Era::Modern } else { Era::Legacy }
    }
}

impl Abilities {
    fn read(capabilities: &Value) -> Self {
        let has = |what: &str| capabilities.get(what).is_some_and(|it| !it.is_null());
        Self {
            tools: has("tools"),
            prompts: has("prompts"),
            resources: has("resources"),
            subscribe: capabilities["resources"]["subscribe"] == true,
            completions: has("completions"),
            logging: has("logging"),
        }
    }
}

/// It speaks none that we know.
pub(crate) fn unknown(version: &str) -> String {
    let version = xy_protocol::control::quoted(version);
    format!("it speaks revision `{version}` of MCP, and xy knows {}, {MODERN}", VERSIONS.join(", "))
}

/// Returns the params of `initialize` in this revision. `capabilities` are those of the client,
/// `via` names the daemons that ask.
pub(crate) fn greeting(revision: &str, capabilities: &str, via: Option<&Via>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let meta = via.map(|it| format!(r#","_meta":{{{}}}"#, via::member(it))).unwrap_or_default();
    format!(
        r#"{{"protocolVersion":"{revision}","capabilities":{capabilities},"clientInfo":{{"name":"xy","version":"{version}"}}{meta}}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_its_revision_or_our_latest() {
        assert_eq!(offered("2024-11-05"), "2024-11-05");
        assert_eq!(offered("2099-01-01"), LATEST);
        assert_eq!(offered(""), LATEST);
    }

    #[test]
    fn only_the_latest_revisions_poll() {
        assert_eq!(VERSIONS.map(has_polling), [false, false, false, true]);
    }

    #[test]
    fn a_server_introduces_itself() {
        let read = Introduction::read(
            r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"resources":{"subscribe":true},
            "logging":{},"future":1},"serverInfo":{"name":"x","version":"1"},"instructions":"do"}"#,
        )
        .unwrap();
        let abilities = Abilities {
            tools: true,
            resources: true,
            subscribe: true,
            logging: true,
            ..Abilities::default()
        };
        assert_eq!((read.abilities, read.instructions.as_deref()), (abilities, Some("do")));
    }

    #[test]
    fn a_server_without_initialize_is_discovered() {
        let read = Introduction::discovered(
            r#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"prompts":{}},"ttlMs":0}"#,
        )
        .unwrap();
        assert_eq!((read.era(), read.version.as_str()), (Era::Modern, MODERN));
        assert_eq!(read.abilities, Abilities { prompts: true, ..Abilities::default() });
        for wrong in [r#"{"supportedVersions":["2099-01-01"]}"#, "{}", "7"] {
            assert!(Introduction::discovered(wrong).is_err(), "{wrong}");
        }
        let legacy = Introduction::read(r#"{"protocolVersion":"2025-06-18"}"#).unwrap();
        assert_eq!(legacy.era(), Era::Legacy);
    }

    #[test]
    fn what_is_written_oddly_is_no_reason_not_to_speak() {
        let read = |more: &str| {
            Introduction::read(&format!(r#"{{"protocolVersion":"2025-06-18"{more}}}"#)).unwrap()
        };
        assert_eq!(read("").abilities, Abilities::default());
        assert_eq!(read(r#","capabilities":null,"instructions":7"#), {
            let mut plain = read("");
            plain.result =
                r#"{"protocolVersion":"2025-06-18","capabilities":null,"instructions":7}"#
                    .to_owned();
            plain
        });
        let odd =
            read(r#","capabilities":{"tools":true,"resources":{"subscribe":null},"logging":null}"#);
        let expected = Abilities { tools: true, resources: true, ..Abilities::default() };
        assert_eq!(odd.abilities, expected);
    }

    #[test]
    fn what_is_no_introduction_is_refused_in_words() {
        let unknown = Introduction::read(r#"{"protocolVersion":"1999-01-01"}"#).unwrap_err();
        assert!(unknown.contains("`1999-01-01`") && unknown.contains(LATEST), "{unknown}");
        let none = Introduction::read("[]").unwrap_err();
        assert!(none.contains("not one"), "{none}");
    }
}
