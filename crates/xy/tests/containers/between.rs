//! A go-between at a socket of its own: it passes on what xy and an engine say to each other,
//! knows what was asked, and can hold it back or cut it off.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};

use xy_testkit::Home;

use crate::stage::Engine;

/// A go-between.
pub(crate) struct Between {
    shared: Arc<Shared>,
}

struct Shared {
    engine: PathBuf,
    state: Mutex<State>,
    has_changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What was asked, each as `POST /containers/create…`.
    asked: Vec<String>,
    /// Conversations that are open: the last that was asked, and both ends.
    open: Vec<(u64, String, [UnixStream; 2])>,
    next: u64,
    /// Whether nothing is passed on, either way.
    is_held_back: bool,
    /// Answers to what has these words are not passed on.
    held_answers: Option<&'static str>,
}

impl Between {
    /// One between an engine and the servers of a home; and the engine as it is then seen.
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

    /// How often something with these words was asked.
    pub(crate) fn asked(&self, words: &str) -> usize {
        self.asked_all(&[words])
    }

    /// How often something with all of these words was asked.
    pub(crate) fn asked_all(&self, words: &[&str]) -> usize {
        let state = self.shared.state.lock().unwrap();
        let is_it = |asked: &&String| words.iter().all(|it| asked.contains(it));
        state.asked.iter().filter(is_it).count()
    }

    /// Cuts off every conversation that is about this; how many there were.
    pub(crate) fn cut(&self, words: &str) -> usize {
        let state = self.shared.state.lock().unwrap();
        let those = state.open.iter().filter(|(_, asked, _)| asked.contains(words));
        those.map(|(_, _, ends)| ends.iter().for_each(hang_up)).count()
    }

    /// Has the engine do what is asked with these words, and holds back its answers, until others
    /// are named or none.
    pub(crate) fn hold_answers(&self, words: Option<&'static str>) {
        self.shared.state.lock().unwrap().held_answers = words;
        self.shared.has_changed.notify_all();
    }

    /// Holds everything back, or passes it on again.
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

    /// Waits while everything is held back, or what is answered in this conversation.
    fn wait(&self, answers: Option<u64>) {
        let is_held = |state: &mut State| {
            let asked = state.open.iter().find(|(it, _, _)| Some(*it) == answers);
            let is_it = |words: &str| asked.is_some_and(|(_, asked, _)| asked.contains(words));
            state.is_held_back || state.held_answers.is_some_and(is_it)
        };
        let state = self.state.lock().unwrap();
        drop(self.has_changed.wait_while(state, is_held).unwrap());
    }

    /// Notes what is asked, if this is the beginning of a question.
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
