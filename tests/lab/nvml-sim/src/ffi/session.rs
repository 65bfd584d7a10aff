//! A process' session with the library, and the steps of every call.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use serde_json::Value;

use super::Answer;
use super::handles::{self, Target};
use crate::fault::{Effect, Subject};
use crate::holders;
use crate::state::{Gpu, Machine};
use crate::store::Store;
use crate::transitions::{Users, code};

struct Session {
    store: Store,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// How many `nvmlInit` calls are open.
    count: u32,
    files: Vec<File>,
    /// GPUs that were drained when the session began, which it does not see.
    hidden: Vec<usize>,
}

static SESSION: OnceLock<Session> = OnceLock::new();

fn session() -> &'static Session {
    SESSION.get_or_init(|| Session { store: Store::of_this_process(), open: Mutex::default() })
}

pub(super) fn store() -> &'static Store {
    &session().store
}

/// What a body may read.
pub(super) struct Call<'a> {
    pub(super) machine: &'a Machine,
    pub(super) index: usize,
    pub(super) gpu: &'a Gpu,
    pub(super) target: Target,
}

impl Call<'_> {
    /// Refuses a MIG device if only a whole GPU makes sense.
    pub(super) fn whole(&self) -> Answer {
        if matches!(self.target, Target::Gpu(_)) { Ok(()) } else { Err(code::INVALID_ARGUMENT) }
    }

    pub(super) fn users(&self) -> Users {
        store().users(self.machine, self.index)
    }
}

pub(super) fn init(name: &'static str) -> u32 {
    if let Some(done) = meet_fault(name, None) {
        return done;
    }
    let session = session();
    let mut open = session.open.lock().unwrap_or_else(PoisonError::into_inner);
    if open.count == 0 {
        let Ok(machine) = session.store.read() else { return code::DRIVER_NOT_LOADED };
        let control = Path::new(&machine.device_dir).join("nvidiactl");
        if !machine.driver_loaded || !control.exists() {
            return code::DRIVER_NOT_LOADED;
        }
        if machine.library_version != machine.module_version {
            return code::LIB_RM_VERSION_MISMATCH;
        }
        wake_sleepers(&session.store, &machine);
        let mut files = Vec::new();
        for name in ["nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"] {
            files.extend(open_device(&Path::new(&machine.device_dir).join(name)));
        }
        for gpu in machine.gpus.iter().filter(|gpu| !gpu.lost && !gpu.draining) {
            files.extend(open_device(&holders::device_file(&machine.device_dir, gpu.minor)));
        }
        open.files = files;
        let drained = machine.gpus.iter().enumerate().filter(|(_, gpu)| gpu.draining);
        open.hidden = drained.map(|(index, _)| index).collect();
    }
    open.count += 1;
    code::SUCCESS
}

/// Returns the GPUs that this session sees, in its order.
pub(super) fn visible(machine: &Machine) -> Vec<usize> {
    let open = session().open.lock().unwrap_or_else(PoisonError::into_inner);
    (0..machine.gpus.len()).filter(|index| !open.hidden.contains(index)).collect()
}

pub(super) fn shutdown() -> u32 {
    let mut open = session().open.lock().unwrap_or_else(PoisonError::into_inner);
    match open.count {
        0 => code::UNINITIALIZED,
        1 => {
            *open = Open::default();
            code::SUCCESS
        }
        _ => {
            open.count -= 1;
            code::SUCCESS
        }
    }
}

fn open_device(path: &Path) -> Option<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
        .or_else(|_| File::open(path))
        .ok()
}

/// Resets the settings of a device that no process holds open and no persistence keeps initialised.
fn wake_sleepers(store: &Store, machine: &Machine) {
    if !is_root() {
        return;
    }
    let forgetful = |gpu: &Gpu| {
        let mut woken = gpu.clone();
        woken.wake();
        // One that has nothing to forget need not be written.
        woken.initialisations = gpu.initialisations;
        woken != *gpu
    };
    let asleep: Vec<usize> = (0..machine.gpus.len())
        .filter(|index| machine.gpus.get(*index).is_some_and(forgetful))
        .filter(|index| store.users(machine, *index).none())
        .collect();
    if !asleep.is_empty() {
        let _ = store.update(|machine| {
            for index in &asleep {
                if let Some(gpu) = machine.gpus.get_mut(*index) {
                    gpu.wake();
                }
            }
        });
    }
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn initialised() -> Result<Arc<Machine>, u32> {
    let session = session();
    if session.open.lock().unwrap_or_else(PoisonError::into_inner).count == 0 {
        return Err(code::UNINITIALIZED);
    }
    session.store.read().map_err(|_| code::UNKNOWN)
}

fn to_code(answer: Answer) -> u32 {
    match answer {
        Ok(()) => code::SUCCESS,
        Err(code) => code,
    }
}

/// A getter without a device.
pub(super) fn ask(name: &'static str, body: impl FnOnce(&Machine) -> Answer) -> u32 {
    let machine = match initialised() {
        Ok(machine) => machine,
        Err(code) => return code,
    };
    meet_fault(name, None).unwrap_or_else(|| to_code(body(&machine)))
}

/// A getter of a device.
pub(super) fn read(name: &'static str, device: nvmlDevice_t, body: impl FnOnce(&Call<'_>) -> Answer) -> u32 {
    to_code(initialised().and_then(|machine| {
        let target = handles::device(&machine, device)?;
        let index = target.gpu();
        if let Some(code) = meet_fault(name, Some(index as u32)) {
            return if code == code::SUCCESS { Ok(()) } else { Err(code) };
        }
        // Read again, because the fault may have changed the state.
        let machine = initialised()?;
        let gpu = machine.gpus.get(index).ok_or(code::INVALID_ARGUMENT)?;
        if gpu.lost {
            return Err(code::GPU_IS_LOST);
        }
        body(&Call { machine: &machine, index, gpu, target })
    }))
}

