//! `gpu_keep`: the document that the node keeps, made when it is sent, because only then the node is known.

use gpufleet_protocol::{
    Change, NodeOp, OpOutcome, OpStatus, Subject,
    facts::{Facts, GpuSystemState},
    keep::{KeptState, MOST_BYTES, Sealed, to_be_signed, uuids},
    op::{FactsRequest, KeepState, KeptStatus},
    tasks::KeepPresence,
};
use sha2::{Digest as _, Sha512};

use crate::{
    engine::{
        node::{
            conversation::{Conversation, READING},
            early_end::EarlyEnd,
        },
        ports::keep_signer::{KeepSigner, KeptMachine},
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
        let signer = self.settings.run.keeping.signer.clone();
        if asked.policy.state == KeepPresence::Absent {
            return Ok(match signer.filter(|_| action.mode == Mode::Apply) {
                Some(signer) => signer.forget(&self.host.name).map(|()| NodeOp::KeepState(asked)),
                None => Ok(NodeOp::KeepState(asked)),
            });
        }
        let Some(signer) = signer else {
            return Ok(Err("this command has no key to sign what a node keeps".to_owned()));
        };
        // Now, because an earlier task may have brought the driver.
        let request = FactsRequest { gpus: true, ..FactsRequest::default() };
        let facts = self.simple(NodeOp::Facts(request), READING).await?.facts;
        // What other playbooks let it keep, which it says by itself and for itself.
        let foreseen = !self.settings.run.verb.writes();
        let said = self.simple(NodeOp::KeptStatus(KeptStatus { compare: false, foreseen }), READING).await?;
        if let OpStatus::Failed { message, .. } = said.status {
            return Ok(Err(message));
        }
        let sealed = said.data.get("sealed").cloned().and_then(|sealed| serde_json::from_value(sealed).ok());
        let document = facts
            .ok_or_else(|| "the node gave no facts".to_owned())
            .and_then(|facts| self.document(&mut asked, &facts, sealed.as_ref(), &*signer, action.mode));
        let document = match document {
            Ok(document) => document,
            Err(why) => return Ok(Err(why)),
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
        let last = self.settings.run.keeping.last;
        // What it keeps follows what the play declares, or a later one.
        let follows = last.is_some_and(|last| self.settings.play <= last);
        let done = matches!(outcome.status, OpStatus::Ok | OpStatus::Changed);
        if follows || !done || !matches!(op, NodeOp::GpuGroup(_)) {
            return Ok(());
        }
        // Its session began before an earlier play may have let it keep something.
        if last.is_none() && self.link().await?.kept().is_none() {
            return Ok(());
        }
        let foreseen = !self.settings.run.verb.writes();
        let said = self.simple(NodeOp::KeptStatus(KeptStatus { compare: true, foreseen }), READING).await?;
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

    /// Makes the document of what the run declared, and of what stays of the one that the node has.
    fn document(
        &self,
        asked: &mut KeepState,
        facts: &Facts,
        sealed: Option<&Sealed>,
        signer: &dyn KeepSigner,
        mode: Mode,
    ) -> Result<String, String> {
        if facts.gpu.state != GpuSystemState::Ok {
            return Err(
                "its GPUs cannot be read, so it cannot be told for which hardware the state is".to_owned()
            );
        }
        let machine_id =
            facts.machine.id.clone().ok_or("it has no /etc/machine-id, by which it would know its state")?;
        let gpus = uuids(&facts.gpu.gpus);
        let machine = KeptMachine { host: &self.host.name, id: &machine_id, gpus: &gpus };
        let newest = signer.identify(machine, mode == Mode::Apply)?;
        let before = match sealed {
            Some(sealed) => self.former(sealed, &machine_id, newest, signer)?,
            None => None,
        };
        let holder = &self.settings.run.holder;
        let kept = KeptState::of(asked, before.as_ref(), machine_id, &facts.gpu.gpus, holder);
        let document = serde_json::to_string(&kept).map_err(|error| error.to_string())?;
        if document.len() > MOST_BYTES {
            return Err("what it would keep is larger than 1 MiB".to_owned());
        }
        Ok(document)
    }

    /// Returns what the node has kept so far, if this controller declared it: what a node only claims is never signed.
    fn former(
        &self,
        sealed: &Sealed,
        machine_id: &str,
        newest: u64,
        signer: &dyn KeepSigner,
    ) -> Result<Option<KeptState>, String> {
        let own = signer.known().key;
        let foreseen = sealed.seal.signature.is_empty() && !self.settings.run.verb.writes();
        // Another key, or none yet: the node refuses the new document, and says so.
        if sealed.seal.key != own && !foreseen {
            return Ok(None);
        }
        if !foreseen && !signer.has_signed(sealed) {
            return Err("what the node says it keeps was changed after this controller signed it, so nothing is added to it; remove \
                        it with `gpufleet keep remove`, and run again"
                .to_owned());
        }
        let former: KeptState = serde_json::from_str(&sealed.document)
            .map_err(|error| format!("what the node says it keeps cannot be understood: {error}"))?;
        if former.machine_id != machine_id {
            return Err(format!(
                "what the node says it keeps was signed for the machine {}, and this one is {machine_id}",
                crate::visible::visible(&former.machine_id)
            ));
        }
        if !foreseen && former.serial < newest {
            return Err("what the node says it keeps is older than what it took from this controller, so nothing is added to it: its disk \
                        was put back, or somebody brings an old state back; remove it with `gpufleet keep remove`, and run again"
                .to_owned());
        }
        Ok(Some(former))
    }

    /// Remembers what the node took, so that it cannot show an older state as its newest.
    pub(crate) fn note_taken(&self, op: &NodeOp, mode: Mode, outcome: &mut OpOutcome) {
        let NodeOp::KeepState(KeepState { sealed: Some(_), .. }) = op else { return };
        // Without this change the node still has the document that it had.
        let took = outcome.changes.iter().any(|change| change.subject == Subject::KeptState);
        if mode == Mode::Apply
            && took
            && matches!(outcome.status, OpStatus::Changed)
            && let Some(signer) = &self.settings.run.keeping.signer
            && let Err(why) = signer.took(&self.host.name, self.settings.run.holder.epoch)
        {
            outcome.warnings.push(format!("what this node took to keep is not remembered: {why}"));
        }
    }
}
