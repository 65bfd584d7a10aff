//! `drain: kubernetes`, and what both ways to a cluster share.

use super::setting::{
    Block, Described, FixedText, FlagForm, Form, MaybeSeconds, NodeName, Seconds, Setting, Shape,
};
use super::{DrainBlock, DrainerInfo, HookSpans, Login};
use crate::diagnostic::Diagnostic;
use crate::playbook::parse::Parser;
use crate::template::Value;
use crate::yaml::Node;

/// Drains through the API of a Kubernetes cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct KubernetesDrain {
    /// The kubeconfig as it is written; none is what kubectl would take, or the service account of gpufleet's own pod.
    pub kubeconfig: Option<String>,
    /// Of the kubeconfig; none is its current one.
    pub context: Option<String>,
    /// A template for the node's name at Kubernetes.
    pub node: Value,
    /// From the cordon until no pod is left that has to go.
    pub timeout_s: u64,
    /// Until a node that is given back is ready and offers its GPUs.
    pub ready_timeout_s: u64,
    pub evictions: EvictionRules,
    /// Namespace and name of the Lease that one run at a time holds.
    pub lock: Option<(String, String)>,
    /// Whether what the GPU operator runs is stopped once the pods are gone.
    pub pause_operands: bool,
    pub mig_manager: OnMigManager,
    pub spans: HookSpans,
}

/// How pods are made to go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictionRules {
    pub delete_emptydir_data: bool,
    /// Pods that nothing brings back go for good.
    pub force: bool,
    /// Instead of each pod's own.
    pub grace_period_s: Option<u64>,
    /// How long pods are told before they are evicted.
    pub notice_s: Option<u64>,
    pub skip_namespaces: Vec<String>,
}

/// What is done where the GPU operator's mig-manager holds a node to its own layout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OnMigManager {
    /// Such a node is not drained for the play's `gpu_mig`.
    #[default]
    Refuse,
    /// mig-manager is taken off such a node for good.
    Takeover,
    /// mig-manager lays out this configuration of its own; `gpu_mig` then proves it.
    Label(String),
}

const KUBECONFIG: Setting<FixedText> = Setting::new(
    "kubeconfig",
    FixedText { what: "the path of a kubeconfig file" },
    "The kubeconfig; `$KUBECONFIG`, `~/.kube/config` or the service account of a pod unless it is written.",
);
const CONTEXT: Setting<FixedText> = Setting::new(
    "context",
    FixedText { what: "the name of a context of the kubeconfig" },
    "The context of the kubeconfig; its current one unless it is written.",
);
const NODE: Setting<NodeName> = Setting::new("node", NodeName, "The node's name at Kubernetes.");
const TIMEOUT: Setting<Seconds> = Setting::new(
    "timeout",
    Seconds { least: 1, usual: 30 * 60 },
    "How long it may take from the cordon until no pod is left that has to go.",
);
const READY_TIMEOUT: Setting<Seconds> = Setting::new(
    "ready_timeout",
    Seconds { least: 1, usual: 10 * 60 },
    "How long a node that is given back may take until it is ready and offers its GPUs.",
);
const DELETE_EMPTYDIR_DATA: Setting<FlagForm> = Setting::new(
    "delete_emptydir_data",
    FlagForm { usual: false },
    "Whether pods go that lose the data of an `emptyDir`.",
);
const FORCE: Setting<FlagForm> =
    Setting::new("force", FlagForm { usual: false }, "Whether pods go that nothing brings back.");
const GRACE_PERIOD: Setting<MaybeSeconds> = Setting::new(
    "grace_period",
    MaybeSeconds { least: 0 },
    "How long pods have to end; each pod's own unless it is written.",
);
const NOTICE: Setting<MaybeSeconds> = Setting::new(
    "notice",
    MaybeSeconds { least: 1 },
    "How long pods are told before they are evicted; they are not told unless it is written.",
);
const SKIP_NAMESPACES: Setting<Namespaces> =
    Setting::new("skip_namespaces", Namespaces, "Namespaces whose pods stay.");
const LOCK: Setting<Lease> = Setting::new(
    "lock",
    Lease,
    "NAMESPACE/NAME of the Lease that one run at a time holds; `default/gpufleet` unless it is written.",
);
const PAUSE_OPERANDS: Setting<FlagForm> = Setting::new(
    "pause_operands",
    FlagForm { usual: true },
    "Whether what the GPU operator runs on the node is stopped once the pods are gone.",
);
const MIG_MANAGER: Setting<MigManagerForm> = Setting::new(
    "mig_manager",
    MigManagerForm,
    "What is done where the GPU operator's mig-manager holds a node to its own layout.",
);
const LABEL: Setting<FixedText> = Setting::new(
    "label",
    FixedText { what: "a configuration of mig-manager, such as all-1g.10gb" },
    "The configuration that mig-manager lays out.",
);

