//! `reboot`, `shutdown`, `poweroff`: they send an order to the node's process 1.

use nvml_sim::store::Store;
use rustix::process::{Pid, Signal};
use serde_json::json;

use crate::out;

pub fn reboot(store: &Store, arguments: &[String]) -> u8 {
    tell(store, "reboot", arguments, Signal::INT)
}

pub fn power_off(store: &Store) -> u8 {
    tell(store, "power off", &[], Signal::TERM)
}

fn tell(store: &Store, what: &str, arguments: &[String], signal: Signal) -> u8 {
    store.log_event(what, json!({"args": arguments}));
    match rustix::process::kill_process(Pid::INIT, signal) {
        Ok(()) => 0,
        Err(error) => {
            out::error(format!("Call to Reboot failed: {error}"));
            1
        }
    }
}

/// `shutdown [-r|-h|-P|-c] [TIME]`: at once, or in a number of minutes.
pub fn shutdown(store: &Store, arguments: &[String]) -> u8 {
    let restart = arguments.iter().any(|a| a == "-r" || a == "--reboot");
    if arguments.iter().any(|a| a == "-c") {
        return 0;
    }
    let time = arguments.iter().find(|a| !a.starts_with('-')).map_or("+1", String::as_str);
    let minutes = match time {
        "now" => 0,
        text => match text.trim_start_matches('+').parse::<u64>() {
            Ok(minutes) => minutes,
            Err(_) => {
                out::error(format!("Failed to parse time specification: {text}"));
                return 1;
            }
        },
    };
    let (program, word) = if restart { ("reboot", "reboot") } else { ("poweroff", "poweroff") };
    if minutes == 0 {
        return if restart { reboot(store, arguments) } else { power_off(store) };
    }
    out::error(format!("Shutdown scheduled in {minutes} min, use 'shutdown -c' to cancel. ({word})"));
    use std::os::unix::process::CommandExt as _;
    let later = std::process::Command::new("/bin/sh")
        .args(["-c", &format!("sleep {}; exec {program}", minutes * 60)])
        .stdin(std::process::Stdio::null())
        .process_group(0)
        .spawn();
    u8::from(later.is_err())
}
