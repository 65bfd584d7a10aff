use gpufleet_language::{diagnostic::SourceFile, yaml};
use insta::assert_snapshot;

use super::*;
use crate::schedule::When;

const GOOD: &str = "
listen: 127.0.0.1:9464
timezone: Europe/Berlin
reminder: 1d
audits:
  - name: nightly
    inventory: inventory/
    limit: '!lab'
    baselines: [training, slurm]
    playbooks: [-odd.yaml]
    waivers: waivers.yaml
    at: ['02:00', '14:30']
    days: [mon, Tuesday]
    jitter: 10m
    timeout: 30m
  - {health: true, every: 6h}
notifications:
  - name: oncall
    webhook: https://hooks.example.com/T0/secret
    secret_file: secret
    verdicts: [fail]
    severity: high
    audits: nightly
  - command: [/usr/local/bin/page, --team, gpu]
    timeout: 30s
";

fn read(text: &str) -> Result<Configuration, String> {
    let source = SourceFile::new("watch.yaml", text);
    Configuration::read(&source, "seed").map_err(|errors| errors.to_string())
}

fn json_of(text: &str) -> serde_json::Value {
    yaml::parse_source(&SourceFile::new("watch.yaml", text)).unwrap().to_json()
}

#[test]
fn a_file_says_what_when_and_to_whom() {
    let it = read(GOOD).unwrap();
    assert_eq!(it.listen.unwrap().address.to_string(), "127.0.0.1:9464");
    assert_eq!(it.reminder, Some(Duration::from_secs(86_400)));
    let [nightly, other] = &it.audits[..] else { panic!("{:?}", it.audits) };
    assert_eq!(
        nightly.target.arguments().join(" "),
        "audit --baseline=training --baseline=slurm --waivers=waivers.yaml --inventory=inventory/ --limit=!lab \
         --format json -- -odd.yaml"
    );
    assert_eq!((nightly.timeout, other.timeout), (Duration::from_secs(1800), AUDIT_TIME));
    assert_eq!(
        (other.name.as_str(), other.target.arguments().join(" ").as_str()),
        ("audit2", "audit --health --format json")
    );
    assert_eq!(other.rhythm, Rhythm::new(When::Every { seconds: 21_600 }, 0, "seed audit2").unwrap());
    let [oncall, page] = &it.channels[..] else { panic!("{:?}", it.channels) };
    assert_eq!(
        (oncall.filter.verdicts.as_slice(), oncall.filter.severity),
        (&[Verdict::Fail][..], Severity::High)
    );
    assert_eq!(
        page.means,
        Means::Command(["/usr/local/bin/page", "--team", "gpu"].map(str::to_owned).to_vec())
    );
    assert!(!format!("{oncall:?}").contains("T0"), "a URL may be a secret");
}

