//! Manifests: what is stored of servers on disk, so that no client waits for a cold one.
//!
//! A manifest belongs to one configuration: a server that is started otherwise is another server.
//! It only decides what is shown at first; the running server has the last word.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::DirBuilder;
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::timeout;
pub(crate) use xy_catalog::catalog::{Item, Lists, ServerCatalog};
use xy_config::atomic_file::write_atomically;
use xy_config::settings::{ServerKind, ServerSettings};
use xy_config::trust;
use xy_mcp::capabilities;
use xy_mcp::era::{Era, Introduction, Introductions, SpokenEras};
use xy_mcp::kind::Kind;
use xy_protocol::server::ServerName;

const FORMAT: u32 = 1;

/// Maximum size of a manifest; xy writes no larger ones.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// How long reading may take, since listeners and servers wait for it. It is less than an instance
/// has to end (2 s), so that the instances of one server come in their order.
const RECALL_TIMEOUT: Duration = Duration::from_secs(1);

/// A server, and its manifest if there is one.
pub(crate) type LoadedManifest = (Arc<ServerSettings>, Option<StoredState>);

/// The folder of manifests.
#[derive(Debug, Clone)]
pub(crate) struct Manifests {
    folder: PathBuf,
    /// The number of the last write for each file: an older state must not replace a newer one.
    written: Arc<Mutex<HashMap<PathBuf, u64>>>,
    /// Held while writing; never by the thread that carries calls.
    writing: Arc<Mutex<()>>,
    next: Arc<AtomicU64>,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    format: u32,
    key: String,
    introduction: Introduction,
    /// The server has sent its clients requests.
    #[serde(default)]
    asks: bool,
    /// The eras it speaks; absent in manifests of versions that learned only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    eras: Option<SpokenEras>,
    /// The era of the latest call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_called: Option<Era>,
    /// The introductions of a server that speaks both eras.
    #[serde(default)]
    introductions: Introductions,
    lists: BTreeMap<String, Vec<Box<RawValue>>>,
}

/// The stored state of a server.
pub(crate) struct StoredState {
    pub(crate) introduction: Introduction,
    pub(crate) lists: Lists,
    /// The server sends its clients requests.
    pub(crate) asks: bool,
    /// The eras it speaks.
    pub(crate) eras: SpokenEras,
    /// The era of the latest call.
    pub(crate) last_called: Option<Era>,
    /// The introductions of a server that speaks both eras.
    pub(crate) introductions: Introductions,
}

/// The stored state of a server beside its lists.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traits {
    /// The server sends its clients requests.
    pub(crate) asks: bool,
    /// The eras it speaks.
    pub(crate) eras: SpokenEras,
    /// The era of the latest call.
    pub(crate) last_called: Option<Era>,
    /// The introductions of a server that speaks both eras.
    pub(crate) introductions: Introductions,
}

impl Manifests {
    pub(crate) fn in_folder(folder: PathBuf) -> Self {
        Self { folder, written: Arc::default(), writing: Arc::default(), next: Arc::default() }
    }

    /// Loads the manifests of these servers. A disk that hangs costs the stored state and nothing
    /// more.
    pub(crate) async fn load(&self, all: Vec<Arc<ServerSettings>>) -> Vec<LoadedManifest> {
        let nothing = all.iter().map(|it| (it.clone(), None)).collect();
        let manifests = self.clone();
        let read = move || {
            let read = |settings: Arc<ServerSettings>| {
                let remembered = manifests.read(&settings);
                (settings, remembered)
            };
            all.into_iter().map(read).collect()
        };
        let read = timeout(RECALL_TIMEOUT, tokio::task::spawn_blocking(read)).await;
        read.ok().and_then(Result::ok).unwrap_or_else(|| {
            tracing::warn!("manifests cannot be read in time: servers are asked again");
            nothing
        })
    }

    /// Loads the manifest of one server.
    fn read(&self, settings: &ServerSettings) -> Option<StoredState> {
        let file = self.file(&settings.name);
        let manifest = match read_manifest(&file) {
            Ok(manifest) => manifest,
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => return None,
            Err(problem) => {
                tracing::warn!(file = %file.display(), %problem, "a manifest cannot be read: forgotten");
                return None;
            }
        };
        let is_of_it = manifest.format == FORMAT && manifest.key == key(settings);
        is_of_it.then(|| manifest.into_state())
    }

    /// Stores the manifest of a server. A failure only costs time later.
    pub(crate) async fn remember(
        &self,
        settings: &ServerSettings,
        known: &ServerCatalog,
        traits: Traits,
    ) {
        let file = self.file(&settings.name);
        let Traits { asks, eras, last_called, introductions } = traits;
        let manifest = Manifest {
            asks,
            eras: Some(eras),
            last_called,
            introductions,
            ..Manifest::of(settings, known)
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let manifests = self.clone();
        let written = tokio::task::spawn_blocking(move || {
            let _writing = manifests.writing.lock().unwrap_or_else(PoisonError::into_inner);
            if !manifests.is_latest(&file, number) {
                return;
            }
            let text = serde_json::to_string(&manifest).unwrap_or_default();
            if std::fs::read_to_string(&file).is_ok_and(|old| old == text) {
                return;
            }
            if let Err(problem) = manifests.write(&file, &text) {
                tracing::warn!(file = %file.display(), %problem, "a manifest cannot be kept");
            }
        });
        let _ = written.await; // Failures are logged by the task.
    }

    /// Writes a manifest. Creates the folder if it is missing.
    fn write(&self, file: &Path, text: &str) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        write_atomically(file, text.as_bytes())
    }

