//! xy-daemon
