//! Getting a permit: the node asks, is drained, is proven idle, and is granted or denied.

use gpufleet_protocol::Disruption;

use crate::{
    engine::node::{
        custody::Custody,
        early_end::EarlyEnd,
        message::{FromNode, ToNode},
    },
    event::{NodeState, What},
    interpreter::Fed,
    rollout::Input,
};

impl Custody {
    /// Refuses to disturb the machine that gpufleet itself runs on: a reboot would end the run in its middle, and a drain
    /// would wait for itself. Asked before anything is changed, and again before each permit.
    pub(crate) async fn spares_own_machine(&mut self, class: Disruption) -> Result<(), EarlyEnd> {
        let own = self.node.settings.run.own_boot.clone();
        if own.is_none() || self.node.link().await?.boot_id() != own {
            return Ok(());
        }
        let what = match class {
            Disruption::Live => "may need a reboot".to_owned(),
            class => format!("needs {class}"),
        };
        Err(EarlyEnd::Held(format!(
            "{what}, and gpufleet itself runs on this node; run it from another machine over SSH, or leave out what needs it \
             here and do that part by hand"
        )))
    }

    /// Gets a permit of at least this class; the inner error is the refusal, which the cursor takes as the task's end.
    pub(crate) async fn permitted(
        &mut self,
        class: Disruption,
        why: &str,
    ) -> Result<Result<(), Fed>, EarlyEnd> {
        let name = self.node.host.name.clone();
        if let Err(EarlyEnd::Held(reason)) = self.spares_own_machine(class).await {
            return Ok(Err(Fed::held(reason)));
        }
        if self.node.host.custody.serves {
            let reason = format!(
                "needs {class}, and somebody gave it back meanwhile; `gpufleet resume` drains it anew"
            );
            return Ok(Err(Fed::held(reason)));
        }
        self.reason = if why.is_empty() { class.to_string() } else { why.to_owned() };
        self.node.dispatcher.state(NodeState::Waiting, Some(why.to_owned())).await;
        let wish = FromNode::WantsPermit { host: self.node.dispatcher.host, class, why: why.to_owned() };
        let _ = self.node.dispatcher.out.send(wish).await;
        drop(self.node.dispatcher.place.take());
        let answer = self.decided(class, why, &name).await;
        self.node.dispatcher.take_place().await;
        answer
    }

    async fn decided(
        &mut self,
        class: Disruption,
        why: &str,
        name: &str,
    ) -> Result<Result<(), Fed>, EarlyEnd> {
        loop {
            match self.node.dispatcher.answers.recv().await {
                Some(ToNode::Drain { deadline }) => {
                    self.node.forget_broken();
                    self.drain(deadline).await?;
                }
                Some(ToNode::ProveIdle) => {
                    self.node.forget_broken();
                    // Why before the proof: waiting after it would make it stale.
                    self.node.dispatcher.take_place().await;
                    let proof = self.prove_idle(class).await?;
                    let told = match proof {
                        Ok(()) => Input::Idle { host: self.node.dispatcher.host },
                        Err(no) if self.overruled(&no).await => {
                            Input::Idle { host: self.node.dispatcher.host }
                        }
                        Err(no) => Input::Busy { host: self.node.dispatcher.host, reason: no.why },
                    };
                    self.proven = Some(tokio::time::Instant::now());
                    self.node.dispatcher.tell(told).await;
                }
                Some(ToNode::Grant(permit)) => {
                    self.node
                        .dispatcher
                        .durable(What::PermitGranted { host: name.to_owned(), class: permit.class })
                        .await?;
                    self.node.permit.permit = Some(permit);
                    self.node.host.custody.out_of_service = true;
                    self.node.dispatcher.state(NodeState::Acting, Some(why.to_owned())).await;
                    return Ok(Ok(()));
                }
                Some(ToNode::Deny(reason)) => {
                    return Ok(Err(Fed::held(self.denied(reason).await)));
                }
                Some(ToNode::Stop(reason)) => {
                    let reason = self.denied(reason).await;
                    // Why not if it is still out of service: it has to be brought back.
                    return if self.node.is_out() {
                        Ok(Err(Fed::held(reason)))
                    } else {
                        Err(EarlyEnd::Stopped)
                    };
                }
                Some(
                    ToNode::StopDraining
                    | ToNode::Go
                    | ToNode::End
                    | ToNode::Halt
                    | ToNode::LatchYours
                    | ToNode::LatchValue(_),
                ) => {}
                None => return Err(EarlyEnd::Stopped),
            }
        }
    }

    /// Gives back a node that was drained for nothing, and says what became of it.
    async fn denied(&mut self, reason: String) -> String {
        if self.node.host.custody.out_of_service || self.node.host.custody.drain.is_none() {
            return reason;
        }
        match self.give_back().await {
            Ok(()) => {
                self.node.dispatcher.tell(Input::Released { host: self.node.dispatcher.host }).await;
                reason
            }
            Err(stuck) => format!("{reason}; {stuck}"),
        }
    }
}
