//! `systemctl` and `systemd-run` over the node's units.

use nvml_sim::store::Store;
use serde_json::json;

use super::power;
use crate::node::units::{self, Unit, UnitError, full_name};
use crate::out;

/// A parsed command, with its options.
struct Request {
    verb: String,
    names: Vec<String>,
    properties: Vec<String>,
    value_only: bool,
    quiet: bool,
    now: bool,
    only_states: Vec<String>,
}

fn parse(arguments: &[String]) -> Request {
    let mut request = Request {
        verb: "list-units".to_owned(),
        names: Vec::new(),
        properties: Vec::new(),
        value_only: false,
        quiet: false,
        now: false,
        only_states: Vec::new(),
    };
    let mut words = Vec::new();
    let mut items = arguments.iter();
    let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    while let Some(item) = items.next() {
        match item.as_str() {
            "-p" | "--property" | "-P" => {
                request.properties.extend(items.next().map(|text| list(text)).unwrap_or_default());
                request.value_only |= item == "-P";
            }
            "--value" => request.value_only = true,
            "-q" | "--quiet" => request.quiet = true,
            "--now" => request.now = true,
            "-t" | "--type" | "-n" | "--lines" | "-o" | "--output" | "--job-mode" => {
                items.next();
            }
            "--state" => request.only_states = items.next().map(|text| list(text)).unwrap_or_default(),
            option if option.starts_with("--property=") => {
                request.properties.extend(list(option.trim_start_matches("--property=")));
            }
            option if option.starts_with("-p") && !option.starts_with("--") => {
                request.properties.extend(list(option.trim_start_matches("-p")));
            }
            option if option.starts_with("--state=") => {
                request.only_states = list(option.trim_start_matches("--state="));
            }
            option if option.starts_with('-') => {}
            word => words.push(word.to_owned()),
        }
    }
    let mut words = words.into_iter();
    if let Some(verb) = words.next() {
        request.verb = verb;
    }
    request.names = words.collect();
    request
}

pub fn run(arguments: &[String]) -> u8 {
    let request = parse(arguments);
    let store = Store::of_this_process();
    if !matches!(
        request.verb.as_str(),
        "is-active"
            | "is-enabled"
            | "is-failed"
            | "show"
            | "status"
            | "cat"
            | "list-units"
            | "list-unit-files"
            | "is-system-running"
            | "list-jobs"
            | "get-default"
    ) {
        store.log_event("systemctl", json!({"args": arguments}));
    }
    match request.verb.as_str() {
        "is-active" => query(&request, |unit| unit.state(), "inactive", |state| state == "active", 3),
        "is-failed" => query(&request, |unit| unit.state(), "inactive", |state| state == "failed", 1),
        "is-enabled" => is_enabled(&request),
        "is-system-running" => {
            let starting = never_up(&store);
            out::line(if starting { "starting" } else { "running" });
            u8::from(starting)
        }
        "list-jobs" => {
            if never_up(&store) {
                out::line("  2 multi-user.target start waiting");
                out::line(" 71 slow-storage.service start running");
            } else {
                out::line("No jobs running.");
            }
            0
        }
        "get-default" => {
            out::line("multi-user.target");
            0
        }
        "show" => show(&request),
        "status" => status(&request),
        "cat" => each(&request, |unit| {
            out::line(format!("# {}\n{}", unit.path.display(), std::fs::read_to_string(&unit.path)?));
            Ok(())
        }),
        "list-units" => list_units(&request),
        "list-unit-files" => {
            for unit in units::all() {
                out::line(format!("{} {} -", unit.name, unit.enablement()));
            }
            0
        }
        "start" => each(&request, Unit::start),
        "stop" | "kill" => each(&request, Unit::stop),
        "restart" | "force-reload" => each(&request, |unit| unit.stop().and_then(|()| unit.start())),
        "try-restart" | "condrestart" => each(&request, |unit| {
            if unit.state() == "active" { unit.stop().and_then(|()| unit.start()) } else { Ok(()) }
        }),
        "reload" => each(&request, Unit::reload),
        "reload-or-restart" => each(&request, |unit| {
            if unit.values("ExecReload").is_empty() {
                unit.stop().and_then(|()| unit.start())
            } else {
                unit.reload()
            }
        }),
        "enable" | "reenable" => each(&request, |unit| {
            for link in unit.enable()? {
                out::error(format!("Created symlink {} → {}.", link.display(), unit.path.display()));
            }
            if request.now { unit.start() } else { Ok(()) }
        }),
        "disable" => each(&request, |unit| {
            for link in unit.disable()? {
                out::error(format!("Removed \"{}\".", link.display()));
            }
            if request.now { unit.stop() } else { Ok(()) }
        }),
        "mask" | "unmask" => {
            for name in &request.names {
                if request.verb == "mask" && request.now {
                    let _ = Unit::load(name).and_then(|unit| unit.stop());
                }
                if let Err(error) = units::mask(name, request.verb == "mask") {
                    out::error(format!("Failed to {} unit: {error}", request.verb));
                    return 1;
                }
            }
            0
        }
        "reset-failed" => 0,
        "daemon-reload" | "daemon-reexec" | "set-default" | "isolate" | "set-property" => 0,
        "reboot" | "kexec" => power::reboot(&store, arguments),
        "poweroff" | "halt" => power::power_off(&store),
        verb => {
            out::error(format!("Unknown command verb {verb}."));
            1
        }
    }
}

