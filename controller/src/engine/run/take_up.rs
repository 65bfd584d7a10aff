//! Takes up a play that an earlier process began: replays its cursors and its rollout, and tells them what changed since.

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
    /// Replays the cursors and the rollout of a play to where an earlier process left them, and goes on.
    #[expect(clippy::too_many_arguments, reason = "what a play works with, and what is known of it")]
    pub(crate) async fn take_up(
        &self,
        index: PlayIndex,
        play_history: PlayHistory,
        run_history: &RunHistory,
        mut host_states: Vec<HostState>,
        elsewhere: &HashMap<String, HostState>,
        before: EarlierPlays,
        recorder: &mut Recorder,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<PlayOutcome, EngineError> {
        let play = self.play_at(index)?;
        let names = play_history.shape.hosts.clone();
        let number: HashMap<&String, usize> = names.iter().zip(0..).collect();
        let waves: Vec<Wave> = play_history
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
        let scheduler = self.plays.scheduler_of(index);
        // Why not the present numbers: earlier plays were taken up again after this play had begun. Older journals do not have
        // the numbers; then they are estimated.
        let so_far = play_history.so_far.unwrap_or_else(|| SoFar {
            out_elsewhere: elsewhere.values().filter(|host_state| host_state.is_out()).count(),
            ..before.so_far
        });
        let mut core = rollout(
            play,
            &play_history.shape,
            scheduler.as_deref(),
            &self.options.rollout.overrides,
            waves,
            so_far,
        )?;
        let mut bound = None;
        for (place, now, input) in &play_history.inputs {
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
        let (make, snapshots) = self.cursors(index, &names, &play_history.shape.waves, hostvars, &lost);
        let ended_badly = |host_state: &&HostState| {
            matches!(play_history.end(&host_state.name), Some(NodeState::Failed | NodeState::Unreachable))
        };
        host_states.iter().filter(ended_badly).for_each(|host_state| snapshots.lose(&host_state.name));
        // Why before: what one host saw of another depends on what that one did.
        for batch in play_history.batches(&host_states) {
            let cursor = |host_state: &HostState| {
                make(host_state, Mode::Apply, play_history.one_reboot(&host_state.name))
            };
            play_history.rehearse(
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
            host_state.forecast = play_history.prediction(&host_state.name);
            let retried = play_history.is_retried(&host_state.name) && !before.stopped;
            if !play_history.began(&host_state.name) {
                // Why not hosts that wait for their wave: the rollout does not know of their end.
                if retried && core.has_ended(host) {
                    again.push(host);
                } else {
                    play_history.settle(host_state);
                }
                continue;
            }
            let Some(cursor) = make(host_state, Mode::Apply, play_history.one_reboot(&host_state.name))
            else {
                continue;
            };
            let (resumed, end) =
                play_history.replay(cursor, host_state, &run_history.host(&host_state.name), retried);
            // Why: the others are told of such a failure when it happens, not when its host ends.
            if any_error && end.as_ref().is_some_and(|end| end.fatal) {
                bound = bound.min(resumed.raised_at).or(bound);
            }
            // Why not always: a host that ended has no more results to give.
            let goes_on = retried || unfinished.contains(&host);
            let gave = resumed.latches.iter().filter(|(_, gave)| goes_on || gave.is_some());
            latches.push((host, gave.cloned().collect()));
            if retried && !unfinished.contains(&host) {
                again.push(host);
            }
            if retried || unfinished.contains(&host) {
                // Why only these: a host that ended keeps the state that it had reached.
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
                play_history.settle(host_state);
            }
        }
        for resumed in host_states.iter_mut().filter_map(|host_state| host_state.resumed.as_mut()) {
            // Why: what it was told before that was something else.
            resumed.halted = resumed.halted.filter(|heard| bound.is_some_and(|bound| bound < *heard));
        }
        let hosts = |wanted: &dyn Fn(usize, &HostState) -> bool| -> Vec<usize> {
            let hosts = host_states.iter().enumerate().filter(|(host, host_state)| wanted(*host, host_state));
            hosts.map(|(host, _)| host).collect()
        };
        let out = hosts(&|_, host_state| {
            host_state.is_absent() || run_history.is_out_after(index, &host_state.name)
        });
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
        context.neighbours = self.neighbours(index, play, &play_history.shape, &domains);
        if !self.confirm.is_blanket() {
            // Why not asked again: a person agreed to this before the run began.
            context.approval = Approval::shown(&forecast(host_states.iter(), host_states.len()));
        }
        let changes = ResumeChanges { returned, reopened: again, news };
        Dispatcher::new(&mut context, host_states).carry_on(core, changes, latches).await
    }
}
