//! Words of a kernel command line, and what a task declares about them. Pure.
//!
//! A key may appear more than once on a line; its meaning then depends on the key, see [`Rule`].

use gpufleet_protocol::{
    cmdline::{Rule, Unit, is_list, placed, retain, rule, units, value},
    tasks::KernelCmdline,
};

pub use gpufleet_protocol::cmdline::key;

/// Splits at whitespace outside of double quotes, as the kernel does.
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

/// Returns the units of a line that have an effect.
fn counting(words: &[String]) -> Vec<Unit> {
    let last = |name: &str| words.iter().rposition(|word| key(word) == name);
    let counts = |(unit, places): &(Unit, Vec<usize>)| {
        let name = unit.key();
        rule(&name) != Rule::LastList || places.iter().copied().max() == last(&name)
    };
    placed(words).into_iter().filter(counts).map(|(unit, _)| unit).collect()
}

/// Splits a line into the kernel's words, and those from `--` on, which go to process 1.
fn of_kernel(words: &[String]) -> (&[String], &[String]) {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    words.split_at_checked(end).unwrap_or((words, &[]))
}

/// What is wrong with a declared word on a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The word, or the words that belong together.
    pub word: String,
    /// The words in its place.
    pub instead: Vec<String>,
    /// Whether the word is there, but in a wrong order or beside words that exclude it.
    pub present: bool,
}

/// The differences between a line and the declaration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    pub wrong: Vec<Wrong>,
    /// Words that should not be there.
    pub gone: Vec<String>,
}

impl Judged {
    pub fn is_right(&self) -> bool {
        self.wrong.is_empty() && self.gone.is_empty()
    }

    /// Returns what is wrong with a declared word.
    pub fn about(&self, word: &str) -> Option<&Wrong> {
        self.wrong.iter().find(|wrong| wrong.word == word)
    }
}

/// Returns the words that `add` declares, for messages and for [`Judged::about`].
pub fn declared(task: &KernelCmdline) -> Vec<String> {
    task.wanted().iter().map(Unit::text).collect()
}

