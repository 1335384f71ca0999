//! One server, as clients meet it: whether it is there, what is known of it, and the calls
//! that wait for it. `server/turn.rs` has clients take turns.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use tokio::task::AbortHandle;
use xy_config::settings::{Isolation, ServerSettings};
use xy_mcp::envelope::text_of;
use xy_protocol::control::quoted;
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_supervisor::instance::Holder;

use crate::bridge;
use crate::bridge::rounds::Rounds;
use crate::catalog::Known;
use crate::client::{Client, Open};
use crate::front::StreamNo;
use crate::manifest::Remembered;
use crate::upstream::{Caller, Request, Upstream, Watch};

mod hunch;
mod turn;

pub(crate) use hunch::Hunch;

/// Calls that may wait for one server to come up, or for their turn.
const MOST_WAITING: usize = 1000;

/// The same, in bytes.
const MOST_WAITING_BYTES: usize = 64 * 1024 * 1024;

/// What helps where clients wait for each other.
pub(crate) const ADVICE: &str = "write `isolation \"client\"`";

/// Whether a server is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is, or will be without anybody's doing.
    Up,
    /// It is not, for this reason; what it offers is not shown.
    Down(String),
}

/// One server.
pub(crate) struct Server {
    pub(crate) name: ServerName,
    pub(crate) settings: RefCell<Arc<ServerSettings>>,
    pub(crate) standing: RefCell<Standing>,
    /// From a living instance, or remembered.
    pub(crate) known: RefCell<Option<Rc<Known>>>,
    /// No file and nobody configures it any more.
    pub(crate) is_removed: Cell<bool>,
    /// How it is to be greeted.
    pub(crate) hunch: RefCell<Hunch>,
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
    waiting: RefCell<VecDeque<Waiting>>,
    next_ticket: Cell<u64>,
}

/// A call that waits for its server.
pub(crate) struct Waiting {
    ticket: u64,
    pub(crate) client: Rc<Client>,
    holder: Holder,
    pub(crate) id: Box<str>,
    pub(crate) text: Vec<u8>,
    pub(crate) stream: StreamNo,
    /// It says everything of its client by itself.
    is_modern: bool,
    /// What it has behind it, if it is sent again.
    rounds: Rounds,
    /// Ends the wait after a while.
    timer: Option<AbortHandle>,
}

impl Waiting {
    /// It need not wait any longer.
    pub(crate) fn go(mut self) {
        let rounds = std::mem::take(&mut self.rounds);
        self.client.again_in_round(&self.id, &self.text, self.stream, rounds);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(timer) = &self.timer {
            timer.abort();
        }
    }
}

/// Where a call went.
pub(crate) enum Went {
    /// To the server.
    Sent(Open),
    /// It waits; `is_first` of its holder, who may have to be told to come.
    Waits { open: Open, ticket: u64, is_first: bool },
}

impl Server {
    pub(crate) fn new(settings: Arc<ServerSettings>, remembered: Option<Remembered>) -> Rc<Self> {
        let asks = remembered.as_ref().is_some_and(|it| it.asks);
        let era = remembered.as_ref().map(|it| it.known.introduction.era());
        Rc::new(Self {
            name: settings.name.clone(),
            hunch: RefCell::new(Hunch::new(settings.clone(), era)),
            settings: RefCell::new(settings),
            standing: RefCell::new(Standing::Up),
            known: RefCell::new(remembered.map(|it| Rc::new(it.known))),
            is_removed: Cell::new(false),
            was_waited_for: Cell::new(false),
            asks: Cell::new(asks),
            turn_of: Cell::new(None),
            urgent: Cell::new(0),
            upstreams: RefCell::default(),
            down: RefCell::default(),
            waiting: RefCell::default(),
            next_ticket: Cell::new(0),
        })
    }

