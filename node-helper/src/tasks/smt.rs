//! `smt`: the second threads of cores.

use gpufleet_protocol::{
    Disruption,
    tasks::{KernelCmdline, Smt, SmtState},
};
use serde_json::{Map, Value};

use super::{
    kernel_cmdline,
    knobs::{self, Knob, Knobs},
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    world::Effect,
};

const CONTROL: &str = "/sys/devices/system/cpu/smt/control";

#[derive(Debug)]
pub struct State {
    knobs: Knobs,
    control: String,
    cmdline: Option<(KernelCmdline, kernel_cmdline::State)>,
}

pub enum Step {
    Knob(knobs::Step),
    Cmdline(Plan<kernel_cmdline::Step>),
}

impl NodeKind for Smt {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let control = knobs::assumed(node, CONTROL)?;
        let control = match control.as_deref() {
            None | Some("notimplemented") => {
                return Err(Trouble::NotApplicable(
                    "the running kernel or architecture has no control of SMT".to_owned(),
                ));
            }
            Some("notsupported") => {
                return Err(Trouble::NotApplicable(
                    "the processors have no second threads, or the firmware or the host has turned them off"
                        .to_owned(),
                ));
            }
            Some(control) => control.to_owned(),
        };
        let class = match self.state {
            SmtState::Off => Disruption::Clients,
            SmtState::On => Disruption::Live,
        };
        let knob = Knob {
            name: "cpu/smt/control".to_owned(),
            paths: vec![CONTROL.to_owned()],
            lines: if self.cmdline { Vec::new() } else { vec![CONTROL.to_owned()] },
            gone: if self.cmdline { vec![CONTROL.to_owned()] } else { Vec::new() },
            wanted: self.state.as_str().to_owned(),
            class,
            always: false,
            appears: false,
        };
        let mut knobs = Knobs::observe(node, Self::FILE, CONTROL, vec![knob])?;
        let cmdline = match self.cmdline {
            false => None,
            true => {
                let word = vec!["nosmt".to_owned()];
                let task = match self.state {
                    SmtState::Off => KernelCmdline { add: word, remove: Vec::new() },
                    SmtState::On => KernelCmdline { add: Vec::new(), remove: word },
                };
                let state = task.observe(node)?;
                Some((task, state))
            }
        };
        for (_, now) in knobs.seen.iter_mut().flat_map(|seen| &mut seen.live) {
            // After an assumed boot the command line has decided.
            if now.is_none() && self.cmdline {
                *now = Some(self.state.as_str().to_owned());
            }
            // Off for good is off.
            if now.as_deref() == Some("forceoff") && self.state == SmtState::Off {
                *now = Some(self.state.as_str().to_owned());
            }
        }
        Ok(State { knobs, control, cmdline })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        if state.control == "forceoff" && self.state == SmtState::On {
            return Err(Trouble::invalid(
                "SMT is off until the next boot (forceoff); a reboot turns it on unless `nosmt` is on the kernel command line: \
                 `kernel_cmdline: {remove: nosmt}` and `reboot`",
            ));
        }
        let mut plan = Plan::default();
        state.knobs.plan(&mut plan, Step::Knob);
        if let Some((task, known)) = &state.cmdline {
            let mut words = task.plan(known)?;
            // Not awaited: the same is done at once, and the boot only keeps it.
            for change in &mut words.changes {
                change.disruption = Disruption::Live;
            }
            plan.changes.append(&mut words.changes);
            plan.warnings.append(&mut words.warnings);
            if !words.steps.is_empty() {
                plan.steps.push(Step::Cmdline(words));
            }
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let own = plan.steps.iter().filter_map(|s| if let Step::Knob(s) = s { Some(s) } else { None });
        let mut effects = state.knobs.after(own);
        for step in &plan.steps {
            if let (Step::Cmdline(plan), Some((task, known))) = (step, &state.cmdline) {
                effects.extend(task.after(known, plan));
            }
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
            match (step, &state.cmdline) {
                (Step::Knob(step), _) => step.apply(node)?,
                (Step::Cmdline(plan), Some((task, known))) => {
                    task.apply(node, known, plan)?;
                }
                (Step::Cmdline(_), None) => {}
            }
        }
        Ok(Map::new())
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};
    use serde_json::json;

    use super::*;
    use crate::{
        declare::drive,
        tasks::testing::{Bench, failure, shown},
    };

    const FILE: &str = "sys/devices/system/cpu/smt/control";

