//! `tuned`: its profile, or that it does not run.
//!
//! The profile is switched by tuned's own program, which waits until it is applied; whether it is in force is what
//! `tuned-adm verify` says. That is told and no difference: what other tasks and sysctl.d set may win over the profile, and
//! applying it again would only begin a fight.

use std::{path::PathBuf, time::Duration};

use gpufleet_protocol::{
    Awaiting, Change, Disruption, Property, Subject,
    change::Value as Typed,
    tasks::{Service, ServiceState, Tuned, TunedState},
};
use serde_json::{Map, Value, json};

use super::{edits, edits::Present, nearest::nearest, service, sysctl::owners::Profile, tool};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{files::Ownership, units},
    world::{Content, Effect, Entry, Owned},
};

const UNIT: &str = "tuned.service";
const MODE: &str = "/etc/tuned/profile_mode";
const WORDS: &str = "/etc/tuned/bootcmdline";
/// Words of the kernel command line that are of a former profile, until the boot that ends both them and this note.
const NOTE: &str = "/run/gpufleet/tuned-words";
const BRINGS: &str = "the package `tuned` brings it";
/// Time limit of `tuned-adm verify`, which looks at every setting.
const VERIFY: Duration = Duration::from_secs(90);
/// Units that systemd stops for tuned. Source: tuned.service, `Conflicts=`.
const RIVALS: [&str; 4] =
    ["auto-cpufreq.service", "cpupower.service", "power-profiles-daemon.service", "tlp.service"];
/// What other kinds set, and the sections of a profile that set the same.
const OURS: [(&str, &[&str]); 7] = [
    ("/etc/sysctl.d/90-gpufleet.conf", &["sysctl", "vm"]),
    ("/etc/tmpfiles.d/gpufleet-thp.conf", &["vm"]),
    ("/etc/tmpfiles.d/gpufleet-hugepages.conf", &["sysctl", "vm"]),
    ("/etc/tmpfiles.d/gpufleet-cpufreq.conf", &["cpu"]),
    ("/etc/tmpfiles.d/gpufleet-cpuidle.conf", &["cpu"]),
    ("/etc/systemd/system/gpufleet-cpu-idle.service", &["cpu"]),
    ("/etc/systemd/system/gpufleet-irq-affinity.service", &["irq", "irqbalance", "scheduler"]),
];

#[derive(Debug)]
pub struct State {
    /// Without tuned; that is as declared with `off`.
    tuned: Option<Found>,
    words: Words,
}

/// Words of profiles for the kernel command line.
#[derive(Debug)]
struct Words {
    note: Present,
    /// Where tuned keeps those of its profile.
    place: PathBuf,
    /// Those of the profile that the running kernel was booted with.
    in_force: Vec<String>,
    /// Those of the profile that it was not booted with.
    pending: Vec<String>,
    /// Those of a former profile that it was booted with.
    former: Vec<String>,
}

#[derive(Debug)]
struct Found {
    program: PathBuf,
    /// Where its files are on the node.
    files: [PathBuf; 2],
    service: Service,
    unit: service::State,
    /// Names of the profiles, and whether a person chose them.
    active: Vec<String>,
    is_manual: bool,
    wanted: Vec<String>,
    /// The sections of the declared profile, and the files of ours that set the same.
    sections: Vec<String>,
    ours: Vec<&'static str>,
    has_words: bool,
    rivals: Vec<&'static str>,
    /// What `tuned-adm verify` says; none if it was not asked.
    verified: Option<Result<(), String>>,
}

#[derive(Debug)]
pub enum Step {
    Note(edits::Step),
    Profile(Vec<String>),
    Auto(Vec<String>),
    Unit(service::Step),
}

