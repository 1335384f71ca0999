//! What an engine refuses, in words for whoever wrote the file, and whether trying again can
//! help. Pure: engines say most of it in sentences only, so it is recognised by these.

use bollard::errors::Error;
use xy_config::settings::{ContainerSettings, ServerSettings};

use super::engine::{NoEngine, is_name_taken};
use super::login::NoLogin;
use super::pull::{NotPulled, Why};
use crate::lifecycle::{Exit, LaunchFault, Oom};

/// More of an engine's own words is not repeated.
const LONGEST: usize = 300;

/// There is no engine to ask.
pub(super) fn no_engine(why: &NoEngine) -> LaunchFault {
    let (permanent, hint) = match why {
        NoEngine::Nowhere { .. } => {
            (false, "start Docker or Podman, or say where it listens: `host \"unix:///…\"`")
        }
        NoEngine::Forbidden { .. } => (
            true,
            "join the group that owns the socket (often `docker`) and log in again, or use an \
             engine of your own (`engine \"podman\"`)",
        ),
        NoEngine::Elsewhere { .. } => {
            (true, "use an engine of this machine: `host \"unix:///…\"` in `container`")
        }
        NoEngine::Silent { .. } => (false, "see whether the engine is well: `docker info`"),
    };
    LaunchFault { permanent, message: why.to_string(), hint: Some(hint.to_owned()) }
}

/// The image is not there, and is not to be fetched.
pub(super) fn no_image(settings: &ServerSettings, image: &str) -> LaunchFault {
    LaunchFault {
        permanent: true,
        message: format!("there is no image `{image}`, and `pull \"never\"` forbids to fetch it"),
        hint: Some(format!(
            "load or build it, or correct `image` or `pull` at {}",
            place(settings)
        )),
    }
}

/// The image that is there is for something else, and no other is to be fetched.
pub(super) fn other_platform(settings: &ServerSettings, image: &str, is_for: &str) -> LaunchFault {
    let wanted = settings.container().and_then(|it| it.platform.as_deref()).unwrap_or_default();
    LaunchFault {
        permanent: true,
        message: format!(
            "the image `{image}` does not match its platform: wanted {wanted}, it is for {is_for}"
        ),
        hint: Some(format!("correct `platform`, `image` or `pull` at {}", place(settings))),
    }
}

/// A folder that is to be mounted does not exist.
pub(super) fn no_folder(settings: &ServerSettings, folder: &str) -> LaunchFault {
    LaunchFault {
        permanent: true,
        message: format!("a folder of its `volumes` does not exist: `{folder}`"),
        hint: Some(format!("create it, or correct `volumes` at {}", place(settings))),
    }
}

