//! The loop of a task: `loop`, the keys `with_…` and `loop_control`.

use std::sync::Arc;

use super::Parser;
use crate::diagnostic::Diagnostic;
use crate::playbook::program::Loop;
use crate::template::check_lookup;
use crate::yaml::Node;

/// Prefix of these keys.
pub(super) const PREFIX: &str = "with_";

impl Parser<'_> {
    /// Parses the loop of a task, if it has one.
    pub(super) fn looped(&mut self, node: &Node) -> Option<Loop> {
        let (lookup, with) = self.loop_lookup(node);
        let (items, flatten) = match (node.entry("loop"), node.entry("with_items").or(with)) {
            (Some(_), Some((key, _))) => {
                let other = key.key_text();
                self.error(Diagnostic::error(format!("`loop` and `{other}` are two loops")).at(&key.span));
                return None;
            }
            (Some((_, items)), None) => (items, false),
            (None, Some((_, items))) => (items, true),
            (None, None) => {
                if lookup.is_some() {
                    return None;
                }
                if let Some((key, control)) = node.entry("loop_control")
                    && control.as_map().is_none_or(|words| !words.is_empty())
                {
                    self.error(Diagnostic::error("`loop_control` without `loop`").at(&key.span));
                }
                return None;
            }
        };
        let single = items.as_str().is_some_and(|text| !crate::template::is_template(text));
        if !flatten && (single || (items.as_seq().is_none() && items.as_str().is_none())) {
            self.error(
                items
                    .wrong_type("`loop`", "a list or a template that gives one")
                    .help("write a list, or `loop: \"{{ name }}\"`"),
            );
        }
        let mut looped = Loop {
            items: self.value(items),
            span: items.span.clone(),
            flatten: flatten && lookup.is_none(),
            lookup,
            variable: Arc::from("item"),
            index_variable: None,
            label: None,
            extended: false,
            pause: None,
            break_when: Vec::new(),
        };
        if let Some(control) = node.get("loop_control") {
            if control.as_map().is_none() {
                self.error(control.wrong_type("`loop_control`", "a mapping"));
                return Some(looped);
            }
            let unknown = control.refuse_unknown_keys(
                "`loop_control`",
                &["loop_var", "index_var", "label", "extended", "extended_allitems", "pause", "break_when"],
            );
            self.errors.append(unknown);
            looped.extended = control.get("extended").is_some_and(|value| self.fixed_flag("extended", value));
            looped.pause = control.get("pause").map(|value| self.value(value));
            // Kept apart, because it sees the task's own result.
            let kept = self.take_references();
            looped.break_when = control
                .get("break_when")
                .map(|value| self.conditions("break_when", value))
                .unwrap_or_default();
            self.references = kept;
            if let Some(name) = control.get("loop_var").and_then(|value| self.name("loop_var", value)) {
                looped.variable = name;
            }
            looped.index_variable = control.get("index_var").and_then(|value| self.name("index_var", value));
            looped.label = control.get("label").map(|value| self.value(value));
        }
        Some(looped)
    }

    /// Returns the lookup that a task loops over, with its key and terms, or reports why there is none.
    ///
    /// `with_items` is not one, but a plain loop.
    pub(super) fn loop_lookup<'n>(
        &mut self,
        node: &'n Node,
    ) -> (Option<Arc<str>>, Option<(&'n Node, &'n Node)>) {
        let entries = node.as_map().unwrap_or_default().iter();
        let mut loops = entries.filter(|(key, _)| key.as_str().is_some_and(|key| key.starts_with(PREFIX)));
        let Some((key, terms)) = loops.next() else { return (None, None) };
        let name = key.as_str().and_then(|key| key.strip_prefix(PREFIX)).unwrap_or_default();
        let failed = (Some(Arc::from(name)), None);
        if let Some((second, _)) = loops.next() {
            let (first, text) = (key.key_text(), second.key_text());
            self.error(Diagnostic::error(format!("`{first}` and `{text}` are two loops")).at(&second.span));
            return failed;
        }
        if name == "items" {
            return (None, None);
        }
        if let Err(error) = check_lookup(name) {
            let diagnostic = Diagnostic::error(error.message()).at(&key.span);
            self.error(match error.suggestion() {
                Some(near) => diagnostic.help(format!("did you mean `{PREFIX}{near}`?")),
                None => diagnostic.help("use `loop` with a list"),
            });
            return failed;
        }
        let name = name.rsplit('.').next().unwrap_or(name);
        (Some(Arc::from(name)), Some((key, terms)))
    }
}
