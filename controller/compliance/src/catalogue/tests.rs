use std::collections::BTreeSet;

use super::*;
use crate::declared::DECLARED;
use crate::verdict::Verdict;
use crate::vocabulary;

#[test]
fn every_file_is_read() {
    let catalogue = Catalogue::read().unwrap();
    assert!(catalogue.checks().len() > 65, "{}", catalogue.checks().len());
}

#[test]
fn ids_are_unique_and_grouped() {
    let order: Vec<&str> = Catalogue::groups().map(|(group, _)| group).collect();
    let mut seen = BTreeSet::new();
    let mut last = 0;
    for check in Catalogue::get().checks() {
        assert!(seen.insert(Arc::clone(&check.id)), "{}", check.id);
        let at = order.iter().position(|group| *group == check.group());
        let at = at.unwrap_or_else(|| panic!("{} is in no group", check.id));
        assert!(at >= last, "{} stands in the file of another group", check.id);
        last = at;
        let name = check.id.split_once('.').unwrap().1;
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{name}");
    }
}

#[test]
fn texts_are_whole_sentences_and_titles_are_not() {
    for check in Catalogue::get().checks() {
        let id = &check.id;
        for text in [&check.why, &check.remediation.text] {
            assert!(text.ends_with('.') && !text.contains("  "), "{id}: {text}");
        }
        assert!(!check.title.ends_with('.') && check.title.chars().count() <= 80, "{id}");
        assert!(!check.references.is_empty(), "{id}");
        for rule in &check.rules {
            assert!(!rule.note.is_empty() && !rule.note.ends_with('.'), "{id}: {}", rule.note);
        }
        assert!(check.rules.is_empty() || !check.evidence.is_empty(), "{id} shows nothing");
        assert!((1..=3).contains(&check.tier), "{id}");
    }
}

#[test]
fn every_signal_is_known_and_every_known_one_is_used() {
    let used = Catalogue::get().signals();
    let known: BTreeSet<(Scope, &str)> = vocabulary::own().collect();
    assert_eq!(used.difference(&known).collect::<Vec<_>>(), [] as [&(Scope, &str); 0]);
    // Read without being named: the name of a product is counted by `distinct`.
    assert_eq!(known.difference(&used).collect::<Vec<_>>(), [] as [&(Scope, &str); 0]);
}

#[test]
fn every_declared_value_is_used_and_described() {
    let mut used = BTreeSet::new();
    for check in Catalogue::get().checks() {
        for code in check.na_when.iter().chain(check.rules.iter().map(|rule| &rule.when)) {
            used.extend(code.declared.iter().map(|name| name.to_string()));
        }
    }
    assert!(DECLARED.is_sorted_by_key(|known| known.name));
    for known in DECLARED {
        assert!(used.remove(known.name), "no check uses `{}`", known.name);
        assert!(known.meaning.ends_with('.'), "{}", known.name);
    }
    assert!(used.is_empty(), "{used:?}");
}

#[test]
fn parameters_are_used_and_their_verdicts_are_verdicts() {
    for check in Catalogue::get().checks() {
        let mut unused: BTreeSet<&str> = check.params.keys().map(String::as_str).collect();
        for rule in &check.rules {
            for name in &rule.when.params {
                unused.remove(&**name);
            }
            if let RuleVerdict::Param(name) = &rule.verdict {
                unused.remove(name.as_str());
                let word = check.params.get(name).and_then(serde_json::Value::as_str);
                assert!(word.and_then(Verdict::of_word).is_some(), "{}: {name}", check.id);
            }
        }
        assert!(unused.is_empty(), "{}: {unused:?}", check.id);
    }
}

#[test]
fn no_check_explains_itself_by_way_of_others() {
    let catalogue = Catalogue::get();
    for check in catalogue.checks() {
        let mut next: Vec<&Arc<str>> = check.explained_by.iter().collect();
        let mut seen = BTreeSet::new();
        while let Some(id) = next.pop() {
            assert_ne!(*id, check.id);
            let cause = catalogue.check(id).unwrap_or_else(|| panic!("{} names `{id}`", check.id));
            if seen.insert(Arc::clone(id)) {
                next.extend(&cause.explained_by);
            }
        }
    }
}

#[test]
fn only_a_check_that_says_so_asks_for_a_replacement_of_what_cannot_be_waived() {
    for id in
        ["inv.gpu_lost", "err.recovery_action", "mem.remap_failed", "mem.sram_threshold", "mem.unrepairable"]
    {
        assert!(!Catalogue::get().check(id).unwrap().waivable, "{id}");
    }
}
