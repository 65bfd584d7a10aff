//! `kernel_cmdline`: words of the kernel command line of every boot entry.
//!
//! Writing the configuration disturbs nothing. Words that the running kernel's command line lacks are reported as
//! awaiting a reboot. `words` edits lines by what [`gpufleet_protocol::cmdline`] knows of their words, `shell` and `defaults` read `/etc/default/grub`,
//! `sources` knows the files of the boot loaders, `menu` which kernel they start, `refused` the systems that are not
//! changed.
//!
//! `grubby` is not used where it is there: it edits the same entries, `kernelopts` and `/etc/kernel/cmdline`, but
//! replaces every word of a key that is given, so that `console=ttyS1` would cost the first console.

mod addons;
mod defaults;
mod menu;
mod refused;
mod shell;
mod sources;
mod systemd_boot;
mod words;

pub use words::split;

use std::{
    fs,
    path::{Path, PathBuf},
};

use gpufleet_protocol::{
    Awaiting, Change, Disruption, FailureKind, Property, Subject, change::Value as Typed,
    tasks::KernelCmdline,
};
use serde_json::{Map, Value, json};

use self::{
    sources::{Kind, Source, Sources},
    words::Judged,
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        files::{self, At, Ownership},
        tree,
    },
    process::Run,
    world::{Content, Effect, Entry, Owned},
};

/// A word of the command line becomes another, comes or goes.
fn change(word: &str, from: impl Into<Typed>, to: impl Into<Typed>, class: Disruption) -> Change {
    let parameter = word.split_once('=').map_or(word, |(name, _)| name).to_owned();
    Change::new(Subject::KernelCommandLine { parameter }, Property::VALUE, from, to, class)
}

/// Returns the words of the running kernel's command line.
///
/// # Errors
/// If it cannot be read.
pub fn running(node: &Node<'_>) -> Result<Vec<String>, Trouble> {
    let path = node.roots.proc("cmdline");
    Ok(words::split(&String::from_utf8_lossy(&fs::read(&path).at("read", &path)?)))
}

/// Returns the words that the next boot may have, as far as the files of a known boot loader tell.
pub fn next(node: &Node<'_>) -> Vec<String> {
    let nothing = KernelCmdline { add: Vec::new(), remove: Vec::new() };
    nothing.observe(node).map(|state| state.configured().concat()).unwrap_or_default()
}

/// A program that generates the boot loader's files, and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generator {
    path: PathBuf,
    arguments: Vec<String>,
}

#[derive(Debug)]
pub struct State {
    sources: Sources,
    /// The words of GRUB's defaults.
    grub_words: Option<Vec<String>>,
    running: Vec<String>,
    grub: Option<Generator>,
    /// Where it makes a `grub.cfg` if there is none.
    grub_cfg: PathBuf,
    /// Generators for `/etc/kernel/cmdline` without GRUB.
    plain: Vec<Generator>,
    /// Whether the boot loader uses `/etc/kernel/cmdline`, beside GRUB's defaults.
    feeds_boot_loader: bool,
    /// The program that edits GRUB's environment.
    environment: Option<PathBuf>,
    /// Whether a missing generator is an error; below a replaced root it is not.
    needs_generator: bool,
    /// The release of the running kernel, and of the one that the next boot starts, as far as files tell.
    kernels: (Option<String>, Option<String>),
    /// The words that a later installed kernel would get without `/etc/kernel/cmdline`, and the path of that file.
    later: Option<(PathBuf, Vec<String>)>,
    /// Where it is noted that the generators have to run, and whether it is.
    pending: (PathBuf, bool),
}

#[derive(Debug)]
pub enum Step {
    Write {
        path: PathBuf,
        text: String,
    },
    /// A new value of `kernelopts` in GRUB's environment.
    Environment {
        path: PathBuf,
        options: String,
    },
    Generate(Generator),
    Forget(PathBuf),
}

