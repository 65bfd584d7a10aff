//! `gpu_keep`: the document that the node keeps, made when it is sent, because only then the node is known.

use gpufleet_protocol::{
    Change, NodeOp, OpOutcome, OpStatus,
    facts::{Facts, GpuSystemState},
    keep::{FORMAT, KeepPolicy, KeptState, MOST_BYTES, Sealed, to_be_signed, united},
    op::{FactsRequest, KeepState, KeptStatus},
    tasks::KeepPresence,
};
use serde_json::Value;
use sha2::{Digest as _, Sha512};

use crate::{
    engine::node::{
        conversation::{Conversation, READING},
        early_end::EarlyEnd,
    },
    interpreter::{Action, Mode},
};

/// Returns what changes lead to, with the GPUs of each.
fn of_gpus(changes: &[Change]) -> String {
    let mut folded: Vec<(String, Vec<u32>)> = Vec::new();
    for change in changes {
        let what = format!("{} {}", change.what_of_gpu(), change.to_text());
        match folded.iter_mut().find(|(known, _)| *known == what) {
            Some((_, gpus)) => gpus.extend(change.subject.gpu_index()),
            None => folded.push((what, change.subject.gpu_index().into_iter().collect())),
        }
    }
    let told = folded.into_iter().map(|(what, gpus)| match gpus.is_empty() {
        true => what,
        false => format!("GPU {} {what}", crate::report::fold_numbers(gpus)),
    });
    told.collect::<Vec<_>>().join(", ")
}

impl Conversation {
    /// Returns the operation with its document; the inner error is why the node cannot keep anything.
    pub(crate) async fn with_document(
        &mut self,
        action: &Action,
        asked: &KeepState,
    ) -> Result<Result<NodeOp, String>, EarlyEnd> {
        let mut asked = asked.clone();
        if asked.policy.state == KeepPresence::Absent {
            return Ok(Ok(NodeOp::KeepState(asked)));
        }
        // Now, because an earlier task may have brought the driver.
        let request = FactsRequest { gpus: true, ..FactsRequest::default() };
        let facts = self.simple(NodeOp::Facts(request), READING).await?.facts;
        // What other playbooks let it keep, which it says by itself and for itself.
        let said = self.simple(NodeOp::KeptStatus(KeptStatus::default()), READING).await?;
        if let OpStatus::Failed { message, .. } = said.status {
            return Ok(Err(message));
        }
        let before = said.data.get("document").and_then(Value::as_str);
        let before = before.and_then(|text| serde_json::from_str::<KeptState>(text).ok());
        let document = match self.document(&asked, facts.as_deref(), before.as_ref()) {
            Ok(document) => document,
            Err(why) => return Ok(Err(why)),
        };
        let Some(signer) = self.settings.run.keeping.signer.clone() else {
            return Ok(Err("this command has no key to sign what a node keeps".to_owned()));
        };
        let seal = match action.mode {
            // Why unsigned: whoever plans or audits need not have the key.
            Mode::Predict => signer.known(),
            Mode::Apply => match signer.sign(to_be_signed(&Sha512::digest(document.as_bytes()))).await {
                Ok(seal) => seal,
                Err(why) => return Ok(Err(format!("what the node keeps cannot be signed: {why}"))),
            },
        };
        asked.sealed = Some(Sealed { document, seal });
        Ok(Ok(NodeOp::KeepState(asked)))
    }

    /// Adds a warning to a result of GPU tasks if the node's next boot undoes it, because it keeps another state and this run
    /// keeps none.
    ///
    /// # Errors
    /// If the node is lost meanwhile.
    pub(crate) async fn warn_of_kept(
        &mut self,
        op: &NodeOp,
        outcome: &mut OpOutcome,
    ) -> Result<(), EarlyEnd> {
        let keeps = self.settings.run.keeping.changes;
        let done = matches!(outcome.status, OpStatus::Ok | OpStatus::Changed);
        if keeps || !done || !matches!(op, NodeOp::GpuGroup(_)) || self.link().await?.kept().is_none() {
            return Ok(());
        }
        let said = self.simple(NodeOp::KeptStatus(KeptStatus { compare: true }), READING).await?;
        if said.changes.is_empty() {
            return Ok(());
        }
        let (than, boot) = match self.settings.run.verb.writes() {
            true => ("it has now", "its next boot"),
            // It was compared with what a run would make of it.
            false => ("is declared here", "a boot after a run"),
        };
        outcome.warnings.push(format!(
            "this node keeps another state of its GPUs than {than}, and {boot} asserts that: {}; run with `--keep` to keep what \
             is declared now, or end it with `gpufleet keep remove`",
            of_gpus(&said.changes)
        ));
        Ok(())
    }

    fn document(
        &self,
        asked: &KeepState,
        facts: Option<&Facts>,
        before: Option<&KeptState>,
    ) -> Result<String, String> {
        let facts = facts.ok_or("the node gave no facts")?;
        if facts.gpu.state != GpuSystemState::Ok {
            return Err(
                "its GPUs cannot be read, so it cannot be told for which hardware the state is".to_owned()
            );
        }
        let machine_id =
            facts.machine.id.clone().ok_or("it has no /etc/machine-id, by which it would know its state")?;
        let mut gpus: Vec<String> = facts.gpu.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        gpus.sort_unstable();
        let kept = KeptState {
            format: FORMAT,
            machine_id,
            gpus,
            serial: self.settings.run.holder.epoch,
            run: self.settings.run.holder.run.clone(),
            policy: KeepPolicy::of(&asked.policy, before.map(|before| &before.policy)),
            members: united(before.map_or(&[], |before| &before.members), &asked.members),
        };
        let document = serde_json::to_string(&kept).map_err(|error| error.to_string())?;
        if document.len() > MOST_BYTES {
            return Err("what it would keep is larger than 1 MiB".to_owned());
        }
        Ok(document)
    }
}
