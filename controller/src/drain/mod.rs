//! Taking nodes out of a scheduler and giving them back.
//!
//! Owns a file for each scheduler: Slurm, Kubernetes, command hooks, none; and [`schedulers`], which makes them from what
//! plays declare. The trait that each implements is the engine's port ([`crate::engine::Drainer`]). Must not know the
//! engine's states.

mod command;
mod kubernetes;
mod login;
mod none;
mod runner;
mod setup;
mod slurm;

pub use command::{CommandDrainer, CommandOptions, HostHooks};
#[cfg(any(test, feature = "fuzzing"))]
pub use kubernetes::read_foreign_object;
pub use kubernetes::{
    Api, KubectlApi, KubernetesDrainer, KubernetesOptions, Lock, Method, MigManager, PodPolicy, Reply,
    Request, Unanswered, is_kubernetes_node_name,
};
#[cfg(feature = "kubernetes")]
pub use kubernetes::{ApiClient, Credentials};
pub use login::LoginRunner;
pub use none::NoDrainer;
pub use runner::LocalRunner;
pub use setup::{LoginError, Logins, PlayHosts, Schedulers, SetupError, Surroundings, schedulers};
#[cfg(any(test, feature = "fuzzing"))]
pub use slurm::read_foreign_text;
pub use slurm::{Notice, SlurmDrainer, SlurmOptions, is_node_name};

/// The port that drainers implement.
pub use crate::engine::{
    Activity, Call, Cordon, DrainError, Drainer, Effect, GpuOffer, Labelled, LeftBehind, Marker, NoticePlan,
    Outage, Output, Ownership, RebootOrder, RunError, Runner, Scheduler, Target, VainReboot, WantedObject,
};
