//! Has calls that have waited go out in the order of their clients. `send_order.rs` decides.
//!
//! Nothing else is kept in order here: what has not waited, nor stands behind something of the
//! same client that has, goes at once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use super::Web;
use super::send_order::{Next, Row};

/// The rows of all clients of one server, by the numbers of those.
#[derive(Default)]
pub(super) struct Rows {
    rows: RefCell<HashMap<u64, Led>>,
    /// Whose row a call is in.
    whose: RefCell<HashMap<u64, u64>>,
}

/// A row, and who waits in it.
struct Led {
    row: Row,
    /// What lets each of them go.
    gates: HashMap<u64, oneshot::Sender<()>>,
    /// Something has happened to it.
    changed: Rc<Notify>,
}

impl Rows {
    /// How many things it keeps.
    pub(super) fn kept(&self) -> usize {
        let calls: usize = self.rows.borrow().values().map(|led| led.row.len()).sum();
        calls + self.whose.borrow().len()
    }

    /// Changes something about the row of a call, if it is in one.
    fn of<T>(&self, call: u64, change: impl FnOnce(&mut Led) -> T) -> Option<T> {
        let client = *self.whose.borrow().get(&call)?;
        let mut rows = self.rows.borrow_mut();
        let led = rows.get_mut(&client)?;
        let changed = change(led);
        led.changed.notify_one();
        Some(changed)
    }

    /// Resolves when it is the turn of a call; at once if it need not wait.
    pub(super) async fn turn(&self, call: u64) {
        let (gate, opened) = oneshot::channel();
        let waits = self.of(call, |led| {
            led.row.waits(call) && {
                led.gates.insert(call, gate);
                true
            }
        });
        if waits == Some(true) {
            let _ = opened.await; // A row that is gone holds up nobody.
        }
    }

    /// A call is sent.
    pub(super) fn sent(&self, call: u64) {
        self.of(call, |led| led.row.sent(call, Instant::now()));
    }

    /// It was not taken, and is to be sent once more.
    pub(super) fn comes_back(&self, call: u64) {
        self.of(call, |led| led.row.comes_back(call));
    }

    /// It is being answered, or is over.
    pub(super) fn leave(&self, call: u64) {
        self.of(call, |led| {
            led.row.leave(call);
            led.gates.remove(&call);
        });
        self.whose.borrow_mut().remove(&call);
    }

    /// Lets the calls of a client go one after another, until there are none.
    async fn lead(&self, client: u64) {
        loop {
            let (until, changed) = {
                let mut rows = self.rows.borrow_mut();
                let Some(led) = rows.get_mut(&client) else { return };
                if led.row.is_empty() {
                    rows.remove(&client);
                    return;
                }
                let until = match led.row.next(Instant::now()) {
                    Next::Go(call) => {
                        let gate = led.gates.remove(&call);
                        let _ = gate.map(|gate| gate.send(())); // It may be given up.
                        continue;
                    }
                    Next::Wait(until) => until,
                };
                (until, led.changed.clone())
            };
            match until {
                Some(until) => tokio::select! {
                    () = changed.notified() => {}
                    () = sleep_until(until) => {}
                },
                None => changed.notified().await,
            }
        }
    }
}

impl Web {
    /// The server can soon be asked again: what waited for that goes in its order, behind what
    /// was sent before and may turn out not to be taken.
    pub(crate) fn line_up(&self) {
        let Some(upstream) = self.upstream() else { return };
        let mut calls: Vec<u64> = self.calls.borrow().keys().copied().collect();
        calls.sort_unstable();
        let is_unsent = |call: &u64| self.unsent.borrow().contains(call);
        for call in calls.iter().copied().filter(is_unsent) {
            if let Some(client) = upstream.client_of(call) {
                self.join(call, client);
            }
        }
        for call in calls.into_iter().filter(|call| !is_unsent(call)) {
            let Some(client) = upstream.client_of(call) else { continue };
            if self.unheard.borrow().contains(&call)
                && let Some(led) = self.rows.rows.borrow_mut().get_mut(&client)
            {
                led.row.was_sent(call, Instant::now());
                self.rows.whose.borrow_mut().insert(call, client);
            }
        }
    }

    /// A call of a client was put: it goes behind those of that client that have waited, if it
    /// has waited itself or there are any.
    pub(super) fn put_in_row(&self, call: u64, client: u64, has_waited: bool) {
        let is_under_way = self.calls.borrow().contains_key(&call);
        let has_row = self.rows.rows.borrow().contains_key(&client);
        if is_under_way && (has_waited || has_row) {
            self.join(call, client);
        }
    }

    fn join(&self, call: u64, client: u64) {
        let mut rows = self.rows.rows.borrow_mut();
        let is_new = !rows.contains_key(&client);
        let led = rows.entry(client).or_insert_with(|| Led {
            row: Row::new(Instant::now()),
            gates: HashMap::new(),
            changed: Rc::default(),
        });
        led.row.expect(call);
        led.changed.notify_one();
        drop(rows);
        self.rows.whose.borrow_mut().insert(call, client);
        if let Some(me) = self.me.upgrade().filter(|_| is_new) {
            let mut leaders = self.leaders.borrow_mut();
            while leaders.try_join_next().is_some() {} // Those whose rows are over.
            leaders.spawn_local(async move { me.rows.lead(client).await });
        }
    }
}
