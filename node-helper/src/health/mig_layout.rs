//! `mig_layout`: no GPU has a pending MIG mode.

use gpufleet_protocol::nvml::GpuReading;

use super::{
    Found, Seen,
    gpus::{Says, each, lacks, on},
};

pub fn check(seen: &Seen) -> Found {
    each(seen, of)
}

fn of(gpu: &GpuReading) -> Says {
    match gpu.mig {
        Ok(mode) if mode.current == mode.pending => Says::Fine,
        Ok(mode) => Says::Wrong(format!(
            "MIG mode is {} and will be {} after the next reset; next step: declare with `gpu_mig` which of them is meant, \
             before anything resets the GPU",
            on(mode.current),
            on(mode.pending)
        )),
        Err(code) if lacks(code) => Says::Absent,
        Err(code) => Says::Unreadable(format!("MIG mode: {code}")),
    }
}
