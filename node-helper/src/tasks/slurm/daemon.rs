//! slurmd of this node, and what slurmctld says of the node.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use gpufleet_protocol::{Disruption, tasks::SlurmNode};
use serde::{Deserialize, Serialize};

use crate::{
    declare::{Node, Trouble},
    os::{
        files::FileError,
        tree,
        units::{self, UnitStatus},
    },
    process::Run,
    tasks::{docker::daemon::command_line, knobs, started, tool},
};

const BRINGS: &str = "the package `slurmd` (Debian) or `slurm-slurmd` (SchedMD's) brings it";
/// slurmd waits 20 s for a device file that is missing. Measured with 22.05.
const ANSWER: Duration = Duration::from_secs(40);
/// Time limit of a question to slurmctld.
const CONTROLLER: Duration = Duration::from_secs(15);
/// Time for slurmctld to take what a started slurmd registers: HealthCheckProgram comes first, and may take 60 s.
const REGISTER: Duration = if cfg!(test) { Duration::from_millis(1500) } else { Duration::from_secs(90) };

/// Time for a new slurmd to begin once the old one has ended its work.
const HAND_OVER: Duration = Duration::from_secs(30);
/// Seconds of a message and of slurmd's own last wait without a setting. Sources: slurm.conf(5), `MessageTimeout`; Slurm,
/// slurmd.c, `_wait_for_all_threads`.
const MESSAGE_S: u64 = 10;
const LEAST_S: u64 = 5;

/// Says that a run has begun to write files of slurmd, and has not restarted it since. slurm.conf does not tell: it changes
/// often and for others. In memory, because a boot starts slurmd.
const PENDING: &str = "/run/gpufleet/slurmd-pending";

/// What is noted before files are written.
#[derive(Debug, Serialize, Deserialize)]
struct Pending {
    /// When the slurmd that has not read them began to run, in microseconds since the boot.
    entered_us: u64,
    class: Disruption,
}

/// slurmd as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    pub program: PathBuf,
    /// As `slurmd -V` says: `22.05.8`.
    pub version: Option<String>,
    /// What `slurmd -C` finds, in MiB.
    pub memory_mib: Option<u64>,
    /// The words of its command line; none if it does not run.
    pub arguments: Option<Vec<String>>,
    /// Whether a file is newer than its start.
    pub unread: bool,
    /// What the restart disturbs that a run was to do and has not done.
    pub pending: Option<Disruption>,
    /// When it last began to run, in microseconds since the boot.
    entered_us: u64,
    pub systemctl: Option<PathBuf>,
}

/// Reads slurmd.
///
/// # Errors
/// If there is none, or systemd does not answer.
pub fn observe(node: &Node<'_>, files: &[PathBuf], read_since: bool) -> Result<Daemon, Trouble> {
    let program = tool::find(node, "slurmd", BRINGS)?;
    let systemctl = node.roots.tool("systemctl");
    let (mut arguments, mut unread) = (None, false);
    let (mut pending, mut entered_us) = (None, 0);
    if let Some(systemctl) = &systemctl {
        let shown = units::show(systemctl, &[SlurmNode::UNIT], node.deadline)?;
        let unit = shown.get(SlurmNode::UNIT).cloned().unwrap_or_default();
        entered_us = unit.entered_us;
        if unit.active && unit.main_pid > 0 {
            let line = command_line(node, unit.main_pid)?;
            let words = line.split('\0').skip(1).filter(|word| !word.is_empty());
            arguments = Some(words.map(str::to_owned).collect());
            let is_fresh = read_since || node.world.rebooted();
            unread = !is_fresh && started::before(node, unit.main_pid, files)?;
            pending = if is_fresh { None } else { read_pending(node, &unit)? };
        } else if unit.active {
            // It is being started again and again.
            (arguments, unread) = (Some(Vec::new()), !read_since);
        }
    }
    let version = tool::ask(node, &tool::run(node, &program).arg("-V"))?;
    let version = version.stdout().split_whitespace().nth(1).map(str::to_owned);
    let found = tool::ask(node, &tool::run(node, &program).arg("-C"))?;
    let memory_mib =
        found.stdout().split_whitespace().find_map(|word| word.strip_prefix("RealMemory=")?.parse().ok());
    Ok(Daemon { program, version, memory_mib, arguments, unread, pending, entered_us, systemctl })
}

