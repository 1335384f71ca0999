//! Explanations of an engine's refusals for the user, and whether a retry can help. Pure.
//!
//! Engines give most reasons in words only, so they are recognised by phrases.

use bollard::errors::Error;
use humantime::format_duration;
use xy_config::settings::{ContainerSettings, ServerSettings};
use xy_supervisor::lifecycle::{Exit, LaunchFault, Oom};

use crate::engine::{NoEngine, is_name_taken};
use crate::login::HelperError;
use crate::pull::{PROGRESS_TIMEOUT, PULL_TIMEOUT, PullError, PullFailure};

/// Maximum length of an engine's own words, in characters.
const MAX_WORDS_CHARS: usize = 300;

/// Explains that there is no engine.
pub(crate) fn no_engine(why: &NoEngine) -> LaunchFault {
    let (permanent, hint) = match why {
        NoEngine::Nowhere { .. } => {
            (false, "start Docker or Podman, or set its socket: `host \"unix:///…\"`")
        }
        NoEngine::Forbidden { .. } => (
            true,
            "join the group that owns the socket (often `docker`) and log in again, or use an \
             engine of your own (`engine \"podman\"`)",
        ),
        NoEngine::Elsewhere { .. } => {
            (true, "use an engine of this machine: `host \"unix:///…\"` in `container`")
        }
        NoEngine::Silent { .. } => (false, "check the engine with `docker info` or `podman info`"),
    };
    LaunchFault { permanent, message: why.to_string(), hint: Some(hint.to_owned()) }
}

/// Explains that the image is missing and must not be pulled.
pub(crate) fn no_image(settings: &ServerSettings, image: &str) -> LaunchFault {
    LaunchFault {
        permanent: true,
        message: format!("there is no image `{image}`, and `pull \"never\"` forbids fetching it"),
        hint: Some(format!(
            "load or build it, or correct `image` or `pull` at {}",
            place(settings)
        )),
    }
}

/// Explains that the image is for another platform and must not be pulled.
pub(crate) fn other_platform(settings: &ServerSettings, image: &str, is_for: &str) -> LaunchFault {
    let wanted = settings.container().and_then(|it| it.platform.as_deref()).unwrap_or_default();
    LaunchFault {
        permanent: true,
        message: format!("the image `{image}` is for {is_for}, but `platform` asks for {wanted}"),
        hint: Some(format!("correct `platform`, `image` or `pull` at {}", place(settings))),
    }
}

/// Explains that a folder to be mounted does not exist.
pub(crate) fn no_folder(settings: &ServerSettings, folder: &str) -> LaunchFault {
    LaunchFault {
        permanent: true,
        message: format!("a folder of its `volumes` does not exist: `{folder}`"),
        hint: Some(format!("create it, or correct `volumes` at {}", place(settings))),
    }
}

/// Phrases of engines and registries that mean that no retry will bring the image. Each engine
/// rephrases a plain 404 of a registry.
const PERMANENT_PHRASES: [&str; 11] = [
    "manifest unknown",
    "not found",
    "http 404 response",
    "status code 404",
    "statuscode: 404",
    "access denied",
    "unauthorized",
    "no basic auth credentials",
    "authentication required",
    "invalid reference",
    "no matching manifest",
];

/// Returns why an image was not fetched and, if the login failed, why.
pub(crate) fn pull_words(error: &PullError) -> String {
    let why = match &error.why {
        PullFailure::Refused(why) => words(why),
        PullFailure::Stalled => {
            format!("no progress for {}", format_duration(PROGRESS_TIMEOUT))
        }
        PullFailure::TooLong => format!("it took longer than {}", format_duration(PULL_TIMEOUT)),
    };
    match &error.login_error {
        Some(login_error) => format!("{why}; {login_error}"),
        None => why,
    }
}

/// Explains why the image could not be fetched.
pub(crate) fn not_pulled(settings: &ServerSettings, image: &str, why: &PullError) -> LaunchFault {
    let words = pull_words(why);
    let is_unrecoverable = match &why.why {
        PullFailure::Refused(error) => {
            let lower = self::words(error).to_lowercase();
            PERMANENT_PHRASES.iter().any(|it| lower.contains(it))
        }
        PullFailure::Stalled | PullFailure::TooLong => false,
    };
    // A credential helper that failed may work the next time.
    let permanent =
        is_unrecoverable && !why.login_error.as_ref().is_some_and(HelperError::is_transient);
    let again = if permanent { "" } else { "; xy retries" };
    let hint = match &why.login_error {
        Some(login_error) => format!("{}{again}", login_error.hint()),
        None if is_unrecoverable => format!(
            "correct `image` at {}, or log in to its registry: `docker login` or `podman login`",
            place(settings)
        ),
        None => format!("check that its registry can be reached{again}"),
    };
    LaunchFault {
        permanent,
        message: format!("the image `{image}` could not be fetched: {words}"),
        hint: Some(hint),
    }
}

