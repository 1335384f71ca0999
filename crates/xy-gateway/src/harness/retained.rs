//! What is left of clients that have gone: nothing.

use super::*;
use crate::upstream::ECHO;

/// How much of something is kept.
fn kept(play: &Harness, what: &str) -> usize {
    let mut out = String::new();
    play.router.census().write(&mut out);
    let line = out.lines().find(|line| line.contains(&format!("\"{what}\"")));
    line.unwrap_or_else(|| panic!("no {what}: {out}")).rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_was_given_up_is_forgotten_though_nobody_says_anything_more() {
    here(async {
        let play = Harness::begin().await;
        let before = play.router.census();
        let client = play.client(&json!({}));
        for id in ["a", "b", "c"] {
            client.call(id);
        }
        client.cancel("a");
        later(SECOND).await;
        client.cancel("b");
        assert_eq!((kept(&play, "calls"), kept(&play, "calls_given_up")), (1, 2));
        assert_eq!((kept(&play, "client_requests"), kept(&play, "clients_in_memory")), (1, 1));
        client.client_session.close();
        drop(client);
        assert_eq!((kept(&play, "calls"), kept(&play, "calls_given_up")), (0, 3));
        assert_eq!((kept(&play, "clients"), kept(&play, "clients_in_memory")), (0, 0));
        later(ECHO.saturating_sub(SECOND)).await;
        assert_eq!(kept(&play, "calls_given_up"), 2, "each in its time");
        later(SECOND).await;
        assert_eq!(play.router.census(), before);
        // And once more, as whoever forgets has gone home.
        let client = play.client(&json!({}));
        client.call("a");
        client.cancel("a");
        client.client_session.close();
        later(ECHO).await;
        drop(client);
        assert_eq!(play.router.census(), before);
    })
    .await;
}
