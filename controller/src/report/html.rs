//! The report as one plain HTML page, without external scripts, styles or fonts.
//!
//! Texts of nodes are escaped. In addition, a policy in the page lets a browser run only the page's own script and
//! style, identified by their digests.

use base64ct::{Base64, Encoding};
use minijinja::{Environment, UndefinedBehavior, Value, syntax::SyntaxConfig, value::Serde};
use sha2::{Digest, Sha256};

use super::{RunModel, page::Page};
use crate::visible::escape_visible;

const STYLE: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");

/// Returns the content security policy of the page.
fn policy() -> String {
    let source = |text: &str| format!("'sha256-{}'", Base64::encode_string(&Sha256::digest(text)));
    format!(
        "default-src 'none'; script-src {}; style-src {}; base-uri 'none'; form-action 'none'",
        source(SCRIPT),
        source(STYLE)
    )
}

/// The page could not be rendered: an error in the template, never in the data.
#[derive(Debug, thiserror::Error)]
#[error("render the report")]
pub struct HtmlError(#[from] minijinja::Error);

/// Renders the report of a run, finished or not.
///
/// # Errors
/// Only for an error in the built-in template; a test renders every part of it.
pub fn html(model: &RunModel) -> Result<String, HtmlError> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_formatter(escape_visible);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    // The name's ending enables HTML escaping, which every text here needs.
    environment.add_template("report.html", include_str!("report.html.j2"))?;
    let mut page = Page::of(model);
    let island = Value::from_safe_string(std::mem::take(&mut page.island));
    let page = Value::from(Serde(page));
    let (style, script) =
        (Value::from_safe_string(STYLE.to_owned()), Value::from_safe_string(SCRIPT.to_owned()));
    let policy = Value::from_safe_string(policy());
    Ok(environment
        .get_template("report.html")?
        .render(minijinja::context! { page, island, style, script, policy })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::{sample, sample_audit},
        visible::is_hidden,
    };

    /// Writes the pages to the folder in `SAMPLES`, if set, for inspection.
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
            "A person has to look",
        ] {
            assert!(page.contains(text), "{text}");
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

    /// Names, reasons, tasks, values, hardware and errors, each as text that would end an element, an attribute or a
    /// script.
    #[test]
    fn what_comes_from_outside_stands_in_no_markup() {
        let evil = "\"'></title></style></script><img src=x onerror=alert(1)>\u{2028}<!--";
        let mut stream = sample::Stream::new();
        let hosts = [evil.to_owned()];
        stream.started(crate::event::Verb::Run, &hosts);
        stream.facts(evil, sample::facts(evil, false));
        let mut report = sample::report("command", 3, crate::event::TaskStatus::Failed);
        (report.task, report.message) = (evil.to_owned(), Some(evil.to_owned()));
        report.position.file = evil.into();
        report.warnings = vec![evil.to_owned()];
        report.changes = vec![gpufleet_protocol::Change::new(
            gpufleet_protocol::Subject::file(evil),
            gpufleet_protocol::Property::from(evil.to_owned()),
            evil,
            evil,
            gpufleet_protocol::Disruption::Live,
        )];
        stream.task(evil, report);
        stream.end(evil, crate::event::NodeState::Failed, Some(evil));
        let page = html(&RunModel::of(&stream.events)).unwrap();
        assert!(!page.contains("<img") && !page.contains(evil), "{page}");
        let count = |text: &str| page.matches(text).count();
        assert_eq!((count("<script"), count("</script"), count("<style"), count("</style")), (2, 2, 1, 1));
        assert_eq!(count("</title>"), 1 + page.matches("<rect").count());
        let harmless = count("x onerror=alert(1)&gt;") + count("x onerror=alert(1)\\u003e");
        assert!(harmless > 5 && count("onerror=alert") == harmless, "{page}");
    }

    #[test]
    fn the_policy_names_what_the_page_has() {
        let page = html(&RunModel::of(&sample::run())).unwrap();
        let policy = policy();
        assert!(page.contains(&format!("content=\"{policy}\"")), "{policy}");
        assert!(
            page.contains(&format!("<style>{STYLE}</style>"))
                && page.contains(&format!("<script>{SCRIPT}</script>"))
        );
        assert!(!page.contains(" style=\"") && !page.contains("javascript:") && !page.contains(" onclick"));
    }

    #[test]
    fn what_is_not_seen_is_shown() {
        let mut stream = sample::Stream::new();
        stream.started(crate::event::Verb::Run, &sample::names(1));
        stream.end("gpu001", crate::event::NodeState::Failed, Some("a\u{202e}b\u{200b}c\u{1b}[2Jd"));
        let page = html(&RunModel::of(&stream.events)).unwrap();
        assert!(page.contains("a\\u202eb\\u200bc\\u001b[2Jd"));
        assert!(!page.contains(|c| is_hidden(c) && !matches!(c, '\n' | '\t')));
    }

    #[test]
    fn a_thousand_nodes_make_a_page_of_a_few_megabytes() {
        let page = html(&RunModel::of(&sample::audit(1000))).unwrap();
        keep("audit-1000.html", &page);
        assert!(page.len() < 500_000, "{} bytes", page.len());
        assert!(page.contains("nodes could not be read"));
        keep("audit-8.html", &html(&RunModel::of(&sample::audit(8))).unwrap());
        keep("plan-16.html", &html(&RunModel::of(&sample::plan())).unwrap());
        keep("checked-24.html", &html(&RunModel::of(&sample_audit::checked(24, 8))).unwrap());
        if std::env::var_os("SAMPLES").is_some() {
            keep("checked-240.html", &html(&RunModel::of(&sample_audit::checked(240, 8))).unwrap());
        }
    }

    #[test]
    fn a_run_without_events_has_a_page() {
        assert!(html(&RunModel::new()).unwrap().contains("No node was selected"));
    }
}
