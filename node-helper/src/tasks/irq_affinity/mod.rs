//! `irq_affinity`: the interrupts of devices are handled on CPUs near them.
//!
//! What counts is where an interrupt is handled (`effective_affinity_list`): one that is handled near its device stays as
//! it is, so that the spread that a driver made is kept. A service of ours does it at boot, because irqbalance is not
//! everywhere, and numbers of interrupts are new at each boot.

mod balance;

use std::{fs, io, os::unix::fs::PermissionsExt as _, path::PathBuf};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property, Subject,
    change::Value as Typed,
    cpus::CpuList,
    tasks::IrqAffinity,
    topology::{Topology, What},
};
use serde_json::{Map, Value, json};

use self::balance::Balance;
use super::{
    knobs,
    own_unit::{self, OwnUnit},
    sysctl::owners::Profile,
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::files::FileError,
    signals::{self, pci},
    world::Effect,
};

const PCI: &str = "/sys/bus/pci/devices";
/// Interrupts that the kernel refused to move, a line each with the device and the number. In memory, because the
/// numbers are of this boot.
const MANAGED: &str = "/run/gpufleet/irq-managed";
/// More interrupts than any device has.
const MOST: usize = 4096;

/// A device and where its interrupts belong.
#[derive(Debug)]
struct Device {
    address: String,
    /// Such as `0000:5d:00.0 (eth0)`.
    label: String,
    /// `None` if nobody tells where the device is.
    target: Option<CpuList>,
    irqs: Vec<Irq>,
    /// Whether a boot was assumed after which nobody has set the interrupts so.
    open: bool,
}

#[derive(Debug)]
struct Irq {
    number: u32,
    /// CPUs that handle it now; empty before it was ever used.
    effective: CpuList,
    /// CPUs that may handle it.
    allowed: CpuList,
    /// Whether the kernel itself decides.
    managed: bool,
}

#[derive(Debug)]
pub struct State {
    devices: Vec<Device>,
    balance: Balance,
    service: own_unit::State,
    warnings: Vec<String>,
}

#[derive(Debug)]
pub enum Step {
    Balance(balance::Step),
    Move { device: String, number: u32, cpus: CpuList },
    Service(own_unit::Step),
}

fn affinity(number: u32) -> String {
    format!("/proc/irq/{number}/smp_affinity_list")
}

fn list(node: &Node<'_>, path: &str) -> Result<Option<CpuList>, Trouble> {
    let Some(text) = knobs::value(node, path)? else { return Ok(None) };
    text.parse().map(Some).map_err(|error| Trouble::io(format!("{path}: {error}")))
}

/// Whether a queue of an NVMe drive has the interrupt; all but the first queue's are managed. Source: kernel,
/// drivers/nvme/host/pci.c.
fn is_nvme_queue(actions: &str) -> bool {
    actions.split(',').any(|name| {
        let queue = name.trim().strip_prefix("nvme").and_then(|rest| rest.split_once('q'));
        queue.is_some_and(|(drive, queue)| {
            drive.parse::<u32>().is_ok() && queue.parse::<u32>().is_ok_and(|at| at > 0)
        })
    })
}

impl Irq {
    fn read(node: &Node<'_>, address: &str, number: u32, refused: &str) -> Result<Option<Self>, Trouble> {
        let path = affinity(number);
        let Some(allowed) = list(node, &path)? else { return Ok(None) };
        let effective = list(node, &format!("/proc/irq/{number}/effective_affinity_list"))?;
        let assumed = node.world.parameter(&path).and_then(|text| text.parse::<CpuList>().ok());
        let (effective, allowed) = match assumed {
            Some(cpus) => (cpus.clone(), cpus),
            None => (effective.unwrap_or_else(|| allowed.clone()), allowed),
        };
        let mode = fs::metadata(node.roots.path(&path)).map(|meta| meta.permissions().mode());
        let actions = knobs::value(node, &format!("/sys/kernel/irq/{number}/actions"))?.unwrap_or_default();
        let managed = mode.is_ok_and(|mode| mode & 0o222 == 0)
            || is_nvme_queue(&actions)
            || refused.lines().any(|line| line == format!("{address} {number}"));
        Ok(Some(Self { number, effective, allowed, managed }))
    }

