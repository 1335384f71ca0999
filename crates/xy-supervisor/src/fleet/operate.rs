//! Operations of operators on servers, and the desired state that they leave.

use std::collections::BTreeSet;

use xy_config::BrokenServers;
use xy_config::stored_file::StoredFile;
use xy_protocol::server::ServerName;

use super::fleet_task::FleetTask;
use super::{AppliedOperation, Member, Operation, OperationOutcome, Roster, ServerWithoutInstance};
use crate::desired::DesiredState;
use crate::instance::InstanceKey;
use crate::lifecycle::Event;

impl FleetTask {
    pub(super) async fn operate(
        &mut self,
        operation: Operation,
        names: Option<Vec<String>>,
    ) -> OperationOutcome {
        let roster = self.published.borrow().clone();
        let mut outcome = OperationOutcome::default();
        let (known, unknown): (Vec<_>, Vec<_>) = names
            .unwrap_or_else(|| roster.keys().map(ToString::to_string).collect())
            .into_iter()
            .collect::<BTreeSet<_>>() // A server named twice is operated on once.
            .into_iter()
            .partition(|name| roster.contains_key(name.as_str()));
        outcome.unknown = unknown;
        self.clear_failing(&known);
        if let Err(problem) = self.remember(operation, &known, &roster).await {
            outcome.warnings.push(problem);
        }
        let mut seen: BTreeSet<&InstanceKey> = BTreeSet::new();
        let mut targets = Vec::new();
        for (name, member) in known.iter().filter_map(|name| roster.get_key_value(name.as_str())) {
            // An operation on a shared process applies once, and does not stop a process that other
            // servers still want.
            let is_kept = operation == Operation::Stop && self.is_wanted_by_others(&roster, name);
            let instances =
                member.instances.values().filter(|it| !is_kept && seen.insert(it.key()));
            let before = targets.len();
            targets.extend(instances.map(|instance| (name, member.wanted, instance)));
            if targets.len() == before {
                outcome.without_instance.push(ServerWithoutInstance {
                    name: name.clone(),
                    wanted_before: member.wanted,
                    is_nowhere: member.instances.is_empty(),
                });
            }
        }
        let event = match operation {
            Operation::Start => Event::StartRequested,
            Operation::Stop => Event::StopRequested,
            Operation::Restart => Event::RestartRequested,
        };
        for (name, wanted_before, instance) in targets {
            let before = instance.now().state();
            if instance.request(event.clone()).await.is_ok() {
                outcome.applied.push(AppliedOperation {
                    name: name.clone(),
                    before,
                    wanted_before,
                    instance: instance.clone(),
                });
            }
        }
        outcome
    }

    /// Stores what the operator wants. The operation goes on even if that fails.
    async fn remember(
        &mut self,
        operation: Operation,
        names: &[String],
        roster: &Roster,
    ) -> Result<(), String> {
        let mut desired = self.desired.clone();
        for name in names {
            let Some((name, _)) = roster.get_key_value(name.as_str()) else {
                continue;
            };
            match operation {
                Operation::Stop => desired.stopped.insert(name.clone()),
                Operation::Start | Operation::Restart => desired.stopped.remove(name),
            };
        }
        self.store_desired(desired).await.map_err(|problem| {
            format!("not stored, so it is lost when the daemon restarts: {problem}")
        })
    }

    /// Forgets the desired state of servers that were removed. A server that comes back later is
    /// a new one.
    pub(super) async fn prune_desired(&mut self, broken: &BrokenServers) {
        let roster = self.published.borrow().clone();
        let mut desired = self.desired.clone();
        desired.stopped.retain(|name| roster.contains_key(name) || broken.contains(name));
        if let Err(problem) = self.store_desired(desired).await {
            tracing::warn!("{problem}");
        }
    }

    /// Forgets the desired state of a removed server.
    pub(super) async fn forget_desired(&mut self, name: &ServerName) {
        let mut desired = self.desired.clone();
        desired.stopped.remove(name);
        if let Err(problem) = self.store_desired(desired).await {
            tracing::warn!("{problem}");
        }
    }

    async fn store_desired(&mut self, desired: DesiredState) -> Result<(), String> {
        self.desired = desired.clone();
        self.publish_desired();
        if self.desired == self.stored {
            return Ok(());
        }
        let file = self.parts.desired_state_file.clone();
        let shown = file.display().to_string();
        match tokio::task::spawn_blocking(move || desired.write(&file)).await {
            Ok(Ok(())) => {
                self.stored = self.desired.clone();
                Ok(())
            }
            Ok(Err(error)) => Err(format!("{shown} could not be written: {error}")),
            Err(error) => Err(format!("{shown} could not be written: {error}")),
        }
    }

    /// Publishes the desired state of each server.
    fn publish_desired(&self) {
        let has_changed =
            |(name, member): (&ServerName, &Member)| member.wanted != self.wanted(name);
        if !self.published.borrow().iter().any(has_changed) {
            return;
        }
        let mut roster = Roster::clone(&self.published.borrow());
        for (name, member) in &mut roster {
            member.wanted = self.wanted(name);
        }
        self.publish(roster);
    }
}
