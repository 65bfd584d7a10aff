//! `fabric_manager`: it runs where there is an NVSwitch, in exactly the version of the driver that is loaded.

use std::{fs, io::Read as _};

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    tasks::{FabricManager, Package, RunState},
};
use serde_json::{Map, Value, json};

use super::{
    provided::{Provided, Step as Unit},
    versions,
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    gpu::clients::{self, Places},
    os::units,
    signals,
    tasks::{driver, tool},
    world::Effect,
};

/// Bytes that are read of a device's vital product data; PCI allows 32 KiB.
const VPD_LIMIT: u64 = 32 * 1024;
/// What the vital product data of a network card says that manages NVLink switches. Source: NVIDIA's gpu-driver-container,
/// `nvidia-driver`.
const MANAGES_SWITCHES: &[u8] = b"SW_MNG";
/// The subnet manager of NVLink, by the path that the fabric manager starts. Source: its message where that is missing
/// (release 570: `"/opt/nvidia/nvlsm/sbin/nvlsm" does not exist`).
const NVLSM: &str = "/opt/nvidia/nvlsm/sbin/nvlsm";

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
    /// Why switches behind a card would not be managed, though the fabric manager runs.
    unmanaged: Option<Unmanaged>,
    provided: Provided,
}

/// What is wrong with the subnet manager of NVLink (nvlsm).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unmanaged {
    Absent,
    /// It is there, and does not run although the fabric manager does.
    Stopped,
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

/// Looks for the subnet manager, which the fabric manager's own unit starts beside it.
fn unmanaged(node: &Node<'_>) -> Result<Option<Unmanaged>, Trouble> {
    if !node.roots.path(NVLSM).exists() {
        let comes = node.world.packages().iter().any(|(name, version)| name == "nvlsm" && version.is_some());
        return Ok((!comes).then_some(Unmanaged::Absent));
    }
    let Some(systemctl) = node.roots.tool("systemctl") else { return Ok(None) };
    let shown = units::show(systemctl, &[FabricManager::UNIT], node.deadline)?;
    let runs = shown.get(FabricManager::UNIT).is_some_and(units::UnitStatus::runs);
    let places = Places { proc: node.roots.proc(""), etc: node.roots.etc("") };
    Ok((runs && clients::named(&places, "nvlsm").is_empty()).then_some(Unmanaged::Stopped))
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
        let driver = versions::of_driver(node)?.ok_or_else(|| {
            Trouble::missing("the NVIDIA driver is not loaded, and the fabric manager must be of its version")
        })?;
        let version = versions::of_program(node, "nv-fabricmanager")?;
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
            unmanaged: if by_card { unmanaged(node)? } else { None },
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
        if self.state == RunState::Started && state.unmanaged == Some(Unmanaged::Absent) {
            return Err(Trouble::missing(format!(
                "the switches of this board are managed through a network card, for which the fabric manager starts {NVLSM}, and \
                 that is missing: `package: {{name: nvlsm}}` before this task installs it (its version is a date, and not that of \
                 the driver)"
            )));
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
        // A start brings it.
        let begins = plan.steps.iter().any(|step| matches!(step, Step::Restart)) || starts;
        if self.state == RunState::Started && state.unmanaged == Some(Unmanaged::Stopped) && !begins {
            plan.warnings.push(
                "the fabric manager runs, and nvlsm, which manages the switches of this board, does not: GPUs get no fabric, and \
                 CUDA fails with error 802; `journalctl -u nvidia-fabricmanager` on the node tells why, and a restart of the unit \
                 starts both"
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
