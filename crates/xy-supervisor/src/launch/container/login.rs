//! Who is logged in at a registry, as `docker login` and `podman login` have written it down; and
//! which context Docker's CLI uses, which is in the same file.
//!
//! No engine reads these files for others: whoever asks it to fetch an image has to say who
//! they are. What is secret stays in memory, goes to the engine by its socket, and is in no log.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bollard::auth::DockerCredentials;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use xy_config::settings::EngineKind;

use crate::launch::orphans::Shims;

/// No such file is longer.
const LONGEST_FILE: u64 = 1 << 20;

/// How long a program that keeps secrets may take; some ask a person.
const HELPER_WITHIN: Duration = Duration::from_secs(20);

/// No such program says more.
const LONGEST_ANSWER: u64 = 64 * 1024;

/// Where Docker's own registry is written down.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// Whom such a program names whose secret is a token.
const TOKEN_USER: &str = "<token>";

/// What such a program says, on its stdout and with an exit code, if nobody has logged in there.
const NOBODY: &[u8] = b"credentials not found";

/// A file of logins, as far as it is used.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Logins {
    auths: BTreeMap<String, Login>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
}

/// The same file, as far as it says where an engine is.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Chosen {
    current_context: Option<String>,
}

/// One of them. Some files have what is secret, others only the name of who keeps it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Login {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

/// What a program that keeps secrets says.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Kept {
    username: String,
    secret: String,
}

/// Where one is to look.
#[derive(Debug, PartialEq)]
enum Found {
    Here(DockerCredentials),
    /// This program knows, by this name of the registry.
    Asks {
        helper: String,
        server: String,
    },
}

/// Who keeps a login and does not say it.
#[derive(Debug, thiserror::Error)]
#[error("`docker-credential-{helper}`, which keeps the login at `{server}`, {why}")]
pub(super) struct NoLogin {
    helper: String,
    server: String,
    why: Unsaid,
}

impl NoLogin {
    /// Whether it may be otherwise the next time, without anybody doing anything.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self.why, Unsaid::Silent | Unsaid::Failed)
    }

    /// What can be done about it.
    pub(super) fn hint(&self) -> String {
        format!("see that `docker-credential-{}` works, or log in again", self.helper)
    }
}

/// Why it does not.
#[derive(Debug, thiserror::Error)]
enum Unsaid {
    #[error("has no name of a program")]
    Odd,
    #[error("is not on the `PATH` of the daemon")]
    Missing,
    #[error("could not be started: {0}")]
    NotStarted(io::Error),
    #[error("did not answer within {HELPER_WITHIN:?}")]
    Silent,
    #[error("failed")]
    Failed,
    #[error("said something that is no login")]
    Garbage,
}

/// Who we are at the registry of this image, if anybody has logged in there.
pub(super) async fn of_image(
    image: &str,
    engine: EngineKind,
    shims: &Shims,
) -> Result<Option<DockerCredentials>, NoLogin> {
    let registry = registry_of(image).to_owned();
    let places = places(engine, |name| std::env::var(name).ok());
    let found = spawn_blocking(move || places.iter().find_map(|file| look(file, &registry)));
    match found.await.ok().flatten() {
        None => Ok(None),
        Some(Found::Here(login)) => Ok(Some(login)),
        Some(Found::Asks { helper, server }) => {
            let asked = ask_helper(&helper, &server, shims).await;
            asked.map_err(|why| NoLogin { helper, server, why })
        }
    }
}

async fn ask_helper(
    helper: &str,
    server: &str,
    shims: &Shims,
) -> Result<Option<DockerCredentials>, Unsaid> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !helper.chars().all(is_plain) {
        return Err(Unsaid::Odd);
    }
    let program = format!("docker-credential-{helper}");
    let asking = ask(OsStr::new(&program), server, shims);
    timeout(HELPER_WITHIN, asking).await.unwrap_or(Err(Unsaid::Silent))
}

/// Where an image is kept. Pure.
fn registry_of(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => "docker.io",
    }
}

