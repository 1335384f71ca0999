//! A server that records each of its runs, so that a test knows what really happened.
//!
//! Each run writes lines `<life> <number> <filler>.` to stdout and stderr. The file
//! `FOLDER/<server>/<life>` records how many lines it has written, and its exit code before it
//! exits by itself. The exit code is the number of the run, so all differ.
//!
//! Every recorded line was written. At most one written line is not yet recorded.
//!
//! Each run also holds a lock. A run that finds the lock held creates `FOLDER/<server>.twice`,
//! which must never exist.
//!
//! - `--run-log FOLDER`
//! - `--every MS`: interval between lines (default: write none)
//! - `--width BYTES`: length of a line (default: 100)
//! - `--at-most LINES`: maximum number of lines (default: no limit)
//! - `--ends-after MS`: time until it exits by itself (default: never)

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use xy_testkit::standin::{self, Flags, Output, Wait, Woken};

/// Maximum run time. Longer than in other test servers, because the full soak test takes long.
const MAX_RUN_TIME: Duration = Duration::from_mins(40);

/// Maximum number of runs. Each needs an exit code of its own, from 1 to 250.
const MAX_LIVES: usize = 250;

struct Plan {
    run_log: PathBuf,
    every: Option<Duration>,
    width: usize,
    at_most: u64,
    ends_after: Option<Duration>,
}

struct RunLog {
    file: File,
    life: String,
    number: usize,
    /// Lines on stdout and on stderr.
    written: [u64; 2],
    _lock: File,
}

fn main() -> ExitCode {
    standin::live_at_most(MAX_RUN_TIME);
    let plan = read_flags();
    let mut wait = Wait::new(); // Signals are caught from here on.
    let server = std::env::var("XY_SERVER").expect("xy names its servers");
    let mut run_log = RunLog::begin(&plan.run_log, &server);
    let mut left = plan.ends_after;
    loop {
        let step = [plan.every, left].into_iter().flatten().min();
        if wait.next(step) != Woken::InTime {
            return ExitCode::SUCCESS; // TERM, or the end of stdin.
        }
        let has_more = plan.every.is_some() && run_log.written[1] < plan.at_most;
        if has_more && run_log.write_line(plan.width).is_err() {
            return ExitCode::SUCCESS; // The shim, which reads the output, has exited.
        }
        left = left.map(|left| left.saturating_sub(step.unwrap_or_default()));
        if left == Some(Duration::ZERO) {
            return run_log.end();
        }
    }
}

fn read_flags() -> Plan {
    let mut plan = Plan {
        run_log: PathBuf::new(),
        every: None,
        width: 100,
        at_most: u64::MAX,
        ends_after: None,
    };
    let mut flags = Flags::of_this_process();
    while let Some(flag) = flags.next_flag() {
        match flag.as_str() {
            "--run-log" => plan.run_log = flags.value().into(),
            "--every" => plan.every = Some(flags.millis()),
            "--width" => plan.width = flags.number().try_into().expect("a width"),
            "--at-most" => plan.at_most = flags.number(),
            "--ends-after" => plan.ends_after = Some(flags.millis()),
            _ => panic!("unknown flag `{flag}`"),
        }
    }
    plan
}

impl RunLog {
    #[expect(clippy::disallowed_methods, reason = "it only tells lives apart")]
    fn begin(folder: &Path, server: &str) -> Self {
        let lives = folder.join(server);
        fs::create_dir_all(&lives).expect("a folder for the lives");
        let lock = File::create(folder.join(format!("{server}.lock"))).expect("a lock");
        if lock.try_lock().is_err() {
            File::create(folder.join(format!("{server}.twice"))).expect("a complaint");
        }
        let number = 1 + fs::read_dir(&lives).expect("the lives").count();
        // The system reuses process ids, so the name starts with the time.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        let life = format!("{:020}-{}", since.as_nanos(), std::process::id());
        let file = File::create_new(lives.join(&life)).expect("a page of our own");
        let run_log = Self { file, life, number, written: [0; 2], _lock: lock };
        run_log.record(0);
        run_log
    }

    /// Writes one line to each stream.
    fn write_line(&mut self, width: usize) -> std::io::Result<()> {
        for (index, output) in [Output::Stdout, Output::Stderr].into_iter().enumerate() {
            let start = format!("{} {} ", self.life, self.written[index] + 1);
            let filler = width.saturating_sub(start.len() + 1);
            output.write(format!("{start}{}.\n", "x".repeat(filler)).as_bytes())?;
            self.written[index] += 1;
            self.record(0);
        }
        Ok(())
    }

    /// Records and returns the exit code of this run.
    fn end(&self) -> ExitCode {
        assert!(self.number <= MAX_LIVES, "more lives than there are codes");
        self.record(self.number);
        ExitCode::from(u8::try_from(self.number).expect("it is small"))
    }

    /// Overwrites the record in a single write, so that a reader never sees a partial one.
    fn record(&self, code: usize) {
        let [out, err] = self.written;
        let page = format!("{out:012} {err:012} {code:03}\n");
        self.file.write_all_at(page.as_bytes(), 0).expect("a page can be written");
    }
}
