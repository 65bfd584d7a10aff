//! What a change is about: the thing, its property, and the layer of the node that holds the value.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The thing on a node that a change is about.
///
/// A kind uses the subject that fits; a new one is added only for a sort of thing that none of these names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Subject {
    /// The node itself: its host name, or whether it was rebooted.
    Node,
    Gpu {
        /// As the driver counts.
        index: u32,
        uuid: String,
    },
    /// NVIDIA's Multi-Process Service: its daemon and the defaults that it gives.
    Mps,
    /// The state of the GPUs that the node asserts at each boot.
    KeptState,
    /// A file, directory, link or device.
    File {
        path: String,
    },
    /// Everything below a directory.
    Tree {
        path: String,
    },
    /// A file on the controller.
    ControllerFile {
        path: String,
    },
    /// A line, or a match of a pattern, in a text file.
    Line {
        path: String,
    },
    /// A block of lines between two marks in a text file.
    Block {
        path: String,
        /// The mark before the block.
        marker: String,
    },
    /// What is mounted on a path.
    Mount {
        path: String,
    },
    /// A line of fstab.
    FstabEntry {
        /// The mount point, or the device of a swap entry.
        name: String,
        file: String,
    },
    CronJob {
        name: String,
        table: CronTable,
    },
    /// An environment variable of a crontab.
    CronVariable {
        name: String,
        table: CronTable,
    },
    /// A systemd unit.
    Unit {
        name: String,
    },
    /// systemd itself.
    ServiceManager,
    /// A value below `/proc/sys` or `/sys`.
    KernelSetting {
        /// As people write it: `vm.swappiness`, `transparent_hugepage/enabled`.
        name: String,
    },
    /// A parameter on the kernel command line of the boot entries.
    KernelCommandLine {
        /// Without its value: `iommu`.
        parameter: String,
    },
    /// A kernel module.
    Module {
        name: String,
    },
    Package {
        name: String,
    },
    /// A module stream of dnf.
    PackageModule {
        name: String,
    },
    /// The package manager: its lists and what it downloaded.
    PackageManager,
    /// A key that packages may be signed with.
    SigningKey {
        /// Its fingerprint, or as much of it as is known.
        id: String,
    },
    User {
        name: String,
    },
    Group {
        name: String,
    },
    /// A label of the node's object at Kubernetes.
    KubernetesLabel {
        key: String,
    },
    /// A taint of the node's object at Kubernetes.
    KubernetesTaint {
        key: String,
        /// `NoSchedule` and the like.
        effect: String,
    },
    /// Changes that a list has no room for.
    Omitted {
        count: usize,
    },
    /// What a record of gpufleet from before typed changes says, in its words.
    Described {
        text: String,
    },
}

/// Where cron reads a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum CronTable {
    /// The crontab of a user.
    User(String),
    /// A file, such as one of `/etc/cron.d`.
    File(String),
}

macro_rules! named {
    ($($name:ident => $variant:ident . $field:ident),* $(,)?) => {
        $(
            pub fn $name($field: impl Into<String>) -> Self {
                Self::$variant { $field: $field.into() }
            }
        )*
    };
}

impl Subject {
    named! {
        file => File.path,
        tree => Tree.path,
        line => Line.path,
        mount => Mount.path,
        unit => Unit.name,
        kernel_setting => KernelSetting.name,
        module => Module.name,
        package => Package.name,
        user => User.name,
        group => Group.name,
    }

    /// The index of the GPU, where it is one.
    pub const fn gpu_index(&self) -> Option<u32> {
        match self {
            Self::Gpu { index, .. } => Some(*index),
            _ => None,
        }
    }
}

/// What of a subject differs, in lower case and as people call it: `power limit`, `mode`, `content`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Property(Cow<'static, str>);

impl Property {
    /// What a file or a part of it holds.
    pub const CONTENT: Self = Self::new("content");
    /// How a unit, a module or a user is.
    pub const STATE: Self = Self::new("state");
    /// When a file was read and written last.
    pub const TIMES: Self = Self::new("times");
    /// File, directory, link or nothing.
    pub const TYPE: Self = Self::new("type");
    /// Of something that is nothing but its value.
    pub const VALUE: Self = Self::new("value");
    pub const VERSION: Self = Self::new("version");
    /// What is mounted.
    pub const SOURCE: Self = Self::new("source");

    pub const GROUP: Self = Self::new("group");
    pub const MODE: Self = Self::new("mode");
    pub const OPTIONS: Self = Self::new("options");
    pub const OWNER: Self = Self::new("owner");
    pub const PASSWORD: Self = Self::new("password");

    pub const COMPUTE_MODE: Self = Self::new("compute mode");
    pub const ECC: Self = Self::new("ECC");
    pub const GRAPHICS_CLOCK: Self = Self::new("graphics clock");
    pub const MEMORY_CLOCK: Self = Self::new("memory clock");
    pub const MODULE_POWER_LIMIT: Self = Self::new("module power limit");
    pub const MIG_LAYOUT: Self = Self::new("MIG layout");
    pub const MIG_MODE: Self = Self::new("MIG mode");
    pub const PERSISTENCE: Self = Self::new("persistence");
    pub const POWER_LIMIT: Self = Self::new("power limit");

    pub const ACCOUNT_ENDS: Self = Self::new("account ends");
    pub const HOME_DIRECTORY: Self = Self::new("home directory");

    /// Those that go without saying: `vm.swappiness`, not `vm.swappiness value`.
    const UNSAID: [Self; 7] =
        [Self::CONTENT, Self::STATE, Self::TIMES, Self::TYPE, Self::VALUE, Self::VERSION, Self::SOURCE];

    pub const fn new(name: &'static str) -> Self {
        Self(Cow::Borrowed(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the lock of one of a GPU's clocks.
    pub fn is_clock(&self) -> bool {
        *self == Self::GRAPHICS_CLOCK || *self == Self::MEMORY_CLOCK
    }

    /// Whether people see only the subject.
    pub(super) fn goes_unsaid(&self) -> bool {
        Self::UNSAID.contains(self)
    }
}

impl From<String> for Property {
    fn from(name: String) -> Self {
        Self(Cow::Owned(name))
    }
}

/// Where a node holds a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Layer {
    /// In force now, or once the change is activated.
    #[default]
    Live,
    /// Waits for a reset or reboot that would put it in force.
    Pending,
    /// The configuration that the next boot reads.
    Boot,
    /// The copy in the initramfs.
    Initramfs,
}

impl Layer {
    /// Whether it is [`Layer::Live`], which documents leave out.
    pub const fn is_live(&self) -> bool {
        matches!(self, Self::Live)
    }
}
