//! How a machine changes: setters, GPU reset, driver reload, reboot. Pure, so every rule has a test.
//!
//! The users of devices are an argument ([`Users`]), because only the running system knows them. Rules that are not
//! proven on hardware take the cautious side: what may be lost is lost.

use crate::defect::Until;
use crate::model::Arch;
use crate::placement;
use crate::state::{ComputeInstance, Gpu, GpuInstance, Machine};

/// NVML return codes of transitions.
pub mod code {
    pub const SUCCESS: u32 = 0;
    pub const UNINITIALIZED: u32 = 1;
    pub const INVALID_ARGUMENT: u32 = 2;
    pub const NOT_SUPPORTED: u32 = 3;
    pub const NO_PERMISSION: u32 = 4;
    pub const NOT_FOUND: u32 = 6;
    pub const INSUFFICIENT_SIZE: u32 = 7;
    pub const DRIVER_NOT_LOADED: u32 = 9;
    pub const FUNCTION_NOT_FOUND: u32 = 13;
    pub const GPU_IS_LOST: u32 = 15;
    pub const RESET_REQUIRED: u32 = 16;
    pub const LIB_RM_VERSION_MISMATCH: u32 = 18;
    pub const IN_USE: u32 = 19;
    pub const INSUFFICIENT_RESOURCES: u32 = 23;
    pub const ARGUMENT_VERSION_MISMATCH: u32 = 25;
    pub const UNKNOWN: u32 = 999;
}

/// Lowest power limit of a simulated module of GPU and CPU, and highest, which is the default, in milliwatts.
pub const MODULE_MW: (u32, u32) = (400_000, 1_000_000);

/// The current users of one GPU, except for the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// Processes that hold `/dev/nvidiaN` open.
    pub open: Vec<u32>,
    /// Live processes of [`Gpu::clients`].
    pub computing: Vec<u32>,
}

impl Users {
    pub fn none(&self) -> bool {
        self.open.is_empty() && self.computing.is_empty()
    }
}

/// Why a reset was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResetRefused {
    #[error("in use by {}", pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))]
    InUse { pids: Vec<u32> },
    #[error("nvidia_drm is in use")]
    DisplayDriver,
    #[error("the GPU is not on the bus")]
    Lost,
}

impl Machine {
    /// Resets a GPU, as `nvidia-smi --gpu-reset` does.
    pub fn reset(&mut self, index: usize, users: &Users) -> Result<(), ResetRefused> {
        let drm = self.nvidia_drm_refs;
        let Some(gpu) = self.gpus.get_mut(index) else { return Err(ResetRefused::Lost) };
        if gpu.lost {
            return Err(ResetRefused::Lost);
        }
        if !users.none() {
            let mut pids: Vec<u32> = users.open.iter().chain(&users.computing).copied().collect();
            pids.sort_unstable();
            pids.dedup();
            return Err(ResetRefused::InUse { pids });
        }
        if gpu.spec().arch == Arch::Ampere && drm > 0 {
            return Err(ResetRefused::DisplayDriver);
        }
        gpu.apply_reset();
        Ok(())
    }

    /// Unloads and loads the driver module.
    pub fn reload(&mut self) {
        self.module_version = self.library_version.clone();
        self.confidential_ready = false;
        for gpu in &mut self.gpus {
            gpu.apply_reload();
        }
    }

    /// Restarts the machine. The units of the new boot run after this.
    pub fn reboot(&mut self, boot_id: String) {
        self.boot_id = boot_id;
        self.boots += 1;
        self.reload();
        for gpu in &mut self.gpus {
            gpu.lost = false;
            gpu.draining = false;
            gpu.clients.clear();
        }
    }
}

