//! A shim or a grip and nothing else, for the tests of this crate.

fn main() -> std::process::ExitCode {
    if std::env::args_os().nth(1).is_some_and(|verb| verb == xy_shim::grip::VERB) {
        return xy_shim::grip::run();
    }
    xy_shim::run()
}
