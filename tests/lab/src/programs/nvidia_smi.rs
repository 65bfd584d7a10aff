//! `nvidia-smi`: listing, GPU reset, persistence and a few more, with the real program's messages and exit codes.

use nvml_sim::state::{Gpu, Machine};
use nvml_sim::store::Store;
use nvml_sim::transitions::ResetRefused;
use serde_json::json;

use crate::out;

const NO_DRIVER: &str = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n";

pub fn run(store: &Store, arguments: &[String]) -> u8 {
    let Ok(machine) = store.read() else {
        out::line(NO_DRIVER);
        return 9;
    };
    if !machine.driver_loaded || !std::path::Path::new(&machine.device_dir).join("nvidiactl").exists() {
        out::line(NO_DRIVER);
        return 9;
    }
    if machine.library_version != machine.module_version {
        out::line(
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.159",
        );
        return 18;
    }
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let option = |names: &[&str]| {
        words.iter().enumerate().find_map(|(at, word)| match word.split_once('=') {
            Some((key, value)) if names.contains(&key) => Some(value),
            None if names.contains(word) => Some(words.get(at + 1).copied().unwrap_or("")),
            _ => None,
        })
    };
    let has =
        |names: &[&str]| words.iter().any(|word| names.contains(&word.split('=').next().unwrap_or_default()));
    if words.first() == Some(&"mig") {
        return mig(&machine, &words);
    }
    if words.first() == Some(&"drain") {
        return drain(store, &machine, option(&["-p", "--pciid"]).unwrap_or(""), option(&["-m", "--modify"]));
    }
    let chosen = match select(&machine, option(&["-i", "--id"])) {
        Ok(chosen) => chosen,
        Err(text) => {
            out::line(text);
            return 6;
        }
    };
    if has(&["-L", "--list-gpus"]) {
        for index in chosen {
            list(&machine, index);
        }
        return 0;
    }
    if has(&["-r", "--gpu-reset"]) {
        return reset(store, &machine, &chosen);
    }
    if let Some(mode) = option(&["-pm", "--persistence-mode"]) {
        return persistence(store, &machine, &chosen, mode);
    }
    if has(&["-q", "--query"]) {
        for index in &chosen {
            if let Some(gpu) = machine.gpus.get(*index) {
                query(gpu);
            }
        }
        return 0;
    }
    if let Some(fields) = option(&["--query-gpu"]) {
        return query_fields(&machine, &chosen, fields, option(&["--format"]).unwrap_or("csv"));
    }
    if let Some(word) = words.first() {
        out::line(format!(
            "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n({word} is not known to the lab)"
        ));
        return 2;
    }
    summary(&machine);
    0
}

/// Returns the GPUs that `-i` names: index, UUID or PCI address, comma separated; all without it.
fn select(machine: &Machine, list: Option<&str>) -> Result<Vec<usize>, String> {
    // A drained GPU is shown to no process that starts, and those behind it move up.
    let visible: Vec<usize> = (0..machine.gpus.len()).filter(|index| !is_drained(machine, *index)).collect();
    let Some(list) = list else { return Ok(visible) };
    list.split(',')
        .map(|word| {
            visible
                .iter()
                .enumerate()
                .filter_map(|(number, index)| Some((number, *index, machine.gpus.get(*index)?)))
                .find(|(number, _, gpu)| {
                    word == number.to_string()
                        || gpu.uuid == word
                        || gpu.bus.nvml().eq_ignore_ascii_case(word)
                        || gpu.bus.sysfs().eq_ignore_ascii_case(word)
                })
                .map(|(_, index, _)| index)
                .ok_or_else(|| format!("No devices were found\n(no GPU is called `{word}`)"))
        })
        .collect()
}

fn is_drained(machine: &Machine, index: usize) -> bool {
    machine.gpus.get(index).is_some_and(|gpu| gpu.draining)
}

fn list(machine: &Machine, index: usize) {
    let Some(gpu) = machine.gpus.get(index) else { return };
    if gpu.lost {
        out::line(format!(
            "Unable to determine the device handle for GPU{index}: {}: Unknown Error",
            gpu.bus.nvml()
        ));
        return;
    }
    let number = (0..index).filter(|before| !is_drained(machine, *before)).count();
    out::line(format!("GPU {number}: {} (UUID: {})", gpu.spec().name(), gpu.uuid));
    for (device, (gi, ci)) in gpu.mig_devices().enumerate() {
        let profile = gpu.spec().profile_by_id(gi.profile_id);
        let (name, slices) = profile.map_or(("", 0), |p| (p.name.as_str(), p.slices));
        let name = if ci.size == slices { name.to_owned() } else { format!("{}c.{name}", ci.size) };
        out::line(format!("  MIG {name:<10}  Device  {device}: (UUID: {})", gpu.mig_uuid(gi.id, ci.id)));
    }
}

