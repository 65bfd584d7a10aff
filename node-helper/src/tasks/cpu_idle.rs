//! `cpu_idle`: how long processors may take to wake up.
//!
//! The bound of a single CPU is a file that needs no holder. That of all CPUs lasts only while somebody holds
//! `/dev/cpu_dma_latency` open, which a service does; it takes four raw bytes, because the kernel reads short texts as
//! binary too (measured with Linux 6.18). States are chosen by their latency, because their numbers differ by driver.

use std::{fs, io::Read};

use gpufleet_protocol::{
    Disruption, FailureKind,
    cpus::CpuList,
    tasks::{CpuIdle, IdleBound},
};
use serde_json::{Map, Value, json};

use super::{
    knobs::{self, Impossible, Knob, Knobs},
    own_unit::{self, OwnUnit},
    sysctl::owners::Profile,
    tmpfiles,
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    world::Effect,
};

const CPU: &str = "/sys/devices/system/cpu";
const DEVICE: &str = "/dev/cpu_dma_latency";

#[derive(Debug)]
pub struct State {
    knobs: Knobs,
    /// What is declared and possible here.
    able: CpuIdle,
    /// Names of what is declared and not possible here, with why.
    impossible: Impossible,
    /// Why the declaration contradicts that of another task.
    conflict: Option<String>,
    service: Option<own_unit::State>,
    /// The least of what all holders of the device ask for; none if it was not asked.
    held: Option<i32>,
    /// What tuned asks for, and by which file.
    tuned: Option<(String, String)>,
}

#[derive(Debug)]
pub enum Step {
    Knob(knobs::Step),
    Service(own_unit::Step),
}

/// Returns the bound that counts now: an open of the device alone asks for nothing.
fn held(node: &Node<'_>) -> Result<i32, Trouble> {
    let path = node.roots.path(DEVICE);
    let mut bytes = [0; 4];
    let read = fs::File::open(&path).and_then(|mut file| file.read_exact(&mut bytes));
    read.map(|()| i32::from_ne_bytes(bytes))
        .map_err(|error| crate::os::files::FileError::new("read", path, error).into())
}

/// The file of a CPU with the bound of that one.
const FILE_OF_CPU: &str = "power/pm_qos_resume_latency_us";

/// Returns a bound as the kernel takes it for a single CPU.
fn word(bound: IdleBound) -> String {
    match bound {
        IdleBound::Unlimited => "0".to_owned(),
        IdleBound::None => "n/a".to_owned(),
        IdleBound::Micros(micros) => micros.to_string(),
    }
}

/// Returns the pattern of all CPUs.
fn line_of_all() -> String {
    format!("{CPU}/cpu[0-9]*/{FILE_OF_CPU}")
}

/// Returns the pattern of one CPU: a pattern, because those are done after all plain paths, and it has to come after that of
/// all CPUs.
fn line_of(cpu: u32) -> String {
    let name = cpu.to_string();
    let (rest, last) = name.split_at(name.len().saturating_sub(1));
    format!("{CPU}/cpu{rest}[{last}]/{FILE_OF_CPU}")
}

fn paths_of(cpus: impl Iterator<Item = u32>) -> Vec<String> {
    cpus.map(|cpu| format!("{CPU}/cpu{cpu}/{FILE_OF_CPU}")).collect()
}

const WAKE_UP: &str = "CPUs wake up within";
const DEEPEST: &str = "no idle states above";

/// Returns the bound of all CPUs and that of idle states that a service of ours keeps, by what it is about.
fn parts_of(about: &str) -> (Option<i32>, Option<u32>) {
    let number = |words: &str| {
        let part = about.split(", ").find_map(|part| part.strip_prefix(words))?;
        Some(part.trim().strip_suffix(" us")?.to_owned())
    };
    let global = number(WAKE_UP).and_then(|text| text.parse().ok().filter(|micros| *micros >= 0));
    (global, number(DEEPEST).and_then(|text| text.parse().ok()))
}