/// A setter of a device, for root only and always logged.
///
/// `body` runs under the state's lock; the users of the device, except for this process, were read just before.
pub(super) fn change(
    name: &'static str,
    device: nvmlDevice_t,
    args: Value,
    body: impl FnOnce(&mut Gpu, &Context) -> Answer,
) -> u32 {
    let mut index = None;
    let code = to_code(initialised().and_then(|machine| {
        let target = handles::device(&machine, device)?;
        index = Some(target.gpu());
        change_gpu(name, &machine, target.gpu(), body)
    }));
    store().log_setter(name, index.map(|index| index as u32), args, code);
    code
}

/// A setter whose handle is a GPU or compute instance.
pub(super) fn change_at(
    name: &'static str,
    index: Option<usize>,
    args: Value,
    body: impl FnOnce(&mut Gpu, &Context) -> Answer,
) -> u32 {
    let code = to_code(initialised().and_then(|machine| {
        let index = index.filter(|i| *i < machine.gpus.len()).ok_or(code::INVALID_ARGUMENT)?;
        change_gpu(name, &machine, index, body)
    }));
    store().log_setter(name, index.map(|index| index as u32), args, code);
    code
}

/// A setter of the whole machine.
pub(super) fn change_machine(
    name: &'static str,
    args: Value,
    body: impl FnOnce(&mut Machine) -> Answer,
) -> u32 {
    let code = to_code(initialised().and_then(|_| {
        if let Some(code) = meet_fault(name, None) {
            return if code == code::SUCCESS { Ok(()) } else { Err(code) };
        }
        if !is_root() {
            return Err(code::NO_PERMISSION);
        }
        store().update(body).unwrap_or(Err(code::UNKNOWN))
    }));
    store().log_setter(name, None, args, code);
    code
}

/// What a setter's body gets in addition to its GPU.
pub(super) struct Context {
    pub(super) users: Users,
    pub(super) drm_refs: u32,
    pub(super) passthrough: bool,
}

fn change_gpu(
    name: &'static str,
    machine: &Machine,
    index: usize,
    body: impl FnOnce(&mut Gpu, &Context) -> Answer,
) -> Answer {
    if let Some(code) = meet_fault(name, Some(index as u32)) {
        return if code == code::SUCCESS { Ok(()) } else { Err(code) };
    }
    if !is_root() {
        return Err(code::NO_PERMISSION);
    }
    let context = Context {
        users: store().users(machine, index),
        drm_refs: machine.nvidia_drm_refs,
        passthrough: machine.passthrough,
    };
    store()
        .update(|machine| {
            let gpu = machine.gpus.get_mut(index).ok_or(code::INVALID_ARGUMENT)?;
            if gpu.lost {
                return Err(code::GPU_IS_LOST);
            }
            body(gpu, &context)
        })
        .unwrap_or(Err(code::UNKNOWN))
}

/// Applies the fault that is due at this call; `None` if the call continues.
fn meet_fault(name: &'static str, gpu: Option<u32>) -> Option<u32> {
    let effect = store().fault(Subject::Function { name, gpu })?;
    suffer(store(), &effect, gpu)
}

/// Applies an effect to this process; `None` if the call continues normally.
pub fn suffer(store: &Store, effect: &Effect, gpu: Option<u32>) -> Option<u32> {
    match effect {
        Effect::Return(code) => Some(*code),
        Effect::Lie => Some(code::SUCCESS),
        Effect::DelayMs(delay) => {
            std::thread::sleep(Duration::from_millis(*delay));
            None
        }
        Effect::Hang => hang(),
        Effect::Segv => {
            // SAFETY: plain libc calls; ending the process is the point.
            unsafe {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                libc::raise(libc::SIGSEGV);
            }
            hang()
        }
        Effect::GpuLost => {
            let index = gpu? as usize;
            let _ = store.update(|machine| {
                if let Some(gpu) = machine.gpus.get_mut(index) {
                    gpu.lost = true;
                }
            });
            Some(code::GPU_IS_LOST)
        }
        Effect::Vanish => {
            store.end_node("vanish");
            hang()
        }
        Effect::Freeze => {
            store.end_node("freeze");
            hang()
        }
        Effect::Kill | Effect::KillParent => {
            store.log_event("kill", serde_json::json!({"parent": *effect == Effect::KillParent}));
            if *effect == Effect::KillParent
                && let Some(parent) = rustix::process::getppid().filter(|parent| !parent.is_init())
            {
                let _ = rustix::process::kill_process(parent, rustix::process::Signal::KILL);
            }
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            hang()
        }
        Effect::Cut(seconds) => {
            store.order("cut", &seconds.to_string());
            // The call continues while the server is stopped, as if a cable was pulled.
            std::thread::sleep(Duration::from_millis(100));
            None
        }
        Effect::Job(gpu) => {
            // Through the program, because the process must outlive this one.
            control(&["client", "add", &gpu.to_string()]);
            store.log_event("job", serde_json::json!({"gpu": gpu}));
            None
        }
        Effect::Xid(code) => {
            control(&["xid", &gpu.unwrap_or(0).to_string(), &code.to_string()]);
            None
        }
        Effect::PowerCut => {
            store.order("power-cut", "");
            hang()
        }
        _ => None,
    }
}

/// Runs `gpusimctl`.
fn control(arguments: &[&str]) {
    let _ = std::process::Command::new("/usr/bin/gpusimctl")
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .status();
}

/// Waits forever and ignores every signal but SIGKILL, like a call that is stuck in the kernel.
fn hang() -> ! {
    // SAFETY: the set is filled before it is used.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