    /// For whom the instance lives that a client's calls go to.
    pub(crate) fn holder(&self, client: &Client) -> Holder {
        match self.settings.borrow().isolation {
            Isolation::Shared => Holder::Shared,
            Isolation::Client => Holder::Client(client.house()),
        }
    }

    /// Whether its items are shown.
    pub(crate) fn is_shown(&self) -> bool {
        *self.standing.borrow() == Standing::Up
    }

    /// What is known of it to everybody, if it is to be shown.
    pub(crate) fn shown(&self) -> Option<Rc<Known>> {
        self.known.borrow().clone().filter(|_| self.is_shown())
    }

    /// What is known of it to one client: its own instance knows best.
    pub(crate) fn known_to(&self, client: &Client) -> Option<Rc<Known>> {
        let living = self.upstreams.borrow().get(&self.holder(client)).and_then(|it| it.known());
        living.or_else(|| self.known.borrow().clone())
    }

    /// The same, if it is to be shown.
    pub(crate) fn shown_to(&self, client: &Client) -> Option<Rc<Known>> {
        self.known_to(client).filter(|_| self.is_shown())
    }

    /// The instance that a client's calls go to, if it can be asked now.
    pub(crate) fn upstream(&self, holder: Holder) -> Option<Rc<Upstream>> {
        let found = self.upstreams.borrow().get(&holder).cloned();
        found.filter(|upstream| upstream.introduction().is_some())
    }

    /// Whether a client's calls go to a modern instance, as far as that is known.
    pub(crate) fn is_modern_to(&self, client: &Client) -> bool {
        self.upstream(self.holder(client)).is_some_and(|upstream| upstream.is_modern())
    }

    /// All of its instances that can be asked now.
    pub(crate) fn all_upstreams(&self) -> Vec<Rc<Upstream>> {
        let all = self.upstreams.borrow();
        all.values().filter(|upstream| upstream.introduction().is_some()).cloned().collect()
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
        self.upstreams.borrow_mut().insert(upstream.key().holder, upstream.clone());
    }

    /// It is configured like this now. What runs another program may ask nobody anything.
    pub(crate) fn configure(&self, settings: Arc<ServerSettings>) {
        let before = self.settings.replace(settings);
        if before.kind != self.settings.borrow().kind {
            self.asks.set(false);
        }
    }

    /// An instance is over, unless a later one has taken its place.
    pub(crate) fn drop_upstream(&self, upstream: &Rc<Upstream>) {
        let mut all = self.upstreams.borrow_mut();
        if all.get(&upstream.key().holder).is_some_and(|it| Rc::ptr_eq(it, upstream)) {
            all.remove(&upstream.key().holder);
        }
    }

    /// Sends a client's request on, or has it wait.
    pub(crate) fn call(
        self: &Rc<Self>,
        client: &Rc<Client>,
        mut request: Request<'_>,
        stream: StreamNo,
    ) -> Result<Went, CallError> {
        let holder = self.holder(client);
        if let Some(upstream) = self.upstream(holder) {
            if !request.follow.is_of_task()
                && self.must_wait(client, request.manner.is_some(), &upstream)
            {
                return self.wait(client, holder, &request, stream);
            }
            request.watch = self.watch(&request);
            let (is_watched, is_sent_again) =
                (request.watch.is_some(), request.rounds.watch.is_some());
            let across = bridge::between(client, &request, upstream.era())?;
            let caller = Caller::Client {
                client: client.clone(),
                id: request.id.into(),
                stream,
                token: request.token.map(Into::into),
                follow: request.follow.clone(),
                manner: request.manner.clone(),
                across,
            };
            let ours = upstream.forward(request, caller)?;
            match is_watched {
                true if is_sent_again => upstream.watch_anew(),
                true => upstream.keep_watch(),
                false => {}
            }
            return Ok(Went::Sent(Open::Sent { upstream, ours }));
        }
        if let Standing::Down(why) = &*self.standing.borrow() {
            return Err(self.down(why));
        }
        if let Some(why) = self.down.borrow().get(&holder) {
            return Err(self.down(why));
        }
        self.wait(client, holder, &request, stream)
    }

