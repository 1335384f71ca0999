//! State of clients that have left is freed.

use xy_mcp::tasks::CANCELLED_RETENTION;

use super::*;

/// Returns the retained count of `what`.
fn retained(harness: &Harness, what: &str) -> usize {
    let mut out = String::new();
    harness.router.retained_counts().write(&mut out);
    let line = out.lines().find(|line| line.contains(&format!("\"{what}\"")));
    line.unwrap_or_else(|| panic!("no {what}: {out}")).rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn cancelled_calls_are_forgotten_in_time() {
    run_local(async {
        let harness = Harness::begin().await;
        let before = harness.router.retained_counts();
        let client = harness.client(&json!({}));
        for id in ["a", "b", "c"] {
            client.call(id);
        }
        client.cancel("a");
        advance_time(SECOND).await;
        client.cancel("b");
        assert_eq!((retained(&harness, "calls"), retained(&harness, "calls_given_up")), (1, 2));
        assert_eq!(
            (retained(&harness, "client_requests"), retained(&harness, "clients_in_memory")),
            (1, 1)
        );
        client.client_session.close();
        drop(client);
        assert_eq!((retained(&harness, "calls"), retained(&harness, "calls_given_up")), (0, 3));
        assert_eq!(
            (retained(&harness, "clients"), retained(&harness, "clients_in_memory")),
            (0, 0)
        );
        advance_time(CANCELLED_RETENTION.saturating_sub(SECOND)).await;
        assert_eq!(retained(&harness, "calls_given_up"), 2, "each in its time");
        advance_time(SECOND).await;
        assert_eq!(harness.router.retained_counts(), before);
        // Once more, now that the cleanup task has ended.
        let client = harness.client(&json!({}));
        client.call("a");
        client.cancel("a");
        client.client_session.close();
        advance_time(CANCELLED_RETENTION).await;
        drop(client);
        assert_eq!(harness.router.retained_counts(), before);
    })
    .await;
}
