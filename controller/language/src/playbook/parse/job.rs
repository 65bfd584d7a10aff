//! `async` and `poll`: tasks that run in the background.

use gpufleet_protocol::tasks::{Alone, KindInfo};

use super::Parser;
use crate::diagnostic::Diagnostic;
use crate::playbook::program::Async;
use crate::template::{Value, is_template};
use crate::yaml::Node;

impl Parser<'_> {
    /// Parses `async` and `poll`; `async: 0` is the same as none.
    pub(super) fn job(&mut self, node: &Node, kind: &KindInfo) -> Option<Async> {
        let poll = node.get("poll").and_then(|value| self.whole_seconds("poll", value));
        let (key, value) = node.entry("async")?;
        let seconds = self.whole_seconds("async", value)?;
        if matches!(seconds, Value::Int(0)) {
            return None;
        }
        if let Alone::No { why, instead } = kind.alone {
            self.error(
                Diagnostic::error(format!("`async` cannot be used with `{}`", kind.name))
                    .at(&key.span)
                    .label(why)
                    .help(instead),
            );
            return None;
        }
        Some(Async { seconds, poll })
    }

    /// Parses a number of seconds from 0, or a template for one; `None` if there is none.
    fn whole_seconds(&mut self, key: &str, node: &Node) -> Option<Value> {
        if node.is_null() {
            return None;
        }
        if node.as_str().is_some_and(is_template) {
            return Some(self.value(node));
        }
        let number = node.scalar_text().and_then(|text| text.trim().parse::<i64>().ok());
        match number.filter(|number| *number >= 0) {
            Some(number) => Some(Value::Int(number)),
            None => {
                let got =
                    node.scalar_text().map_or_else(|| node.kind().to_owned(), |text| format!("\"{text}\""));
                let text = format!("`{key}` wants a whole number of seconds from 0, got {got}");
                self.error(Diagnostic::error(text).at(&node.span));
                None
            }
        }
    }
}
