//! The kill campaign: the controller of a rolling MIG reconfiguration is killed, and a second command finishes its
//! work.
//!
//! Owns the fleet, the playbook, the uninterrupted run, and the judgement of a case. A case is judged by the lab's
//! records ([`Fleet::described`], [`Fleet::outages`]) and by the log of its scheduler, never by gpufleet's.

mod kill;
mod scheduler;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

pub use kill::Kill;

use self::scheduler::Holds;
use crate::{Finished, Fleet, FleetOptions, Home, binary};

/// Time limit of a run, killed or not. At a load of 35 on two processors, a run of 12 nodes took over two minutes.
const LIMIT: Duration = Duration::from_secs(300);

/// What the playbook has beside the MIG layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Declared state only: anything interrupted is planned again.
    Mig,
    /// In addition a command that adds a line to a file of the node, and must never run twice.
    Command,
}

impl Variant {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mig => "mig",
            Self::Command => "command",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Mig, Self::Command].into_iter().find(|variant| variant.name() == text)
    }
}

/// The options of a campaign.
#[derive(Clone, Debug)]
pub struct CampaignOptions {
    pub nodes: usize,
    pub variant: Variant,
    /// How many nodes may be out at once.
    pub budget: usize,
    /// The command that finishes the killed one's work, without the inventory, such as `resume --yes`.
    pub second: Vec<String>,
    /// Where the folders of failed cases go.
    pub keep: PathBuf,
}

/// The file to which the command adds a line.
const MARKS: &str = "/srv/marks";

fn playbook(options: &CampaignOptions) -> String {
    let (budget, drain) = (options.budget, scheduler::DRAIN);
    let command = match options.variant {
        Variant::Mig => "",
        Variant::Command => "    - name: Mark\n      command: sh -c 'hostname >> /srv/marks'\n",
    };
    format!(
        "- name: Rolling MIG reconfiguration
  hosts: gpu
  become: true
  rollout:
    waves: [{budget}, 100%]
    max_unavailable: {budget}
    health_gate: [gpu_count, mig_layout, ecc, xid]
{drain}  tasks:
    - name: MIG layout
      gpu_mig: {{mode: enabled, layout: {{3g.40gb: 2}}}}
    - name: Swappiness
      sysctl: {{name: vm.swappiness, value: 10}}
    - name: Reboot where needed
      reboot: {{when: required, timeout: 60s}}
{command}"
    )
}

/// Ampere and Hopper alternate. They have a service that holds the GPUs and layouts that must be removed; every
/// second Ampere node cannot reset its GPUs, so that only a reboot makes the mode current.
fn fleet(options: &CampaignOptions) -> FleetOptions {
    let names = |pick: fn(usize) -> bool| {
        let names = (1..=options.nodes).filter(|n| pick(*n)).map(|n| format!("gpu{n:03}"));
        names.collect::<Vec<_>>().join(", ")
    };
    let (reboots, laid_out) = (names(|n| n % 4 == 0), names(|n| n % 3 == 0));
    FleetOptions {
        nodes: options.nodes,
        gpus: "h100-80gb,a100-80gb",
        gpus_per_node: 2,
        boot_seconds: 0.3,
        faults: format!("- {{nodes: \"{reboots}\", effect: no_reset}}\n"),
        states: format!(
            "- enable: [nvidia-dcgm]\n- nodes: \"{reboots}\"\n  machine: {{passthrough: true}}\n\
             - nodes: \"{laid_out}\"\n  mig_layout: [1g.10gb]\n"
        ),
        ..FleetOptions::default()
    }
}

/// The state of a fleet: lines for every node.
type Described = BTreeMap<String, Vec<String>>;

/// A fleet and its uninterrupted run.
pub struct Campaign {
    options: CampaignOptions,
    fleet: Fleet,
    /// The node with a job on it, which must not be disturbed.
    busy: String,
    /// The node that a person has drained, if the budget leaves room for others.
    theirs: Option<String>,
    initial: Described,
    wanted: Described,
    reboots: BTreeMap<String, u64>,
    code: Option<i32>,
    records: usize,
    took: Duration,
}

