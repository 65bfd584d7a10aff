//! irqbalance: made to leave interrupts alone, or stopped.
//!
//! By a policy script, because numbers of interrupts change at each boot: `--banirq` would name others then, and
//! `--banmod` whole drivers. irqbalance asks it once for each interrupt that it finds. Source: irqbalance(1) 1.9.2.

use std::path::PathBuf;

use gpufleet_protocol::{
    Change, Disruption, Layer, Property, Subject,
    change::Value as Typed,
    tasks::{IrqAffinity, IrqBalance, Service, ServiceState},
};

use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        files::Ownership,
        lines::{self, Edit},
        units,
    },
    tasks::{
        edits::{self, Present},
        service, started,
        systemd::{ask, parse},
        tool,
    },
    world::Effect,
};

const UNIT: &str = "irqbalance.service";
/// Under which a prediction notes that irqbalance has read its policy.
const NOTE: &str = "irqbalance policy";
/// Options that give irqbalance another policy.
const POLICIES: [&str; 2] = ["--policyscript", "-l"];
/// Options by which somebody has banned it from interrupts.
const BANS: [&str; 6] = ["--policyscript", "-l", "--banirq", "-i", "--banmod", "-m"];

#[derive(Debug)]
pub enum Balance {
    /// There is none, or it does not run and is not to be touched.
    Nothing,
    /// It runs, is not to be touched, and moves interrupts.
    Fights,
    Stopped(Box<(Service, service::State)>),
    Banned(Box<Banned>),
}

#[derive(Debug)]
pub struct Banned {
    policy: Present,
    policy_text: String,
    /// The environment file, and its text with our policy.
    environment: Present,
    environment_text: String,
    /// Whether it runs, and has not read its files.
    active: bool,
    old: bool,
}

#[derive(Debug)]
pub enum Step {
    File(edits::Step),
    Restart,
    Service(service::Step),
}

fn policy_line(address: &str) -> String {
    format!("*/{address}) echo ban=true ;;\n")
}

/// Returns the text of the policy script; devices that it has already stay, if `is_there`.
fn policy(old: &str, addresses: &[&str], is_there: impl Fn(&str) -> bool) -> String {
    let known = |line: &str| line.strip_prefix("*/")?.strip_suffix(") echo ban=true ;;").map(str::to_owned);
    let mut all: Vec<String> = old.lines().filter_map(known).filter(|address| is_there(address)).collect();
    all.extend(addresses.iter().map(|address| (*address).to_owned()));
    all.sort_unstable();
    all.dedup();
    let lines: String = all.iter().map(|address| policy_line(address)).collect();
    format!(
        "#!/bin/sh\n# Written by gpufleet: `irq_affinity`. irqbalance calls it with the folder of a device and the number of an\n\
         # interrupt.\ncase \"$1\" in\n{lines}esac\nexit 0\n"
    )
}

/// Returns the value of a variable in an environment file; the last line counts.
fn variable<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let value = |line: &'t str| line.trim_start().strip_prefix(name)?.strip_prefix('=');
    text.lines().rev().find_map(value).map(|value| value.trim().trim_matches(['"', '\'']))
}

/// Returns the text with another value of a variable, on one line.
fn with_variable(text: &str, name: &str, value: &str) -> String {
    let is_it = |line: &str| line.trim_start().strip_prefix(name).is_some_and(|rest| rest.starts_with('='));
    let mut out = lines::edited(text, |_, line| Edit::remove_if(is_it(line)));
    lines::append(&mut out, &format!("{name}=\"{value}\""));
    out
}

/// How the unit of irqbalance gets its options.
struct Options {
    /// Name of the variable.
    name: String,
    value: String,
    /// The environment file to write.
    file: String,
}

