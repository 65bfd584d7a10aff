//! `run`, `plan` and `audit`: one engine, three verbs.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use gpufleet::{
    display::{self, AnsibleLines, PlanView},
    drain::{self, LocalRunner, Logins, Marker, PlayHosts, Scheduler, Surroundings},
    engine::{
        EarlierRuns, Engine, EngineError, Options, Overrules, PlayInputs, Recorder, Refusal, ResultsBudget,
        RolloutOptions, RunHistory, RunResult, Sink, Stepper, Stop, TaskOptions, finished,
    },
    event::{EVENT_VERSION, ResultScreen, RunStarted, Verb, What},
    hosts::{self, Contexts, KnownToAll, ways},
    interpreter::CachedFiles,
    journal::{self, Journal, Record, RunDir, RunId},
    playbook::Overrides,
    report::{self, Ending, ExitRules, RunModel, Timing, computed_exit_code},
    rollout::Amount,
    session::Fleet,
    template::Outside,
};
use gpufleet_protocol::RunEpoch;
use tokio::sync::mpsc;

use super::{
    args::{Connection, ConnectionKind, Documents, Format, PlanArgs, PlaybookSource, RunArgs, StoreChoice},
    audit::{self, AskedChecks},
    command_line::command_line,
    environment::Environment,
    error::CommandError,
    experience,
    fleet::{self, Login, fleet},
    history,
    inputs::{Inputs, programs},
    keep_key::KeepKey,
    kept_runs,
    late_files::LateFiles,
    left_drained, listing,
    loading::{Loaded, delegates, load, tags},
    machine::ThisMachine,
    output::Output,
    prompt::{Question, Steps},
    resume,
    sinks::{AdHocView, AnsibleSink, AnswersSink, LinesSink, Screen, ScreenSink},
    sources, store, trust,
};

/// How often the live display lets time pass.
const TICK: Duration = Duration::from_millis(500);
/// How long calls that block are waited for once a command's work is done.
const LEFTOVERS: Duration = Duration::from_secs(2);

/// What the verbs have in common.
pub struct Request<'a> {
    pub verb: Verb,
    pub source: &'a PlaybookSource,
    pub connection: &'a Connection,
    pub documents: &'a Documents,
    pub yes: bool,
    pub diff: bool,
    runs_commands: bool,
    /// One task on each node, shown as an answer of that node (`exec -m`).
    pub ad_hoc: Option<AdHocView>,
    step: bool,
    node: Option<&'a str>,
    fail_on_change: bool,
    pub strict: bool,
    max_unavailable: Option<Amount>,
    pub overrides: Overrides,
    overrules: Overrules,
    winds_up: bool,
    /// What a resume needs to load the same again.
    pub record: Option<&'a RunArgs>,
    /// Nodes that lost runs left drained.
    adopted: HashMap<String, Marker>,
    /// Which checks judge the nodes.
    pub checks: Option<&'a AskedChecks<'a>>,
    /// Where it is recorded what an audit found.
    pub store: Option<&'a StoreChoice>,
}

impl<'a> Request<'a> {
    /// A reading that says nothing of its own.
    pub fn new(
        verb: Verb,
        source: &'a PlaybookSource,
        connection: &'a Connection,
        documents: &'a Documents,
    ) -> Self {
        Self {
            verb,
            source,
            connection,
            documents,
            yes: true,
            diff: false,
            runs_commands: false,
            ad_hoc: None,
            step: false,
            node: None,
            fail_on_change: false,
            strict: false,
            max_unavailable: None,
            overrides: Overrides::default(),
            overrules: Overrules::default(),
            winds_up: false,
            record: None,
            adopted: HashMap::new(),
            checks: None,
            store: None,
        }
    }

    fn format(&self) -> Format {
        self.documents.format()
    }
}

/// A run that another process began.
pub struct TakenUp {
    pub run: RunId,
    pub started: RunStarted,
    pub records: Vec<Record>,
}

pub fn run(args: &RunArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    if args.listing.is_wanted() {
        return listing::listing(args.listing, &args.source, environment, output);
    }
    carry_out(&request_of(args), None, environment, output)
}

