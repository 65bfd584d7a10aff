//! The initial file systems of the installed kernels, as far as they hold modules and their options.
//!
//! An initramfs is a copy: a module loaded from it gets the options of /etc/modprobe.d at the time of its build. For a
//! module in it, new options count only after a rebuild.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use gpufleet_protocol::{Change, Disruption, Layer, Property, Subject};

use super::tool;
use crate::{
    declare::{Node, Plan, Trouble},
    process::Run,
    world::{Content, Effect, Entry, Owned},
};

/// Time limit of a listing, for which a hundred megabytes may have to be unpacked.
const LISTING: Duration = Duration::from_secs(60);
/// Images that are listed for one file: a node keeps few kernels.
const MOST_LISTED: usize = 4;

/// Whether the images hold a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holds {
    /// There is no image, or none holds the module.
    No,
    /// An image holds the module; `stale` if the options on disk are newer.
    Yes {
        stale: bool,
    },
    Unknown(String),
}

/// The images and the program that builds them.
#[derive(Clone, Debug)]
pub struct Initramfs {
    images: Vec<PathBuf>,
    builder: Option<(PathBuf, &'static [&'static str])>,
    pub holds: Holds,
    /// The image of kernel-install that may hold the module with what is older, and the command that builds it.
    apart: Option<(PathBuf, String)>,
}

/// Programs that rebuild all images, by distribution: Debian and Ubuntu, Red Hat and SUSE, Arch.
const BUILDERS: [(&str, &[&str]); 3] = [
    ("update-initramfs", &["-u", "-k", "all"]),
    ("dracut", &["--force", "--regenerate-all"]),
    ("mkinitcpio", &["-P"]),
];
/// Programs that list an image's content.
const LISTERS: [&str; 3] = ["lsinitramfs", "lsinitrd", "lsinitcpio"];

/// Beginnings of the names of images; the release follows.
const PREFIXES: [&str; 3] = ["initrd.img-", "initramfs-", "initrd-"];

fn is_image(name: &str) -> bool {
    let of_kernel = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    // Images for crashes or rescue do not boot the node.
    of_kernel
        && !["kdump", "rescue", "fallback", ".old", ".bak", ".dpkg"].iter().any(|other| name.contains(other))
}

/// Whether an image belongs to an installed kernel. An orphaned image is never rebuilt, and boots nothing.
fn is_installed(node: &Node<'_>, name: &str) -> bool {
    let release = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
    let release = release.map_or(name, |release| release.strip_suffix(".img").unwrap_or(release));
    // Only for names with a number: Arch names images after packages, such as `initramfs-linux.img`.
    !release.starts_with(|c: char| c.is_ascii_digit())
        || ["/lib/modules", "/usr/lib/modules"]
            .iter()
            .any(|folder| node.roots.path(folder).join(release).is_dir())
}

/// Where kernel-install puts kernels, as `BOOT/TOKEN/RELEASE` (kernel-install(8)).
const BOOTS: [&str; 3] = ["/efi", "/boot/efi", "/boot"];

/// Returns the images in the layout of kernel-install, of kernels that have none in /boot itself, by release. They are not
/// built here: `dracut --regenerate-all` finds them by the machine's id only, and `kernel-install` writes the boot
/// entry's command line anew.
fn apart(node: &Node<'_>, in_boot: &[PathBuf]) -> BTreeMap<String, PathBuf> {
    let names = |folder: &Path| node.world.names(folder).unwrap_or_default();
    let mut found = BTreeMap::new();
    for boot in BOOTS.map(|boot| node.roots.path(boot)) {
        for token in names(&boot) {
            let folder = boot.join(token);
            for release in
                names(&folder).into_iter().filter(|name| name.starts_with(|c: char| c.is_ascii_digit()))
            {
                let has_one = in_boot.iter().any(|image| image.to_string_lossy().contains(&release));
                if has_one || !is_installed(node, &release) {
                    continue;
                }
                let inside = folder.join(&release);
                let image = names(&inside).into_iter().find(|name| name.starts_with("initr"));
                if let Some(image) = image {
                    found.entry(release).or_insert(inside.join(image));
                }
            }
        }
    }
    found
}

/// Returns the command that builds an image of kernel-install.
fn kernel_install(node: &Node<'_>, release: &str) -> String {
    let kernels = [format!("/usr/lib/modules/{release}/vmlinuz"), format!("/boot/vmlinuz-{release}")];
    let there = kernels.iter().find(|path| node.roots.path(path).exists());
    format!("kernel-install add {release} {}", there.map_or("KERNEL", String::as_str))
}

fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

impl Initramfs {
    /// The value if no image was searched.
    pub fn unasked() -> Self {
        Self { images: Vec::new(), builder: None, holds: Holds::No, apart: None }
    }

    /// Checks whether a module is in the images. `options` are the files with its options, `will_change` is whether
    /// they are about to change.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn read(
        node: &Node<'_>,
        module: &str,
        options: &[&Path],
        will_change: bool,
    ) -> Result<Self, Trouble> {
        Self::of(node, module, options, options, will_change)
    }

    /// As [`Initramfs::read`], for a file that modules share: its time says nothing of this one, so that the caller notes
    /// which images are to be built. Only of images that are not built here, the file may be newer than all they have.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn noted(node: &Node<'_>, module: &str, file: &[&Path], will_change: bool) -> Result<Self, Trouble> {
        Self::of(node, module, &[], file, will_change)
    }

    fn of(
        node: &Node<'_>,
        module: &str,
        options: &[&Path],
        of_apart: &[&Path],
        will_change: bool,
    ) -> Result<Self, Trouble> {
        let boot = node.roots.path("/boot");
        let images: Vec<PathBuf> = node
            .world
            .names(&boot)?
            .iter()
            .filter(|name| is_image(name) && is_installed(node, name))
            .map(|name| boot.join(name))
            .collect();
        let builder =
            BUILDERS.iter().find_map(|(name, arguments)| Some((node.roots.tool(name)?, *arguments)));
        let holds = match Self::newest(node, &images)? {
            None => Holds::No,
            // Up to date, because an earlier task of this prediction builds it.
            Some((_, None)) => Holds::Yes { stale: false },
            Some((image, Some(built))) => {
                let mut stale = false;
                for path in options {
                    // What was put there before the build is in it, whatever time its text has.
                    let time = changed(node, path)?;
                    let is_in_it = time.is_some() && put(path).is_some_and(|put| put <= built);
                    if !stale && !is_in_it {
                        stale = match holds_text(node, &images, path)? {
                            Some(is_in_it) => !is_in_it,
                            None => time.is_none_or(|time| time > built),
                        };
                    }
                }
                match (stale || will_change).then(|| listed(node, &image, module)) {
                    // Not listed: the result is right whether the module is in it or not.
                    None => Holds::Yes { stale: false },
                    Some(Ok(false)) => Holds::No,
                    Some(Ok(true)) => Holds::Yes { stale },
                    Some(Err(why)) => Holds::Unknown(why),
                }
            }
        };
        let mut older = None;
        for (release, image) in apart(node, &images) {
            let mut stale = will_change;
            if let Some(built) = changed(node, &image)? {
                for path in of_apart {
                    stale |= changed(node, path)?.is_none_or(|changed| changed > built);
                }
            }
            if older.is_none() && stale && listed(node, &image, module) != Ok(false) {
                older = Some((image, release));
            }
        }
        Ok(Self {
            images,
            builder,
            holds,
            apart: older.map(|(image, release)| (image, kernel_install(node, &release))),
        })
    }

    /// Plans a build for a module. `older` is what the images may have of it, such as `older options`; `written` is whether
    /// that changes in this plan.
    pub fn plan<S>(&self, module: &str, older: &str, written: bool, step: S, plan: &mut Plan<S>) {
        if let Some((image, command)) = &self.apart {
            plan.warnings.push(format!(
                "{} may hold {module} with {older}, and gpufleet does not build it: `{command}` does",
                image.display()
            ));
        }
        let because = match &self.holds {
            Holds::Yes { stale } if written || *stale => format!("with {older}"),
            Holds::Unknown(_) if written => format!("perhaps with {older}"),
            _ => return,
        };
        let Some(program) = self.program() else {
            let why = match &self.holds {
                Holds::Unknown(why) => format!("may hold {module} with {older} ({why})"),
                _ => format!("holds {module} with {older}"),
            };
            plan.warnings.push(format!(
                "the initramfs {why}, and neither update-initramfs nor dracut nor mkinitcpio is there to build it again"
            ));
            return;
        };
        let module = Subject::module(module);
        let change = Change::new(module, Property::STATE, because, "as in modprobe.d", Disruption::Live)
            .at(Layer::Initramfs)
            .with_note(format!("{program} builds it again, which takes a while"));
        plan.push(step, change);
    }

    /// Returns the image to list, the running kernel's if possible, and the build time of the oldest; without a time if
    /// it is only assumed.
    fn newest(node: &Node<'_>, images: &[PathBuf]) -> Result<Option<(PathBuf, Option<SystemTime>)>, Trouble> {
        let release = fs::read_to_string(node.roots.proc("sys/kernel/osrelease")).unwrap_or_default();
        let running = images.iter().find(|image| image.to_string_lossy().contains(release.trim()));
        let Some(image) = running.or(images.first()) else { return Ok(None) };
        let mut oldest = changed(node, image)?;
        for image in images {
            oldest = oldest.min(changed(node, image)?);
        }
        Ok(Some((image.clone(), oldest)))
    }

    /// Returns the name of the program that builds the images, if any.
    fn program(&self) -> Option<String> {
        let (path, _) = self.builder.as_ref()?;
        Some(path.file_name()?.to_string_lossy().into_owned())
    }

    /// # Errors
    /// If the program is missing or fails.
    pub fn build(&self, node: &Node<'_>) -> Result<(), Trouble> {
        let Some((path, arguments)) = &self.builder else { return Ok(()) };
        let what = self.program().unwrap_or_default();
        let run = tool::run(node, path).args(arguments.iter().copied());
        tool::act(node, &run, &what).map(|_| ()).map_err(|trouble| match trouble {
            Trouble::Failed { kind, message } => Trouble::failed(
                kind,
                format!(
                    "{message}; what is written below /etc stays, the images do not have it yet, and the next run builds them again"
                ),
            ),
            other => other,
        })
    }

    /// Returns the effects of a build.
    pub fn built(&self) -> Vec<Effect> {
        let entry = Entry::File {
            owned: Owned { uid: 0, gid: 0, mode: 0o600 },
            content: Content::Digest { sha256: String::new(), size: 0 },
        };
        self.images.iter().map(|path| Effect::Path { path: path.clone(), entry: entry.clone() }).collect()
    }
}