/// Finds the variable by the unit itself, because distributions differ in its name and its file.
fn options(node: &Node<'_>, systemctl: &PathBuf) -> Result<Options, Trouble> {
    let done = ask(node, systemctl, &["show", "--property=EnvironmentFiles,ExecStart", "--", UNIT])?;
    let text = done.stdout();
    let start = parse(&text).remove("ExecStart").unwrap_or_default();
    let word = start.split_whitespace().find_map(|word| word.strip_prefix('$'));
    let name = word.map(|word| word.trim_matches(['{', '}']).to_owned());
    // A property with several values has a line for each.
    let files: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("EnvironmentFiles=")?.split(" (").next()).collect();
    let file = files.iter().rev().find(|path| path.starts_with("/etc/")).map(|path| (*path).to_owned());
    let (Some(name), Some(file)) = (name, file) else {
        return Err(Trouble::invalid(format!(
            "{UNIT} takes no options from a file below /etc, so that it cannot be banned from interrupts there; `irqbalance: stop` \
             stops it"
        )));
    };
    let mut value = String::new();
    for path in files {
        let bytes = node.world.read(&node.roots.path(path))?.unwrap_or_default();
        if let Some(found) = variable(&String::from_utf8_lossy(&bytes), &name) {
            found.clone_into(&mut value);
        }
    }
    Ok(Options { name, value, file })
}

fn has(value: &str, options: &[&str]) -> bool {
    value.split_whitespace().any(|word| options.contains(&word.split('=').next().unwrap_or_default()))
}

impl Balance {
    /// # Errors
    /// If systemd does not answer, or irqbalance has another policy script.
    pub fn observe(node: &Node<'_>, task: &IrqAffinity, addresses: &[&str]) -> Result<Self, Trouble> {
        let systemctl = tool::find(node, "systemctl", "does systemd run this node?")?;
        let shown = units::show(&systemctl, &[UNIT], node.deadline)?;
        let unit = shown.get(UNIT).cloned().unwrap_or_default();
        if !unit.exists {
            return Ok(Self::Nothing);
        }
        let assumed = node.world.unit(UNIT);
        let active = match &assumed {
            Some(view) => view.active == Some(true),
            None if node.world.rebooted() => unit.enabled,
            None => unit.runs(),
        };
        match task.irqbalance {
            IrqBalance::Stop => {
                let service =
                    Service { state: Some(ServiceState::Stopped), enabled: Some(false), ..Service::of(UNIT) };
                let state = service.observe(node)?;
                Ok(Self::Stopped(Box::new((service, state))))
            }
            IrqBalance::Leave if !active => Ok(Self::Nothing),
            IrqBalance::Leave => {
                let is_banned = options(node, &systemctl).is_ok_and(|options| has(&options.value, &BANS));
                Ok(if is_banned { Self::Nothing } else { Self::Fights })
            }
            IrqBalance::Ban => {
                let options = options(node, &systemctl)?;
                let ours = format!("--policyscript={}", IrqAffinity::POLICY);
                let is_ours = options.value.split_whitespace().any(|word| word == ours);
                if !is_ours && has(&options.value, &POLICIES) {
                    return Err(Trouble::invalid(format!(
                        "irqbalance has a policy script already ({}: {}); take it out, or use `irqbalance: leave` if it bans these \
                         interrupts",
                        options.file, options.value
                    )));
                }
                let policy_file = Present::read(node, IrqAffinity::POLICY)?;
                let is_there =
                    |address: &str| node.roots.path(format!("/sys/bus/pci/devices/{address}")).exists();
                let policy_text = policy(policy_file.text()?, addresses, is_there);
                let environment = Present::read(node, &options.file)?;
                let environment_text = match is_ours {
                    true => environment.text()?.to_owned(),
                    false => {
                        let value = format!("{} {ours}", options.value);
                        with_variable(environment.text()?, &options.name, value.trim())
                    }
                };
                let is_fresh = !unit.runs() || node.world.rebooted() || !node.world.noted(NOTE).is_empty();
                let files = [policy_file.place.clone(), environment.place.clone()];
                let old = active && !is_fresh && started::before(node, unit.main_pid, &files)?;
                let banned =
                    Banned { policy: policy_file, policy_text, environment, environment_text, active, old };
                Ok(Self::Banned(Box::new(banned)))
            }
        }
    }

    /// # Errors
    /// If it would move what is declared.
    pub fn plan<S>(&self, plan: &mut Plan<S>, step: impl Fn(Step) -> S) -> Result<(), Trouble> {
        match self {
            Self::Nothing => {}
            Self::Fights => {
                return Err(Trouble::invalid(
                    "irqbalance runs, and would move these interrupts within 10 seconds; `irqbalance: ban` makes it leave them \
                     alone, `irqbalance: stop` stops it",
                ));
            }
            Self::Stopped(parts) => {
                let (service, state) = &**parts;
                let mut of_unit = service.plan(state)?;
                plan.changes.append(&mut of_unit.changes);
                plan.warnings.append(&mut of_unit.warnings);
                plan.steps.extend(of_unit.steps.into_iter().map(|one| step(Step::Service(one))));
            }
            Self::Banned(banned) => banned.plan(plan, step),
        }
        Ok(())
    }