/// The settings of both ways to a cluster.
pub(super) const SETTINGS: &[&dyn Described] = &[
    &KUBECONFIG,
    &CONTEXT,
    &NODE,
    &TIMEOUT,
    &READY_TIMEOUT,
    &DELETE_EMPTYDIR_DATA,
    &FORCE,
    &GRACE_PERIOD,
    &NOTICE,
    &SKIP_NAMESPACES,
    &LOCK,
    &PAUSE_OPERANDS,
    &MIG_MANAGER,
];

impl KubernetesDrain {
    /// Reads the settings of both ways to a cluster.
    pub(super) fn of(block: &mut Block<'_, '_>) -> Self {
        Self {
            timeout_s: block.read(&TIMEOUT),
            ready_timeout_s: block.read(&READY_TIMEOUT),
            node: block.read(&NODE),
            kubeconfig: block.read(&KUBECONFIG),
            context: block.read(&CONTEXT),
            evictions: EvictionRules {
                delete_emptydir_data: block.read(&DELETE_EMPTYDIR_DATA),
                force: block.read(&FORCE),
                grace_period_s: block.read(&GRACE_PERIOD),
                notice_s: block.read(&NOTICE),
                skip_namespaces: block.read(&SKIP_NAMESPACES),
            },
            lock: block.read(&LOCK),
            pause_operands: block.read(&PAUSE_OPERANDS),
            mig_manager: block.read(&MIG_MANAGER),
            spans: block.spans(&[NODE.name, KUBECONFIG.name]),
        }
    }
}

impl DrainBlock for KubernetesDrain {
    const INFO: DrainerInfo = DrainerInfo {
        word: "kubernetes",
        scheduler: Some("Kubernetes"),
        summary: "Cordons nodes of Kubernetes and evicts their pods, through the API of the cluster.",
        example: "drain: {kubernetes: {kubeconfig: ~/.kube/prod, context: gpu, \
                  node: \"{{ inventory_hostname }}.example.org\", timeout: 1h, ready_timeout: 15m, \
                  delete_emptydir_data: true, force: true, grace_period: 2m, notice: 10m, \
                  skip_namespaces: [monitoring], lock: ops/gpufleet, pause_operands: false, \
                  mig_manager: {label: all-1g.10gb}}}",
        mistaken: &["k8s", "kube"],
        program: None,
        has_labels: true,
        reboots: false,
        settings: &[SETTINGS],
    };

    fn read(block: &mut Block<'_, '_>) -> Option<Self> {
        // Why here: a gpufleet that was built without it must not wait for the run to say so.
        if !cfg!(feature = "kubernetes") {
            let error = Diagnostic::error("this gpufleet cannot drain by Kubernetes").at(block.at);
            block.error(
                error
                    .label("it was built without the feature `kubernetes`")
                    .help("build it with its default features, or go through `kubectl`: `drain: kubectl`"),
            );
        }
        Some(Self::of(block))
    }

    fn login(&self) -> Option<&Login> {
        None
    }

    fn worst_case_s(&self) -> u64 {
        self.timeout_s.saturating_add(self.evictions.notice_s.unwrap_or_default())
    }

    fn fingerprint(&self) -> Vec<String> {
        let mut texts = vec![
            format!("{:?} {:?}", self.kubeconfig, self.context),
            format!("{:?} {}", self.evictions.grace_period_s, self.pause_operands),
        ];
        texts.extend(self.evictions.notice_s.map(|notice| format!("notice {notice}")));
        texts
    }
}

impl Default for KubernetesDrain {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            node: NODE.form.usual(),
            timeout_s: TIMEOUT.form.usual(),
            ready_timeout_s: READY_TIMEOUT.form.usual(),
            evictions: EvictionRules::default(),
            lock: None,
            pause_operands: PAUSE_OPERANDS.form.usual(),
            mig_manager: OnMigManager::default(),
            spans: HookSpans::default(),
        }
    }
}

#[derive(Debug)]
struct Namespaces;

impl Form for Namespaces {
    type Value = Vec<String>;

    fn shape(&self) -> Shape {
        Shape::Names
    }

    fn default(&self) -> Option<String> {
        None
    }

    fn usual(&self) -> Vec<String> {
        Vec::new()
    }

