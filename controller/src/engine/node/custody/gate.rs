//! The health gate: what must hold before a node is given back, and at the end of the soak.

use std::time::Duration;

use gpufleet_protocol::{
    FailureKind, NodeOp, OpOutcome, OpRequest, OpStatus,
    facts::GpuSystem,
    health::HealthRequest,
    message::Mode,
    op::{Exec, Program},
};

use crate::{
    engine::node::{conversation::READING, custody::Custody, early_end::EarlyEnd, hooks::last_words},
    template::Value,
};

/// How long a command of the gate may take.
const COMMAND: Duration = Duration::from_secs(60);
/// The longest part of a command that names it, in characters.
const NAMED: usize = 60;

impl Custody {
    /// Looks whether the node is well; the inner error says what is not. What cannot be read is not well.
    async fn health(&mut self) -> Result<Result<(), String>, EarlyEnd> {
        let mut wrong = self.checks().await?;
        for command in self.node.settings.hooks.gates() {
            if let Err(why) = self.gate_command(&command).await? {
                let written: String = command.to_text().chars().take(NAMED).collect();
                wrong.push(format!("command `{written}`: {why}"));
            }
        }
        Ok(if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) })
    }

    /// What the helper's own checks found wrong.
    async fn checks(&mut self) -> Result<Vec<String>, EarlyEnd> {
        if self.node.settings.gate.is_empty() {
            return Ok(Vec::new());
        }
        // A driver that does not answer lists none, and then the bus tells how many there are.
        let listed = |gpus: &GpuSystem| match gpus.gpus.len() {
            0 => gpus.pci_count,
            listed => u32::try_from(listed).unwrap_or(u32::MAX),
        };
        let request = HealthRequest {
            checks: self.node.settings.gate.clone(),
            gpus: self.node.host.facts.as_ref().map(|facts| listed(&facts.gpu)),
            since_boot: None,
        };
        let outcome = self.node.simple(NodeOp::Health(request), READING).await?;
        let Some(report) = outcome.health else {
            return Ok(vec!["the node does not tell its health".to_owned()]);
        };
        if report.passes() {
            return Ok(Vec::new());
        }
        let failed = report.results.iter().filter(|result| !result.verdict.passes());
        let mut wrong: Vec<String> =
            failed.map(|result| format!("{}: {}", result.check.word(), result.why)).collect();
        if wrong.is_empty() {
            wrong.push("the node does not tell its health".to_owned());
        }
        Ok(wrong)
    }

    /// Runs one command on the node; exit code 0 holds, and everything else does not.
    async fn gate_command(&mut self, command: &Value) -> Result<Result<(), String>, EarlyEnd> {
        let line = match self.node.settings.hooks.line(command, &self.node.host) {
            Ok(line) => line,
            Err(why) => return Ok(Err(why)),
        };
        let link = self.node.link().await?;
        let request = OpRequest {
            op: NodeOp::Exec(Exec {
                run: Program::Shell { line, executable: "/bin/sh".to_owned() },
                ..Exec::default()
            }),
            mode: Mode::Apply,
            permit: self.node.permit.permit.clone(),
            run_as: None,
            timeout_s: COMMAND.as_secs(),
            op_id: String::new(),
            secret: true,
            environment: Vec::new(),
        };
        match link.call(request, Vec::new(), Box::new(|_| {})).await {
            Ok(outcome) => Ok(holds(&outcome)),
            Err(error) => Err(self.node.lost(error).await),
        }
    }

    /// Holds a node that is not well where it is: out of service.
    pub(crate) async fn pass_gate(&mut self) -> Result<(), EarlyEnd> {
        match self.health().await? {
            Ok(()) => Ok(()),
            Err(why) => Err(EarlyEnd::Held(format!(
                "the health gate is not passed, so it {}: {why}; mend it, then `gpufleet resume`",
                self.stays()
            ))),
        }
    }

    /// The same look at a node that is in service again.
    pub(crate) async fn after_soak(&mut self) -> Result<(), EarlyEnd> {
        match self.health().await? {
            Ok(()) => Ok(()),
            Err(why) => {
                Err(EarlyEnd::Failed(format!("not well at the end of the soak, and in service: {why}")))
            }
        }
    }
}

/// Whether a command of the gate says that the node is well.
fn holds(outcome: &OpOutcome) -> Result<(), String> {
    let text = |name: &str| outcome.data.get(name).and_then(|text| text.as_str()).unwrap_or_default();
    let said = last_words(text("stderr"), text("stdout"));
    match &outcome.status {
        OpStatus::Ok | OpStatus::Changed => Ok(()),
        OpStatus::Failed { kind: FailureKind::TimedOut, .. } => {
            Err(format!("no answer within {} s{said}", COMMAND.as_secs()))
        }
        OpStatus::Failed { message, .. } => Err(format!("{message}{said}")),
        OpStatus::Unknown { reason } => Err(reason.clone()),
        _ => Err("it did not run".to_owned()),
    }
}
