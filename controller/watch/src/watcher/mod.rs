//! The main loop: begins audits when they are due, takes in what they report, and has notifications delivered.
//!
//! It only ever reads nodes: what it starts is `gpufleet audit`, `gpufleet report` and the commands of channels.

mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use gpufleet_language::visible::visible;
use jiff::{SignedDuration, Timestamp};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::sleep,
};

use crate::{
    changes::{self, Origin},
    config::Configuration,
    delivery::{self, Courier},
    metrics::{AuditResult, Own},
    notification::Notification,
    outbox::Outcome,
    schedule::{Planner, Step},
    server::{self, Door, Shared},
    state::{LastAudit, State, Store, StoreError},
    systemd::{Systemd, Variables},
};

use self::work::{Done, Work};

/// The loop looks at the clock at least this often, so that it notices when the machine slept or its clock was set.
const TICK: Duration = Duration::from_secs(10);
/// How long work under way has to end when the watcher ends.
const FAREWELL: Duration = Duration::from_secs(40);

/// What the watcher says to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Info,
    Warning,
}

/// What somebody wants of a running watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Reload,
    Stop,
}

/// Says something to people.
pub type Tell = Box<dyn Fn(Level, &str) + Send>;

/// Reads the configuration again.
pub type Reload = Box<dyn FnMut() -> Result<Configuration, String> + Send>;

/// What surrounds a watcher.
pub struct Surroundings {
    /// The name of this machine.
    pub watcher: String,
    pub version: String,
    /// This program, and the words that precede a command: `--config FILE`.
    pub program: PathBuf,
    pub words: Vec<String>,
    /// The folder that relative paths belong to.
    pub folder: PathBuf,
    /// The folder of the state.
    pub state: PathBuf,
    pub variables: Variables,
    pub tell: Tell,
    pub reload: Reload,
}

/// Why a watcher cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Configuration(String),
    #[error("cannot tell systemd anything: {0}")]
    Systemd(io::Error),
}

struct Watcher {
    around: Surroundings,
    configuration: Configuration,
    couriers: Vec<Arc<Courier>>,
    planners: BTreeMap<String, Planner>,
    state: State,
    store: Store,
    shared: Arc<Shared>,
    server: Option<Server>,
    systemd: Systemd,
    work: Work,
    /// Channels that deliver now.
    delivering: BTreeSet<String>,
}

/// What listens, and whom it lets in.
struct Server {
    task: JoinHandle<io::Result<()>>,
    door: Arc<Door>,
}

/// Watches until it is asked to stop.
///
/// # Errors
/// Whatever keeps it from beginning. Afterwards it tells what fails and goes on.
pub async fn watch(
    around: Surroundings,
    configuration: Configuration,
    mut requests: mpsc::Receiver<Request>,
) -> Result<(), WatchError> {
    let systemd = Systemd::open(&around.variables, std::process::id()).map_err(WatchError::Systemd)?;
    let store = Store::open(&around.state)?;
    let (state, lost) = store.load()?;
    if let Some(lost) = lost {
        (around.tell)(Level::Warning, &lost);
    }
    let now = Timestamp::now();
    let shared = Arc::new(Shared::new(Own::new(&around.version, now)));
    let (sender, mut results) = mpsc::unbounded_channel();
    let (stop, stopped) = watch::channel(false);
    let nothing = Configuration { audits: Vec::new(), channels: Vec::new(), listen: None, reminder: None };
    let mut watcher = Watcher {
        work: Work::new(sender, stopped, &around),
        around,
        configuration: nothing,
        couriers: Vec::new(),
        planners: BTreeMap::new(),
        state,
        store,
        shared,
        server: None,
        systemd,
        delivering: BTreeSet::new(),
    };
    watcher.adopt(configuration, now).await.map_err(WatchError::Configuration)?;
    watcher.shared.set_ready(true);
    watcher.announce();
    watcher.systemd.ready(&watcher.status());
    loop {
        let pause = watcher.step(Timestamp::now());
        tokio::select! {
            biased;
            request = requests.recv() => match request {
                Some(Request::Reload) => watcher.reload().await,
                Some(Request::Stop) | None => break,
            },
            Some(done) = results.recv() => watcher.take_in(done),
            () = sleep(pause) => {}
        }
    }
    watcher.shared.set_ready(false);
    watcher.systemd.stopping();
    // Nobody is left to hear it where all work is done.
    let _ = stop.send(true);
    let farewell = async {
        while !watcher.is_idle() {
            let Some(done) = results.recv().await else { break };
            watcher.take_in_last(done);
        }
    };
    let _ = tokio::time::timeout(FAREWELL, farewell).await;
    watcher.save();
    if let Some(server) = watcher.server.take() {
        server.task.abort();
    }
    watcher.tell("stopped");
    Ok(())
}