/// What is said of an image that no other try would bring, by engines and registries. A registry
/// that only says 404 is repeated in other words by each engine.
const HOPELESS: [&str; 11] = [
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

/// The image could not be fetched.
pub(super) fn not_pulled(settings: &ServerSettings, image: &str, why: &NotPulled) -> LaunchFault {
    let words = why.words();
    let is_hopeless = match &why.why {
        Why::Refused(error) => {
            let lower = self::words(error).to_lowercase();
            HOPELESS.iter().any(|it| lower.contains(it))
        }
        Why::Stalled | Why::TooLong => false,
    };
    // Who did not say who we are may do so the next time.
    let permanent = is_hopeless && !why.no_login.as_ref().is_some_and(NoLogin::may_pass);
    let again = if permanent { "" } else { "; it is tried again" };
    let hint = match &why.no_login {
        Some(no_login) => format!("{}{again}", no_login.hint()),
        None if is_hopeless => format!(
            "correct `image` at {}, or log in where it is kept: `docker login`",
            place(settings)
        ),
        None => format!("see whether its registry can be reached{again}"),
    };
    LaunchFault {
        permanent,
        message: format!("the image `{image}` could not be fetched: {words}"),
        hint: Some(hint),
    }
}

/// A container could not be made or started.
pub(super) fn not_started(settings: &ServerSettings, name: &str, why: &Error) -> LaunchFault {
    let words = words(why);
    let lower = words.to_lowercase();
    let has = |all: &[&str]| all.iter().any(|it| lower.contains(it));
    let container = settings.container();
    let file = place(settings);
    let command = container.map_or("its command", |it| shown_command(it));
    let port = settings.port().unwrap_or_default();
    let told = |permanent, message: String, hint: String| LaunchFault {
        permanent,
        message,
        hint: Some(hint),
    };
    match why {
        Error::RequestTimeoutError => {
            return told(
                false,
                "the engine did not answer in time".into(),
                "see whether the engine is well: `docker info`".into(),
            );
        }
        _ if is_name_taken(why) => {
            return told(
                false,
                format!("the name `{name}` is taken by a container that is not ours"),
                format!("remove or rename it: `docker rm {name}`"),
            );
        }
        Error::DockerResponseServerError { .. } => {}
        _ => {
            let hint = "see whether the engine is well: `docker info`".to_owned();
            return told(false, format!("the engine cannot be asked: {words}"), hint);
        }
    }
    // It was just made, so whoever did that can do it to the next one too.
    if has(&["no such container", "marked for removal"]) {
        return told(
            false,
            format!("somebody else has removed its container: {words}"),
            "see who removes containers here: `docker events`".into(),
        );
    }
    if has(&["port is already allocated", "address already in use", "ports are not available"]) {
        return told(
            false,
            format!("port {port} of this machine is taken by somebody else"),
            format!("end whoever listens there, or give it another `port` at {file}"),
        );
    }
    if has(&[
        "executable file not found",
        "command that was not found",
        "no such file or directory: unknown",
    ]) {
        return told(
            true,
            format!("there is no `{command}` in the image (an engine's exit code 127)"),
            format!("correct `command` or `args` at {file}"),
        );
    }
    // Podman says the same of other things that are not permitted.
    let is_not_executable = has(&["oci permission denied"]) && has(&["exec: ", "open executable"]);
    if is_not_executable
        || has(&["permission denied: unknown", "could not be invoked", "exec format error"])
    {
        return told(
            true,
            format!("`{command}` cannot be executed in the container (an engine's exit code 126)"),
            format!("correct `command`, `user` or `platform` at {file}"),
        );
    }
    if has(&["bind source path does not exist", "statfs"]) {
        return told(
            true,
            format!("a folder of its `volumes` does not exist: {words}"),
            format!("create it, or correct `volumes` at {file}"),
        );
    }
    let is_404 = matches!(why, Error::DockerResponseServerError { status_code: 404, .. });
    if is_404 && has(&["network"]) || has(&["unable to find network"]) {
        return told(
            true,
            format!("its network does not exist: {words}"),
            format!("create it, or correct `network` at {file}"),
        );
    }
    if has(&["unable to find user", "no matching entries in passwd"]) {
        return told(
            true,
            format!("there is no such user in the image: {words}"),
            format!("correct `user` at {file}"),
        );
    }
    let permanent = is_permanent(why, &lower);
    told(
        permanent,
        format!("the engine refused it: {words}"),
        format!("correct `container` at {file}"),
    )
}

/// Whether a refusal stays one. What is in another's way, or was there when it was looked for, may
/// be otherwise next time. Pure.
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

/// Whether an engine could not make a container for want of an init of its own.
pub(super) fn is_for_want_of_init(why: &Error) -> bool {
    let lower = words(why).to_lowercase();
    ["catatonit", "docker-init", "init binary", "init_path"].iter().any(|it| lower.contains(it))
}

/// What Podman's init says if it cannot run the command; it ends with 1, as anybody may.
pub(super) fn words_of_init(line: &[u8]) -> Option<String> {
    let line = str::from_utf8(line).ok()?.strip_prefix("ERROR (catatonit:")?;
    let (_, why) = line.split_once("): failed to exec pid1: ")?;
    Some(why.trim().chars().take(LONGEST).collect())
}

/// What an end before anything was said means, if engines use its code for themselves, or if its
/// init has said why.
pub(super) fn never_began(
    settings: &ServerSettings,
    exit: Exit,
    init: Option<&str>,
) -> Option<LaunchFault> {
    let command = settings.container().map_or("its command", |it| shown_command(it));
    let message = match exit.code? {
        1 if init == Some("No such file or directory") => {
            format!(
                "its init could not run it (as code 127): `{command}` was not found in the image"
            )
        }
        1 if let Some(why) = init => format!(
            "its init could not run it (as code 126): `{command}` is in the image, but cannot be \
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

/// How a container ended, from what its engine knows.
pub(super) fn exit(code: Option<i64>, is_oom: bool, memory: Option<u64>) -> Exit {
    let code = code.and_then(|code| i32::try_from(code).ok());
    let oom = is_oom.then(|| oom(memory));
    // An engine tells a death by a signal as a shell does.
    let signals = [1, 2, 3, 4, 6, 7, 8, 9, 11, 13, 15];
    match code.map(|code| code - 128).filter(|signal| signals.contains(signal)) {
        Some(signal) => Exit { code: None, signal: Some(signal), oom },
        None => Exit { code, signal: None, oom },
    }
}

/// How one ended that the kernel has killed for want of memory.
pub(super) fn killed_for_memory(memory: Option<u64>) -> Exit {
    Exit { code: None, signal: Some(9), oom: Some(oom(memory)) }
}

/// Whose memory it was that there was too little of.
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

/// What an engine said, on one line, and not for ever.
pub(super) fn words(why: &Error) -> String {
    let all = match why {
        Error::DockerResponseServerError { message, .. } => message.clone(),
        Error::DockerStreamError { error } => error.clone(),
        other => other.to_string(),
    };
    all.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::container_settings;

    fn refused(status_code: u16, message: &str) -> (bool, String) {
        let why = Error::DockerResponseServerError { status_code, message: message.into() };
        let fault = not_started(&container_settings("git"), "xy-git-1", &why);
        (fault.permanent, fault.message)
    }

    #[test]
    fn what_engines_refuse_is_put_in_words() {
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
                "`its command` cannot be executed in the container (an engine's exit code 126)",
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
                "the engine refused it",
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
                "the name `xy-git-1` is taken",
            ),
            (
                409,
                "Conflict. The container name \"/xy-git-1\" is already in use by container",
                false,
                "the name `xy-git-1` is taken",
            ),
            (
                400,
                "invalid mount config for type \"bind\": bind source path does not exist: /nope",
                true,
                "a folder of its `volumes`",
            ),
            (500, "statfs /nope: no such file or directory", true, "a folder of its `volumes`"),
            (404, "No such container: 8b9f", false, "somebody else has removed its container"),
            (
                404,
                "no container with name or ID \"8b9f\" found: no such container",
                false,
                "somebody else has removed its container",
            ),
            (
                409,
                "container is marked for removal and cannot be started",
                false,
                "somebody else has removed its container",
            ),
            (404, "network nope not found", true, "its network does not exist"),
            (
                500,
                "unable to find user nobody: no matching entries in passwd file",
                true,
                "there is no such user",
            ),
            (404, "No such image: x", false, "the engine refused it: No such image: x"),
            (
                404,
                "image with reference x was found but does not match the specified platform: wanted linux/s390x",
                true,
                "the engine refused it",
            ),
            (409, "preparing container x for attach: crun: oops", false, "the engine refused it"),
            (400, "something new", true, "the engine refused it: something new"),
            (500, "something else", false, "the engine refused it: something else"),
        ];
        for (status, said, permanent, begins) in table {
            let (is_permanent, message) = refused(status, said);
            assert_eq!(is_permanent, permanent, "{said}");
            assert!(message.starts_with(begins), "{message}");
        }
    }

    #[test]
    fn a_death_by_a_signal_and_one_for_want_of_memory_are_told_as_such() {
        let shown = |code, is_oom, memory| exit(Some(code), is_oom, memory).to_string();
        assert_eq!(shown(3, false, None), "exited with code 3");
        assert_eq!(shown(143, false, None), "killed by signal 15 (SIGTERM)");
        assert_eq!(shown(200, false, None), "exited with code 200");
        assert_eq!(
            shown(137, true, Some(64 << 20)),
            "killed by signal 9 (SIGKILL): it used more than its memory limit (64 MiB)"
        );
        assert_eq!(exit(None, false, None), Exit::UNSEEN);
    }

    #[test]
    fn the_codes_that_engines_use_for_themselves_are_explained() {
        let settings = container_settings("git");
        for (code, begins) in [
            (125, "exited with code 125: the engine"),
            (126, "exited with code 126"),
            (127, "exited with code 127"),
        ] {
            let fault = never_began(&settings, Exit::code(code), None).unwrap();
            assert!(fault.permanent && fault.message.starts_with(begins), "{fault:?}");
        }
        assert_eq!(never_began(&settings, Exit::code(1), None), None);
    }

    #[test]
    fn an_init_that_says_why_it_ran_nothing_is_heard() {
        let settings = container_settings("git");
        let said = |line: &str| words_of_init(line.as_bytes());
        let told = |line, code| {
            let fault = never_began(&settings, Exit::code(code), said(line).as_deref());
            fault.map(|it| it.message)
        };
        let absent = "ERROR (catatonit:6): failed to exec pid1: No such file or directory";
        let plain = "ERROR (catatonit:6): failed to exec pid1: Permission denied";
        let begins = "its init could not run it (as code";
        assert!(told(absent, 1).unwrap().starts_with(&format!("{begins} 127)")));
        assert!(told(plain, 1).unwrap().starts_with(&format!("{begins} 126)")));
        assert!(told(plain, 1).unwrap().ends_with("executed: Permission denied"));
        assert_eq!(told(absent, 2), None, "that is not its own code");
        assert_eq!(said("it says ERROR (catatonit:6): failed to exec pid1: no"), None);
        assert_eq!(said("ERROR (catatonit:6): something else"), None);
    }

    #[test]
    fn an_image_that_nobody_has_is_not_fetched_again_and_again() {
        let settings = container_settings("git");
        let because = |why| not_pulled(&settings, "x", &NotPulled { why, no_login: None });
        let pulled =
            |error: &str| because(Why::Refused(Error::DockerStreamError { error: error.into() }));
        assert!(pulled("manifest unknown: manifest unknown").permanent);
        assert!(pulled("Head \"http://x/v2/y/manifests/1\": no basic auth credentials").permanent);
        assert!(pulled("pull access denied for x, repository does not exist").permanent);
        assert!(!pulled("dial tcp: lookup registry-1.docker.io: i/o timeout").permanent);
        assert!(!because(Why::Stalled).permanent && !because(Why::TooLong).permanent);
        assert_eq!(
            because(Why::Stalled).message,
            "the image `x` could not be fetched: nothing was heard for 1m"
        );
        assert_eq!(
            because(Why::TooLong).message,
            "the image `x` could not be fetched: it took longer than 30m"
        );
    }
}