impl State {
    /// Returns files that hold a whole command line each.
    fn lines(&self) -> impl Iterator<Item = &Source> {
        self.sources.files.iter().filter(|file| file.kind != Kind::GrubDefaults)
    }

    /// Returns the possible command lines of the next boot, each as a list of words.
    pub fn configured(&self) -> Vec<Vec<String>> {
        let lines = self.lines().map(|file| self.sources.words_of(file));
        self.grub_words.iter().cloned().chain(lines).collect()
    }

    /// Whether the boot loader reads a `grub.cfg` that is made from GRUB's defaults.
    fn makes_grub_cfg(&self) -> bool {
        self.grub_words.is_some() && !self.sources.entries_count
    }

    /// Whether there is none, though a program is there to make it and nothing else boots the node.
    fn lacks_grub_cfg(&self) -> bool {
        self.grub.is_some()
            && self.sources.generated_files.is_empty()
            && self.sources.entries.is_empty()
            && self.sources.loader.is_none()
            && !self.sources.files.iter().any(|file| file.kind == Kind::Plain)
    }

    /// Returns whose word it is, if of a file that is neither `/etc/default/grub` nor a boot entry.
    fn owner(&self, word: &str) -> Option<String> {
        let main = |file: &&Source| {
            file.kind == Kind::GrubDefaults && file.path.file_name() == Some("grub".as_ref())
        };
        self.sources.files.iter().filter(|file| !main(file)).find_map(|file| {
            let (words, name) = match file.kind {
                Kind::GrubDefaults => (defaults::drop_in_words(file), ""),
                Kind::Environment => (self.sources.words_of(file), " (kernelopts)"),
                Kind::Plain | Kind::Entry => return None,
            };
            words::has(&words, word).then(|| format!("in {}{name}", file.path.display()))
        })
    }

    /// Returns the length in bytes of the longest line that a boot loader would give the kernel.
    fn longest(&self, task: &KernelCmdline) -> usize {
        // The boot loader adds these, and the files do not have them.
        let added = |line: &[String]| {
            let lacks = |word: &&String| {
                matches!(words::key(word).as_str(), "BOOT_IMAGE" | "initrd") && !line.contains(word)
            };
            self.running.iter().filter(lacks).map(|word| word.len() + 1).sum::<usize>()
        };
        let length = |line: &[String]| words::edited(task, line).join(" ").len() + added(line);
        let generated = self.sources.generated.iter().filter(|_| !self.sources.entries_count);
        let generated = generated.map(|line| {
            let words = words::split(line);
            length(words.get(2..).unwrap_or_default())
        });
        generated.chain(self.configured().iter().map(|line| length(line))).max().unwrap_or_default()
    }
}

/// Notes that the boot loader's files are older than what they are made from. They may be on partitions that are not mounted,
/// as Proxmox has them, so that nothing else tells after a program failed or the helper was killed.
const PENDING: &str = "/var/lib/gpufleet/boot-loader-pending";

/// The longest command line that the kernel keeps, in bytes; it cuts off the rest without a word. Source: kernel,
/// `COMMAND_LINE_SIZE` of x86 and arm64 is 2048, with the zero at the end.
const LONGEST: usize = 2047;

fn grub_generator(node: &Node<'_>, sources: &Sources) -> Option<Generator> {
    let tool = |name: &str| node.roots.tool(name);
    if let Some(path) = tool("update-grub") {
        return Some(Generator { path, arguments: Vec::new() });
    }
    let (path, folder) = match (tool("grub2-mkconfig"), tool("grub-mkconfig")) {
        (Some(path), _) => (path, "/boot/grub2"),
        (None, Some(path)) => (path, "/boot/grub"),
        (None, None) => return None,
    };
    let usual = node.roots.path(folder).join("grub.cfg");
    // Not always the usual place: on RHEL 8 with EFI, the file is only on the system partition.
    let there = |wanted: &Path| sources.generated_files.iter().any(|(path, _)| path == wanted);
    let target = match sources.generated_files.first() {
        Some((only, _)) if !there(&usual) => only.clone(),
        _ => usual,
    };
    Some(Generator { path, arguments: vec!["-o".to_owned(), target.display().to_string()] })
}

