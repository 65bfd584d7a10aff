//! Plans and runs one random state, runs it again, and compares.

use std::{collections::BTreeMap, collections::HashMap, fmt, fmt::Write as _, sync::Arc};

use gpufleet::{
    event::{TaskReport, TaskStatus},
    index::PlayIndex,
    interpreter::{
        Action, CachedFiles, Cursor, End, EndState, Fed, Files, HostContext, HostVars, Mode, Phase, Step,
        Work,
    },
    playbook::{Program, TagFilter},
};
use gpufleet_protocol::{Blocker, Certainty, Change, Disruption, Layer, Property, Subject, change::Value};

use crate::{
    node::Node,
    play::{FILES, Play},
    random::Random,
};

/// The result of one state.
#[derive(Default)]
pub struct One {
    changes: usize,
    resets: usize,
    reboots: usize,
    blocked: bool,
    forgotten: bool,
    again: bool,
    mended: bool,
    kept: bool,
    rebooted_again: bool,
    waits: bool,
}

/// The results of all states.
#[derive(Default)]
pub struct Tally {
    changes: usize,
    resets: usize,
    reboots: usize,
    blocked: usize,
    forgotten: usize,
    again: usize,
    mended: usize,
    kept: usize,
    rebooted_again: usize,
    waits: usize,
}

impl Tally {
    pub fn add(&mut self, one: &One) {
        self.changes += one.changes;
        self.resets += one.resets;
        self.reboots += one.reboots;
        self.blocked += usize::from(one.blocked);
        self.forgotten += usize::from(one.forgotten);
        self.again += usize::from(one.again);
        self.mended += usize::from(one.mended);
        self.kept += usize::from(one.kept);
        self.rebooted_again += usize::from(one.rebooted_again);
        self.waits += usize::from(one.waits);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} changes, {} resets, {} reboots; {} blocked, {} forgotten without persistence; a second time {} run for \
             nothing, {} rebooted, {} still wait for a reboot; {} were mended after somebody else changed their GPUs, {} were as declared after a boot",
            self.changes,
            self.resets,
            self.reboots,
            self.blocked,
            self.forgotten,
            self.again,
            self.rebooted_again,
            self.waits,
            self.mended,
            self.kept
        )
    }
}

/// Everything that a plan or a run reported.
struct Story {
    reports: Vec<TaskReport>,
    end: End,
    reset: bool,
    reboot: bool,
}

fn told(cursor: &mut Cursor, node: &mut Node) -> Result<Story, String> {
    let (mut reports, mut reset, mut reboot) = (Vec::new(), false, false);
    for _ in 0..10_000 {
        match cursor.next() {
            Step::Run(action) => {
                let fed = node.answer(&action);
                if let Fed::Outcome(outcome) = &fed {
                    reset |= outcome.activated == Some(Disruption::GpuReset);
                }
                reboot |= reset && is_required(&action);
                reports.extend(cursor.feed(fed));
            }
            Step::Report(more) => reports.extend(more),
            Step::Barrier { .. } | Step::SectionEnd { .. } => {}
            Step::Latch { .. } => reports.extend(cursor.feed(Fed::Latch(None))),
            Step::Ask { .. } => reports.extend(cursor.feed(Fed::Asked { run: true })),
            Step::End(end) => {
                // Printed only for a single state, for debugging.
                if std::env::var_os("PLAN_SEED").is_some() {
                    println!("{}", lines(&reports));
                }
                return Ok(Story { reports, end, reset, reboot });
            }
        }
    }
    Err("it never ends".to_owned())
}

/// Returns a line for each report with content.
fn lines(reports: &[TaskReport]) -> String {
    let mut text = String::new();
    for report in reports {
        let changes: Vec<String> =
            report.changes.iter().map(|change| format!("{change} ({:?})", change.certainty)).collect();
        let blockers: Vec<&str> = report.blockers.iter().map(|blocker| blocker.what.as_str()).collect();
        let message = report.message.as_deref().unwrap_or_default();
        let (phase, task, status) = (report.phase, &report.task, &report.status);
        let _ = writeln!(text, "{phase:?} {task} {status:?} {changes:?} {blockers:?} {message}");
    }
    text
}

fn is_required(action: &Action) -> bool {
    matches!(&action.work, Work::Reboot { when, .. } if *when == gpufleet_protocol::tasks::RebootWhen::Required)
}

type About = (Subject, Property, Layer);

type Key = (String, About, Value, Value, Disruption);

fn key(report: &TaskReport, change: &Change) -> Key {
    (report.task.clone(), about(change), change.from.clone(), change.to.clone(), change.disruption)
}

