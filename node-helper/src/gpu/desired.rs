//! The declarations of a group, merged by (GPU, knob) and checked against what the GPUs support.
//!
//! Pure. Owns selectors, units, snapping, conflicts and which values a GPU cannot have. The way to the merged state is
//! [`super::plan`]. Invariant: a member with an impossible value adds nothing to the merged state.

mod knobs;
mod mps;

use super::wording::joined;
use std::collections::{BTreeMap, BTreeSet};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Property,
    change::Value,
    mig::{self, Device, Filled, MigError},
    nvml::{Code, DrainedGpu, MigProfile, Reading},
    op::{GpuGroup, GpuTask},
    tasks::{
        AccountingMode, ClockRange, ComputeModeName, EccMode, GpuClocks, GpuMig, GpuSelectorItem,
        MigConfigFile, MigFilter, MigLayout, MigMode, MigSpec, MigStrategy, PersistenceMode, ResetWhen,
    },
};

use super::{
    state::{Board, Gpu, Lock, State},
    values::clock,
};

use mps::OfInstances;
pub use mps::{MpsWants, Target};

/// A declared value and its member; if several declare the same, the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want<T> {
    pub member: usize,
    pub value: T,
}

/// The declared state of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockWant {
    Free,
    Range { low_mhz: u32, high_mhz: u32 },
}

/// The state of a clock that is as it was declared.
impl From<LockWant> for Lock {
    fn from(want: LockWant) -> Self {
        match want {
            LockWant::Free => Self::Free,
            LockWant::Range { low_mhz, high_mhz } => Self::Locked { low_mhz, high_mhz },
        }
    }
}

impl From<LockWant> for Value {
    fn from(want: LockWant) -> Self {
        match want {
            LockWant::Free => Self::Absent,
            LockWant::Range { low_mhz, high_mhz } => clock(low_mhz, high_mhz),
        }
    }
}

/// The declared instances of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutWant {
    pub devices: Vec<Device>,
    /// The instances, solved for the present ones.
    pub filled: Vec<Filled>,
    pub strategy: MigStrategy,
    /// Whether it was declared by places, which messages then show.
    pub by_place: bool,
}

/// All declared values of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuWants {
    pub persistence: Option<Want<PersistenceMode>>,
    pub ecc: Option<Want<bool>>,
    pub mig: Option<Want<bool>>,
    pub layout: Option<Want<LayoutWant>>,
    pub power_mw: Option<Want<u32>>,
    pub module_mw: Option<Want<u32>>,
    pub graphics: Option<Want<LockWant>>,
    pub memory: Option<Want<LockWant>>,
    /// `nvmlComputeMode_t`.
    pub compute: Option<Want<u32>>,
    pub accounting: Option<Want<bool>>,
    pub reset: Option<Want<ResetWhen>>,
}

/// Whether a member's declaration is possible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub failures: Vec<String>,
    pub unknown: Vec<String>,
    pub not_applicable: Vec<String>,
    /// Number of GPUs, or of nodes, that it applies to.
    pub applies: usize,
    pub warnings: Vec<String>,
    /// Whether a GPU that it is for comes back from a drain in the run, and has a state only then.
    pub returns: bool,
}

/// The merged declarations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// By UUID.
    pub gpus: BTreeMap<String, GpuWants>,
    pub mps: MpsWants,
    /// Whether confidential GPUs accept work.
    pub ready: Option<Want<bool>>,
    pub members: Vec<Verdict>,
}

impl Desired {
    /// Returns it without resets that were asked for without a need, because they are done.
    #[must_use]
    pub fn once_reset(mut self) -> Self {
        for wants in self.gpus.values_mut() {
            wants.reset.take_if(|want| want.value == ResetWhen::Always);
        }
        self
    }

    /// Returns the first member with an impossible declaration, and why.
    pub fn failure(&self) -> Option<(usize, String)> {
        self.members
            .iter()
            .enumerate()
            .find(|(_, verdict)| !verdict.failures.is_empty())
            .map(|(member, verdict)| (member, joined(&verdict.failures)))
    }

