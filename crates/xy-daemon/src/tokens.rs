//! The tokens of HTTP clients, stored across daemons. Only a digest of each named token is stored,
//! so the file grants no access.

use std::fmt::{self, Write as _};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use xy_config::Paths;
use xy_config::atomic_file::write_atomically;
use xy_config::stored_file::StoredFile;
use xy_http::{Digest, Secret, Token};
use xy_protocol::control::{
    RotatedToken, TokenAdd, TokenAddResult, TokenEntry, TokenRotateResult, quoted,
};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_protocol::time::Timestamp;

/// Maximum number of named tokens: each request is compared with all of them.
const MAX_TOKENS: usize = 100;

/// Maximum size of the file: a hundred tokens with long names. A larger file was not written by xy.
const MAX_FILE: u64 = 256 * 1024;

/// The smallest id of a token with a secret. Smaller ids are reserved.
const FIRST_ID: u64 = 1 << 16;

/// All tokens, and the channel that publishes them to the gateway.
#[derive(Debug)]
pub(crate) struct Tokens {
    file: PathBuf,
    all: Vec<StoredToken>,
    own: [OwnToken; 2],
    updates: watch::Sender<Arc<Vec<Token>>>,
    /// The reason why the file could not be read. It is not written then.
    unreadable: Option<String>,
}

/// A built-in token of the daemon. Its secret is in a file that the user can read.
struct OwnToken {
    name: &'static str,
    file: PathBuf,
    manage: bool,
    /// The secret; `None` while the daemon accepts clients without tokens.
    secret: Option<String>,
}

impl fmt::Debug for OwnToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnToken").field("name", &self.name).finish_non_exhaustive()
    }
}

impl OwnToken {
    fn new(name: &'static str, file: &Path, manage: bool) -> Self {
        Self { name, file: file.to_owned(), manage, secret: None }
    }