/// What is done with a run that another process began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    On,
    /// Only what is under way is led to a safe point.
    WindUp,
}

/// Goes on with a run, as `args` began it.
pub fn go_on(
    args: &RunArgs,
    taken_up: TakenUp,
    ahead: Ahead,
    environment: &Environment,
    output: &Output,
) -> Result<u8, CommandError> {
    let request = Request { winds_up: ahead == Ahead::WindUp, ..request_of(args) };
    carry_out(&request, Some(taken_up), environment, output)
}

/// A run that takes over what lost runs left drained.
pub fn adopt(
    args: &RunArgs,
    adopted: HashMap<String, Marker>,
    environment: &Environment,
    output: &Output,
) -> Result<u8, CommandError> {
    carry_out(&Request { adopted, ..request_of(args) }, None, environment, output)
}

/// A play that drains its nodes: with which scheduler, and its hosts.
pub type DrainingPlay = (Arc<Scheduler>, Vec<String>);

/// The plays that drain their nodes; no node is contacted.
pub fn plays(
    source: &PlaybookSource,
    connection: &Connection,
    environment: &Environment,
    output: &Output,
) -> Result<Vec<DrainingPlay>, CommandError> {
    let documents = Documents::default();
    let request = Request::new(Verb::Plan, source, connection, &documents);
    let loaded = load(source, None, environment, output)?;
    let holder = RunEpoch { run: RunId::generate().to_string(), epoch: 0 };
    let outside: Arc<dyn Outside> = files_of(&loaded);
    let reach = Reach::of(&loaded, &request, &outside, holder, environment, output)?;
    let plays = reach.schedulers.into_iter().zip(loaded.play_hosts);
    Ok(plays.filter_map(|(scheduler, hosts)| Some((scheduler?, hosts))).collect())
}

/// A run, or with `--check` a reading, as its command line says.
pub fn request_of(args: &RunArgs) -> Request<'_> {
    let verb = if args.check { Verb::Plan } else { Verb::Run };
    Request {
        yes: args.yes,
        diff: args.diff,
        runs_commands: args.check,
        step: args.step,
        fail_on_change: args.fail_on_change,
        max_unavailable: args.bounds.max_unavailable,
        record: Some(args),
        overrules: Overrules { force: args.overruling.force, steal: args.overruling.steal },
        overrides: Overrides {
            window: args.bounds.window.clone(),
            soak_s: args.soak,
            max_failures: args.max_failures,
        },
        ..Request::new(verb, &args.source, &args.connection, &args.documents)
    }
}

pub fn plan(args: &PlanArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    if args.listing.is_wanted() {
        return listing::listing(args.listing, &args.source, environment, output);
    }
    let request = Request {
        diff: args.diff,
        node: args.node.as_deref(),
        fail_on_change: args.fail_on_change,
        max_unavailable: args.bounds.max_unavailable,
        overrides: Overrides { window: args.bounds.window.clone(), ..Overrides::default() },
        ..Request::new(Verb::Plan, &args.source, &args.connection, &args.documents)
    };
    carry_out(&request, None, environment, output)
}

/// Does the work of a command on a runtime of its own, and ends that whatever calls still block.
pub fn block_on<F: Future>(work: F) -> Result<F::Output, CommandError> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CommandError::internal)?;
    let output = runtime.block_on(work);
    // Why bounded: a call that blocks, such as reading a file of a server that is away, cannot be stopped, and dropping the
    // runtime would wait for it without an end.
    runtime.shutdown_timeout(LEFTOVERS);
    Ok(output)
}

/// The files of this machine, with what templates look up there.
fn files_of(loaded: &Loaded) -> Arc<CachedFiles<sources::Disk>> {
    let files = CachedFiles::with_keyring(sources::Disk, Arc::clone(&loaded.keyring))
        .seen_from(std::env::current_dir().ok().map(|folder| folder.display().to_string()))
        .on(Arc::new(ThisMachine { inventory: Arc::clone(&loaded.inventory) }));
    Arc::new(files)
}

/// How nodes and their schedulers are reached; nothing was contacted.
struct Reach {
    fleet: Fleet,
    contexts: Vec<Arc<Contexts>>,
    /// By which way each play logs in.
    logins: Vec<u16>,
    schedulers: Vec<Option<Arc<Scheduler>>>,
}

