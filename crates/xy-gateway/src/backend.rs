//! One server, as clients meet it: whether it is there, and what is known of it.
//! A server that shares the process of another has no instances of its own: it answers through
//! its home, and what is asked of it remembers under which name (`router/sharing.rs`).
//!
//! `backend/queue.rs` has the calls that wait for it, `backend/exclusive.rs` has clients take turns,
//! `backend/sleep.rs` knows which of its instances sleep.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use xy_config::profile::OWN_TOOLS;
use xy_config::settings::ServerSettings;
use xy_mcp::envelope::text_of;
use xy_protocol::control::quoted;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_supervisor::instance::Holder;

use crate::bridge;
use crate::catalog::{Kind, Known};
use crate::client::{Client, Open};
use crate::era::Era;
use crate::frontend::StreamNo;
use crate::manifest::Remembered;
use crate::retained::Retained;
use crate::upstream::{Caller, Request, Upstream, Watch};

mod era_routing;
mod exclusive;
mod lot;
mod protocol_hint;
mod queue;
mod sleep;

pub(crate) use lot::Lot;
pub(crate) use protocol_hint::{
    Greeting, GreetingOutcome, Introductions, ProtocolHint, SpokenEras,
};
pub(crate) use queue::{RetryState, ToWait, Waiting, outcome_unknown};
pub(crate) use sleep::{Progressing, Trouble};

/// What helps where clients wait for each other.
pub(crate) const ADVICE: &str = "write `isolation \"client\"`";

/// Why nobody is to be asked under a name that an operator has stopped.
pub(crate) const STOPPED: &str = "it was stopped";

/// Whether a server is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Availability {
    /// It is, or will be without anybody's doing.
    Up,
    /// It is not, for this reason; what it offers is not shown.
    Down(String),
}

/// One server.
pub(crate) struct Backend {
    pub(crate) name: ServerName,
    pub(crate) settings: RefCell<Arc<ServerSettings>>,
    pub(crate) standing: RefCell<Availability>,
    /// From a living instance, or remembered.
    pub(crate) known: RefCell<Option<Rc<Known>>>,
    /// No file and nobody configures it any more.
    pub(crate) is_removed: Cell<bool>,
    /// How it is to be greeted.
    pub(crate) hint: RefCell<ProtocolHint>,
    /// Somebody has waited for what it offers, in vain.
    pub(crate) was_waited_for: Cell<bool>,
    /// It asks its clients questions: those who share it take turns.
    asks: Cell<bool>,
    /// Whose waiting calls are let go just now.
    turn_of: Cell<Option<u64>>,
    /// How many calls went in this turn though others waited.
    urgent: Cell<usize>,
    upstreams: RefCell<HashMap<Holder, Rc<Upstream>>>,
    /// The instances for one client each that are not there, and why.
    down: RefCell<HashMap<Holder, String>>,
    sleep: sleep::Sleep,
    /// The server whose instances answer for it, if it is another.
    owner: RefCell<Option<ServerName>>,
    /// The same, if it is there.
    home: RefCell<Weak<Self>>,
    /// Its name is down, though its process may live for others.
    is_hidden: Cell<bool>,
    /// In the order of their tickets.
    waiting: RefCell<VecDeque<Waiting>>,
    waiting_bytes: Cell<u64>,
    /// Those that waited are being sent: they overtake nobody.
    is_releasing: Cell<bool>,
    /// How much may wait, and what else all servers share about that.
    lot: Rc<Lot>,
    pub(crate) counts: Counts,
    /// What an instance of this very program has said last that it offers, here and not to an
    /// earlier daemon.
    said: RefCell<Option<Rc<Known>>>,
    /// The era of its latest call, where it speaks both.
    last_called: Cell<Option<Era>>,
    /// The era of the shared process that is remembered on disk.
    remembered_era: Cell<Option<Era>>,
    /// The second process could not be started since the shared one began.
    is_second_refused: Cell<bool>,
}

/// What is counted of a server's calls.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Those that wait. Others look at it from their threads.
    pub(crate) waiting: Arc<AtomicUsize>,
    /// Those that had to wait, ever.
    pub(crate) parked: Cell<u64>,
    /// Those that were sent again, ever.
    pub(crate) again: Cell<u64>,
    /// Those of which nobody knows whether they were done, ever.
    pub(crate) unknown: Cell<u64>,
}