    pub fn unknown(&self) -> Option<(usize, String)> {
        self.members
            .iter()
            .enumerate()
            .find(|(_, verdict)| !verdict.unknown.is_empty())
            .map(|(member, verdict)| (member, joined(&verdict.unknown)))
    }
}

/// What a selector stands for on this node.
#[derive(Default)]
struct Selected<'a> {
    /// Positions of GPUs.
    found: Vec<usize>,
    /// Why entries select none.
    wrong: Vec<String>,
    /// Which of them are unreadable.
    unknown: Vec<String>,
    drained: Vec<&'a DrainedGpu>,
    /// Whether any of them comes back from a drain only in the run.
    returns: bool,
}

fn select<'a>(state: &'a State, selector: &[GpuSelectorItem]) -> Selected<'a> {
    let lost = |index: u32, code: &Code| format!("GPU {index} cannot be read: {code}");
    let hidden = || state.drained.iter().map(|hidden| &hidden.gpu);
    if selector.is_empty() {
        return Selected {
            found: (0..state.gpus.len()).collect(),
            unknown: state.unreadable.iter().map(|(index, code)| lost(*index, code)).collect(),
            drained: hidden().collect(),
            returns: !state.returning.is_empty(),
            wrong: Vec::new(),
        };
    }
    let mut all = Selected::default();
    for item in selector {
        let of_gpu = |gpu: &Gpu| item.means(gpu.index, &gpu.uuid, &gpu.pci, &gpu.name);
        let of_hidden = |gpu: &DrainedGpu| item.means(gpu.index, &gpu.uuid, &gpu.pci, &gpu.name);
        let found: Vec<usize> =
            state.gpus.iter().enumerate().filter(|(_, gpu)| of_gpu(gpu)).map(|(at, _)| at).collect();
        let unread = state.unreadable.iter().filter(|(index, _)| *item == GpuSelectorItem::Index(*index));
        let unread: Vec<String> = unread.map(|(index, code)| lost(*index, code)).collect();
        let drained: Vec<&DrainedGpu> = hidden().filter(|gpu| of_hidden(gpu)).collect();
        let returns = state.returning.iter().any(of_hidden);
        if found.is_empty() && unread.is_empty() && drained.is_empty() && !returns {
            let text = match item {
                GpuSelectorItem::Index(index) => index.to_string(),
                GpuSelectorItem::Text(text) => text.clone(),
            };
            let has: Vec<String> =
                state.gpus.iter().map(|gpu| format!("{} ({})", gpu.label(), gpu.name)).collect();
            all.wrong.push(format!("`gpus: {text}` names no GPU of this node; it has {}", has.join(", ")));
        }
        all.found.extend(found);
        all.unknown.extend(unread);
        all.drained.extend(drained);
        all.returns |= returns;
    }
    all.found.sort_unstable();
    all.found.dedup();
    all.drained.sort_by_key(|gpu| gpu.index);
    all.drained.dedup();
    all
}

/// Returns the nearest supported clock; the value itself if none are known.
fn snap(clock: u32, supported: &[u32]) -> u32 {
    supported.iter().copied().min_by_key(|candidate| (candidate.abs_diff(clock), *candidate)).unwrap_or(clock)
}

struct Merge<'a> {
    state: &'a State,
    group: &'a GpuGroup,
    desired: Desired,
    /// The current member.
    member: usize,
    nobody: Verdict,
    of_instances: Vec<OfInstances>,
}

/// Merges a group over a state.
pub fn merge(group: &GpuGroup, state: &State) -> Desired {
    let members = vec![Verdict::default(); group.members.len()];
    let mut merge = Merge {
        state,
        group,
        desired: Desired { members, ..Desired::default() },
        member: 0,
        nobody: Verdict::default(),
        of_instances: Vec::new(),
    };
    for (at, member) in group.members.iter().enumerate() {
        merge.member = at;
        merge.add(&member.task);
    }
    merge.across_members();
    merge.desired
}