/// The result of one case.
#[derive(Debug)]
pub struct Outcome {
    pub kill: Kill,
    /// Whether the controller was killed by it; a run may end before the record or instant.
    pub reached: bool,
    /// Number of records that the killed controller left.
    pub records: usize,
    pub problems: Vec<String>,
    /// Number of nodes on which the second command held the interrupted task instead of running it again.
    pub held: usize,
    pub took: Duration,
    /// The folder of a failed case.
    pub folder: Option<PathBuf>,
}

impl Campaign {
    /// Starts the fleet and runs the playbook once, to its end.
    ///
    /// # Errors
    /// If the run fails without a kill, or does not do what the campaign needs.
    pub fn start(options: CampaignOptions) -> Result<Self, String> {
        let fleet = Fleet::start(&fleet(&options));
        let name = |number: usize| format!("gpu{number:03}");
        let mut campaign = Self {
            busy: name(options.nodes),
            theirs: (options.budget > 1).then(|| name(options.nodes - 1)),
            options,
            fleet,
            initial: Described::new(),
            wanted: Described::new(),
            reboots: BTreeMap::new(),
            code: None,
            records: 0,
            took: Duration::ZERO,
        };
        campaign.reset()?;
        campaign.initial = campaign.described();
        let home = campaign.home();
        let begin = Instant::now();
        let done = campaign.first(&home).within(LIMIT).start().ended()?;
        campaign.took = begin.elapsed();
        campaign.records = home.records();
        campaign.wanted = campaign.described();
        let outages = campaign.fleet.outages();
        campaign.reboots = reboots(&outages);
        campaign.code = done.code;
        let holds = Holds::of(&home);
        let sound = done.code == Some(5)
            && campaign
                .wanted
                .iter()
                .all(|(node, lines)| (lines != &campaign.initial[node]) == campaign.is_for_us(node))
            && campaign.reboots.values().sum::<u64>() == (campaign.options.nodes as u64 - 1) / 4
            && campaign.wanted.keys().all(|node| !campaign.is_for_us(node) || holds.times(node) == 1);
        if !sound {
            return Err(format!("the uninterrupted run is not as it should be: {done}\n{outages:#}"));
        }
        let mut problems = campaign.judge_outages(&outages);
        problems.extend(campaign.judge_drains(&home, &holds, &outages, ""));
        if problems.is_empty() { Ok(campaign) } else { Err(format!("{problems:#?}\n{done}")) }
    }

    /// Returns the number of records of the uninterrupted run.
    pub const fn records(&self) -> usize {
        self.records
    }

    /// Returns how long the uninterrupted run took.
    pub const fn took(&self) -> Duration {
        self.took
    }

    /// Whether the run should change this node.
    fn is_for_us(&self, node: &str) -> bool {
        node != self.busy && self.theirs.as_deref() != Some(node)
    }

    fn home(&self) -> Home {
        let home = Home::new();
        home.write("play.yaml", &playbook(&self.options));
        scheduler::install(&home, self.theirs.as_deref());
        home
    }