    /// Whether it is handled on these CPUs, or will be at its next interrupt.
    fn is_on(&self, cpus: &CpuList) -> bool {
        let inside = |list: &CpuList| !list.is_empty() && list.is_subset(cpus);
        inside(&self.effective) || inside(&self.allowed)
    }
}

fn irqs(node: &Node<'_>, address: &str, refused: &str) -> Result<Vec<Irq>, Trouble> {
    let folder = node.roots.path(format!("{PCI}/{address}/msi_irqs"));
    let mut numbers: Vec<u32> =
        node.world.names(&folder)?.iter().filter_map(|name| name.parse().ok()).collect();
    if numbers.is_empty() {
        let line = knobs::value(node, &format!("{PCI}/{address}/irq"))?.and_then(|text| text.parse().ok());
        numbers.extend(line.filter(|number: &u32| *number > 0));
    }
    numbers.sort_unstable();
    numbers.truncate(MOST);
    let mut all = Vec::new();
    for number in numbers {
        all.extend(Irq::read(node, address, number, refused)?);
    }
    Ok(all)
}

/// A device, and the CPUs near it.
struct Found {
    address: String,
    name: Option<String>,
    near: Option<CpuList>,
}

fn near(topology: &Topology, device: &gpufleet_protocol::topology::Device) -> Option<CpuList> {
    let told = device.local_cpus.clone().filter(|cpus| device.numa_node.is_some() && !cpus.is_empty());
    // With one NUMA node every CPU is near.
    told.or_else(|| topology.node_of(device).map(|node| node.cpus.clone()))
}

fn found(topology: &Topology, device: &gpufleet_protocol::topology::Device) -> Found {
    let name = match &device.what {
        What::Network(network) => network.interfaces.first().cloned(),
        What::Nvme { names } => names.first().cloned(),
        What::Gpu(_) | What::NvSwitch => None,
    };
    Found { address: device.address.clone(), name, near: near(topology, device) }
}

/// Finds a device by its address or its interface, of any class.
fn single(node: &Node<'_>, topology: &Topology, name: &str) -> Result<Found, Trouble> {
    let has = |device: &&gpufleet_protocol::topology::Device| {
        let interfaces = match &device.what {
            What::Network(network) => network.interfaces.as_slice(),
            _ => &[],
        };
        device.address == name || interfaces.iter().any(|interface| interface == name)
    };
    if let Some(device) = topology.devices.iter().find(has) {
        return Ok(found(topology, device));
    }
    let reader = signals::Reader { roots: node.roots, deadline: node.deadline };
    let address = match pci::is_address(name) {
        true => Some(name.to_owned()),
        false => pci::behind(&reader, &format!("/sys/class/net/{name}/device")).map_err(Trouble::io)?,
    };
    let missing =
        || Trouble::missing(format!("there is no PCI device and no network interface `{name}` on this node"));
    let address =
        address.filter(|address| node.roots.path(format!("{PCI}/{address}")).exists()).ok_or_else(missing)?;
    let numa_node =
        knobs::value(node, &format!("{PCI}/{address}/numa_node"))?.and_then(|text| text.parse().ok());
    let device = gpufleet_protocol::topology::Device {
        local_cpus: list(node, &format!("{PCI}/{address}/local_cpulist"))?,
        address,
        what: What::NvSwitch,
        numa_node,
        root: None,
        ports: Vec::new(),
    };
    let name = (!pci::is_address(name)).then(|| name.to_owned());
    Ok(Found { name, ..found(topology, &device) })
}

/// Returns the declared devices in the order of their addresses.
fn declared(node: &Node<'_>, task: &IrqAffinity, topology: &Topology) -> Result<Vec<Found>, Trouble> {
    let mut all: Vec<Found> = Vec::new();
    for name in &task.devices {
        let is_it = |what: &What| {
            matches!(
                (name.as_str(), what),
                ("nic", What::Network(_)) | ("nvme", What::Nvme { .. }) | ("gpu", What::Gpu(_))
            )
        };
        match name.as_str() {
            "nic" | "nvme" | "gpu" => {
                all.extend(
                    topology.devices.iter().filter(|one| is_it(&one.what)).map(|one| found(topology, one)),
                );
            }
            name => all.push(single(node, topology, name)?),
        }
    }
    all.sort_by(|a, b| a.address.cmp(&b.address));
    all.dedup_by(|a, b| a.address == b.address);
    Ok(all)
}

