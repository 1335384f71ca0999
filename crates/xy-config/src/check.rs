//! Raw files to settings, collecting every problem.
//!
//! Nothing here reads a file; [`Surroundings`] answers what has to be known of
//! the machine. A server with a mistake is left out of the settings, and so is
//! the second of two servers with one port: what is left is valid by construction.

mod blocks;
mod container;
mod environment;
mod fields;
mod gateway;
mod instances;
mod itself;
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
mod values;
mod words;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use xy_protocol::server::ServerName;

use self::fields::{Fields, Whose};
use self::problems::{Problems, without_repeats};
use self::read::{Reader, Spanned};
use self::rules::{Joining, check_restart, restart_rules};
use self::values::Zero;
use self::words::{Word, word};
use crate::bad_files::BadFiles;
use crate::environment::EnvironmentDefaults;
use crate::profile::ProfileSettings;
use crate::raw;
use crate::report::{Kind, Problem};
use crate::settings::{ORPHAN_TIMEOUT, Rules, ServerSettings, Settings, Source};
use crate::source::{At, SourceFile};

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

const NO_WAIT: Zero = Zero::Senseless("servers would end with the daemon that is being replaced");

/// What the files say, and what is wrong with them.
#[derive(Debug, Clone, Default)]
pub struct Loaded {
    /// The servers without mistakes.
    pub settings: Settings,
    /// Everything that is wrong or odd, by file and line.
    pub problems: Vec<Problem>,
    /// How many server files there are, with mistakes or without.
    pub server_files: usize,
    /// How many files there are in all: also those of profiles, and the daemon's own.
    pub files: usize,
    /// The servers whose files have mistakes, or cannot be read.
    pub broken: Broken,
    /// The servers that are left out as they are this daemon itself, and why that is certain.
    pub itself: BTreeMap<ServerName, String>,
    /// What the environment says.
    pub environment: EnvironmentDefaults,
    /// The files that cannot be used, and what is used instead.
    pub bad: BadFiles,
}

/// Servers of which nothing can be said now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Broken {
    /// All: what holds for every server cannot be read.
    Every,
    /// These.
    These(BTreeSet<ServerName>),
    /// All but these: a file of which it is not known who stands in it cannot be read.
    AllBut(BTreeSet<ServerName>),
}

impl Default for Broken {
    fn default() -> Self {
        Self::These(BTreeSet::new())
    }
}

impl Broken {
    /// Whether it is one of them.
    pub fn contains(&self, name: &ServerName) -> bool {
        match self {
            Self::Every => true,
            Self::These(names) => names.contains(name),
            Self::AllBut(names) => !names.contains(name),
        }
    }
}

impl Loaded {
    /// Whether a daemon may use these settings: there is no error, though perhaps a warning.
    pub fn is_valid(&self) -> bool {
        !self.problems.iter().any(Problem::is_error)
    }
}

/// A file that somebody has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileText {
    /// Where it is.
    pub path: PathBuf,
    /// Its name in reports.
    pub shown: String,
    /// What it says.
    pub text: String,
}

/// What a check has to know of the machine; nothing, where it does not say.
pub trait Surroundings {
    /// The home folder, for suggestions.
    fn home(&self) -> Option<PathBuf> {
        None
    }
    /// The PATH that programs are looked up on; `None` if it is not known.
    fn search_path(&self) -> Option<OsString> {
        None
    }
    /// What is at a path.
    fn look(&self, _path: &Path) -> Found {
        Found::Unknown
    }
    /// Returns true if the program at a path is the running one.
    fn is_this_program(&self, _path: &Path) -> bool {
        false
    }
    /// Which limits can be kept.
    fn limits(&self) -> KeptLimits {
        KeptLimits::any()
    }
    /// Returns true if other users can read the file; `None` if that is unknown.
    fn others_can_read(&self, _path: &Path) -> Option<bool> {
        None
    }
    /// A variable of the environment.
    fn variable(&self, _name: &str) -> Option<OsString> {
        None
    }
}

/// Which limits a machine can keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptLimits {
    /// The most open files that can be allowed; absent if that is any number, or not known.
    pub most_files: Option<u64>,
    /// How memory is limited.
    pub memory: Kept,
    /// How processes are limited; never per process.
    pub pids: Kept,
}

/// How a limit is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// For all processes of a server together, by a cgroup.
    ByCgroup,
    /// For each process of a server alone.
    PerProcess,
    /// Not at all.
    NotAtAll {
        /// The reason, as the end of a sentence.
        why: String,
    },
}