/// Returns keys whose declared units have another order on the line. A lacking unit would be added at the end;
/// `lacking_is_last` counts it as there.
fn misplaced(wanted: &[Unit], have: &[Unit], lacking_is_last: bool) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for key in wanted.iter().map(Unit::key).filter(|key| rule(key) == Rule::Each) {
        let place = |unit: &Unit| have.iter().rposition(|have| unit.is(have));
        let places: Vec<usize> = wanted
            .iter()
            .filter(|unit| unit.key() == key)
            .filter_map(|unit| place(unit).or(lacking_is_last.then_some(usize::MAX)))
            .collect();
        if !places.is_sorted() && !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// Whether a line has a word, as a whole or in a list.
pub fn has(line: &[String], word: &str) -> bool {
    units(of_kernel(line).0).iter().any(|unit| unit.text() == word)
}

/// Compares a line with the declaration.
pub fn judged(task: &KernelCmdline, words: &[String]) -> Judged {
    let (wanted, unwanted, have) = (task.wanted(), task.unwanted(), units(of_kernel(words).0));
    let counting = counting(of_kernel(words).0);
    let misplaced = misplaced(&wanted, &have, false);
    let mut found = Judged::default();
    for unit in &wanted {
        let present = counting.iter().any(|have| unit.is(have));
        let instead: Vec<String> = have.iter().filter(|have| unit.excludes(have)).map(Unit::text).collect();
        if !present || !instead.is_empty() || misplaced.contains(&unit.key()) {
            found.wrong.push(Wrong { word: unit.text(), instead, present });
        }
    }
    for unit in &have {
        let is_wanted = wanted.iter().any(|wanted| wanted.is(unit) || wanted.excludes(unit));
        let text = unit.text();
        if !is_wanted && unit.is_among(&unwanted) && !found.gone.contains(&text) {
            found.gone.push(text);
        }
    }
    found
}

/// Returns the words without those to remove. Declared words in a wrong order are removed too, so that they can be
/// added again in the declared order. `whole` is the line that is judged, of which `words` may be a part.
pub fn pruned(task: &KernelCmdline, words: &[String], whole: &[String]) -> Vec<String> {
    let (wanted, unwanted) = (task.wanted(), task.unwanted());
    let misplaced = misplaced(&wanted, &units(of_kernel(whole).0), true);
    let (kernel, init) = of_kernel(words);
    let goes = |unit: &Unit| {
        if wanted.iter().any(|wanted| wanted.is(unit)) {
            return misplaced.contains(&unit.key());
        }
        wanted.iter().any(|wanted| wanted.excludes(unit)) || unit.is_among(&unwanted)
    };
    let mut out = kernel.to_vec();
    retain(&mut out, |unit| !goes(unit));
    out.extend_from_slice(init);
    out
}

/// Returns the words with lacking ones at the end, but before `--`; an item of a list goes into the present list.
pub fn completed(task: &KernelCmdline, words: &[String]) -> Vec<String> {
    let (kernel, init) = of_kernel(words);
    let mut out = kernel.to_vec();
    for unit in task.wanted() {
        if counting(&out).iter().any(|have| unit.is(have)) {
            continue;
        }
        let name = unit.key();
        let list = out.iter_mut().rfind(|word| is_list(&name) && key(word) == name);
        match (list, value(unit.first())) {
            (Some(list), Some(item)) => extend(list, item),
            _ => {
                // After a size, the number would be for that size, and not for the default one.
                let size = out.iter().position(|word| rule(&key(word)) == Rule::Size);
                let at = size.filter(|_| name == "hugepages").unwrap_or(out.len());
                out.splice(at..at, unit.words);
            }
        }
    }
    out.extend_from_slice(init);
    out
}

/// Adds an item to a list.
fn extend(list: &mut String, item: &str) {
    let separator = match value(list) {
        None => "=",
        Some("") => "",
        Some(_) => ",",
    };
    list.push_str(separator);
    list.push_str(item);
}

/// Adds lacking items to lists of which only the last word of a line counts, if that word is in this part. After a
/// further word it would not count any more, nor would the items that others put there.
pub fn merged(task: &KernelCmdline, words: &[String], whole: &[String]) -> Vec<String> {
    let whole = of_kernel(whole).0;
    let have = counting(whole);
    let mut out = words.to_vec();
    for unit in task.wanted().into_iter().filter(|unit| !have.contains(unit)) {
        let (name, item) = (unit.key(), value(unit.first()).map(str::to_owned));
        let last = overruled(&name, whole).and_then(|last| words.iter().rposition(|word| word == last));
        if let (Some(list), Some(item)) = (last.and_then(|at| out.get_mut(at)), item) {
            extend(list, &item);
        }
    }
    out
}

/// Returns the word that a further word of the same key would overrule.
pub fn overruled<'a>(word: &str, whole: &'a [String]) -> Option<&'a String> {
    let name = key(word);
    let whole = of_kernel(whole).0;
    whole.iter().rfind(|word| rule(&name) == Rule::LastList && key(word) == name)
}