/// Where a call went.
pub(crate) enum Went {
    /// To the server.
    Sent(Open),
    /// It waits for an instance; if it is the first to, that may have to be told to come.
    Waits { open: Open, for_first: Option<Holder> },
}

impl Backend {
    pub(crate) fn new(
        settings: Arc<ServerSettings>,
        remembered: Option<Remembered>,
        lot: Rc<Lot>,
    ) -> Rc<Self> {
        let asks = remembered.as_ref().is_some_and(|it| it.asks);
        let eras = remembered.as_ref().map(|it| it.eras).unwrap_or_default();
        let last_called = remembered.as_ref().and_then(|it| it.last_called);
        let introductions =
            remembered.as_ref().map(|it| it.introductions.clone()).unwrap_or_default();
        let known = remembered
            .map(|it| Rc::new(Known::new(settings.name.as_str(), it.introduction, it.lists)));
        Rc::new(Self {
            name: settings.name.clone(),
            hint: RefCell::new(ProtocolHint::new(settings.clone(), eras, introductions)),
            settings: RefCell::new(settings),
            standing: RefCell::new(Availability::Up),
            known: RefCell::new(known),
            is_removed: Cell::new(false),
            was_waited_for: Cell::new(false),
            asks: Cell::new(asks),
            turn_of: Cell::new(None),
            urgent: Cell::new(0),
            upstreams: RefCell::default(),
            down: RefCell::default(),
            sleep: sleep::Sleep::default(),
            owner: RefCell::default(),
            home: RefCell::default(),
            is_hidden: Cell::new(false),
            waiting: RefCell::default(),
            waiting_bytes: Cell::new(0),
            is_releasing: Cell::new(false),
            lot,
            counts: Counts::default(),
            said: RefCell::default(),
            last_called: Cell::new(last_called),
            remembered_era: Cell::new(last_called),
            is_second_refused: Cell::new(false),
        })
    }

    /// Whether its items are shown.
    pub(crate) fn is_shown(&self) -> bool {
        *self.standing.borrow() == Availability::Up && !self.is_hidden.get()
    }

    /// Whether its name is down by itself.
    pub(crate) fn is_hidden(&self) -> bool {
        self.is_hidden.get()
    }

    /// The server whose instances answer for it, if it is another.
    pub(crate) fn owner(&self) -> Option<ServerName> {
        self.owner.borrow().clone()
    }

    /// Whether it is news that these instances answer for it, or that its name is down or not.
    pub(crate) fn follows_anew(&self, owner: Option<&ServerName>, is_hidden: bool) -> bool {
        (self.owner.borrow().as_ref(), self.is_hidden()) != (owner, is_hidden)
    }

    /// Whose instances answer for it from now on, and whether its name is down.
    pub(crate) fn set_owner(&self, owner: Option<ServerName>, is_hidden: bool) {
        self.owner.replace(owner);
        self.is_hidden.set(is_hidden);
    }

    /// Whose instances answer for it, if they are another's and that is there.
    pub(crate) fn home(&self) -> Option<Rc<Self>> {
        self.home.borrow().upgrade()
    }

    /// Whose instances answer for it: that one's, or its own.
    pub(crate) fn primary_or_self(self: &Rc<Self>) -> Rc<Self> {
        self.home().unwrap_or_else(|| self.clone())
    }

    /// They are this one's from now on, or its own.
    pub(crate) fn set_home(&self, home: Option<&Rc<Self>>) {
        self.home.replace(home.map_or_else(Weak::new, Rc::downgrade));
    }

    /// Whether what is asked of a server under this name is asked of it.
    pub(crate) fn is_home_of(&self, asked: &Self) -> bool {
        match asked.home() {
            Some(home) => std::ptr::eq(Rc::as_ptr(&home), self),
            None => std::ptr::eq(asked, self),
        }
    }

    /// What is known of it to everybody, if it is to be shown.
    pub(crate) fn shown(&self) -> Option<Rc<Known>> {
        self.known.borrow().clone().filter(|_| self.is_shown())
    }