impl<'a> Merge<'a> {
    fn verdict(&mut self) -> &mut Verdict {
        match self.desired.members.get_mut(self.member) {
            Some(verdict) => verdict,
            // Never reached, because `merge` creates a verdict for each member; this keeps the method total.
            None => &mut self.nobody,
        }
    }

    fn fail(&mut self, text: String) {
        self.verdict().failures.push(text);
    }

    fn add(&mut self, task: &GpuTask) {
        let Selected { found: chosen, wrong, unknown, drained, returns } = select(self.state, task.gpus());
        let left_out: Vec<String> = drained
            .iter()
            .map(|gpu| format!("GPU {} is drained, so that {} leaves it out", gpu.index, task.kind()))
            .collect();
        let verdict = self.verdict();
        verdict.failures.extend(wrong);
        verdict.unknown.extend(unknown);
        // Where it applies to none, that is its result.
        if !chosen.is_empty() {
            verdict.warnings.extend(left_out.iter().cloned());
        }
        verdict.not_applicable.extend(left_out);
        if returns {
            let why = "a drained GPU comes back in this run, and what it gets then is known only there";
            verdict.warnings.push(why.to_owned());
            verdict.returns = true;
        }
        if self.state.is_empty() {
            self.fail("the driver shows no GPU on this node".to_owned());
        }
        if let GpuTask::GpuMps(task) = task {
            return self.mps(task, &chosen);
        }
        if let GpuTask::GpuConfidentialCompute(task) = task {
            return self.confidential(task);
        }
        if let GpuTask::GpuMig(GpuMig { config_file: Some(MigConfigFile::Read { specs, .. }), .. }) = task {
            self.absent(specs);
        }
        let state = self.state;
        for gpu in chosen.iter().filter_map(|at| state.gpus.get(*at)) {
            match task {
                GpuTask::GpuPersistence(task) => self.persistence(gpu, task.mode),
                GpuTask::GpuEcc(task) => self.ecc(gpu, task.mode == EccMode::Enabled),
                GpuTask::GpuMig(task) => self.mig(gpu, task),
                GpuTask::GpuPower(task) => self.power(gpu, task),
                GpuTask::GpuClocks(task) => self.clocks(gpu, task),
                GpuTask::GpuComputeMode(task) => self.compute(gpu, task.mode),
                GpuTask::GpuAccounting(task) => self.accounting(gpu, task.mode == AccountingMode::Enabled),
                GpuTask::GpuReset(task) => self.reset(gpu, task.when),
                GpuTask::GpuMps(_) | GpuTask::GpuConfidentialCompute(_) => {}
            }
        }
    }

    /// Returns a reading's value, or records in the verdict why there is none.
    fn readable<T: Copy>(&mut self, gpu: &Gpu, what: &str, reading: Reading<T>, asked: bool) -> Option<T> {
        match reading {
            Ok(value) => Some(value),
            Err(Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND) => {
                let text = format!("{} ({}) has no {what}", gpu.label(), gpu.name);
                if asked {
                    self.fail(text);
                } else {
                    self.verdict().not_applicable.push(text);
                }
                None
            }
            Err(code) => {
                self.verdict().unknown.push(format!("the {what} of {} cannot be read: {code}", gpu.label()));
                None
            }
        }
    }

    /// Whether a GPU's architecture is known, on which something depends; recorded in the verdict if not.
    fn knows_architecture(&mut self, gpu: &Gpu, what: &str) -> bool {
        let known = gpu.architecture.is_known();
        if !known {
            let text = format!("the architecture of {} cannot be read, and with it {what}", gpu.label());
            self.verdict().unknown.push(text);
        }
        known
    }

