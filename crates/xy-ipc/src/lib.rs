//! xy-ipc
