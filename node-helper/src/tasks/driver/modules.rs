//! Unloads and loads the driver's modules.

use gpufleet_protocol::FailureKind;

use super::{firmware, seen};
use crate::{
    declare::{Node, Trouble},
    tasks::tool,
};

const BRINGS: &str = "the package kmod brings it";
/// What every driver loads, in this order; other modules are loaded where they were before.
const ALWAYS: [&str; 2] = ["nvidia", "nvidia_uvm"];

/// Unloads modules, given in the order in which they must go. If one stays, those that went before are loaded again.
///
/// # Errors
/// If one cannot be unloaded.
pub fn unload(node: &Node<'_>, modules: &[String]) -> Result<(), Trouble> {
    let program = tool::find(node, "rmmod", BRINGS)?;
    for (at, name) in modules.iter().enumerate() {
        let run = tool::run(node, &program).arg(name);
        if let Err(trouble) = tool::act(node, &run, &format!("rmmod {name}")) {
            for gone in modules.iter().take(at).rev() {
                let _ = probe(node, gone);
            }
            return Err(trouble);
        }
    }
    Ok(())
}

fn probe(node: &Node<'_>, name: &str) -> Result<(), Trouble> {
    let program = tool::find(node, "modprobe", BRINGS)?;
    tool::act(node, &tool::run(node, &program).arg(name), &format!("modprobe {name}")).map(drop)
}

/// Loads the modules, and those that were loaded before.
///
/// # Errors
/// If one of the driver's own cannot be loaded, or another version than `version` runs then.
pub fn load(node: &Node<'_>, before: &[String], version: &str) -> Result<(), Trouble> {
    for name in ALWAYS {
        probe(node, name)?;
    }
    for name in before.iter().rev().filter(|name| !ALWAYS.contains(&name.as_str())) {
        probe(node, name)?;
    }
    match seen::loaded(node)? {
        Some(module) if module.version == version => Ok(()),
        Some(module) => Err(Trouble::failed(
            FailureKind::Unconverged,
            format!("modprobe loaded the module of {}, not of {version}", module.version),
        )),
        None => Err(Trouble::failed(FailureKind::Unconverged, "modprobe loaded no module".to_owned())),
    }
}

/// Checks that the running kernel has a module of this version. `builds`: whether the packages build it on the node.
///
/// # Errors
/// If it does not, or lacks firmware that the module needs, as after a build by DKMS that failed while apt succeeded.
pub fn check_disk(node: &Node<'_>, version: &str, builds: bool) -> Result<(), Trouble> {
    let seen = seen::Seen::read(node)?;
    let failed = |message: String| Err(Trouble::failed(FailureKind::Unconverged, message));
    match &seen.disk {
        Some(disk) if disk.version == version => {
            let why = match firmware::missing(node, &seen.kernel, disk)? {
                Some(why) => Some(why),
                // Whatever the packages' names promised.
                None => seen.refused_by_kernel(node, builds)?,
            };
            why.map_or(Ok(()), |why| failed(format!("the packages are installed: {why}")))
        }
        Some(disk) => failed(format!(
            "the packages are installed, and the module for the kernel {} is of {}",
            seen.kernel, disk.version
        )),
        None => failed(format!(
            "the packages are installed, and there is no module nvidia for the kernel {}; `dkms status` tells whether it \
             was built",
            seen.kernel
        )),
    }
}
