//! `mount`: what is mounted now, and what /etc/fstab mounts at boot.
//!
//! Reads /proc/self/mountinfo. A line of fstab is written before `mount`, which reads it, and before a remount, so that a
//! refused one is not asked for again: the next boot has the line, and what still differs can be seen.

pub mod fstab;
mod live;

use std::{fs, io, path::PathBuf, time::SystemTime};

use gpufleet_protocol::{
    Awaiting, Change, Disruption, Property, Subject,
    change::Value as Typed,
    tasks::{Mount, MountState},
};
use serde_json::{Map, Value, json};

use self::fstab::{Line, Mounted};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::{
        civil, diff,
        files::{self, FileError, Ownership},
        tree,
    },
    tasks::{started, tool},
    world::{Content, Effect, Entry, Owned},
};

const BRINGS: &str = "the package `mount` or `util-linux` brings it";

#[derive(Debug)]
pub struct State {
    fstab: PathBuf,
    text: Option<String>,
    line: Option<Line>,
    /// The topmost mount at the path.
    mounted: Option<Mounted>,
    directory: PathBuf,
    /// The directory under the mount.
    entry: Entry,
    /// Whether the boot had this fstab, so that another boot mounts nothing else.
    booted_so: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Fstab(String),
    MakeDirectory,
    Mount,
    Remount,
    Unmount,
    RemoveDirectory,
}

/// Returns the name of a prediction's assumption for a mounted path.
fn assumption(path: &str) -> String {
    format!("mounts{}", slim(path))
}

fn slim(path: &str) -> &str {
    if path == "/" { path } else { path.trim_end_matches('/') }
}

/// Whether a mount has another source than declared. Sources that cannot be compared count as equal.
fn other_source(mounted: &Mounted, src: &str, opts: &str) -> bool {
    let bind = opts.split(',').any(|option| matches!(option, "bind" | "rbind"));
    let virtual_ = !src.contains('/');
    // An automount point stands for what is mounted at the first access.
    if mounted.fstype == "autofs"
        || bind
        || virtual_
        || src.contains('=') && !src.starts_with('/')
        || src.starts_with("/dev/disk/by-")
    {
        return false;
    }
    let real = |path: &str| fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(slim(path)));
    mounted.source != src && real(&mounted.source) != real(src)
}

