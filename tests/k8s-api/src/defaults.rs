//! What the API server writes into a new object: defaults, admission, the first status.
//!
//! Defaults are owned by the client that made the object (`managedFields`), but what admission adds has no owner, so
//! they are separate.

use serde_json::{Value, json};

use crate::object::{self, default, list, set, text};
use crate::resources::Resource;
use crate::status::{Outcome, invalid};

/// Defaults of the object's own fields.
pub fn fill(resource: &Resource, object: &mut Value) {
    default(object, &["kind"], json!(resource.kind));
    default(object, &["apiVersion"], json!(resource.api_version()));
    match resource.plural {
        "pods" => pod_spec(object.get_mut("spec")),
        "replicasets" | "deployments" | "statefulsets" | "daemonsets" | "jobs" => {
            if matches!(resource.plural, "replicasets" | "deployments" | "statefulsets") {
                default(object, &["spec", "replicas"], json!(1));
            }
            if let Some(template) = object.pointer_mut("/spec/template") {
                pod_spec(template.get_mut("spec"));
            }
        }
        "nodes" => {
            for key in
                ["machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"]
            {
                default(object, &["status", "nodeInfo", key], json!(""));
            }
            for key in ["kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"] {
                default(object, &["status", "nodeInfo", key], json!(""));
            }
            default(object, &["status", "daemonEndpoints", "kubeletEndpoint", "Port"], json!(0));
            default(object, &["spec"], json!({}));
        }
        _ => {}
    }
}

fn pod_spec(spec: Option<&mut Value>) {
    let Some(spec) = spec else { return };
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let image = text(container, "/image");
            let tag = image.rsplit('/').next().and_then(|last| last.split_once(':')).map(|(_, tag)| tag);
            let always = !image.contains('@') && matches!(tag, None | Some("latest"));
            default(container, &["resources"], json!({}));
            default(container, &["terminationMessagePath"], json!("/dev/termination-log"));
            default(container, &["terminationMessagePolicy"], json!("File"));
            default(container, &["imagePullPolicy"], json!(if always { "Always" } else { "IfNotPresent" }));
        }
    }
    default(spec, &["restartPolicy"], json!("Always"));
    default(spec, &["terminationGracePeriodSeconds"], json!(30));
    default(spec, &["dnsPolicy"], json!("ClusterFirst"));
    default(spec, &["securityContext"], json!({}));
    default(spec, &["schedulerName"], json!("default-scheduler"));
    default(spec, &["enableServiceLinks"], json!(true));
}

/// Adds what admission and the creation itself add.
pub fn admit(resource: &Resource, object: &mut Value) {
    match resource.plural {
        "pods" => {
            for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
                let covered = list(object, "/spec/tolerations").iter().any(|t| {
                    let at = text(t, "/key");
                    (at == key || at.is_empty()) && matches!(text(t, "/effect"), "" | "NoExecute")
                });
                if !covered {
                    default(object, &["spec", "tolerations"], json!([]));
                    if let Some(all) = object.pointer_mut("/spec/tolerations").and_then(Value::as_array_mut) {
                        all.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
                    }
                }
            }
            default(object, &["spec", "priority"], json!(0));
            default(object, &["spec", "preemptionPolicy"], json!("PreemptLowerPriority"));
            let quality = quality(object);
            set(object, &["status"], json!({"phase": "Pending", "qosClass": quality}));
        }
        "poddisruptionbudgets" => {
            set(
                object,
                &["status"],
                json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}),
            );
        }
        "namespaces" => {
            let name = object::name(object).to_owned();
            default(object, &["metadata", "labels", "kubernetes.io/metadata.name"], json!(name));
            set(object, &["spec"], json!({"finalizers": ["kubernetes"]}));
            set(object, &["status"], json!({"phase": "Active"}));
        }
        "replicasets" | "deployments" | "statefulsets" => set(object, &["status"], json!({"replicas": 0})),
        "daemonsets" => {
            let zero = json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0});
            set(object, &["status"], zero);
        }
        "jobs" => set(object, &["status"], json!({})),
        _ => {}
    }
}

fn quality(pod: &Value) -> &'static str {
    let resources: Vec<&Value> =
        list(pod, "/spec/containers").iter().filter_map(|c| c.get("resources")).collect();
    let has = |value: &Value, pointer: &str| value.pointer(pointer).is_some();
    let any = resources.iter().any(|r| {
        ["/limits/cpu", "/limits/memory", "/requests/cpu", "/requests/memory"].iter().any(|p| has(r, p))
    });
    let all = resources.iter().all(|r| has(r, "/limits/cpu") && has(r, "/limits/memory"));
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Refuses invalid objects.
pub fn validate(resource: &Resource, object: &Value) -> Outcome<()> {
    let name = object::name(object);
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    if name.is_empty() || name.len() > 253 || !name.chars().all(fits) {
        let why = format!(
            "Invalid value: \"{name}\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
             and must start and end with an alphanumeric character (e.g. 'example.com')"
        );
        return Err(invalid(resource, name, "metadata.name", "FieldValueInvalid", &why));
    }
    match resource.plural {
        "pods" if list(object, "/spec/containers").is_empty() => {
            Err(invalid(resource, name, "spec.containers", "FieldValueRequired", "Required value"))
        }
        "poddisruptionbudgets" if object.pointer("/spec/minAvailable").is_some() && object.pointer("/spec/maxUnavailable").is_some() => {
            let why = "Invalid value: minAvailable and maxUnavailable cannot be both set";
            Err(invalid(resource, name, "spec", "FieldValueInvalid", why))
        }
        "leases" if object::int(object, "/spec/leaseDurationSeconds").is_some_and(|s| s <= 0) => {
            let seconds = object::int(object, "/spec/leaseDurationSeconds").unwrap_or_default();
            let why = format!("Invalid value: {seconds}: must be greater than 0");
            Err(invalid(resource, name, "spec.leaseDurationSeconds", "FieldValueInvalid", &why))
        }
        "nodes" => list(object, "/spec/taints").iter().try_for_each(|taint| {
            if matches!(text(taint, "/effect"), "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
                return Ok(());
            }
            let why = format!("Unsupported value: \"{}\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"", text(taint, "/effect"));
            Err(invalid(resource, name, "metadata.taints[0].effect", "FieldValueNotSupported", &why))
        }),
        _ => Ok(()),
    }
}
