//! The fleet as the solver sees it: what each GPU has, and what may be done to it.
//!
//! Pure. Invariant: what is not known is busy, and a GPU that could not be read in full is never used.

use std::{collections::HashMap, sync::Arc};

use gpufleet_mig::{
    demand::is_profile,
    fleet_fit::{Freedom, Gpu, Instance, Node},
};
use gpufleet_protocol::{
    mig::Slot,
    nvml::{MigProfile, Placement},
    signal::Signal,
    status::{GpuNow, GpuStatus, MigOffer, MigPart},
};
use gpufleet_status::{Heard, NodeReading, Row, State, line, number, rows};

/// A GPU, as people and the playbook name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub index: u32,
    pub uuid: String,
}

/// A node or a GPU that cannot be used, or not freely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    pub node: Arc<str>,
    pub gpu: Option<u32>,
    pub why: String,
}

/// The fleet, and beside each node and GPU of the solver its name.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    pub nodes: Vec<Node>,
    pub names: Vec<(Arc<str>, Vec<Name>)>,
    /// Nodes and GPUs that are not in `nodes`: nothing of them counts.
    pub left_out: Vec<Remark>,
    /// Nodes of which nothing, or nothing that exists, may change.
    pub held: Vec<Remark>,
    /// Positions of nodes that run work, and could be used if they did not.
    pub busy: Vec<usize>,
    /// Whether rights are why it is not known if nodes work.
    pub wants_root: bool,
}

/// Profiles that GPUs have in common.
#[derive(Default)]
struct Tables(HashMap<Vec<MigOffer>, Arc<[MigProfile]>>);

impl Tables {
    fn of(&mut self, offers: &[MigOffer]) -> Arc<[MigProfile]> {
        if let Some(known) = self.0.get(offers) {
            return Arc::clone(known);
        }
        let profile = |offer: &MigOffer| MigProfile {
            id: offer.id,
            name: offer.profile.clone(),
            slices: offer.slices,
            max_count: offer.max_count,
            memory_mib: 0,
            placements: Ok(offer
                .starts
                .iter()
                .map(|start| Placement { start: *start, size: offer.size })
                .collect()),
        };
        // A name that is no profile's comes from a driver that gpufleet does not understand. No grid has 64 slices.
        let sound = |offer: &&MigOffer| {
            is_profile(&offer.profile)
                && offer.size > 0
                && offer.starts.iter().all(|start| start.saturating_add(offer.size) <= 64)
        };
        let table: Arc<[MigProfile]> = offers.iter().filter(sound).map(profile).collect();
        self.0.insert(offers.to_vec(), Arc::clone(&table));
        table
    }
}

impl Fleet {
    /// Returns the fleet of these readings; `scopes` gives the scopes of a node by its name.
    pub fn of(readings: &[NodeReading], scopes: impl Fn(&str) -> Vec<usize>) -> Self {
        let mut fleet = Self::default();
        let mut tables = Tables::default();
        for reading in readings {
            let name: Arc<str> = line(&reading.node).into();
            if !is_host(&name) {
                fleet.leave_out(&name, None, "its name cannot stand in a playbook as it is".to_owned());
                continue;
            }
            match &reading.heard {
                Heard::Status(status) => {
                    fleet.add(reading, &name, status, scopes(&reading.node), &mut tables)
                }
                Heard::Failed(why) => fleet.leave_out(&name, None, line(why)),
                Heard::Nothing => fleet.leave_out(&name, None, "not heard of".to_owned()),
            }
        }
        fleet
    }

    fn leave_out(&mut self, node: &Arc<str>, gpu: Option<u32>, why: String) {
        self.left_out.push(Remark { node: Arc::clone(node), gpu, why });
    }

    fn hold(&mut self, node: &Arc<str>, gpu: Option<u32>, why: String) {
        self.held.push(Remark { node: Arc::clone(node), gpu, why });
    }

