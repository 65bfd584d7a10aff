//! Maps places in rewritten text back to the original.

/// A rewritten text, and how its places map to the original.
pub(in crate::template) struct Rewritten {
    pub(in crate::template) text: String,
    /// What was inserted: each offset in the new text, and the length.
    added: Vec<(usize, usize)>,
}

impl Rewritten {
    /// Inserts words into a text; those at the same place keep their order.
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

    /// Returns where a place of the new text was in the original.
    pub(in crate::template) fn back(&self, at: usize) -> usize {
        let before = self.added.iter().take_while(|(place, _)| *place < at);
        // A place inside of an insertion maps to where the insertion was made.
        at.saturating_sub(before.map(|(place, length)| (*length).min(at - place)).sum())
    }
}
