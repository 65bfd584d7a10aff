//! Random choices of a schedule.

use gpufleet_protocol::Disruption;

use crate::rollout::*;

/// Small random numbers from a seed (splitmix64).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(super) fn size(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap()
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn class(&mut self) -> Disruption {
        [Disruption::Clients, Disruption::GpuReset, Disruption::Reboot][self.size(3)]
    }
}

pub(super) fn policy(dice: &mut Dice, hosts: usize) -> Policy {
    let domains = dice.chance(50).then(|| {
        let count = 1 + dice.size(4);
        Domains {
            // Some hosts are in no domain.
            of: (0..hosts).map(|_| dice.size(count + usize::from(hosts.is_multiple_of(2)))).collect(),
            names: (0..count).map(|domain| format!("rack {domain}")).collect(),
            limit: 1 + dice.size(3),
        }
    });
    let text =
        ["daily 01:00-05:00 UTC", "Mon-Fri 22:00-04:00 UTC, Sat 06:00-09:30 Europe/Berlin"][dice.size(2)];
    let mut policy = Policy {
        budget: 1 + dice.size(5),
        domains,
        thresholds: Thresholds {
            max_fail_percentage: dice.chance(20).then(|| 100.0 * (dice.below(100) as f64) / 100.0),
            max_failures: dice.chance(30).then(|| dice.size(5)),
            max_unreachable: dice.chance(30).then(|| dice.size(4)),
            any_errors_fatal: dice.chance(5),
        },
        soak_s: if dice.chance(40) { 1 + dice.below(1200) } else { 0 },
        window: dice.chance(50).then(|| Window::parse(text).unwrap()),
        needs: Needs {
            live: dice.below(60),
            clients: dice.below(900),
            gpu_reset: dice.below(1800),
            reboot: dice.below(5400),
        },
        drain_needs: Needs::default(),
        surveys: dice.chance(50),
        drains: dice.chance(60),
        patience_s: if dice.chance(70) { dice.below(300) } else { 0 },
    };
    let Needs { live, clients, gpu_reset, reboot } = policy.needs;
    policy.drain_needs = Needs { live, clients: clients / 2, gpu_reset: gpu_reset / 3, reboot: reboot / 2 };
    policy
}
