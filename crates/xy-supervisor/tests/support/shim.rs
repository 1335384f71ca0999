//! A shim and nothing else, for the tests of this crate.

fn main() -> std::process::ExitCode {
    xy_shim::run()
}
