//! Keeps a diary of its lives, so that a test knows what really happened.
//!
//! Each life says `<life> <number> <filler>.` on stdout and on stderr, and notes in
//! `DIARY/<server>/<life>` how many lines it has written and, before it ends by itself,
//! its exit code: the number of the life, so that no two ends look alike. What is in the
//! diary was written; of what was written, at most one line is not yet in the diary.
//!
//! It also holds a lock of its own while it lives. A life that finds it held leaves
//! `DIARY/<server>.twice`, which must never be there.
//!
//! `--diary FOLDER`, `--every MS` between lines (none: silent), `--width BYTES` of a line
//! (100), `--at-most LINES` (no limit), `--ends-after MS` (never).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use xy_testkit::standin::{self, Flags, Output, Wait, Woken};

/// Longer than elsewhere: the full rounds take a while.
const LIMIT: Duration = Duration::from_mins(40);

/// Codes 1 to 250 are lives; a life beyond them would look like another one.
const MOST_LIVES: usize = 250;

struct Plan {
    diary: PathBuf,
    every: Option<Duration>,
    width: usize,
    at_most: u64,
    ends_after: Option<Duration>,
}

struct Diary {
    file: File,
    life: String,
    number: usize,
    /// Lines on stdout and on stderr.
    written: [u64; 2],
    _lock: File,
}

fn main() -> ExitCode {
    standin::live_at_most(LIMIT);
    let plan = read_flags();
    let mut wait = Wait::new(); // Whatever comes from now on is heard.
    let server = std::env::var("XY_SERVER").expect("xy names its servers");
    let mut diary = Diary::begin(&plan.diary, &server);
    let mut left = plan.ends_after;
    loop {
        let step = [plan.every, left].into_iter().flatten().min();
        if wait.next(step) != Woken::InTime {
            return ExitCode::SUCCESS; // Told to end.
        }
        let has_more = plan.every.is_some() && diary.written[1] < plan.at_most;
        if has_more && diary.say(plan.width).is_err() {
            return ExitCode::SUCCESS; // Nobody reads any more: the shim is gone.
        }
        left = left.map(|left| left.saturating_sub(step.unwrap_or_default()));
        if left == Some(Duration::ZERO) {
            return diary.end();
        }
    }
}

fn read_flags() -> Plan {
    let mut plan = Plan {
        diary: PathBuf::new(),
        every: None,
        width: 100,
        at_most: u64::MAX,
        ends_after: None,
    };
    let mut flags = Flags::of_this_process();
    while let Some(flag) = flags.next_flag() {
        match flag.as_str() {
            "--diary" => plan.diary = flags.value().into(),
            "--every" => plan.every = Some(flags.millis()),
            "--width" => plan.width = flags.number().try_into().expect("a width"),
            "--at-most" => plan.at_most = flags.number(),
            "--ends-after" => plan.ends_after = Some(flags.millis()),
            _ => panic!("unknown flag `{flag}`"),
        }
    }
    plan
}

impl Diary {
    #[expect(clippy::disallowed_methods, reason = "it only tells lives apart")]
    fn begin(folder: &Path, server: &str) -> Self {
        let lives = folder.join(server);
        fs::create_dir_all(&lives).expect("a folder for the lives");
        let lock = File::create(folder.join(format!("{server}.lock"))).expect("a lock");
        if lock.try_lock().is_err() {
            File::create(folder.join(format!("{server}.twice"))).expect("a complaint");
        }
        let number = 1 + fs::read_dir(&lives).expect("the lives").count();
        // Numbers of processes are used again; moments are not.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let life = format!("{:020}-{}", since.as_nanos(), std::process::id());
        let file = File::create_new(lives.join(&life)).expect("a page of our own");
        let diary = Self { file, life, number, written: [0; 2], _lock: lock };
        diary.note(0);
        diary
    }

    /// Says one line on each stream.
    fn say(&mut self, width: usize) -> std::io::Result<()> {
        for (index, output) in [Output::Stdout, Output::Stderr].into_iter().enumerate() {
            let start = format!("{} {} ", self.life, self.written[index] + 1);
            let filler = width.saturating_sub(start.len() + 1);
            output.write(format!("{start}{}.\n", "x".repeat(filler)).as_bytes())?;
            self.written[index] += 1;
            self.note(0);
        }
        Ok(())
    }

    /// Ends by itself.
    fn end(&self) -> ExitCode {
        assert!(self.number <= MOST_LIVES, "more lives than there are codes");
        self.note(self.number);
        ExitCode::from(u8::try_from(self.number).expect("it is small"))
    }

    /// The page is always whole: one write in one place.
    fn note(&self, code: usize) {
        let [out, err] = self.written;
        let page = format!("{out:012} {err:012} {code:03}\n");
        self.file.write_all_at(page.as_bytes(), 0).expect("a page can be written");
    }
}
