//! Parameters of `unit_settings`, a drop-in of a systemd unit.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, restart::DaemonRestart,
    words::words,
};
use crate::{
    Disruption, NodeOp,
    cpus::CpuList,
    lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { #[derive(Default)] Presence { #[default] Present: "present", Absent: "absent" } }

/// Declares settings of a systemd unit in a drop-in, and that its process runs with them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UnitSettings {
    /// Unit with its suffix, such as `slurmd.service`; `.service` may be left out.
    pub unit: String,
    /// Settings by section and key, as systemd names them. A list is one line for each item.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub settings: Map<String, Value>,
    /// Name of the drop-in, without `.conf`. Of two drop-ins with the same setting, the later name wins.
    #[serde(default = "name")]
    pub name: String,
    /// `absent` removes the drop-in.
    #[serde(default)]
    pub state: Presence,
    /// Keys to empty first, so that a list of other files does not count: `CPUAffinity`, or `Service.CPUAffinity` for one
    /// that `settings` does not have.
    #[serde(default, deserialize_with = "lenient::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub reset: Vec<String>,
    /// `if_needed` (default) restarts a unit whose process runs without the settings. `never` changes the file and warns.
    #[serde(default)]
    pub restart: DaemonRestart,
}

fn name() -> String {
    "gpufleet".to_owned()
}

/// One setting, as the drop-in has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitSetting {
    pub section: String,
    pub key: String,
    /// Whether an empty assignment comes first.
    pub reset: bool,
    pub values: Vec<String>,
}

/// Types of units. Source: systemd.unit(5).
const TYPES: [&str; 11] = [
    "service",
    "socket",
    "timer",
    "target",
    "path",
    "mount",
    "automount",
    "swap",
    "slice",
    "scope",
    "device",
];
/// Longest value, in bytes.
const LONGEST: usize = 4096;
/// Dependencies, which an empty assignment does not empty. Source: systemd.unit(5).
const DEPENDENCIES: [&str; 10] = [
    "After",
    "Before",
    "BindsTo",
    "Conflicts",
    "PartOf",
    "Requires",
    "Requisite",
    "Upholds",
    "Wants",
    "OnFailure",
];

/// Returns why a name is none of a unit that has drop-ins of its own.
fn wrong_unit(unit: &str) -> Option<&'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    let Some((base, kind)) = unit.rsplit_once('.') else { return Some("it has no suffix") };
    if base.is_empty() || base.starts_with('.') || unit.len() > 255 || !unit.chars().all(plain) {
        return Some("it is no name of a unit: letters, digits and `:-_.\\@` are allowed");
    }
    if !TYPES.contains(&kind) {
        return Some("its suffix is none that systemd knows");
    }
    if base.ends_with('@') || base.ends_with('-') {
        return Some("it stands for many units; name one of them, such as `a@b.service`");
    }
    None
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        // YAML reads a bare `yes` as a boolean.
        Value::Bool(flag) => Some(if *flag { "yes" } else { "no" }.to_owned()),
        _ => None,
    }
}

/// Reads CPUs or NUMA nodes as systemd does: ranges, separated by commas or blanks.
pub fn systemd_list(text: &str) -> Option<CpuList> {
    let joined = text.split([',', ' ', '\t']).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",");
    joined.parse().ok()
}

/// Reads one side of a resource limit; `in_bytes` allows units of 1024.
fn limit_side(text: &str, in_bytes: bool) -> Option<u64> {
    match text {
        "infinity" => Some(u64::MAX),
        _ if in_bytes => lenient::parse_bytes(text),
        _ => text.parse().ok(),
    }
}

/// Whether a limit counts bytes. Source: systemd.exec(5).
fn limit_in_bytes(key: &str) -> bool {
    matches!(
        key,
        "LimitFSIZE"
            | "LimitDATA"
            | "LimitSTACK"
            | "LimitCORE"
            | "LimitRSS"
            | "LimitMEMLOCK"
            | "LimitAS"
            | "LimitMSGQUEUE"
    )
}

/// Reads a resource limit as systemd does: soft and hard, [`u64::MAX`] for no limit. `None` for one with a unit of time, and
/// for what is no limit.
pub fn unit_limit(key: &str, text: &str) -> Option<(u64, u64)> {
    let (soft, hard) = text.split_once(':').unwrap_or((text, text));
    let bytes = limit_in_bytes(key);
    Some((limit_side(soft, bytes)?, limit_side(hard, bytes)?))
}