fn plain_generators(node: &Node<'_>) -> Vec<Generator> {
    if let Some(path) = node.roots.tool("proxmox-boot-tool") {
        return vec![Generator { path, arguments: vec!["refresh".to_owned()] }];
    }
    let Some(path) = node.roots.tool("kernel-install") else { return Vec::new() };
    let modules = node.roots.path("/usr/lib/modules");
    let modules = if modules.is_dir() { modules } else { node.roots.path("/lib/modules") };
    let Ok(versions) = fs::read_dir(&modules) else { return Vec::new() };
    versions
        .flatten()
        .filter_map(|version| {
            let name = version.file_name().into_string().ok()?;
            let inside = version.path().join("vmlinuz");
            let beside = node.roots.path(format!("/boot/vmlinuz-{name}"));
            let image = [inside, beside].into_iter().find(|image| image.is_file())?;
            let arguments = vec!["add".to_owned(), name, image.display().to_string()];
            Some(Generator { path: path.clone(), arguments })
        })
        .collect()
}

/// Returns the words that kernel-install uses without `/etc/kernel/cmdline` (kernel-install(8)): the running kernel's,
/// which are outdated until the reboot.
fn later(
    node: &Node<'_>,
    sources: &Sources,
    running: &[String],
) -> Result<Option<(PathBuf, Vec<String>)>, Trouble> {
    let path = node.roots.etc("kernel/cmdline");
    let has = |kind| sources.files.iter().any(|file| file.kind == kind);
    if has(Kind::Plain) || !has(Kind::Entry) {
        return Ok(None);
    }
    let vendor = node.world.read(&node.roots.path("/usr/lib/kernel/cmdline"))?;
    let words = match vendor {
        Some(bytes) => words::split(&String::from_utf8_lossy(&bytes)),
        None => running
            .iter()
            .filter(|word| !matches!(words::key(word).as_str(), "BOOT_IMAGE" | "initrd"))
            .cloned()
            .collect(),
    };
    Ok(Some((path, words)))
}

