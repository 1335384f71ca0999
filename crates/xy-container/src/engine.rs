//! Connections to container engines, and the requests made of them.
//!
//! Only engines of this machine are used, by a Unix socket, as published ports are reached by
//! loopback. Every request has a timeout; `faults.rs` explains refusals.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use bollard::auth::DockerCredentials;
use bollard::container::{AttachContainerResults, LogOutput};
use bollard::errors::Error;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerState, CreateImageInfo,
};
use bollard::query_parameters::{
    AttachContainerOptions, CreateContainerOptions, CreateImageOptions, InspectContainerOptions,
    KillContainerOptions, ListContainersOptions, LogsOptions, RemoveContainerOptions,
    StartContainerOptions, StopContainerOptions, WaitContainerOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures_core::Stream;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use xy_config::settings::{ContainerSettings, EngineKind};

use crate::stream;

/// Time for an engine to introduce itself; long, as the machine may be busy.
const HELLO_TIMEOUT: Duration = Duration::from_secs(30);

/// Time for any request that does not wait for an exit. Starting a container takes seconds on a
/// busy machine.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Time for Podman to record how a container exited, and how often it is asked.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);
const CLEANUP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum length of an engine's version, in characters.
const MAX_VERSION_CHARS: usize = 40;

/// Timeout of requests that are answered when a container exits.
const LONG_TIMEOUT: Duration = Duration::from_hours(365 * 24);

/// A response that arrives in chunks.
pub(crate) type ChunkStream<T> = Pin<Box<dyn Stream<Item = Result<T, Error>> + Send>>;

/// Returns the next chunk, or `None` at the end. Cancel-safe.
pub(crate) async fn next<T>(pieces: &mut ChunkStream<T>) -> Option<Result<T, Error>> {
    std::future::poll_fn(|context| pieces.as_mut().poll_next(context)).await
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoEngine {
    #[error("no container engine listens at {}", listed(.tried))]
    Nowhere { tried: Vec<PathBuf> },
    #[error("no permission to use the container engine at `{}`", .socket.display())]
    Forbidden { socket: PathBuf },
    #[error("`{variable}` names an engine that is not reached by a Unix socket: `{host}`")]
    Elsewhere { variable: &'static str, host: String },
    #[error("the container engine at `{}` does not answer: {why}", .socket.display())]
    Silent { socket: PathBuf, why: String },
}

fn listed(tried: &[PathBuf]) -> String {
    let quoted: Vec<String> = tried.iter().map(|it| format!("`{}`", it.display())).collect();
    quoted.join(", ")
}

/// Returns the sockets where an engine may listen, the likeliest first. Pure.
pub(crate) fn socket_candidates(
    host: Option<&str>,
    engine: Option<EngineKind>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<PathBuf>, NoEngine> {
    if let Some(host) = host {
        return Ok(vec![PathBuf::from(host.trim_start_matches("unix://"))]);
    }
    let from = |name: &'static str| match variable(name).filter(|host| !host.is_empty()) {
        None => Ok(None),
        Some(host) => match host.strip_prefix("unix://") {
            Some(path) => Ok(Some(PathBuf::from(path))),
            None => Err(NoEngine::Elsewhere { variable: name, host }),
        },
    };
    let below = |name: &str, path: &str| variable(name).map(|it| Path::new(&it).join(path));
    let docker = || -> Result<Vec<PathBuf>, NoEngine> {
        if let Some(socket) = from("DOCKER_HOST")? {
            return Ok(vec![socket]);
        }
        let usual = [
            Some(PathBuf::from("/var/run/docker.sock")),
            below("XDG_RUNTIME_DIR", "docker.sock"),
            below("HOME", ".docker/run/docker.sock"),
            below("HOME", ".docker/desktop/docker.sock"),
            below("HOME", ".colima/default/docker.sock"),
            below("HOME", ".orbstack/run/docker.sock"),
        ];
        Ok(usual.into_iter().flatten().collect())
    };
    let podman = || -> Result<Vec<PathBuf>, NoEngine> {
        if let Some(socket) = from("CONTAINER_HOST")? {
            return Ok(vec![socket]);
        }
        let usual = [
            below("XDG_RUNTIME_DIR", "podman/podman.sock"),
            Some(PathBuf::from("/run/podman/podman.sock")),
            below("HOME", ".local/share/containers/podman/machine/podman.sock"),
        ];
        Ok(usual.into_iter().flatten().collect())
    };
    match engine {
        Some(EngineKind::Docker) => docker(),
        Some(EngineKind::Podman) => podman(),
        None => {
            if let Some(socket) = from("DOCKER_HOST")? {
                return Ok(vec![socket]);
            }
            // If Podman is remote, Docker may still be local.
            Ok([docker()?, podman().unwrap_or_default()].concat())
        }
    }
}

/// An engine that answers.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    docker: Docker,
    long_running: Docker,
    /// Its socket.
    pub(crate) socket: PathBuf,
    /// Whether it closes the stdin of a container with its last stream, whatever the request reported.
    /// Podman does.
    pub(crate) closes_stdin: bool,
    /// Version, as it reports it.
    pub(crate) version: String,
}

/// A container and its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LabelledContainer {
    /// Its full id.
    pub(crate) id: String,
    /// Its labels.
    pub(crate) labels: HashMap<String, String>,
}

/// The presence of an image at an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HasImage {
    Yes,
    No,
    /// It has the image for this platform, which is not the requested one.
    ForOther(String),
}

