//! Parameters of `limits`, resource limits of login sessions.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Ground, GroundKind, Kind, KindInfo, ParamError, Reading, unit_settings::Presence,
    words::words,
};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
};

words! { LimitType { Soft: "soft", Hard: "hard", Both: "-" | "both" } }

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LimitLine {
    /// `*` for everybody but root, a user, `@group`, or a range of numbers such as `1000:2000`.
    pub domain: String,
    /// `soft`, `hard`, or `-` for both.
    #[serde(rename = "type", default = "both")]
    pub of: LimitType,
    /// Such as `memlock` (KiB), `nofile`, `nproc`, `stack` (KiB) or `core` (KiB).
    pub item: String,
    /// A number, or `unlimited`.
    #[serde(deserialize_with = "lenient::text")]
    pub value: String,
}

const fn both() -> LimitType {
    LimitType::Both
}

/// Declares limits of login sessions in a file of limits.d.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The lines of the file, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitLine>,
    /// Name of the file, without `.conf`. Of two lines for the same domain, the later file wins.
    #[serde(default = "name")]
    pub name: String,
    /// `absent` removes the file.
    #[serde(default)]
    pub state: Presence,
}

fn name() -> String {
    "90-gpufleet".to_owned()
}

/// Items whose values are numbers from 0. Source: limits.conf(5).
const AMOUNTS: [&str; 14] = [
    "as",
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "maxlogins",
    "maxsyslogins",
    "memlock",
    "msgqueue",
    "nofile",
    "nproc",
    "rss",
    "sigpending",
];

/// Returns the least value of an item that still lets people log in, and why less does not.
fn least(item: &str) -> Option<(i64, &'static str)> {
    Some(match item {
        "maxlogins" | "maxsyslogins" => (1, "nobody can log in then"),
        "nproc" => (1, "the login can start no program then"),
        "as" | "data" | "stack" => (1, "no program of the login gets memory to start then"),
        "fsize" => (1, "the login and its programs can write no file then"),
        "cpu" => (1, "the kernel ends each program of the login after a second then"),
        "nofile" => (256, "programs of a login, such as the shell and what systemd starts for it, fail then"),
        _ => return None,
    })
}

impl LimitLine {
    /// Whether the value is none.
    pub fn is_unlimited(value: &str) -> bool {
        matches!(value, "unlimited" | "infinity" | "-1")
    }

