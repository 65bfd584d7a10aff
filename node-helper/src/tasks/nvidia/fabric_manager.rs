//! `fabric_manager`: it runs where there is an NVSwitch, in exactly the version of the driver that is loaded.

use std::{fs, io::Read as _, time::Duration};

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    tasks::{FabricManager, Package, RunState},
};
use serde_json::{Map, Value, json};

use super::provided::{Provided, Step as Unit};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{files, units},
    signals,
    tasks::{driver, tool},
    world::Effect,
};

/// Time limit of a program that tells its version.
const ANSWER: Duration = Duration::from_secs(10);
/// Bytes that are read of a device's vital product data; PCI allows 32 KiB.
const VPD_LIMIT: u64 = 32 * 1024;
/// What the vital product data of a network card says that manages NVLink switches. Source: NVIDIA's gpu-driver-container,
/// `nvidia-driver`.
const MANAGES_SWITCHES: &[u8] = b"SW_MNG";

#[derive(Debug)]
pub struct State {
    /// Of the module that is loaded.
    driver: String,
    /// Of the program on disk; `None` if there is none.
    version: Option<String>,
    /// Whether an earlier task brings a version that only the run knows.
    foreseen: bool,
    /// Whether the process runs a program that is no longer on disk.
    outdated: bool,
    /// Whether it manages switches through a network card, for which it needs `ib_umad`.
    by_card: bool,
    has_umad: bool,
    provided: Provided,
}

#[derive(Debug)]
pub enum Step {
    Unit(Unit),
    Restart,
}

/// Whether a card of this node manages NVLink switches (HGX B200 and B300), whose switches are not on the node's bus.
fn manages_by_card(node: &Node<'_>) -> Result<bool, Trouble> {
    let folder = node.roots.path("/sys/class/infiniband");
    for name in node.world.names(&folder)? {
        let Ok(file) = fs::File::open(folder.join(name).join("device/vpd")) else { continue };
        let mut bytes = Vec::new();
        // Ignored, because a card in a low power state does not tell.
        let _ = file.take(VPD_LIMIT).read_to_end(&mut bytes);
        if bytes.windows(MANAGES_SWITCHES.len()).any(|window| window == MANAGES_SWITCHES) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn line(node: &Node<'_>, path: &str) -> Result<Option<String>, Trouble> {
    let bytes = files::read_bounded(&node.roots.path(path), 4096)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()))
}

fn version(node: &Node<'_>) -> Result<Option<String>, Trouble> {
    let Some(program) = node.roots.tool("nv-fabricmanager") else { return Ok(None) };
    let done = tool::run(node, program).arg("--version").limit(4096).finish(&node.deadline.within(ANSWER))?;
    signals::version_in(&done.stdout())
        .map(Some)
        .ok_or_else(|| Trouble::io(done.complaint("nv-fabricmanager --version")))
}

/// Whether the unit's process runs a program that was replaced on disk.
fn is_outdated(node: &Node<'_>) -> Result<bool, Trouble> {
    let Some(systemctl) = node.roots.tool("systemctl") else { return Ok(false) };
    let shown = units::show(systemctl, &[FabricManager::UNIT], node.deadline)?;
    let Some(unit) = shown.get(FabricManager::UNIT).filter(|unit| unit.active && unit.main_pid > 0) else {
        return Ok(false);
    };
    let program = fs::read_link(node.roots.proc(&format!("{}/exe", unit.main_pid)));
    Ok(program.is_ok_and(|path| path.to_string_lossy().ends_with(" (deleted)")))
}

/// Returns the package of a driver's version.
fn package(node: &Node<'_>, task: &FabricManager, version: &str) -> Result<Package, Trouble> {
    let branch: u32 = version.split('.').next().and_then(|branch| branch.parse().ok()).unwrap_or(0);
    let named = format!("nvidia-fabricmanager-{branch}");
    let apt = node.roots.tool("apt-get").is_some();
    let name = match &task.package {
        Some(name) => name.clone(),
        None if !apt => "nvidia-fabricmanager".to_owned(),
        None => {
            let program = tool::find(node, "apt-cache", "is it a node of Debian or Ubuntu?")?;
            let run = tool::run(node, program).args(["pkgnames", "nvidia-fabricmanager"]);
            let said = tool::ask(node, &run)?.stdout();
            let has = |name: &str| said.lines().any(|line| line.trim() == name);
            match has(&named) || (branch < driver::UNNUMBERED && !has("nvidia-fabricmanager")) {
                true => named,
                false => "nvidia-fabricmanager".to_owned(),
            }
        }
    };
    // apt takes a pattern for the packager's part of the version; dnf wants it joined to the name.
    let name = if apt { format!("{name}={version}-*") } else { format!("{name}-{version}") };
    Ok(Package { allow_downgrade: true, ..Package::of(vec![name]) })
}

