//! containerd and CRI-O: whether they know NVIDIA's runtime, by the settings that their next start reads.
//!
//! `nvidia-ctk` writes those settings: a small file of one's own would lose what others have set, because containerd
//! before 2.0 replaces a plugin's whole section by that of a later file.

use std::{path::Path, time::Duration};

use gpufleet_protocol::{Change, Disruption, Property, Subject, change::Value as Typed};
use toml_edit::{DocumentMut, Item, TableLike};

use crate::{
    declare::{Node, Trouble},
    os::units,
    tasks::{started, tool},
};

/// Largest configuration, in bytes.
const LARGEST: u64 = 4 * 1024 * 1024;
/// Time limit of a program that prints its settings.
const ANSWER: Duration = Duration::from_secs(30);
const RUNTIME: &str = "nvidia";
const PROGRAM: &str = "nvidia-container-runtime";
/// Where runtimes look for CDI specifications. Source: CDI specification; containerd and CRI-O have them as defaults.
const CDI_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cri {
    Containerd,
    Crio,
}

impl Cri {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Crio => "crio",
        }
    }

    pub const fn unit(self) -> &'static str {
        match self {
            Self::Containerd => "containerd.service",
            Self::Crio => "crio.service",
        }
    }

    /// The main file, and the folder of those that are read after it.
    const fn places(self) -> (&'static str, &'static str) {
        match self {
            Self::Containerd => ("/etc/containerd/config.toml", "/etc/containerd/conf.d"),
            Self::Crio => ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d"),
        }
    }
}

/// What a runtime's settings say, and whether it has read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub cri: Cri,
    registered: bool,
    default: bool,
    active: bool,
    /// Whether a file is newer than the process that runs.
    unread: bool,
    /// Whether it is a containerd before 2.0.
    replaces: bool,
    /// Whether it reads CDI specifications; `None` for one that knows none.
    cdi: Option<bool>,
    /// Where it looks for them.
    cdi_dirs: Vec<String>,
    /// What the main file of containerd imports of others, with its line; not what the toolkit adds.
    imports: Option<(usize, String)>,
}

/// The toolkit that replaces the imports of containerd's main file by its own, and whose file is in a folder that containerd
/// does not read by itself. Source: nvidia-container-toolkit, pull requests 1382 and 1407, both in 1.18.1.
const DROPS_IMPORTS: &str = "1.18.0";
/// Where later toolkits put their file.
const DROP_IN: &str = "/etc/containerd/conf.d/99-nvidia.toml";

/// Returns what a main file imports beside the folders that the toolkit writes to, with the line.
fn imports(text: &str) -> Option<(usize, String)> {
    let document = text.parse::<DocumentMut>().ok()?;
    let all = document.get("imports")?.as_array()?.iter().filter_map(|one| one.as_str());
    let others: Vec<&str> = all
        .filter(|one| !matches!(*one, "/etc/containerd/conf.d/*.toml" | "/etc/containerd/config.d/*.toml"))
        .collect();
    let line = text.lines().position(|line| line.trim_start().starts_with("imports"))?;
    (!others.is_empty()).then(|| (line + 1, others.join(", ")))
}