fn read_pending(node: &Node<'_>, unit: &UnitStatus) -> Result<Option<Disruption>, Trouble> {
    let Some(bytes) = node.world.read(&node.roots.path(PENDING))? else { return Ok(None) };
    // A note that was cut off is as old as slurmd, and says nothing of what it missed.
    let noted = serde_json::from_slice::<Pending>(&bytes)
        .unwrap_or(Pending { entered_us: u64::MAX, class: Disruption::Clients });
    Ok((unit.entered_us <= noted.entered_us).then_some(noted.class))
}

impl Daemon {
    /// Returns the value behind an option of the running slurmd.
    pub fn option(&self, short: &str) -> Option<&str> {
        let arguments = self.arguments.as_deref()?;
        arguments.iter().enumerate().find_map(|(at, word)| match word.strip_prefix(short)? {
            "" => arguments.get(at + 1).map(String::as_str),
            rest => Some(rest.trim_start_matches('=')),
        })
    }

    /// Whether it is at least this version; a version that is not known is none.
    pub fn is_at_least(&self, wanted: (u32, u32)) -> bool {
        let Some(version) = &self.version else { return false };
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or_default());
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default()) >= wanted
    }

    /// Asks slurmd what it would offer with its files; returns GPUs by type, and the first of its errors.
    ///
    /// Its exit status says nothing: 22.05 ends with 0 after `Invalid GRES data`.
    ///
    /// # Errors
    /// If it does not end in time.
    pub fn offers(&self, node: &Node<'_>, conf: &Path, name: &str) -> Result<Offers, Trouble> {
        let run = tool::run(node, &self.program).env("SLURM_CONF", conf).arg("-G").arg("-N").arg(name);
        let done = run.finish(&node.deadline.within(ANSWER))?;
        let text = format!("{}\n{}", done.stderr(), done.stdout());
        let mut offers = parse(&text);
        if !done.exit.success() && offers.error.is_none() {
            offers.error = Some(done.complaint("slurmd -G"));
        }
        Ok(offers)
    }

    /// Notes that files are written which this slurmd has not read.
    ///
    /// # Errors
    /// If the note cannot be written.
    pub fn note(&self, node: &Node<'_>, class: Disruption) -> Result<(), Trouble> {
        let noted = serde_json::to_string(&Pending { entered_us: self.entered_us, class });
        let text = noted.map_err(|error| Trouble::io(error.to_string()))?;
        knobs::put(&node.roots.path(PENDING), &text)
    }

    /// Takes the note back, once slurmd runs with its files.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn settled(node: &Node<'_>) -> Result<(), Trouble> {
        let place = node.roots.path(PENDING);
        // There is no folder where nothing was ever noted.
        if !place.exists() {
            return Ok(());
        }
        tree::spot(&place)?.remove().map_err(|error| FileError::new("remove", place, error).into())
    }

    /// Whether SIGHUP has it start anew with its files, in which jobs and a slurmd that does not like them stay.
    ///
    /// From 23.11 on a slurmd that systemd runs (`--systemd`) starts a new one, which takes over. Source: Slurm, slurmd.c,
    /// `_try_to_reconfig`, and the release notes of 23.11.
    pub fn reconfigures(&self) -> bool {
        let under_systemd =
            self.arguments.as_ref().is_some_and(|all| all.iter().any(|word| word == "--systemd"));
        under_systemd && self.is_at_least((23, 11))
    }

    /// Has slurmd read its files anew, and restarts it where its unit cannot.
    ///
    /// Does not restart one that took the signal and has no successor yet: the successor that it may have begun by then is no
    /// process of the unit's that systemd ends (`KillMode=process`), and would hold the port against the new slurmd.
    ///
    /// # Errors
    /// As [`Daemon::restart`], and [`Unheard::Silent`] if no new one takes over within `patience`.
    pub fn reconfigure(&self, node: &Node<'_>, patience: Duration) -> Result<(), Unheard> {
        let systemctl = self.systemctl.as_ref().ok_or_else(|| Trouble::missing("there is no systemctl"))?;
        let main = || -> Result<u32, Trouble> {
            let shown = units::show(systemctl, &[SlurmNode::UNIT], node.deadline)?;
            Ok(shown.get(SlurmNode::UNIT).filter(|unit| unit.active).map_or(0, |unit| unit.main_pid))
        };
        let before = main()?;
        let run = tool::run(node, systemctl).args(["--no-ask-password", "reload", SlurmNode::UNIT]);
        // A unit that knows no reload, and a program that is older than the file, are restarted.
        if tool::act(node, &run, "systemctl reload slurmd.service").is_ok() {
            let waits = patience.min(node.deadline.remaining());
            let until = Instant::now() + waits;
            while Instant::now() < until {
                let Ok(now) = main() else { break };
                if now > 0 && now != before {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            return Err(Unheard::Silent(Trouble::failed(
                gpufleet_protocol::FailureKind::Unconverged,
                format!(
                    "slurmd took the signal to read its files anew, and no new slurmd took over within {} s: it waits for its \
                     work to end; look at `systemctl status {unit}` and `journalctl -u slurmd`, and once it is quiet type \
                     `systemctl restart {unit}` and run again",
                    waits.as_secs(),
                    unit = SlurmNode::UNIT
                ),
            )));
        }
        Ok(self.restart(node)?)
    }

    /// Restarts slurmd and waits until slurmctld has taken what it registers.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart(&self, node: &Node<'_>) -> Result<(), Trouble> {
        let systemctl = self.systemctl.as_ref().ok_or_else(|| Trouble::missing("there is no systemctl"))?;
        let run = tool::run(node, systemctl).args(["--no-ask-password", "restart", SlurmNode::UNIT]);
        tool::act(node, &run, "systemctl restart slurmd.service")?;
        // The unit has begun once the program runs, which may still end over its files.
        std::thread::sleep(Duration::from_millis(500));
        let shown = units::show(systemctl, &[SlurmNode::UNIT], node.deadline)?;
        match shown.get(SlurmNode::UNIT) {
            Some(unit) if unit.active && unit.main_pid > 0 => Ok(()),
            _ => Err(Trouble::failed(
                gpufleet_protocol::FailureKind::Exit,
                "slurmd ended right after its start; `journalctl -u slurmd` on the node tells why",
            )),
        }
    }
}

