//! `xy connect`: what an MCP client starts; its stdio becomes a conversation with the daemon.
//!
//! Two blocking threads carry lines, one each way, and this one waits for the end. stdout
//! carries the protocol only. The bridge owns no server: it can be started twice at once,
//! thrown away, and outlive the daemon. `docs/design/connect.md` says how and why.

mod carry;
mod dial;
mod direct;
mod downward;
mod environment;
mod hub;
mod ledger;
mod lines;
mod recording;
mod upward;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use xy_config::Paths;
use xy_protocol::door::{DOOR_PROTOCOL, Hello, View};
use xy_protocol::error::{CallError, ErrorKind};

use crate::clock::Deadline;
use crate::failure::Failure;
use crate::output::Output;
use dial::{Dial, Limits};
use downward::Downward;
use hub::Hub;
use recording::Recorder;
use upward::Upward;

/// How long answers may still come after the client has said its last word.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// How long a client may take to ask something, so that it can be told why there is no answer.
const FIRST_WORDS_WITHIN: Duration = Duration::from_millis(500);

/// More than the threads ever say.
const MAX_NEWS: usize = 16;

/// Connect an MCP client to the daemon, over stdin and stdout
///
/// This is the command to put in an MCP client's settings. Starts the daemon if none runs,
/// and goes on with the next one if the daemon is restarted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  xy connect\n  xy connect --profile work\n  \
    xy connect --server github\n  xy connect --direct github\n  \
    xy connect --record /tmp/session.jsonl")]
pub(crate) struct Args {
    /// Show what this profile shows
    #[arg(long, value_name = "NAME", default_value = "default", conflicts_with = "server")]
    profile: String,
    /// Show one server only, with nothing renamed
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Run one server without the daemon, for this client alone
    ///
    /// Its stdin, stdout and stderr are this command's, and so is its exit code. It is
    /// neither restarted nor shared nor logged, and everything of it ends with this command.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["profile", "server", "no_start"])]
    direct: Option<String>,
    /// The process that looks after this one, by its number.
    #[arg(long, hide = true, value_name = "PID", requires = "direct")]
    above: Option<u32>,
    /// Fail if no daemon runs, instead of starting one
    #[arg(long)]
    no_start: bool,
    /// Write every message and its time to a new file, for a report
    ///
    /// Secrets are masked. A file that exists is never overwritten. If FILE is a folder, each
    /// start writes a new file there.
    #[arg(long, value_name = "FILE", conflicts_with = "direct")]
    record: Option<PathBuf>,
    /// How long a daemon is waited for.
    #[arg(long, hide = true, value_name = "DURATION", value_parser = humantime::parse_duration)]
    within: Option<Duration>,
}

/// What a thread has to say to the one that waits.
#[derive(Debug)]
enum News {
    /// The client has said its last word, which may still have to wait.
    ClientEnds,
    /// All that the client has said is dealt with; answers may still come.
    ClientLeft,
    /// The client knows why it gets no answers.
    ClientKnows,
    /// It is over.
    Ended {
        result: Result<(), Failure>,
        /// Whether nobody has to be told why any more.
        client_knows: bool,
    },
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    if let Some(server) = direct::wanted(args)? {
        if args.record.is_some() {
            return Err(not_recorded().into());
        }
        return direct::run(args, server, output);
    }
    let paths = Paths::from_env()?;
    let record = |path: &PathBuf| Recorder::start(path, paths.clone());
    let recorder = args.record.as_ref().map(record).transpose()?;
    let not_begun = |cause| Failure::internal("the bridge could not begin", cause);
    let hub = Arc::new(Hub::new(recorder).map_err(not_begun)?);
    let limits = Limits { may_start: !args.no_start, within: args.within };
    let (news, heard) = sync_channel(MAX_NEWS);
    let downward = Downward::new(Arc::clone(&hub), Dial::new(paths, limits), hello(args));
    let upward = Upward::new(Arc::clone(&hub), news.clone());
    spawn("downward", move || downward.run(&news)).map_err(not_begun)?;
    spawn("upward", move || upward.run()).map_err(not_begun)?;
    let result = until_the_end(&heard, &hub);
    if let Some(recorder) = hub.recorder() {
        recorder.finish(output);
    }
    result
}

