//! `run`, `plan` and `audit`: one engine, three verbs.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use gpufleet::{
    diagnostic::{Diagnostic, Diagnostics},
    display::{self, PlanView},
    drain::{LocalRunner, Marker, Scheduler},
    engine::{Engine, EngineError, Options, Overrules, Past, Recorder, RunResult, Sink, Stop, finished},
    event::{EVENT_VERSION, Event, RunStarted, Verb, What},
    interpreter::{CachedFiles, HostContext},
    inventory::Inventory,
    journal::{self, Journal, RunDir, RunId},
    playbook::{Drain, Known, Order, Overrides, Program, TagFilter},
    report::{Ending, ExitRules, RunModel, computed_exit_code},
    rollout::Amount,
    template::Dict,
    vault::Keyring,
};
use gpufleet_protocol::RunEpoch;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::{
    args::{AuditArgs, Connection, Format, PlanArgs, PlaybookSource, RunArgs},
    contexts::{Shared, contexts},
    environment::Environment,
    error::CommandError,
    experience,
    fleet::Fleet,
    history,
    machine::ThisMachine,
    output::Output,
    prompt::Question,
    resume,
    schedulers::{PlayHosts, logins, schedulers},
    sinks::{LinesSink, Screen, ScreenSink},
    sources, vault_passwords,
};

/// How often the live display lets time pass.
const TICK: Duration = Duration::from_millis(500);

/// What the three verbs have in common.
struct Request<'a> {
    verb: Verb,
    source: &'a PlaybookSource,
    connection: &'a Connection,
    format: Format,
    yes: bool,
    diff: bool,
    node: Option<&'a str>,
    fail_on_change: bool,
    max_unavailable: Option<Amount>,
    overrides: Overrides,
    overrules: Overrules,
    winds_up: bool,
    /// What a resume needs to load the same again.
    record: Option<&'a RunArgs>,
    /// Nodes that lost runs left drained.
    adopted: HashMap<String, Marker>,
}

/// A run that another process began.
pub struct TakenUp {
    pub run: RunId,
    pub started: RunStarted,
    pub events: Vec<Event>,
}

pub fn run(args: RunArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    carry_out(&request_of(&args), None, environment, output)
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
    let request = Request {
        verb: Verb::Plan,
        source,
        connection,
        format: Format::Human,
        yes: true,
        diff: false,
        node: None,
        fail_on_change: false,
        max_unavailable: None,
        overrides: Overrides::default(),
        overrules: Overrules::default(),
        winds_up: false,
        record: None,
        adopted: HashMap::new(),
    };
    let loaded = load(&request, environment, output)?;
    let holder = RunEpoch { run: RunId::generate().to_string(), epoch: 0 };
    let reach = Reach::of(&loaded, &request, holder, environment, output)?;
    let plays = reach.schedulers.into_iter().zip(loaded.play_hosts);
    Ok(plays.filter_map(|(scheduler, hosts)| Some((scheduler?, hosts))).collect())
}

fn request_of(args: &RunArgs) -> Request<'_> {
    Request {
        verb: if args.check { Verb::Plan } else { Verb::Run },
        source: &args.source,
        connection: &args.connection,
        format: args.format,
        yes: args.yes,
        diff: args.diff,
        node: None,
        fail_on_change: args.fail_on_change,
        max_unavailable: args.bounds.max_unavailable,
        record: Some(args),
        overrules: Overrules { force: args.overruling.force, steal: args.overruling.steal },
        winds_up: false,
        adopted: HashMap::new(),
        overrides: Overrides {
            window: args.bounds.window.clone(),
            soak_s: args.soak,
            max_failures: args.max_failures,
        },
    }
}

pub fn plan(args: PlanArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let request = Request {
        verb: Verb::Plan,
        source: &args.source,
        connection: &args.connection,
        format: args.format,
        yes: true,
        diff: args.diff,
        node: args.node.as_deref(),
        fail_on_change: args.fail_on_change,
        max_unavailable: args.bounds.max_unavailable,
        overrides: Overrides { window: args.bounds.window, ..Overrides::default() },
        overrules: Overrules::default(),
        winds_up: false,
        record: None,
        adopted: HashMap::new(),
    };
    carry_out(&request, None, environment, output)
}

