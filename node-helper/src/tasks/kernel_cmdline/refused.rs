//! Places of the kernel command line that gpufleet knows and does not change, and what does change them.

use super::{addons, sources::text};
use crate::{
    declare::{Node, Trouble},
    tasks::host,
    world::Entry,
};

/// Addons that a message names.
const MOST_ADDONS: usize = 4;

/// Systems by `ID` of os-release(5), with what sets the kernel command line there.
const SYSTEMS: [(&str, &str); 8] = [
    (
        "bottlerocket",
        "this is Bottlerocket, which takes the kernel command line from its settings only; `apiclient set \
         settings.boot.kernel-parameters.KEY=VALUE` sets it",
    ),
    (
        "flatcar",
        "this is Flatcar, whose kernel command line is `set linux_append=\"…\"` in /oem/grub.cfg, which gpufleet does not \
         change",
    ),
    (
        "talos",
        "this is Talos, whose machine configuration (`machine.install.extraKernelArgs`) has the kernel command line",
    ),
    ("nixos", "this is NixOS, whose configuration (`boot.kernelParams`) has the kernel command line"),
    (
        "ubuntu-core",
        "this is Ubuntu Core; `snap set system system.kernel.cmdline-append=WORD` sets the kernel command line",
    ),
    ("sl-micro", TRANSACTIONAL),
    ("sle-micro", TRANSACTIONAL),
    ("opensuse-microos", TRANSACTIONAL),
];

const TRANSACTIONAL: &str = "this system changes by snapshots (transactional-update), so that what is written into the running \
     one has no effect on the next boot; change /etc/default/grub in `transactional-update shell`, then run \
     `transactional-update grub.cfg`";

/// Returns why the kernel command line cannot be changed here, and what can change it.
///
/// # Errors
/// If that cannot be read.
pub fn why(node: &Node<'_>) -> Result<Option<String>, Trouble> {
    let there = |path: &str| -> Result<bool, Trouble> {
        Ok(node.world.follow(&node.roots.path(path))?.1 != Entry::Absent)
    };
    if there("/run/ostree-booted")? {
        return Ok(Some(
            "this system is deployed by ostree, which keeps the kernel command line with the deployment; \
             `command: rpm-ostree kargs --append-if-missing=WORD` sets it"
                .to_owned(),
        ));
    }
    let id = host::os_release(node, "ID")?.unwrap_or_default();
    if let Some((_, why)) = SYSTEMS.iter().find(|(system, _)| *system == id) {
        return Ok(Some((*why).to_owned()));
    }
    if let Some(fstype) = host::in_memory(node, "/etc") {
        return Ok(Some(format!(
            "the files of this system are in memory ({fstype}) and end with the boot; what sends the node its image has \
             the kernel command line too"
        )));
    }
    let grub = there("/etc/default/grub")?;
    if !grub && there("/boot/extlinux/extlinux.conf")? {
        return Ok(Some(
            "this system is booted by extlinux, whose /boot/extlinux/extlinux.conf gpufleet does not change; the \
             APPEND line there is the kernel command line"
                .to_owned(),
        ));
    }
    let install = text(node, &node.roots.path("/etc/kernel/install.conf"))?.unwrap_or_default();
    let mut unified = install.lines().any(|line| line.trim() == "layout=uki");
    if !grub {
        for folder in ["/boot/EFI/Linux", "/boot/efi/EFI/Linux", "/efi/EFI/Linux"] {
            let names = node.world.names(&node.roots.path(folder))?;
            unified |= names.iter().any(|name| name.ends_with(".efi"));
        }
    }
    if !unified {
        return Ok(None);
    }
    let told = |(path, words): &(String, Option<String>)| {
        words.as_ref().map_or_else(|| path.clone(), |words| format!("{path} (`{words}`)"))
    };
    let all = addons::read(node)?;
    let added = match all.as_slice() {
        [] => String::new(),
        all => {
            let shown: Vec<String> = all.iter().take(MOST_ADDONS).map(told).collect();
            let more = all.len().saturating_sub(MOST_ADDONS);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            format!("; addons beside them have further words: {}{more}", shown.join(", "))
        }
    };
    Ok(Some(format!(
        "this system boots unified kernel images, which hold the kernel command line inside of what is signed; `ukify` \
         makes new ones{added}"
    )))
}
