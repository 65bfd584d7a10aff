//! `persistence`: the driver stays loaded for every GPU.

use gpufleet_protocol::nvml::GpuReading;

use super::{
    Found, Seen,
    gpus::{Says, each, lacks},
};

pub fn check(seen: &Seen) -> Found {
    each(seen, of)
}

fn of(gpu: &GpuReading) -> Says {
    match gpu.persistence {
        Ok(true) => Says::Fine,
        Ok(false) => {
            Says::Wrong("persistence is off; next step: declare `gpu_persistence: {mode: daemon}`".to_owned())
        }
        Err(code) if lacks(code) => Says::Absent,
        Err(code) => Says::Unreadable(format!("persistence: {code}")),
    }
}
