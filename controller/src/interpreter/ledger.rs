//! What a play has declared on a host so far, resolved.

use std::cell::OnceCell;
use std::sync::Arc;

use gpufleet_protocol::op::{GpuTask, Staying};
use gpufleet_protocol::tasks::{
    AccountState, AptState, AptUpgrade, File, FileState, LineInFile, ModulePersistence, MountState,
    PackageState, ServiceState, User,
};
use gpufleet_protocol::{Awaiting, Disruption, NodeOp, pattern};
use regex::bytes::Regex;

use super::action::{BlobNeed, RunAs};
use super::intervening::{Intervener, may_touch};
use crate::playbook::Task;

/// One operation that was declared, fit to be planned again.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Who declared it: the task, the index of its loop's item, and that item's label; for a group one a member.
    pub owners: Vec<Owner>,
    pub op: NodeOp,
    pub blobs: Vec<BlobNeed>,
    pub run_as: RunAs,
    pub environment: Vec<(String, String)>,
    pub timeout_s: Option<u64>,
    pub awaiting: Vec<Awaiting>,
    /// What its changes were made with, such as why a value does not last: what differs, and the note.
    pub notes: Vec<(String, String)>,
    /// Tasks after it that may have changed what it declared, and nobody has looked since.
    pub after: Vec<Intervener>,
    /// A later task of the play did change it: it is not asserted any more.
    pub overruled: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub task: Arc<Task>,
    pub title: String,
    pub item: Option<(u32, String)>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    pub entries: Vec<Entry>,
    /// Jobs that nobody waits for: they may touch anything at any time.
    loose: Vec<Intervener>,
}

impl Ledger {
    /// Takes in what was declared; what it replaces goes. Says where it stands, if it stands at all.
    pub(super) fn declare(&mut self, mut entry: Entry) -> Option<usize> {
        entry.op = lasting(entry.op)?;
        let search = OnceCell::new();
        for earlier in &mut self.entries {
            supersede(&mut earlier.op, &mut earlier.owners, &entry.op, &search);
        }
        self.entries.retain(|earlier| !is_void(&earlier.op));
        self.entries.push(entry);
        Some(self.entries.len() - 1)
    }

    /// A task did something, which may be something to what others declared before it; `forever` where it goes on by itself.
    pub(super) fn intervened(&mut self, later: &NodeOp, who: &Intervener, forever: bool) {
        if forever && !self.loose.contains(who) {
            self.loose.push(who.clone());
        }
        for entry in self.entries.iter_mut().filter(|entry| may_touch(later, &entry.op)) {
            if !entry.after.contains(who) {
                entry.after.push(who.clone());
            }
        }
    }

    /// Who may have changed what an entry declares, once for each.
    pub(super) fn interveners(&self, index: usize) -> Vec<&Intervener> {
        let Some(entry) = self.entries.get(index) else { return Vec::new() };
        let loose = self.loose.iter().filter(|who| !entry.after.contains(who));
        entry.after.iter().chain(loose).collect()
    }

    /// Entries that a later task may have changed, and nobody has looked since. Not those of which a part waits for an
    /// activation: that part differs whoever did what, and they are asserted again behind it.
    pub(super) fn touched(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.standing().filter(|(_, entry)| !entry.after.is_empty() && entry.awaiting.is_empty())
    }

    /// A later task changed what these owners of an entry declared.
    pub(super) fn overrule(&mut self, index: usize, owners: &[usize]) {
        let Some(entry) = self.entries.get_mut(index) else { return };
        match &mut entry.op {
            // Why only these: what others of the group declared still stands, and a reset may take it.
            NodeOp::GpuGroup(group)
                if group.members.len() == entry.owners.len() && owners.len() < entry.owners.len() =>
            {
                let mut at = 0..;
                group.members.retain(|_| at.next().is_none_or(|at| !owners.contains(&at)));
                let mut at = 0..;
                entry.owners.retain(|_| at.next().is_none_or(|at| !owners.contains(&at)));
            }
            _ => entry.overruled = true,
        }
    }

    /// Entries that still stand.
    pub(super) fn standing(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.entries.iter().enumerate().filter(|(_, entry)| !entry.overruled)
    }

    /// What waits for an activation.
    pub(super) fn awaiting(&self) -> impl Iterator<Item = &Awaiting> {
        self.standing().flat_map(|(_, entry)| entry.awaiting.iter())
    }

    /// Forgets what waited for an activation of this class.
    pub(super) fn activated(&mut self, class: Disruption) {
        for entry in &mut self.entries {
            entry.awaiting.retain(|awaiting| awaiting.activation > class);
        }
    }
}

