//! The tool `chatter`: sends random notifications and requests, each tagged with its call.

use std::time::Duration;

use serde_json::{Value, json};

use crate::request::{Call, structured_result};
use crate::server::Server;
use crate::tools;
use xy_testkit::json::quoted;

/// A seeded random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Sends `steps` random messages, and answers with the outcomes of its requests.
pub(crate) fn chatter(server: &Server, call: &Call) {
    let tag = call.string("tag");
    let mut random = Random(call.number("seed", 1));
    // The last three kinds are requests; `quiet` omits them.
    let kinds = if call.string("quiet").is_empty() { 6 } else { 3 };
    let (mut answered, mut refused, mut strange) = (0, 0, 0);
    for _ in 0..call.number("steps", 5) {
        if !server.wait(&call.request, Duration::from_millis(random.below(4))) {
            return;
        }
        let (method, params) = match random.below(kinds) {
            0 => {
                call.notify("notifications/message", &tools::log_params("error", &tag));
                continue;
            }
            1 => {
                if let Some(token) = &call.progress_token {
                    let text = quoted(&tag);
                    let params =
                        format!(r#"{{"progressToken":{token},"progress":1,"message":{text}}}"#);
                    call.notify("notifications/progress", &params);
                }
                continue;
            }
            2 => {
                let uri = call.string("uri");
                if server.state().subscribed.contains(&uri) {
                    let params = json!({ "uri": uri }).to_string();
                    call.notify("notifications/resources/updated", &params);
                }
                continue;
            }
            3 => ("sampling/createMessage", tools::sampling(&tag)),
            4 => ("elicitation/create", tools::elicitation(&tag)),
            _ => ("elicitation/create", url(&tag)),
        };
        let Some(answer) = server.ask(&call.request, method, &params.to_string()) else { return };
        match answer.raw("result") {
            Some(result) if result.contains(&quoted(&tag)) => answered += 1,
            Some(_) => strange += 1,
            None => refused += 1,
        }
    }
    let outcome =
        json!({ "answered": answered, "refused": refused, "strange": strange, "tag": tag });
    call.request.result(&structured_result(&outcome));
}

fn url(tag: &str) -> Value {
    json!({ "mode": "url", "message": tag, "url": "https://example.org/", "elicitationId": tag })
}
