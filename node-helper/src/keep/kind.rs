//! `gpu_keep`: writes what the node asserts at each boot, and removes it.

use std::{
    io,
    path::{Path, PathBuf},
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Layer, Property, Subject,
    change::Value as Typed,
    keep::{KeptState, Sealed},
    op::KeepState,
    tasks::KeepPresence,
};
use serde_json::{Map, Value};

use super::{PROGRAM, Pin, Store, declared, gate, machine_id, may, parsed, seal, units, write};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        diff,
        files::{self, At, FileError, Ownership},
        roots::Roots,
        tree,
    },
    world::{Content, Effect, Entry, Owned, World},
};

const OWN: &str = "/proc/self/exe";
/// Larger than the node file, in bytes.
const PROGRAM_LIMIT: u64 = 64 << 20;

/// A file that is not as it should be.
#[derive(Clone, Debug)]
struct Wrong {
    path: PathBuf,
    text: String,
    /// Whether there is none at all.
    missing: bool,
}

#[derive(Debug)]
pub struct State {
    store: Store,
    /// The document that the node has, or why it would not act on it; `None` if it has none.
    kept: Option<Result<KeptState, String>>,
    pin: Option<Pin>,
    wanted: Option<KeptState>,
    wrong: Vec<Wrong>,
    /// Digest and size of the helper's own file, if the installed program is another; with whether there is any.
    program: Option<(String, u64, bool)>,
    program_path: PathBuf,
    linked: bool,
    link: PathBuf,
    /// Files of gpufleet that nothing needs.
    strays: Vec<PathBuf>,
    open: bool,
    /// An earlier task of a prediction reboots the node.
    rebooted: bool,
}

#[derive(Debug)]
pub enum Step {
    Program,
    File(PathBuf, String),
    Remove(PathBuf),
    Link,
    Document,
    Open,
}

/// Returns the kinds that a document declares, as one text.
fn summary(kept: &KeptState) -> String {
    let mut counted: Vec<(&str, usize)> = Vec::new();
    for member in &kept.members {
        let name = member.task.kind();
        match counted.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += 1,
            None => counted.push((name, 1)),
        }
    }
    let mut words: Vec<String> = counted
        .into_iter()
        .map(|(name, count)| if count == 1 { name.to_owned() } else { format!("{count}x {name}") })
        .collect();
    if kept.holds() {
        words.push(format!("else hold {}", kept.policy.hold.join(" and ")));
    }
    words.join(", ")
}

/// Returns the lines that people compare.
fn lines(kept: Option<&KeptState>) -> String {
    let Some(kept) = kept else { return String::new() };
    let declared = serde_json::json!({
        "machine": kept.machine_id, "gpus": kept.gpus, "policy": kept.policy, "members": kept.members
    });
    serde_json::to_string_pretty(&declared).map(|text| text + "\n").unwrap_or_default()
}

