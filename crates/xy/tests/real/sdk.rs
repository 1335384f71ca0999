//! The test servers on published SDKs (`real/servers`).

use std::path::Path;
use std::process::Command;

use xy_testkit::Home;

use crate::lab::{Fixture, Lab};
use crate::stage::install_folder;

/// An SDK with a test server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sdk {
    /// `@modelcontextprotocol/sdk`: legacy.
    TypeScript1,
    /// `@modelcontextprotocol/server`: both eras.
    TypeScript2,
    /// `mcp` 2: both eras.
    Python2,
    /// `fastmcp` 4: both eras. Its server has no HTTP and few tools.
    FastMcp,
}

impl Sdk {
    /// Returns the program of the server, with these arguments.
    pub(crate) fn words(self, args: &[&str]) -> Vec<String> {
        let (program, script): (_, &[&str]) = match self {
            Self::TypeScript1 => ("npm/node_modules/node/bin/node", &["fixture1.mjs"]),
            Self::TypeScript2 => ("npm/node_modules/node/bin/node", &["fixture2.mjs"]),
            // `-B`: Python writes no bytecode beside the script.
            Self::Python2 => ("clients2/bin/python", &["-B", "fixture.py"]),
            Self::FastMcp => ("fastmcp/bin/python", &["-B", "fastmcp_both.py"]),
        };
        let (script, flags) = script.split_last().unwrap();
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../real/servers");
        let script = scripts.join(script).to_str().unwrap().to_owned();
        let program = install_folder().join(program).to_str().unwrap().to_owned();
        let owned = |words: &[&str]| words.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        [vec![program], owned(flags), vec![script], owned(args)].concat()
    }

    /// Returns the file of the server over stdio; `env` holds further variables, as KDL nodes.
    pub(crate) fn kdl(self, env: &str) -> String {
        let folder = sdk_folder();
        // The start timeout is long: the machine may be busy.
        format!(
            "{}env {{ SDK_FOLDER {folder:?}; {env} }}\nready {{ within \"40s\"; }}\n",
            Lab::kdl_of(&self.words(&["stdio"])),
        )
    }

    /// Starts the server over HTTP without xy, with further arguments and variables.
    #[track_caller]
    pub(crate) fn serve(self, home: &Home, args: &[&str], env: &[(&str, &str)]) -> Fixture {
        let words = self.words(&[&["http", "0"], args].concat());
        let mut command = home.command_of(Path::new(&words[0]), &[]);
        command.args(&words[1..]).envs(env.iter().copied());
        find_sdk(&mut command);
        Fixture::listen(home, command)
    }
}

/// Returns the folder in which the TypeScript scripts find their SDK.
fn sdk_folder() -> String {
    install_folder().join("npm").to_str().unwrap().to_owned()
}

/// Sets the variable that tells a script, or one that it starts, where its SDK is.
pub(crate) fn find_sdk(command: &mut Command) {
    command.env("SDK_FOLDER", sdk_folder());
}