    /// Removes the manifest of a server.
    pub(crate) async fn erase(&self, name: &ServerName) {
        let (file, number) = (self.file(name), self.next.fetch_add(1, Ordering::Relaxed));
        let manifests = self.clone();
        let erased = tokio::task::spawn_blocking(move || {
            let _writing = manifests.writing.lock().unwrap_or_else(PoisonError::into_inner);
            if manifests.is_latest(&file, number) {
                let _ = std::fs::remove_file(&file); // There may be no file.
            }
        });
        let _ = erased.await; // The next life finds out the same.
    }

    /// Forgets the last write of a removed server. Its file stays, as the server may come back.
    pub(crate) fn forget(&self, name: &ServerName) {
        self.written().remove(&self.file(name));
    }

    /// Returns the number of servers with a recorded write.
    pub(crate) fn len(&self) -> usize {
        self.written().len()
    }

    /// Returns true if no later state of the server was written, and records this write.
    fn is_latest(&self, file: &Path, number: u64) -> bool {
        let mut written = self.written();
        let is_latest = written.get(file).is_none_or(|latest| *latest <= number);
        if is_latest {
            written.insert(file.to_owned(), number);
        }
        is_latest
    }

    fn written(&self) -> MutexGuard<'_, HashMap<PathBuf, u64>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the manifests of all servers but these, including those that were removed while no
    /// daemon ran.
    pub(crate) fn tidy(&self, servers: BTreeSet<String>) {
        let folder = self.folder.clone();
        tokio::task::spawn_blocking(move || {
            for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = file.path();
                let is_kept = path
                    .file_name()
                    .and_then(|name| name.to_str()?.strip_suffix(".json"))
                    .is_some_and(|name| servers.contains(name));
                if !is_kept {
                    let _ = std::fs::remove_file(path); // A leftover file only takes space.
                }
            }
        });
    }

    fn file(&self, name: &ServerName) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }
}

impl Manifest {
    fn of(settings: &ServerSettings, known: &ServerCatalog) -> Self {
        let raw = |kind: Kind| {
            let items = known.lists.of(kind).iter();
            let raw = items.filter_map(|item| RawValue::from_string(item.raw.to_string()).ok());
            (kind.key().to_owned(), raw.collect())
        };
        Self {
            format: FORMAT,
            key: key(settings),
            introduction: known.introduction.clone(),
            asks: false,
            eras: None,
            last_called: None,
            introductions: Introductions::default(),
            lists: Kind::ALL.into_iter().map(raw).collect(),
        }
    }

    fn into_state(self) -> StoredState {
        let mut lists = Lists::default();
        for kind in Kind::ALL {
            let raw = self.lists.get(kind.key()).map(Vec::as_slice).unwrap_or_default();
            lists.set(kind, raw.iter().filter_map(|raw| Item::read(kind, raw.get())).collect());
        }
        let eras = self.eras.unwrap_or_else(|| SpokenEras::met_in(self.introduction.era()));
        StoredState {
            introduction: self.introduction,
            lists,
            asks: self.asks,
            eras,
            last_called: self.last_called,
            introductions: self.introductions,
        }
    }
}

/// Reads a manifest. Only a regular file is opened, as reading a pipe would block.
fn read_manifest(file: &Path) -> io::Result<Manifest> {
    let mut opened = trust::open(file)?;
    if opened.metadata()?.len() > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("it is longer than {MAX_FILE_BYTES} bytes")));
    }
    let mut text = String::new();
    opened.read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// Returns a digest of how a server is started. Its isolation determines which client capabilities
