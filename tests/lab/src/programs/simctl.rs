//! `gpusimctl`: shows a node's simulated machine, and changes what no driver call can.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nvml_sim::defect;
use nvml_sim::fault::Rule;
use nvml_sim::state::{Client, Gpu, Machine};
use nvml_sim::store::Store;

use super::daemons::detach;
use crate::node::{files, kmsg};
use crate::out;

const HELP: &str = "gpusimctl: look at and change the simulated GPUs of this node

  gpusimctl show                         state as JSON
  gpusimctl setters | events             the logs
  gpusimctl client add GPU [MIB] [GI]    start a process that works on the GPU; prints its pid
  gpusimctl client remove PID            end it
  gpusimctl set GPU|all KEY VALUE        KEY: ecc_current ecc_pending mig_current mig_pending persistence power_limit_mw
                                         compute_mode lost remap_pending remap_failed recovery_action volatile_uncorrectable
                                         volatile_correctable aggregate_uncorrectable aggregate_correctable
                                         remapped_correctable remapped_uncorrectable held_mib drain accounting
                                         module
  gpusimctl set GPU|all DEFECT VALUE     makes one answer differ until VALUE is as_recorded: pcie_width margin_c fabric_state …
  gpusimctl defects                      lists the words
  gpusimctl machine KEY VALUE            KEY: driver_loaded module_version library_version nvidia_drm_refs passthrough
                                         excluded_gpus nvswitches confidential cuda_version
  gpusimctl fault add RULE               RULE as one line of YAML or JSON, such as '{function: nvmlInit*, effect: hang}'
  gpusimctl fault list | clear
  gpusimctl xid GPU CODE                 the driver logs an error of the GPU to /dev/kmsg; forgotten at the next boot
  gpusimctl vanish | freeze | power-cut  end the node at once; after a power cut it starts again
  gpusimctl cut SECONDS                  silence its connections for so long
  gpusimctl boot [bus]                   what a boot does to the GPUs, for machines that the lab does not start itself;
                                         bus: also shows them in /sys, and leaves the driver to `modprobe`";

pub fn run(store: &Store, arguments: &[String]) -> u8 {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match act(store, &words) {
        Ok(text) => {
            if !text.is_empty() {
                out::line(text);
            }
            0
        }
        Err(error) => {
            out::error(format!("gpusimctl: {error}"));
            1
        }
    }
}

fn act(store: &Store, words: &[&str]) -> Result<String, String> {
    let say = |error: nvml_sim::store::StoreError| error.to_string();
    match words {
        [] | ["help" | "--help" | "-h"] => Ok(HELP.to_owned()),
        ["show"] => serde_json::to_string_pretty(&*store.read().map_err(say)?).map_err(|e| e.to_string()),
        ["defects"] => {
            let words = defect::DEFECTS.iter().map(|(word, getter, _)| format!("{word:<28}{getter}"));
            let links = format!("{:<28}nvmlDeviceGetNvLinkState of so many links", defect::LINKS_DOWN);
            Ok(words.chain([links]).collect::<Vec<_>>().join("\n"))
        }
        ["setters"] => Ok(read(store, "setters.jsonl")),
        ["events"] => Ok(read(store, "events.jsonl")),
        ["client", "add", gpu, rest @ ..] => {
            let index: usize = gpu.parse().map_err(|_| format!("`{gpu}` is no GPU index"))?;
            let number = |at: usize| {
                rest.get(at).map(|t| t.parse::<u64>().map_err(|_| format!("`{t}` is no number"))).transpose()
            };
            let memory_mib = number(0)?.unwrap_or(1024);
            let gpu_instance = number(1)?.map(|id| id as u32);
            let minor = store.read().map_err(say)?.gpus.get(index).ok_or("no such GPU")?.minor;
            let pid = detach(&["__client", &minor.to_string()]).map_err(|e| e.to_string())?;
            let since_us =
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
            let client = Client { pid, memory_mib, gpu_instance, since_us };
            store.update(|m| m.gpus.get_mut(index).map(|gpu| gpu.clients.push(client))).map_err(say)?;
            Ok(pid.to_string())
        }
        ["client", "remove", pid] => {
            let number: u32 = pid.parse().map_err(|_| format!("`{pid}` is no process id"))?;
            if let Some(pid) = rustix::process::Pid::from_raw(number as i32) {
                rustix::process::kill_process(pid, rustix::process::Signal::KILL)
                    .map_err(|e| e.to_string())?;
            }
            store
                .update(|m| m.gpus.iter_mut().for_each(|gpu| gpu.clients.retain(|c| c.pid != number)))
                .map_err(say)?;
            Ok(String::new())
        }
        ["set", gpu, key, value] => {
            let wanted = match *gpu {
                "all" => None,
                text => Some(text.parse::<usize>().map_err(|_| format!("`{text}` is no GPU index"))?),
            };
            let set = |machine: &mut nvml_sim::state::Machine| -> Result<(), String> {
                let mut any = false;
                for (index, gpu) in machine.gpus.iter_mut().enumerate() {
                    if wanted.is_none_or(|w| w == index) {
                        set_gpu(gpu, key, value)?;
                        any = true;
                    }
                }
                if any { Ok(()) } else { Err("no such GPU".to_owned()) }
            };
            store.update(set).map_err(say)??;
            Ok(String::new())
        }
        ["machine", key, value] => {
            store.update(|machine| set_machine(machine, key, value)).map_err(say)??;
            Ok(String::new())
        }
        ["fault", "list"] => Ok(read(store, "faults.json")),
        ["fault", "clear"] => store.set_faults(&[]).map_err(say).map(|()| String::new()),
        ["fault", "add", text] => {
            let rule: Rule = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
            if let Some(problem) = rule.problem() {
                return Err(problem);
            }
            let mut rules: Vec<Rule> = serde_json::from_str(&read(store, "faults.json")).unwrap_or_default();
            rules.push(rule);
            store.set_faults(&rules).map_err(say).map(|()| String::new())
        }
        ["xid", gpu, code] => {
            let index: usize = gpu.parse().map_err(|_| format!("`{gpu}` is no GPU index"))?;
            let bus = store.read().map_err(say)?.gpus.get(index).ok_or("no such GPU")?.bus;
            let code = number(code)?;
            kmsg::xid(Path::new(kmsg::PATH), bus, code)
                .map_err(|error| format!("{}: {error}", kmsg::PATH))?;
            store.log_event("xid", serde_json::json!({"gpu": index, "code": code}));
            Ok(String::new())
        }
        ["cut", seconds] => {
            let seconds: u64 = seconds.parse().map_err(|_| format!("`{seconds}` is no number"))?;
            store.order("cut", &seconds.to_string());
            Ok(String::new())
        }
        ["boot", how @ ..] if matches!(how, [] | ["bus"]) => {
            let boot_id =
                std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(|e| e.to_string())?;
            let bus = !how.is_empty();
            let boot = |machine: &mut Machine| {
                machine.reboot(boot_id.trim().to_owned());
                machine.driver_loaded &= !bus;
            };
            store.update(boot).map_err(say)?;
            store.log_event("boot", serde_json::Value::Null);
            if bus {
                let machine = store.read().map_err(say)?;
                files::write_bus(Path::new("/sys"), &machine, &[])
                    .map_err(|error| format!("/sys: {error}"))?;
            }
            Ok(String::new())
        }
        ["vanish" | "freeze" | "power-cut"] => {
            store.end_node(words.first().unwrap_or(&"vanish"));
            Ok(String::new())
        }
        _ => Err(format!("`{}` is not understood\n{HELP}", words.join(" "))),
    }
}

