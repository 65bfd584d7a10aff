//! A whole run: plays one after the other over hosts that are connected once.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use gpufleet_protocol::{Disruption, message::Mode};
use tokio::sync::mpsc;

use crate::{
    engine::ports::runner::Runner,
    engine::ports::scheduler::Target,
    engine::{
        error::EngineError,
        fleet::{
            approval::Approval,
            context::{EarlierPlays, PlayContext},
            dispatcher::{Dispatcher, PlayOutcome},
            domains::{Domains, domains, waits_for_itself},
            ending::{RunResult, Stop},
            neighbours::Neighbours,
            recorder::Recorder,
            start::rollout,
        },
        host::HostState,
        node::{
            command_losses::CommandLosses,
            conversation::{delegates::Delegates, ways::Ways},
            hooks::Hooks,
            results_budget::ResultsBudget,
            settings::{Keeping, PlaySettings, RunSettings},
            throttle::Throttles,
            turn::MakeCursor,
        },
        ports::{
            confirm::{Confirm, Forecast, Refusal},
            link::{Connector, Purpose},
        },
        replay::{
            durations,
            history::{PlayHistory, RunHistory},
        },
        run::{
            drain_preview,
            options::{Options, PlayInputs},
            peers, policy, take_over,
        },
    },
    event::{DrainStep, EVENT_VERSION, HEALTH, Level, NodeState, PlayStarted, RunStarted, WaveShape, What},
    index::PlayIndex,
    interpreter::{Cursor, Files, HostSnapshots, for_all},
    journal::Replayed,
    playbook::{Order, Play, Program, Strategy},
    report::fold_names,
    rollout::{Amount, Batch, Lost, SoFar, WaveHost, plan_waves},
    template::Value,
};

/// A run that is ready to begin.
pub struct Engine {
    pub program: Arc<Program>,
    pub plays: PlayInputs,
    pub files: Arc<dyn Files>,
    pub connector: Arc<dyn Connector>,
    pub confirm: Arc<dyn Confirm>,
    /// Runs hooks on this machine.
    pub runner: Arc<dyn Runner>,
    pub options: Options,
    /// Hosts that do tasks for others.
    pub delegates: Arc<Delegates>,
    /// What hosts keep of results.
    pub results_budget: Arc<ResultsBudget>,
    /// What earlier audits remember of hosts, by their names.
    pub remembered: Vec<(String, serde_json::Value)>,
}

