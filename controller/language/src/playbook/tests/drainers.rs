//! Every drainer of the registry, by what the registry says of it.

use std::collections::BTreeSet;

use super::policy::with_rollout;
use super::{load, play};
use crate::playbook::{DRAINERS, Drain, SettingInfo, Shape};

fn drain(text: &str) -> Drain {
    play(&with_rollout(&format!("    {text}\n"))).policy.drain.clone()
}

#[test]
fn words_are_unique() {
    let words: Vec<_> = DRAINERS.iter().flat_map(|info| info.mistaken.iter().chain([&info.word])).collect();
    assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len(), "{words:?}");
}

#[test]
fn each_is_what_its_example_declares() {
    for info in DRAINERS {
        let declared = drain(info.example);
        assert_eq!(declared.as_str(), info.word);
        for SettingInfo { name, about, .. } in info.settings() {
            assert!(
                info.example.contains(&format!("{name}: ")),
                "{}: {name} is not in its example",
                info.word
            );
            assert!(about.ends_with('.'), "{}: {name}: {about}", info.word);
        }
        assert_eq!(declared.is_none(), declared.worst_case_s() == 0, "{}", info.word);
    }
}

#[test]
fn each_setting_is_read() {
    for info in DRAINERS {
        let whole = drain(info.example);
        let example: serde_json::Value = serde_saphyr::from_str(info.example).unwrap();
        for setting in info.settings().into_iter().filter(|setting| !setting.required) {
            let mut without = example.clone();
            let block = without["drain"][info.word].as_object_mut().unwrap();
            block.remove(setting.name).unwrap();
            if setting.name == "notice" {
                block.remove("notice_deadline");
            }
            let text = format!("drain: {}", without["drain"]);
            assert_ne!(drain(&text), whole, "{}: {} changes nothing", info.word, setting.name);
        }
    }
}

#[test]
fn the_word_alone_is_enough_where_nothing_is_required() {
    for info in DRAINERS {
        let text = with_rollout(&format!("    drain: {}\n", info.word));
        assert_eq!(load(&text).is_ok(), info.stands_alone(), "{}", info.word);
    }
}

#[test]
fn defaults_are_what_is_read_without_them() {
    for info in DRAINERS.iter().filter(|info| info.stands_alone()) {
        for setting in info.settings() {
            let (Some(default), false) = (setting.default, matches!(setting.shape, Shape::Template)) else {
                continue;
            };
            let written = drain(&format!("drain: {{{}: {{{}: {default}}}}}", info.word, setting.name));
            assert_eq!(written, drain(&format!("drain: {}", info.word)), "{}: {}", info.word, setting.name);
        }
    }
}