/// are declared to it.
fn key(settings: &ServerSettings) -> String {
    let what = match &settings.kind {
        ServerKind::Process(process) => serde_json::to_string(process),
        ServerKind::Remote(remote) => serde_json::to_string(remote),
        ServerKind::Container(container) => serde_json::to_string(container),
    };
    let (what, isolation) = (what.unwrap_or_default(), settings.isolation);
    let text = format!("{what} {isolation:?} {}", capabilities::SHARED);
    let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{digest:016x}")
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use xy_catalog::catalog::Page;
    use xy_config::settings::{Isolation, Limits, ProcessSettings, Rules, Source};
    use xy_protocol::server::Transport;

    use super::*;

    fn traits() -> Traits {
        let mut introductions = Introductions::default();
        introductions.set(known("[]").introduction);
        Traits {
            asks: true,
            eras: SpokenEras { legacy: Some(true), modern: Some(true) },
            last_called: Some(Era::Modern),
            introductions,
        }
    }

    fn settings(command: &str) -> ServerSettings {
        ServerSettings {
            name: ServerName::new("s").unwrap(),
            source: Source {
                file: PathBuf::from("s.kdl"),
                command_line: 1,
                is_outdated: false,
                added: false,
            },
            kind: ServerKind::Process(ProcessSettings {
                command: command.to_owned(),
                args: Vec::new(),
                env: BTreeMap::new(),
                working_dir: None,
                transport: Transport::Stdio,
                port: None,
                path: None,
                limits: Limits::default(),
            }),
            rules: Rules::default(),
            isolation: Isolation::Shared,
            share_key: None,
            era: None,
        }
    }

    fn known(tools: &str) -> ServerCatalog {
        let introduction = Introduction::read(r#"{"protocolVersion":"2025-11-25"}"#).unwrap();
        let mut lists = Lists::default();
        let page = Page::read(Kind::Tools, &format!(r#"{{"tools":{tools}}}"#)).unwrap();
        lists.set(Kind::Tools, page.items);
        ServerCatalog::new("s", introduction, lists)
    }

    async fn remember(manifests: &Manifests, settings: &ServerSettings, known: &ServerCatalog) {
        manifests.remember(settings, known, traits()).await;
    }

    #[tokio::test]
    async fn manifest_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        let manifests = Manifests::in_folder(folder.path().join("made"));
        assert!(manifests.read(&settings("a")).is_none());
        let tools = r#"[{"z":1.50,"name":"a.b","x":123456789012345678901234567890}]"#;
        remember(&manifests, &settings("a"), &known(tools)).await;
        let read = manifests.read(&settings("a")).unwrap();
        assert_eq!(format!("[{}]", read.lists.of(Kind::Tools)[0].raw), tools);
        assert_eq!(read.introduction, known(tools).introduction);
        assert!(read.asks);
        assert_eq!((read.eras, read.last_called), (traits().eras, traits().last_called));
        assert_eq!(read.introductions, traits().introductions);
        remember(&manifests, &settings("a"), &known("[]")).await;
        assert_eq!(manifests.read(&settings("a")).unwrap().lists.of(Kind::Tools), []);
    }

    #[tokio::test]
    async fn changed_process_invalidates_the_manifest_and_changed_rules_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let manifests = Manifests::in_folder(folder.path().to_owned());
        remember(&manifests, &settings("a"), &known(r#"[{"name":"x"}]"#)).await;
        assert!(manifests.read(&settings("b")).is_none());
        let mut own = settings("a");
        own.isolation = Isolation::Client;
        assert!(manifests.read(&own).is_none());
        let mut patient = settings("a");
        patient.rules.stop.grace = Duration::from_secs(99);
        assert!(manifests.read(&patient).is_some());
    }

    #[tokio::test]
    async fn unreadable_manifest_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let manifests = Manifests::in_folder(folder.path().to_owned());
        remember(&manifests, &settings("a"), &known(r#"[{"name":"x"}]"#)).await;
        let file = folder.path().join("s.json");
        let text = std::fs::read_to_string(&file).unwrap();
        for other in [
            Vec::new(),
            text.as_bytes()[..text.len() / 2].to_owned(),
            text.replace(r#""format":1"#, r#""format":99"#).into(),
            b"[]".to_vec(),
            b"\xff\xfe\0".to_vec(),
        ] {
            std::fs::write(&file, &other).unwrap();
            assert!(manifests.read(&settings("a")).is_none(), "{}", other.escape_ascii());
        }
        File::create(&file).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(manifests.read(&settings("a")).is_none(), "so long");
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(manifests.read(&settings("a")).is_none(), "a folder");
        remember(&manifests, &settings("a"), &known("[]")).await; // It only logs the failure.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left of it");
        std::fs::remove_dir(&file).unwrap();
        remember(&manifests, &settings("a"), &known("[]")).await;
        assert!(manifests.read(&settings("a")).is_some());
    }

    #[test]
    fn hanging_disk_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let manifests = Manifests::in_folder(folder.path().to_owned());
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        // The only blocking thread hangs.
        let runtime = runtime.enable_time().max_blocking_threads(1).build().unwrap();
        let (hangs, hang) = std::sync::mpsc::channel::<()>();
        runtime.block_on(async {
            let one = Arc::new(settings("a"));
            remember(&manifests, &one, &known("[]")).await;
            assert!(manifests.load(vec![one.clone()]).await[0].1.is_some());
            tokio::task::spawn_blocking(move || hang.recv());
            tokio::time::pause();
            let recalling = manifests.load(vec![one.clone()]);
            let (recalled, ()) = tokio::join!(recalling, tokio::time::advance(2 * RECALL_TIMEOUT));
            assert_eq!(recalled.len(), 1);
            assert!(recalled[0].0.name == one.name && recalled[0].1.is_none());
        });
        drop(hangs);
    }

    #[test]
    fn pipe_in_place_of_a_manifest_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let manifests = Manifests::in_folder(folder.path().to_owned());
        let pipe = folder.path().join("s.json");
        assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());
        assert!(manifests.read(&settings("a")).is_none());
    }
}
