//! Parameters of the kinds that tune the operating system.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, Number, ParamError, Reading, words::words,
};
use crate::{
    Disruption, NodeOp, Unit, cmdline, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { SysctlState { Present: "present", Absent: "absent" } }

/// Sets a kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Sysctl {
    /// Name with dots or slashes, such as `vm.swappiness`.
    #[serde(alias = "key")]
    pub name: String,
    /// Value; needed unless `state: absent`. Numbers are compared as numbers, `0x3c` is 60.
    #[serde(
        default,
        alias = "val",
        deserialize_with = "lenient::optional_text",
        skip_serializing_if = "Option::is_none"
    )]
    pub value: Option<String>,
    /// `present` (default), or `absent`: no longer set at boot.
    #[serde(default = "present")]
    pub state: SysctlState,
    /// File that sets it at boot.
    #[serde(default = "sysctl_file")]
    pub sysctl_file: String,
    /// Whether the running kernel gets the value too (default), or only the file.
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub reload: bool,
    /// Whether the running kernel gets the value although `reload` is off.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub sysctl_set: bool,
    /// Whether a parameter that the running kernel lacks is written into the file only; it is a warning then.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub ignoreerrors: bool,
}

impl Sysctl {
    /// Whether the running kernel gets the value.
    pub const fn is_live(&self) -> bool {
        self.reload || self.sysctl_set
    }
}

fn present() -> SysctlState {
    SysctlState::Present
}
fn sysctl_file() -> String {
    "/etc/sysctl.d/90-gpufleet.conf".to_owned()
}
fn yes() -> bool {
    true
}

impl Kind for Sysctl {
    const INFO: KindInfo = KindInfo {
        name: "sysctl",
        aliases: &["ansible.posix.sysctl"],
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
        since: &[],
        summary: "Sets a kernel parameter, now and for every boot.",
        example: "sysctl: {name: vm.swappiness, value: 10}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.state == SysctlState::Present && self.value.is_none() {
            return Err(ParamError::new("value", "a value is needed"));
        }
        let legal = |c: char| c.is_ascii_alphanumeric() || "._-/*".contains(c);
        if self.name.is_empty() || !self.name.chars().all(legal) || self.name.contains("..") {
            return Err(ParamError::new(
                "name",
                format!("`{}` is not the name of a kernel parameter", self.name),
            ));
        }
        let dotted = self.name.replace('/', ".");
        if matches!(dotted.as_str(), "vm.drop_caches" | "vm.compact_memory") {
            return Err(ParamError::new(
                "name",
                format!(
                    "`{}` starts something and holds no value; `command: sysctl -w` starts it",
                    self.name
                ),
            ));
        }
        Ok(())
    }
}

impl GroundKind for Sysctl {
    const GROUND: Ground = Ground {
        reads: &[
            "/proc/sys",
            "sysctl.d of /etc, /run, /usr/local/lib and /usr/lib",
            "/etc/sysctl.conf where a link leads to it",
            "modules-load.d",
            "tuned's active_profile, its profiles and tuned-main.conf",
            "links that start tuned and kubelet",
            "/etc/ufw",
            "of net.*: the .network files of systemd-networkd, networkd.conf, connections of NetworkManager, and in /run which of them \
             an interface has",
            "cloud.cfg, cloud.cfg.d, the merged configuration of the instance and scripts/per-boot of cloud-init",
        ],
        writes: &["/proc/sys", "one line of sysctl_file, /etc/sysctl.d/90-gpufleet.conf by default"],
        takes_effect: "at once, and at every boot",
        survives: "reboots, unless a file with a later name or a program sets it too; a parameter of a module only if the module \
                   is loaded before the files are read",
        owners: &[
            "files of sysctl.d with later names win: 99- beats 90-gpufleet.conf, and local.conf beats 99-",
            "tuned's profile: /etc/sysctl.d wins with reapply_sysctl (the default), the profile without; a stop puts back what \
             tuned found first",
            "kubelet sets vm.overcommit_memory, vm.panic_on_oom, kernel.panic, kernel.panic_on_oops and kernel.keys.root_max*, \
             or does not start (protectKernelDefaults)",
            "ufw sets what /etc/ufw/sysctl.conf says at its start",
            "a change of transparent huge pages raises vm.min_free_kbytes; `thp` puts back what sysctl.d declares",
            "dockerd turns net.ipv4.ip_forward on at its start, unless daemon.json has ip-forward: false",
            "systemd-networkd and NetworkManager set forwarding and IPv6 of what they set up, and accept_ra to 0",
            "cloud-init: bootcmd at every boot; runcmd and write_files at the first boot of an instance, and of each copy of it",
            "not read: what dockerd sets of IPv6",
        ],
        source: "sysctl.d(5); kernel, admin-guide/sysctl and fs/proc/proc_sysctl.c; tuned, plugin_sysctl; kubernetes, \
                 container_manager_linux.go; measured with systemd 252 and Linux 6.18",
    };
}

