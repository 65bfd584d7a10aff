//! Parameters of `disk_queue`, how the kernel queues what disks read and write.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, Number, ParamError, Reading, words::words,
};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { DiskScheduler {
    None: "none",
    MqDeadline: "mq-deadline",
    Kyber: "kyber",
    Bfq: "bfq",
} }

words! { DiskType {
    /// Drives of NVM Express.
    Nvme: "nvme",
    /// Disks without moving parts, NVMe too.
    Ssd: "ssd",
    Rotational: "rotational",
} }

/// Sets scheduler, depth and read-ahead of disks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DiskQueue {
    /// Names of the kernel or patterns, such as `nvme0n1` or `sd*`; whole disks only. Names may change at a boot.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub device: Vec<String>,
    /// Only disks of this sort; without `device`, all of them but those made of software.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub sort: Option<DiskType>,
    /// Written first, because another scheduler resets `nr_requests`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<DiskScheduler>,
    /// Requests that may wait in each queue.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub nr_requests: Option<u32>,
    /// KiB to read ahead, a multiple of 4.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub read_ahead_kb: Option<u32>,
    /// The CPU on which a request ends: 0 any, 1 one near that which began it, 2 that one.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub rq_affinity: Option<u32>,
    /// Merging of requests: 0 all, 1 simple ones only, 2 none.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub nomerges: Option<u32>,
    /// The largest request, in KiB, up to what the disk takes.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub max_sectors_kb: Option<u32>,
}

impl DiskQueue {
    /// The file that sets it at boot, and whenever a disk appears.
    pub const FILE: &str = "/etc/udev/rules.d/99-gpufleet-disk.rules";

    /// Returns names of files in `queue` and their values, in the order in which they are written.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        [
            ("scheduler", self.scheduler.map(|scheduler| scheduler.as_str().to_owned())),
            ("nr_requests", number(self.nr_requests)),
            ("read_ahead_kb", number(self.read_ahead_kb)),
            ("rq_affinity", number(self.rq_affinity)),
            ("nomerges", number(self.nomerges)),
            ("max_sectors_kb", number(self.max_sectors_kb)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }
}

impl Kind for DiskQueue {
    const INFO: KindInfo = KindInfo {
        name: "disk_queue",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[
            Number::from("nr_requests", None, 4),
            Number::from("read_ahead_kb", None, 0),
            Number::within("rq_affinity", None, 0, 2),
            Number::within("nomerges", None, 0, 2),
            Number::from("max_sectors_kb", None, 4),
        ],
        since: &[],
        summary: "Sets scheduler, depth and read-ahead of disks, now and whenever they appear.",
        example: "disk_queue: {type: nvme, scheduler: none, read_ahead_kb: 4096}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.device.is_empty() && self.sort.is_none() {
            return Err(ParamError::new("device", "one of `device` and `type` is needed"));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-*?[]!".contains(&byte);
        let wrong = |name: &&String| name.is_empty() || name.len() > 64 || !name.bytes().all(plain);
        if let Some(name) = self.device.iter().find(wrong) {
            let message =
                format!("`{name}` is neither the name of a disk nor a pattern; paths have no place here");
            return Err(ParamError::new("device", message));
        }
        if self.settings().is_empty() {
            return Err(ParamError::new(
                "scheduler",
                "a setting is needed, such as `scheduler` or `read_ahead_kb`",
            ));
        }
        // Source: kernel, block/blk-sysfs.c: pages are counted; BLKDEV_MIN_RQ is 4.
        if self.read_ahead_kb.is_some_and(|kib| kib % 4 != 0) {
            let message = "the kernel counts pages of 4 KiB, so that it would round it: a multiple of 4";
            return Err(ParamError::new("read_ahead_kb", message));
        }
        Ok(())
    }
}