fn about(change: &Change) -> About {
    let (subject, property, layer) = change.about();
    (subject.clone(), property.clone(), layer)
}

/// Changes, with the number of times that each is made.
type Sure = BTreeMap<Key, i64>;

/// A change that only the run can confirm.
type Possible = (String, About, Value);

/// Returns certain changes with their counts, and changes that are only possible.
fn changes(story: &Story) -> (Sure, Vec<Possible>) {
    let (mut sure, mut possible) = (Sure::new(), Vec::new());
    for report in story.reports.iter().filter(|report| report.phase != Phase::Verify) {
        for change in &report.changes {
            if change.certainty == Certainty::Possible {
                possible.push((report.task.clone(), about(change), change.to.clone()));
            } else {
                *sure.entry(key(report, change)).or_insert(0) += 1;
            }
        }
    }
    (sure, possible)
}

fn failures(story: &Story) -> Vec<String> {
    let failed = story.reports.iter().filter(|report| report.status == TaskStatus::Failed);
    failed.map(|report| format!("{}: {}", report.task, report.message.clone().unwrap_or_default())).collect()
}

struct Table {
    program: Arc<Program>,
    files: Arc<dyn Files>,
}

impl Table {
    fn cursor(&self, mode: Mode, defer: bool) -> Result<Cursor, String> {
        let context = HostContext { host: Arc::from("n1"), ..HostContext::default() };
        let tags = Arc::new(TagFilter::default());
        let mut cursor = Cursor::new(
            &self.program,
            PlayIndex(0),
            Arc::new(context),
            HostVars::default(),
            mode,
            tags,
            Arc::clone(&self.files),
        )
        .ok_or("there is no play")?;
        cursor.set_defer_to_reboot(defer);
        Ok(cursor)
    }

    fn plan(&self, node: &mut Node) -> Result<(Story, bool), String> {
        node.forget();
        let mut story = told(&mut self.cursor(Mode::Predict, false)?, node)?;
        let defer = story.reset && story.reboot;
        if defer {
            node.forget();
            story = told(&mut self.cursor(Mode::Predict, true)?, node)?;
        }
        node.forget();
        Ok((story, defer))
    }
}

/// Plays one state.
///
/// # Errors
/// The rule that it breaks.
pub fn state(seed: u64) -> Result<One, String> {
    let mut random = Random::new(seed);
    let mut node = Node::new(&mut random);
    let play = Play::new(&mut random);
    judged(&mut node, &play, &mut random).map_err(|why| format!("{why}\n{}", play.text))
}

/// Checks that no mode of a GPU became another one without a word of the plan. `before` is from before the run.
fn modes_told(plan: &Story, before: &[(u32, bool, bool)], node: &Node) -> Result<(), String> {
    let warnings: Vec<&str> =
        plan.reports.iter().flat_map(|report| &report.warnings).map(String::as_str).collect();
    let changes: Vec<&Change> = plan.reports.iter().flat_map(|report| &report.changes).collect();
    for ((index, ecc, mig), (_, ecc_now, mig_now)) in before.iter().zip(node.modes()) {
        for (name, property, then, now) in
            [("ECC", Property::ECC, *ecc, ecc_now), ("MIG", Property::MIG_MODE, *mig, mig_now)]
        {
            let of_it = |change: &&Change| {
                change.property == property
                    && matches!(&change.subject, Subject::Gpu { index: of, .. } if of == index)
            };
            let said = |warning: &&str| warning.contains(&format!("the pending {name} mode current"));
            if then != now && !changes.iter().any(of_it) && !warnings.iter().any(said) {
                return Err(format!(
                    "{name} of GPU {index} became {now}, of which the plan says nothing: {warnings:?}"
                ));
            }
        }
    }
    Ok(())
}

/// Has somebody else change the GPUs of a node that is as declared: the plan finds it, the run mends what was planned and
/// nothing else, and then the node is as declared again.
fn meddled(table: &Table, node: &mut Node, random: &mut Random, one: &mut One) -> Result<(), String> {
    let what = node.meddle(random);
    one.mended = mended(table, node, false).map_err(|why| format!("after {what}: {why}"))?;
    Ok(())
}

/// Boots a node that is as declared and keeps that: it has what the play declared, before the next run.
fn booted(table: &Table, node: &mut Node) -> Result<(), String> {
    let concerns = node.boot();
    if !concerns.is_empty() {
        return Err(format!("a boot did not assert what is kept: {concerns:?}"));
    }
    mended(table, node, true).map(|_| ()).map_err(|why| format!("after a boot: {why}"))
}