/// Returns true if two platforms have the same system and processor. Aliases are resolved and
/// variants ignored, as few images name a variant. Pure.
fn is_same_platform(one: &str, other: &str) -> bool {
    let parts = |platform: &str| {
        let platform = platform.to_lowercase();
        let (os, rest) = platform.split_once('/').unwrap_or(("linux", &platform));
        let kind = rest.split('/').next().unwrap_or_default();
        let kind = match kind {
            "x86_64" | "x86-64" => "amd64",
            "aarch64" => "arm64",
            "armhf" | "armel" => "arm",
            "i386" | "i686" => "386",
            kind => kind,
        };
        (os.to_owned(), kind.to_owned())
    };
    parts(one) == parts(other)
}

impl Engine {
    /// Connects to the engine that these settings select.
    pub(crate) async fn find(settings: &ContainerSettings) -> Result<Self, NoEngine> {
        Self::find_by(settings, |name| std::env::var(name).ok()).await
    }

    /// Connects to the engine that these settings select, with these environment variables.
    pub(crate) async fn find_by(
        settings: &ContainerSettings,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, NoEngine> {
        let tried = socket_candidates(settings.host.as_deref(), settings.engine, variable)?;
        for socket in &tried {
            match UnixStream::connect(socket).await {
                Ok(_) => return Self::at(socket).await,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(NoEngine::Forbidden { socket: socket.clone() });
                }
                Err(_) => {} // No engine listens there.
            }
        }
        Err(NoEngine::Nowhere { tried })
    }

    /// Connects to the engine at `socket`.
    pub(crate) async fn at(socket: &Path) -> Result<Self, NoEngine> {
        let silent = |why: String| NoEngine::Silent { socket: socket.to_owned(), why };
        let path = socket.to_string_lossy();
        let seconds = REQUEST_TIMEOUT.as_secs();
        let docker = Docker::connect_with_unix(&path, seconds, API_DEFAULT_VERSION)
            .map_err(|error| silent(error.to_string()))?;
        let hello = async {
            let docker = docker.negotiate_version().await?;
            let version = docker.version().await?;
            Ok::<_, Error>((docker, version))
        };
        let (docker, version) = timeout(HELLO_TIMEOUT, hello)
            .await
            .map_err(|_| silent(format!("no response within {HELLO_TIMEOUT:?}")))?
            .map_err(|error| silent(error.to_string()))?;
        let parts = version.components.unwrap_or_default();
        let closes_stdin = parts.iter().any(|part| part.name.contains("Podman"));
        let long_running = docker.clone().with_timeout(LONG_TIMEOUT);
        // Podman's component carries its version; the top-level version is that of the API.
        let own = parts.iter().find(|part| part.name.contains("Podman"));
        let reported = own.map(|part| part.version.clone()).or(version.version).unwrap_or_default();
        let version =
            reported.chars().filter(|c| !c.is_control()).take(MAX_VERSION_CHARS).collect();
        Ok(Self { docker, long_running, socket: socket.to_owned(), closes_stdin, version })
    }