/// Why slurmd has not read its files.
#[derive(Debug)]
pub enum Unheard {
    /// It was told, and nobody knows when it does; it must not be restarted.
    Silent(Trouble),
    Failed(Trouble),
}

impl From<Trouble> for Unheard {
    fn from(trouble: Trouble) -> Self {
        Self::Failed(trouble)
    }
}

/// How long a slurmd that reads its files anew may wait for its work before a new one takes over, by the settings of
/// slurm.conf in seconds.
///
/// It waits for the threads of its messages and prologs. Source: Slurm, slurmd.c, `_wait_for_all_threads`.
pub fn patience(message: Option<&str>, prolog: Option<&str>) -> Duration {
    let seconds = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
    let message = seconds(message).unwrap_or(MESSAGE_S);
    // Without a limit, or with one of hours, the task's own deadline is the shorter one.
    let prolog = seconds(prolog).unwrap_or_default();
    Duration::from_secs(message.max(prolog).max(LEAST_S)).saturating_add(HAND_OVER)
}

/// What `slurmd -G` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// Type and number of GPUs, added up.
    pub gpus: std::collections::BTreeMap<String, u64>,
    pub error: Option<String>,
}

impl Offers {
    pub fn count(&self) -> u64 {
        self.gpus.values().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

fn parse(text: &str) -> Offers {
    let mut offers = Offers::default();
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("Gres Name=gpu ") {
            let value = |name: &str| {
                rest.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
            };
            let kind = value("Type").filter(|kind| *kind != "(null)").unwrap_or_default().to_owned();
            let count = value("Count").and_then(|count| count.parse::<u64>().ok()).unwrap_or_default();
            let sum = offers.gpus.entry(kind).or_default();
            *sum = sum.saturating_add(count);
            continue;
        }
        let error = line.split_once("error: ").or_else(|| line.split_once("fatal: ")).map(|(_, why)| why);
        // A device file of a simulated GPU is none; Slurm goes on with it.
        let is_heavy = error.filter(|why| !why.contains("is not a valid character or block device"));
        let no_library = line.contains("that lib wasn't found");
        if let Some(why) = is_heavy.or(no_library.then_some(line)).filter(|_| offers.error.is_none()) {
            offers.error = Some(why.trim().chars().take(300).collect());
        }
    }
    offers
}

/// What slurmctld says of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Such as `IDLE+DRAIN+INVALID_REG`.
    pub state: String,
    pub reason: Option<String>,
    /// When the slurmd was started whose registration it took last, as it writes it; `None` if it does not tell.
    pub start: Option<String>,
    /// Whether slurmd answers.
    pub responds: bool,
}

impl Told {
    pub fn is_invalid(&self) -> bool {
        self.state.split('+').any(|flag| flag == "INVALID_REG" || flag == "INVAL")
    }

