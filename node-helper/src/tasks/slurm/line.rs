//! The node's own line of slurm.conf: its memory and features.

use gpufleet_protocol::{Change, Disruption, Property, Subject, change::Value as Typed};

use super::{Offering, State, Step, conf};
use crate::{
    declare::{Plan, Trouble},
    os::files::Ownership,
};

const GIB: u64 = 1024;
/// What the system keeps of the memory with `real_memory: auto`, in percent.
const KEPT: u64 = 2;

/// Returns the `RealMemory` of a node with so much memory, in MiB: whole GiB where there are any.
fn offered(found: u64) -> u64 {
    let left = found - found * KEPT / 100;
    if left < GIB { left } else { left / GIB * GIB }
}

/// Whether a `RealMemory` may stay. That of a line of several nodes is right for the one with the least memory.
fn fits(set: u64, found: u64, is_own: bool) -> bool {
    let wanted = offered(found);
    set <= found && set <= wanted + GIB && (!is_own || set + GIB >= wanted)
}

impl Offering<'_> {
    pub fn plan_line(&self, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        let found = state.daemon.memory_mib;
        let limit = |wanted: u64, what: &str| match found {
            Some(found) if wanted > found => Some(format!(
                "{what} is {wanted} MiB, and `slurmd -C` finds {found} MiB on this node: slurmctld would take the node out \
                 (Low RealMemory)"
            )),
            _ => None,
        };
        let list = state.line.get("NodeName").unwrap_or_default();
        let is_own = conf::is_alone(list, &state.name);
        let mut values: Vec<(&str, String)> = Vec::new();
        let declared = self.task.real_memory_mib.map(u64::from);
        if declared.is_some() || self.task.real_memory.is_some() {
            let Some(found) = found else {
                return Err(Trouble::io("`slurmd -C` does not tell the memory of this node"));
            };
            if let Some(why) = declared.and_then(|wanted| limit(wanted, "`real_memory_mib`")) {
                return Err(Trouble::invalid(why));
            }
            let set = state.values.memory_mib;
            let wanted = declared.unwrap_or_else(|| offered(found));
            let fits = match set {
                Some(set) if declared.is_none() => fits(set, found, is_own),
                set => set == Some(wanted),
            };
            if !fits {
                values.push(("RealMemory", wanted.to_string()));
                let from = set.map_or(Typed::Absent, |set| Typed::text(set.to_string()));
                plan.changes.push(self.of_line(state, "RealMemory", from, wanted.to_string()));
            }
        } else if let Some(why) =
            state.values.memory_mib.filter(|_| !state.overrides).and_then(|set| limit(set, "RealMemory"))
        {
            plan.warnings.push(format!("{}: {why}", state.file.shown));
        }
        if let Some(wanted) = &self.task.features {
            let sorted = |list: Vec<&str>| {
                let mut list: Vec<String> =
                    list.into_iter().filter(|one| !one.is_empty()).map(str::to_owned).collect();
                list.sort();
                list
            };
            let found = sorted(state.values.features.split(',').collect());
            if found != sorted(wanted.iter().map(String::as_str).collect()) {
                values.push(("Features", wanted.join(",")));
                let from =
                    if found.is_empty() { Typed::Absent } else { Typed::text(state.values.features.clone()) };
                plan.changes.push(self.of_line(state, "Features", from, wanted.join(",")));
            }
        }
        if values.is_empty() {
            return Ok(());
        }
        let written =
            values.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ");
        let (number, shown) = (state.line.number(), &state.file.shown);
        if !is_own {
            let text = state.file.text()?;
            // The whole line again: what a line of its own does not say has a default, and not the value of this one.
            let own = |nodes: String, values: &[(&str, String)]| {
                let values: Vec<_> =
                    [("NodeName", nodes)].into_iter().chain(values.iter().cloned()).collect();
                conf::with_values(text, &state.line, &values)
            };
            let split = conf::without(list, &state.name).filter(|_| {
                // Lists of the same length, which nobody splits here.
                let beside =
                    ["NodeHostname", "NodeAddr", "Port"].iter().any(|key| state.line.get(key).is_some());
                state.line.lines.len() == 1 && !beside
            });
            let lines = split.map_or_else(
                || format!("`NodeName={} {written} ...`, and {list} without it", state.name),
                |others| format!("{}\n{}", own(others, &[]), own(state.name.clone(), &values)),
            );
            return Err(Trouble::invalid(format!(
                "line {number} of {shown} is that of {list}, and only you can tell whether {written} holds for all of them: write \
                 it into that line in slurmctld's slurm.conf and in that of every node, or give {} a line of its own there, and \
                 then type `scontrol reconfigure`:\n{lines}",
                state.name
            )));
        }
        if state.line.lines.len() > 1 {
            return Err(Trouble::invalid(format!(
                "line {number} of {shown} goes on in the next one; write it as one line first"
            )));
        }
        let text = state.file.text()?;
        let new = conf::replaced(
            text,
            &[(state.line.lines.clone(), vec![conf::with_values(text, &state.line, &values)])],
            &[],
        );
        plan.steps.extend(state.file.written(new, Ownership::default()).map(Step::File));
        plan.warnings.push(format!(
            "slurmctld reads its own slurm.conf: it needs {written} too, and then `scontrol reconfigure`"
        ));
        Ok(())
    }

    fn of_line(&self, state: &State, key: &'static str, from: Typed, to: String) -> Change {
        let subject = Subject::Line { path: state.file.shown.clone() };
        Change::new(subject, Property::new(key), from, to, Disruption::Live)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_left_for_the_system_and_small_differences_stay() {
        assert_eq!((offered(2_063_000), offered(64_000), offered(900)), (2_021_376, 62_464, 882));
        for (set, found, is_own, stays) in [
            (62_464, 64_000, true, true),
            // Another kernel leaves a little more or less.
            (62_464, 62_900, true, true),
            (62_464, 62_400, true, false),
            (62_464, 65_500, true, true),
            (60_000, 64_000, true, false),
            (60_000, 64_000, false, true),
            (63_900, 64_000, false, false),
        ] {
            assert_eq!(fits(set, found, is_own), stays, "{set} of {found}");
        }
    }
}
