//! The debug log of requests that xy itself answers with an error. It contains neither arguments
//! nor the error's text, which may quote them.

use xy_protocol::control::quoted;

/// A request that xy answers with an error. Unknown parts are empty.
#[derive(Debug, Default)]
pub(crate) struct FailedRequest<'r> {
    /// The name and number of the client, or its address.
    pub(crate) client: &'r str,
    pub(crate) method: &'r str,
    pub(crate) server: &'r str,
    pub(crate) tool: &'r str,
    /// The kind of the error, as one word.
    pub(crate) outcome: &'r str,
    /// The JSON-RPC error code or the HTTP status.
    pub(crate) code: i64,
}

impl FailedRequest<'_> {
    /// Writes the request to the debug log.
    pub(crate) fn log(&self) {
        let Self { client, method, server, tool, outcome, code } = self;
        let (method, tool) = (quoted(method), quoted(tool));
        tracing::debug!(client, method, server, tool, outcome, code, "a request failed");
    }
}

/// Returns true if the debug log is on.
pub(crate) fn is_on() -> bool {
    tracing::enabled!(tracing::Level::DEBUG)
}

/// Captures the debug log of one thread.
#[cfg(test)]
pub(crate) mod capture {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::DefaultGuard;

    /// The lines that this thread logs during the lifetime of this value.
    pub(crate) struct Capture {
        text: Text,
        _guard: DefaultGuard,
    }

    #[derive(Clone, Default)]
    struct Text(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Text {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Capture {
        pub(crate) fn begin() -> Self {
            let text = Text::default();
            let writer = text.clone();
            let subscriber = tracing_subscriber::fmt()
                .with_max_level(tracing::Level::DEBUG)
                .with_ansi(false)
                .with_writer(move || writer.clone())
                .finish();
            Self { text, _guard: tracing::subscriber::set_default(subscriber) }
        }

        /// Takes the only line about a failed request since the last call.
        #[track_caller]
        pub(crate) fn failed_request(&self) -> String {
            let text =
                String::from_utf8(std::mem::take(&mut *self.text.0.lock().unwrap())).unwrap();
            let failed: Vec<_> =
                text.lines().filter(|it| it.contains("a request failed")).collect();
            assert_eq!(failed.len(), 1, "{text}");
            failed[0].to_owned()
        }
    }
}