    /// Stores a declared value, unless an earlier member declares another one.
    fn put<T: PartialEq>(
        &mut self,
        gpu: &Gpu,
        property: &Property,
        value: T,
        slot: impl Fn(&mut GpuWants) -> &mut Option<Want<T>>,
        typed: impl Fn(&T) -> Value,
    ) {
        let change = |value: &T| {
            let (property, to) = (property.clone(), typed(value));
            Change::new(gpu.subject(), property, Value::Unknown, to, Disruption::Live)
        };
        let member = self.member;
        let wants = self.desired.gpus.entry(gpu.uuid.clone()).or_default();
        let slot = slot(wants);
        let conflict = match slot {
            Some(other) if other.value != value => Some((other.member, change(&other.value).to_text())),
            Some(_) => None,
            None => {
                *slot = Some(Want { member, value });
                self.verdict().applies += 1;
                return;
            }
        };
        let Some((first, said)) = conflict else {
            self.verdict().applies += 1;
            return;
        };
        let here = change(&value);
        let label = |at: usize| {
            let name = self.group.members.get(at).map_or("", |member| member.task.kind());
            format!("task {} of the group ({name})", at + 1)
        };
        // It begins with the GPU, so that `joined` says it once for all of them.
        let message = format!(
            "{} shall be {said} by {} and {} by {}",
            here.what(),
            label(first),
            here.to_text(),
            label(member)
        );
        for at in [first, member] {
            self.member = at;
            if !self.verdict().failures.contains(&message) {
                self.fail(message.clone());
            }
        }
        self.member = member;
    }

    fn persistence(&mut self, gpu: &Gpu, mode: PersistenceMode) {
        if self.readable(gpu, "persistence mode", gpu.persistence, mode != PersistenceMode::Off).is_none() {
            return;
        }
        if mode == PersistenceMode::Daemon && !self.state.host.persistenced.exists {
            let text = "there is no unit nvidia-persistenced.service on this node; install it, or declare `mode: legacy`";
            if !self.verdict().failures.iter().any(|known| known == text) {
                self.fail(text.to_owned());
            }
            return;
        }
        let host = &self.state.host;
        if mode == PersistenceMode::Daemon
            && let Some(fault) = host.persistenced_fault.clone()
        {
            if !self.verdict().failures.contains(&fault) {
                self.fail(fault);
            }
            return;
        }
        self.put(
            gpu,
            &Property::PERSISTENCE,
            mode,
            |wants| &mut wants.persistence,
            |mode| Value::text(mode.as_str()),
        );
    }

    fn ecc(&mut self, gpu: &Gpu, on: bool) {
        if self.readable(gpu, "ECC mode", gpu.ecc, on).is_some() {
            self.put(gpu, &Property::ECC, on, |wants| &mut wants.ecc, |on| Value::from(*on));
        }
    }

