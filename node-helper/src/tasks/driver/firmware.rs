//! The firmware of a GPU's system processor (GSP), which an open module loads when it starts.

use super::seen::Module;
use crate::{
    declare::{Node, Trouble},
    os::files,
};

/// Where the kernel may be told to look first.
const OWN_FOLDER: &str = "/sys/module/firmware_class/parameters/path";

/// Returns the folders in which the kernel looks for firmware. Source: kernel, `drivers/base/firmware_loader/main.c`.
fn folders(node: &Node<'_>, kernel: &str) -> Result<Vec<String>, Trouble> {
    let own = files::read_bounded(&node.roots.path(OWN_FOLDER), 4096)?.unwrap_or_default();
    let own = String::from_utf8_lossy(&own).trim().to_owned();
    let known = [
        format!("/lib/firmware/updates/{kernel}"),
        "/lib/firmware/updates".to_owned(),
        format!("/lib/firmware/{kernel}"),
        "/lib/firmware".to_owned(),
    ];
    Ok(Some(own).filter(|own| own.starts_with('/')).into_iter().chain(known).collect())
}

/// Says that the GSP firmware of an open module is not there, without which it does not start a GPU.
///
/// # Errors
/// If a folder cannot be read.
pub fn missing(node: &Node<'_>, kernel: &str, module: &Module) -> Result<Option<String>, Trouble> {
    // The proprietary module comes up without it on most GPUs.
    if module.open != Some(true) {
        return Ok(None);
    }
    // The driver 515 has one for all GPUs, `gsp.bin`. The kernel takes compressed files too: `gsp_ga10x.bin.zst`.
    let is_firmware = |name: &String| name.starts_with("gsp") && name.contains(".bin");
    for folder in folders(node, kernel)? {
        let names = node.world.names(&node.roots.path(format!("{folder}/nvidia/{}", module.version)))?;
        if names.iter().any(is_firmware) {
            return Ok(None);
        }
    }
    let branch = module.version.split('.').next().unwrap_or_default();
    Ok(Some(format!(
        "the open module {version} needs its GSP firmware, and there is no gsp*.bin in /lib/firmware/nvidia/{version}: no GPU would \
         come up with it; the package nvidia-firmware-{branch} (Ubuntu), firmware-nvidia-gsp (Debian) or nvidia-kmod-common (dnf) \
         brings it",
        version = module.version
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    #[test]
    fn an_open_module_needs_the_firmware_of_its_version() {
        let bench = Bench::new();
        let of = |open| Module { version: "580.1.2".to_owned(), open };
        let lacks = |module: Module| bench.node(|node| missing(node, "6.8.0", &module).unwrap());
        let why = lacks(of(Some(true))).unwrap();
        assert!(
            why.contains("/lib/firmware/nvidia/580.1.2") && why.contains("nvidia-firmware-580 (Ubuntu)"),
            "{why}"
        );
        assert_eq!((lacks(of(Some(false))), lacks(of(None))), (None, None));
        bench.write("lib/firmware/nvidia/570.1/gsp_ga10x.bin", "");
        bench.write("lib/firmware/nvidia/580.1.2/README", "");
        assert!(lacks(of(Some(true))).is_some());
        bench.write("lib/firmware/updates/nvidia/580.1.2/gsp_ga10x.bin.zst", "");
        assert_eq!(lacks(of(Some(true))), None);
        std::fs::remove_dir_all(bench.path("lib/firmware/updates")).unwrap();
        let of_515 = || lacks(Module { version: "515.105.01".to_owned(), open: Some(true) });
        assert!(of_515().is_some());
        bench.write("lib/firmware/nvidia/515.105.01/gsp.bin.xz", "");
        assert_eq!(of_515(), None);
        bench.write("opt/fw/nvidia/580.1.2/gsp_tu10x.bin", "");
        bench.write("sys/module/firmware_class/parameters/path", "/opt/fw\n");
        assert_eq!(lacks(of(Some(true))), None);
    }
}
