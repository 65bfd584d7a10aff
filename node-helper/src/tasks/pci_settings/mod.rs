//! `pci_settings`: the largest read request of devices, and access control (ACS) of the ports above them.
//!
//! Two bytes of the configuration each, written through sysfs. A boot loses them, so that a service of ours sets them
//! again; all tasks share it, and each keeps the lines of the others. A start of the service sets all lines, so that those
//! of the others count as changes of the task that starts it.

mod script;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::FileExt as _,
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property, Subject, Unit,
    change::Value as Typed,
    tasks::{AcsState, PciSettings},
    topology::What,
};
use serde_json::{Map, Value, json};

use self::script::{Place, Word};
use super::{
    knobs,
    own_unit::{self, OwnUnit},
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    facts,
    os::files::FileError,
    signals::{
        Reader, pci,
        pci_config::{self as config, Acs, Express, READ_REQUEST},
        topology,
    },
    world::Effect,
};

const GROUPS: &str = "/sys/kernel/iommu_groups";
/// Devices of a driver that a message tells.
const MOST_TOLD: usize = 8;
/// Under which a prediction notes what tasks declare.
const DECLARED: &str = "pci_settings/";

/// A device, and what of it was read.
#[derive(Debug)]
struct Device {
    address: String,
    express: Express,
    /// None if it is known only after an assumed boot.
    now: Option<u16>,
}

#[derive(Debug)]
struct Port {
    address: String,
    acs: Acs,
    now: Option<u16>,
}

/// A register, and how its values are told.
#[derive(Clone, Copy, Debug)]
enum Register {
    ReadRequest,
    Access(Acs),
}

impl Register {
    fn told(self, control: u16) -> Typed {
        match self {
            Self::ReadRequest => match config::read_request(control) {
                Some(bytes) => Typed::quantity(bytes, Unit::Bytes),
                None => Typed::text("a reserved value"),
            },
            Self::Access(acs) => match (Acs { control, ..acs }) {
                Acs { control: 0, .. } => Typed::text("off"),
                acs if acs.is_on() => Typed::text("on"),
                _ => Typed::text(format!("partly on ({control:#06x})")),
            },
        }
    }

    fn change(self, address: &str, from: Option<u16>, to: u16) -> Change {
        let (name, class) = match self {
            Self::ReadRequest => ("max read request", Disruption::Live),
            Self::Access(_) => ("ACS", Disruption::Clients),
        };
        let subject = Subject::kernel_setting(format!("{address} {name}"));
        let from = from.map_or(Typed::Unknown, |control| self.told(control));
        Change::new(subject, Property::VALUE, from, self.told(to), class)
    }
}

/// A register that a line of another task sets, and that has another value.
#[derive(Debug)]
struct Other {
    place: Place,
    register: Register,
    now: Option<u16>,
    value: u16,
}

#[derive(Debug)]
pub struct State {
    devices: Vec<Device>,
    ports: Vec<Port>,
    /// Lines of this task.
    own: BTreeMap<Place, Word>,
    others: Vec<Other>,
    /// Ports with lines of an earlier `acs: off`, which do nothing while vfio has devices.
    idle: Vec<String>,
    /// Ports without any access control.
    plain: Vec<String>,
    /// What virtual machines or programs have by vfio, a driver each.
    vfio: Vec<String>,
    /// Whether an IOMMU translates what devices ask for.
    translates: bool,
    /// None where the task only reads.
    service: Option<own_unit::State>,
}

#[derive(Clone, Debug)]
pub enum Step {
    Word { address: String, register: usize, mask: u16, value: u16 },
    Service(own_unit::Step),
}

fn identity(node: &Node<'_>, address: &str) -> Result<String, Trouble> {
    let read = |name: &str| knobs::value(node, &pci::file(address, name));
    match (read("vendor")?, read("device")?) {
        (Some(vendor), Some(device)) if vendor.len() == 6 && device.len() == 6 => {
            Ok(format!("{vendor}:{device}"))
        }
        _ => Err(Trouble::io(format!("{address} does not tell vendor and device"))),
    }
}

fn bytes(node: &Node<'_>, address: &str) -> Result<Vec<u8>, Trouble> {
    let read = pci::config(node.roots, address).map_err(Trouble::io)?;
    read.ok_or_else(|| Trouble::io(format!("{address} has no configuration to read")))
}