fn text(node: &Node<'_>, path: &str) -> Result<String, Trouble> {
    let bytes = node.world.read(&node.roots.path(path))?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

impl Words {
    fn read(node: &Node<'_>) -> Result<Self, Trouble> {
        let note = Present::read(node, NOTE)?;
        let found = text(node, WORDS)?;
        let line = found.lines().rev().find_map(|line| line.trim().strip_prefix("TUNED_BOOT_CMDLINE="));
        let of_profile = words(line.unwrap_or_default().trim_matches(['"', '\'']));
        let booted = match node.world.rebooted() {
            true => of_profile.clone(),
            false => words(&text(node, "/proc/cmdline")?),
        };
        let noted = words(note.text()?).into_iter();
        let former = noted.filter(|word| booted.contains(word) && !of_profile.contains(word)).collect();
        let (in_force, pending) = of_profile.into_iter().partition(|word| booted.contains(word));
        Ok(Self { note, place: node.roots.path(WORDS), in_force, pending, former })
    }

    /// Notes those that a switch may take away, before it does.
    fn plan(&self, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        let known = words(self.note.text()?);
        if self.in_force.iter().all(|word| known.contains(word)) {
            return Ok(());
        }
        let new = self.in_force.iter().filter(|word| !known.contains(word));
        let all: String = known.iter().chain(new).map(|word| format!("{word}\n")).collect();
        plan.steps.extend(self.note.written(all, Ownership::default()).map(Step::Note));
        Ok(())
    }
}

fn awaiting(words: &[&String]) -> Awaiting {
    let words: Vec<&str> = words.iter().map(|word| word.as_str()).collect();
    let reason = format!("the running kernel has words of tuned's former profile: {}", words.join(" "));
    Awaiting { activation: Disruption::Reboot, reason }
}

fn recommended(node: &Node<'_>, program: &PathBuf) -> Result<Vec<String>, Trouble> {
    let done = tool::ask(node, &tool::run(node, program).arg("recommend"))?;
    let said = done.stdout();
    let name = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.+".contains(c);
    if !done.exit.success() || name.is_empty() || !name.chars().all(legal) {
        return Err(Trouble::io(done.complaint("tuned-adm recommend")));
    }
    Ok(vec![name.to_owned()])
}

/// Asks tuned whether the profile is in force.
fn verify(node: &Node<'_>, program: &PathBuf) -> Result<Result<(), String>, Trouble> {
    let run = tool::run(node, program).arg("verify");
    let done = run.finish(&node.deadline.within(VERIFY))?;
    if done.exit.success() {
        return Ok(Ok(()));
    }
    let said = done.stdout();
    let line = said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it does not say why");
    Ok(Err(line.chars().take(200).collect()))
}

/// Refuses a profile that the node does not have.
fn check_names(node: &Node<'_>, wanted: &[String]) -> Result<(), Trouble> {
    for name in wanted {
        if Profile::exists(node, name)? {
            continue;
        }
        let known = Profile::names(node)?;
        let hint =
            nearest(name, known.iter().map(String::as_str)).map(|near| format!("; did you mean `{near}`?"));
        return Err(Trouble::missing(format!(
            "tuned has no profile `{name}` on this node{}",
            hint.unwrap_or_default()
        )));
    }
    Ok(())
}

impl NodeKind for Tuned {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let is_on = self.state == TunedState::On;
        let Some(program) = node.roots.tool("tuned-adm") else {
            return match is_on {
                true => {
                    Err(Trouble::missing(format!("there is no program `tuned-adm` on this node; {BRINGS}")))
                }
                // What an earlier run has noted is true without the package too.
                false => Ok(State { tuned: None, words: Words::read(node)? }),
            };
        };
        let (state, enabled) = match is_on {
            true => (ServiceState::Started, true),
            false => (ServiceState::Stopped, false),
        };
        let service = Service { state: Some(state), enabled: Some(enabled), ..Service::of(UNIT) };
        let unit = service.observe(node)?;
        let active = words(&text(node, Self::ACTIVE)?);
        let mode = text(node, MODE)?;
        // Without a mode, a profile that is set was set by a person. Source: tuned, `get_active_profile`.
        let is_manual = match mode.trim() {
            "" => !active.is_empty(),
            word => word == "manual",
        };
        let wanted = match (is_on, self.recommended) {
            (false, _) => Vec::new(),
            (true, true) => recommended(node, &program)?,
            (true, false) => self.profiles().iter().map(|name| (*name).to_owned()).collect(),
        };
        check_names(node, &wanted)?;
        let profile = Profile::named(node, &wanted)?;
        let sections = profile.sections();
        let ours = OURS.iter().filter(|(path, of)| {
            node.roots.path(path).exists()
                && (!is_on || sections.iter().any(|section| of.contains(&section.as_str())))
        });
        let ours = ours.map(|(path, _)| *path).collect();
        let runs = service.plan(&unit)?.changes.is_empty();
        let is_set = is_on && active == wanted && is_manual != self.recommended;
        let assumes = node.world.predicts() && (node.world.rebooted() || node.world.unit(UNIT).is_some());
        let verified =
            match runs && is_set && !assumes && !node.world.assumes_below(&node.roots.path("/etc/tuned")) {
                true => Some(verify(node, &program)?),
                false => None,
            };
        let rivals = match (is_on, node.roots.tool("systemctl")) {
            (true, Some(systemctl)) => {
                let shown = units::show(&systemctl, &RIVALS, node.deadline)?;
                let is_up = |name: &&str| shown.get(*name).is_some_and(|unit| unit.active || unit.enabled);
                RIVALS.into_iter().filter(|name| is_up(name)).collect()
            }
            _ => Vec::new(),
        };
        let has_words = profile.keys("bootloader").iter().any(|key| key.starts_with("cmdline"));
        let found = Found {
            program,
            files: [Self::ACTIVE, MODE].map(|path| node.roots.path(path)),
            service,
            unit,
            active,
            is_manual,
            wanted,
            sections,
            ours,
            has_words,
            rivals,
            verified,
        };
        Ok(State { tuned: Some(found), words: Words::read(node)? })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let Some(found) = &state.tuned else {
            if !state.words.former.is_empty() {
                plan.awaiting.push(awaiting(&state.words.former.iter().collect::<Vec<_>>()));
            }
            return Ok(plan);
        };
        let is_on = self.state == TunedState::On;
        if is_on {
            self.plan_profile(found, &mut plan);
        }
        let switches = !plan.steps.is_empty();
        let mut of_unit = found.service.plan(&found.unit)?;
        let acts = switches || !of_unit.steps.is_empty();
        plan.changes.append(&mut of_unit.changes);
        plan.warnings.append(&mut of_unit.warnings);
        plan.steps.extend(of_unit.steps.into_iter().map(Step::Unit));
        // A switch takes the words of the former profile off the command line, and so does a stop.
        let ends = switches || (acts && !is_on);
        if ends {
            let mut noted = Plan::default();
            state.words.plan(&mut noted)?;
            noted.steps.append(&mut plan.steps);
            plan.steps = noted.steps;
        }
        let leaves = if ends { state.words.in_force.as_slice() } else { &[] };
        let leaves: Vec<&String> = state.words.former.iter().chain(leaves).collect();
        if acts && !found.ours.is_empty() {
            plan.warnings.push(format!(
                "tuned puts back what it found first, and sets what its profile has: the values of {} may be lost until their tasks run \
                 again; let `tuned` come before them",
                found.ours.join(", ")
            ));
        }
        if acts && !found.rivals.is_empty() {
            plan.warnings.push(format!(
                "tuned and {} exclude each other: systemd stops them for it",
                found.rivals.join(", ")
            ));
        }
        if !leaves.is_empty() {
            plan.awaiting.push(awaiting(&leaves));
        }
        if switches && found.has_words {
            let reason =
                format!("the profile {} has words for the kernel command line", found.wanted.join(" "));
            plan.awaiting.push(Awaiting { activation: Disruption::Reboot, reason });
        } else if is_on && !state.words.pending.is_empty() {
            let pending = state.words.pending.join(" ");
            let reason = format!("the running kernel lacks words of tuned's profile: {pending}");
            plan.awaiting.push(Awaiting { activation: Disruption::Reboot, reason });
        }
        if let Some(Err(said)) = &found.verified {
            plan.warnings.push(format!(
                "tuned-adm verify: {said} /var/log/tuned/tuned.log on the node names them; sysctl.d and other tasks may have set them"
            ));
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let Some(found) = &state.tuned else { return Vec::new() };
        let owned = Owned { uid: 0, gid: 0, mode: 0o644 };
        let file = |path: &PathBuf, text: &str| Effect::Path {
            path: path.clone(),
            entry: Entry::File { owned, content: Content::Known(format!("{text}\n").as_bytes().into()) },
        };
        let [active, mode] = &found.files;
        let mut effects = Vec::new();
        let mut own = Vec::new();
        for step in &plan.steps {
            match step {
                // The words of the new profile are known in the run.
                Step::Note(step) if !found.has_words => {
                    effects.extend([step.effect(), file(&state.words.place, "TUNED_BOOT_CMDLINE=\"\"")]);
                }
                Step::Note(step) => effects.push(step.effect()),
                Step::Profile(names) => {
                    effects.extend([file(active, &names.join(" ")), file(mode, "manual")])
                }
                Step::Auto(names) => effects.extend([file(active, &names.join(" ")), file(mode, "auto")]),
                Step::Unit(step) => own.push(*step),
            }
        }
        effects.extend(found.service.after(&found.unit, &Plan { steps: own, ..Plan::default() }));
        effects
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let Some(found) = &state.tuned else { return Ok(Map::new()) };
        for step in &plan.steps {
            node.check_time()?;
            match step {
                Step::Note(step) => step.apply()?,
                Step::Profile(names) => {
                    let run = tool::run(node, &found.program).arg("profile").args(names);
                    tool::act(node, &run, &format!("tuned-adm profile {}", names.join(" ")))?;
                }
                Step::Auto(_) => {
                    let run = tool::run(node, &found.program).arg("auto_profile");
                    tool::act(node, &run, "tuned-adm auto_profile")?;
                }
                Step::Unit(step) => {
                    let plan = Plan { steps: vec![*step], ..Plan::default() };
                    found.service.apply(node, &found.unit, &plan)?;
                }
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let Some(found) = &state.tuned else { return Map::new() };
        let data = [
            ("active_profile", json!(found.active.join(" "))),
            ("profile_mode", json!(if found.is_manual { "manual" } else { "auto" })),
            ("owns", json!(found.sections)),
            ("verified", json!(found.verified.as_ref().map(Result::is_ok))),
        ];
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

trait Switches {
    fn plan_profile(&self, found: &Found, plan: &mut Plan<Step>);
}

impl Switches for Tuned {
    fn plan_profile(&self, found: &Found, plan: &mut Plan<Step>) {
        let change = |property: &'static str, from: Typed, to: Typed| {
            Change::new(Subject::unit(UNIT), Property::new(property), from, to, Disruption::Live)
        };
        let known = plan.changes.len();
        if found.active != found.wanted {
            let from =
                if found.active.is_empty() { Typed::Absent } else { Typed::text(found.active.join(" ")) };
            plan.changes.push(change("profile", from, Typed::text(found.wanted.join(" "))));
        }
        if found.is_manual == self.recommended {
            let word = |manual: bool| if manual { "manual" } else { "auto" };
            plan.changes.push(change(
                "profile mode",
                word(found.is_manual).into(),
                word(!self.recommended).into(),
            ));
        }
        if plan.changes.len() > known {
            plan.steps.push(match self.recommended {
                true => Step::Auto(found.wanted.clone()),
                false => Step::Profile(found.wanted.clone()),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, failure, shown};

    const SYSTEMCTL: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
while case "$1" in --no-*) true;; *) false;; esac; do shift; done
for last; do :; done
[ "$1" = show ] || echo "$1 $last" >> $d/log
case "$1" in
show)
  case "$*" in
  *tlp.service*) printf 'Id=tlp.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\nMainPID=1\n';;
  *) printf 'Id=tuned.service\nNames=tuned.service\nLoadState=loaded\nActiveState=%s\nUnitFileState=%s\nType=dbus\nMainPID=9\n' $(cat $d/unit);;
  esac;;
start) echo "active $(cut -d' ' -f2 $d/unit)" > $d/unit;;
stop) echo "inactive $(cut -d' ' -f2 $d/unit)" > $d/unit; echo 'TUNED_BOOT_CMDLINE=""' > $d/etc/tuned/bootcmdline;;
enable) echo "$(cut -d' ' -f1 $d/unit) enabled" > $d/unit;;
disable) echo "$(cut -d' ' -f1 $d/unit) disabled" > $d/unit;;
esac
exit 0
"#;

    const TUNED: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
