//! Long-running processes of a node: the persistence daemon, and services that only exist and hold GPUs.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nvml_sim::holders::device_file;
use nvml_sim::store::Store;

use crate::out;

const PERSISTENCE_DIR: &str = "/run/nvidia-persistenced";

/// Starts this binary again in the background, in its own session and under a hidden name.
pub fn detach(arguments: &[&str]) -> std::io::Result<u32> {
    let child = Command::new("/proc/self/exe")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .current_dir("/")
        .spawn()?;
    Ok(child.id())
}

/// `nvidia-persistenced`: starts the daemon and waits until it holds the devices.
pub fn persistenced(arguments: &[String]) -> u8 {
    if arguments.iter().any(|a| a == "--version") {
        out::line(format!("nvidia-persistenced:  version {}", nvml_sim::state::DRIVER_VERSION));
        return 0;
    }
    let pid_file = Path::new(PERSISTENCE_DIR).join("nvidia-persistenced.pid");
    let running = fs::read_to_string(&pid_file)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .is_some_and(nvml_sim::holders::alive);
    if running {
        out::error("nvidia-persistenced failed to initialize. Check syslog for more details.");
        return 1;
    }
    if !Path::new("/dev/nvidiactl").exists() {
        out::error("nvidia-persistenced failed to initialize. Check syslog for more details.");
        return 1;
    }
    if let Err(error) = fs::create_dir_all(PERSISTENCE_DIR) {
        out::error(format!("nvidia-persistenced: cannot make {PERSISTENCE_DIR}: {error}"));
        return 1;
    }
    let _ = fs::remove_file(Path::new(PERSISTENCE_DIR).join("socket"));
    if detach(&["__daemon", "nvidia-persistenced"]).is_err() {
        return 1;
    }
    let limit = Instant::now() + Duration::from_secs(5);
    while Instant::now() < limit {
        if Path::new(PERSISTENCE_DIR).join("socket").exists() {
            return 0;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    1
}

/// The background part of a service.
pub fn daemon(name: &str) -> u8 {
    let _ = rustix::process::setsid();
    let shown = match name {
        "nvidia-dcgm" => "nv-hostengine",
        "nvidia-fabricmanager" => "nv-fabricmanager",
        "ssh" => "sshd",
        other => other,
    };
    let _ = rustix::thread::set_name(&std::ffi::CString::new(shown).unwrap_or_default());
    let store = Store::of_this_process();
    match name {
        "nvidia-persistenced" => hold_persistence(&store),
        "cdi-refresh" => {
            let _ = fs::create_dir_all("/var/run/cdi");
            store.log_event("cdi-refresh", serde_json::Value::Null);
            u8::from(
                crate::node::files::write(
                    Path::new("/var/run/cdi/nvidia.yaml"),
                    &super::containers::specification(&store),
                )
                .is_err(),
            )
        }
        "nvidia-dcgm" | "dcgm-exporter" | "nvsm" => {
            let _files = open_devices(&store, true);
            sleep_for_ever()
        }
        "nvidia-fabricmanager" => {
            let _files = open_devices(&store, false);
            sleep_for_ever()
        }
        _ => sleep_for_ever(),
    }
}

fn sleep_for_ever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn open_devices(store: &Store, gpus: bool) -> Vec<File> {
    let mut files: Vec<File> =
        ["/dev/nvidiactl", "/dev/nvidia-uvm"].iter().filter_map(|p| File::open(p).ok()).collect();
    if let Ok(machine) = store.read()
        && gpus
    {
        files.extend(
            machine
                .gpus
                .iter()
                .filter_map(|gpu| File::open(device_file(&machine.device_dir, gpu.minor)).ok()),
        );
    }
    files
}

/// Keeps every GPU open with its persistence flag on, until told otherwise for a GPU.
fn hold_persistence(store: &Store) -> u8 {
    let Ok(machine) = store.read() else { return 1 };
    let open = |minor: u32| File::open(device_file(&machine.device_dir, minor)).ok();
    let mut held: Vec<Option<File>> = machine.gpus.iter().map(|gpu| open(gpu.minor)).collect();
    let _control = File::open("/dev/nvidiactl");
    let _ = store.update(|machine| {
        for gpu in machine.gpus.iter_mut().filter(|gpu| !gpu.lost) {
            gpu.wake();
            gpu.persistence = true;
        }
    });
    let pid_file = Path::new(PERSISTENCE_DIR).join("nvidia-persistenced.pid");
    let _ = fs::write(pid_file, format!("{}\n", std::process::id()));
    // A daemon that ends normally switches persistence off again.
    crate::sys::block(&[libc::SIGTERM]);
    std::thread::spawn(|| {
        crate::sys::wait_signal(&[libc::SIGTERM]);
        let _ = Store::of_this_process().update(|machine| {
            for gpu in &mut machine.gpus {
                gpu.persistence = false;
            }
        });
        let _ = fs::remove_dir_all(PERSISTENCE_DIR);
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    });
    let Ok(listener) = UnixListener::bind(Path::new(PERSISTENCE_DIR).join("socket")) else { return 1 };
    for mut stream in listener.incoming().flatten() {
        let mut line = String::new();
        let Ok(copy) = stream.try_clone() else { continue };
        let _ = BufReader::new(copy).read_line(&mut line);
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["set", minor, mode] = words.as_slice()
            && let Some(index) = machine.gpus.iter().position(|gpu| gpu.minor.to_string() == *minor)
            && let Some(slot) = held.get_mut(index)
            && let Some(gpu) = machine.gpus.get(index)
        {
            // The flag is set by the caller, which holds the state's lock.
            *slot = if *mode == "1" { open(gpu.minor) } else { None };
        }
        let _ = stream.write_all(b"ok\n");
    }
    0
}

/// Runs a process that holds one GPU's device and does nothing else.
pub fn client(minor: &str) -> u8 {
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"python");
    let _files: Vec<File> =
        ["/dev/nvidiactl".to_owned(), "/dev/nvidia-uvm".to_owned(), format!("/dev/nvidia{minor}")]
            .iter()
            .filter_map(|path| File::open(path).ok())
            .collect();
    sleep_for_ever()
}
