//! The tokens that were made for some clients, kept across daemons. Of each only what tells
//! it is kept: nobody who reads the file can come in with it.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use xy_gateway::http::{self, Digest, Secret, Token};
use xy_protocol::control::{TokenAdd, TokenAdded, TokenEntry, quoted};
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
    news: watch::Sender<Arc<Vec<Token>>>,
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
    pub(crate) fn read(file: PathBuf) -> Self {
        let all = match read_bounded(&file, MAX_FILE) {
            Ok(text) => parse(&text).unwrap_or_else(|problem| {
                let told = put_aside(&file, &problem); // Also if nobody logs.
                tracing::warn!("{told}");
                Vec::new()
            }),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(cause) => {
                tracing::warn!("the tokens in `{}` cannot be read: {cause}", file.display());
                Vec::new()
            }
        };
        let news = watch::Sender::new(Arc::new(all.iter().filter_map(Stored::token).collect()));
        Self { file, all, news }
    }

    /// Hears of them as they come and go.
    pub(crate) fn news(&self) -> watch::Receiver<Arc<Vec<Token>>> {
        self.news.subscribe()
    }

    /// The name of a token that was made for a client.
    pub(crate) fn name_of(&self, id: u64) -> Option<&str> {
        self.all.iter().find(|it| it.id == id).map(|it| it.name.as_str())
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
        let random = || http::random_token().map_err(|cause| failed(not_made(), &cause));
        let (token, id) = (random()?, random()?);
        #[expect(clippy::disallowed_methods, reason = "for people to read")]
        let made_at = Timestamp::from(SystemTime::now());
        let stored = Stored {
            name: ask.name.clone(),
            id: u64::from_str_radix(&id[..16], 16).unwrap_or_default().max(FIRST_ID),
            sha256: hex(&http::digest(token.as_bytes())),
            profile: ask.profile.clone(),
            manage: ask.manage,
            made_at,
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
            return Err(CallError::invalid_params(format!("no token named `{}`", quoted(name)))
                .hint("`xy token list` shows all that were made"));
        }
        let kept = self.keep(all.clone());
        self.all = all;
        self.tell();
        kept.map_err(|cause| {
            let message = format!("token `{name}` is out, but only until the daemon ends");
            failed(message, &cause).hint("make room on the disk, and remove it again")
        })
    }

    fn keep(&mut self, all: Vec<Stored>) -> io::Result<()> {
        let whole = Whole { format: FORMAT, tokens: all };
        let mut text = serde_json::to_vec_pretty(&whole)?;
        text.push(b'\n');
        write_whole(&self.file, &text)?;
        self.all = whole.tokens;
        self.tell();
        Ok(())
    }

    fn tell(&self) {
        let now: Vec<Token> = self.all.iter().filter_map(Stored::token).collect();
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
        Some(Token { id: self.id, secret, may_manage: self.manage, profile: self.profile.clone() })
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

    fn ask(name: &str) -> TokenAdd {
        TokenAdd { name: name.to_owned(), profile: Some("work".to_owned()), manage: false }
    }

    #[test]
    fn a_token_is_shown_once_and_known_to_the_next_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens.json");
        let mut tokens = Tokens::read(file.clone());
        let mut news = tokens.news();
        let made = tokens.add(&ask("b")).unwrap();
        tokens.add(&ask("a")).unwrap();
        assert!(news.has_changed().unwrap());
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert!(!std::fs::read_to_string(&file).unwrap().contains(&made.token));
        assert!(!format!("{made:?} {tokens:?}").contains(&made.token));
        let next = Tokens::read(file.clone());
        assert_eq!(next.list(), tokens.list());
        assert_eq!(next.news().borrow().clone(), news.borrow_and_update().clone());
        let digest = Secret::Digest(http::digest(made.token.as_bytes()));
        assert!(next.news().borrow().iter().any(|it| it.secret == digest && it.id >= FIRST_ID));
        tokens.remove("b").unwrap();
        assert_eq!(tokens.list().len(), 1);
        assert_eq!(news.borrow_and_update().len(), 1);
        assert_eq!(Tokens::read(file).list().len(), 1);
    }

    #[test]
    fn what_cannot_be_made_or_removed_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Tokens::read(folder.path().join("tokens.json"));
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
            let file = folder.path().join("tokens.json");
            std::fs::write(&file, text).unwrap();
            assert!(Tokens::read(file.clone()).list().is_empty());
            assert!(!file.exists() && folder.path().join("tokens.json.damaged").exists());
        }
    }

    #[test]
    fn what_cannot_be_kept_is_not_made_but_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens.json");
        let mut tokens = Tokens::read(file.clone());
        tokens.add(&ask("a")).unwrap();
        drop(folder); // With everything in it.
        assert_eq!(tokens.add(&ask("b")).unwrap_err().kind, ErrorKind::Internal);
        assert_eq!(tokens.list().len(), 1);
        assert!(tokens.remove("a").unwrap_err().to_string().contains("until the daemon ends"));
        assert!(tokens.list().is_empty() && tokens.news().borrow().is_empty());
    }
}
