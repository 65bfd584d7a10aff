//! `limits`: limits of login sessions, in a file of limits.d.
//!
//! Only pam_limits reads it, at a login; services have their limits of systemd. A line that another file takes away is
//! refused, because it would never count.

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    tasks::{LimitLine, LimitType, Limits, Presence},
};

use super::{
    edits::{Present, Step, by_steps},
    sysctl,
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::files::Ownership,
};

const MAIN: &str = "/etc/security/limits.conf";
const FOLDER: &str = "/etc/security/limits.d";
const HEADER: &str = "# Written by gpufleet: `limits`. Services do not read it.\n";

#[derive(Debug)]
pub struct State {
    file: Present,
    wanted: String,
    /// Lines of other files, in the order in which they are read, with their file; `true` for those after ours.
    others: Vec<(String, bool, LimitLine)>,
    /// Whether anything of PAM uses pam_limits.
    is_used: bool,
    nr_open: Option<u64>,
}

/// Reads the lines of a file; what is no line is left out, as pam_limits does.
fn lines(text: &str) -> Vec<LimitLine> {
    let line = |text: &str| {
        let text = text.split('#').next().unwrap_or_default();
        let mut words = text.split_whitespace();
        let (domain, of) = (words.next()?.to_owned(), words.next()?);
        let of = match of {
            "soft" => LimitType::Soft,
            "hard" => LimitType::Hard,
            "-" => LimitType::Both,
            _ => return None,
        };
        Some(LimitLine { domain, of, item: words.next()?.to_owned(), value: words.next()?.to_owned() })
    };
    text.lines().filter_map(line).collect()
}

fn name(line: &LimitLine) -> String {
    format!("{} {} {}", line.domain, line.of, line.item)
}

fn same_value(a: &str, b: &str) -> bool {
    a == b || (LimitLine::is_unlimited(a) && LimitLine::is_unlimited(b))
}

