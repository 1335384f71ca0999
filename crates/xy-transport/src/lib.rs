//! What all transports of the gateway share: the texts of messages, large messages and the pace at
//! which they are moved, budgets of bytes and of shares, and the format of metrics.

pub mod body;
pub mod budget;
pub mod chunks;
pub mod error_log;
pub mod large;
pub mod message_text;
pub mod metrics;
pub mod pace;
pub mod retained;
pub mod scratch;
pub mod share;
