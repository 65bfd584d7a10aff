//! `nvidia-cuda-mps-control`: the daemon with its pipe directory, and the client that reads commands from standard input.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nvml_sim::holders;

use super::daemons::detach;
use crate::out;

fn pipe_dir() -> PathBuf {
    std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").map_or_else(|| "/tmp/nvidia-mps".into(), PathBuf::from)
}

fn log_dir() -> PathBuf {
    std::env::var_os("CUDA_MPS_LOG_DIRECTORY").map_or_else(|| "/var/log/nvidia-mps".into(), PathBuf::from)
}

fn daemon_pid(dir: &Path) -> Option<u32> {
    let text = fs::read_to_string(dir.join("nvidia-cuda-mps-control.pid")).ok()?;
    text.trim().parse().ok().filter(|pid| holders::alive(*pid))
}

/// `-d` starts the daemon, `-f` runs it in the foreground, anything else passes standard input to it.
pub fn run(arguments: &[String]) -> u8 {
    let dir = pipe_dir();
    let foreground = arguments.iter().any(|a| a == "-f");
    if foreground || arguments.iter().any(|a| a == "-d") {
        if daemon_pid(&dir).is_some() {
            out::line(format!(
                "An instance of this daemon is already running\nNvidia MPS control daemon has pipe directory {}",
                dir.display()
            ));
            return 1;
        }
        if !Path::new("/dev/nvidiactl").exists() {
            out::error("Cannot find the NVIDIA driver");
            return 1;
        }
        for path in [&dir, &log_dir()] {
            if let Err(error) = fs::create_dir_all(path) {
                out::error(format!("Failed to create {}: {error}", path.display()));
                return 1;
            }
        }
        let _ = fs::remove_file(dir.join("control"));
        if foreground {
            return serve();
        }
        if detach(&["__mps-control"]).is_err() {
            return 1;
        }
        let limit = Instant::now() + Duration::from_secs(5);
        while Instant::now() < limit {
            if dir.join("control").exists() {
                return 0;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        return 1;
    }
    client(&dir)
}

fn client(dir: &Path) -> u8 {
    if daemon_pid(dir).is_none() {
        out::line("Cannot find MPS control daemon process");
        return 1;
    }
    let mut code = 0;
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let Ok(mut stream) = UnixStream::connect(dir.join("control")) else {
            out::line("Cannot find MPS control daemon process");
            return 1;
        };
        let mut answer = String::new();
        let sent = stream
            .write_all(format!("{line}\n").as_bytes())
            .and_then(|()| stream.read_to_string(&mut answer).map(|_| ()));
        if sent.is_err() {
            code = 1;
        }
        if !answer.trim().is_empty() {
            out::line(answer.trim_end());
        }
    }
    code
}

/// The daemon's state: default thread percentage, pinned-memory limits by device, servers by user.
struct Control {
    percentage: f64,
    server_percentage: BTreeMap<u32, f64>,
    memory_limits: BTreeMap<String, String>,
    servers: Vec<u32>,
}

/// The daemon itself.
pub fn serve() -> u8 {
    let dir = pipe_dir();
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"nvidia-cuda-mps");
    let _ = fs::write(dir.join("nvidia-cuda-mps-control.pid"), format!("{}\n", std::process::id()));
    let _ = fs::write(log_dir().join("control.log"), "Start\n");
    let Ok(listener) = UnixListener::bind(dir.join("control")) else { return 1 };
    let mut control = Control {
        percentage: std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
            .ok()
            .and_then(|t| t.parse().ok())
            .unwrap_or(100.0),
        server_percentage: BTreeMap::new(),
        memory_limits: BTreeMap::new(),
        servers: Vec::new(),
    };
    for mut stream in listener.incoming().flatten() {
        let mut line = String::new();
        let Ok(copy) = stream.try_clone() else { continue };
        let _ = BufReader::new(copy).read_line(&mut line);
        let words: Vec<&str> = line.split_whitespace().collect();
        let done = matches!(words.first(), Some(&"quit"));
        let answer = if done { String::new() } else { control.answer(&words) };
        if done {
            for pid in control.servers.iter().filter_map(|pid| rustix::process::Pid::from_raw(*pid as i32)) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            for name in ["control", "nvidia-cuda-mps-control.pid"] {
                let _ = fs::remove_file(dir.join(name));
            }
            let _ = stream.write_all(b"");
            return 0;
        }
        let _ = stream.write_all(answer.as_bytes());
    }
    0
}

impl Control {
    fn answer(&mut self, words: &[&str]) -> String {
        self.servers.retain(|pid| holders::alive(*pid));
        let number = |text: &str| text.parse::<f64>().ok().filter(|n| *n > 0.0 && *n <= 100.0);
        match words {
            ["get_server_list"] => self.servers.iter().map(|pid| format!("{pid}\n")).collect(),
            ["get_default_active_thread_percentage"] => format!("{:.1}\n", self.percentage),
            ["set_default_active_thread_percentage", value] => match number(value) {
                Some(value) => {
                    self.percentage = value;
                    format!("{value:.1}\n")
                }
                None => "Invalid percentage\n".to_owned(),
            },
            ["get_active_thread_percentage", pid] => {
                match pid.parse().ok().filter(|pid| self.servers.contains(pid)) {
                    Some(pid) => {
                        format!("{:.1}\n", self.server_percentage.get(&pid).unwrap_or(&self.percentage))
                    }
                    None => "Server not found\n".to_owned(),
                }
            }
            ["set_active_thread_percentage", pid, value] => {
                match (pid.parse().ok().filter(|pid| self.servers.contains(pid)), number(value)) {
                    (Some(pid), Some(value)) => {
                        self.server_percentage.insert(pid, value);
                        format!("{value:.1}\n")
                    }
                    _ => "Server not found\n".to_owned(),
                }
            }
            ["set_default_device_pinned_mem_limit", device, limit] => {
                self.memory_limits.insert((*device).to_owned(), (*limit).to_owned());
                String::new()
            }
            ["get_default_device_pinned_mem_limit", device] => {
                format!("{}\n", self.memory_limits.get(*device).map_or("No limit", String::as_str))
            }
            ["start_server", "-uid", _] => match detach(&["__daemon", "nvidia-dcgm"]) {
                Ok(pid) => {
                    self.servers.push(pid);
                    // A server keeps the limits of its start.
                    self.server_percentage.insert(pid, self.percentage);
                    String::new()
                }
                Err(error) => format!("Failed to start server: {error}\n"),
            },
            ["shutdown_server", pid, ..] => {
                if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
                }
                String::new()
            }
            _ => format!("Unknown command {}\n", words.first().unwrap_or(&"")),
        }
    }
}