/// Returns the script of the service.
fn script(global: Option<i32>, deepest: Option<u32>) -> String {
    let mut text = String::from("#!/bin/sh\n# Written by gpufleet: `cpu_idle`.\n");
    if let Some(deepest) = deepest {
        text.push_str(&format!(
            "for state in {CPU}/cpu[0-9]*/cpuidle/state[0-9]*; do\n\
             \x20   read -r latency < \"$state/latency\" || continue\n\
             \x20   if [ \"$latency\" -gt {deepest} ]; then echo 1; else echo 0; fi > \"$state/disable\"\n\
             done\n"
        ));
    }
    if let Some(global) = global {
        let bytes: String = global.to_ne_bytes().iter().map(|byte| format!("\\{byte:03o}")).collect();
        text.push_str(&format!(
            "exec 3> {DEVICE} || exit 1\n\
             printf '{bytes}' >&3 || exit 1\n\
             exec sleep infinity\n"
        ));
    }
    text
}

impl Parts for CpuIdle {
    fn service(&self, found: &str) -> Option<OwnUnit> {
        if self.global_latency_us.is_none() && self.deepest_us.is_none() {
            return None;
        }
        let (found_global, found_deepest) = parts_of(found);
        let global = match self.global_latency() {
            Some(IdleBound::Micros(micros)) => Some(micros),
            Some(_) => None,
            // What another task declares stays.
            None => found_global,
        };
        let deepest = self.deepest_us.or(found_deepest);
        let about: Vec<String> = global
            .map(|micros| format!("{WAKE_UP} {micros} us"))
            .into_iter()
            .chain(deepest.map(|deepest| format!("{DEEPEST} {deepest} us")))
            .collect();
        Some(OwnUnit {
            name: Self::UNIT,
            script: (!about.is_empty()).then(|| script(global, deepest)),
            about: about.join(", "),
            stays: global.is_some(),
            after: "systemd-modules-load.service",
            requires: None,
        })
    }

    fn per_cpu(&self, node: &Node<'_>, text: &str) -> Result<Vec<Knob>, Trouble> {
        let Some(wanted) = self.latency().map(word) else { return Ok(Vec::new()) };
        let all: CpuList = knobs::numbered(node, CPU, "cpu")?.into_iter().map(|(cpu, _)| cpu).collect();
        let exceptions = self.exceptions();
        let named = exceptions.iter().map(|(cpus, _)| cpus).chain(&self.cpus);
        if let Some(none) = named.flat_map(CpuList::iter).find(|cpu| !all.contains(*cpu)) {
            return Err(Trouble::invalid(format!("there is no CPU {none} here")));
        }
        let knob = |name: String, cpus: &CpuList, lines: Vec<String>, wanted: String| Knob {
            name,
            paths: paths_of(cpus.iter()),
            lines,
            gone: Vec::new(),
            wanted,
            class: Disruption::Live,
            always: false,
            appears: false,
        };
        let name = format!("cpu/{FILE_OF_CPU}");
        if let Some(cpus) = &self.cpus {
            // The line of all CPUs says the same; another value is a conflict.
            let lines = match tmpfiles::value_in(text, &line_of_all()) {
                Some(_) => vec![line_of_all()],
                None => cpus.iter().map(line_of).collect(),
            };
            return Ok(vec![knob(name, cpus, lines, wanted)]);
        }
        let mut rest = all.clone();
        let mut knobs = Vec::new();
        for (cpus, bound) in &exceptions {
            rest = rest.without(cpus);
            let lines = cpus.iter().map(line_of).collect();
            knobs.push(knob(format!("{name} of CPUs {cpus}"), cpus, lines, word(*bound)));
        }
        let mut first = knob(name, &rest, vec![line_of_all()], wanted);
        let declared = |line: &&str| {
            *line == line_of_all() || knobs.iter().any(|knob| knob.lines.iter().any(|own| own == line))
        };
        let of_cpus =
            tmpfiles::paths(text).filter(|line| line.starts_with(CPU) && line.ends_with(FILE_OF_CPU));
        first.gone = of_cpus.filter(|line| !declared(line)).map(str::to_owned).collect();
        knobs.insert(0, first);
        Ok(knobs)
    }

