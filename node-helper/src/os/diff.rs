//! Unified diffs of small texts.

/// Texts with more differences than this are shown as one replaced block.
const MOST_EDITS: usize = 800;
/// Number of unchanged lines around a difference.
const CONTEXT: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    Keep,
    Remove,
    Insert,
}

/// Returns the shortest edit script between two lists of lines (Myers, "An O(ND) Difference Algorithm", 1986).
fn edits(old: &[&str], new: &[&str]) -> Vec<Edit> {
    let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let (old, new) = (old.get(head..).unwrap_or_default(), new.get(head..).unwrap_or_default());
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(a, b)| a == b).count();
    let old = old.get(..old.len() - tail).unwrap_or_default();
    let new = new.get(..new.len() - tail).unwrap_or_default();
    let mut all = vec![Edit::Keep; head];
    match middle(old, new) {
        Some(edits) => all.extend(edits),
        None => {
            all.extend(old.iter().map(|_| Edit::Remove));
            all.extend(new.iter().map(|_| Edit::Insert));
        }
    }
    all.extend(std::iter::repeat_n(Edit::Keep, tail));
    all
}

fn middle(old: &[&str], new: &[&str]) -> Option<Vec<Edit>> {
    let most = (old.len() + new.len()).min(MOST_EDITS);
    let width = 2 * most + 2;
    let slot = |k: isize| usize::try_from(k + isize::try_from(most).unwrap_or_default()).unwrap_or_default();
    let mut reach = vec![0usize; width + 1];
    let mut trace: Vec<Vec<usize>> = Vec::new();
    let read = |reach: &[usize], k: isize| reach.get(slot(k)).copied().unwrap_or_default();
    for d in 0..=isize::try_from(most).unwrap_or_default() {
        trace.push(reach.clone());
        let mut k = -d;
        while k <= d {
            let down = k == -d || (k != d && read(&reach, k - 1) < read(&reach, k + 1));
            let mut x = if down { read(&reach, k + 1) } else { read(&reach, k - 1) + 1 };
            let mut y = usize::try_from(isize::try_from(x).ok()? - k).ok()?;
            while x < old.len() && y < new.len() && old.get(x) == new.get(y) {
                x += 1;
                y += 1;
            }
            if let Some(place) = reach.get_mut(slot(k)) {
                *place = x;
            }
            if x >= old.len() && y >= new.len() {
                return walk_back(&trace, old.len(), new.len(), &read);
            }
            k += 2;
        }
    }
    None
}

fn walk_back(
    trace: &[Vec<usize>],
    x: usize,
    y: usize,
    read: &dyn Fn(&[usize], isize) -> usize,
) -> Option<Vec<Edit>> {
    let (mut x, mut y) = (isize::try_from(x).ok()?, isize::try_from(y).ok()?);
    let mut back = Vec::new();
    for (d, reach) in trace.iter().enumerate().rev() {
        let (d, k) = (isize::try_from(d).ok()?, x - y);
        let down = k == -d || (k != d && read(reach, k - 1) < read(reach, k + 1));
        let from = if down { k + 1 } else { k - 1 };
        let from_x = isize::try_from(read(reach, from)).ok()?;
        let from_y = from_x - from;
        while x > from_x && y > from_y {
            back.push(Edit::Keep);
            x -= 1;
            y -= 1;
        }
        if d > 0 {
            back.push(if down { Edit::Insert } else { Edit::Remove });
        }
        (x, y) = (from_x, from_y);
    }
    back.reverse();
    Some(back)
}

/// Returns a unified diff, or an empty text if both are equal.
pub fn unified(name: &str, old: &str, new: &str) -> String {
    if old == new {
        return String::new();
    }
    let (old, new): (Vec<&str>, Vec<&str>) =
        (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
    let script = edits(&old, &new);
    let mut out = format!("--- {name} (now)\n+++ {name} (declared)\n");
    let changed: Vec<usize> =
        script.iter().enumerate().filter(|(_, edit)| **edit != Edit::Keep).map(|(at, _)| at).collect();
    let mut groups: Vec<(usize, usize)> = Vec::new();
    for at in changed {
        let (from, to) = (at.saturating_sub(CONTEXT), (at + CONTEXT + 1).min(script.len()));
        match groups.last_mut() {
            Some((_, end)) if from <= *end => *end = to,
            _ => groups.push((from, to)),
        }
    }
    let (mut at, mut left, mut right) = (0, 0, 0);
    for (from, to) in groups {
        let (mut body, mut removed, mut inserted) = (String::new(), 0, 0);
        let (mut first_left, mut first_right) = (0, 0);
        for (index, edit) in script.iter().enumerate().take(to).skip(at) {
            if index == from {
                (first_left, first_right) = (left, right);
            }
            let (sign, line) = match edit {
                Edit::Insert => ('+', new.get(right)),
                Edit::Remove => ('-', old.get(left)),
                Edit::Keep => (' ', old.get(left)),
            };
            if index >= from {
                let line = line.copied().unwrap_or_default();
                body.push(sign);
                body.push_str(line);
                if !line.ends_with('\n') {
                    body.push_str("\n\\ No newline at end of file\n");
                }
                removed += usize::from(*edit != Edit::Insert);
                inserted += usize::from(*edit != Edit::Remove);
            }
            left += usize::from(*edit != Edit::Insert);
            right += usize::from(*edit != Edit::Remove);
        }
        at = to;
        let start = |first: usize, count: usize| if count == 0 { first } else { first + 1 };
        out.push_str(&format!(
            "@@ -{},{removed} +{},{inserted} @@\n",
            start(first_left, removed),
            start(first_right, inserted)
        ));
        out.push_str(&body);
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_script_turns_old_into_new(old in proptest::collection::vec("[abc]", 0..14), new in proptest::collection::vec("[abc]", 0..14)) {
            let (a, b): (Vec<&str>, Vec<&str>) = (old.iter().map(String::as_str).collect(), new.iter().map(String::as_str).collect());
            let (mut x, mut y, mut made) = (0, 0, Vec::new());
            for edit in edits(&a, &b) {
                match edit {
                    Edit::Keep => { prop_assert_eq!(a[x], b[y]); made.push(a[x]); x += 1; y += 1; }
                    Edit::Remove => x += 1,
                    Edit::Insert => { made.push(b[y]); y += 1; }
                }
            }
            prop_assert_eq!((x, y), (a.len(), b.len()));
            prop_assert_eq!(made, b);
        }
    }

    #[test]
    fn the_form_is_that_of_diff() {
        let old = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n";
        let new = "a\nB\nc\nd\ne\nf\ng\nh\ni\nj";
        let want = "--- /f (now)\n+++ /f (declared)\n@@ -1,5 +1,5 @@\n a\n-b\n+B\n c\n d\n e\n@@ -7,4 +7,4 @@\n g\n h\n i\n-j\n+j\n\\ No newline at end of file\n";
        assert_eq!(unified("/f", old, new), want);
        assert_eq!(unified("/f", "", "x\n"), "--- /f (now)\n+++ /f (declared)\n@@ -0,0 +1,1 @@\n+x\n");
        assert_eq!(unified("/f", old, old), "");
    }

    #[test]
    fn very_different_texts_become_one_block() {
        let old: String = (0..2000).map(|n| format!("{n}\n")).collect();
        let new: String = (5000..7000).map(|n| format!("{n}\n")).collect();
        assert!(unified("/f", &old, &new).contains("@@ -1,2000 +1,2000 @@"));
    }
}
