//! The file with the daemon's token. It is created once, and only its owner may read it.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use xy_config::trust;

/// Read and write permission for the owner only.
const MODE: u32 = 0o600;

/// Maximum size of a token file.
const FILE_BYTES_MAX: u64 = 4096;

/// Minimum length of a token that a user writes into the file, so that it cannot be guessed.
const TOKEN_CHARS_MIN: usize = 16;

/// Returns the token in the file at `path`. Creates the file with 256 random bits if it does not
/// exist. If two processes do so at once, both get the same token.
pub fn read_or_create_token(path: &Path) -> io::Result<String> {
    match read(path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => create(path),
        outcome => outcome,
    }
}

/// Returns a new token that is stored nowhere.
pub fn random_token() -> io::Result<String> {
    random_hex::<32>()
}

fn read(path: &Path) -> io::Result<String> {
    // A link could lead to any file, and opening a pipe could block.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = file.map_err(|cause| match cause.raw_os_error() {
        Some(code) if code == Errno::LOOP.raw_os_error() => invalid_file(path, "is a link"),
        _ => cause,
    })?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(invalid_file(path, "is not a file"));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(invalid_file(path, "is too long for a token"));
    }
    // Anyone with write access may have written their own token.
    trust::check(path, &metadata)?;
    if metadata.mode() & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "other users could read the token file; its permissions are corrected");
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    let token = text.trim();
    if token.len() < TOKEN_CHARS_MIN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(invalid_file(path, "holds no token"));
    }
    Ok(token.to_owned())
}

fn invalid_file(path: &Path, what: &str) -> io::Error {
    let path = path.display();
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("`{path}` {what}: remove it, and the daemon creates a new token"),
    )
}

/// Writes a temporary file and links it to `path`, which succeeds for one process only.
fn create(path: &Path) -> io::Result<String> {
    let token = random_token()?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", random_hex::<8>()?));
    let beside = Path::new(&beside);
    let linked = write_new(beside, &token).and_then(|()| fs::hard_link(beside, path));
    let _ = fs::remove_file(beside); // It may not exist.
    match linked {
        Ok(()) => Ok(token),
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => read(path),
        Err(cause) => Err(cause),
    }
}

fn write_new(path: &Path, token: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    file.write_all(format!("{token}\n").as_bytes())?;
    file.sync_all()
}

fn random_hex<const BYTES: usize>() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes)?;
    let mut hex = String::with_capacity(2 * BYTES);
    for byte in bytes {
        let _ = write!(hex, "{byte:02x}"); // Writing to a `String` cannot fail.
    }
    Ok(hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn token_is_created_once_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let token = read_or_create_token(&path).unwrap();
        assert_eq!(token.len(), 64);
        assert_eq!(mode(&path), 0o600);
        assert_eq!(read_or_create_token(&path).unwrap(), token);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn concurrent_creators_get_the_same_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let tokens: Vec<String> = std::thread::scope(|scope| {
            let creators: Vec<_> =
                (0..8).map(|_| scope.spawn(|| read_or_create_token(&path).unwrap())).collect();
            creators.into_iter().map(|creator| creator.join().unwrap()).collect()
        });
        assert!(tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn loose_permissions_are_corrected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "  a-token-of-somebody's-own \n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read_or_create_token(&path).unwrap(), "a-token-of-somebody's-own");
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn token_writable_by_others_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "a-token-of-somebody-else\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let told = read_or_create_token(&path).unwrap_err().to_string();
        assert!(told.contains("chmod go-w"), "{told}");
        assert_eq!(mode(&path), 0o666);
    }

    #[test]
    fn malformed_token_is_refused_and_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for text in ["", "short", "two words that are long enough", "ümläute sind nicht erlaubt"]
        {
            fs::write(&path, text).unwrap();
            let cause = read_or_create_token(&path).unwrap_err();
            assert_eq!(cause.kind(), io::ErrorKind::InvalidData, "{text}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert!(read_or_create_token(folder.path()).is_err());
        assert!(read_or_create_token(&folder.path().join("no/such/folder")).is_err());
    }
}