pub fn audit(args: AuditArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let request = Request {
        verb: Verb::Audit,
        source: &args.source,
        connection: &args.connection,
        format: args.format,
        yes: true,
        diff: false,
        node: None,
        fail_on_change: false,
        max_unavailable: None,
        record: None,
        overrides: Overrides::default(),
        overrules: Overrules::default(),
        winds_up: false,
        adopted: HashMap::new(),
    };
    carry_out(&request, None, environment, output)
}

pub fn runtime() -> Result<tokio::runtime::Runtime, CommandError> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CommandError::internal)
}

/// Everything read and checked; no node was contacted.
struct Loaded {
    inventory: Arc<Inventory>,
    program: Arc<Program>,
    extra: Map<String, Value>,
    keyring: Arc<Keyring>,
    play_hosts: Vec<Vec<String>>,
    /// Hosts that `--limit` leaves out of each play, where a scheduler may tell of their outages.
    neighbours: Vec<Vec<String>>,
    /// Hosts of any play, in inventory order.
    hosts: Vec<String>,
}

fn load(request: &Request<'_>, environment: &Environment, output: &Output) -> Result<Loaded, CommandError> {
    let source = request.source;
    let first = source.playbooks.first().and_then(|playbook| playbook.parent()).map(Path::to_path_buf);
    let directory = first.map(|dir| if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir });
    let keyring = vault_passwords::keyring(&source.inventory.vault, environment)?;
    let extra = sources::extra_vars(&source.extra_vars, &keyring)?;
    let around = sources::Around {
        playbook_dir: directory,
        extra_vars: extra.clone(),
        keyring: Arc::clone(&keyring),
        ..sources::Around::default()
    };
    let mut inventory = sources::inventory_in(&source.inventory, around)?;
    let limit = sources::limit(&source.inventory, environment)?;
    let names: Vec<String> = source.playbooks.iter().map(|path| path.display().to_string()).collect();
    let program = Program::load_with(&names, &sources::Disk, &keyring, &roles_path(environment))?;
    if !program.warnings.is_empty() {
        output.diagnostics(&program.warnings);
    }
    check_tags(&program, source)?;
    let extra_dict = Arc::new(Dict::trusted(&extra));
    let (mut play_hosts, mut neighbours) = (Vec::new(), Vec::new());
    for play in &program.plays {
        let pattern = play.host_pattern(&extra_dict)?;
        let mut selected: Vec<String> =
            inventory.select(&pattern, limit.as_deref())?.iter().map(ToString::to_string).collect();
        order(play.order, &mut selected);
        if request.max_unavailable.is_none() {
            play.budget(selected.len())?;
        }
        neighbours.push(match play.policy.drain {
            Drain::None => Vec::new(),
            _ if limit.is_none() => Vec::new(),
            _ => {
                let taken: HashSet<&str> = selected.iter().map(String::as_str).collect();
                let all = inventory.select(&pattern, None)?;
                all.iter().map(ToString::to_string).filter(|host| !taken.contains(host.as_str())).collect()
            }
        });
        play_hosts.push(selected);
    }
    let selected: BTreeSet<&String> = play_hosts.iter().flatten().collect();
    let hosts: Vec<String> =
        inventory.hosts().iter().map(ToString::to_string).filter(|host| selected.contains(host)).collect();
    let hosts = if hosts.len() == selected.len() { hosts } else { selected.into_iter().cloned().collect() };
    inventory.unlock(&hosts)?;
    let known = Known { variables: known_names(&inventory, &hosts, &extra) };
    let mut wrong = program.check_variables(&known);
    wrong.append(program.check_logins(|host| inventory.host_vars(host).is_some()));
    wrong.into_result(())?;
    if hosts.is_empty() && !source.inventory.allow_empty {
        return Err(CommandError::user("no host is selected")
            .hint("`gpufleet hosts PATTERN` shows what a pattern selects"));
    }
    Ok(Loaded {
        inventory: Arc::new(inventory),
        program: Arc::new(program),
        extra,
        keyring,
        play_hosts,
        neighbours,
        hosts,
    })
}

