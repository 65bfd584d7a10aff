//! Parameters of `gpu_keep`: what a node asserts at each boot.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Kind, KindInfo, Number, ParamError, Reading, words::words};
use crate::{Disruption, Unit, lenient};

words! { KeepPresence {
    /// The node asserts the state at each boot.
    Present: "present",
    /// It asserts nothing, and nothing of it is left on the node.
    Absent: "absent",
} }

words! { OnKeepFailure {
    /// The node serves as it is.
    Serve: "serve",
    /// The units of `hold` do not start until the state is as declared.
    Hold: "hold",
} }

/// Lets the node assert the state of its GPUs at each boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct GpuKeep {
    /// `present` (default): what this run declared of GPUs up to here is kept; `absent`: nothing is.
    #[serde(default = "present")]
    pub state: KeepPresence,
    /// What becomes of a boot after which the GPUs are not as declared: `serve` (default) or `hold`.
    #[serde(default = "serve")]
    pub on_failure: OnKeepFailure,
    /// With `on_failure: hold`, the units that wait: slurmd.service and kubelet.service when left out.
    #[serde(default = "schedulers", deserialize_with = "lenient::one_or_many")]
    pub hold: Vec<String>,
    /// How long one boot may take over it, such as `8m`.
    #[serde(default = "eight_minutes", deserialize_with = "lenient::seconds")]
    pub timeout: u64,
}

fn present() -> KeepPresence {
    KeepPresence::Present
}
fn serve() -> OnKeepFailure {
    OnKeepFailure::Serve
}
fn schedulers() -> Vec<String> {
    ["slurmd.service", "kubelet.service"].map(str::to_owned).to_vec()
}
fn eight_minutes() -> u64 {
    8 * 60
}

impl Default for GpuKeep {
    fn default() -> Self {
        Self { state: present(), on_failure: serve(), hold: schedulers(), timeout: eight_minutes() }
    }
}

/// Largest number of units that wait.
const MOST_UNITS: usize = 32;

/// Whether this is the name of a service, and no path.
fn is_service(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.:@\\".contains(c);
    name.strip_suffix(".service").is_some_and(|stem| !stem.is_empty() && stem.chars().all(allowed))
        && !name.starts_with('.')
        && name.len() < 256
}

impl Kind for GpuKeep {
    const INFO: KindInfo = KindInfo {
        name: "gpu_keep",
        aliases: &[],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::NEEDS_CONTROLLER,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[Number::within("timeout", Some(Unit::Seconds), 60, 3600)],
        since: &[],
        summary: "Lets the node assert the state of its GPUs at each boot, before schedulers and containers start.",
        example: "gpu_keep: {on_failure: hold, hold: [slurmd.service]}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if let Some(wrong) = self.hold.iter().find(|name| !is_service(name)) {
            return Err(ParamError::new(
                "hold",
                format!("`{wrong}` is not the name of a service, such as slurmd.service"),
            ));
        }
        if self.hold.len() > MOST_UNITS {
            return Err(ParamError::new("hold", format!("at most {MOST_UNITS} units can wait")));
        }
        if self.on_failure == OnKeepFailure::Hold && self.hold.is_empty() {
            return Err(ParamError::new("hold", "`on_failure: hold` needs the units that wait"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> Result<GpuKeep, String> {
        let keep: GpuKeep = serde_json::from_value(value).map_err(|error| error.to_string())?;
        keep.check().map(|()| keep).map_err(|error| error.to_string())
    }

    #[test]
    fn only_services_wait() {
        assert_eq!(read(json!({})).unwrap(), GpuKeep::default());
        assert_eq!(read(json!({"hold": "slurmd@a.service"})).unwrap().hold, ["slurmd@a.service"]);
        for wrong in
            ["slurmd", "../x.service", "a b.service", ".service", "/etc/x.service", "x.socket", ".x.service"]
        {
            assert!(read(json!({"hold": [wrong]})).is_err(), "{wrong}");
        }
        assert!(read(json!({"on_failure": "hold", "hold": []})).is_err());
        assert!(read(json!({"hold": []})).is_ok());
    }
}
