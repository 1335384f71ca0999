//! Logins at registries, as `docker login` and `podman login` store them, and the context of
//! Docker's CLI, which is in the same file.
//!
//! Engines do not read these files for their clients: a pull request has to contain the login.
//! Secrets stay in memory, go to the engine by its socket, and appear in no log.

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
use xy_supervisor::launch::Shims;

/// Maximum size of such a file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Time for a credential helper to answer; some ask the user.
const HELPER_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum size of a credential helper's answer.
const MAX_OUTPUT_BYTES: u64 = 64 * 1024;

/// Name of Docker Hub in such a file.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// User name that marks a secret as a token.
const TOKEN_USER: &str = "<token>";

/// Output of a credential helper that has no login, beside an exit code.
const NOT_FOUND_OUTPUT: &[u8] = b"credentials not found";

/// The used part of a file of logins.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Logins {
    auths: BTreeMap<String, Login>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
}

/// The part of the same file that selects an engine.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContextFile {
    current_context: Option<String>,
}

/// A stored login. It has either the secret, or only a name whose secret a helper keeps.
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

/// The answer of a credential helper.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperOutput {
    username: String,
    secret: String,
}

/// The source of a login.
#[derive(Debug, PartialEq)]
enum LoginSource {
    Stored(DockerCredentials),
    /// A credential helper has it, under this name of the registry.
    Helper {
        helper: String,
        server: String,
    },
}

/// A failure of a credential helper.
#[derive(Debug, thiserror::Error)]
#[error("`docker-credential-{helper}`, which stores the login for `{server}`, {why}")]
pub(crate) struct HelperError {
    helper: String,
    server: String,
    why: HelperFailure,
}

impl HelperError {
    /// Returns true if a retry may succeed without any change by the user.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self.why, HelperFailure::Silent | HelperFailure::Failed)
    }

    /// Returns what the user can do about it.
    pub(crate) fn hint(&self) -> String {
        format!("fix `docker-credential-{}`, or log in again", self.helper)
    }
}

/// Why a credential helper gave no login.
#[derive(Debug, thiserror::Error)]
enum HelperFailure {
    #[error("has an invalid name")]
    Odd,
    #[error("is not on the `PATH` of the daemon")]
    Missing,
    #[error("could not be started: {0}")]
    NotStarted(io::Error),
    #[error("did not answer within {HELPER_TIMEOUT:?}")]
    Silent,
    #[error("failed")]
    Failed,
    #[error("printed invalid credentials")]
    Garbage,
}

/// Returns the login at the registry of this image, if there is one.
pub(crate) async fn of_image(
    image: &str,
    engine: EngineKind,
    shims: &Shims,
) -> Result<Option<DockerCredentials>, HelperError> {
    let registry = registry_of(image).to_owned();
    let files = login_files(engine, |name| std::env::var(name).ok());
    let found = spawn_blocking(move || files.iter().find_map(|file| read_login(file, &registry)));
    match found.await.ok().flatten() {
        None => Ok(None),
        Some(LoginSource::Stored(login)) => Ok(Some(login)),
        Some(LoginSource::Helper { helper, server }) => {
            let asked = ask_helper(&helper, &server, shims).await;
            asked.map_err(|why| HelperError { helper, server, why })
        }
    }
}

async fn ask_helper(
    helper: &str,
    server: &str,
    shims: &Shims,
) -> Result<Option<DockerCredentials>, HelperFailure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !helper.chars().all(is_plain) {
        return Err(HelperFailure::Odd);
    }
    let program = format!("docker-credential-{helper}");
    let asking = ask(OsStr::new(&program), server, shims);
    timeout(HELPER_TIMEOUT, asking).await.unwrap_or(Err(HelperFailure::Silent))
}

/// Returns the registry of an image. Pure.
fn registry_of(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => "docker.io",
    }
}

