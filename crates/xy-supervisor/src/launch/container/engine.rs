//! Where a container engine listens, and the few things that are asked of it.
//!
//! Only engines of this machine, by a Unix socket: what a container publishes is reached by
//! loopback. Every question has a limit; what an engine refuses is put in words in
//! `faults.rs`.

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

use super::stream;

/// How long an engine may take to say that it is there: on a busy machine, long.
const HELLO_WITHIN: Duration = Duration::from_secs(30);

/// How long it may take for anything that is not waiting: starting a container on a busy
/// machine takes seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// How long Podman may take to write down how a container ended, and how often it is asked.
const CLEARED_UP_WITHIN: Duration = Duration::from_secs(20);
const CLEARED_UP_YET: Duration = Duration::from_millis(50);

/// The longest word for a version, in characters.
const LONGEST_VERSION: usize = 40;

/// For questions whose answer comes when a container ends.
const PATIENT: Duration = Duration::from_hours(365 * 24);

/// What comes in pieces.
pub(super) type Pieces<T> = Pin<Box<dyn Stream<Item = Result<T, Error>> + Send>>;

/// The next piece; `None` when there are no more. Cancel-safe.
pub(super) async fn next<T>(pieces: &mut Pieces<T>) -> Option<Result<T, Error>> {
    std::future::poll_fn(|context| pieces.as_mut().poll_next(context)).await
}

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoEngine {
    #[error("no container engine listens at {}", listed(.tried))]
    Nowhere { tried: Vec<PathBuf> },
    #[error("there is no right to use the container engine at `{}`", .socket.display())]
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

/// Where an engine may listen, the likeliest first. Pure.
pub(super) fn places(
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
            // Where Podman is somewhere else, Docker may still be here.
            Ok([docker()?, podman().unwrap_or_default()].concat())
        }
    }
}

/// One engine that answers.
#[derive(Debug, Clone)]
pub(super) struct Engine {
    docker: Docker,
    patient: Docker,
    /// Where it listens.
    pub(super) socket: PathBuf,
    /// Whether it closes the stdin of a container once nobody is attached, whatever it was
    /// asked: Podman does.
    pub(super) closes_stdin: bool,
    /// As it says itself.
    pub(super) version: String,
}

/// What an engine says of one of our containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    /// Its own id.
    pub(super) id: String,
    /// Its labels.
    pub(super) labels: HashMap<String, String>,
}

/// Whether an engine has an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HasImage {
    Yes,
    No,
    /// It has one for this platform, which is not the one that was asked for.
    ForOther(String),
}

