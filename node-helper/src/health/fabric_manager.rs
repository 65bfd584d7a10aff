//! `fabric_manager`: the fabric manager runs if the node has NVSwitches.

use gpufleet_protocol::health::Verdict;

use super::{FabricManager, Found, Seen};

pub fn check(seen: &Seen) -> Found {
    if seen.switches == 0 {
        return (Verdict::NotApplicable, "there is no NVSwitch on this node".to_owned());
    }
    match seen.fabric_manager {
        FabricManager::Runs => (Verdict::Ok, "the fabric manager runs".to_owned()),
        FabricManager::Absent => (
            Verdict::Fail,
            "the fabric manager does not run; next step: `systemctl status nvidia-fabricmanager`, whose version must \
             be the driver's"
                .to_owned(),
        ),
        FabricManager::Unknown => {
            (Verdict::Unknown, "whether the fabric manager runs cannot be read".to_owned())
        }
    }
}