    /// Two tasks of which each would write what the other one has written.
    fn conflict(&self, text: &str) -> Option<String> {
        let (cpus, bound) = (self.cpus.as_ref()?, self.latency()?);
        let all = tmpfiles::value_in(text, &line_of_all()).filter(|all| *all != word(bound))?;
        let all = match all {
            "0" => "unlimited",
            "n/a" => "none",
            number => number,
        };
        let own = self.latency_us.as_deref().unwrap_or_default();
        Some(format!(
            "{} gives all CPUs `latency_us: {all}`, from a task without `cpus`, and the two would undo each other at every \
             run; write the exception into that task: `cpu_idle: {{latency_us: {all}, except: {{{cpus}: {own}}}}}`",
            Self::FILE
        ))
    }

    /// Returns what is possible here, and the names of the rest with why.
    fn able(&self, node: &Node<'_>) -> Result<(Self, Impossible), Trouble> {
        let (mut able, mut impossible) = (self.clone(), Impossible::default());
        let cpus = knobs::numbered(node, CPU, "cpu")?;
        if able.latency_us.is_some() {
            let mut any = false;
            for (_, cpu) in &cpus {
                any |= knobs::value(node, &format!("{cpu}/{FILE_OF_CPU}"))?.is_some();
            }
            if !any {
                able.forget_latency();
                let why = format!("the running kernel has no {CPU}/cpu*/{FILE_OF_CPU}");
                impossible.push("latency_us", why);
            }
        }
        let asks = matches!(able.global_latency(), Some(IdleBound::Micros(_)));
        if asks && !node.roots.path(DEVICE).exists() {
            able.global_latency_us = None;
            let why = format!("there is no {DEVICE} here, as in containers, and the host's bound counts");
            impossible.push("global_latency_us", why);
        }
        if able.deepest_us.is_some() {
            let mut any = false;
            for (_, cpu) in &cpus {
                any |= !knobs::numbered(node, &format!("{cpu}/cpuidle"), "state")?.is_empty();
            }
            if !any {
                able.deepest_us = None;
                impossible.push("deepest_us", "the idle driver tells no states".to_owned());
            }
        }
        Ok((able, impossible))
    }

    /// States above the bound, and those within it.
    fn states(&self, node: &Node<'_>) -> Result<Vec<Knob>, Trouble> {
        let Some(deepest) = self.deepest_us else { return Ok(Vec::new()) };
        let (mut above, mut within) = (Vec::new(), Vec::new());
        for (_, cpu) in knobs::numbered(node, CPU, "cpu")? {
            for (_, state) in knobs::numbered(node, &format!("{cpu}/cpuidle"), "state")? {
                let path = format!("{state}/latency");
                let latency: u32 = knobs::value(node, &path)?
                    .and_then(|text| text.parse().ok())
                    .ok_or_else(|| Trouble::io(format!("{path} holds no number of microseconds")))?;
                if latency > deepest { &mut above } else { &mut within }.push(format!("{state}/disable"));
            }
        }
        let knob = |name: String, paths, wanted: &str| Knob {
            name,
            paths,
            lines: Vec::new(),
            gone: Vec::new(),
            wanted: wanted.to_owned(),
            class: Disruption::Live,
            always: false,
            appears: false,
        };
        let all = [
            knob(format!("cpuidle states above {deepest} us, disable"), above, "1"),
            knob(format!("cpuidle states up to {deepest} us, disable"), within, "0"),
        ];
        Ok(all.into_iter().filter(|knob| !knob.paths.is_empty()).collect())
    }
}