fn read(store: &Store, name: &str) -> String {
    std::fs::read_to_string(store.beside(name)).unwrap_or_default().trim_end().to_owned()
}

fn truth(value: &str) -> Result<bool, String> {
    match value {
        "1" | "true" | "on" | "enabled" | "yes" => Ok(true),
        "0" | "false" | "off" | "disabled" | "no" => Ok(false),
        _ => Err(format!("`{value}` is neither on nor off")),
    }
}

fn number<T: std::str::FromStr>(value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("`{value}` is no number in range"))
}

/// Sets one property of a GPU by name.
pub fn set_gpu(gpu: &mut Gpu, key: &str, value: &str) -> Result<(), String> {
    match key {
        "ecc_current" => gpu.ecc.current = truth(value)?,
        "ecc_pending" => gpu.ecc.pending = truth(value)?,
        "mig_current" => gpu.mig.current = truth(value)?,
        "mig_pending" => gpu.mig.pending = truth(value)?,
        "persistence" => gpu.persistence = truth(value)?,
        "power_limit_mw" => gpu.power_limit_mw = number(value)?,
        "module" => gpu.module_limit_mw = truth(value)?.then_some(nvml_sim::transitions::MODULE_MW.1),
        "compute_mode" => gpu.compute_mode = number(value)?,
        "lost" => gpu.lost = truth(value)?,
        "remap_pending" => gpu.health.remap_pending = truth(value)?,
        "remap_failed" => gpu.health.remap_failed = truth(value)?,
        "recovery_action" => gpu.health.recovery_action = number(value)?,
        "volatile_correctable" => gpu.health.volatile_correctable = number(value)?,
        "volatile_uncorrectable" => gpu.health.volatile_uncorrectable = number(value)?,
        "aggregate_uncorrectable" => gpu.health.aggregate_uncorrectable = number(value)?,
        "aggregate_correctable" => gpu.health.aggregate_correctable = number(value)?,
        "remapped_correctable" => gpu.health.remapped_correctable = number(value)?,
        "remapped_uncorrectable" => gpu.health.remapped_uncorrectable = number(value)?,
        "held_mib" => gpu.health.held_mib = number(value)?,
        "drain" => gpu.draining = truth(value)?,
        "accounting" => gpu.accounting = truth(value)?,
        _ => return defect::set(gpu, key, value).unwrap_or_else(|| Err(format!("a GPU has no `{key}`"))),
    }
    Ok(())
}

/// Sets one property of the machine by name.
pub fn set_machine(machine: &mut nvml_sim::state::Machine, key: &str, value: &str) -> Result<(), String> {
    match key {
        "driver_loaded" => machine.driver_loaded = truth(value)?,
        "module_version" => machine.module_version = value.to_owned(),
        "library_version" => machine.library_version = value.to_owned(),
        "nvidia_drm_refs" => machine.nvidia_drm_refs = number(value)?,
        "passthrough" => machine.passthrough = truth(value)?,
        "excluded_gpus" => machine.excluded_gpus = number(value)?,
        "nvswitches" => machine.nvswitches = number(value)?,
        "confidential" => machine.confidential = truth(value)?,
        "confidential_ready" => machine.confidential_ready = truth(value)?,
        "cuda_version" => machine.cuda_version = Some(number(value)?),
        _ => return Err(format!("a machine has no `{key}`")),
    }
    Ok(())
}
