//! A whole run: plays one after the other over hosts that are connected once.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, LazyLock},
};

use gpufleet_protocol::{Disruption, RunEpoch, message::Mode};
use tokio::sync::mpsc;

use crate::{
    engine::ports::runner::Runner,
    engine::ports::scheduler::{Marker, Scheduler, Target},
    engine::{
        error::EngineError,
        fleet::{
            approval::Approval,
            context::{Before, PlayContext},
            dispatcher::{Dispatcher, Stage},
            domains::{Domains, domains, waits_for_itself},
            ending::{RunResult, Stop},
            neighbours::Neighbours,
            recorder::Recorder,
            start::rollout,
        },
        host::Slot,
        node::{
            conversation::{delegates::Delegates, ways::Ways},
            hooks::Hooks,
            kept::Kept,
            settings::{Overrules, PlaySettings, RunSettings},
            throttle::Throttles,
            turn::MakeCursor,
        },
        ports::{
            confirm::{Confirm, Forecast, Refusal, Stepper},
            link::{Connector, Purpose},
        },
        replay::{
            durations::{self, Learned},
            history::{Past, PastPlay},
        },
        run::{drain_preview, peers, policy},
    },
    event::{DrainStep, Level, NodeState, PlayStarted, RunStarted, Verb, WaveShape, What},
    interpreter::{Board, Cursor, Files, HostContext, for_all},
    playbook::{Order, Overrides, Play, Program, Strategy, TagFilter},
    report::fold_names,
    rollout::{Amount, Batch, Lost, SoFar, WaveHost, plan_waves},
    template::Value,
};

/// What a run does and how.
#[derive(Clone)]
pub struct Options {
    pub verb: Verb,
    /// Nodes worked on at once.
    pub forks: usize,
    /// Wins over the plays' `max_unavailable`.
    pub max_unavailable: Option<Amount>,
    /// What the command line says over the plays' policies.
    pub overrides: Overrides,
    pub task_timeout_s: u64,
    /// `--become`: for plays that do not say.
    pub default_become: bool,
    pub tags: Arc<TagFilter>,
    /// This run, with its epoch in milliseconds since 1970: a newer run fences an older one.
    pub holder: RunEpoch,
    /// Goes on with what another process began.
    pub resumed: bool,
    pub overrules: Overrules,
    /// The boot of the machine that gpufleet itself runs on: a node in the same one is never disturbed.
    pub own_boot: Option<String>,
    /// Only leads what is under way to a safe point, and begins nothing (`gpufleet abort`).
    pub winds_up: bool,
    /// Whether tasks see that differences are wanted (`ansible_diff_mode`).
    pub diff: bool,
    /// Whether a reading runs commands that say `check_mode: false`, as a person asked for (`run --check`).
    pub runs_commands: bool,
    /// Asked before each task, where a person wants that.
    pub stepper: Option<Arc<dyn Stepper>>,
    /// Nodes that a run whose journal is lost left drained, with its markers: theirs is this run's now.
    pub adopted: HashMap<String, Marker>,
}

/// A run that is ready to begin.
pub struct Engine {
    pub program: Arc<Program>,
    /// Hosts of each play, in order, after patterns and limits.
    pub play_hosts: Vec<Vec<String>>,
    /// Hosts of each play that limits leave out: their outages count where the scheduler tells of them.
    pub neighbours: Vec<Vec<String>>,
    /// For each play what the inventory says of each host; without an entry, as for the first one.
    pub contexts: Vec<Arc<HashMap<String, Arc<HostContext>>>>,
    /// For each play by which of the connector's ways it logs in; without an entry, by the first one.
    pub logins: Vec<u16>,
    pub files: Arc<dyn Files>,
    pub connector: Arc<dyn Connector>,
    pub confirm: Arc<dyn Confirm>,
    /// Who drains the nodes of each play; none where nobody has to.
    pub schedulers: Vec<Option<Arc<Scheduler>>>,
    /// What earlier journals show of each play; plays beyond its end are not known.
    pub learned: Vec<Learned>,
    /// Runs hooks on this machine.
    pub runner: Arc<dyn Runner>,
    pub options: Options,
    /// Hosts that do tasks for others.
    pub delegates: Arc<Delegates>,
    /// What hosts keep of results.
    pub kept: Arc<Kept>,
}

