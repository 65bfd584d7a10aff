//! Texts about the kinds that tune the operating system: what they read and write, and who else does.

use std::fmt::Write as _;

use gpufleet_protocol::tasks::{GROUND, Ground, KindInfo};

fn ground(kind: &KindInfo) -> Option<&'static Ground> {
    GROUND.iter().find(|(name, _)| *name == kind.name).map(|(_, ground)| ground)
}

/// The facts as the manual of a kind ends with them; empty for other kinds.
pub(super) fn ground_text(kind: &KindInfo) -> String {
    let Some(ground) = ground(kind) else { return String::new() };
    let mut out = String::from("\nsystem\n");
    for (name, text) in [
        ("reads", ground.reads.join(", ")),
        ("writes", ground.writes.join(", ")),
        ("takes effect", ground.takes_effect.to_owned()),
        ("survives", ground.survives.to_owned()),
        ("source", ground.source.to_owned()),
    ] {
        let _ = writeln!(out, "  {name:14}{text}");
    }
    out.push_str("\nwho else writes it\n");
    for owner in ground.owners {
        let _ = writeln!(out, "  {owner}");
    }
    out
}

/// The same for the reference.
pub(super) fn ground_markdown(kind: &KindInfo) -> String {
    let Some(ground) = ground(kind) else { return String::new() };
    let mut out = String::from("\n");
    for (title, entries) in [("Reads", ground.reads), ("Writes", ground.writes)] {
        let entries: Vec<String> = entries.iter().map(|entry| format!("`{entry}`")).collect();
        let _ = writeln!(out, "* {title}: {}.", entries.join(", "));
    }
    let _ = writeln!(out, "* Takes effect: {}.", ground.takes_effect);
    let _ = writeln!(out, "* Survives: {}.", ground.survives);
    for owner in ground.owners {
        let _ = writeln!(out, "* Who else writes it: {owner}.");
    }
    let _ = writeln!(out, "* Source: {}.", ground.source);
    out
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::tasks::KINDS;

    use super::*;

    #[test]
    fn each_answer_is_given_and_is_one_line() {
        for (name, ground) in GROUND {
            let kind = KINDS.iter().find(|kind| kind.name == *name).unwrap();
            let lists = [ground.reads, ground.writes, ground.owners];
            assert!(lists.iter().all(|list| !list.is_empty()), "{name}");
            let single = [ground.takes_effect, ground.survives, ground.source];
            for text in lists.into_iter().flatten().chain(&single) {
                assert!(!text.is_empty() && !text.ends_with('.') && !text.contains('\n'), "{name}: {text}");
            }
            assert!(ground_text(kind).contains("who else writes it"), "{name}");
            assert!(ground_markdown(kind).contains("* Source: "), "{name}");
        }
    }
}