echo "tuned-adm $*" >> $d/log
case "$1" in
profile) shift; echo "$*" > $d/etc/tuned/active_profile; echo manual > $d/etc/tuned/profile_mode
  echo 'TUNED_BOOT_CMDLINE=""' > $d/etc/tuned/bootcmdline
  grep -q bootloader $d/usr/lib/tuned/$1/tuned.conf && echo 'TUNED_BOOT_CMDLINE="skew_tick=1 nohz=on"' > $d/etc/tuned/bootcmdline;;
auto_profile) echo virtual-guest > $d/etc/tuned/active_profile; echo auto > $d/etc/tuned/profile_mode;;
recommend) echo virtual-guest;;
verify) [ -e $d/bad ] && { echo 'Verification failed, current system settings differ from the preset profile.'; exit 1; };;
esac
exit 0
"#;

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.script("usr/bin/systemctl", SYSTEMCTL);
        bench.script("usr/sbin/tuned-adm", TUNED);
        bench.write("unit", "active enabled\n");
        bench.write("log", "");
        bench.write("etc/tuned/active_profile", "balanced\n");
        bench.write("etc/tuned/profile_mode", "auto\n");
        bench.write("proc/cmdline", "quiet\n");
        bench.write("usr/lib/tuned/balanced/tuned.conf", "[cpu]\ngovernor=schedutil\n");
        bench.write(
            "usr/lib/tuned/virtual-guest/tuned.conf",
            "[main]\ninclude=balanced\n[vm]\ndirty_ratio=30\n",
        );
        bench.write(
            "usr/lib/tuned/realtime/tuned.conf",
            "[sysctl]\nkernel.sched_rt_runtime_us=-1\n[bootloader]\ncmdline_realtime=+skew_tick=1\n",
        );
        bench
    }

    fn task(value: Value) -> Tuned {
        serde_json::from_value(value).unwrap()
    }

    fn quiet(bench: &Bench) -> String {
        bench
            .read("log")
            .lines()
            .filter(|line| !line.contains("verify") && !line.contains("recommend"))
            .fold(String::new(), |all, line| all + line + "\n")
    }

    #[test]
    fn a_profile_is_switched_once_and_verified() {
        let bench = bench();
        bench.write("etc/tmpfiles.d/gpufleet-cpufreq.conf", "");
        bench.write("etc/tmpfiles.d/gpufleet-smt.conf", "");
        let guest = task(json!({"profile": "virtual-guest"}));
        let predicted = bench.run(&guest, Mode::Predict);
        assert_eq!(bench.run(&guest, Mode::Predict).status, OpStatus::Ok);
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&guest, Mode::Predict).status, OpStatus::Ok);
        bench.forget();
        assert_eq!(bench.read("log"), "");
        assert_eq!(
            shown(&predicted),
            [
                "tuned.service profile: balanced -> virtual-guest (live)",
                "tuned.service profile mode: auto -> manual (live)"
            ]
        );
        let done = bench.run(&guest, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
        assert!(
            done.warnings.iter().any(|line| line.contains("gpufleet-cpufreq.conf") && !line.contains("smt")),
            "{done:?}"
        );
        assert!(done.warnings.iter().any(|line| line.contains("tlp.service")), "{done:?}");
        assert_eq!((&done.data["owns"], &done.data["verified"]), (&json!(["cpu", "vm"]), &json!(true)));
        bench.write("bad", "");
        let again = bench.run(&guest, Mode::Apply);
        assert_eq!((&again.status, &again.data["verified"]), (&OpStatus::Ok, &json!(false)));
        assert!(again.warnings[0].starts_with("tuned-adm verify: Verification failed"), "{again:?}");
        assert_eq!(quiet(&bench), "tuned-adm profile virtual-guest\n");
    }

    #[test]
    fn words_of_the_command_line_await_a_reboot() {
        let bench = bench();
        let realtime = task(json!({"profile": "realtime"}));
        assert_eq!(bench.run(&realtime, Mode::Predict).awaiting.len(), 1);
        bench.forget();
        let done = bench.run(&realtime, Mode::Apply);
        assert_eq!(
            done.awaiting[0].reason,
            "the running kernel lacks words of tuned's profile: skew_tick=1 nohz=on"
        );
        bench.write("proc/cmdline", "quiet skew_tick=1 nohz=on\n");
        let booted = bench.run(&realtime, Mode::Apply);
        assert_eq!((booted.status, booted.awaiting), (OpStatus::Ok, Vec::new()));
    }

    #[test]
    fn words_of_the_former_profile_await_a_reboot() {
        const WAITS: &str = "the running kernel has words of tuned's former profile: skew_tick=1 nohz=on";
        for next in [json!({"profile": "balanced"}), json!({"state": "off"})] {
            let bench = bench();
            assert_eq!(
                bench.run(&task(json!({"profile": "realtime"})), Mode::Apply).status,
                OpStatus::Changed
            );
            bench.write("proc/cmdline", "quiet skew_tick=1 nohz=on\n");
            let next = task(next);
            let waits = |outcome: &gpufleet_protocol::OpOutcome| -> Vec<String> {
                outcome.awaiting.iter().map(|one| one.reason.clone()).collect()
            };
            let predicted = bench.run(&next, Mode::Predict);
            assert_eq!(waits(&predicted), [WAITS]);
            let again = bench.run(&next, Mode::Predict);
            assert_eq!((&again.status, waits(&again)), (&OpStatus::Ok, vec![WAITS.to_owned()]));
            bench.activate(Disruption::Reboot);
            assert_eq!(waits(&bench.run(&next, Mode::Predict)), [""; 0]);
            bench.forget();
            let done = bench.run(&next, Mode::Apply);
            assert_eq!(
                (&done.changes, waits(&done)),
                (&predicted.changes, vec![WAITS.to_owned()]),
                "{done:?}"
            );
            let settled = (quiet(&bench), bench.read("run/gpufleet/tuned-words"));
            let again = bench.run(&next, Mode::Apply);
            assert_eq!((&again.status, waits(&again)), (&OpStatus::Ok, vec![WAITS.to_owned()]));
            assert_eq!((quiet(&bench), bench.read("run/gpufleet/tuned-words")), settled);
            // The boot, which ends the words and the note.
            bench.write("proc/cmdline", "quiet\n");
            std::fs::remove_file(bench.path("run/gpufleet/tuned-words")).unwrap();
            assert_eq!(waits(&bench.run(&next, Mode::Apply)), [""; 0]);
        }
    }

    #[test]
    fn it_chooses_by_itself_or_is_off() {
        let bench = bench();
        bench.write("unit", "inactive disabled\n");
        let chosen = task(json!({"recommended": true}));
        let done = bench.run(&chosen, Mode::Apply);
        assert_eq!(
            shown(&done),
            [
                "tuned.service profile: balanced -> virtual-guest (live)",
                "tuned.service at boot: disabled -> enabled (live)",
                "tuned.service: stopped -> started (live)",
            ]
        );
        assert_eq!(bench.run(&chosen, Mode::Apply).status, OpStatus::Ok);
        let off = task(json!({"state": "off"}));
        assert_eq!(bench.run(&off, Mode::Apply).changes.len(), 2);
        assert_eq!(bench.run(&off, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.read("unit"), "inactive disabled\n");
        std::fs::remove_file(bench.path("usr/sbin/tuned-adm")).unwrap();
        assert_eq!(bench.run(&off, Mode::Apply).status, OpStatus::Ok);
        assert!(failure(&bench.run(&chosen, Mode::Apply)).contains("the package `tuned` brings it"));
    }

    #[test]
    fn a_profile_that_is_not_there_is_missing() {
        let bench = bench();
        let wrong = bench.run(&task(json!({"profile": "realtme"})), Mode::Apply);
        assert!(failure(&wrong).contains("did you mean `realtime`?"), "{wrong:?}");
        bench.write("etc/tuned/site/tuned.conf", "[vm]\ntransparent_hugepages=never\n");
        let two = bench.run(&task(json!({"profile": ["balanced", "site"]})), Mode::Apply);
        assert_eq!((&two.status, &two.data["owns"]), (&OpStatus::Changed, &json!(["cpu", "vm"])), "{two:?}");
    }
}