impl Engine {
    /// Carries all plays out. Every host that a play selects ends with a [`What::NodeFinished`].
    ///
    /// # Errors
    /// [`EngineError`]: what happened so far is in the journal.
    pub async fn run(
        self,
        started: RunStarted,
        recorder: &mut Recorder,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<RunResult, EngineError> {
        let order = started.hosts.clone();
        recorder.emit(What::RunStarted(started))?;
        self.go_on(order, Past::default(), recorder, interrupts).await
    }

    /// Goes on with a run that another process began, from what its journal says.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub async fn resume(
        self,
        started: RunStarted,
        past: Past,
        who: String,
        recorder: &mut Recorder,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<RunResult, EngineError> {
        recorder.emit(What::RunResumed { epoch: self.options.holder.epoch, who })?;
        self.go_on(started.hosts, past, recorder, interrupts).await
    }

    async fn go_on(
        self,
        order: Vec<String>,
        mut past: Past,
        recorder: &mut Recorder,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<RunResult, EngineError> {
        let mut slots: HashMap<String, Slot> =
            order.iter().map(|name| (name.clone(), Slot::new(name.clone()))).collect();
        for slot in slots.values_mut() {
            slot.custody.left_behind = self.options.adopted.get(&slot.name).cloned();
            past.restore(slot);
        }
        let ways = Ways::new(Arc::clone(&self.connector), &order, past.heard(), past.power_cycles());
        let settings = Arc::new(self.settings(ways));
        let mut stop = None;
        let mut lost = Lost::default();
        let mut over = false;
        for index in 0..self.play_hosts.len() {
            // Why not one that did not get to its waves: it was planned from what had been read by then.
            let begun = past.play(index).filter(PastPlay::has_begun);
            // Why only then: whom a play that began has out of service is brought back, whatever became of earlier ones.
            if begun.is_none() {
                if stop.is_some() || self.options.winds_up {
                    stop = stop.or(Some(Stop::Interrupted));
                    break;
                }
                if let Some(why) = self.ends_before(index, over, &slots) {
                    recorder.emit(What::Notice { level: Level::Warning, text: why })?;
                    break;
                }
            }
            let hosts = match &begun {
                // Why not the play's: an order that is shuffled is another one now.
                Some(begun) => begun.shape.hosts.clone(),
                None => self.play_hosts.get(index).cloned().unwrap_or_default(),
            };
            let mut taken: Vec<Slot> = hosts.iter().filter_map(|host| slots.remove(host)).collect();
            for slot in &mut taken {
                slot.forecast = None;
            }
            let began = |slot: &Slot| begun.as_ref().is_some_and(|begun| begun.began(&slot.name));
            let all_there = taken.iter().all(|slot| slot.is_alive() || began(slot));
            let is_out = |slot: &Slot| slot.is_out() || past.is_out_after(index, &slot.name);
            let out_elsewhere: Vec<String> =
                order.iter().filter(|host| slots.get(*host).is_some_and(is_out)).cloned().collect();
            let before = Before {
                so_far: SoFar { lost, out_elsewhere: out_elsewhere.len() },
                out_elsewhere,
                stopped: stop.is_some() && !self.options.winds_up,
                settings: Arc::clone(&settings),
            };
            let stage = match begun {
                Some(begun) => {
                    self.take_up(index, begun, &past, taken, &slots, before, recorder, interrupts).await?
                }
                None => self.play(index, taken, &slots, before, recorder, interrupts).await?,
            };
            lost = stage.lost;
            // Why the first one: the others only follow from it.
            stop = if stage.stop == Some(Stop::Aborted) { stage.stop } else { stop.or(stage.stop) };
            if stop.is_none() && self.options.verb.writes() {
                self.tell_who_is_still_drained(index, &stage.slots, recorder).await?;
            }
            if self.options.verb.info().previews_drains
                && let Some(scheduler) = self.scheduler(index)
            {
                let disturbed = forecast(stage.slots.iter(), stage.slots.len()).disturbed;
                let names = disturbed.into_iter().map(|(name, _)| name).collect();
                drain_preview::tell_what_blocks(&scheduler, names, recorder).await?;
            }
            over = all_there && !stage.slots.is_empty() && !stage.slots.iter().any(Slot::is_alive);
            slots.extend(stage.slots.into_iter().map(|slot| (slot.name.clone(), slot)));
            self.hand_out(&stage.given, &mut slots);
            if stop == Some(Stop::Aborted) {
                for slot in slots.values_mut() {
                    slot.custody.out_of_service |= past.is_out_after(index, &slot.name);
                }
                break;
            }
        }
        if stop != Some(Stop::Aborted) {
            self.unlock(past.has_drained(), recorder).await?;
        }
        let out_of_service = self.close(&order, &slots, &stop, recorder).await?;
        let held = slots.values().any(Slot::waits_for_a_person);
        Ok(RunResult { stop, out_of_service, held })
    }

    fn settings(&self, ways: Arc<Ways>) -> RunSettings {
        RunSettings {
            verb: self.options.verb,
            holder: self.options.holder.clone(),
            resumed: self.options.resumed,
            task_timeout_s: self.options.task_timeout_s,
            overrules: self.options.overrules,
            own_boot: self.options.own_boot.clone(),
            stepper: self.options.stepper.clone(),
            connector: Arc::clone(&self.connector),
            ways,
            delegates: Arc::clone(&self.delegates),
            kept: Arc::clone(&self.kept),
        }
    }

    /// Names the nodes of a play that earlier runs left drained. They may well be as declared, and do no work.
    async fn tell_who_is_still_drained(
        &self,
        play: usize,
        slots: &[Slot],
        recorder: &mut Recorder,
    ) -> Result<(), EngineError> {
        let Some(scheduler) = self.scheduler(play).filter(|scheduler| scheduler.surveys) else {
            return Ok(());
        };
        let looked_at = slots.iter().filter(|slot| slot.is_alive() && !slot.is_out());
        let hosts: HashMap<String, &str> =
            looked_at.map(|slot| (scheduler.target(&slot.name).node, slot.name.as_str())).collect();
        let targets: Vec<Target> = hosts.values().map(|host| scheduler.target(host)).collect();
        // Why no error: it is a last look, and changes nothing.
        let Ok(outages) = scheduler.drainer.survey(&targets).await else { return Ok(()) };
        let mut left: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for outage in &outages {
            if let (Some(marker), Some(host)) = (&outage.marker, hosts.get(&outage.node))
                && marker.run != self.options.holder.run
            {
                left.entry(marker.run.clone()).or_default().insert(host);
            }
        }
        for (run, names) in left {
            let names: Vec<&str> = names.into_iter().collect();
            let text = format!(
                "{} still drained at {} by run {run}: `gpufleet resume {run}` goes on with that run, or \
                 `gpufleet adopt PLAYBOOK --run {run}` takes over what it left",
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

    /// Gives the schedulers' locks back: nothing of this run is at work any more.
    async fn unlock(&self, earlier: bool, recorder: &mut Recorder) -> Result<(), EngineError> {
        for scheduler in self.schedulers.iter().flatten() {
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

    /// Takes over what a lost run left drained: from here on it is this run's to finish and to give back.
    fn adopt(&self, dispatcher: &mut Dispatcher<'_, '_>) -> Result<(), EngineError> {
        let Some(scheduler) = dispatcher.context().settings.scheduler.clone() else { return Ok(()) };
        let mut begun = Vec::new();
        for slot in dispatcher.slots_mut() {
            // Why taken: what an earlier play gave back is nobody's any more.
            let Some(marker) = slot.custody.left_behind.take().filter(|_| slot.custody.drain.is_none())
            else {
                continue;
            };
            let step = DrainStep::Begun {
                scheduler: scheduler.drainer.name().to_owned(),
                node: scheduler.target(&slot.name).node,
                run: marker.run.clone(),
                nonce: marker.nonce.clone(),
            };
            begun.push(What::Drain { host: slot.name.clone(), step });
            slot.custody.adopt(marker);
        }
        for what in begun {
            dispatcher.context().recorder.emit(what)?;
        }
        Ok(())
    }

    pub(crate) fn neighbours(
        &self,
        index: usize,
        play: &Play,
        shape: &PlayStarted,
        domains: &Domains<'_>,
    ) -> Neighbours {
        let names = self.neighbours.get(index).map(Vec::as_slice).unwrap_or_default();
        Neighbours::of(names, play, shape, self.amount(play), domains)
    }

    pub(crate) async fn domains(
        &self,
        index: usize,
        play: &Play,
        hosts: &[String],
        recorder: &mut Recorder,
    ) -> Result<Domains<'_>, EngineError> {
        let beside = self.neighbours.get(index).into_iter().flatten();
        let hosts: Vec<String> = hosts.iter().chain(beside).cloned().collect();
        let contexts = self.contexts_of(index);
        domains(play, &hosts, contexts, self.scheduler(index).as_deref(), recorder).await
    }

    /// `hostvars`, where anybody asks for it: what is known of every host as the play begins.
    pub(crate) fn hostvars<'a>(
        &self,
        index: usize,
        play: &Play,
        slots: impl Iterator<Item = &'a Slot>,
        elsewhere: &'a HashMap<String, Slot>,
    ) -> Option<Value> {
        let known = self.contexts_of(index).values().find_map(|context| context.magic.get("hostvars"))?;
        let mode = if self.options.verb.writes() { Mode::Apply } else { Mode::Predict };
        let mut same = for_all(play, mode, &self.options.tags, &*self.files);
        same.insert("ansible_diff_mode", Value::Bool(self.options.diff));
        Some(peers::hostvars(known, &same, slots.chain(elsewhere.values()), play.gather_facts))
    }

    fn amount(&self, play: &Play) -> Amount {
        self.options.max_unavailable.unwrap_or(policy::amount(play.max_unavailable))
    }

    /// What a play knows of each host.
    pub(crate) fn contexts_of(&self, play: usize) -> &Arc<HashMap<String, Arc<HostContext>>> {
        static NOBODY: LazyLock<Arc<HashMap<String, Arc<HostContext>>>> = LazyLock::new(Arc::default);
        self.contexts.get(play).or_else(|| self.contexts.first()).unwrap_or(&NOBODY)
    }

    pub(crate) fn play_at(&self, index: usize) -> Result<&Play, EngineError> {
        let play = self.program.plays.get(index);
        play.map(Arc::as_ref).ok_or_else(|| EngineError::Internal(format!("no play {index}")))
    }

    pub(crate) fn scheduler(&self, play: usize) -> Option<Arc<Scheduler>> {
        self.schedulers.get(play).cloned().flatten()
    }

    async fn close(
        &self,
        order: &[String],
        slots: &HashMap<String, Slot>,
        stop: &Option<Stop>,
        recorder: &mut Recorder,
    ) -> Result<Vec<String>, EngineError> {
        let mut out_of_service = Vec::new();
        for name in order {
            let Some(slot) = slots.get(name) else {
                // Why: its task was cut off by the second interrupt.
                out_of_service.push(name.clone());
                continue;
            };
            if slot.is_out() {
                out_of_service.push(name.clone());
            }
            recorder.emit(What::NodeFinished { host: name.clone(), outcome: slot.outcome() })?;
        }
        if stop != &Some(Stop::Aborted) {
            let links = slots.values().filter_map(|slot| slot.link.as_ref()).map(|(link, _)| link.close());
            futures::future::join_all(links).await;
            self.delegates.close().await;
        }
        Ok(out_of_service)
    }

    async fn play(
        &self,
        index: usize,
        slots: Vec<Slot>,
        elsewhere: &HashMap<String, Slot>,
        before: Before,
        recorder: &mut Recorder,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> Result<Stage, EngineError> {
        let play = self.play_at(index)?;
        let writes = self.options.verb.writes();
        let names: Vec<String> = slots.iter().map(|slot| slot.name.clone()).collect();
        let disrupts = play.disruption > Disruption::Live;
        let budget = match self.amount(play).budget(names.len()) {
            Ok(budget) => budget,
            Err(_) if !disrupts => 1,
            Err(cause) => return Err(EngineError::Budget { play: play.name.clone(), cause }),
        };
        let so_far = before.so_far;
        let mut context = self.context(index, play, names.clone(), before, recorder, interrupts);
        let batches: Vec<Batch> = play.waves.iter().map(policy::batch).collect();
        let canary = batches.contains(&Batch::Canary);
        let gone: Vec<bool> = slots.iter().map(|slot| !slot.is_alive()).collect();
        let mut dispatcher = Dispatcher::new(&mut context, slots);
        if disrupts || canary || !writes {
            // Why none in a reading: who is left out of it would look as if nothing were wrong.
            // Nor where a person is asked: all that will be disturbed has to be in the question.
            let spare = if writes && self.confirm.is_blanket() { budget } else { 0 };
            dispatcher.preflight(canary || disrupts, disrupts || !writes, spare).await?;
        }
        let hosts: Vec<WaveHost> = dispatcher
            .slots()
            .zip(gone)
            .map(|(slot, gone)| match slot {
                Some(slot) => slot.in_waves(gone),
                None => WaveHost { late: true, gone, ..WaveHost::default() },
            })
            .collect();
        let waves = plan_waves(&batches, &hosts);
        let shapes = waves.iter().map(|wave| WaveShape {
            label: wave.label.clone(),
            hosts: wave.hosts.iter().filter_map(|host| names.get(*host).cloned()).collect(),
            aside: wave.aside,
        });
        let models = durations::models(dispatcher.slots().flatten().filter_map(|slot| slot.facts.as_deref()));
        let unknown = Learned::default();
        let learned = (self.learned.get(index).unwrap_or(&unknown), &models);
        let domains = self.domains(index, play, &names, dispatcher.context().recorder).await?;
        let shape = PlayStarted {
            play: index,
            name: play.name.clone(),
            hosts: names.clone(),
            waves: shapes.collect(),
            max_unavailable: budget,
            policy: Some(policy::policy(play, &self.options.overrides, &names, &domains, learned)),
            work: Some(durations::work_of(play)),
            so_far: Some(so_far),
        };
        if disrupts
            && play.strategy == Strategy::Linear
            && let Some(why) = waits_for_itself(&shape)
        {
            return Err(EngineError::WaitsForItself { play: play.name.clone(), why });
        }
        let hostvars = self.hostvars(index, play, dispatcher.slots().flatten(), elsewhere);
        let lost: Vec<String> = (dispatcher.slots().flatten())
            .filter(|slot| !slot.is_alive())
            .map(|slot| slot.name.clone())
            .collect();
        let (make, board) = self.cursors(index, &names, &shape.waves, hostvars, &lost);
        dispatcher.context().cursors = make;
        // Why not in a reading: it has been read, and what hosts were given on the way is the next play's too.
        if writes {
            dispatcher.context().board = board;
        }
        dispatcher.context().recorder.emit(What::PlayStarted(shape.clone()))?;
        if dispatcher.is_stopped() || !writes {
            return dispatcher.leave(None).await;
        }
        let forecast = forecast(dispatcher.slots().flatten(), hosts.len());
        if let Some(refusal) = self.agree(forecast, dispatcher.context()).await? {
            return dispatcher.leave(Some(Stop::Declined(refusal))).await;
        }
        dispatcher.context().neighbours = self.neighbours(index, play, &shape, &domains);
        self.adopt(&mut dispatcher)?;
        let scheduler = self.scheduler(index);
        let rollout = rollout(play, &shape, scheduler.as_deref(), &self.options.overrides, waves, so_far)?;
        dispatcher.carry_out(rollout).await
    }

    pub(crate) fn context<'a>(
        &self,
        index: usize,
        play: &Play,
        names: Vec<String>,
        before: Before,
        recorder: &'a mut Recorder,
        interrupts: &'a mut mpsc::Receiver<()>,
    ) -> PlayContext<'a> {
        let r#become = self.options.default_become || play.may_escalate();
        let nobody_yet = HashMap::new();
        let hostvars = self.hostvars(index, play, std::iter::empty(), &nobody_yet);
        let (cursors, board) = self.cursors(index, &names, &[], hostvars, &[]);
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
                commands: self.options.runs_commands,
                login: self.logins.get(index).copied().unwrap_or_default(),
            },
            gate: play.policy.checks(),
            hooks: Hooks::new(
                play,
                Arc::clone(self.contexts_of(index)),
                Arc::clone(&self.runner),
                self.options.holder.run.clone(),
                Arc::clone(&self.confirm),
            ),
            scheduler: self.scheduler(index),
            linear: play.strategy == Strategy::Linear,
            throttles: Throttles::default(),
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
            board,
            recorder,
            interrupts,
        }
    }

    /// Asks before anybody is disturbed; `None` is agreement.
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
                "{} nodes would be disturbed ({}), and there is no terminal to ask on: add --yes; nothing was changed",
                forecast.disturbed.len(),
                forecast.summary()
            ),
        };
        context.recorder.emit(What::Notice { level: Level::Error, text })?;
        Ok(Some(refusal))
    }

    /// `waves` are the play's batches once they are known.
    pub(crate) fn cursors(
        &self,
        play: usize,
        names: &[String],
        waves: &[WaveShape],
        hostvars: Option<Value>,
        lost: &[String],
    ) -> (MakeCursor, Arc<Board>) {
        let mut names = names.to_vec();
        // Why: as in Ansible, lists of all hosts of a play do not follow its `order`.
        if self.program.plays.get(play).is_some_and(|play| play.order != Order::Inventory) {
            self.as_in_inventory(&mut names);
        }
        let shared = |names: &[String]| -> Vec<Arc<str>> {
            names.iter().map(|name| Arc::from(name.as_str())).collect()
        };
        let names = shared(&names);
        // Why not those in the inventory's order too: as in Ansible, a batch has the play's.
        let batches: Vec<Vec<Arc<str>>> = waves.iter().map(|wave| shared(&wave.hosts)).collect();
        let extra = self
            .contexts_of(play)
            .values()
            .next()
            .map(|context| Arc::clone(&context.extra))
            .unwrap_or_default();
        // Why only then: before, each host is read for itself.
        let known = hostvars.as_ref().filter(|_| !waves.is_empty()).and_then(Value::as_map).cloned();
        let board = Arc::new(Board::new(known, names.clone(), batches.clone(), extra));
        lost.iter().for_each(|host| board.lose(host));
        let of_cursors = Arc::clone(&board);
        let (program, files) = (Arc::clone(&self.program), Arc::clone(&self.files));
        let (contexts, options) = (Arc::clone(self.contexts_of(play)), self.options.clone());
        let peers = peers::of(&names, &batches, lost, hostvars);
        let make: MakeCursor = Arc::new(move |slot: &Slot, mode: Mode, defer_to_reboot: bool| {
            let context = contexts.get(&slot.name).cloned().unwrap_or_default();
            let (tags, files) = (Arc::clone(&options.tags), Arc::clone(&files));
            let mut cursor = Cursor::new(&program, play, context, slot.vars.clone(), mode, tags, files)?;
            cursor.set_defer_to_reboot(defer_to_reboot);
            cursor.set_diff_mode(options.diff);
            cursor.set_runs_commands(options.runs_commands);
            cursor.set_stepping(options.stepper.is_some() && mode == Mode::Apply);
            cursor.set_peers(peers.get(&slot.name), Some(Arc::clone(&of_cursors)));
            Some(cursor)
        });
        (make, board)
    }
}

/// What the predictions say that a play would disturb.
pub(crate) fn forecast<'a>(slots: impl Iterator<Item = &'a Slot>, hosts: usize) -> Forecast {
    let disturbed = slots.filter_map(|slot| {
        let class = slot.forecast?.class;
        (class > Disruption::Live && slot.verdict != NodeState::Unreachable)
            .then(|| (slot.name.clone(), class))
    });
    Forecast { disturbed: disturbed.collect(), hosts }
}