/// The files of logins, the likeliest first. Pure.
fn places(engine: EngineKind, variable: impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let below = |name: &str, path: &str| variable(name).map(|it| Path::new(&it).join(path));
    let docker = docker_file(&variable);
    let podman = [
        variable("REGISTRY_AUTH_FILE").map(PathBuf::from),
        below("XDG_RUNTIME_DIR", "containers/auth.json"),
        below("HOME", ".config/containers/auth.json"),
    ];
    let podman = podman.into_iter().flatten();
    match engine {
        EngineKind::Docker => docker.into_iter().chain(podman).collect(),
        EngineKind::Podman => podman.chain(docker).collect(),
    }
}

/// The file of Docker's CLI. Pure.
fn docker_file(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let below = |name: &str, path: &str| variable(name).map(|it| Path::new(&it).join(path));
    below("DOCKER_CONFIG", "config.json").or(below("HOME", ".docker/config.json"))
}

/// The context that somebody with these variables has chosen by `docker context use`.
pub(super) fn docker_context(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let text = read(&docker_file(variable)?)?;
    let chosen: Chosen = serde_json::from_slice(&text).ok()?; // The CLI would not heed it either.
    chosen.current_context
}

fn look(file: &Path, registry: &str) -> Option<Found> {
    let text = read(file)?;
    let Ok(logins) = serde_json::from_slice::<Logins>(&text) else {
        tracing::warn!(file = %file.display(), "these logins cannot be read");
        return None;
    };
    login(&logins, registry)
}

fn read(file: &Path) -> Option<Vec<u8>> {
    use std::io::Read;

    let mut text = Vec::new();
    let file = std::fs::File::open(file).ok()?; // Most people have none.
    file.take(LONGEST_FILE).read_to_end(&mut text).ok()?;
    Some(text)
}

/// The login at a registry, or who knows it. Pure.
fn login(logins: &Logins, registry: &str) -> Option<Found> {
    let is_it = |name: &&String| bare(name) == bare(server_of(registry));
    let known = logins.auths.iter().find(|(name, _)| is_it(name));
    let server = known.map_or(server_of(registry), |(name, _)| name.as_str()).to_owned();
    let helper = logins.cred_helpers.iter().find(|(name, _)| is_it(name)).map(|(_, it)| it);
    if let Some(helper) = helper {
        return Some(Found::Asks { helper: helper.clone(), server });
    }
    if let Some(login) = known.and_then(|(_, login)| login.credentials(&server)) {
        return Some(Found::Here(login));
    }
    let helper = logins.creds_store.clone().filter(|it| !it.is_empty())?;
    Some(Found::Asks { helper, server })
}

fn server_of(registry: &str) -> &str {
    if registry == "docker.io" { DOCKER_HUB } else { registry }
}

/// The host alone: some write a URL, some only that.
fn bare(name: &str) -> &str {
    let name = name.split_once("://").map_or(name, |(_, rest)| rest);
    name.split('/').next().unwrap_or_default()
}

impl Login {
    fn credentials(&self, server: &str) -> Option<DockerCredentials> {
        let blank = DockerCredentials {
            serveraddress: Some(server.to_owned()),
            ..DockerCredentials::default()
        };
        if let Some(token) = self.identitytoken.clone().filter(|it| !it.is_empty()) {
            return Some(DockerCredentials { identitytoken: Some(token), ..blank });
        }
        let decoded = self.auth.as_deref().and_then(from_base64);
        let decoded = decoded.and_then(|it| String::from_utf8(it).ok());
        let pair = match decoded.as_deref().and_then(|it| it.split_once(':')) {
            Some((user, password)) => (user.to_owned(), password.to_owned()),
            None => (self.username.clone()?, self.password.clone()?),
        };
        Some(DockerCredentials { username: Some(pair.0), password: Some(pair.1), ..blank })
    }
}