impl Gpu {
    fn apply_reset(&mut self) {
        self.ecc.current = self.ecc.pending;
        self.mig.current = self.mig.pending;
        self.instances.clear();
        self.initialisations += 1;
        self.locked_graphics_mhz = None;
        self.locked_memory_mhz = None;
        self.application_mhz = None;
        self.health.volatile_correctable = 0;
        self.health.volatile_uncorrectable = 0;
        if self.health.remap_pending {
            self.health.remap_pending = false;
            self.health.remapped_uncorrectable += 1;
        }
        if self.health.recovery_action == 1 {
            self.health.recovery_action = 0;
        }
        self.health.held_mib = 0;
        self.heal(Until::Reset);
        self.resets += 1;
    }

    fn apply_reload(&mut self) {
        let resets = self.resets;
        self.apply_reset();
        self.resets = resets;
        self.health.recovery_action = 0;
        self.heal(Until::Load);
        if self.spec().arch == Arch::Hopper {
            self.mig.current = false;
            self.mig.pending = false;
        }
        self.persistence = false;
        self.forget_settings();
    }

    /// Opens a device that nothing kept initialised: what the driver holds only in memory returns to its default.
    pub fn wake(&mut self) {
        if !self.persistence {
            self.forget_settings();
        }
    }

    fn forget_settings(&mut self) {
        self.initialisations += 1;
        self.power_limit_mw = self.spec().power_mw.2;
        self.module_limit_mw = self.module_limit_mw.map(|_| MODULE_MW.1);
        self.locked_graphics_mhz = None;
        self.locked_memory_mhz = None;
        self.application_mhz = None;
        self.compute_mode = 0;
        self.accounting = false;
    }

    /// Requests a MIG mode and returns NVML's activation status.
    ///
    /// On Ampere the mode becomes pending and the driver tries a reset; on Hopper and later it changes at once,
    /// without one.
    pub fn set_mig_mode(&mut self, enabled: bool, users: &Users, drm_refs: u32, passthrough: bool) -> u32 {
        self.mig.pending = enabled;
        if self.mig.current == enabled {
            return code::SUCCESS;
        }
        if !self.instances.is_empty() {
            return code::IN_USE;
        }
        match self.spec().arch {
            Arch::Ampere => {
                if passthrough {
                    return code::RESET_REQUIRED;
                }
                if !users.none() || drm_refs > 0 {
                    return code::IN_USE;
                }
                self.apply_reset();
            }
            Arch::Hopper => {
                if !users.computing.is_empty() {
                    return code::IN_USE;
                }
                self.mig.current = enabled;
                if enabled {
                    self.accounting = false;
                }
            }
        }
        code::SUCCESS
    }

    /// Creates a GPU instance at `start`, or at the driver's default place.
    pub fn create_instance(&mut self, profile_id: u32, start: Option<u32>) -> Result<u32, u32> {
        let model = self.spec();
        if !self.mig.current {
            return Err(code::NOT_SUPPORTED);
        }
        let profile = model.profile_by_id(profile_id).ok_or(code::INVALID_ARGUMENT)?;
        let start = match start {
            Some(start) if !profile.starts.contains(&start) => return Err(code::INVALID_ARGUMENT),
            Some(start) => start,
            None => placement::default_start(model, &self.instances, profile)
                .ok_or(code::INSUFFICIENT_RESOURCES)?,
        };
        if !placement::fits(model, &self.instances, profile, start) {
            return Err(code::INSUFFICIENT_RESOURCES);
        }
        let instance = placement::new_instance(profile, start);
        let id = instance.id;
        self.instances.push(instance);
        self.instances.sort_by_key(|instance| instance.id);
        Ok(id)
    }

    pub fn destroy_instance(&mut self, id: u32, users: &Users) -> Result<(), u32> {
        let instance = self.instance(id).ok_or(code::NOT_FOUND)?;
        if !instance.compute_instances.is_empty() || self.instance_busy(id, users) {
            return Err(code::IN_USE);
        }
        self.instances.retain(|instance| instance.id != id);
        Ok(())
    }

