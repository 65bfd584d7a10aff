//! `sysctl`, for hosts that have none.

use std::fs;
use std::path::PathBuf;

use crate::out;

/// Returns the file of a kernel setting; both dots and slashes separate.
pub fn file_of(key: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(key.replace('.', "/"))
}

/// Returns key and value of every line of a sysctl.d file.
pub fn settings(text: &str) -> Vec<(String, String)> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with(['#', ';']))
        .filter_map(|line| line.trim_start_matches('-').split_once('='))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect()
}

/// `sysctl [-n] [-w] KEY[=VALUE]…`, `sysctl -p [FILE]`.
pub fn run(arguments: &[String]) -> u8 {
    let bare = arguments.iter().any(|a| a == "-n");
    if let Some(at) = arguments.iter().position(|a| a == "-p" || a == "--load") {
        let path = arguments.get(at + 1).map_or("/etc/sysctl.conf", String::as_str);
        let Ok(text) = fs::read_to_string(path) else {
            out::error(format!("sysctl: cannot open \"{path}\": No such file or directory"));
            return 1;
        };
        return settings(&text).into_iter().map(|(key, value)| set(&key, &value)).max().unwrap_or(0);
    }
    let mut worst = 0;
    for item in arguments.iter().filter(|a| !a.starts_with('-')) {
        worst = worst.max(match item.split_once('=') {
            Some((key, value)) => set(key.trim(), value.trim()),
            None => show(item, bare),
        });
    }
    worst
}

fn set(key: &str, value: &str) -> u8 {
    let path = file_of(key);
    if !path.exists() {
        out::error(format!("sysctl: cannot stat {}: No such file or directory", path.display()));
        return 1;
    }
    match fs::write(&path, format!("{value}\n")) {
        Ok(()) => {
            out::line(format!("{key} = {value}"));
            0
        }
        Err(error) => {
            out::error(format!("sysctl: setting key \"{key}\": {error}"));
            1
        }
    }
}

fn show(key: &str, bare: bool) -> u8 {
    match fs::read_to_string(file_of(key)) {
        Ok(value) if bare => out::line(value.trim_end()),
        Ok(value) => out::line(format!("{key} = {}", value.trim_end())),
        Err(_) => {
            out::error(format!("sysctl: cannot stat {}: No such file or directory", file_of(key).display()));
            return 1;
        }
    }
    0
}
