//! Which variables an evaluation sees.

use std::fmt;
use std::sync::Arc;

use super::inert;
use super::outside::Outside;
use super::value::{Dict, Value};

/// Variables in layers: the first layer that has a name decides.
#[derive(Clone, Default)]
pub struct Scope {
    layers: Vec<Arc<Dict>>,
    outside: Option<Arc<dyn Outside>>,
    /// Those of the layers that hold what nodes said.
    said: Vec<Arc<Dict>>,
    /// What a name has that no layer has; none where it is undefined.
    rest: Option<Value>,
}

impl Scope {
    /// Layers in falling precedence.
    pub fn new(layers: Vec<Arc<Dict>>) -> Arc<Self> {
        Arc::new(Self { layers, ..Self::default() })
    }

    /// The same, where others may define what these layers do not: it is unknown, not undefined.
    pub fn partial(layers: Vec<Arc<Dict>>) -> Arc<Self> {
        Arc::new(Self { layers, rest: Some(Value::Unknown), ..Self::default() })
    }

    /// The same, for templates that may look things up outside of variables. `said`: those of the layers that hold what nodes
    /// said.
    pub fn looking(layers: Vec<Arc<Dict>>, outside: Arc<dyn Outside>, said: Vec<Arc<Dict>>) -> Arc<Self> {
        Arc::new(Self { layers, outside: Some(outside), said, rest: None })
    }

    /// The same variables with marks in what nodes said; none where they said nothing.
    pub fn masked(&self) -> Option<Arc<Self>> {
        let is_said = |layer: &Arc<Dict>| self.said.iter().any(|said| Arc::ptr_eq(said, layer));
        let mask = |layer: &Arc<Dict>| if is_said(layer) { inert::masked(layer) } else { Arc::clone(layer) };
        (!self.said.is_empty()).then(|| {
            let layers = self.layers.iter().map(mask).collect();
            Arc::new(Self { layers, said: Vec::new(), ..self.clone() })
        })
    }

    /// Whether some of it is what nodes said.
    pub(super) fn hears_nodes(&self) -> bool {
        !self.said.is_empty()
    }

    /// The value as written, not rendered.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.layers.iter().find_map(|layer| layer.get(name)).or(self.rest.as_ref())
    }

    /// This scope below another layer.
    pub fn with(&self, layer: Arc<Dict>) -> Arc<Self> {
        let mut layers = Vec::with_capacity(self.layers.len() + 1);
        layers.push(Arc::clone(&layer));
        layers.extend(self.layers.iter().cloned());
        let mut below = self.clone();
        // Why: results of nodes come this way.
        if self.hears_nodes() {
            below.said.push(layer);
        }
        Arc::new(Self { layers, ..below })
    }

    /// Other layers with the same things to look up.
    pub(super) fn beside(&self, layers: Vec<Arc<Dict>>) -> Arc<Self> {
        let said = if self.hears_nodes() { layers.clone() } else { Vec::new() };
        Arc::new(Self { layers, said, outside: self.outside.clone(), rest: self.rest.clone() })
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
