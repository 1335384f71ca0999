//! The options given by flags.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use xy_testkit::standin::Flags;

use crate::eras::Era;

/// Flags without a value.
const SWITCHES: [&str; 25] = [
    "--bad-list",
    "--bad-tools",
    "--odd-lists",
    "--close-stdin",
    "--dull",
    "--endless-list",
    "--garbage-first",
    "--ignore-ping",
    "--list-never",
    "--never-init",
    "--no-listen",
    "--no-tools",
    "--odd-names",
    "--only-tools",
    "--pass-unknown",
    "--skim",
    "--pretty",
    "--refuse-init",
    "--sessions",
    "--talks",
    "--tasks",
    "--unbuffered",
    "--v2",
    "--no-resources",
    "--no-prompts",
];

/// The options of the server: its identity and its faults.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) name: String,
    pub(crate) protocol: Option<String>,
    pub(crate) instructions: Option<String>,
    pub(crate) extra_tools: usize,
    /// A file with tool definitions, which replace all others.
    pub(crate) tool_file: Option<PathBuf>,
    pub(crate) page: usize,
    pub(crate) slow_init: Duration,
    /// How long each `echo` keeps a core busy.
    pub(crate) work: Duration,
    pub(crate) die_on: Option<String>,
    /// The server exits at startup if this file exists.
    pub(crate) die_if: Option<PathBuf>,
    /// The server freezes after the handshake unless this file exists, and creates it.
    pub(crate) freeze_once: Option<PathBuf>,
    pub(crate) huge_list_megabytes: usize,
    /// The memory to allocate at startup, in MiB.
    pub(crate) megabytes: usize,
    pub(crate) mute_after: u64,
    pub(crate) close_stdout_after: u64,
    pub(crate) input_log: Option<PathBuf>,
    /// The file that records executions.
    pub(crate) record: Option<PathBuf>,
    pub(crate) http: Option<u16>,
    pub(crate) well_after: u64,
    pub(crate) era: Era,
    pub(crate) discover: Option<String>,
    /// The error code that refuses every request of the announced revision.
    pub(crate) refusal_code: Option<i64>,
    switches: BTreeSet<String>,
}

impl Options {
    pub(crate) fn from_args() -> Self {
        let mut options = Self {
            name: "xy-test-mcp".to_owned(),
            protocol: None,
            instructions: None,
            extra_tools: 0,
            tool_file: None,
            page: usize::MAX,
            slow_init: Duration::ZERO,
            work: Duration::ZERO,
            die_on: None,
            die_if: None,
            freeze_once: None,
            huge_list_megabytes: 0,
            megabytes: 0,
            mute_after: u64::MAX,
            close_stdout_after: u64::MAX,
            input_log: None,
            record: None,
            http: None,
            well_after: 0,
            era: Era::Legacy,
            discover: None,
            refusal_code: None,
            switches: BTreeSet::new(),
        };
        let mut flags = Flags::of_this_process();
        while let Some(flag) = flags.next_flag() {
            options.read(flag, &mut flags);
        }
        options
    }

    fn read(&mut self, flag: String, flags: &mut Flags) {
        let size = |flags: &mut Flags| usize::try_from(flags.number()).expect("a size");
        match flag.as_str() {
            "--name" => self.name = flags.value(),
            "--protocol" => self.protocol = Some(flags.value()),
            "--instructions" => self.instructions = Some(flags.value()),
            "--tools" => self.extra_tools = size(flags),
            "--tool-file" => self.tool_file = Some(flags.value().into()),
            "--page" => self.page = size(flags).max(1),
            "--slow-init" => self.slow_init = flags.millis(),
            "--work-us" => self.work = Duration::from_micros(flags.number()),
            "--die-on" => self.die_on = Some(flags.value()),
            "--die-if" => self.die_if = Some(flags.value().into()),
            "--freeze-once" => self.freeze_once = Some(flags.value().into()),
            "--huge-list" => self.huge_list_megabytes = size(flags),
            "--megabytes" => self.megabytes = size(flags),
            "--mute-after" => self.mute_after = flags.number(),
            "--close-stdout-after" => self.close_stdout_after = flags.number(),
            "--input-log" => self.input_log = Some(flags.value().into()),
            "--record" => self.record = Some(flags.value().into()),
            "--http" => self.http = Some(flags.number().try_into().expect("a port")),
            "--well-after" => self.well_after = flags.number(),
            "--era" => self.era = Era::read(&flags.value()),
            "--discover" => self.discover = Some(flags.value()),
            "--lies" => self.refusal_code = Some(flags.value().parse().expect("a code")),
            switch if SWITCHES.contains(&switch) => {
                self.switches.insert(flag);
            }
            _ => panic!("unknown flag `{flag}`"),
        }
    }

    /// Returns true if this flag was given.
    pub(crate) fn has(&self, switch: &str) -> bool {
        debug_assert!(SWITCHES.contains(&switch), "no flag `{switch}`");
        self.switches.contains(switch)
    }

    /// Returns true if the capability `tools`, `prompts`, `resources` … is declared.
    pub(crate) fn declares(&self, capability: &str) -> bool {
        match capability {
            "tools" => !self.has("--no-tools"),
            "tasks" => self.has("--tasks"),
            "prompts" => !self.has("--only-tools") && !self.has("--no-prompts"),
            "resources" => !self.has("--only-tools") && !self.has("--no-resources"),
            _ => !self.has("--only-tools"),
        }
    }
}