    fn first<'a>(&self, home: &'a Home) -> crate::Command<'a> {
        home.gpufleet(["run", "play.yaml", "--yes", "-i", &self.fleet.inventory()])
    }

    fn second<'a>(&self, home: &'a Home) -> crate::Command<'a> {
        let command = home.gpufleet(&self.options.second);
        // A resumed run has its inventory in its journal.
        if self.options.second.first().is_some_and(|word| word == "run") {
            command.args(["-i", &self.fleet.inventory()])
        } else {
            command
        }
    }

    /// Restores the fleet, and starts a job on its last node that must survive everything.
    fn reset(&self) -> Result<(), String> {
        self.fleet.restore()?;
        self.fleet.control(&self.busy, &["client", "add", "0", "4000"]);
        Ok(())
    }

    fn described(&self) -> Described {
        let mut all = Described::new();
        for line in self.fleet.described().lines() {
            if let Some((node, rest)) = line.split_once(' ')
                // The runs of the command are counted separately.
                && !rest.starts_with(&format!("file {MARKS} "))
            {
                all.entry(node.to_owned()).or_default().push(rest.to_owned());
            }
        }
        all
    }

    /// Kills a run in one way, finishes its work with the second command, and judges the fleet.
    pub fn case(&self, kill: Kill) -> Outcome {
        let begin = Instant::now();
        let home = self.home();
        let mut outcome = Outcome {
            kill,
            reached: false,
            records: 0,
            problems: Vec::new(),
            held: 0,
            took: Duration::ZERO,
            folder: None,
        };
        let said = match self.run(&home, &mut outcome) {
            Ok((first, second)) => format!("{first}\n\n{second}"),
            Err(problem) => {
                outcome.problems.push(problem);
                String::new()
            }
        };
        if !outcome.problems.is_empty() {
            outcome.folder = self.keep(&home, &outcome, &said).ok();
        }
        outcome.took = begin.elapsed();
        outcome
    }

    fn run(&self, home: &Home, outcome: &mut Outcome) -> Result<(Finished, Finished), String> {
        self.reset()?;
        let mut command = self.first(home).within(LIMIT);
        if let Some((at, how)) = outcome.kill.orders() {
            let shim = binary("libcrashpoint.so");
            command = command.env("LD_PRELOAD", shim).env("CRASH_AT", at).env("CRASH_HOW", how);
        }
        let running = command.start();
        if let Kill::Instant(time) = outcome.kill {
            std::thread::sleep(time);
            running.signal(Signal::KILL);
        }
        let first = running.ended()?;
        outcome.reached = first.code.is_none();
        outcome.records = home.records();
        if let Some(left) = outcome.kill.leaves()
            && outcome.reached
            && outcome.records != left
        {
            outcome.problems.push(format!("the shim left {} records instead of {left}", outcome.records));
        }
        let (began, over) = (home.journal().has("run_started"), home.journal().has("run_finished"));
        let second = self.second(home).within(LIMIT).start().ended()?;
        let now = self.described();
        let nothing_to_end = !began && now == self.initial;
        if !nothing_to_end {
            self.judge_end(&now, over, &second, outcome);
        }
        let outages = self.fleet.outages();
        outcome.problems.extend(self.judge_outages(&outages));
        outcome.problems.extend(self.judge_drains(home, &Holds::of(home), &outages, &second.stdout));
        for (node, count) in reboots(&outages) {
            let wanted = self.reboots.get(&node).copied().unwrap_or_default();
            if !nothing_to_end && count != wanted {
                outcome.problems.push(format!("{node} was rebooted {count} times instead of {wanted}"));
            }
        }
        Ok((first, second))
    }

    /// Judges the fleet's state and the commands after the second command.
    fn judge_end(&self, now: &Described, over: bool, second: &Finished, outcome: &mut Outcome) {
        let said = format!("{}{}", second.stdout, second.stderr);
        if second.code != self.code && !(over && second.code == Some(0)) {
            outcome.problems.push(format!("the second command ended with {:?}", second.code));
        }
        for (node, lines) in &self.wanted {
            let has = now.get(node).map(Vec::as_slice).unwrap_or_default();
            let missing = lines.iter().find(|line| !has.contains(line));
            let surplus = has.iter().find(|line| !lines.contains(line));
            if missing.is_some() || surplus.is_some() {
                outcome.problems.push(format!("{node} differs: {}", difference(missing, surplus)));
            }
        }
        if self.options.variant == Variant::Command {
            for node in self.wanted.keys().filter(|node| self.is_for_us(node)) {
                let times = self.fleet.text(node, MARKS).unwrap_or_default().lines().count();
                let about = held_line(node);
                let named = said.lines().any(|line| line.starts_with(&about));
                match times {
                    1 => outcome.held += usize::from(named),
                    0 if named => outcome.held += 1,
                    0 => {
                        outcome.problems.push(format!("the command never ran on {node}, and nobody says so"))
                    }
                    times => outcome.problems.push(format!("the command ran {times} times on {node}")),
                }
            }
        }
    }

    fn judge_outages(&self, outages: &Value) -> Vec<String> {
        let most = |what: &str| outages[what].as_u64().unwrap_or(u64::MAX);
        let (down, disturbed) = (most("most_down"), most("most_disturbed"));
        let budget = self.options.budget as u64;
        let mut problems = Vec::new();
        if down > budget || disturbed > budget {
            problems
                .push(format!("{down} nodes were down and {disturbed} disturbed at once; {budget} may be"));
        }
        for (node, history) in outages["nodes"].as_object().into_iter().flatten() {
            if history["left_stopped"].as_array().is_some_and(|units| !units.is_empty()) {
                problems.push(format!("{node} has services left stopped: {}", history["left_stopped"]));
            }
        }
        problems
    }

    /// Judges the drains by the logs of the scheduler and of the lab.
    fn judge_drains(&self, home: &Home, holds: &Holds, outages: &Value, said: &str) -> Vec<String> {
        let mut problems = holds.judge(outages, self.options.budget);
        let held = scheduler::held(home);
        let theirs = self.theirs.as_deref().map(|node| (node.to_owned(), scheduler::PERSON.to_owned()));
        if !theirs.iter().all(|theirs| held.contains(theirs)) {
            problems.push(format!("the drain of a person is gone or overwritten: {held:?}"));
        }
        for (node, by) in held.iter().filter(|held| theirs.as_ref() != Some(*held)) {
            // Not given back, because what an interrupted command left is unknown. The output must say so, with that
            // reason.
            if self.options.variant == Variant::Command && says_left_out(said, node) {
                continue;
            }
            problems.push(format!("{node} is left drained by {by}"));
        }
        for (node, history) in outages["nodes"].as_object().into_iter().flatten() {
            let (times, acts) = (holds.times(node), history["acts"].as_array().map_or(0, Vec::len));
            if self.is_for_us(node) && times > 1 {
                problems.push(format!("{node} was drained {times} times"));
            }
            if !self.is_for_us(node) && acts > 0 {
                problems.push(format!("{node} was acted on {acts} times, and it is busy or a person's"));
            }
        }
        problems
    }

    /// Keeps a failed case: the home with its journal, the nodes' logs and states, the output.
    fn keep(&self, home: &Home, outcome: &Outcome, said: &str) -> std::io::Result<PathBuf> {
        let variant = self.options.variant.name();
        let folder =
            self.options.keep.join(format!("{variant}-{}", outcome.kill.to_string().replace(':', "-")));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        copy(home.dir(), &folder.join("home"))?;
        for node in self.fleet.names() {
            copy(
                &self.fleet.dir().join("nodes").join(&node).join("state"),
                &folder.join("nodes").join(&node),
            )?;
        }
        std::fs::write(folder.join("said.txt"), said)?;
        std::fs::write(folder.join("problems.txt"), outcome.problems.join("\n"))?;
        std::fs::write(folder.join("described.txt"), self.fleet.described())?;
        std::fs::write(folder.join("outages.json"), format!("{:#}", self.fleet.outages()))?;
        Ok(folder)
    }
}