    /// Returns why pam_limits would pass over it, or refuse logins for it.
    fn wrong(&self) -> Option<String> {
        let legal = |c: char| c.is_ascii_alphanumeric() || "*@%:-_.$\\+".contains(c);
        if self.domain.is_empty() || self.domain.len() > 256 || !self.domain.chars().all(legal) {
            return Some(format!("`{}` is no domain", self.domain));
        }
        let number = |least: i64, most: i64| {
            let found = self.value.parse::<i64>().ok().filter(|number| (least..=most).contains(number));
            found.is_none().then(|| format!("`{}` takes a whole number from {least} to {most}", self.item))
        };
        if let (Some((least, why)), Ok(value)) = (least(&self.item), self.value.parse::<i64>())
            && (0..least).contains(&value)
        {
            return Some(format!("`{}` {value} locks people out: {why}; the least is {least}", self.item));
        }
        match self.item.as_str() {
            "nofile" if Self::is_unlimited(&self.value) => Some(
                "`nofile` cannot be unlimited: the kernel takes no more than fs.nr_open, and pam_limits may then refuse logins"
                    .to_owned(),
            ),
            "stack" => (!Self::is_unlimited(&self.value)).then(|| number(0, i64::MAX)).flatten(),
            item if AMOUNTS.contains(&item) => {
                (!Self::is_unlimited(&self.value)).then(|| number(0, i64::MAX)).flatten()
            }
            "nice" | "priority" => number(-20, 19),
            "rtprio" => number(0, 99),
            "nonewprivs" => number(0, 1),
            other => Some(format!("`{other}` is no item that is declared here: {}, nice, priority, rtprio, stack, nonewprivs are", AMOUNTS.join(", "))),
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        self.domain == other.domain && self.item == other.item && self.overlaps(other.of)
    }

    /// Whether both set the soft or both the hard limit.
    pub fn overlaps(&self, other: LimitType) -> bool {
        self.of == other || self.of == LimitType::Both || other == LimitType::Both
    }
}

impl Limits {
    /// Returns the path of the file.
    pub fn path(&self) -> String {
        format!("/etc/security/limits.d/{}.conf", self.name)
    }
}

impl Kind for Limits {
    const INFO: KindInfo = KindInfo {
        name: "limits",
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
        numbers: &[],
        since: &[],
        summary: "Declares limits of login sessions in a file of limits.d; services do not read it.",
        example: "limits: {limits: [{domain: '*', item: memlock, value: unlimited}]}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_name = !self.name.is_empty() && self.name.len() <= 200 && !self.name.starts_with('.');
        if !is_name || !self.name.chars().all(plain) || self.name.ends_with(".conf") {
            let message = "it is a file's name without `.conf`, of letters, digits and `-_.`";
            return Err(ParamError::new("name", message));
        }
        match (self.state, self.limits.is_empty()) {
            (Presence::Present, true) => return Err(ParamError::new("limits", "it has no line")),
            (Presence::Absent, false) => return Err(ParamError::new("state", "`absent` excludes `limits`")),
            _ => {}
        }
        if let Some(why) = self.limits.iter().find_map(LimitLine::wrong) {
            return Err(ParamError::new("limits", why));
        }
        for (at, line) in self.limits.iter().enumerate() {
            if self.limits.iter().take(at).any(|before| before.is_like(line)) {
                let message = format!("two lines set `{}` of `{}`", line.item, line.domain);
                return Err(ParamError::new("limits", message));
            }
        }
        Ok(())
    }
}

impl GroundKind for Limits {
    const GROUND: Ground = Ground {
        reads: &[
            "/etc/security/limits.conf and /etc/security/limits.d/*.conf, in the order of pam_limits",
            "/etc/pam.d: whether anything uses pam_limits; /proc/sys/fs/nr_open",
        ],
        writes: &["/etc/security/limits.d/NAME.conf"],
        takes_effect: "at the next login (SSH, console, su, cron); sessions that are open keep theirs",
        survives: "reboots and updates",
        owners: &[
            "services do not read it: systemd gives them LimitMEMLOCK= and the like (`unit_settings`)",
            "jobs of Slurm get the limits of slurmd, or with PropagateResourceLimits those of sbatch",
            "a line for a user wins over one for a group, that over `*`; of equal ones the later file wins",
        ],
        source: "limits.conf(5), pam_limits(8); measured with Debian 12: a service kept 8 MiB of memlock under `* - memlock \
                 unlimited`",
    };
}

impl Operation for Limits {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Places { paths: vec![self.path()], driver: false }
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::Limits(new) if new.path() == self.path())
    }
}

#[cfg(test)]
mod tests {
    use serde::de;
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<Limits, ParamError> {
        let task: Limits = serde_json::from_value(value).map_err(de::Error::custom)?;
        task.check().map(|()| task)
    }

    #[test]
    fn what_would_lock_people_out_is_refused() {
        let line = |item: &str, value: Value| json!({"limits": [{"domain": "*", "type": "hard", "item": item, "value": value}]});
        for right in [
            line("memlock", json!("unlimited")),
            line("nofile", json!(1_048_576)),
            json!({"limits": [{"domain": "@gpu", "item": "rtprio", "value": 99}]}),
            json!({"state": "absent", "name": "95-old"}),
            line("core", json!(0)),
            line("nproc", json!(1)),
            line("nofile", json!(256)),
        ] {
            assert!(read(right.clone()).is_ok(), "{right}");
        }
        for wrong in [
            json!({}),
            line("nofile", json!("unlimited")),
            line("memlock", json!("8M")),
            line("chroot", json!("/x")),
            json!({"limits": [{"domain": "a b", "item": "nproc", "value": 1}]}),
            json!({"limits": [{"domain": "*", "item": "nproc", "value": 1}, {"domain": "*", "type": "soft", "item": "nproc", "value": 2}]}),
            json!({"state": "absent", "limits": [{"domain": "*", "item": "nproc", "value": 1}]}),
            json!({"limits": [{"domain": "*", "item": "nproc", "value": 1}], "name": "../x"}),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
        for item in ["maxlogins", "maxsyslogins", "nproc", "as", "data", "stack", "fsize", "cpu"] {
            let why = read(line(item, json!(0))).unwrap_err().to_string();
            assert!(why.contains("locks people out"), "{why}");
        }
        let few = read(line("nofile", json!(255))).unwrap_err().to_string();
        assert!(few.contains("the least is 256"), "{few}");
    }
}
