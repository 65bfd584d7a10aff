//! Why the unit of the persistence daemon does not start, what of it a run repairs, and what only a person can: so that a
//! plan says it before anything is done.
//!
//! Sources: NVIDIA/nvidia-persistenced 595.71: the daemon makes its folder in /var/run with a socket and a file with its
//! pid, may give up root (`--user`), and with `--no-persistence-mode` switches persistence off when it starts. Ubuntu's
//! nvidia-compute-utils: its unit has that option, `StopWhenUnneeded=true` and no [Install], and a rule of udev starts it.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use super::clients::PERSISTENCED;

/// What is asked of systemd.
pub const ASKED: &str = "--property=LoadState,ActiveState,SubState,NRestarts,UnitFileState,FragmentPath,StopWhenUnneeded,\
                         DropInPaths,ExecStart,User,RuntimeDirectory";
/// The first 15 characters of the program's name, which the kernel keeps.
pub const COMM: &str = "nvidia-persiste";
pub const DROP_IN: &str = "/etc/systemd/system/nvidia-persistenced.service.d/50-gpufleet.conf";
pub const DROP_IN_TEXT: &str = "# By gpufleet: systemd gives the user of the daemon its folder in /run.\n\
                                [Service]\nRuntimeDirectory=nvidia-persistenced\n";
/// A file of its own, so that neither depends on what the other says.
pub const START_DROP_IN: &str = "/etc/systemd/system/nvidia-persistenced.service.d/51-gpufleet-start.conf";
/// The link that lets a boot start a unit whose file has no [Install].
pub const WANTS: &str = "/etc/systemd/system/multi-user.target.wants/nvidia-persistenced.service";
const ON: &str = "--persistence-mode";
const OFF: &str = "--no-persistence-mode";
const FOLDER: &str = "run/nvidia-persistenced";
/// What a daemon leaves there that was killed.
const LEFT: [&str; 2] = ["nvidia-persistenced.pid", "socket"];

/// What a run does so that the unit can start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Gives the daemon's user its folder, now and at each boot.
    Folder { user: String },
    /// Removes a file of a daemon that does not run any more.
    Leftover { path: String },
    /// Forgets earlier failures, after which systemd may refuse to start it.
    Failures,
    /// Lets each start switch persistence on, with this command, and lets the unit run though no other needs it. Needed
    /// too where the daemon runs: otherwise the next boot brings persistence back off.
    Start { command: Option<String>, unneeded: bool },
    /// Takes that drop-in away, for a node on which persistence is to stay off.
    NoStart,
}

impl Repair {
    /// Whether it is for the start of the daemon only.
    pub const fn is_done_while_it_runs(&self) -> bool {
        matches!(self, Self::Start { .. })
    }

    /// Returns the settings of a drop-in.
    pub fn settings(&self) -> Vec<String> {
        match self {
            Self::Folder { .. } => vec!["RuntimeDirectory=nvidia-persistenced".to_owned()],
            Self::Start { command, unneeded } => {
                let command = command.iter().map(|command| format!("ExecStart={command}"));
                command.chain(unneeded.then(|| "StopWhenUnneeded=no".to_owned())).collect()
            }
            Self::Leftover { .. } | Self::Failures | Self::NoStart => Vec::new(),
        }
    }

    /// Returns the path and the text of its drop-in; no text where that is removed.
    pub fn drop_in(&self) -> Option<(&'static str, Option<String>)> {
        match self {
            Self::Folder { .. } => Some((DROP_IN, Some(DROP_IN_TEXT.to_owned()))),
            Self::Start { command, unneeded } => {
                let mut text =
                    "# By gpufleet: persistence is on after each start of the daemon.\n".to_owned();
                if *unneeded {
                    text.push_str("[Unit]\nStopWhenUnneeded=no\n");
                }
                if let Some(command) = command {
                    text.push_str(&format!("[Service]\nExecStart=\nExecStart={command}\n"));
                }
                Some((START_DROP_IN, Some(text)))
            }
            Self::NoStart => Some((START_DROP_IN, None)),
            Self::Leftover { .. } | Self::Failures => None,
        }
    }
}

