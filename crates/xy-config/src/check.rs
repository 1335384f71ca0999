//! Converts raw files to settings, and collects every problem.
//!
//! Nothing here reads a file; [`Machine`] answers questions about the machine. A server with an
//! error is left out of the settings, and so is the second of two servers with the same port. The
//! remaining settings are valid by construction.

mod blocks;
mod container;
mod environment;
mod fields;
mod gateway;
mod instances;
mod limits;
mod mcp_json;
mod park;
mod probes;
mod problems;
mod profile;
mod program;
mod read;
mod remote;
mod rules;
mod secrets;
mod self_reference;
mod values;
mod words;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use xy_protocol::server::ServerName;

use self::fields::{FieldScope, Fields};
use self::problems::{Problems, without_repeats};
use self::read::{Reader, Spanned};
use self::rules::{ServerBuilder, check_restart, restart_rules};
use self::values::Zero;
use self::words::{Word, word};
use crate::bad_files::BadFiles;
use crate::environment::EnvironmentDefaults;
use crate::profile::ProfileSettings;
use crate::raw;
use crate::report::{Problem, ProblemKind};
use crate::settings::{DEFAULT_ORPHAN_TIMEOUT, Rules, ServerSettings, Settings, Source};
use crate::source::{SourceFile, SourceSpan};

/// Maximum number of server files.
pub const MAX_SERVER_FILES: usize = 1000;

const DAEMON_WORDS: [Word; 8] = [
    word("gateway", r#"gateway { listen "127.0.0.1:7979" }"#),
    word("orphan-timeout", r#"orphan-timeout "60s""#),
    word("park", r#"park { queue "30s" }"#),
    word("instances", "instances { most 200 }"),
    word("mcp-json", r#"mcp-json "/home/me/.cursor/mcp.json""#),
    word("defaults", r#"defaults { restart { policy "always" } }"#),
    word("supervisor", "supervisor #true"),
    word("strict", "strict #true"),
];

const ZERO_ORPHAN_TIMEOUT: Zero =
    Zero::Forbidden("servers would stop when their daemon is replaced");

/// The settings of the files, and their problems.
#[derive(Debug, Clone, Default)]
pub struct LoadedConfig {
    /// The settings, with servers without errors only.
    pub settings: Settings,
    /// All errors and warnings, by file and line.
    pub problems: Vec<Problem>,
    /// The number of server files, with or without errors.
    pub server_files: usize,
    /// The number of all files, including profiles and the daemon's own.
    pub files: usize,
    /// The servers whose files have errors, or cannot be read.
    pub broken: BrokenServers,
    /// The servers that are left out because they are this daemon itself, with the reason.
    pub self_references: BTreeMap<ServerName, String>,
    /// The defaults from the environment.
    pub environment: EnvironmentDefaults,
    /// The files that cannot be used, and what is used instead.
    pub bad: BadFiles,
}

/// The servers without usable settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokenServers {
    /// All servers: settings that apply to every server cannot be read.
    All,
    /// These servers.
    Only(BTreeSet<ServerName>),
    /// All servers except these: a file with unknown servers cannot be read.
    AllExcept(BTreeSet<ServerName>),
}

impl Default for BrokenServers {
    fn default() -> Self {
        Self::Only(BTreeSet::new())
    }
}

impl BrokenServers {
    /// Returns true if the server is one of them.
    pub fn contains(&self, name: &ServerName) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(name),
            Self::AllExcept(names) => !names.contains(name),
        }
    }
}

impl LoadedConfig {
    /// Returns true if a daemon may use these settings: there are no errors, at most warnings.
    pub fn is_valid(&self) -> bool {
        !self.problems.iter().any(Problem::is_error)
    }
}

/// A file that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileText {
    /// The path of the file.
    pub path: PathBuf,
    /// The name of the file in reports.
    pub shown: String,
    /// The text of the file.
    pub text: String,
}

/// The facts about the machine that a check needs. The defaults are for an unknown machine.
pub trait Machine {
    /// Returns the home folder, for suggestions.
    fn home(&self) -> Option<PathBuf> {
        None
    }
    /// Returns the PATH for programs; `None` if it is unknown.
    fn search_path(&self) -> Option<OsString> {
        None
    }
    /// Returns what is at a path.
    fn inspect(&self, _path: &Path) -> PathKind {
        PathKind::Unknown
    }
    /// Returns true if the program at a path is the running one.
    fn is_this_program(&self, _path: &Path) -> bool {
        false
    }
    /// Returns the limits that can be enforced.
    fn limits(&self) -> LimitSupport {
        LimitSupport::any()
    }
    /// Returns true if other users can read the file; `None` if that is unknown.
    fn others_can_read(&self, _path: &Path) -> Option<bool> {
        None
    }
    /// Returns an environment variable.
    fn variable(&self, _name: &str) -> Option<OsString> {
        None
    }
}

/// The limits that a machine can enforce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSupport {
    /// Maximum number of open files; absent if it is unlimited or unknown.
    pub max_open_files: Option<u64>,
    /// How memory limits are enforced.
    pub memory: Enforcement,
    /// How process limits are enforced; never per process.
    pub pids: Enforcement,
}

