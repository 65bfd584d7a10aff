use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::Unit;

const LIVE: Disruption = Disruption::Live;

fn gpu(index: u32) -> Subject {
    Subject::Gpu { index, uuid: format!("GPU-{index}") }
}

fn watts(milliwatts: u32) -> Value {
    Value::Number { value: Amount::thousandths(milliwatts), unit: Some(Unit::Watts) }
}

fn clock(low: u32, high: u32) -> Value {
    Value::Range { low: Amount::whole(low), high: Amount::whole(high), unit: Unit::Megahertz }
}

fn instances(profile: &str, count: usize, start: Option<u32>) -> MigInstances {
    MigInstances { profile: profile.to_owned(), count, start }
}

fn layout(instances: impl Into<Vec<MigInstances>>) -> MigLayout {
    MigLayout { instances: instances.into(), ..MigLayout::default() }
}

fn digest(bytes: Option<u64>) -> Value {
    Value::Digest { algorithm: "sha256".to_owned(), value: "0123456789abcdef".to_owned(), bytes }
}

fn new(subject: Subject, property: Property, from: impl Into<Value>, to: impl Into<Value>) -> Change {
    Change::new(subject, property, from, to, LIVE)
}

/// What people read was the same before changes were typed, word for word: it is in logs, screens and tickets.
#[test]
fn the_sentence_is_the_one_that_people_know() {
    use Property as P;
    use Subject as S;
    let cron = || CronTable::User("ann".to_owned());
    let command_line = || S::KernelCommandLine { parameter: "iommu".to_owned() };
    let fstab = || S::FstabEntry { name: "/scratch".to_owned(), file: "/etc/fstab".to_owned() };
    let users = |name| (S::user("ann"), P::new(name));
    let none = MigLayout::default;
    let partly = MigLayout {
        without_compute_instance: 1,
        with_partial_compute_instances: 2,
        ..layout([instances("1g.10gb", 3, None)])
    };
    let of = |(subject, property), from: Value, to: Value| new(subject, property, from, to);
    let days = |count: i64| Value::quantity(count, Unit::Days);
    let cases = [
        (new(gpu(0), P::POWER_LIMIT, watts(700_000), watts(600_500)), "GPU 0 power limit 700 -> 600.5 W"),
        (new(gpu(0), P::ECC, true, false), "GPU 0 ECC enabled -> disabled"),
        (
            new(gpu(3), P::MIG_MODE, true, false).at(Layer::Pending),
            "GPU 3 pending MIG mode enabled -> disabled",
        ),
        (
            new(gpu(0), P::GRAPHICS_CLOCK, Value::Unknown, clock(200, 300)),
            "GPU 0 graphics clock -> 200-300 MHz",
        ),
        (
            new(gpu(0), P::MEMORY_CLOCK, clock(200, 300), Value::Absent),
            "GPU 0 memory clock 200-300 MHz -> not locked",
        ),
        (
            new(gpu(0), P::GRAPHICS_CLOCK, Value::Absent, Value::quantity(900, Unit::Megahertz)),
            "GPU 0 graphics clock not locked -> 900 MHz",
        ),
        (
            new(
                gpu(1),
                P::MIG_LAYOUT,
                none(),
                layout([instances("3g.40gb", 1, Some(0)), instances("3g.40gb", 1, Some(4))]),
            ),
            "GPU 1 MIG layout none -> 3g.40gb at 0 + 3g.40gb at 4",
        ),
        (
            new(gpu(1), P::MIG_LAYOUT, partly, layout([instances("3g.40gb", 2, None)])),
            "GPU 1 MIG layout 3x 1g.10gb (1 without compute instance) (2 with partial compute instances) -> 2x 3g.40gb",
        ),
        (
            new(
                S::Mps,
                P::new("default active thread percentage"),
                Value::Absent,
                Value::quantity(50, Unit::Percent),
            ),
            "MPS default active thread percentage -> 50 %",
        ),
        (
            new(
                S::unit("nvidia-persistenced"),
                P::STATE,
                Value::list(["inactive", "disabled"]),
                Value::list(["active", "enabled"]),
            ),
            "nvidia-persistenced inactive, disabled -> active, enabled",
        ),
        (
            new(S::unit("chrony.service"), P::STATE, Value::Absent, "enabled").at(Layer::Boot),
            "chrony.service at boot without a unit file -> enabled",
        ),
        (new(S::unit("chrony.service"), P::STATE, Value::Unknown, "started"), "chrony.service -> started"),
        (
            new(S::kernel_setting("vm.swappiness"), P::VALUE, Value::parsed("60"), Value::parsed("10")),
            "vm.swappiness 60 -> 10",
        ),
        (
            new(S::kernel_setting("vm.swappiness"), P::VALUE, Value::parsed("60"), Value::Absent)
                .at(Layer::Boot),
            "vm.swappiness at boot 60 -> not set",
        ),
        (
            new(command_line(), P::VALUE, Value::Absent, "iommu=pt"),
            "kernel command line without iommu=pt -> iommu=pt",
        ),
        (
            new(command_line(), P::VALUE, "iommu=pt", Value::Absent),
            "kernel command line iommu=pt -> without iommu=pt",
        ),
        (new(S::module("nvidia"), P::STATE, "loaded", "not loaded"), "module nvidia loaded -> not loaded"),
        (
            new(S::module("nvidia"), P::OPTIONS, Value::Absent, "a=1 b=2").at(Layer::Boot),
            "module nvidia options at boot none -> a=1 b=2",
        ),
        (
            new(S::module("nvidia"), P::STATE, "with older options", "as in modprobe.d").at(Layer::Initramfs),
            "module nvidia in the initramfs with older options -> as in modprobe.d",
        ),
        (new(S::Node, P::new("host name"), "a", "b").at(Layer::Boot), "host name at boot a -> b"),
        (new(S::Node, P::STATE, "running", "rebooted"), "node running -> rebooted"),
        (
            new(S::file("/etc/motd"), P::CONTENT, Value::Absent, digest(Some(12))),
            "/etc/motd -> 0123456789ab (12 B)",
        ),
        (
            new(S::file("/etc/motd"), P::CONTENT, "a file", digest(None)),
            "/etc/motd a file -> sha256 0123456789ab",
        ),
        (
            new(S::file("/etc/key"), P::CONTENT, Value::Secret, Value::Secret),
            "/etc/key other content -> secret content",
        ),
        (new(S::file("/etc/key"), P::CONTENT, Value::Hidden, Value::Hidden), "/etc/key (hidden) -> (hidden)"),
        (new(S::file("/etc/motd"), P::MODE, "0644", "0600"), "/etc/motd mode 0644 -> 0600"),
        (
            new(S::file("/etc/motd"), P::OWNER, Value::number(0_u32), Value::number(1000_u32)),
            "/etc/motd owner 0 -> 1000",
        ),
        (
            new(S::tree("/srv"), P::STATE, "3 paths with another owner or mode", "as declared"),
            "/srv below 3 paths with another owner or mode -> as declared",
        ),
        (new(S::line("/etc/conf"), P::CONTENT, "a=1", Value::Absent), "/etc/conf a=1 -> absent"),
        (
            new(S::mount("/scratch"), P::SOURCE, Value::Absent, "/dev/sda"),
            "/scratch not mounted -> /dev/sda mounted",
        ),
        (
            new(S::mount("/scratch"), P::STATE, "/dev/sda mounted", "remounted"),
            "/scratch /dev/sda mounted -> remounted",
        ),
        (
            new(fstab(), P::CONTENT, "/dev/sda ext4 rw", Value::Absent),
            "/scratch in /etc/fstab /dev/sda ext4 rw -> absent",
        ),
        (
            new(
                S::CronJob { name: "scrub".to_owned(), table: cron() },
                P::CONTENT,
                Value::Absent,
                "@daily x",
            ),
            "job `scrub` in the crontab of ann -> @daily x",
        ),
        (new(S::package("hello"), P::VERSION, "2.1", Value::Absent), "package hello 2.1 -> absent"),
        (
            new(S::PackageManager, P::new("package lists"), "never updated", "updated"),
            "package lists never updated -> updated",
        ),
        (
            of(users("password"), Value::Secret, Value::Secret),
            "user ann password another one -> the declared one",
        ),
        (
            of(users("account ends"), Value::Absent, "2027-01-01".into()),
            "user ann account ends never -> 2027-01-01",
        ),
        (of(users("days of warning"), Value::Absent, days(7)), "user ann days of warning none -> 7"),
        (of(users("days of warning"), days(5), days(7)), "user ann days of warning 5 -> 7"),
        (
            of(users("groups"), Value::list(Vec::<String>::new()), Value::list(["a", "b"])),
            "user ann groups none -> a, b",
        ),
        (
            of(users("home directory"), Value::Absent, "/home/ann".into()),
            "user ann home directory missing -> /home/ann",
        ),
        (new(S::group("ann"), P::STATE, "gid 7", Value::Absent), "group ann gid 7 -> absent"),
        (
            new(S::Omitted { count: 4 }, P::STATE, Value::Absent, "not shown"),
            "and 4 more changes -> not shown",
        ),
    ];
    for (change, text) in cases {
        assert_eq!(change.to_string(), text);
    }
}