impl Watcher {
    fn tell(&self, text: &str) {
        (self.around.tell)(Level::Info, text);
    }

    fn warn(&self, text: &str) {
        (self.around.tell)(Level::Warning, text);
    }

    /// Begins what is due. Returns how long nothing else is.
    fn step(&mut self, now: Timestamp) -> Duration {
        self.shared.beat(Instant::now());
        self.systemd.alive();
        let names: Vec<String> = self.planners.keys().cloned().collect();
        for name in names {
            self.poll(&name, now);
        }
        self.deliver(now);
        let due = self.planners.values().map(Planner::due).chain(self.state.outbox.due()).min();
        let pause = due.map_or(TICK, |due| {
            // What is due already waits for an event, and not for the clock.
            let wait = Duration::try_from(due.duration_since(now)).unwrap_or_default();
            if wait.is_zero() { Duration::from_secs(1) } else { wait }
        });
        let beat = self.systemd.beat().unwrap_or(TICK);
        pause.min(TICK).min(beat)
    }

    fn poll(&mut self, name: &str, now: Timestamp) {
        let Some(planner) = self.planners.get_mut(name) else { return };
        let step = planner.poll(now);
        let due = planner.due();
        match step {
            Step::Wait(_) => {}
            Step::Skip(slot) => {
                self.shared.own.skipped(name);
                self.warn(&format!(
                    "{name}: the audit of {slot:.0} is left out, because the last one still runs"
                ));
            }
            Step::Start { missed } => {
                let Some(audit) = self.configuration.audits.iter().find(|audit| audit.name == name) else {
                    return;
                };
                self.shared.own.begun(name, missed);
                self.work.audit(audit, now);
                let late = match missed {
                    0 => String::new(),
                    1 => "; one was missed before it".to_owned(),
                    missed => format!("; {missed} were missed before it"),
                };
                self.tell(&format!("{name}: the audit begins{late}"));
            }
        }
        self.shared.own.next(name, due);
    }

    fn deliver(&mut self, now: Timestamp) {
        for courier in &self.couriers {
            let name = &courier.channel.name;
            self.shared.own.waiting(name, self.state.outbox.waiting(name));
            if self.delivering.contains(name) {
                continue;
            }
            if let Some(entry) = self.state.outbox.next(name, now) {
                self.delivering.insert(name.clone());
                self.work.deliver(courier, entry.notification.clone());
            }
        }
    }

    fn take_in(&mut self, done: Done) {
        match done {
            Done::Audit { schedule, begun, result } => {
                if let Some(planner) = self.planners.get_mut(&schedule) {
                    planner.finished();
                    self.take_in_audit(&schedule, begun, result);
                }
            }
            Done::Metrics { schedule, result } => match result {
                Ok(exposition) if self.planners.contains_key(&schedule) => {
                    self.shared.set_fleet(&schedule, Some(exposition));
                }
                Ok(_) => {}
                Err(why) => self.warn(&format!("{schedule}: the metrics of the audit cannot be had: {why}")),
            },
            Done::Delivery { channel, id, result } => {
                self.delivering.remove(&channel);
                self.delivered(&channel, &id, result);
            }
        }
    }

    /// Takes in what ends while the watcher ends: an audit that was cut off is no failure, and is made again.
    fn take_in_last(&mut self, done: Done) {
        match done {
            Done::Audit { schedule, result: Err(_), .. } => {
                if let Some(planner) = self.planners.get_mut(&schedule) {
                    planner.finished();
                }
            }
            Done::Delivery { channel, id, result } => {
                self.delivering.remove(&channel);
                if result == crate::outbox::Delivery::Done {
                    self.delivered(&channel, &id, result);
                }
            }
            done => self.take_in(done),
        }
    }

