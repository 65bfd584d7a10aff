//! What tasks of one host set for another (`delegate_facts`), and what hosts know of each other, whenever the controller dies.

use super::*;

/// What each host gets hangs on what another one had, back and forth; the names go against the order of the hosts.
const GIFTS: &str = r#"
- hosts: all
  gather_facts: false
  tasks:
    - {set_fact: {x: gift, y: gift}, delegate_to: gpu002, delegate_facts: true, when: inventory_hostname == 'gpu001'}
    - {command: '/bin/one {{ x | default("none") }}', on_interrupt: rerun}
    - {set_fact: {x: own, z: c}, when: inventory_hostname == 'gpu002'}
    - {command: '/bin/two {{ x | default("none") }} {{ hostvars.gpu002.x | default("none") }}', on_interrupt: rerun}
    - {set_fact: {z: "{{ hostvars.gpu002.z }}b"}, when: inventory_hostname == 'gpu001'}
    - {set_fact: {z: "{{ hostvars.gpu001.z }}a"}, when: inventory_hostname == 'gpu002'}
    - {set_fact: {z: "{{ hostvars.gpu002.z }}!"}, when: inventory_hostname == 'gpu001'}
    - {set_fact: {late: last}, delegate_to: gpu002, delegate_facts: true, when: inventory_hostname == 'gpu001'}
- hosts: all
  gather_facts: false
  tasks:
    - {command: '/bin/three {{ x | default("none") }} {{ y | default("none") }} {{ z }} {{ late | default("none") }}', on_interrupt: rerun}
- hosts: all
  gather_facts: false
  strategy: free
  tasks:
    - {set_fact: {free: "{{ late | default('one') }}"}, delegate_to: gpu001, delegate_facts: true, when: inventory_hostname == 'gpu002'}
- hosts: all
  gather_facts: false
  tasks:
    - {command: '/bin/four {{ free | default("none") }}', on_interrupt: rerun}
"#;

/// Each host sees `hostvars` of its own.
fn with_hostvars(world: &Arc<World>, hosts: &[String], epoch: u64) -> Engine {
    let mut engine = engine(GIFTS, world, hosts, epoch);
    let of_host = |host: &String| (Arc::from(host.as_str()), Value::map([("known", Value::Bool(true))]));
    let known = Value::map(hosts.iter().map(of_host));
    let contexts = engine.plays.contexts.iter_mut().flat_map(|of_play| Arc::make_mut(of_play).values_mut());
    for context in contexts {
        Arc::make_mut(&mut Arc::make_mut(context).magic).insert("hostvars", known.clone());
    }
    engine
}

/// Runs, cut off once at every place there is, after which both hosts have to have done the same.
fn wherever_it_dies(make: impl Fn(&Arc<World>, &[String], u64) -> Engine, expected: [&[&str]; 2]) {
    let mut whole = false;
    for crash in 0..300 {
        virtual_time(async {
            let (hosts, state) = (hosts(2), tempfile::tempdir().unwrap());
            let world = World::new(&hosts, false);
            // Why: virtual time leaps while a record is written, and nobody is to be taken for silent then.
            hosts.iter().for_each(|host| world.with(host, |machine| machine.greets = true));
            let dir = RunDir::new(state.path(), &RunId::generate());
            *world.crash_in.lock().unwrap() = Some(crash);
            let (_press, mut interrupts) = mpsc::channel(1);
            let first = process_with(make(&world, &hosts, 1), &world, &hosts, &dir, &mut interrupts).await;
            whole |= first.is_some();
            *world.crash_in.lock().unwrap() = None;
            if first.is_none() {
                let second = process_with(make(&world, &hosts, 2), &world, &hosts, &dir, &mut interrupts);
                second.await.unwrap();
            }
            for (host, expected) in hosts.iter().zip(expected) {
                let mut ran = jobs::ran(&world, host);
                // Why: what was cut off is run again.
                ran.dedup();
                assert_eq!(ran, expected, "{host}, cut off after {crash}");
            }
        });
        if whole {
            return;
        }
    }
    panic!("no schedule was whole");
}

#[test]
fn hosts_see_the_same_of_each_other_wherever_their_controller_dies() {
    wherever_it_dies(
        with_hostvars,
        [
            &["/bin/one none", "/bin/two none own", "/bin/three none none cba! none", "/bin/four last"],
            &["/bin/one gift", "/bin/two own own", "/bin/three own gift cba last", "/bin/four none"],
        ],
    );
}

#[test]
fn cleared_errors_stay_cleared_wherever_the_controller_dies() {
    let playbook = "- hosts: all\n  gather_facts: false\n  tasks:\n    - {command: /bin/ill, on_interrupt: rerun, when: \
                    inventory_hostname == 'gpu001'}\n    - meta: clear_host_errors\n- hosts: all\n  gather_facts: \
                    false\n  tasks:\n    - {command: /bin/next, on_interrupt: rerun}\n- hosts: all\n  gather_facts: \
                    false\n  tasks:\n    - {command: /bin/last, on_interrupt: rerun}\n";
    wherever_it_dies(
        |world, hosts, epoch| engine(playbook, world, hosts, epoch),
        [&["/bin/ill", "/bin/next", "/bin/last"], &["/bin/next", "/bin/last"]],
    );
}