/// Applies `action` to each named unit; the first error ends it, with systemctl's message.
fn each(request: &Request, action: impl Fn(&Unit) -> Result<(), UnitError>) -> u8 {
    if request.names.is_empty() {
        out::error("Too few arguments.");
        return 1;
    }
    for name in &request.names {
        if let Err(error) = Unit::load(name).and_then(|unit| action(&unit)) {
            let code = if matches!(error, UnitError::NotFound(_)) { 5 } else { 1 };
            out::error(match (&error, code) {
                (UnitError::NotFound(_) | UnitError::Masked(_), _) => {
                    format!("Failed to {} {}: {error}", request.verb, full_name(name))
                }
                _ => format!("{error}\nSee \"systemctl status {name}\" for details."),
            });
            return code;
        }
    }
    0
}

fn query(
    request: &Request,
    read: impl Fn(&Unit) -> &'static str,
    absent: &str,
    good: impl Fn(&str) -> bool,
    bad: u8,
) -> u8 {
    let mut any = false;
    let mut missing = false;
    for name in &request.names {
        let state = match Unit::load(name) {
            Ok(unit) => read(&unit).to_owned(),
            Err(_) => {
                missing = true;
                absent.to_owned()
            }
        };
        any |= good(&state);
        if !request.quiet {
            out::line(state);
        }
    }
    match (any, missing && bad == 3) {
        (true, _) => 0,
        (false, true) => 4,
        (false, false) => bad,
    }
}

/// Whether this boot never finishes.
fn never_up(store: &Store) -> bool {
    store.node_faults().contains(&nvml_sim::fault::Effect::StartingForEver)
        && store.read().is_ok_and(|machine| machine.boots > 1)
}

fn is_enabled(request: &Request) -> u8 {
    let mut good = true;
    for name in &request.names {
        match Unit::load(name) {
            Ok(unit) => {
                let state = unit.enablement();
                good &= matches!(state, "enabled" | "static");
                if !request.quiet {
                    out::line(state);
                }
            }
            Err(_) => {
                out::error(format!(
                    "Failed to get unit file state for {}: No such file or directory",
                    full_name(name)
                ));
                good = false;
            }
        }
    }
    u8::from(!good)
}

fn properties(name: &str) -> Vec<(&'static str, String)> {
    let name = full_name(name);
    let Ok(unit) = Unit::load(&name) else {
        return vec![
            ("Id", name.clone()),
            ("Names", name),
            ("LoadState", "not-found".to_owned()),
            ("ActiveState", "inactive".to_owned()),
            ("SubState", "dead".to_owned()),
            ("UnitFileState", String::new()),
            ("FragmentPath", String::new()),
            ("MainPID", "0".to_owned()),
            ("Result", "success".to_owned()),
            ("NeedDaemonReload", "no".to_owned()),
        ];
    };
    let state = unit.state();
    let record = unit.record();
    let sub = match (state, record.remains) {
        ("active", true) => "exited",
        ("active", false) => "running",
        ("failed", _) => "failed",
        _ => "dead",
    };
    let load = if unit.masked { "masked" } else { "loaded" };
    let drop_ins: Vec<String> = unit.drop_ins.iter().map(|path| path.display().to_string()).collect();
    vec![
        ("Id", unit.name.clone()),
        ("Names", unit.name.clone()),
        ("Description", unit.value("Description").unwrap_or(&unit.name).to_owned()),
        ("Type", unit.kind().to_owned()),
        ("LoadState", load.to_owned()),
        ("ActiveState", state.to_owned()),
        ("SubState", sub.to_owned()),
        ("UnitFileState", unit.enablement().to_owned()),
        ("FragmentPath", unit.path.display().to_string()),
        ("DropInPaths", drop_ins.join(" ")),
        ("MainPID", unit.main_pid().to_string()),
        ("ExecStart", exec_start(&unit)),
        ("User", unit.value("User").unwrap_or_default().to_owned()),
        ("RuntimeDirectory", unit.value("RuntimeDirectory").unwrap_or_default().to_owned()),
        ("ExecMainStatus", record.exit_code.to_string()),
        ("Result", if state == "failed" { "exit-code" } else { "success" }.to_owned()),
        ("NeedDaemonReload", "no".to_owned()),
        ("CanStart", "yes".to_owned()),
    ]
}

/// Prints a command as systemd does.
fn exec_start(unit: &Unit) -> String {
    let command = unit.value("ExecStart").unwrap_or_default();
    match command.split_whitespace().next() {
        Some(path) => format!("{{ path={path} ; argv[]={command} ; ignore_errors=no ; pid=0 }}"),
        None => String::new(),
    }
}

