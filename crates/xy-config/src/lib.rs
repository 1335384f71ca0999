//! Reads KDL files into validated settings: raw nodes (with spans) → checks (all problems at once)
//! → settings.
//!
//! [`load()`] reads the files of [`Paths`]. [`check()`] and [`check_text`] check texts that the
//! caller has read. [`trust`], [`atomic_file`] and [`stored_file`] open, write and parse
//! xy's own files.

pub mod atomic_file;
pub mod bad_files;
pub mod check;
pub mod environment;
mod escape;
pub mod load;
pub mod paths;
pub mod profile;
mod raw;
pub mod references;
pub mod report;
pub mod settings;
mod source;
pub mod stored_file;
pub mod supervision;
pub mod trust;
pub mod write;

pub use bad_files::{BadFiles, LastGood, PriorState};
pub use check::{
    BrokenServers, Enforcement, FileText, LimitSupport, LoadedConfig, Machine, PathKind, Texts,
    check, check_all, check_text,
};
pub use environment::EnvironmentDefaults;
pub use load::{check_new, load, load_with};
pub use paths::{PathError, Paths};
pub use report::{Paint, Problem, ProblemKind, RelatedLocation};
pub use settings::Settings;
pub use source::Location;
pub use xy_protocol::control::Severity;