fn unread(address: &str) -> impl Fn(config::Unread) -> Trouble + '_ {
    move |why| Trouble::io(format!("{address}: {why}"))
}

/// Writes the bits of a register. Two bytes at once, because the register after Device Control is cleared by ones.
fn write(node: &Node<'_>, address: &str, register: usize, mask: u16, value: u16) -> Result<(), Trouble> {
    let path = node.roots.path(pci::file(address, "config"));
    let word = |file: &fs::File| {
        let mut two = [0; 2];
        file.read_exact_at(&mut two, register as u64).map(|()| u16::from_le_bytes(two))
    };
    let opened = fs::OpenOptions::new().read(true).write(true).open(&path);
    let written = opened.and_then(|file| {
        let new = word(&file)? & !mask | value;
        file.write_all_at(&new.to_le_bytes(), register as u64)?;
        Ok((new, word(&file)?))
    });
    match written {
        Ok((new, now)) if new == now => Ok(()),
        Ok((new, now)) => Err(Trouble::failed(
            FailureKind::Unconverged,
            format!(
                "the register {register:#x} of {address} was set to {new:#06x}, but reads {now:#06x} afterwards"
            ),
        )),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let lockdown = knobs::value(node, "/sys/kernel/security/lockdown")?.unwrap_or_default();
            let why = match lockdown.contains("[integrity]") || lockdown.contains("[confidentiality]") {
                true => "the kernel is locked down, as it is with Secure Boot, and lets nobody write there",
                false => "a security module, or a container, forbids it",
            };
            let message =
                format!("the kernel refuses to write the configuration of {address} (EPERM): {why}");
            Err(Trouble::failed(FailureKind::Refused, message))
        }
        Err(error) => Err(FileError::new("set", path, error).into()),
    }
}

/// Returns what drivers of vfio have: besides vfio-pci, those of single devices, such as mlx5_vfio_pci.
fn vfio(node: &Node<'_>) -> Result<Vec<String>, Trouble> {
    let bound = pci::vfio(node.roots).map_err(Trouble::io)?;
    let told = |(driver, mut bound): (String, Vec<String>)| {
        bound.truncate(MOST_TOLD);
        format!("{driver} has {}", bound.join(", "))
    };
    Ok(bound.into_iter().map(told).collect())
}

