//! The tokens that were made for some clients, kept across daemons. Of each only what tells
//! it is kept: nobody who reads the file can come in with it.

use std::fmt::{self, Write as _};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use xy_config::Paths;
use xy_gateway::http::{self, Digest, Secret, Token};
use xy_protocol::control::{RotatedToken, TokenAdd, TokenAdded, TokenEntry, TokenRotated, quoted};
use xy_protocol::error::{CallError, ErrorKind};
use xy_protocol::server::ServerName;
use xy_protocol::time::Timestamp;
use xy_supervisor::whole_file::{put_aside, read_bounded, write_whole};

const FORMAT: u32 = 1;

/// Each is compared with what a client shows, for every request.
const MOST: usize = 100;

/// A hundred tokens with long names; a larger file was not written by us.
const MAX_FILE: u64 = 256 * 1024;

/// Where ids of tokens begin that were made: before them are those that are always there.
const FIRST_ID: u64 = 1 << 16;

/// The tokens, and who is told of them.
#[derive(Debug)]
pub(crate) struct Tokens {
    file: PathBuf,
    all: Vec<Stored>,
    own: [OwnToken; 2],
    news: watch::Sender<Arc<Vec<Token>>>,
    /// Why the file could not be read; it is not written then.
    unreadable: Option<String>,
}