/// The images of all installed kernels.
#[derive(Clone, Debug, Default)]
pub struct Images {
    /// Each image, and its build time; without a time if it is only assumed.
    pub present: Vec<(PathBuf, Option<SystemTime>)>,
    /// Releases of kernels in /boot that have no image.
    pub lacking: Vec<String>,
    /// Images of kernel-install, each with the command that builds it.
    pub apart: Vec<(PathBuf, String)>,
}

impl Images {
    /// # Errors
    /// If /boot cannot be read.
    pub fn read(node: &Node<'_>) -> Result<Self, Trouble> {
        let boot = node.roots.path("/boot");
        let names = node.world.names(&boot)?;
        let mut found = Self::default();
        for name in names.iter().filter(|name| is_image(name) && is_installed(node, name)) {
            let path = boot.join(name);
            let time = changed(node, &path)?;
            found.present.push((path, time));
        }
        for release in names.iter().filter_map(|name| name.strip_prefix("vmlinuz-")) {
            let installed = !release.contains("rescue") && is_installed(node, &format!("initrd-{release}"));
            let of_kernel = |name: &String| {
                is_image(name)
                    && PREFIXES.iter().any(|prefix| {
                        let rest = name.strip_prefix(prefix);
                        rest.is_some_and(|rest| rest.strip_suffix(".img").unwrap_or(rest) == release)
                    })
            };
            if installed && !names.iter().any(of_kernel) {
                found.lacking.push(release.to_owned());
            }
        }
        let in_boot: Vec<PathBuf> = found.present.iter().map(|(path, _)| path.clone()).collect();
        let apart = apart(node, &in_boot);
        // Their kernels may lie in /boot too.
        found.lacking.retain(|release| !apart.contains_key(release));
        found.apart =
            apart.into_iter().map(|(release, image)| (image, kernel_install(node, &release))).collect();
        Ok(found)
    }

    /// Returns the path that the image of a kernel gets.
    pub fn place(&self, node: &Node<'_>, release: &str) -> PathBuf {
        let name = match builder(node).as_deref().and_then(Path::file_name).and_then(|name| name.to_str()) {
            Some("update-initramfs") => format!("initrd.img-{release}"),
            _ if node.roots.path("/etc/SUSE-brand").exists() => format!("initrd-{release}"),
            _ => format!("initramfs-{release}.img"),
        };
        node.roots.path("/boot").join(name)
    }
}

