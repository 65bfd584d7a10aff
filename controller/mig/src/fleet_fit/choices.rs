//! What one GPU can become.
//!
//! A choice is a layout of which no other one gives at least as much of every wish and costs no more. Found from the
//! first slice to the last: each slice begins an instance that stays, begins a new one, or is left free; of the layouts
//! up to a slice that give the same, the one that destroys least goes on.

use std::collections::BTreeMap;

use gpufleet_protocol::{
    mig::Slot,
    nvml::{MigProfile, Placement},
};

use super::{Freedom, Gpu, Wish};

/// A state that a GPU can be brought to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// How much it gives of each wish.
    pub gives: Vec<u32>,
    pub destroyed: u32,
    pub drains: bool,
    pub changed: bool,
    pub mig: bool,
    pub layout: Vec<Slot>,
}

impl Choice {
    /// Whether it is as good in every respect.
    fn replaces(&self, other: &Self) -> bool {
        self.gives.iter().zip(&other.gives).all(|(own, others)| own >= others)
            && self.destroyed <= other.destroyed
            && self.drains <= other.drains
            && self.changed <= other.changed
    }
}

/// Returns the profile of a GPU that a wish names.
fn profile<'a>(gpu: &'a Gpu, wish: &Wish) -> Option<&'a MigProfile> {
    match wish {
        Wish::Whole => None,
        Wish::Profile(name) => gpu.profiles.iter().find(|profile| profile.name.eq_ignore_ascii_case(name)),
    }
}

/// How much a GPU gives of a wish in a state.
pub(super) fn amount<'a>(
    gpu: &Gpu,
    wish: &Wish,
    mig: bool,
    layout: impl IntoIterator<Item = &'a Slot>,
) -> u32 {
    match wish {
        Wish::Whole => u32::from(!mig),
        Wish::Profile(_) => {
            let id = profile(gpu, wish).map(|profile| profile.id);
            let count = layout.into_iter().filter(|slot| Some(slot.profile_id) == id).count();
            u32::try_from(count).unwrap_or(u32::MAX)
        }
    }
}

/// Returns the choices of a GPU, the first of which is that nothing changes.
pub(super) fn choices(gpu: &Gpu, wishes: &[&Wish]) -> Vec<Choice> {
    let gives = |mig: bool, layout: &[Slot]| -> Vec<u32> {
        wishes.iter().map(|wish| amount(gpu, wish, mig, layout)).collect()
    };
    let present: Vec<Slot> = gpu.instances.iter().map(|instance| instance.slot).collect();
    let whole: Vec<Slot> =
        gpu.instances.iter().filter(|instance| instance.whole).map(|instance| instance.slot).collect();
    let stays = Choice {
        gives: gives(gpu.mig, &whole),
        destroyed: 0,
        drains: false,
        changed: false,
        mig: gpu.mig,
        layout: present.clone(),
    };
    let mut all = vec![stays];
    let may_drain = gpu.freedom == Freedom::Any;
    let may_create = may_drain || (gpu.freedom == Freedom::CreateOnly && gpu.mig);
    if may_create {
        let wanted: Vec<&MigProfile> = wishes.iter().filter_map(|wish| profile(gpu, wish)).collect();
        for (layout, destroyed) in layouts(gpu, &present, &wanted, may_drain) {
            // A GPU gets MIG for its instances only.
            if !gpu.mig && layout.is_empty() {
                continue;
            }
            let drains = destroyed > 0 || !gpu.mig;
            let gives = gives(true, &layout);
            all.push(Choice { gives, destroyed, drains, changed: true, mig: true, layout });
        }
    }
    if may_drain && gpu.mig && wishes.contains(&&Wish::Whole) {
        let destroyed = u32::try_from(present.len()).unwrap_or(u32::MAX);
        let gives = gives(false, &[]);
        all.push(Choice { gives, destroyed, drains: true, changed: true, mig: false, layout: Vec::new() });
    }
    best_of(all)
}

/// Keeps the first, and of the others those that no other one replaces.
fn best_of(all: Vec<Choice>) -> Vec<Choice> {
    let mut kept: Vec<Choice> = Vec::new();
    for choice in all {
        if kept.iter().any(|other| other.replaces(&choice)) {
            continue;
        }
        let mut at = 0;
        kept.retain(|other| {
            at += 1;
            at == 1 || !choice.replaces(other)
        });
        kept.push(choice);
    }
    kept
}