/// The part of an operation that stays true; nothing for acts such as a restart.
fn lasting(op: NodeOp) -> Option<NodeOp> {
    match op {
        NodeOp::Service(mut service) => {
            service.daemon_reload = false;
            service.daemon_reexec = false;
            service.state = match service.state {
                Some(ServiceState::Restarted) => Some(ServiceState::Started),
                Some(ServiceState::Reloaded) => None,
                other => other,
            };
            let asks = service.state.is_some() || service.enabled.is_some() || service.masked.is_some();
            asks.then_some(NodeOp::Service(service))
        }
        NodeOp::File(mut file) => {
            if file.state == Some(FileState::Touch) {
                file.state = None;
            }
            // Why: a reading of the file later changes them, and nobody declared that it may not.
            (file.modification_time, file.access_time) = (None, None);
            Some(NodeOp::File(file))
        }
        NodeOp::Stat(_) => None,
        // Why not `latest`: repositories may offer something newer at any time.
        NodeOp::Apt(mut apt) => {
            (apt.update_cache, apt.cache_valid_time) = (None, 0);
            (apt.clean, apt.autoclean, apt.autoremove) = (false, false, false);
            apt.upgrade = AptUpgrade::No;
            apt.name.retain(|name| name != "*");
            if apt.state == AptState::Latest {
                apt.state = AptState::Present;
            }
            (!apt.name.is_empty() || apt.deb.is_some()).then_some(NodeOp::Apt(apt))
        }
        NodeOp::Dnf(mut dnf) => {
            (dnf.update_cache, dnf.autoremove) = (false, false);
            dnf.name.retain(|name| name != "*");
            if dnf.state == PackageState::Latest {
                dnf.state = PackageState::Present;
            }
            (!dnf.name.is_empty()).then_some(NodeOp::Dnf(dnf))
        }
        NodeOp::Package(mut package) => {
            package.update_cache = false;
            if package.state == PackageState::Latest {
                package.state = PackageState::Present;
            }
            Some(NodeOp::Package(package))
        }
        NodeOp::Mount(mount) if mount.state == MountState::Remounted => None,
        op if op.is_declarative() => Some(op),
        _ => None,
    }
}

/// The name of a package without version and architecture.
fn package(name: &str) -> &str {
    name.split(['=', '>', '<', ' ', ':']).next().unwrap_or(name)
}

/// The packages that an operation declares.
fn packages(op: &NodeOp) -> &[String] {
    match op {
        NodeOp::Apt(apt) => &apt.name,
        NodeOp::Dnf(dnf) => &dnf.name,
        NodeOp::Package(package) => &package.name,
        _ => &[],
    }
}

/// The expression of a `lineinfile`, compiled when it is asked for first; none where it cannot be.
type Search = OnceCell<Option<Regex>>;