    /// Returns the token as the gateway checks it. Its id comes from the secret, so sessions and
    /// tasks of an old secret never belong to a new one.
    fn token(&self) -> Option<Token> {
        let secret = self.secret.clone()?;
        let digest = xy_http::digest(secret.as_bytes());
        let id = digest[..8].iter().fold(0, |id, byte| id << 8 | u64::from(*byte));
        let description =
            if self.manage { "the daemon's manage token" } else { "the daemon's token" };
        let (id, name) = (id.max(FIRST_ID), description.to_owned());
        let secret = Secret::Plain(secret);
        Some(Token { id, name, secret, may_manage: self.manage, profile: None })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoredToken {
    name: String,
    id: u64,
    /// The digest in hexadecimal digits.
    sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    #[serde(default)]
    manage: bool,
    made_at: Timestamp,
}

#[derive(Default, Serialize, Deserialize)]
struct TokensFile {
    tokens: Vec<StoredToken>,
}

impl StoredFile for TokensFile {
    const FORMAT: u32 = 1;
    const FILE_SIZE: u64 = MAX_FILE;
    const IS_PRETTY: bool = true;

    fn validate(&self) -> Result<(), String> {
        let is_sound = |it: &StoredToken| {
            ServerName::new(&it.name).is_ok() && it.id >= FIRST_ID && bytes_of(&it.sha256).is_some()
        };
        if self.tokens.len() > MAX_TOKENS || !self.tokens.iter().all(is_sound) {
            return Err("one of its tokens is not valid".to_owned());
        }
        Ok(())
    }
}

impl Tokens {
    /// Reads the tokens from the file. A damaged file is moved aside, and its tokens are no longer
    /// valid.
    pub(crate) fn read(paths: &Paths) -> Self {
        let file = paths.tokens_file.clone();
        let mut unreadable = None;
        let all = match TokensFile::read(&file) {
            Ok((stored, damage)) => {
                if let Some(message) = damage {
                    tracing::warn!("{message}");
                }
                stored.tokens
            }
            Err(cause) => {
                tracing::warn!("the tokens in `{}` cannot be read: {cause}", file.display());
                unreadable = Some(cause.to_string());
                Vec::new()
            }
        };
        let own = [
            OwnToken::new("token", &paths.token_file, false),
            OwnToken::new("manage-token", &paths.manage_token_file, true),
        ];
        let updates = watch::Sender::new(Arc::default());
        let tokens = Self { file, all, own, updates, unreadable };
        tokens.publish();
        tokens
    }

    /// Enables the daemon's own tokens. Their files are created if they are missing.
    pub(crate) fn read_own(&mut self) -> io::Result<()> {
        for own in &mut self.own {
            own.secret = Some(xy_http::read_or_create_token(&own.file)?);
        }
        self.publish();
        Ok(())
    }

    /// Subscribes to the valid tokens.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Vec<Token>>> {
        self.updates.subscribe()
    }

    /// Returns the description of a valid token, for messages.
    pub(crate) fn describe(&self, id: u64) -> Option<String> {
        self.updates.borrow().iter().find(|it| it.id == id).map(|it| it.name.clone())
    }

    /// Returns all named tokens, ordered by name.
    pub(crate) fn list(&self) -> Vec<TokenEntry> {
        let entry = |it: &StoredToken| TokenEntry {
            name: it.name.clone(),
            profile: it.profile.clone(),
            manage: it.manage,
            made_at: it.made_at,
        };
        self.all.iter().map(entry).collect()
    }

    /// Creates a token. It is stored on disk before it is valid.
    pub(crate) fn add(&mut self, request: &TokenAdd) -> Result<TokenAddResult, CallError> {
        let not_added = || format!("token `{}` was not added", quoted(&request.name));
        ServerName::new(&request.name)
            .map_err(|cause| CallError::invalid_params(not_added()).cause(cause))?;
        if self.all.iter().any(|it| it.name == request.name) {
            return Err(CallError::invalid_params(not_added())
                .cause("a token of this name exists")
                .hint(format!("`xy token remove {}` removes it", request.name)));
        }
        if self.all.len() >= MAX_TOKENS {
            return Err(CallError::invalid_params(not_added())
                .cause(format!("there are {MAX_TOKENS} tokens, which is the maximum")));
        }
        let (token, id) = random_token_and_id().map_err(|cause| failed(not_added(), &cause))?;
        let stored = StoredToken {
            name: request.name.clone(),
            id,
            sha256: hex(&xy_http::digest(token.as_bytes())),
            profile: request.profile.clone(),
            manage: request.manage,
            made_at: now(),
        };
        let mut all = self.all.clone();
        all.push(stored);
        all.sort_by(|one, other| one.name.cmp(&other.name));
        self.store(all).map_err(|cause| failed(not_added(), &cause))?;
        let TokenAdd { name, profile, manage } = request.clone();
        Ok(TokenAddResult { name, token, profile, manage })
    }

    /// Revokes a token. If the file cannot be written, it is revoked until the daemon ends.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), CallError> {
        let mut all = self.all.clone();
        all.retain(|it| it.name != name);
        if all.len() == self.all.len() {
            return Err(no_token(name).hint("`xy token list` shows all tokens"));
        }
        let stored = self.store(all.clone());
        self.all = all;
        self.publish();
        stored.map_err(|cause| {
            let message = format!("token `{name}` is revoked, but only until the daemon ends");
            failed(message, &cause).hint("free disk space, and remove it again")
        })
    }

    /// Gives a token, or both of the daemon's own, a new secret. The old secret is refused from
    /// then on and its sessions end. A secret that cannot be written to disk changes nothing.
    pub(crate) fn rotate(&mut self, name: Option<&str>) -> Result<TokenRotateResult, CallError> {
        match name {
            Some(name) => self.rotate_named(name).map(|token| vec![token]),
            None => self.rotate_own(),
        }
        .map(|tokens| TokenRotateResult { tokens })
    }