/// Reads a runtime's settings.
///
/// # Errors
/// If they, or systemd, cannot be read.
pub fn observe(node: &Node<'_>, cri: Cri) -> Result<State, Trouble> {
    let (main, folder) = cri.places();
    let mut paths = vec![node.roots.path(main)];
    let folder = node.roots.path(folder);
    paths.extend(node.world.names(&folder)?.into_iter().map(|name| folder.join(name)));
    let noted = node.world.noted(&note(cri));
    let noted = noted.first().map(|(_, value)| value.as_str());
    let mut imported = None;
    let (mut registered, mut default, mut replaces) = (false, false, false);
    // CRI-O always reads them.
    let (mut cdi, mut cdi_dirs) = (Some(true), CDI_DIRS.map(str::to_owned).to_vec());
    match cri {
        Cri::Containerd => {
            let text = node.world.read(&node.roots.path(main))?.unwrap_or_default();
            imported = imports(&String::from_utf8_lossy(&text));
            let program = tool::find(node, "containerd", "is it a node with containerd?")?;
            let said = |words: &[&str]| {
                let run = tool::run(node, &program).args(words).limit(LARGEST as usize);
                let done = run.finish(&node.deadline.within(ANSWER))?;
                match done.exit.success() {
                    true => Ok(done.stdout()),
                    false => Err(Trouble::io(done.complaint(&format!("containerd {}", words.join(" "))))),
                }
            };
            replaces = said(&["--version"])?
                .split_whitespace()
                .find_map(|word| word.trim_start_matches('v').split('.').next()?.parse::<u32>().ok())
                .is_some_and(|major| major < 2);
            let document = parse(&said(&["config", "dump"])?, "containerd config dump")?;
            // What it prints has its defaults too: 1.7 has CDI off and 2.0 on, and older ones know none. The name of the plugin
            // is another one from 2.0 on.
            cdi = (!replaces).then_some(true);
            for (_, plugin) in table(document.get("plugins")).into_iter().flat_map(TableLike::iter) {
                let Some(plugin) = table(Some(plugin)) else { continue };
                cdi = plugin.get("enable_cdi").and_then(Item::as_bool).or(cdi);
                cdi_dirs = dirs(plugin).unwrap_or(cdi_dirs);
                let Some(settings) = table(plugin.get("containerd")) else { continue };
                default |= settings.get("default_runtime_name").and_then(Item::as_str) == Some(RUNTIME);
                let options = table(settings.get("runtimes"))
                    .and_then(|all| table(all.get(RUNTIME)))
                    .and_then(|runtime| table(runtime.get("options")));
                registered |= options.is_some_and(|options| is_program(options.get("BinaryName")));
            }
        }
        Cri::Crio => {
            for path in &paths {
                let Some(bytes) = node.world.read(path)? else { continue };
                let document = parse(&String::from_utf8_lossy(&bytes), &path.display().to_string())?;
                let Some(settings) = table(document.get("crio")).and_then(|crio| table(crio.get("runtime")))
                else {
                    continue;
                };
                cdi_dirs = dirs(settings).unwrap_or(cdi_dirs);
                if let Some(name) = settings.get("default_runtime").and_then(Item::as_str) {
                    default = name == RUNTIME;
                }
                let runtime = table(settings.get("runtimes")).and_then(|all| table(all.get(RUNTIME)));
                registered |= runtime.is_some_and(|runtime| is_program(runtime.get("runtime_path")));
            }
        }
    }
    registered |= noted.is_some();
    let has = |word: &str| noted.is_some_and(|noted| noted.split(' ').any(|one| one == word));
    default |= has("default");
    if has("cdi") {
        cdi = Some(true);
    }
    let systemctl = node.roots.tool("systemctl");
    let mut state = State {
        cri,
        registered,
        default,
        active: false,
        unread: false,
        replaces,
        cdi,
        cdi_dirs,
        imports: imported,
    };
    if let Some(systemctl) = systemctl {
        let shown = units::show(systemctl, &[cri.unit()], node.deadline)?;
        if let Some(unit) = shown.get(cri.unit()) {
            state.active = unit.runs();
            state.unread = state.active
                && noted.is_none()
                && !node.world.rebooted()
                && started::before(node, unit.main_pid, &paths)?;
        }
    }
    Ok(state)
}

fn note(cri: Cri) -> String {
    format!("cri {}", cri.name())
}

fn parse(text: &str, what: &str) -> Result<DocumentMut, Trouble> {
    text.parse::<DocumentMut>().map_err(|error| {
        let why = error.message().lines().next().unwrap_or_default().to_owned();
        Trouble::io(format!("{what}: it is no valid TOML: {why}"))
    })
}

fn table(item: Option<&Item>) -> Option<&dyn TableLike> {
    item?.as_table_like()
}

/// Returns the folders of CDI specifications that settings name, if they do.
fn dirs(settings: &dyn TableLike) -> Option<Vec<String>> {
    let list = settings.get("cdi_spec_dirs")?.as_array()?;
    Some(list.iter().filter_map(|one| Some(one.as_str()?.trim_end_matches('/').to_owned())).collect())
}

/// Whether it names NVIDIA's runtime, by a path or without one.
fn is_program(item: Option<&Item>) -> bool {
    item.and_then(Item::as_str).is_some_and(|path| Path::new(path).file_name() == Some(PROGRAM.as_ref()))
}

/// What is to be done for a runtime.
#[derive(Debug, Default)]
pub struct Todo {
    pub changes: Vec<Change>,
    pub warnings: Vec<String>,
    /// The words for `nvidia-ctk`, if it has to write settings.
    pub configure: Option<Vec<&'static str>>,
    pub restart: bool,
}

