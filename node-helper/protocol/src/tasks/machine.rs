//! Parameters of the kinds that declare what a machine has around its services: name, modules, mounts, cron jobs.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, words::words};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { HostnameStrategy { Systemd: "systemd", Generic: "generic", Debian: "debian", RedHat: "redhat" } }

/// Names the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Hostname {
    /// Name of the node, with or without its domain.
    #[serde(deserialize_with = "lenient::text")]
    pub name: String,
    /// How Ansible would set it; all of them mean /etc/hostname and the running kernel here.
    #[serde(default, rename = "use", skip_serializing_if = "Option::is_none")]
    pub strategy: Option<HostnameStrategy>,
}

impl Kind for Hostname {
    const INFO: KindInfo = KindInfo {
        name: "hostname",
        aliases: &["ansible.builtin.hostname"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[("use", "2.9")],
        summary: "Names the node, now and for every boot.",
        example: "hostname: {name: gpu001}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        let label = |text: &str| {
            !text.is_empty() && text.len() <= 63 && !text.starts_with('-') && !text.ends_with('-')
        };
        if self.name.len() > 64 {
            return Err(ParamError::new("name", "the kernel takes 64 characters as the name of a node"));
        }
        if !self.name.chars().all(legal) || !self.name.split('.').all(label) {
            return Err(ParamError::new("name", format!("`{}` cannot be the name of a node", self.name)));
        }
        Ok(())
    }
}

impl Operation for Hostname {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places(["/etc/hostname"])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::Hostname(_))
    }
}

