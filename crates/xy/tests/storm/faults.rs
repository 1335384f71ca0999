//! Injected faults, and which calls they can have interrupted. Pure: no process, no clock.
//!
//! A fault has an effect from its injection until its target has recovered: until a call that was
//! sent later has a result, which only a successor can have given. Calls sent after that are not
//! interrupted by this fault, and without a fault no call is ever interrupted.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ledger::{Call, Outcome};

/// The target of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// This process of a server.
    Server {
        server: usize,
        pid: u32,
    },
    Daemon,
}

/// An injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) target: Target,
    /// Before this moment the fault has no effect.
    pub(crate) begun_at: Duration,
    /// From this moment on a killed daemon is dead. For servers the process id decides.
    pub(crate) at: Duration,
}

impl Fault {
    /// Creates a fault of a server's process, which is about to be injected.
    pub(crate) fn at_server(server: usize, pid: u32, at: Duration) -> Self {
        Self { target: Target::Server { server, pid }, begun_at: at, at }
    }

    /// Returns true if this server was the target.
    pub(crate) fn is_at(&self, server: usize) -> bool {
        matches!(self.target, Target::Server { server: hit, .. } if hit == server)
    }

    /// Returns the time from the fault to this call's result, if only a successor can have given
    /// it.
    pub(crate) fn recovery_time(&self, call: &Call) -> Option<Duration> {
        let [(at, Outcome::Done { pid: by })] = call.answers[..] else { return None };
        let is_later = match self.target {
            Target::Server { server, pid } => call.server == server && by != pid,
            Target::Daemon => call.sent_at >= self.at,
        };
        at.checked_sub(self.at).filter(|_| is_later)
    }

    /// Returns the connection that can notice the recovery. All clients notice a server's recovery,
    /// but each client notices a daemon's by itself.
    fn known_to(&self, call: &Call) -> Option<usize> {
        match self.target {
            Target::Server { .. } => None,
            Target::Daemon => call.line,
        }
    }
}

/// The time in which a fault has an effect.
pub(crate) struct FaultWindow<'l> {
    fault: &'l Fault,
    /// The latest end of the effect, by the connection that notices it.
    over: BTreeMap<Option<usize>, Duration>,
}

impl<'l> FaultWindow<'l> {
    pub(crate) fn of(fault: &'l Fault, calls: &[Call]) -> Self {
        let mut over = BTreeMap::new();
        // Calls sent before the fault may have been answered by the previous process.
        for call in calls.iter().filter(|call| call.sent_at >= fault.at) {
            if let Some(time) = fault.recovery_time(call) {
                let over = over.entry(fault.known_to(call)).or_insert(Duration::MAX);
                *over = (*over).min(fault.at + time);
            }
        }
        Self { fault, over }
    }

    /// Returns true if the fault can explain that a call answered at this time has no result.
    pub(crate) fn may_have_hit(&self, call: &Call, answered_at: Duration) -> bool {
        let is_meant = self.fault.target == Target::Daemon || self.fault.is_at(call.server);
        let over = self.over.get(&self.fault.known_to(call));
        is_meant
            && self.fault.begun_at <= answered_at
            && over.is_none_or(|over| call.sent_at <= *over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Kind;

    const fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    /// Returns a call of a client to a server, and the process that answered it.
    fn call(line: usize, server: usize, (from, to): (u64, u64), by: Option<u32>) -> Call {
        let outcome = by.map_or(Outcome::Unknown("?".to_owned()), |pid| Outcome::Done { pid });
        Call {
            number: from,
            kind: Kind::Record,
            server,
            line: Some(line),
            sent_at: ms(from),
            answers: vec![(ms(to), outcome)],
        }
    }

    /// Other calls, the time span of the call with an unknown outcome, and if the fault explains
    /// it.
    type Case<'c> = (&'static str, &'c [Call], (u64, u64), bool);

    /// Returns true if a fault explains the unknown outcome of a call of client 0 to server 0.
    fn explains(fault: Fault, others: &[Call], (from, to): (u64, u64)) -> bool {
        let hit = call(0, 0, (from, to), None);
        let calls = [others, std::slice::from_ref(&hit)].concat();
        FaultWindow::of(&fault, &calls).may_have_hit(&hit, ms(to))
    }

    #[test]
    fn server_fault_interrupts_calls_until_a_later_call_is_answered() {
        let fault = Fault::at_server(0, 7, ms(100));
        let by = |pid, from, to| [call(1, 0, (from, to), Some(pid))];
        let table: [Case<'_>; 12] = [
            ("it was under way", &[], (90, 110), true),
            ("it was sent to one that was dead", &[], (500, 510), true),
            ("it was over before", &[], (80, 99), false),
            ("it ended at that moment", &[], (80, 100), true),
            ("the successor had answered another", &by(8, 120, 130), (131, 150), false),
            ("that was at the same time", &by(8, 120, 130), (130, 150), true),
            ("the other was answered later", &by(8, 120, 140), (131, 150), true),
            ("the other was sent before", &by(8, 99, 130), (131, 150), true),
            ("its predecessor answered late", &by(6, 90, 130), (131, 150), true),
            ("the one that was struck said a last word", &by(7, 120, 130), (131, 150), true),
            (
                "the other was of unknown outcome too",
                &[call(1, 0, (120, 130), None)],
                (131, 150),
                true,
            ),
            (
                "the other was for another server",
                &[call(1, 1, (120, 130), Some(9))],
                (131, 150),
                true,
            ),
        ];
        for (case, others, span, expected) in table {
            assert_eq!(explains(fault, others, span), expected, "{case}");
        }
        let elsewhere = Fault::at_server(1, 7, ms(100));
        assert!(!explains(elsewhere, &[], (90, 110)), "another server was struck");
    }

    #[test]
    fn first_answer_of_a_successor_counts() {
        let fault = Fault::at_server(0, 7, ms(100));
        let others = [(140, 150), (110, 120), (160, 170)].map(|span| call(1, 0, span, Some(8)));
        assert!(explains(fault, &others, (119, 200)));
        assert!(!explains(fault, &others, (121, 200)));
    }

    #[test]
    fn daemon_fault_ends_for_a_client_with_its_next_answer() {
        // The daemon is killed from 100 on, and dead at 110.
        let fault = Fault { target: Target::Daemon, begun_at: ms(100), at: ms(110) };
        let of = |line, from, to| [call(line, 3, (from, to), Some(9))];
        let table: [Case<'_>; 8] = [
            ("it was under way", &[], (90, 120), true),
            ("it was told before we knew that it was dead", &[], (90, 105), true),
            ("it was over before", &[], (80, 99), false),
            ("nobody was there yet", &[], (500, 510), true),
            ("its client had an answer of any server", &of(0, 120, 130), (131, 150), false),
            ("that was sent while the daemon was killed", &of(0, 105, 130), (131, 150), true),
            ("another client had one", &of(1, 120, 130), (131, 150), true),
            ("its client had one later", &of(0, 120, 140), (131, 150), true),
        ];
        for (case, others, span, expected) in table {
            assert_eq!(explains(fault, others, span), expected, "{case}");
        }
    }
}
