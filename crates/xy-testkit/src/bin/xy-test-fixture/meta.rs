//! The metadata of a modern request: protocol version, client capabilities and log level.

use crate::request::{BAD_PARAMS, LEVELS};
use xy_testkit::json::{Members, quoted};

/// The supported protocol version.
pub(crate) const VERSION: &str = "2026-07-28";

const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
const LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";

/// The fields of `_meta` that a modern request must or may have.
#[derive(Debug, Clone)]
pub(crate) struct Meta {
    pub(crate) version: String,
    pub(crate) capabilities: Members,
    /// The index in [`LEVELS`] of the least severe log level that the client wants. The client
    /// receives no log messages without one.
    pub(crate) level: Option<usize>,
}

impl Meta {
    /// Returns true if `params` contain a protocol version.
    pub(crate) fn is_present_in(params: &Members) -> bool {
        params.members("_meta").has(VERSION_KEY)
    }

    /// Parses the metadata, or returns a JSON-RPC error that names the missing or invalid field.
    pub(crate) fn parse(params: &Members) -> Result<Self, String> {
        let meta = params.members("_meta");
        let version = meta.string(VERSION_KEY).ok_or_else(|| missing(VERSION_KEY))?;
        let capabilities = meta.raw(CAPABILITIES_KEY).and_then(Members::of);
        let capabilities = capabilities.ok_or_else(|| missing(CAPABILITIES_KEY))?;
        let wanted = meta.has(LEVEL_KEY).then(|| meta.string(LEVEL_KEY).unwrap_or_default());
        let level = wanted.as_ref().and_then(|it| LEVELS.iter().position(|known| known == it));
        if wanted.is_some() && level.is_none() {
            return Err(bad(&format!("`{LEVEL_KEY}` is no level")));
        }
        Ok(Self { version, capabilities, level })
    }

    /// Returns a JSON-RPC error if the requested version is not supported.
    pub(crate) fn check_version(&self) -> Result<(), String> {
        if self.version == VERSION { Ok(()) } else { Err(unsupported(&self.version)) }
    }
}

/// Returns the JSON-RPC error for an unsupported version, with the supported ones.
pub(crate) fn unsupported(requested: &str) -> String {
    let requested = quoted(requested);
    format!(
        r#"{{"data":{{"requested":{requested},"supported":["{VERSION}"],"x-more":1.0}},"message":"this revision is not spoken here","code":-32022}}"#
    )
}

fn missing(key: &str) -> String {
    bad(&format!("there is no `{key}` in `_meta`"))
}

fn bad(why: &str) -> String {
    format!(r#"{{"code":{BAD_PARAMS},"message":{}}}"#, quoted(why))
}
