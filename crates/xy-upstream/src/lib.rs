//! The connections to servers, over pipes and over HTTP, and the reasons why a server does not
//! answer. Clients are unknown here.

pub mod connection;
pub mod fault;