words! { #[derive(Default)] ModuleState { #[default] Present: "present", Absent: "absent" } }
words! { #[derive(Default)] ModulePersistence { #[default] Disabled: "disabled", Present: "present", Absent: "absent" } }

/// Declares a module of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Modprobe {
    /// Name of the module.
    pub name: String,
    /// `present` (default): loaded; `absent`: not loaded.
    #[serde(default)]
    pub state: ModuleState,
    /// Options that it is loaded with. A module that is loaded already keeps the ones it has.
    #[serde(default, deserialize_with = "lenient::text")]
    pub params: String,
    /// `present`: loaded at every boot, with `params`; `absent`: no longer; `disabled` (default): boots are left alone.
    #[serde(default)]
    pub persistent: ModulePersistence,
}

impl Kind for Modprobe {
    const INFO: KindInfo = KindInfo {
        name: "modprobe",
        aliases: &["community.general.modprobe"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[("persistent", "community.general 7.0.0")],
        summary: "Loads or unloads a module of the kernel, now and for every boot.",
        example: "modprobe: {name: nvidia_peermem, persistent: present}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if self.name.is_empty() || self.name.starts_with('-') || !self.name.chars().all(legal) {
            return Err(ParamError::new("name", format!("`{}` is not the name of a module", self.name)));
        }
        let Some(options) = self.options() else {
            return Err(ParamError::new("params", "a quote is opened and not closed"));
        };
        if self.params.contains('\n') || options.iter().any(|word| word.starts_with('-')) {
            return Err(ParamError::new("params", "it wants words such as `numdummies=2`"));
        }
        if let Some(word) = options.iter().find(|word| word.contains('"')) {
            let message = format!("`{word}`: the kernel knows quotes around a value, and none within it");
            return Err(ParamError::new("params", message));
        }
        Ok(())
    }
}

impl Modprobe {
    /// Returns the options one by one, split at blanks outside of quotes as Ansible's module does, and without the quotes;
    /// `None` if a quote is not closed.
    pub fn options(&self) -> Option<Vec<String>> {
        let (mut all, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for c in self.params.chars() {
            match (quote, c) {
                (None, '"' | '\'') => {
                    quote = Some(c);
                    word.get_or_insert_default();
                }
                (Some(open), c) if open == c => quote = None,
                (None, c) if c.is_whitespace() => all.extend(word.take()),
                (_, c) => word.get_or_insert_default().push(c),
            }
        }
        all.extend(word);
        quote.is_none().then_some(all)
    }

    /// Returns the options as a line of modprobe.d and the kernel have them: a value with blanks in double quotes.
    pub fn options_line(&self) -> String {
        let written = |word: &String| match word.split_once('=') {
            Some((name, value)) if value.contains(char::is_whitespace) => format!("{name}=\"{value}\""),
            _ => word.clone(),
        };
        self.options().unwrap_or_default().iter().map(written).collect::<Vec<_>>().join(" ")
    }
}

impl GroundKind for Modprobe {
    const GROUND: Ground = Ground {
        reads: &[
            "/proc/modules",
            "modules.builtin",
            "modules-load.d of /etc, and modprobe.d of /etc, /run and /usr/lib",
            "/proc/driver/nvidia/params (NVreg_*, which have mode 0 in /sys)",
            "/sys/module/NAME/parameters",
            "lsinitramfs, lsinitrd or lsinitcpio",
        ],
        writes: &[
            "modprobe, modprobe -r",
            "/etc/modules-load.d/NAME.conf",
            "/etc/modprobe.d/NAME.conf, and lines of other files that it comments out",
            "update-initramfs, dracut or mkinitcpio, where the images hold the module",
        ],
        takes_effect: "at once where it is loaded or unloaded; options when the module is loaded again, which may be a reboot, and \
                       it says so",
        survives: "reboots with `persistent: present`",
        owners: &[
            "hardware loads modules by their aliases, whatever modules-load.d says; `kernel_blacklist` stops that",
            "packages of drivers bring options in /usr/lib/modprobe.d, which files of the same name in /etc replace; of two values \
             of an option, that of the file with the later name counts, and the plan names the file",
            "nvidia-persistenced and the toolkit load nvidia's modules themselves",
        ],
        source: "modprobe.d(5), modules-load.d(5); open-gpu-kernel-modules, nv-reg.h; /proc/driver/nvidia/params of driver 580",
    };
}

impl Operation for Modprobe {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Places {
            paths: vec![
                format!("/etc/modules-load.d/{}.conf", self.name),
                format!("/etc/modprobe.d/{}.conf", self.name),
            ],
            driver: self.name.starts_with("nvidia"),
        }
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::Modprobe(new) = newer.op else { return true };
        if self.name.replace('-', "_") != new.name.replace('-', "_") {
            return true;
        }
        let now_only = new.persistent == ModulePersistence::Disabled;
        if now_only {
            self.state = new.state;
        }
        now_only
    }
}

words! { MountState {
    Mounted: "mounted", Present: "present", Unmounted: "unmounted", Absent: "absent",
    AbsentFromFstab: "absent_from_fstab", Remounted: "remounted", Ephemeral: "ephemeral",
} }

/// Declares a mount, now and in /etc/fstab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Where it is mounted; `none` for swap.
    #[serde(alias = "name")]
    pub path: String,
    /// `mounted`: now and at boot; `present`: at boot only; `ephemeral`: now only; `unmounted`: not now;
    /// `absent`: neither, and the directory goes; `absent_from_fstab`; `remounted`, each time.
    pub state: MountState,
    /// Device, or what the file system takes for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<String>,
    /// Type of the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fstype: Option<String>,
    /// Options, comma-separated; `defaults` where there are none.
    #[serde(default, deserialize_with = "lenient::comma_list", skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub opts: Vec<String>,
    /// The fifth field of the line in fstab.
    #[serde(default = "zero", deserialize_with = "lenient::text")]
    pub dump: String,
    /// The sixth field of the line in fstab.
    #[serde(default = "zero", deserialize_with = "lenient::text")]
    pub passno: String,
    /// The file that tells what is mounted at boot.
    #[serde(default = "fstab")]
    pub fstab: String,
    /// Whether it is mounted at boot; `false` adds `noauto`.
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub boot: bool,
    /// Whether a copy of fstab is kept before it changes.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub backup: bool,
}

fn zero() -> String {
    "0".to_owned()
}
fn fstab() -> String {
    "/etc/fstab".to_owned()
}
fn yes() -> bool {
    true
}

impl Mount {
    /// Returns the fourth field of the line in fstab.
    pub fn options(&self) -> String {
        let mut all: Vec<&str> = self.opts.iter().map(String::as_str).collect();
        if all.is_empty() {
            all.push("defaults");
        }
        if !self.boot && !all.contains(&"noauto") {
            all.push("noauto");
        }
        all.join(",")
    }
}