/// Asks a program that keeps secrets, as `docker` does: by one word and one line. Dropping it ends
/// the program.
async fn ask(
    program: &OsStr,
    server: &str,
    shims: &Shims,
) -> Result<Option<DockerCredentials>, Unsaid> {
    let mut command = Command::new(program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut helper = shims.spawn_helper(&mut command).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Unsaid::Missing,
        _ => Unsaid::NotStarted(error),
    })?;
    if let Some(mut stdin) = helper.child.stdin.take() {
        // One that does not read has its reasons.
        let _ = stdin.write_all(format!("{server}\n").as_bytes()).await;
    }
    let mut said = Vec::new();
    if let Some(stdout) = helper.child.stdout.take() {
        let read = stdout.take(LONGEST_ANSWER + 1).read_to_end(&mut said).await;
        read.map_err(|_| Unsaid::Failed)?;
    }
    if said.len() as u64 > LONGEST_ANSWER {
        return Err(Unsaid::Garbage); // It may have more to say, and is not waited for.
    }
    let ended = helper.child.wait().await.map_err(|_| Unsaid::Failed)?;
    if !ended.success() {
        let is_not_listening = said.windows(NOBODY.len()).any(|it| it == NOBODY);
        return if is_not_listening { Ok(None) } else { Err(Unsaid::Failed) };
    }
    credentials(&said, server).map(Some)
}

/// What such a program has said. Pure.
fn credentials(said: &[u8], server: &str) -> Result<DockerCredentials, Unsaid> {
    let Kept { username, secret } = serde_json::from_slice(said).map_err(|_| Unsaid::Garbage)?;
    let blank = DockerCredentials {
        serveraddress: Some(server.to_owned()),
        ..DockerCredentials::default()
    };
    Ok(if username == TOKEN_USER {
        DockerCredentials { identitytoken: Some(secret), ..blank }
    } else {
        DockerCredentials { username: Some(username), password: Some(secret), ..blank }
    })
}

