//! Client libraries, each with every feature over every transport, direct and through xy.
//!
//! A driver script per library (`real/libraries`) tries each feature and checks the content of each
//! answer. A test runs it four times: with `xy-test-fixture` and with the same server behind xy,
//! for a server of the legacy era and for one of both eras. Each client has an instance of the
//! server. The tests of `shared` use one process for all clients, as is the default. A feature that
//! works directly must work through xy. `allowed.rs` lists the exceptions, each with its reason, and an unused exception
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
use crate::server::{Era, Sharing, Stage, Transport, Way};
use crate::verdict::Run;

/// Defines a test per transport for each library.
macro_rules! library_tests {
    ($sharing:ident: $($name:ident => $library:ident,)*) => {
        $(mod $name {
            use crate::server::{Sharing, Transport};

            #[test]
            fn stdio() {
                crate::compare(&crate::libraries::$library, Transport::Stdio, Sharing::$sharing);
            }

            #[test]
            fn http() {
                crate::compare(&crate::libraries::$library, Transport::Http, Sharing::$sharing);
            }

            #[test]
            fn sse() {
                crate::compare(&crate::libraries::$library, Transport::Sse, Sharing::$sharing);
            }
        })*

        /// The libraries with these tests, in the order of the table.
        pub(crate) const LIBRARIES: &[&crate::Library] = &[$(&crate::libraries::$library),*];
    };
}

library_tests! {
    PerClient:
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

mod shared {
    //! Clients that share a server.

    library_tests! {
        Shared:
        python_sdk_1 => PYTHON_SDK_1,
        python_sdk_2 => PYTHON_SDK_2,
        typescript_sdk_1 => TYPESCRIPT_SDK_1,
        typescript_client_2_auto => TYPESCRIPT_CLIENT_2_AUTO,
    }
}

/// Compares a library direct and through xy over one transport.
#[track_caller]
fn compare(library: &Library, transport: Transport, sharing: Sharing) {
    let way = Way { transport, sharing };
    table::remove_row(library, way);
    let stage = Stage::new(sharing);
    let runs = Era::ALL.map(|era| Run {
        era,
        direct: stage.run_direct(library, transport, era),
        through: stage.run_through(library, transport, era),
    });
    let verdict = verdict::judge(library, way, &runs, allowed::ALLOWED);
    assert!(verdict.problems.is_empty(), "{}", verdict.problems.join("\n"));
    table::write_row(library, way, &verdict);
    stage.home.finish();
}

/// Writes the table from the rows of all tests, which must have run before.
#[test]
#[ignore = "`./test zoo` runs it after the others"]
fn write_compatibility_table() {
    table::write_table(LIBRARIES, shared::LIBRARIES);
}