/// Returns the drop-ins of gpufleet for any unit.
fn drop_ins(world: &World, roots: &Roots) -> Result<Vec<PathBuf>, FileError> {
    let mut found = Vec::new();
    for name in world.names(&roots.path(units::FOLDER))? {
        let Some(unit) = name.strip_suffix(".d") else { continue };
        let path = units::drop_in_path(roots, unit);
        if matches!(world.entry(&path), Ok(Entry::File { .. })) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Returns everything that a kept state leaves on a node.
fn all(world: &World, roots: &Roots) -> Result<Vec<PathBuf>, FileError> {
    let store = Store::of(roots);
    let unit = roots.path(units::FOLDER).join(units::UNIT);
    let mut paths = vec![roots.path(units::WANTS)];
    paths.extend(drop_ins(world, roots)?);
    paths.extend([unit, store.state(), store.pin(), store.boots_file(), store.alive(), roots.path(PROGRAM)]);
    let mut there = Vec::new();
    for path in paths {
        if world.entry(&path)? != Entry::Absent {
            there.push(path);
        }
    }
    Ok(there)
}

/// Removes what the node keeps and the unit that asserts it.
///
/// # Errors
/// If something cannot be removed; the rest is removed.
pub fn remove(roots: &Roots) -> Result<(), String> {
    if !may(roots) {
        let there = roots.path(PROGRAM).exists() || roots.path(units::FOLDER).join(units::UNIT).exists();
        let why =
            "the node asserts a state of its GPUs at each boot, which only root can remove: clean it with -b";
        return if there { Err(why.to_owned()) } else { Ok(()) };
    }
    let paths = all(&World::real(), roots).map_err(|error| error.to_string())?;
    let problems: Vec<String> =
        paths.iter().filter_map(|path| unlink(path).err()).map(|error| error.to_string()).collect();
    let _ = gate::shut(roots);
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

pub(super) fn unlink(path: &Path) -> Result<(), FileError> {
    let done = tree::spot(path).and_then(|spot| {
        spot.remove().at("remove", path)?;
        spot.dir().sync();
        Ok(())
    });
    match done {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// The running program.
fn own_file(roots: &Roots) -> Result<std::fs::File, FileError> {
    let path = roots.path(OWN);
    std::fs::File::open(&path).at("read", path)
}

pub(super) fn read(world: &World, path: &Path) -> Result<Option<Vec<u8>>, Trouble> {
    Ok(world.read(path)?.map(|bytes| bytes.to_vec()))
}

/// Returns the document if a boot would act on it, or why it would not.
pub(super) fn judged(
    world: &World,
    roots: &Roots,
    sealed: &Sealed,
    pin: Option<&Pin>,
) -> Result<KeptState, String> {
    // What an earlier task of a prediction put there has no signature.
    match world.predicts() && sealed.seal.signature.is_empty() {
        true => seal::document(sealed),
        false => seal::check(sealed, pin, machine_id(roots).as_deref()),
    }
}

impl NodeKind for KeepState {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let (roots, world) = (node.roots, &node.world);
        let store = Store::of(roots);
        let wanted = match &self.sealed {
            Some(sealed) => Some(seal::document(sealed).map_err(Trouble::invalid)?),
            None => None,
        };
        let pin = parsed::<Pin>(&store.pin(), read(world, &store.pin())?.as_deref()).map_err(Trouble::io)?;
        let sealed = parsed::<Sealed>(&store.state(), read(world, &store.state())?.as_deref());
        let kept = match sealed.as_ref() {
            Ok(None) => None,
            Err(why) => Some(Err(why.clone())),
            Ok(Some(sealed)) => Some(judged(world, roots, sealed, pin.as_ref())),
        };
        let foreseen =
            world.predicts() && matches!(&sealed, Ok(Some(sealed)) if sealed.seal.signature.is_empty());
        let open = match &sealed {
            Ok(Some(sealed)) => foreseen || gate::is_open(roots, sealed),
            _ => false,
        };
        let mut wrong = Vec::new();
        let needed = wanted.as_ref().map(|wanted| units::files(roots, wanted)).unwrap_or_default();
        for (path, text) in &needed {
            let found = read(world, path)?;
            if found.as_deref() != Some(text.as_bytes()) {
                wrong.push(Wrong { path: path.clone(), text: text.clone(), missing: found.is_none() });
            }
        }
        let program_path = roots.path(PROGRAM);
        let program = match &wanted {
            Some(_) => {
                let (own, size) = files::sha256_of(own_file(roots)?).at("read", OWN)?;
                let there = world.entry(&program_path)?;
                let same = match &there {
                    Entry::File { content, owned } if owned.mode & 0o111 != 0 => {
                        world.digest(content, node.deadline)?.0 == own
                    }
                    _ => false,
                };
                (!same).then(|| (own, size, there == Entry::Absent))
            }
            None => None,
        };
        let strays = match &wanted {
            Some(_) => {
                let unneeded = |path: &PathBuf| !needed.iter().any(|(needed, _)| needed == path);
                drop_ins(world, roots)?.into_iter().filter(unneeded).collect()
            }
            None => all(world, roots)?,
        };
        let link = roots.path(units::WANTS);
        let linked = matches!(world.entry(&link)?, Entry::Link { .. });
        Ok(State {
            store,
            kept,
            pin,
            wanted,
            wrong,
            program,
            program_path,
            linked,
            link,
            strays,
            open,
            rebooted: world.rebooted(),
        })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let live = |subject, property, from: Typed, to: Typed| {
            Change::new(subject, property, from, to, Disruption::Live)
        };
        let now = match &state.kept {
            None => Typed::Absent,
            Some(Ok(kept)) => Typed::from(summary(kept)),
            Some(Err(why)) => Typed::from(format!("unusable ({why})")),
        };
        let Some(wanted) = &state.wanted else {
            if !state.strays.is_empty() {
                plan.steps.extend(state.strays.iter().cloned().map(Step::Remove));
                let from = if state.kept.is_none() { Typed::from("only remains") } else { now };
                plan.changes.push(live(Subject::KeptState, Property::STATE, from, Typed::Absent));
            }
            return Ok(plan);
        };
        let key = self.sealed.as_ref().map_or("", |sealed| &sealed.seal.key);
        if let Some(pin) = state.pin.as_ref().filter(|pin| !key.is_empty() && pin.key != key) {
            return Err(Trouble::failed(
                FailureKind::Refused,
                format!(
                    "the node keeps a state that another key has signed ({}…, this controller's is {}…): give the \
                     same key with `--keep-key`, or remove the kept state first with `gpufleet keep remove`",
                    pin.key.get(..16).unwrap_or_default(),
                    key.get(..16).unwrap_or_default()
                ),
            ));
        }
        if let Some(pin) = state.pin.as_ref().filter(|_| key.is_empty()) {
            plan.warnings.push(format!(
                "the node's kept state is signed by the key {}…, and this controller has none: a run is refused unless it \
                 has that key",
                pin.key.get(..16).unwrap_or_default()
            ));
        }
        if let Some((digest, size, missing)) = &state.program {
            let from = if *missing { Typed::Absent } else { Typed::from("another version") };
            let to =
                Typed::Digest { algorithm: "sha256".to_owned(), value: digest.clone(), bytes: Some(*size) };
            let subject = Subject::file(PROGRAM);
            plan.push(Step::Program, live(subject, Property::CONTENT, from, to));
        }
        for wrong in &state.wrong {
            let digest = files::sha256(wrong.text.as_bytes());
            let from = if wrong.missing { Typed::Absent } else { Typed::from("other content") };
            let to = Typed::Digest {
                algorithm: "sha256".to_owned(),
                value: digest,
                bytes: Some(wrong.text.len() as u64),
            };
            let subject = Subject::file(wrong.path.display().to_string());
            plan.push(
                Step::File(wrong.path.clone(), wrong.text.clone()),
                live(subject, Property::CONTENT, from, to),
            );
        }
        for stray in &state.strays {
            let subject = Subject::file(stray.display().to_string());
            let change =
                live(subject, Property::CONTENT, Typed::from("a unit that no longer waits"), Typed::Absent);
            plan.push(Step::Remove(stray.clone()), change);
        }
        plan.warnings.extend(self.dropped.iter().cloned());
        let old = state.kept.as_ref().and_then(|kept| kept.as_ref().ok());
        let same = old.is_some_and(|old| old.declares_as(wanted));
        if !same && state.pin.as_ref().is_some_and(|pin| wanted.serial < pin.serial) {
            let why = "the node keeps a newer state than this one: it was signed by a controller whose clock is ahead of \
                       this one's; set the clocks, or remove the kept state first with `gpufleet keep remove`";
            return Err(Trouble::failed(FailureKind::Refused, why));
        }
        if !same {
            let mut change = live(Subject::KeptState, Property::STATE, now, Typed::from(summary(wanted)));
            let difference = diff::unified("kept state", &lines(old), &lines(Some(wanted)));
            change.diff = Some(difference).filter(|text| !text.is_empty());
            plan.push(Step::Document, change);
        }
        if !state.linked {
            let change = live(
                Subject::unit(units::UNIT),
                Property::STATE,
                Typed::from("disabled"),
                Typed::from("enabled"),
            );
            plan.push(Step::Link, change.at(Layer::Boot));
        }
        if !same {
            // Another document closes it, so that this is a part of writing the document.
            plan.steps.push(Step::Open);
        } else if !state.open || state.rebooted {
            let (subject, from, to) = match wanted.holds() {
                true => (Subject::unit(wanted.policy.hold.join(", ")), "held", "may start"),
                false => (Subject::unit(units::UNIT), "not asserted in this boot", "proven by this run"),
            };
            let opened = live(subject, Property::STATE, Typed::from(from), Typed::from(to));
            match state.rebooted {
                // The unit of that boot opens it, if the run does not take the node over before.
                true => plan.changes.push(opened.possible()),
                false => plan.push(Step::Open, opened),
            }
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let file = |path: &Path, mode, content| Effect::Path {
            path: path.to_owned(),
            entry: Entry::File { owned: Owned { uid: 0, gid: 0, mode }, content },
        };
        let mut effects = Vec::new();
        for step in &plan.steps {
            match step {
                Step::Program => {
                    if let Some((sha256, size, _)) = &state.program {
                        let content = Content::Digest { sha256: sha256.clone(), size: *size };
                        effects.push(file(&state.program_path, 0o755, content));
                    }
                }
                Step::File(path, text) => {
                    effects.push(file(path, 0o644, Content::Known(text.as_bytes().into())))
                }
                Step::Remove(path) => effects.push(Effect::Path { path: path.clone(), entry: Entry::Absent }),
                Step::Link => effects.push(Effect::Path {
                    path: state.link.clone(),
                    entry: Entry::Link {
                        owned: Owned { uid: 0, gid: 0, mode: 0o777 },
                        target: PathBuf::from("../").join(units::UNIT),
                    },
                }),
                Step::Document => {
                    let mut sealed = self.sealed.clone().unwrap_or_default();
                    sealed.seal.signature.clear();
                    let bytes = serde_json::to_vec(&sealed).unwrap_or_default();
                    effects.push(file(&state.store.state(), 0o600, Content::Known(bytes.into())));
                }
                Step::Open => {}
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
        let roots = node.roots;
        let sealed = self.sealed.as_ref();
        if let (KeepPresence::Present, Some(sealed)) = (self.policy.state, sealed)
            && plan.steps.iter().any(|step| matches!(step, Step::Document))
        {
            // The same check as at boot, so that nothing is written that a boot would refuse.
            let serial = state.pin.as_ref().map_or(0, |pin| pin.serial);
            let pin = Pin { key: sealed.seal.key.clone(), serial };
            seal::check(sealed, Some(&pin), machine_id(roots).as_deref()).map_err(|why| {
                Trouble::failed(FailureKind::Refused, format!("{why}; nothing was written"))
            })?;
        }
        for step in &plan.steps {
            match step {
                Step::Program => install(roots, &state.program_path)?,
                Step::File(path, text) => put(path, text)?,
                Step::Remove(path) => unlink(path)?,
                Step::Link => {
                    if let Some(folder) = state.link.parent().filter(|folder| !folder.exists()) {
                        tree::make_dirs(folder)?;
                    }
                    let spot = tree::spot(&state.link)?;
                    spot.link_to(&PathBuf::from("../").join(units::UNIT)).at("link", &state.link)?;
                    spot.dir().sync();
                }
                Step::Document => {
                    let Some(sealed) = sealed else { continue };
                    write(&state.store.state(), sealed)?;
                    // After the document: a power cut between the two leaves a lower pin, which is no obstacle.
                    let serial = state.wanted.as_ref().map_or(0, |wanted| wanted.serial);
                    write(&state.store.pin(), &Pin { key: sealed.seal.key.clone(), serial })?;
                }
                Step::Open => {
                    // The document that the node has now; this task's may differ from it in when it was signed.
                    let path = state.store.state();
                    let now = super::read::<Sealed>(&path).map_err(Trouble::io)?;
                    if let Some(now) = now {
                        gate::open(roots, &now)?;
                        declared::forget(roots)?;
                    }
                }
            }
        }
        if state.wanted.is_none() && !plan.steps.is_empty() {
            gate::shut(roots)?;
        }
        Ok(Map::new())
    }
}

fn put(path: &Path, text: &str) -> Result<(), FileError> {
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        tree::make_dirs(folder)?;
    }
    files::replace(path, text.as_bytes(), Ownership { mode: Some(0o644), ..Ownership::default() })
}

/// Installs the running file under its own name, because pushed files are removed when they are no longer used.
fn install(roots: &Roots, path: &Path) -> Result<(), FileError> {
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        tree::make_dirs(folder)?;
        tree::own(folder, Ownership { mode: Some(0o755), ..Ownership::default() })?;
    }
    let mut own = io::Read::take(own_file(roots)?, PROGRAM_LIMIT);
    let mut fresh = files::Fresh::beside(path)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut own, &mut bytes).at("read", OWN)?;
    if bytes.len() as u64 == PROGRAM_LIMIT {
        return Err(FileError::new("read", OWN, io::Error::from(io::ErrorKind::FileTooLarge)));
    }
    fresh.write_all(&bytes)?;
    fresh.own(Ownership { mode: Some(0o755), ..Ownership::default() })?;
    fresh.place()
}
