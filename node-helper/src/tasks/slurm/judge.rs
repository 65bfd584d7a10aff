//! What slurmctld would make of a node: numbers and types of its GPUs against slurm.conf. Pure.

use std::collections::BTreeMap;

use gpufleet_protocol::{FailureKind, slurm as offered};

use super::{State, gres::Wanted};
use crate::declare::Trouble;

/// Returns type and number of the GPUs in `gpu:h100:8(S:0-1),nic:2`; the type is empty if there is none.
pub fn counts(gres: &str) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    for part in gres.split(',') {
        let part = part.split('(').next().unwrap_or_default();
        let mut words = part.split(':');
        if words.next() != Some("gpu") {
            continue;
        }
        let rest: Vec<&str> = words.filter(|word| *word != "no_consume").collect();
        all.push(match rest.as_slice() {
            [] => (String::new(), 1),
            [one] => one.parse().map_or_else(|_| ((*one).to_owned(), 1), |count| (String::new(), count)),
            [kind, count, ..] => ((*kind).to_owned(), count.parse().unwrap_or(1)),
        });
    }
    all
}

/// Returns how many GPUs of this type slurmd finds: with AutoDetect Slurm takes a part of the type's name, in any letters.
fn of(found: &BTreeMap<String, u64>, kind: &str) -> u64 {
    let kind = kind.to_lowercase();
    let exactly: Option<u64> =
        found.iter().find(|(name, _)| name.to_lowercase() == kind).map(|(_, count)| *count);
    let part =
        || found.iter().filter(|(name, _)| name.to_lowercase().contains(&kind)).map(|(_, count)| *count);
    exactly.unwrap_or_else(|| part().fold(0, u64::saturating_add))
}

impl State {
    /// Refuses what slurmctld would answer with an invalid registration.
    pub fn refuse(&self) -> Result<Option<String>, Trouble> {
        let place = &self.file.shown;
        let Wanted::Lines(offers) = &self.wanted else {
            // What it would find by another setting is told by a trial before anything is written.
            let Some(offered) = &self.offered else {
                let unknown = |why| {
                    format!(
                        "whether slurmd finds what {place} says is known only in the run, because an earlier task {why}"
                    )
                };
                return Ok(self.open.map(unknown));
            };
            return match &offered.error {
                None => self.compare(&offered.gpus),
                Some(why) => Err(Trouble::failed(
                    FailureKind::Exit,
                    format!("whether slurmd finds what {place} says is not known: slurmd -G: {why}"),
                )),
            };
        };
        let configured = counts(&self.values.gres);
        let of = |kind: &str| {
            let is = |offer: &&offered::Offer| kind.is_empty() || offer.kind.as_deref() == Some(kind);
            offers.iter().filter(is).count() as u64
        };
        for (kind, count) in &configured {
            let found = of(kind);
            let what = if kind.is_empty() { "GPUs".to_owned() } else { format!("GPUs of type {kind}") };
            if found < *count {
                let kinds: Vec<&str> = offers.iter().filter_map(|offer| offer.kind.as_deref()).collect();
                let other = match kinds.first() {
                    Some(other) if !kind.is_empty() && found == 0 => {
                        format!(
                            "; its GPUs would be of type {other}: set `type: {kind}`, or change Gres there"
                        )
                    }
                    _ => "; repair the node, or lower Gres there".to_owned(),
                };
                return Err(Trouble::invalid(format!(
                    "the node has {found} {what}, and {place} says Gres={}: slurmctld would take the node out (gres/gpu count \
                     reported lower than configured ({found} < {count})){other}",
                    self.values.gres
                )));
            }
        }
        let all: u64 = configured.iter().map(|(_, count)| count).sum();
        let there = offers.len() as u64;
        if configured.is_empty() && there > 0 {
            let kind = offers.first().and_then(|offer| offer.kind.as_deref()).map(|kind| format!(":{kind}"));
            return Err(Trouble::invalid(format!(
                "{place} gives node {} no GPU, so that Slurm would ignore its {there}: set Gres=gpu{}:{there} there, with \
                 GresTypes=gpu, and type `scontrol reconfigure`",
                self.name,
                kind.unwrap_or_default()
            )));
        }
        let ignored = there.saturating_sub(all);
        Ok((ignored > 0).then(|| {
            format!(
                "{place} says Gres={}, and the node has {there} GPUs: Slurm ignores {ignored}",
                self.values.gres
            )
        }))
    }