impl Operation for Sysctl {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([&self.sysctl_file])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::Sysctl(new) if new.name == self.name)
    }
}

/// Declares words of the kernel command line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KernelCmdline {
    /// Words to have, such as `iommu=pt`; another value of the same key is replaced. Keys that may be repeated, such as
    /// `console`, `ip` and `rd.lvm.lv`, keep their other values and get the order declared; lists such as
    /// `modprobe.blacklist` add up; `hugepagesz=1G` and the `hugepages=8` behind it are one.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<String>,
    /// Words or keys not to have; `add` wins over it, so that `remove: console` leaves the consoles of `add`.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

impl Kind for KernelCmdline {
    const INFO: KindInfo = KindInfo {
        name: "kernel_cmdline",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Reboot,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Adds words to the kernel command line of every boot entry, or removes them.",
        example: "kernel_cmdline: {add: [iommu=pt]}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.add.is_empty() && self.remove.is_empty() {
            return Err(ParamError::new("add", "one of `add` and `remove` is needed"));
        }
        for (name, words) in [("add", &self.add), ("remove", &self.remove)] {
            if let Some(word) =
                words.iter().find(|w| w.is_empty() || w.contains(['\n', '\'', '"', ' ', '$', '`']))
            {
                return Err(ParamError::new(
                    name,
                    format!("`{word}` is not one word of a kernel command line"),
                ));
            }
        }
        if let Some((one, other)) = cmdline::contrary(&self.wanted()) {
            let (first, second) = (one.text(), other.text());
            return Err(ParamError::new(
                "add",
                match other.excludes(one) {
                    true => {
                        format!("`{first}` and `{second}` cannot both count on one line; keep one of them")
                    }
                    false => format!("`{first}` is both before and behind `{second}`; name it once"),
                },
            ));
        }
        Ok(())
    }
}

impl KernelCmdline {
    /// Returns what `add` declares, lists split.
    pub fn wanted(&self) -> Vec<cmdline::Unit> {
        cmdline::units(&self.add)
    }

    /// Returns the words of `remove`, lists split.
    pub fn unwanted(&self) -> Vec<String> {
        self.remove.iter().flat_map(|word| cmdline::items(word)).collect()
    }
}

impl GroundKind for KernelCmdline {
    const GROUND: Ground = Ground {
        reads: &[
            "/proc/cmdline",
            "/etc/default/grub and grub.d/*.cfg",
            "grub.cfg",
            "grubenv (kernelopts, tuned_params, saved_entry, next_entry)",
            "loader/entries/*.conf; where systemd-boot started the node, its EFI variables and loader.conf, which tell the next entry",
            "addons of unified kernel images (*.addon.efi), which are named",
            "/etc/kernel/cmdline",
            "/etc/tuned/bootcmdline",
        ],
        writes: &[
            "/etc/default/grub.d/99-gpufleet.cfg, or /etc/default/grub where no drop-ins are read",
            "the line of another file that has a word to remove or replace",
            "loader/entries/*.conf, kernelopts in grubenv and /etc/kernel/cmdline, where they are used",
            "grub.cfg, by update-grub or grub2-mkconfig",
            "proxmox-boot-tool refresh, kernel-install add",
        ],
        takes_effect: "at the next boot; kexec keeps the old line",
        survives: "reboots and new kernels; not `grub2-mkconfig` of RHEL 8 for words that only grubenv has, which gpufleet \
                   therefore writes into /etc/default/grub too",
        owners: &[
            "tuned's section [bootloader] adds words by $tuned_params; they are tuned's, and removing one is refused",
            "cloud images set GRUB_CMDLINE_LINUX_DEFAULT anew in grub.d/50-cloudimg-settings.cfg; a plan names the file",
            "grubby edits the same entries; ostree, Bottlerocket, Flatcar, unified kernel images and extlinux are refused, with \
             what changes the line there",
        ],
        source: "kernel, admin-guide/kernel-parameters; GRUB manual; Boot Loader Specification; kernel-install(8); dracut.cmdline(7); \
                 tuned, plugin_bootloader; update-grub 2.06 and kernel-install 252 run on Debian 12",
    };
}

