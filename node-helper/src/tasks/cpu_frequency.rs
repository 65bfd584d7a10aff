//! `cpu_frequency`: governor, energy preference, turbo, bounds and driver mode of all processors.
//!
//! Order: the driver's mode resets the rest; the governor decides which energy preference is possible; the upper bound is
//! raised before the lower one. Source: kernel, admin-guide/pm/intel_pstate and cpufreq.

use std::collections::BTreeSet;

use gpufleet_protocol::{
    Disruption,
    cpus::CpuList,
    tasks::{CpuEnergyPreference, CpuFrequency, CpuGovernor},
};
use serde_json::{Map, Value, json};

use super::{
    knobs::{self, Impossible, Knob, Knobs, Step},
    sysctl::owners::{self, Profile},
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    world::Effect,
};

const CPU: &str = "/sys/devices/system/cpu";

/// Services that set the frequency when they start.
const SERVICES: [&str; 6] = [
    "power-profiles-daemon.service",
    "tuned-ppd.service",
    "cpupower.service",
    "cpufrequtils.service",
    "tlp.service",
    "auto-cpufreq.service",
];

#[derive(Debug)]
pub struct State {
    knobs: Knobs,
    /// What is declared and possible here.
    able: CpuFrequency,
    /// Names of what is declared and not possible here, with why.
    impossible: Impossible,
    /// Numbers of policies whose CPUs are all offline.
    offline: CpuList,
    driver: String,
    /// Whether turbo is on; `None` if there is no switch, or only a boot tells.
    turbo: Option<bool>,
    /// The driver if it is a module that is loaded.
    module: Option<String>,
    /// The governors of now; empty where a new mode of the driver decides.
    governors: Vec<String>,
    preferences: Vec<String>,
    /// Name, lowest, highest and base frequency of each policy, as far as the kernel tells.
    limits: Vec<Policy>,
    /// The governors in force.
    governing: Vec<String>,
    tuned: Option<Profile>,
    services: Vec<&'static str>,
    rebooted: bool,
}

#[derive(Debug, Default)]
struct Policy {
    path: String,
    lowest: Option<u32>,
    highest: Option<u32>,
    base: Option<u32>,
    min: Option<u32>,
    max: Option<u32>,
}

fn number(node: &Node<'_>, path: &str) -> Result<Option<u32>, Trouble> {
    Ok(knobs::assumed(node, path)?.and_then(|text| text.parse().ok()))
}

fn words(node: &Node<'_>, path: &str) -> Result<Vec<String>, Trouble> {
    let text = knobs::value(node, path)?.unwrap_or_default();
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Returns the policies, and the numbers of those whose CPUs are all offline, which tell nothing and take nothing (EBUSY).
fn policies(node: &Node<'_>) -> Result<(Vec<Policy>, CpuList), Trouble> {
    let (mut found, mut offline) = (Vec::new(), Vec::new());
    for (number_of, path) in knobs::numbered(node, &format!("{CPU}/cpufreq"), "policy")? {
        if knobs::value(node, &format!("{path}/scaling_driver"))?.is_none() {
            offline.push(number_of);
            continue;
        }
        let read = |name: &str| number(node, &format!("{path}/{name}"));
        let (min, max) = match node.world.rebooted() {
            true => (None, None),
            false => (read("scaling_min_freq")?, read("scaling_max_freq")?),
        };
        found.push(Policy {
            lowest: read("cpuinfo_min_freq")?,
            highest: read("cpuinfo_max_freq")?,
            base: read("base_frequency")?,
            min,
            max,
            path,
        });
    }
    Ok((found, offline.into_iter().collect()))
}

/// Builds the settings in the order in which they are written.
struct Builder<'p> {
    policies: &'p [Policy],
    knobs: Vec<Knob>,
    resets: bool,
}

