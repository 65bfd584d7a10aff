//! The keys `with_…`: loops over what a lookup gives.

use std::sync::Arc;

use super::Parser;
use crate::diagnostic::Diagnostic;
use crate::template::check_lookup;
use crate::yaml::Node;

/// What all of these keys begin with.
pub(super) const PREFIX: &str = "with_";

impl Parser<'_> {
    /// The lookup that a task loops over, and its key and terms. Without the entry there is an error, which is noted.
    ///
    /// Not `with_items`, which is a plain loop.
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