impl Engine {
    /// Carries all plays out. Every host that a play selects ends with a [`What::NodeFinished`].
    ///
    /// # Errors
    /// [`EngineError`]: what happened so far is in the journal.
    pub async fn run(
        mut self,
        started: RunStarted,
        recorder: &mut Recorder,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<RunResult, EngineError> {
        let order = started.hosts.clone();
        let known: BTreeSet<&String> = order.iter().collect();
        recorder.emit(What::RunStarted(started))?;
        for (host, memory) in std::mem::take(&mut self.remembered) {
            if known.contains(&host) {
                recorder.emit(What::Remembered { host, memory })?;
            }
        }
        self.go_on(order, RunHistory::default(), recorder, interrupts).await
    }

    /// Goes on with a run that another process began, from what its journal says.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub async fn resume(
        self,
        started: RunStarted,
        run_history: RunHistory,
        who: String,
        recorder: &mut Recorder,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<RunResult, EngineError> {
        recorder.emit(What::RunResumed { epoch: self.options.holder.epoch, who, version: EVENT_VERSION })?;
        self.go_on(started.hosts, run_history, recorder, interrupts).await
    }

    async fn go_on(
        self,
        order: Vec<String>,
        mut run_history: RunHistory,
        recorder: &mut Recorder,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<RunResult, EngineError> {
        let mut host_states: HashMap<String, HostState> =
            order.iter().map(|name| (name.clone(), HostState::new(name.clone()))).collect();
        let mut left_behind = match self.options.verb.writes() {
            true => take_over::taken_over(&self.options.earlier, &self.plays.schedulers, recorder).await?,
            false => HashMap::new(),
        };
        for host_state in host_states.values_mut() {
            host_state.custody.left_behind = left_behind.remove(&host_state.name);
            run_history.restore(host_state);
        }
        let ways =
            Ways::new(Arc::clone(&self.connector), &order, run_history.heard(), run_history.power_cycles());
        let settings = Arc::new(self.settings(ways));
        let mut stop = None;
        let mut lost = Lost::default();
        let mut over = false;
        for index in (0..self.plays.hosts.len()).map(PlayIndex::from) {
            // Why not a play that did not get to its waves: it is planned anew from what is read now.
            let play_history = run_history.play(index).filter(PlayHistory::has_begun);
            // Why only then: nodes that a play has out of service are brought back, whatever became of earlier plays.
            if play_history.is_none() {
                if stop.is_some() || self.options.winds_up {
                    stop = stop.or(Some(Stop::Interrupted));
                    break;
                }
                if let Some(why) = self.ends_before(index, over, &host_states) {
                    recorder.emit(What::Notice { level: Level::Warning, text: why })?;
                    break;
                }
            }
            let hosts = match &play_history {
                // Why not the play's own: a shuffled order is a different one now.
                Some(play_history) => play_history.shape.hosts.clone(),
                None => self.plays.hosts_of(index).to_vec(),
            };
            let mut taken: Vec<HostState> =
                hosts.iter().filter_map(|host| host_states.remove(host)).collect();
            for host_state in &mut taken {
                host_state.forecast = None;
            }
            let began = |host_state: &HostState| {
                play_history.as_ref().is_some_and(|play_history| play_history.began(&host_state.name))
            };
            let all_there = taken.iter().all(|host_state| host_state.is_alive() || began(host_state));
            let is_out = |host_state: &HostState| {
                host_state.is_out() || run_history.is_out_after(index, &host_state.name)
            };
            let out_elsewhere: Vec<String> =
                order.iter().filter(|host| host_states.get(*host).is_some_and(is_out)).cloned().collect();
            let before = EarlierPlays {
                so_far: SoFar { lost, out_elsewhere: out_elsewhere.len() },
                out_elsewhere,
                stopped: stop.is_some() && !self.options.winds_up,
                settings: Arc::clone(&settings),
            };
            let mut outcome = match play_history {
                Some(play_history) => {
                    self.take_up(
                        index,
                        play_history,
                        &run_history,
                        taken,
                        &host_states,
                        before,
                        recorder,
                        interrupts,
                    )
                    .await?
                }
                None => self.play(index, taken, &host_states, before, recorder, interrupts).await?,
            };
            lost = outcome.lost;
            // Why the first one: later stops follow from it.
            stop = if outcome.stop == Some(Stop::Aborted) { outcome.stop } else { stop.or(outcome.stop) };
            if stop.is_none() && self.options.verb.writes() {
                self.tell_who_is_still_drained(index, &outcome.host_states, recorder).await?;
            }
            if self.options.verb.info().previews_drains
                && let Some(scheduler) = self.plays.scheduler_of(index)
            {
                let disturbed = forecast(outcome.host_states.iter(), outcome.host_states.len()).disturbed;
                let mut names: Vec<String> = disturbed.into_iter().map(|(name, _)| name).collect();
                let held: HashMap<String, String> =
                    drain_preview::held_for_the_scheduler(&scheduler, &names).await.into_iter().collect();
                for host_state in &mut outcome.host_states {
                    let Some(why) = held.get(&host_state.name) else { continue };
                    host_state.worsen(NodeState::Held, Some(why.clone()));
                    let (state, detail) = host_state.standing();
                    recorder.emit(What::NodeState { host: host_state.name.clone(), state, detail })?;
                }
                names.retain(|name| !held.contains_key(name));
                drain_preview::tell_what_blocks(&scheduler, names, recorder).await?;
            }
            over = all_there
                && !outcome.host_states.is_empty()
                && !outcome.host_states.iter().any(HostState::is_alive);
            host_states.extend(
                outcome.host_states.into_iter().map(|host_state| (host_state.name.clone(), host_state)),
            );
            self.hand_out(&outcome.given, &mut host_states);
            if stop == Some(Stop::Aborted) {
                for host_state in host_states.values_mut() {
                    host_state.custody.out_of_service |= run_history.is_out_after(index, &host_state.name);
                }
                break;
            }
        }
        if stop != Some(Stop::Aborted) {
            self.unlock(run_history.has_drained(), recorder).await?;
        }
        let out_of_service = self.close(&order, &host_states, &stop, recorder).await?;
        let held = host_states.values().any(HostState::waits_for_a_person);
        Ok(RunResult { stop, out_of_service, held })
    }

    fn settings(&self, ways: Arc<Ways>) -> RunSettings {
        RunSettings {
            verb: self.options.verb,
            holder: self.options.holder.clone(),
            resumed: self.options.resumed,
            task_timeout_s: self.options.tasks.timeout_s,
            overrules: self.options.overrules,
            own_boot: self.options.own_boot.clone(),
            stepper: self.options.tasks.stepper.clone(),
            keeping: Keeping {
                last: self.options.tasks.keeps,
                signer: self.options.tasks.keep_signer.clone(),
            },
            connector: Arc::clone(&self.connector),
            ways,
            delegates: Arc::clone(&self.delegates),
            results_budget: Arc::clone(&self.results_budget),
        }
    }

    /// Names the nodes of a play that earlier runs left drained. They may well be as declared, and do no work.
    async fn tell_who_is_still_drained(
        &self,
        play: PlayIndex,
        host_states: &[HostState],
        recorder: &mut Recorder,
    ) -> Result<(), EngineError> {
        let Some(scheduler) = self.plays.scheduler_of(play).filter(|scheduler| scheduler.surveys) else {
            return Ok(());
        };
        let looked_at = host_states.iter().filter(|host_state| host_state.is_alive() && !host_state.is_out());
        let hosts: HashMap<String, &str> = looked_at
            .map(|host_state| (scheduler.target(&host_state.name).node, host_state.name.as_str()))
            .collect();
        let targets: Vec<Target> = hosts.values().map(|host| scheduler.target(host)).collect();
        // Why no error: it is a last look, and changes nothing.
        let Ok(outages) = scheduler.drainer.survey(&targets).await else { return Ok(()) };
        let mut left: BTreeMap<String, (String, BTreeSet<&str>)> = BTreeMap::new();
        for outage in &outages {
            if let (Some(marker), Some(host)) = (&outage.marker, hosts.get(&outage.node))
                && marker.run != self.options.holder.run
            {
                let (run, next) = self.options.earlier.next(marker);
                left.entry(run.to_owned()).or_insert_with(|| (next, BTreeSet::new())).1.insert(host);
            }
        }
        for (run, (next, names)) in left {
            let names: Vec<&str> = names.into_iter().collect();
            let text = format!(
                "{} still drained at {} by run {run}: {next}",
                match names.as_slice() {
                    [one] => format!("{one} is"),
                    names => format!("{} are", fold_names(names)),
                },
                scheduler.drainer.name()
            );
            recorder.emit(What::Notice { level: Level::Warning, text })?;
        }
        Ok(())
    }

    /// Gives the schedulers' locks back at the end of the run.
    async fn unlock(&self, earlier: bool, recorder: &mut Recorder) -> Result<(), EngineError> {
        for scheduler in self.plays.schedulers.iter().flatten() {
            if let Err(error) = scheduler.unlock(&self.options.holder.run, earlier).await {
                let text = format!(
                    "the lock at {} could not be given back: {error}; `gpufleet locks` shows it",
                    scheduler.drainer.name()
                );
                recorder.emit(What::Notice { level: Level::Warning, text })?;
            }
        }
        Ok(())
    }

    /// Takes over nodes that a lost run left drained. From here on this run finishes them and gives them back.
    fn adopt(&self, dispatcher: &mut Dispatcher<'_, '_>) -> Result<(), EngineError> {
        let Some(scheduler) = dispatcher.context().settings.scheduler.clone() else { return Ok(()) };
        let mut begun = Vec::new();
        for host_state in dispatcher.host_states_mut() {
            // Why taken: a node that an earlier play gave back is not adopted again.
            let Some(marker) =
                host_state.custody.left_behind.take().filter(|_| host_state.custody.drain.is_none())
            else {
                continue;
            };
            let step = DrainStep::Begun {
                scheduler: scheduler.drainer.name().to_owned(),
                node: scheduler.target(&host_state.name).node,
                run: marker.run.clone(),
                nonce: marker.nonce.clone(),
            };
            begun.push(What::Drain { host: host_state.name.clone(), step });
            host_state.custody.adopt(marker);
        }
        for what in begun {
            dispatcher.context().recorder.emit(what)?;
        }
        Ok(())
    }

    pub(crate) fn neighbours(
        &self,
        index: PlayIndex,
        play: &Play,
        shape: &PlayStarted,
        domains: &Domains<'_>,
    ) -> Neighbours {
        let names = self.plays.neighbours_of(index);
        Neighbours::of(names, play, shape, self.amount(play), domains)
    }

    pub(crate) async fn domains(
        &self,
        index: PlayIndex,
        play: &Play,
        hosts: &[String],
        recorder: &mut Recorder,
    ) -> Result<Domains<'_>, EngineError> {
        let beside = self.plays.neighbours_of(index);
        let hosts: Vec<String> = hosts.iter().chain(beside).cloned().collect();
        let contexts = self.plays.contexts_of(index);
        domains(play, &hosts, contexts, self.plays.scheduler_of(index).as_deref(), recorder).await
    }

    /// `hostvars`, if the play asks for it: what is known of every host as the play begins.
    pub(crate) fn hostvars<'a>(
        &self,
        index: PlayIndex,
        play: &Play,
        host_states: impl Iterator<Item = &'a HostState>,
        elsewhere: &'a HashMap<String, HostState>,
    ) -> Option<Value> {
        let known =
            self.plays.contexts_of(index).values().find_map(|context| context.magic.get("hostvars"))?;
        let mode = if self.options.verb.writes() { Mode::Apply } else { Mode::Predict };
        let mut same = for_all(play, mode, &self.options.tasks.tags, &*self.files);
        same.insert("ansible_diff_mode", Value::Bool(self.options.tasks.diff));
        Some(peers::hostvars(known, &same, host_states.chain(elsewhere.values()), play.gather_facts))
    }

