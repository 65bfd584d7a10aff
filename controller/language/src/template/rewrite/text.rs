//! Where a place of rewritten text lay before.

/// A text as the engine gets it, with the places of the text as it was written.
pub(in crate::template) struct Rewritten {
    pub(in crate::template) text: String,
    /// What was added: where in the new text, and how much.
    added: Vec<(usize, usize)>,
}

impl Rewritten {
    /// Of two things that go to one place, the one that is given first comes first.
    pub(in crate::template) fn of(source: &str, mut inserts: Vec<(usize, String)>) -> Self {
        inserts.sort_by_key(|(at, _)| *at);
        let mut text = String::with_capacity(source.len() + inserts.len() * 16);
        let mut added = Vec::new();
        let mut copied = 0;
        for (at, word) in inserts {
            text.push_str(source.get(copied..at).unwrap_or_default());
            added.push((text.len(), word.len()));
            text.push_str(&word);
            copied = at;
        }
        text.push_str(source.get(copied..).unwrap_or_default());
        Self { text, added }
    }

    /// Where something stood before.
    pub(in crate::template) fn back(&self, at: usize) -> usize {
        let before = self.added.iter().take_while(|(place, _)| *place < at);
        // Why at most: what lies within something inserted stands for where that was put.
        at.saturating_sub(before.map(|(place, length)| (*length).min(at - place)).sum())
    }
}
