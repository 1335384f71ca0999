//! The debug log tells of each request that is refused before a client hears of it.

use super::*;
use crate::error_log::capture::Capture;

#[tokio::test]
async fn each_refused_http_request_is_told() {
    let rules = HttpRules { auth: Auth::Tokens(vec![token("s3cr3t", false)]), ..rules() };
    at_the_door(rules, async |world| {
        let log = Capture::begin();
        let mut client = world.client().await;
        let with_token = |request: Request| request.with("authorization", "Bearer s3cr3t");
        let wrong = Request::post("/mcp", INITIALIZE).with("authorization", "Bearer s3cr3t-no");
        let mismatch = Request::visit(1, "echo", "{}").without("mcp-method");
        for (request, status, outcome) in [
            (Request::post("/mcp?s3cr3t", INITIALIZE), 401, "no-token"),
            (wrong, 401, "wrong-token"),
            (with_token(Request::call("none", 1, "echo", "{}")), 404, "unknown-session"),
            (with_token(mismatch.with("mcp-method", "other")), 400, "header-mismatch"),
        ] {
            assert_eq!(client.ask(&request).await.status, status, "{outcome}");
            let line = log.failed_request();
            let told = [format!("outcome=\"{outcome}\""), format!("code={status}")];
            for part in told
                .iter()
                .map(String::as_str)
                .chain(["client=\"127.0.0.1:", "method=\"POST /mcp\""])
            {
                assert!(line.contains(part), "{part}: {line}");
            }
            assert!(!line.contains("s3cr3t"), "{line}");
        }
    })
    .await;
}
