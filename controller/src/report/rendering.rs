//! The formats of a report. A new one is a file with its function, and a line in [`RENDERERS`].

use super::{
    RunModel, Timing,
    csv::csv,
    document::json,
    html::html,
    junit::junit,
    markdown::markdown,
    openmetrics::{openmetrics, prometheus},
    sarif::sarif,
};
use crate::event::Event;

/// A document could not be created: always an error of gpufleet, never of the data.
#[derive(Debug, thiserror::Error)]
#[error("the report cannot be written as {format}")]
pub struct RenderError {
    format: &'static str,
    source: Fault,
}

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// A document format.
#[derive(Debug)]
pub struct Renderer {
    /// The word for `--format`.
    pub name: &'static str,
    /// The file name extensions, without the dot; the usual one first.
    pub endings: &'static [&'static str],
    /// Its purpose, for the help.
    pub summary: &'static str,
    make: fn(&RunModel, &[Event]) -> Result<String, Fault>,
}

pub static JSON: Renderer = Renderer {
    name: "json",
    endings: &["json"],
    summary: "One JSON document, as docs/schema/report.schema.json describes it",
    make: |model, _| Ok(json(model)?),
};

pub static HTML: Renderer = Renderer {
    name: "html",
    endings: &["html"],
    summary: "One page for a browser",
    make: |model, _| Ok(html(model)?),
};

static JUNIT: Renderer = Renderer {
    name: "junit",
    endings: &["xml"],
    summary: "JUnit XML: a suite a play, a case a task of a node",
    make: |model, events| Ok(junit(&Timing::of(events), model)?),
};

static SARIF: Renderer = Renderer {
    name: "sarif",
    endings: &["sarif"],
    summary: "SARIF 2.1.0: a result a finding of a node",
    make: |model, _| Ok(sarif(model)?),
};

static CSV: Renderer = Renderer {
    name: "csv",
    endings: &["csv"],
    summary: "CSV: a line a finding of a node",
    make: |model, _| csv(model),
};

static MARKDOWN: Renderer = Renderer {
    name: "md",
    endings: &["md"],
    summary: "Markdown tables: findings, then nodes",
    make: |model, _| Ok(markdown(model)),
};

static PROMETHEUS: Renderer = Renderer {
    name: "prometheus",
    endings: &["prom"],
    summary: "Text format of Prometheus, for node_exporter: verdicts and findings of nodes, readings of their GPUs",
    make: |model, _| Ok(prometheus(&[model])),
};

static OPENMETRICS: Renderer = Renderer {
    name: "openmetrics",
    endings: &["om"],
    summary: "OpenMetrics 1.0, for scrapers that ask for it; the families of prometheus",
    make: |model, _| Ok(openmetrics(&[model])),
};

/// All formats, in the order of the help.
pub static RENDERERS: &[&Renderer] =
    &[&JSON, &HTML, &JUNIT, &SARIF, &CSV, &MARKDOWN, &PROMETHEUS, &OPENMETRICS];

impl Renderer {
    /// Returns the format with this name.
    pub fn of(name: &str) -> Option<&'static Self> {
        RENDERERS.iter().copied().find(|renderer| renderer.name == name)
    }

    /// Returns the format with this file name extension; `None` if there is none.
    pub fn for_ending(ending: &str) -> Option<&'static Self> {
        RENDERERS.iter().copied().find(|renderer| renderer.endings.contains(&ending))
    }

    /// Renders a run, finished or not, from its model or from the events of that model.
    ///
    /// # Errors
    /// [`RenderError`].
    pub fn render(&self, model: &RunModel, events: &[Event]) -> Result<String, RenderError> {
        (self.make)(model, events).map_err(|source| RenderError { format: self.name, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn words_and_endings_name_one_document_each() {
        for renderer in RENDERERS {
            assert_eq!(Renderer::of(renderer.name).map(|found| found.name), Some(renderer.name));
            for ending in renderer.endings {
                assert_eq!(Renderer::for_ending(ending).map(|found| found.name), Some(renderer.name));
            }
        }
    }

    #[test]
    fn every_document_tells_of_every_node() {
        let events = sample::run();
        let model = RunModel::of(&events);
        for renderer in RENDERERS {
            let text = renderer.render(&model, &events).unwrap();
            let missing: Vec<_> = model.nodes().iter().filter(|node| !text.contains(&node.name)).collect();
            assert!(missing.is_empty(), "{}: {missing:?}", renderer.name);
        }
    }
}
