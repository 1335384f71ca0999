//! The revisions of MCP that a peer speaks, and everything that depends on them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

pub use xy_protocol::server::Era;

use crate::revision::{MODERN, VERSIONS, known};
use crate::via::{self, Daemons, Via};

/// The server's description of itself in the handshake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// The negotiated revision.
    pub version: String,
    /// The whole result, as written.
    pub result: String,
    /// The features of the server.
    pub abilities: Abilities,
    /// The instructions for use.
    pub instructions: Option<String>,
    /// The `serverInfo`, as written.
    #[serde(default)]
    pub info: Option<String>,
    /// The daemons that the server is or has behind it, if it is another xy.
    #[serde(default, skip_serializing_if = "Daemons::is_empty")]
    pub behind: Daemons,
    /// The server is another xy with all its servers, which has tools of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_gateway: bool,
}

/// The features of a server that matter here.
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
    /// Its log level can be set.
    pub logging: bool,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "protocolVersion")]
    version: String,
    /// Any value, so that a server with an odd one can still be used.
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
    /// Reads the result of `initialize`; an error is shown in the server's status.
    pub fn read(result: &str) -> Result<Self, String> {
        let answer: Answer = serde_json::from_str(result)
            .map_err(|cause| format!("its answer to `initialize` is invalid: {cause}"))?;
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

    /// Reads the result of `server/discover`; an error is shown in the server's status.
    pub fn discovered(result: &str) -> Result<Self, String> {
        let answer: Discovered = serde_json::from_str(result)
            .map_err(|cause| format!("its answer to `server/discover` is invalid: {cause}"))?;
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

    /// Returns the era of the revision.
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

/// Returns the error for a revision that xy does not know.
pub fn unknown(version: &str) -> String {
    let version = xy_protocol::control::quoted(version);
    format!("it speaks revision `{version}` of MCP; xy supports {}, {MODERN}", VERSIONS.join(", "))
}

/// Returns the params of `initialize`. `capabilities` are those of the client, and `via` names the
/// daemons that ask.
pub fn initialize_params(revision: &str, capabilities: &str, via: Option<&Via>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let meta = via.map(|it| format!(r#","_meta":{{{}}}"#, via::member(it))).unwrap_or_default();
    format!(
        r#"{{"protocolVersion":"{revision}","capabilities":{capabilities},"clientInfo":{{"name":"xy","version":"{version}"}}{meta}}}"#
    )
}

/// The eras that a server is known to speak; `None` is unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpokenEras {
    /// True if it speaks a revision with sessions.
    pub legacy: Option<bool>,
    /// True if it speaks a revision without sessions.
    pub modern: Option<bool>,
}

impl SpokenEras {
    /// Returns the eras of a server that a version of xy which learned only one era has met in
    /// `era`.
    pub fn met_in(era: Era) -> Self {
        match era {
            Era::Legacy => Self { legacy: Some(true), modern: Some(false) },
            Era::Modern => Self { legacy: None, modern: Some(true) },
        }
    }

    /// Returns true if the server speaks both eras.
    pub fn are_both(self) -> bool {
        self.legacy == Some(true) && self.modern == Some(true)
    }

    /// Adds what `newer` knows.
    /// Adds what is newly known.
    /// Stores what is newer.
    pub fn merge(&mut self, newer: Self) {
        self.legacy = newer.legacy.or(self.legacy);
        self.modern = newer.modern.or(self.modern);
    }
}

/// The introductions of a server, for each era in which it was asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introductions {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    legacy: Option<Introduction>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    modern: Option<Introduction>,
}

impl Introductions {
    /// Returns the introduction in an era.
    pub fn get(&self, era: Era) -> Option<&Introduction> {
        match era {
            Era::Legacy => self.legacy.as_ref(),
            Era::Modern => self.modern.as_ref(),
        }
    }

    /// Stores an introduction under its era.
    pub fn set(&mut self, introduction: Introduction) {
        match introduction.era() {
            Era::Legacy => self.legacy = Some(introduction),
            Era::Modern => self.modern = Some(introduction),
        }
    }

    /// Stores what is newer.
    pub fn merge(&mut self, newer: Self) {
        newer.legacy.into_iter().chain(newer.modern).for_each(|it| self.set(it));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::LATEST;

    #[test]
    fn initialize_result_is_read() {
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
    fn discover_result_is_read() {
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
    fn odd_members_of_an_introduction_are_tolerated() {
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
    fn malformed_introduction_is_explained() {
        let unknown = Introduction::read(r#"{"protocolVersion":"1999-01-01"}"#).unwrap_err();
        assert!(unknown.contains("`1999-01-01`") && unknown.contains(LATEST), "{unknown}");
        let none = Introduction::read("[]").unwrap_err();
        assert!(none.contains("is invalid"), "{none}");
    }
}