    fn is_idle(&self) -> bool {
        self.delivering.is_empty() && !self.planners.values().any(Planner::is_running)
    }

    fn take_in_audit(&mut self, name: &str, begun: Timestamp, result: Result<work::Audited, String>) {
        let now = Timestamp::now();
        let origin = Origin {
            watcher: &self.around.watcher,
            schedule: name,
            reminder: self.configuration.reminder.and_then(|time| SignedDuration::try_from(time).ok()),
        };
        let schedule = self.state.schedules.entry(name.to_owned()).or_default();
        schedule.begun = Some(begun);
        let (told, line) = match result {
            Ok(work::Audited { reading, exit_code }) => {
                let seconds = now.duration_since(begun).as_secs_f64();
                let told = schedule.known.observe(&reading, now, &origin);
                let run_id = reading.run_id.clone();
                schedule.last = Some(LastAudit { run_id: run_id.clone(), ended: now, exit_code, seconds });
                self.shared.own.ended(name, AuditResult::Reported);
                self.shared.own.last(name, now, seconds, exit_code);
                self.work.metrics(name, &run_id);
                let open = counted(schedule.known.open(), "finding");
                let nodes = counted(reading.nodes.len(), "node");
                (told, Ok(format!("{name}: {nodes} audited in {seconds:.1} s, {open}, run {run_id}")))
            }
            Err(why) => {
                self.shared.own.ended(name, AuditResult::Failed);
                (
                    schedule.known.failed(&why, now, &origin),
                    Err(format!("{name}: the audit failed: {}", visible(&why))),
                )
            }
        };
        match line {
            Ok(line) => self.tell(&line),
            Err(line) => self.warn(&line),
        }
        self.queue(&told, now);
        self.save();
        self.systemd.status(&self.status());
    }

    fn queue(&mut self, all: &[Notification], now: Timestamp) {
        for told in changes::bounded(all.iter()) {
            self.tell(&format!("{}: {}: {}", told.schedule, told.kind.word(), told.summary));
        }
        for channel in self.state.outbox.add(all, &self.configuration.channels, now) {
            self.shared.own.delivery(&channel, "given_up");
            self.warn(&format!("{channel}: too many notifications wait: the oldest is dropped"));
        }
    }

    fn delivered(&mut self, channel: &str, id: &str, result: crate::outbox::Delivery) {
        let Some(outcome) = self.state.outbox.delivered(channel, id, result, Timestamp::now()) else {
            return;
        };
        let (word, line) = match outcome {
            Outcome::Sent => ("sent", None),
            Outcome::Again { at, why } => {
                ("retried", Some(format!("{channel}: not delivered, again at {at:.0}: {why}")))
            }
            Outcome::GivenUp { why } => ("given_up", Some(format!("{channel}: {id} is given up: {why}"))),
        };
        self.shared.own.delivery(channel, word);
        if let Some(line) = line {
            self.warn(&line);
        }
        self.shared.own.waiting(channel, self.state.outbox.waiting(channel));
        self.save();
    }

    fn save(&self) {
        if let Err(error) = self.store.save(&self.state) {
            self.warn(&format!("{error}: after a restart, notifications may be repeated"));
        }
    }

    async fn reload(&mut self) {
        self.systemd.reloading();
        let now = Timestamp::now();
        let read = (self.around.reload)();
        let adopted = match read {
            Ok(configuration) => self.adopt(configuration, now).await,
            Err(why) => Err(why),
        };
        match adopted {
            Ok(()) => {
                self.tell("the configuration was read again");
                self.announce();
            }
            Err(why) => {
                self.shared.own.reloaded(false, now);
                self.warn(&format!("the configuration is wrong, and the old one stays in force:\n{why}"));
            }
        }
        self.systemd.ready(&self.status());
    }