/// What decides about the rest of a GPU: how many of each wanted profile there are, and the media engines.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct SoFar {
    counts: Vec<u32>,
    with_media: u32,
    all_media: u32,
    /// Those that `+me.all` excludes.
    others: u32,
}

impl SoFar {
    /// With one more instance; `None` if that is not allowed.
    ///
    /// Source of the rules: nvml.h, as in `gpufleet_protocol::mig`.
    fn with(&self, profiles: &[MigProfile], wanted: &[&MigProfile], id: u32) -> Option<Self> {
        let mut next = self.clone();
        if let Some((count, profile)) =
            next.counts.iter_mut().zip(wanted).find(|(_, profile)| profile.id == id)
        {
            *count += 1;
            if *count > profile.max_count {
                return None;
            }
        }
        let name = profiles.iter().find(|profile| profile.id == id).map_or("", |profile| &profile.name);
        next.with_media += u32::from(name.ends_with("+me"));
        next.all_media += u32::from(name.ends_with("+me.all"));
        next.others = next.others.max(u32::from(!name.ends_with("+me.all") && !name.ends_with("-me")));
        let allowed =
            next.with_media <= 1 && next.all_media <= 1 && (next.all_media == 0 || next.others == 0);
        allowed.then_some(next)
    }
}

type States = BTreeMap<SoFar, (u32, Vec<Slot>)>;

fn offer(states: Option<&mut States>, so_far: SoFar, destroyed: u32, layout: Vec<Slot>) {
    let Some(states) = states else { return };
    let known = states.get(&so_far).map(|(destroyed, _)| *destroyed);
    if known.is_none_or(|known| destroyed < known) {
        states.insert(so_far, (destroyed, layout));
    }
}

/// Returns layouts of present and wanted instances, and how many present ones each destroys.
fn layouts(gpu: &Gpu, present: &[Slot], wanted: &[&MigProfile], may_destroy: bool) -> Vec<(Vec<Slot>, u32)> {
    let places = |profile: &MigProfile| profile.placements.clone().unwrap_or_default();
    let end = |place: &Placement| place.start.saturating_add(place.size) as usize;
    let new: Vec<Slot> = wanted
        .iter()
        .flat_map(|profile| {
            let id = profile.id;
            places(profile).into_iter().map(move |placement| Slot { placement, profile_id: id })
        })
        .filter(|slot| slot.placement.size > 0)
        .collect();
    let grid = present.iter().chain(&new).map(|slot| end(&slot.placement)).max().unwrap_or(0);
    let mut states: Vec<States> = vec![States::new(); grid + 1];
    let first = SoFar { counts: vec![0; wanted.len()], ..SoFar::default() };
    offer(states.first_mut(), first, 0, Vec::new());
    for at in 0..grid {
        let here = states.get_mut(at).map(std::mem::take).unwrap_or_default();
        let begins = present.iter().find(|slot| slot.placement.start as usize == at);
        for (so_far, (destroyed, layout)) in here {
            let with = |slot: Slot| {
                let next = so_far.with(&gpu.profiles, wanted, slot.profile_id)?;
                let mut layout = layout.clone();
                layout.push(slot);
                Some((next, layout))
            };
            if let Some(slot) = begins {
                if let Some((next, layout)) = with(*slot) {
                    offer(states.get_mut(end(&slot.placement)), next, destroyed, layout);
                }
                if !may_destroy {
                    continue;
                }
            }
            for slot in new.iter().filter(|slot| slot.placement.start as usize == at && Some(*slot) != begins)
            {
                let until = end(&slot.placement);
                let lost =
                    present.iter().filter(|other| (at..until).contains(&(other.placement.start as usize)));
                let lost = u32::try_from(lost.count()).unwrap_or(u32::MAX);
                if lost > 0 && !may_destroy {
                    continue;
                }
                if let Some((next, layout)) = with(*slot) {
                    offer(states.get_mut(until), next, destroyed + lost, layout);
                }
            }
            let lost = u32::from(begins.is_some());
            offer(states.get_mut(at + 1), so_far, destroyed + lost, layout);
        }
    }
    let last = states.pop().unwrap_or_default();
    last.into_values().map(|(destroyed, layout)| (layout, destroyed)).collect()
}
