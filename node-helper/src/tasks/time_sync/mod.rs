//! `time_sync`: whether one daemon keeps the clock right, and which servers it asks.
//!
//! The kernel's own flag tells whether any daemon has synchronised the clock. Servers are written into a file of ours
//! beside the daemon's, and asked of the running daemon, so that a file that nobody has read is noticed.

mod chrony;
mod ptp;

use std::time::{Duration, Instant};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Layer, Property, Subject,
    change::Value as Typed,
    tasks::{TimeDaemon, TimeSync},
};
use serde_json::{Map, Value, json};

use super::{edits, edits::Present, layered, sysctl::owners, tool, unit_settings::text::assignments};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{files::Ownership, units},
    world::{Effect, UnitView},
};

/// Time for the clock to be synchronised after a change of servers.
const WAIT: Duration = Duration::from_secs(60);
/// Largest answer of a program, in bytes.
const LARGEST: usize = 256 * 1024;
/// The assumed servers of a daemon.
const NOTE: &str = "time_sync/servers";
/// Folders of drop-ins of systemd-timesyncd.
const DROP_INS: [&str; 4] = [
    "/etc/systemd/timesyncd.conf.d",
    "/run/systemd/timesyncd.conf.d",
    "/usr/local/lib/systemd/timesyncd.conf.d",
    "/usr/lib/systemd/timesyncd.conf.d",
];

/// Units of the daemons; some distributions call them otherwise.
const UNITS: [(&str, TimeDaemon); 8] = [
    ("chrony.service", TimeDaemon::Chrony),
    ("chronyd.service", TimeDaemon::Chrony),
    ("systemd-timesyncd.service", TimeDaemon::Timesyncd),
    ("ntp.service", TimeDaemon::Ntpd),
    ("ntpd.service", TimeDaemon::Ntpd),
    ("ntpsec.service", TimeDaemon::Ntpd),
    ("openntpd.service", TimeDaemon::Ntpd),
    ("ntpd-rs.service", TimeDaemon::Ntpd),
];

/// A daemon that runs.
#[derive(Clone, Debug)]
struct Runs {
    unit: String,
    daemon: TimeDaemon,
    enabled: bool,
    pid: u32,
}

/// What is declared of servers, and how it is.
#[derive(Debug)]
struct Servers {
    file: Present,
    text: String,
    /// chrony.conf, if it gets a line that names the folder.
    main: Option<(Present, String)>,
    /// Those that the running daemon asks, with the strays; none if it is known only after an assumed boot.
    now: Option<Vec<String>>,
    /// Those that it asks although no file names them.
    strays: Vec<String>,
    /// Declared ones that do not answer; none if it is known only in the run.
    silent: Option<Vec<String>>,
    /// Whether the daemon has to be started anew to read its files.
    stale: bool,
    /// Servers that others declare.
    others: Vec<String>,
}

/// How far the clock is off, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Offset {
    /// As the servers tell.
    offset: f64,
    /// At most, with what the servers and the way to them may be wrong.
    most: f64,
}

#[derive(Debug)]
pub struct State {
    /// Those that steer the clock of the system.
    runs: Vec<Runs>,
    /// Units that keep the clock of a card, or hand its time to a daemon.
    serving: Vec<String>,
    synchronised: Option<bool>,
    /// It, or why it is not known; `None` if not asked.
    offset: Option<Result<Offset, String>>,
    servers: Option<Servers>,
    rebooted: bool,
    /// Whether an earlier task of a prediction installs something, which may bring or take away a daemon.
    brings: bool,
}

#[derive(Clone, Debug)]
pub enum Step {
    File(edits::Step),
    /// Lets the daemon read its files: `restart`, or only its sources.
    Read {
        unit: String,
        restart: bool,
    },
}

/// Asks a program that only reads; none if it is not there or fails, with why.
fn asked(node: &Node<'_>, program: &str, arguments: &[&str]) -> Result<Result<String, String>, Trouble> {
    let Some(path) = node.roots.tool(program) else {
        return Ok(Err(format!("there is no program `{program}`")));
    };
    let done = tool::ask(node, &tool::run(node, path).args(arguments).limit(LARGEST))?;
    Ok(match done.exit.success() {
        true => Ok(done.stdout()),
        false => Err(done.complaint(&format!("{program} {}", arguments.join(" ")))),
    })
}

fn synchronised(node: &Node<'_>) -> Result<bool, Trouble> {
    let answer = asked(node, "timedatectl", &["show", "--property=NTPSynchronized"])?.map_err(Trouble::io)?;
    match answer.trim() {
        "NTPSynchronized=yes" => Ok(true),
        "NTPSynchronized=no" => Ok(false),
        _ => Err(Trouble::io("timedatectl show tells no NTPSynchronized")),
    }
}

