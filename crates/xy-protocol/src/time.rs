//! A moment as it stands on the wire: RFC 3339, UTC, milliseconds.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A moment in wall-clock time, for people; intervals are never computed from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    unix_millis: u64,
}

impl Timestamp {
    /// The moment `unix_millis` milliseconds after 1970.
    pub fn from_unix_millis(unix_millis: u64) -> Self {
        // Year 9999 is the last that RFC 3339 can spell.
        const LAST: u64 = 253_402_300_799_999;
        Self { unix_millis: unix_millis.min(LAST) }
    }

    /// Milliseconds since 1970.
    pub fn unix_millis(self) -> u64 {
        self.unix_millis
    }
}

impl From<SystemTime> for Timestamp {
    /// A moment before 1970 (a clock that was never set) becomes 1970.
    fn from(time: SystemTime) -> Self {
        let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::from_unix_millis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(self.unix_millis);
        humantime::format_rfc3339_millis(time).fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_rfc3339(&text).map(Self::from).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_is_written_in_utc_with_milliseconds() {
        let moment = Timestamp::from_unix_millis(1_700_000_000_123);
        assert_eq!(serde_json::to_string(&moment).unwrap(), r#""2023-11-14T22:13:20.123Z""#);
    }

    #[test]
    fn a_timestamp_survives_the_wire() {
        let moment = Timestamp::from_unix_millis(1_700_000_000_123);
        let text = serde_json::to_string(&moment).unwrap();
        assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), moment);
    }

    #[test]
    fn a_moment_beyond_the_calendar_is_still_written() {
        let moment = Timestamp::from_unix_millis(u64::MAX);
        assert_eq!(moment.to_string(), "9999-12-31T23:59:59.999Z");
    }
}