/// Returns the program that builds images here.
pub fn builder(node: &Node<'_>) -> Option<PathBuf> {
    BUILDERS.iter().find_map(|(name, _)| node.roots.tool(name))
}

/// Builds the missing image of a kernel, or all images.
///
/// # Errors
/// If the program is missing or fails.
pub fn build(node: &Node<'_>, release: Option<&str>) -> Result<(), Trouble> {
    let found = BUILDERS.iter().find_map(|(name, all)| Some((*name, node.roots.tool(name)?, *all)));
    let Some((name, path, all)) = found else {
        return Err(Trouble::missing("neither update-initramfs nor dracut nor mkinitcpio is on this node"));
    };
    let run = tool::run(node, path);
    let run = match (name, release) {
        ("update-initramfs", Some(release)) => run.args(["-c", "-k", release]),
        ("dracut", Some(release)) => run.args(["--force", "--kver", release]),
        _ => run.args(all.iter().copied()),
    };
    tool::act(node, &run, name).map(drop)
}

/// Returns the modification time of a file; `None` if it is only assumed.
fn changed(node: &Node<'_>, path: &Path) -> Result<Option<SystemTime>, Trouble> {
    let (path, entry) = node.world.follow(path)?;
    Ok(match entry {
        Entry::File { content: Content::On(place), .. } if place == path => {
            fs::metadata(&path).and_then(|meta| meta.modified()).ok()
        }
        _ => None,
    })
}

/// Returns when something was put at a path: by its change, because packages keep the times of their files.
pub fn put(path: &Path) -> Option<SystemTime> {
    let meta = fs::metadata(path).ok()?;
    let (seconds, nanos) = (u64::try_from(meta.ctime()).ok()?, u32::try_from(meta.ctime_nsec()).ok()?);
    Some(UNIX_EPOCH + Duration::new(seconds, nanos))
}

/// Whether all images hold a file of /etc/modprobe.d with the text that it has now; none where nothing tells.
///
/// lsinitrd tells the text. lsinitramfs tells only the size: another one is another text, and the same one says nothing.
fn holds_text(node: &Node<'_>, images: &[PathBuf], path: &Path) -> Result<Option<bool>, Trouble> {
    let Some(bytes) = node.world.read(path)? else { return Ok(None) };
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Ok(None) };
    let inside = format!("etc/modprobe.d/{name}");
    let (lister, tells_text) = match (node.roots.tool("lsinitramfs"), node.roots.tool("lsinitrd")) {
        (Some(lister), _) => (lister, false),
        (None, Some(lister)) => (lister, true),
        (None, None) => return Ok(None),
    };
    let mut all = Some(true);
    for image in images.iter().take(MOST_LISTED) {
        let run = Run::new(&lister).env("LC_ALL", "C").user(node.user.clone());
        let run = if tells_text { run.args(["-f", &inside]) } else { run.arg("-l") }.arg(image);
        // What does not end, or fails, tells nothing.
        let done = run.finish(&node.deadline.within(LISTING)).ok().filter(|done| done.exit.success());
        let is_same = match done {
            Some(done) if tells_text => Some(done.stdout().as_bytes() == bytes),
            Some(done) => sizes(&done.stdout(), &inside).and_then(|size| match size {
                Some(size) if size == bytes.len() as u64 => None,
                _ => Some(false),
            }),
            None => None,
        };
        match is_same {
            Some(false) => return Ok(Some(false)),
            Some(true) => {}
            None => all = None,
        }
    }
    Ok(all.filter(|_| !images.is_empty() && images.len() <= MOST_LISTED))
}

/// Returns the size of a file in a long listing, such as `-rw-r--r-- 1 root root 42 Jan 1 00:00 etc/modprobe.d/a.conf`; the
/// inner none if it is not there, the outer one if the listing is not long.
fn sizes(text: &str, name: &str) -> Option<Option<u64>> {
    let mut is_long = false;
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [mode, _, _, _, size, .., path] = fields.as_slice() else { continue };
        if fields.len() < 9 || mode.len() < 10 {
            continue;
        }
        is_long = true;
        if *path == name {
            return Some(size.parse().ok());
        }
    }
    is_long.then_some(None)
}

