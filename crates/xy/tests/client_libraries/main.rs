//! Client libraries, each with every feature over every transport, direct and through xy.
//!
//! A driver script per library (`real/libraries`) tries each feature and checks the content of each
//! answer. A test runs it four times: with `xy-test-fixture` and with the same server behind xy,
//! for a server of the legacy era and for one of both eras. A feature that works directly must work
//! through xy. `allowed.rs` lists the exceptions, each with its reason, and an unused exception
//! fails the test.
//!
//! `real/libraries/install` installs the libraries, and `XY_LIBRARIES` names their folder.
//! Without it these tests fail. `./test zoo` runs them, then writes the table of
//! `docs/compatibility.md`.

#![expect(clippy::unwrap_used, reason = "a failed test panics")]

mod allowed;
mod driver;
mod feature;
mod library;
mod server;
mod table;
mod verdict;

use crate::library::{self as libraries, Library};
use crate::server::{Era, Stage, Transport};
use crate::verdict::Run;

/// Defines a test per transport for a library.
macro_rules! library_tests {
    ($($name:ident => $library:ident,)*) => {
        $(mod $name {
            use crate::server::Transport;

            #[test]
            fn stdio() {
                crate::compare(&crate::libraries::$library, Transport::Stdio);
            }

            #[test]
            fn http() {
                crate::compare(&crate::libraries::$library, Transport::Http);
            }

            #[test]
            fn sse() {
                crate::compare(&crate::libraries::$library, Transport::Sse);
            }
        })*

        /// Every library that has tests, in the order of the table.
        const LIBRARIES: &[&Library] = &[$(&libraries::$library),*];
    };
}

library_tests! {
    python_sdk_1 => PYTHON_SDK_1,
    python_sdk_2 => PYTHON_SDK_2,
    python_sdk_2_legacy => PYTHON_SDK_2_LEGACY,
    typescript_sdk_1 => TYPESCRIPT_SDK_1,
    typescript_client_2 => TYPESCRIPT_CLIENT_2,
    typescript_client_2_auto => TYPESCRIPT_CLIENT_2_AUTO,
    fastmcp => FASTMCP,
    langchain => LANGCHAIN,
    pydantic_ai => PYDANTIC_AI,
    openai_agents => OPENAI_AGENTS,
    mcp_use => MCP_USE,
}

/// Compares a library direct and through xy over one transport.
#[track_caller]
fn compare(library: &Library, transport: Transport) {
    table::remove_row(library, transport);
    let stage = Stage::new();
    let runs = Era::ALL.map(|era| Run {
        era,
        direct: stage.run_direct(library, transport, era),
        through: stage.run_through(library, transport, era),
    });
    let verdict = verdict::judge(library, transport, &runs, allowed::ALLOWED);
    assert!(verdict.problems.is_empty(), "{}", verdict.problems.join("\n"));
    table::write_row(library, transport, &verdict);
    stage.home.finish();
}

/// Writes the table from the rows of all tests, which must have run before.
#[test]
#[ignore = "`./test zoo` runs it after the others"]
fn write_compatibility_table() {
    table::write_table(LIBRARIES);
}
