//! `gpu_keep`: the document that the node keeps, made when it is sent, because only then the node is known.

use gpufleet_protocol::{
    NodeOp,
    facts::GpuSystemState,
    keep::{FORMAT, KeptState, MOST_BYTES, Sealed, to_be_signed},
    op::KeepState,
    tasks::KeepPresence,
};
use sha2::{Digest as _, Sha512};

use crate::{
    engine::node::{conversation::Conversation, early_end::EarlyEnd},
    interpreter::{Action, Mode},
};

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
        self.facts().await?;
        let document = match self.document(&asked) {
            Ok(document) => document,
            Err(why) => return Ok(Err(why)),
        };
        let Some(signer) = self.settings.run.keep_signer.clone() else {
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

    fn document(&self, asked: &KeepState) -> Result<String, String> {
        let facts = self.host.facts.as_ref().ok_or("the node gave no facts")?;
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
            policy: asked.policy.clone(),
            members: asked.members.clone(),
        };
        let document = serde_json::to_string(&kept).map_err(|error| error.to_string())?;
        if document.len() > MOST_BYTES {
            return Err("what it would keep is larger than 1 MiB".to_owned());
        }
        Ok(document)
    }
}