#[test]
fn mistakes_are_reported_with_their_places_all_at_once() {
    let text = "
listen: 0.0.0.0:9464
timezone: Europe/Berln
audit: []
audits:
  - {name: a b, health: true, every: 6h}
  - {name: twice, health: true, every: soon}
  - {name: twice, every: 6h, at: ['2:00']}
  - {health: true, at: [02:00, '25:00'], jitter: 3h}
  - {health: true, every: 1h, jitter: 2h, days: [mon]}
notifications:
  - {webhook: 'ftp://secret.example.com/T0'}
  - {command: page now}
  - {command: [page], secret_file: s, verdicts: [ok, fial], audits: [nightly]}
  - {}
";
    assert_snapshot!(read(text).unwrap_err(), @r###"
    error: unknown key `audit`
      --> watch.yaml:4:1
       |
     4 | audit: []
       | ^^^^^ not a key of a configuration of `gpufleet watch`
    help: did you mean `audits`?
    error: there is no time zone `Europe/Berln`
      --> watch.yaml:3:11
       |
     3 | timezone: Europe/Berln
       |           ^^^^^^^^^^^^
    help: write it as Europe/Berlin, America/New_York or UTC
    error: 0.0.0.0:9464 can be reached from other machines, and there is no token
      --> watch.yaml:2:9
       |
     2 | listen: 0.0.0.0:9464
       |         ^^^^^^^^^^^^
    help: give a `token_file`, or listen on 127.0.0.1
    error: `a b` cannot be a name
      --> watch.yaml:6:12
       |
     6 |   - {name: a b, health: true, every: 6h}
       |            ^^^
    help: a name has at most 64 letters, digits, `-`, `_` and `.`
    error: `every` wants a duration
      --> watch.yaml:7:40
       |
     7 |   - {name: twice, health: true, every: soon}
       |                                        ^^^^
    help: write it as 90s, 20m, 6h or 1d
    error: the audit judges nothing
      --> watch.yaml:8:5
       |
     8 |   - {name: twice, every: 6h, at: ['2:00']}
       |     ^
    help: give `health: true`, `baselines` or `playbooks`
    error: an audit has `every` or `at`, and not both
      --> watch.yaml:8:26
       |
     8 |   - {name: twice, every: 6h, at: ['2:00']}
       |                          ^^
    error: `at` wants times of day
      --> watch.yaml:9:32
       |
     9 |   - {health: true, at: [02:00, '25:00'], jitter: 3h}
       |                                ^^^^^^^
    help: write them in quotes: `at: ["02:00", "14:30"]`
    error: `days` is about times of day, and not about `every`
      --> watch.yaml:10:43
        |
     10 |   - {health: true, every: 1h, jitter: 2h, days: [mon]}
        |                                           ^^^^
    error: the jitter is 7200 s, and must be less than the 3600 s between two audits
      --> watch.yaml:10:39
        |
     10 |   - {health: true, every: 1h, jitter: 2h, days: [mon]}
        |                                       ^^
    error: `webhook`: it must begin with https:// or http://
      --> watch.yaml:12:15
    error: `command` wants a program and its arguments, as a list
      --> watch.yaml:13:15
        |
     13 |   - {command: page now}
        |               ^^^^^^^^
    help: no shell reads it: `command: [/usr/local/bin/page, --team, gpu]`
    error: `secret_file` belongs to a webhook
      --> watch.yaml:14:23
        |
     14 |   - {command: [page], secret_file: s, verdicts: [ok, fial], audits: [nightly]}
        |                       ^^^^^^^^^^^
    error: there is no `fial` here
      --> watch.yaml:14:49
        |
     14 |   - {command: [page], secret_file: s, verdicts: [ok, fial], audits: [nightly]}
        |                                                 ^
    help: words are na, ok, warn, drift, unknown, fail
    help: did you mean `fail`?
    error: `ok` is no finding
      --> watch.yaml:14:49
        |
     14 |   - {command: [page], secret_file: s, verdicts: [ok, fial], audits: [nightly]}
        |                                                 ^
    help: a recovery is told where its finding was told
    error: there is no audit `nightly`
      --> watch.yaml:14:69
        |
     14 |   - {command: [page], secret_file: s, verdicts: [ok, fial], audits: [nightly]}
        |                                                                     ^
    error: a channel has one of `webhook`, `url_file` and `command`
      --> watch.yaml:15:5
        |
     15 |   - {}
        |     ^
    "###);
}

#[test]
fn mistakes_beside_a_url_do_not_show_it() {
    let audits = "audits: [{health: true, every: 1h}]\n";
    for rest in [
        "notifications: [{webhook: https://x/SECRET, timeout: soon, odd: 1}]",
        "notifications: [{webhook: https://x/SECRET}, {command: page}]",
        "notifications: [{url: https://x/SECRET}]",
        "notifications: [{webhook: 'https://x/SECRET}]",
        "notifications: [{name: a, command: [page]}, {name: a, webhook: https://x/SECRET}]",
        "notifications:\n  - webhook: >-\n      https://x/\n      SECRET\n    timeout: soon",
        "notifications: [{url_file: f, proxy: 'me:SECRET@proxy', timeout: soon}]",
    ] {
        let error = read(&format!("{audits}{rest}\n")).unwrap_err();
        assert!(error.contains("--> watch.yaml:") && !error.contains("SECRET"), "{error}");
    }
}

#[test]
fn a_file_without_audits_is_refused() {
    assert!(read("{}").unwrap_err().contains("there is nothing to audit"));
    assert!(read("audits: 3").unwrap_err().contains("`audits` wants a list"));
    assert!(read("[]").unwrap_err().contains("wants a mapping"));
}

#[test]
fn metrics_that_others_can_reach_want_a_token() {
    let text = "audits: [{health: true, every: 1h}]\nlisten: 0.0.0.0:9464\n";
    assert!(read(text).unwrap_err().contains("there is no token"));
    assert!(read(&format!("{text}token_file: token\n")).is_ok());
}

#[test]
fn the_schema_takes_what_is_taken_and_describes_every_key() {
    let schema = schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    assert!(
        validator.is_valid(&json_of(GOOD)),
        "{:?}",
        validator.iter_errors(&json_of(GOOD)).next().map(|e| e.to_string())
    );
    for bad in ["audits: []", "audits: [{health: true}]", "audits: [{every: 1h}]", "odd: 1"] {
        assert!(!validator.is_valid(&json_of(bad)) && read(bad).is_err(), "{bad}");
    }
    let properties = |value: &serde_json::Value| -> Vec<String> {
        let map = value["properties"].as_object().unwrap();
        assert!(map.values().all(|key| key["description"].as_str().is_some_and(|text| text.ends_with('.'))));
        map.keys().cloned().collect()
    };
    let sorted = |mut keys: Vec<String>| {
        keys.sort();
        keys
    };
    let keys = |keys: &[&str]| sorted(keys.iter().map(|key| (*key).to_owned()).collect());
    assert_eq!(sorted(properties(&schema)), keys(&read::KEYS));
    assert_eq!(sorted(properties(&schema["properties"]["audits"]["items"])), keys(&read::AUDIT_KEYS));
    assert_eq!(
        sorted(properties(&schema["properties"]["notifications"]["items"])),
        keys(&read::CHANNEL_KEYS)
    );
}

#[test]
fn words_of_times_and_days() {
    assert_eq!(time_of_day("2:05").map(|time| (time.hour(), time.minute())), Some((2, 5)));
    for wrong in ["24:00", "2", "2:60", "-1:00", "002:00", "2:00:00"] {
        assert_eq!(time_of_day(wrong), None, "{wrong}");
    }
    assert_eq!(
        (weekday("SUN"), weekday("Wednes"), weekday("t")),
        (Some(Weekday::Sunday), Some(Weekday::Wednesday), None)
    );
    assert_eq!(
        (duration("6h"), duration("0s"), duration("9000d"), duration("x")),
        (Some(21_600), None, None, None)
    );
}