/// Returns the words as declared.
pub fn edited(task: &KernelCmdline, words: &[String]) -> Vec<String> {
    if judged(task, words).is_right() {
        return words.to_vec();
    }
    completed(task, &pruned(task, words, words))
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{
        NodeOp,
        cmdline::is_removed,
        operation::{Newer, Operation},
    };
    use proptest::prelude::*;

    use super::*;

    fn task(add: &[String], remove: &[String]) -> KernelCmdline {
        KernelCmdline { add: add.to_vec(), remove: remove.to_vec() }
    }

    fn edit(line: &str, add: &str, remove: &str) -> String {
        edited(&task(&split(add), &split(remove)), &split(line)).join(" ")
    }

    fn words() -> impl Strategy<Value = Vec<String>> {
        let word = "(quiet|iommu=(pt|off|pt,force)|pci=(nocrs|use_crs,realloc|realloc=off)|b-c=1|b_c=1|root=/x|console=tty[0S]|hugepagesz=(1G|2M)|hugepages=[48]|\
                    crashkernel=[12]G(,high|,low)?|(modprobe\\.|module_)blacklist=(a|b|a,c)|rd\\.lvm\\.lv=[xy]|rd\\.timeout=[12]|--)";
        proptest::collection::vec(word, 0..9)
    }

    /// Whether a person could mean these: no two values of a key with one value, and nothing after `--`.
    fn sensible(add: &[String]) -> bool {
        let task = task(add, &[]);
        let units = task.wanted();
        !add.iter().any(|word| word == "--" || word.starts_with("hugepagesz"))
            && !units.iter().any(|one| units.iter().any(|other| one.excludes(other)))
            && misplaced(&units, &units, false).is_empty()
    }

    /// Leaves out words after which the others would not pass.
    fn fit(words: Vec<String>, passes: fn(&[String]) -> bool) -> Vec<String> {
        let mut kept = Vec::new();
        for word in words.into_iter().filter(|word| word != "--") {
            kept.push(word);
            if !passes(&kept) {
                kept.pop();
            }
        }
        kept
    }

    proptest! {
        #[test]
        fn editing_is_idempotent_and_touches_nothing_else(now in words(), add in words(), remove in words()) {
            prop_assume!(sensible(&add) && !remove.iter().any(|word| word == "--"));
            let task = task(&add, &remove);
            let once = edited(&task, &now);
            prop_assert!(judged(&task, &once).is_right(), "{:?}: {:?}", once, judged(&task, &once));
            prop_assert_eq!(edited(&task, &once), once.clone());
            let strangers = |words: &[String]| {
                let named = |word: &String| add.iter().chain(&remove).any(|named| key(named) == key(word) || key(word).starts_with("hugepages"));
                of_kernel(words).0.iter().filter(|word| !named(word)).cloned().collect::<Vec<_>>()
            };
            prop_assert_eq!(strangers(&once), strangers(&now));
            prop_assert_eq!(of_kernel(&once).1, of_kernel(&now).1);
        }

        #[test]
        fn a_right_line_stays_as_it_is(now in words(), add in words()) {
            prop_assume!(sensible(&add));
            let task = task(&add, &[]);
            if judged(&task, &now).is_right() {
                prop_assert_eq!(edited(&task, &now), now);
            }
        }

        /// What stands of an older task is true after the newer one, and what does not stand is the newer one's.
        #[test]
        fn a_newer_task_replaces_what_it_says_and_no_more(
            now in words(), old in (words(), words()), new in (words(), words())
        ) {
            let now = fit(now, |_| true);
            let of = |(add, remove): (Vec<String>, Vec<String>)| task(&fit(add, sensible), &fit(remove, |_| true));
            let (older, newer) = (of(old), of(new));
            let line = edited(&newer, &edited(&older, &now));
            let mut rest = older.clone();
            let stands = rest.yields(&Newer::of(&NodeOp::KernelCmdline(newer.clone())));
            prop_assert_eq!(stands, !(rest.add.is_empty() && rest.remove.is_empty()));
            prop_assert!(judged(&rest, &line).is_right(), "{:?} of {:?}: {:?}", line, rest, judged(&rest, &line));
            let (wanted, unwanted) = (newer.wanted(), newer.unwanted());
            for unit in older.wanted().iter().filter(|unit| !rest.wanted().contains(unit)) {
                let own = wanted.iter().any(|other| other.is(unit) || other.excludes(unit));
                prop_assert!(own || unit.is_among(&unwanted), "{}", unit.text());
            }
            for word in older.unwanted().iter().filter(|word| !rest.unwanted().contains(word)) {
                let gone = std::slice::from_ref(word);
                let is_back = wanted.iter().any(|unit| unit.is_among(gone));
                prop_assert!(is_back || is_removed(word, &unwanted), "{}", word);
            }
        }

        #[test]
        fn splitting_and_joining_agree(now in words()) {
            prop_assert_eq!(split(&now.join("  ")), now);
        }
    }

    #[test]
    fn what_a_newer_task_leaves_of_an_older_one() {
        for (old, new, left) in [
            (("a=1 b=2", ""), ("a=3", ""), ("b=2", "")),
            (("a=1 b=2", ""), ("a=1", ""), ("b=2", "")),
            (("a=1 b=2", ""), ("", "a"), ("b=2", "")),
            (("a=1 b=2", ""), ("", "a=2"), ("a=1 b=2", "")),
            (("a-b=1", ""), ("a_b=2", ""), ("", "")),
            (("console=tty0 quiet", ""), ("console=ttyS1", ""), ("console=tty0 quiet", "")),
            (("console=tty0 console=ttyS0", ""), ("console=ttyS0", ""), ("console=tty0", "")),
            (("console=tty0 console=ttyS0", ""), ("", "console=ttyS0"), ("console=tty0", "")),
            (("console=tty0", ""), ("console=ttyS0", "console"), ("", "")),
            (("modprobe.blacklist=a,b", ""), ("modprobe.blacklist=c", ""), ("modprobe.blacklist=a,b", "")),
            (("modprobe.blacklist=a,b", ""), ("", "modprobe.blacklist=a"), ("modprobe.blacklist=b", "")),
            (("iommu=pt,noagp", ""), ("iommu=off", ""), ("iommu=noagp", "")),
            (("crashkernel=1G,high", ""), ("crashkernel=256M,low", ""), ("crashkernel=1G,high", "")),
            (("crashkernel=1G,high", ""), ("crashkernel=2G", ""), ("", "")),
            (
                ("hugepagesz=1G hugepages=4 hugepagesz=2M hugepages=8", ""),
                ("hugepagesz=1G hugepages=2", ""),
                ("hugepagesz=2M hugepages=8", ""),
            ),
            (("", "iommu quiet"), ("iommu=pt", ""), ("", "quiet")),
            (("", "iommu=off quiet"), ("iommu=pt", ""), ("", "iommu=off quiet")),
            (("", "console=tty0"), ("", "console"), ("", "")),
            (("", "console"), ("", "console=tty0"), ("", "console")),
        ] {
            let mut older = task(&split(old.0), &split(old.1));
            let newer = NodeOp::KernelCmdline(task(&split(new.0), &split(new.1)));
            let stands = older.yields(&Newer::of(&newer));
            assert_eq!(older, task(&split(left.0), &split(left.1)), "{old:?} and then {new:?}");
            assert_eq!(stands, left != ("", ""), "{old:?} and then {new:?}");
        }
    }

    #[test]
    fn values_keys_and_quotes() {
        let now = split("quiet iommu=off dyndbg=\"file x +p\" console=tty0");
        assert_eq!(now.len(), 4);
        let task = task(&["iommu=pt".into()], &["quiet".into(), "console=ttyS0".into()]);
        assert_eq!(edited(&task, &now), ["dyndbg=\"file x +p\"", "console=tty0", "iommu=pt"]);
    }

    #[test]
    fn a_second_console_takes_no_console_away_and_the_order_is_the_declared_one() {
        assert_eq!(edit("console=tty0", "console=ttyS1", ""), "console=tty0 console=ttyS1");
        assert_eq!(edit("console=tty0 console=ttyS1", "console=ttyS1", ""), "console=tty0 console=ttyS1");
        let both = "console=tty0 console=ttyS0";
        assert_eq!(edit("console=ttyS0 quiet console=tty0", both, ""), "quiet console=tty0 console=ttyS0");
        assert_eq!(edit("console=ttyS0 quiet", both, ""), "quiet console=tty0 console=ttyS0");
        assert_eq!(edit("console=tty0 console=ttyS0", "console=ttyS1", "console"), "console=ttyS1");
        assert_eq!(edit("console=tty0 console=ttyS0", "", "console=tty0"), "console=ttyS0");
        assert_eq!(edit("rd.lvm.lv=a/b", "rd.lvm.lv=a/c", ""), "rd.lvm.lv=a/b rd.lvm.lv=a/c");
        assert_eq!(edit("rd.timeout=1", "rd.timeout=2", ""), "rd.timeout=2");
        assert_eq!(edit("ip=eth0:dhcp", "ip=eth1:dhcp", ""), "ip=eth0:dhcp ip=eth1:dhcp");
    }

    #[test]
    fn huge_pages_go_by_pairs() {
        let now = "hugepagesz=2M hugepages=512 hugepagesz=1G hugepages=4";
        assert_eq!(
            edit(now, "hugepagesz=1G hugepages=8", ""),
            "hugepagesz=2M hugepages=512 hugepagesz=1G hugepages=8"
        );
        assert_eq!(edit(now, "hugepagesz=2M hugepages=512", ""), now);
        assert_eq!(edit(now, "", "hugepagesz=1G"), "hugepagesz=2M hugepages=512");
        assert_eq!(edit("hugepages=4", "hugepages=8", ""), "hugepages=8");
        let found = judged(&task(&split("hugepagesz=1G hugepages=8"), &[]), &split(now));
        assert_eq!(found.wrong[0].instead, ["hugepagesz=1G hugepages=4"]);
    }

    #[test]
    fn lists_add_up_and_halves_of_a_crash_kernel_stand_side_by_side() {
        assert_eq!(
            edit("modprobe.blacklist=a,b", "modprobe.blacklist=nouveau", ""),
            "modprobe.blacklist=a,b,nouveau"
        );
        assert_eq!(
            edit("modprobe.blacklist=a,nouveau", "modprobe.blacklist=nouveau", ""),
            "modprobe.blacklist=a,nouveau"
        );
        assert_eq!(edit("modprobe.blacklist=a,b x", "", "modprobe.blacklist=a"), "modprobe.blacklist=b x");
        assert_eq!(edit("modprobe.blacklist=a x", "", "modprobe.blacklist"), "x");
        for name in [
            "modprobe.blacklist",
            "rd.driver.blacklist",
            "module_blacklist",
            "initcall_blacklist",
            "cgroup_disable",
        ] {
            let (line, all) = (format!("{name}=a,b,c quiet"), format!("{name}=c,a"));
            assert_eq!(edit(&line, "", &all), format!("{name}=b quiet"), "the order is no matter");
            assert_eq!(edit(&format!("{name}=a {name}=c"), "", &all), "", "one word or two");
        }
        assert_eq!(
            edit("crashkernel=1G,high crashkernel=256M,low", "crashkernel=2G,high", ""),
            "crashkernel=256M,low crashkernel=2G,high"
        );
        assert_eq!(
            edit("crashkernel=1G,high crashkernel=256M,low", "crashkernel=512M", ""),
            "crashkernel=512M"
        );
    }

    #[test]
    fn options_of_a_key_that_is_read_each_time_stay_beside_each_other() {
        for (line, add, then) in [
            ("pci=nocrs quiet", "pci=realloc", "pci=nocrs,realloc quiet"),
            ("pci=nocrs pci=noaer", "pci=realloc", "pci=nocrs pci=noaer,realloc"),
            ("pci=realloc=off,noaer", "pci=realloc", "pci=noaer,realloc"),
            ("pci=use_crs", "pci=nocrs", "pci=nocrs"),
            ("intel_iommu=on,sm_on", "intel_iommu=on", "intel_iommu=on,sm_on"),
            ("intel_iommu=sm_on,off", "intel_iommu=on", "intel_iommu=sm_on,on"),
            ("iommu=off", "iommu=pt", "iommu=pt"),
            ("iommu=noagp,soft", "iommu=pt", "iommu=noagp,pt"),
            ("efi=debug", "efi=runtime", "efi=debug,runtime"),
            ("acpi=noirq acpi=off", "acpi=force", "acpi=noirq acpi=force"),
            (
                "intel_pstate=no_hwp intel_pstate=disable",
                "intel_pstate=passive",
                "intel_pstate=no_hwp intel_pstate=passive",
            ),
            ("cgroup_no_v1=net_cls", "cgroup_no_v1=all", "cgroup_no_v1=net_cls,all"),
            ("usbcore.quirks=1:2:k", "usbcore.quirks=3:4:m", "usbcore.quirks=1:2:k,3:4:m"),
            ("libata.force=2:noncq", "libata.force=1.5Gbps", "libata.force=1.5Gbps"),
            ("nvme.dyndbg=+p", "nvme.dyndbg=+pm", "nvme.dyndbg=+p nvme.dyndbg=+pm"),
            ("mitigations=auto", "mitigations=off", "mitigations=off"),
            ("nohz_full=1-3", "nohz_full=1-7", "nohz_full=1-7"),
        ] {
            assert_eq!(edit(line, add, ""), then, "{line} and {add}");
            assert_eq!(edit(then, add, ""), then, "{line} and {add} again");
        }
        assert_eq!(edit("pci=nocrs,realloc", "", "pci=nocrs"), "pci=realloc");
    }

    #[test]
    fn of_module_blacklist_only_the_last_word_counts() {
        let task = task(&["module_blacklist=nouveau".into()], &[]);
        for (line, then) in [
            (
                "module_blacklist=nouveau module_blacklist=a",
                "module_blacklist=nouveau module_blacklist=a,nouveau",
            ),
            (
                "module_blacklist=nouveau module-blacklist=",
                "module_blacklist=nouveau module-blacklist=nouveau",
            ),
            ("module_blacklist=a module_blacklist=nouveau", "module_blacklist=a module_blacklist=nouveau"),
            ("module_blacklist=a -- module_blacklist=b", "module_blacklist=a,nouveau -- module_blacklist=b"),
        ] {
            assert_eq!(judged(&task, &split(line)).is_right(), line == then, "{line}");
            assert_eq!(edited(&task, &split(line)).join(" "), then);
        }
        assert_eq!(
            edit("modprobe.blacklist=nouveau modprobe.blacklist=a", "modprobe.blacklist=nouveau", ""),
            "modprobe.blacklist=nouveau modprobe.blacklist=a",
            "kmod reads them all"
        );
    }

    #[test]
    fn words_of_process_1_are_its_own() {
        assert_eq!(edit("quiet -- iommu=off", "iommu=pt", ""), "quiet iommu=pt -- iommu=off");
        assert!(!judged(&task(&["single".into()], &[]), &split("quiet -- single")).is_right());
    }
}
