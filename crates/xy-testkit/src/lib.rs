//! xy-testkit