    fn read(&self, parser: &mut Parser<'_>, key: &str, node: &Node) -> Option<Vec<String>> {
        let what = format!("`{key}`");
        let items = match (node.as_seq(), node.as_str()) {
            (Some(items), _) => items,
            (None, Some(_)) => std::slice::from_ref(node),
            (None, None) => {
                parser
                    .error(node.wrong_type(&what, "a list of namespaces").help("for example `[monitoring]`"));
                return None;
            }
        };
        let mut names = Vec::with_capacity(items.len());
        for item in items {
            match item.as_str() {
                Some(name) if is_label(name) => names.push(name.to_owned()),
                Some(name) => parser.error(
                    Diagnostic::error(format!("`{name}` is no name of a namespace"))
                        .at(&item.span)
                        .label("lower-case letters, digits and `-`"),
                ),
                None => parser.error(item.wrong_type(&what, "a list of namespaces")),
            }
        }
        Some(names)
    }
}

#[derive(Debug)]
struct Lease;

impl Form for Lease {
    type Value = Option<(String, String)>;

    fn shape(&self) -> Shape {
        Shape::Text
    }

    fn default(&self) -> Option<String> {
        None
    }

    fn usual(&self) -> Self::Value {
        None
    }

    fn read(&self, parser: &mut Parser<'_>, _key: &str, node: &Node) -> Option<Self::Value> {
        let named = node.as_str().and_then(|text| text.split_once('/'));
        if let Some((namespace, name)) =
            named.filter(|(namespace, name)| is_label(namespace) && is_label(name))
        {
            return Some(Some((namespace.to_owned(), name.to_owned())));
        }
        let error = match node.as_str() {
            Some(text) => {
                Diagnostic::error(format!("`lock` wants NAMESPACE/NAME of a Lease, got \"{text}\""))
                    .at(&node.span)
            }
            None => node.wrong_type("`lock`", "NAMESPACE/NAME of a Lease"),
        };
        parser.error(
            error.help("all runs on a cluster need the same one; without `lock` it is `default/gpufleet`"),
        );
        None
    }
}

#[derive(Debug)]
struct MigManagerForm;

impl MigManagerForm {
    const WORDS: &[&str] = &["refuse", "takeover"];
    const WANTED: &str = "refuse, takeover or {label: CONFIG}";
}

impl Form for MigManagerForm {
    type Value = OnMigManager;

    fn shape(&self) -> Shape {
        Shape::AnyOf(vec![Shape::Words(Self::WORDS), Shape::Mapping(vec![LABEL.info()])])
    }

    fn default(&self) -> Option<String> {
        Some("refuse".to_owned())
    }

    fn usual(&self) -> OnMigManager {
        OnMigManager::default()
    }

    fn read(&self, parser: &mut Parser<'_>, _key: &str, node: &Node) -> Option<OnMigManager> {
        match node.as_str() {
            Some("refuse") => return Some(OnMigManager::Refuse),
            Some("takeover") => return Some(OnMigManager::Takeover),
            Some(other) => parser.error(
                Diagnostic::error(format!("`mig_manager` wants {}, got \"{other}\"", Self::WANTED))
                    .at(&node.span)
                    .suggest(other, Self::WORDS.iter().copied()),
            ),
            None if node.as_map().is_some() => {
                parser.settings(node, "`mig_manager`", &[LABEL.name]);
                if node.get(LABEL.name).is_some() {
                    let label = LABEL.read(parser, node)?;
                    if !gpufleet_protocol::kubernetes::is_value(&label) {
                        let what = format!(
                            "mig-manager cannot be told to lay out `{label}`: the name becomes the value of the label \
                                            `nvidia.com/mig.config`, which Kubernetes refuses"
                        );
                        parser.error(
                            Diagnostic::error(what)
                                .at(node.get(LABEL.name).map_or(&node.span, |value| &value.span))
                                .help(
                                    "give that configuration of mig-manager's file another name, of up to 63 letters, digits and `-_.` \
                                     that begins and ends with a letter or digit (`+` is not allowed: write `all-1g.24gb.gfx`)",
                                ),
                        );
                        return None;
                    }
                    return Some(OnMigManager::Label(label));
                }
                parser.error(node.wrong_type("`mig_manager`", Self::WANTED));
            }
            None => parser.error(node.wrong_type("`mig_manager`", Self::WANTED)),
        }
        None
    }
}

/// A DNS label (RFC 1123), as namespaces and Leases are named.
fn is_label(name: &str) -> bool {
    let outer =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = name.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    name.len() <= 63 && bytes.iter().all(inner) && outer(bytes.first()) && outer(bytes.last())
}