impl NodeKind for KernelCmdline {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let sources = sources::read(node)?;
        if sources.files.is_empty() {
            return Err(Trouble::invalid(
                "there is no boot loader configuration that gpufleet knows: neither /etc/default/grub nor \
                 /etc/kernel/cmdline nor entries of the Boot Loader Specification",
            ));
        }
        let has_defaults = sources.files.iter().any(|file| file.kind == Kind::GrubDefaults);
        let grub_words = match has_defaults {
            true => Some(sources.grub_words(&sources.files).map_err(|why| {
                Trouble::io(format!(
                    "what the kernel command line will be is not known: {why}; written out in full there, it is"
                ))
            })?),
            false => None,
        };
        let running = running(node)?;
        let pending = node.roots.path(PENDING);
        let mut state = State {
            pending: (pending.clone(), node.world.read(&pending)?.is_some()),
            grub: grub_generator(node, &sources),
            grub_cfg: node.roots.path("/boot/grub/grub.cfg"),
            later: later(node, &sources, &running)?,
            sources,
            grub_words,
            running,
            kernels: (None, None),
            plain: plain_generators(node),
            feeds_boot_loader: !has_defaults || node.roots.tool("proxmox-boot-tool").is_some(),
            environment: ["grub2-editenv", "grub-editenv"].iter().find_map(|name| node.roots.tool(name)),
            needs_generator: node.roots.is_real(),
        };
        if node.world.rebooted() {
            state.running = state.configured().into_iter().next().unwrap_or_default();
        } else {
            let release = fs::read_to_string(node.roots.proc("sys/kernel/osrelease")).ok();
            state.kernels = (release.map(|text| text.trim().to_owned()), menu::next_kernel(&state.sources));
        }
        Ok(state)
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let of_later = plan_later(self, state, &mut plan);
        let grub_changed = plan_defaults(self, state, &mut plan)?;
        let plain_changed = plan_lines(self, state, &mut plan)?;
        let configured: Vec<Judged> =
            state.configured().iter().map(|line| words::judged(self, line)).collect();
        let running = words::judged(self, &state.running);
        for word in words::declared(self) {
            let mut about = configured.iter().filter_map(|line| line.about(&word));
            let Some(wrong) = about.next() else { continue };
            let from = match wrong.instead.first() {
                Some(other) => other.into(),
                None if wrong.present => format!("{word} in another order").into(),
                None => Typed::Absent,
            };
            let class = if running.about(&word).is_some() { Disruption::Reboot } else { Disruption::Live };
            let change = change(&word, from, &word, class);
            let owner = wrong.instead.first().and_then(|other| state.owner(other));
            plan.changes.push(Change { note: owner, ..change });
        }
        let mut gone: Vec<&String> = Vec::new();
        for word in configured.iter().flat_map(|line| &line.gone) {
            if !gone.contains(&word) {
                gone.push(word);
                let class = if running.gone.contains(word) { Disruption::Reboot } else { Disruption::Live };
                let change = change(word, word, Typed::Absent, class);
                plan.changes.push(Change { note: state.owner(word), ..change });
            }
        }
        let older =
            state.sources.generated.iter().any(|line| !words::judged(self, &words::split(line)).is_right());
        let stale = state.makes_grub_cfg() && (older || state.lacks_grub_cfg() || state.pending.1);
        if state.makes_grub_cfg() && (grub_changed || stale) {
            match &state.grub {
                Some(generator) => plan.steps.push(Step::Generate(generator.clone())),
                None if state.needs_generator => {
                    return Err(Trouble::invalid(
                        "/etc/default/grub is there, but none of update-grub, grub2-mkconfig and grub-mkconfig is",
                    ));
                }
                None => {}
            }
        }
        if stale && plan.changes.is_empty() && !plan.steps.is_empty() {
            let to = self.add.first().or(self.remove.first()).map_or("regenerated", String::as_str);
            let (from, why) = match state.lacks_grub_cfg() {
                true => ("in no grub.cfg", "there is no grub.cfg"),
                false if older => ("not in grub.cfg", "grub.cfg is older than /etc/default/grub"),
                false => ("perhaps not in grub.cfg", "an earlier run ended before grub.cfg was made"),
            };
            plan.changes.push(change(to, from, to, Disruption::Reboot).with_note(why));
        }
        plan_plain(self, state, plain_changed, &mut plan);
        note_pending(state, &mut plan);
        if plan.changes.is_empty() {
            plan.changes.extend(of_later);
        }
        self.judge_boot(state, &mut plan)?;
        plan.awaiting = awaiting(&running);
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let owned = Owned { uid: 0, gid: 0, mode: 0o644 };
        let file = |path: &PathBuf, text: String| Effect::Path {
            path: path.clone(),
            entry: Entry::File { owned, content: Content::Known(text.into_bytes().into()) },
        };
        let effects = plan.steps.iter().flat_map(|step| match step {
            Step::Write { path, text } => vec![file(path, text.clone())],
            Step::Environment { path, options } => {
                let mut variables: Vec<(&str, &str)> = state
                    .sources
                    .variables
                    .iter()
                    .filter(|(name, _)| *name != "kernelopts")
                    .map(|(name, value)| (name.as_str(), value.as_str()))
                    .collect();
                variables.push(("kernelopts", options));
                vec![file(path, variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect())]
            }
            Step::Generate(generator) if Some(generator) == state.grub.as_ref() && state.lacks_grub_cfg() => {
                let words = words::edited(self, state.grub_words.as_deref().unwrap_or_default());
                vec![file(&state.grub_cfg, format!("linux /vmlinuz root=/ {}\n", words.join(" ")))]
            }
            Step::Generate(_) => {
                let generated = state.sources.generated_files.iter();
                generated.map(|(path, text)| file(path, sources::regenerated(self, text))).collect()
            }
            Step::Forget(path) => vec![Effect::Path { path: path.clone(), entry: Entry::Absent }],
        });
        effects.collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        for step in &plan.steps {
            let run = match step {
                Step::Write { path, text } => {
                    if let Some(folder) = path.parent() {
                        tree::make_dirs(folder)?;
                    }
                    files::replace(path, text.as_bytes(), Ownership::default())?;
                    continue;
                }
                Step::Environment { path, options } => {
                    let program = state.environment.as_ref().ok_or_else(no_editor)?;
                    let set = format!("kernelopts={options}");
                    Run::new(program).arg(path).args(["set", &set])
                }
                Step::Generate(generator) => Run::new(&generator.path).args(&generator.arguments),
                Step::Forget(path) => {
                    tree::spot(path)?.remove().at("remove", path)?;
                    continue;
                }
            };
            let program = match step {
                Step::Generate(generator) => Some(&generator.path),
                _ => state.environment.as_ref(),
            };
            let name = program.and_then(|path| path.file_name()).unwrap_or_default();
            let name = name.to_string_lossy().into_owned();
            (node.progress)(format!("running {name}"));
            let done = run.user(node.user.clone()).finish(node.deadline)?;
            if !done.exit.success() {
                let written = plan.steps.iter().filter_map(|step| match step {
                    Step::Write { path, .. } if *path != state.pending.0 => Some(path.display().to_string()),
                    _ => None,
                });
                let written: Vec<String> = written.collect();
                let stays = match (step, written.is_empty()) {
                    (Step::Generate(_), false) => format!(
                        "; {} stays as written, the boot loader does not have it yet, and the next run makes up for that",
                        written.join(", ")
                    ),
                    _ => String::new(),
                };
                return Err(Trouble::failed(FailureKind::Exit, format!("{}{stays}", done.complaint(&name))));
            }
        }
        Ok(Map::new())
    }

    fn data(&self, state: &State) -> Map<String, Value> {
        let mut data = Map::new();
        data.insert("running".to_owned(), json!(state.running.join(" ")));
        let files: Vec<_> = state.sources.files.iter().map(|file| file.path.display().to_string()).collect();
        data.insert("files".to_owned(), json!(files));
        let (running, next) = &state.kernels;
        data.insert("kernel".to_owned(), json!(running));
        data.insert("next_kernel".to_owned(), json!(next));
        data
    }
}