/// How a limit is enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enforcement {
    /// By a cgroup, for all processes of a server together.
    ByCgroup,
    /// For each process of a server separately.
    PerProcess,
    /// The limit cannot be enforced.
    Unavailable {
        /// The reason, as the end of a sentence.
        why: String,
    },
}

impl LimitSupport {
    /// Returns support for all limits, also used for an unknown machine.
    pub fn any() -> Self {
        Self { max_open_files: None, memory: Enforcement::ByCgroup, pids: Enforcement::ByCgroup }
    }
}

/// The kind of entry at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// Nothing visible.
    Missing,
    /// A folder.
    Folder,
    /// A file that may be executed.
    Program,
    /// A file that may not be executed.
    File,
    /// Unknown, so it is not reported.
    Unknown,
}

/// Checks the daemon's own file and all server files.
pub fn check(
    daemon_file: Option<&FileText>,
    server_files: &[FileText],
    machine: &dyn Machine,
) -> LoadedConfig {
    check_all(daemon_file, Texts { servers: server_files, ..Texts::default() }, machine)
}

/// The texts of all files but the daemon's own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Texts<'a> {
    /// Server files.
    pub servers: &'a [FileText],
    /// Files of MCP clients.
    pub clients: &'a [FileText],
    /// Files of profiles.
    pub profiles: &'a [FileText],
}

/// Checks all files. Of two servers with the same name, a server file has precedence over a
/// client's, and an earlier file over a later one. A profile with an error shows nothing.
pub fn check_all(
    daemon_file: Option<&FileText>,
    texts: Texts<'_>,
    machine: &dyn Machine,
) -> LoadedConfig {
    let (environment, problems) = EnvironmentDefaults::read(|name| machine.variable(name));
    let mut checker = Checker {
        machine,
        environment,
        defaults: Fields::default(),
        orphan_timeout: DEFAULT_ORPHAN_TIMEOUT,
        ports: HashMap::new(),
        shared: HashMap::new(),
        files: HashMap::new(),
        broken: BTreeMap::new(),
        every_is_broken: false,
        loaded: LoadedConfig {
            server_files: texts.servers.len() + texts.clients.len(),
            files: usize::from(daemon_file.is_some())
                + texts.servers.len()
                + texts.clients.len()
                + texts.profiles.len(),
            problems,
            environment,
            ..LoadedConfig::default()
        },
    };
    if let Some(file) = daemon_file {
        checker.daemon_file(file);
    }
    for file in texts.servers {
        checker.server_file(file);
    }
    for file in texts.clients {
        checker.mcp_file(file);
    }
    for file in texts.profiles {
        checker.profile_file(file);
    }
    let broken = checker.broken.keys().cloned().collect();
    checker.loaded.broken =
        if checker.every_is_broken { BrokenServers::All } else { BrokenServers::Only(broken) };
    checker.loaded.bad.servers = checker.broken;
    checker.loaded.problems = without_repeats(checker.loaded.problems);
    checker.loaded
}

/// Checks one text alone: `xy.kdl` by its name, a profile by its `profiles` folder, a client's file
/// by its `.json` ending, otherwise a server file.
///
/// The machine is not inspected, so programs are never reported as missing.
pub fn check_text(name: &str, text: &str) -> LoadedConfig {
    let is_profile = Path::new(name).parent().is_some_and(|it| it.ends_with("profiles"));
    let file =
        FileText { path: PathBuf::from(name), shown: name.to_owned(), text: text.to_owned() };
    let is_json = file.path.extension().is_some_and(|it| it == "json");
    match file.path.file_name() {
        Some(_) if is_profile => {
            let profiles = std::slice::from_ref(&file);
            check_all(None, Texts { profiles, ..Texts::default() }, &UnknownMachine)
        }
        Some(file_name) if file_name == "xy.kdl" => check(Some(&file), &[], &UnknownMachine),
        _ if is_json => {
            let clients = std::slice::from_ref(&file);
            check_all(None, Texts { clients, ..Texts::default() }, &UnknownMachine)
        }
        _ => check(None, std::slice::from_ref(&file), &UnknownMachine),
    }
}

