//! The rule files of a user, for faults and initial states of nodes by name, and the built-in drift.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nvml_sim::fault::{Rule, glob_matches};
use nvml_sim::model::Arch;
use nvml_sim::state::{Machine, Staged};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::programs::simctl::{set_gpu, set_machine};

#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is no list of rules: {message}")]
    Parse { path: PathBuf, message: String },
    #[error("{path}, rule {number}: {message}")]
    Rule { path: PathBuf, number: usize, message: String },
}

/// One rule of a state file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StateRule {
    /// Glob over node names.
    #[serde(default = "everywhere")]
    nodes: String,
    /// Index of one GPU; all GPUs without it.
    gpu: Option<usize>,
    /// Properties of `gpusimctl set`, by name.
    #[serde(default)]
    set: BTreeMap<String, serde_json::Value>,
    /// Properties of `gpusimctl machine`, by name.
    #[serde(default)]
    machine: BTreeMap<String, serde_json::Value>,
    /// Initial GPU instances by profile name, one for each entry, each with a full compute instance.
    #[serde(default)]
    mig_layout: Vec<String>,
    /// Units that are enabled and so running.
    #[serde(default)]
    pub enable: Vec<String>,
    /// Kernel settings, by name.
    #[serde(default)]
    pub sysctl: BTreeMap<String, serde_json::Value>,
}

fn everywhere() -> String {
    "*".to_owned()
}

fn load<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>, RuleError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| RuleError::Read { path: path.to_owned(), source })?;
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Vec::new());
    }
    serde_saphyr::from_str(&text)
        .map_err(|e| RuleError::Parse { path: path.to_owned(), message: e.to_string() })
}

/// Reads and checks a faults file.
pub fn load_faults(path: &Path) -> Result<Vec<Rule>, RuleError> {
    let rules: Vec<Rule> = load(path)?;
    for (index, rule) in rules.iter().enumerate() {
        if let Some(message) = rule.problem() {
            return Err(RuleError::Rule { path: path.to_owned(), number: index + 1, message });
        }
    }
    Ok(rules)
}

/// Returns the rules for one node.
pub fn faults_of(rules: &[Rule], node: &str) -> Vec<Rule> {
    rules.iter().filter(|rule| glob_matches(&rule.nodes, node)).cloned().collect()
}

pub fn load_states(path: &Path) -> Result<Vec<StateRule>, RuleError> {
    let rules: Vec<StateRule> = load(path)?;
    for (index, rule) in rules.iter().enumerate() {
        let mut trial = Machine::new("trial", &[nvml_sim::model::ModelKey::H100], String::new());
        let mut check = rule.clone();
        check.gpu = None;
        check.mig_layout.clear();
        apply(&check, &mut trial).map_err(|message| RuleError::Rule {
            path: path.to_owned(),
            number: index + 1,
            message,
        })?;
    }
    Ok(rules)
}

/// Applies the rules for this machine. Returns the units to enable and the kernel settings to write.
pub fn apply_states(rules: &[StateRule], machine: &mut Machine) -> Result<Extras, String> {
    let mut extras = Extras::default();
    let name = machine.name.clone();
    for rule in rules.iter().filter(|rule| glob_matches(&rule.nodes, &name)) {
        apply(rule, machine)?;
        extras.enable.extend(rule.enable.iter().cloned());
        extras.sysctl.extend(rule.sysctl.iter().map(|(key, value)| (key.clone(), plain(value))));
    }
    Ok(extras)
}

/// Properties of a node beside its GPUs.
#[derive(Clone, Debug, Default)]
pub struct Extras {
    pub enable: Vec<String>,
    pub sysctl: Vec<(String, String)>,
}

fn apply(rule: &StateRule, machine: &mut Machine) -> Result<(), String> {
    for (key, value) in &rule.machine {
        set_machine(machine, key, &plain(value))?;
    }
    if rule.gpu.is_some_and(|index| index >= machine.gpus.len()) {
        return Err(format!("{} has only {} GPUs", machine.name, machine.gpus.len()));
    }
    for (index, gpu) in machine.gpus.iter_mut().enumerate() {
        if rule.gpu.is_some_and(|wanted| wanted != index) {
            continue;
        }
        for (key, value) in &rule.set {
            set_gpu(gpu, key, &plain(value))?;
        }
        for name in &rule.mig_layout {
            create_mig(gpu, name)?;
        }
    }
    Ok(())
}

fn create_mig(gpu: &mut nvml_sim::state::Gpu, name: &str) -> Result<(), String> {
    let profile = gpu
        .spec()
        .profiles
        .iter()
        .find(|profile| profile.name == name)
        .ok_or_else(|| format!("{} has no MIG profile `{name}`", gpu.model))?;
    let compute = match profile.slices {
        7 => 4,
        slices => slices - 1,
    };
    gpu.mig = Staged::settled(true);
    let id = gpu.create_instance(profile.id, None).map_err(|_| format!("`{name}` does not fit any more"))?;
    gpu.create_compute_instance(id, compute, None)
        .map_err(|code| format!("compute instance: code {code}"))?;
    Ok(())
}

