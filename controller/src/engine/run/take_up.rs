//! A play that an earlier process began: both its cores are led to where they were, and told what changed beside it.

use std::collections::{BTreeSet, HashMap};

use gpufleet_protocol::message::Mode;
use tokio::sync::mpsc;

use crate::{
    engine::{
        error::EngineError,
        fleet::{
            approval::Approval,
            context::EarlierPlays,
            dispatcher::{Dispatcher, PlayOutcome, ResumeChanges},
            ending::{Stop, told},
            recorder::Recorder,
            start::rollout,
        },
        host::HostState,
        replay::history::{PlayHistory, RunHistory},
        run::engine::{Engine, forecast},
    },
    event::NodeState,
    index::PlayIndex,
    rollout::{Batch, SoFar, StopReason, Wave},
};

impl Engine {
    /// Leads both cores of a play to where an earlier process left them, and goes on.
    #[expect(clippy::too_many_arguments, reason = "what a play works with, and what is known of it")]
    pub(crate) async fn take_up(
        &self,
        index: PlayIndex,
        begun: PlayHistory,
        past: &RunHistory,
        mut host_states: Vec<HostState>,
        elsewhere: &HashMap<String, HostState>,
        before: EarlierPlays,
        recorder: &mut Recorder,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<PlayOutcome, EngineError> {
        let play = self.play_at(index)?;
        let names = begun.shape.hosts.clone();
        let number: HashMap<&String, usize> = names.iter().zip(0..).collect();
        let waves: Vec<Wave> = begun
            .shape
            .waves
            .iter()
            .map(|shape| Wave {
                label: shape.label.clone(),
                hosts: shape.hosts.iter().filter_map(|host| number.get(host).copied()).collect(),
                canary: shape.label == Batch::Canary.to_string(),
                aside: shape.aside,
            })
            .collect();
        let scheduler = self.scheduler(index);
        // Why not as it is now: earlier plays were taken up again meanwhile, and the play began before that.
        // Of records without those numbers: as near as can be told now, without what later plays did.
        let so_far = begun.so_far.unwrap_or_else(|| SoFar {
            out_elsewhere: elsewhere.values().filter(|host_state| host_state.is_out()).count(),
            ..before.so_far
        });
        let mut core =
            rollout(play, &begun.shape, scheduler.as_deref(), &self.options.overrides, waves, so_far)?;
        let mut bound = None;
        for (place, now, input) in &begun.inputs {
            core.step(*now, input.clone())?;
            bound = core.stopped().filter(|reason| reason.is_lasting()).and(bound.or(Some(*place)));
        }
        let any_error = core.stopped() == Some(&StopReason::AnyError);
        let hostvars = self.hostvars(index, play, host_states.iter(), elsewhere);
        let lost: Vec<String> = host_states
            .iter()
            .filter(|host_state| !host_state.is_alive())
            .map(|host_state| host_state.name.clone())
            .collect();
        let (make, snapshots) = self.cursors(index, &names, &begun.shape.waves, hostvars, &lost);
        let ended_badly = |host_state: &&HostState| {
            matches!(begun.end(&host_state.name), Some(NodeState::Failed | NodeState::Unreachable))
        };
        host_states.iter().filter(ended_badly).for_each(|host_state| snapshots.lose(&host_state.name));
        // Why before: what one host saw of another hangs on what that one did.
        for batch in begun.batches(&host_states) {
            let cursor =
                |host_state: &HostState| make(host_state, Mode::Apply, begun.one_reboot(&host_state.name));
            begun.rehearse(
                batch
                    .into_iter()
                    .filter_map(|host_state| Some((cursor(host_state)?, host_state.name.as_str())))
                    .collect(),
            );
        }
        let unfinished: BTreeSet<usize> = core.in_flight().into_iter().collect();
        let mut again = Vec::new();
        let mut latches = Vec::new();
        for (host, host_state) in host_states.iter_mut().enumerate() {
            host_state.forecast = begun.prediction(&host_state.name);
            let retried = begun.is_retried(&host_state.name) && !before.stopped;
            if !begun.began(&host_state.name) {
                // Why not those that wait for their wave: nobody has told the rollout of their end.
                if retried && core.has_ended(host) {
                    again.push(host);
                } else {
                    begun.settle(host_state);
                }
                continue;
            }
            let Some(cursor) = make(host_state, Mode::Apply, begun.one_reboot(&host_state.name)) else {
                continue;
            };
            let (resumed, end) = begun.replay(cursor, host_state, &past.host(&host_state.name), retried);
            // Why: the others hear of such a failure when it happens, and not when its host is at its end.
            if any_error && end.as_ref().is_some_and(|end| end.fatal) {
                bound = bound.min(resumed.raised_at).or(bound);
            }
            // Why not always: whoever is at its end gives nothing any more.
            let goes_on = retried || unfinished.contains(&host);
            let gave = resumed.latches.iter().filter(|(_, gave)| goes_on || gave.is_some());
            latches.push((host, gave.cloned().collect()));
            if retried && !unfinished.contains(&host) {
                again.push(host);
            }
            if retried || unfinished.contains(&host) {
                // Why not always: what it had done before stays done.
                if !host_state.is_alive() {
                    host_state.verdict = NodeState::Pending;
                }
                host_state.message = None;
                host_state.resumed = Some(Box::new(resumed));
            } else {
                if let Some(end) = end {
                    host_state.vars = end.vars;
                    host_state.play_wide.cleared_errors |= end.cleared_errors;
                }
                begun.settle(host_state);
            }
        }
        for resumed in host_states.iter_mut().filter_map(|host_state| host_state.resumed.as_mut()) {
            // Why: what it heard before was of something else.
            resumed.halted = resumed.halted.filter(|heard| bound.is_some_and(|bound| bound < *heard));
        }
        let hosts = |wanted: &dyn Fn(usize, &HostState) -> bool| -> Vec<usize> {
            let hosts = host_states.iter().enumerate().filter(|(host, host_state)| wanted(*host, host_state));
            hosts.map(|(host, _)| host).collect()
        };
        let out =
            hosts(&|_, host_state| host_state.is_absent() || past.is_out_after(index, &host_state.name));
        let news = core.news(before.so_far, &out.into_iter().collect());
        let returned =
            hosts(&|host, host_state| core.is_in_no_wave(host) && host_state.is_alive() && !before.stopped);
        let goes_on = core.stopped().is_some_and(|reason| !reason.is_lasting());
        let is_over = match before.stopped {
            true => unfinished.is_empty(),
            false => core.is_finished() && again.is_empty() && returned.is_empty() && !goes_on,
        };
        if is_over {
            if let Some(news) = news {
                core.step(jiff::Timestamp::now(), news)?;
            }
            let stop =
                core.stopped().map(|reason| Stop::of(reason, told(reason, |host| host_states.get(host))));
            return Ok(PlayOutcome::of(host_states, stop, core.lost(), &snapshots));
        }
        let domains = self.domains(index, play, &names, recorder).await?;
        let mut context = self.context(index, play, names, before, recorder, interrupts);
        (context.cursors, context.snapshots) = (make, snapshots);
        context.neighbours = self.neighbours(index, play, &begun.shape, &domains);
        if !self.confirm.is_blanket() {
            // Why not asked again: what this run was shown to disturb was agreed to before it began.
            context.approval = Approval::shown(&forecast(host_states.iter(), host_states.len()));
        }
        let again = ResumeChanges { returned, reopened: again, news };
        Dispatcher::new(&mut context, host_states).carry_on(core, again, latches).await
    }
}
