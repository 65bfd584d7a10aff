//! `thp`: transparent huge pages, in the running kernel and in the file of systemd-tmpfiles that sets them at boot.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write},
    path::PathBuf,
};

use gpufleet_protocol::{
    Change, Disruption, FailureKind, Layer, Property, Subject, change::Value as Typed, tasks::Thp,
};
use serde_json::{Map, Value};

use super::knobs;
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        files::{self, FileError, Ownership},
        tree,
    },
    tasks::{
        sysctl,
        tmpfiles::{self, BootFiles},
    },
    world::{Content, Effect, Entry, Owned},
};

/// Returns the path of a setting, as in tmpfiles.d.
fn full(name: &str) -> String {
    format!("{}/{name}", Thp::FOLDER)
}

/// Returns the lines that set these at boot, as path and value.
fn lines(settings: &[(&str, String)]) -> Vec<(String, String)> {
    settings.iter().map(|(name, value)| (full(name), value.clone())).collect()
}

/// Returns the present value in the kernel's text: the bracketed one of several words, or the only word.
pub fn current(text: &str) -> Option<&str> {
    let mut words = text.split_whitespace();
    let bracketed = words.clone().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    bracketed.or_else(|| words.next().filter(|_| words.next().is_none()))
}

#[derive(Debug)]
pub struct State {
    /// Present value of each setting; `None` if it is known only after an assumed boot.
    live: BTreeMap<&'static str, Option<String>>,
    file: PathBuf,
    text: String,
    owned: Option<Owned>,
    /// Settings in a file that is read before the declared one, with that file.
    earlier: BTreeMap<&'static str, (PathBuf, String)>,
}

#[derive(Debug)]
pub enum Step {
    Live { name: &'static str, value: String },
    File(String),
}

/// Returns the file of systemd-tmpfiles that turns transparent huge pages on or off at boot.
///
/// # Errors
/// If one cannot be read.
pub fn set_at_boot_by(node: &Node<'_>) -> Result<Option<PathBuf>, Trouble> {
    let files = BootFiles::read(node, Thp::FOLDER)?;
    Ok(files.first(&full("enabled")).map(|(path, _)| path.to_owned()))
}

fn read_live(node: &Node<'_>, name: &str) -> Result<String, Trouble> {
    let folder = node.roots.path(Thp::FOLDER);
    let path = folder.join(name);
    let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if !folder.exists() => {
            Trouble::invalid("the running kernel has no transparent huge pages")
        }
        io::ErrorKind::NotFound => Trouble::invalid(format!("the running kernel has no {}", full(name))),
        _ => FileError::new("read", &path, error).into(),
    })?;
    let found = current(&text).map(str::to_owned);
    found.ok_or_else(|| Trouble::io(format!("{} names no current value: `{}`", path.display(), text.trim())))
}

