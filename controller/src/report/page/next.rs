//! What to do next: for each action the nodes that need it, and commands to paste.

use serde::Serialize;

use super::{
    super::{NextAction, RunModel, Verdict, fold_names},
    causes::{Cause, cut},
    fragment,
};
use crate::{
    event::{HEALTH, NodeState, RunStarted, Verb},
    visible::command_line,
};

/// Checks that one command explains.
const MOST_CHECKS: usize = 3;
/// Nodes that one command of a scheduler names.
const MOST_WORDS: usize = 60;

/// What commands do, and their lines.
type Command = (&'static str, Vec<String>);

/// An action, and the nodes that need it.
#[derive(Debug, Serialize)]
pub(super) struct Next {
    action: NextAction,
    /// The worst verdict of its nodes.
    verdict: Verdict,
    count: usize,
    names: String,
    link: String,
    advice: &'static str,
    /// What each does, and the commands.
    commands: Vec<Command>,
}

const fn advice(action: NextAction) -> &'static str {
    match action {
        NextAction::None => "",
        NextAction::Apply => "A run changes this while the nodes work.",
        NextAction::Reset => "Drain the nodes; a run resets the GPUs once nothing uses them.",
        NextAction::Reboot => {
            "Drain the nodes; a run reboots them in waves, one at a time unless the playbook says more."
        }
        NextAction::Drain => "The nodes should get no new work; then a person looks.",
        NextAction::Replace => "The nodes should get no new work; the vendor's field diagnostics come next.",
        NextAction::Investigate => "A person has to look; the causes below say at what.",
    }
}

/// The nodes of one action, as a `--limit` takes them.
struct Who<'a> {
    names: Vec<&'a str>,
    limit: String,
}

impl<'a> Who<'a> {
    fn of(model: &'a RunModel, nodes: &[usize]) -> Self {
        let names: Vec<&str> =
            nodes.iter().filter_map(|at| model.nodes().get(*at)).map(|node| node.name.as_str()).collect();
        // Shorter than many names, where it selects the same nodes.
        let drift = model.in_state(NodeState::Drift);
        let limit = match names.len() > 1 && names == drift {
            true => format!("@{}:drift", model.run_id()),
            false => fold_names(&names),
        };
        Self { names, limit }
    }
}

/// Returns the actions that nodes need, the strongest first.
pub(super) fn of(model: &RunModel, verb: Verb, causes: &[Cause]) -> Vec<Next> {
    let mut all: Vec<(NextAction, Vec<usize>, Verdict)> = Vec::new();
    for (at, node) in model.nodes().iter().enumerate() {
        let (action, verdict) = (node.next_action(verb), node.verdict(verb));
        match all.iter_mut().find(|(known, _, _)| *known == action) {
            Some((_, nodes, worst)) => {
                nodes.push(at);
                *worst = (*worst).max(verdict);
            }
            None => all.push((action, vec![at], verdict)),
        }
    }
    all.retain(|(action, _, _)| *action != NextAction::None);
    all.sort_by_key(|(action, _, _)| std::cmp::Reverse(*action));
    let next = |(action, nodes, verdict): (NextAction, Vec<usize>, Verdict)| {
        let who = Who::of(model, &nodes);
        Next {
            action,
            verdict,
            count: nodes.len(),
            names: cut(fold_names(&who.names)),
            link: fragment(&[("next", action.word())]),
            advice: advice(action),
            commands: commands(model, verb, action, &who, &checks_of(causes, action, &nodes)),
        }
    };
    all.into_iter().map(next).collect()
}

/// The checks of the worst causes that ask for this action on these nodes.
fn checks_of<'a>(causes: &'a [Cause], action: NextAction, nodes: &[usize]) -> Vec<&'a str> {
    let mut all: Vec<&str> = Vec::new();
    let wanted = |cause: &&Cause| cause.action == action && cause.is_check() && !cause.waived;
    for cause in causes.iter().filter(wanted) {
        // Both are in the order of the inventory.
        let here = cause.nodes.iter().any(|node| nodes.binary_search(node).is_ok());
        if here && !all.contains(&cause.control.as_str()) && all.len() < MOST_CHECKS {
            all.push(&cause.control);
        }
    }
    all
}

fn commands(
    model: &RunModel,
    verb: Verb,
    action: NextAction,
    who: &Who<'_>,
    checks: &[&str],
) -> Vec<Command> {
    let Some(run) = &model.run else { return Vec::new() };
    let mut all: Vec<Command> = Vec::new();
    let playbooks = run.playbooks.iter().filter(|playbook| *playbook != HEALTH);
    let with = |word: &'static str| {
        let sources = run.inventories.iter().flat_map(|source| ["-i", source]);
        let head = ["gpufleet", word].into_iter().chain(playbooks.clone().map(String::as_str)).chain(sources);
        command_line(head.chain(["-l", who.limit.as_str()]))
    };
    let by_run = matches!(action, NextAction::Apply | NextAction::Reset | NextAction::Reboot);
    // A check alone has no playbook that brings the node back; its own text says what does.
    if by_run && !verb.writes() && playbooks.clone().next().is_some() && !chooses(run) {
        if verb.info().judges {
            all.push(("shows what a run would do", vec![with("plan")]));
        }
        let does = match action {
            NextAction::Reset | NextAction::Reboot => "does it, behind the play's drain; destructive",
            _ => "does it",
        };
        all.push((does, vec![with("run")]));
    }
    if verb.writes() && model.is_resumable() && matches!(action, NextAction::Investigate) {
        all.push((
            "goes on once the reason is gone",
            vec![command_line(["gpufleet", "resume", &run.run_id])],
        ));
    }
    let drains_itself = by_run && playbooks.clone().next().is_some();
    if !matches!(action, NextAction::Apply | NextAction::Investigate) && !drains_itself {
        all.extend(drains(run, who, checks));
    }
    if !checks.is_empty() {
        let docs = checks.iter().map(|check| command_line(["gpufleet", "doc", check]));
        all.push(("says why, and what to do", docs.collect()));
    }
    if verb.info().judges
        && let Some(again) = again(run, &who.limit)
    {
        all.push(("looks again", vec![again]));
    }
    all
}