/// Runs the play once more on a node that others changed, and returns whether something was to be done. `kept`: not of GPUs.
fn mended(table: &Table, node: &mut Node, kept: bool) -> Result<bool, String> {
    node.setters();
    node.new_session();
    let before = node.modes();
    let reboots = node.reboots;
    let (plan, defer) = table.plan(node)?;
    let run = told_by(table, node, defer)?;
    let (planned, made) = (failures(&plan), failures(&run));
    if !planned.is_empty() || !made.is_empty() {
        // Not an error where both fail alike, or say that a value is forgotten: nothing further is reported then.
        let forgets = |failed: &[String]| failed.iter().all(|why| why.contains("persistence is off"));
        return match planned.first() == made.first() || forgets(&planned) && forgets(&made) {
            true => Ok(false),
            false => Err(format!("planned failures {planned:?}, made {made:?}")),
        };
    }
    let (sure, possible) = changes(&plan);
    let (made, _) = changes(&run);
    let of_gpus = |key: &&Key| key.1.0.gpu_index().is_some() || key.1.0 == Subject::KeptState;
    let lost: Vec<&Key> = sure.keys().filter(of_gpus).collect();
    if kept && !lost.is_empty() {
        return Err(format!("a plan says {lost:?}, which was kept"));
    }
    same(&sure, &possible, &made, &made)?;
    if node.reboots == reboots {
        modes_told(&plan, &before, node)?;
    }
    let mended = !made.is_empty();
    node.setters();
    node.new_session();
    let (again, defer) = table.plan(node)?;
    let last = told_by(table, node, defer)?;
    let (sure, _) = changes(&again);
    let setters = node.setters();
    if !sure.is_empty() || !setters.is_empty() || !changes(&last).0.is_empty() {
        return Err(format!("once it is mended, a plan says {sure:?}, and the run did {setters:?}"));
    }
    Ok(mended)
}

fn told_by(table: &Table, node: &mut Node, defer: bool) -> Result<Story, String> {
    told(&mut table.cursor(Mode::Apply, defer)?, node)
}