/// Returns the CPUs that the script has for a device.
fn line_of(script: &str, address: &str) -> Option<CpuList> {
    let cpus =
        |line: &str| line.strip_prefix("near ")?.strip_prefix(address)?.strip_prefix(' ')?.parse().ok();
    script.lines().find_map(cpus)
}

/// Returns the script that does it at boot; devices that it has already and that are there stay.
fn script(old: &str, devices: &[Device], is_there: impl Fn(&str) -> bool) -> String {
    let line = |address: &str, cpus: &str| format!("near {address} {cpus}");
    let mut lines: Vec<String> = old
        .lines()
        .filter(|text| {
            let address = text.strip_prefix("near ").and_then(|rest| rest.split(' ').next());
            address.is_some_and(|address| {
                is_there(address) && !devices.iter().any(|device| device.address == address)
            })
        })
        .map(str::to_owned)
        .collect();
    let targets = devices.iter().filter_map(|device| Some((device, device.target.as_ref()?)));
    lines.extend(targets.map(|(device, cpus)| line(&device.address, &cpus.to_string())));
    lines.sort_unstable();
    // Errors are left out: the kernel refuses managed interrupts.
    format!(
        "#!/bin/sh\n# Written by gpufleet: `irq_affinity`.\n\
         inside() (\n\
         \x20   IFS=,\n\
         \x20   [ -n \"$1\" ] || exit 1\n\
         \x20   for have in $1; do\n\
         \x20       is=\n\
         \x20       for want in $2; do\n\
         \x20           [ \"${{have%-*}}\" -ge \"${{want%-*}}\" ] && [ \"${{have#*-}}\" -le \"${{want#*-}}\" ] && is=1\n\
         \x20       done\n\
         \x20       [ \"$is\" ] || exit 1\n\
         \x20   done\n\
         )\n\
         near() {{\n\
         \x20   for irq in {PCI}/\"$1\"/msi_irqs/*; do\n\
         \x20       [ -e \"$irq\" ] || read -r irq < {PCI}/\"$1\"/irq\n\
         \x20       irq=${{irq##*/}}\n\
         \x20       [ \"$irq\" != 0 ] || continue\n\
         \x20       for list in effective_affinity_list smp_affinity_list; do\n\
         \x20           now=\n\
         \x20           read -r now < /proc/irq/\"$irq\"/$list\n\
         \x20           inside \"$now\" \"$2\" && continue 2\n\
         \x20       done\n\
         \x20       echo \"$2\" > /proc/irq/\"$irq\"/smp_affinity_list\n\
         \x20   done 2> /dev/null\n\
         }}\n\
         {}\nexit 0\n",
        lines.join("\n")
    )
}