/// Judges what the next boot makes of the configured line.
trait AtBoot {
    fn judge_boot(&self, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble>;
}

impl AtBoot for KernelCmdline {
    fn judge_boot(&self, state: &State, plan: &mut Plan<Step>) -> Result<(), Trouble> {
        let longest = state.longest(self);
        if longest > LONGEST {
            let told = format!(
                "the kernel command line has {longest} bytes, and the kernel keeps {LONGEST}: it cuts off the rest without a \
                 word"
            );
            let unchanged = Self { add: Vec::new(), remove: Vec::new() };
            if longest > state.longest(&unchanged) {
                return Err(Trouble::invalid(format!("{told}; remove words that are not needed any more")));
            }
            plan.warnings.push(told);
        }
        if let (Some(running), Some(next)) = &state.kernels
            && running != next
        {
            plan.warnings.push(format!("the next boot starts the kernel {next}, not {running}, which runs"));
        }
        Ok(())
    }
}

fn no_editor() -> Trouble {
    Trouble::invalid(
        "the boot entries refer to GRUB's environment, and neither grub2-editenv nor grub-editenv is there to edit it",
    )
}

/// Returns what would still be wrong with a line after all possible edits.
fn stuck(state: &State, judged: &Judged, otherwise: impl Fn(&str) -> String) -> Option<Trouble> {
    let tuned = state.sources.tuned.as_ref();
    let of_tuned = |word: &&String| tuned.is_some_and(|(_, words)| words.contains(word));
    let instead = judged.wrong.iter().flat_map(|wrong| &wrong.instead);
    if let (Some(word), Some((path, _))) = (judged.gone.iter().chain(instead).find(of_tuned), tuned) {
        return Some(Trouble::invalid(format!(
            "tuned adds `{word}` at boot ({}); another profile, or its section [bootloader] without the word, would end \
             that",
            path.display()
        )));
    }
    let wrong = judged.wrong.iter().map(|wrong| &wrong.word);
    wrong.chain(&judged.gone).next().map(|word| Trouble::invalid(otherwise(word)))
}

/// Plans the edits of GRUB's defaults; returns whether there are any.
fn plan_defaults(task: &KernelCmdline, state: &State, plan: &mut Plan<Step>) -> Result<bool, Trouble> {
    let Some(total) = state.grub_words.as_ref().filter(|total| !words::judged(task, total).is_right()) else {
        return Ok(false);
    };
    let sources = &state.sources;
    let mut files: Vec<Source> =
        sources.files.iter().filter(|file| file.kind == Kind::GrubDefaults).cloned().collect();
    for file in &mut files {
        let edit = |words: &[String]| words::pruned(task, &words::merged(task, words, total), total);
        file.text = defaults::edited(file, &edit).map_err(Trouble::invalid)?;
    }
    let reread = |files: &[Source]| sources.grub_words(files).map_err(Trouble::io);
    let lacking: Vec<String> = words::judged(task, &reread(&files)?)
        .wrong
        .iter()
        .filter(|wrong| !wrong.present)
        .flat_map(|wrong| words::split(&wrong.word))
        .collect();
    for word in &lacking {
        if let Some(last) = words::overruled(word, &reread(&files)?) {
            return Err(Trouble::invalid(format!(
                "the kernel reads only the last `{}`, and `{last}` comes from where gpufleet cannot add `{word}` to it; \
                 write one list there",
                words::key(word)
            )));
        }
    }
    if !lacking.is_empty() {
        let lacking = KernelCmdline { add: lacking, remove: Vec::new() };
        add_to(&lacking, sources.drop_in.as_ref(), &mut files);
    }
    let then = words::judged(task, &reread(&files)?);
    let behind = |word: &str| {
        let place = sources.drop_in.as_ref().or(sources.files.first().map(|file| &file.path));
        let place = place.map(|path| path.display().to_string()).unwrap_or_default();
        format!(
            "a line behind what gpufleet writes into {place} sets the kernel command line anew, so that `{word}` cannot be had"
        )
    };
    if let Some(trouble) = stuck(state, &then, behind) {
        return Err(trouble);
    }
    let before = |path: &Path| sources.files.iter().find(|file| file.path == path).map(|file| &file.text);
    let changed: Vec<Source> =
        files.into_iter().filter(|file| before(&file.path) != Some(&file.text)).collect();
    let any = !changed.is_empty();
    plan.steps.extend(changed.into_iter().map(|file| Step::Write { path: file.path, text: file.text }));
    Ok(any)
}

/// Adds words to the drop-in, or to the main file if the distribution reads no drop-ins.
fn add_to(lacking: &KernelCmdline, drop_in: Option<&PathBuf>, files: &mut Vec<Source>) {
    let Some(path) = drop_in else {
        if let Some(main) = files.first_mut() {
            main.text = defaults::with_words(main, lacking);
        }
        return;
    };
    let had = files.iter().find(|file| file.path == *path).map(defaults::drop_in_words).unwrap_or_default();
    let text = defaults::drop_in(&words::completed(lacking, &had));
    files.retain(|file| file.path != *path);
    // The main file comes first, then the folder's files by name.
    let at = files.iter().position(|file| file.path.parent() == path.parent() && file.path > *path);
    let ours = Source { path: path.clone(), kind: Kind::GrubDefaults, text };
    files.insert(at.unwrap_or(files.len()), ours);
}

/// Plans the edits of files that hold a whole line; returns whether `/etc/kernel/cmdline` changes.
fn plan_lines(task: &KernelCmdline, state: &State, plan: &mut Plan<Step>) -> Result<bool, Trouble> {
    let mut plain_changed = false;
    for file in state.lines() {
        if words::judged(task, &state.sources.words_of(file)).is_right() {
            continue;
        }
        let text = file.edited(task);
        let now = Source { text: text.clone(), ..file.clone() };
        let then = words::judged(task, &state.sources.words_of(&now));
        let place = file.path.display();
        if let Some(trouble) = stuck(state, &then, |word| format!("`{word}` cannot be had in {place}")) {
            return Err(trouble);
        }
        plain_changed |= file.kind == Kind::Plain;
        plan.steps.push(match file.kind {
            Kind::Environment if state.environment.is_none() && state.needs_generator => {
                return Err(no_editor());
            }
            Kind::Environment => Step::Environment { path: file.path.clone(), options: text },
            _ => Step::Write { path: file.path.clone(), text },
        });
    }
    Ok(plain_changed)
}

/// Plans `/etc/kernel/cmdline` where it is missing and a later kernel would lack words; returns the change in case there is
/// no other. It comes before the boot entries, which would look right after a helper was killed between the two.
fn plan_later(task: &KernelCmdline, state: &State, plan: &mut Plan<Step>) -> Option<Change> {
    let (path, words) = state.later.as_ref()?;
    let judged = words::judged(task, words);
    let first = match (judged.wrong.first(), judged.gone.first()) {
        (Some(wrong), _) => change(&wrong.word, Typed::Absent, &wrong.word, Disruption::Live),
        (None, Some(gone)) => change(gone, gone, Typed::Absent, Disruption::Live),
        (None, None) => return None,
    };
    let text = format!("{}\n", words::edited(task, words).join(" "));
    plan.steps.push(Step::Write { path: path.clone(), text });
    Some(first.with_note(format!("of kernels that are installed later, in {}", path.display())))
}

/// Plans the programs that bring `/etc/kernel/cmdline` into the boot loader.
fn plan_plain(task: &KernelCmdline, state: &State, changed: bool, plan: &mut Plan<Step>) {
    if !(changed || state.pending.1) || !state.feeds_boot_loader || state.plain.is_empty() {
        return;
    }
    plan.steps.extend(state.plain.iter().cloned().map(Step::Generate));
    if plan.changes.is_empty() {
        let word =
            words::declared(task).into_iter().next().or(task.remove.first().cloned()).unwrap_or_default();
        let change = change(&word, "not in the boot loader", "as in /etc/kernel/cmdline", Disruption::Live);
        plan.changes.push(change.with_note("an earlier run ended before the boot loader had it"));
    }
}

/// Notes what is to be generated before anything is written, and takes the note away behind the last generator.
fn note_pending(state: &State, plan: &mut Plan<Step>) {
    let (note, is_noted) = &state.pending;
    if !plan.steps.iter().any(|step| matches!(step, Step::Generate(_))) {
        return;
    }
    if !is_noted {
        plan.steps.insert(0, Step::Write { path: note.clone(), text: String::new() });
    }
    plan.steps.push(Step::Forget(note.clone()));
}

/// Returns the words that the running kernel still lacks, or still has.
fn awaiting(running: &Judged) -> Vec<Awaiting> {
    let wrong = running.wrong.iter().map(|wrong| match (wrong.present, wrong.instead.first()) {
        (false, _) => format!("the running kernel was booted without `{}`", wrong.word),
        (true, Some(other)) => format!("the running kernel was booted with `{other}`"),
        (true, None) => {
            format!("the running kernel was booted with `{}` in another order", wrong.word)
        }
    });
    let gone = running.gone.iter().map(|word| format!("the running kernel was booted with `{word}`"));
    wrong.chain(gone).map(|reason| Awaiting { activation: Disruption::Reboot, reason }).collect()
}

/// Returns the release of the kernel that the next boot starts; `None` if the boot loader's files do not tell.
pub(in crate::tasks) fn next_kernel(node: &Node<'_>) -> Option<String> {
    menu::next_kernel(&sources::read(node).ok()?)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
