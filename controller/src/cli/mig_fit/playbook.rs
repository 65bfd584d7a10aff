//! The playbook that makes the layouts.
//!
//! Names each GPU by its UUID and each instance by its place, so that the run has no choice left. A node that is drained
//! has all of its GPUs with MIG in it, because a reboot would take their instances too. Its first task fails a node whose
//! GPUs are neither as they were read nor as they are to be.

use std::fmt::Write as _;

use gpufleet::visible::visible;
use gpufleet_mig::{
    demand,
    fleet_fit::{Change, Demand, Fit, Gpu},
};
use gpufleet_protocol::{mig::Slot, nvml::MigProfile};

use super::{fleet::Fleet, scopes::Scopes};
use crate::cli::args::{FitDrain, MigFitArgs};

/// What the head of the playbook says.
pub struct Head<'a> {
    /// Where the fleet was read, and when.
    pub from: &'a str,
    /// What the way costs, in words.
    pub cost: &'a str,
    /// How the inventory was named, for commands to paste.
    pub inventory: &'a str,
}

/// `3g.40gb at 0`, in the words that the playbook compares.
fn state(gpu: &Gpu, mig: bool, layout: &[Slot]) -> String {
    if !mig {
        return "off".to_owned();
    }
    let mut layout = layout.to_vec();
    layout.sort_unstable();
    let mut text = "on".to_owned();
    for slot in layout {
        let _ = write!(text, " {}@{}", profile(&gpu.profiles, slot), slot.placement.start);
    }
    text
}

pub fn profile(profiles: &[MigProfile], slot: Slot) -> &str {
    profiles.iter().find(|profile| profile.id == slot.profile_id).map_or("?", |profile| &profile.name)
}

/// A text as YAML in double quotes, which JSON's are.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A line of a comment, whatever is in the text.
fn comment(text: &str) -> String {
    visible(text).replace(['\n', '\r'], " ")
}