    /// Puts a configuration in force: all of it, or nothing.
    async fn adopt(&mut self, configuration: Configuration, now: Timestamp) -> Result<(), String> {
        let folder = &self.around.folder;
        let mut couriers = Vec::new();
        for channel in &configuration.channels {
            let courier = Courier::prepare(channel, folder);
            couriers.push(Arc::new(courier.map_err(|why| format!("the channel {}: {why}", channel.name))?));
        }
        let token = match configuration.listen.as_ref().and_then(|listen| listen.token_file.as_ref()) {
            Some(path) => Some(delivery::secret(folder, path, "the token of metrics")?),
            None => None,
        };
        let address =
            |configuration: &Configuration| configuration.listen.as_ref().map(|listen| listen.address);
        let new = address(&configuration);
        if new != address(&self.configuration) {
            let listener = match new {
                Some(address) => {
                    let bound = server::bind(address).await;
                    Some(bound.map_err(|error| format!("cannot listen on {address}: {error}"))?)
                }
                None => None,
            };
            let server = listener.map(|listener| {
                if let Ok(address) = listener.local_addr() {
                    self.tell(&format!("metrics: http://{address}/metrics"));
                }
                // Connections of the old listener live on, and must send its token still.
                let door = Arc::new(Door::new(token));
                let served = server::serve(listener, Arc::clone(&self.shared), Arc::clone(&door));
                Server { task: tokio::spawn(served), door }
            });
            if let Some(old) = std::mem::replace(&mut self.server, server) {
                old.task.abort();
            }
        } else if let Some(server) = &self.server {
            server.door.set_token(token);
        }
        self.take_over(&configuration, now);
        self.couriers = couriers;
        self.configuration = configuration;
        self.shared.own.reloaded(true, now);
        self.save();
        Ok(())
    }

    /// Begins and ends schedules and channels.
    fn take_over(&mut self, configuration: &Configuration, now: Timestamp) {
        let has = |name: &str| configuration.audits.iter().any(|audit| audit.name == name);
        for name in self.planners.keys().filter(|name| !has(name)) {
            self.shared.own.forget_schedule(name);
            self.shared.set_fleet(name, None);
        }
        self.planners.retain(|name, _| has(name));
        self.state.schedules.retain(|name, _| has(name));
        for audit in &configuration.audits {
            let name = audit.name.as_str();
            self.shared.own.schedule(name, audit.rhythm.longest_gap_s());
            if let Some(planner) = self.planners.get_mut(name) {
                planner.follow(audit.rhythm.clone(), now);
            } else {
                let known = self.state.schedules.get(name);
                let begun = known.and_then(|known| known.begun);
                self.shared.own.failing(name, known.is_some_and(|known| known.known.is_failing()));
                if let Some(last) = known.and_then(|known| known.last.as_ref()) {
                    self.shared.own.last(name, last.ended, last.seconds, last.exit_code);
                    self.work.metrics(name, &last.run_id);
                }
                self.planners.insert(name.to_owned(), Planner::new(audit.rhythm.clone(), now, begun));
            }
            if let Some(planner) = self.planners.get(name) {
                self.shared.own.next(name, planner.due());
            }
        }
        for channel in &self.configuration.channels {
            if !configuration.channels.iter().any(|other| other.name == channel.name) {
                self.shared.own.forget_channel(&channel.name);
            }
        }
        for channel in &configuration.channels {
            self.shared.own.channel(&channel.name);
        }
        let dropped = self.state.outbox.keep(&configuration.channels);
        if dropped > 0 {
            self.warn(&format!(
                "{dropped} notifications waited for channels that there are no more, and are dropped"
            ));
        }
    }

    fn announce(&self) {
        for (name, planner) in &self.planners {
            self.tell(&format!("{name}: next audit at {:.0}", planner.due()));
        }
        for courier in &self.couriers {
            self.tell(&format!(
                "{}: notifications go to {}",
                courier.channel.name,
                visible(&courier.destination())
            ));
        }
    }

    /// One line for `systemctl status`.
    fn status(&self) -> String {
        let failing: Vec<&str> = self
            .state
            .schedules
            .iter()
            .filter(|(_, schedule)| schedule.known.is_failing())
            .map(|(name, _)| name.as_str())
            .collect();
        let open = self.state.schedules.values().map(|schedule| schedule.known.open()).sum();
        let (schedules, open) = (counted(self.planners.len(), "schedule"), counted(open, "finding"));
        let next = self.planners.values().map(Planner::due).min();
        let next = next.map_or_else(String::new, |next| format!(", next audit at {next:.0}"));
        let failing = match failing.as_slice() {
            [] => String::new(),
            names => format!(", failing: {}", names.join(", ")),
        };
        format!("{schedules}, {open}{failing}{next}")
    }
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