impl State {
    /// Returns why it would not find a specification of one of these folders, if so.
    fn overlooks(&self, specs: &[&str]) -> Option<String> {
        let real = |path: &str| {
            path.strip_prefix("/var").filter(|rest| rest.starts_with("/run/")).unwrap_or(path).to_owned()
        };
        let looks = |folder: &&&str| self.cdi_dirs.iter().any(|one| real(one) == real(folder));
        let missed: Vec<&str> = specs.iter().filter(|folder| !looks(folder)).copied().collect();
        let (main, _) = self.cri.places();
        (!missed.is_empty()).then(|| {
            format!(
                "{} looks for CDI specifications in {}, and NVIDIA's is in {}: add that to `cdi_spec_dirs` in {main} or a file \
                 beside it",
                self.cri.name(),
                if self.cdi_dirs.is_empty() { "no folder".to_owned() } else { self.cdi_dirs.join(", ") },
                missed.join(", ")
            )
        })
    }

    /// Returns what differs, where CDI specifications are declared in `specs`, folders, and this version of the toolkit is
    /// installed. Pure.
    ///
    /// # Errors
    /// If the toolkit cannot take back what is there, would lose what others import, or the runtime looks elsewhere for
    /// specifications.
    pub fn todo(
        &self,
        default: Option<bool>,
        specs: &[&str],
        version: Option<&str>,
    ) -> Result<Todo, Trouble> {
        let mut todo = Todo::default();
        let (main, _) = self.cri.places();
        let name = self.cri.name();
        if default == Some(false) && self.default {
            return Err(Trouble::invalid(format!(
                "{name} gives every container NVIDIA's runtime, and nvidia-ctk does not take that back: remove the default \
                 runtime from the files below {main} and the folder beside it"
            )));
        }
        let makes_default = default == Some(true) && !self.default;
        let enables_cdi = !specs.is_empty() && self.cdi == Some(false);
        if let Some(why) = self.overlooks(specs) {
            return Err(Trouble::invalid(why));
        }
        if !self.registered || makes_default || enables_cdi {
            let mut words = vec!["runtime", "configure", "--runtime", name];
            if default == Some(true) {
                words.push("--set-as-default");
            }
            if enables_cdi {
                words.push("--cdi.enabled");
            }
            let is_old =
                version.is_some_and(|version| version.split(['-', '~', '+']).next() == Some(DROPS_IMPORTS));
            if self.cri == Cri::Containerd && is_old {
                if let Some((line, others)) = &self.imports {
                    return Err(Trouble::invalid(format!(
                        "{main}:{line} imports {others}, and nvidia-ctk {DROPS_IMPORTS} would replace that by its own folder, so that \
                         containerd loses those files; `version: 1.18.1` or newer keeps them"
                    )));
                }
                // Its own default is a folder that containerd does not read by itself.
                words.extend(["--drop-in-config", DROP_IN]);
            }
            todo.configure = Some(words);
        }
        let class = if self.active { Disruption::Clients } else { Disruption::Live };
        let change = |property, from: Typed, to: &str| {
            let change = Change::new(Subject::file(main), Property::new(property), from, to, class);
            if self.active { change.with_note(format!("{name} restarts")) } else { change }
        };
        if !self.registered {
            todo.changes.push(change("runtime nvidia", Typed::Absent, PROGRAM));
        }
        if makes_default {
            todo.changes.push(change("default runtime", Typed::Absent, RUNTIME));
        }
        if enables_cdi {
            todo.changes.push(change("enable_cdi", Typed::from(false), "enabled"));
        }
        if !specs.is_empty() && self.cdi.is_none() {
            todo.warnings.push(format!(
                "this {name} knows no CDI, which came with 1.7: its containers get GPUs by the runtime `{RUNTIME}` alone"
            ));
        }
        if todo.configure.is_some() && self.replaces {
            todo.warnings.push(format!(
                "before 2.0, a file of containerd takes the place of a plugin's whole section: nvidia-ctk copies the section into \
                 the file that it writes, and later edits of it in {main} have no effect"
            ));
        }
        if !self.active {
            todo.warnings.push(format!("{name} does not run; what its files say counts from its next start"));
        }
        todo.restart = self.active && (self.unread || todo.configure.is_some());
        if self.unread && todo.configure.is_none() {
            let subject = Subject::unit(self.cri.unit());
            let change = Change::new(subject, Property::STATE, "with older settings", "restarted", class);
            todo.changes.push(change.with_note("its files are newer than its start"));
        }
        Ok(todo)
    }

    /// Returns the note of a prediction that it is configured.
    pub fn note(&self, default: Option<bool>, cdi: bool) -> (String, String) {
        let is_default = self.default || default == Some(true);
        let cdi = if cdi || self.cdi == Some(true) { " cdi" } else { "" };
        (note(self.cri), format!("{}{cdi}", if is_default { "default" } else { "registered" }))
    }
}
