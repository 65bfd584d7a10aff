//! The initial file systems of the installed kernels, as far as they hold modules and their options.
//!
//! An initramfs is a copy: a module loaded from it gets the options of /etc/modprobe.d at the time of its build. For a
//! module in it, new options count only after a rebuild.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::tool;
use crate::{
    declare::{Node, Trouble},
    process::Run,
    world::{Content, Effect, Entry, Owned},
};

/// Time limit of a listing, for which a hundred megabytes may have to be unpacked.
const LISTING: Duration = Duration::from_secs(60);

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
}

/// Programs that rebuild all images, by distribution: Debian and Ubuntu, Red Hat and SUSE, Arch.
const BUILDERS: [(&str, &[&str]); 3] = [
    ("update-initramfs", &["-u", "-k", "all"]),
    ("dracut", &["--force", "--regenerate-all"]),
    ("mkinitcpio", &["-P"]),
];
/// Programs that list an image's content.
const LISTERS: [&str; 3] = ["lsinitramfs", "lsinitrd", "lsinitcpio"];

fn is_image(name: &str) -> bool {
    let of_kernel =
        name.starts_with("initrd.img-") || name.starts_with("initramfs-") || name.starts_with("initrd-");
    // Images for crashes or rescue do not boot the node.
    of_kernel
        && !["kdump", "rescue", "fallback", ".old", ".bak", ".dpkg"].iter().any(|other| name.contains(other))
}

/// Whether an image belongs to an installed kernel. An orphaned image is never rebuilt, and boots nothing.
fn is_installed(node: &Node<'_>, name: &str) -> bool {
    let release =
        ["initrd.img-", "initramfs-", "initrd-"].iter().find_map(|prefix| name.strip_prefix(prefix));
    let release = release.map_or(name, |release| release.strip_suffix(".img").unwrap_or(release));
    // Only for names with a number: Arch names images after packages, such as `initramfs-linux.img`.
    !release.starts_with(|c: char| c.is_ascii_digit())
        || ["/lib/modules", "/usr/lib/modules"]
            .iter()
            .any(|folder| node.roots.path(folder).join(release).is_dir())
}

fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

impl Initramfs {
    /// The value if no image was searched.
    pub fn unasked() -> Self {
        Self { images: Vec::new(), builder: None, holds: Holds::No }
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
                    stale |= changed(node, path)?.is_none_or(|changed| changed > built);
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
        Ok(Self { images, builder, holds })
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
    pub fn program(&self) -> Option<String> {
        let (path, _) = self.builder.as_ref()?;
        Some(path.file_name()?.to_string_lossy().into_owned())
    }

    /// # Errors
    /// If the program is missing or fails.
    pub fn build(&self, node: &Node<'_>) -> Result<(), Trouble> {
        let Some((path, arguments)) = &self.builder else { return Ok(()) };
        let what = self.program().unwrap_or_default();
        tool::act(node, &tool::run(node, path).args(arguments.iter().copied()), &what)?;
        Ok(())
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
