//! Whether clocks that were just locked obey: no driver reads a lock back, but a locked clock is never above its highest.

use std::time::{Duration, Instant};

use gpufleet_protocol::{FailureKind, Property, nvml::Reading};

use super::{Done, Failure, LockWant, Planned, Running};
use crate::gpu::state::Gpu;

/// Time for a clock to come down.
const SETTLES: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(300);
/// Two steps of a graphics clock. Source: the lists of an H100 and an A100, in steps of 15 MHz.
const STEPS_MHZ: u32 = 30;

/// A clock that was locked in this run.
struct Locked {
    member: usize,
    uuid: String,
    graphics: bool,
    high_mhz: u32,
}

impl Running<'_> {
    /// Reads the clocks that this run locked until they obey. One that does not was not made, and is not recorded, so
    /// that the next run locks it again.
    pub(super) fn verify_clocks(&mut self) -> Done {
        let locked = self.locked();
        let until = Instant::now() + SETTLES.min(self.job.deadline.remaining());
        while locked.iter().any(|one| self.above(one).is_some()) && Instant::now() < until {
            std::thread::sleep(AGAIN);
            self.refresh(0)?;
        }
        for one in locked {
            let Some(reads) = self.above(&one) else { continue };
            let what = if one.graphics { "graphics" } else { "memory" };
            let label = self.state.gpu(&one.uuid).map_or_else(|| one.uuid.clone(), Gpu::label);
            let property = if one.graphics { Property::GRAPHICS_CLOCK } else { Property::MEMORY_CLOCK };
            let subject = self.state.gpu(&one.uuid).map(Gpu::subject);
            self.record_lock(&one.uuid, |locks| match one.graphics {
                true => locks.graphics = crate::gpu::state::Lock::Unknown,
                false => locks.memory = crate::gpu::state::Lock::Unknown,
            });
            self.applied.made.retain(|made: &Planned| {
                made.change.property != property || Some(&made.change.subject) != subject.as_ref()
            });
            let message = format!(
                "{label} {what} clock was locked at {} MHz at most and reads {reads} MHz; the driver does not obey the lock",
                one.high_mhz
            );
            self.applied.failures.push(Failure {
                member: one.member,
                kind: FailureKind::Unconverged,
                message,
                idle: None,
            });
        }
        Ok(())
    }

    fn locked(&self) -> Vec<Locked> {
        let desired = self.desired();
        let mut all = Vec::new();
        for gpu in &self.state.gpus {
            let Some(wants) = desired.gpus.get(&gpu.uuid) else { continue };
            let clocks = [
                (true, Property::GRAPHICS_CLOCK, &wants.graphics),
                (false, Property::MEMORY_CLOCK, &wants.memory),
            ];
            for (graphics, property, want) in clocks {
                let made = |planned: &Planned| {
                    planned.change.property == property && planned.change.subject == gpu.subject()
                };
                if let Some(want) = want
                    && let LockWant::Range { high_mhz, .. } = want.value
                    && self.applied.made.iter().any(made)
                {
                    all.push(Locked { member: want.member, uuid: gpu.uuid.clone(), graphics, high_mhz });
                }
            }
        }
        all
    }

    /// Returns what a clock reads if that is above its lock.
    fn above(&self, one: &Locked) -> Option<u32> {
        let gpu = self.state.gpu(&one.uuid)?;
        // Without persistence, the driver may have forgotten the lock already, which a warning says.
        if gpu.persistence != Ok(true) {
            return None;
        }
        let reads: Reading<u32> = if one.graphics { gpu.graphics_mhz } else { gpu.memory_mhz };
        reads.ok().filter(|reads| *reads > one.high_mhz.saturating_add(STEPS_MHZ))
    }
}
