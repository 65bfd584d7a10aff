//! Parameters of `initramfs`.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, files::absolute};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

/// Declares that the initramfs of each installed kernel is there, and not older than what it is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Initramfs {
    /// Further files and folders that it is made from, beside those of modprobe.d, initramfs-tools, dracut and mkinitcpio.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<String>,
}

impl Kind for Initramfs {
    const INFO: KindInfo = KindInfo {
        name: "initramfs",
        aliases: &[],
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
        summary: "Builds the initramfs of each installed kernel where it is missing or older than what it is made from.",
        example: "initramfs: {}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        self.inputs.iter().try_for_each(|path| absolute("inputs", path))
    }
}

impl GroundKind for Initramfs {
    const GROUND: Ground = Ground {
        reads: &[
            "/boot/vmlinuz-*, initrd.img-*, initramfs-*.img, initrd-*",
            "times of /etc/modprobe.d, /etc/modules-load.d, /etc/udev/rules.d, /etc/systemd/network, /etc/crypttab",
            "times of /etc/initramfs-tools, /etc/dracut.conf(.d), /etc/mkinitcpio.conf(.d)",
        ],
        writes: &["update-initramfs, dracut or mkinitcpio, by what is there"],
        takes_effect: "at the next boot",
        survives: "reboots; the package of a kernel or of a module builds its image again",
        owners: &[
            "packages of kernels, firmware and DKMS modules build images when they are installed",
            "`modprobe` builds images itself where options of a module in them change",
        ],
        source: "update-initramfs(8), dracut(8), mkinitcpio(8)",
    };
}

impl Operation for Initramfs {
    paths!(inputs);

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places(["/boot"])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::Initramfs(_))
    }
}