/// Returns the files of logins, the likeliest first. Pure.
fn login_files(engine: EngineKind, variable: impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
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

/// Returns the configuration file of Docker's CLI. Pure.
fn docker_file(variable: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let below = |name: &str, path: &str| variable(name).map(|it| Path::new(&it).join(path));
    below("DOCKER_CONFIG", "config.json").or(below("HOME", ".docker/config.json"))
}

/// Returns the context chosen by `docker context use`, for a user with these environment variables.
pub(crate) fn docker_context(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let text = read(&docker_file(variable)?)?;
    // The CLI ignores such a file too.
    let chosen: ContextFile = serde_json::from_slice(&text).ok()?;
    chosen.current_context
}

fn read_login(file: &Path, registry: &str) -> Option<LoginSource> {
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
    let file = std::fs::File::open(file).ok()?; // Most users have none.
    file.take(MAX_FILE_BYTES).read_to_end(&mut text).ok()?;
    Some(text)
}

/// Returns the login at a registry, or the helper that keeps it. Pure.
fn login(logins: &Logins, registry: &str) -> Option<LoginSource> {
    let is_it = |name: &&String| bare(name) == bare(server_of(registry));
    let known = logins.auths.iter().find(|(name, _)| is_it(name));
    let server = known.map_or(server_of(registry), |(name, _)| name.as_str()).to_owned();
    let helper = logins.cred_helpers.iter().find(|(name, _)| is_it(name)).map(|(_, it)| it);
    if let Some(helper) = helper {
        return Some(LoginSource::Helper { helper: helper.clone(), server });
    }
    if let Some(login) = known.and_then(|(_, login)| login.credentials(&server)) {
        return Some(LoginSource::Stored(login));
    }
    let helper = logins.creds_store.clone().filter(|it| !it.is_empty())?;
    Some(LoginSource::Helper { helper, server })
}

fn server_of(registry: &str) -> &str {
    if registry == "docker.io" { DOCKER_HUB } else { registry }
}

/// Returns the host of a registry's name, which may be a URL.
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

/// Asks a credential helper as `docker` does: with one argument and one line. Dropping the future
/// kills the helper.
async fn ask(
    program: &OsStr,
    server: &str,
    shims: &Shims,
) -> Result<Option<DockerCredentials>, HelperFailure> {
    let mut command = Command::new(program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut helper = shims.spawn_helper(&mut command).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => HelperFailure::Missing,
        _ => HelperFailure::NotStarted(error),
    })?;
    if let Some(mut stdin) = helper.child.stdin.take() {
        // A helper need not read it.
        let _ = stdin.write_all(format!("{server}\n").as_bytes()).await;
    }
    let mut output = Vec::new();
    if let Some(stdout) = helper.child.stdout.take() {
        let read = stdout.take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut output).await;
        read.map_err(|_| HelperFailure::Failed)?;
    }
    if output.len() as u64 > MAX_OUTPUT_BYTES {
        return Err(HelperFailure::Garbage); // It may print without end, so its exit is not awaited.
    }
    let ended = helper.child.wait().await.map_err(|_| HelperFailure::Failed)?;
    if !ended.success() {
        let is_not_listening =
            output.windows(NOT_FOUND_OUTPUT.len()).any(|it| it == NOT_FOUND_OUTPUT);
        return if is_not_listening { Ok(None) } else { Err(HelperFailure::Failed) };
    }
    credentials(&output, server).map(Some)
}