/// Whether a file of PAM uses pam_limits.
fn is_used(node: &Node<'_>) -> Result<bool, Trouble> {
    let folder = node.roots.path("/etc/pam.d");
    for name in node.world.names(&folder)? {
        let bytes = node.world.read(&folder.join(name))?.unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let uses = |line: &str| !line.trim_start().starts_with('#') && line.contains("pam_limits.so");
        if text.lines().any(uses) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl NodeKind for Limits {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let file = Present::read(node, &self.path())?;
        let mut others = Vec::new();
        let main = Present::read(node, MAIN)?;
        let folder = Present::all(node, FOLDER, &[".conf"])?;
        for other in std::iter::once(main).chain(folder).filter(|other| other.place != file.place) {
            let is_later = other.shown != MAIN && other.shown > file.shown;
            let text = String::from_utf8_lossy(other.bytes.as_deref().unwrap_or_default()).into_owned();
            others.extend(lines(&text).into_iter().map(|line| (other.shown.clone(), is_later, line)));
        }
        let text = |line: &LimitLine| format!("{} {} {} {}\n", line.domain, line.of, line.item, line.value);
        let wanted = format!("{HEADER}{}", self.limits.iter().map(text).collect::<String>());
        let nr_open = sysctl::nr_open(node)?;
        Ok(State { file, wanted, others, is_used: is_used(node)?, nr_open })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let found = lines(state.file.text()?);
        if self.state == Presence::Absent {
            if state.file.bytes.is_some() {
                plan.push(state.file.removed(), state.file.change(None));
            }
            return Ok(plan);
        }
        self.refuse(state)?;
        let change = |line: &LimitLine, from: Option<String>, to: Option<String>| {
            let subject = Subject::file(&state.file.shown);
            Change::new(subject, Property::from(name(line)), from, to, Disruption::Live)
        };
        let in_list = |list: &[LimitLine], line: &LimitLine| {
            list.iter().find(|other| name(other) == name(line)).map(|other| other.value.clone())
        };
        for line in &self.limits {
            let from = in_list(&found, line);
            if from.as_ref() != Some(&line.value) {
                plan.changes.push(change(line, from, Some(line.value.clone())));
            }
        }
        for line in found.iter().filter(|line| in_list(&self.limits, line).is_none()) {
            plan.changes.push(change(line, Some(line.value.clone()), None));
        }
        if state.file.text()? == state.wanted {
            return Ok(plan);
        }
        if plan.changes.is_empty() {
            plan.changes.push(state.file.change(Some(state.wanted.as_bytes())));
        }
        plan.steps.extend(state.file.written(state.wanted.as_str(), Ownership::default()));
        plan.warnings.push(
            "services do not read limits.d: slurmd, containerd and others get their limits with `unit_settings`; logins get these \
             from the next one on"
                .to_owned(),
        );
        if !state.is_used {
            plan.warnings
                .push("nothing in /etc/pam.d uses pam_limits.so, so that no login reads limits.d".to_owned());
        }
        Ok(plan)
    }

    by_steps!();
}

trait Refuses {
    fn refuse(&self, state: &State) -> Result<(), Trouble>;
}

impl Refuses for Limits {
    /// Refuses what another file takes away, and what the kernel would not take.
    fn refuse(&self, state: &State) -> Result<(), Trouble> {
        for line in &self.limits {
            if let (Some(most), Ok(value)) = (state.nr_open, line.value.parse::<u64>())
                && line.item == "nofile"
                && value > most
            {
                return Err(Trouble::invalid(format!(
                    "nofile {value} is above fs.nr_open, {most}: pam_limits may refuse logins then; `sysctl: {{name: fs.nr_open}}` \
                     raises it"
                )));
            }
            let takes = |other: &&(String, bool, LimitLine)| {
                let (_, is_later, other) = other;
                *is_later
                    && other.domain == line.domain
                    && other.item == line.item
                    && other.overlaps(line.of)
                    && !same_value(&other.value, &line.value)
            };
            if let Some((path, _, other)) = state.others.iter().rfind(takes) {
                return Err(Trouble::invalid(format!(
                    "{} {} would not count: {path} comes after {} and sets {} {}; take it out there, or give a later `name`",
                    name(line),
                    line.value,
                    state.file.shown,
                    name(other),
                    other.value
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};
    use serde_json::{Value, json};

    use super::*;
    use crate::tasks::testing::{Bench, failure, shown};

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.write("etc/security/limits.conf", "# <domain> <type> <item> <value>\n* - memlock 64 # old\n");
        bench.write("etc/pam.d/common-session", "session required pam_limits.so\n");
        bench.write("proc/sys/fs/nr_open", "1048576\n");
        bench
    }

    fn task(value: Value) -> Limits {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn lines_are_declared_once_and_go() {
        let bench = bench();
        let both = task(json!({"limits": [
            {"domain": "*", "item": "memlock", "value": "unlimited"},
            {"domain": "@gpu", "type": "hard", "item": "nofile", "value": 1_048_576},
        ]}));
        let predicted = bench.run(&both, Mode::Predict);
        assert_eq!(bench.run(&both, Mode::Predict).status, OpStatus::Ok);
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&both, Mode::Predict).status, OpStatus::Ok);
        bench.forget();
        let done = bench.run(&both, Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes), "{done:?}");
        let path = "/etc/security/limits.d/90-gpufleet.conf";
        assert_eq!(
            shown(&done),
            [
                format!("{path} * - memlock: nothing -> unlimited (live)"),
                format!("{path} @gpu hard nofile: nothing -> 1048576 (live)"),
            ]
        );
        assert!(done.warnings.len() == 1 && done.warnings[0].contains("unit_settings"), "{done:?}");
        assert_eq!(
            bench.read(path.trim_start_matches('/')),
            format!("{HEADER}* - memlock unlimited\n@gpu hard nofile 1048576\n")
        );
        let settled = bench.snapshot();
        assert_eq!(bench.run(&both, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), settled);
        let one = task(json!({"limits": [{"domain": "*", "item": "memlock", "value": "unlimited"}]}));
        assert_eq!(
            shown(&bench.run(&one, Mode::Apply)),
            [format!("{path} @gpu hard nofile: 1048576 -> absent (live)")]
        );
        let gone = task(json!({"state": "absent"}));
        assert_eq!(bench.run(&gone, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.run(&gone, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn a_later_file_that_wins_is_named() {
        let bench = bench();
        let all = task(json!({"limits": [{"domain": "*", "item": "memlock", "value": "unlimited"}]}));
        bench.write("etc/security/limits.d/95-site.conf", "* hard memlock -1\nroot - memlock 8\n");
        assert_eq!(
            bench.run(&all, Mode::Predict).status,
            OpStatus::Changed,
            "the same value, and another domain"
        );
        bench.write("etc/security/limits.d/99-site.conf", "* soft memlock 8192\n");
        let taken = bench.run(&all, Mode::Predict);
        assert!(
            failure(&taken).contains("99-site.conf comes after") && failure(&taken).contains("8192"),
            "{taken:?}"
        );
        let many = task(json!({"limits": [{"domain": "*", "item": "nofile", "value": 2_000_000}]}));
        assert!(failure(&bench.run(&many, Mode::Predict)).contains("fs.nr_open, 1048576"));
        let sysctl: gpufleet_protocol::tasks::Sysctl =
            serde_json::from_value(json!({"name": "fs.nr_open", "value": 4_000_000})).unwrap();
        assert_eq!(bench.run(&sysctl, Mode::Predict).status, OpStatus::Changed);
        assert_eq!(bench.run(&many, Mode::Predict).status, OpStatus::Changed);
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&many, Mode::Predict).status, OpStatus::Ok);
    }

    #[test]
    fn without_pam_limits_nobody_reads_them() {
        let bench = bench();
        bench.write("etc/pam.d/common-session", "# session required pam_limits.so\n");
        let all = task(json!({"limits": [{"domain": "*", "item": "core", "value": 0}]}));
        assert_eq!(bench.run(&all, Mode::Predict).warnings.len(), 2);
    }
}