    fn add(
        &mut self,
        reading: &NodeReading,
        name: &Arc<str>,
        status: &GpuStatus,
        scopes: Vec<usize>,
        tables: &mut Tables,
    ) {
        let rows = rows(reading);
        let mut freedom = Freedom::Any;
        let mut gpus = Vec::new();
        let mut names = Vec::new();
        for row in &rows {
            let Some(now) = &row.now else {
                self.leave_out(name, None, row.why.clone());
                freedom = Freedom::Frozen;
                continue;
            };
            match usable(row, now, tables) {
                Ok(gpu) => {
                    if gpu.freedom < Freedom::Any {
                        let why =
                            "an instance is split into compute instances, or the MIG mode waits for a reset";
                        self.hold(name, Some(now.index), why.to_owned());
                        // Others may still get instances, and nothing that would reset the node.
                        freedom = freedom.min(Freedom::CreateOnly);
                    }
                    gpus.push(gpu);
                    names.push(Name { index: now.index, uuid: now.signals.id.clone() });
                }
                Err(why) => {
                    // Whether the node is idle cannot be proven beside a GPU that does not answer.
                    let silent = matches!(row.state, State::Unknown | State::Lost);
                    let has_instances = number(row.signal("mig_current")) != Some(0.0);
                    freedom = match (silent, has_instances) {
                        (true, _) => Freedom::Frozen,
                        (false, true) => freedom.min(Freedom::CreateOnly),
                        (false, false) => freedom,
                    };
                    self.leave_out(name, Some(now.index), why);
                }
            }
        }
        if gpus.is_empty() {
            return;
        }
        let works = rows.iter().any(|row| row.state.is_held() || row.now.as_ref().is_some_and(is_held));
        if freedom == Freedom::Frozen {
            self.hold(name, None, "a GPU of it does not answer: nothing is changed there".to_owned());
        } else if works {
            if freedom == Freedom::Any {
                self.busy.push(self.nodes.len());
            }
            freedom = Freedom::CreateOnly;
        } else if let Some(why) = &status.unseen {
            self.hold(name, None, format!("whether it is idle is not known: {}", line(why)));
            self.wants_root = true;
            freedom = Freedom::CreateOnly;
        }
        for gpu in &mut gpus {
            gpu.freedom = gpu.freedom.min(freedom);
        }
        self.nodes.push(Node { gpus, scopes });
        self.names.push((Arc::clone(name), names));
    }
}

fn is_held(now: &GpuNow) -> bool {
    let processes = now.signals.readings.get("process_count");
    let counted = matches!(processes, Some(Signal::Known(_))).then(|| number(processes)).flatten();
    // A count that is not there is no proof that nothing works.
    !now.holders.is_empty() || now.more_holders > 0 || counted.is_none_or(|count| count > 0.0)
}

/// Whether a name selects exactly itself in the `hosts` of a play.
fn is_host(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Whether a text of a node is a UUID of a GPU, which a playbook can hold as it is.
fn is_uuid(text: &str) -> bool {
    let rest = text.strip_prefix("GPU-").unwrap_or_default();
    (8..=64).contains(&rest.len()) && rest.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// The GPU for the solver, free or frozen.
///
/// # Errors
/// Why it cannot be used.
fn usable(row: &Row, now: &GpuNow, tables: &mut Tables) -> Result<Gpu, String> {
    if matches!(row.state, State::Unknown | State::Lost | State::Degraded | State::Drain) {
        return Err(if row.why.is_empty() { row.state.word().to_owned() } else { row.why.clone() });
    }
    if !is_uuid(&now.signals.id) {
        return Err("its UUID could not be read".to_owned());
    }
    let (current, pending) = (row.signal("mig_current"), row.signal("mig_pending"));
    let mig = match current {
        Some(Signal::Known(_)) => number(current).is_some_and(|mode| mode > 0.0),
        // Without MIG it is a whole GPU for ever.
        Some(Signal::Absent) => false,
        Some(Signal::Unknown(why)) => return Err(format!("MIG mode: {why}")),
        None => return Err("its MIG mode could not be read".to_owned()),
    };
    let profiles = match &now.profiles {
        _ if matches!(current, Some(Signal::Absent)) => tables.of(&[]),
        Some(offers) => tables.of(offers),
        None => return Err("its MIG profiles could not be read".to_owned()),
    };
    let mut frozen = number(pending) != number(current);
    let mut instances = Vec::new();
    for part in &now.instances {
        let placement = part.placement.ok_or("the places of its instances are not known")?;
        let profile = profiles.iter().find(|profile| profile.name == part.profile);
        let profile = profile.ok_or_else(|| format!("its driver lists no profile `{}`", part.profile))?;
        if !profile.placements.iter().flatten().any(|place| *place == placement) {
            return Err(format!("its driver lists no place for its instance of `{}`", part.profile));
        }
        let slot = Slot { placement, profile_id: profile.id };
        instances.push(Instance { slot, whole: part.whole });
        frozen |= is_split(part);
    }
    let freedom = if frozen { Freedom::Frozen } else { Freedom::Any };
    Ok(Gpu { profiles, mig, instances, freedom })
}

/// Whether its compute instances are parts of it, which a layout of whole instances would replace.
fn is_split(part: &MigPart) -> bool {
    part.ready && !part.whole
}