#[test]
fn the_document_says_what_it_is_about() {
    let change = new(gpu(0), Property::POWER_LIMIT, watts(700_000), watts(600_500));
    assert_eq!(
        serde_json::to_value(&change).unwrap(),
        json!({
            "subject": {"type": "gpu", "index": 0, "uuid": "GPU-0"},
            "property": "power limit",
            "from": {"type": "number", "value": 700, "unit": "W"},
            "to": {"type": "number", "value": 600.5, "unit": "W"},
            "disruption": "live",
            "certainty": "sure",
        })
    );
    let secret = new(Subject::file("/etc/key"), Property::CONTENT, Value::Absent, Value::Secret);
    let written = serde_json::to_value(secret.at(Layer::Boot)).unwrap();
    assert_eq!((&written["to"], &written["layer"]), (&json!({"type": "secret"}), &json!("boot")));
}

#[test]
fn records_of_before_are_read_and_read_the_same() {
    let read = |value: Json| serde_json::from_value::<Change>(value);
    let old = json!({"what": "GPU 0 graphics clock", "from": null, "to": "900 MHz", "disruption": "live"});
    let change = read(old).unwrap();
    assert_eq!(
        (change.to_string().as_str(), change.subject.gpu_index()),
        ("GPU 0 graphics clock -> 900 MHz", Some(0))
    );
    let old =
        json!({"what": "GPU x", "from": "enabled", "to": "disabled", "disruption": "reboot", "note": "n"});
    let change = read(old).unwrap();
    assert_eq!(
        (change.to_string().as_str(), change.note.as_deref()),
        ("GPU x enabled -> disabled", Some("n"))
    );
    assert_eq!(read(serde_json::to_value(&change).unwrap()).unwrap(), change);
    let new = read(json!({"what": "/a", "from": null, "to": "file", "disruption": "live"})).unwrap();
    assert_eq!((new.from_text(), new.to_text()), (None, "file".to_owned()));
    for wrong in [
        json!({"from": null, "to": "file", "disruption": "live"}),
        json!({"subject": {"type": "node"}, "to": {"type": "absent"}, "disruption": "live"}),
        json!({"subject": {"type": "nothing"}, "property": "state", "to": {"type": "absent"}, "disruption": "live"}),
        json!({"subject": {"type": "node"}, "property": "state", "to": {"type": "number", "value": "1"}, "disruption": "live"}),
    ] {
        assert!(read(wrong.clone()).is_err(), "{wrong}");
    }
    let both = json!({"what": "/a", "subject": {"type": "node"}, "property": "state", "to": "file", "disruption": "live"});
    assert_eq!(read(both).unwrap_err().to_string(), "`what` excludes `subject` and `property`");
}