pub fn demands(demands: &[Demand], scopes: &Scopes) -> String {
    let mut by_scope: Vec<(usize, Vec<String>)> = Vec::new();
    for demand in demands {
        let text = format!("{}x {}", demand.count, demand::name(&demand.wish));
        match by_scope.iter_mut().find(|(scope, _)| *scope == demand.scope) {
            Some((_, texts)) => texts.push(text),
            None => by_scope.push((demand.scope, vec![text])),
        }
    }
    let text = |(scope, texts): &(usize, Vec<String>)| match scopes.name(*scope) {
        "all" => texts.join(" + "),
        name => format!("{} in {name}", texts.join(" + ")),
    };
    by_scope.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// An entry for one GPU.
struct Entry {
    comment: String,
    uuid: String,
    was: String,
    becomes: String,
    mig: bool,
    layout: String,
}

fn entry(fleet: &Fleet, node: usize, at: usize, change: Option<&Change>) -> Option<Entry> {
    let gpu = fleet.nodes.get(node)?.gpus.get(at)?;
    let name = fleet.names.get(node)?.1.get(at)?;
    let present: Vec<Slot> = gpu.instances.iter().map(|instance| instance.slot).collect();
    let (mig, layout) = match change {
        Some(change) => (change.mig, change.layout.clone()),
        None => (gpu.mig, present.clone()),
    };
    let mut places = layout.clone();
    places.sort_unstable();
    let place = |slot: &Slot| {
        format!("{{profile: {}, start: {}}}", profile(&gpu.profiles, *slot), slot.placement.start)
    };
    let places: Vec<String> = places.iter().map(place).collect();
    let (was, becomes) = (state(gpu, gpu.mig, &present), state(gpu, mig, &layout));
    let comment = match change {
        Some(_) => format!("GPU {}", name.index),
        None => format!("GPU {} stays as it is, after a reboot too", name.index),
    };
    Some(Entry { comment, uuid: name.uuid.clone(), was, becomes, mig, layout: places.join(", ") })
}

/// The entries of each node that changes, by its name.
fn entries(fleet: &Fleet, fit: &Fit) -> Vec<(String, Vec<Entry>)> {
    let mut all: Vec<(String, Vec<Entry>)> = Vec::new();
    for of_node in fit.changes.chunk_by(|one, other| one.node == other.node) {
        let Some(first) = of_node.first() else { continue };
        let (Some(node), Some((name, _))) = (fleet.nodes.get(first.node), fleet.names.get(first.node)) else {
            continue;
        };
        let drains = of_node.iter().any(|change| change.drains);
        let wanted = |(at, gpu): (usize, &Gpu)| {
            let change = of_node.iter().find(|change| change.gpu == at);
            let stays = drains && gpu.mig && !gpu.instances.is_empty();
            (change.is_some() || stays).then(|| entry(fleet, first.node, at, change)).flatten()
        };
        let entries: Vec<Entry> = node.gpus.iter().enumerate().filter_map(wanted).collect();
        all.push((name.to_string(), entries));
    }
    all
}

pub fn text(args: &MigFitArgs, fleet: &Fleet, scopes: &Scopes, fit: &Fit, head: &Head<'_>) -> String {
    let entries = entries(fleet, fit);
    let file = args.output.as_ref().map_or_else(|| "fit.yaml".to_owned(), |file| file.display().to_string());
    let mut out = String::new();
    let mut line = |text: &str| {
        out.push_str(text);
        out.push('\n');
    };
    line(&format!("# MIG layouts for {}.", comment(&demands(&scopes.demands, scopes))));
    line(&format!("# Made by gpufleet mig fit from {}.", comment(head.from)));
    line(&format!("# {}", comment(head.cost)));
    line("#");
    line(&format!("#   gpufleet plan {} {}", comment(&file), comment(head.inventory)));
    line(&format!("#   gpufleet run  {} {}", comment(&file), comment(head.inventory)));
    line("#");
    line(
        "# It is for the fleet as it was read. A node whose GPUs have other instances by then fails its first task and is not",
    );
    line("# changed, and a node that has to be idle and is not is held: make the playbook anew for them.");
    line(
        "# Instances are lost at every reboot, and on Hopper and later MIG mode too: with --keep, nodes lay them out again at each",
    );
    line("# boot. A node that keeps another layout already goes back to that one without it.");
    line("- name: MIG layouts");
    line("  hosts:");
    for (name, _) in &entries {
        line(&format!("    - {}", quoted(name)));
    }
    line("  become: true");
    line("  rollout:");
    line("    waves: [canary, 10%, 25%]");
    line(&format!("    max_unavailable: {}", args.max_unavailable));
    line("    max_fail_percentage: 0");
    line("    reboot: {timeout: 20m}");
    line("    health_gate: [gpu_count, mig_layout, ecc, xid]");
    line(match args.drain {
        FitDrain::None => "    drain: none",
        FitDrain::Slurm => "    drain: {slurm: {timeout: 2h}}",
        FitDrain::Kubernetes => "    drain: {kubernetes: {timeout: 2h}}",
    });
    line("  vars:");
    line("    mig_fit:");
    for (name, entries) in &entries {
        line(&format!("      {}:", quoted(name)));
        for Entry { comment, uuid, was, becomes, mig, layout } in entries {
            let mode = if *mig { "enabled" } else { "disabled" };
            line(&format!("        # {comment}"));
            line(&format!("        - gpu: {uuid}"));
            line(&format!("          was: {}", quoted(was)));
            line(&format!("          becomes: {}", quoted(becomes)));
            line(&format!("          mode: {mode}"));
            line(&format!("          layout: [{layout}]"));
        }
    }
    line("  tasks:");
    line("    - name: No GPU has changed since it was read");
    line("      assert:");
    line("        that: now in [item.was, item.becomes]");
    line(
        "        fail_msg: \"{{ item.gpu }} has `{{ now }}`, and the plan was made for `{{ item.was }}`: make it anew with gpufleet mig fit\"",
    );
    line("        quiet: true");
    line("      loop: \"{{ mig_fit[inventory_hostname] }}\"");
    line("      loop_control: {label: \"{{ item.gpu }}\"}");
    line("      vars:");
    line("        now: >-");
    line(
        "          {% for gpu in gpufleet_facts.gpu.gpus if gpu.uuid == item.gpu %}{{ 'on' if gpu.mig_current else 'off' }}{% for one in",
    );
    line(
        "          gpu.mig_layout | sort(attribute='start') %} {{ one.profile }}@{{ one.start }}{% endfor %}{% endfor %}",
    );
    let most = entries.iter().map(|(_, entries)| entries.len()).max().unwrap_or(0);
    for at in 0..most {
        line(&format!("    - name: MIG layout of GPU {} of {most} at most", at + 1));
        line("      gpu_mig:");
        for key in ["mode", "layout"] {
            line(&format!("        {key}: \"{{{{ mig_fit[inventory_hostname][{at}].{key} }}}}\""));
        }
        line(&format!("        gpus: [\"{{{{ mig_fit[inventory_hostname][{at}].gpu }}}}\"]"));
        if entries.iter().any(|(_, entries)| entries.len() <= at) {
            line(&format!("      when: mig_fit[inventory_hostname] | length > {at}"));
        }
    }
    line("    - name: Reboot where needed");
    line("      reboot: {when: required}");
    out
}
