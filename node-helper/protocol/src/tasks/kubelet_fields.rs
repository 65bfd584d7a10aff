//! The fields of `KubeletConfiguration` (kubelet.config.k8s.io/v1beta1) and what each takes.
//!
//! Owns names and types, not what values mean. A kubelet passes over a misspelt field in silence, or does not start. Fields
//! of newer releases are not refused: see [`nearest`].
//!
//! Source: kubernetes.io, "Kubelet Configuration (v1beta1)"; Kubernetes, staging/src/k8s.io/kubelet/config/v1beta1/types.go.

use serde_json::{Map, Value};

use super::kind::{Accepted, Mistake, ParamError};

/// What a field takes, as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    Flag,
    Whole,
    Number,
    Text,
    /// A span of time as Go writes it, such as `1m30s`.
    Duration,
    Texts,
    TextMap,
    FlagMap,
    /// What is inside is not checked.
    List,
    /// As [`Takes::List`].
    Mapping,
}

/// Fields by what they take.
const FIELDS: [(Takes, &[&str]); 10] = [
    (
        Takes::Flag,
        &[
            "cgroupsPerQOS",
            "cpuCFSQuota",
            "enableContentionProfiling",
            "enableControllerAttachDetach",
            "enableDebugFlagsHandler",
            "enableDebuggingHandlers",
            "enableProfilingHandler",
            "enableServer",
            "enableSystemLogHandler",
            "enableSystemLogQuery",
            "failCgroupV1",
            "failSwapOn",
            "kernelMemcgNotification",
            "localStorageCapacityIsolation",
            "makeIPTablesUtilChains",
            "mergeDefaultEvictionSettings",
            "protectKernelDefaults",
            "registerNode",
            "rotateCertificates",
            "runOnce",
            "seccompDefault",
            "serializeImagePulls",
            "serverTLSBootstrap",
            "singleProcessOOMKill",
        ],
    ),
    (
        Takes::Whole,
        &[
            "containerLogMaxFiles",
            "containerLogMaxWorkers",
            "eventBurst",
            "eventRecordQPS",
            "evictionMaxPodGracePeriod",
            "healthzPort",
            "imageGCHighThresholdPercent",
            "imageGCLowThresholdPercent",
            "iptablesDropBit",
            "iptablesMasqueradeBit",
            "kubeAPIBurst",
            "kubeAPIQPS",
            "maxOpenFiles",
            "maxParallelImagePulls",
            "maxPods",
            "nodeLeaseDurationSeconds",
            "nodeStatusMaxImages",
            "oomScoreAdj",
            "podPidsLimit",
            "podsPerCore",
            "port",
            "readOnlyPort",
            "registryBurst",
            "registryPullQPS",
        ],
    ),
    (Takes::Number, &["memoryThrottlingFactor"]),
    (
        Takes::Text,
        &[
            "address",
            "cgroupDriver",
            "cgroupRoot",
            "clusterDomain",
            "configMapAndSecretChangeDetectionStrategy",
            "containerLogMaxSize",
            "containerRuntimeEndpoint",
            "contentType",
            "cpuManagerPolicy",
            "hairpinMode",
            "healthzBindAddress",
            "imagePullCredentialsVerificationPolicy",
            "imageServiceEndpoint",
            "kubeletCgroups",
            "kubeReservedCgroup",
            "memoryManagerPolicy",
            "memoryReservationPolicy",
            "podCIDR",
            "podLogsDir",
            "providerID",
            "reservedSystemCPUs",
            "resolvConf",
            "showHiddenMetricsForVersion",
            "staticPodPath",
            "staticPodURL",
            "systemCgroups",
            "systemReservedCgroup",
            "tlsCertFile",
            "tlsMinVersion",
            "tlsPrivateKeyFile",
            "topologyManagerPolicy",
            "topologyManagerScope",
            "volumePluginDir",
        ],
    ),
    (
        Takes::Duration,
        &[
            "containerLogMonitorInterval",
            "cpuCFSQuotaPeriod",
            "cpuManagerReconcilePeriod",
            "draManagerReconcilePeriod",
            "evictionPressureTransitionPeriod",
            "fileCheckFrequency",
            "httpCheckFrequency",
            "imageMaximumGCAge",
            "imageMinimumGCAge",
            "nodeStatusReportFrequency",
            "nodeStatusUpdateFrequency",
            "runtimeRequestTimeout",
            "shutdownGracePeriod",
            "shutdownGracePeriodCriticalPods",
            "streamingConnectionIdleTimeout",
            "syncFrequency",
            "volumeStatsAggPeriod",
        ],
    ),
    (
        Takes::Texts,
        &[
            "allowedUnsafeSysctls",
            "clusterDNS",
            "enforceNodeAllocatable",
            "preloadedImagesVerificationAllowlist",
            "tlsCipherSuites",
        ],
    ),
    (
        Takes::TextMap,
        &[
            "cpuManagerPolicyOptions",
            "evictionHard",
            "evictionMinimumReclaim",
            "evictionSoft",
            "evictionSoftGracePeriod",
            "kubeReserved",
            "qosReserved",
            "systemReserved",
            "topologyManagerPolicyOptions",
        ],
    ),
    (Takes::FlagMap, &["featureGates"]),
    (
        Takes::List,
        &["registerWithTaints", "reservedMemory", "shutdownGracePeriodByPodPriority", "tlsCurvePreferences"],
    ),
    (
        Takes::Mapping,
        &[
            "authentication",
            "authorization",
            "crashLoopBackOff",
            "logging",
            "memorySwap",
            "staticPodURLHeader",
            "tracing",
            "userNamespaces",
        ],
    ),
];