    /// What is known of it to one client, as far as that is shown it: its own instance knows
    /// best.
    pub(crate) fn known_to(&self, client: &Client) -> Option<Rc<Known>> {
        client.visible(&self.name, self.known_at(self.holder(client))?)
    }

    /// What is known of it, of this instance if that has said something.
    fn known_at(&self, holder: Holder) -> Option<Rc<Known>> {
        let living = match self.home() {
            Some(home) => home.living_known(holder).map(|known| known.under(&self.name)),
            None => self.living_known(holder),
        };
        living.or_else(|| self.known.borrow().clone())
    }

    fn living_known(&self, holder: Holder) -> Option<Rc<Known>> {
        self.upstreams.borrow().get(&holder).and_then(|it| it.known())
    }

    /// Whether an instance of these clients alone has said what it offers.
    pub(crate) fn is_alone_with(&self, group_id: u64) -> bool {
        let living = |it: &Self| it.living_known(Holder::Client(group_id)).is_some();
        self.home().map_or_else(|| living(self), |home| living(&home))
    }

    /// Whether an instance of its own offers a client other tools than everybody is shown.
    pub(crate) fn has_own_tools(&self, client: &Client) -> bool {
        let holder = self.holder(client);
        if !holder.is_client() {
            return false;
        }
        let known =
            self.home().map_or_else(|| self.living_known(holder), |it| it.living_known(holder));
        let print = |known: &Rc<Known>| known.print(Kind::Tools);
        known.is_some_and(|own| self.known.borrow().as_ref().map(print) != Some(print(&own)))
    }

    /// The same, if it is to be shown.
    pub(crate) fn shown_to(&self, client: &Client) -> Option<Rc<Known>> {
        self.known_to(client).filter(|_| self.is_shown())
    }

    /// The instance that a client's calls go to, if it can be asked now.
    pub(crate) fn upstream(&self, holder: Holder) -> Option<Rc<Upstream>> {
        if let Some(home) = self.home() {
            return home.upstream(holder);
        }
        let found = self.upstreams.borrow().get(&holder).cloned();
        found.filter(|upstream| upstream.introduction().is_some() && !upstream.holds_off())
    }

    /// Whether a client's calls go to a modern instance, as far as that is known.
    pub(crate) fn is_modern_to(&self, client: &Client) -> bool {
        self.upstream(self.holder(client)).is_some_and(|upstream| upstream.is_modern())
    }

    /// All instances that answer for it and can be asked now.
    pub(crate) fn all_upstreams(&self) -> Vec<Rc<Upstream>> {
        self.home().map_or_else(|| self.own_upstreams(), |home| home.own_upstreams())
    }

    /// For whom its instances live, also those that are about to come.
    pub(crate) fn holders(&self) -> HashSet<Holder> {
        self.upstreams.borrow().keys().copied().chain(self.holders_to_come()).collect()
    }

    /// Those of them that are its own, and not another's.
    pub(crate) fn own_upstreams(&self) -> Vec<Rc<Upstream>> {
        let all = self.upstreams.borrow();
        all.values().filter(|upstream| upstream.introduction().is_some()).cloned().collect()
    }

    /// These clients have gone.
    pub(crate) fn forget_user(&self, group_id: u64) {
        for upstream in self.upstreams.borrow().values() {
            upstream.forget_user(group_id);
        }
    }

    /// How much is kept for it.
    pub(crate) fn count(&self, census: &mut Retained) {
        census.add("instances", self.upstreams.borrow().len());
        census.add("instances_down", self.down.borrow().len());
        census.add("instances_asleep", self.sleep.count());
        census.add("calls_waiting", self.waiting.borrow().len());
        let bytes = usize::try_from(self.waiting_bytes.get()).unwrap_or(usize::MAX);
        census.add("calls_waiting_bytes", bytes);
        for upstream in self.upstreams.borrow().values() {
            upstream.count(census);
        }
    }

    /// Whether any of its instances lives.
    pub(crate) fn has_instances(&self) -> bool {
        !self.upstreams.borrow().is_empty()
    }