/// How a unit starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Whether its file has no [Install], so that enabling it does nothing.
    pub is_static: bool,
    /// Whether the daemon switches persistence off when it starts.
    pub off: bool,
    /// Whether a run gave it the drop-in of [`Repair::Start`].
    pub has_drop_in: bool,
}

/// What our own drop-in says.
#[derive(Debug, Default)]
struct Own {
    there: bool,
    /// As the file has it, so that it can be written again.
    command: Option<String>,
    unneeded: bool,
}

impl Own {
    fn read(root: &Path) -> Self {
        let Ok(bytes) = fs::read(root.join(START_DROP_IN.trim_start_matches('/'))) else {
            return Self::default();
        };
        let text = String::from_utf8_lossy(&bytes);
        let commands = text.lines().filter_map(|line| line.trim().strip_prefix("ExecStart="));
        Self {
            there: true,
            command: commands.map(str::trim).rfind(|command| !command.is_empty()).map(str::to_owned),
            unneeded: text.lines().any(|line| line.trim() == "StopWhenUnneeded=no"),
        }
    }
}

/// Whether a unit cannot be enabled. Its file decides: with a link below `multi-user.target.wants`, which may be ours,
/// systemd calls it enabled although it has no [Install].
fn is_static(shown: &str, root: &Path) -> bool {
    let path = value(shown, "FragmentPath").trim_start_matches('/');
    let has_install =
        |text: Vec<u8>| String::from_utf8_lossy(&text).lines().any(|line| line.trim() == "[Install]");
    value(shown, "UnitFileState") == "static"
        || !path.is_empty() && fs::read(root.join(path)).is_ok_and(|text| !has_install(text))
}

/// What is known of a unit beside whether it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// What a person has to do first.
    pub fault: Option<String>,
    pub repairs: Vec<Repair>,
    pub start: Start,
}

/// Looks at a unit. `uid` tells the number of a user, if there is one; `running` are processes of the daemon, and whether
/// each hangs in the kernel.
pub fn examine(
    shown: &str,
    root: &Path,
    uid: impl Fn(&str) -> Option<u32>,
    running: &[(u32, bool)],
) -> Found {
    let own = Own::read(root);
    let start = Start {
        is_static: is_static(shown, root),
        off: is_off(between(value(shown, "ExecStart"), "argv[]=")),
        has_drop_in: own.there,
    };
    if let Some(fault) = fault(shown, root, &own, &uid, running) {
        return Found { fault: Some(fault), start, ..Found::default() };
    }
    let repairs = repairs(shown, root, own, uid);
    // Only where nothing that a run repairs may be the cause.
    match loops(shown).filter(|_| repairs.iter().all(Repair::is_done_while_it_runs)) {
        Some(fault) => Found { fault: Some(fault), start, ..Found::default() },
        None => Found { repairs, start, ..Found::default() },
    }
}

fn is_restarting(shown: &str) -> bool {
    value(shown, "SubState").starts_with("auto-restart")
}

fn loops(shown: &str) -> Option<String> {
    let times = match value(shown, "NRestarts") {
        "" | "0" => String::new(),
        times => format!(" ({times} times so far)"),
    };
    is_restarting(shown).then(|| {
        format!(
            "the unit {PERSISTENCED} fails, and systemd starts it again and again{times}; `journalctl -u {PERSISTENCED}` on the \
             node tells why"
        )
    })
}

/// Whether a daemon with these arguments switches persistence off: of its two options, the last one counts.
fn is_off(arguments: &str) -> bool {
    arguments.split_whitespace().rfind(|word| [ON, OFF].contains(word)) == Some(OFF)
}

/// Returns a command that switches persistence on and is the same otherwise, as a unit file has it; `None` where systemd may
/// have shown it without what its words were quoted with.
fn switched_on(arguments: &str) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || " -_./=:,+@%$".contains(c);
    arguments.chars().all(plain).then(|| {
        let words = arguments.split_whitespace().map(|word| if word == OFF { ON } else { word });
        words.collect::<Vec<_>>().join(" ").replace('%', "%%")
    })
}