/// Whether variables or a choice of tasks were typed, without which the same playbook means something else.
fn chooses(run: &RunStarted) -> bool {
    let starts = ["-e", "--extra-vars", "-t", "--tags", "--skip-tags"];
    run.command_line.iter().any(|word| starts.iter().any(|start| word.starts_with(start)))
}

/// The commands that give nodes no new work, at the scheduler that the baseline names.
fn drains(run: &RunStarted, who: &Who<'_>, checks: &[&str]) -> Vec<Command> {
    let baseline = run.audit.as_ref().map_or("", |scope| scope.policy.data().name.as_str());
    let reason = format!("gpufleet {}: {}", run.run_id, checks.join(", "));
    if who.names.len() > MOST_WORDS {
        return Vec::new();
    }
    let named = |name: &str| baseline.split('+').any(|part| part.trim() == name);
    let mut all = Vec::new();
    if named("slurm") {
        let nodes = format!("NodeName={}", who.names.join(","));
        let words = ["scontrol", "update", &nodes, "State=DRAIN", &format!("Reason={reason}")];
        all.push(("drains them in Slurm", vec![command_line(words)]));
    }
    if named("kubernetes") {
        // `--`, because a name from outside could look like an option.
        let words = ["kubectl", "cordon", "--"].into_iter().chain(who.names.iter().copied());
        all.push(("cordons them in Kubernetes", vec![command_line(words)]));
    }
    all
}

/// The command that was typed, for these nodes only; `None` where it cannot be typed again as it stands.
fn again(run: &RunStarted, limit: &str) -> Option<String> {
    let own = |word: &&String| {
        word.starts_with("-l")
            || word.starts_with("--limit")
            || word.starts_with("--subset")
            || word.contains('\u{2026}')
    };
    if run.command_line.is_empty() || run.command_line.iter().any(|word| own(&word)) {
        return None;
    }
    let words = run.command_line.iter().map(String::as_str);
    Some(command_line(words.chain(["-l", limit])))
}

#[cfg(test)]
mod tests {
    use super::super::causes;
    use super::*;
    use crate::report::sample::{self, Stream};

    fn all(model: &RunModel) -> Vec<String> {
        let verb = model.verb();
        let next = of(model, verb, &causes::of(model, verb));
        let lines = |next: Next| next.commands.into_iter().flat_map(|(_, lines)| lines);
        next.into_iter().flat_map(lines).collect()
    }

    #[test]
    fn an_audit_leads_to_a_run_of_the_same_playbooks_on_these_nodes() {
        let lines = all(&RunModel::of(&sample::audit(12)));
        let run = "gpufleet run playbooks/bringup.yaml -i inventory/ -l";
        assert!(lines.contains(&format!("{run} gpu004")), "{lines:#?}");
        assert!(lines.contains(&"gpufleet audit playbooks/bringup.yaml -i inventory/ -l gpu006".to_owned()));
    }

    #[test]
    fn one_state_is_named_by_the_run() {
        let hosts = sample::names(40);
        let mut s = Stream::new();
        s.started(Verb::Plan, &hosts);
        for host in &hosts {
            s.task(host, sample::swappiness(24));
            s.end(host, NodeState::Drift, None);
        }
        assert_eq!(
            all(&RunModel::of(&s.events)),
            ["gpufleet run playbooks/bringup.yaml -i inventory/ -l @01JD8Q4T9X:drift"]
        );
    }

    #[test]
    fn a_hostile_name_is_one_word() {
        let hosts = ["a;reboot $(x) 'b'".to_owned()];
        let mut s = Stream::new();
        s.started(Verb::Plan, &hosts).task(&hosts[0], sample::swappiness(24));
        s.end(&hosts[0], NodeState::Drift, None);
        let lines = all(&RunModel::of(&s.events));
        let words = shell_words::split(&lines[0]).unwrap();
        assert_eq!(words.last(), Some(&hosts[0]), "{lines:?}");
    }

    #[test]
    fn what_was_chosen_by_variables_is_not_run_without_them() {
        let hosts = sample::names(1);
        let mut s = Stream::new();
        s.started(Verb::Plan, &hosts).task(&hosts[0], sample::swappiness(24));
        s.end(&hosts[0], NodeState::Drift, None);
        let Some(crate::event::What::RunStarted(run)) = s.events.first_mut().map(|event| &mut event.what)
        else {
            panic!("it has started")
        };
        run.command_line.extend(["-e".to_owned(), "limit=…".to_owned()]);
        assert_eq!(all(&RunModel::of(&s.events)), Vec::<String>::new());
    }
}