impl Reach {
    fn of(
        loaded: &Loaded,
        request: &Request<'_>,
        outside: &Arc<dyn Outside>,
        holder: RunEpoch,
        environment: &Environment,
        output: &Output,
    ) -> Result<Self, CommandError> {
        let mut reached = loaded.hosts.clone();
        let drains = loaded.program.plays.iter().map(|play| &play.policy.drain);
        reached.extend(drains.filter_map(|drain| Some(drain.login()?.host.clone())));
        reached.extend(delegates(loaded)?);
        let escalation = &request.source.escalation;
        let login = Login { connection: request.connection, escalation, outside };
        let plays = loaded.program.plays.iter().zip(&loaded.of_plays).zip(&loaded.play_hosts);
        let plays = plays.map(|((play, inventory), hosts)| (&**play, &**inventory, hosts.as_slice()));
        let (ways, logins) = ways(&loaded.inventory, &reached, plays);
        let fleet = fleet(&ways, &reached, &loaded.extra, login, holder, environment)?;
        let known: BTreeSet<&String> = loaded.hosts.iter().collect();
        let beside: BTreeSet<&String> =
            loaded.neighbours.iter().flatten().filter(|host| !known.contains(host)).collect();
        let hosts: Vec<String> = loaded.hosts.iter().chain(beside).cloned().collect();
        let mut contexts: Vec<Arc<Contexts>> = Vec::with_capacity(loaded.of_plays.len());
        for inventory in &loaded.of_plays {
            let same = loaded.of_plays.iter().zip(&contexts).find(|(other, _)| Arc::ptr_eq(other, inventory));
            if let Some(known) = same.map(|(_, known)| Arc::clone(known)) {
                contexts.push(known);
                continue;
            }
            let to_all = KnownToAll {
                inventory,
                program: &loaded.program,
                extra: &loaded.extra,
                become_default: escalation.r#become,
                become_user: escalation.become_user.as_deref(),
                verbosity: output.verbose,
                forks: request.connection.forks(),
                local: request.connection.kind == Some(ConnectionKind::Local),
                user: request.connection.user.as_deref(),
                limit: request.source.inventory.limit.as_deref(),
                sources: &request.source.inventory.inventory,
            };
            contexts.push(Arc::new(hosts::contexts(&to_all, &hosts)));
        }
        let hosts = PlayHosts { taking_part: &loaded.play_hosts, beside: &loaded.neighbours };
        let surroundings = Surroundings {
            home: environment.home.as_deref(),
            variables: &environment.settings,
            forced: request.overrules.force,
        };
        let mut by_login = Logins::new(fleet.connector(), |host| fleet.targets().of(host, 0, false));
        let (schedulers, warnings) =
            drain::schedulers(&loaded.program, hosts, &contexts, &surroundings, &mut by_login)?;
        drop(by_login);
        if !warnings.is_empty() {
            output.diagnostics(&warnings);
        }
        Ok(Self { fleet, contexts, logins, schedulers })
    }
}