    pub fn after(&self, steps: &[&Step]) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Self::Stopped(parts) = self {
            let (service, state) = &**parts;
            let own = steps
                .iter()
                .filter_map(|step| if let Step::Service(step) = step { Some(*step) } else { None });
            effects.extend(service.after(state, &Plan { steps: own.collect(), ..Plan::default() }));
        }
        effects.extend(steps.iter().filter_map(|step| match step {
            Step::File(step) => Some(step.effect()),
            Step::Restart => Some(Effect::Noted { name: NOTE.to_owned(), value: "read".to_owned() }),
            Step::Service(_) => None,
        }));
        effects
    }

    /// # Errors
    /// If a file cannot be written, or irqbalance does not start.
    pub fn apply(&self, node: &Node<'_>, step: &Step) -> Result<(), Trouble> {
        match (step, self) {
            (Step::File(step), _) => step.apply(),
            (Step::Restart, _) => tool::restart(node, UNIT),
            (Step::Service(step), Self::Stopped(parts)) => {
                let (service, state) = &**parts;
                service.apply(node, state, &Plan { steps: vec![*step], ..Plan::default() }).map(drop)
            }
            (Step::Service(_), _) => Ok(()),
        }
    }
}

impl Banned {
    fn plan<S>(&self, plan: &mut Plan<S>, step: impl Fn(Step) -> S) {
        let runs =
            self.policy.owned.is_some_and(|owned| owned.mode & 0o111 == 0o111 && owned.mode & 0o022 == 0);
        let mut is_new = false;
        if self.policy.text().ok() != Some(self.policy_text.as_str()) || !runs {
            is_new = true;
            let own = Ownership { mode: Some(0o755), ..Ownership::default() };
            plan.steps
                .extend(self.policy.written(self.policy_text.as_str(), own).map(|one| step(Step::File(one))));
            plan.changes.push(self.policy.change(Some(self.policy_text.as_bytes())));
        }
        if self.environment.text().ok() != Some(self.environment_text.as_str()) {
            is_new = true;
            let written = self.environment.written(self.environment_text.as_str(), Ownership::default());
            plan.steps.extend(written.map(|one| step(Step::File(one))));
            let mut change = self.environment.change(Some(self.environment_text.as_bytes())).at(Layer::Live);
            change.diff = self.environment.diff(&self.environment_text, false);
            plan.changes.push(change);
        }
        if self.active && (is_new || self.old) {
            let settings = Property::new("settings");
            let (from, to) =
                (Typed::text("older than its policy"), Typed::text("leaves these interrupts alone"));
            plan.steps.push(step(Step::Restart));
            plan.changes.push(Change::new(Subject::unit(UNIT), settings, from, to, Disruption::Live));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_others_stay() {
        let text = "# x\nIRQBALANCE_ARGS=\"--powerthresh=2\"\nA=1\n";
        assert_eq!(variable(text, "IRQBALANCE_ARGS"), Some("--powerthresh=2"));
        assert_eq!(variable("#IRQBALANCE_ARGS=\n", "IRQBALANCE_ARGS"), None);
        let new = with_variable(text, "IRQBALANCE_ARGS", "--powerthresh=2 --policyscript=/x");
        assert_eq!(new, "# x\nA=1\nIRQBALANCE_ARGS=\"--powerthresh=2 --policyscript=/x\"\n");
        assert!(has("--a -l x", &POLICIES) && !has("--policy", &POLICIES));
    }

    #[test]
    fn the_policy_keeps_devices_that_are_there() {
        let first = policy("", &["0000:5d:00.0"], |_| true);
        let both = policy(&first, &["0000:01:00.0"], |_| true);
        assert!(
            both.contains("*/0000:01:00.0) echo ban=true ;;\n*/0000:5d:00.0) echo ban=true ;;\n"),
            "{both}"
        );
        assert_eq!(policy(&both, &["0000:01:00.0"], |_| true), both);
        assert!(!policy(&both, &["0000:01:00.0"], |_| false).contains("5d"));
    }
}