/// Returns what steers the clock, and the units that serve it.
fn running(node: &Node<'_>) -> Result<(Vec<Runs>, Vec<String>), Trouble> {
    let systemctl = tool::find(node, "systemctl", "does systemd run this node?")?;
    let names = UNITS.map(|(name, _)| name);
    let asked: Vec<&str> = names.into_iter().chain(ptp::UNITS).collect();
    let found = units::show(&systemctl, &asked, node.deadline)?;
    // An earlier task of a prediction starts or stops one: what that does to the clock is known in the run.
    let other = |name: &str| {
        let now = found.get(name).cloned().unwrap_or_default();
        let differs =
            |view: UnitView| view.active != Some(now.active) || (view.file_state == "enabled") != now.enabled;
        node.world.unit(name).is_some_and(differs)
    };
    if names.iter().any(|name| other(name)) || found.keys().any(|name| other(name)) {
        return Err(Trouble::Possible);
    }
    let (mut runs, mut serving) = (Vec::new(), Vec::new());
    for (unit, status) in found.into_iter().filter(|(_, status)| status.runs()) {
        let daemon = match ptp::part(node, &unit, status.main_pid)? {
            Some(ptp::Part::Steers) => TimeDaemon::Ptp,
            Some(ptp::Part::Serves) => {
                serving.push(unit);
                continue;
            }
            None => match UNITS.iter().find(|(name, _)| *name == unit) {
                // chronyd(8): `-x` leaves the clock alone, and only tells its time to others.
                Some((_, TimeDaemon::Chrony))
                    if ptp::arguments(node, status.main_pid).iter().any(|word| word == "-x") =>
                {
                    continue;
                }
                Some((_, daemon)) => *daemon,
                None => continue,
            },
        };
        runs.push(Runs { unit, daemon, enabled: status.enabled, pid: status.main_pid });
    }
    Ok((runs, serving))
}

/// Returns the milliseconds of a time as systemd writes it: `+1.234ms`, `-45us`, `1min 2s`, `0`.
fn milliseconds(text: &str) -> Option<f64> {
    let mut sum = 0.0;
    let mut any = false;
    for word in text.trim().trim_start_matches(['+', '-']).split_whitespace() {
        let at = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
        let (number, unit) = word.split_at(at);
        let factor = match unit {
            "ns" => 1e-6,
            "us" | "µs" => 1e-3,
            "ms" => 1.0,
            "s" => 1e3,
            "min" => 6e4,
            "h" => 3.6e6,
            "" if number == "0" => 0.0,
            _ => return None,
        };
        sum += number.parse::<f64>().ok()? * factor;
        any = true;
    }
    any.then_some(sum)
}

/// Returns a line of `timedatectl timesync-status`.
fn status<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
}

/// Returns how far the clock is off.
fn offset(node: &Node<'_>, daemon: TimeDaemon) -> Result<Result<Offset, String>, Trouble> {
    let of = |offset: f64, dispersion: f64, delay: f64| Offset {
        offset: offset.abs(),
        most: offset.abs() + dispersion + delay / 2.0,
    };
    let untold = |program: &str| format!("{program} tells no offset");
    Ok(match daemon {
        // Source: chronyc(1), tracking: the fifth is the system's time, the eleventh and twelfth are the root delay and the root
        // dispersion, in seconds.
        TimeDaemon::Chrony => asked(node, "chronyc", &["-n", "-c", "tracking"])?.and_then(|text| {
            let fields: Vec<&str> = text.lines().next().unwrap_or_default().split(',').collect();
            let seconds = |at: usize| fields.get(at)?.parse::<f64>().ok();
            let all = || Some(of(seconds(4)? * 1e3, seconds(11)? * 1e3, seconds(10)? * 1e3));
            all().ok_or_else(|| untold("chronyc"))
        }),
        // Source: timedatectl.c: the root distance is half the delay of the server to its own root, and its dispersion.
        TimeDaemon::Timesyncd => asked(node, "timedatectl", &["timesync-status"])?.and_then(|text| {
            let all = || {
                let distance = status(&text, "Root distance")?.split('(').next()?;
                let (offset, delay) = (status(&text, "Offset")?, status(&text, "Delay")?);
                Some(of(milliseconds(offset)?, milliseconds(distance)?, milliseconds(delay)?))
            };
            all().ok_or_else(|| untold("timedatectl timesync-status"))
        }),
        TimeDaemon::Ptp => Err("linuxptp tells no offset of the system's clock".to_owned()),
        TimeDaemon::Ntpd => {
            asked(node, "ntpq", &["-c", "rv 0 offset,rootdisp,rootdelay"])?.and_then(|text| {
                let value = |name: &str| {
                    let part = |part: &str| part.trim().strip_prefix(name)?.strip_prefix('=')?.parse().ok();
                    text.split([',', '\n']).find_map(part)
                };
                let all = || Some(of(value("offset")?, value("rootdisp")?, value("rootdelay")?));
                all().ok_or_else(|| untold("ntpq"))
            })
        }
    })
}

