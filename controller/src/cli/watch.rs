//! `watch`: audits on a schedule.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use gpufleet::{
    diagnostic::SourceFile,
    visible::{visible, visible_lines},
};
use gpufleet_watch::{
    changes,
    config::{self, Audit, Channel, Configuration, Filter, Listen, Location, Means, Target, Webhook},
    delivery::Courier,
    outbox::Delivery,
    schedule::{Rhythm, When},
    systemd::Variables,
    watcher::{self, Level, Request, Surroundings, WatchError},
};
use jiff::{Timestamp, tz::TimeZone};
use tokio::sync::mpsc;

use super::{
    args::WatchArgs,
    audit,
    environment::Environment,
    error::CommandError,
    output::Output,
    trust::{self, Care, Trust},
};

/// The folder of the state below that of runs.
const STATE: &str = "watch";
/// The name of the audit and of the channels that flags make.
const AUDIT: &str = "audit";
/// How many next times are shown.
const SHOWN: usize = 3;

pub fn watch(args: &WatchArgs, environment: &Environment, output: &Output) -> Result<u8, CommandError> {
    let configuration = configuration(args, environment)?;
    let folder = folder(args)?;
    demand_programs(&configuration, &folder)?;
    if args.check {
        return check(&configuration, &folder, output);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(CommandError::internal)?;
    if args.test_notifications {
        return runtime.block_on(test(&configuration, &folder, environment, output));
    }
    trust::demand_state_dir(args.state.as_deref().unwrap_or(&environment.state_dir))?;
    let around = surroundings(args, environment, output, folder)?;
    runtime.block_on(async {
        let (sender, requests) = mpsc::channel(4);
        let signals = tokio::spawn(signals(sender));
        let ended = watcher::watch(around, configuration, requests).await;
        signals.abort();
        ended
    })?;
    // A delivery that does not end must not hold it up.
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(0)
}

impl From<WatchError> for CommandError {
    fn from(error: WatchError) -> Self {
        let in_use = matches!(&error, WatchError::Store(gpufleet_watch::state::StoreError::InUse(_)));
        let error = Self::user(&error);
        if in_use { error.hint("give each watcher a folder of its own: `--state FOLDER`") } else { error }
    }
}

fn configuration(args: &WatchArgs, environment: &Environment) -> Result<Configuration, CommandError> {
    match &args.file {
        Some(path) => read(path, &environment.hostname),
        None => of_flags(args, &environment.hostname),
    }
}

fn read(path: &Path, seed: &str) -> Result<Configuration, CommandError> {
    let failed =
        |error: std::io::Error| CommandError::user(format!("cannot read {}: {error}", path.display()));
    Trust::of_this_process().demand(path, "what is watched, and who is told,", Care::Shared)?;
    let text = std::fs::read_to_string(path).map_err(failed)?;
    Ok(Configuration::read(&SourceFile::new(path.display().to_string(), text), seed)?)
}

/// Refuses programs that channels run, and files that these are given, if someone else could have written them: a watcher runs
/// them with its own rights, and nobody looks on.
fn demand_programs(configuration: &Configuration, folder: &Path) -> Result<(), CommandError> {
    let mut trust = Trust::of_this_process();
    let words = configuration.channels.iter().filter_map(|channel| match &channel.means {
        Means::Command(words) => Some(words),
        Means::Webhook(_) => None,
    });
    words
        .flatten()
        .try_for_each(|word| trust.demand(&folder.join(word), "the program of a channel", Care::Shared))
}

/// The folder that relative paths of the file belong to.
fn folder(args: &WatchArgs) -> Result<PathBuf, CommandError> {
    let parent = args.file.as_deref().and_then(Path::parent).filter(|path| !path.as_os_str().is_empty());
    std::path::absolute(parent.unwrap_or(Path::new("."))).map_err(CommandError::internal)
}

fn of_flags(args: &WatchArgs, seed: &str) -> Result<Configuration, CommandError> {
    let target = Target {
        playbooks: args.playbook.clone(),
        inventories: args.inventory.clone(),
        limit: args.limit.clone(),
        health: args.checks.health,
        baselines: args.checks.baseline.clone(),
        waivers: args.checks.waivers.as_ref().map(|path| path.display().to_string()),
        deep: args.checks.deep,
    };
    let times = &args.when;
    let seconds = |given: u64| u32::try_from(given).unwrap_or(u32::MAX);
    let when = match times.every {
        Some(every) => When::Every { seconds: seconds(every) },
        None => {
            let time = |text: &String| {
                config::time_of_day(text).ok_or_else(|| {
                    CommandError::user(format!("`{text}` is no time of day")).hint("write it as 02:00")
                })
            };
            let zone = match &times.timezone {
                Some(name) => TimeZone::get(name)
                    .map_err(|_| CommandError::user(format!("there is no time zone `{name}`")))?,
                None => TimeZone::system(),
            };
            When::At { times: times.at.iter().map(time).collect::<Result<_, _>>()?, days: Vec::new(), zone }
        }
    };
    let jitter = seconds(times.jitter.unwrap_or_default());
    let rhythm = Rhythm::new(when, jitter, format!("{seed} {AUDIT}")).map_err(CommandError::user)?;
    let timeout = times.timeout.map_or(config::AUDIT_TIME, Duration::from_secs);
    let audit = Audit { name: AUDIT.to_owned(), rhythm, target, timeout };
    let receivers = &args.receivers;
    let listen = receivers.listen.map(|address| Listen { address, token_file: receivers.token_file.clone() });
    if let Some(Err((error, help))) = listen.as_ref().map(Listen::check) {
        return Err(CommandError::user(error).hint(help));
    }
    Ok(Configuration {
        audits: vec![audit],
        channels: channels(args)?,
        listen,
        reminder: receivers.reminder.map(Duration::from_secs),
    })
}

fn channels(args: &WatchArgs) -> Result<Vec<Channel>, CommandError> {
    let receivers = &args.receivers;
    let channel = |name: &str, means| Channel {
        name: name.to_owned(),
        means,
        timeout: config::DELIVERY_TIME,
        filter: Filter::default(),
    };
    let url = match (&receivers.webhook, &receivers.url_file) {
        (Some(url), _) => {
            config::check_url(url).map_err(|why| CommandError::user(format!("--webhook: {why}")))?;
            Some(Location::Url(url.clone()))
        }
        (None, Some(path)) => Some(Location::File(path.clone())),
        (None, None) => None,
    };
    let mut all = Vec::new();
    if let Some(url) = url {
        let webhook = Webhook {
            url,
            secret_file: receivers.secret_file.clone(),
            token_file: None,
            ca_file: None,
            proxy: None,
        };
        all.push(channel("webhook", Means::Webhook(webhook)));
    } else if receivers.secret_file.is_some() {
        return Err(CommandError::user("--secret-file signs what is posted, and there is no --webhook"));
    }
    if let Some(text) = &receivers.notify {
        let words =
            shell_words::split(text).map_err(|error| CommandError::user(format!("--notify: {error}")))?;
        if words.is_empty() {
            return Err(CommandError::user("--notify: there is no program"));
        }
        all.push(channel("command", Means::Command(words)));
    }
    Ok(all)
}

/// Shows what would be done.
fn check(configuration: &Configuration, folder: &Path, output: &Output) -> Result<u8, CommandError> {
    let mut text = String::new();
    for audit in &configuration.audits {
        demand_files(audit, folder)?;
        let command = gpufleet::visible::command_line(
            std::iter::once("gpufleet".to_owned()).chain(audit.target.arguments()),
        );
        text.push_str(&format!("{}: {command}\n", audit.name));
        let mut next = Timestamp::now();
        let mut times = Vec::new();
        for _ in 0..SHOWN {
            next = audit.rhythm.next(next);
            times.push(next.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S %:z").to_string());
        }
        let first =
            if audit.rhythm.begins_at_once() { "at once where there was none yet, then " } else { "" };
        text.push_str(&format!("  next: {first}{}, …\n", times.join(", ")));
    }
    for courier in couriers(configuration, folder)? {
        text.push_str(&format!("{}: notifications to {}\n", courier.channel.name, courier.destination()));
    }
    if let Some(listen) = &configuration.listen {
        text.push_str(&format!("metrics: http://{}/metrics\n", listen.address));
    }
    output.data(&text)?;
    Ok(0)
}

/// Refuses an audit that could not be made: nobody looks when it is due.
fn demand_files(audit: &Audit, folder: &Path) -> Result<(), CommandError> {
    let Target { inventories, playbooks, waivers, baselines, .. } = &audit.target;
    audit::demand_baselines(baselines, folder)?;
    // `-i gpu001,` is a list of hosts.
    let inventories = inventories.iter().filter(|text| !text.contains(','));
    for file in inventories.chain(playbooks).chain(waivers) {
        fs::metadata(folder.join(file)).map_err(|error| {
            CommandError::user(format!("the audit {} cannot be made: {file}: {error}", audit.name))
        })?;
    }
    Ok(())
}

fn couriers(configuration: &Configuration, folder: &Path) -> Result<Vec<Arc<Courier>>, CommandError> {
    let prepare = |channel: &Channel| {
        let courier = Courier::prepare(channel, folder);
        let failed = |why| CommandError::user(format!("the channel {}: {why}", channel.name));
        courier.map(Arc::new).map_err(failed)
    };
    configuration.channels.iter().map(prepare).collect()
}

/// Sends a test to each channel. Exit code 2 if one does not take it.
async fn test(
    configuration: &Configuration,
    folder: &Path,
    environment: &Environment,
    output: &Output,
) -> Result<u8, CommandError> {
    let couriers = couriers(configuration, folder)?;
    if couriers.is_empty() {
        return Err(CommandError::user("there is nobody to notify")
            .hint("give `notifications`, --webhook or --notify"));
    }
    // Never sent to: a test is stopped with the command.
    let (_sender, stop) = tokio::sync::watch::channel(false);
    let mut code = 0;
    for courier in couriers {
        let name = courier.channel.name.clone();
        let destination = courier.destination();
        let note = changes::test(&environment.hostname, &name, Timestamp::now());
        let line = match courier.deliver(note, folder.to_owned(), stop.clone()).await {
            Delivery::Done => format!("{name}: delivered to {destination}"),
            Delivery::Failed { why, .. } | Delivery::Refused { why } => {
                code = 2;
                format!("{name}: not delivered: {why}")
            }
        };
        output.data(&format!("{}\n", visible(&line)))?;
    }
    Ok(code)
}

fn surroundings(
    args: &WatchArgs,
    environment: &Environment,
    output: &Output,
    folder: PathBuf,
) -> Result<Surroundings, CommandError> {
    let program = std::env::current_exe().map_err(CommandError::internal)?;
    // After an upgrade the name leads to the new file.
    let program = match program.to_str().and_then(|name| name.strip_suffix(" (deleted)")) {
        Some(name) => PathBuf::from(name),
        None => program,
    };
    let variable = |name: &str| {
        let found = environment.settings.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    };
    let (again, seed) = (args.clone(), environment.clone());
    let state = args.state.clone().unwrap_or_else(|| environment.state_dir.join(STATE));
    let told = output.clone();
    Ok(Surroundings {
        watcher: environment.hostname.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        program,
        words: match &args.config {
            // Absolute, because audits run in the folder of the configuration.
            Some(path) => {
                let path = std::path::absolute(path).map_err(CommandError::internal)?;
                vec!["--config".to_owned(), path.display().to_string()]
            }
            None => Vec::new(),
        },
        folder,
        state: std::path::absolute(state).map_err(CommandError::internal)?,
        variables: Variables {
            socket: variable("NOTIFY_SOCKET").map(Into::into),
            watchdog_usec: variable("WATCHDOG_USEC"),
            watchdog_pid: variable("WATCHDOG_PID"),
        },
        tell: Box::new(move |level, text| match level {
            Level::Info => told.status(&visible_lines(text)),
            Level::Warning => told.warning(text),
        }),
        reload: Box::new(move || {
            configuration(&again, &seed).map_err(|error| match error {
                CommandError::Input(diagnostics) => diagnostics.to_string(),
                CommandError::User { message, .. }
                | CommandError::Stopped { message, .. }
                | CommandError::Internal(message) => message,
                CommandError::BrokenPipe => String::new(),
            })
        }),
    })
}

/// Hands on SIGHUP, SIGTERM and Ctrl-C until the receiver is gone.
async fn signals(requests: mpsc::Sender<Request>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut hangup), Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::hangup()), signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return;
    };
    loop {
        let request = tokio::select! {
            _ = hangup.recv() => Request::Reload,
            _ = interrupt.recv() => Request::Stop,
            _ = terminate.recv() => Request::Stop,
        };
        if requests.send(request).await.is_err() {
            return;
        }
    }
}
