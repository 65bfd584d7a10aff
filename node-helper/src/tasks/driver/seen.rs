//! What is there of a driver, without its packages and without NVML.

use std::{fs, path::Path};

use gpufleet_protocol::tasks::DriverFlavour;

use crate::{
    declare::{Node, Trouble},
    gpu::{bus, host},
    os::{
        files,
        tree::{self, Found},
    },
    tasks::{driver::attempt::Attempt, tool},
};

/// Modules that use the driver's, the ones that must go first in front.
pub const MODULES: [&str; 7] =
    ["nvidia_fs", "gdrdrv", "nvidia_peermem", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia"];
/// Where distributions put libraries.
const LIBRARIES: [&str; 5] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64"];
/// Largest number of files of a kernel, and largest size in bytes of a module; NVIDIA's has about 100 MB with symbols.
const MODULE_FILES: usize = 50_000;
const MODULE_SIZE: u64 = 256 << 20;
/// Longest chain of links that is followed.
const LINKS: usize = 8;
/// The driver that a container of NVIDIA's GPU operator runs has its root here.
const OPERATOR: &str = "/run/nvidia/driver/usr";
/// The firmware's own variable, whose fifth byte is 1 while it starts only what is signed. Source: UEFI specification 3.3.
const SECURE_BOOT: &str = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
/// What the kernel enforces, whatever the firmware says: an administrator may turn the check off (`mokutil
/// --disable-validation`), or on without Secure Boot. Source: kernel, kernel/module/signing.c and security/lockdown.
const ENFORCES: &str = "/sys/module/module/parameters/sig_enforce";
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
/// Where DKMS puts the modules that it builds, on Debian's family and on Red Hat's. Source: dkms(8), `DEST_MODULE_LOCATION`.
/// In the second, NVIDIA's precompiled modules lie too (`/extra/drivers/video/nvidia`).
const DKMS: &str = "/updates/dkms/";
const EXTRA: &str = "/extra/";
/// Public keys with which DKMS signs, on Ubuntu and elsewhere.
const SIGNING: [&str; 2] = ["/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub"];

/// A kernel module of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    pub version: String,
    /// `None` where nothing tells.
    pub open: Option<bool>,
}

impl Module {
    /// Whether it is of a flavour, as far as that can be told.
    pub fn is(&self, flavour: Option<DriverFlavour>) -> bool {
        match (flavour, self.open) {
            (Some(flavour), Some(open)) => flavour.is_open() == open,
            _ => true,
        }
    }
}

/// What was read of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Number of NVIDIA GPUs on the PCI bus.
    pub gpus: u32,
    /// Release of the running kernel.
    pub kernel: String,
    pub boot_id: String,
    /// The module that runs.
    pub loaded: Option<Module>,
    /// The module that the running kernel would load now.
    pub disk: Option<Module>,
    /// Version of the library through which programs ask the driver.
    pub library: Option<String>,
    /// The kernel's own drivers that are loaded, one of which has the GPUs.
    pub kernels_own: Vec<&'static str>,
    /// Modules of the driver that are loaded, the ones that must go first in front.
    pub modules: Vec<String>,
    /// Why the modules cannot be unloaded.
    pub fixed: Option<String>,
    /// Whether the kernel loads no unsigned module.
    pub secure: bool,
    /// Why modules that are built on this node would not be loaded.
    pub unsigned: Option<String>,
    /// Why the driver is not gpufleet's to change.
    pub foreign: Option<&'static str>,
}