impl Kind for Mount {
    const INFO: KindInfo = KindInfo {
        name: "mount",
        aliases: &["ansible.posix.mount"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[(
            "opts_no_log",
            "`no_log: true` on the task hides the options; credentials belong in a file that `credentials=` names",
        )],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Declares a mount, now and in /etc/fstab.",
        example: "mount: {path: /scratch, src: /dev/nvme0n1, fstype: xfs, state: mounted}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let swap = self.fstype.as_deref() == Some("swap") || self.path == "none";
        let nowhere = swap && self.state != MountState::Mounted;
        if !nowhere && !self.path.starts_with('/') {
            return Err(ParamError::new("path", format!("`{}` is not an absolute path", self.path)));
        }
        if self.path == "/" && matches!(self.state, MountState::Unmounted | MountState::Absent) {
            return Err(ParamError::new("path", "the root of the node cannot be unmounted"));
        }
        let makes = matches!(self.state, MountState::Mounted | MountState::Present | MountState::Ephemeral);
        if makes && self.src.is_none() {
            return Err(ParamError::new("src", format!("`state: {}` wants it", self.state)));
        }
        if makes && self.fstype.is_none() {
            return Err(ParamError::new("fstype", format!("`state: {}` wants it", self.state)));
        }
        for (name, text) in [("dump", &self.dump), ("passno", &self.passno)] {
            if text.is_empty() || !text.chars().all(|c| c.is_ascii_digit()) {
                let value = Some(format!("`{text}`"));
                return Err(ParamError { value, ..ParamError::new(name, "a number is needed") });
            }
        }
        let bad = |text: &str| text.is_empty() || text.contains(char::is_whitespace);
        if self.fstype.as_deref().is_some_and(bad) || self.opts.iter().any(|option| bad(option)) {
            return Err(ParamError::new("opts", "types and options have no blanks"));
        }
        if self.src.as_deref().is_some_and(|src| src.starts_with('-') || src.contains(['\n', '\0'])) {
            return Err(ParamError::new("src", "this cannot be the source of a mount"));
        }
        Ok(())
    }
}

impl GroundKind for Mount {
    const GROUND: Ground = Ground {
        reads: &["fstab, /etc/fstab by default", "/proc/self/mountinfo: sources, types and options"],
        writes: &[
            "one line of fstab",
            "mount, mount -o remount with what it can change, umount",
            "the directory that it is mounted on",
        ],
        takes_effect: "at once; the type, and options that a remount does not change, with a new mount, and it says so",
        survives: "reboots, but for `state: ephemeral`, `unmounted` and `remounted`",
        owners: &[
            "units of systemd (*.mount, *.automount) mount the same path without fstab; where both are, the line of fstab wins over \
             units of packages, and a unit in /etc/systemd/system over the line",
            "systemd mounts /dev/hugepages, /dev/shm and the like itself, with the options of a line of fstab only from the next \
             boot on",
            "autofs and x-systemd.automount mount at the first access; until then nothing is compared",
            "of NFS, mounts of one server share their connections: the first one decides nconnect",
            "cloud-init writes lines with comment=cloudconfig anew for its own disks",
            "the kernel makes a file system read-only after an error; that is not taken for another option",
            "options that all mounts of a file system share (compress, errors, sync) are not compared: the last remount decides them",
        ],
        source: "fstab(5), mount(8), nfs(5), systemd-fstab-generator(8); kernel, fs/proc_namespace.c and fs/nfs/super.c",
    };
}

impl Operation for Mount {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Places { paths: vec![self.fstab.clone(), self.path.clone()], driver: false }
    }

    fn lasting(&mut self) -> bool {
        self.state != MountState::Remounted
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::Mount(new) = newer.op else { return true };
        if self.path != new.path || self.src != new.src && !self.path.starts_with('/') {
            return true;
        }
        // Unmounting keeps the line in fstab, and a line alone keeps the mount.
        let leaves_line =
            self.src != new.src && (self.state, new.state) == (MountState::Mounted, MountState::Unmounted);
        if leaves_line {
            self.state = MountState::Present;
        }
        leaves_line
    }
}