fn reset(store: &Store, machine: &Machine, chosen: &[usize]) -> u8 {
    if !rustix::process::geteuid().is_root() {
        out::line("Unable to reset GPU: Insufficient Permissions");
        return 4;
    }
    let mut worst = 0;
    for index in chosen {
        let Some(gpu) = machine.gpus.get(*index) else { continue };
        let bus = gpu.bus.nvml();
        let reset_file = format!("/sys/bus/pci/devices/{}/reset", gpu.bus.sysfs());
        if !std::path::Path::new(&reset_file).exists() {
            out::line(format!(
                "GPU Reset couldn't run because GPU {bus} does not support it.: Not Supported"
            ));
            worst = worst.max(3);
            continue;
        }
        let users = store.users(machine, *index);
        let outcome = store.update(|machine| machine.reset(*index, &users));
        store.log_event(
            "gpu-reset",
            json!({"gpu": index, "uuid": gpu.uuid, "refused": outcome.as_ref().ok().and_then(|r| r.as_ref().err()).map(ToString::to_string)}),
        );
        match outcome {
            Ok(Ok(())) => out::line(format!("GPU {bus} was successfully reset.")),
            Ok(Err(ResetRefused::InUse { .. } | ResetRefused::DisplayDriver)) => {
                out::line(format!(
                    "The following GPUs could not be reset:\n  GPU {bus}: In use by another client\n\n\
                     1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, \
                     graphics application such as an X server, or a monitoring application such as another instance of nvidia-smi). \
                     Please first kill all processes using this device and all compute applications running in the system."
                ));
                worst = 255;
            }
            Ok(Err(ResetRefused::Lost)) => {
                out::line(format!("Unable to reset GPU {bus}: GPU is lost"));
                worst = worst.max(15);
            }
            Err(error) => {
                out::line(format!("Unable to reset GPU {bus}: Unknown Error ({error})"));
                worst = 255;
            }
        }
    }
    if worst == 0 {
        out::line("All done.");
    }
    worst
}

fn persistence(store: &Store, machine: &Machine, chosen: &[usize], mode: &str) -> u8 {
    let on = match mode {
        "1" | "ENABLED" => true,
        "0" | "DISABLED" => false,
        _ => {
            out::line(format!("Invalid persistence mode: {mode}"));
            return 2;
        }
    };
    for index in chosen {
        let Some(gpu) = machine.gpus.get(*index) else { continue };
        let word = if on { "Enabled" } else { "Disabled" };
        if gpu.persistence == on {
            out::line(format!("Persistence mode is already {word} for GPU {}.", gpu.bus.nvml()));
            continue;
        }
        let minor = gpu.minor;
        let changed = store.update(|machine| {
            if let Some(gpu) = machine.gpus.get_mut(*index) {
                gpu.persistence = on;
            }
        });
        tell_daemon(minor, on);
        store.log_setter("nvidia-smi -pm", Some(minor), json!({"mode": u8::from(on)}), 0);
        if changed.is_err() {
            return 255;
        }
        out::line(format!("{word} persistence mode for GPU {}.", gpu.bus.nvml()));
    }
    out::line("All done.");
    0
}

fn tell_daemon(minor: u32, on: bool) {
    use std::io::{Read as _, Write as _};
    if let Ok(mut socket) = std::os::unix::net::UnixStream::connect("/run/nvidia-persistenced/socket") {
        let _ = socket.write_all(format!("set {minor} {}\n", u8::from(on)).as_bytes());
        let _ = socket.read(&mut [0; 8]);
    }
}

fn mig(machine: &Machine, words: &[&str]) -> u8 {
    if !machine.gpus.iter().any(|gpu| gpu.mig.current) {
        // The real program exits with success here too.
        out::line("No MIG-enabled devices found.");
        return 0;
    }
    let compute = words.contains(&"-lci");
    for (index, gpu) in machine.gpus.iter().enumerate() {
        for gi in &gpu.instances {
            let name = gpu.spec().profile_by_id(gi.profile_id).map_or("", |p| &p.name);
            if compute {
                for ci in &gi.compute_instances {
                    out::line(format!(
                        "|   {index}      {}       MIG {name}       {}         {}          {}:{}     |",
                        gi.id, ci.profile_id, ci.id, ci.start, ci.size
                    ));
                }
            } else {
                out::line(format!(
                    "|   {index}  MIG {name:<14} {:>2}       {:>2}          {}:{}     |",
                    gi.profile_id, gi.id, gi.start, gi.size
                ));
            }
        }
    }
    0
}

