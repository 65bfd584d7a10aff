//! Properties of patterns and of reading text.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::Inventory;
use super::tests::{Files, load};

/// Groups `g0`..`g4` over hosts `h0`..`h9`, by membership bits.
fn modelled(membership: &[u16]) -> Inventory {
    let mut text: String = (0..10).map(|host| format!("h{host}\n")).collect();
    for (group, bits) in membership.iter().enumerate() {
        text.push_str(&format!("[g{group}]\n"));
        (0..10).filter(|host| bits & (1 << host) != 0).for_each(|host| text.push_str(&format!("h{host}\n")));
    }
    load("hosts.ini", &text)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn patterns_are_set_algebra(
        membership in proptest::collection::vec(0u16..1024, 5),
        terms in proptest::collection::vec((0usize..3, 0usize..15), 1..6),
        comma: bool,
    ) {
        let inventory = modelled(&membership);
        let all: BTreeSet<String> = (0..10).map(|host| format!("h{host}")).collect();
        let set = |name: usize| -> BTreeSet<String> {
            match membership.get(name) {
                Some(bits) => (0..10).filter(|host| bits & (1 << host) != 0).map(|host| format!("h{host}")).collect(),
                None => [format!("h{}", name - 5)].into_iter().collect(),
            }
        };
        let text = |(role, name): &(usize, usize)| {
            let name = if *name < 5 { format!("g{name}") } else { format!("h{}", name - 5) };
            format!("{}{name}", ["", "&", "!"][*role])
        };
        let pattern = terms.iter().map(text).collect::<Vec<_>>().join(if comma { "," } else { ":" });
        let of = |role| terms.iter().filter(move |term| term.0 == role).map(|term| set(term.1));
        let mut wanted: BTreeSet<String> = of(0).flatten().collect();
        if !terms.iter().any(|term| term.0 == 0) {
            wanted = all;
        }
        for other in of(1) {
            wanted = wanted.intersection(&other).cloned().collect();
        }
        for other in of(2) {
            wanted = wanted.difference(&other).cloned().collect();
        }
        let found = inventory.select_some(&pattern, None, None).unwrap();
        prop_assert_eq!(found.len(), wanted.len(), "no host twice");
        prop_assert_eq!(found.iter().map(ToString::to_string).collect::<BTreeSet<_>>(), wanted.clone());
        if wanted.is_empty() {
            prop_assert!(inventory.select(&pattern, None).is_err());
        }
    }

    #[test]
    fn any_pattern_selects_or_is_refused(pattern in "[-gh0-9:,&!*?~\\[\\]()@. a]{0,24}", limit in proptest::option::of("[gh0-9:,&!*\\[\\]]{0,8}")) {
        let inventory = modelled(&[1, 3, 0, 1023, 6]);
        if let Err(errors) = inventory.select(&pattern, limit.as_deref()) {
            prop_assert!(!errors.to_string().is_empty());
        }
    }

    #[test]
    fn ini_text_is_read_back(
        hosts in proptest::collection::btree_map("[a-z][a-z0-9]{0,6}", proptest::collection::btree_map("[a-z_]{1,6}", "[ -~äß]{0,12}", 0..4), 1..8),
    ) {
        let mut text = "[g]\n".to_owned();
        for (host, vars) in &hosts {
            text.push_str(host);
            for (name, value) in vars {
                // Why: as a Python literal in double quotes of shlex, so that the value stays a string.
                let literal = format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"));
                text.push_str(&format!(" {name}=\"{}\"", literal.replace('\\', "\\\\").replace('"', "\\\"")));
            }
            text.push('\n');
        }
        let inventory = load("hosts.ini", &text);
        prop_assert_eq!(inventory.host_count(), hosts.len());
        for (host, vars) in &hosts {
            prop_assert_eq!(json!(inventory.host_vars(host).unwrap().own()), json!(vars));
        }
    }

    #[test]
    fn any_bytes_are_an_inventory_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..120), ending in "(ini|yaml|)") {
        let files = Files::new(&[]);
        let name = format!("hosts.{ending}");
        std::fs::write(files.folder.path().join(name.trim_end_matches('.')), &bytes).unwrap();
        if let Err(errors) = files.load(&[name.trim_end_matches('.')]) {
            prop_assert!(errors.starts_with("error: "));
        }
    }

    #[test]
    fn text_like_an_inventory_never_panics(text in "(\\[|\\]|:|gpu|all|hosts|vars|children|[0-9]|=|\n|\n  |'|\"|#|,| |\\{|\\}|-|\\\\|\t|ä){0,50}", ending in "(ini|yaml|)") {
        let files = Files::new(&[]);
        let name = format!("hosts.{ending}");
        std::fs::write(files.folder.path().join(name.trim_end_matches('.')), &text).unwrap();
        if let Ok(inventory) = files.load(&[name.trim_end_matches('.')]) {
            inventory.list_text(None, false).unwrap();
            inventory.graph_text("all", true, false).unwrap();
        }
    }
}
