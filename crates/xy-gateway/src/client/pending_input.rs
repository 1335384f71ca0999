//! A modern client comes back to a call that waits for its answers.

use std::rc::Rc;

use super::dispatch::{Outcome, Request};
use super::{Client, Open};
use crate::bridge::pending_input::{self, Kept, NewHold, Next, PendingInput, ReplyTo};
use crate::bridge::{self, Unfit, rounds};
use crate::reply;
use crate::upstream::Caller;
use crate::upstream::Follow;
use xy_protocol::error::CallError;

impl Client {
    /// Takes up the call that a state stands for; `None` if it is none of ours, and may be the
    /// server's own.
    pub(super) fn take_up(
        &self,
        request: &Request<'_>,
        state: &str,
    ) -> Result<Option<Outcome>, CallError> {
        let bond = bridge::bond(&self.entry, request.method, request.params_text);
        let number = match self.router.parked.verify(state, &bond) {
            Ok(number) => number,
            Err(Unfit::NotOurs) => return Ok(None),
            Err(unfit) => return Err(pending_input::refused(unfit)),
        };
        match self.router.parked.take(number)? {
            Kept::Call(hold) => self.take_up_call(request, &hold).map(Some),
            Kept::Again(_) => {
                let text = rounds::as_at_first(request.text.bytes())
                    .ok_or_else(|| reply::invalid("the call cannot be made again"))?;
                self.again(request.id, &text, request.stream);
                Ok(Some(Outcome::Done))
            }
        }
    }

    fn take_up_call(
        &self,
        request: &Request<'_>,
        hold: &Rc<PendingInput>,
    ) -> Result<Outcome, CallError> {
        let (told, next) = hold.take_up(request.params.answers());
        let upstream = hold.upstream.upgrade();
        if let Some(upstream) = &upstream {
            for line in told {
                upstream.pass(&line);
            }
        }
        let upstream = match (next, upstream) {
            (Next::Deliver(came), _) => {
                hold.end();
                return hold.answer(came, request.id).map(Outcome::Line);
            }
            (_, None) => return Err(pending_input::gone()),
            (Next::GoOn, Some(upstream)) => {
                upstream.attach(hold.ours, self.caller(request, hold));
                upstream
            }
            (Next::AskMore, Some(upstream)) => {
                self.park_again(request, hold)?;
                upstream
            }
        };
        Ok(Outcome::Under(Open::Sent { upstream, ours: hold.ours }))
    }

    fn caller(&self, request: &Request<'_>, hold: &PendingInput) -> Caller {
        Caller::Client {
            client: self.me(),
            asked: hold.asked.clone(),
            id: request.id.into(),
            stream: request.stream,
            token: request.params.own_token().map(Into::into),
            follow: Follow::Nothing,
            manner: request.manner.clone(),
            across: Some(Box::new(hold.across())),
        }
    }

    fn park_again(&self, request: &Request<'_>, hold: &Rc<PendingInput>) -> Result<(), CallError> {
        let reply_to = ReplyTo { client: self.me(), id: request.id.into(), stream: request.stream };
        let manner = request.manner.clone().unwrap_or_else(|| hold.manner.clone());
        let next = self.router.parked.park(NewHold {
            reply_to,
            manner,
            method: hold.method.clone(),
            bond: hold.bond,
            upstream: hold.upstream.clone(),
            asked: hold.asked.clone(),
            ours: hold.ours,
            info: hold.info.clone(),
            lacks: hold.lacks.get(),
        });
        let next = next.ok_or_else(|| self.router.parked.full())?;
        hold.pass_on_to(&next);
        if let Some(upstream) = hold.upstream.upgrade() {
            upstream.attach(hold.ours, Caller::Parked(next.clone()));
        }
        self.router.flush_soon(next);
        Ok(())
    }
}
