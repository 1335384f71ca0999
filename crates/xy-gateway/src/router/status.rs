//! Readiness, limits and metrics of the gateway.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use tokio::time::Instant;
use xy_config::settings::Isolation;
use xy_http::HttpStatus;
use xy_mcp::kind::Kind;
use xy_supervisor::instance::Holder;
use xy_transport::metrics;

use super::Router;
use crate::backend::Backend;

/// A gauge per server: name, help and value.
type Number<'n> = (&'n str, &'n str, &'n dyn Fn(&Backend) -> usize);

/// A counter per server: name, help and value.
type Counter<'n> = (&'n str, &'n str, &'n dyn Fn(&Backend) -> u64);

impl HttpStatus for Router {
    fn is_ready(&self) -> bool {
        let is_there = |server: &Rc<Backend>| {
            let is_shared = server.settings.borrow().isolation == Isolation::Shared;
            let is_asleep = || server.is_asleep(Holder::Shared);
            !is_shared || server.upstream(Holder::Shared).is_some() || is_asleep()
        };
        self.servers().iter().filter(|server| server.is_shown()).all(is_there)
    }

    fn limit_hit(&self, limit: &'static str, token: Option<u64>) {
        self.status.send_if_modified(|status| {
            status.limit_hits.record(limit, token, Instant::now());
            false // No reader is woken: readers look only when asked.
        });
    }

    fn metrics(&self, out: &mut String) {
        let servers = self.servers();
        let gauge = metrics::Kind::Gauge;
        metrics::single(
            out,
            "xy_clients",
            gauge,
            "Clients of the gateway.",
            self.clients.borrow().len(),
        );
        let watched = self.subscriptions.borrow().len();
        metrics::single(
            out,
            "xy_resources_watched",
            gauge,
            "Resources that clients watch.",
            watched,
        );
        metrics::single(
            out,
            "xy_ids_owned",
            gauge,
            "Tasks and elicitations of clients.",
            self.ownership.borrow().len(),
        );
        metrics::single(
            out,
            "xy_calls_parked",
            gauge,
            "Calls that wait for their clients to come back.",
            self.pending_inputs.len(),
        );
        self.retained_counts().write(out);
        let numbers: [Number<'_>; 4] = [
            ("xy_server_up", "1 if a server can be called.", &|it| {
                usize::from(!it.is_hidden() && !it.all_upstreams().is_empty())
            }),
            ("xy_server_tools", "Tools of a server.", &|it| {
                it.shown().map_or(0, |known| known.lists.of(Kind::Tools).len())
            }),
            ("xy_server_calls_open", "Calls a server has not answered.", &|it| {
                it.all_upstreams().iter().map(|upstream| upstream.open_calls_of(&it.name)).sum()
            }),
            (
                "xy_server_calls_waiting",
                "Calls that wait for a server to come up, or for their turn.",
                &|it| it.counts().waiting.load(Ordering::Relaxed),
            ),
        ];
        for (name, help, number) in numbers {
            metrics::family(out, name, gauge, help);
            for server in &servers {
                metrics::sample(out, name, &[("server", server.name.as_str())], number(server));
            }
        }
        let counters: [Counter<'_>; 3] = [
            ("xy_server_calls_parked_total", "Calls that had to wait.", &|it| {
                it.counts().parked.get()
            }),
            ("xy_server_calls_again_total", "Calls that were sent again.", &|it| {
                it.counts().again.get()
            }),
            ("xy_server_calls_unknown_total", "Calls whose outcome is unknown.", &|it| {
                it.counts().unknown.get()
            }),
        ];
        for (name, help, number) in counters {
            metrics::family(out, name, metrics::Kind::Counter, help);
            for server in &servers {
                metrics::sample(out, name, &[("server", server.name.as_str())], number(server));
            }
        }
    }
}
