//! The dispatcher of one play. It owns the rollout, answers nodes, and alone emits events.

mod acting;
mod barriers;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::mpsc, task::JoinSet, time::Instant};

use crate::{
    engine::{
        error::EngineError,
        fleet::{
            barriers::{Barriers, Waiter},
            clock::Clock,
            context::PlayContext,
            ending::{Stop, told},
            latches::{Latches, TakenLatches},
            latecomers::Latecomers,
            node_tasks::NodeTasks,
            waiting::{alarm, until},
        },
        host::HostState,
        node::{
            early_end::EarlyEnd,
            message::{FromNode, Pace, ToNode},
            turn::Turn,
        },
    },
    event::{Level, NodeState, RecapCounts, STOPPING, What},
    interpreter::{DelegatedFacts, HostSnapshots},
    journal::{Entry, Replayed},
    report::fold_names,
    rollout::{Action, End, Input, Lost, Rollout, StopReason},
};

/// Seconds from a grant within which the act must start.
const PERMIT_VALID_S: u64 = 300;

/// How a play ended in this process.
pub(crate) struct PlayOutcome {
    pub(crate) host_states: Vec<HostState>,
    pub(crate) stop: Option<Stop>,
    pub(crate) lost: Lost,
    /// What tasks of other hosts set for hosts, and these have not taken over.
    pub(crate) given: HashMap<Arc<str>, DelegatedFacts>,
}

impl PlayOutcome {
    pub(crate) fn of(
        mut host_states: Vec<HostState>,
        stop: Option<Stop>,
        lost: Lost,
        snapshots: &HostSnapshots,
    ) -> Self {
        HostState::clear_errors(&mut host_states);
        Self { host_states, stop, lost, given: snapshots.gifts() }
    }
}

/// What changed since an earlier process left the play.
pub(crate) struct ResumeChanges {
    /// Hosts that an earlier play had lost, and that are there now.
    pub(crate) returned: Vec<usize>,
    /// Hosts that ended without a decision.
    pub(crate) reopened: Vec<usize>,
    /// What other plays left behind by now.
    pub(crate) news: Option<Input>,
}

pub(crate) struct Dispatcher<'a, 'b> {
    context: &'a mut PlayContext<'b>,
    nodes: NodeTasks,
    inbox: mpsc::Receiver<FromNode>,
    latecomers: Latecomers,
    barriers: Barriers,
    latches: Latches,
    rollout: Option<Rollout>,
    stop: Option<Stop>,
    finished: bool,
    clock: Clock,
    surveys: JoinSet<()>,
    beside: OutBeside,
}

/// Outages that are not this run's.
#[derive(Default)]
struct OutBeside {
    /// Neighbours that the last survey found out of service, if that takes up something of the play's budget.
    places: Vec<usize>,
    /// Whether people know that the run waits for such outages.
    is_told: bool,
}

impl<'a, 'b> Dispatcher<'a, 'b> {
    pub(crate) fn new(context: &'a mut PlayContext<'b>, host_states: Vec<HostState>) -> Self {
        let (nodes, inbox) = NodeTasks::new(&context.names, host_states, context.forks);
        Self {
            context,
            nodes,
            inbox,
            latecomers: Latecomers::new(),
            barriers: Barriers::default(),
            latches: Latches::default(),
            rollout: None,
            stop: None,
            finished: false,
            clock: Clock::start(),
            surveys: JoinSet::new(),
            beside: OutBeside::default(),
        }
    }

    fn emit(&mut self, entry: impl Into<Entry>) -> Result<(), EngineError> {
        Ok(self.context.recorder.emit(entry)?)
    }

    fn name(&self, host: usize) -> String {
        self.context.names.get(host).cloned().unwrap_or_default()
    }

    fn told(&self, reason: &StopReason) -> String {
        told(reason, |host| self.nodes.state(host))
    }

    fn names(&self, hosts: &[usize]) -> String {
        let names: Vec<String> = hosts.iter().map(|host| self.name(*host)).collect();
        names.join(" ")
    }