    /// Compares what slurmd finds itself, by type, with slurm.conf; returns a warning.
    ///
    /// # Errors
    /// What slurmctld would answer with an invalid registration, and the next step.
    pub fn compare(&self, found: &BTreeMap<String, u64>) -> Result<Option<String>, Trouble> {
        let place = &self.file.shown;
        let configured = counts(&self.values.gres);
        let there = found.values().fold(0_u64, |sum, count| sum.saturating_add(*count));
        let told: Vec<String> = found
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(
                |(kind, count)| {
                    if kind.is_empty() { format!("gpu:{count}") } else { format!("gpu:{kind}:{count}") }
                },
            )
            .collect();
        let (detect, told) = (self.wanted.detect(), told.join(","));
        if there == 0 {
            return Err(Trouble::invalid(format!(
                "slurmd finds no GPU with AutoDetect={detect}, and {place} says Gres={}: repair the node",
                self.values.gres
            )));
        }
        if configured.is_empty() {
            return Err(Trouble::invalid(format!(
                "{place} gives node {} no GPU, so that Slurm would ignore what slurmd finds with AutoDetect={detect}: set \
                 Gres={told} there, with GresTypes=gpu, and type `scontrol reconfigure`",
                self.name
            )));
        }
        for (kind, count) in &configured {
            let of_kind = if kind.is_empty() { there } else { of(found, kind) };
            if of_kind >= *count {
                continue;
            }
            return Err(Trouble::invalid(format!(
                "slurmd finds Gres={told} with AutoDetect={detect}, and {place} says Gres={}: slurmctld would take the node out (gres/gpu \
                 count reported lower than configured ({of_kind} < {count})); \
                 give the GPUs the layout that slurm.conf names (`gpu_mig`), or write there what slurmd finds",
                self.values.gres
            )));
        }
        let all = configured.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
        Ok((there > all).then(|| {
            format!(
                "{place} says Gres={}, and slurmd finds Gres={told}: Slurm ignores {}",
                self.values.gres,
                there - all
            )
        }))
    }

    /// Says if slurm.conf gives the node GPUs and does not name them as something that nodes have.
    pub fn untyped(&self, conf: &str) -> Option<String> {
        let names = self.gres_types.split(',').any(|one| one.trim().eq_ignore_ascii_case("gpu"));
        (!names && !counts(&self.values.gres).is_empty()).then(|| {
            format!(
                "{} gives node {} Gres={}, and GresTypes in {conf} lacks gpu, so that Slurm gives no job a GPU: write GresTypes=gpu \
                 there, as in slurmctld's slurm.conf, and restart slurmctld and all slurmd",
                self.file.shown, self.name, self.values.gres
            )
        })
    }

    /// Says what slurmctld thinks of the node, if that needs somebody.
    pub fn complaint(&self, restarts: bool) -> Option<String> {
        match &self.told {
            Err(why) => Some(format!("what slurmctld says of node {} is not known: {why}", self.name)),
            Ok(told) if told.is_invalid() => {
                let reason = told.reason.as_deref().unwrap_or("it gives no reason");
                let next = if restarts { "that clears once slurmd has registered; " } else { "" };
                Some(format!(
                    "slurmctld calls the registration of node {} invalid ({reason}): {next}the drain and its reason stay, and \
                     nobody but you ends them: `scontrol update nodename={} state=resume`",
                    self.name, self.name
                ))
            }
            Ok(told) if told.is_down() => {
                let reason = told.reason.as_deref().unwrap_or("it gives no reason");
                Some(format!(
                    "slurmctld calls node {} down ({reason}): unless it comes back with slurmd, `scontrol update nodename={} \
                     state=resume` is yours",
                    self.name, self.name
                ))
            }
            Ok(_) => None,
        }
    }
}
