//! The health gate: what must hold before a node is given back, and at the end of the soak.

use gpufleet_protocol::{NodeOp, health::HealthRequest};

use super::node::{Cut, NodeTask, READING};

impl NodeTask {
    /// Looks whether the node is well; the inner error says what is not. What cannot be read is not well.
    async fn health(&mut self) -> Result<Result<(), String>, Cut> {
        if self.gate.is_empty() {
            return Ok(Ok(()));
        }
        let gpus = self.slot.facts.as_ref().map(|facts| facts.gpu.gpus.len());
        let request = HealthRequest {
            checks: self.gate.clone(),
            gpus: gpus.and_then(|gpus| u32::try_from(gpus).ok()),
            since_boot: None,
        };
        let outcome = self.simple(NodeOp::Health(request), READING).await?;
        let Some(report) = outcome.health else {
            return Ok(Err("the node does not tell its health".to_owned()));
        };
        if report.passes() {
            return Ok(Ok(()));
        }
        let failed = report.results.iter().filter(|result| !result.verdict.passes());
        Ok(Err(failed
            .map(|result| format!("{}: {}", result.check.word(), result.why))
            .collect::<Vec<_>>()
            .join("; ")))
    }

    /// Holds a node that is not well where it is: out of service.
    pub(super) async fn pass_gate(&mut self) -> Result<(), Cut> {
        match self.health().await? {
            Ok(()) => Ok(()),
            Err(why) => Err(Cut::Held(format!(
                "the health gate is not passed, so it stays out of service: {why}; mend it, then `gpufleet resume`"
            ))),
        }
    }

    /// The same look at a node that is in service again.
    pub(super) async fn after_soak(&mut self) -> Result<(), Cut> {
        match self.health().await? {
            Ok(()) => Ok(()),
            Err(why) => Err(Cut::Failed(format!("not well at the end of the soak, and in service: {why}"))),
        }
    }
}