/// Parses the answer of a credential helper. Pure.
fn credentials(output: &[u8], server: &str) -> Result<DockerCredentials, HelperFailure> {
    let HelperOutput { username, secret } =
        serde_json::from_slice(output).map_err(|_| HelperFailure::Garbage)?;
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

/// Decodes base64 with or without padding; returns `None` for anything else.
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

    fn found(file: &str, image: &str) -> Option<LoginSource> {
        login(&serde_json::from_str(file).unwrap(), registry_of(image))
    }

    fn user(found: Option<LoginSource>) -> (String, String) {
        let Some(LoginSource::Stored(login)) = found else { panic!("{found:?}") };
        (login.username.unwrap_or_default(), login.password.unwrap_or_default())
    }

    #[test]
    fn registry_is_first_component_of_image() {
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
    fn login_is_found_for_any_registry_spelling() {
        let file = r#"{ "auths": {
            "https://index.docker.io/v1/": { "auth": "bWU6cDpx" },
            "ghcr.io": { "auth": "eW91OnM=", "email": "x" },
            "https://quay.io/v2/": { "username": "u", "password": "p" },
            "r.example.com": { "identitytoken": "t" } } }"#;
        assert_eq!(user(found(file, "busybox")), ("me".into(), "p:q".into()));
        assert_eq!(user(found(file, "ghcr.io/x/y")), ("you".into(), "s".into()));
        assert_eq!(user(found(file, "quay.io/x/y")), ("u".into(), "p".into()));
        let Some(LoginSource::Stored(login)) = found(file, "r.example.com/x/y") else {
            panic!("a token")
        };
        assert_eq!((login.identitytoken.as_deref(), login.username), (Some("t"), None));
        assert_eq!(found(file, "example.com/x"), None);
        assert_eq!(found(r#"{ "auths": { "ghcr.io": { "auth": "%" } } }"#, "ghcr.io/x"), None);
        assert_eq!(found("{}", "ghcr.io/x"), None);
    }

    #[test]
    fn credential_helpers_are_selected() {
        let file = r#"{ "auths": { "ghcr.io": {} }, "credsStore": "desktop",
            "credHelpers": { "gcr.io": "gcloud" } }"#;
        let asks = |helper: &str, server: &str| {
            Some(LoginSource::Helper { helper: helper.into(), server: server.into() })
        };
        assert_eq!(found(file, "ghcr.io/x"), asks("desktop", "ghcr.io"));
        assert_eq!(found(file, "gcr.io/x"), asks("gcloud", "gcr.io"));
        assert_eq!(found(file, "x"), asks("desktop", DOCKER_HUB));
    }

    #[test]
    fn login_files_are_ordered_by_engine() {
        let variable = |name: &str| match name {
            "HOME" => Some("/h".to_owned()),
            "XDG_RUNTIME_DIR" => Some("/r".to_owned()),
            _ => None,
        };
        let shown = |engine| -> Vec<String> {
            login_files(engine, variable).iter().map(|it| it.display().to_string()).collect()
        };
        let (docker, podman) = ("/h/.docker/config.json", "/r/containers/auth.json");
        assert_eq!(shown(EngineKind::Docker)[..2], [docker, podman]);
        assert_eq!(shown(EngineKind::Podman)[0], podman);
        assert_eq!(shown(EngineKind::Podman).last().unwrap(), docker);
    }

    #[tokio::test]
    async fn missing_helper_is_reported() {
        let shims = Shims::new("home");
        let told = async |helper: &str| {
            let asked = ask_helper(helper, "r.example.com", &shims).await;
            asked.map_err(|why| {
                HelperError { helper: helper.into(), server: "r.example.com".into(), why }
                    .to_string()
            })
        };
        assert_eq!(
            told("xy-there-is-none").await.unwrap_err(),
            "`docker-credential-xy-there-is-none`, which stores the login for `r.example.com`, is \
             not on the `PATH` of the daemon"
        );
        assert!(told("../../bin/sh").await.unwrap_err().ends_with("has an invalid name"));
    }

    /// Writes a helper with this script.
    fn program(folder: &tempfile::TempDir, does: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;

        let file = folder.path().join("docker-credential-x");
        std::fs::write(&file, format!("#!/bin/sh\n{does}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    /// Returns how many running processes were started from this file.
    fn running(file: &Path) -> usize {
        let file = file.to_str().unwrap();
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let lines = all.filter_map(|it| std::fs::read(it.path().join("cmdline")).ok());
        lines.filter(|it| String::from_utf8_lossy(it).contains(file)).count()
    }

    #[tokio::test]
    async fn helper_output_is_login_none_or_error() {
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
        let garbage = Err("printed invalid credentials".to_owned());
        assert_eq!(told("echo hello").await, garbage);
        assert_eq!(told("exit 0").await, garbage);
        assert_eq!(told("exec cat /dev/zero").await, garbage, "it does not go on for ever");
    }

    #[tokio::test]
    async fn hanging_helper_is_killed_with_children() {
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