impl Operation for KernelCmdline {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places(["/etc/default/grub", "/etc/default/grub.d", "/etc/kernel/cmdline", "/boot"])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::KernelCmdline(new) = newer.op else { return true };
        let (wanted, unwanted) = (new.wanted(), new.unwanted());
        let is_other = |unit: &cmdline::Unit| {
            unit.is_among(&unwanted) || wanted.iter().any(|other| other.is(unit) || other.excludes(unit))
        };
        cmdline::retain(&mut self.add, |unit| !is_other(unit));
        // A newer word of a key that is removed takes the removal back as a whole, because `remove` knows no exceptions.
        let is_back = |gone: &String| wanted.iter().any(|unit| unit.is_among(std::slice::from_ref(gone)));
        let still = |gone: &String| !cmdline::is_removed(gone, &unwanted) && !is_back(gone);
        self.remove = self.unwanted().into_iter().filter(still).collect();
        !self.add.is_empty() || !self.remove.is_empty()
    }
}

words! { ServiceState {
    Started: "started", Stopped: "stopped", Restarted: "restarted", Reloaded: "reloaded",
} }

/// Declares the state of a systemd unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Unit; `.service` may be left out.
    #[serde(default, alias = "unit", alias = "service")]
    pub name: String,
    /// `started`, `stopped`, `restarted` or `reloaded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<ServiceState>,
    /// Whether it starts at boot.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Whether it cannot be started at all.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub masked: Option<bool>,
    /// Reads the unit files again first.
    #[serde(default, alias = "daemon-reload", deserialize_with = "lenient::flag")]
    pub daemon_reload: bool,
    /// Starts systemd itself anew first, keeping what runs.
    #[serde(default, alias = "daemon-reexec", deserialize_with = "lenient::flag")]
    pub daemon_reexec: bool,
    /// Whether the task goes on without waiting until the unit has started or stopped.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub no_block: bool,
    /// Whether links of units that are in the way are replaced when it is enabled or masked.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub force: bool,
    /// `system` (default); units of users are not managed.
    #[serde(default = "system")]
    pub scope: ServiceScope,
    /// Accepted for Ansible's sake: `systemd` or `auto`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#use: Option<String>,
    /// Accepted for Ansible's sake; systemd knows itself which processes a unit has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Accepted for Ansible's sake; systemd waits itself between stop and start.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub sleep: Option<u32>,
}

words! { ServiceScope { System: "system" } }

fn system() -> ServiceScope {
    ServiceScope::System
}

impl Kind for Service {
    const INFO: KindInfo = KindInfo {
        name: "service",
        aliases: &[
            "ansible.builtin.service",
            "systemd",
            "ansible.builtin.systemd",
            "systemd_service",
            "ansible.builtin.systemd_service",
        ],
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
        numbers: &[Number::from("sleep", Some(Unit::Seconds), 0)],
        since: &[("pattern", "0.7"), ("sleep", "1.3"), ("use", "2.2")],
        summary: "Starts, stops, restarts, enables or masks a systemd unit.",
        example: "service: {name: chrony, state: started, enabled: true}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let systemd = self.daemon_reload || self.daemon_reexec;
        let of_unit = self.state.is_some() || self.enabled.is_some() || self.masked.is_some();
        if self.name.is_empty() && (!systemd || of_unit) {
            return Err(ParamError::new("name", "the name of a unit is needed"));
        }
        if self.r#use.as_deref().is_some_and(|name| !matches!(name, "systemd" | "auto" | "service")) {
            return Err(ParamError::new("use", "services are managed through systemd only"));
        }
        let asks = of_unit || systemd;
        if !asks {
            return Err(ParamError::new(
                "state",
                "one of `state`, `enabled`, `masked` and `daemon_reload` is needed",
            ));
        }
        Ok(())
    }
}

impl Service {
    /// Names a unit and declares nothing of it, with defaults for the rest.
    pub fn of(unit: impl Into<String>) -> Self {
        Self {
            name: unit.into(),
            state: None,
            enabled: None,
            masked: None,
            daemon_reload: false,
            daemon_reexec: false,
            no_block: false,
            force: false,
            scope: system(),
            r#use: None,
            pattern: None,
            sleep: None,
        }
    }

    fn asks(&self) -> bool {
        self.state.is_some() || self.enabled.is_some() || self.masked.is_some()
    }

    fn unit(&self) -> &str {
        self.name.strip_suffix(".service").unwrap_or(&self.name)
    }
}

impl Operation for Service {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Unit(&self.name)
    }

    fn lasting(&mut self) -> bool {
        self.daemon_reload = false;
        self.daemon_reexec = false;
        self.state = match self.state {
            Some(ServiceState::Restarted) => Some(ServiceState::Started),
            Some(ServiceState::Reloaded) => None,
            other => other,
        };
        self.asks()
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::Service(new) = newer.op else { return true };
        if self.unit() == new.unit() {
            self.state = self.state.filter(|_| new.state.is_none());
            self.enabled = self.enabled.filter(|_| new.enabled.is_none());
            self.masked = self.masked.filter(|_| new.masked.is_none());
        }
        self.asks()
    }
}