fn drain(store: &Store, machine: &Machine, bus: &str, mode: Option<&str>) -> u8 {
    let Some(index) = machine.gpus.iter().position(|gpu| {
        gpu.bus.nvml().eq_ignore_ascii_case(bus) || gpu.bus.sysfs().eq_ignore_ascii_case(bus)
    }) else {
        out::line(format!("Failed to find GPU {bus}"));
        return 6;
    };
    let on = mode == Some("1");
    let done = store.update(|machine| machine.gpus.get_mut(index).map(|gpu| gpu.draining = on));
    store.log_setter("nvidia-smi drain", Some(index as u32), json!({"mode": u8::from(on)}), 0);
    out::line(format!(
        "Successfully set GPU {bus} drain state to: {}.",
        if on { "draining" } else { "not draining" }
    ));
    if done.is_ok() { 0 } else { 255 }
}

fn word(on: bool) -> &'static str {
    if on { "Enabled" } else { "Disabled" }
}

fn query(gpu: &Gpu) {
    out::line(format!(
        "GPU {}\n    Product Name                          : {}\n    Persistence Mode                      : {}\n    \
         MIG Mode\n        Current                           : {}\n        Pending                           : {}\n    \
         Serial Number                         : {}\n    GPU UUID                              : {}\n    \
         Compute Mode                          : {}\n    ECC Mode\n        Current                           : {}\n        \
         Pending                           : {}\n    Current Power Limit                   : {:.2} W",
        gpu.bus.nvml(),
        gpu.spec().name(),
        word(gpu.persistence),
        word(gpu.mig.current),
        word(gpu.mig.pending),
        gpu.serial,
        gpu.uuid,
        gpu.compute_mode,
        word(gpu.ecc.current),
        word(gpu.ecc.pending),
        f64::from(gpu.power_limit_mw) / 1000.0
    ));
}

fn query_fields(machine: &Machine, chosen: &[usize], fields: &str, format: &str) -> u8 {
    let names: Vec<&str> = fields.split(',').map(str::trim).collect();
    if !format.contains("noheader") {
        out::line(names.join(", "));
    }
    let unit = |text: &str| if format.contains("nounits") { String::new() } else { text.to_owned() };
    for (index, gpu) in chosen.iter().filter_map(|index| Some((index, machine.gpus.get(*index)?))) {
        let mut row = Vec::new();
        for name in &names {
            row.push(match *name {
                "index" => index.to_string(),
                "name" | "gpu_name" => gpu.spec().name().to_owned(),
                "uuid" | "gpu_uuid" => gpu.uuid.clone(),
                "serial" | "gpu_serial" => gpu.serial.clone(),
                "pci.bus_id" | "gpu_bus_id" => gpu.bus.nvml(),
                "driver_version" => machine.module_version.clone(),
                "persistence_mode" => word(gpu.persistence).to_owned(),
                "mig.mode.current" => word(gpu.mig.current).to_owned(),
                "mig.mode.pending" => word(gpu.mig.pending).to_owned(),
                "ecc.mode.current" => word(gpu.ecc.current).to_owned(),
                "ecc.mode.pending" => word(gpu.ecc.pending).to_owned(),
                "power.limit" => format!("{:.2}{}", f64::from(gpu.power_limit_mw) / 1000.0, unit(" W")),
                "memory.total" => {
                    format!("{}{}", gpu.spec().field("nvmlDeviceGetMemoryInfo", "total") >> 20, unit(" MiB"))
                }
                "count" => machine.gpus.len().to_string(),
                other => {
                    out::line(format!("Field \"{other}\" is not a valid field to query."));
                    return 2;
                }
            });
        }
        out::line(row.join(", "));
    }
    0
}

fn summary(machine: &Machine) {
    out::line(format!(
        "+-----------------------------------------------------------------------------------------+\n\
         | NVIDIA-SMI {v:<22} Driver Version: {v:<14} CUDA Version: 13.0     |\n\
         +-----------------------------------------+------------------------+----------------------+",
        v = machine.module_version
    ));
    for (index, gpu) in machine.gpus.iter().enumerate() {
        out::line(format!(
            "| {index:>3}  {:<24} {:>3}     | {}  |  MIG {:<8} |",
            gpu.spec().name(),
            if gpu.persistence { "On" } else { "Off" },
            gpu.bus.nvml(),
            word(gpu.mig.current)
        ));
    }
}
