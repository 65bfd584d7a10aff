//! Limits the lengths of an outcome's lists to what all code that shows or compares them can handle.

use std::cmp::Reverse;

use gpufleet_protocol::{Awaiting, Blocker, Change, Disruption, OpOutcome, Property, Subject, change::Value};

/// Largest number of entries of a list; the last one counts those that were dropped.
const MOST: usize = 1000;

/// Shortens the lists of an outcome and of its members, and keeps the most disruptive entries.
pub(super) fn shorten(outcome: &mut OpOutcome) {
    shorten_to(MOST, outcome);
}

fn shorten_to(most: usize, outcome: &mut OpOutcome) {
    let OpOutcome { changes, awaiting, for_next_boot, blockers, warnings, idle, members, .. } = outcome;
    cut(
        most,
        changes,
        |one| one.disruption,
        |count, class| {
            let omitted = Subject::Omitted { count };
            Change::new(omitted, Property::STATE, Value::Unknown, "not shown", class)
        },
    );
    cut(
        most,
        awaiting,
        |one| one.activation,
        |more, activation| Awaiting { activation, reason: format!("and {more} more reasons") },
    );
    let equal = |_: &Blocker| Disruption::Live;
    cut(most, blockers, equal, |more, _| {
        Blocker::new(format!("and {more} more things are in the way"), "settle the others first")
    });
    let equal = |_: &String| Disruption::Live;
    cut(most, warnings, equal, |more, _| format!("and {more} more warnings"));
    cut(most, for_next_boot, equal, |more, _| format!("and {more} more reasons"));
    if let Some(idle) = idle {
        // Dropped clients are not counted: the reasons name who holds a GPU too, and the verdict does not depend on
        // the list.
        idle.clients.truncate(most);
        cut(most, &mut idle.reasons, equal, |more, _| format!("and {more} more reasons"));
    }
    for member in members {
        shorten_to(most, member);
    }
}

/// Keeps the first entries of the highest class, and adds one that counts the others.
fn cut<T>(
    most: usize,
    list: &mut Vec<T>,
    class: impl Fn(&T) -> Disruption,
    rest: impl Fn(usize, Disruption) -> T,
) {
    if list.len() <= most {
        return;
    }
    // Sorted, so that the highest class of the list stays the same.
    list.sort_by_key(|one| Reverse(class(one)));
    let left_out = list.split_off(most.saturating_sub(1));
    let highest = left_out.iter().map(&class).max().unwrap_or_default();
    list.push(rest(left_out.len(), highest));
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::IdleReport};

    use super::*;

    #[test]
    fn a_list_without_end_is_cut_and_says_so() {
        let texts = |count: usize| (0..count).map(|at| format!("w{at}")).collect::<Vec<_>>();
        let change = |(at, disruption)| {
            let setting = Subject::kernel_setting(format!("c{at}"));
            Change::new(setting, Property::VALUE, Value::Absent, "1", disruption)
        };
        let member = OpOutcome {
            changes: (0..5)
                .map(|at| (at, Disruption::Live))
                .chain([(5, Disruption::Reboot)])
                .map(change)
                .collect(),
            idle: Some(IdleReport { reasons: texts(4), ..IdleReport::default() }),
            ..OpOutcome::new(OpStatus::Ok)
        };
        let mut outcome = OpOutcome {
            warnings: texts(5),
            for_next_boot: texts(5),
            awaiting: vec![Awaiting { activation: Disruption::Reboot, reason: "ECC".to_owned() }; 3],
            blockers: (0..4).map(|at| Blocker::new(at.to_string(), "wait")).collect(),
            members: vec![member],
            ..OpOutcome::new(OpStatus::Ok)
        };
        shorten_to(3, &mut outcome);
        assert_eq!(outcome.warnings, ["w0", "w1", "and 3 more warnings"]);
        assert_eq!(outcome.for_next_boot.len(), 3);
        assert_eq!(outcome.awaiting.len(), 3, "not too long");
        assert_eq!(outcome.blockers[2].what, "and 2 more things are in the way");
        let member = &outcome.members[0];
        let told: Vec<_> = member.changes.iter().map(|one| (one.what(), one.disruption)).collect();
        let live = Disruption::Live;
        let wanted = [("c5", Disruption::Reboot), ("c0", live), ("and 4 more changes", live)];
        assert_eq!(told, wanted.map(|(what, class)| (what.to_owned(), class)));
        assert_eq!(member.idle.as_ref().unwrap().reasons, ["w0", "w1", "and 2 more reasons"]);
    }
}