impl NodeKind for FabricManager {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let reader = signals::Reader { roots: node.roots, deadline: node.deadline };
        let by_card = manages_by_card(node)?;
        let switches = by_card || signals::switches(&reader).map_err(Trouble::io)?;
        if !switches {
            return Err(Trouble::NotApplicable("there is no NVSwitch on this node".to_owned()));
        }
        let loaded = match driver::foreseen(node) {
            Some(version) => Some(version),
            None => line(node, "/sys/module/nvidia/version")?,
        };
        let driver = loaded.ok_or_else(|| {
            Trouble::missing("the NVIDIA driver is not loaded, and the fabric manager must be of its version")
        })?;
        let version = version(node)?;
        let assumed = node.world.packages();
        let fits = version.as_ref() == Some(&driver);
        let foreseen = !fits
            && assumed.iter().any(|(name, version)| {
                let is_it = name.starts_with("nvidia-fabricmanager");
                is_it
                    && version
                        .as_ref()
                        .is_some_and(|version| version.is_empty() || driver::upstream(version) == driver)
            });
        let installs = self.install && self.state == RunState::Started && !fits && !foreseen;
        let package = if installs { Some(package(node, self, &driver)?) } else { None };
        let service = self.state.of_unit(Self::UNIT, self.enabled);
        let restarted = !node.world.noted(NOTE).is_empty();
        Ok(State {
            driver,
            version,
            foreseen,
            outdated: !restarted && is_outdated(node)?,
            by_card,
            has_umad: node.roots.path("/sys/module/ib_umad").exists(),
            provided: Provided::observe(node, service, package)?,
        })
    }

    fn is_stale(&self, state: &State) -> bool {
        state.provided.is_stale()
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let fits = state.version.as_ref() == Some(&state.driver) || state.foreseen;
        let installs = state.provided.installs()?;
        if self.state == RunState::Started && !fits && !installs {
            let next = match self.install {
                true => "its package is installed, and its program is of another version",
                false => "`install: true` installs the right one",
            };
            return Err(Trouble::missing(match &state.version {
                Some(version) => format!(
                    "the fabric manager is {version} and the driver that runs is {}: it ends at once unless they are equal; {next}",
                    state.driver
                ),
                None => format!("there is no nv-fabricmanager on this node, and it has an NVSwitch; {next}"),
            }));
        }
        if self.state == RunState::Started && state.by_card && !state.has_umad {
            return Err(Trouble::missing(
                "the switches of this board are managed through a network card, for which the fabric manager needs the \
                 kernel module ib_umad; `modprobe: {name: ib_umad, persistent: present}` loads it",
            ));
        }
        let of_unit = state.provided.plan()?;
        let mut plan = Plan { changes: of_unit.changes, ..Plan::default() };
        plan.warnings.extend(of_unit.warnings);
        for change in &mut plan.changes {
            // Source: NVIDIA Fabric Manager user guide, `ABORT_CUDA_JOBS_ON_FM_EXIT`.
            let stops = matches!(change.subject, Subject::Unit { .. })
                && change.layer.is_live()
                && self.state == RunState::Stopped;
            if stops {
                change.disruption = Disruption::Clients;
                change.note = Some("its end aborts CUDA jobs".to_owned());
            }
        }
        let is_start =
            |change: &Change| matches!(change.subject, Subject::Unit { .. }) && change.layer.is_live();
        let starts = plan.changes.iter().any(is_start)
            || of_unit.steps.iter().any(|step| matches!(step, Unit::NewUnit));
        let runs_another = state.outdated || (installs && state.version.is_some() && !starts);
        plan.steps.extend(of_unit.steps.into_iter().map(Step::Unit));
        if runs_another && self.state == RunState::Started {
            let change = Change::new(
                Subject::unit(Self::UNIT),
                Property::STATE,
                "running in another version",
                "restarted",
                Disruption::Clients,
            );
            plan.push(Step::Restart, change.with_note("its end aborts CUDA jobs"));
        }
        if state.by_card {
            plan.warnings.push(
                "this board also needs NVIDIA's nvlsm, in the version that the release notes of the driver name; it is not \
                 looked into"
                    .to_owned(),
            );
        }
        plan.needs = plan.changes.iter().map(|change| change.disruption).max().unwrap_or_default();
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let restarts = plan.steps.iter().any(|step| matches!(step, Step::Restart));
        let noted = Effect::Noted { name: NOTE.to_owned(), value: String::new() };
        state.provided.after().into_iter().chain(restarts.then_some(noted)).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            node.check_time()?;
            match step {
                Step::Unit(step) => state.provided.act(node, step)?,
                Step::Restart => tool::restart(node, Self::UNIT)?,
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let data = [("version", json!(state.version)), ("driver", json!(state.driver))];
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Name under which a prediction notes that the daemon was restarted.
const NOTE: &str = "fabric manager restarted";
