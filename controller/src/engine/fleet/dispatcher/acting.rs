//! Carries out the rollout's actions: each becomes an answer to a node, a turn, or an event.

use std::collections::VecDeque;

use gpufleet_protocol::Permit;

use crate::{
    engine::{
        error::EngineError,
        fleet::{
            barriers::Barriers,
            dispatcher::{Dispatcher, PERMIT_VALID_S},
            ending::Stop,
            latches::Latches,
        },
        node::{
            message::{FromNode, Pace, ToNode},
            turn::Turn,
        },
        ports::scheduler::Marker,
    },
    event::{HELD_BY_OTHERS, Level, NOTHING_NEW, NodeState, What},
    rollout::{Action, Denial, End, Input, Rollout, StopReason},
};

impl Dispatcher<'_, '_> {
    pub(crate) fn act(&mut self, action: Action, inputs: &mut VecDeque<Input>) -> Result<(), EngineError> {
        match action {
            Action::StartWave { wave } => {
                let hosts = self.rollout.as_ref().map(|rollout| rollout.wave(wave)).unwrap_or_default();
                let hosts = hosts.iter().map(|host| self.name(*host)).collect();
                self.barriers = Barriers::default();
                self.latches = Latches::default();
                self.emit(What::WaveStarted { play: self.context.settings.play, wave, hosts })
            }
            Action::FinishWave { wave } => {
                self.emit(What::WaveFinished { play: self.context.settings.play, wave })
            }
            Action::Start { host } if self.latecomers.is_late(host) => {
                self.latecomers.set_due(host);
                Ok(())
            }
            Action::Start { host } => {
                self.spawn(host, Turn::Apply);
                // Why: a host that dropped out before its wave began has no task that could end.
                if let Some(host_state) = self.nodes.state(host) {
                    let end = match host_state.verdict {
                        NodeState::Unreachable => End::Unreachable,
                        NodeState::Held => End::Held,
                        NodeState::Skipped => End::Done,
                        _ => End::Failed,
                    };
                    inputs.push_back(Input::Ended { host, end });
                }
                Ok(())
            }
            Action::ProveIdle { host } => self.answer(host, ToNode::ProveIdle),
            Action::Grant { host, class, deadline } => {
                let holder = self.context.settings.run.holder.clone();
                let left = deadline.map_or(u64::MAX, |at| {
                    u64::try_from(at.duration_since(jiff::Timestamp::now()).as_secs()).unwrap_or_default()
                });
                let permit = Permit { class, holder, valid_for_s: PERMIT_VALID_S.min(left) };
                self.answer(host, ToNode::Grant(permit))
            }
            Action::Deny { host, why } => {
                let reason = self.denial(&why);
                let answer = match why {
                    Denial::Stopped { reason: StopReason::Interrupted } => ToNode::Stop(reason),
                    _ => ToNode::Deny(reason),
                };
                self.answer(host, answer)
            }
            Action::Waits { host, out } => {
                let detail = match self.fleet_out(&out) {
                    nobody if nobody.is_empty() => {
                        "for the budget, which nodes outside of this play take up".to_owned()
                    }
                    names => format!("for the budget: out are {names}"),
                };
                // Why once: each further node waits for the same.
                let ours = self.rollout.as_ref().map(Rollout::ours).unwrap_or_default();
                let others = !self.beside.places.is_empty() || out.iter().any(|host| !ours.contains(host));
                let surveys =
                    self.context.settings.scheduler.as_ref().is_some_and(|scheduler| scheduler.surveys);
                if surveys && others && !std::mem::replace(&mut self.beside.is_told, true) {
                    let host = self.name(host);
                    let text = format!("{host} waits {detail}; who is out is asked again every 10 s");
                    self.emit(What::Notice { level: Level::Warning, text })?;
                }
                let what = What::NodeState {
                    host: self.name(host),
                    state: NodeState::Waiting,
                    detail: Some(detail),
                };
                self.emit(what)
            }
            Action::Stop { reason } => {
                if reason != StopReason::Interrupted {
                    self.nodes.set_pace(Pace::NoneNew);
                    // Why: as in Ansible, hosts that wait for each other go no further than to the next task.
                    if !matches!(reason, StopReason::WindowClosed { .. }) {
                        self.barriers.halt();
                    }
                    let told = self.told(&reason);
                    let text = format!("{told}{NOTHING_NEW}");
                    self.stop = Some(Stop::of(&reason, told));
                    self.emit(What::Notice { level: Level::Error, text })?;
                }
                Ok(())
            }
            Action::WakeAt { at } => {
                self.clock.alarm = Some(at);
                Ok(())
            }
            Action::WaitsForWindow { opens } => {
                let text = format!("waits for the window, which opens {opens}");
                self.emit(What::Notice { level: Level::Info, text })?;
                self.emit(What::AwaitsWindow { play: self.context.settings.play, opens })
            }
            Action::Soak { wave, until } => {
                let text = format!("wave {} is watched until {until}", wave + 1);
                self.emit(What::Notice { level: Level::Info, text })
            }
            Action::CheckSoak { hosts, .. } => {
                for host in hosts {
                    self.spawn(host, Turn::Gate);
                    if self.nodes.state(host).is_some() {
                        inputs.push_back(Input::SoakChecked { host, ok: false, why: "lost".to_owned() });
                    }
                }
                Ok(())
            }
            Action::Drain { host, deadline } => self.answer(host, ToNode::Drain { deadline }),
            Action::StopDraining { host } => self.answer(host, ToNode::StopDraining),
            Action::Survey => {
                let Some(scheduler) = self.context.settings.scheduler.clone() else {
                    return Err(EngineError::NoScheduler);
                };
                let (sender, names) = (self.nodes.sender(), self.context.names.clone());
                let neighbours = self.context.neighbours.names.clone();
                let run = self.context.settings.run.holder.run.clone();
                self.surveys.spawn(async move {
                    let answer = scheduler.others_out(&names, &neighbours, &run).await;
                    // Why no error: a play that ended needs no answer.
                    let _ = sender.send(FromNode::Surveyed(answer)).await;
                });
                Ok(())
            }
            Action::Finish { never_started } => {
                self.finished = true;
                // Why: a play that a task ended early leaves its hosts to the next play.
                let stopped = self.rollout.as_ref().is_some_and(|rollout| rollout.stopped().is_some());
                for host in never_started.into_iter().filter(|_| stopped) {
                    if let Some(host_state) = self.nodes.state_mut(host)
                        && host_state.is_alive()
                    {
                        host_state.worsen(NodeState::Skipped, Some("not started".to_owned()));
                        host_state.verdict = NodeState::Skipped;
                    }
                }
                Ok(())
            }
        }
    }