    fn rotate_named(&mut self, name: &str) -> Result<RotatedToken, CallError> {
        let mut all = self.all.clone();
        let Some(stored) = all.iter_mut().find(|it| it.name == name) else {
            return Err(no_token(name).hint(
                "`xy token list` shows all tokens; without a name `xy token rotate` \
                 rotates the daemon's own tokens",
            ));
        };
        let failed = |cause: &io::Error| not_rotated(name, cause);
        let (token, id) = random_token_and_id().map_err(|cause| failed(&cause))?;
        (stored.sha256, stored.id, stored.made_at) =
            (hex(&xy_http::digest(token.as_bytes())), id, now());
        self.store(all).map_err(|cause| failed(&cause))?;
        Ok(RotatedToken { name: name.to_owned(), token })
    }

    fn rotate_own(&mut self) -> Result<Vec<RotatedToken>, CallError> {
        let mut rotated: Vec<RotatedToken> = Vec::new();
        for own in &mut self.own {
            let written = xy_http::random_token().and_then(|token| {
                write_atomically(&own.file, format!("{token}\n").as_bytes()).map(|()| token)
            });
            let token = match written {
                Ok(token) => token,
                Err(cause) => {
                    let error = not_rotated(own.name, &cause);
                    self.publish();
                    return Err(match rotated.first() {
                        None => error,
                        Some(done) => error.hint(format!(
                            "`{}` already has a new secret, which `xy info --token` shows; free \
                             disk space, and rotate again",
                            done.name
                        )),
                    });
                }
            };
            if own.secret.is_some() {
                own.secret = Some(token.clone());
            }
            rotated.push(RotatedToken { name: own.name.to_owned(), token });
        }
        self.publish();
        Ok(rotated)
    }

    /// Writes the named tokens to the file, then publishes them.
    fn store(&mut self, all: Vec<StoredToken>) -> io::Result<()> {
        if let Some(problem) = &self.unreadable {
            // Writing would lose the tokens in the file.
            let file = self.file.display();
            return Err(io::Error::other(format!(
                "`{file}` could not be read, so it is not written: {problem}; repair or move the \
                 file, then restart the daemon"
            )));
        }
        let stored = TokensFile { tokens: all };
        stored.write(&self.file)?;
        self.all = stored.tokens;
        self.publish();
        Ok(())
    }

    /// Publishes the valid tokens, if they have changed.
    fn publish(&self) {
        let own = self.own.iter().filter_map(OwnToken::token);
        let now: Vec<Token> = own.chain(self.all.iter().filter_map(StoredToken::token)).collect();
        self.updates.send_if_modified(|published| {
            let is_new = **published != now;
            *published = Arc::new(now);
            is_new
        });
    }
}

impl StoredToken {
    fn token(&self) -> Option<Token> {
        let secret = Secret::Digest(bytes_of(&self.sha256)?);
        let (name, profile) = (format!("token `{}`", self.name), self.profile.clone());
        Some(Token { id: self.id, name, secret, may_manage: self.manage, profile })
    }
}

/// Returns a new secret, and an id that no other token has.
fn random_token_and_id() -> io::Result<(String, u64)> {
    let (token, id) = (xy_http::random_token()?, xy_http::random_token()?);
    Ok((token, u64::from_str_radix(&id[..16], 16).unwrap_or_default().max(FIRST_ID)))
}

#[expect(clippy::disallowed_methods, reason = "only for display")]
fn now() -> Timestamp {
    Timestamp::from(SystemTime::now())
}

fn no_token(name: &str) -> CallError {
    CallError::invalid_params(format!("no token named `{}`", quoted(name)))
}

fn not_rotated(name: &str, cause: &io::Error) -> CallError {
    let message = format!("token `{name}` was not rotated: its old secret is still valid");
    failed(message, cause).hint("free disk space, and rotate again")
}

fn failed(message: String, cause: &io::Error) -> CallError {
    CallError::new(ErrorKind::Internal, message).cause(cause)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // Writing to a `String` cannot fail.
        text
    })
}

