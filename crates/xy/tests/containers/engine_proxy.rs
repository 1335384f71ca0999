//! A proxy socket between xy and an engine. It records requests, and can hold back or cut the
//! traffic.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

use xy_testkit::Home;

use crate::stage::Engine;

/// The proxy.
pub(crate) struct EngineProxy {
    shared: Arc<Shared>,
}

struct Shared {
    engine: PathBuf,
    state: Mutex<State>,
    has_changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The requests, such as `POST /containers/create…`.
    asked: Vec<String>,
    /// Open connections: number, last request, and both ends.
    open: Vec<(u64, String, [UnixStream; 2])>,
    next: u64,
    /// True while all traffic is held back.
    is_held_back: bool,
    /// Responses to requests with these words are held back.
    held_answers: Option<&'static str>,
}

impl EngineProxy {
    /// Starts a proxy between an engine and the servers of a home; returns it and the engine as
    /// seen through it.
    pub(crate) fn of(engine: &Engine, home: &Home) -> (Self, Engine) {
        let socket = home.root().join("harness/between.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let shared = Arc::new(Shared {
            engine: engine.socket.clone(),
            state: Mutex::new(State::default()),
            has_changed: Condvar::new(),
        });
        let lent = shared.clone();
        std::thread::spawn(move || {
            for visitor in listener.incoming().flatten() {
                let shared = lent.clone();
                std::thread::spawn(move || shared.introduce(&visitor));
            }
        });
        (Self { shared }, Engine { kind: engine.kind, socket })
    }

    /// Returns how many requests contained these words.
    pub(crate) fn asked(&self, words: &str) -> usize {
        self.asked_all(&[words])
    }

    /// Returns how many requests contained all of these words.
    pub(crate) fn asked_all(&self, words: &[&str]) -> usize {
        let state = self.shared.state.lock().unwrap();
        let is_it = |asked: &&String| words.iter().all(|it| asked.contains(it));
        state.asked.iter().filter(is_it).count()
    }

    /// Cuts every connection whose last request contains these words; returns how many there were.
    pub(crate) fn cut(&self, words: &str) -> usize {
        let state = self.shared.state.lock().unwrap();
        let those = state.open.iter().filter(|(_, asked, _)| asked.contains(words));
        those.map(|(_, _, ends)| ends.iter().for_each(hang_up)).count()
    }

    /// Lets requests with these words through but holds back the responses, until other words or
    /// `None` are given.
    pub(crate) fn hold_answers(&self, words: Option<&'static str>) {
        self.shared.state.lock().unwrap().held_answers = words;
        self.shared.has_changed.notify_all();
    }

    /// Holds back all traffic, or releases it.
    pub(crate) fn hold_back(&self, is_held_back: bool) {
        self.shared.state.lock().unwrap().is_held_back = is_held_back;
        self.shared.has_changed.notify_all();
    }
}

fn hang_up(end: &UnixStream) {
    let _ = end.shutdown(Shutdown::Both); // It may be gone already.
}

impl Shared {
    fn introduce(&self, visitor: &UnixStream) {
        let Ok(engine) = UnixStream::connect(&self.engine) else { return };
        let both = || [visitor.try_clone().unwrap(), engine.try_clone().unwrap()];
        let number = {
            let mut state = self.state.lock().unwrap();
            state.next += 1;
            let number = state.next;
            state.open.push((number, String::new(), both()));
            number
        };
        let [asks, asked] = both();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pass_on(asks, asked, |bytes| {
                    self.note(number, bytes);
                    self.wait(None);
                });
                let _ = engine.shutdown(Shutdown::Write);
            });
            let [answered, answers] = both();
            pass_on(answers, answered, |_| self.wait(Some(number)));
            both().iter().for_each(hang_up);
        });
        self.state.lock().unwrap().open.retain(|(it, _, _)| *it != number);
    }

    /// Waits while all traffic is held back, or the responses of this connection.
    fn wait(&self, answers: Option<u64>) {
        let is_held = |state: &mut State| {
            let asked = state.open.iter().find(|(it, _, _)| Some(*it) == answers);
            let is_it = |words: &str| asked.is_some_and(|(_, asked, _)| asked.contains(words));
            state.is_held_back || state.held_answers.is_some_and(is_it)
        };
        let state = self.state.lock().unwrap();
        drop(self.has_changed.wait_while(state, is_held).unwrap());
    }

    /// Records a request, if this is the beginning of one.
    fn note(&self, number: u64, bytes: &[u8]) {
        let head = String::from_utf8_lossy(&bytes[..bytes.len().min(500)]).into_owned();
        let Some(line) = head.lines().next().and_then(|it| it.split_once(" HTTP/1.")) else {
            return;
        };
        let mut state = self.state.lock().unwrap();
        state.asked.push(line.0.to_owned());
        if let Some(one) = state.open.iter_mut().find(|(it, _, _)| *it == number) {
            line.0.clone_into(&mut one.1);
        }
    }
}

fn pass_on(mut from: UnixStream, mut to: UnixStream, before: impl Fn(&[u8])) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(length) = from.read(&mut piece) {
        if length == 0 {
            return;
        }
        before(&piece[..length]);
        if to.write_all(&piece[..length]).is_err() {
            return;
        }
    }
}
