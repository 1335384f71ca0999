//! `xy token`: manages tokens for clients that connect over HTTP.

use xy_protocol::control::{
    ByName, Request, RotatedToken, TokenAdd, TokenAddResult, TokenEntry, TokenList, TokenRotate,
    TokenRotateResult,
};

use crate::args::Json;
use crate::failure::Failure;
use crate::link::{Link, read};
use crate::output::Output;
use crate::render::safe_text;

/// Create, list, rotate and revoke tokens for MCP clients that connect over HTTP
///
/// A client sends its token as `Authorization: Bearer <token>`. A token that is bound to a
/// profile gives access only to what that profile shows; `/mcp` then serves that profile. Of these
/// tokens, only digests are stored, in the state folder. `xy info --token` prints the daemon's own
/// token.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  xy token add laptop --profile work\n  xy token rotate\n  xy token remove laptop"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TokenCommand {
    /// Create a token and print it; it cannot be shown again
    Add {
        /// Name of the new token
        name: String,
        /// Restrict the token to this profile
        #[arg(long, value_name = "NAME")]
        profile: Option<String>,
        /// Permit clients with this token to manage servers
        #[arg(long)]
        manage: bool,
        #[command(flatten)]
        json: Json,
    },
    /// List all tokens without their secrets
    List {
        #[command(flatten)]
        json: Json,
    },
    /// Replace the secret of a token, print the new one, and close its sessions
    ///
    /// Without a name, replaces the secrets of both tokens of the daemon: `token`, which
    /// `xy info --token` prints, and `manage-token`, which `xy info --manage` prints. The old
    /// secret is rejected immediately.
    Rotate {
        /// The token to rotate, as `xy token list` shows it
        name: Option<String>,
        #[command(flatten)]
        json: Json,
    },
    /// Revoke a token and close its sessions
    Remove {
        /// Name of the token
        name: String,
        #[command(flatten)]
        json: Json,
    },
}

impl Args {
    pub(crate) fn json(&self) -> Json {
        match &self.command {
            TokenCommand::Add { json, .. }
            | TokenCommand::List { json }
            | TokenCommand::Rotate { json, .. }
            | TokenCommand::Remove { json, .. } => *json,
        }
    }
}

pub(crate) fn run(args: &Args, output: &mut Output) -> Result<(), Failure> {
    let request = match &args.command {
        TokenCommand::Add { name, profile, manage, .. } => {
            let (name, profile) = (name.clone(), profile.clone());
            Request::TokenAdd(TokenAdd { name, profile, manage: *manage })
        }
        TokenCommand::List { .. } => Request::TokenList,
        TokenCommand::Rotate { name, .. } => {
            Request::TokenRotate(TokenRotate { name: name.clone() })
        }
        TokenCommand::Remove { name, .. } => Request::TokenRemove(ByName { name: name.clone() }),
    };
    let result = Link::open()?.query(&request)?;
    if args.json().json {
        return output.json(&result);
    }
    match &args.command {
        TokenCommand::Add { .. } => {
            let TokenAddResult { token, .. } = read(&result)?;
            output.print_stderr(
                "send this token as `Authorization: Bearer …`; it is not shown again:\n",
            );
            output.print(&format!("{token}\n"))
        }
        TokenCommand::List { .. } => {
            let TokenList { tokens } = read(&result)?;
            if tokens.is_empty() {
                output.print_stderr("no tokens: create one with `xy token add <name>`\n");
            }
            output.print(&format_list(&tokens))
        }
        TokenCommand::Rotate { name, .. } => {
            let TokenRotateResult { tokens } = read(&result)?;
            output.print_stderr(match name {
                Some(_) => "the old secret is revoked; the new one is not shown again:\n",
                None => "the old secrets are revoked; give clients the new ones:\n",
            });
            output.print(&format_rotated(&tokens, name.is_some()))
        }
        TokenCommand::Remove { name, .. } => {
            output.print(&format!("removed {}\n", safe_text(name)))
        }
    }
}

/// Formats one secret per line, after the token's name unless the user named the token.
fn format_rotated(tokens: &[RotatedToken], is_named: bool) -> String {
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

/// Formats one line per token.
fn format_list(tokens: &[TokenEntry]) -> String {
    let width = tokens.iter().map(|it| it.name.len()).max().unwrap_or_default();
    let line = |it: &TokenEntry| {
        let what = match &it.profile {
            Some(profile) => format!("profile {}", safe_text(profile)),
            None => "every profile".to_owned(),
        };
        let manages = if it.manage { ", manages servers" } else { "" };
        format!("{:<width$}  {what}{manages}, created {}\n", safe_text(&it.name), it.made_at)
    };
    tokens.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use xy_protocol::time::Timestamp;

    use super::*;

    #[test]
    fn token_list_shows_profiles_and_rights() {
        let made_at = Timestamp::from_unix_millis(0);
        let token = |name: &str, profile: Option<&str>, manage| TokenEntry {
            name: name.to_owned(),
            profile: profile.map(str::to_owned),
            manage,
            made_at,
        };
        let shown = format_list(&[token("laptop", Some("work"), false), token("ci", None, true)]);
        insta::assert_snapshot!(shown, @r"
        laptop  profile work, created 1970-01-01T00:00:00.000Z
        ci      every profile, manages servers, created 1970-01-01T00:00:00.000Z
        ");
    }
}