/// Returns how a recap line begins for a node whose command was interrupted.
fn held_line(node: &str) -> String {
    format!("{node} is held: interrupted in task `Mark`")
}

/// Whether a recap names a node as held for an interrupted command, and as left out of service.
fn says_left_out(recap: &str, node: &str) -> bool {
    let about = held_line(node);
    let mut block = recap.lines().skip_while(|line| !line.starts_with(&about));
    let Some(first) = block.next() else { return false };
    let rest = block.take_while(|line| line.starts_with(' '));
    let words = std::iter::once(first).chain(rest).flat_map(str::split_whitespace).collect::<Vec<_>>();
    words.join(" ").contains("this run took it out of service and left it there")
}

/// Returns where two lines differ, with the text around.
fn difference(wanted: Option<&String>, found: Option<&String>) -> String {
    let text = |line: Option<&String>| line.map_or_else(|| "nothing".to_owned(), Clone::clone);
    let (wanted, found) = (text(wanted), text(found));
    let same = wanted.chars().zip(found.chars()).take_while(|(a, b)| a == b).count();
    let part = |line: &str| line.chars().skip(same.saturating_sub(40)).take(110).collect::<String>();
    format!("`{}` instead of `{}`", part(&found), part(&wanted))
}

fn reboots(outages: &Value) -> BTreeMap<String, u64> {
    let nodes = outages["nodes"].as_object().into_iter().flatten();
    nodes.map(|(node, history)| (node.clone(), history["reboots"].as_u64().unwrap_or_default())).collect()
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_left_out_must_be_named_with_its_reason() {
        let recap = "gpu001 is held: interrupted in task `Mark` (play.yaml:24): it began, and how far it got is not\n  \
                     known\n  state    The node was not rebooted; this run took it out of service and left it\n           \
                     there.\ngpu002 is held: process 7 holds GPU 0\n  state    stays\n";
        assert!(says_left_out(recap, "gpu001"));
        assert!(!says_left_out(recap, "gpu002") && !says_left_out(recap, "gpu003"));
        assert!(!says_left_out(&recap.replace("left it", "gave it"), "gpu001"));
    }
}