fn text(node: &Node<'_>, path: &str) -> Option<String> {
    let bytes = files::read_bounded(&node.roots.path(path), 64 * 1024).ok()??;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

fn exists(node: &Node<'_>, path: &str) -> bool {
    node.roots.path(path).exists()
}

impl Seen {
    /// Whether the driver of an attempt is the one that a later boot brought up.
    pub fn came_up_with(&self, attempt: &Attempt) -> bool {
        let is = |module: &Option<Module>| module.as_ref().is_some_and(|one| one.version == attempt.wanted);
        attempt.boot_id != self.boot_id && is(&self.loaded) && is(&self.disk)
    }

    /// # Errors
    /// If a part cannot be read.
    pub fn read(node: &Node<'_>) -> Result<Self, Trouble> {
        let kernel = text(node, "/proc/sys/kernel/osrelease")
            .ok_or_else(|| Trouble::io("/proc/sys/kernel/osrelease cannot be read"))?;
        let loaded = loaded(node)?;
        let modules: Vec<String> = MODULES
            .iter()
            .filter(|name| exists(node, &format!("/sys/module/{name}")))
            .map(|name| (*name).to_owned())
            .collect();
        Ok(Self {
            gpus: gpus(node)?,
            disk: on_disk(node, &kernel)?,
            boot_id: crate::tasks::reboot::boot_id(node.roots).unwrap_or_default(),
            library: library(node),
            kernels_own: bus::kernels_own(node.roots),
            fixed: fixed(node, &modules),
            secure: is_secure(node)?,
            unsigned: unsigned(node)?,
            foreign: foreign(node),
            kernel,
            loaded,
            modules,
        })
    }

    /// Whether what is on disk is one driver: module and library of the same version.
    pub fn is_whole(&self) -> bool {
        matches!((&self.disk, &self.library), (Some(disk), Some(library)) if disk.version == *library)
    }
}

/// Returns the number of NVIDIA GPUs on the PCI bus.
pub fn gpus(node: &Node<'_>) -> Result<u32, Trouble> {
    let bus = bus::read(node.roots)
        .map_err(|error| Trouble::io(format!("the GPUs on the PCI bus cannot be counted: {error}")))?;
    Ok(bus.gpus)
}

/// Returns the module that runs.
pub fn loaded(node: &Node<'_>) -> Result<Option<Module>, Trouble> {
    let proc = text(node, "/proc/driver/nvidia/version");
    let open = proc.as_ref().map(|proc| proc.contains("Open Kernel Module"));
    let version = text(node, "/sys/module/nvidia/version")
        .or_else(|| proc.as_deref().and_then(host::version_of).map(str::to_owned));
    match version {
        Some(version) => Ok(Some(Module { version, open })),
        None if exists(node, "/sys/module/nvidia") => {
            Err(Trouble::io("the module nvidia is loaded, and nothing tells which version it is"))
        }
        None => Ok(None),
    }
}

/// Returns the module that a kernel would load now.
pub(super) fn on_disk(node: &Node<'_>, kernel: &str) -> Result<Option<Module>, Trouble> {
    // Slim images have no kmod; then nothing but the file itself tells.
    let Some(program) = node.roots.tool("modinfo") else { return module_file(node, kernel) };
    let field = |name: &str| -> Result<Option<String>, Trouble> {
        let done = tool::ask(
            node,
            &tool::run(node, &program).args(["-k", kernel, "-F", name, "nvidia"]).limit(64 * 1024),
        )?;
        match done.exit.success() {
            true => Ok(Some(done.stdout().trim().to_owned()).filter(|text| !text.is_empty())),
            false if done.stderr().contains("not found") => Ok(None),
            false => Err(Trouble::io(done.complaint("modinfo nvidia"))),
        }
    };
    let Some(version) = field("version")? else { return Ok(None) };
    Ok(Some(Module { version, open: field("license")?.as_deref().map(is_open) }))
}

impl Seen {
    /// Returns why the module on disk would not be loaded: without a signature, or built here and signed with a key that
    /// the firmware does not know. `builds`: whether its packages build modules on the node.
    ///
    /// # Errors
    /// If the module cannot be read.
    pub fn refused_by_kernel(&self, node: &Node<'_>, builds: bool) -> Result<Option<String>, Trouble> {
        if !self.secure {
            return Ok(None);
        }
        let Some(program) = node.roots.tool("modinfo") else {
            return Ok(Some(
                "this kernel loads only signed modules, and there is no program `modinfo` to tell whether this one is"
                    .to_owned(),
            ));
        };
        let field = |name: &str| -> Result<String, Trouble> {
            let run =
                tool::run(node, &program).args(["-k", &self.kernel, "-F", name, "nvidia"]).limit(64 * 1024);
            let done = tool::ask(node, &run)?;
            match done.exit.success() {
                true => Ok(done.stdout().trim().to_owned()),
                false => Err(Trouble::io(done.complaint("modinfo nvidia"))),
            }
        };
        // Source: kmod, modinfo.c: a module without a signature has neither field.
        if field("sig_id")?.is_empty() && field("signer")?.is_empty() {
            return Ok(Some(
                "this kernel loads only signed modules, and the module has no signature".to_owned(),
            ));
        }
        let path = field("filename")?;
        let built = path.contains(DKMS) || builds && path.contains(EXTRA);
        Ok(self.unsigned.clone().filter(|_| built))
    }
}

/// Whether a module's licence is that of the open one. Source: NVIDIA's modules, `Dual MIT/GPL` and `NVIDIA`.
fn is_open(license: &str) -> bool {
    license.contains("MIT")
}

/// Returns the module from its own file, below the folder of a kernel.
fn module_file(node: &Node<'_>, kernel: &str) -> Result<Option<Module>, Trouble> {
    let folder = node.roots.path(format!("/lib/modules/{kernel}"));
    let Some(dir) = tree::dir_if_any(&folder)? else { return Ok(None) };
    let all = dir.all(MODULE_FILES, &|| node.deadline.stop().is_none())?;
    let named = |found: &Found| {
        let name = found.below.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.strip_prefix("nvidia.ko").map(|ending| ending.to_owned())
    };
    let Some((path, ending)) = all.iter().find_map(|found| Some((folder.join(&found.below), named(found)?)))
    else {
        return Ok(None);
    };
    if !ending.is_empty() {
        return Err(Trouble::io(format!(
            "{} is compressed, and there is no program `modinfo` to read it; the package kmod brings it",
            path.display()
        )));
    }
    let bytes = files::read_bounded(&path, MODULE_SIZE)?.unwrap_or_default();
    let field = |name: &str| {
        let wanted = format!("{name}=");
        let mut texts = bytes.split(|byte| *byte == 0).filter_map(|text| std::str::from_utf8(text).ok());
        texts.find_map(|text| text.strip_prefix(wanted.as_str()).map(str::to_owned))
    };
    match field("version") {
        Some(version) => Ok(Some(Module { version, open: field("license").as_deref().map(is_open) })),
        None => Err(Trouble::io(format!("{} tells no version", path.display()))),
    }
}

/// Returns the version in the name of the file that `libnvidia-ml.so.1` is a link to.
fn library(node: &Node<'_>) -> Option<String> {
    let version_of = |path: &Path| -> Option<String> {
        let version = path.file_name()?.to_str()?.strip_prefix("libnvidia-ml.so.")?;
        version.contains('.').then(|| version.to_owned())
    };
    // Link by link, because Debian's alternatives lie between the name and the file.
    let versioned = |folder: &&str| -> Option<String> {
        let mut path = node.roots.path(format!("{folder}/libnvidia-ml.so.1"));
        for _ in 0..LINKS {
            let target = fs::read_link(&path).ok()?;
            path = match target.is_absolute() {
                true => node.roots.path(&target),
                false => path.parent()?.join(target),
            };
            if let Some(version) = version_of(&path) {
                return Some(version);
            }
        }
        None
    };
    LIBRARIES.iter().find_map(versioned)
}

/// Returns why the loaded modules cannot be unloaded.
fn fixed(node: &Node<'_>, modules: &[String]) -> Option<String> {
    if modules.iter().any(|name| name == "nvidia") && !exists(node, "/sys/module/nvidia/refcnt") {
        return Some("this kernel unloads no modules".to_owned());
    }
    // Only what no process shows: a console on the GPU counts here, and has no file of the driver open.
    let count = host::module_users(node.roots, "nvidia_drm").filter(|count| *count > 0)?;
    Some(format!("something shows a picture on the GPUs (use count {count} of nvidia_drm)"))
}

/// Whether the kernel loads no unsigned module; by the firmware's variable where the kernel does not tell.
fn is_secure(node: &Node<'_>) -> Result<bool, Trouble> {
    let (enforces, lockdown) = (text(node, ENFORCES), text(node, LOCKDOWN));
    let locked = |text: &str| text.contains("[integrity]") || text.contains("[confidentiality]");
    if enforces.as_deref() == Some("Y") || lockdown.as_deref().is_some_and(locked) {
        return Ok(true);
    }
    if enforces.is_some() && lockdown.is_some() {
        return Ok(false);
    }
    let variable = files::read_bounded(&node.roots.path(SECURE_BOOT), 64)?;
    Ok(variable.and_then(|bytes| bytes.get(4).copied()) == Some(1))
}

/// Returns why a module that is built and signed on this node would not be loaded.
fn unsigned(node: &Node<'_>) -> Result<Option<String>, Trouble> {
    if !is_secure(node)? {
        return Ok(None);
    }
    let key = SIGNING.iter().map(|path| node.roots.path(path)).find(|path| path.exists());
    let (Some(key), Some(program)) = (key, node.roots.tool("mokutil")) else {
        return Ok(Some(
            "this kernel loads only signed modules, and there is no key whose modules it would load"
                .to_owned(),
        ));
    };
    let done = tool::ask(node, &tool::run(node, program).arg("--test-key").arg(&key))?;
    // Source: mokutil.c, which exits with 1 and says `is already enrolled` for a key that the firmware knows.
    let known = format!("{}{}", done.stdout(), done.stderr()).contains("already enrolled");
    Ok((!known).then(|| {
        format!(
            "this kernel loads only signed modules, and the firmware does not know the key {} with which DKMS signs",
            key.display()
        )
    }))
}

/// Returns why the driver is not gpufleet's to change.
fn foreign(node: &Node<'_>) -> Option<&'static str> {
    if exists(node, OPERATOR) {
        return Some("a container of the GPU operator runs the driver (/run/nvidia/driver); change it there");
    }
    if exists(node, "/usr/bin/nvidia-uninstall") {
        return Some(
            "the driver was installed by NVIDIA's runfile, which packages must not be mixed with; remove it first with \
             `nvidia-uninstall`",
        );
    }
    None
}