/// Hosts that may do tasks for others; where only a host's variables tell, anybody may.
fn delegates(loaded: &Loaded) -> Result<Vec<String>, CommandError> {
    let (mut found, mut anybody) = (BTreeSet::new(), false);
    for task in loaded.program.plays.iter().flat_map(|play| play.tasks()) {
        match task.delegate_to.as_ref().map(|host| (host.as_str(), host.is_settled())) {
            None => {}
            Some((Some(host), true)) if is_known(&loaded.inventory, host) => {
                _ = found.insert(host.to_owned())
            }
            Some((Some(host), true)) => {
                let error = Diagnostic::error(format!("the inventory has no host `{host}`"))
                    .at(&task.span)
                    .label("it is to be done there (`delegate_to`)");
                let names = loaded.inventory.hosts();
                let error = error.suggest(host, names.iter().map(|name| &**name));
                return Err(Diagnostics::from(error).into());
            }
            Some(_) => anybody = true,
        }
    }
    if anybody {
        found.extend(loaded.inventory.hosts().iter().map(ToString::to_string));
        found.insert("localhost".to_owned());
    }
    Ok(found.into_iter().filter(|host| !loaded.hosts.contains(host)).collect())
}

fn is_known(inventory: &Inventory, host: &str) -> bool {
    matches!(host, "localhost" | "127.0.0.1" | "::1") || inventory.host_vars(host).is_some()
}

/// Where roles are looked for, beside `roles/` at the playbook: as in Ansible.
fn roles_path(environment: &Environment) -> Vec<String> {
    let home = environment.home.iter().map(|home| home.join(".ansible/roles").display().to_string());
    home.chain(["/usr/share/ansible/roles".to_owned(), "/etc/ansible/roles".to_owned()]).collect()
}

/// A tag that no task has would leave everything out, and nothing out of order is found where nothing is looked at.
fn check_tags(program: &Program, source: &PlaybookSource) -> Result<(), CommandError> {
    let tags: BTreeSet<&str> = program
        .plays
        .iter()
        .flat_map(|play| {
            play.tasks().into_iter().flat_map(|task| task.tags.iter().map(String::as_str)).collect::<Vec<_>>()
        })
        .collect();
    let special = ["all", "always", "never", "tagged", "untagged"];
    let unknown = source
        .tags
        .iter()
        .chain(&source.skip_tags)
        .find(|tag| !tags.contains(tag.as_str()) && !special.contains(&tag.as_str()));
    let Some(tag) = unknown else { return Ok(()) };
    let error = CommandError::user(format!("no task has the tag `{tag}`"));
    let known = tags.iter().copied().collect::<Vec<_>>();
    Err(match (gpufleet::diagnostic::suggest(tag, known.iter().copied()), known.is_empty()) {
        (Some(close), _) => error.hint(format!("did you mean `{close}`?")),
        (None, true) => error.hint("no task of these playbooks has a tag"),
        (None, false) => error.hint(format!("tags are: {}", known.join(", "))),
    })
}

/// Puts hosts in the order that a play asks for.
fn order(order: Order, hosts: &mut [String]) {
    match order {
        Order::Inventory => {}
        Order::ReverseInventory => hosts.reverse(),
        Order::Sorted => hosts.sort(),
        Order::ReverseSorted => hosts.sort_by(|a, b| b.cmp(a)),
        Order::Shuffle => hosts.sort_by_cached_key(|_| uuid::Uuid::new_v4()),
    }
}

/// Names that a template may use because some selected host has them.
fn known_names(inventory: &Inventory, hosts: &[String], extra: &Map<String, Value>) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = extra.keys().cloned().collect();
    let mut seen = BTreeSet::new();
    for host in hosts {
        let Some(vars) = inventory.host_vars(host) else { continue };
        if seen.insert(Arc::as_ptr(vars.shared())) {
            names.extend(vars.shared().keys().cloned());
        }
        names.extend(vars.own().keys().cloned());
    }
    names
}

