//! Timestamps of the protocol: RFC 3339, UTC, with milliseconds.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A point in wall-clock time, for people. Intervals are never computed from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    unix_millis: u64,
}

impl Timestamp {
    /// Creates a timestamp from milliseconds since 1970, capped at the end of the year 9999.
    pub fn from_unix_millis(unix_millis: u64) -> Self {
        // RFC 3339 cannot represent later years.
        const LAST: u64 = 253_402_300_799_999;
        Self { unix_millis: unix_millis.min(LAST) }
    }

    /// Returns the milliseconds since 1970.
    pub fn unix_millis(self) -> u64 {
        self.unix_millis
    }
}

impl From<SystemTime> for Timestamp {
    /// Converts a time. One before 1970 (a clock that was never set) becomes 1970.
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
    fn timestamp_is_written_in_utc_with_milliseconds() {
        let timestamp = Timestamp::from_unix_millis(1_700_000_000_123);
        assert_eq!(serde_json::to_string(&timestamp).unwrap(), r#""2023-11-14T22:13:20.123Z""#);
    }

    #[test]
    fn timestamp_round_trips() {
        let timestamp = Timestamp::from_unix_millis(1_700_000_000_123);
        let text = serde_json::to_string(&timestamp).unwrap();
        assert_eq!(serde_json::from_str::<Timestamp>(&text).unwrap(), timestamp);
    }

    #[test]
    fn timestamp_is_capped_at_year_9999() {
        let timestamp = Timestamp::from_unix_millis(u64::MAX);
        assert_eq!(timestamp.to_string(), "9999-12-31T23:59:59.999Z");
    }
}