    /// Those of this play that are out, and what counts beside them for the fleet's budget.
    fn fleet_out(&self, hosts: &[usize]) -> String {
        let elsewhere = &self.context.before.out_elsewhere;
        let mut named = self.names_out(hosts);
        if !elsewhere.is_empty() {
            let and = if named.is_empty() { "" } else { ", and " };
            named.push_str(&format!("{and}{}, of another play", fold_names(elsewhere)));
        }
        named
    }

    /// Those of this play that are out, and what counts beside them.
    fn names_out(&self, hosts: &[usize]) -> String {
        let mut named = self.context.neighbours.named(&self.beside.places);
        if !hosts.is_empty() {
            named.insert(0, self.names(hosts));
        }
        named.join(", and ")
    }

    /// Connects to and reads every host that still takes part, all at once. Fewer hosts than `spare` that are much
    /// slower than all others are left to join later.
    pub(crate) async fn preflight(
        &mut self,
        facts: bool,
        predict: bool,
        spare: usize,
    ) -> Result<(), EngineError> {
        for host in 0..self.nodes.len() {
            self.spawn(host, Turn::Preflight { facts, predict });
        }
        while self.nodes.are_running() {
            let patience = self.patience(spare);
            tokio::select! {
                turned = self.turn() => turned?,
                () = until(patience) => {
                    let late = self.latecomers.set_late(self.nodes.running().map(|(host, _)| host));
                    let text = format!(
                        "goes on without {}, not read yet: {} when answered",
                        self.names(&late),
                        if late.len() == 1 { "it joins" } else { "they join" }
                    );
                    return self.emit(What::Notice { level: Level::Warning, text });
                }
            }
        }
        Ok(())
    }

    /// Until when the play waits for hosts that are still being read; without end if they are many.
    fn patience(&self, spare: usize) -> Option<Instant> {
        let (running, all) = (self.nodes.running_len(), self.nodes.len());
        let queued = all > self.context.forks;
        if running >= spare || running * 10 > all || queued || self.stop.is_some() {
            return None;
        }
        let silent = self.nodes.running().any(|(_, connected)| !connected);
        let reading = self.nodes.running().any(|(_, connected)| connected);
        Some(self.latecomers.patience(silent, reading))
    }

    /// The hosts of the play, but those that are late.
    pub(crate) fn host_states(&self) -> impl Iterator<Item = Option<&HostState>> {
        self.nodes.states()
    }

    pub(crate) fn host_states_mut(&mut self) -> impl Iterator<Item = &mut HostState> {
        self.nodes.states_mut()
    }