#[test]
fn what_no_log_hides_is_nowhere() {
    let command_line = Subject::KernelCommandLine { parameter: "token7".to_owned() };
    let block = Subject::Block { path: "/etc/conf".to_owned(), marker: "# token7".to_owned() };
    for subject in [command_line, block, Subject::file("/etc/conf")] {
        let mut change = new(subject, Property::VALUE, "token7=a", "token7=b").with_note("token7");
        change.diff = Some("+token7".to_owned());
        change.hide();
        assert!(!serde_json::to_string(&change).unwrap().contains("token7"), "{change:?}");
        assert_eq!(change.values(), "(hidden) -> (hidden)");
        let mut change = Change { from: Value::Unknown, ..change };
        change.hide();
        assert_eq!(change.values(), "-> (hidden)");
    }
}

#[test]
fn a_number_is_told_from_text_that_looks_like_one() {
    assert_eq!(Value::parsed("-7"), Value::number(-7));
    for text in ["010", "+1", "1 2", "", "99999999999999999999"] {
        assert_eq!(Value::parsed(text), Value::text(text));
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), Just("absent".to_owned()), ".{1,12}"]
}

fn amount() -> impl Strategy<Value = Amount> {
    prop_oneof![
        any::<i64>().prop_map(Amount::whole),
        any::<u64>().prop_map(Amount::whole),
        (-4_000_000_000_i64..4_000_000_000).prop_map(Amount::thousandths),
    ]
}

