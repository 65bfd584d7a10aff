//! Words of a kernel command line and what a task declares about them. Pure.

use gpufleet_protocol::tasks::KernelCmdline;

/// Splits at whitespace outside of double quotes, which the kernel keeps together too.
pub fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '"' => {
                quoted = !quoted;
                word.push(c);
            }
            c if c.is_whitespace() && !quoted => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

/// The part before `=`. The kernel takes `-` and `_` in it as equal.
pub fn key(word: &str) -> String {
    word.split('=').next().unwrap_or(word).replace('-', "_")
}

fn same(a: &str, b: &str) -> bool {
    let value = |word: &str| word.split_once('=').map(|(_, value)| value.to_owned());
    key(a) == key(b) && value(a) == value(b)
}

/// Whether a word is one that the task does not want, as such or because it wants another value of its key.
pub fn unwanted(task: &KernelCmdline, word: &str) -> bool {
    if task.add.iter().any(|wanted| same(wanted, word)) {
        return false;
    }
    task.add.iter().any(|wanted| key(wanted) == key(word))
        || task
            .remove
            .iter()
            .any(|gone| if gone.contains('=') { same(gone, word) } else { key(gone) == key(word) })
}

/// The words wanted that are not there.
pub fn lacking<'a>(task: &'a KernelCmdline, words: &[String]) -> Vec<&'a String> {
    task.add.iter().filter(|wanted| !words.iter().any(|word| same(wanted, word))).collect()
}

/// The words as the task declares them: unwanted ones gone, lacking ones at the end.
pub fn edited(task: &KernelCmdline, words: &[String]) -> Vec<String> {
    let mut out: Vec<String> = words.iter().filter(|word| !unwanted(task, word)).cloned().collect();
    for word in lacking(task, words) {
        if !out.iter().any(|have| same(have, word)) {
            out.push(word.clone());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn task(add: &[String], remove: &[String]) -> KernelCmdline {
        KernelCmdline { add: add.to_vec(), remove: remove.to_vec() }
    }

    fn words() -> impl Strategy<Value = Vec<String>> {
        proptest::collection::vec("(quiet|splash|iommu=(pt|off)|a=[12]|b-c=1|b_c=1|root=/x)", 0..7)
    }

    proptest! {
        #[test]
        fn editing_is_idempotent_and_touches_nothing_else(now in words(), add in words(), remove in words()) {
            let remove: Vec<String> = remove.into_iter().filter(|gone| !add.iter().any(|wanted| key(wanted) == key(gone))).collect();
            let task = task(&add, &remove);
            let once = edited(&task, &now);
            prop_assert!(lacking(&task, &once).is_empty());
            prop_assert!(!once.iter().any(|word| unwanted(&task, word)));
            prop_assert_eq!(edited(&task, &once), once.clone());
            let strangers = |words: &[String]| words.iter().filter(|word| !add.iter().chain(&remove).any(|named| key(named) == key(word))).cloned().collect::<Vec<_>>();
            prop_assert_eq!(strangers(&once), strangers(&now));
        }

        #[test]
        fn splitting_and_joining_agree(now in words()) {
            prop_assert_eq!(split(&now.join("  ")), now);
        }
    }

    #[test]
    fn values_keys_and_quotes() {
        let now = split("quiet iommu=off dyndbg=\"file x +p\" console=tty0");
        assert_eq!(now.len(), 4);
        let task = task(&["iommu=pt".into()], &["quiet".into(), "console=ttyS0".into()]);
        assert_eq!(edited(&task, &now), ["dyndbg=\"file x +p\"", "console=tty0", "iommu=pt"]);
    }
}
