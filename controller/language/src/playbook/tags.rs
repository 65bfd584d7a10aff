//! `--tags` and `--skip-tags`: which tasks run.

use serde::{Deserialize, Serialize};

/// A selection by tags; the default runs everything that is not tagged `never`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagFilter {
    /// Empty means `all`.
    pub only: Vec<String>,
    pub skip: Vec<String>,
}

impl TagFilter {
    /// Whether a task with these tags runs, by Ansible's rules for `always`, `never`, `all`, `tagged`, `untagged`.
    pub fn runs(&self, tags: &[String]) -> bool {
        let has = |list: &[String], word: &str| list.iter().any(|tag| tag == word);
        let shares = |list: &[String]| tags.iter().any(|tag| list.contains(tag));
        let (always, never) = (has(tags, "always"), has(tags, "never"));
        let tagged = !tags.is_empty();
        let wanted = if self.only.is_empty() {
            !never
        } else {
            always
                || shares(&self.only)
                || (has(&self.only, "all") && !never)
                || (has(&self.only, "tagged") && tagged && !never)
                || (has(&self.only, "untagged") && !tagged)
        };
        if !wanted {
            return false;
        }
        let skipped = if has(&self.skip, "all") {
            !always || has(&self.skip, "always")
        } else {
            shares(&self.skip)
                || (has(&self.skip, "tagged") && tagged)
                || (has(&self.skip, "untagged") && !tagged)
        };
        !skipped
    }
}