trait Parts: Sized {
    /// Returns the service; `found` is what the one that is there does.
    fn service(&self, found: &str) -> Option<OwnUnit>;
    fn per_cpu(&self, node: &Node<'_>, text: &str) -> Result<Vec<Knob>, Trouble>;
    fn conflict(&self, text: &str) -> Option<String>;
    fn able(&self, node: &Node<'_>) -> Result<(Self, Impossible), Trouble>;
    fn states(&self, node: &Node<'_>) -> Result<Vec<Knob>, Trouble>;
}

impl NodeKind for CpuIdle {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let driver = knobs::value(node, &format!("{CPU}/cpuidle/current_driver"))?;
        if driver.as_deref().is_none_or(|driver| driver == "none") {
            return Err(Trouble::NotApplicable(
                "no idle driver runs here, as in many virtual machines: how deep processors sleep is the host's".to_owned(),
            ));
        }
        let (able, impossible) = self.able(node)?;
        if able == Self::default() {
            return Err(impossible.trouble());
        }
        let text = node.world.read(&node.roots.path(Self::FILE))?.unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let mut knobs = able.states(node)?;
        knobs.extend(able.per_cpu(node, &text)?);
        let starts = node.world.unit(&format!("{}.service", Self::UNIT)).is_some();
        let held = match able.global_latency() {
            Some(IdleBound::Micros(_)) if !node.world.rebooted() && !starts => Some(held(node)?),
            _ => None,
        };
        let conflict = able.conflict(&text);
        let found = own_unit::about(node, Self::UNIT)?.unwrap_or_default();
        let service = able.service(&found).map(|unit| unit.observe(node)).transpose()?;
        let mut knobs = Knobs::observe(node, Self::FILE, CPU, knobs)?;
        // The service sets them at boot, which no file of tmpfiles.d tells.
        if node.world.rebooted() && service.as_ref().is_some_and(own_unit::State::runs) {
            for seen in knobs.seen.iter_mut().filter(|seen| seen.knob.lines.is_empty()) {
                for (_, now) in &mut seen.live {
                    now.get_or_insert_with(|| seen.knob.wanted.clone());
                }
            }
        }
        let profile = Profile::read(node)?;
        let tuned = profile.as_ref().and_then(|profile| {
            let (path, value) = profile.sets("cpu", "force_latency")?;
            Some((value, path.to_owned()))
        });
        Ok(State { knobs, able, impossible, conflict, service, held, tuned })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        if let Some(why) = &state.conflict {
            return Err(Trouble::invalid(why.clone()));
        }
        let mut plan = Plan::default();
        state.knobs.plan(&mut plan, Step::Knob);
        state.impossible.warn(&mut plan.warnings);
        if let Some(service) = &state.service {
            service.plan(&mut plan, Step::Service);
            let serves = |step: &Step| matches!(step, Step::Service(_));
            if let (Some(IdleBound::Micros(wanted)), Some(held)) = (state.able.global_latency(), state.held)
                && !plan.steps.iter().any(serves)
                && held > wanted
            {
                return Err(Trouble::failed(
                    FailureKind::Unconverged,
                    format!(
                        "{}.service runs, and {DEVICE} reads {held} us instead of {wanted}; its log says why: \
                         journalctl -u {}",
                        Self::UNIT,
                        Self::UNIT
                    ),
                ));
            }
        }
        if let Some((value, path)) = &state.tuned {
            plan.warnings.push(format!(
                "tuned asks for a latency too, force_latency={value} ({path}); the least of all holders counts"
            ));
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let own = plan.steps.iter().filter_map(|s| if let Step::Knob(s) = s { Some(s) } else { None });
        let mut effects = state.knobs.after(own);
        if let Some(service) = &state.service {
            let steps = plan.steps.iter();
            effects.extend(
                service.after(steps.filter_map(|s| if let Step::Service(s) = s { Some(s) } else { None })),
            );
        }
        effects
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            match (step, &state.service) {
                (Step::Knob(step), _) => step.apply(node)?,
                (Step::Service(step), Some(service)) => service.apply(node, step)?,
                (Step::Service(_), None) => {}
            }
        }
        if let (Some(IdleBound::Micros(wanted)), true) = (state.able.global_latency(), !plan.steps.is_empty())
        {
            // The shell of a service opens the device a moment after the service counts as started.
            for _ in 0..50 {
                if held(node)? <= wanted {
                    break;
                }
                node.check_time()?;
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let mut data = Map::new();
        if let Some(held) = state.held {
            data.insert("global_latency_us".to_owned(), json!(held));
        }
        state.impossible.tell(&mut data);
        data
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, failure, shown};

    /// Runs the scripts of services as systemd would, and knows only what this kind asks.
    const SYSTEMCTL: &str = r#"#!/bin/sh
root=${0%/usr/bin/systemctl}
for last; do :; done
[ "$1" = --no-ask-password ] && shift
case $1 in
show)
    state=inactive; [ -e "$root/active" ] && state=active
    file=disabled; [ -e "$root/enabled" ] && file=enabled
    printf 'Id=%s\nLoadState=loaded\nActiveState=%s\nUnitFileState=%s\nMainPID=0\n' "$last" $state $file
    [ ! -e "$root/entered" ] || echo "ActiveEnterTimestampMonotonic=$(cat "$root/entered")" ;;
enable) : > "$root/enabled" ;;
disable) rm -f "$root/enabled" ;;
stop) rm -f "$root/active" ;;
restart)
    : > "$root/active"
    rm -f "$root/entered"
    sed -e "s|/sys/|$root/sys/|g; s|/dev/|$root/dev/|g; s|exec sleep infinity||" "$root/etc/gpufleet/gpufleet-cpu-idle.sh" | sh ;;
