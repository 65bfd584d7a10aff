//! Which variables an evaluation sees.

use std::fmt;
use std::sync::Arc;

use super::outside::Outside;
use super::value::{Dict, Value};

/// Variables in layers: the first layer that has a name decides.
#[derive(Clone, Default)]
pub struct Scope {
    layers: Vec<Arc<Dict>>,
    outside: Option<Arc<dyn Outside>>,
    /// What a name has that no layer has; none where it is undefined.
    rest: Option<Value>,
}

impl Scope {
    /// Layers in falling precedence.
    pub fn new(layers: Vec<Arc<Dict>>) -> Arc<Self> {
        Arc::new(Self { layers, outside: None, rest: None })
    }

    /// The same, where others may define what these layers do not: it is unknown, not undefined.
    pub fn partial(layers: Vec<Arc<Dict>>) -> Arc<Self> {
        Arc::new(Self { layers, outside: None, rest: Some(Value::Unknown) })
    }

    /// The same, for templates that may look things up outside of variables.
    pub fn looking(layers: Vec<Arc<Dict>>, outside: Arc<dyn Outside>) -> Arc<Self> {
        Arc::new(Self { layers, outside: Some(outside), rest: None })
    }

    /// The value as written, not rendered.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.layers.iter().find_map(|layer| layer.get(name)).or(self.rest.as_ref())
    }

    /// This scope below another layer.
    pub fn with(&self, layer: Arc<Dict>) -> Arc<Self> {
        let mut layers = Vec::with_capacity(self.layers.len() + 1);
        layers.push(layer);
        layers.extend(self.layers.iter().cloned());
        Arc::new(Self { layers, outside: self.outside.clone(), rest: self.rest.clone() })
    }

    /// Other layers with the same things to look up.
    pub(super) fn beside(&self, layers: Vec<Arc<Dict>>) -> Arc<Self> {
        Arc::new(Self { layers, outside: self.outside.clone(), rest: self.rest.clone() })
    }

    /// Every name, in no useful order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.layers.iter().flat_map(|layer| layer.keys())
    }

    pub(super) fn outside(&self) -> Option<&Arc<dyn Outside>> {
        self.outside.as_ref()
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("layers", &self.layers).finish_non_exhaustive()
    }
}