words! { CronTime {
    Reboot: "reboot", Yearly: "yearly", Annually: "annually", Monthly: "monthly", Weekly: "weekly", Daily: "daily",
    Hourly: "hourly",
} }
words! { #[derive(Default)] CronState { #[default] Present: "present", Absent: "absent" } }

/// Declares a cron job, or a variable of a crontab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Cron {
    /// Words by which the job is known in its crontab; with `env` the name of the variable.
    #[serde(deserialize_with = "lenient::text")]
    pub name: String,
    /// `present` (default), or `absent`.
    #[serde(default)]
    pub state: CronState,
    /// Command line, or the value of the variable.
    #[serde(
        default,
        alias = "value",
        deserialize_with = "lenient::optional_text",
        skip_serializing_if = "Option::is_none"
    )]
    pub job: Option<String>,
    /// Whose crontab; the task's user where it is left out. With `cron_file` whom the job runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// File with the job instead of a user's crontab; a name without a slash lies in /etc/cron.d.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron_file: Option<String>,
    /// Minute.
    #[serde(default = "star", deserialize_with = "lenient::text")]
    pub minute: String,
    /// Hour.
    #[serde(default = "star", deserialize_with = "lenient::text")]
    pub hour: String,
    /// Day of the month.
    #[serde(default = "star", alias = "dom", deserialize_with = "lenient::text")]
    pub day: String,
    /// Month.
    #[serde(default = "star", deserialize_with = "lenient::text")]
    pub month: String,
    /// Day of the week, Sunday is 0.
    #[serde(default = "star", alias = "dow", deserialize_with = "lenient::text")]
    pub weekday: String,
    /// A word in place of the five.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub special_time: Option<CronTime>,
    /// Whether the job is commented out.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub disabled: bool,
    /// Whether it is a variable rather than a job.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub env: bool,
    /// Variable behind which a new variable goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insertafter: Option<String>,
    /// Variable in front of which a new variable goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub insertbefore: Option<String>,
    /// Whether a copy of the crontab is kept before it changes.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub backup: bool,
}

fn star() -> String {
    "*".to_owned()
}

impl Kind for Cron {
    const INFO: KindInfo = KindInfo {
        name: "cron",
        aliases: &["ansible.builtin.cron"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[
            ("disabled", "2.0"),
            ("env", "2.1"),
            ("insertafter", "2.1"),
            ("insertbefore", "2.1"),
            ("special_time", "1.3"),
        ],
        summary: "Declares a cron job or a variable of a crontab.",
        example: "cron: {name: scrub, special_time: daily, job: /usr/local/bin/scrub}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.name.is_empty() || self.name.contains(['\n', '\r']) {
            return Err(ParamError::new("name", "a name without line breaks is needed"));
        }
        let present = self.state == CronState::Present;
        if present && self.job.is_none() {
            return Err(ParamError::new("job", "`state: present` wants it"));
        }
        if let Some(job) = &self.job
            && job.trim_matches(['\n', '\r']).contains(['\n', '\r'])
        {
            return Err(ParamError::new("job", "a job is one line"));
        }
        let times = [
            ("minute", &self.minute),
            ("hour", &self.hour),
            ("day", &self.day),
            ("month", &self.month),
            ("weekday", &self.weekday),
        ];
        let legal = |c: char| c.is_ascii_alphanumeric() || "*,-/~".contains(c);
        for (name, value) in times {
            if value.is_empty() || !value.chars().all(legal) {
                return Err(ParamError::new(name, format!("`{value}` is no {name} of a crontab")));
            }
            if self.special_time.is_some() && value != "*" {
                return Err(ParamError::new("special_time", format!("it cannot be combined with `{name}`")));
            }
        }
        if self.cron_file.as_deref() == Some("/etc/crontab") {
            return Err(ParamError::new(
                "cron_file",
                "/etc/crontab belongs to the distribution; give the job a file of its own",
            ));
        }
        if present && self.cron_file.is_some() && self.user.is_none() && !self.env {
            return Err(ParamError::new("user", "`cron_file` wants it: whom the job runs as"));
        }
        if self.user.as_ref().is_some_and(|user| {
            user.is_empty() || user.starts_with('-') || user.contains(|c: char| c == '/' || c.is_whitespace())
        }) {
            return Err(ParamError::new("user", "this cannot be the name of a user"));
        }
        if self.insertafter.is_some() && self.insertbefore.is_some() {
            return Err(ParamError::new(
                "insertafter",
                "only one of `insertafter` and `insertbefore` can be given",
            ));
        }
        if (self.insertafter.is_some() || self.insertbefore.is_some()) && !(self.env && present) {
            return Err(ParamError::new(
                if self.insertafter.is_some() { "insertafter" } else { "insertbefore" },
                "places are for variables: they want `env: true` and `state: present`",
            ));
        }
        let variable = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if self.env && !self.name.chars().all(variable) {
            return Err(ParamError::new("name", format!("`{}` is not the name of a variable", self.name)));
        }
        Ok(())
    }
}

impl Operation for Cron {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Places {
            paths: self.cron_file.iter().map(|file| format!("/etc/cron.d/{file}")).collect(),
            driver: false,
        }
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::Cron(new) = newer.op else { return true };
        (&self.name, &self.user, &self.cron_file, self.env) != (&new.name, &new.user, &new.cron_file, new.env)
    }
}