    /// Returns the spec of a configuration that counts for a GPU: the last one that is for it.
    fn spec<'s>(&mut self, gpu: &Gpu, task: &GpuMig, specs: &'s [MigSpec]) -> Option<&'s MigSpec> {
        let named = |spec: &&MigSpec| spec.devices.as_ref().is_none_or(|all| all.contains(&gpu.index));
        let mut unknown = false;
        for spec in specs.iter().rev().filter(named) {
            match (spec.filters.is_empty(), gpu.board) {
                (true, _) => return Some(spec),
                (false, Some(board)) if spec.filters.iter().any(|filter| is_board(filter, board)) => {
                    return Some(spec);
                }
                (false, Some(_)) => {}
                (false, None) => {
                    unknown = true;
                    break;
                }
            }
        }
        if unknown {
            let text = format!(
                "the PCI ids of {} ({}) cannot be read, and the configuration asks for them",
                gpu.label(),
                gpu.pci
            );
            self.verdict().unknown.push(text);
            return None;
        }
        let board = gpu.board.map_or_else(String::new, |board| format!(", {}", board.device));
        let config = task
            .config
            .as_ref()
            .map_or_else(|| "the configuration".to_owned(), |name| format!("the configuration `{name}`"));
        let text = format!("{config} has no spec for {} ({}{board})", gpu.label(), gpu.name);
        self.verdict().not_applicable.push(text);
        None
    }

    /// Warns of specs for GPUs that the node does not have: a file for another machine looks as if it had been laid out.
    fn absent(&mut self, specs: &[MigSpec]) {
        let state = self.state;
        let here = state.gpus.iter().map(|gpu| gpu.index);
        let here = here.chain(state.unreadable.iter().map(|(index, _)| *index));
        let hidden = state.drained.iter().map(|hidden| hidden.gpu.index);
        let here: BTreeSet<u32> =
            here.chain(hidden).chain(state.returning.iter().map(|gpu| gpu.index)).collect();
        let named = specs.iter().flat_map(|spec| spec.devices.iter().flatten());
        let absent: BTreeSet<u32> = named.filter(|index| !here.contains(index)).copied().collect();
        if !absent.is_empty() {
            let absent: Vec<String> = absent.iter().map(u32::to_string).collect();
            self.verdict().warnings.push(format!(
                "the configuration has specs for GPU {}, which this node does not have (it has {}), so that they do nothing here",
                absent.join(","),
                here.len()
            ));
        }
    }

    fn mig(&mut self, gpu: &Gpu, task: &GpuMig) {
        let specs = match (&task.config_file, task.mode) {
            (Some(MigConfigFile::Read { specs, .. }), _) => specs,
            (None, Some(mode)) => {
                let on = mode == MigMode::Enabled;
                return self.mig_state(gpu, on, on, task.layout.as_ref(), task.strategy);
            }
            _ => return self.fail("the declaration has no MIG mode".to_owned()),
        };
        let Some(spec) = self.spec(gpu, task, specs) else { return };
        // As mig-parted does it: a spec for all GPUs passes over those without MIG.
        let asked = spec.enabled && spec.devices.is_some();
        let layout = spec.enabled.then(|| MigLayout::Counts(spec.instances.clone()));
        self.mig_state(gpu, spec.enabled, asked, layout.as_ref(), task.strategy);
    }

    /// Declares mode and layout; `asked` is whether a GPU without MIG is an error.
    fn mig_state(
        &mut self,
        gpu: &Gpu,
        on: bool,
        asked: bool,
        layout: Option<&MigLayout>,
        strategy: MigStrategy,
    ) {
        if self.readable(gpu, "MIG mode", gpu.mig, asked).is_none() {
            return;
        }
        if !self.knows_architecture(gpu, "whether its MIG mode needs a reset and lasts") {
            return;
        }
        let profiles = match &gpu.profiles {
            Ok(profiles) if profiles.is_empty() && on => {
                let text = format!("{} ({}) has no MIG profiles", gpu.label(), gpu.name);
                match asked {
                    true => self.fail(text),
                    false => self.verdict().not_applicable.push(text),
                }
                return;
            }
            Ok(profiles) => profiles.as_slice(),
            Err(_) if !on => &[],
            Err(code) => {
                let text = format!("the MIG profiles of {} cannot be read: {code}", gpu.label());
                self.verdict().unknown.push(text);
                return;
            }
        };
        if let Err(code) = &gpu.instances {
            let text = format!("the MIG instances of {} cannot be read: {code}", gpu.label());
            self.verdict().unknown.push(text);
            return;
        }
        let layout = match layout.filter(|_| on).map(|layout| devices(profiles, layout)) {
            None => None,
            Some(Ok(found)) => Some(found),
            Some(Err(error)) => return self.fail(format!("{}: {error}", gpu.label())),
        };
        if let Some((devices, by_place)) = layout {
            match mig::arrange(profiles, &devices, &gpu.filled()) {
                Ok(filled) => {
                    let want = LayoutWant { devices, filled, strategy, by_place };
                    let counted = |want: &LayoutWant| {
                        let all = want.devices.iter().map(|one| (one.profile_id, Some(one.slices)));
                        mig::by_count(profiles, all).into()
                    };
                    self.put(gpu, &Property::MIG_LAYOUT, want, |wants| &mut wants.layout, counted);
                    // Mode and layout count as one declaration of the member.
                    let verdict = self.verdict();
                    verdict.applies = verdict.applies.saturating_sub(1);
                }
                Err(error @ MigError::Unreadable { .. }) => {
                    self.verdict().unknown.push(format!("{}: {error}", gpu.label()));
                    return;
                }
                Err(error) => return self.fail(format!("{}: {error}", gpu.label())),
            }
        }
        self.put(gpu, &Property::MIG_MODE, on, |wants| &mut wants.mig, |on| Value::from(*on));
    }

    fn clocks(&mut self, gpu: &Gpu, task: &GpuClocks) {
        let late = gpu.architecture.has_volatile_mig();
        let about_memory = task.memory_mhz.is_some() || task.reset;
        if about_memory && !self.knows_architecture(gpu, "whether its memory clock can be locked") {
            return;
        }
        if task.memory_mhz.is_some() && late {
            // Source: nvidia-smi documentation: Hopper and later lock memory clocks only at the driver's next start.
            self.fail(format!(
                "{} ({}) cannot lock its memory clock while the driver runs; leave `memory_mhz` out (`gpufleet doc gpu_clocks` says what \
                 to do instead)",
                gpu.label(),
                gpu.architecture.name()
            ));
            return;
        }
        let graphics = match (task.graphics_mhz, task.reset) {
            (Some(range), _) => Some(self.range(gpu, "graphics", range, &gpu.graphics_clocks_mhz)),
            (None, true) => Some(LockWant::Free),
            (None, false) => None,
        };
        let memory = match (task.memory_mhz, task.reset) {
            (Some(range), _) => Some(self.range(gpu, "memory", range, &gpu.memory_clocks_mhz)),
            (None, true) if !late => Some(LockWant::Free),
            (None, _) => None,
        };
        if let Some(want) = graphics {
            self.put(
                gpu,
                &Property::GRAPHICS_CLOCK,
                want,
                |wants| &mut wants.graphics,
                |want| (*want).into(),
            );
        }
        if let Some(want) = memory {
            self.put(gpu, &Property::MEMORY_CLOCK, want, |wants| &mut wants.memory, |want| (*want).into());
        }
    }

    fn range(&mut self, gpu: &Gpu, what: &str, range: ClockRange, supported: &Reading<Vec<u32>>) -> LockWant {
        let (low, high) = range.bounds();
        let unknown = match supported {
            Ok(clocks) if clocks.is_empty() => Some("the driver lists none".to_owned()),
            Ok(_) => None,
            Err(code) => Some(code.to_string()),
        };
        if let Some(why) = unknown {
            let warning = format!(
                "{}: which {what} clocks it supports cannot be read ({why}), so that {} is set as declared, and the GPU may run \
                 at another",
                gpu.label(),
                clock(low, high)
            );
            self.verdict().warnings.push(warning);
        }
        let supported = supported.as_deref().unwrap_or_default();
        let (near_low, near_high) = (snap(low, supported), snap(high, supported));
        if (near_low, near_high) != (low, high) {
            let warning = format!(
                "{}: the {what} clock {} is not supported exactly; {} is used",
                gpu.label(),
                clock(low, high),
                clock(near_low, near_high)
            );
            self.verdict().warnings.push(warning);
        }
        LockWant::Range { low_mhz: near_low, high_mhz: near_high }
    }

    fn compute(&mut self, gpu: &Gpu, mode: ComputeModeName) {
        let number = match mode {
            ComputeModeName::Default => 0,
            ComputeModeName::Prohibited => 2,
            ComputeModeName::ExclusiveProcess => 3,
        };
        if self.readable(gpu, "compute mode", gpu.compute_mode, number != 0).is_some() {
            self.put(
                gpu,
                &Property::COMPUTE_MODE,
                number,
                |wants| &mut wants.compute,
                |mode| super::facts::compute_mode_name(*mode).into(),
            );
        }
    }

    /// Checks what concerns several members.
    fn across_members(&mut self) {
        self.mps_across_members();
        let mut failures: Vec<(usize, String)> = Vec::new();
        let persistence: Vec<Want<PersistenceMode>> =
            self.desired.gpus.values().filter_map(|wants| wants.persistence.clone()).collect();
        let of = |mode: PersistenceMode| persistence.iter().find(|want| want.value == mode);
        if let (Some(daemon), Some(legacy)) = (of(PersistenceMode::Daemon), of(PersistenceMode::Legacy)) {
            let text = "the persistence daemon and the legacy flag exclude each other on one node".to_owned();
            failures.push((daemon.member, text.clone()));
            failures.push((legacy.member, text));
        }
        for gpu in &self.state.gpus {
            let Some(wants) = self.desired.gpus.get(&gpu.uuid) else { continue };
            let mig_on = wants.mig.as_ref().map_or_else(|| gpu.mig_on(), |want| want.value);
            if let Some(want) = wants.compute.as_ref().filter(|want| mig_on && want.value != 0) {
                let mode = super::facts::compute_mode_name(want.value);
                let text = format!(
                    "{} is in MIG mode, where the compute mode {mode} cannot be set on the whole GPU",
                    gpu.label()
                );
                failures.push((want.member, text));
            }
            if let Some(want) = wants.accounting.as_ref().filter(|want| mig_on && want.value) {
                let text = format!("{} is in MIG mode, where the driver forces accounting off", gpu.label());
                failures.push((want.member, text));
            }
            let off = wants
                .persistence
                .as_ref()
                .map_or(gpu.persistence == Ok(false), |want| want.value == PersistenceMode::Off);
            let kept: [(&str, Option<usize>); 6] = [
                (
                    "accounting mode",
                    wants.accounting.as_ref().filter(|want| want.value).map(|want| want.member),
                ),
                ("power limit", wants.power_mw.as_ref().map(|want| want.member)),
                ("power limit of the module", wants.module_mw.as_ref().map(|want| want.member)),
                ("graphics clock", wants.graphics.as_ref().map(|want| want.member)),
                ("memory clock", wants.memory.as_ref().map(|want| want.member)),
                (
                    "compute mode",
                    wants.compute.as_ref().filter(|want| want.value != 0).map(|want| want.member),
                ),
            ];
            for (what, member) in kept {
                if let (true, Some(member)) = (off, member)
                    && let Some(verdict) = self.desired.members.get_mut(member)
                {
                    let when = if self.state.holding.holds(gpu.index, true) {
                        "when its last client ends"
                    } else {
                        "as soon as it is set, because nobody uses the GPU"
                    };
                    verdict.warnings.push(format!(
                        "{}: persistence is off, so the driver forgets the {what} {when}; declare \
                         `gpu_persistence: {{mode: daemon}}` as well",
                        gpu.label()
                    ));
                }
            }
        }
        for (member, text) in failures {
            if let Some(verdict) = self.desired.members.get_mut(member)
                && !verdict.failures.contains(&text)
            {
                verdict.failures.push(text);
            }
        }
    }
}

fn is_board(filter: &MigFilter, board: Board) -> bool {
    filter.device == board.device && filter.subsystem.is_none_or(|wanted| board.subsystem == Some(wanted))
}

/// Returns the declared compute instances, and whether any has a place.
fn devices(profiles: &[MigProfile], layout: &MigLayout) -> Result<(Vec<Device>, bool), MigError> {
    let mut devices = Vec::new();
    let mut add = |name: &str, count: usize, start| {
        let (profile, slices) = mig::device(profiles, name)?;
        devices.extend(std::iter::repeat_n(Device { profile_id: profile.id, slices, start }, count));
        Ok(())
    };
    match layout {
        MigLayout::Counts(counts) => {
            for (name, count) in counts {
                // A bound, because more instances never fit, and the message needs no exact number.
                add(name, (*count).min(1000) as usize, None)?;
            }
        }
        MigLayout::Placements(places) => {
            for place in places {
                add(&place.profile, 1, place.start)?;
            }
        }
    }
    devices.sort_unstable();
    let by_place = devices.iter().any(|device| device.start.is_some());
    Ok((devices, by_place))
}

/// The failure kind of an impossible declaration.
pub const IMPOSSIBLE: FailureKind = FailureKind::Invalid;
