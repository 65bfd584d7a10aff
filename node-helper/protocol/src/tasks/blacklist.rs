//! Parameters of `kernel_blacklist`.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, files::absolute,
    repositories::RepositoryState,
};
use crate::{
    Disruption, NodeOp,
    operation::{Claim, Effect, Needs, Newer, Operation, Part, Reach, paths},
};

/// Declares whether a kernel module is kept from being loaded for hardware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KernelBlacklist {
    /// Kernel module.
    pub name: String,
    /// `present` (default): no hardware loads it; `absent`: the file does not say so.
    #[serde(default)]
    pub state: RepositoryState,
    /// File of modprobe.d.
    #[serde(default = "usual_file")]
    pub blacklist_file: String,
}

fn usual_file() -> String {
    "/etc/modprobe.d/blacklist-ansible.conf".to_owned()
}

impl Kind for KernelBlacklist {
    const INFO: KindInfo = KindInfo {
        name: "kernel_blacklist",
        aliases: &["community.general.kernel_blacklist"],
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
        summary: "Declares whether a kernel module is kept from being loaded for hardware, from the next boot on.",
        example: "kernel_blacklist: {name: nouveau}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if self.name.is_empty() || !self.name.chars().all(legal) {
            return Err(ParamError::new("name", format!("`{}` is not the name of a module", self.name)));
        }
        absolute("blacklist_file", &self.blacklist_file)
    }
}

impl GroundKind for KernelBlacklist {
    const GROUND: Ground = Ground {
        reads: &["blacklist_file", "the images of the initramfs, by lsinitramfs, lsinitrd or lsinitcpio"],
        writes: &[
            "one line of blacklist_file, /etc/modprobe.d/blacklist-ansible.conf by default",
            "update-initramfs, dracut or mkinitcpio, where the images hold the module",
            "a note in /var/lib/gpufleet until the images are built",
        ],
        takes_effect: "at the next boot; a module that is loaded stays loaded",
        survives: "reboots and updates of the kernel; an image in the layout of kernel-install only after its own build, and a \
                   warning says so",
        owners: &[
            "modprobe by name, modules-load.d and modules that depend on it load it all the same: only aliases of hardware are \
             ignored",
            "other files of modprobe.d may list it too, and count as well: `state: absent` takes it out of this file only",
            "modprobe.blacklist=, module_blacklist= and rd.driver.blacklist= on the kernel command line count beside it",
            "packages of NVIDIA's driver list nouveau themselves, in /usr/lib/modprobe.d or /etc/modprobe.d",
        ],
        source: "modprobe.d(5); kmod, libkmod-config.c; dracut.cmdline(7)",
    };
}

impl Operation for KernelBlacklist {
    paths!(blacklist_file);

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::File(Claim { path: self.blacklist_file.clone(), part: Part::Lines })
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::KernelBlacklist(new) = newer.op else { return true };
        (&new.name, &new.blacklist_file) != (&self.name, &self.blacklist_file)
    }
}