daemon-reload) echo reload >> "$root/log" ;;
*) exit 1 ;;
esac
"#;

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.script("usr/bin/systemctl", SYSTEMCTL);
        bench.write("sys/devices/system/cpu/cpuidle/current_driver", "intel_idle\n");
        for cpu in 0..12 {
            let folder = format!("sys/devices/system/cpu/cpu{cpu}");
            bench.write(&format!("{folder}/power/pm_qos_resume_latency_us"), "0\n");
            for (state, latency) in [(0, 0), (1, 2), (2, 133)] {
                bench.write(&format!("{folder}/cpuidle/state{state}/latency"), &format!("{latency}\n"));
                bench.write(&format!("{folder}/cpuidle/state{state}/disable"), "0\n");
            }
        }
        std::fs::create_dir_all(bench.path("dev")).unwrap();
        std::fs::write(bench.path("dev/cpu_dma_latency"), 2_000_000_000_i32.to_ne_bytes()).unwrap();
        bench
    }

    fn task(value: Value) -> CpuIdle {
        serde_json::from_value(value).unwrap()
    }

    fn converges(bench: &Bench, task: &CpuIdle) -> Vec<String> {
        let before = bench.snapshot();
        let predicted = bench.run(task, Mode::Predict);
        assert_eq!(bench.run(task, Mode::Predict).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), before);
        bench.activate(Disruption::Reboot);
        let booted = bench.run(task, Mode::Predict);
        assert_eq!(booted.status, OpStatus::Ok, "{booted:?}");
        bench.forget();
        let done = bench.run(task, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
        let settled = bench.snapshot();
        assert_eq!(bench.run(task, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), settled);
        shown(&done)
    }

    #[test]
    fn single_cpus_need_no_holder() {
        let bench = bench();
        let file = "cpu/power/pm_qos_resume_latency_us";
        assert_eq!(
            converges(&bench, &task(json!({"latency_us": 20}))),
            [format!("{file}: 0 -> 20 (live)"), format!("{file} at boot: nothing -> 20 (live)")]
        );
        let few = task(json!({"latency_us": 20, "except": {"9-10": "none"}}));
        assert_eq!(
            converges(&bench, &few),
            [
                format!("{file} of CPUs 9-10: 20 -> n/a (live)"),
                format!("{file} of CPUs 9-10 at boot: nothing -> n/a (live)")
            ]
        );
        assert_eq!(
            bench.read("etc/tmpfiles.d/gpufleet-cpuidle.conf"),
            "w /sys/devices/system/cpu/cpu[0-9]*/power/pm_qos_resume_latency_us - - - - 20\n\
             w /sys/devices/system/cpu/cpu[9]/power/pm_qos_resume_latency_us - - - - n/a\n\
             w /sys/devices/system/cpu/cpu1[0]/power/pm_qos_resume_latency_us - - - - n/a\n"
        );
        // An exception that is no longer declared goes with its lines.
        assert_eq!(
            converges(&bench, &task(json!({"latency_us": 20, "except": {"9": "none"}}))),
            [
                format!("{file}: 20 (10), n/a (1) -> 20 (live)"),
                format!("{file} at boot: n/a -> not set (live)")
            ]
        );
        let none = bench.run(&task(json!({"latency_us": 5, "cpus": "99"})), Mode::Predict);
        assert_eq!(failure(&none), "there is no CPU 99 here");
        let none = bench.run(&task(json!({"latency_us": 5, "except": {"99": "none"}})), Mode::Predict);
        assert_eq!(failure(&none), "there is no CPU 99 here");
    }

    #[test]
    fn two_tasks_do_not_undo_each_other() {
        let bench = bench();
        let all = task(json!({"latency_us": 20}));
        let some = task(json!({"latency_us": "none", "cpus": "9-10"}));
        converges(&bench, &some);
        assert_eq!(bench.run(&all, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(
            bench.read("etc/tmpfiles.d/gpufleet-cpuidle.conf"),
            "w /sys/devices/system/cpu/cpu[0-9]*/power/pm_qos_resume_latency_us - - - - 20\n"
        );
        let before = bench.snapshot();
        for mode in [Mode::Predict, Mode::Apply] {
            let refused = bench.run(&some, mode);
            assert_eq!(
                failure(&refused),
                "/etc/tmpfiles.d/gpufleet-cpuidle.conf gives all CPUs `latency_us: 20`, from a task without `cpus`, and the two \
                 would undo each other at every run; write the exception into that task: `cpu_idle: {latency_us: 20, except: \
                 {9-10: none}}`"
            );
        }
        assert_eq!(bench.snapshot(), before);
        // The same is no contradiction, and nothing to write.
        let same = task(json!({"latency_us": 20, "cpus": "9-10"}));
        assert_eq!(bench.run(&same, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.run(&all, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn a_service_of_a_killed_run_does_not_go_on_with_the_old_value() {
        let bench = bench();
        let us = |latency: u32| task(json!({"global_latency_us": latency}));
        converges(&bench, &us(20));
        bench.killed(&us(100), Disruption::Live, "systemctl daemon-reload");
        assert_eq!(std::fs::read(bench.path("dev/cpu_dma_latency")).unwrap(), 20_i32.to_ne_bytes());
        let again = bench.run(&us(100), Mode::Apply);
        assert_eq!(again.status, OpStatus::Changed, "{again:?}");
        assert_eq!(std::fs::read(bench.path("dev/cpu_dma_latency")).unwrap(), 100_i32.to_ne_bytes());
        // Somebody has written the files, and the service runs since before that.
        bench.write("proc/stat", "btime 1000000000\n");
        bench.write("entered", "5000000");
        let older = bench.run(&us(100), Mode::Predict);
        assert_eq!(
            shown(&older),
            ["gpufleet-cpu-idle.service settings: older than its files -> as in its files (live)"]
        );
        assert_eq!(bench.run(&us(100), Mode::Predict).status, OpStatus::Ok);
        assert_eq!(bench.run(&us(100), Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.run(&us(100), Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn a_part_that_is_impossible_here_hides_no_other() {
        let bench = bench();
        std::fs::remove_file(bench.path("dev/cpu_dma_latency")).unwrap();
        let both = task(json!({"global_latency_us": 5, "latency_us": 20, "deepest_us": 50}));
        let done = bench.run(&both, Mode::Apply);
        assert_eq!(done.status, OpStatus::Changed, "{done:?}");
        assert_eq!(bench.read("sys/devices/system/cpu/cpu7/cpuidle/state2/disable"), "1\n");
        assert_eq!(bench.read("sys/devices/system/cpu/cpu7/power/pm_qos_resume_latency_us"), "20\n");
        assert!(!bench.path("dev/cpu_dma_latency").exists());
        let again = bench.run(&both, Mode::Apply);
        assert_eq!(
            (&again.status, &again.data["not_applicable"]),
            (&OpStatus::Ok, &json!(["global_latency_us"]))
        );
        assert!(
            again.warnings[0].starts_with("`global_latency_us` is not applicable here: there is no"),
            "{again:?}"
        );
        let bench = super::tests::bench();
        for cpu in 0..12 {
            std::fs::remove_dir_all(bench.path(&format!("sys/devices/system/cpu/cpu{cpu}/power"))).unwrap();
        }
        let done = bench.run(&both, Mode::Apply);
        assert_eq!(
            (&done.status, &done.data["not_applicable"]),
            (&OpStatus::Changed, &json!(["latency_us"])),
            "{done:?}"
        );
        assert_eq!(std::fs::read(bench.path("dev/cpu_dma_latency")).unwrap(), 5_i32.to_ne_bytes());
    }

    #[test]
    fn a_service_holds_four_bytes_and_picks_states_by_latency() {
        let bench = bench();
        let both = task(json!({"global_latency_us": 100, "deepest_us": 50}));
        assert_eq!(
            converges(&bench, &both),
            [
                "cpuidle states above 50 us, disable: 0 -> 1 (live)",
                "gpufleet-cpu-idle.service at boot: without a unit file -> CPUs wake up within 100 us, no idle states above 50 us (live)",
                "gpufleet-cpu-idle.service: stopped -> started (live)",
            ]
        );
        assert_eq!(std::fs::read(bench.path("dev/cpu_dma_latency")).unwrap(), 100_i32.to_ne_bytes());
        assert_eq!(bench.read("sys/devices/system/cpu/cpu7/cpuidle/state2/disable"), "1\n");
        assert_eq!(bench.read("sys/devices/system/cpu/cpu7/cpuidle/state1/disable"), "0\n");
        assert_eq!(bench.read("log"), "reload\n", "after the files are written, always");
        // Another holder is weaker, and ours is gone although its service is active.
        std::fs::write(bench.path("dev/cpu_dma_latency"), 500_i32.to_ne_bytes()).unwrap();
        let lost = bench.run(&both, Mode::Predict);
        assert!(failure(&lost).contains("reads 500 us instead of 100"), "{lost:?}");
    }

    #[test]
    fn a_task_leaves_the_part_of_another_one_in_the_service() {
        let bench = bench();
        let (all, deepest) = (task(json!({"global_latency_us": 100})), task(json!({"deepest_us": 50})));
        converges(&bench, &all);
        assert_eq!(
            converges(&bench, &deepest),
            [
                "cpuidle states above 50 us, disable: 0 -> 1 (live)",
                "gpufleet-cpu-idle.service at boot: CPUs wake up within 100 us -> CPUs wake up within 100 us, no idle states above 50 us (live)",
            ]
        );
        assert_eq!(std::fs::read(bench.path("dev/cpu_dma_latency")).unwrap(), 100_i32.to_ne_bytes());
        for again in [&all, &deepest] {
            assert_eq!(bench.run(again, Mode::Apply).status, OpStatus::Ok);
        }
        let lifted = task(json!({"global_latency_us": "unlimited"}));
        converges(&bench, &lifted);
        assert!(
            bench.read("etc/gpufleet/gpufleet-cpu-idle.sh").contains("-gt 50")
                && bench.path("active").exists()
        );
        assert!(!bench.read("etc/gpufleet/gpufleet-cpu-idle.sh").contains("exec 3>"));
        let alone = super::tests::bench();
        converges(&alone, &all);
        converges(&alone, &lifted);
        assert!(!alone.path("etc/systemd/system/gpufleet-cpu-idle.service").exists());
        assert!(!alone.path("active").exists());
    }

    #[test]
    fn a_virtual_machine_without_an_idle_driver_is_not_applicable() {
        let bench = bench();
        bench.write("sys/devices/system/cpu/cpuidle/current_driver", "none\n");
        let none = bench.run(&task(json!({"latency_us": 5})), Mode::Apply);
        assert!(matches!(none.status, OpStatus::NotApplicable { .. }), "{none:?}");
        let other = super::tests::bench();
        std::fs::remove_file(other.path("dev/cpu_dma_latency")).unwrap();
        let none = other.run(&task(json!({"global_latency_us": 5})), Mode::Apply);
        assert!(matches!(&none.status, OpStatus::NotApplicable { reason } if reason.contains("containers")));
    }
}
