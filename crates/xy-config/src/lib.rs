//! KDL files to trusted settings: raw (with spans) → check (all problems at once) → settings.
//!
//! [`load()`] reads the files of [`Paths`]; it is the only thing here that touches
//! a disk. [`check()`] and [`check_text`] judge texts that somebody else has read.

pub mod bad_files;
pub mod check;
pub mod environment;
pub mod load;
pub mod paths;
pub mod profile;
mod raw;
pub mod references;
pub mod report;
pub mod settings;
mod source;
pub mod supervision;
pub mod trust;
pub mod write;

pub use bad_files::{BadFiles, Earlier, LastGood};
pub use check::{
    Broken, FileText, Found, Kept, KeptLimits, Loaded, Surroundings, Texts, check, check_all,
    check_text,
};
pub use environment::EnvironmentDefaults;
pub use load::{check_new, load, load_after};
pub use paths::{PathError, Paths};
pub use report::{Kind, Paint, Place, Problem, Related};
pub use settings::Settings;
pub use xy_protocol::control::Severity;