/// Explains why a container could not be created or started.
pub(crate) fn not_started(settings: &ServerSettings, name: &str, why: &Error) -> LaunchFault {
    let words = words(why);
    let lower = words.to_lowercase();
    let has = |all: &[&str]| all.iter().any(|it| lower.contains(it));
    let container = settings.container();
    let file = place(settings);
    let command = container.map_or("its command", |it| shown_command(it));
    let port = settings.port().unwrap_or_default();
    let fault = |permanent, message: String, hint: String| LaunchFault {
        permanent,
        message,
        hint: Some(hint),
    };
    match why {
        Error::RequestTimeoutError => {
            return fault(
                false,
                "the engine did not answer in time".into(),
                "check the engine with `docker info` or `podman info`".into(),
            );
        }
        _ if is_name_taken(why) => {
            return fault(
                false,
                format!("the name `{name}` is used by a container that xy does not own"),
                format!("remove or rename it: `docker rm {name}` or `podman rm {name}`"),
            );
        }
        Error::DockerResponseServerError { .. } => {}
        _ => {
            let hint = "check the engine with `docker info` or `podman info`".to_owned();
            return fault(false, format!("the request to the engine failed: {words}"), hint);
        }
    }
    // It was just created, so another program has removed it. A retry creates a new one, which that
    // program may leave alone.
    if has(&["no such container", "marked for removal"]) {
        return fault(
            false,
            format!("another program has removed its container: {words}"),
            "find the program that removes containers: `docker events` or `podman events`".into(),
        );
    }
    if has(&["port is already allocated", "address already in use", "ports are not available"]) {
        return fault(
            false,
            format!("port {port} of this machine is taken by another program"),
            format!("end the program that listens there, or change `port` at {file}"),
        );
    }
    if has(&[
        "executable file not found",
        "command that was not found",
        "no such file or directory: unknown",
    ]) {
        return fault(
            true,
            format!("there is no `{command}` in the image (exit code 127)"),
            format!("correct `command` or `args` at {file}"),
        );
    }
    // Podman uses the same phrase for other things that are not permitted.
    let is_not_executable = has(&["oci permission denied"]) && has(&["exec: ", "open executable"]);
    if is_not_executable
        || has(&["permission denied: unknown", "could not be invoked", "exec format error"])
    {
        return fault(
            true,
            format!("`{command}` cannot be executed in the container (exit code 126)"),
            format!("correct `command`, `user` or `platform` at {file}"),
        );
    }
    if has(&["bind source path does not exist", "statfs"]) {
        return fault(
            true,
            format!("a folder of its `volumes` does not exist: {words}"),
            format!("create it, or correct `volumes` at {file}"),
        );
    }
    let is_404 = matches!(why, Error::DockerResponseServerError { status_code: 404, .. });
    if is_404 && has(&["network"]) || has(&["unable to find network"]) {
        return fault(
            true,
            format!("its network does not exist: {words}"),
            format!("create it, or correct `network` at {file}"),
        );
    }
    if has(&["unable to find user", "no matching entries in passwd"]) {
        return fault(
            true,
            format!("there is no such user in the image: {words}"),
            format!("correct `user` at {file}"),
        );
    }
    let permanent = is_permanent(why, &lower);
    fault(
        permanent,
        format!("the engine refused the container: {words}"),
        format!("correct `container` at {file}"),
    )
}

/// Returns true if a retry would be refused again. A conflict, or an image that was there a moment
/// ago, may be resolved. Pure.
fn is_permanent(why: &Error, words: &str) -> bool {
    match why {
        Error::DockerResponseServerError { status_code: 409, .. } => false,
        Error::DockerResponseServerError { status_code: 404, .. } => {
            !words.contains("no such image")
        }
        Error::DockerResponseServerError { status_code, .. } => (400..500).contains(status_code),
        _ => false,
    }
}

/// Returns true if an engine failed because it has no init of its own.
pub(crate) fn is_missing_init(why: &Error) -> bool {
    let lower = words(why).to_lowercase();
    ["catatonit", "docker-init", "init binary", "init_path"].iter().any(|it| lower.contains(it))
}

/// Returns what Podman's init says if it cannot run the command. Its exit code is 1, which any
/// program may use.
pub(crate) fn init_message(line: &[u8]) -> Option<String> {
    let line = str::from_utf8(line).ok()?.strip_prefix("ERROR (catatonit:")?;
    let (_, why) = line.split_once("): failed to exec pid1: ")?;
    Some(why.trim().chars().take(MAX_WORDS_CHARS).collect())
}

