//! What operators ask of servers, and the wishes that this leaves.

use std::collections::BTreeSet;

use xy_config::Broken;
use xy_protocol::server::ServerName;

use super::owner::Owner;
use super::{Ask, AskOutcome, Asked, Member, Roster, Unheld};
use crate::instance::InstanceKey;
use crate::lifecycle::Event;
use crate::wishes::Wishes;

impl Owner {
    pub(super) async fn ask(&mut self, ask: Ask, names: Option<Vec<String>>) -> AskOutcome {
        let roster = self.published.borrow().clone();
        let mut outcome = AskOutcome::default();
        let (known, unknown): (Vec<_>, Vec<_>) = names
            .unwrap_or_else(|| roster.keys().map(ToString::to_string).collect())
            .into_iter()
            .collect::<BTreeSet<_>>() // Named twice is asked once.
            .into_iter()
            .partition(|name| roster.contains_key(name.as_str()));
        outcome.unknown = unknown;
        self.forgive(&known);
        if let Err(problem) = self.remember(ask, &known, &roster).await {
            outcome.warnings.push(problem);
        }
        let mut asked: BTreeSet<&InstanceKey> = BTreeSet::new();
        let mut to_ask = Vec::new();
        for (name, member) in known.iter().filter_map(|name| roster.get_key_value(name.as_str())) {
            // What one name is asked that shares its process with others is done once, and what
            // others still want stays.
            let is_kept = ask == Ask::Stop && self.is_wanted_by_others(&roster, name);
            let instances =
                member.instances.values().filter(|it| !is_kept && asked.insert(it.key()));
            let before = to_ask.len();
            to_ask.extend(instances.map(|instance| (name, member.wanted, instance)));
            if to_ask.len() == before {
                outcome.unheld.push(Unheld {
                    name: name.clone(),
                    wanted_before: member.wanted,
                    is_nowhere: member.instances.is_empty(),
                });
            }
        }
        let event = match ask {
            Ask::Start => Event::StartRequested,
            Ask::Stop => Event::StopRequested,
            Ask::Restart => Event::RestartRequested,
        };
        for (name, wanted_before, instance) in to_ask {
            let before = instance.now().state();
            if instance.request(event.clone()).await.is_ok() {
                outcome.asked.push(Asked {
                    name: name.clone(),
                    before,
                    wanted_before,
                    instance: instance.clone(),
                });
            }
        }
        outcome
    }

    /// Keeps what the operator wants. If it cannot be kept, it is done all the same.
    async fn remember(
        &mut self,
        ask: Ask,
        names: &[String],
        roster: &Roster,
    ) -> Result<(), String> {
        let mut wishes = self.wishes.clone();
        for name in names {
            let Some((name, _)) = roster.get_key_value(name.as_str()) else {
                continue;
            };
            match ask {
                Ask::Stop => wishes.stopped.insert(name.clone()),
                Ask::Start | Ask::Restart => wishes.stopped.remove(name),
            };
        }
        self.keep(wishes).await.map_err(|problem| {
            format!("this will be forgotten when the daemon restarts: {problem}")
        })
    }

    /// Wishes are for servers that there are; one that comes back later is a new one.
    pub(super) async fn forget_wishes_but(&mut self, broken: &Broken) {
        let roster = self.published.borrow().clone();
        let mut wishes = self.wishes.clone();
        wishes.stopped.retain(|name| roster.contains_key(name) || broken.contains(name));
        if let Err(problem) = self.keep(wishes).await {
            tracing::warn!("{problem}");
        }
    }

    /// One that comes back under its name is a new one.
    pub(super) async fn forget_wishes_of(&mut self, name: &ServerName) {
        let mut wishes = self.wishes.clone();
        wishes.stopped.remove(name);
        if let Err(problem) = self.keep(wishes).await {
            tracing::warn!("{problem}");
        }
    }

    async fn keep(&mut self, wishes: Wishes) -> Result<(), String> {
        self.wishes = wishes.clone();
        self.publish_wishes();
        if self.wishes == self.kept {
            return Ok(());
        }
        let file = self.parts.wishes_file.clone();
        let shown = file.display().to_string();
        match tokio::task::spawn_blocking(move || wishes.write(&file)).await {
            Ok(Ok(())) => {
                self.kept = self.wishes.clone();
                Ok(())
            }
            Ok(Err(error)) => Err(format!("{shown} could not be written: {error}")),
            Err(error) => Err(format!("{shown} could not be written: {error}")),
        }
    }

    /// Lets everybody see what is wanted of each server.
    fn publish_wishes(&self) {
        let is_news = |(name, member): (&ServerName, &Member)| member.wanted != self.wanted(name);
        if !self.published.borrow().iter().any(is_news) {
            return;
        }
        let mut roster = Roster::clone(&self.published.borrow());
        for (name, member) in &mut roster {
            member.wanted = self.wanted(name);
        }
        self.publish(roster);
    }
}