    fn amount(&self, play: &Play) -> Amount {
        self.options.rollout.max_unavailable.unwrap_or(policy::amount(play.max_unavailable))
    }

    pub(crate) fn play_at(&self, index: PlayIndex) -> Result<&Play, EngineError> {
        let play = self.program.plays.get(index.place());
        play.map(Arc::as_ref).ok_or_else(|| EngineError::NoSuchPlay { play: index })
    }

    async fn close(
        &self,
        order: &[String],
        host_states: &HashMap<String, HostState>,
        stop: &Option<Stop>,
        recorder: &mut Recorder,
    ) -> Result<Vec<String>, EngineError> {
        let mut out_of_service = Vec::new();
        for name in order {
            let Some(host_state) = host_states.get(name) else {
                // Why: its task was cut off by the second interrupt.
                out_of_service.push(name.clone());
                continue;
            };
            if host_state.is_out() {
                out_of_service.push(name.clone());
            }
            recorder.emit(What::NodeFinished { host: name.clone(), outcome: host_state.outcome() })?;
        }
        if stop != &Some(Stop::Aborted) {
            let links = host_states
                .values()
                .filter_map(|host_state| host_state.link.as_ref())
                .map(|(link, _)| link.close());
            futures::future::join_all(links).await;
            self.delegates.close().await;
        }
        Ok(out_of_service)
    }