    pub(crate) fn kind(&self) -> EngineKind {
        if self.closes_stdin { EngineKind::Podman } else { EngineKind::Docker }
    }

    /// Looks for an image for this platform. Docker compares platforms itself.
    pub(crate) async fn find_image(
        &self,
        image: &str,
        platform: Option<&str>,
    ) -> Result<HasImage, Error> {
        let found = match self.docker.inspect_image(image).await {
            Ok(found) => found,
            Err(error) if is_absent(&error) => return Ok(HasImage::No),
            Err(error) => return Err(error),
        };
        let is_for = found.os.zip(found.architecture).map(|(os, kind)| format!("{os}/{kind}"));
        let other = is_for
            .zip(platform)
            .filter(|(is_for, wanted)| self.closes_stdin && !is_same_platform(is_for, wanted));
        Ok(other.map_or(HasImage::Yes, |(is_for, _)| HasImage::ForOther(is_for)))
    }

    /// Fetches an image with this login; the chunks report progress.
    pub(crate) fn pull(
        &self,
        image: &str,
        platform: Option<&str>,
        login: Option<DockerCredentials>,
    ) -> ChunkStream<CreateImageInfo> {
        // Without a tag or digest, an engine would fetch all tags.
        let last = image.rsplit('/').next().unwrap_or_default();
        let is_exact = last.contains([':', '@']);
        let options = CreateImageOptions {
            from_image: Some(image.to_owned()),
            tag: (!is_exact).then(|| "latest".to_owned()),
            platform: platform.unwrap_or_default().to_owned(),
            ..CreateImageOptions::default()
        };
        Box::pin(self.long_running.create_image(Some(options), None, login))
    }

    /// Creates a container with this name and returns its id.
    pub(crate) async fn create(
        &self,
        name: &str,
        platform: Option<&str>,
        body: ContainerCreateBody,
    ) -> Result<String, Error> {
        let options = CreateContainerOptions {
            name: Some(name.to_owned()),
            platform: platform.unwrap_or_default().to_owned(),
        };
        Ok(self.docker.create_container(Some(options), body).await?.id)
    }

    /// Attaches to its stdin, and to stdout and stderr from now on.
    pub(crate) async fn attach(&self, id: &str) -> Result<AttachContainerResults, Error> {
        let options = AttachContainerOptions {
            stream: true,
            stdin: true,
            stdout: true,
            stderr: true,
            ..AttachContainerOptions::default()
        };
        self.docker.attach_container(id, Some(options)).await
    }

    /// Attaches by a connection of its own, whose descriptor can be passed to another process.
    pub(crate) async fn attach_raw(&self, id: &str) -> Result<OwnedFd, Error> {
        let attached = timeout(REQUEST_TIMEOUT, stream::attach(&self.socket, id)).await;
        attached.unwrap_or(Err(Error::RequestTimeoutError))
    }

    /// Returns its output since that second, from the engine's log.
    pub(crate) fn logs(&self, id: &str, since: i32) -> ChunkStream<LogOutput> {
        let options = LogsOptions {
            stdout: true,
            stderr: true,
            since,
            tail: "all".to_owned(),
            ..LogsOptions::default()
        };
        Box::pin(self.docker.logs(id, Some(options)))
    }

    pub(crate) async fn start(&self, id: &str) -> Result<(), Error> {
        self.docker.start_container(id, None::<StartContainerOptions>).await
    }

    /// Returns its state, or `None` if there is no such container.
    pub(crate) async fn state(&self, id: &str) -> Result<Option<ContainerState>, Error> {
        Ok(self.inspect(id).await?.map(|found| found.state.unwrap_or_default()))
    }

