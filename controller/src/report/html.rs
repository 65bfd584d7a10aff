//! The report as one plain page of HTML, without scripts, styles or fonts from elsewhere.

use minijinja::{Environment, UndefinedBehavior, Value, syntax::SyntaxConfig, value::Serde};

use super::{RunModel, page::Page};

/// The page could not be rendered: a fault of the template, never of the data.
#[derive(Debug, thiserror::Error)]
#[error("render the report")]
pub struct HtmlError(#[from] minijinja::Error);

/// Renders the report of a run, finished or not.
///
/// # Errors
/// Only a fault of the built-in template; a test renders every part of it.
pub fn html(model: &RunModel) -> Result<String, HtmlError> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    // Why this name: its ending switches HTML escaping on, and every text here comes from somewhere else.
    environment.add_template("report.html", include_str!("report.html.j2"))?;
    let page = Value::from(Serde(Page::of(model)));
    Ok(environment.get_template("report.html")?.render(minijinja::context! { page })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    /// Writes the pages where `SAMPLES` names a folder, for a look at them.
    fn keep(name: &str, page: &str) {
        if let Some(folder) = std::env::var_os("SAMPLES") {
            std::fs::write(std::path::Path::new(&folder).join(name), page).unwrap();
        }
    }

    #[test]
    fn a_page_stands_alone() {
        let page = html(&RunModel::of(&sample::run())).unwrap();
        keep("run.html", &page);
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
        for text in [
            "5 of 8 nodes are as declared",
            "gpu004",
            "limit 900 W is above",
            "pid 41277",
            "Could not be read",
        ] {
            let wanted = text != "Could not be read";
            assert_eq!(page.contains(text), wanted, "{text}");
        }
    }

    #[test]
    fn what_a_node_says_is_escaped() {
        let mut stream = sample::Stream::new();
        stream.started(crate::event::Verb::Run, &sample::names(1));
        stream.end("gpu001", crate::event::NodeState::Failed, Some("<script>alert(1)</script> & 'x'"));
        let page = html(&RunModel::of(&stream.events)).unwrap();
        assert!(!page.contains("<script>alert"));
        assert!(page.contains("&lt;script&gt;alert(1)&lt;"));
    }

    #[test]
    fn a_thousand_nodes_make_a_page_of_a_few_megabytes() {
        let page = html(&RunModel::of(&sample::audit(1000))).unwrap();
        keep("audit-1000.html", &page);
        assert!(page.len() < 4_000_000, "{} bytes", page.len());
        assert!(page.contains("nodes could not be read"));
        keep("audit-8.html", &html(&RunModel::of(&sample::audit(8))).unwrap());
        keep("plan-16.html", &html(&RunModel::of(&sample::plan())).unwrap());
    }

    #[test]
    fn a_run_without_events_has_a_page() {
        assert!(html(&RunModel::new()).unwrap().contains("No node was selected"));
    }
}