/// Whether two platforms are of the same system and processor; there are two words for some, and
/// of a variant little is said by images. Pure.
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
    /// The engine that these settings mean.
    pub(super) async fn find(settings: &ContainerSettings) -> Result<Self, NoEngine> {
        Self::find_by(settings, |name| std::env::var(name).ok()).await
    }

    /// The engine that these settings mean to somebody with these variables.
    pub(super) async fn find_by(
        settings: &ContainerSettings,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, NoEngine> {
        let tried = places(settings.host.as_deref(), settings.engine, variable)?;
        for socket in &tried {
            match UnixStream::connect(socket).await {
                Ok(_) => return Self::at(socket).await,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(NoEngine::Forbidden { socket: socket.clone() });
                }
                Err(_) => {} // Nobody is there, or not any more.
            }
        }
        Err(NoEngine::Nowhere { tried })
    }

    /// The engine that listens there.
    pub(super) async fn at(socket: &Path) -> Result<Self, NoEngine> {
        let silent = |why: String| NoEngine::Silent { socket: socket.to_owned(), why };
        let path = socket.to_string_lossy();
        let seconds = ANSWER_WITHIN.as_secs();
        let docker = Docker::connect_with_unix(&path, seconds, API_DEFAULT_VERSION)
            .map_err(|error| silent(error.to_string()))?;
        let hello = async {
            let docker = docker.negotiate_version().await?;
            let version = docker.version().await?;
            Ok::<_, Error>((docker, version))
        };
        let (docker, version) = timeout(HELLO_WITHIN, hello)
            .await
            .map_err(|_| silent(format!("nothing within {HELLO_WITHIN:?}")))?
            .map_err(|error| silent(error.to_string()))?;
        let parts = version.components.unwrap_or_default();
        let closes_stdin = parts.iter().any(|part| part.name.contains("Podman"));
        let patient = docker.clone().with_timeout(PATIENT);
        // Podman's first part is its own; the version beside them is that of its API.
        let own = parts.iter().find(|part| part.name.contains("Podman"));
        let said = own.map(|part| part.version.clone()).or(version.version).unwrap_or_default();
        let version = said.chars().filter(|c| !c.is_control()).take(LONGEST_VERSION).collect();
        Ok(Self { docker, patient, socket: socket.to_owned(), closes_stdin, version })
    }

    pub(super) fn kind(&self) -> EngineKind {
        if self.closes_stdin { EngineKind::Podman } else { EngineKind::Docker }
    }

    /// Whether it has an image of this name, for this platform. Docker sees that itself.
    pub(super) async fn look_for(
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

    /// Fetches an image, as whoever this is; the pieces tell how far it is.
    pub(super) fn pull(
        &self,
        image: &str,
        platform: Option<&str>,
        login: Option<DockerCredentials>,
    ) -> Pieces<CreateImageInfo> {
        // Without a tag or a digest an engine would fetch all there are.
        let last = image.rsplit('/').next().unwrap_or_default();
        let is_exact = last.contains([':', '@']);
        let options = CreateImageOptions {
            from_image: Some(image.to_owned()),
            tag: (!is_exact).then(|| "latest".to_owned()),
            platform: platform.unwrap_or_default().to_owned(),
            ..CreateImageOptions::default()
        };
        Box::pin(self.patient.create_image(Some(options), None, login))
    }

    /// Makes a container of this name; its id.
    pub(super) async fn create(
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

    /// Its stdin, and its stdout and stderr from now on.
    pub(super) async fn attach(&self, id: &str) -> Result<AttachContainerResults, Error> {
        let options = AttachContainerOptions {
            stream: true,
            stdin: true,
            stdout: true,
            stderr: true,
            ..AttachContainerOptions::default()
        };
        self.docker.attach_container(id, Some(options)).await
    }

    /// The same as a stream that is nobody else's, and can be handed on.
    pub(super) async fn attach_apart(&self, id: &str) -> Result<OwnedFd, Error> {
        let attached = timeout(ANSWER_WITHIN, stream::attach(&self.socket, id)).await;
        attached.unwrap_or(Err(Error::RequestTimeoutError))
    }

    /// What it has said since that second, as the engine has kept it.
    pub(super) fn logs(&self, id: &str, since: i32) -> Pieces<LogOutput> {
        let options = LogsOptions {
            stdout: true,
            stderr: true,
            since,
            tail: "all".to_owned(),
            ..LogsOptions::default()
        };
        Box::pin(self.docker.logs(id, Some(options)))
    }

    pub(super) async fn start(&self, id: &str) -> Result<(), Error> {
        self.docker.start_container(id, None::<StartContainerOptions>).await
    }

    /// Its state; `None` if there is no such container.
    pub(super) async fn state(&self, id: &str) -> Result<Option<ContainerState>, Error> {
        Ok(self.inspect(id).await?.map(|found| found.state.unwrap_or_default()))
    }

    /// All of it; `None` if there is no such container.
    async fn inspect(&self, id: &str) -> Result<Option<ContainerInspectResponse>, Error> {
        let give_up_at = Instant::now() + CLEARED_UP_WITHIN;
        loop {
            match self.docker.inspect_container(id, None::<InspectContainerOptions>).await {
                Ok(found) => return Ok(Some(found)),
                Err(error) if is_absent(&error) => return Ok(None),
                Err(error) if is_between(&error) && Instant::now() < give_up_at => {
                    sleep(CLEARED_UP_YET).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The labels of whoever has this name or id.
    pub(super) async fn labels(&self, name: &str) -> Result<Option<Seen>, Error> {
        Ok(self.inspect(name).await?.map(|found| Seen {
            id: found.id.unwrap_or_default(),
            labels: found.config.and_then(|config| config.labels).unwrap_or_default(),
        }))
    }

    /// Resolves when it does not run any more, or when that cannot be told.
    pub(super) async fn until_ended(&self, id: &str) {
        let options = WaitContainerOptions { condition: "not-running".to_owned() };
        let mut ends: Pieces<_> = Box::pin(self.patient.wait_container(id, Some(options)));
        let _ = next(&mut ends).await; // What became of it is asked for in any case.
    }

    /// Tells it to end, by force after the grace.
    pub(super) async fn stop(&self, id: &str, grace: Duration) -> Result<(), Error> {
        let seconds = i32::try_from(grace.as_millis().div_ceil(1000)).unwrap_or(i32::MAX);
        let options = StopContainerOptions { t: Some(seconds), signal: None };
        let docker = self.docker.clone().with_timeout(grace.saturating_add(ANSWER_WITHIN));
        docker.stop_container(id, Some(options)).await
    }

    pub(super) async fn kill(&self, id: &str) -> Result<(), Error> {
        let options = KillContainerOptions { signal: "KILL".to_owned() };
        self.docker.kill_container(id, Some(options)).await
    }

    /// One that is paused hears nothing.
    pub(super) async fn unpause(&self, id: &str) -> Result<(), Error> {
        self.docker.unpause_container(id).await
    }

    /// Removes it with all that is its own, running or not. It is fine if it is gone, or if
    /// somebody else removes it: that is waited for, as its name is taken until then.
    pub(super) async fn remove(&self, id: &str) -> Result<(), Error> {
        if self.closes_stdin {
            // Podman would ask it to end first, and wait for ten seconds.
            let _ = self.kill(id).await; // Most have ended already.
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

    /// Waits until somebody else has removed it, or for long enough.
    async fn until_removed(&self, id: &str) {
        let give_up_at = Instant::now() + CLEARED_UP_WITHIN;
        while Instant::now() < give_up_at && self.labels(id).await.is_ok_and(|it| it.is_some()) {
            sleep(CLEARED_UP_YET).await;
        }
    }

    /// All containers with this label.
    pub(super) async fn labelled(&self, label: &str) -> Result<Vec<Seen>, Error> {
        let filters = HashMap::from([("label".to_owned(), vec![label.to_owned()])]);
        let options =
            ListContainersOptions { all: true, filters: Some(filters), ..Default::default() };
        let found = self.docker.list_containers(Some(options)).await?;
        let seen = |one: bollard::models::ContainerSummary| {
            Some(Seen { id: one.id?, labels: one.labels.unwrap_or_default() })
        };
        Ok(found.into_iter().filter_map(seen).collect())
    }
}

/// Whether a container is in a state that only Podman has: it has ended, and how is not written
/// down yet.
pub(super) fn is_between(error: &Error) -> bool {
    matches!(error, Error::JsonDataError { message, .. } if message.contains("`stopped`"))
}

/// Whether what was asked for is not there.
pub(super) fn is_absent(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, .. })
}

/// Whether somebody else has the name that was asked for. Podman says so in words only.
pub(super) fn is_name_taken(error: &Error) -> bool {
    match error {
        Error::DockerResponseServerError { status_code: 409 | 500, message } => {
            message.contains("name") && message.contains("already in use")
        }
        _ => false,
    }
}

/// Whether the engine itself is not there, rather than that it refuses something.
pub(super) fn is_gone(error: &Error) -> bool {
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
        match places(host, engine, variable) {
            Ok(places) => places.iter().map(|it| it.display().to_string()).collect(),
            Err(why) => vec![why.to_string()],
        }
    }

    #[test]
    fn what_the_file_says_comes_before_the_environment_and_that_before_the_usual() {
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
    fn an_engine_on_another_machine_is_refused_by_name() {
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
    fn platforms_are_compared_by_what_they_mean() {
        for same in ["linux/amd64", "linux/x86_64", "LINUX/AMD64", "amd64", "linux/amd64/v2"] {
            assert!(is_same_platform("linux/amd64", same), "{same}");
        }
        for other in ["linux/arm64", "windows/amd64", "linux/s390x", "arm64", "linux", ""] {
            assert!(!is_same_platform("linux/amd64", other), "{other}");
        }
    }

    /// Somebody at a socket who says this to everyone, and then hangs up or never does.
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
    async fn somebody_who_is_no_engine_is_not_taken_for_one() {
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
