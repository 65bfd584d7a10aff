use std::sync::Arc;

use proptest::prelude::*;
use secrecy::ExposeSecret as _;
use serde_json::json;

use super::*;
use crate::diagnostic::SourceFile;
use crate::yaml;

/// Both were written by ansible-vault of ansible-core 2.19, from the same two lines.
const DEFAULT: &str = include_str!("fixtures/default.vault");
const PROD: &str = include_str!("fixtures/prod.vault");
const PLAIN: &str = "db_password: planted-secret\nport: 5432\n";

fn ring(keys: &[(&str, &str)]) -> Keyring {
    Keyring::new(keys.iter().map(|(id, password)| Key::new(*id, password.as_bytes().to_vec())).collect())
}

fn message(text: &str, keyring: &Keyring) -> String {
    keyring.open_file(&SourceFile::new("group_vars/all.yml", text)).unwrap_err().to_string()
}

#[test]
fn what_ansible_wrote_is_read() {
    for (text, id) in [(DEFAULT, None), (PROD, Some("prod"))] {
        assert_eq!(Envelope::parse(text).unwrap().id.as_deref(), id);
        let keyring = ring(&[("default", "hunter2"), ("prod", "other")]);
        let opened = keyring.open_file(&SourceFile::new("a", text)).unwrap();
        assert_eq!(opened.text(), PLAIN);
        assert!(opened.is_secret());
    }
}

#[test]
fn the_password_of_another_id_is_tried_too() {
    let keyring = ring(&[("prod", "wrong"), ("test", "other")]);
    assert_eq!(keyring.open_file(&SourceFile::new("a", PROD)).unwrap().text(), PLAIN);
}

#[test]
fn each_way_to_fail_is_told() {
    insta::assert_snapshot!(message(DEFAULT, &Keyring::default()), @r"
    error: this is encrypted with ansible-vault, and no vault password is given
      --> group_vars/all.yml:1:1
    help: give it with `--vault-password-file FILE`, or let gpufleet ask with `--ask-vault-pass`
    ");
    insta::assert_snapshot!(message(PROD, &ring(&[("default", "hunter2")])), @r"
    error: no vault password opens this: each is wrong, or the text was changed
      --> group_vars/all.yml:1:1
    note: passwords tried: default
    note: it names the id `prod`
    help: give that password with `--vault-id prod@SOURCE`
    ");
    let keyring = ring(&[("default", "hunter2")]);
    insta::assert_snapshot!(message("$ANSIBLE_VAULT;1.1;AES256\n3132\n", &keyring), @r"
    error: this vault text cannot be read: it is damaged: a part of it is missing
      --> group_vars/all.yml:1:1
    ");
    insta::assert_snapshot!(message("$ANSIBLE_VAULT;9;AES256\n3132\n", &keyring), @r"
    error: this vault text cannot be read: version `9` of the format is not known, only 1.1 and 1.2 are
      --> group_vars/all.yml:1:1
    ");
    insta::assert_snapshot!(message("$ANSIBLE_VAULT;1.1;DES\n3132\n", &keyring), @r"
    error: this vault text cannot be read: the cipher `DES` is not known, only AES256 is
      --> group_vars/all.yml:1:1
    ");
}

#[test]
fn a_string_that_no_password_opens_is_told_with_its_place() {
    let body: String = DEFAULT.lines().map(|line| format!("    {line}\n")).collect();
    let node = yaml::parse("vars.yml", &format!("plain: 1\ndb:\n  password: !vault |\n{body}")).unwrap();
    let keyring = ring(&[("default", "wrong")]);
    keyring.note(&node);
    let mut value = node.to_json();
    assert!(holds_locked(&value));
    insta::assert_snapshot!(keyring.reveal(&mut value).unwrap_err().to_string(), @r"
    error: no vault password opens this: each is wrong, or the text was changed
      --> vars.yml:4:5
    note: passwords tried: default
    ");
    ring(&[("default", "hunter2")]).reveal(&mut value).unwrap();
    assert_eq!(value, json!({"plain": 1, "db": {"password": {SECRET: PLAIN}}}));
    assert_eq!(masked(value.clone()), json!({"plain": 1, "db": {"password": "********"}}));
    assert_eq!(unsealed(value), json!({"plain": 1, "db": {"password": PLAIN}}));
}

#[test]
fn nothing_shows_a_password() {
    let keyring = ring(&[("default", "hunter2")]);
    assert!(!format!("{keyring:?}").contains("hunter2"));
    assert!(!message(PROD, &keyring).contains("hunter2"));
}

#[test]
fn a_text_is_opened_once() {
    let keyring = Arc::new(ring(&[("default", "hunter2")]));
    let node = yaml::parse("a", &format!("!vault |\n{}", DEFAULT.replace('$', "  $").replace('\n', "\n  ")))
        .unwrap();
    let yaml::Value::Tagged { node, .. } = node.value else { panic!("a tag") };
    let (first, second) = (keyring.open_node(&node).unwrap(), keyring.open_node(&node).unwrap());
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(first.expose_secret(), PLAIN);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn what_was_sealed_opens_again(
        plain in proptest::collection::vec(any::<u8>(), 0..100),
        password in proptest::collection::vec(any::<u8>(), 1..20),
        id in proptest::option::of("[a-z]{1,8}"),
    ) {
        let text = seal(&plain, &password, id.as_deref()).unwrap();
        prop_assert!(is_encrypted(&text));
        let envelope = Envelope::parse(&text).unwrap();
        prop_assert_eq!(&envelope.id, &id.filter(|id| id != DEFAULT_ID));
        prop_assert_eq!(&*envelope.open(&password).unwrap(), &plain);
    }

    #[test]
    fn any_changed_digit_is_refused(at in any::<prop::sample::Index>(), by in 1_u32..16) {
        let start = DEFAULT.find('\n').unwrap() + 1;
        let digits: Vec<usize> =
            (start..DEFAULT.len()).filter(|at| !DEFAULT[*at..].starts_with('\n')).collect();
        let at = *at.get(&digits);
        let digit = DEFAULT[at..].chars().next().and_then(|digit| digit.to_digit(16)).unwrap();
        let changed = char::from_digit((digit + by) % 16, 16).unwrap();
        let text = format!("{}{changed}{}", &DEFAULT[..at], &DEFAULT[at + 1..]);
        prop_assert!(Envelope::parse(&text).and_then(|envelope| envelope.open(b"hunter2")).is_err());
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "(\\$ANSIBLE_VAULT;1\\.1;AES256\n)?[0-9a-f\n]{0,200}|.{0,100}") {
        if let Err(error) = Envelope::parse(&text) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