    /// Creates a compute instance by its profile index, at `start` or at the first free place.
    pub fn create_compute_instance(&mut self, gi: u32, profile: u32, start: Option<u32>) -> Result<u32, u32> {
        let slices = self.instance_slices(gi).ok_or(code::NOT_FOUND)?;
        let size = placement::compute_profile_slices(profile).ok_or(code::INVALID_ARGUMENT)?;
        if size > slices {
            return Err(code::NOT_SUPPORTED);
        }
        let instance = self.instances.iter_mut().find(|instance| instance.id == gi).ok_or(code::NOT_FOUND)?;
        let present = &mut instance.compute_instances;
        let start = match start {
            Some(start) if !placement::compute_starts(slices, size).contains(&start) => {
                return Err(code::INVALID_ARGUMENT);
            }
            Some(start) if placement::compute_fits(slices, present, size, start) => start,
            Some(_) => return Err(code::INSUFFICIENT_RESOURCES),
            None => {
                placement::default_compute_start(slices, present, size).ok_or(code::INSUFFICIENT_RESOURCES)?
            }
        };
        let id = (0..).find(|id| present.iter().all(|ci| ci.id != *id)).unwrap_or(0);
        present.push(ComputeInstance { id, profile_id: profile, start, size });
        present.sort_by_key(|ci| ci.id);
        Ok(id)
    }

    pub fn destroy_compute_instance(&mut self, gi: u32, ci: u32, users: &Users) -> Result<(), u32> {
        if self.instance_busy(gi, users) {
            return Err(code::IN_USE);
        }
        let instance = self.instances.iter_mut().find(|instance| instance.id == gi).ok_or(code::NOT_FOUND)?;
        let before = instance.compute_instances.len();
        instance.compute_instances.retain(|compute| compute.id != ci);
        if instance.compute_instances.len() == before { Err(code::NOT_FOUND) } else { Ok(()) }
    }

    /// Returns the compute slices of an existing GPU instance.
    pub fn instance_slices(&self, id: u32) -> Option<u32> {
        let instance = self.instance(id)?;
        Some(self.spec().profile_by_id(instance.profile_id)?.slices)
    }

    fn instance_busy(&self, id: u32, users: &Users) -> bool {
        self.clients
            .iter()
            .any(|client| client.gpu_instance == Some(id) && users.computing.contains(&client.pid))
    }

    /// Requests an ECC mode, which becomes current with the next reset or reboot.
    pub fn set_ecc(&mut self, enabled: bool) {
        self.ecc.pending = enabled;
    }

    pub fn set_power_limit(&mut self, limit_mw: u32) -> u32 {
        let (low, high, _) = self.spec().power_mw;
        if limit_mw < low || limit_mw > high {
            return code::INVALID_ARGUMENT;
        }
        self.power_limit_mw = limit_mw;
        code::SUCCESS
    }

    /// Locks the graphics clock between two values in MHz.
    pub fn lock_graphics(&mut self, low: u32, high: u32) -> u32 {
        // 0 and 1 are NVML's symbolic limits (unlimited, thermal design power); mixing them with numbers is refused.
        let symbolic = |value: u32| value <= 1;
        if low > high || symbolic(low) != symbolic(high) {
            return code::INVALID_ARGUMENT;
        }
        self.locked_graphics_mhz = Some((low, high));
        code::SUCCESS
    }

    pub fn lock_memory(&mut self, low: u32, high: u32) -> u32 {
        if self.spec().arch == Arch::Hopper {
            return code::NOT_SUPPORTED;
        }
        if low > high {
            return code::INVALID_ARGUMENT;
        }
        self.locked_memory_mhz = Some((low, high));
        code::SUCCESS
    }

    /// Returns the instances as (profile id, start), to compare layouts.
    pub fn layout(&self) -> Vec<(u32, u32)> {
        self.instances.iter().map(|instance: &GpuInstance| (instance.profile_id, instance.start)).collect()
    }
}

#[cfg(test)]
#[path = "transitions_tests.rs"]
mod tests;
