//! A shim or a stream holder, for the tests of this crate.

fn main() -> std::process::ExitCode {
    if std::env::args_os().nth(1).is_some_and(|verb| verb == xy_shim::stream_holder::VERB) {
        return xy_shim::stream_holder::run();
    }
    xy_shim::run()
}