    pub fn is_down(&self) -> bool {
        self.state.split('+').any(|flag| flag == "DOWN")
    }

    /// Whether slurmctld has taken the registration of a slurmd that was started since.
    pub fn is_newer(&self, before: Option<&Self>) -> bool {
        // No Slurm leaves the time out; without it, the state has to do.
        self.start.as_deref().is_none_or(|start| {
            !["None", "Unknown"].contains(&start)
                && before.and_then(|told| told.start.as_deref()) != Some(start)
        })
    }

    pub fn is_drained(&self) -> bool {
        self.state.split('+').any(|flag| flag.starts_with("DRAIN"))
    }
}

/// Asks slurmctld; the reason why it does not tell otherwise.
pub fn told(node: &Node<'_>, conf: &Path, name: &str) -> Result<Told, String> {
    let Some(program) = node.roots.tool("scontrol") else {
        return Err("there is no scontrol on this node".to_owned());
    };
    let run: Run = tool::run(node, program).env("SLURM_CONF", conf).args(["show", "node", "-o"]).arg(name);
    let done = run.finish(&node.deadline.within(CONTROLLER)).map_err(|error| error.to_string())?;
    if !done.exit.success() {
        return Err(done.complaint("scontrol show node"));
    }
    let text = done.stdout();
    let word = |name: &str| text.split_whitespace().find_map(|word| word.strip_prefix(name));
    let state = word("State=");
    let state = state.ok_or_else(|| "scontrol show node tells no state".to_owned())?;
    // It is the last but for what may follow the time in brackets.
    let reason = text.split_once("Reason=").map(|(_, rest)| rest.lines().next().unwrap_or_default().trim());
    let reason = reason.map(|text| text.rsplit_once(" [").map_or(text, |(reason, _)| reason));
    Ok(Told {
        start: word("SlurmdStartTime=").map(|start| start.chars().take(64).collect()),
        responds: !state.ends_with('*') && !state.contains("NOT_RESPONDING"),
        state: state.trim_end_matches('*').to_owned(),
        reason: reason.filter(|text| !text.is_empty()).map(|text| text.chars().take(200).collect()),
    })
}

/// Waits until slurmctld has taken the registration of a slurmd that was started after `before`; returns its last answer.
///
/// # Errors
/// Why it does not answer.
pub fn settle(node: &Node<'_>, conf: &Path, name: &str, before: Option<&Told>) -> Result<Told, String> {
    let until = Instant::now() + REGISTER.min(node.deadline.remaining());
    loop {
        let answer = told(node, conf, name);
        let is_open = answer.as_ref().map_or(true, |told| {
            let is_bad = told.is_invalid() || told.is_down();
            !told.is_newer(before) || !told.responds || (told.start.is_none() && is_bad)
        });
        if !is_open || Instant::now() >= until {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_slurmd_may_take_as_long_as_the_work_of_the_old_one() {
        let seconds = |message, prolog| patience(message, prolog).as_secs();
        assert_eq!(seconds(None, None), 40);
        assert_eq!(seconds(Some("60"), Some("30")), 90);
        assert_eq!(seconds(Some("1"), Some("300")), 330);
        assert_eq!(seconds(Some("1"), None), 35);
        assert_eq!(seconds(Some("x"), Some("y")), 40);
    }

    #[test]
    fn what_slurmd_offers_is_read_from_its_messages() {
        let told = parse(
            "slurmd-gpu1: error: /dev/nv0 is not a valid character or block device, fix your gres.conf\n\
             slurmd-gpu1: Gres Name=gpu Type=h100 Count=4 Index=0 ID=7696487 File=/dev/nvidia[0-3] Cores=0-1 CoreCnt=4 (null)\n\
             slurmd-gpu1: Gres Name=gpu Type=h100 Count=3 Index=4 ID=7696487 File=/dev/nvidia[4-6] (null)\n",
        );
        assert_eq!((told.count(), told.gpus.get("h100"), told.error), (7, Some(&7), None));
        let bad = parse(
            "slurmd: error: xcpuinfo_abs_to_mac: failed\nslurmd: error: Invalid GRES data for gpu, Cores=0-63\n",
        );
        assert_eq!(bad.error.as_deref(), Some("xcpuinfo_abs_to_mac: failed"));
        let none = parse(
            "slurmd-gpu1: We were configured with nvml functionality, but that lib wasn't found on the system.",
        );
        assert!(none.count() == 0 && none.error.is_some());
    }
}
