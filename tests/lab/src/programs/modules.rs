//! `modprobe`, `rmmod` and `insmod`: they load and unload a node's driver module, and leave the host's modules alone.

use nvml_sim::store::Store;
use serde_json::json;

use crate::out;

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
        let outcome = match (remove, module.as_str()) {
            (true, "nvidia_drm") => store.update(|m| m.nvidia_drm_refs == 0),
            (true, "nvidia") => {
                let busy = store.read().is_ok_and(|m| {
                    (0..m.gpus.len()).any(|index| !store.users(&m, index).none()) || m.nvidia_drm_refs > 0
                });
                store.update(|m| {
                    if !busy {
                        m.reload();
                        m.driver_loaded = false;
                    }
                    !busy
                })
            }
            (false, "nvidia") => store.update(|m| {
                m.driver_loaded = true;
                true
            }),
            _ => Ok(true),
        };
        let done = outcome.unwrap_or(false);
        store.log_event(name, json!({"module": module, "remove": remove, "done": done}));
        if !done {
            out::error(format!("{name}: FATAL: Module {module} is in use."));
            worst = 1;
        }
    }
    worst
}
