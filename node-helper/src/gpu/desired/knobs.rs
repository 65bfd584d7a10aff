//! Power limits, accounting, resets for their own sake, and confidential computing.

use gpufleet_protocol::{
    Property,
    change::Value,
    nvml::{Code, recovery},
    tasks::{ConfidentialMode, GpuConfidentialCompute, GpuPower, PowerScope, ResetWhen},
};

use super::{GpuWants, Merge, Want};
use crate::gpu::{
    plan::{DRAIN_AND_RESET, GPU_RESET, RESET, reset_group},
    state::Gpu,
    values::power,
};

type Limit = Option<Want<u32>>;

fn of_gpu(wants: &mut GpuWants) -> &mut Limit {
    &mut wants.power_mw
}

fn of_module(wants: &mut GpuWants) -> &mut Limit {
    &mut wants.module_mw
}

impl Merge<'_> {
    pub(super) fn accounting(&mut self, gpu: &Gpu, on: bool) {
        if self.readable(gpu, "accounting", gpu.accounting, on).is_some() {
            let property = Property::new("accounting");
            self.put(gpu, &property, on, |wants| &mut wants.accounting, |on| Value::from(*on));
        }
    }

    pub(super) fn power(&mut self, gpu: &Gpu, task: &GpuPower) {
        let module = task.scope == PowerScope::Module;
        let (range, default, now) = match module {
            false => (gpu.power_range_mw, gpu.power_default_mw, gpu.power_mw),
            true => (
                gpu.module_power.map(|module| (module.low_mw, module.high_mw)),
                gpu.module_power.map(|module| module.default_mw),
                gpu.module_power.map(|module| module.limit_mw),
            ),
        };
        // Most boards are no module with a CPU, which a play for all of them need not know.
        let what = if module { "power limit of a module" } else { "power limit" };
        let Some((low, high)) = self.readable(gpu, what, range, !module) else { return };
        let wanted = match (task.limit_watts, task.limit_percent) {
            (Some(watts), _) => u64::from(watts) * 1000,
            (None, Some(percent)) => {
                let Some(default) = self.readable(gpu, "default power limit", default, true) else { return };
                u64::from(default) * u64::from(percent) / 100
            }
            (None, None) => return self.fail("no power limit is given".to_owned()),
        };
        let Some(limit) = u32::try_from(wanted).ok().filter(|limit| (low..=high).contains(limit)) else {
            let wanted = power(u32::try_from(wanted).unwrap_or(u32::MAX));
            let (low, high) = (power(low), power(high));
            let of = if module { "the module of " } else { "" };
            let label = gpu.label();
            return self.fail(format!("{of}{label} takes a power limit from {low} to {high}, not {wanted}"));
        };
        if self.readable(gpu, what, now, true).is_none() {
            return;
        }
        let property = if module { Property::MODULE_POWER_LIMIT } else { Property::POWER_LIMIT };
        let slot: fn(&mut GpuWants) -> &mut Limit = if module { of_module } else { of_gpu };
        self.put(gpu, &property, limit, slot, |limit| power(*limit));
    }

    pub(super) fn reset(&mut self, gpu: &Gpu, when: ResetWhen) {
        let absent = |code: Code| code == Code::NOT_SUPPORTED || code == Code::FUNCTION_NOT_FOUND;
        match (gpu.recovery_action, gpu.rows_pending) {
            _ if when == ResetWhen::Always => {}
            (Err(code), _) if !absent(code) => {
                let text = format!("whether {} needs a reset cannot be read: {code}", gpu.label());
                return self.verdict().unknown.push(text);
            }
            (_, Err(code)) if !absent(code) => {
                let text =
                    format!("whether memory rows of {} wait for a reset cannot be read: {code}", gpu.label());
                return self.verdict().unknown.push(text);
            }
            (Err(_), Err(_)) => {
                let text = format!("{} ({}) does not tell whether it needs a reset", gpu.label(), gpu.name);
                return self.verdict().not_applicable.push(text);
            }
            _ => {}
        }
        if let Ok(action) = gpu.recovery_action
            && action != RESET
            && action != DRAIN_AND_RESET
            && let Some(needs) = recovery(action)
        {
            let text =
                format!("{}: the driver asks for {needs}, which a reset of the GPU is not", gpu.label());
            if when == ResetWhen::Required {
                return self.fail(text);
            }
            self.verdict().warnings.push(text);
        }
        if when == ResetWhen::Always && self.group.defer_to_reboot {
            let text = "this run leaves resets to a reboot; declare `reboot: {when: always}` instead";
            return self.fail(text.to_owned());
        }
        let group = reset_group(self.state, std::slice::from_ref(&gpu.uuid));
        let fixed = group.iter().filter_map(|uuid| self.state.gpu(uuid)).find(|gpu| !gpu.resettable);
        if let Some(fixed) = fixed.filter(|_| when == ResetWhen::Always) {
            let with = if fixed.uuid == gpu.uuid {
                String::new()
            } else {
                format!(" without {}, which", fixed.label())
            };
            let text = format!(
                "{}{with} cannot be reset on this machine; declare `reboot: {{when: always}}` instead",
                gpu.label()
            );
            return self.fail(text);
        }
        self.put(gpu, &GPU_RESET, when, |wants| &mut wants.reset, |when| when.as_str().into());
    }

    pub(super) fn confidential(&mut self, task: &GpuConfidentialCompute) {
        const OUTSIDE: &str =
            "set it on every GPU with NVIDIA's gpu-admin-tools while no driver has them, and reboot";
        let wanted = task.mode.map(|mode| mode == ConfidentialMode::Enabled);
        let on = match self.state.confidential {
            Ok(state) => state.enabled,
            Err(Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND) if wanted != Some(true) => {
                let text = "this node's GPUs or their driver have no confidential computing".to_owned();
                return self.verdict().not_applicable.push(text);
            }
            Err(Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND) => {
                return self
                    .fail("this node's GPUs or their driver have no confidential computing".to_owned());
            }
            Err(code) => {
                let text = format!("confidential computing cannot be read: {code}");
                return self.verdict().unknown.push(text);
            }
        };
        if let Some(wanted) = wanted.filter(|wanted| *wanted != on) {
            let (is, wants) = (Value::from(on), Value::from(wanted));
            return self.fail(format!(
                "confidential computing is {is} and not {wants}, which no running driver can change; next step: {OUTSIDE}"
            ));
        }
        let Some(ready) = task.ready else {
            self.verdict().applies += 1;
            return;
        };
        if !on {
            let text = "confidential computing is disabled on this node".to_owned();
            return self.verdict().not_applicable.push(text);
        }
        if let Err(code) = self.state.confidential_ready {
            let text = format!("whether confidential GPUs accept work cannot be read: {code}");
            return self.verdict().unknown.push(text);
        }
        let member = self.member;
        match &self.desired.ready {
            Some(other) if other.value != ready => {
                let text = format!(
                    "task {} and task {} of the group (gpu_confidential_compute) contradict each other",
                    other.member + 1,
                    member + 1
                );
                for at in [other.member, member] {
                    self.member = at;
                    self.fail(text.clone());
                }
            }
            Some(_) => self.verdict().applies += 1,
            None => {
                self.desired.ready = Some(Want { member, value: ready });
                self.verdict().applies += 1;
            }
        }
    }
}