fn bytes_of(hex: &str) -> Option<Digest> {
    let mut bytes = Digest::default();
    if hex.len() != 2 * bytes.len() || !hex.bytes().all(|it| it.is_ascii_hexdigit()) {
        return None;
    }
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * place..2 * place + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn paths_in(folder: &Path) -> Paths {
        let paths = Paths::resolve(folder, |_| None).unwrap();
        std::fs::create_dir_all(&paths.state_dir).unwrap();
        paths
    }

    fn request(name: &str) -> TokenAdd {
        TokenAdd { name: name.to_owned(), profile: Some("work".to_owned()), manage: false }
    }

    #[test]
    fn token_is_shown_once_and_valid_in_the_next_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths_in(folder.path());
        let file = paths.tokens_file.clone();
        let mut tokens = Tokens::read(&paths);
        let mut updates = tokens.subscribe();
        let added = tokens.add(&request("b")).unwrap();
        tokens.add(&request("a")).unwrap();
        assert!(updates.has_changed().unwrap());
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert!(!std::fs::read_to_string(&file).unwrap().contains(&added.token));
        assert!(!format!("{added:?} {tokens:?}").contains(&added.token));
        let next = Tokens::read(&paths);
        assert_eq!(next.list(), tokens.list());
        assert_eq!(next.subscribe().borrow().clone(), updates.borrow_and_update().clone());
        let digest = Secret::Digest(xy_http::digest(added.token.as_bytes()));
        assert!(
            next.subscribe().borrow().iter().any(|it| it.secret == digest && it.id >= FIRST_ID)
        );
        tokens.remove("b").unwrap();
        assert_eq!(tokens.list().len(), 1);
        assert_eq!(updates.borrow_and_update().len(), 1);
        assert_eq!(Tokens::read(&paths).list().len(), 1);
    }

    #[test]
    fn invalid_add_and_remove_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::read(&paths_in(folder.path()));
        tokens.add(&request("a")).unwrap();
        assert_eq!(tokens.add(&request("a")).unwrap_err().kind, ErrorKind::InvalidParams);
        assert_eq!(tokens.add(&request("a b")).unwrap_err().kind, ErrorKind::InvalidParams);
        assert!(tokens.remove("b").unwrap_err().to_string().contains("no token named `b`"));
        for number in 1..MAX_TOKENS {
            tokens.all.push(StoredToken { name: format!("x{number}"), ..tokens.all[0].clone() });
        }
        assert_eq!(tokens.add(&request("more")).unwrap_err().kind, ErrorKind::InvalidParams);
    }

    #[test]
    fn file_with_invalid_token_is_moved_aside() {
        let text = r#"{"format":1,"tokens":[{"name":"a","id":70000,"sha256":"zz","made_at":"2026-01-01T00:00:00Z"}]}"#;
        let folder = tempfile::tempdir().unwrap();
        let paths = paths_in(folder.path());
        let file = &paths.tokens_file;
        std::fs::write(file, text).unwrap();
        assert!(Tokens::read(&paths).list().is_empty());
        assert!(!file.exists() && file.with_extension("json.damaged").exists());
    }

    #[test]
    fn unwritable_file_prevents_add_but_not_remove() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::read(&paths_in(folder.path()));
        tokens.add(&request("a")).unwrap();
        drop(folder); // This deletes all files in it.
        assert_eq!(tokens.add(&request("b")).unwrap_err().kind, ErrorKind::Internal);
        assert_eq!(tokens.list().len(), 1);
        assert!(tokens.remove("a").unwrap_err().to_string().contains("until the daemon ends"));
        assert!(tokens.list().is_empty() && tokens.subscribe().borrow().is_empty());
    }

    /// Returns the id of each token, and its secret or the secret's digest.
    fn secrets(tokens: &Tokens) -> Vec<(u64, String)> {
        let secret = |it: &Token| match &it.secret {
            Secret::Plain(secret) => secret.clone(),
            Secret::Digest(digest) => hex(digest),
        };
        tokens.subscribe().borrow().iter().map(|it| (it.id, secret(it))).collect()
    }

    #[test]
    fn rotated_token_has_another_secret_and_id() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths_in(folder.path());
        let mut tokens = Tokens::read(&paths);
        tokens.add(&request("a")).unwrap();
        tokens.add(&request("b")).unwrap();
        let before = secrets(&tokens);
        let rotated = tokens.rotate(Some("a")).unwrap().tokens;
        assert!(!format!("{rotated:?}").contains(&rotated[0].token));
        let after = secrets(&tokens);
        assert_eq!(after[0].1, hex(&xy_http::digest(rotated[0].token.as_bytes())));
        assert_ne!(after[0].0, before[0].0);
        assert_eq!(after[1], before[1]);
        assert_eq!(tokens.list()[0].profile.as_deref(), Some("work"));
        assert_eq!(secrets(&Tokens::read(&paths)), after);
        let again = tokens.rotate(Some("a")).unwrap().tokens;
        assert_ne!(again[0].token, rotated[0].token);
        let unknown = tokens.rotate(Some("c")).unwrap_err();
        assert!(unknown.to_string().contains("no token named `c`"), "{unknown}");
    }

    #[test]
    fn own_tokens_are_rotated_together_and_written_for_their_owner() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths_in(folder.path());
        let mut tokens = Tokens::read(&paths);
        tokens.read_own().unwrap();
        let before = secrets(&tokens);
        // A daemon that was killed half-way left this.
        std::fs::write(paths.token_file.with_extension("new"), "half a sec").unwrap();
        let rotated = tokens.rotate(None).unwrap().tokens;
        let names: Vec<&str> = rotated.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["token", "manage-token"]);
        let after = secrets(&tokens);
        for (((id, secret), (old_id, _)), now) in after.iter().zip(&before).zip(&rotated) {
            assert_eq!(*secret, now.token);
            assert_ne!(id, old_id);
        }
        assert_eq!(std::fs::metadata(&paths.token_file).unwrap().mode() & 0o777, 0o600);
        let mut next = Tokens::read(&paths);
        next.read_own().unwrap();
        assert_eq!(secrets(&next), after);
        assert!(!format!("{tokens:?}").contains(&rotated[0].token));
    }

    #[test]
    fn each_token_has_its_own_description() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::read(&paths_in(folder.path()));
        tokens.read_own().unwrap();
        tokens.add(&request("token")).unwrap(); // The file name of the daemon's own token.
        let ids: Vec<u64> = secrets(&tokens).into_iter().map(|(id, _)| id).collect();
        let descriptions: Vec<_> = ids.iter().map(|id| tokens.describe(*id).unwrap()).collect();
        assert_eq!(
            descriptions,
            ["the daemon's token", "the daemon's manage token", "token `token`"]
        );
        tokens.rotate(None).unwrap();
        assert_eq!(tokens.describe(ids[0]), None, "the old secret is not valid");
    }

    #[test]
    fn own_tokens_without_http_are_rotated_on_disk_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::read(&paths_in(folder.path()));
        assert_eq!(tokens.rotate(None).unwrap().tokens.len(), 2);
        assert!(tokens.subscribe().borrow().is_empty());
    }

    #[test]
    fn token_that_cannot_be_written_keeps_its_old_secret() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::read(&paths_in(folder.path()));
        tokens.read_own().unwrap();
        tokens.add(&request("a")).unwrap();
        let before = secrets(&tokens);
        drop(folder); // This deletes all files in it.
        for name in [None, Some("a")] {
            let error = tokens.rotate(name).unwrap_err().to_string();
            assert!(error.contains("was not rotated: its old secret is still valid"), "{error}");
            assert_eq!(secrets(&tokens), before);
        }
    }

    #[test]
    fn half_done_rotation_says_which_token_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths_in(folder.path());
        let mut tokens = Tokens::read(&paths);
        tokens.read_own().unwrap();
        let before = secrets(&tokens);
        // A folder in the place of the temporary file cannot be removed as a file.
        std::fs::create_dir(paths.state_dir.join("manage-token.new")).unwrap();
        let error = tokens.rotate(None).unwrap_err();
        assert!(error.message.contains("`manage-token` was not rotated"), "{error}");
        assert!(error.hint.unwrap().contains("`token` already has a new secret"));
        let after = secrets(&tokens);
        assert!(after[0] != before[0] && after[1] == before[1]);
        let written = std::fs::read_to_string(&paths.token_file).unwrap();
        assert_eq!(after[0].1, written.trim());
    }
}