/// An unknown machine.
pub(crate) struct UnknownMachine;

impl Machine for UnknownMachine {}

struct Checker<'a> {
    machine: &'a dyn Machine,
    environment: EnvironmentDefaults,
    defaults: Fields,
    orphan_timeout: Duration,
    /// The port claims so far, in the order of files.
    ports: HashMap<u16, Spanned<u16>>,
    /// The first server with each `share-key`, in the order of files.
    shared: HashMap<String, (SourceSpan, Arc<ServerSettings>)>,
    /// The file that configures each server, with or without errors.
    files: HashMap<ServerName, String>,
    /// The servers with errors in a client's file, and that file.
    broken: BTreeMap<ServerName, PathBuf>,
    /// True if a client's file cannot be read, so that its servers are unknown.
    every_is_broken: bool,
    loaded: LoadedConfig,
}

impl Checker<'_> {
    fn daemon_file(&mut self, file: &FileText) {
        let file = SourceFile::new(&file.path, &file.shown, &file.text);
        let mut problems = Problems::default();
        let raw::Parsed { nodes, problems: faults } = raw::parse(&file);
        problems.extend(faults);
        let machine = self.machine;
        let mut reader = Reader { file: &file, problems: &mut problems, machine };
        for (node, word) in reader.known(&nodes, &DAEMON_WORDS, None) {
            match word.name {
                "defaults" => {
                    if let Some(children) = reader.block(node, word) {
                        self.defaults = Fields::read(&mut reader, children, FieldScope::Defaults);
                    }
                }
                "orphan-timeout" => {
                    if let Some(wait) = reader.duration(node, word, ZERO_ORPHAN_TIMEOUT) {
                        self.orphan_timeout = wait.value;
                    }
                }
                "supervisor" => {
                    let flag = reader.flag(node, word);
                    self.loaded.settings.supervisor = flag.map(|it| it.value);
                }
                "strict" => {
                    let flag = reader.flag(node, word);
                    self.loaded.settings.strict = flag.map(|it| it.value);
                }
                "gateway" => {
                    self.loaded.settings.gateway = gateway::read(&mut reader, node, word);
                }
                "instances" => {
                    self.loaded.settings.instances = instances::read(&mut reader, node, word);
                }
                "mcp-json" => {
                    self.loaded.settings.mcp_json = program::mcp_json(&mut reader, node, word);
                }
                _ => self.loaded.settings.park = park::read(&mut reader, node, word),
            }
        }
        // Errors in the defaults are reported even if no server uses them.
        let restart = restart_rules(&self.defaults.restart, &self.environment);
        check_restart(&self.defaults.restart, &restart, &mut problems);
        self.loaded.problems.extend(problems.finish(&file.shown));
    }

    fn server_file(&mut self, file: &FileText) {
        let file = SourceFile::new(&file.path, &file.shown, &file.text);
        let mut problems = Problems::default();
        let name = server_name(&file).map_err(|problem| problems.push(problem)).ok();
        self.files.extend(name.clone().map(|name| (name, file.shown.clone())));
        let raw::Parsed { nodes, problems: faults } = raw::parse(&file);
        problems.extend(faults);
        let machine = self.machine;
        let mut reader = Reader { file: &file, problems: &mut problems, machine };
        let fields = Fields::read(&mut reader, &nodes, FieldScope::Server);
        self.server(name, &file, fields, &mut problems);
        self.loaded.problems.extend(problems.finish(&file.shown));
    }

    fn profile_file(&mut self, file: &FileText) {
        let file = SourceFile::new(&file.path, &file.shown, &file.text);
        let mut problems = Problems::default();
        let name = profile_name(&file).map_err(|problem| problems.push(problem)).ok();
        let stem = name.as_deref().unwrap_or_default();
        let mut profile = ProfileSettings::closed(stem, &file.shown);
        let raw::Parsed { nodes, problems: faults } = raw::parse(&file);
        problems.extend(faults);
        let machine = self.machine;
        let mut reader = Reader { file: &file, problems: &mut problems, machine };
        let read = profile::read(&mut reader, &nodes, stem);
        if !problems.has_errors() {
            let names: Vec<&str> = self.files.keys().map(ServerName::as_str).collect();
            problems.extend(profile::check_servers(&file, &read, &names));
            profile = read;
        }
        if let Some(name) = name {
            self.loaded.settings.profiles.insert(name, Arc::new(profile));
        }
        self.loaded.problems.extend(problems.finish(&file.shown));
    }

    fn server(
        &mut self,
        name: Option<ServerName>,
        file: &Arc<SourceFile>,
        fields: Fields,
        problems: &mut Problems,
    ) {
        if let Some(port) = &fields.port {
            problems.extend(self.claim_port(port));
        }
        let command_line = fields.kinds.first().map_or(1, |(_, at)| at.line());
        let kind_at = fields.kinds.first().map(|(_, at)| at.clone());
        let share_key = fields.share_key.clone();
        let fields = fields.or(&self.defaults);
        let (machine, environment) = (self.machine, &self.environment);
        let mut builder = ServerBuilder { file, fields, problems, machine, environment };
        let kind = builder.kind();
        let (isolation, era) = (builder.isolation(), builder.era());
        let rules = Rules { orphan_timeout: self.orphan_timeout, ..builder.rules() };
        let (Some(name), Some(kind), false) = (name, kind, problems.has_errors()) else {
            return;
        };
        let gateway = &self.loaded.settings.gateway;
        if let (Some(at), Some(why)) =
            (kind_at, self_reference::find(&name, &kind, gateway, machine))
        {
            let message = format!("server `{name}` is this daemon itself, and is not used");
            let problem = Problem::warning(&at, message).label(why.clone());
            problems.push(problem.suggest("remove it: xy would serve itself endlessly"));
            self.loaded.self_references.insert(name, why);
            return;
        }
        if secrets::contains_secrets(&kind)
            && self.machine.others_can_read(&file.path) == Some(true)
        {
            problems.push(secrets::readable_by_others(file));
        }
        let source =
            Source { file: file.path.clone(), command_line, is_outdated: false, added: false };
        let key = share_key.as_ref().map(|it| it.value.clone());
        let server = ServerSettings {
            name: name.clone(),
            source,
            kind,
            rules,
            isolation,
            share_key: key,
            era,
        };
        let server = Arc::new(server);
        if let Some(problem) = share_key.and_then(|key| self.claim_key(key, &server)) {
            return problems.push(problem);
        }
        self.loaded.settings.servers.insert(name, server);
    }

    /// Checks that all servers with the same key have the same settings as the first.
    fn claim_key(&mut self, key: Spanned<String>, server: &Arc<ServerSettings>) -> Option<Problem> {
        let Some((at, first)) = self.shared.get(&key.value) else {
            self.shared.insert(key.value, (key.at, server.clone()));
            return None;
        };
        let difference = if first.kind != server.kind {
            "are not the same process"
        } else if first.isolation != server.isolation {
            "do not have the same `isolation`"
        } else if first.era != server.era {
            "do not have the same `era`"
        } else {
            return None;
        };
        let (one, other) = (&at.file.shown, &key.at.file.shown);
        let message = format!("`{other}` has the `share-key` of `{one}`, but they {difference}");
        let problem = Problem::error(&key.at, message);
        Some(problem.label("give it another key, or none").related(at, "first used here"))
    }

    /// Claims a port for the first file that has it; each later one conflicts with it.
    fn claim_port(&mut self, port: &Spanned<u16>) -> Option<Problem> {
        let Some(first) = self.ports.get(&port.value) else {
            self.ports.insert(port.value, port.clone());
            return None;
        };
        let message = format!(
            "port {} of `{}` is already used by `{}`",
            port.value, port.at.file.shown, first.at.file.shown
        );
        let problem = Problem::error(&port.at, message).kind(ProblemKind::PortConflict);
        Some(problem.label("give one of them another port").related(&first.at, "used here first"))
    }
}

/// Returns the name of a server, the stem of its file.
fn server_name(file: &SourceFile) -> Result<ServerName, Problem> {
    let stem = file.path.file_stem().unwrap_or_default().to_string_lossy();
    ServerName::new(&stem).map_err(|why| {
        Problem::in_file(&file.shown, why.to_string())
            .suggest("rename the file: its name without `.kdl` is the name of the server")
    })
}

/// Returns the name of a profile, the stem of its file, which appears in URLs.
fn profile_name(file: &SourceFile) -> Result<String, Problem> {
    let stem = file.path.file_stem().unwrap_or_default().to_string_lossy();
    ServerName::new(&stem).map(|name| name.to_string()).map_err(|why| {
        Problem::in_file(&file.shown, why.to_string())
            .suggest("rename the file: its name without `.kdl` is the name of the profile")
    })
}

#[cfg(test)]
mod tests;
