//! `modprobe`, `rmmod`, `insmod` and `modinfo`: they load, unload and describe a node's driver modules, and leave the
//! host's modules alone.
//!
//! A driver comes with the node as delivered, or from a package that brings a file `nvidia.ko` with lines of text:
//! `version=580.159.04`, `license=NVIDIA` (default: `Dual MIT/GPL`, the open module), and `fault=TEXT` for a module that
//! the kernel does not load.

use std::{fs, io, path::Path};

use nvml_sim::{
    state::{DRIVER_VERSION, Machine},
    store::Store,
};
use serde_json::json;

use crate::{node::files, out};

/// Where packages put the module, below `/lib/modules/RELEASE`.
const PLACES: [&str; 4] =
    ["updates/dkms/nvidia.ko", "updates/nvidia.ko", "extra/nvidia.ko", "kernel/drivers/video/nvidia.ko"];
const OPEN: &str = "Dual MIT/GPL";

/// The module on disk.
pub struct OnDisk {
    pub version: String,
    pub license: String,
    /// Why the kernel does not load it.
    pub fault: Option<String>,
    /// Whether a package brought it.
    packaged: bool,
}

impl OnDisk {
    /// Reads the module of a node, below its root or the layer of its changed files. A package whose module was not built
    /// left only its sources, `/usr/src/nvidia-VERSION`.
    pub fn of(root: &Path) -> Option<Self> {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let files = ["lib/modules", "usr/lib/modules"]
            .iter()
            .flat_map(|folder| PLACES.iter().map(move |place| (folder, place)))
            .map(|(folder, place)| root.join(folder).join(&release).join(place));
        let text = files.filter_map(|file| fs::read_to_string(file).ok()).next();
        let field = |name: &str| {
            let lines = text.iter().flat_map(|text| text.lines());
            lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).next().map(str::to_owned)
        };
        let sources = fs::read_dir(root.join("usr/src")).into_iter().flatten().flatten();
        let mut sources = sources.filter(|entry| entry.file_name().to_string_lossy().starts_with("nvidia-"));
        if text.is_none() && sources.next().is_some() {
            return None;
        }
        Some(Self {
            version: field("version").unwrap_or_else(|| DRIVER_VERSION.to_owned()),
            license: field("license").unwrap_or_else(|| OPEN.to_owned()),
            fault: field("fault"),
            packaged: text.is_some(),
        })
    }

    /// Loads it into a machine that boots. What a node was delivered with is loaded as the machine says.
    pub fn boot(&self, machine: &mut Machine) {
        if self.packaged {
            machine.driver_loaded = self.fault.is_none();
            self.loaded(machine);
        }
    }

    fn loaded(&self, machine: &mut Machine) {
        if self.packaged {
            machine.module_version.clone_from(&self.version);
            machine.proprietary = self.license != OPEN;
        }
    }
}

/// `modinfo [-k RELEASE] [-F FIELD] MODULE`, of the driver only.
pub fn info(_: &Store, arguments: &[String]) -> u8 {
    let mut words = arguments.iter().map(String::as_str);
    let (mut field, mut module) = (None, "");
    while let Some(word) = words.next() {
        match word {
            "-F" => field = words.next(),
            "-k" => drop(words.next()),
            word => module = word,
        }
    }
    // A node without a driver has none of its programs either.
    if !module.starts_with("nvidia") || !Path::new("/usr/bin/nvidia-smi").exists() {
        out::error(format!("modinfo: ERROR: Module {module} not found."));
        return 1;
    }
    let Some(disk) = OnDisk::of(Path::new("/")) else {
        out::error(format!("modinfo: ERROR: Module {module} not found."));
        return 1;
    };
    for (name, value) in [("version", &disk.version), ("license", &disk.license)] {
        match field {
            Some(wanted) if wanted == name => out::line(value),
            Some(_) => {}
            None => out::line(format!("{name}:        {value}")),
        }
    }
    0
}

/// `modprobe [-r] MODULE…`, `rmmod MODULE…`, `insmod FILE`.
pub fn run(name: &str, store: &Store, arguments: &[String]) -> u8 {
    let remove = name == "rmmod" || arguments.iter().any(|a| a == "-r" || a == "--remove");
    if name == "insmod" {
        out::error("insmod: ERROR: could not insert module: Operation not permitted");
        return 1;
    }
    let mut worst = 0;
    for module in arguments.iter().filter(|a| !a.starts_with('-')) {
        let module = module.replace('-', "_");
        let done = if remove { unload(store, &module) } else { load(store, &module) };
        store.log_event(name, json!({"module": module, "remove": remove, "done": done.is_ok()}));
        if let Err(why) = done {
            out::error(format!("{name}: {why}"));
            worst = 1;
        }
    }
    worst
}

fn unload(store: &Store, module: &str) -> Result<(), String> {
    let in_use = || format!("ERROR: Module {module} is in use");
    let above = |names: &[&str]| names.iter().any(|name| Path::new("/sys/module").join(name).exists());
    let done = match module {
        "nvidia_drm" => store.update(|m| m.nvidia_drm_refs == 0),
        "nvidia" => {
            let busy = store.read().is_ok_and(|m| {
                (0..m.gpus.len()).any(|index| !store.users(&m, index).none()) || m.nvidia_drm_refs > 0
            });
            let busy = busy || above(&["nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem"]);
            store.update(|m| {
                if !busy {
                    m.reload();
                    m.driver_loaded = false;
                }
                !busy
            })
        }
        _ => Ok(true),
    };
    if !done.unwrap_or(false) {
        return Err(in_use());
    }
    shown(store, module, false)
}

fn load(store: &Store, module: &str) -> Result<(), String> {
    // A module that uses the driver's brings it along.
    if ["nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm"].contains(&module) {
        let machine = store.read().map_err(|error| error.to_string())?;
        if machine.driver_loaded {
            return shown(store, module, true);
        }
        let missing = || "FATAL: Module nvidia not found in directory /lib/modules".to_owned();
        let disk = OnDisk::of(Path::new("/")).ok_or_else(missing)?;
        if let Some(fault) = &disk.fault {
            return Err(format!("ERROR: could not insert 'nvidia': {fault}"));
        }
        let loaded = store.update(|machine| {
            machine.driver_loaded = true;
            disk.loaded(machine);
        });
        loaded.map_err(|error| error.to_string())?;
        shown(store, "nvidia", true)?;
    }
    shown(store, module, true)
}

/// Makes what the kernel shows of a module fit.
fn shown(store: &Store, module: &str, loaded: bool) -> Result<(), String> {
    let ours = ["nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm"];
    if !ours.contains(&module) {
        return Ok(());
    }
    let machine = store.read().map_err(|error| error.to_string())?;
    let done = match loaded {
        true => files::show_module(Path::new("/"), &machine, module),
        false => files::hide_module(Path::new("/"), module),
    };
    match done {
        // Only root can, and only root loads modules.
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(error.to_string()),
        _ => Ok(()),
    }
}
