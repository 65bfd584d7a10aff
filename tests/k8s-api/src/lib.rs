//! A simulated Kubernetes API server: the part that a drain uses, with the answers of a real kube-apiserver.
//!
//! Behind the API are models of the disruption controller, the workload controllers, the scheduler, the node
//! controller, kubelets, device plugins and gpu-operator's mig-manager, all on a clock that tests move. Replies were
//! compared with those of a real server of Kubernetes 1.36 (`transcripts/`). The controller links nothing of this,
//! and this crate must not know any client.
//!
//! Start with [`server::Server`]. [`scenario`] describes the cluster, [`faults`] what fails, [`log`] what happened.

pub mod access;
pub mod api;
pub mod clock;
pub mod cluster;
pub mod control;
pub mod defaults;
pub mod faults;
mod http;
pub mod kubeconfig;
pub mod lab;
pub mod log;
pub mod managed;
pub mod model;
pub mod object;
pub mod patch;
pub mod resources;
pub mod scenario;
pub mod schema;
pub mod selector;
pub mod server;
pub mod settings;
pub mod status;
pub mod store;
pub mod tls;