    fn denial(&self, why: &Denial) -> String {
        match why {
            Denial::Busy { reason } => reason.clone(),
            Denial::BudgetSpent { out, budget } => format!(
                "`max_unavailable` allows {budget} out of service, and {}: {}",
                if out.len() + self.context.before.out_elsewhere.len() == 1 && self.beside.places.is_empty() {
                    "one will not come back by itself"
                } else {
                    "these will not come back by themselves"
                },
                self.fleet_out(out)
            ),
            Denial::DomainSpent { domain, out, limit } => format!(
                "{limit} may be out of service in {domain}, and these will not come back by themselves: {}",
                self.names_out(out)
            ),
            Denial::HeldByOthers { by } => match Marker::find(by) {
                Some(marker) => self.context.settings.earlier.meaning(&marker),
                None => format!("{HELD_BY_OTHERS}: {by}"),
            },
            Denial::NotDrained { why } => format!("its scheduler did not let go of it: {why}"),
            Denial::NotSurveyed { why } => format!("nobody could say who else is out of service: {why}"),
            Denial::WindowTooShort { needs_s, closes } => {
                format!("it needs up to {needs_s} s, and the window closes at {closes}")
            }
            Denial::Stopped { reason } => format!("the run stopped: {}", self.told(reason)),
        }
    }
}