impl NodeKind for Mount {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        let fstab = node.roots.path(&self.fstab);
        let text = match node.world.read(&fstab)? {
            Some(bytes) => Some(
                String::from_utf8(bytes)
                    .map_err(|_| Trouble::invalid(format!("{} is not UTF-8 text", self.fstab)))?,
            ),
            None => None,
        };
        let mut lines = text.as_deref().unwrap_or_default().lines().filter_map(Line::parse);
        let line = lines.rfind(|line| line.same_mount(&self.path, self.src.as_deref()));
        let path = node.roots.proc("self/mountinfo");
        let Some(bytes) = node.world.read(&path)? else {
            return Err(FileError::new("read", path, io::Error::from(io::ErrorKind::NotFound)).into());
        };
        let info = String::from_utf8_lossy(&bytes).into_owned();
        let directory = node.roots.path(&self.path);
        let mut places = vec![slim(&self.path).to_owned()];
        if node.roots.is_real()
            && let Ok(real) = fs::canonicalize(&directory)
        {
            places.push(real.to_string_lossy().into_owned());
        }
        let at = |mounted: &Mounted| places.contains(&mounted.path);
        let starts = |line: &&Line| !line.opts.split(',').any(|option| option == "noauto");
        let mounted = match node.world.parameter(&assumption(&self.path)) {
            Some(assumed) => Mounted::parse(&assumed),
            // Not the present mount: a boot mounts what fstab says, and nothing else.
            None if node.world.rebooted() => line.as_ref().filter(starts).map(|line| Mounted {
                path: self.path.clone(),
                root: "/".to_owned(),
                fstype: line.fstype.clone(),
                source: line.src.clone(),
                options: line.opts.clone(),
                of_file_system: String::new(),
            }),
            None => info.lines().filter_map(Mounted::parse).rfind(at),
        };
        let entry = node.world.follow(&directory)?.1;
        let booted_so = !node.world.rebooted() && started::precede_boot(node, std::slice::from_ref(&fstab))?;
        Ok(State { fstab, text, line, mounted, directory, entry, booted_so })
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        plan_as(self, state, true)
    }

    fn left(&self, state: &State, _: &Plan<Step>) -> Result<Plan<Step>, Trouble> {
        plan_as(self, state, false)
    }

    fn after(&self, state: &State, plan: &Plan<Step>) -> Vec<Effect> {
        let file = |path: &PathBuf, text: String| Effect::Path {
            path: path.clone(),
            entry: Entry::File {
                owned: Owned { uid: 0, gid: 0, mode: 0o644 },
                content: Content::Known(text.into_bytes().into()),
            },
        };
        let assume = |value: String| Effect::Parameter { name: assumption(&self.path), value };
        let mut effects = Vec::new();
        for step in &plan.steps {
            match step {
                Step::Fstab(text) => effects.push(file(&state.fstab, text.clone())),
                Step::MakeDirectory => effects.push(Effect::Path {
                    path: state.directory.clone(),
                    entry: Entry::Directory { owned: Owned { uid: 0, gid: 0, mode: 0o755 } },
                }),
                Step::Mount => {
                    let mounted = Mounted {
                        path: slim(&self.path).to_owned(),
                        root: "/".to_owned(),
                        fstype: self.fstype.clone().unwrap_or_default(),
                        source: self.src.clone().unwrap_or_default(),
                        options: self.options(),
                        of_file_system: String::new(),
                    };
                    effects.push(assume(mounted.line()));
                }
                Step::Unmount => effects.push(assume(String::new())),
                Step::RemoveDirectory => {
                    effects.push(Effect::Path { path: state.directory.clone(), entry: Entry::Absent });
                }
                Step::Remount => {
                    let remounted = state
                        .mounted
                        .as_ref()
                        .map(|mounted| Mounted { options: self.options(), ..mounted.clone() });
                    effects.extend(remounted.map(|mounted| assume(mounted.line())));
                }
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
        let mut data = Map::new();
        let mut made = false;
        let path = self.path.as_str();
        for step in &plan.steps {
            node.check_time()?;
            match step {
                Step::Fstab(text) => {
                    if self.backup && state.text.is_some() {
                        let copy =
                            files::back_up(&state.fstab, &civil::stamp(SystemTime::now()), node.deadline)?;
                        data.insert("backup_file".to_owned(), json!(copy));
                    }
                    files::replace(&state.fstab, text.as_bytes(), Ownership::default())?;
                }
                Step::MakeDirectory => {
                    tree::make_dirs(&state.directory)?;
                    made = true;
                }
                Step::Mount => {
                    let program = tool::find(node, "mount", BRINGS)?;
                    let mut run = tool::run(node, program);
                    run = match (&self.src, &self.fstype, self.state) {
                        (Some(src), Some(fstype), MountState::Ephemeral) => {
                            run.args(["-t", fstype, "-o", &self.options(), src, path])
                        }
                        _ if self.fstab == "/etc/fstab" => run.arg(path),
                        _ => run.args(["-T", &self.fstab, path]),
                    };
                    let done = tool::act(node, &run, &format!("mount {path}"));
                    if let (Err(_), true) = (&done, made) {
                        // Ignored, because the failed mount itself is reported.
                        let _ = tree::spot(&state.directory).map(|spot| spot.remove_dir());
                    }
                    done?;
                }
                Step::Remount => {
                    let program = tool::find(node, "mount", BRINGS)?;
                    let run = tool::run(node, program);
                    let run = match (self.state, self.opts.is_empty()) {
                        (MountState::Remounted, false) => {
                            run.args(["-o", &format!("remount,{}", self.options()), path])
                        }
                        // With the source, `mount` does not read fstab (mount(8)), and takes the type from `-t` only.
                        (MountState::Mounted, _) => {
                            let src = self.src.as_deref().unwrap_or_default();
                            let live = state.mounted.as_ref().map_or("none", |mounted| &mounted.fstype);
                            let declared = self.fstype.as_deref().unwrap_or_default();
                            let is_open = matches!(declared, "" | "auto") || declared.contains(',');
                            let fstype = if is_open { live } else { declared };
                            run.args([
                                "-t",
                                fstype,
                                "-o",
                                &live::to_remount(live, &self.options()),
                                src,
                                path,
                            ])
                        }
                        _ if self.fstab == "/etc/fstab" => run.args(["-o", "remount", path]),
                        _ => run.args(["-T", &self.fstab, "-o", "remount", path]),
                    };
                    tool::act(node, &run, &format!("mount -o remount {path}"))?;
                }
                Step::Unmount => {
                    let program = tool::find(node, "umount", BRINGS)?;
                    tool::act(node, &tool::run(node, program).arg(path), &format!("umount {path}"))?;
                }
                Step::RemoveDirectory => {
                    tree::spot(&state.directory)?.remove_dir().map_err(|error| match error.kind() {
                        io::ErrorKind::DirectoryNotEmpty => Trouble::invalid(format!(
                            "{path} was unmounted, but the directory below is not empty; `state: unmounted` leaves it"
                        )),
                        _ => FileError::new("remove", &state.directory, error).into(),
                    })?;
                }
            }
        }
        Ok(data)
    }

    fn data(&self, _: &State) -> Map<String, Value> {
        let mut data = Map::new();
        let mut set = |name: &str, value: Value| data.insert(name.to_owned(), value);
        set("name", json!(self.path));
        set("fstab", json!(self.fstab));
        set("opts", json!(self.options()));
        set("dump", json!(self.dump));
        set("passno", json!(self.passno));
        set("boot", json!(if self.boot { "yes" } else { "no" }));
        if let Some(src) = &self.src {
            set("src", json!(src));
        }
        if let Some(fstype) = &self.fstype {
            set("fstype", json!(fstype));
        }
        data
    }
}

fn shown(line: &Line) -> String {
    format!("{} {} {}", line.src, line.fstype, line.opts)
}

fn fstab_step(task: &Mount, state: &State, wanted: Option<&Line>, plan: &mut Plan<Step>) {
    if state.line.as_ref() == wanted {
        return;
    }
    let old = state.text.as_deref().unwrap_or_default();
    let text = fstab::edited(old, &task.path, task.src.as_deref(), wanted);
    let name = if task.path == "none" { task.src.as_deref().unwrap_or("swap") } else { &task.path };
    let (from, to) = (state.line.as_ref().map(shown), wanted.map(shown));
    let entry = Subject::FstabEntry { name: name.to_owned(), file: task.fstab.clone() };
    let mut change = Change::new(entry, Property::CONTENT, from, to, Disruption::Live);
    change.diff = Some(diff::unified(&task.fstab, old, &text));
    plan.push(Step::Fstab(text), change);
}

/// Whether options of the line in fstab differ that a remount may change.
fn rewritten(state: &State, mounted: &Mounted, declared: &Line) -> bool {
    let Some(line) = &state.line else { return false };
    let (old, new): (Vec<&str>, Vec<&str>) =
        (line.opts.split(',').collect(), declared.opts.split(',').collect());
    let lost = old.iter().filter(|word| !new.contains(word));
    let mut other = lost.chain(new.iter().filter(|word| !old.contains(word)));
    other.any(|word| live::remountable(&mounted.fstype, word))
}

/// Tells what only a new mount changes.
fn await_mount(task: &Mount, state: &State, told: &str, plan: &mut Plan<Step>) {
    let reason = format!("{} is mounted {told}, which only a new mount changes", task.path);
    if state.booted_so && !plan.steps.iter().any(|step| matches!(step, Step::Fstab(_))) {
        // Another reboot would end the same way.
        plan.warnings.push(format!("{reason}; the boot had this line already, so something else decided it"));
    } else {
        plan.awaiting.push(Awaiting { activation: Disruption::Reboot, reason });
    }
}

/// Without `acts`, actions that are done every time are left out: remounting.
fn plan_as(task: &Mount, state: &State, acts: bool) -> Result<Plan<Step>, Trouble> {
    let mut plan = Plan::default();
    let mounts = |from: Typed, to: Typed| {
        Change::new(Subject::mount(&task.path), Property::SOURCE, from, to, Disruption::Live)
    };
    let remounts = |mounted: &Mounted, to: &str| {
        let from = format!("{} mounted", mounted.source);
        Change::new(Subject::mount(&task.path), Property::STATE, from, to, Disruption::Live)
    };
    let now = |mounted: &Mounted| Typed::text(&mounted.source);
    let declared = Line {
        src: task.src.clone().unwrap_or_default(),
        path: task.path.clone(),
        fstype: task.fstype.clone().unwrap_or_default(),
        opts: task.options(),
        dump: task.dump.clone(),
        passno: task.passno.clone(),
    };
    match task.state {
        MountState::Present => fstab_step(task, state, Some(&declared), &mut plan),
        MountState::AbsentFromFstab => fstab_step(task, state, None, &mut plan),
        MountState::Mounted | MountState::Ephemeral => {
            if task.state == MountState::Mounted {
                fstab_step(task, state, Some(&declared), &mut plan);
            }
            let src = declared.src.as_str();
            match &state.mounted {
                None => {
                    match &state.entry {
                        Entry::Absent => plan.steps.push(Step::MakeDirectory),
                        Entry::Directory { .. } | Entry::File { .. } => {}
                        other => {
                            return Err(Trouble::invalid(format!("{} is a {}", task.path, other.what())));
                        }
                    }
                    plan.push(Step::Mount, mounts(Typed::Absent, src.into()));
                }
                Some(mounted) if other_source(mounted, src, &declared.opts) => {
                    if task.state == MountState::Ephemeral {
                        return Err(Trouble::invalid(format!(
                            "{} is mounted on {} already; `state: unmounted` before this task would take it away",
                            mounted.source, task.path
                        )));
                    }
                    plan.steps.push(Step::Unmount);
                    plan.push(Step::Mount, mounts(now(mounted), src.into()));
                }
                Some(mounted) if task.state == MountState::Mounted => {
                    let lacking = live::lacking(mounted, &declared.opts);
                    let open = lacking.iter().any(|lacking| !lacking.fixed);
                    if live::other_type(mounted, &declared.fstype, &declared.opts) {
                        let told = format!("as `{}` and not as `{}`", mounted.fstype, declared.fstype);
                        await_mount(task, state, &told, &mut plan);
                        return Ok(plan);
                    }
                    if acts && (open || rewritten(state, mounted, &declared)) {
                        let to = format!("remounted with {}", declared.opts);
                        plan.push(Step::Remount, remounts(mounted, &to));
                    }
                    let waits = lacking.iter().filter(|lacking| lacking.fixed || !acts);
                    let waits: Vec<String> = waits.map(|lacking| format!("`{}`", lacking.option)).collect();
                    if !waits.is_empty() {
                        await_mount(task, state, &format!("without {}", waits.join(", ")), &mut plan);
                    }
                }
                Some(_) => {}
            }
        }
        MountState::Unmounted | MountState::Absent => {
            if task.state == MountState::Absent {
                fstab_step(task, state, None, &mut plan);
            }
            if let Some(mounted) = &state.mounted {
                plan.push(Step::Unmount, mounts(now(mounted), Typed::Absent));
            }
            let swap = !task.path.starts_with('/');
            if task.state == MountState::Absent && !swap && matches!(state.entry, Entry::Directory { .. }) {
                let path = Subject::file(&task.path);
                let gone = Change::new(path, Property::TYPE, "directory", Typed::Absent, Disruption::Live);
                plan.push(Step::RemoveDirectory, gone);
            }
        }
        MountState::Remounted => match &state.mounted {
            None => {
                return Err(Trouble::invalid(format!(
                    "nothing is mounted on {}, so nothing can be remounted",
                    task.path
                )));
            }
            Some(mounted) if acts => plan.push(Step::Remount, remounts(mounted, "remounted")),
            Some(_) => {}
        },
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpOutcome, OpStatus, message::Mode};

    use super::*;
    use crate::tasks::testing::{Bench, told};

    /// A fake mount that looks paths up in fstab, and a fake umount; both log their arguments.
    const MOUNT: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
echo "mount $*" >> $d/log
[ -e $d/broken ] && { echo "mount: /scratch: unknown filesystem type 'xfs'." >&2; exit 32; }
case "$*" in *remount*)
  [ "$1" = -t ] && shift 2
  opts=${2#remount}; opts=${opts#,}; for path; do :; done
  [ -e $d/stubborn ] || sed -i "s| $path rw[^ ]* - | $path rw,$opts - |" $d/proc/self/mountinfo
  exit 0;;
esac
if [ "$1" = -t ]; then fstype=$2 opts=$4 src=$5 path=$6; else
path=$1; set -- $(grep " $path " $d/etc/fstab); src=$1 fstype=$3 opts=$4; fi
echo "1 1 0:1 / $path rw,$opts - $fstype $src rw" >> $d/proc/self/mountinfo
"#;
    const UMOUNT: &str = r#"#!/bin/sh
d=$(dirname "$0")/../..
echo "umount $*" >> $d/log
grep -v " $1 " $d/proc/self/mountinfo > $d/new; mv $d/new $d/proc/self/mountinfo
"#;

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.script("usr/bin/mount", MOUNT);
        bench.script("usr/bin/umount", UMOUNT);
        bench.write("proc/self/mountinfo", "1 1 0:1 / / rw - ext4 /dev/sda1 rw\n");
        bench.write("etc/fstab", "# static\nUUID=1 / ext4 errors=remount-ro 0 1\n");
        bench.write("log", "");
        bench
    }

    fn mount(value: Value) -> Mount {
        serde_json::from_value(value).unwrap()
    }

    fn message(outcome: &OpOutcome) -> &str {
        match &outcome.status {
            OpStatus::Failed { message, .. } => message,
            other => panic!("{other:?}"),
        }
    }

    fn scratch(state: &str) -> Mount {
        mount(
            json!({"path": "/scratch", "src": "/dev/nvme0n1", "fstype": "xfs", "opts": "noatime", "state": state}),
        )
    }

    #[test]
    fn a_mount_comes_once_and_goes() {
        let bench = bench();
        let before = bench.snapshot();
        let predicted = bench.run(&scratch("mounted"), Mode::Predict);
        assert_eq!(bench.snapshot(), before);
        assert_eq!(bench.run(&scratch("mounted"), Mode::Predict).status, OpStatus::Ok);
        let done = bench.run(&scratch("mounted"), Mode::Apply);
        assert_eq!((&done.status, &done.changes), (&OpStatus::Changed, &predicted.changes));
        let shown: Vec<_> = done.changes.iter().map(told).collect();
        assert_eq!(
            shown,
            [
                ("/scratch in /etc/fstab", None, "/dev/nvme0n1 xfs noatime"),
                ("/scratch", Some("not mounted"), "/dev/nvme0n1 mounted")
            ]
        );
        assert_eq!(
            bench.read("etc/fstab"),
            "# static\nUUID=1 / ext4 errors=remount-ro 0 1\n/dev/nvme0n1 /scratch xfs noatime 0 0\n"
        );
        assert!(bench.path("scratch").is_dir());
        let settled = bench.snapshot();
        assert_eq!(bench.run(&scratch("mounted"), Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.snapshot(), settled);
        let gone = mount(json!({"path": "/scratch", "state": "absent"}));
        assert_eq!(bench.run(&gone, Mode::Apply).changes.len(), 3);
        assert_eq!(bench.read("etc/fstab"), "# static\nUUID=1 / ext4 errors=remount-ro 0 1\n");
        assert!(!bench.path("scratch").exists());
        assert_eq!(bench.run(&gone, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(bench.read("log"), "mount /scratch\numount /scratch\n");
    }

    #[test]
    fn other_options_are_remounted_and_another_source_is_mounted_again() {
        let bench = bench();
        bench.run(&scratch("mounted"), Mode::Apply);
        let other = mount(json!({
            "path": "/scratch", "src": "/dev/nvme0n1", "fstype": "xfs", "opts": ["noatime", "nodev"],
            "state": "mounted", "backup": true,
        }));
        let done = bench.run(&other, Mode::Apply);
        assert_eq!(done.changes[1].to_text(), "remounted with noatime,nodev");
        assert!(done.data["backup_file"].as_str().is_some());
        let moved =
            mount(json!({"path": "/scratch", "src": "/dev/md0", "fstype": "xfs", "state": "mounted"}));
        assert_eq!(
            bench.run(&moved, Mode::Apply).changes[1].from_text().as_deref(),
            Some("/dev/nvme0n1 mounted")
        );
        assert_eq!(bench.run(&moved, Mode::Apply).status, OpStatus::Ok);
        assert_eq!(
            bench.read("log"),
            "mount /scratch\nmount -t xfs -o remount,noatime,nodev /dev/nvme0n1 /scratch\numount /scratch\nmount /scratch\n"
        );
    }

    #[test]
    fn a_killed_remount_is_made_up_for() {
        let bench = bench();
        bench.run(&scratch("mounted"), Mode::Apply);
        let other = |opts: &str| {
            mount(
                json!({"path": "/scratch", "src": "/dev/nvme0n1", "fstype": "xfs", "opts": opts, "state": "mounted"}),
            )
        };
        bench.killed(&other("noatime,nodev"), Disruption::Live, "mount -o remount");
        assert!(bench.read("etc/fstab").contains("noatime,nodev"));
        assert_eq!(bench.run(&other("noatime,nodev"), Mode::Apply).changes.len(), 1);
        // Somebody else has written the line, or mounted with other options.
        bench.write("etc/fstab", "/dev/nvme0n1 /scratch xfs ro,noatime 0 0\n");
        let done = bench.run(&other("ro,noatime"), Mode::Apply);
        assert_eq!((&done.status, done.changes.len()), (&OpStatus::Changed, 1));
        let table = bench.read("proc/self/mountinfo");
        assert!(table.contains(" /scratch rw,ro,noatime - "), "{table}");
        assert_eq!(bench.run(&other("ro,noatime"), Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn what_a_remount_cannot_change_awaits_a_new_mount() {
        let bench = bench();
        let nfs = |opts: &str| {
            mount(
                json!({"path": "/data", "src": "store:/data", "fstype": "nfs", "opts": opts, "state": "mounted"}),
            )
        };
        bench.write("etc/fstab", "store:/data /data nfs noatime 0 0\n");
        bench.write(
            "proc/self/mountinfo",
            "1 1 0:1 / /data rw,noatime - nfs4 store:/data rw,vers=4.2,proto=tcp\n",
        );
        let task = nfs("noatime,nconnect=8,proto=rdma");
        let reason = "/data is mounted without `nconnect=8`, `proto=rdma`, which only a new mount changes";
        for changes in [1, 0] {
            let done = bench.run(&task, Mode::Apply);
            assert_eq!((done.changes.len(), done.awaiting[0].reason.as_str()), (changes, reason));
        }
        assert_eq!(bench.read("log"), "");
        bench.activate(Disruption::Reboot);
        assert_eq!(bench.run(&task, Mode::Predict).awaiting, []);
        // A remount that succeeds and changes nothing.
        bench.write("stubborn", "");
        let done = bench.run(&nfs("nodev"), Mode::Apply);
        assert_eq!(
            done.awaiting[0].reason,
            "/data is mounted without `nodev`, which only a new mount changes"
        );
        let pages = mount(json!({
            "path": "/dev/hugepages", "src": "hugetlbfs", "fstype": "hugetlbfs", "opts": "pagesize=1G", "state": "mounted"
        }));
        bench.write(
            "proc/self/mountinfo",
            "1 1 0:1 / /dev/hugepages rw - hugetlbfs hugetlbfs rw,pagesize=2M\n",
        );
        bench.run(&pages, Mode::Apply);
        let reason = "/dev/hugepages is mounted without `pagesize=1G`, which only a new mount changes";
        let done = bench.run(&pages, Mode::Apply);
        assert_eq!((&done.status, done.awaiting[0].reason.as_str()), (&OpStatus::Ok, reason));
        bench.write("proc/self/mountinfo", "1 1 0:1 / /dev/hugepages rw - tmpfs hugetlbfs rw\n");
        let done = bench.run(&pages, Mode::Apply);
        let reason =
            "/dev/hugepages is mounted as `tmpfs` and not as `hugetlbfs`, which only a new mount changes";
        assert_eq!(done.awaiting[0].reason, reason);
    }

    #[test]
    fn a_remount_gets_the_type_and_only_what_it_may_change() {
        for (fstype, live, opts, given) in [
            ("nfs", "nfs4", "users,noatime,vers=4.2,rsize=1048576,hard,_netdev", "remount,users,noatime"),
            ("ext4", "ext4", "noatime,data=writeback,commit=9", "remount,noatime,commit=9"),
            ("ceph", "ceph", "name=a,secretfile=/etc/a,noatime", "remount,name=a,secretfile=/etc/a,noatime"),
            ("cifs", "cifs", "credentials=/c,sec=krb5,noatime", "remount,credentials=/c,sec=krb5,noatime"),
            ("auto", "xfs", "noatime,logbsize=256k", "remount,noatime"),
            ("overlay", "overlay", "lowerdir=/a,noatime", "remount,noatime"),
        ] {
            let bench = bench();
            bench.write(
                "proc/self/mountinfo",
                &format!("1 1 0:1 / /x rw,relatime - {live} src:/x rw,vers=4.2\n"),
            );
            bench.write("etc/fstab", &format!("src:/x /x {fstype} defaults 0 0\n"));
            let task = mount(
                json!({"path": "/x", "src": "src:/x", "fstype": fstype, "opts": opts, "state": "mounted"}),
            );
            assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Changed, "{fstype}");
            let fstype = if fstype == "auto" { live } else { fstype };
            assert_eq!(bench.read("log"), format!("mount -t {fstype} -o {given} src:/x /x\n"));
        }
    }

    #[test]
    fn a_remount_that_fails_has_its_line_in_fstab() {
        let bench = bench();
        bench.run(&scratch("mounted"), Mode::Apply);
        bench.write("broken", "");
        let task = mount(json!({
            "path": "/scratch", "src": "/dev/nvme0n1", "fstype": "xfs", "opts": "noatime,wsync", "state": "mounted"
        }));
        assert!(
            message(&bench.run(&task, Mode::Apply)).starts_with("mount -o remount /scratch: exit status 32")
        );
        assert!(bench.read("etc/fstab").contains("/scratch xfs noatime,wsync"));
        // Nothing tells whether it counts, and the next boot has it.
        assert_eq!(bench.run(&task, Mode::Apply).status, OpStatus::Ok);
    }

    #[test]
    fn words_that_only_programs_read_ask_for_no_remount() {
        let bench = bench();
        bench.run(&scratch("mounted"), Mode::Apply);
        let task = mount(json!({
            "path": "/scratch", "src": "/dev/nvme0n1", "fstype": "xfs",
            "opts": "noatime,nofail,x-systemd.device-timeout=9", "state": "mounted"
        }));
        assert_eq!(bench.run(&task, Mode::Apply).changes.len(), 1);
        assert_eq!(bench.read("log"), "mount /scratch\n");
    }

    #[test]
    fn a_boot_that_had_the_line_awaits_no_other() {
        let bench = bench();
        bench.write("etc/fstab", "store:/data /data nfs nconnect=8 0 0\n");
        bench.write("proc/self/mountinfo", "1 1 0:1 / /data rw - nfs4 store:/data rw,proto=tcp\n");
        let later =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 60;
        bench.write("proc/stat", &format!("btime {later}\n"));
        bench.write("proc/1/stat", &format!("1 (systemd) S{}\n", " 0".repeat(40)));
        let task = mount(json!({
            "path": "/data", "src": "store:/data", "fstype": "nfs", "opts": "nconnect=8", "state": "mounted"
        }));
        let done = bench.run(&task, Mode::Apply);
        assert_eq!((&done.status, done.awaiting.len()), (&OpStatus::Ok, 0));
        assert!(
            done.warnings[0].ends_with("the boot had this line already, so something else decided it"),
            "{done:?}"
        );
    }

    #[test]
    fn the_other_states_do_what_they_say() {
        let bench = bench();
        assert_eq!(bench.run(&scratch("present"), Mode::Apply).changes.len(), 1);
        assert_eq!(bench.run(&scratch("present"), Mode::Apply).status, OpStatus::Ok);
        let plain = |state: &str| mount(json!({"path": "/scratch", "state": state}));
        assert_eq!(bench.run(&plain("unmounted"), Mode::Apply).status, OpStatus::Ok);
        assert_eq!(
            message(&bench.run(&plain("remounted"), Mode::Apply)),
            "nothing is mounted on /scratch, so nothing can be remounted"
        );
        assert_eq!(bench.run(&plain("absent_from_fstab"), Mode::Apply).changes.len(), 1);
        assert_eq!(bench.run(&scratch("ephemeral"), Mode::Apply).changes.len(), 1);
        assert_eq!(bench.run(&scratch("ephemeral"), Mode::Apply).status, OpStatus::Ok);
        assert!(!bench.read("etc/fstab").contains("scratch"));
        assert_eq!(bench.run(&plain("remounted"), Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.run(&plain("remounted"), Mode::Apply).status, OpStatus::Changed);
        let other =
            mount(json!({"path": "/scratch", "src": "/dev/md0", "fstype": "xfs", "state": "ephemeral"}));
        assert!(message(&bench.run(&other, Mode::Predict)).contains("is mounted on /scratch already"));
    }

    #[test]
    fn a_mount_that_fails_leaves_no_directory_and_an_unreadable_table_is_unknown() {
        let bench = bench();
        bench.write("broken", "");
        assert_eq!(
            message(&bench.run(&scratch("mounted"), Mode::Apply)),
            "mount /scratch: exit status 32: mount: /scratch: unknown filesystem type 'xfs'."
        );
        assert!(!bench.path("scratch").exists());
        fs::remove_file(bench.path("proc/self/mountinfo")).unwrap();
        assert!(matches!(bench.run(&scratch("mounted"), Mode::Predict).status, OpStatus::Unknown { .. }));
    }

    #[test]
    fn swap_is_known_by_its_source() {
        let bench = bench();
        bench.write("etc/fstab", "/dev/sda2 none swap sw 0 0\n");
        let swap = mount(
            json!({"path": "none", "src": "/dev/sda3", "fstype": "swap", "opts": "sw", "state": "present"}),
        );
        assert_eq!(bench.run(&swap, Mode::Apply).status, OpStatus::Changed);
        assert_eq!(bench.read("etc/fstab"), "/dev/sda2 none swap sw 0 0\n/dev/sda3 none swap sw 0 0\n");
        assert_eq!(bench.run(&swap, Mode::Apply).status, OpStatus::Ok);
    }
}
