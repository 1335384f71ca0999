//! The debug log of requests that xy itself answers with an error. It contains neither arguments
//! nor the error's text, which may quote them.

use xy_protocol::control::quoted;

/// A request that xy answers with an error. Unknown parts are empty.
#[derive(Debug, Default)]
pub struct FailedRequest<'r> {
    /// The name and number of the client, or its address.
    pub client: &'r str,
    /// The method.
    pub method: &'r str,
    /// The name of the server.
    pub server: &'r str,
    /// The name of the tool.
    pub tool: &'r str,
    /// The kind of the error, as one word.
    pub outcome: &'r str,
    /// The JSON-RPC error code or the HTTP status.
    pub code: i64,
}

impl FailedRequest<'_> {
    /// Writes the request to the debug log.
    pub fn log(&self) {
        let Self { client, method, server, tool, outcome, code } = self;
        let (method, tool) = (quoted(method), quoted(tool));
        tracing::debug!(client, method, server, tool, outcome, code, "a request failed");
    }
}

/// Returns true if the debug log is on.
pub fn is_on() -> bool {
    tracing::enabled!(tracing::Level::DEBUG)
}

/// Captures the debug log of one thread.
#[cfg(any(test, feature = "test-util"))]
pub mod capture {
    #![expect(clippy::unwrap_used, reason = "only tests use it")]

    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::DefaultGuard;

    /// The lines that this thread logs during the lifetime of this value.
    pub struct Capture {
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
        /// Begins to capture.
        pub fn begin() -> Self {
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
        pub fn failed_request(&self) -> String {
            let text =
                String::from_utf8(std::mem::take(&mut *self.text.0.lock().unwrap())).unwrap();
            let failed: Vec<_> =
                text.lines().filter(|it| it.contains("a request failed")).collect();
            assert_eq!(failed.len(), 1, "{text}");
            failed[0].to_owned()
        }
    }
}