fn read_text(node: &Node<'_>, path: &str) -> Result<String, Trouble> {
    let bytes = node.world.read(&node.roots.path(path))?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl NodeKind for IrqAffinity {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let reader = signals::Reader { roots: node.roots, deadline: node.deadline };
        let topology = signals::topology::read(&reader, Default::default);
        let of_devices = |line: &&String| line.contains(PCI);
        let mut warnings: Vec<String> = topology.errors.iter().filter(of_devices).cloned().collect();
        let found = declared(node, self, &topology)?;
        if found.is_empty() {
            let why = warnings.first().map(|why| format!(": {why}")).unwrap_or_default();
            return Err(Trouble::NotApplicable(format!(
                "there is no {} on this node{why}",
                self.devices.join(" or ")
            )));
        }
        knobs::changeable(node, "/proc/irq")?;
        let refused = read_text(node, MANAGED)?;
        let mut devices = Vec::new();
        for one in found {
            let target = match self.listed() {
                Some(cpus) => Some(cpus),
                None => one.near.map(|cpus| cpus.common(&topology.online).without(&topology.isolated)),
            };
            let target = target
                .map(|cpus| self.exclude.as_ref().map_or(cpus.clone(), |exclude| cpus.without(exclude)));
            if let Some(offline) = target.as_ref().filter(|cpus| !cpus.is_subset(&topology.online)) {
                let cpus = offline.without(&topology.online);
                return Err(Trouble::invalid(format!("CPUs {cpus} are not online here")));
            }
            if target.as_ref().is_some_and(CpuList::is_empty) {
                return Err(Trouble::invalid(format!(
                    "no CPU is left for {}: those near it are isolated or excluded",
                    one.address
                )));
            }
            let label = one.name.map_or(one.address.clone(), |name| format!("{} ({name})", one.address));
            let irqs = irqs(node, &one.address, &refused)?;
            devices.push(Device { address: one.address, label, target, irqs, open: false });
        }
        if devices.iter().all(|device| device.target.is_none()) {
            return Err(Trouble::NotApplicable(
                "the firmware does not tell on which NUMA node these devices are (numa_node is -1), as in many virtual machines; \
                 `cpus` may list the CPUs"
                    .to_owned(),
            ));
        }
        refuse_read_only(node, &devices)?;
        warnings.extend(told(&devices));
        let addresses: Vec<&str> = devices
            .iter()
            .filter(|device| device.target.is_some())
            .map(|device| device.address.as_str())
            .collect();
        let balance = Balance::observe(node, self, &addresses)?;
        let is_there = |address: &str| node.roots.path(format!("{PCI}/{address}")).exists();
        let old = read_text(node, &format!("/etc/gpufleet/{}.sh", Self::UNIT))?;
        let unit = OwnUnit {
            name: Self::UNIT,
            about: "interrupts of devices on CPUs near them".to_owned(),
            script: Some(script(&old, &devices, is_there)),
            stays: false,
            after: "systemd-modules-load.service network.target network-online.target irqbalance.service \
                    nvidia-persistenced.service",
            requires: None,
        };
        let service = unit.observe(node)?;
        if node.world.rebooted() {
            for device in &mut devices {
                let Some(target) = &device.target else { continue };
                // By the script of before this task: the boot was before it.
                let line = line_of(&old, &device.address).filter(|_| service.runs());
                device.open = !line.is_some_and(|cpus| cpus.is_subset(target));
                for irq in device.irqs.iter_mut().filter(|_| !device.open) {
                    irq.effective = target.clone();
                }
            }
        }
        let profile = Profile::read(node)?;
        for (section, name) in [("irqbalance", "banned_cpus"), ("scheduler", "isolated_cores")] {
            if let Some((path, value)) = profile.as_ref().and_then(|profile| profile.sets(section, name)) {
                warnings
                    .push(format!("tuned changes interrupts too: {name}={value} in [{section}] of {path}"));
            }
        }
        Ok(State { devices, balance, service, warnings })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan { warnings: state.warnings.clone(), ..Plan::default() };
        state.balance.plan(&mut plan, Step::Balance)?;
        for device in &state.devices {
            let Some(target) = &device.target else { continue };
            let wrong: Vec<&Irq> = device
                .irqs
                .iter()
                .filter(|irq| !irq.managed && (device.open || !irq.is_on(target)))
                .collect();
            if wrong.is_empty() {
                continue;
            }
            let on: CpuList = wrong.iter().flat_map(|irq| irq.effective.iter()).collect();
            let from = if device.open {
                Typed::Unknown
            } else {
                Typed::text(format!("{} on CPUs {on}", wrong.len()))
            };
            let subject = Subject::kernel_setting(&device.label);
            let to = format!("on CPUs {target}");
            let change = Change::new(subject, Property::new("interrupts"), from, to, Disruption::Live);
            if device.open {
                let note = "nothing sets them so at boot, so that it is known only in the run";
                plan.changes.push(change.with_note(note).possible());
                continue;
            }
            plan.changes.push(change);
            plan.steps.extend(wrong.iter().map(|irq| Step::Move {
                device: device.address.clone(),
                number: irq.number,
                cpus: target.clone(),
            }));
        }
        state.service.plan(&mut plan, Step::Service);
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let (mut balance, mut service, mut effects) = (Vec::new(), Vec::new(), Vec::new());
        for step in &plan.steps {
            match step {
                Step::Balance(step) => balance.push(step),
                Step::Service(step) => service.push(step),
                Step::Move { number, cpus, .. } => {
                    effects.push(Effect::Parameter { name: affinity(*number), value: cpus.to_string() });
                }
            }
        }
        effects.extend(state.balance.after(&balance));
        effects.extend(state.service.after(service));
        effects
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let mut refused = Vec::new();
        for step in &plan.steps {
            node.check_time()?;
            match step {
                Step::Balance(step) => state.balance.apply(node, step)?,
                Step::Service(step) => state.service.apply(node, step)?,
                Step::Move { device, number, cpus } => {
                    if !move_irq(node, *number, cpus)? {
                        refused.push(format!("{device} {number}\n"));
                    }
                }
            }
        }
        if !refused.is_empty() {
            let known = read_text(node, MANAGED)?;
            knobs::put(&node.roots.path(MANAGED), &(known + &refused.concat()))?;
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let device = |device: &Device| {
            let managed = device.irqs.iter().filter(|irq| irq.managed).count();
            json!({
                "address": device.address,
                "interrupts": device.irqs.len(),
                "managed": managed,
                "cpus": device.target.as_ref().map(CpuList::to_string),
            })
        };
        let all: Vec<Value> = state.devices.iter().map(device).collect();
        let mut data: Map<String, Value> = [("devices".to_owned(), Value::Array(all))].into_iter().collect();
        let unknown = state.devices.iter().filter(|device| device.irqs.is_empty() || device.target.is_none());
        let unknown: Vec<&str> = unknown.map(|device| device.address.as_str()).collect();
        if !unknown.is_empty() {
            data.insert("unknown".to_owned(), json!(unknown));
        }
        data
    }
}

/// Finds out whether anything can be moved here; an open alone writes nothing.
fn refuse_read_only(node: &Node<'_>, devices: &[Device]) -> Result<(), Trouble> {
    let Some(irq) = devices.iter().find_map(|device| device.irqs.first()) else { return Ok(()) };
    let opened = fs::OpenOptions::new().write(true).open(node.roots.path(affinity(irq.number)));
    match opened {
        Err(error) if error.raw_os_error() == Some(libc::EROFS) => Err(Trouble::NotApplicable(
            "/proc/irq is read-only here, as in a container: interrupts are the host's".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// What of the devices people should know.
fn told(devices: &[Device]) -> Vec<String> {
    let labels = |is: &dyn Fn(&Device) -> bool| {
        let all: Vec<&str> =
            devices.iter().filter(|device| is(device)).map(|device| device.label.as_str()).collect();
        (!all.is_empty()).then(|| all.join(", "))
    };
    let unknown = labels(&|device| device.target.is_none());
    let silent = labels(&|device| device.irqs.is_empty());
    let managed = labels(&|device| {
        let outside = |irq: &Irq| device.target.as_ref().is_some_and(|target| !irq.is_on(target));
        device.irqs.iter().any(|irq| irq.managed && outside(irq))
    });
    let lines = [
        unknown.map(|all| format!("{all}: the firmware does not tell the NUMA node, so their interrupts were left alone")),
        silent.map(|all| format!("{all}: without interrupts; is the driver loaded?")),
        managed.map(|all| format!("{all}: the kernel itself decides where their managed interrupts are handled, and refuses to move them")),
    ];
    lines.into_iter().flatten().collect()
}

/// Moves an interrupt; `false` if the kernel does not let anybody move it.
fn move_irq(node: &Node<'_>, number: u32, cpus: &CpuList) -> Result<bool, Trouble> {
    let path: PathBuf = node.roots.path(affinity(number));
    let written = fs::OpenOptions::new().write(true).truncate(true).open(&path).and_then(|mut file| {
        use io::Write as _;
        file.write_all(format!("{cpus}\n").as_bytes())
    });
    let Err(error) = written else {
        let now = list(node, &affinity(number))?;
        if now.as_ref().is_some_and(|now| now.is_subset(cpus)) {
            return Ok(true);
        }
        return Err(Trouble::failed(
            FailureKind::Unconverged,
            format!("interrupt {number} was moved to CPUs {cpus}, and {} reads otherwise", path.display()),
        ));
    };
    match error.raw_os_error() {
        // Managed interrupts: EIO before Linux 6.12, EPERM since.
        Some(libc::EIO | libc::EPERM | libc::EACCES) => Ok(false),
        Some(libc::ENOSPC) => Err(Trouble::failed(
            FailureKind::Busy,
            format!(
                "the CPUs {cpus} have no vector left for interrupt {number}; allow more CPUs, or fewer channels"
            ),
        )),
        // It went with a driver in the meantime.
        Some(libc::ENOENT) => Ok(true),
        _ => Err(FileError::new("set", path, error).into()),
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, failure, shown};

    /// Knows our service and, if there is a file `irqbalance`, irqbalance.
    const SYSTEMCTL: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
while case "$1" in --no-*) true;; *) false;; esac; do shift; done
for last; do :; done
echo "$1 $last" | grep -v ^show >> $d/log
case "$1" in
show)
  case "$2$last" in
  *EnvironmentFiles*)
    echo 'EnvironmentFiles=/usr/lib/irqbalance/defaults.env (ignore_errors=yes)'
    echo 'EnvironmentFiles=/etc/default/irqbalance (ignore_errors=yes)'
    echo 'ExecStart={ path=/usr/sbin/irqbalance ; argv[]=/usr/sbin/irqbalance --foreground $IRQBALANCE_ARGS ; pid=0 }'; exit 0;;
  *irqbalance.service)
    [ -e $d/irqbalance ] || { echo Id=irqbalance.service; echo LoadState=not-found; exit 0; }
    printf 'Id=irqbalance.service\nNames=irqbalance.service\nLoadState=loaded\nActiveState=%s\nUnitFileState=enabled\nMainPID=55\nType=simple\n' "$(cat $d/irqbalance)"; exit 0;;
  esac
  state=inactive; [ -e $d/active ] && state=active; file=disabled; [ -e $d/enabled ] && file=enabled
  printf 'Id=%s\nLoadState=loaded\nActiveState=%s\nUnitFileState=%s\nMainPID=0\n' "$last" $state $file;;
enable) : > $d/enabled;;
restart) case $last in irqbalance*) printf '55 (irqbalance) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99999999 0\n' > $d/proc/55/stat;; *) : > $d/active;; esac;;
stop) case $last in irqbalance*) echo inactive > $d/irqbalance;; esac;;
esac
exit 0
"#;

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.script("usr/bin/systemctl", SYSTEMCTL);
        let write = |name: &str, text: &str| bench.write(name, text);
        write("log", "");
        write("sys/devices/system/cpu/online", "0-7\n");
        write("sys/devices/system/node/online", "0-1\n");
        for (node, cpus) in [(0, "0-3"), (1, "4-7")] {
            write(&format!("sys/devices/system/node/node{node}/cpulist"), &format!("{cpus}\n"));
            write(&format!("sys/devices/system/node/node{node}/distance"), "10 21\n");
        }
        device(&bench, "0000:5d:00.0", "0x020000", "1", "4-7");
        write("sys/bus/pci/devices/0000:5d:00.0/net/eth0/mtu", "1500\n");
        for (number, effective) in [(40, "1"), (41, "5")] {
            irq(&bench, "0000:5d:00.0", number, effective, "0-7");
        }
        bench
    }

    fn device(bench: &Bench, address: &str, class: &str, numa: &str, cpus: &str) {
        let folder = format!("sys/bus/pci/devices/{address}");
        for (name, text) in
            [("class", class), ("vendor", "0x15b3"), ("numa_node", numa), ("local_cpulist", cpus)]
        {
            bench.write(&format!("{folder}/{name}"), &format!("{text}\n"));
        }
    }

    fn irq(bench: &Bench, address: &str, number: u32, effective: &str, allowed: &str) {
        bench.write(&format!("sys/bus/pci/devices/{address}/msi_irqs/{number}"), "msix\n");
        bench.write(&format!("proc/irq/{number}/smp_affinity_list"), &format!("{allowed}\n"));
        bench.write(&format!("proc/irq/{number}/effective_affinity_list"), &format!("{effective}\n"));
    }

    fn task(value: Value) -> IrqAffinity {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn interrupts_go_near_their_device_and_stay_there_at_boot() {
        let bench = bench();
        let nic = task(json!({"devices": "nic"}));
        let before = bench.snapshot();
        let predicted = bench.run(&nic, Mode::Predict);
        assert_eq!(bench.run(&nic, Mode::Predict).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), before);
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&nic, Mode::Predict).status, OpStatus::Ok);
        bench.forget();
        assert_eq!(
            shown(&predicted),
            [
                "0000:5d:00.0 (eth0) interrupts: 1 on CPUs 1 -> on CPUs 4-7 (live)",
                "gpufleet-irq-affinity.service at boot: without a unit file -> interrupts of devices on CPUs near them (live)",
                "gpufleet-irq-affinity.service: stopped -> started (live)",
            ]
        );
        let done = bench.run(&nic, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
        assert_eq!(bench.read("proc/irq/40/smp_affinity_list"), "4-7\n");
        assert_eq!(
            bench.read("proc/irq/41/smp_affinity_list"),
            "0-7\n",
            "it is handled near its device already"
        );
        assert!(
            bench.read("etc/gpufleet/gpufleet-irq-affinity.sh").contains("\nnear 0000:5d:00.0 4-7\nexit 0\n")
        );
        assert_eq!(bench.run(&nic, Mode::Apply).status, OpStatus::Ok);
        // Another task keeps the line of the first.
        device(&bench, "0000:01:00.0", "0x010802", "0", "0-3");
        irq(&bench, "0000:01:00.0", 50, "6", "6");
        let nvme = task(json!({"devices": "nvme", "exclude": "0"}));
        // A boot sets what the script had by then.
        bench.activate(Disruption::Reboot);
        for other in [&nvme, &task(json!({"devices": "nic", "cpus": "4-5"}))] {
            let open = bench.run(other, Mode::Predict);
            assert!(open.changes[0].what().contains("interrupts"), "{open:?}");
            assert_eq!(open.changes[0].certainty, gpufleet_protocol::Certainty::Possible, "{open:?}");
            assert_eq!(bench.run(other, Mode::Predict).status, OpStatus::Ok);
        }
        bench.forget();
        assert_eq!(bench.run(&nvme, Mode::Apply).status, OpStatus::Changed);
        assert!(
            bench
                .read("etc/gpufleet/gpufleet-irq-affinity.sh")
                .contains("near 0000:01:00.0 1-3\nnear 0000:5d:00.0 4-7\n")
        );
        for again in [&nic, &nvme] {
            assert_eq!(bench.run(again, Mode::Apply).status, OpStatus::Ok);
        }
    }

    #[test]
    fn the_script_does_at_boot_what_a_run_does() {
        let bench = bench();
        irq(&bench, "0000:5d:00.0", 42, "3", "0-7");
        bench.run(&task(json!({"devices": "eth0", "cpus": "2-3"})), Mode::Apply);
        bench.write("sys/bus/pci/devices/0000:02:00.0/irq", "16\n");
        for number in [16, 40, 41] {
            bench.write(&format!("proc/irq/{number}/smp_affinity_list"), "0-7\n");
        }
        let root = bench.path("");
        let root = root.display().to_string();
        let script = bench
            .read("etc/gpufleet/gpufleet-irq-affinity.sh")
            .replace("exit 0", "near 0000:02:00.0 1\nexit 0");
        let script =
            script.replace("/sys/", &format!("{root}sys/")).replace("/proc/", &format!("{root}proc/"));
        bench.script("boot.sh", &script);
        assert!(std::process::Command::new(bench.path("boot.sh")).status().unwrap().success());
        assert_eq!(bench.read("proc/irq/41/smp_affinity_list"), "2-3\n");
        assert_eq!(bench.read("proc/irq/16/smp_affinity_list"), "1\n");
        assert_eq!(bench.read("proc/irq/42/smp_affinity_list"), "0-7\n", "it is handled there already");
    }

    #[test]
    fn managed_interrupts_are_told_and_not_moved() {
        let bench = bench();
        device(&bench, "0000:01:00.0", "0x010802", "0", "0-3");
        irq(&bench, "0000:01:00.0", 50, "6", "6");
        bench.write("sys/kernel/irq/50/actions", "nvme0q1\n");
        irq(&bench, "0000:01:00.0", 51, "7", "7");
        let mode = fs::Permissions::from_mode(0o444);
        fs::set_permissions(bench.path("proc/irq/51/smp_affinity_list"), mode).unwrap();
        irq(&bench, "0000:01:00.0", 52, "7", "7");
        bench.write(MANAGED.trim_start_matches('/'), "0000:01:00.0 52\n");
        let done = bench.run(&task(json!({"devices": "nvme"})), Mode::Apply);
        assert!(done.changes.iter().all(|change| !change.what().contains("interrupts")), "{done:?}");
        assert!(done.warnings[0].contains("0000:01:00.0: the kernel itself decides"), "{done:?}");
        assert_eq!(done.data["devices"][0]["managed"], json!(3));
        assert_eq!(bench.read("proc/irq/50/smp_affinity_list"), "6\n");
        for (name, is) in [("nvme0q1", true), ("nvme12q0", false), ("eth0,nvme3q7", true), ("nvmeq1", false)]
        {
            assert_eq!(is_nvme_queue(name), is, "{name}");
        }
    }

    #[test]
    fn an_unknown_place_is_unknown_and_never_right() {
        let bench = bench();
        device(&bench, "0000:5d:00.0", "0x020000", "-1", "0-7");
        let none = bench.run(&task(json!({"devices": "nic"})), Mode::Apply);
        assert!(
            matches!(&none.status, OpStatus::NotApplicable { reason } if reason.contains("-1")),
            "{none:?}"
        );
        let listed = bench.run(&task(json!({"devices": "nic", "cpus": "0-1"})), Mode::Predict);
        assert_eq!(shown(&listed)[0], "0000:5d:00.0 (eth0) interrupts: 1 on CPUs 5 -> on CPUs 0-1 (live)");
        let far = bench.run(&task(json!({"devices": "nic", "cpus": "0-9"})), Mode::Predict);
        assert_eq!(failure(&far), "CPUs 8-9 are not online here");
        let gone = bench.run(&task(json!({"devices": "eth9"})), Mode::Predict);
        assert!(failure(&gone).contains("no network interface `eth9`"));
        let none = bench.run(&task(json!({"devices": "gpu"})), Mode::Predict);
        assert!(matches!(none.status, OpStatus::NotApplicable { .. }));
    }

    #[test]
    fn irqbalance_is_made_to_leave_them_or_stopped_and_never_fought() {
        let bench = bench();
        bench.write("irqbalance", "active\n");
        bench.write("proc/stat", "btime 1000000000\n");
        bench.write("proc/55/stat", "55 (irqbalance) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0\n");
        bench.write("etc/default/irqbalance", "# x\nIRQBALANCE_ARGS=--powerthresh=2\n");
        let fights = bench.run(&task(json!({"devices": "nic", "irqbalance": "leave"})), Mode::Predict);
        assert!(failure(&fights).contains("would move these interrupts"), "{fights:?}");
        let ban = task(json!({"devices": "nic"}));
        let predicted = bench.run(&ban, Mode::Predict);
        assert_eq!(bench.run(&ban, Mode::Predict).status, OpStatus::Ok);
        bench.forget();
        // It was started in the year 2001, and the restart below makes it newer than its files.
        bench.write("proc/stat", "btime 1799999999\n");
        let done = bench.run(&ban, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
        assert_eq!(
            bench.read("etc/default/irqbalance"),
            "# x\nIRQBALANCE_ARGS=\"--powerthresh=2 --policyscript=/etc/gpufleet/gpufleet-irq-policy.sh\"\n"
        );
        assert!(bench.read("log").starts_with("restart irqbalance.service\n"), "{}", bench.read("log"));
        let said = |device: &str| {
            let run = std::process::Command::new(bench.path("etc/gpufleet/gpufleet-irq-policy.sh"))
                .args([device, "40"])
                .output();
            String::from_utf8(run.unwrap().stdout).unwrap()
        };
        assert_eq!(said("/sys/bus/pci/devices/0000:5d:00.0"), "ban=true\n");
        assert_eq!(said("/sys/bus/pci/devices/0000:5e:00.0"), "");
        assert_eq!(bench.run(&ban, Mode::Apply).status, OpStatus::Ok);
        let stop = bench.run(&task(json!({"devices": "nic", "irqbalance": "stop"})), Mode::Predict);
        assert!(
            shown(&stop).contains(&"irqbalance.service: started -> stopped (live)".to_owned()),
            "{stop:?}"
        );
        bench.write("etc/default/irqbalance", "IRQBALANCE_ARGS=--policyscript=/opt/x\n");
        assert!(failure(&bench.run(&ban, Mode::Predict)).contains("has a policy script already"));
    }
}
