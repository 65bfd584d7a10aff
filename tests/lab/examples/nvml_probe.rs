//! A small NVML client for the lab's own tests: loads `libnvidia-ml.so.1` like any program, and makes the calls in
//! its arguments.
//!
//! Each argument is one call, answered with a line `CODE VALUE…`: `ecc:0`, `set_ecc:0:1`, `mig:0`, `set_mig:0:1`,
//! `create:0:9:4`, `compute:0:2:2`, `instances:0`, `power:0`, `set_power:0:500000`, `uuid:0`, `count`, `sleep:MS`.
#![expect(unsafe_code, reason = "NVML is a C library")]
#![expect(clippy::print_stdout, reason = "the answers")]

use std::ffi::c_char;

use nvml_wrapper_sys::bindings::{NvmlLib, nvmlGpuInstancePlacement_st};

fn main() {
    // SAFETY: every call follows NVML's documentation; all pointers are to live locals.
    unsafe {
        let library = match NvmlLib::new("libnvidia-ml.so.1") {
            Ok(library) => library,
            Err(error) => {
                println!("12 {error}");
                return;
            }
        };
        let init = library.nvmlInit_v2();
        println!("{init} init");
        if init != 0 {
            return;
        }
        for argument in std::env::args().skip(1) {
            println!("{}", call(&library, &argument));
        }
        library.nvmlShutdown();
    }
}

unsafe fn call(library: &NvmlLib, argument: &str) -> String {
    let words: Vec<&str> = argument.split(':').collect();
    let number = |at: usize| words.get(at).and_then(|w| w.parse::<u32>().ok()).unwrap_or(0);
    // SAFETY: as in `main`.
    unsafe {
        let mut device = std::ptr::null_mut();
        let found = library.nvmlDeviceGetHandleByIndex_v2(
            if words.first() == Some(&"sleep") { 0 } else { number(1) },
            &raw mut device,
        );
        if found != 0 {
            return format!("{found} handle");
        }
        let (mut a, mut b) = (0, 0);
        match words.first().copied().unwrap_or("") {
            "count" => {
                let code = library.nvmlDeviceGetCount_v2(&raw mut a);
                format!("{code} {a}")
            }
            "ecc" => {
                let code = library.nvmlDeviceGetEccMode(device, &raw mut a, &raw mut b);
                format!("{code} {a} {b}")
            }
            "set_ecc" => format!("{}", library.nvmlDeviceSetEccMode(device, number(2))),
            "mig" => {
                let code = library.nvmlDeviceGetMigMode(device, &raw mut a, &raw mut b);
                format!("{code} {a} {b}")
            }
            "set_mig" => {
                let code = library.nvmlDeviceSetMigMode(device, number(2), &raw mut a);
                format!("{code} {a}")
            }
            "create" => {
                let mut instance = std::ptr::null_mut();
                let size = if number(2) == 9 { 4 } else { 1 };
                let place = nvmlGpuInstancePlacement_st { start: number(3), size };
                let code = library.nvmlDeviceCreateGpuInstanceWithPlacement(
                    device,
                    number(2),
                    &raw const place,
                    &raw mut instance,
                );
                format!("{code}")
            }
            "compute" => {
                let (mut instance, mut compute) = (std::ptr::null_mut(), std::ptr::null_mut());
                let code = library.nvmlDeviceGetGpuInstanceById(device, number(2), &raw mut instance);
                if code != 0 {
                    return format!("{code} instance");
                }
                let code =
                    library.nvmlGpuInstanceCreateComputeInstance(instance, number(3), &raw mut compute);
                format!("{code}")
            }
            "instances" => {
                let mut list = [std::ptr::null_mut(); 8];
                let code =
                    library.nvmlDeviceGetGpuInstances(device, number(2), list.as_mut_ptr(), &raw mut a);
                format!("{code} {a}")
            }
            "power" => {
                let code = library.nvmlDeviceGetPowerManagementLimit(device, &raw mut a);
                format!("{code} {a}")
            }
            "set_power" => format!("{}", library.nvmlDeviceSetPowerManagementLimit(device, number(2))),
            "persistence" => format!("{}", library.nvmlDeviceSetPersistenceMode(device, number(2))),
            "uuid" => {
                let mut text: [c_char; 96] = [0; 96];
                let code = library.nvmlDeviceGetUUID(device, text.as_mut_ptr(), 96);
                format!("{code} {}", std::ffi::CStr::from_ptr(text.as_ptr()).to_string_lossy())
            }
            "sleep" => {
                std::thread::sleep(std::time::Duration::from_millis(
                    words.get(1).and_then(|w| w.parse().ok()).unwrap_or(0),
                ));
                "0".to_owned()
            }
            other => format!("2 unknown call {other}"),
        }
    }
}
