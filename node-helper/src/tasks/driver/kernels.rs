//! Which kernel the next boot starts, and whether the driver's module is there for it.

use std::{
    cmp::Ordering,
    fs,
    path::{Path, PathBuf},
};

use super::seen;
use crate::{
    declare::{Node, Trouble},
    os::files,
    tasks::{kernel_cmdline, tool},
};

/// Largest number of kernels.
const KERNELS: usize = 1000;
/// Largest file of GRUB's settings, in bytes.
const SETTINGS: u64 = 1 << 20;

/// Says what breaks with the next boot, if it starts another kernel than the running one: no module, or another version
/// than `version`, that of the library.
///
/// # Errors
/// If a module cannot be read.
pub fn broken(node: &Node<'_>, running: &str, version: &str) -> Result<Option<String>, Trouble> {
    let Some(next) = next(node)? else { return Ok(None) };
    if next == running {
        return Ok(None);
    }
    let why = match seen::on_disk(node, &next)? {
        None => "for which there is no module nvidia".to_owned(),
        Some(module) if module.version != version => {
            format!("whose module nvidia is {}, and the library is {version}", module.version)
        }
        Some(_) => return Ok(None),
    };
    Ok(Some(format!(
        "the next boot is without a working driver: it starts the kernel {next}, {why}; install the module for it (`dkms \
         autoinstall -k {next}` where the node builds it), or boot that kernel and run again"
    )))
}

/// Returns the release of the kernel that the next boot starts, where that can be told.
fn next(node: &Node<'_>) -> Result<Option<String>, Trouble> {
    if let Some(release) = kernel_cmdline::next_kernel(node) {
        return Ok(Some(release));
    }
    if let Some(program) = node.roots.tool("grubby") {
        let done = tool::ask(node, &tool::run(node, program).arg("--default-kernel").limit(4096))?;
        let text = done.stdout();
        let name = text.trim().rsplit('/').next().and_then(|name| name.strip_prefix("vmlinuz-"));
        return Ok(name.filter(|_| done.exit.success()).map(str::to_owned));
    }
    // Without a menu to read, GRUB's first entry is the newest kernel. What another default names is not guessed.
    if !starts_first_entry(node) {
        return Ok(None);
    }
    let Ok(folder) = fs::read_dir(node.roots.path("/boot")) else { return Ok(None) };
    let names = folder.take(KERNELS).flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let kernels = names.filter_map(|name| name.strip_prefix("vmlinuz-").map(str::to_owned));
    // Without a folder of modules it is a rescue image.
    let whole = kernels.filter(|name| node.roots.path(format!("/lib/modules/{name}")).is_dir());
    Ok(whole.max_by(|left, right| compare(left, right)))
}

/// Whether GRUB's settings say that it starts its first entry.
fn starts_first_entry(node: &Node<'_>) -> bool {
    let read = |path: &Path| files::read_bounded(path, SETTINGS).ok().flatten().unwrap_or_default();
    let mut all = vec![node.roots.etc("default/grub")];
    let more = fs::read_dir(node.roots.etc("default/grub.d")).into_iter().flatten().take(KERNELS).flatten();
    let mut more: Vec<PathBuf> =
        more.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "cfg")).collect();
    more.sort();
    all.extend(more);
    let text: Vec<u8> = all.iter().flat_map(|path| [read(path), b"\n".to_vec()].concat()).collect();
    let text = String::from_utf8_lossy(&text);
    let entry = text.lines().filter_map(|line| line.trim().strip_prefix("GRUB_DEFAULT=")).next_back();
    entry.is_some_and(|entry| entry.trim_matches(['"', '\'']) == "0")
}

/// Compares releases of kernels, number by number.
fn compare(left: &str, right: &str) -> Ordering {
    let parts = |text: &str| -> Vec<(u64, String)> {
        text.split(['.', '-', '_', '+', '~'])
            .map(|part| (part.parse().unwrap_or(0), part.to_owned()))
            .collect()
    };
    parts(left).cmp(&parts(right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.write("etc/default/grub", "GRUB_DEFAULT=0\n");
        for kernel in ["6.8.0-9-generic", "6.8.0-45-generic"] {
            bench.write(&format!("boot/vmlinuz-{kernel}"), "");
            bench.write(&format!("lib/modules/{kernel}/modules.dep"), "");
        }
        bench
    }

    #[test]
    fn a_newer_kernel_without_the_module_is_told() {
        let bench = bench();
        let of = |running: &str| bench.node(|node| broken(node, running, "580.1.2")).unwrap();
        assert_eq!(of("6.8.0-45-generic"), None, "it runs");
        let told = of("6.8.0-9-generic").unwrap();
        assert!(told.contains("6.8.0-45-generic, for which there is no module"), "{told}");
        bench.write("lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko", "\0version=575.1.2\0");
        let told = of("6.8.0-9-generic").unwrap();
        assert!(told.contains("is 575.1.2, and the library is 580.1.2"), "{told}");
        bench.write("lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko", "\0version=580.1.2\0");
        assert_eq!(of("6.8.0-9-generic"), None);
    }

    #[test]
    fn a_chosen_entry_is_not_guessed_and_grubby_is_asked() {
        let bench = bench();
        bench.write("etc/default/grub.d/50-own.cfg", "GRUB_DEFAULT=saved\n");
        assert_eq!(bench.node(next).unwrap(), None);
        bench.script("usr/sbin/grubby", "#!/bin/sh\necho /boot/vmlinuz-6.8.0-9-generic\n");
        assert_eq!(bench.node(next).unwrap().as_deref(), Some("6.8.0-9-generic"));
    }

    #[test]
    fn the_menu_counts_before_grubby_as_for_the_command_line() {
        let bench = bench();
        bench.script("usr/sbin/grubby", "#!/bin/sh\necho /boot/vmlinuz-6.8.0-9-generic\n");
        let entry =
            |kernel: &str| format!("menuentry 'Linux {kernel}' {{\n\tlinux /vmlinuz-{kernel} root=/a\n}}\n");
        let menu = entry("6.8.0-45-generic") + &entry("6.8.0-9-generic") + "set default=\"0\"\n";
        bench.write("boot/grub/grub.cfg", &menu);
        assert_eq!(bench.node(next).unwrap().as_deref(), Some("6.8.0-45-generic"));
        bench.write("boot/grub/grubenv", "# GRUB Environment Block\nnext_entry=1\n");
        assert_eq!(bench.node(next).unwrap().as_deref(), Some("6.8.0-9-generic"));
        // A menu that does not tell leaves it to grubby.
        bench.write("boot/grub/grubenv", "# GRUB Environment Block\nnext_entry=nobody\n");
        bench.script("usr/sbin/grubby", "#!/bin/sh\necho /boot/vmlinuz-6.8.0-7-generic\n");
        assert_eq!(bench.node(next).unwrap().as_deref(), Some("6.8.0-7-generic"));
    }
}