fn value<'a>(shown: &'a str, name: &str) -> &'a str {
    shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
}

fn fault(
    shown: &str,
    root: &Path,
    drop_in: &Own,
    uid: impl Fn(&str) -> Option<u32>,
    running: &[(u32, bool)],
) -> Option<String> {
    let value = |name: &str| value(shown, name);
    if value("LoadState") == "masked" {
        return Some(format!(
            "the unit {PERSISTENCED} is masked; unmask it: `systemctl unmask {PERSISTENCED}`"
        ));
    }
    if let Some((pid, _)) = running.iter().find(|(_, hangs)| *hangs) {
        return Some(format!(
            "the persistence daemon hangs in the driver (process {pid}, state D), where nothing can end it; look at the \
             kernel's log, and reboot the node"
        ));
    }
    if is_up(shown) {
        return again_off(shown, drop_in);
    }
    if value("ActiveState") == "deactivating" {
        return Some(format!(
            "the unit {PERSISTENCED} is stopping and does not end, as where a process hangs in the driver; look at the \
             kernel's log, and reboot the node"
        ));
    }
    if let Some((pid, _)) = running.first() {
        return Some(format!(
            "a persistence daemon runs outside of the unit {PERSISTENCED}, which cannot start beside it; end it: \
             `kill {pid}`, and find out who starts it (a container, rc.local?)"
        ));
    }
    let command = value("ExecStart");
    let program = between(command, "path=");
    if program.starts_with('/') && !root.join(program.trim_start_matches('/')).is_file() {
        return Some(format!(
            "the unit {PERSISTENCED} starts {program}, which is not there; install the driver's package that has it"
        ));
    }
    let own = value("User");
    for user in [own, given_user(between(command, "argv[]="))].into_iter().filter(|user| !user.is_empty()) {
        if uid(user).is_none() {
            return Some(format!(
                "the unit {PERSISTENCED} wants the user {user}, whom this node does not have; create the user, or install \
                 the driver's package anew"
            ));
        }
    }
    match fs::symlink_metadata(root.join(FOLDER)) {
        Ok(found) if !found.is_dir() => Some(format!(
            "/{FOLDER} is no folder, and the unit {PERSISTENCED} needs one there; see what it is, and remove it"
        )),
        _ => again_off(shown, drop_in),
    }
}

/// Whether the unit runs, so that nothing keeps it from starting.
fn is_up(shown: &str) -> bool {
    matches!(value(shown, "ActiveState"), "active" | "activating" | "reloading") && !is_restarting(shown)
}

/// Returns why the daemon would switch persistence off when it starts, where no drop-in of ours helps.
fn again_off(shown: &str, drop_in: &Own) -> Option<String> {
    let arguments = between(value(shown, "ExecStart"), "argv[]=");
    if !is_off(arguments) {
        return None;
    }
    let read = value(shown, "DropInPaths").split_whitespace().any(|path| path == START_DROP_IN);
    // It may be there for the other setting only, and a run adds the command then.
    if read && drop_in.command.is_some() {
        return Some(format!(
            "the unit {PERSISTENCED} starts its daemon with {OFF}, which a drop-in says that comes after {START_DROP_IN}; \
             find it with `systemctl cat {PERSISTENCED}`, and take its ExecStart= away"
        ));
    }
    let message = || {
        format!(
            "the unit {PERSISTENCED} starts its daemon with {OFF}, so that each boot switches persistence off; say ExecStart= \
             without it in a drop-in of the unit"
        )
    };
    switched_on(arguments).is_none().then(message)
}