fn unit() -> impl Strategy<Value = Unit> {
    prop_oneof![
        Just(Unit::Watts),
        Just(Unit::Megahertz),
        Just(Unit::Percent),
        Just(Unit::Bytes),
        Just(Unit::Days)
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let mig = (text(), 0_usize..8, proptest::option::of(0_u32..8))
        .prop_map(|(profile, count, start)| MigInstances { profile, count, start });
    let layout = (proptest::collection::vec(mig, 0..4), 0_usize..3, 0_usize..3).prop_map(
        |(instances, without_compute_instance, with_partial_compute_instances)| MigLayout {
            instances,
            without_compute_instance,
            with_partial_compute_instances,
        },
    );
    prop_oneof![
        Just(Value::Absent),
        Just(Value::Unknown),
        Just(Value::Secret),
        Just(Value::Hidden),
        any::<bool>().prop_map(Value::from),
        (amount(), proptest::option::of(unit())).prop_map(|(value, unit)| Value::Number { value, unit }),
        (amount(), amount(), unit()).prop_map(|(low, high, unit)| Value::Range { low, high, unit }),
        text().prop_map(Value::text),
        proptest::collection::vec(text(), 0..4).prop_map(Value::list),
        (text(), text(), any::<Option<u64>>()).prop_map(|(algorithm, value, bytes)| Value::Digest {
            algorithm,
            value,
            bytes
        }),
        layout.prop_map(Value::MigLayout),
    ]
}

fn subject() -> impl Strategy<Value = Subject> {
    prop_oneof![
        Just(Subject::Node),
        any::<u32>().prop_map(gpu),
        text().prop_map(Subject::file),
        text().prop_map(Subject::user),
        (text(), text()).prop_map(|(path, marker)| Subject::Block { path, marker }),
        (text(), text()).prop_map(|(name, user)| Subject::CronJob { name, table: CronTable::User(user) }),
        (text(), text())
            .prop_map(|(name, file)| Subject::CronVariable { name, table: CronTable::File(file) }),
        text().prop_map(|parameter| Subject::KernelCommandLine { parameter }),
        any::<usize>().prop_map(|count| Subject::Omitted { count }),
        text().prop_map(|text| Subject::Described { text }),
    ]
}

fn layer() -> impl Strategy<Value = Layer> {
    prop_oneof![Just(Layer::Live), Just(Layer::Pending), Just(Layer::Boot), Just(Layer::Initramfs)]
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(
        subject in subject(),
        layer in layer(),
        from in value(),
        to in value(),
        note in proptest::option::of(text()),
    ) {
        let change = Change { note, ..new(subject, Property::MODE, from, to).at(layer) };
        let written = serde_json::to_string(&change).unwrap();
        prop_assert_eq!(serde_json::from_str::<Change>(&written).unwrap(), change, "{}", written);
    }

    #[test]
    fn a_secret_or_unknown_side_shows_nothing_of_the_other(of in subject(), layer in layer(), from in value()) {
        let change = new(of, Property::PASSWORD, from, Value::Secret).at(layer);
        prop_assert_eq!(change.to_text(), "the declared one");
        let unknown = Change { from: Value::Unknown, ..change };
        prop_assert_eq!(unknown.from_text(), None);
        prop_assert_eq!(unknown.values(), "-> the declared one");
    }
}