/// Returns why systemd would pass over a value with nothing but a line in its log.
fn wrong_value(key: &str, value: &str) -> Option<String> {
    let number = |least: i64, most: i64| {
        let found = value.parse::<i64>().ok().filter(|number| (least..=most).contains(number));
        found.is_none().then(|| format!("a whole number from {least} to {most} is needed"))
    };
    let word =
        |words: &[&str]| (!words.contains(&value)).then(|| format!("one of {} is needed", words.join(", ")));
    match key {
        // These take units of time or nice levels too.
        "LimitCPU" | "LimitRTTIME" | "LimitNICE" => None,
        _ if key.starts_with("Limit") => match unit_limit(key, value) {
            Some((soft, hard)) if soft > hard => Some("the soft limit is above the hard one".to_owned()),
            Some(_) => None,
            None => Some("a number, `infinity` or `SOFT:HARD` is needed".to_owned()),
        },
        "OOMScoreAdjust" => number(-1000, 1000),
        "Nice" => number(-20, 19),
        "CPUSchedulingPriority" => number(1, 99),
        "CPUSchedulingPolicy" => word(&["other", "batch", "idle", "fifo", "rr"]),
        "NUMAPolicy" => word(&["default", "preferred", "bind", "interleave", "local"]),
        "CPUAffinity" if value == "numa" => None,
        "NUMAMask" if value == "all" => None,
        "CPUAffinity" | "NUMAMask" | "AllowedCPUs" | "AllowedMemoryNodes" => {
            let found = systemd_list(value).filter(|list| !list.is_empty());
            found.is_none().then(|| "a list such as `0-15,32` is needed".to_owned())
        }
        _ => None,
    }
}

/// Whether a setting holds one value, so that a list of them is a mistake.
fn is_single(key: &str) -> bool {
    key.starts_with("Limit")
        || matches!(
            key,
            "OOMScoreAdjust" | "Nice" | "CPUSchedulingPriority" | "CPUSchedulingPolicy" | "NUMAPolicy"
        )
}

impl UnitSettings {
    /// Returns the unit with its suffix.
    pub fn unit(&self) -> String {
        match self.unit.rsplit_once('.') {
            Some((_, kind)) if TYPES.contains(&kind) => self.unit.clone(),
            _ => format!("{}.service", self.unit),
        }
    }

    /// Returns the path of the drop-in.
    pub fn path(&self) -> String {
        format!("/etc/systemd/system/{}.d/{}.conf", self.unit(), self.name)
    }

    /// Returns the settings in the order of the drop-in.
    pub fn entries(&self) -> Vec<UnitSetting> {
        let mut all = Vec::new();
        for (section, keys) in &self.settings {
            for (key, value) in keys.as_object().into_iter().flatten() {
                let values = match value {
                    Value::Array(items) => items.iter().filter_map(scalar).collect(),
                    one => scalar(one).into_iter().collect(),
                };
                let reset =
                    self.reset.iter().any(|name| *name == *key || *name == format!("{section}.{key}"));
                all.push(UnitSetting { section: section.clone(), key: key.clone(), reset, values });
            }
        }
        for name in &self.reset {
            let Some((section, key)) = name.split_once('.') else { continue };
            if !all.iter().any(|one| one.section == section && one.key == key) {
                let (section, key) = (section.to_owned(), key.to_owned());
                all.push(UnitSetting { section, key, reset: true, values: Vec::new() });
            }
        }
        all
    }

