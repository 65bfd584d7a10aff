//! Nodes that went away while they ran a command: nobody knew that it disturbs, and it did.
//!
//! Such a node counts as out at once. Hosts that have not begun the same command wait until it is known how the lost one
//! stands, and do not begin it when more were lost in it than may be out.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use crate::{
    engine::{
        node::{
            conversation::{Conversation, loss::Whereabouts},
            early_end::EarlyEnd,
        },
        ports::link::LinkError,
    },
    event::NodeState,
    interpreter::Fed,
    rollout::Input,
};

/// How long hosts wait for another one that went away in the command that they are to begin: somewhat longer than it is
/// looked for behind a way that works.
const SOUGHT: Duration = Duration::from_secs(30);

impl Conversation {
    /// Waits for nodes that went away in the same command; the error is that too many did.
    pub(crate) async fn others_stayed(&mut self, task: &Arc<str>) -> Result<(), Fed> {
        // Why not if it is out of service: it has to reach a safe point.
        if self.host.custody.out_of_service {
            return Ok(());
        }
        let settings = Arc::clone(&self.settings);
        if settings.command_losses.is_sought(task) {
            let why = "another node went away in this command; waiting until it is found".to_owned();
            self.dispatcher.state(NodeState::Waiting, Some(why)).await;
            // Why no longer: where the way to it is silent, it may stay unknown for hours, and says nothing of the command.
            let known = timeout(SOUGHT, settings.command_losses.known(task));
            let _ = self.dispatcher.aside(known).await;
            self.dispatcher.state(NodeState::Applying, None).await;
        }
        settings.command_losses.refusal(task).map_or(Ok(()), |why| Err(Fed::held(why)))
    }

    /// As [`Self::broken_off`], for a command: whatever its text says, it may have taken the node down.
    pub(crate) async fn lost_in_command(
        &mut self,
        task: &Arc<str>,
        title: &str,
        error: LinkError,
    ) -> Result<Fed, EarlyEnd> {
        let settings = Arc::clone(&self.settings);
        settings.command_losses.change(task, |losses| losses.sought += 1);
        self.dispatcher.tell(Input::OthersOut { host: self.dispatcher.host, out: true }).await;
        let (whereabouts, fed) = self.whereabouts(error).await;
        if whereabouts == Whereabouts::SameBoot {
            self.dispatcher.tell(Input::OthersOut { host: self.dispatcher.host, out: false }).await;
        }
        settings.command_losses.change(task, |losses| {
            losses.sought = losses.sought.saturating_sub(1);
            if matches!(whereabouts, Whereabouts::Rebooted | Whereabouts::Silent) {
                losses.lost.push(self.host.name.clone());
            }
            losses.rebooted |= whereabouts == Whereabouts::Rebooted;
        });
        fed.map_err(|end| match (whereabouts, end) {
            (Whereabouts::Rebooted, EarlyEnd::Failed(why)) => EarlyEnd::Failed(format!(
                "{why}; it was running `{title}`: if that reboots the node, write `reboot:` in its place"
            )),
            (_, end) => end,
        })
    }
}