/// Takes out of an earlier operation what a later one declares otherwise; `search` is the later one's.
fn supersede(earlier: &mut NodeOp, owners: &mut Vec<Owner>, later: &NodeOp, search: &Search) {
    if overwritten(earlier, later) {
        void(earlier);
        return;
    }
    if let NodeOp::PutTree(tree) = &mut *earlier
        && let Some(path) = file_of(later)
    {
        // Why only that: the rest of the folder is still what the earlier task made it.
        let folder = tree.dest.trim_end_matches('/').to_owned();
        let is_part = |path: &str| path.strip_prefix(&folder).is_some_and(|rest| rest.starts_with('/'));
        let gone = |place: &str| is_below(place, &path) || place == path;
        if gone(&folder) && is_absence(later) || tree.remote_src.is_some() && is_part(&path) {
            void(earlier);
            return;
        }
        tree.entries.retain(|entry| {
            let place = format!("{folder}/{}", entry.path);
            !(place == path || is_absence(later) && gone(&place))
        });
    }
    match (&mut *earlier, later) {
        (NodeOp::Apt(old), _) => leave_out(&mut old.name, packages(later)),
        (NodeOp::Dnf(old), _) => leave_out(&mut old.name, packages(later)),
        (NodeOp::Package(old), _) => leave_out(&mut old.name, packages(later)),
        (NodeOp::User(old), NodeOp::User(new)) if old.name == new.name => supersede_user(earlier, new),
        (NodeOp::Group(old), NodeOp::Group(new))
            if old.name == new.name && (new.state != old.state || new.gid.is_some()) =>
        {
            void(earlier);
        }
        (NodeOp::Cron(old), NodeOp::Cron(new))
            if (&old.name, &old.user, &old.cron_file, old.env)
                == (&new.name, &new.user, &new.cron_file, new.env) =>
        {
            void(earlier);
        }
        (NodeOp::Hostname(_), NodeOp::Hostname(_)) => void(earlier),
        (NodeOp::Modprobe(old), NodeOp::Modprobe(new))
            if old.name.replace('-', "_") == new.name.replace('-', "_") =>
        {
            if new.persistent == ModulePersistence::Disabled {
                old.state = new.state;
            } else {
                void(earlier);
            }
        }
        (NodeOp::Mount(old), NodeOp::Mount(new)) if old.path == new.path && old.src == new.src => {
            void(earlier);
        }
        (NodeOp::Mount(old), NodeOp::Mount(new)) if old.path == new.path && old.path.starts_with('/') => {
            // Why: unmounting leaves the line in fstab, and a line alone leaves what is mounted.
            match (old.state, new.state) {
                (MountState::Mounted, MountState::Unmounted) => old.state = MountState::Present,
                _ => void(earlier),
            }
        }
        (NodeOp::Sysctl(old), NodeOp::Sysctl(new)) if old.name == new.name => void(earlier),
        (NodeOp::Service(old), NodeOp::Service(new)) if unit(&old.name) == unit(&new.name) => {
            if new.state.is_some() {
                old.state = None;
            }
            if new.enabled.is_some() {
                old.enabled = None;
            }
            if new.masked.is_some() {
                old.masked = None;
            }
        }
        (NodeOp::PutFile(old), NodeOp::PutFile(new))
            if old.dest == new.dest && (old.name == new.name || !old.dest.ends_with('/')) =>
        {
            void(earlier);
        }
        (NodeOp::PutFile(old), NodeOp::File(new)) if old.dest == new.path => {
            if matches!(new.state, None | Some(FileState::File)) {
                old.owner = old.owner.take().filter(|_| new.owner.is_none());
                old.group = old.group.take().filter(|_| new.group.is_none());
                old.mode = old.mode.take().filter(|_| new.mode.is_none());
            } else {
                void(earlier);
            }
        }
        (NodeOp::File(old), NodeOp::File(new)) if old.path == new.path => {
            old.owner = old.owner.take().filter(|_| new.owner.is_none());
            old.group = old.group.take().filter(|_| new.group.is_none());
            old.mode = old.mode.take().filter(|_| new.mode.is_none());
            if new.state.is_some() {
                void(earlier);
            }
        }
        (NodeOp::File(old), NodeOp::PutFile(new)) if old.path == new.dest && !is_directory(old) => {
            void(earlier)
        }
        (NodeOp::LineInFile(old), NodeOp::LineInFile(new)) if old.path == new.path => {
            let same = old.regexp.is_some() && old.regexp == new.regexp || old.line == new.line;
            if same || old.line.as_deref().is_some_and(|line| meets(new, search, line)) {
                void(earlier);
            }
        }
        (NodeOp::KernelCmdline(old), NodeOp::KernelCmdline(new)) => {
            let key = |word: &str| word.split('=').next().unwrap_or_default().to_owned();
            let touched: Vec<_> = new.add.iter().chain(&new.remove).map(|word| key(word)).collect();
            old.add.retain(|word| !touched.contains(&key(word)));
            old.remove.retain(|word| !touched.contains(&key(word)));
        }
        (NodeOp::GpuGroup(old), NodeOp::GpuGroup(new)) => {
            let kept: Vec<bool> = old
                .members
                .iter()
                .map(|member| !new.members.iter().any(|later| replaces(&member.task, &later.task)))
                .collect();
            let mut keep = kept.iter();
            old.members.retain(|_| keep.next().copied().unwrap_or(true));
            let mut keep = kept.iter();
            owners.retain(|_| keep.next().copied().unwrap_or(true));
        }
        _ => {}
    }
}

/// Whether a task looks for lines such as this one; one that cannot be told here may.
fn meets(task: &LineInFile, search: &Search, line: &str) -> bool {
    let by_pattern = |pattern: &String| {
        let pattern = search.get_or_init(|| pattern::compile("regexp", pattern).ok());
        pattern.as_ref().is_none_or(|pattern| pattern.is_match(line.as_bytes()))
    };
    task.regexp.as_ref().is_some_and(by_pattern)
        || task.search_string.as_ref().is_some_and(|text| line.contains(text.as_str()))
}