fn timesyncd(node: &Node<'_>, servers: &[String]) -> Result<Servers, Trouble> {
    let file = Present::read(node, TimeSync::TIMESYNCD)?;
    for path in layered::files(node, &DROP_INS, ".conf")? {
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        if name(&path) <= name(TimeSync::TIMESYNCD) {
            continue;
        }
        let bytes = node.world.read(&node.roots.path(&path))?.unwrap_or_default();
        let all = assignments(&String::from_utf8_lossy(&bytes));
        if all.iter().any(|one| one.section == "Time" && one.key == "NTP") {
            return Err(Trouble::invalid(format!(
                "{path} comes after {} and sets NTP= too, so that other servers would be asked than those declared; take it out \
                 there (cloud-init writes cloud-init.conf for its own `ntp:`)",
                TimeSync::TIMESYNCD
            )));
        }
    }
    // The empty value ends a list that other files begin.
    let text = format!("# Written by gpufleet.\n[Time]\nNTP=\nNTP={}\n", servers.join(" "));
    let arguments = ["show-timesync", "--property=SystemNTPServers", "--property=LinkNTPServers"];
    let answer = asked(node, "timedatectl", &arguments)?.map_err(Trouble::io)?;
    let list = |name: &str| -> Vec<String> {
        let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
    };
    let others =
        list("LinkNTPServers").into_iter().map(|name| format!("{name} (of a link, by DHCP)")).collect();
    let told = asked_status(node)?;
    // It asks one server at a time, and does not tell which ones it has tried.
    let silent = told.map(|answers| if answers { Vec::new() } else { servers.to_vec() });
    let now = Some(list("SystemNTPServers"));
    Ok(Servers { file, text, main: None, now, strays: Vec::new(), silent, stale: true, others })
}

/// Whether any server has answered systemd-timesyncd since its start; none if it does not tell.
fn asked_status(node: &Node<'_>) -> Result<Option<bool>, Trouble> {
    let answer = asked(node, "timedatectl", &["timesync-status"])?.ok();
    let packets = answer.as_deref().and_then(|text| status(text, "Packet count"));
    Ok(packets.map(|packets| packets.trim() != "0"))
}

