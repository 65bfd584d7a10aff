//! Parameters of `thp`, transparent huge pages.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, Number, ParamError, Reading, words::words,
};
use crate::{
    Disruption, NodeOp, Unit, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { ThpEnabled { Always: "always", Madvise: "madvise", Never: "never" } }

words! { ThpDefrag {
    Always: "always",
    Defer: "defer",
    DeferMadvise: "defer+madvise",
    Madvise: "madvise",
    Never: "never",
} }

words! { ThpShmem {
    Always: "always",
    WithinSize: "within_size",
    Advise: "advise",
    Never: "never",
    Deny: "deny",
    Force: "force",
} }

/// Sets transparent huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Thp {
    /// Which memory gets huge pages. What a process has mapped before keeps what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<ThpEnabled>,
    /// Whether a page fault waits until memory is compacted for a huge page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defrag: Option<ThpDefrag>,
    /// The same for shared memory and tmpfs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shmem_enabled: Option<ThpShmem>,
    /// The kernel thread that puts small pages together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub khugepaged: Option<Khugepaged>,
}

/// Settings of khugepaged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Khugepaged {
    /// Whether it compacts memory when it finds no huge page.
    #[serde(default, deserialize_with = "lenient::optional_flag", skip_serializing_if = "Option::is_none")]
    pub defrag: Option<bool>,
    /// Pages that it looks at in one pass.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub pages_to_scan: Option<u32>,
    /// Pause between two passes, in milliseconds.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub scan_sleep_millisecs: Option<u32>,
    /// Pause after it found no huge page, in milliseconds.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub alloc_sleep_millisecs: Option<u32>,
    /// Most pages of a huge page that may be unused so far.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub max_ptes_none: Option<u32>,
    /// Most pages of a huge page that may be swapped out.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub max_ptes_swap: Option<u32>,
    /// Most pages of a huge page that several processes may share.
    #[serde(default, deserialize_with = "lenient::optional_u32", skip_serializing_if = "Option::is_none")]
    pub max_ptes_shared: Option<u32>,
}

impl Thp {
    /// The file that sets it at boot.
    pub const FILE: &str = "/etc/tmpfiles.d/gpufleet-thp.conf";
    /// The folder of the running kernel's settings.
    pub const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

    /// Returns files below [`Thp::FOLDER`] and their declared values.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let words = [
            ("enabled", self.enabled.map(ThpEnabled::as_str)),
            ("defrag", self.defrag.map(ThpDefrag::as_str)),
            ("shmem_enabled", self.shmem_enabled.map(ThpShmem::as_str)),
        ];
        let thread = self.khugepaged.clone().unwrap_or_default();
        let numbers = [
            ("khugepaged/defrag", thread.defrag.map(u32::from)),
            ("khugepaged/pages_to_scan", thread.pages_to_scan),
            ("khugepaged/scan_sleep_millisecs", thread.scan_sleep_millisecs),
            ("khugepaged/alloc_sleep_millisecs", thread.alloc_sleep_millisecs),
            ("khugepaged/max_ptes_none", thread.max_ptes_none),
            ("khugepaged/max_ptes_swap", thread.max_ptes_swap),
            ("khugepaged/max_ptes_shared", thread.max_ptes_shared),
        ];
        let words = words.into_iter().filter_map(|(name, word)| Some((name, word?.to_owned())));
        let numbers = numbers.into_iter().filter_map(|(name, number)| Some((name, number?.to_string())));
        words.chain(numbers).collect()
    }
}