    /// An instance has begun to live.
    pub(crate) fn add(&self, upstream: &Rc<Upstream>) {
        if self.asks.get() {
            upstream.take_turns();
        }
        upstream.may_park(self.lot.park);
        upstream.set_dated(self.may_sleep(upstream.key().holder));
        if upstream.key().holder == Holder::Shared {
            self.allow_second();
        }
        self.upstreams.borrow_mut().insert(upstream.key().holder, upstream.clone());
    }

    /// It is configured like this now. What runs another program may ask nobody anything.
    pub(crate) fn configure(&self, settings: Arc<ServerSettings>) {
        let before = self.settings.replace(settings);
        self.rules_may_have_changed(&before);
        if before.kind != self.settings.borrow().kind {
            self.asks.set(false);
            self.said.take();
        }
    }

    /// An instance has said what it offers.
    pub(crate) fn has_said(&self, known: &Rc<Known>) {
        *self.said.borrow_mut() = Some(known.clone());
    }

    /// Forgets what it offers, which must not be shown.
    pub(crate) fn forget_lists(&self) {
        self.said.take();
        self.known.take();
    }

    /// What an instance has said last, if any did while this daemon was there.
    pub(crate) fn said(&self) -> Option<Rc<Known>> {
        self.said.borrow().clone()
    }

    /// An instance is over, unless a later one has taken its place.
    pub(crate) fn drop_upstream(&self, upstream: &Rc<Upstream>) {
        let mut all = self.upstreams.borrow_mut();
        if all.get(&upstream.key().holder).is_some_and(|it| Rc::ptr_eq(it, upstream)) {
            all.remove(&upstream.key().holder);
        }
    }

    /// Sends a client's request on, or has it wait. It may be asked under another of its names.
    pub(crate) fn call(
        self: &Rc<Self>,
        client: &Rc<Client>,
        mut request: Request<'_>,
        stream: StreamNo,
    ) -> Result<Went, CallError> {
        let era = if request.manner.is_some() { Era::Modern } else { Era::Legacy };
        // Lists need no process of their era.
        let holder = match Kind::listed_by(request.what.0) {
            Some(_) => self.holder(client),
            None => self.holder_of_call(client, era),
        };
        request.past.ticket = Some(self.ticket(&request.past));
        if let Some(upstream) = self.upstream(holder) {
            let is_modern = request.manner.is_some();
            if !request.follow.is_of_task()
                && self.must_wait(client, is_modern, &request.past, &upstream)
            {
                return self.wait_for(client, holder, &request, stream);
            }
            return self.send(client, &upstream, request, stream).map(Went::Sent);
        }
        if let Some(why) = request.asked.no_successor(holder) {
            return Err(request.asked.down_for(holder, &why));
        }
        self.wait_for(client, holder, &request, stream)
    }

    /// What looks after the time that a request takes, since it was first sent.
    fn watch(&self, request: &Request<'_>) -> Option<Rc<Watch>> {
        if let Some(watch) = &request.past.rounds.watch {
            watch.touch();
            return Some(watch.clone());
        }
        Watch::begin(self.settings.borrow().rules.calls, || {
            let (method, about) = request.what;
            let about = about.and_then(text_of).map(|it| format!(" {}", quoted(&it)));
            let name = &request.asked.name;
            format!("`{}{}` of `{name}`", quoted(method), about.unwrap_or_default())
        })
    }

    fn send(
        &self,
        client: &Rc<Client>,
        upstream: &Rc<Upstream>,
        mut request: Request<'_>,
        stream: StreamNo,
    ) -> Result<Open, CallError> {
        request.watch = self.watch(&request);
        let is_watched = request.watch.is_some();
        let (was_sent, was_watched) = (request.past.was_sent, request.past.rounds.watch.is_some());
        self.check_not_xys_own(upstream, &request)?;
        let across = bridge::between(client, &request, upstream.era())?;
        let asked = request.asked.clone();
        let caller = Caller::Client {
            client: client.clone(),
            asked: asked.clone(),
            id: request.id.into(),
            stream,
            token: request.token.map(Into::into),
            follow: request.follow.clone(),
            manner: request.manner.clone(),
            across,
        };
        let ours = upstream.forward(request, caller)?;
        upstream.is_used_by(client.group_id());
        if self.is_new_era(upstream) {
            client.remember(self);
        }
        upstream.watch_reading();
        if was_sent {
            asked.count_again();
        }
        match is_watched {
            true if was_watched => upstream.watch_anew(),
            true => upstream.keep_watch(),
            false => {}
        }
        Ok(Open::Sent { upstream: upstream.clone(), ours })
    }