/// Fields of text with a closed set of words. Source: `pkg/kubelet/apis/config/types.go` and `validation.go`.
const WORDS: [(&str, &[&str]); 7] = [
    ("cgroupDriver", &["cgroupfs", "systemd"]),
    ("cpuManagerPolicy", &["none", "static"]),
    ("memoryManagerPolicy", &["None", "Static"]),
    ("topologyManagerPolicy", &["none", "best-effort", "restricted", "single-numa-node"]),
    ("topologyManagerScope", &["container", "pod"]),
    ("hairpinMode", &["promiscuous-bridge", "hairpin-veth", "none"]),
    ("configMapAndSecretChangeDetectionStrategy", &["Get", "Cache", "Watch"]),
];

fn takes(field: &str) -> Option<Takes> {
    FIELDS.iter().find(|(_, names)| names.contains(&field)).map(|(takes, _)| *takes)
}

/// Returns the known field that a word is a slip of, with the fields of its sort: up to two edits, and case costs nothing.
/// Other unknown words may be fields of a newer release.
fn nearest(word: &str) -> Option<(&'static str, &'static [&'static str])> {
    let wrong = word.to_lowercase();
    let most = (wrong.len() / 3).min(2);
    let all = FIELDS.iter().flat_map(|(_, names)| names.iter().map(|name| (*name, *names)));
    all.map(|(name, names)| (edits(&wrong, &name.to_lowercase()), name, names))
        .filter(|(edits, ..)| *edits <= most)
        .min_by_key(|(edits, name, _)| (*edits, *name))
        .map(|(_, name, names)| (name, names))
}

/// Returns the Levenshtein distance.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, have) in a.bytes().enumerate() {
        let (mut diagonal, mut left) = (i, i + 1);
        let mut next = vec![left];
        for (want, above) in b.bytes().zip(row.iter().skip(1)) {
            left = (diagonal + usize::from(have != want)).min(left + 1).min(above + 1);
            diagonal = *above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// Whether it is a span of time for Go. Source: Go, `time.ParseDuration`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    let is_part = |rest: &mut &str| {
        let number = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let (digits, after) = rest.split_at_checked(number).unwrap_or_default();
        let unit = ["ns", "us", "µs", "μs", "ms", "s", "m", "h"].into_iter().find(|unit| {
            after.strip_prefix(unit).is_some_and(|next| !next.starts_with(|c: char| c.is_alphabetic()))
        });
        *rest = unit.and_then(|unit| after.strip_prefix(unit)).unwrap_or_default();
        unit.is_some() && digits.parse::<f64>().is_ok()
    };
    while is_part(&mut rest) {
        if rest.is_empty() {
            return true;
        }
    }
    false
}