impl Builder<'_> {
    fn one(&mut self, path: String, wanted: &str) {
        let name = path.strip_prefix(CPU).unwrap_or(&path).trim_start_matches('/').to_owned();
        self.knobs.push(Knob {
            name,
            lines: vec![path.clone()],
            gone: Vec::new(),
            paths: vec![path],
            wanted: wanted.to_owned(),
            class: Disruption::Live,
            always: self.resets,
            appears: false,
        });
    }

    fn each(&mut self, file: &str, wanted: &str, only: impl Fn(&Policy) -> bool) {
        let policies = self.policies.iter().filter(|policy| only(policy));
        let paths: Vec<String> = policies.map(|policy| format!("{}/{file}", policy.path)).collect();
        if !paths.is_empty() {
            self.knobs.push(Knob {
                name: format!("cpufreq/{file}"),
                paths,
                lines: vec![format!("{CPU}/cpufreq/policy*/{file}")],
                gone: Vec::new(),
                wanted: wanted.to_owned(),
                class: Disruption::Live,
                always: self.resets,
                appears: self.resets,
            });
        }
    }
}

/// Returns the switch for turbo, and its words for on and off; none if the driver has none.
fn switch(node: &Node<'_>) -> Result<Option<(String, [&'static str; 2])>, Trouble> {
    for (name, words) in [("intel_pstate/no_turbo", ["0", "1"]), ("cpufreq/boost", ["1", "0"])] {
        let path = format!("{CPU}/{name}");
        if knobs::value(node, &path)?.is_some() {
            return Ok(Some((path, words)));
        }
    }
    Ok(None)
}

/// Returns the folder with the mode of a driver.
fn mode_folder(driver: &str) -> Option<&'static str> {
    match driver {
        "intel_pstate" | "intel_cpufreq" => Some("intel_pstate"),
        "amd-pstate" | "amd-pstate-epp" | "amd_pstate" => Some("amd_pstate"),
        _ => None,
    }
}