impl Kind for Thp {
    const INFO: KindInfo = KindInfo {
        name: "thp",
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
            Number::from("khugepaged.pages_to_scan", None, 1),
            Number::from("khugepaged.scan_sleep_millisecs", Some(Unit::Milliseconds), 0),
            Number::from("khugepaged.alloc_sleep_millisecs", Some(Unit::Milliseconds), 0),
            Number::within("khugepaged.max_ptes_none", None, 0, 8191),
            Number::within("khugepaged.max_ptes_swap", None, 0, 8191),
            Number::within("khugepaged.max_ptes_shared", None, 0, 8191),
        ],
        since: &[],
        summary: "Sets transparent huge pages, now and for every boot.",
        example: "thp: {enabled: madvise, defrag: madvise, khugepaged: {defrag: false}}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.khugepaged.as_ref().is_some_and(|thread| *thread == Khugepaged::default()) {
            return Err(ParamError::new("khugepaged", "at least one setting is needed"));
        }
        if self.settings().is_empty() {
            let message = "one of `enabled`, `defrag`, `shmem_enabled` and `khugepaged` is needed";
            return Err(ParamError::new("enabled", message));
        }
        Ok(())
    }
}

impl GroundKind for Thp {
    const GROUND: Ground = Ground {
        reads: &[
            "/sys/kernel/mm/transparent_hugepage",
            "tmpfiles.d of /etc, /run and /usr/lib",
            "the lines of sysctl.d for vm.min_free_kbytes",
        ],
        writes: &[
            "/sys/kernel/mm/transparent_hugepage",
            "/etc/tmpfiles.d/gpufleet-thp.conf",
            "/proc/sys/vm/min_free_kbytes, back to what sysctl.d declares",
        ],
        takes_effect: "at once for memory that is mapped from then on; what a process has mapped before keeps what it has",
        survives: "reboots, unless another owner sets it later",
        owners: &[
            "tuned's [vm] transparent_hugepages is set after the files of tmpfiles.d, and wins; with transparent_hugepage= on the \
             kernel command line, tuned leaves it alone",
            "transparent_hugepage= on the kernel command line sets `enabled` before any file, so that the file wins",
            "files of tmpfiles.d with earlier names win: systemd-tmpfiles takes the first line for a path, and the plan says so",
            "a program that asks for it by itself (prctl, madvise) is not bound by `madvise`",
        ],
        source: "kernel, admin-guide/mm/transhuge; tmpfiles.d(5); tuned, plugin_vm; measured with Linux 6.18",
    };
}

impl Operation for Thp {
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
        let NodeOp::Thp(new) = newer.op else { return true };
        self.enabled = self.enabled.filter(|_| new.enabled.is_none());
        self.defrag = self.defrag.filter(|_| new.defrag.is_none());
        self.shmem_enabled = self.shmem_enabled.filter(|_| new.shmem_enabled.is_none());
        if let (Some(old), Some(new)) = (&mut self.khugepaged, &new.khugepaged) {
            macro_rules! given {
                ($($field:ident),*) => {$( if new.$field.is_some() { old.$field = None; } )*};
            }
            given!(
                defrag,
                pages_to_scan,
                scan_sleep_millisecs,
                alloc_sleep_millisecs,
                max_ptes_none,
                max_ptes_swap,
                max_ptes_shared
            );
        }
        !self.settings().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde::de;
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<Thp, ParamError> {
        let thp: Thp = serde_json::from_value(value).map_err(de::Error::custom)?;
        thp.check().map(|()| thp)
    }

    #[test]
    fn something_is_asked_for() {
        for value in [json!({}), json!({"khugepaged": {}})] {
            assert!(read(value.clone()).is_err(), "{value}");
        }
        assert!(read(json!({"defrag": "defer+madvise"})).is_ok());
        assert!(read(json!({"enabled": "inherit"})).is_err());
    }

    #[test]
    fn a_newer_task_takes_over_what_it_sets() {
        let mut old =
            read(json!({"enabled": "always", "khugepaged": {"defrag": "yes", "pages_to_scan": 64}})).unwrap();
        let newer = |value| NodeOp::Thp(read(value).unwrap());
        let first = newer(json!({"enabled": "never", "khugepaged": {"defrag": false}}));
        assert!(old.yields(&Newer::of(&first)));
        assert_eq!(old.settings(), [("khugepaged/pages_to_scan", "64".to_owned())]);
        let second = newer(json!({"khugepaged": {"pages_to_scan": 8}}));
        assert!(!old.yields(&Newer::of(&second)));
    }
}
