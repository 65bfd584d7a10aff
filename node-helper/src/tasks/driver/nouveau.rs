//! Whether the next boot loads the kernel's own driver (nouveau) again, which would keep the GPUs from NVIDIA's.

use gpufleet_protocol::tasks::KernelCmdline;

use std::{fs, os::unix::fs::MetadataExt as _, time::Duration};

use crate::{
    declare::{Node, NodeKind as _, Plan, Trouble},
    tasks::{
        initramfs::{Images, Initramfs},
        modprobe_d,
    },
};

const MODULE: &str = "nouveau";
/// Words of the kernel command line that keep it away. `rd.driver.blacklist` does not: it counts in the initramfs alone.
const WORDS: [&str; 3] = ["modprobe.blacklist=nouveau", "module_blacklist=nouveau", "nouveau.modeset=0"];

/// Whether a line of modprobe.d keeps nouveau from being loaded for hardware, or from taking it.
fn keeps_away(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        // kmod does not read on, so that what looks like a comment may follow.
        ["blacklist", "nouveau", ..] | ["alias", "nouveau", "off", ..] => true,
        ["install", "nouveau", program, ..] => program.ends_with("/false") || program.ends_with("/true"),
        ["options", "nouveau", options @ ..] => options.contains(&"modeset=0"),
        _ => false,
    }
}

/// What nouveau does at the next boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// modprobe.d or the kernel command line keeps it from being loaded.
    StaysAway,
    /// Nothing keeps it from being loaded.
    Returns,
    /// modprobe.d does not keep it away, and why it is not known whether the kernel command line does.
    Unclear(String),
}

/// Returns what nouveau does at the next boot.
///
/// # Errors
/// If a file of modprobe.d cannot be read.
pub fn next(node: &Node<'_>) -> Result<Next, Trouble> {
    let files = modprobe_d::files(node)?;
    let mut lines = files.values().flat_map(|(_, text)| modprobe_d::whole_lines(text));
    if lines.any(|line| keeps_away(&line)) {
        return Ok(Next::StaysAway);
    }
    let tasks = WORDS.map(|word| KernelCmdline { add: vec![word.to_owned()], remove: Vec::new() });
    let [first, ..] = &tasks;
    // What is there is the same for all of them.
    let state = match first.observe(node) {
        Ok(state) => state,
        Err(trouble) => return Ok(Next::Unclear(trouble.text())),
    };
    if tasks.iter().any(|task| task.plan(&state).is_ok_and(|plan| plan.steps.is_empty())) {
        return Ok(Next::StaysAway);
    }
    Ok(Next::Returns)
}

/// The images that boot the node, where nouveau in one of them would have the GPUs before modprobe.d is read.
#[derive(Clone, Debug)]
pub struct InImages {
    pub images: Initramfs,
    /// Whether a file that keeps nouveau away is newer than an image.
    pub outdated: bool,
}

impl InImages {
    /// # Errors
    /// If a file of modprobe.d or an image cannot be read.
    pub fn read(node: &Node<'_>) -> Result<Self, Trouble> {
        let files = modprobe_d::files(node)?;
        let keeping = files
            .values()
            .filter(|(_, text)| modprobe_d::whole_lines(text).iter().any(|line| keeps_away(line)));
        // By their change, because packages keep the times of their files.
        let changed = keeping.filter_map(|(path, _)| {
            let meta = fs::metadata(path).ok()?;
            let seconds = u64::try_from(meta.ctime()).ok()?;
            Some(std::time::UNIX_EPOCH + Duration::new(seconds, u32::try_from(meta.ctime_nsec()).ok()?))
        });
        let newest = changed.max();
        // One without a time is built by an earlier task of this prediction.
        let oldest = Images::read(node)?.present.into_iter().filter_map(|(_, built)| built).min();
        let outdated = newest.zip(oldest).is_some_and(|(newest, oldest)| newest > oldest);
        Ok(Self { images: Initramfs::noted(node, MODULE, &[], outdated)?, outdated })
    }

    /// Plans a build where an image may hold nouveau without what keeps it away.
    pub fn plan<S>(&self, step: S, plan: &mut Plan<S>) {
        self.images.plan(MODULE, "an older modprobe.d", self.outdated, step, plan);
    }
}

