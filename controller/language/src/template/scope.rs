//! The variables that an evaluation sees.

use std::fmt;
use std::sync::Arc;

use super::inert::{self, Guard};
use super::outside::Outside;
use super::value::{Dict, Value};

/// Whose text a layer of variables holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teller {
    /// The node's facts.
    Facts,
    /// Results of tasks, which may have been done on the controller, and what was made of them.
    Results,
    /// Other nodes of the run.
    Others,
}

impl Teller {
    pub const ALL: [Self; 3] = [Self::Facts, Self::Results, Self::Others];
    /// Those that choose no path of the controller. Why not results: `find` and `tempfile` of the controller give paths.
    pub const OF_NODES: [Self; 2] = [Self::Facts, Self::Others];
}

/// Variables in layers; the first layer that has a name wins.
#[derive(Clone, Default)]
pub struct Scope {
    layers: Vec<Arc<Dict>>,
    outside: Option<Arc<dyn Outside>>,
    /// The layers that hold text from nodes.
    said: Vec<(Arc<Dict>, Teller)>,
    /// The value of a name that no layer has; `None` if it is undefined.
    rest: Option<Value>,
}

impl Scope {
    /// Creates a scope from layers in falling precedence.
    pub fn new(layers: Vec<Arc<Dict>>) -> Arc<Self> {
        Arc::new(Self { layers, ..Self::default() })
    }

    /// Creates a scope in which names that no layer has are unknown, not undefined.
    pub fn partial(layers: Vec<Arc<Dict>>) -> Arc<Self> {
        Arc::new(Self { layers, rest: Some(Value::Unknown), ..Self::default() })
    }

    /// Creates a scope for templates with lookups. `said` are the layers that hold text from nodes.
    pub fn looking(
        layers: Vec<Arc<Dict>>,
        outside: Arc<dyn Outside>,
        said: Vec<(Arc<Dict>, Teller)>,
    ) -> Arc<Self> {
        Arc::new(Self { layers, outside: Some(outside), said, rest: None })
    }

    /// Returns the variables with marks in text of these tellers; `None` if there is no such text.
    pub fn masked(&self, guard: Guard, tellers: &[Teller]) -> Option<Arc<Self>> {
        let is_said = |layer: &Arc<Dict>| {
            self.said.iter().any(|(said, teller)| tellers.contains(teller) && Arc::ptr_eq(said, layer))
        };
        let mask =
            |layer: &Arc<Dict>| if is_said(layer) { inert::masked(layer, guard) } else { Arc::clone(layer) };
        self.hears(tellers).then(|| {
            let layers = self.layers.iter().map(mask).collect();
            Arc::new(Self { layers, said: Vec::new(), ..self.clone() })
        })
    }

    /// Whether a layer holds text from nodes.
    pub(super) fn hears_nodes(&self) -> bool {
        !self.said.is_empty()
    }

    /// Whether a layer holds text of these.
    pub(super) fn hears(&self, tellers: &[Teller]) -> bool {
        self.said.iter().any(|(_, teller)| tellers.contains(teller))
    }

    /// Returns the value as written, not rendered.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.layers.iter().find_map(|layer| layer.get(name)).or(self.rest.as_ref())
    }

    /// Returns this scope with another layer on top.
    pub fn with(&self, layer: Arc<Dict>) -> Arc<Self> {
        let mut layers = Vec::with_capacity(self.layers.len() + 1);
        layers.push(Arc::clone(&layer));
        layers.extend(self.layers.iter().cloned());
        let mut below = self.clone();
        // The new layer may hold results of nodes.
        if self.hears_nodes() {
            below.said.push((layer, Teller::Results));
        }
        Arc::new(Self { layers, ..below })
    }

    /// Returns a scope of other layers with the same lookups.
    pub(super) fn beside(&self, layers: Vec<Arc<Dict>>) -> Arc<Self> {
        let heard = layers.iter().filter(|_| self.hears_nodes());
        let said = heard.map(|layer| (Arc::clone(layer), Teller::Results)).collect();
        Arc::new(Self { layers, said, outside: self.outside.clone(), rest: self.rest.clone() })
    }

    /// Returns every name, in no particular order.
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