/// Reads base64 with or without its padding; `None` if it is none.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim().trim_end_matches('=').bytes();
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(text.len()), 0_u32, 0);
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::ops::Not;

    use super::*;

    fn found(file: &str, image: &str) -> Option<Found> {
        login(&serde_json::from_str(file).unwrap(), registry_of(image))
    }

    fn user(found: Option<Found>) -> (String, String) {
        let Some(Found::Here(login)) = found else { panic!("{found:?}") };
        (login.username.unwrap_or_default(), login.password.unwrap_or_default())
    }

    #[test]
    fn an_image_is_kept_where_its_first_word_says() {
        for (image, registry) in [
            ("busybox", "docker.io"),
            ("grafana/mcp:1", "docker.io"),
            ("ghcr.io/x/y:1", "ghcr.io"),
            ("127.0.0.1:5000/x", "127.0.0.1:5000"),
            ("localhost/x", "localhost"),
        ] {
            assert_eq!(registry_of(image), registry, "{image}");
        }
    }

    #[test]
    fn a_login_is_found_however_its_registry_is_written() {
        let file = r#"{ "auths": {
            "https://index.docker.io/v1/": { "auth": "bWU6cDpx" },
            "ghcr.io": { "auth": "eW91OnM=", "email": "x" },
            "https://quay.io/v2/": { "username": "u", "password": "p" },
            "r.example.com": { "identitytoken": "t" } } }"#;
        assert_eq!(user(found(file, "busybox")), ("me".into(), "p:q".into()));
        assert_eq!(user(found(file, "ghcr.io/x/y")), ("you".into(), "s".into()));
        assert_eq!(user(found(file, "quay.io/x/y")), ("u".into(), "p".into()));
        let Some(Found::Here(login)) = found(file, "r.example.com/x/y") else { panic!("a token") };
        assert_eq!((login.identitytoken.as_deref(), login.username), (Some("t"), None));
        assert_eq!(found(file, "example.com/x"), None);
        assert_eq!(found(r#"{ "auths": { "ghcr.io": { "auth": "%" } } }"#, "ghcr.io/x"), None);
        assert_eq!(found("{}", "ghcr.io/x"), None);
    }

    #[test]
    fn who_keeps_secrets_elsewhere_is_asked_there() {
        let file = r#"{ "auths": { "ghcr.io": {} }, "credsStore": "desktop",
            "credHelpers": { "gcr.io": "gcloud" } }"#;
        let asks = |helper: &str, server: &str| {
            Some(Found::Asks { helper: helper.into(), server: server.into() })
        };
        assert_eq!(found(file, "ghcr.io/x"), asks("desktop", "ghcr.io"));
        assert_eq!(found(file, "gcr.io/x"), asks("gcloud", "gcr.io"));
        assert_eq!(found(file, "x"), asks("desktop", DOCKER_HUB));
    }

    #[test]
    fn files_are_looked_for_where_each_engine_has_them() {
        let variable = |name: &str| match name {
            "HOME" => Some("/h".to_owned()),
            "XDG_RUNTIME_DIR" => Some("/r".to_owned()),
            _ => None,
        };
        let shown = |engine| -> Vec<String> {
            places(engine, variable).iter().map(|it| it.display().to_string()).collect()
        };
        let (docker, podman) = ("/h/.docker/config.json", "/r/containers/auth.json");
        assert_eq!(shown(EngineKind::Docker)[..2], [docker, podman]);
        assert_eq!(shown(EngineKind::Podman)[0], podman);
        assert_eq!(shown(EngineKind::Podman).last().unwrap(), docker);
    }

    #[tokio::test]
    async fn a_helper_that_cannot_be_started_is_told() {
        let shims = Shims::new("home");
        let told = async |helper: &str| {
            let asked = ask_helper(helper, "r.example.com", &shims).await;
            asked.map_err(|why| {
                NoLogin { helper: helper.into(), server: "r.example.com".into(), why }.to_string()
            })
        };
        assert_eq!(
            told("xy-there-is-none").await.unwrap_err(),
            "`docker-credential-xy-there-is-none`, which keeps the login at `r.example.com`, is \
             not on the `PATH` of the daemon"
        );
        assert!(told("../../bin/sh").await.unwrap_err().ends_with("has no name of a program"));
    }

    /// A program that does this when it is asked.
    fn program(folder: &tempfile::TempDir, does: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;

        let file = folder.path().join("docker-credential-x");
        std::fs::write(&file, format!("#!/bin/sh\n{does}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    /// How many processes were started from this file, and live.
    fn running(file: &Path) -> usize {
        let file = file.to_str().unwrap();
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let lines = all.filter_map(|it| std::fs::read(it.path().join("cmdline")).ok());
        lines.filter(|it| String::from_utf8_lossy(it).contains(file)).count()
    }

    #[tokio::test]
    async fn what_a_helper_says_is_a_login_or_none_or_told() {
        let shims = Shims::new("home");
        let told = async |does: &str| {
            let folder = tempfile::tempdir().unwrap();
            let asked = ask(program(&folder, does).as_os_str(), "r", &shims).await;
            asked.map(|it| it.and_then(|it| it.username)).map_err(|why| why.to_string())
        };
        let login = r#"read -r at && echo "{\"Username\":\"me at $at\",\"Secret\":\"s\"}""#;
        assert_eq!(told(login).await, Ok(Some("me at r".into())));
        let nobody = "echo credentials not found in native keychain; exit 1";
        assert_eq!(told(nobody).await, Ok(None));
        assert_eq!(told("echo pass is not initialized; exit 1").await, Err("failed".into()));
        let garbage = Err("said something that is no login".to_owned());
        assert_eq!(told("echo hello").await, garbage);
        assert_eq!(told("exit 0").await, garbage);
        assert_eq!(told("exec cat /dev/zero").await, garbage, "it does not go on for ever");
    }

    #[tokio::test]
    async fn a_helper_that_hangs_is_ended_with_all_that_it_began() {
        let (shims, folder) = (Shims::new("home"), tempfile::tempdir().unwrap());
        let hangs = r#"[ "$1" = child ] || "$0" child & echo >>"$0.began"; exec tail -f "$0""#;
        let file = program(&folder, hangs);
        let began = folder.path().join("docker-credential-x.began");
        let asking = ask(file.as_os_str(), "r", &shims);
        tokio::select! {
            _ = asking => panic!("it hangs"),
            () = async {
                while std::fs::read(&began).is_ok_and(|it| it.len() == 2).not() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            } => {}
        }
        while running(&file) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