/// Loads what the request names and carries it out.
pub fn carry_out(
    request: &Request<'_>,
    taken_up: Option<TakenUp>,
    environment: &Environment,
    output: &Output,
) -> Result<u8, CommandError> {
    if request.step && !(environment.stdin_is_terminal && environment.stderr_is_terminal) {
        return Err(CommandError::user("--step asks before each task, and there is no terminal to ask on"));
    }
    let loaded = load(request.source, request.max_unavailable, environment, output)?;
    if let Some(node) = request.node
        && !loaded.hosts.iter().any(|host| host == node)
    {
        return Err(CommandError::user(format!("`--node {node}`: no play selects this host")));
    }
    let audit = request.checks.map(|checks| audit::scope(checks, &loaded, output)).transpose()?;
    let own_commands = audit.as_ref().is_some_and(|scope| scope.policy.runs_commands());
    let inputs = Inputs::of(&loaded);
    if let Some(before) = &taken_up {
        inputs.prove_same(&before.started)?;
    }
    let run = taken_up.as_ref().map_or_else(RunId::generate, |before| before.run.clone());
    let epoch = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
    let holder = RunEpoch { run: run.to_string(), epoch };
    let files = files_of(&loaded);
    let outside: Arc<dyn Outside> = Arc::clone(&files) as Arc<dyn Outside>;
    let Reach { fleet, contexts, logins, schedulers } =
        Reach::of(&loaded, request, &outside, holder.clone(), environment, output)?;
    let dir = RunDir::new(&environment.state_dir, &run);
    let journal = open_journal(&dir, request.verb, taken_up.as_ref(), &loaded.hosts, environment)?;
    if let Some(removed) =
        kept_runs::prune(&environment.state_dir, environment.kept_runs, jiff::Timestamp::now())
    {
        output.status(&removed);
    }
    loaded.program.library.read_late_from(Arc::new(LateFiles::new(dir.included())));
    let mut remembered = Vec::new();
    let (started, records) = match taken_up {
        Some(before) => (before.started, before.records),
        None => {
            let mut started = RunStarted {
                version: EVENT_VERSION,
                run_id: run.to_string(),
                verb: request.verb,
                gpufleet: env!("CARGO_PKG_VERSION").to_owned(),
                playbooks: request.source.playbooks.iter().map(|path| path.display().to_string()).collect(),
                inventories: request.source.inventory.inventory.clone(),
                hosts: loaded.hosts.clone(),
                command_line: command_line(),
                digest: inputs.digest(),
                inputs: inputs.into_parts(),
                programs: programs(environment.cache_dir.as_deref()),
                groups: loaded.groups(),
                audit: audit.map(Box::new),
                trend: Vec::new(),
            };
            if let Some(choice) = request.store {
                let earlier = store::earlier(&started, choice, environment, output);
                remembered = earlier.memories;
                started.trend = earlier.trend;
            }
            if let Some(args) = request.record {
                resume::remember(&dir, args)?;
            }
            (started, Vec::new())
        }
    };
    let (left, vain) = match request.verb.writes() {
        true => left_drained::of_hosts(&started, &environment.state_dir),
        false => Default::default(),
    };
    let earlier = EarlierRuns {
        adopted: request.adopted.clone(),
        left,
        vain,
        adopt: left_drained::adopt_command(&started),
    };
    let durations = match request.verb.info().uses_learned_durations {
        true => experience::learned(&loaded.program, &request.overrides, &environment.state_dir, &run),
        false => Vec::new(),
    };
    let people = request.format() == Format::Human && request.ad_hoc.is_none();
    // Why no live display with questions: it would draw over them.
    let live = environment.stderr_is_terminal && !request.step;
    let mut screen = Screen::new(people, live, output.status_style);
    if request.documents.profile || request.documents.junit.is_some() {
        screen.timing = Some(Timing::default());
    }
    let screen = Arc::new(Mutex::new(screen));
    let mut sinks: Vec<Box<dyn Sink>> = vec![Box::new(ScreenSink(Arc::clone(&screen)))];
    match (request.format(), request.ad_hoc) {
        (Format::Jsonl, _) => sinks.push(Box::new(LinesSink::new())),
        (Format::Human | Format::Ansible, Some(view)) => {
            sinks.push(Box::new(AnswersSink::new(view, request.diff, output.style)));
        }
        (Format::Ansible, _) => {
            let lines = AnsibleLines::new(output.style, output.verbose, request.diff);
            sinks.push(Box::new(AnsibleSink::new(lines, Arc::clone(&screen), output.style)));
        }
        _ => {}
    }
    let stepper = request.step.then(|| Arc::new(Steps::new(&records)) as Arc<dyn Stepper>);
    let past = (!records.is_empty()).then(|| (RunHistory::of(&records), environment.who()));
    let recorder = Recorder::after(records, journal, sinks, jiff::Timestamp::now);
    let engine = Engine {
        delegates: Arc::default(),
        remembered,
        results_budget: Arc::new(ResultsBudget::of(
            loaded.play_hosts.iter().flatten().collect::<HashSet<_>>().len(),
        )),
        program: Arc::clone(&loaded.program),
        plays: PlayInputs {
            hosts: loaded.play_hosts.clone(),
            neighbours: loaded.neighbours.clone(),
            contexts,
            logins,
            schedulers,
            durations,
        },
        files,
        connector: Arc::new(fleet),
        confirm: Arc::new(Question {
            blanket: request.yes,
            on_terminal: environment.stdin_is_terminal && environment.stderr_is_terminal,
            style: output.status_style,
            screen: Some(Arc::clone(&screen)),
        }),
        runner: Arc::new(LocalRunner),
        options: Options {
            verb: request.verb,
            forks: request.connection.forks(),
            rollout: RolloutOptions {
                max_unavailable: request.max_unavailable,
                overrides: request.overrides.clone(),
                limited: loaded.limited,
            },
            tasks: TaskOptions {
                timeout_s: request.connection.task_timeout_s(),
                default_become: request.source.escalation.r#become,
                tags: Arc::new(tags(&request.source.choice)),
                diff: request.diff,
                runs_commands: request.runs_commands,
                own_commands,
                stepper,
                keeps: loaded.program.plays.iter().rposition(|play| play.keeps).map(Into::into),
                keep_signer: Some(Arc::new(KeepKey::new(
                    request.source.keep.keep_key.as_deref(),
                    &environment.state_dir,
                    fleet::surroundings(None, environment),
                ))),
            },
            holder,
            resumed: past.is_some(),
            winds_up: request.winds_up,
            overrules: request.overrules,
            own_boot: environment.boot_id.clone(),
            earlier,
        },
    };
    let code = match block_on(drive(engine, started, past, recorder, &screen, request))? {
        Ok(code) => code,
        Err(error) => {
            // Why all the same: a program that reads the result has to see how far it came.
            if request.format() == Format::Json {
                let screen = screen.lock().unwrap_or_else(PoisonError::into_inner);
                output.data(&report::json(&screen.model).map_err(CommandError::internal)?)?;
            }
            return Err(error);
        }
    };
    let resumable = screen.lock().unwrap_or_else(PoisonError::into_inner).model.is_resumable();
    if !resumable {
        resume::forget(&dir);
    }
    if let Some(choice) = request.store {
        let mut screen = screen.lock().unwrap_or_else(PoisonError::into_inner);
        screen.model.earlier = store::record(&screen.model, choice, environment, output);
    }
    finish(request, &dir, &screen, code, output)
}