fn show(request: &Request) -> u8 {
    for (index, name) in request.names.iter().enumerate() {
        if index > 0 {
            out::line("");
        }
        let all = properties(name);
        if request.properties.is_empty() {
            for (key, value) in all {
                out::line(format!("{key}={value}"));
            }
            continue;
        }
        // systemctl prints in its own order and leaves out unknown properties.
        for (key, value) in all.iter().filter(|(key, _)| request.properties.iter().any(|p| p == key)) {
            out::line(if request.value_only { value.clone() } else { format!("{key}={value}") });
        }
    }
    0
}

fn status(request: &Request) -> u8 {
    let mut code = 0;
    for name in &request.names {
        let Ok(unit) = Unit::load(name) else {
            out::error(format!("Unit {} could not be found.", full_name(name)));
            return 4;
        };
        let state = unit.state();
        out::line(format!(
            "● {}\n     Loaded: loaded ({}; {})\n     Active: {state}\n   Main PID: {}",
            unit.name,
            unit.path.display(),
            unit.enablement(),
            unit.main_pid()
        ));
        if state != "active" {
            code = 3;
        }
    }
    code
}

fn list_units(request: &Request) -> u8 {
    for unit in units::all() {
        let state = unit.state();
        let wanted = if request.only_states.is_empty() {
            state != "inactive"
        } else {
            request.only_states.iter().any(|s| s == state || (s == "running" && state == "active"))
        };
        let named = request.names.is_empty()
            || request.names.iter().any(|n| nvml_sim::fault::glob_matches(n, &unit.name));
        if wanted && named && unit.name.ends_with(".service") {
            let sub = if state == "active" { "running" } else { "dead" };
            out::line(format!(
                "{} loaded {state} {sub} {}",
                unit.name,
                unit.value("Description").unwrap_or("")
            ));
        }
    }
    0
}

/// `systemd-run [--unit=NAME] [--wait] [--collect] [--setenv=K=V] COMMAND…`: a transient unit.
pub fn systemd_run(arguments: &[String]) -> u8 {
    let mut name = format!("run-u{}", std::process::id());
    let (mut wait, mut pipe, mut scope, mut environment, mut remain) =
        (false, false, false, Vec::new(), false);
    let mut kind = "simple".to_owned();
    let mut items = arguments.iter().peekable();
    let mut command: Vec<String> = Vec::new();
    while let Some(item) = items.next() {
        let mut value = |name: &str| match item.split_once('=') {
            Some((key, value)) if key == name => Some(value.to_owned()),
            None if item == name => items.next().cloned(),
            _ => None,
        };
        if let Some(unit) = value("--unit").or_else(|| value("-u")) {
            name = unit;
        } else if let Some(setting) = value("--setenv").or_else(|| value("-E")) {
            environment.push(setting);
        } else if let Some(property) = value("--property").or_else(|| value("-p")) {
            match property.split_once('=') {
                Some(("Type", value)) => kind = value.to_owned(),
                Some(("RemainAfterExit", value)) => remain = value == "yes",
                _ => {}
            }
        } else if value("--description").or_else(|| value("--slice")).or_else(|| value("--uid")).is_some() {
        } else {
            match item.as_str() {
                "--wait" => wait = true,
                "--pipe" | "-P" | "-t" | "--pty" => (wait, pipe) = (true, true),
                "--scope" => scope = true,
                option if option.starts_with('-') => {}
                program => {
                    command.push(program.to_owned());
                    command.extend(items.by_ref().cloned());
                }
            }
        }
    }
    let Some((program, rest)) = command.split_first() else {
        out::error("Command line to execute required.");
        return 1;
    };
    let unit = full_name(&name);
    let pairs = environment.iter().filter_map(|item| item.split_once('='));
    let mut run = std::process::Command::new(program);
    run.args(rest).envs(pairs).env("LAB_UNIT", &unit);
    if wait || pipe || scope {
        return match run.status() {
            Ok(status) => status.code().unwrap_or(1) as u8,
            Err(error) => {
                out::error(format!("Failed to start transient service unit: {error}"));
                1
            }
        };
    }
    let quote = |word: &String| format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""));
    let line = command.iter().map(quote).collect::<Vec<_>>().join(" ");
    let settings: String = environment.iter().map(|item| format!("Environment={}\n", quote(item))).collect();
    let remain = if remain { "RemainAfterExit=yes\n" } else { "" };
    let text =
        format!("[Unit]\nDescription={line}\n[Service]\nType={kind}\n{remain}{settings}ExecStart={line}\n");
    let path = std::path::Path::new("/run/systemd/system").join(&unit);
    let started = crate::node::files::write(&path, &text)
        .map_err(UnitError::from)
        .and_then(|()| Unit::load(&unit)?.start());
    match started {
        Ok(()) => {
            out::error(format!("Running as unit: {unit}"));
            0
        }
        Err(error) => {
            out::error(error.to_string());
            1
        }
    }
}