/// The server is run by this client, and its messages do not pass here.
fn not_recorded() -> CallError {
    CallError::new(ErrorKind::NotAllowed, "the session cannot be recorded")
        .cause("supervision is switched off, so the client speaks with the server itself")
        .hint("leave out `--record`, or switch supervision on")
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    // Nobody joins them: one may be blocked by a client that has lost interest.
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

fn hello(args: &Args) -> Hello {
    let view = match &args.server {
        Some(server) => View::Server(server.clone()),
        None => View::Profile(args.profile.clone()),
    };
    let client = rustix::process::getppid();
    let client_pid = client.and_then(|pid| pid.as_raw_nonzero().get().try_into().ok());
    Hello { protocol: DOOR_PROTOCOL, view, client_pid }
}

fn until_the_end(heard: &Receiver<News>, hub: &Arc<Hub>) -> Result<(), Failure> {
    let mut deadline = Deadline::never();
    loop {
        match next(heard, deadline) {
            Some(News::ClientEnds | News::ClientLeft) if deadline.left().is_none() => {
                deadline = Deadline::after(LAST_ANSWERS_WITHIN);
            }
            Some(News::ClientEnds | News::ClientLeft | News::ClientKnows) => {}
            Some(News::Ended { result, client_knows }) => {
                if !client_knows {
                    until_the_client_knows(heard);
                }
                return result;
            }
            // Nobody waits for what has not come by now.
            None => return give_up(heard, hub),
        }
    }
}

/// The last answers are overdue. Whoever still listens is told so for each that is missing.
fn give_up(heard: &Receiver<News>, hub: &Arc<Hub>) -> Result<(), Failure> {
    let (why, result) = if hub.is_up() {
        (not_answered(), Ok(()))
    } else {
        (nobody_answers(), Err(Failure::Unreachable(nobody_answers())))
    };
    hub.note("bridge gave up", Some(&why.to_string()));
    // By a thread of its own: one that does not read any more would be waited for.
    let farewell_hub = Arc::clone(hub);
    let (done, is_done) = sync_channel(1);
    let farewell = spawn("farewell", move || {
        let (told, _) = farewell_hub.over(why);
        let _ = farewell_hub.tell_client(&told); // It may have left altogether.
        let _ = done.send(()); // If nobody waits for it, it took too long.
    });
    if farewell.is_ok() {
        let _ = is_done.recv_timeout(FIRST_WORDS_WITHIN); // Who does not read by then does not.
    }
    // Messages that no daemon took are still with the client's thread, which refuses them now.
    let deadline = Deadline::after(FIRST_WORDS_WITHIN);
    while !hub.has_left() && next(heard, deadline).is_some() {}
    result
}

/// The daemon takes longer than the client may be waited for.
fn not_answered() -> CallError {
    let waited = LAST_ANSWERS_WITHIN.as_secs();
    let what = format!("outcome unknown: no answer came within {waited} s of the end of stdin");
    CallError::new(ErrorKind::OutcomeUnknown, what)
        .hint("it may have been done: look before you repeat it, and keep stdin open for longer")
}

/// The daemon went away, and no other came while the client could be waited for.
fn nobody_answers() -> CallError {
    let waited = LAST_ANSWERS_WITHIN.as_secs();
    CallError::new(ErrorKind::NotRunning, "no daemon is running")
        .cause(format!("none came within {waited} s of the end of stdin"))
        .hint("start one with `xy daemon --detach`")
}

/// A client that has not asked yet is about to, and shows people the answer.
fn until_the_client_knows(heard: &Receiver<News>) {
    let deadline = Deadline::after(FIRST_WORDS_WITHIN);
    while let Some(news) = next(heard, deadline) {
        if matches!(news, News::ClientKnows | News::ClientLeft) {
            return;
        }
    }
}

fn next(heard: &Receiver<News>, deadline: Deadline) -> Option<News> {
    match deadline.left() {
        None => heard.recv().ok(),
        Some(left) => heard.recv_timeout(left).ok(),
    }
}