    fn check_reset(&self, name: &str) -> Result<(), ParamError> {
        let wrong = |message: String| Err(ParamError::new("reset", message));
        let key = name.split_once('.').map_or(name, |(_, key)| key);
        if DEPENDENCIES.contains(&key) {
            return wrong(format!("`{key}` cannot be emptied: systemd only adds dependencies"));
        }
        match name.split_once('.') {
            Some((section, key)) if is_word(section) && is_word(key) => Ok(()),
            Some(_) => wrong(format!("`{name}` is no section and key")),
            None if self.settings.values().any(|keys| keys.get(name).is_some()) => Ok(()),
            None => wrong(format!(
                "`settings` has no `{name}`; write it with its section, such as `Service.{name}`"
            )),
        }
    }
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.len() <= 64
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

fn check_setting(section: &str, key: &str, value: &Value) -> Result<(), ParamError> {
    let place = || vec!["settings".to_owned(), section.to_owned(), key.to_owned()];
    let wrong = |message: String| Err(ParamError { place: place(), ..ParamError::new("settings", message) });
    if !is_word(key) {
        return wrong(format!("`{key}` is no name of a setting"));
    }
    let items = match value {
        Value::Array(items) if items.is_empty() => {
            return wrong(format!("it is an empty list; `reset: [{section}.{key}]` empties a setting"));
        }
        Value::Array(_) if is_single(key) => {
            return wrong(format!("`{key}` holds one value, and not a list"));
        }
        Value::Array(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    for item in items {
        let Some(text) = scalar(item) else {
            return wrong(format!(
                "text or a number is needed; `reset: [{section}.{key}]` empties a setting"
            ));
        };
        // A backslash at the end would join the next line to it.
        if text.trim().is_empty()
            || text.len() > LONGEST
            || text.contains(char::is_control)
            || text.ends_with('\\')
        {
            return wrong(format!(
                "one line of text is needed, of at most {LONGEST} bytes, without a backslash at its end"
            ));
        }
        if let Some(why) = wrong_value(key, text.trim()) {
            return wrong(format!("{why}, and systemd passes over anything else"));
        }
    }
    Ok(())
}

impl Kind for UnitSettings {
    const INFO: KindInfo = KindInfo {
        name: "unit_settings",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Clients,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::DISTURBS,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Declares settings of a systemd unit in a drop-in, and that its process runs with them.",
        example: "unit_settings: {unit: slurmd, settings: {Service: {LimitMEMLOCK: infinity}}}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if let Some(why) = wrong_unit(&self.unit()) {
            return Err(ParamError::new("unit", why));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
        let is_name = !self.name.is_empty() && self.name.len() <= 200 && !self.name.starts_with('.');
        if !is_name || !self.name.chars().all(plain) || self.name.ends_with(".conf") {
            let message = "it is a file's name without `.conf`, of letters, digits and `-_.:@`";
            return Err(ParamError::new("name", message));
        }
        let declares = !self.settings.is_empty() || !self.reset.is_empty();
        if self.state == Presence::Absent && declares {
            return Err(ParamError::new("state", "`absent` excludes `settings` and `reset`"));
        }
        if self.state == Presence::Present && !declares {
            return Err(ParamError::new("settings", "one of `settings` and `reset` is needed"));
        }
        for (section, keys) in &self.settings {
            let place = vec!["settings".to_owned(), section.clone()];
            let wrong = |message: &str| {
                Err(ParamError { place: place.clone(), ..ParamError::new("settings", message) })
            };
            if !is_word(section) {
                return wrong("it is no name of a section");
            }
            if section == "Install" {
                return wrong("systemd reads it only when a unit is enabled; `service` enables a unit");
            }
            let Some(keys) = keys.as_object().filter(|keys| !keys.is_empty()) else {
                return wrong("keys with values are needed, such as `{LimitMEMLOCK: infinity}`");
            };
            keys.iter().try_for_each(|(key, value)| check_setting(section, key, value))?;
        }
        self.reset.iter().try_for_each(|name| self.check_reset(name))?;
        let value = |key: &str| {
            let found = self.settings.get("Service").and_then(|keys| keys.get(key));
            found.and_then(scalar)
        };
        let policy = value("NUMAPolicy");
        if matches!(policy.as_deref(), Some("bind" | "interleave"))
            && value("NUMAMask").is_none()
            && self.settings["Service"].get("NUMAMask").is_none()
        {
            return Err(ParamError::new("settings", "`NUMAPolicy` needs the nodes: `NUMAMask`"));
        }
        if value("CPUSchedulingPriority").is_some()
            && matches!(value("CPUSchedulingPolicy").as_deref(), Some("other" | "batch" | "idle"))
        {
            let message = "`CPUSchedulingPriority` counts with the policies `fifo` and `rr` only";
            return Err(ParamError::new("settings", message));
        }
        Ok(())
    }
}

impl GroundKind for UnitSettings {
    const GROUND: Ground = Ground {
        reads: &[
            "the unit's file and all its drop-ins, in the order of systemd",
            "what systemd has loaded: systemctl show",
            "of the unit's main process: /proc/PID/{limits,status,stat,oom_score_adj,numa_maps}, and when it was started",
            "cpuset.cpus.effective of the unit's control group",
        ],
        writes: &[
            "/etc/systemd/system/UNIT.d/NAME.conf, followed by systemctl daemon-reload and, if allowed, restart",
        ],
        takes_effect: "at the restart of the unit, which this kind does with a drain where GPU programs may notice",
        survives: "reboots and updates of the unit's package",
        owners: &[
            "drop-ins with a later name win, such as `override.conf` of systemctl edit; the task is refused and names them",
            "systemctl set-property writes drop-ins into /etc/systemd/system.control and /run/systemd/system.control",
            "AllowedCPUs= and the cpuset of the slice bound CPUAffinity=",
            "a program may change its own limits, and may lower those that systemd gave it",
            "limits of containers are those of their runtime, and not of its daemon",
        ],
        source: "systemd.unit(5), systemd.exec(5), proc(5); measured with systemd 252: NeedDaemonReload=no for the first drop-in \
                 of a new folder, and systemctl show tells limits that the process does not have",
    };
}

impl Operation for UnitSettings {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Session
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Places { paths: vec![self.path()], driver: false }
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::UnitSettings(new) if new.path() == self.path())
    }
}

#[cfg(test)]
mod tests {
    use serde::de;
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<UnitSettings, ParamError> {
        let task: UnitSettings = serde_json::from_value(value).map_err(de::Error::custom)?;
        task.check().map(|()| task)
    }