/// Explains an exit before the server was ready, if the code is one that engines use themselves, or
/// if the init gave the reason.
pub(crate) fn start_failure(
    settings: &ServerSettings,
    exit: Exit,
    init: Option<&str>,
) -> Option<LaunchFault> {
    let command = settings.container().map_or("its command", |it| shown_command(it));
    let message = match exit.code? {
        1 if init == Some("No such file or directory") => {
            format!(
                "its init could not run it (like exit code 127): `{command}` was not found in the image"
            )
        }
        1 if let Some(why) = init => format!(
            "its init could not run it (like exit code 126): `{command}` is in the image, but cannot be \
             executed: {why}"
        ),
        125 => "exited with code 125: the engine itself could not run it".to_owned(),
        126 => format!("exited with code 126: `{command}` is in the image, but cannot be executed"),
        127 => format!("exited with code 127: `{command}` was not found in the image"),
        _ => return None,
    };
    let hint = format!("correct `command` or `args` at {}", place(settings));
    Some(LaunchFault { permanent: true, message, hint: Some(hint) })
}

/// Converts the exit status that its engine reports.
pub(crate) fn exit(code: Option<i64>, is_oom: bool, memory: Option<u64>) -> Exit {
    let code = code.and_then(|code| i32::try_from(code).ok());
    let oom = is_oom.then(|| oom(memory));
    // An engine encodes a death by signal as a shell does.
    let signals = [1, 2, 3, 4, 6, 7, 8, 9, 11, 13, 15];
    match code.map(|code| code - 128).filter(|signal| signals.contains(signal)) {
        Some(signal) => Exit { signal: Some(signal), oom, ..Exit::UNKNOWN },
        None => Exit { code, oom, ..Exit::UNKNOWN },
    }
}

/// Returns the exit status of a process that the kernel killed for lack of memory.
pub(crate) fn killed_for_memory(memory: Option<u64>) -> Exit {
    Exit { signal: Some(9), oom: Some(oom(memory)), ..Exit::UNKNOWN }
}

/// Returns which memory was exhausted.
fn oom(limit: Option<u64>) -> Oom {
    limit.map_or(Oom::Machine, |bytes| Oom::Limit { bytes })
}

fn shown_command(container: &ContainerSettings) -> &str {
    let first = container.args.as_ref().and_then(|args| args.first());
    container.command.as_ref().or(first).map_or("its command", String::as_str)
}

fn place(settings: &ServerSettings) -> String {
    format!("{}:{}", settings.source.file.display(), settings.source.command_line)
}