impl Takes {
    const fn wanted(self) -> &'static str {
        match self {
            Self::Flag => "true or false",
            Self::Whole => "a whole number",
            Self::Number => "a number",
            Self::Text => "text: put quotes around its value",
            Self::Duration => "a span of time such as `30s` or `1h15m`",
            Self::Texts => "a list of texts",
            Self::TextMap => "a mapping to texts",
            Self::FlagMap => "a mapping to true or false",
            Self::List => "a list",
            Self::Mapping => "a mapping",
        }
    }

    fn fits(self, value: &Value) -> bool {
        match self {
            Self::Flag => value.is_boolean(),
            Self::Whole => value.is_i64(),
            Self::Number => value.is_number(),
            Self::Text => value.is_string(),
            Self::Duration => value.as_str().is_some_and(is_duration),
            Self::Texts => value.as_array().is_some_and(|list| list.iter().all(Value::is_string)),
            Self::List => value.is_array(),
            Self::TextMap | Self::FlagMap | Self::Mapping => value.is_object(),
        }
    }

    /// What the entries of such a mapping take.
    const fn inside(self) -> Option<Self> {
        match self {
            Self::TextMap => Some(Self::Text),
            Self::FlagMap => Some(Self::Flag),
            _ => None,
        }
    }
}

/// Makes numbers and flags of their text, which is what templates give.
pub(super) fn rewrite(settings: &mut Map<String, Value>) {
    let read = |takes: Takes, value: &mut Value| {
        let Some(text) = value.as_str().map(str::trim) else { return };
        let read = match takes {
            Takes::Flag => match text {
                "true" | "True" => Some(Value::Bool(true)),
                "false" | "False" => Some(Value::Bool(false)),
                _ => None,
            },
            Takes::Whole => text.parse::<i64>().ok().map(Value::from),
            Takes::Number => text.parse::<f64>().ok().map(Value::from),
            _ => None,
        };
        if let Some(read) = read {
            *value = read;
        }
    };
    for (name, value) in settings {
        let Some(takes) = takes(name) else { continue };
        match (takes.inside(), value) {
            (Some(inside), Value::Object(map)) => map.values_mut().for_each(|value| read(inside, value)),
            (_, value) => read(takes, value),
        }
    }
}

/// Checks names and types.
///
/// # Errors
/// The first field that is a slip of a known one, or whose value the kubelet would not read.
pub(super) fn check(settings: &Map<String, Value>) -> Result<(), ParamError> {
    settings.iter().try_for_each(|(name, value)| {
        let Some(takes) = takes(name) else {
            let Some((near, known)) = meant(name) else { return Ok(()) };
            return Err(ParamError {
                place: ["settings", name].map(str::to_owned).to_vec(),
                mistake: Mistake::Unknown { known },
                message: format!("`{name}` is no field of KubeletConfiguration; did you mean `{near}`?"),
                value: None,
                instead: None,
            });
        };
        let wrong = |inside: &[&str], wanted: String| {
            let place: Vec<String> =
                ["settings", name].iter().chain(inside).map(|key| (*key).to_owned()).collect();
            let of = place.get(1..).unwrap_or_default().join(".");
            let message = format!("the kubelet wants {wanted} for `{of}`");
            let mistake = Mistake::Value { wanted: Accepted::Text(wanted) };
            Err(ParamError { place, mistake, message, value: None, instead: None })
        };
        if let Some((_, words)) = WORDS.iter().find(|(of, _)| of == name)
            // Empty is the kubelet's own default.
            && !value.as_str().is_some_and(|value| value.is_empty() || words.contains(&value))
        {
            return wrong(&[], format!("one of {}", words.join(", ")));
        }
        if !takes.fits(value) {
            return wrong(&[], takes.wanted().to_owned());
        }
        let Some(inside) = takes.inside() else { return Ok(()) };
        let mut entries = value.as_object().into_iter().flatten();
        match entries.find(|(_, value)| !inside.fits(value)) {
            Some((key, _)) => wrong(&[key], inside.wanted().to_owned()),
            None => Ok(()),
        }
    })
}

