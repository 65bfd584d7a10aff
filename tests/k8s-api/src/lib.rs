//! A Kubernetes API server that is not there: what a drain touches, answered as a real kube-apiserver answers it.
//!
//! Behind the API stand models of the disruption controller, the workload controllers, the scheduler, the node controller,
//! kubelets, device plugins and gpu-operator's mig-manager, all on a clock that tests move. Replies were compared with those
//! that a real server of Kubernetes 1.36 gave (`transcripts/`). Nothing of this is linked into the controller, and nothing
//! here knows any client.
//!
//! Start with [`server::Server`]; [`scenario`] says what the cluster is, [`faults`] what goes wrong, [`log`] what happened.

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
