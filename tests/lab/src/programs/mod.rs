//! The programs of a node in addition to the host's: replacements under the real names, all in one binary.

pub mod containers;
pub mod daemons;
pub mod grub;
pub mod kubelet;
pub mod modules;
pub mod mps;
pub mod nvidia_smi;
pub mod power;
pub mod simctl;
pub mod sudo;
pub mod sysctl;
pub mod systemctl;

use std::process::ExitCode;

use nvml_sim::fault::{Effect, Subject};
use nvml_sim::store::Store;

use crate::out;

/// Runs the program with this name, if the lab has one.
pub fn run(name: &str, arguments: &[String]) -> Option<ExitCode> {
    let program: fn(&Store, &[String]) -> u8 = match name {
        "nvidia-smi" => nvidia_smi::run,
        "docker" => |_, arguments| containers::docker(arguments),
        "dockerd" => containers::dockerd,
        "nvidia-ctk" => containers::ctk,
        "nv-fabricmanager" => |_, arguments| containers::fabric_manager(arguments),
        "dcgmi" => containers::dcgmi,
        "kubelet" => kubelet::run,
        "nvidia-persistenced" => |_, arguments| daemons::persistenced(arguments),
        "nvidia-cuda-mps-control" => |_, arguments| mps::run(arguments),
        "systemctl" => |_, arguments| systemctl::run(arguments),
        "systemd-run" => |_, arguments| systemctl::systemd_run(arguments),
        "reboot" => |store, arguments| power::reboot(store, arguments),
        "poweroff" | "halt" => |store, _| power::power_off(store),
        "shutdown" => power::shutdown,
        "update-grub" | "update-grub2" => |_, _| grub::update(&["-o".to_owned(), grub::CONFIG.to_owned()]),
        "grub-mkconfig" | "grub2-mkconfig" => |_, arguments| grub::update(arguments),
        "grubby" => |_, arguments| grub::grubby(arguments),
        "sysctl" => |_, arguments| sysctl::run(arguments),
        "gpusimctl" => simctl::run,
        "modprobe" => |store, arguments| modules::run("modprobe", store, arguments),
        "rmmod" => |store, arguments| modules::run("rmmod", store, arguments),
        "insmod" => |store, arguments| modules::run("insmod", store, arguments),
        "modinfo" => modules::info,
        "sudo" => |_, arguments| sudo::run(arguments),
        _ => return None,
    };
    let store = Store::of_this_process();
    if let Some(effect) = store.fault(Subject::Program { name, args: &arguments.join(" ") }) {
        if let Effect::Exit { code, message } = &effect {
            if !message.is_empty() {
                out::error(message);
            }
            return Some(ExitCode::from(*code as u8));
        }
        if nvml_sim::suffer(&store, &effect, None).is_some() {
            return Some(ExitCode::SUCCESS);
        }
    }
    Some(ExitCode::from(program(&store, arguments)))
}
