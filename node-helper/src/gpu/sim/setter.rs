//! What a simulated GPU makes of the driver's setters.

use super::*;

impl SimGpu {
    pub(super) fn set(&mut self, setting: &Setting, held: bool) -> Result<SetAnswer, Code> {
        match *setting {
            Setting::Persistence(on) => self.persistence = on,
            Setting::Ecc(on) if self.has_ecc => self.ecc.pending = on,
            Setting::Ecc(_) => return Err(Code::NOT_SUPPORTED),
            Setting::MigMode(on) => {
                self.mig.pending = on;
                if self.mig.current != on {
                    let busy = self.client.is_some()
                        || !self.instances.is_empty()
                        || !self.hopper && (held || self.persistence);
                    if busy {
                        return Ok(SetAnswer::MigMode { activation: Code::IN_USE });
                    }
                    if !self.hopper {
                        self.reset();
                    }
                    self.mig.current = on;
                    self.accounting &= !on;
                }
                return Ok(SetAnswer::MigMode { activation: Code::SUCCESS });
            }
            Setting::PowerLimit { milliwatts } if (200_000..=700_000).contains(&milliwatts) => {
                self.power_mw = milliwatts
            }
            Setting::ModulePowerLimit { milliwatts } if (400_000..=1_000_000).contains(&milliwatts) => {
                self.module_mw = Some(self.module_mw.map(|_| milliwatts).ok_or(Code::NOT_SUPPORTED)?);
            }
            Setting::PowerLimit { .. } | Setting::ModulePowerLimit { .. } => {
                return Err(Code::INVALID_ARGUMENT);
            }
            Setting::LockGraphics { low_mhz, high_mhz } => self.graphics = Some((low_mhz, high_mhz)),
            Setting::UnlockGraphics => self.graphics = None,
            Setting::LockMemory { .. } if self.hopper => return Err(Code::NOT_SUPPORTED),
            Setting::LockMemory { low_mhz, high_mhz } => self.memory = Some((low_mhz, high_mhz)),
            Setting::UnlockMemory => self.memory = None,
            Setting::ComputeMode(mode) => self.compute_mode = mode,
            Setting::CreateGpuInstance { profile_id, placement } => {
                if !self.mig.current {
                    return Err(Code::NOT_SUPPORTED);
                }
                let legal = self
                    .profiles
                    .iter()
                    .any(|p| p.id == profile_id && p.placements.as_ref().unwrap().contains(&placement));
                if !legal {
                    return Err(Code::INVALID_ARGUMENT);
                }
                let end = |place: Placement| place.start + place.size;
                let overlaps = |other: &GpuInstance| {
                    other.placement.start < end(placement) && placement.start < end(other.placement)
                };
                if self.instances.iter().any(overlaps) {
                    return Err(Code::INSUFFICIENT_RESOURCES);
                }
                return Ok(SetAnswer::Created { id: self.add(profile_id, placement) });
            }
            Setting::CreateComputeInstance { gpu_instance, part } => {
                let at = self.instances.iter().position(|i| i.id == gpu_instance).ok_or(Code::NOT_FOUND)?;
                let slices = self.slices(self.instances[at].profile_id);
                let computes = &mut self.instances[at].compute_instances;
                let (start, size) = part.map_or((0, slices), |part| (part.start, part.size));
                if size > slices || start % size.next_power_of_two() != 0 || start + size > slices {
                    return Err(Code::INVALID_ARGUMENT);
                }
                let overlaps = |other: &ComputeInstance| {
                    other.start < start + size && start < other.start + other.slices
                };
                if computes.iter().any(overlaps) {
                    return Err(Code::INSUFFICIENT_RESOURCES);
                }
                let id = (0..).find(|id| computes.iter().all(|compute| compute.id != *id)).unwrap();
                self.made += 1;
                let uuid = Some(format!("MIG-{}-{gpu_instance}-{id}-{}", self.index, self.made));
                computes.push(ComputeInstance { id, profile_id: size, start, slices: size, uuid });
                computes.sort_by_key(|compute| compute.id);
                return Ok(SetAnswer::Created { id });
            }
            Setting::DestroyComputeInstance { gpu_instance, compute_instance } => {
                if self.client.is_some() {
                    return Err(Code::IN_USE);
                }
                let at = self.instances.iter().position(|i| i.id == gpu_instance).ok_or(Code::NOT_FOUND)?;
                self.instances[at].compute_instances.retain(|compute| compute.id != compute_instance);
            }
            Setting::DestroyGpuInstance { gpu_instance } => {
                let at = self.instances.iter().position(|i| i.id == gpu_instance).ok_or(Code::NOT_FOUND)?;
                if !self.instances[at].compute_instances.is_empty() {
                    return Err(Code::IN_USE);
                }
                self.instances.remove(at);
            }
            Setting::Accounting(_) if self.mig.current => return Err(Code::NOT_SUPPORTED),
            Setting::Accounting(on) => self.accounting = on,
            Setting::ConfidentialReady(_) => {}
        }
        Ok(SetAnswer::Done)
    }
}
