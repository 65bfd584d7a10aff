//! A drainer through `kubectl` from its declaration.

use std::sync::Arc;

use super::{
    Declared, Prepared,
    kubernetes::{made, names},
    templates::Rendering,
};
use crate::{diagnostic::Diagnostics, drain::KubectlApi, playbook::KubectlDrain};

impl Declared for KubectlDrain {
    fn prepare<'a>(&'a self, rendering: &mut Rendering<'a>, said: &mut Diagnostics) -> Option<Prepared<'a>> {
        let nodes = names(&self.cluster, rendering, said);
        let (play, forced) = (rendering.play, rendering.surroundings.forced);
        Some(Box::new(move |logins| {
            let runner = logins.runner_for(self.login.as_ref())?;
            let (kubeconfig, context) = (self.cluster.kubeconfig.clone(), self.cluster.context.clone());
            let api = Arc::new(KubectlApi::new(runner, kubeconfig, context));
            Ok(made(&self.cluster, play, nodes, api, forced))
        }))
    }
}
