//! Sends delayed calls in the order of their clients, as decided by `send_order.rs`.
//!
//! All other calls are sent at once, unless the same client has delayed calls before them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use super::HttpClient;
use super::send_order::{Next, SendOrder};

/// The send orders of all clients of one server, by client number.
#[derive(Default)]
pub(super) struct SendOrders {
    orders: RefCell<HashMap<u64, ClientOrder>>,
    /// The client in whose order a call is.
    client_of: RefCell<HashMap<u64, u64>>,
}

/// The send order of one client, and the calls that wait in it.
struct ClientOrder {
    order: SendOrder,
    /// One sender per waiting call, which lets it go.
    gates: HashMap<u64, oneshot::Sender<()>>,
    /// Signals a change of the order.
    changed: Rc<Notify>,
}

impl SendOrders {
    /// Returns the number of retained entries.
    pub(super) fn retained(&self) -> usize {
        let calls: usize =
            self.orders.borrow().values().map(|client_order| client_order.order.len()).sum();
        calls + self.client_of.borrow().len()
    }

    /// Changes the order that a call is in, if any.
    fn of<T>(&self, call: u64, change: impl FnOnce(&mut ClientOrder) -> T) -> Option<T> {
        let client = *self.client_of.borrow().get(&call)?;
        let mut orders = self.orders.borrow_mut();
        let client_order = orders.get_mut(&client)?;
        let changed = change(client_order);
        client_order.changed.notify_one();
        Some(changed)
    }

    /// Waits for the turn of a call; returns at once if it is in no order.
    pub(super) async fn wait_for_turn(&self, call: u64) {
        let (gate, opened) = oneshot::channel();
        let waits = self.of(call, |client_order| {
            client_order.order.mark_ready(call) && {
                client_order.gates.insert(call, gate);
                true
            }
        });
        if waits == Some(true) {
            let _ = opened.await; // Without an order the call may go.
        }
    }

    /// Records that a call was sent.
    pub(super) fn mark_sent(&self, call: u64) {
        self.of(call, |client_order| client_order.order.mark_sent(call, Instant::now()));
    }

    /// Records that a call was not accepted, and will be sent once more.
    pub(super) fn expect_again(&self, call: u64) {
        self.of(call, |client_order| client_order.order.expect_again(call));
    }

    /// Removes a call whose response has begun, or that has ended.
    pub(super) fn remove(&self, call: u64) {
        self.of(call, |client_order| {
            client_order.order.remove(call);
            client_order.gates.remove(&call);
        });
        self.client_of.borrow_mut().remove(&call);
    }

    /// Lets the calls of a client go one after another, until there are none.
    async fn run(&self, client: u64) {
        loop {
            let (until, changed) = {
                let mut orders = self.orders.borrow_mut();
                let Some(client_order) = orders.get_mut(&client) else { return };
                if client_order.order.is_empty() {
                    orders.remove(&client);
                    return;
                }
                let until = match client_order.order.next(Instant::now()) {
                    Next::Go(call) => {
                        let gate = client_order.gates.remove(&call);
                        let _ = gate.map(|gate| gate.send(())); // The call may have been cancelled.
                        continue;
                    }
                    Next::Wait(until) => until,
                };
                (until, client_order.changed.clone())
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

impl HttpClient {
    /// Orders the calls that wait for the session, which is about to open. They go behind calls
    /// that were sent before and may turn out not to be accepted.
    pub fn order_delayed_calls(&self) {
        let Some(connection) = self.connection() else { return };
        let mut calls: Vec<u64> = self.calls.borrow().keys().copied().collect();
        calls.sort_unstable();
        let is_unsent = |call: &u64| self.unsent.borrow().contains(call);
        for call in calls.iter().copied().filter(is_unsent) {
            if let Some(client) = connection.client_of(call) {
                self.join(call, client);
            }
        }
        for call in calls.into_iter().filter(|call| !is_unsent(call)) {
            let Some(client) = connection.client_of(call) else { continue };
            if self.unanswered.borrow().contains(&call)
                && let Some(client_order) = self.send_orders.orders.borrow_mut().get_mut(&client)
            {
                client_order.order.add_sent(call, Instant::now());
                self.send_orders.client_of.borrow_mut().insert(call, client);
            }
        }
    }

    /// Orders a new call of a client behind its delayed calls, if there are any or the call itself
    /// was delayed.
    pub(super) fn order_call(&self, call: u64, client: u64, has_waited: bool) {
        let is_open = self.calls.borrow().contains_key(&call);
        let has_order = self.send_orders.orders.borrow().contains_key(&client);
        if is_open && (has_waited || has_order) {
            self.join(call, client);
        }
    }

    fn join(&self, call: u64, client: u64) {
        let mut orders = self.send_orders.orders.borrow_mut();
        let is_new = !orders.contains_key(&client);
        let client_order = orders.entry(client).or_insert_with(|| ClientOrder {
            order: SendOrder::new(Instant::now()),
            gates: HashMap::new(),
            changed: Rc::default(),
        });
        client_order.order.expect(call);
        client_order.changed.notify_one();
        drop(orders);
        self.send_orders.client_of.borrow_mut().insert(call, client);
        if let Some(me) = self.me.upgrade().filter(|_| is_new) {
            let mut order_tasks = self.order_tasks.borrow_mut();
            while order_tasks.try_join_next().is_some() {} // Removes the tasks that have ended.
            order_tasks.spawn_local(async move { me.send_orders.run(client).await });
        }
    }
}
