//! Which variables an evaluation sees.

use std::sync::Arc;

use super::value::{Dict, Value};

/// Variables in layers: the first layer that has a name decides.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    layers: Vec<Arc<Dict>>,
}

impl Scope {
    /// Layers in falling precedence.
    pub fn new(layers: Vec<Arc<Dict>>) -> Arc<Self> {
        Arc::new(Self { layers })
    }

    /// The value as written, not rendered.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.layers.iter().find_map(|layer| layer.get(name))
    }

    /// This scope below another layer.
    pub fn with(&self, layer: Arc<Dict>) -> Arc<Self> {
        let mut layers = Vec::with_capacity(self.layers.len() + 1);
        layers.push(layer);
        layers.extend(self.layers.iter().cloned());
        Arc::new(Self { layers })
    }

    /// Every name, in no useful order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.layers.iter().flat_map(|layer| layer.keys())
    }
}