impl GroundKind for DiskQueue {
    const GROUND: Ground = Ground {
        reads: &[
            "/sys/block/DISK/queue: scheduler, nr_requests and so on; rotational, max_hw_sectors_kb; whether DISK is hidden, or has \
             no queue of its own (mq)",
            "rules.d of /etc, /run, /usr/local/lib and /usr/lib; tuned's active profile, section [disk]",
        ],
        writes: &[
            "the same files, the scheduler first; after another scheduler the nr_requests that an earlier task set of the disk",
            "a line of /etc/udev/rules.d/99-gpufleet-disk.rules for each set of disks, on add and change",
        ],
        takes_effect: "at once, and whenever a disk appears or changes",
        survives: "reboots; a disk that is replaced gets it too. Not a change of the scheduler by somebody else, which resets \
                   nr_requests",
        owners: &[
            "another task's rule of the same file that sets another value of one of the disks: refused",
            "other rules of udev that set the same: the last one that matches wins; they are named",
            "tuned's section [disk] (elevator, readahead) comes after udev, and puts back what it found when it stops: named",
            "multipathd and cloud agents have rules of their own",
        ],
        source: "kernel, ABI/stable/sysfs-block; udev(7); measured with Linux 6.18 (130 KiB read 128, 1 request reads 4, \
                 another scheduler resets 256 to 128)",
    };
}

impl Operation for DiskQueue {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places([Self::FILE])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::DiskQueue(new) = newer.op else { return true };
        // The rule of udev is for all disks of a task, so that it stands for all of them or for none. Of disks that two tasks have,
        // the node refuses another value.
        if self.device != new.device || self.sort != new.sort {
            return true;
        }
        macro_rules! given {
            ($($field:ident),*) => {$( if new.$field.is_some() { self.$field = None; } )*};
        }
        given!(scheduler, nr_requests, read_ahead_kb, rq_affinity, nomerges, max_sectors_kb);
        !self.settings().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde::de;
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<DiskQueue, ParamError> {
        let task: DiskQueue = serde_json::from_value(value).map_err(de::Error::custom)?;
        task.check().map(|()| task)
    }

    #[test]
    fn what_the_kernel_would_round_is_refused() {
        assert!(read(json!({"type": "nvme", "read_ahead_kb": "4096", "scheduler": "none"})).is_ok());
        for wrong in [
            json!({"type": "nvme"}),
            json!({"scheduler": "none"}),
            json!({"device": "/dev/sda", "scheduler": "none"}),
            json!({"device": "sd*\"", "scheduler": "none"}),
            json!({"type": "nvme", "read_ahead_kb": 130}),
            json!({"type": "nvme", "scheduler": "cfq"}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
        let small = super::super::find("disk_queue").unwrap().parse(json!({"type": "ssd", "nr_requests": 1}));
        assert!(small.is_err(), "the kernel makes it 4");
    }

    #[test]
    fn a_newer_task_takes_over_the_same_disks() {
        let mut old = read(json!({"type": "nvme", "scheduler": "none", "nr_requests": 64})).unwrap();
        let newer = |value| NodeOp::DiskQueue(read(value).unwrap());
        assert!(old.yields(&Newer::of(&newer(json!({"type": "ssd", "scheduler": "bfq"})))));
        assert!(old.yields(&Newer::of(&newer(json!({"type": "nvme", "scheduler": "bfq"})))));
        assert_eq!(old.scheduler, None);
        assert!(!old.yields(&Newer::of(&newer(json!({"type": "nvme", "nr_requests": 4})))));
        let mut two = read(json!({"device": ["sda", "sdb"], "scheduler": "bfq", "nomerges": 2})).unwrap();
        let whole = two.clone();
        for other in [
            json!({"device": "sda", "scheduler": "bfq", "nomerges": 2}),
            json!({"device": ["sda", "sdb"], "type": "ssd", "scheduler": "bfq"}),
            json!({"type": "ssd", "scheduler": "bfq"}),
        ] {
            assert!(two.yields(&Newer::of(&newer(other.clone()))), "{other}");
            assert_eq!(two, whole, "the rule of its disks stays as it is: {other}");
        }
    }
}