/// A token that every daemon has. Its secret is in a file, for its user to read.
struct OwnToken {
    name: &'static str,
    file: PathBuf,
    manage: bool,
    /// `None` while the daemon lets clients in without tokens.
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
        let digest = http::digest(secret.as_bytes());
        let id = digest[..8].iter().fold(0, |id, byte| id << 8 | u64::from(*byte));
        let words = if self.manage { "the daemon's manage token" } else { "the daemon's token" };
        let (id, name) = (id.max(FIRST_ID), words.to_owned());
        let secret = Secret::Plain(secret);
        Some(Token { id, name, secret, may_manage: self.manage, profile: None })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    name: String,
    id: u64,
    /// In hexadecimal digits.
    sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
    #[serde(default)]
    manage: bool,
    made_at: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct Whole {
    format: u32,
    tokens: Vec<Stored>,
}

impl Tokens {
    /// Those of the file. A damaged one is put aside: its tokens let nobody in.
    pub(crate) fn read(paths: &Paths) -> Self {
        let file = paths.tokens_file.clone();
        let mut unreadable = None;
        let all = match read_bounded(&file, MAX_FILE) {
            Ok(text) => parse(&text).unwrap_or_else(|problem| {
                let told = put_aside(&file, &problem); // Also if nobody logs.
                tracing::warn!("{told}");
                Vec::new()
            }),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Vec::new(),
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
        let news = watch::Sender::new(Arc::default());
        let tokens = Self { file, all, own, news, unreadable };
        tokens.tell();
        tokens
    }

    /// Lets clients in with the daemon's own tokens, which are made if they are not there.
    pub(crate) fn read_own(&mut self) -> io::Result<()> {
        for own in &mut self.own {
            own.secret = Some(http::read_or_make_token(&own.file)?);
        }
        self.tell();
        Ok(())
    }

    /// Hears of them as they come and go.
    pub(crate) fn news(&self) -> watch::Receiver<Arc<Vec<Token>>> {
        self.news.subscribe()
    }

    /// Returns the words that name a valid token to people.
    pub(crate) fn describe(&self, id: u64) -> Option<String> {
        self.news.borrow().iter().find(|it| it.id == id).map(|it| it.name.clone())
    }

    /// All, by name.
    pub(crate) fn list(&self) -> Vec<TokenEntry> {
        let entry = |it: &Stored| TokenEntry {
            name: it.name.clone(),
            profile: it.profile.clone(),
            manage: it.manage,
            made_at: it.made_at,
        };
        self.all.iter().map(entry).collect()
    }

    /// Makes one. It is kept before anybody can come in with it.
    pub(crate) fn add(&mut self, ask: &TokenAdd) -> Result<TokenAdded, CallError> {
        let not_made = || format!("token `{}` was not made", quoted(&ask.name));
        ServerName::new(&ask.name)
            .map_err(|cause| CallError::invalid_params(not_made()).cause(cause))?;
        if self.all.iter().any(|it| it.name == ask.name) {
            return Err(CallError::invalid_params(not_made())
                .cause("there is one of this name")
                .hint(format!("`xy token remove {}` removes it", ask.name)));
        }
        if self.all.len() >= MOST {
            return Err(CallError::invalid_params(not_made())
                .cause(format!("there are {MOST}, which is the most there may be")));
        }
        let (token, id) = random_token_and_id().map_err(|cause| failed(not_made(), &cause))?;
        let stored = Stored {
            name: ask.name.clone(),
            id,
            sha256: hex(&http::digest(token.as_bytes())),
            profile: ask.profile.clone(),
            manage: ask.manage,
            made_at: now(),
        };
        let mut all = self.all.clone();
        all.push(stored);
        all.sort_by(|one, other| one.name.cmp(&other.name));
        self.keep(all).map_err(|cause| failed(not_made(), &cause))?;
        let TokenAdd { name, profile, manage } = ask.clone();
        Ok(TokenAdded { name, token, profile, manage })
    }

    /// Lets nobody in with one any more. If that cannot be kept it holds for this daemon.
    pub(crate) fn remove(&mut self, name: &str) -> Result<(), CallError> {
        let mut all = self.all.clone();
        all.retain(|it| it.name != name);
        if all.len() == self.all.len() {
            return Err(no_token(name).hint("`xy token list` shows all that were made"));
        }
        let kept = self.keep(all.clone());
        self.all = all;
        self.tell();
        kept.map_err(|cause| {
            let message = format!("token `{name}` is out, but only until the daemon ends");
            failed(message, &cause).hint("make room on the disk, and remove it again")
        })
    }

    /// Gives a token, or both of the daemon's own, a new secret. The old secret is refused from
    /// then on and its sessions end. A secret that cannot be written to disk changes nothing.
    pub(crate) fn rotate(&mut self, name: Option<&str>) -> Result<TokenRotated, CallError> {
        match name {
            Some(name) => self.rotate_named(name).map(|token| vec![token]),
            None => self.rotate_own(),
        }
        .map(|tokens| TokenRotated { tokens })
    }

    fn rotate_named(&mut self, name: &str) -> Result<RotatedToken, CallError> {
        let mut all = self.all.clone();
        let Some(stored) = all.iter_mut().find(|it| it.name == name) else {
            return Err(no_token(name).hint(
                "`xy token list` shows all that were made; without a name `xy token rotate` \
                 rotates the daemon's own tokens",
            ));
        };
        let failed = |cause: &io::Error| not_rotated(name, cause);
        let (token, id) = random_token_and_id().map_err(|cause| failed(&cause))?;
        (stored.sha256, stored.id, stored.made_at) =
            (hex(&http::digest(token.as_bytes())), id, now());
        self.keep(all).map_err(|cause| failed(&cause))?;
        Ok(RotatedToken { name: name.to_owned(), token })
    }

    fn rotate_own(&mut self) -> Result<Vec<RotatedToken>, CallError> {
        let mut rotated: Vec<RotatedToken> = Vec::new();
        for own in &mut self.own {
            let written = http::random_token().and_then(|token| {
                write_whole(&own.file, format!("{token}\n").as_bytes()).map(|()| token)
            });
            let token = match written {
                Ok(token) => token,
                Err(cause) => {
                    let error = not_rotated(own.name, &cause);
                    self.tell();
                    return Err(match rotated.first() {
                        None => error,
                        Some(done) => error.hint(format!(
                            "`{}` has a new secret already, which `xy info --token` shows; make \
                             room on the disk, and rotate again",
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
        self.tell();
        Ok(rotated)
    }

    fn keep(&mut self, all: Vec<Stored>) -> io::Result<()> {
        if let Some(problem) = &self.unreadable {
            // Its tokens would be lost.
            let file = self.file.display();
            return Err(io::Error::other(format!(
                "`{file}` could not be read, so it is not written: {problem}; then restart the \
                 daemon"
            )));
        }
        let whole = Whole { format: FORMAT, tokens: all };
        let mut text = serde_json::to_vec_pretty(&whole)?;
        text.push(b'\n');
        write_whole(&self.file, &text)?;
        self.all = whole.tokens;
        self.tell();
        Ok(())
    }

    fn tell(&self) {
        let own = self.own.iter().filter_map(OwnToken::token);
        let now: Vec<Token> = own.chain(self.all.iter().filter_map(Stored::token)).collect();
        self.news.send_if_modified(|told| {
            let is_new = **told != now;
            *told = Arc::new(now);
            is_new
        });
    }
}

impl Stored {
    fn token(&self) -> Option<Token> {
        let secret = Secret::Digest(bytes_of(&self.sha256)?);
        let (name, profile) = (format!("token `{}`", self.name), self.profile.clone());
        Some(Token { id: self.id, name, secret, may_manage: self.manage, profile })
    }
}

fn parse(text: &[u8]) -> Result<Vec<Stored>, String> {
    let whole: Whole = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let is_sound = |it: &Stored| {
        ServerName::new(&it.name).is_ok() && it.id >= FIRST_ID && bytes_of(&it.sha256).is_some()
    };
    if whole.format != FORMAT || whole.tokens.len() > MOST || !whole.tokens.iter().all(is_sound) {
        return Err("it holds no tokens of ours".to_owned());
    }
    Ok(whole.tokens)
}

/// Returns a new secret, and an id that no other token has.
fn random_token_and_id() -> io::Result<(String, u64)> {
    let (token, id) = (http::random_token()?, http::random_token()?);
    Ok((token, u64::from_str_radix(&id[..16], 16).unwrap_or_default().max(FIRST_ID)))
}

#[expect(clippy::disallowed_methods, reason = "for people to read")]
fn now() -> Timestamp {
    Timestamp::from(SystemTime::now())
}

fn no_token(name: &str) -> CallError {
    CallError::invalid_params(format!("no token named `{}`", quoted(name)))
}

fn not_rotated(name: &str, cause: &io::Error) -> CallError {
    let message = format!("token `{name}` was not rotated: its old secret is still valid");
    failed(message, cause).hint("make room on the disk, and rotate again")
}

fn failed(message: String, cause: &io::Error) -> CallError {
    CallError::new(ErrorKind::Internal, message).cause(cause)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // A `String` takes whatever it is given.
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

    fn ask(name: &str) -> TokenAdd {
        TokenAdd { name: name.to_owned(), profile: Some("work".to_owned()), manage: false }
    }

    #[test]
    fn a_token_is_shown_once_and_known_to_the_next_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths_in(folder.path());
        let file = paths.tokens_file.clone();
        let mut tokens = Tokens::read(&paths);
        let mut news = tokens.news();
        let made = tokens.add(&ask("b")).unwrap();
        tokens.add(&ask("a")).unwrap();
        assert!(news.has_changed().unwrap());
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert!(!std::fs::read_to_string(&file).unwrap().contains(&made.token));
        assert!(!format!("{made:?} {tokens:?}").contains(&made.token));
        let next = Tokens::read(&paths);
        assert_eq!(next.list(), tokens.list());
        assert_eq!(next.news().borrow().clone(), news.borrow_and_update().clone());
        let digest = Secret::Digest(http::digest(made.token.as_bytes()));
        assert!(next.news().borrow().iter().any(|it| it.secret == digest && it.id >= FIRST_ID));
        tokens.remove("b").unwrap();
        assert_eq!(tokens.list().len(), 1);
        assert_eq!(news.borrow_and_update().len(), 1);
        assert_eq!(Tokens::read(&paths).list().len(), 1);
    }

    #[test]
    fn what_cannot_be_made_or_removed_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::read(&paths_in(folder.path()));
        tokens.add(&ask("a")).unwrap();
        assert_eq!(tokens.add(&ask("a")).unwrap_err().kind, ErrorKind::InvalidParams);
        assert_eq!(tokens.add(&ask("a b")).unwrap_err().kind, ErrorKind::InvalidParams);
        assert!(tokens.remove("b").unwrap_err().to_string().contains("no token named `b`"));
        for number in 1..MOST {
            tokens.all.push(Stored { name: format!("x{number}"), ..tokens.all[0].clone() });
        }
        assert_eq!(tokens.add(&ask("more")).unwrap_err().kind, ErrorKind::InvalidParams);
    }

    #[test]
    fn a_damaged_file_is_put_aside_and_lets_nobody_in() {
        for text in [
            "",
            "{",
            r#"{"format":2,"tokens":[]}"#,
            r#"{"format":1,"tokens":[{"name":"a","id":70000,"sha256":"zz","made_at":"2026-01-01T00:00:00Z"}]}"#,
        ] {
            let folder = tempfile::tempdir().unwrap();
            let paths = paths_in(folder.path());
            let file = &paths.tokens_file;
            std::fs::write(file, text).unwrap();
            assert!(Tokens::read(&paths).list().is_empty());
            assert!(!file.exists() && file.with_extension("json.damaged").exists());
        }
    }

    #[test]
    fn what_cannot_be_kept_is_not_made_but_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::read(&paths_in(folder.path()));
        tokens.add(&ask("a")).unwrap();
        drop(folder); // With everything in it.
        assert_eq!(tokens.add(&ask("b")).unwrap_err().kind, ErrorKind::Internal);
        assert_eq!(tokens.list().len(), 1);
        assert!(tokens.remove("a").unwrap_err().to_string().contains("until the daemon ends"));
        assert!(tokens.list().is_empty() && tokens.news().borrow().is_empty());
    }

    /// Returns the id of each token, and its secret or the secret's digest.
    fn secrets(tokens: &Tokens) -> Vec<(u64, String)> {
        let secret = |it: &Token| match &it.secret {
            Secret::Plain(secret) => secret.clone(),
            Secret::Digest(digest) => hex(digest),
        };
        tokens.news().borrow().iter().map(|it| (it.id, secret(it))).collect()
    }

    #[test]
    fn rotated_token_has_another_secret_and_id() {
        let folder = tempfile::tempdir().unwrap();
        let paths = paths_in(folder.path());
        let mut tokens = Tokens::read(&paths);
        tokens.add(&ask("a")).unwrap();
        tokens.add(&ask("b")).unwrap();
        let before = secrets(&tokens);
        let rotated = tokens.rotate(Some("a")).unwrap().tokens;
        assert!(!format!("{rotated:?}").contains(&rotated[0].token));
        let after = secrets(&tokens);
        assert_eq!(after[0].1, hex(&http::digest(rotated[0].token.as_bytes())));
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
    fn each_token_has_words_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::read(&paths_in(folder.path()));
        tokens.read_own().unwrap();
        tokens.add(&ask("token")).unwrap(); // As the daemon calls its own in its folder.
        let ids: Vec<u64> = secrets(&tokens).into_iter().map(|(id, _)| id).collect();
        let told: Vec<_> = ids.iter().map(|id| tokens.describe(*id).unwrap()).collect();
        assert_eq!(told, ["the daemon's token", "the daemon's manage token", "token `token`"]);
        tokens.rotate(None).unwrap();
        assert_eq!(tokens.describe(ids[0]), None, "the old secret is not valid");
    }

    #[test]
    fn own_tokens_without_http_are_rotated_on_disk_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::read(&paths_in(folder.path()));
        assert_eq!(tokens.rotate(None).unwrap().tokens.len(), 2);
        assert!(tokens.news().borrow().is_empty());
    }

    #[test]
    fn token_that_cannot_be_written_keeps_its_old_secret() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::read(&paths_in(folder.path()));
        tokens.read_own().unwrap();
        tokens.add(&ask("a")).unwrap();
        let before = secrets(&tokens);
        drop(folder); // With everything in it.
        for name in [None, Some("a")] {
            let told = tokens.rotate(name).unwrap_err().to_string();
            assert!(told.contains("was not rotated: its old secret is still valid"), "{told}");
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
        let told = tokens.rotate(None).unwrap_err();
        assert!(told.message.contains("`manage-token` was not rotated"), "{told}");
        assert!(told.hint.unwrap().contains("`token` has a new secret already"));
        let after = secrets(&tokens);
        assert!(after[0] != before[0] && after[1] == before[1]);
        let written = std::fs::read_to_string(&paths.token_file).unwrap();
        assert_eq!(after[0].1, written.trim());
    }
}