impl NodeKind for Thp {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let file = node.roots.path(Self::FILE);
        let owned = node.world.follow(&file)?.1.owned();
        let text = String::from_utf8(node.world.read(&file)?.unwrap_or_default())
            .map_err(|_| Trouble::invalid(format!("{} is not UTF-8 text", file.display())))?;
        let files = BootFiles::read(node, Self::FOLDER)?;
        let (mut live, mut earlier) = (BTreeMap::new(), BTreeMap::new());
        for (name, _) in self.settings() {
            knobs::changeable(node, &full(name))?;
            let first = files.first(&full(name));
            let read = read_live(node, name)?;
            let value = match node.world.parameter(&full(name)) {
                Some(assumed) => Some(assumed),
                None if node.world.rebooted() => first.map(|(_, value)| value.to_owned()),
                None => Some(read),
            };
            live.insert(name, value);
            if let Some((path, value)) = first.filter(|(path, _)| path.file_name() < file.file_name()) {
                earlier.insert(name, (path.to_owned(), value.to_owned()));
            }
        }
        Ok(State { live, file, text, owned, earlier })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        let settings = self.settings();
        let mut at_boot = Vec::new();
        for (name, wanted) in &settings {
            let setting = Subject::kernel_setting(format!("transparent_hugepage/{name}"));
            let change = |from: Typed| {
                Change::new(setting.clone(), Property::VALUE, from, Typed::parsed(wanted), Disruption::Live)
            };
            match state.live.get(name).and_then(Option::as_ref) {
                Some(value) if value == wanted => {}
                Some(value) => {
                    plan.push(Step::Live { name, value: wanted.clone() }, change(Typed::parsed(value)))
                }
                None => {
                    let open = change(Typed::Unknown)
                        .with_note("no file sets it, so its value after the boot is known only in the run");
                    plan.changes.push(open.possible());
                }
            }
            let there = tmpfiles::value_in(&state.text, &full(name));
            if there != Some(wanted) {
                at_boot.push(change(there.map(Typed::parsed).into()).at(Layer::Boot));
            }
            if let Some((path, value)) = state.earlier.get(name).filter(|(_, value)| value != wanted) {
                plan.warnings.push(format!(
                    "{} sets {setting} to {value} at boot; {} comes after it and is not heard",
                    path.display(),
                    Self::FILE
                ));
            }
        }
        if !at_boot.is_empty() {
            plan.steps.push(Step::File(tmpfiles::edited(&state.text, &lines(&settings))));
            plan.changes.append(&mut at_boot);
        }
        Ok(plan)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let owned = state.owned.unwrap_or(Owned { uid: 0, gid: 0, mode: 0o644 });
        let file = plan.steps.iter().filter_map(|step| match step {
            Step::File(text) => Some(Effect::Path {
                path: state.file.clone(),
                entry: Entry::File { owned, content: Content::Known(text.as_bytes().into()) },
            }),
            Step::Live { .. } => None,
        });
        let live =
            self.settings().into_iter().map(|(name, value)| Effect::Parameter { name: full(name), value });
        file.chain(live).collect()
    }

    fn apply(
        &self,
        node: &Node<'_>,
        state: &State,
        plan: &Plan<Step>,
    ) -> Result<Map<String, Value>, Trouble> {
        let kept = sysctl::kept_free_memory(node)?;
        for step in &plan.steps {
            match step {
                Step::Live { name, value } => {
                    let path = node.roots.path(full(name));
                    let written = OpenOptions::new()
                        .write(true)
                        .truncate(true)
                        .open(&path)
                        .and_then(|mut file| file.write_all(format!("{value}\n").as_bytes()));
                    match written {
                        Ok(()) => {}
                        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                            return Err(Trouble::failed(
                                FailureKind::Invalid,
                                format!("the kernel does not take `{value}` as {}", full(name)),
                            ));
                        }
                        Err(error) => return Err(FileError::new("set", path, error).into()),
                    }
                }
                Step::File(text) => {
                    if let Some(folder) = state.file.parent().filter(|folder| !folder.exists()) {
                        tree::make_dirs(folder)?;
                    }
                    files::replace(&state.file, text.as_bytes(), Ownership::default())?;
                }
            }
        }
        // The kernel has raised it for huge pages, over the value that somebody declared.
        if let Some(value) = kept {
            sysctl::keep_free_memory(node, &value)?;
        }
        Ok(Map::new())
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{Certainty, OpStatus, message::Mode};
    use serde_json::json;

    use super::*;
    use crate::tasks::testing::{Bench, Told, told};

    const CONF: &str = "etc/tmpfiles.d/gpufleet-thp.conf";

    fn thp(value: Value) -> Thp {
        serde_json::from_value(value).unwrap()
    }

    fn bench() -> Bench {
        let bench = Bench::new();
        let write = |name: &str, text: &str| {
            bench.write(&format!("sys/kernel/mm/transparent_hugepage/{name}"), text);
        };
        write("enabled", "[always] madvise never\n");
        write("defrag", "always defer defer+madvise [madvise] never\n");
        write("khugepaged/defrag", "1\n");
        write("khugepaged/max_ptes_none", "511\n");
        bench
    }

    fn shown(changes: &[Change]) -> Vec<String> {
        let line = |(what, from, to): Told| format!("{what}: {} -> {to}", from.unwrap_or("nothing"));
        changes.iter().map(told).map(line).collect()
    }

    #[test]
    fn check_changes_nothing_and_apply_converges() {
        let bench = bench();
        let declared =
            thp(json!({"enabled": "madvise", "defrag": "madvise", "khugepaged": {"defrag": false}}));
        let before = bench.snapshot();
        let predicted = bench.run(&declared, Mode::Predict);
        assert_eq!(bench.run(&declared, Mode::Predict).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), before);
        bench.forget();
        let applied = bench.run(&declared, Mode::Apply);
        assert_eq!((&applied.status, &applied.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(
            shown(&applied.changes),
            [
                "transparent_hugepage/enabled: always -> madvise",
                "transparent_hugepage/khugepaged/defrag: 1 -> 0",
                "transparent_hugepage/enabled at boot: nothing -> madvise",
                "transparent_hugepage/defrag at boot: nothing -> madvise",
                "transparent_hugepage/khugepaged/defrag at boot: nothing -> 0",
            ]
        );
        assert_eq!(bench.read("sys/kernel/mm/transparent_hugepage/khugepaged/defrag"), "0\n");
        let settled = bench.snapshot();
        assert_eq!(bench.run(&declared, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), settled);
    }

    #[test]
    fn two_tasks_share_the_file_and_other_lines_stay() {
        let bench = bench();
        bench.write(CONF, "# ours\nw /sys/module/x/parameters/y - - - - 1\n");
        bench.run(&thp(json!({"enabled": "never"})), Mode::Apply);
        bench.run(&thp(json!({"khugepaged": {"max_ptes_none": 0}})), Mode::Apply);
        bench.run(&thp(json!({"enabled": "madvise"})), Mode::Apply);
        assert_eq!(
            bench.read(CONF),
            "# ours\nw /sys/module/x/parameters/y - - - - 1\n\
             w /sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none - - - - 0\n\
             w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise\n"
        );
    }

    #[test]
    fn what_cannot_be_read_is_never_ok() {
        let declared = thp(json!({"enabled": "madvise"}));
        let bench = bench();
        bench.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise never\n");
        let unknown = bench.run(&declared, Mode::Predict);
        assert!(matches!(unknown.status, OpStatus::Unknown { .. }), "{unknown:?}");
        let failed = bench.run(&declared, Mode::Apply);
        assert!(matches!(failed.status, OpStatus::Failed { kind: FailureKind::Io, .. }), "{failed:?}");
        for (bench, wanted) in [
            (Bench::new(), "the running kernel has no transparent huge pages"),
            (bench, "the running kernel has no /sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        ] {
            let outcome = bench.run(&thp(json!({"shmem_enabled": "advise"})), Mode::Predict);
            let OpStatus::Failed { message, .. } = outcome.status else { panic!("{outcome:?}") };
            assert_eq!(message, wanted);
        }
    }

    #[test]
    fn a_file_that_is_read_before_wins_and_is_named() {
        let bench = bench();
        bench.write(
            "usr/lib/tmpfiles.d/a.conf",
            "w! /sys/kernel/mm/transparent_hugepage/enabled - - - - always\n",
        );
        let outcome = bench.run(&thp(json!({"enabled": "madvise"})), Mode::Apply);
        assert_eq!(outcome.warnings.len(), 1, "{outcome:?}");
        assert!(
            outcome.warnings[0]
                .contains("usr/lib/tmpfiles.d/a.conf sets transparent_hugepage/enabled to always")
        );
        bench.write("etc/tmpfiles.d/a.conf", "");
        assert_eq!(
            bench.run(&thp(json!({"enabled": "madvise"})), Mode::Apply).warnings,
            Vec::<String>::new()
        );
    }

    #[test]
    fn free_memory_that_is_declared_is_put_back() {
        let bench = bench();
        bench.write("proc/sys/vm/min_free_kbytes", "20000\n");
        bench.write("etc/sysctl.d/90-gpufleet.conf", "vm.min_free_kbytes = 20000\n");
        let path = bench.path("proc/sys/vm/min_free_kbytes");
        let kept = bench.node(|node| sysctl::kept_free_memory(node).unwrap());
        assert_eq!(kept.as_deref(), Some("20000"));
        bench.write("proc/sys/vm/min_free_kbytes", "67584\n");
        bench.node(|node| sysctl::keep_free_memory(node, "20000").unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().next(), Some("20000"));
        assert_eq!(bench.node(|node| sysctl::kept_free_memory(node).unwrap()).as_deref(), Some("20000"));
        bench.write("etc/sysctl.d/90-gpufleet.conf", "");
        assert_eq!(bench.node(|node| sysctl::kept_free_memory(node).unwrap()), None, "nobody declares it");
    }

    #[test]
    fn a_boot_leaves_what_the_files_say() {
        let bench = bench();
        let declared = thp(json!({"enabled": "madvise"}));
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&declared, Mode::Predict).changes[0].certainty, Certainty::Possible);
        bench.forget();
        bench.run(&declared, Mode::Apply);
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&declared, Mode::Predict).status, OpStatus::Ok);
    }
}
