//! Decides how much of a write happens before the process is killed. Pure.

/// How the process is killed at the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Nothing of the record is written.
    Before,
    /// All of the record is written, but the call does not return.
    After,
    /// At most this many bytes of it are written, and never its line feed.
    Torn(usize),
}

impl How {
    /// Parses `before`, `after` or `torn:BYTES`.
    pub fn parse(text: &[u8]) -> Option<Self> {
        match text {
            b"before" => Some(Self::Before),
            b"after" => Some(Self::After),
            _ => number(text.strip_prefix(b"torn:")?).map(Self::Torn),
        }
    }
}

/// Parses decimal digits, and nothing else.
pub fn number(text: &[u8]) -> Option<usize> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_usize, |sum, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        sum.checked_mul(10)?.checked_add(usize::from(digit))
    })
}

/// Returns how many records end in a piece of the journal.
pub fn records(piece: &[u8]) -> usize {
    piece.iter().filter(|byte| **byte == b'\n').count()
}

/// Returns how many bytes of `piece` are written before the process is killed, or `None` if it is not killed here.
///
/// `written` records are in the file already; records count from 1.
pub fn last_bytes(piece: &[u8], written: usize, at: usize, how: How) -> Option<usize> {
    let nth = at.checked_sub(written)?.checked_sub(1)?;
    let mut ends = piece.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let start = if nth == 0 { 0 } else { ends.by_ref().nth(nth - 1)? };
    let end = ends.next()?;
    Some(match how {
        How::Before => start,
        How::After => end,
        How::Torn(bytes) => start + bytes.min(end - start - 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_of_records_is_cut_at_the_one_that_is_meant() {
        let group = b"one\ntwo\nthree\n";
        for (written, at, how, want) in [
            (0, 1, How::Before, Some(0)),
            (0, 1, How::After, Some(4)),
            (0, 2, How::Before, Some(4)),
            (0, 2, How::After, Some(8)),
            (0, 2, How::Torn(1), Some(5)),
            (0, 2, How::Torn(99), Some(7)),
            (0, 3, How::After, Some(14)),
            (0, 4, How::After, None),
            (7, 9, How::Before, Some(4)),
            (7, 7, How::After, None),
            (7, 3, How::After, None),
        ] {
            assert_eq!(last_bytes(group, written, at, how), want, "{written} {at} {how:?}");
        }
        assert_eq!(records(group), 3);
        assert_eq!(last_bytes(b"half", 0, 1, How::After), None);
    }

    #[test]
    fn what_is_misspelt_is_refused() {
        assert_eq!(How::parse(b"torn:12"), Some(How::Torn(12)));
        assert_eq!(How::parse(b"before"), Some(How::Before));
        for wrong in [&b"torn:"[..], b"torn:x", b"torn:-1", b"later", b"", b"torn:99999999999999999999999"] {
            assert_eq!(How::parse(wrong), None, "{wrong:?}");
        }
    }
}