/// Builds the images again, if they hold nouveau without what keeps it away.
///
/// # Errors
/// If they cannot be read, or the program that builds them fails.
pub fn build(node: &Node<'_>) -> Result<(), Trouble> {
    let found = InImages::read(node)?;
    let mut plan = Plan::default();
    found.plan((), &mut plan);
    if plan.steps.is_empty() { Ok(()) } else { found.images.build(node) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    const GRUB: &str = "etc/default/grub";

    #[test]
    fn what_keeps_nouveau_away_is_found_where_modprobe_and_the_kernel_look() {
        let after = |files: &[(&str, &str)]| {
            let bench = Bench::new();
            for (path, text) in files {
                bench.write(path, text);
            }
            bench.write("proc/cmdline", "quiet\n");
            if !files.iter().any(|(path, _)| *path == GRUB) {
                bench.write(GRUB, "GRUB_CMDLINE_LINUX=quiet\n");
            }
            bench.node(next).unwrap() == Next::Returns
        };
        assert!(after(&[]));
        for line in [
            "blacklist nouveau",
            "  blacklist   nouveau ",
            "blacklist nouveau # no GPU for it",
            "blacklist \\\n nouveau",
            "install nouveau /bin/false",
            "alias nouveau off",
            "options nouveau modeset=0",
        ] {
            assert!(!after(&[("etc/modprobe.d/a.conf", &format!("# x\n{line}\n"))]), "{line}");
        }
        for line in [
            "# blacklist nouveau",
            "blacklist nouveau-x",
            "options nouveau modeset=1",
            "install nouveau /sbin/x",
        ] {
            assert!(after(&[("etc/modprobe.d/a.conf", line)]), "{line}");
        }
        // The driver's own package, and somebody who hides its file.
        let package = ("usr/lib/modprobe.d/nvidia.conf", "blacklist nouveau\n");
        assert!(!after(&[package]));
        assert!(after(&[package, ("etc/modprobe.d/nvidia.conf", "\n")]));
        assert!(after(&[("etc/modprobe.d/nvidia.conf.off", "blacklist nouveau\n")]));
        let grub = |word: &str| format!("GRUB_CMDLINE_LINUX=\"quiet {word}\"\n");
        let boots = |word: &str| {
            let line = grub(word);
            after(&[(GRUB, line.as_str())])
        };
        assert!(boots("splash") && boots("rd.driver.blacklist=nouveau"));
        assert!(!boots("modprobe.blacklist=nouveau") && !boots("nouveau.modeset=0"));
    }

    #[test]
    fn files_of_modprobe_d_that_are_no_text_fail_nothing() {
        let bench = Bench::new();
        bench.write("proc/cmdline", "quiet\n");
        bench.write(GRUB, "GRUB_CMDLINE_LINUX=quiet\n");
        let next = || bench.node(next).unwrap();
        std::fs::create_dir_all(bench.path("etc/modprobe.d/folder.conf")).unwrap();
        std::os::unix::fs::symlink("/dev/null", bench.path("etc/modprobe.d/x.conf")).unwrap();
        std::os::unix::fs::symlink("/nowhere", bench.path("etc/modprobe.d/y.conf")).unwrap();
        assert_eq!(next(), Next::Returns);
        bench.write("usr/lib/modprobe.d/x.conf", "blacklist nouveau\n");
        assert_eq!(next(), Next::Returns, "a mask hides it");
        std::fs::write(bench.path("etc/modprobe.d/z.conf"), b"# f\xfcr alle\nblacklist nouveau\n").unwrap();
        assert_eq!(next(), Next::StaysAway);
    }

    #[test]
    fn a_boot_loader_that_is_not_understood_says_neither() {
        let bench = Bench::new();
        bench.write("run/ostree-booted", "");
        let unclear = bench.node(next).unwrap();
        assert!(matches!(&unclear, Next::Unclear(why) if why.contains("deployed by ostree")), "{unclear:?}");
        bench.write("etc/modprobe.d/a.conf", "blacklist nouveau\n");
        assert_eq!(bench.node(next).unwrap(), Next::StaysAway);
    }
}