impl NodeKind for TimeSync {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        if owners::in_container(node) {
            return Err(Trouble::NotApplicable(
                "this is a container, and the clock is the host's".to_owned(),
            ));
        }
        let rebooted = node.world.rebooted();
        let (runs, serving) = running(node)?;
        let only = match runs.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        };
        let mut servers = match (&only, self.servers.is_empty()) {
            (Some(only), false) => match only.daemon {
                TimeDaemon::Chrony => Some(chrony::servers(node, &self.servers, only)?),
                TimeDaemon::Timesyncd => Some(timesyncd(node, &self.servers)?),
                TimeDaemon::Ptp => {
                    return Err(Trouble::invalid(format!(
                        "{} keeps the clock by PTP, which asks no servers; leave `servers` out",
                        only.unit
                    )));
                }
                TimeDaemon::Ntpd => {
                    return Err(Trouble::invalid(format!(
                        "{} runs, which reads no files beside its own: `template` or `lineinfile` declares its servers",
                        only.unit
                    )));
                }
            },
            _ => None,
        };
        if let Some(servers) = &mut servers {
            if let Some(assumed) = node.world.parameter(NOTE) {
                servers.now = Some(assumed.split(' ').map(str::to_owned).collect());
                servers.silent = None;
                servers.stale = false;
            } else if rebooted {
                let is_right = servers.file.bytes.as_deref() == Some(servers.text.as_bytes());
                servers.now = is_right.then(|| self.servers.clone());
                servers.silent = None;
                servers.stale = false;
            }
        }
        let offset = match (&only, self.max_offset_ms) {
            (Some(only), Some(_)) if !rebooted => Some(offset(node, only.daemon)?),
            _ => None,
        };
        let synchronised = if rebooted { None } else { Some(synchronised(node)?) };
        let brings = node.world.brings_packages();
        Ok(State { runs, serving, synchronised, offset, servers, rebooted, brings })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        self.judge_daemons(state, &mut plan)?;
        if let (Some(servers), Some(only)) = (&state.servers, state.runs.first()) {
            self.plan_servers(servers, only, &mut plan)?;
        }
        if state.rebooted {
            let subject = Subject::kernel_setting("clock synchronisation");
            let open = Change::new(subject, Property::VALUE, Typed::Unknown, "yes", Disruption::Live);
            plan.changes.push(
                open.with_note("whether the clock is right after the boot is known only in the run")
                    .possible(),
            );
        } else if plan.steps.is_empty() {
            // New servers may be what it waits for.
            self.judge_clock(state, &mut plan)?;
        }
        Ok(plan)
    }

    fn after(&self, _: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let effect = |step: &Step| match step {
            Step::File(step) => step.effect(),
            Step::Read { .. } => Effect::Parameter { name: NOTE.to_owned(), value: self.servers.join(" ") },
        };
        plan.steps.iter().map(effect).collect()
    }

    fn apply(&self, node: &Node<'_>, _: &State, plan: &Plan<Step>) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            match step {
                Step::File(step) => step.apply()?,
                Step::Read { unit, restart: true } => tool::restart(node, unit)?,
                Step::Read { restart: false, .. } => {
                    let program = tool::find(node, "chronyc", "the package `chrony` brings it")?;
                    let run = tool::run(node, program).args(["reload", "sources"]);
                    tool::act(node, &run, "chronyc reload sources")?;
                }
            }
        }
        if !plan.steps.is_empty() {
            self.wait(node)?;
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let units: Vec<&str> = state.runs.iter().map(|runs| runs.unit.as_str()).collect();
        let offset = state.offset.as_ref().and_then(|offset| offset.as_ref().ok());
        let told = offset.map(|offset| offset.offset);
        let data = [
            ("daemons", json!(units)),
            ("ptp", json!(state.serving)),
            ("synchronized", json!(state.synchronised)),
            ("offset_ms", json!(told)),
            ("max_error_ms", json!(offset.map(|offset| offset.most))),
        ];
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

trait Judge {
    fn judge_daemons(&self, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble>;
    fn judge_clock(&self, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble>;
    fn wait(&self, node: &Node<'_>) -> Result<(), Trouble>;
    fn plan_servers(&self, servers: &Servers, runs: &Runs, plan: &mut Plan<Step>) -> Result<(), Trouble>;
}

impl Judge for TimeSync {
    fn judge_daemons(&self, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        let wrong = |message: String| {
            Err(match state.brings {
                true => Trouble::Possible,
                false => Trouble::failed(FailureKind::Unconverged, message),
            })
        };
        let units = || state.runs.iter().map(|runs| runs.unit.as_str()).collect::<Vec<_>>().join(" and ");
        match state.runs.as_slice() {
            [] if self.daemon.is_none() && self.servers.is_empty() && state.synchronised == Some(true) => {
                plan.warnings.push(
                    "the clock is synchronised, and neither chrony nor systemd-timesyncd nor ntpd runs: by whom is not known"
                        .to_owned(),
                );
                Ok(())
            }
            [] if !state.serving.is_empty() => Err(Trouble::missing(format!(
                "no daemon keeps the clock right: {} keeps the clock of a card only; phc2sys, or chrony with `refclock PHC`, takes \
                 the time from there",
                state.serving.join(" and ")
            ))),
            [] => Err(Trouble::missing(
                "no daemon keeps the clock right: neither chrony nor systemd-timesyncd nor ntpd runs; `package` installs one, \
                 `service: {name: …, state: started, enabled: true}` starts it",
            )),
            [only] => match self.daemon.filter(|wanted| *wanted != only.daemon) {
                Some(wanted) => wrong(format!("{} runs, and not {wanted}", only.unit)),
                None if !only.enabled => wrong(format!(
                    "{} runs, and no boot starts it: `service: {{name: {}, enabled: true}}`",
                    only.unit, only.unit
                )),
                None => Ok(()),
            },
            _ => wrong(format!(
                "{} run at once, and both steer the clock: `service: {{name: …, state: stopped, enabled: false}}` for all \
                 but one",
                units()
            )),
        }
    }

    /// Waits until a run would find nothing to do and nothing wrong; what is wrong then, the driver tells.
    fn wait(&self, node: &Node<'_>) -> Result<(), Trouble> {
        let since = Instant::now();
        let mut strays = Vec::new();
        loop {
            node.check_time()?;
            // A daemon that has just been started may not answer yet.
            if let Ok(state) = self.observe(node) {
                if self.plan(&state).is_ok_and(|plan| plan.steps.is_empty()) {
                    return Ok(());
                }
                strays = state.servers.map(|servers| servers.strays).unwrap_or_default();
            }
            if since.elapsed() >= WAIT {
                break;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        match strays.is_empty() {
            true => Ok(()),
            false => Err(Trouble::failed(
                FailureKind::Unconverged,
                format!(
                    "chrony goes on to ask {}, which none of its files names: somebody has added it while it runs (`chronyc add`); a \
                     restart of chrony forgets it",
                    strays.join(", ")
                ),
            )),
        }
    }

    fn judge_clock(&self, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        if state.synchronised == Some(false) {
            let units: Vec<&str> = state.runs.iter().map(|runs| runs.unit.as_str()).collect();
            return Err(Trouble::failed(
                FailureKind::Unconverged,
                format!(
                    "the clock is not synchronised, although {} runs: it reaches no server, or has only just begun; `chronyc \
                     sources` or `timedatectl timesync-status` tells",
                    units.join(" and ")
                ),
            ));
        }
        let silent = state.servers.as_ref().and_then(|servers| servers.silent.as_deref()).unwrap_or_default();
        if !silent.is_empty() {
            if silent.len() == self.servers.len() {
                return Err(Trouble::failed(
                    FailureKind::Unconverged,
                    format!(
                        "none of the declared servers answers: {}; `chronyc -N sources -a` or `timedatectl timesync-status` tells \
                         what is asked",
                        silent.join(", ")
                    ),
                ));
            }
            plan.warnings
                .push(format!("of the declared servers, these do not answer: {}", silent.join(", ")));
        }
        match (self.max_offset_ms, &state.offset) {
            (Some(allowed), Some(Ok(Offset { offset, most }))) if *most > f64::from(allowed) => {
                Err(Trouble::failed(
                    FailureKind::Unconverged,
                    format!(
                        "the clock may be off by {most:.3} ms, and {allowed} ms are allowed: by {offset:.3} ms as the servers tell, \
                         and the rest is what they and the way to them may be wrong"
                    ),
                ))
            }
            (Some(_), Some(Err(why))) => {
                Err(Trouble::io(format!("how far the clock is off is not known: {why}")))
            }
            (Some(_), None) => Err(Trouble::io("how far the clock is off is not known: no daemon tells")),
            _ => Ok(()),
        }
    }

    fn plan_servers(&self, servers: &Servers, runs: &Runs, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        let mut written = false;
        if let Some((main, text)) = &servers.main {
            plan.steps.extend(main.written(text.clone(), Ownership::default()).map(Step::File));
            let mut change = main.change(Some(text.as_bytes()));
            change.diff = main.diff(text, false);
            plan.changes.push(change);
        }
        let listed = |names: &[String]| match names {
            [] => Typed::text("none"),
            names => Typed::list(names.iter().cloned()),
        };
        let subject = || Subject::unit(&runs.unit);
        let change = |from: Typed| {
            Change::new(subject(), Property::new("servers"), from, listed(&self.servers), Disruption::Live)
        };
        if servers.file.bytes.as_deref() != Some(servers.text.as_bytes()) {
            written = true;
            let own = Ownership { mode: Some(0o644), ..Ownership::default() };
            plan.steps.extend(servers.file.written(servers.text.clone(), own).map(Step::File));
            let before = named(servers.file.text()?);
            plan.changes.push(change(listed(&before)).at(Layer::Boot));
        }
        match &servers.now {
            None => plan.changes.push(change(Typed::Unknown).possible()),
            Some(now) if *now != self.servers || written || servers.main.is_some() => {
                if *now != self.servers {
                    plan.changes.push(change(listed(now)));
                }
                plan.steps.push(Step::Read { unit: runs.unit.clone(), restart: servers.stale });
            }
            Some(_) => {}
        }
        if !servers.others.is_empty() {
            plan.warnings.push(format!("{} asks others too: {}", runs.unit, servers.others.join(", ")));
        }
        Ok(())
    }
}

/// Returns the servers that a file of ours names.
fn named(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("server ") {
            found.extend(rest.split_whitespace().next().map(str::to_owned));
        } else if let Some(rest) = line.strip_prefix("NTP=") {
            found.extend(rest.split_whitespace().map(str::to_owned));
        }
    }
    found
}

#[cfg(test)]
mod tests;