/// Whether an IOMMU translates the addresses that devices ask for; not with `iommu=pt`.
///
/// # Errors
/// If the type of a group cannot be read.
fn translates(node: &Node<'_>) -> Result<bool, Trouble> {
    for group in pci::listed(node.roots, GROUPS).map_err(Trouble::io)? {
        let kind = knobs::value(node, &format!("{GROUPS}/{group}/type"))?;
        if kind.is_some_and(|kind| kind.starts_with("DMA")) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn assumption(place: &Place) -> String {
    format!("pci/{}/{:#x}", place.address, place.register)
}

/// Refuses values that an earlier task of a prediction declares otherwise.
fn contradicted(node: &Node<'_>, own: &BTreeMap<Place, Word>) -> Result<(), Trouble> {
    let declared: BTreeMap<String, String> = node.world.noted(DECLARED).into_iter().collect();
    for (place, word) in own {
        let other = declared.get(&assumption(place)).and_then(|value| value.parse().ok());
        if let Some(value) = other.filter(|value| *value != word.value) {
            return Err(Trouble::invalid(format!(
                "an earlier task declares {} for {}, and this one {}: the two would undo each other at every run; let only one \
                 of them have it",
                told(&Word { value, ..word.clone() }),
                place.address,
                told(word)
            )));
        }
    }
    Ok(())
}

trait Chosen {
    fn chosen(&self, node: &Node<'_>) -> Result<(Vec<String>, BTreeSet<String>), Trouble>;
    fn wanted_acs(&self, port: &Acs) -> Option<u16>;
    fn words(
        &self,
        node: &Node<'_>,
        devices: &[Device],
        ports: &[Port],
    ) -> Result<BTreeMap<Place, Word>, Trouble>;
    fn judge_acs(&self, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble>;
}

impl Chosen for PciSettings {
    /// Returns the devices, and the ports above them.
    fn chosen(&self, node: &Node<'_>) -> Result<(Vec<String>, BTreeSet<String>), Trouble> {
        let reader = Reader { roots: node.roots, deadline: node.deadline };
        let all = topology::places(&reader).map_err(Trouble::io)?;
        let (mut devices, mut ports) = (BTreeSet::new(), BTreeSet::new());
        for text in &self.devices {
            if let Some(address) = PciSettings::address(text) {
                if !node.roots.path(pci::file(&address, "config")).exists() {
                    return Err(Trouble::missing(format!("there is no PCI device {address} here")));
                }
                ports.extend(pci::above(&reader, &address).map_err(Trouble::io)?);
                devices.insert(address);
            }
        }
        for device in all {
            let word = match device.what {
                What::Gpu(_) => "gpu",
                What::Network(_) => "nic",
                What::Nvme { .. } => "nvme",
                What::NvSwitch => continue,
            };
            if self.devices.iter().any(|asked| asked == word) {
                ports.extend(device.ports);
                devices.insert(device.address);
            }
        }
        if devices.is_empty() {
            return Err(Trouble::NotApplicable(format!(
                "there is no {} on the PCI bus",
                self.devices.join(" and ")
            )));
        }
        Ok((devices.into_iter().collect(), ports))
    }

    fn wanted_acs(&self, port: &Acs) -> Option<u16> {
        self.acs.map(|acs| match acs {
            AcsState::On => port.all_on(),
            AcsState::Off => 0,
        })
    }

    /// Returns the lines of this task for the service.
    fn words(
        &self,
        node: &Node<'_>,
        devices: &[Device],
        ports: &[Port],
    ) -> Result<BTreeMap<Place, Word>, Trouble> {
        let mut words = BTreeMap::new();
        if let Some(bytes) = self.max_read_request {
            for device in devices {
                let place = Place { address: device.address.clone(), register: device.express.register() };
                let word = Word {
                    device: identity(node, &device.address)?,
                    capability: device.express.at,
                    capability_mask: 0x00ff,
                    capability_id: 0x0010,
                    mask: READ_REQUEST,
                    value: config::read_request_bits(bytes),
                };
                words.insert(place, word);
            }
        }
        for port in ports {
            let Some(value) = self.wanted_acs(&port.acs) else { continue };
            let place = Place { address: port.address.clone(), register: port.acs.register() };
            let word = Word {
                device: identity(node, &port.address)?,
                capability: port.acs.at,
                capability_mask: 0xffff,
                capability_id: 0x000d,
                mask: 0xffff,
                value,
            };
            words.insert(place, word);
        }
        Ok(words)
    }

    fn judge_acs(&self, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        match self.acs {
            Some(AcsState::Off) if !state.vfio.is_empty() => {
                let left = match state.idle.is_empty() {
                    true => "",
                    false => {
                        "; lines of an earlier `acs: off` do nothing meanwhile, and a task with `acs: on` removes them"
                    }
                };
                let message = format!(
                    "{}: without ACS, what virtual machines are given could reach the devices of others; give the devices back \
                     first, or leave `acs` out{left}",
                    state.vfio.join("; ")
                );
                Err(Trouble::failed(FailureKind::Refused, message))
            }
            None if !state.idle.is_empty() => {
                plan.warnings.push(format!(
                    "{}: {} leaves the ACS of {} alone meanwhile, which an earlier task with `acs: off` cleared; a task with \
                     `acs: on` removes these lines",
                    state.vfio.join("; "),
                    Self::SCRIPT,
                    state.idle.join(", ")
                ));
                Ok(())
            }
            Some(AcsState::Off) if state.translates => {
                plan.warnings.push(
                    "an IOMMU translates here: without ACS its groups no longer separate devices, so that nothing may be given \
                     to virtual machines by vfio; `iommu=pt` on the kernel command line spares the translation"
                        .to_owned(),
                );
                Ok(())
            }
            Some(AcsState::On) if !state.plain.is_empty() => Err(Trouble::invalid(format!(
                "{} cannot do ACS, so that it cannot be on for all ports above the devices",
                state.plain.join(", ")
            ))),
            _ => Ok(()),
        }
    }
}

impl NodeKind for PciSettings {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        if let Some(what) = facts::virtualization(node.roots) {
            return Err(Trouble::NotApplicable(format!(
                "this is a virtual machine or container ({what}), in which registers of the bus are the host's; with ATS \
                 there, ACS must not have the same value on all ports"
            )));
        }
        let (addresses, above) = self.chosen(node)?;
        let (mut devices, mut ports, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        for address in addresses {
            let read = config::express(&bytes(node, &address)?).map_err(unread(&address))?;
            let Some(express) = read else {
                return Err(Trouble::invalid(format!("{address} is no device of PCI Express")));
            };
            devices.push(Device { now: Some(express.control), address, express });
        }
        if self.acs.is_some() || self.reads_only() {
            for address in above {
                let read = bytes(node, &address)?;
                if config::express(&read).map_err(unread(&address))?.is_some_and(Express::is_upstream) {
                    continue;
                }
                match config::acs(&read).map_err(unread(&address))? {
                    Some(acs) => ports.push(Port { now: Some(acs.control), address, acs }),
                    None => plain.push(address),
                }
            }
        }
        let vfio = vfio(node)?;
        if self.reads_only() {
            return Ok(State {
                devices,
                ports,
                own: BTreeMap::new(),
                others: Vec::new(),
                idle: Vec::new(),
                plain,
                vfio,
                translates: translates(node)?,
                service: None,
            });
        }
        let own = self.words(node, &devices, &ports)?;
        contradicted(node, &own)?;
        let path = node.roots.path(Self::SCRIPT);
        let before = node.world.read(&path)?.unwrap_or_default();
        let mut before = script::words(&String::from_utf8_lossy(&before));
        // A line for a device that is another one now, or gone, does nothing.
        before.retain(|place, word| identity(node, &place.address).is_ok_and(|found| found == word.device));
        let is_idle = |word: &Word| word.clears_acs() && !vfio.is_empty();
        let idle = before.iter().filter(|(_, word)| is_idle(word)).map(|(place, _)| place.address.clone());
        let idle = idle.collect();
        let mut words = before.clone();
        if self.acs == Some(AcsState::On) {
            words.retain(|_, word| !is_idle(word));
        }
        words.extend(own.clone());
        let service = OwnUnit {
            name: Self::UNIT,
            about: about(&words),
            script: Some(script::text(&words)),
            stays: false,
            // Drivers set the read request when they start.
            after: "systemd-modules-load.service openibd.service nvidia-persistenced.service",
            requires: None,
        }
        .observe(node)?;
        let sets = node.world.rebooted().then(|| service.runs());
        let now = |place: &Place, real: u16| match (node.world.parameter(&assumption(place)), sets) {
            (Some(assumed), _) => assumed.parse().ok(),
            (None, None) => Some(real),
            // Lines of this task are not among them: the boot was before it.
            (None, Some(true)) => {
                before.get(place).filter(|word| !is_idle(word)).map(|word| real & !word.mask | word.value)
            }
            (None, Some(false)) => None,
        };
        for device in &mut devices {
            let place = Place { address: device.address.clone(), register: device.express.register() };
            device.now = now(&place, device.express.control);
        }
        for port in &mut ports {
            let place = Place { address: port.address.clone(), register: port.acs.register() };
            port.now = now(&place, port.acs.control);
        }
        let mut others = Vec::new();
        for (place, word) in words.iter().filter(|(place, word)| !own.contains_key(place) && !is_idle(word)) {
            let read = bytes(node, &place.address)?;
            let two = |at: usize| config::word(&read, at);
            let (Some(header), Some(real)) = (two(word.capability), two(place.register)) else { continue };
            let now = now(place, real);
            // As the script does.
            if header & word.capability_mask != word.capability_id
                || now.is_some_and(|now| now & word.mask == word.value)
            {
                continue;
            }
            let able = two(word.capability + 4).unwrap_or_default();
            let register = match word.is_acs() {
                true => Register::Access(Acs { at: word.capability, able, control: real }),
                false => Register::ReadRequest,
            };
            others.push(Other { place: place.clone(), register, now, value: word.value });
        }
        let translates = translates(node)?;
        Ok(State { devices, ports, own, others, idle, plain, vfio, translates, service: Some(service) })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        self.judge_acs(state, &mut plan)?;
        let lost = "a boot resets it, and no service of ours sets it, so that it is known only in the run";
        for device in state.devices.iter() {
            let Some(bytes) = self.max_read_request else { break };
            let value = config::read_request_bits(bytes);
            if device.now.is_some_and(|now| now & READ_REQUEST == value) {
                continue;
            }
            let change = Register::ReadRequest.change(&device.address, device.now, value);
            if device.now.is_none() {
                plan.changes.push(change.with_note(lost).possible());
                continue;
            }
            let step = Step::Word {
                address: device.address.clone(),
                register: device.express.register(),
                mask: READ_REQUEST,
                value,
            };
            plan.push(step, change.with_note("it counts for the next read, and interrupts nothing"));
        }
        for port in &state.ports {
            let Some(value) = self.wanted_acs(&port.acs).filter(|value| port.now != Some(*value)) else {
                continue;
            };
            if self.acs == Some(AcsState::On) && value == 0 {
                return Err(Trouble::invalid(format!(
                    "{} cannot redirect anything, so that ACS cannot be on",
                    port.address
                )));
            }
            let change = Register::Access(port.acs).change(&port.address, port.now, value);
            if port.now.is_none() {
                plan.changes.push(change.with_note(lost).possible());
                continue;
            }
            plan.needs = plan.needs.max(Disruption::Clients);
            let step = Step::Word {
                address: port.address.clone(),
                register: port.acs.register(),
                mask: 0xffff,
                value,
            };
            plan.push(step, change.with_note("programs choose their way between devices when they start"));
        }
        if let Some(service) = &state.service {
            service.plan(&mut plan, Step::Service);
        }
        let again = starts(&plan);
        for other in state.others.iter().filter(|_| again) {
            let change = other.register.change(&other.place.address, other.now, other.value).with_note(
                "a line of an earlier task has it, and the service sets all its lines when it is started again",
            );
            if other.now.is_none() {
                plan.changes.push(change.possible());
            } else {
                plan.needs = plan.needs.max(change.disruption);
                plan.changes.push(change);
            }
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let steps = plan.steps.iter();
        let of_service =
            steps.filter_map(|step| if let Step::Service(step) = step { Some(step) } else { None });
        let mut effects = state.service.as_ref().map(|service| service.after(of_service)).unwrap_or_default();
        let others = state.others.iter().filter(|_| starts(plan)).map(|other| (&other.place, other.value));
        for (place, value) in state.own.iter().map(|(place, word)| (place, word.value)).chain(others) {
            effects.push(Effect::Parameter { name: assumption(place), value: value.to_string() });
        }
        // Unchanged ones too, for the task after this one.
        effects.extend(state.own.iter().map(|(place, word)| Effect::Noted {
            name: format!("{DECLARED}{}", assumption(place)),
            value: word.value.to_string(),
        }));
        effects
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            match step {
                Step::Word { address, register, mask, value } => {
                    write(node, address, *register, *mask, *value)?
                }
                Step::Service(step) => {
                    if let Some(service) = &state.service {
                        service.apply(node, step)?;
                    }
                }
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let device = |device: &Device| {
            json!({
                "address": device.address,
                "max_read_request": device.express.read_request(),
                "max_payload": device.express.payload(),
                "relaxed_ordering": device.express.relaxed_ordering(),
            })
        };
        let port = |port: &Port| {
            json!({
                "address": port.address,
                "acs": match port.acs {
                    acs if acs.control == 0 => "off",
                    acs if acs.is_on() => "on",
                    _ => "partly on",
                },
                "diverts": port.acs.diverts(),
            })
        };
        let devices: Vec<Value> = state.devices.iter().map(device).collect();
        let mut data: Map<String, Value> = [("devices".to_owned(), json!(devices))].into_iter().collect();
        if self.acs.is_some() || self.reads_only() {
            let mut ports: Vec<Value> = state.ports.iter().map(port).collect();
            ports.extend(state.plain.iter().map(|address| json!({"address": address, "acs": null})));
            data.insert("ports".to_owned(), json!(ports));
            data.insert("vfio".to_owned(), json!(state.vfio));
            data.insert("iommu_translates".to_owned(), json!(state.translates));
        }
        data
    }
}

/// Whether the service is started, or started again.
fn starts(plan: &Plan<Step>) -> bool {
    plan.steps.iter().any(|step| matches!(step, Step::Service(own_unit::Step::Start)))
}

/// Returns what a line sets.
fn told(word: &Word) -> String {
    match word.value {
        value if !word.is_acs() => {
            format!("max read request {}", config::read_request(value).unwrap_or_default())
        }
        0 => "ACS off".to_owned(),
        _ => "ACS on".to_owned(),
    }
}

/// Returns what the service does, in one line.
fn about(words: &BTreeMap<Place, Word>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for word in words.values() {
        *counts.entry(told(word)).or_default() += 1;
    }
    let told: Vec<String> =
        counts.into_iter().map(|(what, count)| format!("{what} of {count} PCI devices")).collect();
    if told.is_empty() { "nothing of PCI devices".to_owned() } else { told.join(", ") }
}