    /// Refuses a tool by which another xy is managed: whoever may call tools here may not manage
    /// servers there. What that xy lists for another daemon is none of those.
    fn check_not_xys_own(
        &self,
        upstream: &Upstream,
        request: &Request<'_>,
    ) -> Result<(), CallError> {
        let is_gateway = upstream.introduction().is_some_and(|it| it.is_gateway);
        if !is_gateway || request.what.0 != "tools/call" {
            return Ok(());
        }
        let written = request.renamed.as_ref().map(|(_, inside)| inside.as_str());
        let name = written.or(request.what.1).and_then(text_of).unwrap_or_default();
        let known = upstream.known().or_else(|| self.known.borrow().clone());
        let is_listed =
            |known: Rc<Known>| known.lists.of(Kind::Tools).iter().any(|tool| *tool.name == *name);
        if OWN_TOOLS.contains(&&*name) || !known.is_none_or(is_listed) {
            let (name, server) = (quoted(&name), &request.asked.name);
            return Err(CallError::new(
                ErrorKind::NotAllowed,
                format!("`{name}` is not called through another daemon"),
            )
            .cause(format!("`{server}` is an xy of its own, and this is no tool of its servers"))
            .hint("ask that daemon itself, with its own `xy` or token"));
        }
        Ok(())
    }

    fn wait_for(
        self: &Rc<Self>,
        client: &Rc<Client>,
        holder: Holder,
        request: &Request<'_>,
        stream: StreamNo,
    ) -> Result<Went, CallError> {
        self.check_room(request.text.len()) // Before it is copied.
            .and_then(|()| self.check_share(client))
            .inspect_err(|_| client.limit_hit("calls that wait for a server"))?;
        let call = ToWait {
            client: client.clone(),
            asked: request.asked.clone(),
            holder,
            id: request.id.into(),
            text: request.text.store(),
            stream,
            is_modern: request.manner.is_some(),
            past: request.past.clone(),
        };
        let (open, is_first) = self.wait(call);
        Ok(Went::Waits { open, for_first: is_first.then_some(holder) })
    }

    /// Why it cannot be asked.
    pub(crate) fn down(&self, why: &str) -> CallError {
        let name = &self.name;
        let fault =
            CallError::new(ErrorKind::NotRunning, format!("`{name}` is not running")).cause(why);
        if self.is_removed.get() {
            return fault.hint("`xy list` shows the servers that there are");
        }
        fault.hint(format!(
            "`xy logs {name}` shows what it said last, and `xy start {name}` starts it"
        ))
    }

    /// Returns why the instance of one holder cannot be asked.
    pub(crate) fn down_for(&self, holder: Holder, why: &str) -> CallError {
        match (holder, self.home().map_or_else(|| self.trouble(holder), |it| it.trouble(holder))) {
            (Holder::Client(_), Some(trouble)) => instance_failed(&self.name, &trouble),
            _ => self.down(why),
        }
    }

    /// It cannot be asked yet, and comes without anybody's doing.
    pub(crate) fn not_yet(&self) -> CallError {
        let name = &self.name;
        CallError::new(ErrorKind::NotRunning, format!("`{name}` is still starting"))
            .cause("it is not ready yet")
            .hint(format!("try again later; `xy status {name}` shows its state"))
    }
}

/// The error for calls to a client's own instance that has failed, for the given reason.
pub fn instance_failed(name: &ServerName, why: &str) -> CallError {
    let hint = format!(
        "fix the problem above, then run `xy restart {name}` or connect again; `xy status {name}` \
         shows more"
    );
    CallError::new(ErrorKind::NotRunning, format!("`{name}` is not running")).cause(why).hint(hint)
}
