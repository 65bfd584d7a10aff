//! Properties of patterns and of parsers.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::Inventory;
use super::tests::{Files, load};

/// Builds groups `g0`..`g4` over hosts `h0`..`h9`, by membership bits.
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

    /// Groups are named like the beginnings of hosts, so that positions in them are always possible.
    #[test]
    fn what_is_printed_of_hosts_selects_exactly_these(
        hosts in proptest::collection::btree_set("([ab]{1,2}|10\\.)[0-9]{1,3}([.-][ab]?[0-9]{0,2}[ab]|)|[ab][0-9]|fe80::[0-9]{1,3}", 1..40),
        groups in proptest::collection::btree_map("[ab]{1,2}[01]?|a[0-9][.]|10[.]", proptest::collection::vec(0usize..40, 0..20), 0..6),
        chosen in proptest::collection::vec(any::<bool>(), 40),
    ) {
        let hosts: Vec<&String> = hosts.iter().collect();
        let mut text = "all:\n  hosts:\n".to_owned();
        hosts.iter().for_each(|host| text.push_str(&format!("    \"{host}\": {{}}\n")));
        text.push_str("  children:\n    none: {}\n");
        for (group, members) in &groups {
            text.push_str(&format!("    \"{group}\":\n      hosts:\n        \"{}\": {{}}\n", hosts[0]));
            let members: BTreeSet<&String> = members.iter().filter_map(|at| hosts.get(*at).copied()).collect();
            for member in members.into_iter().filter(|member| *member != hosts[0]) {
                text.push_str(&format!("        \"{member}\": {{}}\n"));
            }
        }
        let inventory = load("hosts.yaml", &text);
        let wanted: BTreeSet<String> =
            hosts.iter().zip(&chosen).filter(|(_, chosen)| **chosen).map(|(host, _)| (*host).clone()).collect();
        prop_assume!(!wanted.is_empty());
        let printed = crate::names::fold_names(&wanted);
        for (pattern, limit) in [(printed.as_str(), None), ("all", Some(printed.as_str()))] {
            let found = inventory.select(pattern, limit).map_err(|errors| TestCaseError::fail(errors.to_string()))?;
            let found: BTreeSet<String> = found.iter().map(ToString::to_string).collect();
            prop_assert_eq!(&found, &wanted, "{}", printed);
        }
    }

    /// What a word with numbers in brackets selects is its only possible meaning.
    #[test]
    fn numbers_in_brackets_are_never_two_things(
        groups in proptest::collection::vec(proptest::collection::vec(0u64..8, 1..8), 2),
        from in 0u64..6, more in 0u64..5, colon: bool,
    ) {
        let mut text: String = (0..8).map(|host| format!("a{host}\n")).collect();
        for (name, members) in ["a", "b"].iter().zip(&groups) {
            text.push_str(&format!("[{name}]\n"));
            members.iter().for_each(|host| text.push_str(&format!("a{host}\n")));
        }
        let inventory = load("hosts.ini", &text);
        let to = from + more;
        let separator = if colon { ':' } else { '-' };
        let names: BTreeSet<String> = (from..=to).map(|host| format!("a{host}")).collect();
        let group: Vec<String> = inventory.select("a", None).unwrap().iter().map(ToString::to_string).collect();
        let last = if to == 0 { from } else { to };
        let by_place: BTreeSet<String> =
            group.iter().skip(from as usize).take((last - from + 1) as usize).cloned().collect();
        match inventory.select(&format!("a[{from}{separator}{to}]"), None) {
            Ok(found) => {
                let found: BTreeSet<String> = found.iter().map(ToString::to_string).collect();
                let named = |host: &String| (0..8).any(|known| *host == format!("a{known}"));
                let counts = if colon { names.iter().all(named) } else { names.iter().any(named) };
                prop_assert!(found == by_place || found == names && by_place.is_empty());
                prop_assert!(!counts || by_place.is_empty() || found == names.iter().filter(|host| named(host)).cloned().collect());
            }
            Err(errors) => {
                let text = errors.to_string();
                prop_assert!(text.contains("two things") || by_place.is_empty(), "{}", text);
            }
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
                // A Python literal inside shlex's double quotes, so that the value stays a string.
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