    pub(crate) fn context(&mut self) -> &mut PlayContext<'b> {
        self.context
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_some()
    }

    /// Ends a play whose rollout never began.
    pub(crate) async fn leave(mut self, stop: Option<Stop>) -> Result<PlayOutcome, EngineError> {
        self.stop = self.stop.or(stop);
        self.finished = true;
        self.finish().await
    }

    /// Goes on until the rollout is over and no task runs: late hosts may still be read, and hosts that are looked at after
    /// the soak may not have answered.
    async fn finish(mut self) -> Result<PlayOutcome, EngineError> {
        while (self.nodes.are_running() || !self.finished) && self.stop != Some(Stop::Aborted) {
            self.turn().await?;
        }
        Ok(self.outcome())
    }

    /// Goes on with a play whose rollout was led to where an earlier process left it.
    pub(crate) async fn carry_on(
        mut self,
        rollout: Rollout,
        changes: ResumeChanges,
        latches: Vec<(usize, TakenLatches)>,
    ) -> Result<PlayOutcome, EngineError> {
        let wave = rollout.current_wave();
        let of_wave: HashSet<usize> =
            wave.map(|wave| rollout.wave(wave).iter().copied().collect()).unwrap_or_default();
        for (owner, taken) in latches.into_iter().filter(|(host, _)| of_wave.contains(host)) {
            self.latches.restore(owner, taken);
        }
        let has_raised = |host_state: &HostState| {
            host_state.resumed.as_ref().is_some_and(|resumed| resumed.raised_at.is_some())
        };
        let raised =
            self.nodes.states().zip(0..).filter(|(host_state, _)| host_state.is_some_and(has_raised));
        self.barriers.restore_raised(raised.map(|(_, host)| host));
        self.rollout = Some(rollout);
        for host in changes.returned {
            self.input(Input::Returned { host })?;
        }
        for host in changes.reopened {
            self.input(Input::Reopen { host })?;
        }
        // Why after those: a host that takes part again is not lost any more.
        changes.news.map_or(Ok(()), |news| self.input(news))?;
        // Why after those: a canary that takes part again lifts its own stop.
        let bound = self.rollout.as_ref().and_then(Rollout::stopped).filter(|reason| reason.is_lasting());
        if let Some(reason) = bound.cloned() {
            // Why: hosts and plays that had not begun do not begin now either.
            self.stop = Some(Stop::of(&reason, self.told(&reason)));
            self.nodes.set_pace(Pace::NoneNew);
            // Why: each host is told once, even if the process that reached the bound ended before it could tell.
            let heard = |host_state: &HostState| {
                host_state.resumed.as_ref().is_some_and(|resumed| resumed.halted.is_some())
            };
            let heard = self.nodes.states().zip(0..).filter(|(host_state, _)| host_state.is_some_and(heard));
            self.barriers.restore_halt(heard.map(|(_, host)| host));
        }
        if self.context.winds_up {
            self.stop = Some(Stop::Interrupted);
            self.nodes.set_pace(Pace::Stopping);
        }
        // Why before the step: it may start more hosts.
        let in_flight = self.rollout.as_ref().map(Rollout::in_flight).unwrap_or_default();
        self.input(Input::Resume)?;
        for host in in_flight {
            let mut inputs = VecDeque::new();
            self.act(Action::Start { host }, &mut inputs)?;
            for input in inputs {
                self.input(input)?;
            }
        }
        if self.context.winds_up {
            self.input(Input::Interrupt)?;
        }
        self.finish().await
    }

    /// Carries the play out, wave by wave.
    pub(crate) async fn carry_out(mut self, rollout: Rollout) -> Result<PlayOutcome, EngineError> {
        self.rollout = Some(rollout);
        for host in 0..self.nodes.len() {
            match self.nodes.state(host) {
                Some(host_state) if host_state.custody.adopted => self.input(Input::Adopted { host })?,
                Some(host_state) if host_state.is_absent() => {
                    self.input(Input::OthersOut { host, out: true })?
                }
                None => self.input(Input::Late { host })?,
                Some(_) => {}
            }
        }
        self.input(Input::Begin)?;
        self.finish().await
    }

    fn outcome(self) -> PlayOutcome {
        let lost = self.rollout.as_ref().map_or(self.context.before.so_far.lost, Rollout::lost);
        PlayOutcome::of(self.nodes.into_states(), self.stop, lost, &self.context.snapshots)
    }

    /// Waits for the next thing to happen and deals with it.
    async fn turn(&mut self) -> Result<(), EngineError> {
        let left = self.clock.left();
        tokio::select! {
            biased;
            // Why first: an interrupt must not wait behind a busy fleet.
            interrupt = self.context.interrupts.recv() => self.interrupted(interrupt.is_some()),
            Some(message) = self.inbox.recv() => self.message(message),
            () = until(self.barriers.opens_at()) => {
                let opened = self.open_barrier();
                self.barriers.waited();
                opened
            }
            () = until(self.barriers.tells_at()) => self.tell_stragglers(),
            () = alarm(left) => {
                self.clock.alarm = None;
                self.input(Input::Tick)
            }
            Some(ended) = self.nodes.join_next() => match ended {
                Ok((host, host_state, result)) => {
                    // Why: what the task sent before it ended comes before its end.
                    while let Ok(message) = self.inbox.try_recv() {
                        self.message(message)?;
                    }
                    self.ended(host, host_state, result)
                }
                Err(error) if error.is_cancelled() => Ok(()),
                Err(cause) => Err(EngineError::NodePanicked { cause }),
            },
        }
    }

    fn interrupted(&mut self, by_person: bool) -> Result<(), EngineError> {
        if !by_person {
            // The sender is gone: there will be no interrupt.
            let (_, never) = mpsc::channel(1);
            *self.context.interrupts = never;
            return Ok(());
        }
        if self.stop.is_none() {
            self.stop = Some(Stop::Interrupted);
            self.nodes.set_pace(Pace::Stopping);
            let out = self.rollout.as_ref().map(Rollout::out).unwrap_or_default();
            let text = match out.is_empty() {
                true => format!("{STOPPING}; press again to leave now"),
                false => format!("{STOPPING}; finishing {}; press again to leave now", self.names(&out)),
            };
            self.emit(What::Notice { level: Level::Warning, text })?;
            if self.rollout.is_some() {
                self.input(Input::Interrupt)?;
            }
            return Ok(());
        }
        self.stop = Some(Stop::Aborted);
        self.nodes.abort();
        Ok(())
    }

    fn spawn(&mut self, host: usize, turn: Turn) {
        self.nodes.spawn(host, turn, &self.context.settings, &self.context.cursors);
    }

    fn message(&mut self, message: FromNode) -> Result<(), EngineError> {
        match message {
            FromNode::Record(entry) => {
                if let Entry::Event(What::Connected { host, ms, .. }) = &entry
                    && self.nodes.connected(host)
                {
                    self.latecomers.note_connect(Duration::from_millis(*ms));
                }
                self.emit(entry)
            }
            FromNode::Durable(what, done) => Ok(self.context.recorder.durable(what, done)?),
            FromNode::WantsPermit { host, class, why } => {
                let name = self.name(host);
                self.emit(What::PermitWanted { host: name.clone(), class, why })?;
                if !self.context.approval.allows(&name, class) {
                    let reason = format!(
                        "needs {class}, which nobody agreed to; run again to see it beforehand, or with --yes"
                    );
                    self.answer(host, ToNode::Deny(reason))?;
                    return Ok(());
                }
                self.input(Input::WantsPermit { host, class })?;
                self.open_barrier()
            }
            FromNode::Tell(input) => {
                self.input(input)?;
                self.open_barrier()
            }
            FromNode::Surveyed(Err(why)) => self.input(Input::SurveyFailed { why: why.to_string() }),
            FromNode::Surveyed(Ok(mut out)) => {
                let hosts = self.context.names.len();
                let beside: Vec<usize> = out.iter().filter_map(|place| place.checked_sub(hosts)).collect();
                out.retain(|place| *place < hosts);
                let (elsewhere, domains) = self.context.neighbours.taken(&beside);
                self.beside.places = if elsewhere > 0 || !domains.is_empty() { beside } else { Vec::new() };
                self.input(Input::Surveyed { out, elsewhere, domains })?;
                self.open_barrier()
            }
            FromNode::Barrier { host, task, at, is_out } => {
                self.at_barrier(Waiter { host, task, at, is_out })
            }
            FromNode::Raised { host, again } => {
                self.barriers.raise(host, again);
                Ok(())
            }
            FromNode::Latch { host, key } => self.at_latch(host, key),
            FromNode::LatchResult { key, result } => self.hand_on(key, &result),
        }
    }

    fn answer(&self, host: usize, answer: ToNode) -> Result<(), EngineError> {
        self.nodes.answer(host, answer)
    }

    fn ended(
        &mut self,
        host: usize,
        mut host_state: HostState,
        result: Result<(), EarlyEnd>,
    ) -> Result<(), EngineError> {
        let checked = self.nodes.ended(host);
        host_state.tally.until = Some(std::time::Instant::now());
        match result {
            Ok(()) => {}
            Err(EarlyEnd::Unreachable(why)) => {
                host_state.tally.counts.unreachable += 1;
                host_state.worsen(NodeState::Unreachable, Some(why));
            }
            Err(EarlyEnd::Held(why)) => host_state.worsen(NodeState::Held, Some(why)),
            Err(EarlyEnd::Failed(why)) => {
                host_state.tally.counts.failed += 1;
                host_state.worsen(NodeState::Failed, Some(why));
            }
            Err(EarlyEnd::Stopped) if host_state.is_alive() => {
                // Why whatever it had reached: a node that did not get to its end is not as declared.
                host_state.verdict = NodeState::Skipped;
                let began = host_state.tally.counts != RecapCounts::default();
                let how_far = if began { "stopped before its end" } else { "stopped before it began" };
                host_state.message = Some(how_far.to_owned());
            }
            Err(EarlyEnd::Stopped) => {}
        }
        let state = host_state.verdict;
        if self.latecomers.arrives(host) {
            return self.arrived(host, host_state);
        }
        if self.rollout.is_none() && host_state.is_alive() {
            self.latecomers.note_read();
        }
        if checked {
            let (ok, why) = (host_state.is_alive(), host_state.message.clone().unwrap_or_default());
            if !ok {
                self.emit(What::NodeState {
                    host: host_state.name.clone(),
                    state,
                    detail: host_state.message.clone(),
                })?;
            }
            self.nodes.put(host, host_state);
            return self.input(Input::SoakChecked { host, ok, why });
        }
        // Why not after a preflight that went well: the node's own turn is still to come.
        if self.rollout.is_some() || !host_state.is_alive() {
            let (state, detail) = host_state.standing();
            self.emit(What::NodeState { host: host_state.name.clone(), state, detail })?;
        }
        let (fatal, end_play) = (
            std::mem::take(&mut host_state.play_wide.fatal),
            std::mem::take(&mut host_state.play_wide.end_play),
        );
        if end_play || std::mem::take(&mut host_state.play_wide.end_batch) {
            self.barriers.end();
        }
        let halting = self.barriers.is_halting();
        if fatal {
            self.barriers.halt();
        }
        if !host_state.is_alive() {
            self.context.snapshots.lose(&host_state.name);
        }
        self.nodes.put(host, host_state);
        if self.rollout.is_some() {
            if fatal {
                self.input(Input::Fatal)?;
            }
            if end_play {
                self.input(Input::EndPlay)?;
            }
            let end = match state {
                NodeState::Failed | NodeState::Unknown => End::Failed,
                NodeState::Held => End::Held,
                NodeState::Unreachable => End::Unreachable,
                _ => End::Done,
            };
            self.input(Input::Ended { host, end })?;
        }
        if fatal {
            self.barriers.no_news(host, halting);
        }
        let held = format!("{} is held at a task that it does for all hosts (`run_once`)", self.name(host));
        let held = (state == NodeState::Held).then_some(held.as_str());
        for (waiting, answer) in self.latches.pass_on(host, held) {
            self.answer(waiting, answer)?;
        }
        self.open_barrier()
    }

    /// A late host has answered, or will not.
    fn arrived(&mut self, host: usize, host_state: HostState) -> Result<(), EngineError> {
        let (state, detail, answers) =
            (host_state.verdict, host_state.message.clone(), host_state.is_alive());
        self.nodes.put(host, host_state);
        if !answers {
            self.emit(What::NodeState { host: self.name(host), state, detail })?;
        }
        self.input(Input::OthersOut { host, out: !answers })?;
        if self.latecomers.take_due(host) {
            let mut inputs = VecDeque::new();
            self.act(Action::Start { host }, &mut inputs)?;
            for input in inputs {
                self.input(input)?;
            }
        }
        Ok(())
    }

    fn input(&mut self, input: Input) -> Result<(), EngineError> {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let Some(rollout) = &mut self.rollout else { return Ok(()) };
            let now = self.clock.now();
            // Why before the step: what follows from an input must not be on disk without it.
            let told = Replayed::Rollout { play: self.context.settings.play, now, input: input.clone() };
            self.context.recorder.emit(told)?;
            let actions = rollout.step(now, input)?;
            for action in actions {
                self.act(action, &mut inputs)?;
            }
        }
        Ok(())
    }
}