fn repairs(shown: &str, root: &Path, drop_in: Own, uid: impl Fn(&str) -> Option<u32>) -> Vec<Repair> {
    let mut repairs = Vec::new();
    let arguments = between(value(shown, "ExecStart"), "argv[]=");
    let command = is_off(arguments).then(|| switched_on(arguments)).flatten();
    let unneeded = value(shown, "StopWhenUnneeded") == "yes";
    if command.is_some() || unneeded {
        // What the drop-in says already stays: what systemd shows includes it, so that it looks as if it were not needed.
        repairs.push(Repair::Start {
            command: command.or(drop_in.command),
            unneeded: unneeded || drop_in.unneeded,
        });
    }
    if is_up(shown) {
        return repairs;
    }
    let own = value(shown, "User");
    // Only with `User=`: otherwise the daemon is root when it makes the folder. With `RuntimeDirectory=` systemd gives it
    // to the user at each start.
    let user = uid(own).filter(|uid| !own.is_empty() && *uid != 0);
    let folder = fs::symlink_metadata(root.join(FOLDER));
    if let (Some(user), true) = (user, value(shown, "RuntimeDirectory").is_empty())
        && !folder.is_ok_and(|found| found.uid() == user)
    {
        repairs.push(Repair::Folder { user: own.to_owned() });
    }
    for name in LEFT {
        if fs::symlink_metadata(root.join(FOLDER).join(name)).is_ok_and(|found| !found.is_dir()) {
            repairs.push(Repair::Leftover { path: format!("/{FOLDER}/{name}") });
        }
    }
    if value(shown, "ActiveState") == "failed" {
        repairs.push(Repair::Failures);
    }
    repairs
}

/// Returns what follows a key of `{ path=… ; argv[]=… ; … }`.
fn between<'a>(text: &'a str, key: &str) -> &'a str {
    let found = text.split_once(key).map(|(_, rest)| rest.split(" ;").next().unwrap_or(rest));
    found.unwrap_or_default().trim()
}