fn plain(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Applies the built-in drift: every eighth node is as delivered, the others each differ in one way that a bring-up
/// finds.
pub fn drift(number: usize, machine: &mut Machine) -> Extras {
    let mut extras = Extras::default();
    for (index, gpu) in machine.gpus.iter_mut().enumerate() {
        match number % 8 {
            1 => gpu.ecc = Staged::settled(false),
            2 => gpu.ecc.pending = index % 2 != 0,
            3 => {
                let name =
                    gpu.spec().profiles.first().map(|profile| profile.name.clone()).unwrap_or_default();
                let _ = create_mig(gpu, &name);
                gpu.persistence = gpu.spec().arch == Arch::Hopper;
            }
            4 => {
                gpu.persistence = true;
                gpu.power_limit_mw = gpu.spec().power_mw.1 * 5 / 7;
            }
            6 => {
                gpu.persistence = true;
                gpu.compute_mode = 3;
            }
            _ => {}
        }
    }
    match number % 8 {
        5 => extras.enable.extend(["nvidia-persistenced".to_owned(), "nvidia-dcgm".to_owned()]),
        7 => extras.sysctl.push(("vm.swappiness".to_owned(), "100".to_owned())),
        _ => {}
    }
    extras
}

#[cfg(test)]
mod tests {
    use nvml_sim::model::ModelKey;

    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rules.yaml");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn defects_are_initial_states() {
        let (_dir, path) =
            file("- gpu: 0\n  set: {pcie_width: 8, remap_pending: true, drain: true, margin_c: -2}\n");
        let rules = load_states(&path).unwrap();
        let mut machine = Machine::new("gpu001", &[ModelKey::H100], String::new());
        apply_states(&rules, &mut machine).unwrap();
        let gpu = &machine.gpus[0];
        assert_eq!(gpu.broken("nvmlDeviceGetCurrPcieLinkWidth"), Some(8));
        assert_eq!(gpu.broken("nvmlDeviceGetMarginTemperature"), Some(u64::MAX - 1));
        assert!(gpu.health.remap_pending && gpu.draining);
    }

    #[test]
    fn faults_read_and_pick_their_nodes() {
        let (_dir, path) = file(
            "- nodes: gpu00[12]\n  function: nvmlDeviceSetEccMode\n  gpu: 1\n  effect: {return: 999}\n\
             - nodes: gpu002\n  effect: never_boot\n- program: nvidia-smi\n  effect: {exit: {code: 255, message: no}}\n",
        );
        let rules = load_faults(&path).unwrap();
        assert_eq!(faults_of(&rules, "gpu001").len(), 2);
        assert_eq!(faults_of(&rules, "gpu002").len(), 3);
        assert_eq!(faults_of(&rules, "gpu003").len(), 1);
    }

    #[test]
    fn a_fault_on_the_wrong_thing_names_its_rule() {
        let (_dir, path) = file("- effect: never_boot\n- effect: {return: 3}\n");
        let error = load_faults(&path).unwrap_err().to_string();
        assert!(error.contains("rule 2") && error.contains("function"), "{error}");
        let (_dir, path) = file("- efect: hang\n");
        assert!(load_faults(&path).unwrap_err().to_string().contains("efect"));
    }

    #[test]
    fn states_set_what_they_name() {
        let (_dir, path) = file(
            "- nodes: gpu00*\n  gpu: 1\n  set: {ecc_current: false, power_limit_mw: 400000}\n\
             - machine: {passthrough: true}\n  enable: [nvidia-dcgm]\n- gpu: 0\n  mig_layout: [3g.40gb, 3g.40gb]\n",
        );
        let rules = load_states(&path).unwrap();
        let mut machine = Machine::new("gpu001", &[ModelKey::H100; 2], String::new());
        let extras = apply_states(&rules, &mut machine).unwrap();
        assert!(machine.gpus[0].ecc.current && !machine.gpus[1].ecc.current);
        assert_eq!(machine.gpus[1].power_limit_mw, 400_000);
        assert!(machine.passthrough);
        assert_eq!(extras.enable, ["nvidia-dcgm"]);
        assert_eq!(machine.gpus[0].mig_devices().count(), 2);
        let (_dir, path) = file("- set: {colour: red}\n");
        assert!(load_states(&path).unwrap_err().to_string().contains("no `colour`"));
    }

    #[test]
    fn drift_differs_between_nodes_and_is_the_same_every_time() {
        let machine = |number| {
            let mut machine = Machine::new("gpu001", &[ModelKey::A100; 2], String::new());
            drift(number, &mut machine);
            machine
        };
        assert_eq!(machine(3), machine(3));
        assert_eq!(machine(3).gpus[0].mig_devices().count(), 1);
        assert!(!machine(1).gpus[0].ecc.current);
        assert_eq!(machine(0), machine(8));
    }
}