fn judged(node: &mut Node, play: &Play, random: &mut Random) -> Result<One, String> {
    let mut files: HashMap<String, String> =
        FILES.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let beside = files.clone();
    files.insert("play.yml".to_owned(), play.text.replace("ROOT", &node.root()));
    let program = Program::load(&["play.yml"], &files).map_err(|errors| errors.to_string())?;
    let table = Table { program: Arc::new(program), files: Arc::new(CachedFiles::new(beside)) };
    node.setters();
    let (plan, defer) = table.plan(node)?;
    let touched = node.setters();
    if !touched.is_empty() {
        return Err(format!("the plan changed something: {touched:?}"));
    }
    let before = node.modes();
    let mut run = told(&mut table.cursor(Mode::Apply, defer)?, node)?;
    if node.reboots == 0 {
        // A reboot that a task asks for tells it when the engine permits it, which is not here.
        modes_told(&plan, &before, node)?;
    }
    let (planned, possible) = changes(&plan);
    let (mut made, _) = changes(&run);
    let mut most = made.clone();
    // By cause, because one process or module may block several tasks, each with other GPUs.
    let cause = |blocker: &Blocker| blocker.what.split("holds ").next().unwrap_or_default().to_owned();
    let mut blockers: Vec<String> =
        plan.reports.iter().flat_map(|report| &report.blockers).map(cause).collect();
    blockers.sort();
    blockers.dedup();
    let mut one = One { blocked: !blockers.is_empty(), ..One::default() };
    // One by one, because a run names one cause, and the next only once that is removed.
    while !blockers.is_empty() {
        let failed = failures(&run);
        let refuses =
            |cause: &String| failed.iter().any(|message| message.contains(&format!("{cause}holds ")));
        let (refusing, others): (Vec<String>, Vec<String>) = blockers.into_iter().partition(refuses);
        if refusing.is_empty() {
            return Err(format!("planned to be blocked by {others:?}, and the run said {failed:?}"));
        }
        refusing.iter().for_each(|cause| node.lift(cause));
        blockers = others;
        node.new_session();
        run = told(&mut table.cursor(Mode::Apply, defer)?, node)?;
        // Not the gate: the document that was planned is there already, so that this run opens what the boot unit would.
        let opens =
            |key: &Key| key.1 == (Subject::unit("gpufleet-keep.service"), Property::STATE, Layer::Live);
        for (key, count) in changes(&run).0.into_iter().filter(|(key, _)| !opens(key)) {
            *made.entry(key.clone()).or_insert(0) += count;
            let most = most.entry(key).or_insert(0);
            // Not the sum: what a reboot loses is made again in every run.
            *most = if play.reboots_always.is_some() { count.max(*most) } else { *most + count };
        }
    }
    let failed = failures(&run);
    (one.changes, one.resets, one.reboots) = (made.len(), node.resets, node.reboots);
    if failed.iter().any(|message| message.contains("holds GPU") || message.contains("in use")) {
        return Err(format!("the run was refused, and the plan said nothing of it: {failed:?}"));
    }
    let plan_failed = failures(&plan);
    if plan_failed.is_empty() != failed.is_empty() {
        // Not an error: plan and run both report that the value is forgotten.
        let cause = |message: &String| message.contains("persistence is off");
        let warned = plan
            .reports
            .iter()
            .flat_map(|report| &report.warnings)
            .any(|text| text.contains("persistence is off"));
        if !(warned && plan_failed.is_empty() && failed.iter().all(cause)) {
            return Err(format!("planned failures {plan_failed:?}, made {failed:?}, warned {warned}"));
        }
        one.forgotten = true;
        if play.keeps {
            // The task that `keep` adds comes after what failed.
            return Ok(one);
        }
    }
    if let (Some(planned), Some(made)) = (plan_failed.first(), failed.first()) {
        // Stops here: after a failure neither reports further changes.
        // What is not to be kept because the driver forgets it is refused by the plan, before the run finds it forgotten.
        let forgets = |why: &String| why.contains("persistence is off");
        return if planned == made || forgets(planned) && forgets(made) {
            Ok(one)
        } else {
            Err(format!("planned to fail with {planned}, failed with {made}"))
        };
    }
    same(&planned, &possible, &made, &most)?;
    if !failed.is_empty() {
        return Ok(one);
    }
    if let EndState::Failed { message, .. } = &run.end.state {
        return Err(format!("the run failed: {message}"));
    }
    let setters = node.setters();
    node.new_session();
    let (plan, defer) = table.plan(node)?;
    let (sure, possible) = changes(&plan);
    let second = told(&mut table.cursor(Mode::Apply, defer)?, node)?;
    let (made, _) = changes(&second);
    let setters_of_second = node.setters();
    let front = play.reboots_always.as_ref().map(|reboot| {
        let front = plan.reports.iter().take_while(|report| report.task != *reboot);
        front.flat_map(|report| &report.changes).collect::<Vec<_>>()
    });
    if let Some(front) = front {
        if !front.is_empty() {
            return Err(format!("before its reboot a second plan says {front:?}; the run did {setters:?}"));
        }
        // What the reboot loses is made again after it.
        same(&sure, &possible, &made, &made)?;
        one.rebooted_again = true;
        return Ok(one);
    }
    if !matches!(run.end.state, EndState::Done) || sure.keys().any(|key| key.4 >= Disruption::Reboot) {
        same(&sure, &possible, &made, &made)?;
        one.waits = true;
        return Ok(one);
    }
    if !sure.is_empty() || !possible.is_empty() {
        return Err(format!(
            "after the run a plan still says {sure:?} {possible:?}; the run did {setters:?}"
        ));
    }
    if !made.is_empty() || !setters_of_second.is_empty() || !matches!(second.end.state, EndState::Done) {
        return Err(format!(
            "the second run did {made:?} {setters_of_second:?}, and ended {:?}",
            second.end.state
        ));
    }
    one.again = true;
    if play.keeps {
        booted(&table, node)?;
        one.kept = true;
    }
    meddled(&table, node, random, &mut one)?;
    Ok(one)
}

/// Checks that what was planned was made, and nothing else but what only the run could tell. `most` is what one run
/// made, if several were needed.
fn same(planned: &Sure, possible: &[Possible], made: &Sure, most: &Sure) -> Result<(), String> {
    let mut odd = Vec::new();
    for (key, count) in planned {
        let real = made.get(key).copied().unwrap_or(0);
        if real < *count {
            odd.push(format!("planned and not made: {key:?}"));
        }
    }
    for (key, count) in most {
        let foreseen = planned.get(key).copied().unwrap_or(0);
        let maybe = possible.iter().any(|(task, what, to)| (task, what, to) == (&key.0, &key.1, &key.3));
        if foreseen < *count && !maybe {
            odd.push(format!("made and not planned: {key:?}"));
        }
    }
    if odd.is_empty() { Ok(()) } else { Err(odd.join("\n")) }
}
