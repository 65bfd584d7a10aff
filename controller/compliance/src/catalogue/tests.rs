use std::collections::BTreeSet;

use gpufleet_protocol::disturbing;

use super::*;
use crate::declared::DECLARED;
use crate::verdict::{Action, Verdict};
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
        for text in [&check.title, &check.fault] {
            assert!(!text.ends_with('.') && text.chars().count() <= 80, "{id}: {text}");
        }
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

#[test]
fn no_finding_is_called_by_what_holds_where_it_is_ok() {
    for check in Catalogue::get().checks() {
        assert_ne!(check.fault, check.title, "{}", check.id);
        for verdict in Verdict::ALL.iter().copied().filter(|verdict| verdict.is_not_ok()) {
            for note in check.rules.iter().map(|rule| &*rule.note).chain(["no GPU could be read"]) {
                assert_ne!(check.headline(verdict, note), check.title, "{} {verdict}", check.id);
            }
        }
        assert_eq!(check.headline(Verdict::Ok, ""), check.title);
    }
    let links = Catalogue::get().check("nvl.links").unwrap();
    assert_eq!(links.headline(Verdict::Fail, "a link is down"), "NVLinks are down");
    assert_eq!(links.headline(Verdict::Unknown, "`nvl_active`: x"), "Not judged: All NVLinks are up");
}

/// Programs that read whatever their arguments are, as the catalogue uses them.
const READERS: &[&str] = &[
    "awk",
    "cat",
    "df",
    "dmesg",
    "docker info",
    "containerd config dump",
    "findmnt",
    "fuser -v",
    "grep",
    "head",
    "ip -s link",
    "journalctl",
    "ls",
    "lscpu",
    "lsmod",
    "lspci",
    "modinfo",
    "mokutil --sb-state",
    "nv-fabricmanager --version",
    "nvidia-imex-ctl -N",
    "nvidia-smi -q",
    "nvidia-smi -L",
    "nvidia-smi --query-",
    "nvidia-smi nvlink -s",
    "nvidia-smi nvlink -e",
    "nvidia-smi c2c -s",
    "nvidia-smi topo -m",
    "nvidia-smi mig -lgi",
    "nvidia-smi mig -lci",
    "nvidia-smi conf-compute -q",
    "nvidia-smi drain -q",
    "nvme smart-log",
    "pgrep",
    "ps",
    "sort",
    "sysctl kernel.",
    "sysctl vm.",
    "systemctl status",
    "systemctl --failed",
    "systemctl is-enabled",
    "timedatectl",
    "uname",
    "uniq",
    "xfs_info",
    "for ",
    "[ -e",
    "done",
];

/// What stands between the quotes of a command, and the quotes, left out.
fn unquoted(command: &str) -> String {
    let mut quote = None;
    let keep = |c: &char| match (quote, *c) {
        (Some(open), c) => {
            if c == open {
                quote = None;
            }
            false
        }
        (None, '\'' | '"') => {
            quote = Some(*c);
            false
        }
        (None, _) => true,
    };
    command.chars().filter(keep).collect()
}

#[test]
fn a_command_of_the_catalogue_only_reads() {
    for check in Catalogue::get().checks() {
        let Some(command) = &check.remediation.reads else { continue };
        assert_eq!(disturbing::of_shell(command), None, "{}", check.id);
        let plain = unquoted(command).replace("$(", "|");
        assert!(!plain.contains('>'), "{}: {command}", check.id);
        for part in plain.split(['|', ';', '&']) {
            let part = part.trim().trim_start_matches("do ").trim_start();
            let reads = part.is_empty() || READERS.iter().any(|reader| part.starts_with(reader));
            assert!(reads, "{}: `{part}` in `{command}`", check.id);
        }
    }
}

/// What ends work, in a text for people.
fn first_harm(text: &str) -> Option<usize> {
    // Not in names of kinds and their keys: `gpu_clocks: {reset: true}` gives a clock back.
    let text: String = text
        .to_lowercase()
        .split('`')
        .enumerate()
        .map(|(at, part)| match at % 2 {
            0 => part.to_owned(),
            _ => " ".repeat(part.len() + 2),
        })
        .collect();
    ["reset", "reboot", "power the node off", "power it off"].iter().filter_map(|word| text.find(word)).min()
}

#[test]
fn a_text_says_what_its_actions_do_and_the_drain_comes_before_it() {
    for check in Catalogue::get().checks() {
        let (id, text) = (&check.id, &check.remediation.text);
        let lower = text.to_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
        for action in check.actions() {
            let agrees = match action {
                Action::None => true,
                Action::Investigate => check.remediation.reads.is_some(),
                Action::Apply => has(&["playbook", "declare", "set both", "set ", "install"]),
                Action::Reset => has(&["reset"]),
                Action::Reboot => has(&["reboot"]),
                Action::Drain => has(&["drain"]),
                Action::Replace => has(&["replaced"]),
            };
            assert!(agrees, "{id} asks for {action}, and says: {text}");
        }
        if !check.actions().contains(&Action::Replace) {
            assert!(!has(&["replace it", "replaced"]), "{id} asks for no replacement: {text}");
        }
        let warned = ["drain", "do not reset", "idle"].iter().filter_map(|word| lower.find(word)).min();
        if let Some(harm) = first_harm(text) {
            assert!(warned.is_some_and(|at| at <= harm), "{id}: {text}");
        }
        for quoted in text.split('`').skip(1).step_by(2) {
            assert_eq!(disturbing::of_shell(quoted), None, "{id}: {quoted}");
        }
    }
}

/// A node may be declared without ECC, and a command that switches it on would be the drift.
#[test]
fn no_advice_has_a_value_of_its_own_for_what_is_declared() {
    for check in Catalogue::get().checks() {
        let codes = check.rules.iter().map(|rule| &rule.when);
        if codes.into_iter().all(|code| code.declared.is_empty()) {
            continue;
        }
        let text = check.remediation.text.as_str();
        for value in
            ["enabled", "disabled", "-e 1", "-am 1", "-mig 1", "DEFAULT", "switch it on", "switch it off"]
        {
            assert!(!text.contains(value), "{}: {text}", check.id);
        }
    }
}

#[test]
fn what_a_person_has_to_decide_is_no_reset() {
    for id in ["mem.ecc_pending", "cfg.mig_pending"] {
        let check = Catalogue::get().check(id).unwrap();
        assert_eq!(
            check.destructive().next(),
            None,
            "{id}: nobody declared the change that a reset makes current"
        );
    }
}
