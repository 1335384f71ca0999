//! `xy token`: who may come in over HTTP, and to what.

use xy_protocol::control::{
    ByName, Request, RotatedToken, TokenAdd, TokenAdded, TokenEntry, TokenList, TokenRotate,
    TokenRotated,
};

use crate::cli::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::safe_text;

/// Create, list, rotate and revoke tokens for MCP clients that connect over HTTP
///
/// A client sends its token as `Authorization: Bearer <token>`. A token that is bound to a
/// profile opens only that profile, at `/mcp`. Only a digest of each token is stored, in the state
/// folder. `xy info --token` shows the daemon's own token.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy token add laptop --profile work\n  xy token rotate\n  xy token remove laptop"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    ask: Ask,
}

#[derive(Debug, clap::Subcommand)]
enum Ask {
    /// Make a token, and show it this once
    Add {
        /// What to call it
        name: String,
        /// The only profile that it opens
        #[arg(long, value_name = "NAME")]
        profile: Option<String>,
        /// Let whoever has it manage servers
        #[arg(long)]
        manage: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Show all that were made, but not what clients send
    List {
        #[command(flatten)]
        json: Json,
    },
    /// Give a token a new secret, show it this once, and end the sessions of the old one
    ///
    /// Without a name, both tokens of the daemon itself get one: `token`, which `xy info --token`
    /// shows, and `manage-token`, which `xy info --manage` shows. Clients that send the old secret
    /// are refused at once.
    Rotate {
        /// The token to rotate, as `xy token list` shows it
        name: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Revoke a token and close its sessions
    Remove {
        /// What it is called
        name: String,
        #[command(flatten)]
        json: Json,
    },
}

impl Args {
    pub(crate) fn json(&self) -> Json {
        match &self.ask {
            Ask::Add { json, .. }
            | Ask::List { json }
            | Ask::Rotate { json, .. }
            | Ask::Remove { json, .. } => *json,
        }
    }
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let request = match &args.ask {
        Ask::Add { name, profile, manage, .. } => {
            let (name, profile) = (name.clone(), profile.clone());
            Request::TokenAdd(TokenAdd { name, profile, manage: *manage })
        }
        Ask::List { .. } => Request::TokenList,
        Ask::Rotate { name, .. } => Request::TokenRotate(TokenRotate { name: name.clone() }),
        Ask::Remove { name, .. } => Request::TokenRemove(ByName { name: name.clone() }),
    };
    let result = Link::open()?.ask_promptly(&request)?;
    if args.json().json {
        return output.json(&result);
    }
    match &args.ask {
        Ask::Add { .. } => {
            let TokenAdded { token, .. } = read(&result)?;
            output.tell("it is not shown again; send it as `Authorization: Bearer …`:\n");
            output.print(&format!("{token}\n"))
        }
        Ask::List { .. } => {
            let TokenList { tokens } = read(&result)?;
            if tokens.is_empty() {
                output.tell("no tokens were made: `xy token add <name>` makes one\n");
            }
            output.print(&listed(&tokens))
        }
        Ask::Rotate { name, .. } => {
            let TokenRotated { tokens } = read(&result)?;
            output.tell(match name {
                Some(_) => "the old secret is out; the new one is not shown again:\n",
                None => "the old secrets are out; give clients the new ones:\n",
            });
            output.print(&rotated(&tokens, name.is_some()))
        }
        Ask::Remove { name, .. } => output.print(&format!("removed {}\n", safe_text(name))),
    }
}

/// One secret per line; with the names of the tokens, unless one was asked for by its name.
fn rotated(tokens: &[RotatedToken], is_named: bool) -> String {
    let width = tokens.iter().map(|it| it.name.len()).max().unwrap_or_default();
    let line = |it: &RotatedToken| {
        if is_named {
            format!("{}\n", it.token)
        } else {
            format!("{:<width$}  {}\n", safe_text(&it.name), it.token)
        }
    };
    tokens.iter().map(line).collect()
}

/// One line per token.
fn listed(tokens: &[TokenEntry]) -> String {
    let width = tokens.iter().map(|it| it.name.len()).max().unwrap_or_default();
    let line = |it: &TokenEntry| {
        let what = match &it.profile {
            Some(profile) => format!("profile {}", safe_text(profile)),
            None => "every profile".to_owned(),
        };
        let manages = if it.manage { ", manages servers" } else { "" };
        format!("{:<width$}  {what}{manages}, made {}\n", safe_text(&it.name), it.made_at)
    };
    tokens.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use xy_protocol::time::Timestamp;

    use super::*;

    #[test]
    fn tokens_are_listed_with_what_they_open() {
        let made_at = Timestamp::from_unix_millis(0);
        let token = |name: &str, profile: Option<&str>, manage| TokenEntry {
            name: name.to_owned(),
            profile: profile.map(str::to_owned),
            manage,
            made_at,
        };
        let shown = listed(&[token("laptop", Some("work"), false), token("ci", None, true)]);
        insta::assert_snapshot!(shown, @r"
        laptop  profile work, made 1970-01-01T00:00:00.000Z
        ci      every profile, manages servers, made 1970-01-01T00:00:00.000Z
        ");
    }
}