    async fn play(
        &self,
        index: PlayIndex,
        host_states: Vec<HostState>,
        elsewhere: &HashMap<String, HostState>,
        before: EarlierPlays,
        recorder: &mut Recorder,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<PlayOutcome, EngineError> {
        let play = self.play_at(index)?;
        let writes = self.options.verb.writes();
        let names: Vec<String> = host_states.iter().map(|host_state| host_state.name.clone()).collect();
        let disrupts = play.disruption > Disruption::Live;
        let budget = match self.amount(play).budget(names.len(), self.options.rollout.limited) {
            Ok(budget) => budget,
            Err(_) if !disrupts => 1,
            Err(cause) => return Err(EngineError::Budget { play: play.name.clone(), cause }),
        };
        let so_far = before.so_far;
        let mut context = self.context(index, play, names.clone(), before, recorder, interrupts);
        let batches: Vec<Batch> = play.waves.iter().map(policy::batch).collect();
        let canary = batches.contains(&Batch::Canary);
        let gone: Vec<bool> = host_states.iter().map(|host_state| !host_state.is_alive()).collect();
        let mut dispatcher = Dispatcher::new(&mut context, host_states);
        if disrupts || canary || !writes {
            // Why also for canaries: they are chosen among nodes that have something to do.
            // Why none in a reading: a host that is left out would look as if nothing were wrong. Why none if a person is
            // asked: the question has to name all that will be disturbed.
            let spare = if writes && self.confirm.is_blanket() { budget } else { 0 };
            dispatcher.preflight(canary || disrupts, canary || disrupts || !writes, spare).await?;
        }
        let hosts: Vec<WaveHost> = dispatcher
            .host_states()
            .zip(gone)
            .map(|(host_state, gone)| match host_state {
                Some(host_state) => host_state.in_waves(gone, writes),
                None => WaveHost { late: true, gone, ..WaveHost::default() },
            })
            .collect();
        let waves = plan_waves(&batches, &hosts);
        let shapes = waves.iter().map(|wave| WaveShape {
            label: wave.label.clone(),
            hosts: wave.hosts.iter().filter_map(|host| names.get(*host).cloned()).collect(),
            aside: wave.aside,
        });
        let models = durations::models(
            dispatcher.host_states().flatten().filter_map(|host_state| host_state.facts.as_deref()),
        );
        let history = self.plays.durations_of(index);
        let domains = self.domains(index, play, &names, dispatcher.context().recorder).await?;
        let shape = PlayStarted {
            play: index,
            name: play.name.clone(),
            hosts: names.clone(),
            waves: shapes.collect(),
            max_unavailable: budget,
            policy: Some(policy::policy(
                play,
                &self.options.rollout.overrides,
                &names,
                &domains,
                (&history, &models),
            )),
            work: Some(durations::work_of(play)),
        };
        if disrupts
            && play.strategy == Strategy::Linear
            && let Some(why) = waits_for_itself(&shape)
        {
            return Err(EngineError::WaitsForItself { play: play.name.clone(), why });
        }
        let hostvars = self.hostvars(index, play, dispatcher.host_states().flatten(), elsewhere);
        let lost: Vec<String> = (dispatcher.host_states().flatten())
            .filter(|host_state| !host_state.is_alive())
            .map(|host_state| host_state.name.clone())
            .collect();
        let (make, snapshots) = self.cursors(index, &names, &shape.waves, hostvars, &lost);
        dispatcher.context().cursors = make;
        // Why not in a reading: it is over, and the next play needs what tasks set for other hosts in it.
        if writes {
            dispatcher.context().snapshots = snapshots;
        }
        dispatcher.context().recorder.emit(What::PlayStarted(shape.clone()))?;
        dispatcher.context().recorder.emit(Replayed::PlayBeganWith { play: index, so_far })?;
        if dispatcher.is_stopped() || !writes {
            return dispatcher.leave(None).await;
        }
        let forecast = forecast(dispatcher.host_states().flatten(), hosts.len());
        if let Some(refusal) = self.agree(forecast, dispatcher.context()).await? {
            return dispatcher.leave(Some(Stop::Declined(refusal))).await;
        }
        dispatcher.context().neighbours = self.neighbours(index, play, &shape, &domains);
        self.adopt(&mut dispatcher)?;
        let scheduler = self.plays.scheduler_of(index);
        let rollout =
            rollout(play, &shape, scheduler.as_deref(), &self.options.rollout.overrides, waves, so_far)?;
        dispatcher.carry_out(rollout).await
    }

    pub(crate) fn context<'a>(
        &self,
        index: PlayIndex,
        play: &Play,
        names: Vec<String>,
        before: EarlierPlays,
        recorder: &'a mut Recorder,
        interrupts: &'a mut mpsc::Receiver<()>,
    ) -> PlayContext<'a> {
        let r#become = self.options.tasks.default_become || play.may_escalate();
        let nobody_yet = HashMap::new();
        let hostvars = self.hostvars(index, play, std::iter::empty(), &nobody_yet);
        let (cursors, snapshots) = self.cursors(index, &names, &[], hostvars, &[]);
        let settings = PlaySettings {
            run: Arc::clone(&before.settings),
            play: index,
            purpose: Purpose {
                writes: self.options.verb.writes(),
                r#become,
                local: play
                    .connection
                    .as_ref()
                    .and_then(Value::as_str)
                    .is_some_and(|text| text.rsplit('.').next() == Some("local")),
                guest: false,
                commands: self.options.tasks.runs_commands,
                own_commands: self.options.tasks.own_commands && play.span.file() == HEALTH,
                login: self.plays.login_of(index),
            },
            gate: play.policy.checks(),
            hooks: Hooks::new(
                play,
                Arc::clone(self.plays.contexts_of(index)),
                Arc::clone(&self.runner),
                self.options.holder.run.clone(),
                Arc::clone(&self.confirm),
            ),
            scheduler: self.plays.scheduler_of(index),
            linear: play.strategy == Strategy::Linear,
            disturbs: play.disruption > Disruption::Live,
            later: match self.options.verb.writes() {
                true => Default::default(),
                false => self.plays.hosts.iter().skip(index.place() + 1).flatten().cloned().collect(),
            },
            throttles: Throttles::default(),
            command_losses: CommandLosses::new(
                self.amount(play).budget(names.len(), self.options.rollout.limited).unwrap_or(1),
            ),
            earlier: Arc::new(self.options.earlier.clone()),
        };
        PlayContext {
            settings: Arc::new(settings),
            names,
            neighbours: Neighbours::default(),
            forks: self.options.forks,
            cursors,
            approval: Approval::Everything,
            winds_up: self.options.winds_up || before.stopped,
            before,
            snapshots,
            recorder,
            interrupts,
        }
    }

    /// Asks before any node is disturbed; `None` is agreement.
    async fn agree(
        &self,
        forecast: Forecast,
        context: &mut PlayContext<'_>,
    ) -> Result<Option<Refusal>, EngineError> {
        if self.confirm.is_blanket() {
            return Ok(None);
        }
        context.approval = Approval::shown(&forecast);
        if forecast.disturbed.is_empty() {
            return Ok(None);
        }
        let refusal = tokio::select! {
            answer = self.confirm.confirm(&forecast) => match answer {
                Ok(()) => return Ok(None),
                Err(refusal) => refusal,
            },
            Some(()) = context.interrupts.recv() => Refusal::Interrupted,
        };
        let text = match refusal {
            Refusal::Declined | Refusal::Interrupted => "nothing was changed".to_owned(),
            Refusal::NobodyToAsk => format!(
                "{} would be disturbed ({}), and there is no terminal to ask on: add --yes; nothing was changed",
                match forecast.disturbed.len() {
                    1 => "1 node".to_owned(),
                    nodes => format!("{nodes} nodes"),
                },
                forecast.summary()
            ),
        };
        context.recorder.emit(What::Notice { level: Level::Error, text })?;
        Ok(Some(refusal))
    }

    /// `waves` are the play's batches once they are known.
    pub(crate) fn cursors(
        &self,
        play: PlayIndex,
        names: &[String],
        waves: &[WaveShape],
        hostvars: Option<Value>,
        lost: &[String],
    ) -> (MakeCursor, Arc<HostSnapshots>) {
        let mut names = names.to_vec();
        // Why: as in Ansible, the lists of all hosts of a play do not follow its `order`.
        if self.program.plays.get(play.place()).is_some_and(|play| play.order != Order::Inventory) {
            self.as_in_inventory(&mut names);
        }
        let shared = |names: &[String]| -> Vec<Arc<str>> {
            names.iter().map(|name| Arc::from(name.as_str())).collect()
        };
        let names = shared(&names);
        // Why not the batches too: as in Ansible, they have the play's order.
        let batches: Vec<Vec<Arc<str>>> = waves.iter().map(|wave| shared(&wave.hosts)).collect();
        let extra = self
            .plays
            .contexts_of(play)
            .values()
            .next()
            .map(|context| Arc::clone(&context.extra))
            .unwrap_or_default();
        // Why only with waves: before that, each host is read for itself.
        let known = hostvars.as_ref().filter(|_| !waves.is_empty()).and_then(Value::as_map).cloned();
        let snapshots = Arc::new(HostSnapshots::new(known, names.clone(), batches.clone(), extra));
        lost.iter().for_each(|host| snapshots.lose(host));
        let of_cursors = Arc::clone(&snapshots);
        let (program, files) = (Arc::clone(&self.program), Arc::clone(&self.files));
        let (contexts, options) = (Arc::clone(self.plays.contexts_of(play)), self.options.tasks.clone());
        let peers = peers::of(&names, &batches, lost, hostvars);
        let make: MakeCursor = Arc::new(move |host_state: &HostState, mode: Mode, defer_to_reboot: bool| {
            let context = contexts.get(&host_state.name).cloned().unwrap_or_default();
            let (tags, files) = (Arc::clone(&options.tags), Arc::clone(&files));
            let mut cursor =
                Cursor::new(&program, play, context, host_state.vars.clone(), mode, tags, files)?;
            cursor.set_defer_to_reboot(defer_to_reboot);
            cursor.set_diff_mode(options.diff);
            cursor.set_runs_commands(options.runs_commands);
            cursor.set_stepping(options.stepper.is_some() && mode == Mode::Apply);
            cursor.set_peers(peers.get(&host_state.name), Some(Arc::clone(&of_cursors)));
            Some(cursor)
        });
        (make, snapshots)
    }
}

/// What the predictions say that a play would disturb.
pub(crate) fn forecast<'a>(host_states: impl Iterator<Item = &'a HostState>, hosts: usize) -> Forecast {
    let disturbed = host_states.filter_map(|host_state| {
        let class = host_state.forecast?.class;
        (class > Disruption::Live && host_state.verdict != NodeState::Unreachable)
            .then(|| (host_state.name.clone(), class))
    });
    Forecast { disturbed: disturbed.collect(), hosts }
}
