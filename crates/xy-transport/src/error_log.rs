//! The debug log of requests that xy itself answers with an error. It contains neither arguments
//! nor the error's text, which may quote them.

use std::time::Duration;

use xy_protocol::control::quoted;

/// A request that xy answers with an error. Unknown parts are empty.
#[derive(Debug, Default)]
pub struct FailedRequest<'r> {
    /// The name and number of the client, or its address.
    pub client: &'r str,
    /// The id of the request, as the client wrote it.
    pub id: &'r str,
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
    /// How long the request was open.
    pub elapsed: Option<Duration>,
}

impl FailedRequest<'_> {
    /// Writes the request to the debug log.
    pub fn log(&self) {
        let Self { client, id, method, server, tool, outcome, code, elapsed } = self;
        let (id, method, tool) = (quoted(id), quoted(method), quoted(tool));
        let elapsed = elapsed.map(tracing::field::debug);
        tracing::debug!(
            client,
            id,
            method,
            server,
            tool,
            outcome,
            code,
            elapsed,
            "a request failed"
        );
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
            only(&self.take(), "a request failed")
        }

        /// Takes the only line about a failed request and the only one about a call since the last
        /// call.
        #[track_caller]
        pub fn failed_request_and_call(&self) -> (String, String) {
            let text = self.take();
            (only(&text, "a request failed"), only(&text, ": call server="))
        }

        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.text.0.lock().unwrap())).unwrap()
        }
    }

    /// Returns the only line that contains `part`.
    #[track_caller]
    fn only(text: &str, part: &str) -> String {
        let lines: Vec<_> = text.lines().filter(|it| it.contains(part)).collect();
        assert_eq!(lines.len(), 1, "{text}");
        lines[0].to_owned()
    }
}