impl KeptLimits {
    /// Those of a machine that can keep any, or of which nothing is known.
    pub fn any() -> Self {
        Self { most_files: None, memory: Kept::ByCgroup, pids: Kept::ByCgroup }
    }
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing, or nothing that can be seen.
    Nothing,
    /// A folder.
    Folder,
    /// A file that may be executed.
    Program,
    /// A file that may not be executed.
    File,
    /// That is not known, so nothing is said of it.
    Unknown,
}

/// Judges the daemon's own file and all server files.
pub fn check(
    daemon_file: Option<&FileText>,
    server_files: &[FileText],
    surroundings: &dyn Surroundings,
) -> Loaded {
    check_all(daemon_file, Texts { servers: server_files, ..Texts::default() }, surroundings)
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

/// Judges all files. Of two servers with one name, a server file counts before a client's, and
/// an earlier file before a later one. A profile that has a mistake shows nothing.
pub fn check_all(
    daemon_file: Option<&FileText>,
    texts: Texts<'_>,
    surroundings: &dyn Surroundings,
) -> Loaded {
    let (environment, problems) = EnvironmentDefaults::read(|name| surroundings.variable(name));
    let mut checker = Checker {
        surroundings,
        environment,
        defaults: Fields::default(),
        orphan_timeout: ORPHAN_TIMEOUT,
        ports: HashMap::new(),
        shared: HashMap::new(),
        files: HashMap::new(),
        broken: BTreeMap::new(),
        every_is_broken: false,
        loaded: Loaded {
            server_files: texts.servers.len() + texts.clients.len(),
            files: usize::from(daemon_file.is_some())
                + texts.servers.len()
                + texts.clients.len()
                + texts.profiles.len(),
            problems,
            environment,
            ..Loaded::default()
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
        if checker.every_is_broken { Broken::Every } else { Broken::These(broken) };
    checker.loaded.bad.servers = checker.broken;
    checker.loaded.problems = without_repeats(checker.loaded.problems);
    checker.loaded
}

/// Judges one text alone: `xy.kdl` if that is its name, a profile if it is in a folder of
/// that name, a client's if it ends in `.json`, else a server file.
///
/// Nothing of the machine is looked at, so no program is found missing.
pub fn check_text(name: &str, text: &str) -> Loaded {
    let is_profile = Path::new(name).parent().is_some_and(|it| it.ends_with("profiles"));
    let file =
        FileText { path: PathBuf::from(name), shown: name.to_owned(), text: text.to_owned() };
    let is_json = file.path.extension().is_some_and(|it| it == "json");
    match file.path.file_name() {
        Some(_) if is_profile => {
            let profiles = std::slice::from_ref(&file);
            check_all(None, Texts { profiles, ..Texts::default() }, &Anywhere)
        }
        Some(file_name) if file_name == "xy.kdl" => check(Some(&file), &[], &Anywhere),
        _ if is_json => {
            let clients = std::slice::from_ref(&file);
            check_all(None, Texts { clients, ..Texts::default() }, &Anywhere)
        }
        _ => check(None, std::slice::from_ref(&file), &Anywhere),
    }
}

/// A machine of which nothing is known.
pub(crate) struct Anywhere;

impl Surroundings for Anywhere {}

struct Checker<'a> {
    surroundings: &'a dyn Surroundings,
    environment: EnvironmentDefaults,
    defaults: Fields,
    orphan_timeout: Duration,
    /// Who has which port, in the order of files.
    ports: HashMap<u16, Spanned<u16>>,
    /// Who was the first with which key, in the order of files.
    shared: HashMap<String, (At, Arc<ServerSettings>)>,
    /// Which file configures whom, whether or not it has mistakes.
    files: HashMap<ServerName, String>,
    /// The servers with mistakes in a client's file, and that file.
    broken: BTreeMap<ServerName, PathBuf>,
    /// Whether a client's file cannot be read: whose servers it has is not known.
    every_is_broken: bool,
    loaded: Loaded,
}

impl Checker<'_> {
    fn daemon_file(&mut self, file: &FileText) {
        let file = SourceFile::new(&file.path, &file.shown, &file.text);
        let mut problems = Problems::default();
        let raw::Parsed { nodes, problems: faults } = raw::parse(&file);
        problems.extend(faults);
        let surroundings = self.surroundings;
        let mut reader = Reader { file: &file, problems: &mut problems, surroundings };
        for (node, word) in reader.known(&nodes, &DAEMON_WORDS, None) {
            match word.name {
                "defaults" => {
                    if let Some(children) = reader.block(node, word) {
                        self.defaults = Fields::read(&mut reader, children, Whose::Defaults);
                    }
                }
                "orphan-timeout" => {
                    if let Some(wait) = reader.duration(node, word, NO_WAIT) {
                        self.orphan_timeout = wait.value;
                    }
                }
                "supervisor" => {
                    let said = reader.flag(node, word);
                    self.loaded.settings.supervisor = said.map(|it| it.value);
                }
                "strict" => {
                    let said = reader.flag(node, word);
                    self.loaded.settings.strict = said.map(|it| it.value);
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
        // Without a server to use them, mistakes among the defaults are mistakes too.
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
        let surroundings = self.surroundings;
        let mut reader = Reader { file: &file, problems: &mut problems, surroundings };
        let fields = Fields::read(&mut reader, &nodes, Whose::Server);
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
        let surroundings = self.surroundings;
        let mut reader = Reader { file: &file, problems: &mut problems, surroundings };
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
        let (surroundings, environment) = (self.surroundings, &self.environment);
        let mut joining = Joining { file, fields, problems, surroundings, environment };
        let kind = joining.kind();
        let (isolation, era) = (joining.isolation(), joining.era());
        let rules = Rules { orphan_timeout: self.orphan_timeout, ..joining.rules() };
        let (Some(name), Some(kind), false) = (name, kind, problems.has_errors()) else {
            return;
        };
        let gateway = &self.loaded.settings.gateway;
        if let (Some(at), Some(why)) = (kind_at, itself::why(&name, &kind, gateway, surroundings)) {
            let message = format!("server `{name}` is this same xy, and is not used");
            let problem = Problem::warning(&at, message).label(why.clone());
            problems.push(problem.suggest("remove it: xy would serve itself without end"));
            self.loaded.itself.insert(name, why);
            return;
        }
        if secrets::are_in(&kind) && self.surroundings.others_can_read(&file.path) == Some(true) {
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

    /// The first file says what the process is; every later one with the same key has to say
    /// the same.
    fn claim_key(&mut self, key: Spanned<String>, server: &Arc<ServerSettings>) -> Option<Problem> {
        let Some((at, first)) = self.shared.get(&key.value) else {
            self.shared.insert(key.value, (key.at, server.clone()));
            return None;
        };
        let what = if first.kind != server.kind {
            "are not the same process"
        } else if first.isolation != server.isolation {
            "do not have the same `isolation`"
        } else if first.era != server.era {
            "do not have the same `era`"
        } else {
            return None;
        };
        let (one, other) = (&at.file.shown, &key.at.file.shown);
        let message = format!("`{other}` has the `share-key` of `{one}`, but they {what}");
        let problem = Problem::error(&key.at, message);
        Some(problem.label("give it another key, or none").related(at, "the first with this key"))
    }

    /// The first file has the port; every later one conflicts with it.
    fn claim_port(&mut self, port: &Spanned<u16>) -> Option<Problem> {
        let Some(first) = self.ports.get(&port.value) else {
            self.ports.insert(port.value, port.clone());
            return None;
        };
        let message = format!(
            "port {} of `{}` is already used by `{}`",
            port.value, port.at.file.shown, first.at.file.shown
        );
        let problem = Problem::error(&port.at, message).kind(Kind::PortConflict);
        Some(problem.label("give one of them another port").related(&first.at, "used here first"))
    }
}

/// The name of a server is the stem of its file.
fn server_name(file: &SourceFile) -> Result<ServerName, Problem> {
    let stem = file.path.file_stem().unwrap_or_default().to_string_lossy();
    ServerName::new(&stem).map_err(|why| {
        Problem::in_file(&file.shown, why.to_string())
            .suggest("rename the file: its name without `.kdl` is the name of the server")
    })
}

/// The name of a profile is the stem of its file, and stands in URLs.
fn profile_name(file: &SourceFile) -> Result<String, Problem> {
    let stem = file.path.file_stem().unwrap_or_default().to_string_lossy();
    ServerName::new(&stem).map(|name| name.to_string()).map_err(|why| {
        Problem::in_file(&file.shown, why.to_string())
            .suggest("rename the file: its name without `.kdl` is the name of the profile")
    })
}

#[cfg(test)]
mod tests;
