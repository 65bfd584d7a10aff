//! Whether the next boot loads the kernel's own driver of the GPUs (nouveau, nova_core) again, which would keep them from
//! NVIDIA's.

use gpufleet_protocol::tasks::KernelCmdline;

use std::{fs, os::unix::fs::MetadataExt as _, time::Duration};

use crate::{
    declare::{Node, NodeKind as _, Plan, Trouble},
    tasks::{
        initramfs::{Images, Initramfs},
        modprobe_d,
    },
    world::Effect,
};

/// Whether a word of the kernel command line keeps a module away. `rd.driver.blacklist` does not: it counts in the initramfs
/// alone.
fn is_kept_by(word: &str, module: &str) -> bool {
    match word.split_once('=') {
        Some(("modprobe.blacklist" | "module_blacklist", list)) => list.split(',').any(|name| name == module),
        Some(("nouveau.modeset", "0")) => module == "nouveau",
        _ => false,
    }
}

/// Whether a line of modprobe.d keeps a module from being loaded for hardware, or from taking it.
fn keeps_away(line: &str, module: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is = |name: &str| modprobe_d::canonical(name) == module;
    match words.as_slice() {
        // kmod does not read on, so that what looks like a comment may follow.
        ["blacklist", name, ..] | ["alias", name, "off", ..] => is(name),
        ["install", name, program, ..] => {
            is(name) && (program.ends_with("/false") || program.ends_with("/true"))
        }
        ["options", "nouveau", options @ ..] => is("nouveau") && options.contains(&"modeset=0"),
        _ => false,
    }
}

/// What these modules do at the next boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// modprobe.d or the kernel command line keeps them from being loaded.
    StaysAway,
    /// Nothing keeps this one from being loaded.
    Returns(&'static str),
    /// modprobe.d does not keep this one away, and why it is not known whether the kernel command line does.
    Unclear(&'static str, String),
}

/// Returns what modules do at the next boot.
///
/// # Errors
/// If a file of modprobe.d cannot be read.
pub fn next(node: &Node<'_>, modules: &[&'static str]) -> Result<Next, Trouble> {
    let files = modprobe_d::files(node)?;
    let lines: Vec<String> = files.values().flat_map(|(_, text)| modprobe_d::whole_lines(text)).collect();
    let loaded = |module: &&&'static str| !lines.iter().any(|line| keeps_away(line, module));
    let with = |add: Vec<String>| KernelCmdline { add, remove: Vec::new() };
    for module in modules.iter().filter(loaded) {
        // What is there is the same whatever is asked for.
        let state = match with(Vec::new()).observe(node) {
            Ok(state) => state,
            Err(trouble) => return Ok(Next::Unclear(module, trouble.text())),
        };
        let words = state.configured().concat();
        let mut keeping = words.into_iter().filter(|word| is_kept_by(word, module));
        if !keeping.any(|word| with(vec![word]).plan(&state).is_ok_and(|plan| plan.steps.is_empty())) {
            return Ok(Next::Returns(module));
        }
    }
    Ok(Next::StaysAway)
}

/// The images that boot the node, where one of these modules in them would have the GPUs before modprobe.d is read.
#[derive(Clone, Debug)]
pub struct InImages(Vec<InImage>);

#[derive(Clone, Debug)]
struct InImage {
    module: &'static str,
    images: Initramfs,
    /// Whether a file that keeps the module away is newer than an image.
    outdated: bool,
}

impl InImages {
    /// # Errors
    /// If a file of modprobe.d or an image cannot be read.
    pub fn read(node: &Node<'_>, modules: &[&'static str]) -> Result<Self, Trouble> {
        let files = modprobe_d::files(node)?;
        // One without a time is built by an earlier task of this prediction.
        let oldest = Images::read(node)?.present.into_iter().filter_map(|(_, built)| built).min();
        let of = |module: &&'static str| {
            let keeping = files.values().filter(|(_, text)| {
                modprobe_d::whole_lines(text).iter().any(|line| keeps_away(line, module))
            });
            // By their change, because packages keep the times of their files.
            let changed = keeping.filter_map(|(path, _)| {
                let meta = fs::metadata(path).ok()?;
                let seconds = u64::try_from(meta.ctime()).ok()?;
                Some(std::time::UNIX_EPOCH + Duration::new(seconds, u32::try_from(meta.ctime_nsec()).ok()?))
            });
            let outdated = changed.max().zip(oldest).is_some_and(|(newest, oldest)| newest > oldest);
            Ok(InImage { module, images: Initramfs::noted(node, module, &[], outdated)?, outdated })
        };
        modules.iter().map(of).collect::<Result<_, Trouble>>().map(Self)
    }

    /// Plans a build where an image may hold a module without what keeps it away.
    pub fn plan<S>(&self, step: fn() -> S, plan: &mut Plan<S>) {
        for InImage { module, images, outdated } in &self.0 {
            images.plan(module, "an older modprobe.d", *outdated, step(), plan);
        }
    }

    /// Returns what a build changes.
    pub fn built(&self) -> impl Iterator<Item = Effect> {
        self.0.iter().flat_map(|found| found.images.built())
    }
}