/// Returns the user that the daemon itself is told to become.
fn given_user(arguments: &str) -> &str {
    let mut words = arguments.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "--user" | "-u" => return words.next().unwrap_or_default(),
            _ => {
                if let Some(user) = word.strip_prefix("--user=") {
                    return user;
                }
            }
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shape_of_a_broken_unit_is_named() {
        let root = tempfile::tempdir().unwrap();
        let own = fs::metadata(root.path()).unwrap().uid();
        let uid = |user: &str| match user {
            "nvidia-persistenced" => Some(4711),
            "me" => Some(own.max(1)),
            _ => None,
        };
        let told = |more: &str, arguments: &str| {
            let path = "/usr/bin/nvidia-persistenced";
            let text = format!(
                "LoadState=loaded\nActiveState=inactive\nExecStart={{ path={path} ; argv[]={path} {arguments} ; \
                 ignore_errors=no ; pid=0 }}\n{more}"
            );
            examine(&text, root.path(), uid, &[]).fault.unwrap_or_default()
        };
        assert!(told("", "").contains("starts /usr/bin/nvidia-persistenced, which is not there"));
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        fs::write(root.path().join("usr/bin/nvidia-persistenced"), "").unwrap();
        assert_eq!(told("", "--verbose"), "");
        assert_eq!(told("", "--user nvidia-persistenced --no-persistence-mode"), "", "a run repairs it");
        for wrong in ["--user ghost", "--user=ghost", "-u ghost"] {
            assert!(told("", wrong).contains("wants the user ghost"), "{wrong}");
        }
        assert!(told("User=ghost\n", "").contains("wants the user ghost"));
        let of = |text: &str| examine(text, root.path(), uid, &[]).fault.unwrap_or_default();
        assert!(of("LoadState=masked\n").contains("systemctl unmask"));
        assert!(of("LoadState=loaded\nActiveState=deactivating\n").contains("does not end"));
        assert_eq!(of(""), "", "what systemd does not tell is no fault");
    }

    /// Ubuntu's unit, in a state.
    fn of_ubuntu(more: &str, arguments: &str) -> String {
        let path = "/usr/bin/nvidia-persistenced";
        format!(
            "LoadState=loaded\nUnitFileState=static\nStopWhenUnneeded=yes\nExecStart={{ path={path} ; argv[]={path} \
             {arguments} ; ignore_errors=no ; pid=0 }}\n{more}"
        )
    }

    #[test]
    fn a_unit_that_switches_persistence_off_gets_a_drop_in_whether_it_runs_or_not() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        fs::write(root.path().join("usr/bin/nvidia-persistenced"), "").unwrap();
        let found = |more: &str, arguments: &str| {
            examine(&of_ubuntu(more, arguments), root.path(), |_| Some(110), &[])
        };
        let theirs = "--user nvidia-persistenced --no-persistence-mode --verbose";
        let ours = "/usr/bin/nvidia-persistenced --user nvidia-persistenced --persistence-mode --verbose";
        for state in ["ActiveState=active\n", "ActiveState=inactive\n"] {
            let seen = found(state, theirs);
            assert_eq!(seen.fault, None, "{state}");
            assert_eq!(seen.start, Start { is_static: true, off: true, has_drop_in: false });
            let repair = Repair::Start { command: Some(ours.to_owned()), unneeded: true };
            assert_eq!(seen.repairs, std::slice::from_ref(&repair), "{state}");
            assert_eq!(
                repair.drop_in().unwrap(),
                (
                    START_DROP_IN,
                    Some(format!(
                        "# By gpufleet: persistence is on after each start of the daemon.\n[Unit]\nStopWhenUnneeded=no\n\
                         [Service]\nExecStart=\nExecStart={ours}\n"
                    ))
                )
            );
        }
        let mended = found("StopWhenUnneeded=no\n", "--no-persistence-mode --persistence-mode");
        assert!(!mended.start.off, "the last option counts");
        let percent = found("", "--no-persistence-mode --nvidia-cfg-path=/opt/100%");
        let command = "/usr/bin/nvidia-persistenced --persistence-mode --nvidia-cfg-path=/opt/100%%";
        let repair = Repair::Start { command: Some(command.to_owned()), unneeded: true };
        assert_eq!(percent.repairs, [repair]);
    }

    #[test]
    fn a_loop_of_failures_is_a_fault_unless_its_cause_can_be_repaired() {
        let root = tempfile::tempdir().unwrap();
        let shown = "LoadState=loaded\nActiveState=activating\nSubState=auto-restart\nNRestarts=12\n";
        let found = examine(shown, root.path(), |_| Some(4711), &[]);
        let fault = found.fault.unwrap();
        assert!(fault.contains("again and again (12 times so far); `journalctl -u nvidia-pers"), "{fault}");
        let found = examine(&format!("{shown}User=someone\n"), root.path(), |_| Some(4711), &[]);
        assert_eq!((found.fault, found.repairs.len()), (None, 1), "its folder");
    }

    #[test]
    fn a_daemon_that_runs_may_hang_and_is_no_other_beside_the_unit() {
        let root = tempfile::tempdir().unwrap();
        let with = |running: &[(u32, bool)]| {
            examine("LoadState=loaded\nActiveState=active\n", root.path(), |_| None, running).fault
        };
        assert_eq!(with(&[(77, false)]), None);
        assert!(with(&[(77, true)]).unwrap().contains("process 77, state D"));
    }

    #[test]
    fn where_no_drop_in_can_keep_persistence_on_a_person_is_told() {
        let root = tempfile::tempdir().unwrap();
        let told = |more: &str, arguments: &str| {
            let text = of_ubuntu(&format!("ActiveState=active\n{more}"), arguments);
            examine(&text, root.path(), |_| Some(110), &[])
        };
        put_drop_in(root.path(), &Repair::Start { command: Some("/bin/daemon".to_owned()), unneeded: true });
        let later = format!("DropInPaths={START_DROP_IN} /etc/systemd/system/x.service.d/90-site.conf\n");
        let found = told(&later, "--no-persistence-mode");
        assert!(found.fault.unwrap().contains("comes after"));
        assert_eq!(found.repairs, []);
        assert!(told("", "--no-persistence-mode \"a b\"").fault.unwrap().contains("ExecStart= without it"));
        assert_eq!(told("", "--verbose").fault, None);
    }

    /// Writes what a run wrote before.
    fn put_drop_in(root: &Path, repair: &Repair) {
        let (path, text) = repair.drop_in().unwrap();
        let path = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.unwrap()).unwrap();
    }

    #[test]
    fn one_setting_of_the_drop_in_survives_the_repair_of_the_other() {
        let read = format!("ActiveState=active\nDropInPaths={START_DROP_IN}\n");
        let command = "/usr/bin/nvidia-persistenced --persistence-mode --nvidia-cfg-path=/opt/100%%";
        let of =
            |command: Option<&str>, unneeded| Repair::Start { command: command.map(str::to_owned), unneeded };
        // The file that says only the one, and how the unit looks once it is to say the other.
        for (had, arguments, needs, expected) in [
            (of(Some(command), false), "--persistence-mode", "yes", of(Some(command), true)),
            (
                of(None, true),
                "--no-persistence-mode --verbose",
                "no",
                of(Some("/usr/bin/nvidia-persistenced --persistence-mode --verbose"), true),
            ),
        ] {
            let root = tempfile::tempdir().unwrap();
            put_drop_in(root.path(), &had);
            let path = "/usr/bin/nvidia-persistenced";
            let shown = format!(
                "LoadState=loaded\nStopWhenUnneeded={needs}\nExecStart={{ path={path} ; argv[]={path} {arguments} ; pid=0 \
                 }}\n{read}"
            );
            let found = examine(&shown, root.path(), |_| Some(110), &[]);
            assert_eq!((found.fault, found.repairs), (None, vec![expected]), "{arguments}");
            assert!(found.start.has_drop_in);
        }
    }

    #[test]
    fn a_unit_without_install_is_static_though_a_link_makes_systemd_call_it_enabled() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("lib")).unwrap();
        let shown =
            "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\nFragmentPath=/lib/p.service\n";
        for (text, expected) in
            [("[Unit]\n# [Install]\n[Service]\n", true), ("[Service]\n[Install]\nWantedBy=a.target\n", false)]
        {
            fs::write(root.path().join("lib/p.service"), text).unwrap();
            assert_eq!(examine(shown, root.path(), |_| None, &[]).start.is_static, expected, "{text}");
        }
        fs::remove_file(root.path().join("lib/p.service")).unwrap();
        assert!(!examine(shown, root.path(), |_| None, &[]).start.is_static, "its file cannot be read");
    }

    #[test]
    fn what_can_be_repaired_is_no_fault() {
        let root = tempfile::tempdir().unwrap();
        let own = fs::metadata(root.path()).unwrap().uid();
        let uid = |user: &str| match user {
            "nvidia-persistenced" => Some(4711),
            "root" => Some(0),
            "me" => Some(own.max(1)),
            _ => None,
        };
        let found = |text: &str| examine(text, root.path(), uid, &[]);
        let folder = || vec![Repair::Folder { user: "nvidia-persistenced".to_owned() }];
        assert_eq!(found("User=nvidia-persistenced\n"), Found { repairs: folder(), ..Found::default() });
        let given = "User=nvidia-persistenced\nRuntimeDirectory=nvidia-persistenced\n";
        assert_eq!(found(given), Found::default());
        assert_eq!(found("User=root\n"), Found::default());
        fs::create_dir_all(root.path().join(FOLDER)).unwrap();
        assert_eq!(found("User=nvidia-persistenced\n").repairs, folder(), "it is another user's");
        if own != 0 {
            assert_eq!(found("User=me\n"), Found::default());
        }
        fs::write(root.path().join(FOLDER).join("nvidia-persistenced.pid"), "77\n").unwrap();
        fs::write(root.path().join(FOLDER).join("other"), "").unwrap();
        assert_eq!(
            found("ActiveState=failed\n").repairs,
            [
                Repair::Leftover { path: "/run/nvidia-persistenced/nvidia-persistenced.pid".to_owned() },
                Repair::Failures
            ]
        );
    }

    #[test]
    fn a_daemon_that_runs_otherwise_is_named_and_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let with = |running: &[(u32, bool)]| examine("LoadState=loaded\n", root.path(), |_| None, running);
        assert!(with(&[(77, false)]).fault.unwrap().contains("`kill 77`"));
        let hangs = with(&[(76, false), (77, true)]);
        assert!(hangs.fault.unwrap().contains("process 77, state D"));
        assert_eq!(hangs.repairs, []);
        fs::create_dir_all(root.path().join("run")).unwrap();
        fs::write(root.path().join(FOLDER), "").unwrap();
        assert!(with(&[]).fault.unwrap().contains("is no folder"));
    }
}