impl NodeKind for CpuFrequency {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let (limits, offline) = policies(node)?;
        let Some(first) = limits.first() else {
            return Err(Trouble::NotApplicable(format!(
                "{CPU}/cpufreq has no policies: no driver sets the frequency here, as in virtual machines, where it is the \
                 host's, or where the firmware keeps it to itself"
            )));
        };
        let driver = knobs::value(node, &format!("{}/scaling_driver", first.path))?.unwrap_or_default();
        let mut able = self.clone();
        let mut impossible = Impossible::default();
        let mut builder = Builder { policies: &limits, knobs: Vec::new(), resets: false };
        if let Some(mode) = self.mode {
            let path = mode_folder(&driver).map(|folder| format!("{CPU}/{folder}/status"));
            let now = match &path {
                Some(path) => knobs::assumed(node, path)?,
                None => None,
            };
            if let (Some(path), Some(now)) = (path, now) {
                builder.one(path, mode.as_str());
                builder.resets = now != mode.as_str() && !node.world.rebooted();
            } else {
                able.mode = None;
                let why = format!("the driver {driver} has no modes; intel_pstate and amd_pstate have");
                impossible.push("mode", why);
            }
        }
        let switch = switch(node)?;
        let turbo = match &switch {
            Some((path, words)) if !node.world.rebooted() => {
                knobs::assumed(node, path)?.map(|now| now == words[0])
            }
            _ => None,
        };
        match (self.boost, switch) {
            (Some(true), Some((path, [on, _]))) => builder.one(path, on),
            (Some(false), Some((path, [_, off]))) => builder.one(path, off),
            (Some(_), None) => {
                able.boost = None;
                impossible.push("boost", format!("the driver {driver} has no switch for turbo"));
            }
            (None, _) => {}
        }
        if let Some(governor) = self.governor {
            builder.each("scaling_governor", governor.as_str(), |_| true);
        }
        if let Some(preference) = self.energy_preference {
            let file = "energy_performance_preference";
            let mut having = BTreeSet::new();
            for policy in &limits {
                if builder.resets || knobs::value(node, &format!("{}/{file}", policy.path))?.is_some() {
                    having.insert(policy.path.as_str());
                }
            }
            if having.is_empty() {
                able.energy_preference = None;
                impossible.push("energy_preference", format!("the driver {driver} has no energy preference"));
            }
            builder.each(file, preference.as_str(), |policy| having.contains(policy.path.as_str()));
        }
        // The upper bound first where it does not go below the lower one of now.
        let first = |policy: &Policy| match (self.max_khz, policy.min) {
            (Some(max), Some(min)) => max >= min,
            _ => true,
        };
        if let Some(max) = self.max_khz {
            builder.each("scaling_max_freq", &max.to_string(), first);
        }
        if let Some(min) = self.min_khz {
            builder.each("scaling_min_freq", &min.to_string(), |_| true);
        }
        if let Some(max) = self.max_khz {
            builder.each("scaling_max_freq", &max.to_string(), |policy| !first(policy));
        }
        let Builder { knobs, resets, .. } = builder;
        if able == Self::default() {
            return Err(impossible.trouble());
        }
        let list = |name: &str| match (resets, limits.first()) {
            (false, Some(policy)) => words(node, &format!("{}/{name}", policy.path)),
            _ => Ok(Vec::new()),
        };
        let (governors, preferences) =
            (list("scaling_available_governors")?, list("energy_performance_available_preferences")?);
        let mut governing = Vec::new();
        for policy in &limits {
            governing.extend(knobs::assumed(node, &format!("{}/scaling_governor", policy.path))?);
        }
        let name = driver.replace('-', "_");
        let loaded = knobs::value(node, &format!("/sys/module/{name}/initstate"))?;
        let mut services = Vec::new();
        for service in SERVICES {
            if owners::starts(node, service)? {
                services.push(service);
            }
        }
        Ok(State {
            knobs: Knobs::observe(node, Self::FILE, CPU, knobs)?,
            able,
            impossible,
            offline,
            turbo,
            module: loaded.map(|_| name),
            driver,
            governors,
            preferences,
            limits,
            governing,
            tuned: Profile::read(node)?,
            services,
            rebooted: node.world.rebooted(),
        })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let able = &state.able;
        able.judge_words(state)?;
        // What the processor can do with the declared turbo is known only once that is in force.
        let is_known = able.boost.is_none() || able.boost == state.turbo;
        for policy in &state.limits {
            able.judge_range(policy, is_known)?;
            able.judge_bounds(policy)?;
        }
        let mut plan = Plan::default();
        state.knobs.plan(&mut plan, |step| step);
        state.impossible.warn(&mut plan.warnings);
        able.name_owners(state, &mut plan.warnings);
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        state.knobs.after(&plan.steps)
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            step.apply(node)?;
            let is_turbo = |path: &str| path.ends_with("/no_turbo") || path.ends_with("/boost");
            if matches!(step, Step::Live { path, .. } if is_turbo(path)) {
                for policy in &policies(node)?.0 {
                    state.able.judge_range(policy, true)?;
                }
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let mut data = Map::new();
        data.insert("driver".to_owned(), json!(state.driver));
        if !state.offline.is_empty() {
            data.insert("offline".to_owned(), json!(state.offline));
        }
        state.impossible.tell(&mut data);
        data
    }
}

trait Judge {
    fn judge_words(&self, state: &State) -> Result<(), Trouble>;
    fn judge_range(&self, policy: &Policy, is_known: bool) -> Result<(), Trouble>;
    fn judge_bounds(&self, policy: &Policy) -> Result<(), Trouble>;
    fn name_owners(&self, state: &State, warnings: &mut Vec<String>);
}