    #[test]
    fn what_systemd_would_pass_over_is_refused() {
        let of = |settings: Value| json!({"unit": "slurmd", "settings": settings});
        for right in [
            of(
                json!({"Service": {"LimitMEMLOCK": "infinity", "CPUAffinity": ["0-15"], "NUMAPolicy": "bind", "NUMAMask": 0}}),
            ),
            of(
                json!({"Service": {"LimitNOFILE": "1024:524288", "Delegate": true, "Environment": ["A=1", "B=2"]}}),
            ),
            of(
                json!({"Service": {"LimitMEMLOCK": "8G", "CPUAffinity": "0 2 4-7", "CPUSchedulingPolicy": "fifo", "CPUSchedulingPriority": 10}}),
            ),
            json!({"unit": "a@b.service", "reset": "Service.ExecStartPost"}),
            json!({"unit": "slurmd.service", "state": "absent"}),
        ] {
            assert!(read(right.clone()).is_ok(), "{right} {:?}", read(right.clone()));
        }
        for wrong in [
            json!({"unit": "slurmd"}),
            json!({"unit": "../x", "state": "absent"}),
            json!({"unit": "a@.service", "state": "absent"}),
            json!({"unit": "slurmd", "state": "absent", "settings": {"Service": {"Nice": 1}}}),
            json!({"unit": "slurmd", "name": "../a", "state": "absent"}),
            of(json!({"Service": {}})),
            of(json!({"Install": {"WantedBy": "x.target"}})),
            of(json!({"Service": {"LimitMEMLOCK": "unlimited"}})),
            of(json!({"Service": {"LimitNOFILE": "2:1"}})),
            of(json!({"Service": {"OOMScoreAdjust": -1001}})),
            of(json!({"Service": {"CPUSchedulingPolicy": "FIFO"}})),
            of(json!({"Service": {"CPUSchedulingPolicy": "idle", "CPUSchedulingPriority": 3}})),
            of(json!({"Service": {"NUMAPolicy": "bind"}})),
            of(json!({"Service": {"CPUAffinity": "8-3"}})),
            of(json!({"Service": {"Environment": "A=1\nExecStart=/bin/sh"}})),
            of(json!({"Service": {"Environment": "A=\\"}})),
            of(json!({"Service": {"Environment": null}})),
            json!({"unit": "slurmd", "settings": {"Service": {"Nice": 1}}, "reset": ["CPUAffinity"]}),
            json!({"unit": "slurmd", "reset": ["Unit.After"]}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_newer_task_for_the_same_drop_in_takes_over() {
        let mut old = read(json!({"unit": "slurmd", "settings": {"Service": {"Nice": 1}}})).unwrap();
        let newer = |value| NodeOp::UnitSettings(read(value).unwrap());
        assert!(
            old.yields(&Newer::of(&newer(json!({"unit": "slurmd", "name": "other", "state": "absent"}))))
        );
        assert!(!old.yields(&Newer::of(&newer(json!({"unit": "slurmd.service", "state": "absent"})))));
    }
}