fn is_below(place: &str, folder: &str) -> bool {
    place.strip_prefix(folder.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/'))
}

/// Whether something is to be gone.
fn is_absence(op: &NodeOp) -> bool {
    matches!(op, NodeOp::File(file) if file.state == Some(FileState::Absent))
}

/// The file that an operation declares something of.
fn file_of(op: &NodeOp) -> Option<String> {
    Some(match op {
        NodeOp::PutFile(put) if put.dest.ends_with('/') => format!("{}{}", put.dest, put.name),
        NodeOp::PutFile(put) => put.dest.clone(),
        NodeOp::GetUrl(get) => get.dest.clone(),
        NodeOp::File(file) => file.path.clone(),
        NodeOp::LineInFile(line) => line.path.clone(),
        NodeOp::BlockInFile(block) => block.path.clone(),
        NodeOp::Replace(replace) => replace.path.clone(),
        _ => return None,
    })
}

/// Whether a later task of a file makes it something else than what an earlier one declared.
fn overwritten(earlier: &NodeOp, later: &NodeOp) -> bool {
    let (Some(old), Some(new)) = (file_of(earlier), file_of(later)) else { return false };
    if is_absence(later) {
        return old == new || is_below(&old, &new);
    }
    let whole = |op: &NodeOp| matches!(op, NodeOp::PutFile(_) | NodeOp::GetUrl(_));
    let edits =
        |op: &NodeOp| matches!(op, NodeOp::LineInFile(_) | NodeOp::BlockInFile(_) | NodeOp::Replace(_));
    if old != new {
        return false;
    }
    match (earlier, later) {
        // Why: a file that is edited is no longer the content that an earlier task gave it, and the other way around.
        (old, new) if whole(old) && edits(new) || edits(old) && whole(new) => true,
        // Why: what is replaced, and where a line is put, may be what the other one found or left out.
        (old, NodeOp::Replace(_)) => edits(old),
        (NodeOp::Replace(_), new) => edits(new),
        (NodeOp::BlockInFile(old), NodeOp::BlockInFile(new)) => old.marker == new.marker,
        _ => false,
    }
}

fn leave_out(names: &mut Vec<String>, later: &[String]) {
    names.retain(|name| !later.iter().any(|new| package(new) == package(name)));
}

/// Fields of a user that a later task of the same name declares again.
fn supersede_user(earlier: &mut NodeOp, new: &User) {
    let NodeOp::User(old) = earlier else { return };
    if new.state != old.state || new.state == AccountState::Absent {
        void(earlier);
        return;
    }
    macro_rules! given {
        ($($field:ident),*) => {$( if new.$field.is_some() { old.$field = None; } )*};
    }
    given!(
        uid,
        group,
        groups,
        comment,
        home,
        shell,
        password,
        password_lock,
        expires,
        password_expire_max,
        password_expire_min,
        password_expire_warn,
        password_expire_account_disable
    );
    old.create_home = old.create_home && new.create_home;
}

fn unit(name: &str) -> &str {
    name.strip_suffix(".service").unwrap_or(name)
}

fn is_directory(file: &File) -> bool {
    file.state == Some(FileState::Directory)
}

/// Whether a later GPU task declares everything that an earlier one did.
fn replaces(earlier: &GpuTask, later: &GpuTask) -> bool {
    macro_rules! same_kind {
        ($($variant:ident),*) => {
            match (earlier, later) {
                $((GpuTask::$variant(old), GpuTask::$variant(new)) => new.gpus.is_empty() || new.gpus == old.gpus,)*
                _ => false,
            }
        };
    }
    match (earlier, later) {
        // Why: the two clocks are two knobs.
        (GpuTask::GpuClocks(old), GpuTask::GpuClocks(new)) => {
            (new.gpus.is_empty() || new.gpus == old.gpus)
                && (new.reset
                    || (old.graphics_mhz.is_none() || new.graphics_mhz.is_some())
                        && (old.memory_mhz.is_none() || new.memory_mhz.is_some()))
        }
        _ => same_kind!(GpuPersistence, GpuEcc, GpuMig, GpuPower, GpuComputeMode, GpuMps),
    }
}

fn void(op: &mut NodeOp) {
    *op = NodeOp::Idle(Staying::default());
}

fn is_void(op: &NodeOp) -> bool {
    match op {
        NodeOp::Idle(_) => true,
        NodeOp::Service(service) => {
            service.state.is_none() && service.enabled.is_none() && service.masked.is_none()
        }
        NodeOp::Apt(apt) => apt.name.is_empty() && apt.deb.is_none(),
        NodeOp::Dnf(dnf) => dnf.name.is_empty(),
        NodeOp::Package(package) => package.name.is_empty(),
        NodeOp::KernelCmdline(words) => words.add.is_empty() && words.remove.is_empty(),
        NodeOp::GpuGroup(group) => group.members.is_empty(),
        _ => false,
    }
}