/// A new journal, or that of the run that is taken up. No other process of this machine may be at work on the hosts.
fn open_journal(
    dir: &RunDir,
    verb: Verb,
    taken_up: Option<&TakenUp>,
    hosts: &[String],
    environment: &Environment,
) -> Result<Journal, CommandError> {
    trust::demand_state_dir(&environment.state_dir)?;
    // Why a lock around it: two that begin at once must see each other.
    let turn = journal::take_turn(&environment.state_dir).map_err(|error| {
        let path = environment.state_dir.display();
        CommandError::user(format!("the state directory {path} cannot be written to: {error}"))
            .hint("runs are recorded there; name another one with XDG_STATE_HOME")
    })?;
    if verb.writes()
        && let Some(other) = journal::at_work(&environment.state_dir, hosts)
    {
        return Err(CommandError::stopped(format!(
            "run {} works on {} now, on this machine",
            other.run,
            gpufleet::report::fold_names(other.shared.iter())
        ))
        .hint(format!(
            "wait for it, stop it with `gpufleet pause {}`, or leave its hosts out with --limit",
            other.run
        )));
    }
    let journal = match taken_up {
        Some(_) => Journal::reopen(dir),
        None => Journal::create(dir),
    };
    // Why before what follows: others wait for the turn, and no other run begins one that is over.
    drop(turn);
    resume::forget_what_is_over(&environment.state_dir);
    journal.map_err(CommandError::user)
}