/// The SHA-256 of all that was read: what a resume must find unchanged.
fn digest(loaded: &Loaded) -> String {
    let mut hash = Sha256::new();
    for text in &loaded.program.sources {
        hash.update(text.name().as_bytes());
        hash.update(text.text().as_bytes());
    }
    for host in &loaded.hosts {
        hash.update(host.as_bytes());
        if let Some(vars) = loaded.inventory.host_vars(host) {
            hash.update(Value::Object(vars.merged()).to_string().as_bytes());
        }
    }
    hash.update(Value::Object(loaded.extra.clone()).to_string().as_bytes());
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What was typed, with secrets left out: a run's record is shown to others.
fn command_line() -> Vec<String> {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let mut shown = vec!["gpufleet".to_owned()];
    shown.extend(without_values(words));
    shown
}

/// The words of a command line, the values of `-e` replaced.
fn without_values(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut shown = Vec::new();
    let mut value_next = false;
    for word in words {
        if std::mem::take(&mut value_next) {
            shown.push(hidden(&word));
            continue;
        }
        if let Some(value) = word.strip_prefix("--extra-vars=") {
            shown.push(format!("--extra-vars={}", hidden(value)));
            continue;
        }
        // Why the letters before: short flags may be joined, as in `-ve name=value`.
        let cluster = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        let flags = cluster
            .and_then(|rest| rest.split_once('e'))
            .filter(|(flags, _)| flags.chars().all(|flag| "vqbyCDkKJ".contains(flag)));
        match flags {
            Some((flags, "")) => {
                value_next = true;
                shown.push(format!("-{flags}e"));
            }
            Some((flags, value)) => shown.push(format!("-{flags}e{}", hidden(value.trim_start_matches('=')))),
            None => {
                value_next = word == "--extra-vars";
                shown.push(word);
            }
        }
    }
    shown
}

/// The names that `-e` sets, without their values.
fn hidden(value: &str) -> String {
    if value.starts_with('@') {
        return value.to_owned();
    }
    match shell_words::split(value) {
        Ok(words) if words.iter().all(|word| word.contains('=')) => words
            .iter()
            .map(|word| format!("{}=…", word.split('=').next().unwrap_or_default()))
            .collect::<Vec<_>>()
            .join(" "),
        _ => "…".to_owned(),
    }
}

/// How nodes and their schedulers are reached; nothing was contacted.
struct Reach {
    fleet: Fleet,
    contexts: HashMap<String, Arc<HostContext>>,
    schedulers: Vec<Option<Arc<Scheduler>>>,
}

impl Reach {
    fn of(
        loaded: &Loaded,
        request: &Request<'_>,
        holder: RunEpoch,
        environment: &Environment,
        output: &Output,
    ) -> Result<Self, CommandError> {
        let mut reached = loaded.hosts.clone();
        reached.extend(logins(&loaded.program).map(str::to_owned));
        reached.extend(delegates(loaded)?);
        let fleet =
            Fleet::new(&loaded.inventory, &reached, &loaded.extra, request.connection, holder, environment)?;
        let shared = Shared {
            inventory: &loaded.inventory,
            program: &loaded.program,
            extra: &loaded.extra,
            become_default: request.source.r#become,
            verbosity: output.verbose,
        };
        let known: BTreeSet<&String> = loaded.hosts.iter().collect();
        let beside: BTreeSet<&String> =
            loaded.neighbours.iter().flatten().filter(|host| !known.contains(host)).collect();
        let hosts: Vec<String> = loaded.hosts.iter().chain(beside).cloned().collect();
        let contexts = contexts(&shared, &hosts);
        let hosts = PlayHosts { taking_part: &loaded.play_hosts, beside: &loaded.neighbours };
        let schedulers = schedulers(&loaded.program, hosts, &contexts, &fleet, output)?;
        Ok(Self { fleet, contexts, schedulers })
    }
}

fn carry_out(
    request: &Request<'_>,
    taken_up: Option<TakenUp>,
    environment: &Environment,
    output: &Output,
) -> Result<u8, CommandError> {
    let loaded = load(request, environment, output)?;
    if let Some(node) = request.node
        && !loaded.hosts.iter().any(|host| host == node)
    {
        return Err(CommandError::user(format!("`--node {node}`: no play selects this host")));
    }
    let digest = digest(&loaded);
    if let Some(before) = &taken_up
        && before.started.digest != digest
    {
        return Err(CommandError::user(format!(
            "the playbooks, the inventory or variables are not what they were when run {} began",
            before.run
        ))
        .hint("put them back as they were to go on with it, or begin a new run: what is as declared already is left alone; what this one left drained, `gpufleet adopt` with --run takes over"));
    }
    let run = taken_up.as_ref().map_or_else(RunId::generate, |before| before.run.clone());
    let epoch = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
    let holder = RunEpoch { run: run.to_string(), epoch };
    let Reach { fleet, contexts, schedulers } =
        Reach::of(&loaded, request, holder.clone(), environment, output)?;
    let dir = RunDir::new(&environment.state_dir, &run);
    let journal = open_journal(&dir, request.verb, taken_up.as_ref(), &loaded.hosts, environment)?;
    let (started, events) = match taken_up {
        Some(before) => (before.started, before.events),
        None => {
            let started = RunStarted {
                version: EVENT_VERSION,
                run_id: run.to_string(),
                verb: request.verb,
                gpufleet: env!("CARGO_PKG_VERSION").to_owned(),
                playbooks: request.source.playbooks.iter().map(|path| path.display().to_string()).collect(),
                inventories: request.source.inventory.inventory.clone(),
                hosts: loaded.hosts.clone(),
                command_line: command_line(),
                digest,
            };
            if let Some(args) = request.record {
                resume::remember(&dir, args)?;
            }
            (started, Vec::new())
        }
    };
    let learned = match request.verb {
        Verb::Run | Verb::Plan => {
            experience::learned(&loaded.program, &request.overrides, &environment.state_dir, &run)
        }
        Verb::Audit => Vec::new(),
    };
    let people = request.format == Format::Human;
    let screen = Screen::new(people, environment.stderr_is_terminal, output.status_style);
    let screen = Arc::new(Mutex::new(screen));
    let mut sinks: Vec<Box<dyn Sink>> = vec![Box::new(ScreenSink(Arc::clone(&screen)))];
    if request.format == Format::Jsonl {
        sinks.push(Box::new(LinesSink::new()));
    }
    let recorder = Recorder::after(&events, journal, sinks, jiff::Timestamp::now);
    let engine = Engine {
        delegates: Arc::default(),
        program: Arc::clone(&loaded.program),
        play_hosts: loaded.play_hosts.clone(),
        neighbours: loaded.neighbours.clone(),
        contexts,
        files: Arc::new(
            CachedFiles::with_keyring(sources::Disk, Arc::clone(&loaded.keyring))
                .seen_from(std::env::current_dir().ok().map(|folder| folder.display().to_string()))
                .on(Arc::new(ThisMachine { inventory: Arc::clone(&loaded.inventory) })),
        ),
        connector: Arc::new(fleet),
        confirm: Arc::new(Question {
            blanket: request.yes,
            on_terminal: environment.stdin_is_terminal && environment.stderr_is_terminal,
            style: output.status_style,
            screen: Some(Arc::clone(&screen)),
        }),
        schedulers,
        learned,
        runner: Arc::new(LocalRunner),
        options: Options {
            verb: request.verb,
            forks: request.connection.forks.max(1),
            max_unavailable: request.max_unavailable,
            overrides: request.overrides.clone(),
            task_timeout_s: request.connection.task_timeout,
            default_become: request.source.r#become,
            tags: Arc::new(TagFilter {
                only: request.source.tags.clone(),
                skip: request.source.skip_tags.clone(),
            }),
            holder,
            resumed: !events.is_empty(),
            overrules: request.overrules,
            own_boot: environment.boot_id.clone(),
            winds_up: request.winds_up,
            adopted: request.adopted.clone(),
        },
    };
    let past = (!events.is_empty()).then(|| (Past::of(&events), environment.who()));
    let code = runtime()?.block_on(drive(engine, started, past, recorder, &screen, request))?;
    let resumable = screen.lock().unwrap_or_else(PoisonError::into_inner).model.is_resumable();
    if !resumable {
        resume::forget(&dir);
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
    // Why a lock around it: two that begin at once must see each other.
    let _turn = journal::take_turn(&environment.state_dir).map_err(CommandError::user)?;
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
    match taken_up {
        Some(_) => Journal::reopen(dir),
        None => Journal::create(dir),
    }
    .map_err(CommandError::user)
}

/// Runs the engine, writes the last event, and returns the exit code.
async fn drive(
    engine: Engine,
    started: RunStarted,
    past: Option<(Past, String)>,
    mut recorder: Recorder,
    screen: &Arc<Mutex<Screen>>,
    request: &Request<'_>,
) -> Result<u8, CommandError> {
    let run = engine.options.holder.run.clone();
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
        Err(EngineError::Journal(error)) => return Err(CommandError::internal(error)),
        Err(error) => {
            screen.lock().unwrap_or_else(PoisonError::into_inner).finish();
            return Err(CommandError::user(error).hint(format!(
                "nodes may be out of service: `gpufleet locks` shows what is drained, `gpufleet resume {run}` goes on"
            )));
        }
    };
    let summary = summary(&screen.lock().unwrap_or_else(PoisonError::into_inner).model);
    recorder
        .emit(What::RunFinished(finished(code, summary, &result, request.winds_up)))
        .map_err(CommandError::internal)?;
    recorder.finish().map_err(CommandError::internal)?;
    Ok(code)
}

fn code_of(result: &RunResult, screen: &Arc<Mutex<Screen>>, request: &Request<'_>) -> u8 {
    let ending = match &result.stop {
        // Why: it did what was asked, unless a node is still out.
        _ if request.winds_up && result.out_of_service.is_empty() => return 0,
        None => Ending::Completed,
        Some(Stop::Interrupted | Stop::Aborted) => Ending::Interrupted,
        Some(Stop::Threshold(_) | Stop::WindowClosed(_) | Stop::Declined(_)) => Ending::Stopped,
    };
    let rules = ExitRules { ending, fail_on_change: request.fail_on_change };
    let screen = screen.lock().unwrap_or_else(PoisonError::into_inner);
    computed_exit_code(&screen.model, rules)
}

fn summary(model: &RunModel) -> String {
    use gpufleet::event::NodeState;
    let parts: Vec<String> = NodeState::ALL
        .into_iter()
        .filter(|state| model.count(*state) > 0)
        .map(|state| format!("{} {state}", model.count(state)))
        .collect();
    if parts.is_empty() { "no node".to_owned() } else { parts.join(", ") }
}

/// Tells of Ctrl-C and SIGTERM until nobody listens.
async fn signals(pressed: mpsc::Sender<()>) {
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
        screen.lock().unwrap_or_else(PoisonError::into_inner).tick();
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
    let document = history::json(model)?;
    fs::write(dir.report_json(), &document)?;
    fs::write(dir.report_html(), history::html(model)?)?;
    match request.format {
        Format::Json => output.data(&document)?,
        Format::Jsonl => {}
        Format::Human => {
            let text = match (request.node.and_then(|node| model.node(node)), request.verb) {
                (Some(node), _) => display::node_screen(node, &output.style),
                (None, Verb::Plan) => {
                    let view = if request.diff { PlanView::Diff } else { PlanView::Summary };
                    display::plan_screen(model, view, &output.style)
                }
                (None, Verb::Run | Verb::Audit) => history::screen(model, output),
            };
            output.data(&text)?;
            if request.verb != Verb::Plan {
                let path = dir.report_html().display().to_string();
                output.data(&display::ending_lines(model, Some(&path), &output.style))?;
            }
        }
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_variables_are_not_recorded() {
        let typed = [
            "run",
            "a.yaml",
            "-e",
            "pw=secret",
            "-epw=s@secret",
            "--extra-vars=pw=secret",
            "-ve",
            "{\"pw\": \"secret\"}",
            "--extra-vars",
            "@vars.yaml",
            "-i",
            "inventory",
            "--yes",
            "-l",
            "gpu",
        ];
        let shown = without_values(typed.map(str::to_owned).into_iter()).join(" ");
        assert!(!shown.contains("secret"), "{shown}");
        assert_eq!(
            shown,
            "run a.yaml -e pw=… -epw=… --extra-vars=pw=… -ve … --extra-vars @vars.yaml -i inventory --yes -l gpu"
        );
    }
}
