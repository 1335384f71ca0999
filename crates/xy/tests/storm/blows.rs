//! What was done to servers and daemons, and which calls that can have interrupted. Pure: no
//! process, no clock.
//!
//! A blow is felt from its beginning until whoever was struck is back: until there is a result
//! of a call that was sent after it, which only a successor can have given. What is sent later
//! than that is not interrupted by this blow, and nothing is ever interrupted by no blow at all.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ledger::{Call, Outcome};

/// Who was struck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    /// This process of a server.
    Server {
        server: usize,
        pid: u32,
    },
    Daemon,
}

/// What was done to somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Blow {
    pub(crate) victim: Victim,
    /// Before this nobody can have felt it.
    pub(crate) begun_at: Duration,
    /// From this moment on a daemon that was struck is dead. Of a server its process tells.
    pub(crate) at: Duration,
}

impl Blow {
    /// One at a process of a server, which is about to be struck.
    pub(crate) fn at_server(server: usize, pid: u32, at: Duration) -> Self {
        Self { victim: Victim::Server { server, pid }, begun_at: at, at }
    }

    /// Whether this server was struck.
    pub(crate) fn is_at(&self, server: usize) -> bool {
        matches!(self.victim, Victim::Server { server: struck, .. } if struck == server)
    }

    /// How long after it a call had a result that only a successor can have given.
    pub(crate) fn is_survived_by(&self, call: &Call) -> Option<Duration> {
        let [(at, Outcome::Done { pid: by })] = call.answers[..] else { return None };
        let is_later = match self.victim {
            Victim::Server { server, pid } => call.server == server && by != pid,
            Victim::Daemon => call.sent_at >= self.at,
        };
        at.checked_sub(self.at).filter(|_| is_later)
    }

    /// Who knows that it is over. A server is back for everybody; that a daemon is, each client
    /// finds out by itself.
    fn known_to(&self, call: &Call) -> Option<usize> {
        match self.victim {
            Victim::Server { .. } => None,
            Victim::Daemon => call.line,
        }
    }
}

/// For how long a blow is felt.
pub(crate) struct Spell<'l> {
    blow: &'l Blow,
    /// When it is certainly over, by who knows that.
    over: BTreeMap<Option<usize>, Duration>,
}

impl<'l> Spell<'l> {
    pub(crate) fn of(blow: &'l Blow, calls: &[Call]) -> Self {
        let mut over = BTreeMap::new();
        // Whoever lived before the one that was struck can have answered what was sent before.
        for call in calls.iter().filter(|call| call.sent_at >= blow.at) {
            if let Some(time) = blow.is_survived_by(call) {
                let over = over.entry(blow.known_to(call)).or_insert(Duration::MAX);
                *over = (*over).min(blow.at + time);
            }
        }
        Self { blow, over }
    }

    /// Whether it can be why a call that was answered then got no result.
    pub(crate) fn can_have_hit(&self, call: &Call, answered_at: Duration) -> bool {
        let is_meant = self.blow.victim == Victim::Daemon || self.blow.is_at(call.server);
        let over = self.over.get(&self.blow.known_to(call));
        is_meant
            && self.blow.begun_at <= answered_at
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

    /// A call of a client to a server, and who answered it.
    fn call(line: usize, server: usize, (from, to): (u64, u64), by: Option<u32>) -> Call {
        let told = by.map_or(Outcome::Unknown("?".to_owned()), |pid| Outcome::Done { pid });
        Call {
            number: from,
            kind: Kind::Record,
            server,
            line: Some(line),
            sent_at: ms(from),
            answers: vec![(ms(to), told)],
        }
    }

    /// Other calls, when the one of unknown outcome was sent and answered, and whether the blow
    /// can be why.
    type Case<'c> = (&'static str, &'c [Call], (u64, u64), bool);

    /// Whether a blow explains that nobody knows what came of a call of client 0 to server 0.
    fn explains(blow: Blow, others: &[Call], (from, to): (u64, u64)) -> bool {
        let struck = call(0, 0, (from, to), None);
        let calls = [others, std::slice::from_ref(&struck)].concat();
        Spell::of(&blow, &calls).can_have_hit(&struck, ms(to))
    }

    #[test]
    fn a_server_that_was_struck_interrupts_calls_until_its_successor_has_answered_a_later_one() {
        let blow = Blow::at_server(0, 7, ms(100));
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
            assert_eq!(explains(blow, others, span), expected, "{case}");
        }
        let elsewhere = Blow::at_server(1, 7, ms(100));
        assert!(!explains(elsewhere, &[], (90, 110)), "another server was struck");
    }

    #[test]
    fn the_first_answer_of_a_successor_counts_and_not_the_last() {
        let blow = Blow::at_server(0, 7, ms(100));
        let others = [(140, 150), (110, 120), (160, 170)].map(|span| call(1, 0, span, Some(8)));
        assert!(explains(blow, &others, (119, 200)));
        assert!(!explains(blow, &others, (121, 200)));
    }

    #[test]
    fn a_daemon_that_was_struck_is_back_for_a_client_once_that_has_an_answer() {
        // It is killed from 100 on, and dead at 110.
        let blow = Blow { victim: Victim::Daemon, begun_at: ms(100), at: ms(110) };
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
            assert_eq!(explains(blow, others, span), expected, "{case}");
        }
    }
}
