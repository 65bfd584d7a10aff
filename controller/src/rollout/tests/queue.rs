//! Compares the queue with a list that is searched from end to end, and measures a long one.

use std::collections::BTreeSet;

use super::*;
use crate::rollout::queue::Queue;

/// The waiting hosts, in the order of their requests.
#[derive(Default)]
struct List {
    next: u64,
    waiting: Vec<(u64, usize, bool)>,
    blocked: BTreeSet<usize>,
}

const DOMAINS: usize = 3;

impl List {
    fn candidate(&self, from: u64, new: bool) -> Option<(u64, usize)> {
        let mut lines_seen = BTreeSet::new();
        let mut first = None;
        for (number, host, counted) in &self.waiting {
            let domain = host % DOMAINS;
            // Only the first host of a line may go.
            let may = *counted || (lines_seen.insert(domain) && new && !self.blocked.contains(&domain));
            if may && *number >= from && first.is_none() {
                first = Some((*number, *host));
            }
        }
        first
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_queue_is_the_list_and_faster(steps in prop::collection::vec((0u8..6, 0usize..9, any::<bool>()), 0..60)) {
        let (mut queue, mut list) = (Queue::default(), List::default());
        for (kind, host, flag) in steps {
            let place = list.waiting.iter().position(|(_, other, _)| *other == host);
            match (kind, place) {
                (0..=2, None) => {
                    queue.push(host, host % DOMAINS, flag, list.next / 2, at(0));
                    list.waiting.push((list.next, host, flag));
                    list.next += 1;
                }
                (3, place) => {
                    queue.remove(host);
                    place.map(|place| list.waiting.remove(place));
                }
                (4, _) => {
                    queue.block(host % DOMAINS, flag);
                    if flag { list.blocked.insert(host % DOMAINS) } else { list.blocked.remove(&(host % DOMAINS)) };
                }
                (_, place) => {
                    queue.recount(host, flag);
                    if let Some((_, _, counted)) = place.and_then(|place| list.waiting.get_mut(place)) {
                        *counted = flag;
                    }
                }
            }
            let hosts: Vec<usize> = list.waiting.iter().map(|(_, host, _)| *host).collect();
            prop_assert_eq!(queue.hosts(), hosts);
            prop_assert_eq!(queue.is_empty(), list.waiting.is_empty());
            for (number, host, _) in &list.waiting {
                let ticket = queue.ticket(*host).expect("it waits");
                prop_assert_eq!((ticket.number, ticket.surveys), (*number, *number / 2));
            }
            for from in 0..=list.next {
                for new in [false, true] {
                    prop_assert_eq!(queue.candidate(from, new), list.candidate(from, new));
                }
            }
        }
    }
}

#[test]
fn a_long_queue_costs_a_step_nothing() {
    let count = 10_000;
    // One line for each host: a step that looks at the first of every line looks at all.
    let domains = Domains {
        of: (0..count).collect(),
        names: (0..count).map(|rack| rack.to_string()).collect(),
        limit: 1,
    };
    let policy = Policy {
        surveys: true,
        domains: Some(domains),
        window: Some(Window::parse("daily 00:00-24:00 UTC").unwrap()),
        ..Policy::default()
    };
    let mut play = Play::begun(count, &[], policy);
    play.wants(0);
    play.step(surveyed(vec![], 0));
    assert_eq!(play.step(Input::Idle { host: 0 }).len(), 1);
    let begin = processor_time();
    for host in 1..count {
        assert_eq!(play.wants(host)[0], Action::Waits { host, out: vec![0] });
    }
    let each = (processor_time() - begin) / u32::try_from(count).unwrap();
    assert!(each.as_micros() < 200, "{each:?} for each of {count} who wait");
}

#[test]
fn sixteen_names_are_enough() {
    let mut play = Play::begun(30, &[], budget(20));
    for host in 0..20 {
        play.take_out(host);
    }
    assert_eq!(play.wants(25), [Action::Waits { host: 25, out: (0..16).collect() }]);
}

#[test]
fn full_domains_cost_the_others_nothing() {
    let racks = 5_000;
    let domains = Domains {
        of: (0..2 * racks).map(|host| host % racks).collect(),
        names: (0..racks).map(|rack| rack.to_string()).collect(),
        limit: 1,
    };
    let policy = Policy { budget: 2 * racks, domains: Some(domains), ..Policy::default() };
    let mut play = Play::begun(2 * racks, &[], policy);
    let begin = processor_time();
    for host in 0..racks {
        assert_eq!(play.wants(host), [Action::ProveIdle { host }]);
        let waits = [Action::Waits { host: host + racks, out: vec![host] }];
        assert_eq!(play.wants(host + racks), waits);
    }
    let each = (processor_time() - begin) / u32::try_from(2 * racks).unwrap();
    assert!(each.as_micros() < 200, "{each:?} a wish, with up to {racks} full racks");
}
