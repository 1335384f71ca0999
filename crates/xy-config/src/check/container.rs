//! Parses the `container` block: a server as a container of Docker or Podman.
//!
//! Values that an engine would refuse at every start are reported here, once, with their location.
//! The engine itself is not contacted: a missing image is found when the server starts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::read::{Reader, Spanned};
use super::words::{Word, word};
use super::{PathKind, environment};
use crate::raw::{RawNode, Value};
use crate::report::{Problem, quote};
use crate::settings::{ContainerSettings, EngineKind, Mount, MountSource, Pull, Tmpfs};
use crate::source::SourceSpan;

const CONTAINER_WORDS: [Word; 22] = [
    word("image", r#"image "ghcr.io/x/y:1""#),
    word("command", r#"command "/usr/bin/server""#),
    word("args", r#"args "--verbose""#),
    word("env", r#"env { RUST_LOG "info" }"#),
    word("volumes", r#"volumes "/srv/x:/x:ro""#),
    word("working-dir", r#"working-dir "/app""#),
    word("user", r#"user "1000:1000""#),
    word("memory", r#"memory "1GiB""#),
    word("cpus", "cpus 1.5"),
    word("pids", "pids 200"),
    word("network", r#"network "none""#),
    word("read-only", "read-only #true"),
    word("cap-drop", r#"cap-drop "NET_RAW""#),
    word("cap-add", r#"cap-add "NET_BIND_SERVICE""#),
    word("tmpfs", r#"tmpfs "/tmp""#),
    word("pull", r#"pull "missing""#),
    word("platform", r#"platform "linux/amd64""#),
    word("labels", r#"labels { team "tools" }"#),
    word("engine", r#"engine "podman""#),
    word("host", r#"host "unix:///run/user/1000/podman/podman.sock""#),
    word("port", "port 8000"),
    word("init", "init #true"),
];

const PULLS: [(&str, Pull); 3] =
    [("missing", Pull::Missing), ("always", Pull::Always), ("never", Pull::Never)];

const ENGINES: [(&str, EngineKind); 2] =
    [("docker", EngineKind::Docker), ("podman", EngineKind::Podman)];

const LABEL: Word = word("a label", r#"team "tools""#);

/// The prefix of the labels that identify xy's own containers.
const RESERVED_LABEL_PREFIX: &str = "xy.";

/// Capabilities as the kernel names them, without `CAP_`.
const CAPABILITIES: [&str; 41] = [
    "AUDIT_CONTROL",
    "AUDIT_READ",
    "AUDIT_WRITE",
    "BLOCK_SUSPEND",
    "BPF",
    "CHECKPOINT_RESTORE",
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "IPC_LOCK",
    "IPC_OWNER",
    "KILL",
    "LEASE",
    "LINUX_IMMUTABLE",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "MKNOD",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_RAW",
    "PERFMON",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_CHROOT",
    "SYS_MODULE",
    "SYS_NICE",
    "SYS_PACCT",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "WAKE_ALARM",
];

/// Minimum memory that engines accept: a container could not start with less.
const MIN_MEMORY: u64 = 6 << 20;

/// The fields of a `container` block.
#[derive(Debug, Clone, Default)]
pub(super) struct ContainerFields {
    /// The settings, except the transport; absent if no image is given.
    pub(super) settings: Option<ContainerSettings>,
    /// The port inside the container.
    pub(super) port: Option<Spanned<u16>>,
    /// The network.
    pub(super) network: Option<Spanned<String>>,
}

/// Reads a `container` block.
pub(super) fn read(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> ContainerFields {
    let mut fields = ContainerFields::default();
    let Some(children) = reader.block(node, word) else { return fields };
    let known = reader.known(children, &CONTAINER_WORDS, Some("container"));
    let is_unreadable = |it: &RawNode| it.is_broken && it.name.is_empty();
    if !known.iter().any(|(_, word)| word.name == "image") && !children.iter().any(is_unreadable) {
        let problem = reader.error(node.name_span, "`container` needs an `image`");
        reader.report(problem.suggest("for example `image \"ghcr.io/x/y:1\"`"));
    }
    let mut read = ContainerSettings::of_image(String::new());
    let mut engine_at = None;
    for (node, word) in known {
        match word.name {
            "port" => fields.port = reader.port(node, word),
            "network" => {
                fields.network =
                    text_that(reader, node, word, is_word, "use a name without spaces");
                read.network = fields.network.as_ref().map(|it| it.value.clone());
            }
            "engine" => {
                let engine = reader.choice(node, word, "engine", &ENGINES);
                engine_at = engine.as_ref().map(|it| it.at.clone());
                read.engine = engine.map(|it| it.value);
            }
            "host" => {
                let host = host(reader, node, word);
                if let (Some(host), Some(engine_at)) = (&host, &engine_at) {
                    both_engines(reader, &host.at, engine_at);
                }
                read.host = host.map(|it| it.value);
            }
            _ => field(reader, node, word, &mut read),
        }
    }
    fields.settings = (!read.image.is_empty()).then_some(read);
    fields
}

/// Warns about `engine` beside `host`, which already selects the engine.
fn both_engines(reader: &mut Reader<'_>, host: &SourceSpan, engine: &SourceSpan) {
    let problem = Problem::warning(host, "`engine` has no effect beside `host`");
    reader.report(problem.label("this one is used").related(engine, "ignored"));
}

fn field(reader: &mut Reader<'_>, node: &RawNode, word: Word, read: &mut ContainerSettings) {
    match word.name {
        "image" => read.image = image(reader, node, word).unwrap_or_default(),
        "command" => read.command = reader.filled_text(node, word).map(|it| it.value),
        "args" => {
            read.args = Some(reader.texts(node, word).into_iter().map(|it| it.value).collect());
        }
        "env" => {
            let variables = environment::read(reader, node, word, true);
            read.env = variables.into_iter().map(|(name, it)| (name, it.value)).collect();
        }
        "volumes" => read.volumes = volumes(reader, node, word),
        "working-dir" => {
            let why = "use an absolute path inside the container";
            read.working_dir = text_that(reader, node, word, is_absolute, why).map(|it| it.value);
        }
        "user" => {
            let why = "use a name or an id, optionally with a group after `:`";
            read.user = text_that(reader, node, word, is_word, why).map(|it| it.value);
        }
        "memory" => read.memory = memory(reader, node, word),
        "cpus" => read.nano_cpus = cpus(reader, node, word),
        "pids" => read.pids = reader.count(node, word, 1..=u32::MAX).map(|it| it.value),
        "read-only" => read.read_only = reader.flag(node, word).is_some_and(|it| it.value),
        "init" => read.init = reader.flag(node, word).is_none_or(|it| it.value),
        "cap-drop" => read.cap_drop = Some(capabilities(reader, node, word)),
        "cap-add" => read.cap_add = capabilities(reader, node, word),
        "tmpfs" => read.tmpfs = tmpfs(reader, node, word),
        "pull" => {
            let pull = reader.choice(node, word, "pull", &PULLS);
            read.pull = pull.map_or(Pull::Missing, |it| it.value);
        }
        "platform" => {
            let why = "use an operating system and an architecture, as in `linux/arm64`";
            let platform = text_that(reader, node, word, |it| is_word(it) && it.contains('/'), why);
            read.platform = platform.map(|it| it.value);
        }
        _ => read.labels = labels(reader, node, word),
    }
}

/// Reads a text that `fits` accepts, or reports `why` it is invalid.
fn text_that(
    reader: &mut Reader<'_>,
    node: &RawNode,
    word: Word,
    fits: impl Fn(&str) -> bool,
    why: &str,
) -> Option<Spanned<String>> {
    let text = reader.filled_text(node, word)?;
    if fits(&text.value) {
        return Some(text);
    }
    let message = format!("`{}` cannot be {}", word.name, quote(&text.value));
    reader.report(Problem::error(&text.at, message).suggest(why.to_owned()));
    None
}

fn is_word(text: &str) -> bool {
    !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

fn is_absolute(path: &str) -> bool {
    path.starts_with('/') && !path.contains(['\n', '\0'])
}

fn image(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<String> {
    let why = "use a lower-case name with an optional tag or digest, as in `ghcr.io/x/y:1`, \
               without spaces and without a scheme";
    let fits = |image: &str| {
        let name = image.split('@').next().unwrap_or_default();
        let name =
            name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(name, |it| it.0);
        // The host may be in any case, the rest must be lower case.
        let path = name.split_once('/').map_or(name, |(_, path)| path);
        is_word(image)
            && !image.contains("://")
            && !image.starts_with('-')
            && !name.is_empty()
            && !path.contains(char::is_uppercase)
    };
    text_that(reader, node, word, fits, why).map(|it| it.value)
}

/// Reads the socket of an engine, which must be on this machine: a port published elsewhere could
/// not be reached over loopback.
fn host(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<Spanned<String>> {
    let why = "use a socket on this machine: `unix:///path/to/its.sock`";
    let fits = |host: &str| host.strip_prefix("unix://").is_some_and(is_absolute);
    text_that(reader, node, word, fits, why)
}

fn memory(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<u64> {
    let memory = reader.size(node, word)?;
    if memory.value < MIN_MEMORY {
        let problem = Problem::error(&memory.at, "this is too little memory for a container");
        reader.report(
            problem.suggest("use at least `\"6MiB\"`; most servers need ten times as much"),
        );
        return None;
    }
    Some(memory.value)
}

/// Reads a processor limit, in billionths of a processor, as engines count.
fn cpus(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Option<u64> {
    let value = reader.value(node, word)?;
    #[expect(clippy::cast_precision_loss, reason = "larger numbers are rejected below")]
    let number = match value.value {
        Value::Whole(number) => number as f64,
        Value::Fraction(number) => number,
        _ => 0.0,
    };
    if !(0.01..=10_000.0).contains(&number) {
        let problem = reader.error(value.span, "`cpus` must be a number from 0.01 to 10000");
        reader.report(problem.suggest("for example `cpus 1.5`"));
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was bounded")]
    Some((number * 1e9) as u64)
}

fn volumes(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Vec<Mount> {
    let mut targets = BTreeSet::new();
    let mut mounts = Vec::new();
    for Spanned { value: text, at } in reader.texts(node, word) {
        match mount(&text) {
            Ok(mount) if targets.insert(mount.target.clone()) => {
                if let MountSource::Folder(source) = &mount.source
                    && reader.machine.inspect(Path::new(source)) == PathKind::Missing
                {
                    let message = format!("{} does not exist", quote(source));
                    let why = "the server cannot start until it does";
                    reader.report(Problem::warning(&at, message).suggest(why));
                }
                mounts.push(mount);
            }
            Ok(mount) => {
                let message = format!("two volumes at {}", quote(&mount.target));
                reader.report(Problem::error(&at, message).label("remove one of them"));
            }
            Err(why) => {
                let message = format!("{} is not a volume", quote(&text));
                reader.report(Problem::error(&at, message).suggest(why.to_owned()));
            }
        }
    }
    mounts
}

/// Parses `SOURCE:TARGET`, optionally followed by `:ro` or `:rw`.
fn mount(text: &str) -> Result<Mount, &'static str> {
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, read_only) = match parts.as_slice() {
        [source, target] | [source, target, "rw"] => (*source, *target, false),
        [source, target, "ro"] => (*source, *target, true),
        [_, _, _] => return Err("only `ro` or `rw` may follow the second `:`"),
        _ => {
            return Err(
                "write it as `\"/here:/there\"`, `\"/here:/there:ro\"` or `\"name:/there\"`",
            );
        }
    };
    if !is_absolute(target) || target == "/" {
        return Err("the path in the container must be an absolute path below `/`");
    }
    let is_name = |it: &str| {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        it.starts_with(|c: char| c.is_ascii_alphanumeric()) && it.chars().all(is_allowed)
    };
    let source = if is_absolute(source) {
        MountSource::Folder(source.to_owned())
    } else if is_name(source) {
        MountSource::Volume(source.to_owned())
    } else {
        return Err(
            "the source must be an absolute path (no `~`, no `./`), or the name of a volume",
        );
    };
    Ok(Mount { source, target: target.to_owned(), read_only })
}

fn tmpfs(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Vec<Tmpfs> {
    let mut all = Vec::new();
    for Spanned { value: text, at } in reader.texts(node, word) {
        let (target, options) = text.split_once(':').unwrap_or((&text, ""));
        if is_absolute(target) && target != "/" && is_word(options) {
            all.push(Tmpfs { target: target.to_owned(), options: options.to_owned() });
            continue;
        }
        let message = format!("a tmpfs cannot be mounted at {}", quote(&text));
        let right = "write it as `\"/tmp\"`, or with its options: `\"/tmp:size=64m\"`";
        reader.report(Problem::error(&at, message).suggest(right));
    }
    all
}

/// Reads capabilities in the form of engines: upper case, without `CAP_`.
fn capabilities(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> Vec<String> {
    let mut names = Vec::new();
    for Spanned { value: text, at } in reader.texts(node, word) {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("CAP_").unwrap_or(&upper);
        if name == "ALL" || CAPABILITIES.contains(&name) {
            names.push(name.to_owned());
            continue;
        }
        let nearest = CAPABILITIES
            .into_iter()
            .map(|known| (strsim::damerau_levenshtein(name, known), known))
            .min()
            .filter(|(distance, _)| *distance <= 3);
        let problem = Problem::error(&at, format!("unknown capability {}", quote(&text)));
        reader.report(match nearest {
            Some((_, known)) => problem.suggest(format!("did you mean `{known}`?")),
            None => problem.suggest("`man 7 capabilities` lists them"),
        });
    }
    names
}

fn labels(reader: &mut Reader<'_>, node: &RawNode, word: Word) -> BTreeMap<String, String> {
    let Some(children) = reader.block(node, word) else { return BTreeMap::new() };
    let mut labels = BTreeMap::new();
    for label in reader.once(children) {
        if label.name.starts_with(RESERVED_LABEL_PREFIX) {
            let message = format!("the label {} is reserved for xy", quote(&label.name));
            let problem = reader.error(label.name_span, message);
            reader.report(
                problem.suggest("labels that start with `xy.` identify xy's own containers"),
            );
            continue;
        }
        if let Some(value) = reader.text(label, LABEL) {
            labels.insert(label.name.clone(), value.value);
        }
    }
    labels
}

/// Fields beside a `container` that are meant for processes, and what to do instead.
pub(super) const NOT_FOR_CONTAINER: [(&str, &str); 4] = [
    ("args", "write it inside `container`: `container { image \"…\"; args \"…\" }`"),
    ("env", "write it inside `container`: it does not inherit the daemon's environment"),
    ("working-dir", "write it inside `container`: it is a path in the container"),
    ("limits", "write `memory` and `pids` inside `container`: its engine enforces them"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_has_a_source_and_a_target() {
        let folder = |it: &str| MountSource::Folder(it.to_owned());
        let good = [
            ("/a:/b", folder("/a"), "/b", false),
            ("/a:/b:ro", folder("/a"), "/b", true),
            ("data:/b:rw", MountSource::Volume("data".into()), "/b", false),
        ];
        for (text, source, target, read_only) in good {
            let expected = Mount { source, target: target.into(), read_only };
            assert_eq!(mount(text), Ok(expected), "{text}");
        }
        for text in ["", "/a", "a:b", "/a:/b:x", "~/a:/b", "./a:/b", "/a:/", ":/b", "/a:/b:ro:z"] {
            assert!(mount(text).is_err(), "{text}");
        }
    }
}
