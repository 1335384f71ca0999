//! xy-supervisor