    /// Inspects it; returns `None` if there is no such container.
    async fn inspect(&self, id: &str) -> Result<Option<ContainerInspectResponse>, Error> {
        let give_up_at = Instant::now() + CLEANUP_TIMEOUT;
        loop {
            match self.docker.inspect_container(id, None::<InspectContainerOptions>).await {
                Ok(found) => return Ok(Some(found)),
                Err(error) if is_absent(&error) => return Ok(None),
                Err(error) if is_stopped_state(&error) && Instant::now() < give_up_at => {
                    sleep(CLEANUP_POLL_INTERVAL).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the container with this name or id, and its labels.
    pub(crate) async fn labels(&self, name: &str) -> Result<Option<LabelledContainer>, Error> {
        Ok(self.inspect(name).await?.map(|found| LabelledContainer {
            id: found.id.unwrap_or_default(),
            labels: found.config.and_then(|config| config.labels).unwrap_or_default(),
        }))
    }

    /// Resolves when it does not run any more, or when the engine cannot tell.
    pub(crate) async fn until_ended(&self, id: &str) {
        let options = WaitContainerOptions { condition: "not-running".to_owned() };
        let mut ends: ChunkStream<_> =
            Box::pin(self.long_running.wait_container(id, Some(options)));
        let _ = next(&mut ends).await; // Its state is queried afterwards in any case.
    }

    /// Asks it to stop, by force after the grace.
    pub(crate) async fn stop(&self, id: &str, grace: Duration) -> Result<(), Error> {
        let seconds = i32::try_from(grace.as_millis().div_ceil(1000)).unwrap_or(i32::MAX);
        let options = StopContainerOptions { t: Some(seconds), signal: None };
        let docker = self.docker.clone().with_timeout(grace.saturating_add(REQUEST_TIMEOUT));
        docker.stop_container(id, Some(options)).await
    }

    pub(crate) async fn kill(&self, id: &str) -> Result<(), Error> {
        let options = KillContainerOptions { signal: "KILL".to_owned() };
        self.docker.kill_container(id, Some(options)).await
    }

    /// Resumes it: a paused container receives no signal.
    pub(crate) async fn unpause(&self, id: &str) -> Result<(), Error> {
        self.docker.unpause_container(id).await
    }

    /// Removes it with its anonymous volumes, running or not. Succeeds if it is gone already. Waits
    /// if it is being removed elsewhere, as its name is taken until then.
    pub(crate) async fn remove(&self, id: &str) -> Result<(), Error> {
        if self.closes_stdin {
            // Podman would ask it to stop first, and wait for ten seconds.
            let _ = self.kill(id).await; // Most have exited already.
        }
        let options = RemoveContainerOptions { force: true, v: true, link: false };
        match self.docker.remove_container(id, Some(options)).await {
            Err(error) if is_being_removed(&error) => {
                self.until_removed(id).await;
                Ok(())
            }
            Err(error) if !is_absent(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits until its removal elsewhere is done, or for the timeout.
    async fn until_removed(&self, id: &str) {
        let give_up_at = Instant::now() + CLEANUP_TIMEOUT;
        while Instant::now() < give_up_at && self.labels(id).await.is_ok_and(|it| it.is_some()) {
            sleep(CLEANUP_POLL_INTERVAL).await;
        }
    }

    /// Lists all containers with this label.
    pub(crate) async fn labelled(&self, label: &str) -> Result<Vec<LabelledContainer>, Error> {
        let filters = HashMap::from([("label".to_owned(), vec![label.to_owned()])]);
        let options =
            ListContainersOptions { all: true, filters: Some(filters), ..Default::default() };
        let found = self.docker.list_containers(Some(options)).await?;
        let labelled_of = |one: bollard::models::ContainerSummary| {
            Some(LabelledContainer { id: one.id?, labels: one.labels.unwrap_or_default() })
        };
        Ok(found.into_iter().filter_map(labelled_of).collect())
    }
}

/// Returns true for a state that only Podman has: it has exited, and its exit status is not
/// recorded yet.
pub(crate) fn is_stopped_state(error: &Error) -> bool {
    matches!(error, Error::JsonDataError { message, .. } if message.contains("`stopped`"))
}

/// Returns true if the requested object does not exist.
pub(crate) fn is_absent(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, .. })
}

/// Returns true if another container has the requested name. Podman only says so in words.
pub(crate) fn is_name_taken(error: &Error) -> bool {
    match error {
        Error::DockerResponseServerError { status_code: 409 | 500, message } => {
            message.contains("name") && message.contains("already in use")
        }
        _ => false,
    }
}

/// Returns true if the engine is unreachable, rather than refusing a request.
pub(crate) fn is_gone(error: &Error) -> bool {
    !matches!(error, Error::DockerResponseServerError { .. } | Error::JsonDataError { .. })
}

fn is_being_removed(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 409, .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(host: Option<&str>, engine: Option<EngineKind>, env: &[(&str, &str)]) -> Vec<String> {
        let variable = |name: &str| {
            env.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned())
        };
        match socket_candidates(host, engine, variable) {
            Ok(socket_candidates) => {
                socket_candidates.iter().map(|it| it.display().to_string()).collect()
            }
            Err(why) => vec![why.to_string()],
        }
    }

    #[test]
    fn host_setting_precedes_environment_and_usual_sockets() {
        let env = [("DOCKER_HOST", "unix:///d.sock"), ("CONTAINER_HOST", "unix:///p.sock")];
        assert_eq!(found(Some("unix:///x.sock"), None, &env), ["/x.sock"]);
        assert_eq!(found(None, None, &env), ["/d.sock"]);
        assert_eq!(found(None, Some(EngineKind::Docker), &env), ["/d.sock"]);
        assert_eq!(found(None, Some(EngineKind::Podman), &env), ["/p.sock"]);
        let usual = found(None, None, &[("XDG_RUNTIME_DIR", "/run/user/1")]);
        let all = [
            "/var/run/docker.sock",
            "/run/user/1/docker.sock",
            "/run/user/1/podman/podman.sock",
            "/run/podman/podman.sock",
        ];
        assert_eq!(usual, all);
    }

    #[test]
    fn remote_engine_is_refused_by_variable_name() {
        let env = [("DOCKER_HOST", "tcp://10.0.0.1:2375")];
        let why = "`DOCKER_HOST` names an engine that is not reached by a Unix socket: \
                   `tcp://10.0.0.1:2375`";
        assert_eq!(found(None, None, &env), [why]);
        assert_eq!(found(None, Some(EngineKind::Podman), &env), ["/run/podman/podman.sock"]);
        let env = [("CONTAINER_HOST", "tcp://10.0.0.1:2375")];
        assert!(found(None, Some(EngineKind::Podman), &env)[0].contains("`CONTAINER_HOST` names"));
        assert_eq!(found(None, None, &env), ["/var/run/docker.sock"]);
        assert_eq!(found(None, None, &[("DOCKER_HOST", "")])[0], "/var/run/docker.sock");
    }

    #[test]
    fn platform_aliases_are_equal() {
        for same in ["linux/amd64", "linux/x86_64", "LINUX/AMD64", "amd64", "linux/amd64/v2"] {
            assert!(is_same_platform("linux/amd64", same), "{same}");
        }
        for other in ["linux/arm64", "windows/amd64", "linux/s390x", "arm64", "linux", ""] {
            assert!(!is_same_platform("linux/amd64", other), "{other}");
        }
    }

    /// Listens at a socket, sends these bytes to every client, and then hangs up or stays silent.
    fn stranger(folder: &tempfile::TempDir, says: &'static [u8], hangs_up: bool) -> PathBuf {
        let socket = folder.path().join("engine.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            let mut kept = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.writable().await;
                let _ = stream.try_write(says);
                if !hangs_up {
                    kept.push(stream);
                }
            }
        });
        socket
    }

    async fn found_at(socket: PathBuf) -> String {
        let host = Some(format!("unix://{}", socket.display()));
        let settings = ContainerSettings { host, ..ContainerSettings::of_image("x".into()) };
        match Engine::find(&settings).await {
            Ok(_) => "an engine".to_owned(),
            Err(why) => why.to_string(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn other_program_at_socket_is_no_engine() {
        let strangers: [(&[u8], bool); 5] = [
            (b"", true),
            (b"", false),
            (b"hello, I am a shell\n", true),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", true),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"ApiVersion\":\"1.4", false),
        ];
        for (says, hangs_up) in strangers {
            let folder = tempfile::tempdir().unwrap();
            let told = found_at(stranger(&folder, says, hangs_up)).await;
            assert!(told.contains("does not answer"), "{told}");
        }
        let nobody = found_at(PathBuf::from("/nowhere/engine.sock")).await;
        assert_eq!(nobody, "no container engine listens at `/nowhere/engine.sock`");
    }
}