/// Runs the engine, writes the last event, and returns the exit code.
async fn drive(
    engine: Engine,
    started: RunStarted,
    past: Option<(RunHistory, String)>,
    mut recorder: Recorder,
    screen: &Arc<Mutex<Screen>>,
    request: &Request<'_>,
) -> Result<u8, CommandError> {
    let (pressed, mut interrupts) = mpsc::channel(4);
    let signals = tokio::spawn(signals(pressed));
    let ticking = tokio::spawn(tick(Arc::clone(screen)));
    let result = match past {
        Some((past, who)) => engine.resume(started, past, who, &mut recorder, &mut interrupts).await,
        None => engine.run(started, &mut recorder, &mut interrupts).await,
    };
    ticking.abort();
    signals.abort();
    let (result, code) = match result {
        Ok(result) => {
            let code = code_of(&result, screen, request);
            (result, code)
        }
        Err(error) => return Err(broke_off(&error, screen)),
    };
    let summary = screen.lock().unwrap_or_else(PoisonError::into_inner).model.counts_text();
    recorder
        .emit(What::RunFinished(finished(code, summary, &result, request.winds_up)))
        .and_then(|()| recorder.finish())
        .map_err(|error| broke_off(&EngineError::Journal(error), screen))?;
    // Why: an abort only has to leave no node out of service.
    let was_asked_for = request.winds_up && code == 5 && result.out_of_service.is_empty();
    Ok(if was_asked_for { 0 } else { code })
}

/// Why a run broke off, and what becomes of the nodes that it leaves behind.
fn broke_off(error: &EngineError, screen: &Arc<Mutex<Screen>>) -> CommandError {
    let mut screen = screen.lock().unwrap_or_else(PoisonError::into_inner);
    screen.finish();
    let model = &screen.model;
    let error = CommandError::user(error);
    if !model.verb().writes() {
        return error;
    }
    let out = match model.out_of_service().as_slice() {
        [] => "nodes may be out of service".to_owned(),
        [one] => format!("{one} may be out of service"),
        several => format!("{} may be out of service", report::fold_names(several)),
    };
    error.hint(format!(
        "{out}: `gpufleet locks` shows what is drained, `gpufleet resume {}` goes on",
        model.run_id()
    ))
}

/// What the record of the run says.
fn code_of(result: &RunResult, screen: &Arc<Mutex<Screen>>, request: &Request<'_>) -> u8 {
    let screen = screen.lock().unwrap_or_else(PoisonError::into_inner);
    let all_done = || screen.model.nodes().iter().all(|node| !node.is_left());
    let ending = match &result.stop {
        Some(Stop::Aborted | Stop::Declined(Refusal::Interrupted)) => Ending::Interrupted,
        // Why: nodes that were never begun, or left half-way, are no success.
        _ if request.winds_up => {
            if all_done() {
                Ending::Completed
            } else {
                Ending::Stopped
            }
        }
        None => Ending::Completed,
        Some(Stop::Interrupted) => Ending::Interrupted,
        Some(Stop::Threshold(_) | Stop::WindowClosed(_) | Stop::Declined(_)) => Ending::Stopped,
    };
    computed_exit_code(
        &screen.model,
        ExitRules { ending, fail_on_change: request.fail_on_change, strict: request.strict },
    )
}

/// Forwards Ctrl-C and SIGTERM until the receiver is gone.
pub async fn signals(pressed: mpsc::Sender<()>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut asked)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
        signal(SignalKind::user_defined1()),
    ) else {
        return;
    };
    let mut stopping = false;
    loop {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            // Why once: `pause` and `abort` ask for a safe stop, however often they are called.
            _ = asked.recv() => if stopping { continue },
        }
        stopping = true;
        if pressed.send(()).await.is_err() {
            return;
        }
    }
}

async fn tick(screen: Arc<Mutex<Screen>>) {
    loop {
        tokio::time::sleep(TICK).await;
        // Why not waited for: while a person is asked the screen stands still, and the runtime needs its threads.
        if let Ok(mut screen) = screen.try_lock() {
            screen.tick();
        }
    }
}