    fn bench(control: &str) -> Bench {
        let bench = Bench::new();
        bench.write(FILE, &format!("{control}\n"));
        bench.write("etc/default/grub", "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"\n");
        bench.write("proc/cmdline", "quiet\n");
        bench
    }

    fn run(bench: &Bench, task: Value, mode: Mode, allowed: Disruption) -> OpOutcome {
        let task: Smt = serde_json::from_value(task).unwrap();
        bench.node(|node| drive(&task, node, mode, &bench.overlay, allowed, &|_| Ok(())))
    }

    #[test]
    fn turning_it_off_disturbs_what_runs() {
        let bench = bench("on");
        let off = || json!({"state": false});
        let predicted = run(&bench, off(), Mode::Predict, Disruption::Live);
        assert_eq!(
            shown(&predicted),
            ["cpu/smt/control: on -> off (clients)", "cpu/smt/control at boot: nothing -> off (live)"]
        );
        bench.activate(Disruption::Reboot);
        assert_eq!(run(&bench, off(), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
        bench.forget();
        let refused = run(&bench, off(), Mode::Apply, Disruption::Live);
        assert_eq!(refused.status, OpStatus::NeedsPermit { class: Disruption::Clients });
        assert_eq!(bench.read(FILE), "on\n");
        let done = run(&bench, off(), Mode::Apply, Disruption::Clients);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
        assert_eq!(bench.read(FILE), "off\n");
        assert_eq!(run(&bench, off(), Mode::Apply, Disruption::Live).status, OpStatus::Ok);
        let on = run(&bench, json!({"state": "on"}), Mode::Apply, Disruption::Live);
        assert_eq!(on.status, OpStatus::Changed, "{on:?}");
    }

    #[test]
    fn the_command_line_gets_its_word_only_where_asked() {
        let bench = bench("on");
        let off = || json!({"state": "off", "cmdline": true});
        let done = run(&bench, off(), Mode::Apply, Disruption::Clients);
        assert_eq!(done.status, OpStatus::Changed, "{done:?}");
        assert!(done.awaiting.is_empty(), "{done:?}");
        assert!(bench.read("etc/default/grub").contains("nosmt"));
        assert!(!bench.path("etc/tmpfiles.d/gpufleet-smt.conf").exists());
        assert_eq!(run(&bench, off(), Mode::Apply, Disruption::Live).status, OpStatus::Ok);
    }

    #[test]
    fn a_line_of_another_form_goes() {
        let file = "etc/tmpfiles.d/gpufleet-smt.conf";
        for (next, shows) in [
            (
                json!({"state": "off", "cmdline": true}),
                vec!["cpu/smt/control at boot: off -> not set (live)", "/etc/default/grub nosmt"],
            ),
            (
                json!({"state": "on", "cmdline": true}),
                vec!["cpu/smt/control: off -> on (live)", "cpu/smt/control at boot: off -> not set (live)"],
            ),
        ] {
            let bench = bench("on");
            run(&bench, json!({"state": "off"}), Mode::Apply, Disruption::Clients);
            assert!(bench.read(file).ends_with(" off\n"));
            let predicted = run(&bench, next.clone(), Mode::Predict, Disruption::Live);
            assert_eq!(run(&bench, next.clone(), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
            bench.activate(Disruption::Reboot);
            assert_eq!(run(&bench, next.clone(), Mode::Predict, Disruption::Live).status, OpStatus::Ok);
            bench.forget();
            let lines = shown(&predicted);
            assert!(
                shows.iter().zip(&lines).all(|(want, line)| line == want || line.contains("nosmt")),
                "{lines:?}"
            );
            assert_eq!(lines.len(), 2, "{lines:?}");
            let done = run(&bench, next.clone(), Mode::Apply, Disruption::Clients);
            assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
            assert!(!bench.path(file).exists());
            assert_eq!(run(&bench, next, Mode::Apply, Disruption::Live).status, OpStatus::Ok);
        }
        let bench = bench("on");
        run(&bench, json!({"state": "off"}), Mode::Apply, Disruption::Clients);
        bench.write(file, &format!("# mine\n{}", bench.read(file)));
        run(&bench, json!({"state": "off", "cmdline": true}), Mode::Apply, Disruption::Clients);
        assert_eq!(bench.read(file), "# mine\n");
    }

    #[test]
    fn what_is_off_for_good_ends_with_a_reboot() {
        let bench = bench("forceoff");
        let on = run(&bench, json!({"state": "on"}), Mode::Predict, Disruption::Live);
        assert!(failure(&on).contains("forceoff"), "{on:?}");
        let off = run(&bench, json!({"state": "off", "cmdline": false}), Mode::Predict, Disruption::Live);
        assert_eq!(shown(&off), ["cpu/smt/control at boot: nothing -> off (live)"]);
        for (word, why) in [("notsupported", "no second threads"), ("notimplemented", "no control")] {
            let none = run(&self::bench(word), json!({"state": "off"}), Mode::Apply, Disruption::Reboot);
            assert!(
                matches!(&none.status, OpStatus::NotApplicable { reason } if reason.contains(why)),
                "{none:?}"
            );
        }
    }
}