/// Whether an image holds a module.
fn listed(node: &Node<'_>, image: &Path, module: &str) -> Result<bool, String> {
    let lister = LISTERS.iter().find_map(|name| node.roots.tool(name));
    let lister = lister.ok_or_else(|| format!("none of {} is there", LISTERS.join(", ")))?;
    let run = Run::new(&lister).arg(image).env("LC_ALL", "C").user(node.user.clone());
    let done = run.finish(&node.deadline.within(LISTING)).map_err(|error| error.to_string())?;
    if !done.exit.success() {
        return Err(done.complaint(&lister.file_name().unwrap_or_default().to_string_lossy()));
    }
    // A line is `-rw-r--r-- 1 root root 1 Jan 1 00:00 usr/lib/modules/6.1/updates/dkms/nvidia.ko.zst`, or only the
    // path.
    Ok(done.stdout().lines().any(|line| {
        let name = line.rsplit('/').next().unwrap_or_default();
        name.split_once(".ko").is_some_and(|(name, rest)| {
            canonical(name) == canonical(module) && (rest.is_empty() || rest.starts_with('.'))
        })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    const OPTIONS: &str = "etc/modprobe.d/nvme.conf";

    /// A node with an image that holds the module, older or newer than the options by their time.
    fn bench(text: &str) -> Bench {
        let bench = Bench::new();
        bench.write("lib/modules/6.1.0-9/modules.builtin", "");
        bench.write("boot/initrd.img-6.1.0-9", "image\n");
        bench.write(OPTIONS, text);
        bench
    }

    fn age(bench: &Bench, below: &str, seconds: u64) {
        let then = SystemTime::now() - Duration::from_secs(seconds);
        fs::File::options().write(true).open(bench.path(below)).unwrap().set_modified(then).unwrap();
    }

    fn stale(bench: &Bench) -> bool {
        let path = bench.path(OPTIONS);
        let read = bench.node(|node| Initramfs::read(node, "nvme", &[&path], false).unwrap());
        matches!(read.holds, Holds::Yes { stale: true })
    }

    #[test]
    fn the_text_in_the_image_counts_and_not_its_time() {
        let bench = bench("options nvme poll_queues=4\n");
        bench.script(
            "usr/bin/lsinitrd",
            "#!/bin/sh\n[ \"$1\" = -f ] && { cat $(dirname $0)/../../inside; exit; }\n\
             echo '-rw-r--r-- 1 root root 1 Jan 1 00:00 usr/lib/modules/6.1.0-9/kernel/nvme.ko.zst'\n",
        );
        age(&bench, "boot/initrd.img-6.1.0-9", 3600);
        bench.write("inside", "options nvme poll_queues=4\n");
        assert!(!stale(&bench), "the same text was only written again");
        // Put there after the build with an old time, as `cp -p` does.
        bench.write("inside", "options nvme poll_queues=2\n");
        age(&bench, OPTIONS, 7200);
        assert!(stale(&bench));
        bench.script(
            "usr/bin/lsinitrd",
            "#!/bin/sh\n[ \"$1\" = -f ] && exit 1\necho '-rw-r--r-- 1 root root 1 Jan 1 00:00 kernel/nvme.ko'\n",
        );
        assert!(!stale(&bench), "by its time, where nothing tells its text");
        age(&bench, OPTIONS, 0);
        assert!(stale(&bench));
    }

    #[test]
    fn another_size_in_a_long_listing_is_another_text() {
        let bench = bench("options nvme poll_queues=4\n");
        bench.script(
            "usr/bin/lsinitramfs",
            "#!/bin/sh\n[ \"$1\" = -l ] || { echo kernel/nvme.ko; exit; }\n\
             printf '%s 1 root     root  %s Nov 20 10:00 etc/modprobe.d/nvme.conf\\n' -rw-r--r-- $(cat $(dirname $0)/../../size)\n",
        );
        age(&bench, "boot/initrd.img-6.1.0-9", 3600);
        age(&bench, OPTIONS, 7200);
        bench.write("size", "3\n");
        assert!(stale(&bench));
        bench.write("size", "27\n");
        assert!(!stale(&bench), "the same size says nothing, and its time is older");
        assert_eq!(sizes("etc/modprobe.d/a.conf\n", "etc/modprobe.d/a.conf"), None);
        assert_eq!(sizes("drwxr-xr-x 2 root root 0 Nov 20 10:00 etc\n", "etc/modprobe.d/a.conf"), Some(None));
    }
}
