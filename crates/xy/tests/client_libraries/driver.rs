//! Runs the driver of a library and reads its report.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use xy_testkit::Home;

use crate::feature::{Outcomes, read_outcomes};
use crate::library::{Library, Runtime, scripts};

/// Timeout of a driver with all features, and the polling rate.
const WITHIN: Duration = Duration::from_mins(5);
const LOOKS_PER_SECOND: u32 = 20;

/// Maximum length of a driver's stderr in a failure message.
const STDERR_CHARS: usize = 1500;

/// The place that a driver connects to.
#[derive(Debug)]
pub(crate) struct Target {
    /// The transport and its arguments.
    pub(crate) arguments: Vec<String>,
    /// The prefix of tools and prompts, and that of resources.
    pub(crate) prefixes: [String; 2],
}

/// Returns the folder in which the libraries are installed.
#[track_caller]
fn install_folder() -> PathBuf {
    let installed = std::env::var_os("XY_LIBRARIES").map(PathBuf::from);
    installed.expect("`XY_LIBRARIES` names the folder that `real/libraries/install` prints")
}

/// Runs a driver to its end.
#[track_caller]
pub(crate) fn run(home: &Home, library: &Library, target: &Target) -> Outcomes {
    let folder = tempfile::tempdir_in(home.root().join("harness")).unwrap();
    let [stdout, stderr] = ["stdout", "stderr"].map(|name| folder.path().join(name));
    let mut command = command(home, library, target);
    command.stdin(Stdio::null());
    command.stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap());
    let child = command.spawn().unwrap_or_else(|cause| panic!("no {command:?}: {cause}"));
    let bad_end = match wait(child) {
        Some(status) if status.success() => None,
        Some(status) => Some(format!("the driver ended with {status}")),
        None => Some(format!("the driver was killed after {WITHIN:?}")),
    };
    let bad_end = bad_end.map(|it| format!("{it}; its stderr ends with: {}", tail(&stderr)));
    read_outcomes(&fs::read_to_string(&stdout).unwrap(), bad_end.as_deref())
}

fn command(home: &Home, library: &Library, target: &Target) -> Command {
    let installed = install_folder();
    let program = match library.runtime {
        Runtime::Python(environment) => installed.join(environment).join("bin/python"),
        Runtime::Node => installed.join("npm/node_modules/node/bin/node"),
    };
    let mut command = home.command_of(&program, &[]);
    command.arg(scripts().join(library.driver)).args(&target.arguments);
    let [tools, resources] = &target.prefixes;
    command.env("TOOL_PREFIX", tools).env("URI_PREFIX", resources);
    command.env("SDK_FOLDER", installed.join("npm")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.envs(library.mode.map(|mode| ("MODE", mode)));
    command
}

/// Waits for the end of a driver; kills it and returns `None` if it takes too long.
fn wait(mut child: Child) -> Option<ExitStatus> {
    let pause = Duration::from_secs(1) / LOOKS_PER_SECOND;
    for _ in 0..WITHIN.as_secs() * u64::from(LOOKS_PER_SECOND) {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::park_timeout(pause);
    }
    let _ = child.kill(); // It may have ended by now.
    let _ = child.wait();
    None
}

/// Reads the end of a file.
fn tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let skipped = text.chars().count().saturating_sub(STDERR_CHARS);
    text.chars().skip(skipped).collect()
}