    /// What looks after the time that a request takes, since it was first sent.
    fn watch(&self, request: &Request<'_>) -> Option<Rc<Watch>> {
        if let Some(watch) = &request.rounds.watch {
            watch.touch();
            return Some(watch.clone());
        }
        Watch::begin(self.settings.borrow().rules.calls, || {
            let (method, about) = request.what;
            let about = about.and_then(text_of).map(|it| format!(" {}", quoted(&it)));
            format!("`{}{}` of `{}`", quoted(method), about.unwrap_or_default(), self.name)
        })
    }

    fn wait(
        self: &Rc<Self>,
        client: &Rc<Client>,
        holder: Holder,
        request: &Request<'_>,
        stream: StreamNo,
    ) -> Result<Went, CallError> {
        let mut waiting = self.waiting.borrow_mut();
        let bytes: usize = waiting.iter().map(|it| it.text.len()).sum();
        if waiting.len() >= MOST_WAITING || bytes + request.text.len() > MOST_WAITING_BYTES {
            let message = format!("too many calls wait for `{}`", self.name);
            return Err(CallError::new(ErrorKind::QueueFull, message).hint("try again later"));
        }
        let is_first = !waiting.iter().any(|it| it.holder == holder);
        let ticket = self.next_ticket.replace(self.next_ticket.get() + 1);
        waiting.push_back(Waiting {
            ticket,
            client: client.clone(),
            holder,
            id: request.id.into(),
            text: request.text.to_vec(),
            stream,
            is_modern: request.manner.is_some(),
            rounds: request.rounds.clone(),
            timer: None,
        });
        let open = Open::Waiting { server: self.clone(), ticket };
        Ok(Went::Waits { open, ticket, is_first })
    }

    /// The wait of a call ends with this.
    pub(crate) fn set_timer(&self, ticket: u64, timer: AbortHandle) {
        if let Some(waiting) = self.waiting.borrow_mut().iter_mut().find(|it| it.ticket == ticket) {
            waiting.timer = Some(timer);
        }
    }

    /// Takes a call out that waits; `None` if it does not wait any more.
    pub(crate) fn take_waiting(&self, ticket: u64) -> Option<Waiting> {
        let mut waiting = self.waiting.borrow_mut();
        let place = waiting.iter().position(|it| it.ticket == ticket)?;
        waiting.remove(place)
    }

    /// Takes all out that wait for an instance, in order.
    pub(crate) fn take_all_waiting(&self, holder: Option<Holder>) -> Vec<Waiting> {
        self.take_those(|it| holder.is_none_or(|holder| holder == it.holder))
    }

    fn take_those(&self, is_meant: impl Fn(&Waiting) -> bool) -> Vec<Waiting> {
        let all = std::mem::take(&mut *self.waiting.borrow_mut());
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        for one in all {
            if is_meant(&one) { taken.push(one) } else { left.push_back(one) }
        }
        *self.waiting.borrow_mut() = left;
        taken
    }

    /// Which of its instances for one client each are not there; answers the calls that
    /// waited for one in vain, each with the reason.
    pub(crate) fn set_down(&self, down: HashMap<Holder, String>) -> Vec<(Waiting, CallError)> {
        let mut lost = Vec::new();
        for (holder, why) in &down {
            let waited = self.take_all_waiting(Some(*holder));
            lost.extend(waited.into_iter().map(|waited| (waited, self.down(why))));
        }
        *self.down.borrow_mut() = down;
        lost
    }

    /// How many calls wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// Why it cannot be asked.
    pub(crate) fn down(&self, why: &str) -> CallError {
        let name = &self.name;
        CallError::new(ErrorKind::NotRunning, format!("`{name}` is not running"))
            .cause(why)
            .hint(format!("start it with `xy start {name}`"))
    }
}