/// Writes the report and shows what the verb shows.
fn finish(
    request: &Request<'_>,
    dir: &RunDir,
    screen: &Arc<Mutex<Screen>>,
    code: u8,
    output: &Output,
) -> Result<u8, CommandError> {
    let screen = screen.lock().unwrap_or_else(PoisonError::into_inner);
    let model = &screen.model;
    let document = report::json(model).map_err(CommandError::internal)?;
    let page = report::html(model).map_err(CommandError::internal)?;
    // Why not at once: what happened is told, also where the disk is full.
    let kept = dir.put(&dir.report_json(), &document).and_then(|()| dir.put(&dir.report_html(), &page));
    match request.format() {
        Format::Json => output.data(&document)?,
        Format::Jsonl => {}
        Format::Human | Format::Ansible if request.ad_hoc.is_some() => {
            if let Some(stopped) = model.stopped() {
                output.status(&format!("Stopped: {}", display::clean(stopped)));
            }
        }
        // Why elsewhere: standard output has what Ansible would print, and nothing else.
        Format::Ansible => {
            let path = dir.report_html().display().to_string();
            output.status(display::ending_lines(model, Some(&path), &output.status_style).trim_end());
        }
        Format::Human => {
            let view = if request.diff { PlanView::Diff } else { PlanView::Summary };
            let text = match request.node.and_then(|node| model.node(node)) {
                Some(node) => display::node_screen(node, &output.style),
                None => history::screen(model, view, output),
            };
            output.data(&text)?;
            if request.verb.info().screen != ResultScreen::Plan {
                if request.diff {
                    output.data(&display::changes_screen(model, &output.style))?;
                }
                let path = dir.report_html().display().to_string();
                output.data(&display::ending_lines(model, Some(&path), &output.style))?;
            }
        }
    }
    if let Some(timing) = &screen.timing {
        write_times(request.documents, timing, &screen.model, output)?;
    }
    kept?;
    Ok(code)
}

/// `--junit` and `--profile`.
fn write_times(
    documents: &Documents,
    timing: &Timing,
    model: &RunModel,
    output: &Output,
) -> Result<(), CommandError> {
    if let Some(path) = &documents.junit {
        let text = report::junit(timing, model).map_err(CommandError::internal)?;
        fs::write(path, text)
            .map_err(|error| CommandError::user(format!("cannot write {}: {error}", path.display())))?;
    }
    if documents.profile {
        let text = display::profile_screen(timing, &output.style);
        match documents.format() {
            Format::Human | Format::Ansible => output.data(&text)?,
            // Why: standard output is for the program that asked for it.
            Format::Json | Format::Jsonl => output.status(text.trim_end()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Instant};

    use gpufleet::{display::Style, journal::WriteError};
    use gpufleet_protocol::Disruption;

    use super::*;

    #[test]
    fn a_call_that_blocks_holds_no_command() {
        let begin = Instant::now();
        let work = async {
            let (begun, has_begun) = tokio::sync::oneshot::channel();
            tokio::task::spawn_blocking(|| {
                let _ = begun.send(());
                thread::sleep(Duration::from_secs(60));
            });
            has_begun.await.unwrap();
            7
        };
        assert_eq!(block_on(work).ok(), Some(7));
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    }

    #[test]
    fn a_journal_that_cannot_be_written_names_the_nodes_that_are_out_and_the_way_on() {
        let started = RunStarted {
            hosts: vec!["gpu001".to_owned(), "gpu002".to_owned()],
            ..RunStarted::of("RUN", Verb::Run)
        };
        let mut screen = Screen::new(false, false, Style::default());
        let grant = |host: &str| What::PermitGranted { host: host.to_owned(), class: Disruption::Reboot };
        let back = What::Released { host: "gpu001".to_owned() };
        for (seq, what) in (0..).zip([What::RunStarted(started), grant("gpu001"), back, grant("gpu002")]) {
            screen.model.apply(&gpufleet::event::Event { seq, at: jiff::Timestamp::UNIX_EPOCH, what });
        }
        let full =
            WriteError::Write { path: "journal.jsonl".into(), cause: "No space left on device".to_owned() };
        let error = broke_off(&EngineError::Journal(full), &Arc::new(Mutex::new(screen)));
        let CommandError::User { message, hints } = error else { panic!("{error:?}") };
        assert!(message.contains("No space left on device"), "{message}");
        assert_eq!(
            hints,
            [
                "gpu002 may be out of service: `gpufleet locks` shows what is drained, `gpufleet resume RUN` goes on"
            ]
        );
    }
}