/// Returns an engine's words on one line, truncated.
pub(crate) fn words(why: &Error) -> String {
    let all = match why {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        Error::DockerStreamError { error } => error.clone(),
        other => other.to_string(),
    };
    all.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_WORDS_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::settings::container_settings;

    fn refused(status_code: u16, message: &str) -> (bool, String) {
        let why = Error::DockerResponseServerError { status_code, message: message.into() };
        let fault = not_started(&container_settings("git"), "xy-git-1", &why);
        (fault.permanent, fault.message)
    }

    #[test]
    fn engine_refusals_are_explained() {
        let table = [
            (
                500,
                r#"failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: "/bin/nope": stat /bin/nope: no such file or directory: unknown"#,
                true,
                "there is no `its command` in the image",
            ),
            (
                500,
                "runc: exec: \"x\": executable file not found in $PATH: OCI runtime attempted to invoke a command that was not found",
                true,
                "there is no",
            ),
            (
                500,
                "runc: runc create failed: unable to start container process: exec: \"/etc/passwd\": permission denied: OCI permission denied",
                true,
                "`its command` cannot be executed in the container (exit code 126)",
            ),
            (
                500,
                "crun: open executable: Permission denied: OCI permission denied",
                true,
                "`its command` cannot be executed",
            ),
            (
                500,
                "runc create failed: error mounting \"/x\": permission denied: OCI permission denied",
                false,
                "the engine refused the container",
            ),
            (
                500,
                "driver failed programming external connectivity on endpoint x: Bind for 127.0.0.1:80 failed: port is already allocated",
                false,
                "port 0 of this machine is taken",
            ),
            (
                500,
                "rootlessport listen tcp 127.0.0.1:80: bind: address already in use",
                false,
                "port 0",
            ),
            (
                500,
                "container create: creating container storage: the container name \"xy-git-1\" is already in use by 883f",
                false,
                "the name `xy-git-1` is used",
            ),
            (
                409,
                "Conflict. The container name \"/xy-git-1\" is already in use by container",
                false,
                "the name `xy-git-1` is used",
            ),
            (
                400,
                "invalid mount config for type \"bind\": bind source path does not exist: /nope",
                true,
                "a folder of its `volumes`",
            ),
            (500, "statfs /nope: no such file or directory", true, "a folder of its `volumes`"),
            (404, "No such container: 8b9f", false, "another program has removed its container"),
            (
                404,
                "no container with name or ID \"8b9f\" found: no such container",
                false,
                "another program has removed its container",
            ),
            (
                409,
                "container is marked for removal and cannot be started",
                false,
                "another program has removed its container",
            ),
            (404, "network nope not found", true, "its network does not exist"),
            (
                500,
                "unable to find user nobody: no matching entries in passwd file",
                true,
                "there is no such user",
            ),
            (404, "No such image: x", false, "the engine refused the container: No such image: x"),
            (
                404,
                "image with reference x was found but does not match the specified platform: wanted linux/s390x",
                true,
                "the engine refused the container",
            ),
            (409, "attach: crun: oops", false, "the engine refused the container"),
            (400, "something new", true, "the engine refused the container: something new"),
            (500, "something else", false, "the engine refused the container: something else"),
        ];
        for (status, said, permanent, begins) in table {
            let (is_permanent, message) = refused(status, said);
            assert_eq!(is_permanent, permanent, "{said}");
            assert!(message.starts_with(begins), "{message}");
        }
    }

    #[test]
    fn signals_and_out_of_memory_are_decoded() {
        let shown = |code, is_oom, memory| exit(Some(code), is_oom, memory).to_string();
        assert_eq!(shown(3, false, None), "exited with code 3");
        assert_eq!(shown(143, false, None), "killed by signal 15 (SIGTERM)");
        assert_eq!(shown(200, false, None), "exited with code 200");
        assert_eq!(
            shown(137, true, Some(64 << 20)),
            "killed by signal 9 (SIGKILL): it used more than its memory limit (64 MiB)"
        );
        assert_eq!(exit(None, false, None), Exit::UNKNOWN);
    }

    #[test]
    fn engine_exit_codes_are_explained() {
        let settings = container_settings("git");
        for (code, begins) in [
            (125, "exited with code 125: the engine"),
            (126, "exited with code 126"),
            (127, "exited with code 127"),
        ] {
            let fault = start_failure(&settings, Exit::code(code), None).unwrap();
            assert!(fault.permanent && fault.message.starts_with(begins), "{fault:?}");
        }
        assert_eq!(start_failure(&settings, Exit::code(1), None), None);
    }

    #[test]
    fn init_failure_message_is_explained() {
        let settings = container_settings("git");
        let said = |line: &str| init_message(line.as_bytes());
        let told = |line, code| {
            let fault = start_failure(&settings, Exit::code(code), said(line).as_deref());
            fault.map(|it| it.message)
        };
        let absent = "ERROR (catatonit:6): failed to exec pid1: No such file or directory";
        let plain = "ERROR (catatonit:6): failed to exec pid1: Permission denied";
        let begins = "its init could not run it (like exit code";
        assert!(told(absent, 1).unwrap().starts_with(&format!("{begins} 127)")));
        assert!(told(plain, 1).unwrap().starts_with(&format!("{begins} 126)")));
        assert!(told(plain, 1).unwrap().ends_with("executed: Permission denied"));
        assert_eq!(told(absent, 2), None, "that is not its own code");
        assert_eq!(said("it says ERROR (catatonit:6): failed to exec pid1: no"), None);
        assert_eq!(said("ERROR (catatonit:6): something else"), None);
    }

    #[test]
    fn missing_image_is_permanent_fault() {
        let settings = container_settings("git");
        let because = |why| not_pulled(&settings, "x", &PullError { why, login_error: None });
        let pulled = |error: &str| {
            because(PullFailure::Refused(Error::DockerStreamError { error: error.into() }))
        };
        assert!(pulled("manifest unknown: manifest unknown").permanent);
        assert!(pulled("Head \"http://x/v2/y/manifests/1\": no basic auth credentials").permanent);
        assert!(pulled("pull access denied for x, repository does not exist").permanent);
        assert!(!pulled("dial tcp: lookup registry-1.docker.io: i/o timeout").permanent);
        assert!(
            !because(PullFailure::Stalled).permanent && !because(PullFailure::TooLong).permanent
        );
        assert_eq!(
            because(PullFailure::Stalled).message,
            "the image `x` could not be fetched: no progress for 1m"
        );
        assert_eq!(
            because(PullFailure::TooLong).message,
            "the image `x` could not be fetched: it took longer than 30m"
        );
    }
}