/// Returns what [`nearest`] finds for a field that is not known.
pub(super) fn meant(name: &str) -> Option<(&'static str, &'static [&'static str])> {
    nearest(name).filter(|_| takes(name).is_none())
}

/// Whether it is neither a known field nor a slip of one.
pub fn is_strange(name: &str) -> bool {
    takes(name).is_none() && nearest(name).is_none()
}

/// Says what may come of a field that is not known.
pub fn told(name: &str) -> String {
    format!(
        "`{name}` is no field of KubeletConfiguration that is known here: a kubelet that does not know it either passes over it or \
         does not start"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn checked(mut settings: Value) -> Result<Value, String> {
        let map = settings.as_object_mut().unwrap();
        rewrite(map);
        check(map).map(|()| settings).map_err(|error| error.to_string())
    }

    #[test]
    fn each_field_is_there_once_and_no_known_one_is_a_slip_of_another() {
        let all: Vec<&str> = FIELDS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        for (at, name) in all.iter().enumerate() {
            assert_eq!(all.iter().position(|other| other == name), Some(at), "{name}");
            assert_eq!(meant(name), None, "{name}");
        }
        assert!(WORDS.iter().all(|(name, _)| takes(name) == Some(Takes::Text)));
    }

    #[test]
    fn slips_are_refused_and_strangers_are_not() {
        for (slip, field) in [
            ("maxPod", "maxPods"),
            ("maxpods", "maxPods"),
            ("MaxPods", "maxPods"),
            ("clusterDns", "clusterDNS"),
            ("reservedSystemCpus", "reservedSystemCPUs"),
            ("topologyManagerPolciy", "topologyManagerPolicy"),
            ("cpuManagerPolicyOption", "cpuManagerPolicyOptions"),
        ] {
            let why = checked(json!({ slip: 1 })).unwrap_err();
            assert!(why.ends_with(&format!("did you mean `{field}`?")), "{why}");
        }
        assert!(checked(json!({"cgroupDriver": "", "hairpinMode": ""})).is_ok());
        for stranger in ["noSuchField", "gpuManagerSomething", "podCGroupWeight"] {
            assert!(checked(json!({ stranger: 1 })).is_ok() && is_strange(stranger), "{stranger}");
        }
    }

    #[test]
    fn values_have_the_types_of_their_fields() {
        for right in [
            json!({"maxPods": 64, "podPidsLimit": -1, "memoryThrottlingFactor": 0.8}),
            json!({"syncFrequency": "1m30s", "shutdownGracePeriod": "0", "imageMaximumGCAge": "1.5h"}),
            json!({"featureGates": {"NodeSwap": true}, "evictionHard": {"memory.available": "5%"}}),
            json!({"clusterDNS": ["10.96.0.10"], "authentication": {"anonymous": {"enabled": false}}}),
            json!({"reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}], "hairpinMode": "none"}),
        ] {
            assert_eq!(checked(right.clone()), Ok(right));
        }
        for (wrong, why) in [
            (json!({"maxPods": "many"}), "a whole number for `maxPods`"),
            (json!({"maxPods": 1.5}), "a whole number for `maxPods`"),
            (json!({"serializeImagePulls": "often"}), "true or false for `serializeImagePulls`"),
            (json!({"clusterDNS": "10.96.0.10"}), "a list of texts for `clusterDNS`"),
            (json!({"syncFrequency": 10}), "a span of time such as `30s` or `1h15m` for `syncFrequency`"),
            (json!({"syncFrequency": "1d"}), "a span of time"),
            (json!({"syncFrequency": "10 s"}), "a span of time"),
            (json!({"kubeReserved": {"cpu": 1}}), "put quotes around its value for `kubeReserved.cpu`"),
            (json!({"featureGates": {"NodeSwap": "maybe"}}), "true or false for `featureGates.NodeSwap`"),
            (json!({"featureGates": ["NodeSwap"]}), "a mapping to true or false for `featureGates`"),
            (json!({"cgroupDriver": "Systemd"}), "one of cgroupfs, systemd for `cgroupDriver`"),
        ] {
            let found = checked(wrong.clone()).unwrap_err();
            assert!(found.contains(why), "{wrong}: {found}");
        }
    }

    #[test]
    fn text_of_a_template_becomes_what_the_kubelet_reads() {
        assert_eq!(
            checked(json!({"maxPods": "64", "failSwapOn": "False", "featureGates": {"NodeSwap": "true"}})),
            Ok(json!({"maxPods": 64, "failSwapOn": false, "featureGates": {"NodeSwap": true}}))
        );
        assert_eq!(checked(json!({"providerID": "64"})), Ok(json!({"providerID": "64"})));
    }
}
