//! What each modern request says about itself, in its `_meta`.

use crate::request::{BAD_PARAMS, LEVELS};
use xy_testkit::json::{Members, quoted};

/// The revision that is spoken.
pub(crate) const VERSION: &str = "2026-07-28";

const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_KEY: &str = "io.modelcontextprotocol/clientCapabilities";
const LEVEL_KEY: &str = "io.modelcontextprotocol/logLevel";

/// What a request says about itself.
#[derive(Debug, Clone)]
pub(crate) struct Meta {
    pub(crate) version: String,
    pub(crate) capabilities: Members,
    /// How serious is what it wants to hear of; nothing is serious enough without.
    pub(crate) level: Option<usize>,
}

impl Meta {
    /// Whether these params say which modern revision they are of.
    pub(crate) fn is_in(params: &Members) -> bool {
        params.members("_meta").has(VERSION_KEY)
    }

    /// Reads it, or says as an error what is missing.
    pub(crate) fn of(params: &Members) -> Result<Self, String> {
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

    /// Says as an error that the revision is not known.
    pub(crate) fn check_version(&self) -> Result<(), String> {
        if self.version == VERSION { Ok(()) } else { Err(unsupported(&self.version)) }
    }
}

/// The error that names the revisions that are spoken.
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
