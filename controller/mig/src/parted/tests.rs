use proptest::prelude::*;

use gpufleet_language::diagnostic::{Diagnostics, SourceFile, render};

use super::*;
use crate::find;

fn read(text: &str) -> Result<PartedFile, Diagnostics> {
    PartedFile::read(&SourceFile::new("mig.yaml", text))
}

fn errors(text: &str) -> String {
    match read(text) {
        Ok(file) => panic!("{file:?}"),
        Err(errors) => render(&errors, false),
    }
}

fn specs(text: &str) -> String {
    format!("version: v1\nmig-configs:\n  a:\n    {}\n", text.replace('\n', "\n    "))
}

fn board(index: u32, device: u16) -> Board {
    Board { index, device: PciId { device, vendor: NVIDIA }, subsystem: None }
}

const FILE: &str = r#"
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  all-1g.10gb:
    # H100-80GB, and A100-40GB, where the same name has another size
    - device-filter: ["0x233010DE", "0x20B010DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        1g.10gb: 4
    - device-filter: "0x233010DE"
      devices: all
      mig-enabled: true
      mig-devices: {1g.10gb: 7}
  custom:
    - devices: [0, 2]
      mig-enabled: false
      mig-devices: {}
    - devices: [1, 3]
      mig-enabled: true
      mig-devices:
        1g.10gb: 2
        3g.40gb: 1
        1g.10gb+me: 0
"#;

#[test]
fn a_file_says_what_each_gpu_gets() {
    let file = read(FILE).unwrap();
    assert_eq!(file.names().collect::<Vec<_>>(), ["all-disabled", "all-1g.10gb", "custom"]);
    let of = |name: &str, board| file.config(name).unwrap().spec_for(board).cloned();
    assert!(!of("all-disabled", board(0, 0x2330)).unwrap().enabled);
    let seven: Counts = [("1g.10gb".to_owned(), 7)].into();
    let four: Counts = [("1g.10gb".to_owned(), 4)].into();
    assert_eq!(
        of("all-1g.10gb", board(0, 0x2330)).unwrap().instances,
        seven,
        "the last one that matches counts"
    );
    assert_eq!(of("all-1g.10gb", board(0, 0x20b0)).unwrap().instances, four);
    assert!(of("all-1g.10gb", board(0, 0x2335)).is_none(), "no spec is for it");
    assert!(!of("custom", board(2, 0x2330)).unwrap().enabled);
    let both: Counts = [("1g.10gb".to_owned(), 2), ("3g.40gb".to_owned(), 1)].into();
    assert_eq!(of("custom", board(3, 0x2330)).unwrap().instances, both, "a count of 0 says nothing");
    assert!(of("custom", board(4, 0x2330)).is_none());
}

#[test]
fn a_config_map_is_read_as_the_file_in_it() {
    let inner = FILE.replace('\n', "\n    ");
    let map = format!(
        "# for the manager\n---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: mig}}\n---\napiVersion: v1\n\
         kind: ConfigMap\nmetadata:\n  name: mig\ndata:\n  config.yaml: |{inner}\n---\nkind: DaemonSet\n"
    );
    let file = read(&map).unwrap();
    assert_eq!(file.configs.len(), 3);
    let twice = format!("{map}---\nkind: ConfigMap\ndata:\n  config.yaml: |{inner}\n");
    assert!(errors(&twice).contains("twice"), "{}", errors(&twice));
    assert!(errors("kind: ConfigMap\ndata: {a: b}\n").contains("has no configurations of mig-parted"));
    let wrong = map.replace("version: v1", "version: v2");
    insta::assert_snapshot!(errors(&wrong), @r#"
    error: only version `v1` is known
      --> mig.yaml (data.config.yaml):1:10
       |
     1 | version: v2
       |          ^^
    "#);
}

#[test]
fn many_documents_and_what_stands_beside_their_marks_are_read() {
    let text = "---\na: 1\n".repeat(20_000)
        + "--- {version: v1, mig-configs: {a: [{devices: all, mig-enabled: false}]}}\n";
    assert_eq!(read(&text).unwrap().configs.len(), 1);
    assert!(errors("---\na: 1\n---\nb: 1\n").contains("has no configurations of mig-parted"));
    let wrong = "a: 1\n--- {version: v1, mig-configs: {a: 1}}\n";
    assert!(errors(wrong).contains("mig.yaml:2:36"), "{}", errors(wrong));
}

#[test]
fn mistakes_are_reported_with_their_places() {
    insta::assert_snapshot!(errors(&specs("- devices: some\n  mig-enabled: true\n  colour: red")), @r#"
    error: unknown key `colour`
      --> mig.yaml:6:7
       |
     6 |       colour: red
       |       ^^^^^^ not a key of a spec of mig-parted
    error: `devices` wants `all`, or a list of the indexes of GPUs
      --> mig.yaml:4:16
       |
     4 |     - devices: some
       |                ^^^^
    error: `mig-enabled: true` needs `mig-devices`
      --> mig.yaml:4:7
       |
     4 |     - devices: some
       |       ^^^^^^^
    help: `mig-devices: {}` is MIG without instances
    "#);
    insta::assert_snapshot!(errors(&specs("- devices: [0, x]\n  mig-enabled: false\n  mig-devices: {1g.10gb: 1}")), @r#"
    error: `devices` wants `all`, or a list of the indexes of GPUs
      --> mig.yaml:4:20
       |
     4 |     - devices: [0, x]
       |                    ^
    error: instances need `mig-enabled: true`
      --> mig.yaml:6:20
       |
     6 |       mig-devices: {1g.10gb: 1}
       |                    ^
    "#);
    insta::assert_snapshot!(errors(&specs("- devices: all\n  device-filter: [H100, 0x233010DE, \" 0x233010DE\", \"0x233010DE:0x143F10DE\"]\n  mig-enabled: false")), @r#"
    error: `H100` is no device id
      --> mig.yaml:5:23
       |
     5 |       device-filter: [H100, 0x233010DE, " 0x233010DE", "0x233010DE:0x143F10DE"]
       |                       ^^^^
    note: mig-parted reads it as another one, or as none, and says nothing
    help: write device and vendor as in `0x233010DE`, and a subsystem behind a colon
    error: a device id is a text
      --> mig.yaml:5:29
       |
     5 |       device-filter: [H100, 0x233010DE, " 0x233010DE", "0x233010DE:0x143F10DE"]
       |                             ^^^^^^^^^^
    help: put it in quotes, as in "0x233010DE"
    error: ` 0x233010DE` is no device id
      --> mig.yaml:5:41
       |
     5 |       device-filter: [H100, 0x233010DE, " 0x233010DE", "0x233010DE:0x143F10DE"]
       |                                         ^^^^^^^^^^^^^
    note: mig-parted reads it as another one, or as none, and says nothing
    help: write device and vendor as in `0x233010DE`, and a subsystem behind a colon
    "#);
    insta::assert_snapshot!(errors(&specs("- devices: all\n  mig-enabled: true\n  mig-devices: {1g.10gb+foo: 1, 3g: 2, 2g.20gb: -1}")), @r#"
    error: `1g.10gb+foo` is no MIG profile: `foo` is none of the attributes me, me.all, gfx
      --> mig.yaml:6:21
       |
     6 |       mig-devices: {1g.10gb+foo: 1, 3g: 2, 2g.20gb: -1}
       |                     ^^^^^^^^^^^
    help: profiles look like `3g.40gb`, `1c.3g.40gb` or `1g.10gb+me`
    error: `3g` is no MIG profile: it does not end like `3g.40gb`
      --> mig.yaml:6:37
       |
     6 |       mig-devices: {1g.10gb+foo: 1, 3g: 2, 2g.20gb: -1}
       |                                     ^^
    help: profiles look like `3g.40gb`, `1c.3g.40gb` or `1g.10gb+me`
    error: `2g.20gb` wants a whole number of instances, 0 or more
      --> mig.yaml:6:53
       |
     6 |       mig-devices: {1g.10gb+foo: 1, 3g: 2, 2g.20gb: -1}
       |                                                     ^^
    "#);
    insta::assert_snapshot!(errors(&specs("- devices: all\n  mig-enabled: true\n  mig-devices: {1g.10gb: 0}")), @r#"
    error: no profile has an instance
      --> mig.yaml:6:20
       |
     6 |       mig-devices: {1g.10gb: 0}
       |                    ^
    help: `mig-devices: {}` is MIG without instances
    "#);
    insta::assert_snapshot!(errors("version: v2\nmig-config: {}\n"), @r#"
    error: unknown key `mig-config`
      --> mig.yaml:2:1
       |
     2 | mig-config: {}
       | ^^^^^^^^^^ not a key of a file of mig-parted
    help: did you mean `mig-configs`?
    error: only version `v1` is known
      --> mig.yaml:1:10
       |
     1 | version: v2
       |          ^^
    error: a file of mig-parted needs `mig-configs`
      --> mig.yaml:1:1
       |
     1 | version: v2
       | ^^^^^^^
    "#);
    insta::assert_snapshot!(errors("version: v1\nmig-configs: {}\n"), @r#"
    error: `mig-configs` has no configuration
      --> mig.yaml:2:14
       |
     2 | mig-configs: {}
       |              ^
    "#);
}

#[test]
fn names_of_profiles_have_a_form() {
    for name in [
        "1g.10gb",
        "1c.3g.40gb",
        "7g.80gb",
        "1g.10gb+me",
        "1g.24gb+me.all",
        "2g.48gb-me",
        "1g.24gb+gfx",
        "1g.24gb+gfx,me",
    ] {
        assert_eq!(read::profile(name), Ok(()), "{name}");
    }
    for name in [
        "",
        "1g",
        "g.10gb",
        "1g.gb",
        "1g.10",
        "0c.3g.40gb",
        "4c.3g.40gb",
        "1g.10gb+",
        "1g.10gb+me,me",
        "1g.10gb+me-gfx",
        " 1g.10gb",
        "01g.10gb",
    ] {
        assert!(read::profile(name).is_err(), "{name}");
    }
}

#[test]
fn a_spec_tells_whom_it_fits() {
    let file = read(FILE).unwrap();
    let custom = &file.config("custom").unwrap().specs[1];
    let (fitting, others) = custom.fits();
    let keys: Vec<&str> = fitting.iter().map(|family| family.key.as_str()).collect();
    assert_eq!(keys, ["a100-80gb", "h100-80gb"]);
    assert_eq!(others.len(), 11);
    let first = &file.config("all-1g.10gb").unwrap().specs[0];
    assert_eq!(first.families().len(), 2);
    assert!(find("a100-40gb").is_ok() && first.fits().1.is_empty());
}

proptest! {
    /// Any text is read, or refused with a message.
    #[test]
    fn no_text_is_too_much(text in "[ a-z0-9:.{}\\[\\]+\\n-]{0,200}") {
        let _ = read(&text);
        let _ = read(&specs(&text));
    }
}