/// Builds the images again, if they hold one of these modules without what keeps it away.
///
/// # Errors
/// If they cannot be read, or the program that builds them fails.
pub fn build(node: &Node<'_>, modules: &[&'static str]) -> Result<(), Trouble> {
    let found = InImages::read(node, modules)?;
    let mut plan = Plan::default();
    found.plan(|| (), &mut plan);
    // All images are built at once.
    match found.0.first().filter(|_| !plan.steps.is_empty()) {
        Some(first) => first.images.build(node),
        None => Ok(()),
    }
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
            bench.node(|node| next(node, &["nouveau"])).unwrap() == Next::Returns("nouveau")
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
        assert!(!boots("modprobe.blacklist=nova_core,nouveau") && boots("modprobe.blacklist=nova_core"));
    }

    #[test]
    fn each_driver_of_the_kernel_is_kept_away_by_itself() {
        let bench = Bench::new();
        bench.write("proc/cmdline", "quiet\n");
        bench.write(GRUB, "GRUB_CMDLINE_LINUX=quiet\n");
        let next = || bench.node(|node| next(node, &["nouveau", "nova_core"])).unwrap();
        assert_eq!(next(), Next::Returns("nouveau"));
        bench.write("etc/modprobe.d/a.conf", "blacklist nouveau\n");
        assert_eq!(next(), Next::Returns("nova_core"));
        bench.write("etc/modprobe.d/b.conf", "blacklist nova-core\n");
        assert_eq!(next(), Next::StaysAway);
        bench.write("etc/modprobe.d/b.conf", "");
        bench.write(GRUB, "GRUB_CMDLINE_LINUX='quiet modprobe.blacklist=nouveau,nova_core'\n");
        assert_eq!(next(), Next::StaysAway);
    }

    #[test]
    fn files_of_modprobe_d_that_are_no_text_fail_nothing() {
        let bench = Bench::new();
        bench.write("proc/cmdline", "quiet\n");
        bench.write(GRUB, "GRUB_CMDLINE_LINUX=quiet\n");
        let next = || bench.node(|node| next(node, &["nouveau"])).unwrap();
        std::fs::create_dir_all(bench.path("etc/modprobe.d/folder.conf")).unwrap();
        std::os::unix::fs::symlink("/dev/null", bench.path("etc/modprobe.d/x.conf")).unwrap();
        std::os::unix::fs::symlink("/nowhere", bench.path("etc/modprobe.d/y.conf")).unwrap();
        assert_eq!(next(), Next::Returns("nouveau"));
        bench.write("usr/lib/modprobe.d/x.conf", "blacklist nouveau\n");
        assert_eq!(next(), Next::Returns("nouveau"), "a mask hides it");
        std::fs::write(bench.path("etc/modprobe.d/z.conf"), b"# f\xfcr alle\nblacklist nouveau\n").unwrap();
        assert_eq!(next(), Next::StaysAway);
    }

    #[test]
    fn a_boot_loader_that_is_not_understood_says_neither() {
        let bench = Bench::new();
        bench.write("run/ostree-booted", "");
        let next = || bench.node(|node| next(node, &["nouveau"])).unwrap();
        let unclear = next();
        assert!(
            matches!(&unclear, Next::Unclear("nouveau", why) if why.contains("deployed by ostree")),
            "{unclear:?}"
        );
        bench.write("etc/modprobe.d/a.conf", "blacklist nouveau\n");
        assert_eq!(next(), Next::StaysAway);
    }
}