impl Judge for CpuFrequency {
    fn judge_words(&self, state: &State) -> Result<(), Trouble> {
        let known = |given: Option<&'static str>, list: &[String], what: &str| match given {
            Some(word) if !list.is_empty() && !list.iter().any(|known| known == word) => {
                Err(Trouble::invalid(format!(
                    "the driver {} has no {what} `{word}`; it has {}",
                    state.driver,
                    list.join(", ")
                )))
            }
            _ => Ok(()),
        };
        known(self.governor.map(CpuGovernor::as_str), &state.governors, "governor")?;
        let preference = self.energy_preference.map(CpuEnergyPreference::as_str);
        known(preference, &state.preferences, "energy preference")?;
        let performs = self.governor.is_none()
            && !state.rebooted
            && state.governing.iter().any(|governor| governor == "performance");
        let other = self.energy_preference.filter(|wanted| *wanted != CpuEnergyPreference::Performance);
        match other {
            Some(wanted) if performs && mode_folder(&state.driver).is_some() => {
                Err(Trouble::invalid(format!(
                    "the governor is performance, under which the kernel does not take the energy preference {wanted} (EBUSY); \
                 declare `governor: powersave` too"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Judges what a processor can do; `is_known` if its highest frequency of now is that with the declared turbo.
    fn judge_range(&self, policy: &Policy, is_known: bool) -> Result<(), Trouble> {
        let place = policy.path.rsplit('/').next().unwrap_or_default();
        for (name, wanted) in [("min_khz", self.min_khz), ("max_khz", self.max_khz)] {
            let Some(wanted) = wanted else { continue };
            if let (Some(base), Some(false)) = (policy.base, self.boost)
                && wanted > base
            {
                return Err(Trouble::invalid(format!(
                    "`{name}` is {wanted} kHz, and without turbo {place} does at most its base frequency, {base} kHz"
                )));
            }
            let (Some(lowest), Some(highest)) = (policy.lowest, policy.highest) else { continue };
            if wanted < lowest || (is_known && wanted > highest) {
                return Err(Trouble::invalid(format!(
                    "`{name}` is {wanted} kHz, and {place} can do {lowest} to {highest} kHz"
                )));
            }
        }
        Ok(())
    }

    fn judge_bounds(&self, policy: &Policy) -> Result<(), Trouble> {
        let place = policy.path.rsplit('/').next().unwrap_or_default();
        let crossed = match (self.min_khz, self.max_khz) {
            (Some(min), None) => policy.max.is_some_and(|max| min > max).then_some(("max_khz", policy.max)),
            (None, Some(max)) => policy.min.is_some_and(|min| max < min).then_some(("min_khz", policy.min)),
            _ => None,
        };
        match crossed {
            Some((other, Some(now))) => Err(Trouble::invalid(format!(
                "the bounds of {place} would cross, because the other one is {now} kHz; declare `{other}` too"
            ))),
            _ => Ok(()),
        }
    }

    fn name_owners(&self, state: &State, warnings: &mut Vec<String>) {
        if let Some(profile) = &state.tuned {
            let boost = self.boost.map(|boost| if boost { "1" } else { "0" });
            let no_turbo = self.boost.map(|boost| if boost { "0" } else { "1" });
            let declared = [
                ("governor", self.governor.map(CpuGovernor::as_str)),
                ("energy_performance_preference", self.energy_preference.map(CpuEnergyPreference::as_str)),
                ("boost", boost),
                ("no_turbo", no_turbo),
            ];
            for (name, wanted) in declared {
                let Some(wanted) = wanted else { continue };
                // tuned takes the first of `schedutil|ondemand` that the kernel has.
                let others = profile
                    .sets("cpu", name)
                    .filter(|(_, value)| !value.split('|').any(|word| word == wanted));
                if let Some((path, value)) = others {
                    warnings.push(format!(
                        "tuned's profile {} ({path}) sets {name} to {value} when it starts, after systemd-tmpfiles, and wins; \
                         another profile, or its section [cpu] without it, would end that",
                        profile.name
                    ));
                }
            }
        }
        for service in &state.services {
            warnings.push(format!(
                "{service} starts at boot and sets the frequency of processors itself, after systemd-tmpfiles; one of the two \
                 should go: `service: {{name: {service}, enabled: false, state: stopped}}`"
            ));
        }
        if let Some(module) = &state.module {
            warnings.push(format!(
                "the driver is the module {module}, which may be loaded after systemd-tmpfiles has run: at boot there may be \
                 nothing to set; `modprobe: {{name: {module}, persistent: present}}` loads it early"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, failure, shown};

    const POLICY0: &str = "sys/devices/system/cpu/cpufreq/policy0";

    fn task(value: Value) -> CpuFrequency {
        serde_json::from_value(value).unwrap()
    }

    /// Two policies of intel_pstate in mode active.
    fn bench() -> Bench {
        let bench = Bench::new();
        for policy in 0..2 {
            for (name, text) in [
                ("scaling_driver", "intel_pstate"),
                ("scaling_governor", "powersave"),
                ("scaling_available_governors", "performance powersave"),
                ("energy_performance_preference", "balance_performance"),
                (
                    "energy_performance_available_preferences",
                    "default performance balance_performance balance_power power",
                ),
                ("scaling_min_freq", "800000"),
                ("scaling_max_freq", "2000000"),
                ("cpuinfo_min_freq", "800000"),
                ("cpuinfo_max_freq", "3800000"),
                ("base_frequency", "2000000"),
            ] {
                bench.write(
                    &format!("sys/devices/system/cpu/cpufreq/policy{policy}/{name}"),
                    &format!("{text}\n"),
                );
            }
        }
        bench.write("sys/devices/system/cpu/intel_pstate/status", "active\n");
        bench.write("sys/devices/system/cpu/intel_pstate/no_turbo", "1\n");
        bench
    }

    #[test]
    fn all_is_set_now_and_at_boot_in_an_order_that_the_kernel_takes() {
        let bench = bench();
        let task = task(json!({"governor": "performance", "energy_preference": "performance", "boost": true,
                               "min_khz": 3_000_000, "max_khz": 3_800_000}));
        let before = bench.snapshot();
        let predicted = bench.run(&task, Mode::Predict);
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), before);
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&task, Mode::Predict).status, OpStatus::Ok);
        bench.forget();
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
        assert_eq!(
            shown(&done)[..5],
            [
                "intel_pstate/no_turbo: 1 -> 0 (live)",
                "cpufreq/scaling_governor: powersave -> performance (live)",
                "cpufreq/energy_performance_preference: balance_performance -> performance (live)",
                "cpufreq/scaling_max_freq: 2000000 -> 3800000 (live)",
                "cpufreq/scaling_min_freq: 800000 -> 3000000 (live)",
            ]
        );
        assert_eq!(
            bench.read("etc/tmpfiles.d/gpufleet-cpufreq.conf"),
            "w /sys/devices/system/cpu/intel_pstate/no_turbo - - - - 0\n\
             w /sys/devices/system/cpu/cpufreq/policy*/scaling_governor - - - - performance\n\
             w /sys/devices/system/cpu/cpufreq/policy*/energy_performance_preference - - - - performance\n\
             w /sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq - - - - 3800000\n\
             w /sys/devices/system/cpu/cpufreq/policy*/scaling_min_freq - - - - 3000000\n"
        );
        let settled = bench.snapshot();
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), settled);
    }

    #[test]
    fn the_lower_bound_goes_down_before_the_upper_one() {
        let bench = bench();
        bench.write(&format!("{POLICY0}/scaling_min_freq"), "1800000\n");
        let down = task(json!({"min_khz": 900_000, "max_khz": 1_000_000}));
        let names: Vec<String> = bench.node(|node| {
            let plan = down.plan(&down.observe(node).unwrap()).unwrap();
            let live = plan.steps.iter().filter_map(|step| match step {
                Step::Live { path, .. } => Some(path.rsplit_once("cpufreq/").unwrap().1.to_owned()),
                Step::File { .. } => None,
            });
            live.collect()
        });
        assert_eq!(
            names,
            [
                "policy1/scaling_max_freq",
                "policy0/scaling_min_freq",
                "policy1/scaling_min_freq",
                "policy0/scaling_max_freq"
            ]
        );
        assert_eq!(bench.run(&down, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.run(&down, Mode::Apply).status, OpStatus::Ok);
        let crossed = bench.run(&task(json!({"min_khz": 1_500_000})), Mode::Predict);
        assert!(failure(&crossed).contains("would cross"), "{crossed:?}");
    }

    #[test]
    fn a_new_mode_comes_first_and_the_rest_again_after_it() {
        let bench = bench();
        let task = task(json!({"mode": "passive", "governor": "powersave"}));
        let steps = bench.node(|node| task.plan(&task.observe(node).unwrap()).unwrap().steps);
        let paths: Vec<&str> = steps
            .iter()
            .filter_map(|step| if let Step::Live { path, .. } = step { Some(path.as_str()) } else { None })
            .collect();
        assert_eq!(
            paths,
            [
                "/sys/devices/system/cpu/intel_pstate/status",
                "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
                "/sys/devices/system/cpu/cpufreq/policy1/scaling_governor",
            ]
        );
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn what_the_kernel_would_refuse_is_said_before() {
        let bench = bench();
        let told = |value: Value| {
            bench.forget();
            failure(&bench.run(&task(value), Mode::Predict)).to_owned()
        };
        assert_eq!(
            told(json!({"governor": "schedutil"})),
            "the driver intel_pstate has no governor `schedutil`; it has performance, powersave"
        );
        assert_eq!(
            told(json!({"max_khz": 4_000_000})),
            "`max_khz` is 4000000 kHz, and policy0 can do 800000 to 3800000 kHz"
        );
        assert!(told(json!({"max_khz": 3_000_000, "boost": false})).contains("base frequency, 2000000 kHz"));
        bench.write(&format!("{POLICY0}/scaling_governor"), "performance\n");
        assert!(told(json!({"energy_preference": "power"})).contains("EBUSY"));
    }

    #[test]
    fn a_virtual_machine_with_an_empty_folder_is_not_applicable() {
        let bench = Bench::new();
        std::fs::create_dir_all(bench.path("sys/devices/system/cpu/cpufreq")).unwrap();
        let none = bench.run(&task(json!({"boost": false})), Mode::Apply);
        assert!(
            matches!(&none.status, OpStatus::NotApplicable { reason } if reason.contains("the host's")),
            "{none:?}"
        );
        let other = super::tests::bench();
        std::fs::remove_file(other.path("sys/devices/system/cpu/intel_pstate/no_turbo")).unwrap();
        let none = other.run(&task(json!({"boost": false})), Mode::Apply);
        assert!(
            matches!(&none.status, OpStatus::NotApplicable { reason } if reason.contains("no switch")),
            "{none:?}"
        );
    }

    #[test]
    fn processors_that_are_offline_are_left_out_and_named() {
        let bench = bench();
        // Nothing of it can be read: the kernel answers EBUSY.
        for policy in [2, 3] {
            std::fs::create_dir_all(bench.path(&format!("sys/devices/system/cpu/cpufreq/policy{policy}")))
                .unwrap();
        }
        let task = task(json!({"governor": "performance", "max_khz": 3_000_000}));
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, &done.data["offline"]), (&OpStatus::Changed, &json!("2-3")), "{done:?}");
        assert_eq!(bench.read(&format!("{POLICY0}/scaling_governor")), "performance\n");
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn a_part_that_is_impossible_here_hides_no_other() {
        let without = |name: &str| {
            let bench = bench();
            for path in ["intel_pstate/", "cpufreq/policy0/", "cpufreq/policy1/"] {
                let _ = std::fs::remove_file(bench.path(&format!("sys/devices/system/cpu/{path}{name}")));
            }
            bench
        };
        for (file, task, part, why) in [
            (
                "no_turbo",
                json!({"governor": "performance", "boost": true}),
                "boost",
                "has no switch for turbo",
            ),
            ("status", json!({"governor": "performance", "mode": "active"}), "mode", "has no modes"),
            (
                "energy_performance_preference",
                json!({"governor": "performance", "energy_preference": "performance"}),
                "energy_preference",
                "has no energy preference",
            ),
        ] {
            let bench = without(file);
            let task = self::task(task);
            let done = bench.run(&task, Mode::Apply);
            assert_eq!(done.status, OpStatus::Changed, "{done:?}");
            assert_eq!(bench.read(&format!("{POLICY0}/scaling_governor")), "performance\n");
            let said = |outcome: &gpufleet_protocol::OpOutcome| {
                let told = outcome.warnings.iter().any(|warning| {
                    warning.starts_with(&format!("`{part}` is not applicable here: "))
                        && warning.contains(why)
                });
                assert!(told && outcome.data["not_applicable"] == json!([part]), "{outcome:?}");
            };
            said(&done);
            let again = bench.run(&task, Mode::Apply);
            assert_eq!(again.status, OpStatus::Ok);
            said(&again);
        }
    }

    #[test]
    fn bounds_are_judged_by_what_the_declared_turbo_allows() {
        let bench = bench();
        for policy in 0..2 {
            bench.write(
                &format!("sys/devices/system/cpu/cpufreq/policy{policy}/cpuinfo_max_freq"),
                "2000000\n",
            );
        }
        let fast = task(json!({"boost": true, "max_khz": 3_000_000}));
        let planned = bench.run(&fast, Mode::Predict);
        assert_eq!(planned.status, OpStatus::Changed, "{planned:?}");
        bench.forget();
        // This kernel does not tell more after it either: the bound is not tried.
        let done = bench.run(&fast, Mode::Apply);
        assert_eq!(failure(&done), "`max_khz` is 3000000 kHz, and policy0 can do 800000 to 2000000 kHz");
        assert_eq!(bench.read("sys/devices/system/cpu/intel_pstate/no_turbo"), "0\n");
        assert_eq!(bench.read(&format!("{POLICY0}/scaling_max_freq")), "2000000\n");
        let slow = bench
            .run(&task(json!({"boost": false, "min_khz": 3_000_000, "max_khz": 3_000_000})), Mode::Predict);
        assert!(failure(&slow).contains("without turbo policy0 does at most its base frequency"), "{slow:?}");
    }

    #[test]
    fn others_that_set_it_are_named() {
        let bench = bench();
        bench.write("etc/tuned/active_profile", "throughput-performance\n");
        bench.write("usr/lib/tuned/throughput-performance/tuned.conf", "[cpu]\ngovernor=performance\n");
        bench.write("etc/systemd/system/multi-user.target.wants/tuned.service", "");
        bench.write("etc/systemd/system/graphical.target.wants/power-profiles-daemon.service", "");
        bench.write(
            "usr/lib/tmpfiles.d/z.conf",
            "w /sys/devices/system/cpu/cpufreq/policy[0-9]*/scaling_governor - - - - performance\n",
        );
        bench.write("sys/module/intel_pstate/initstate", "live\n");
        let warnings = bench.run(&task(json!({"governor": "powersave"})), Mode::Predict).warnings;
        let about =
            ["z.conf sets", "tuned's profile", "power-profiles-daemon.service starts", "is the module"];
        assert_eq!(warnings.len(), about.len(), "{warnings:?}");
        for (warning, about) in warnings.iter().zip(about) {
            assert!(warning.contains(about), "{warning}");
        }
        bench.forget();
        let same = bench.run(&task(json!({"governor": "performance"})), Mode::Predict).warnings;
        assert_eq!(same.len(), 2, "{same:?}");
    }
}
