//! The last resort for a node that did not come back from its reboot: a hook that switches it off and on.
//!
//! Invariants: never without a hook in the play, never for a node that answers, never where the silence may be that of the
//! way to it, never where the hook cannot tell the power state, never twice in a run whatever happened to the controller in
//! between, and never more in an hour than the play allows.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::{
    engine::node::{
        conversation::boot::{Awaited, Standing},
        custody::{
            Custody,
            outlast::{LOOK, RETURN},
            reboot::wall_clock_after,
        },
        early_end::EarlyEnd,
        hooks::last_words,
    },
    engine::ports::runner::{Call, RunError},
    event::{NodeState, What},
    rollout::Silence,
};

/// How long a hook may take.
const HOOK: Duration = Duration::from_secs(120);

impl Custody {
    /// Power cycles a node that does not answer and waits until it is up, with how long that was waited for. Nothing where
    /// it is not to be power cycled.
    pub(crate) async fn power_cycled(
        &mut self,
        awaited: &Awaited,
        standing: &Standing,
    ) -> Result<Option<(Result<String, Standing>, u64)>, EarlyEnd> {
        let Some(cycle) = self.node.settings.hooks.power_cycle().cloned() else { return Ok(None) };
        // Why only those that are silent: a node that answers can be looked at, and may do something that matters.
        let Standing::Silent { why: last, refuses } = standing else { return Ok(None) };
        if self.node.host.custody.power_cycled {
            return Ok(None);
        }
        let held = |why: String| {
            EarlyEnd::Held(format!(
                "did not come back from its reboot (last try: {last}), and was not power cycled: {why}; look at its \
                 console, then `gpufleet resume`"
            ))
        };
        let rendered = |name: &str, why: String| held(format!("`{name}`: {why}"));
        let command = self
            .node
            .settings
            .hooks
            .line(&cycle.command, &self.node.host)
            .map_err(|why| rendered("command", why))?;
        if let Some(status) = &cycle.status {
            let status = self
                .node
                .settings
                .hooks
                .line(status, &self.node.host)
                .map_err(|why| rendered("status", why))?;
            self.node
                .dispatcher
                .state(NodeState::Rebooting, Some("asking for its power state".to_owned()))
                .await;
            self.power_hook(status)
                .await
                .map_err(|(why, _)| held(format!("its power state is not known, since `status` {why}")))?;
        }
        let hung = self.is_hung().await;
        let reading = self.node.read_silence(*refuses, hung).await;
        if reading.whose != Silence::Own {
            return Err(held(reading.why));
        }
        // Why once more: all those questions took their time.
        match timeout(LOOK, self.node.look(&awaited.before)).await {
            Ok(Ok(boot_id)) => return Ok(Some((Ok(boot_id), 0))),
            Ok(Err(seen)) if seen.refuses().is_none() => {
                let limit = awaited.limit.min(RETURN);
                let waited = self.node.until_up(awaited, Instant::now() + limit).await;
                return Ok(Some((waited, limit.as_secs())));
            }
            _ => {}
        }
        let limit = Duration::from_secs(cycle.timeout_s);
        if let Err(recent) = self.node.settings.run.ways.take_cycle(cycle.max_per_hour) {
            return Err(held(format!(
                "this run has power cycled {recent} in the last hour, and `max_per_hour` of `power_cycle` allows {}",
                cycle.max_per_hour
            )));
        }
        let host = self.node.host.name.clone();
        self.node.dispatcher.durable(What::PowerCycled { host, deadline: wall_clock_after(limit) }).await?;
        self.node.host.custody.power_cycled = true;
        self.node.dispatcher.state(NodeState::Rebooting, Some("power cycled".to_owned())).await;
        let deadline = Instant::now() + limit;
        match self.power_hook(command).await {
            Ok(()) | Err((_, true)) => {}
            Err((why, false)) => return Err(held(format!("`command` {why}"))),
        }
        let waited = match self.node.until_up(awaited, deadline).await {
            Err(standing) => self.outlast(awaited, standing).await?,
            up => up,
        };
        Ok(Some((waited, limit.as_secs())))
    }

    /// Whether the node's BMC says that it is hung. Not knowing is a no.
    pub(crate) async fn is_hung(&self) -> bool {
        let Some(hung) = self.node.settings.hooks.power_cycle().and_then(|cycle| cycle.hung.as_ref()) else {
            return false;
        };
        if self.node.host.custody.power_cycled {
            return false;
        }
        match self.node.settings.hooks.line(hung, &self.node.host) {
            Ok(line) => self.power_hook(line).await.is_ok(),
            Err(_) => false,
        }
    }

    /// Runs a hook on this machine; the error says why it is none to rely on, and whether it may have had an effect all
    /// the same.
    async fn power_hook(&self, line: String) -> Result<(), (String, bool)> {
        let mut call = Call::new(["/bin/sh".to_owned(), "-c".to_owned(), line], HOOK);
        call.env.push(("GPUFLEET_HOST".to_owned(), self.node.host.name.clone()));
        call.env.push(("GPUFLEET_RUN".to_owned(), self.node.settings.hooks.run.clone()));
        match self.node.settings.hooks.runner.run(call).await {
            Ok(output) if output.status == Some(0) => Ok(()),
            Ok(output) => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let said = last_words(&text(&output.stderr), &text(&output.stdout));
                let how = match output.status {
                    Some(status) => format!("ended with status {status}"),
                    None => "was ended by a signal".to_owned(),
                };
                Err((format!("{how}{said}"), false))
            }
            Err(error) => Err((error.to_string(), !matches!(error, RunError::NotStarted(_)))),
        }
    }
}
