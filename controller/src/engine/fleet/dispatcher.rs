//! The dispatcher of one play: owns the rollout, answers nodes, and is the only one who emits events.

mod acting;
mod barriers;

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{Semaphore, mpsc, mpsc::error::TrySendError, watch},
    task::JoinSet,
    time::Instant,
};

use crate::{
    engine::{
        error::EngineError,
        fleet::{
            barriers::{Barriers, TakenLatches, Waiter},
            context::PlayContext,
            ending::{Stop, told},
            waiting::{alarm, until},
        },
        host::HostState,
        node::{
            dispatcher::DispatcherHandle,
            driver::NodeDriver,
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

/// Messages from nodes that may wait for the dispatcher.
const INBOX: usize = 1024;
/// Answers that may wait for a node: more than are ever given before one is taken.
const ANSWERS: usize = 16;
/// Seconds from a grant within which the act must start.
const PERMIT_VALID_S: u64 = 300;

/// What a host may take beyond a multiple of what the slowest of the others took: to connect, and to be read.
const LATE: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(2));

/// How a stage of a play ended.
pub(crate) struct PlayOutcome {
    pub(crate) host_states: Vec<HostState>,
    pub(crate) stop: Option<Stop>,
    pub(crate) lost: Lost,
    /// What hosts were given by the tasks of others, and have not taken over.
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

/// What is new where a play is taken up that an earlier process began.
pub(crate) struct ResumeChanges {
    /// Hosts that an earlier play had lost, and that are there now.
    pub(crate) returned: Vec<usize>,
    /// Hosts that ended without anything having been decided.
    pub(crate) reopened: Vec<usize>,
    /// What other plays left behind by now.
    pub(crate) news: Option<Input>,
}

struct Running {
    answers: mpsc::Sender<ToNode>,
    connected: bool,
}

pub(crate) struct Dispatcher<'a, 'b> {
    context: &'a mut PlayContext<'b>,
    host_states: Vec<Option<HostState>>,
    running: HashMap<usize, Running>,
    tasks: JoinSet<(usize, HostState, Result<(), EarlyEnd>)>,
    sender: mpsc::Sender<FromNode>,
    inbox: mpsc::Receiver<FromNode>,
    forks: Arc<Semaphore>,
    pace: watch::Sender<Pace>,
    barriers: Barriers,
    /// Hosts of the play by name.
    index: HashMap<String, usize>,
    rollout: Option<Rollout>,
    stop: Option<Stop>,
    finished: bool,
    /// When the rollout wants to be told that time passed.
    alarm: Option<jiff::Timestamp>,
    /// Hosts that are looked at after the soak.
    checked: HashSet<usize>,
    surveys: JoinSet<()>,
    begun: Instant,
    /// The longest that a host took to connect, and to be read.
    slowest: (Duration, Duration),
    /// Hosts that the play does not wait for: they are still being connected to or read.
    late: BTreeSet<usize>,
    /// Those of them whose turn has come.
    due: BTreeSet<usize>,
    /// Neighbours that the last survey found out of service, where that takes up something of the play's.
    out_beside: Vec<usize>,
}

impl<'a, 'b> Dispatcher<'a, 'b> {
    pub(crate) fn new(context: &'a mut PlayContext<'b>, host_states: Vec<HostState>) -> Self {
        let (sender, inbox) = mpsc::channel(INBOX);
        let forks = Arc::new(Semaphore::new(context.forks));
        let (pace, _) = watch::channel(Pace::Going);
        let index = context.names.iter().cloned().zip(0..).collect();
        Self {
            context,
            host_states: host_states.into_iter().map(Some).collect(),
            running: HashMap::new(),
            tasks: JoinSet::new(),
            sender,
            inbox,
            forks,
            pace,
            barriers: Barriers::default(),
            index,
            rollout: None,
            stop: None,
            finished: false,
            alarm: None,
            checked: HashSet::new(),
            surveys: JoinSet::new(),
            begun: Instant::now(),
            slowest: (Duration::ZERO, Duration::ZERO),
            late: BTreeSet::new(),
            due: BTreeSet::new(),
            out_beside: Vec::new(),
        }
    }

    fn emit(&mut self, entry: impl Into<Entry>) -> Result<(), EngineError> {
        Ok(self.context.recorder.emit(entry)?)
    }

    fn name(&self, host: usize) -> String {
        self.context.names.get(host).cloned().unwrap_or_default()
    }

    fn told(&self, reason: &StopReason) -> String {
        told(reason, |host| self.host_states.get(host)?.as_ref())
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
        let mut named = self.context.neighbours.named(&self.out_beside);
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
        for host in 0..self.host_states.len() {
            self.spawn(host, Turn::Preflight { facts, predict });
        }
        while !self.running.is_empty() {
            let patience = self.patience(spare);
            tokio::select! {
                turned = self.turn() => turned?,
                () = until(patience) => {
                    self.late = self.running.keys().copied().collect();
                    let late: Vec<usize> = self.late.iter().copied().collect();
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

    /// Until when hosts that are still being read are waited for; for ever while they are many.
    fn patience(&self, spare: usize) -> Option<Instant> {
        let (running, (connect, read)) = (self.running.len(), self.slowest);
        let queued = self.host_states.len() > self.context.forks;
        if running >= spare || running * 10 > self.host_states.len() || queued || self.stop.is_some() {
            return None;
        }
        let silent = self.running.values().any(|running| !running.connected);
        let reading = self.running.values().any(|running| running.connected);
        // Why not longer: whoever is late joins later, and all others would wait for it.
        let silence = if silent { connect * 5 / 4 + LATE.0 } else { Duration::ZERO };
        let slowness = if reading { read * 2 + LATE.1 } else { Duration::ZERO };
        Some(self.begun + silence.max(slowness))
    }

    /// The hosts of the play, but those that are late.
    pub(crate) fn host_states(&self) -> impl Iterator<Item = Option<&HostState>> {
        self.host_states.iter().map(Option::as_ref)
    }

    pub(crate) fn host_states_mut(&mut self) -> impl Iterator<Item = &mut HostState> {
        self.host_states.iter_mut().flatten()
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

    /// Goes on until the rollout is over and nobody is at work any more: who is late may still be read, and who is
    /// looked at after the soak may not have answered.
    async fn finish(mut self) -> Result<PlayOutcome, EngineError> {
        while !(self.finished && self.running.is_empty()) && self.stop != Some(Stop::Aborted) {
            self.turn().await?;
        }
        Ok(self.stage())
    }

    /// Goes on with a play whose rollout was led to where an earlier process left it.
    pub(crate) async fn carry_on(
        mut self,
        rollout: Rollout,
        again: ResumeChanges,
        latches: Vec<(usize, TakenLatches)>,
    ) -> Result<PlayOutcome, EngineError> {
        let wave = rollout.current_wave();
        let of_wave: HashSet<usize> =
            wave.map(|wave| rollout.wave(wave).iter().copied().collect()).unwrap_or_default();
        for (owner, taken) in latches.into_iter().filter(|(host, _)| of_wave.contains(host)) {
            self.barriers.restore(owner, taken);
        }
        let has_raised = |host_state: &HostState| {
            host_state.resumed.as_ref().is_some_and(|resumed| resumed.raised_at.is_some())
        };
        let raised = self
            .host_states
            .iter()
            .zip(0..)
            .filter(|(host_state, _)| host_state.as_ref().is_some_and(has_raised));
        self.barriers.restore_raised(raised.map(|(_, host)| host));
        self.rollout = Some(rollout);
        for host in again.returned {
            self.input(Input::Returned { host })?;
        }
        for host in again.reopened {
            self.input(Input::Reopen { host })?;
        }
        // Why behind those: whoever takes part again is not lost any more.
        again.news.map_or(Ok(()), |news| self.input(news))?;
        // Why behind those: a canary that takes part again lifts its own stop.
        let bound = self.rollout.as_ref().and_then(Rollout::stopped).filter(|reason| reason.is_lasting());
        if let Some(reason) = bound.cloned() {
            // Why: nor do hosts and later plays begin that had not.
            self.stop = Some(Stop::of(&reason, self.told(&reason)));
            self.pace.send_replace(Pace::NoneNew);
            // Why: who was stopped hears of it once, also where the process that reached the bound did not live to say so.
            let heard = |host_state: &HostState| {
                host_state.resumed.as_ref().is_some_and(|resumed| resumed.halted.is_some())
            };
            let heard = self
                .host_states
                .iter()
                .zip(0..)
                .filter(|(host_state, _)| host_state.as_ref().is_some_and(heard));
            self.barriers.restore_halt(heard.map(|(_, host)| host));
        }
        if self.context.winds_up {
            self.stop = Some(Stop::Interrupted);
            self.pace.send_replace(Pace::Stopping);
        }
        // Why before: the step may start more.
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
        for host in 0..self.host_states.len() {
            match self.host_states.get(host) {
                Some(Some(host_state)) if host_state.custody.adopted => {
                    self.input(Input::Adopted { host })?
                }
                Some(Some(host_state)) if host_state.is_absent() => {
                    self.input(Input::OthersOut { host, out: true })?
                }
                None | Some(None) => self.input(Input::Late { host })?,
                Some(Some(_)) => {}
            }
        }
        self.input(Input::Begin)?;
        self.finish().await
    }

    fn stage(self) -> PlayOutcome {
        let lost = self.rollout.as_ref().map_or(self.context.before.so_far.lost, Rollout::lost);
        let host_states = self.host_states.into_iter().flatten().collect();
        PlayOutcome::of(host_states, self.stop, lost, &self.context.snapshots)
    }

    /// Waits for the next thing to happen and deals with it.
    async fn turn(&mut self) -> Result<(), EngineError> {
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
            () = alarm(self.alarm) => {
                self.alarm = None;
                self.input(Input::Tick)
            }
            Some(ended) = self.tasks.join_next() => match ended {
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
            // The sender is gone: nobody will interrupt any more.
            let (_, never) = mpsc::channel(1);
            *self.context.interrupts = never;
            return Ok(());
        }
        if self.stop.is_none() {
            self.stop = Some(Stop::Interrupted);
            self.pace.send_replace(Pace::Stopping);
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
        self.tasks.abort_all();
        self.running.clear();
        Ok(())
    }

    fn spawn(&mut self, host: usize, turn: Turn) {
        let Some(mut host_state) = self.host_states.get_mut(host).and_then(Option::take) else { return };
        if !host_state.is_alive() {
            self.host_states[host] = Some(host_state);
            return;
        }
        host_state.custody.serves &= turn == Turn::Gate;
        let (answers, from_us) = mpsc::channel(ANSWERS);
        let connected = host_state.link.is_some();
        let dispatcher = DispatcherHandle {
            host,
            name: host_state.name.clone(),
            out: self.sender.clone(),
            answers: from_us,
            pace: self.pace.subscribe(),
            forks: Arc::clone(&self.forks),
            place: None,
        };
        let driver = NodeDriver::new(Arc::clone(&self.context.settings), dispatcher, host_state);
        if turn == Turn::Gate {
            self.checked.insert(host);
        }
        let make = Arc::clone(&self.context.cursors);
        self.running.insert(host, Running { answers, connected });
        self.tasks.spawn(driver.take(turn, make));
    }

    fn message(&mut self, message: FromNode) -> Result<(), EngineError> {
        match message {
            FromNode::Record(entry) => {
                if let Entry::Event(What::Connected { host, ms, .. }) = &entry
                    && let Some(running) = self.index.get(host).and_then(|host| self.running.get_mut(host))
                {
                    running.connected = true;
                    self.slowest.0 = self.slowest.0.max(Duration::from_millis(*ms));
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
                self.out_beside = if elsewhere > 0 || !domains.is_empty() { beside } else { Vec::new() };
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
        let Some(running) = self.running.get(&host) else { return Ok(()) };
        match running.answers.try_send(answer) {
            // Why no error where it is closed: a task that ended meanwhile needs no answer.
            Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
            // Why an error: a node whose answer is lost would wait for it for ever.
            Err(TrySendError::Full(_)) => {
                Err(EngineError::AnswersNotTaken { host: self.name(host), answers: ANSWERS })
            }
        }
    }

    fn ended(
        &mut self,
        host: usize,
        mut host_state: HostState,
        result: Result<(), EarlyEnd>,
    ) -> Result<(), EngineError> {
        self.running.remove(&host);
        host_state.until = Some(std::time::Instant::now());
        match result {
            Ok(()) => {}
            Err(EarlyEnd::Unreachable(why)) => {
                host_state.counts.unreachable += 1;
                host_state.worsen(NodeState::Unreachable, Some(why));
            }
            Err(EarlyEnd::Held(why)) => host_state.worsen(NodeState::Held, Some(why)),
            Err(EarlyEnd::Failed(why)) => {
                host_state.counts.failed += 1;
                host_state.worsen(NodeState::Failed, Some(why));
            }
            Err(EarlyEnd::Stopped) if host_state.is_alive() => {
                // Why over what it had reached: a node that did not get to its end is not as declared.
                host_state.verdict = NodeState::Skipped;
                let began = host_state.counts != RecapCounts::default();
                let how_far = if began { "stopped before its end" } else { "stopped before it began" };
                host_state.message = Some(how_far.to_owned());
            }
            Err(EarlyEnd::Stopped) => {}
        }
        let state = host_state.verdict;
        if self.late.remove(&host) {
            return self.arrived(host, host_state);
        }
        if self.rollout.is_none() && host_state.is_alive() {
            self.slowest.1 = self.slowest.1.max(self.begun.elapsed());
        }
        if self.checked.remove(&host) {
            let (ok, why) = (host_state.is_alive(), host_state.message.clone().unwrap_or_default());
            if !ok {
                self.emit(What::NodeState {
                    host: host_state.name.clone(),
                    state,
                    detail: host_state.message.clone(),
                })?;
            }
            self.host_states[host] = Some(host_state);
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
        self.host_states[host] = Some(host_state);
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
        for (waiting, answer) in self.barriers.pass_on(host, held) {
            self.answer(waiting, answer)?;
        }
        self.open_barrier()
    }

    /// A host that nobody waited for has answered, or will not.
    fn arrived(&mut self, host: usize, host_state: HostState) -> Result<(), EngineError> {
        let (state, detail, answers) =
            (host_state.verdict, host_state.message.clone(), host_state.is_alive());
        self.host_states[host] = Some(host_state);
        if !answers {
            self.emit(What::NodeState { host: self.name(host), state, detail })?;
        }
        self.input(Input::OthersOut { host, out: !answers })?;
        if self.due.remove(&host) {
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
            let now = jiff::Timestamp::now();
            // Why before: what follows from it must not be on disk without it.
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
