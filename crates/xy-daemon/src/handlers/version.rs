//! Handler of `version`: returns the versions of xy and of its control protocol.

use xy_protocol::control::Version;

pub(super) fn handle() -> Version {
    Version {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: xy_protocol::PROTOCOL_VERSION,
    }
}
