//! Files written by rage (its Python module pyrage), and one with a passphrase that it reads.

use proptest::prelude::*;

use super::super::{Key, Keyring, VaultError, encrypted_text};
use super::*;
use crate::diagnostic::SourceFile;

const IDENTITY: &str = include_str!("../fixtures/age/identity.txt");
const ONE: &str = include_str!("../fixtures/age/one.age");
const TWO: &str = include_str!("../fixtures/age/two.age");
const BINARY: &[u8] = include_bytes!("../fixtures/age/binary.age");
const OTHER: &str = include_str!("../fixtures/age/other.age");
const PASSPHRASE: &str = include_str!("../fixtures/age/passphrase.age");
const PLAIN: &str = "db_password: planted-secret\nport: 5432\n";

fn identity() -> Identity {
    IDENTITY.lines().last().unwrap().parse().unwrap()
}

fn ring() -> Keyring {
    Keyring::default().with_identities(vec![identity()])
}

fn message(text: &str, keyring: &Keyring) -> String {
    keyring.open_file(&SourceFile::new("group_vars/all.yml", text)).unwrap_err().to_string()
}

#[test]
fn what_rage_wrote_is_read() {
    for text in [ONE, TWO, &encrypted_text(BINARY).unwrap()] {
        let opened = ring().open_file(&SourceFile::new("a", text)).unwrap();
        assert_eq!(opened.text(), PLAIN);
        assert!(opened.is_secret());
    }
    assert_eq!(AgeEnvelope::parse(TWO).unwrap().recipients(), 2);
    assert_eq!(&*AgeEnvelope::of(BINARY).unwrap().open(&identity()).unwrap(), PLAIN.as_bytes());
}

#[test]
fn a_passphrase_is_a_vault_password() {
    let keyring =
        Keyring::new(vec![Key::new("default", b"wrong".to_vec()), Key::new("age", b"hunter2".to_vec())]);
    assert_eq!(keyring.open_file(&SourceFile::new("a", PASSPHRASE)).unwrap().text(), PLAIN);
}

#[test]
fn each_way_to_fail_is_told() {
    insta::assert_snapshot!(message(ONE, &Keyring::default()), @r"
    error: this is encrypted with age, and no identity is given
      --> group_vars/all.yml:1:1
    help: name the file of your secret key with `--vault-identity FILE`
    ");
    let known = identity().recipient().to_string();
    insta::assert_snapshot!(message(OTHER, &ring()).replace(&known, "age1…"), @r"
    error: no identity opens this: it is encrypted for others
      --> group_vars/all.yml:1:1
    note: identities tried are those of age1…
    ");
    insta::assert_snapshot!(message(PASSPHRASE, &ring()), @r"
    error: this is encrypted with a passphrase of age, and none is given
      --> group_vars/all.yml:1:1
    help: give it as a vault password: `--vault-password-file FILE`, or `--ask-vault-pass` to be asked
    ");
    let wrong = Keyring::new(vec![Key::new("default", b"wrong".to_vec())]);
    insta::assert_snapshot!(message(PASSPHRASE, &wrong), @r"
    error: no vault password opens this: each is wrong
      --> group_vars/all.yml:1:1
    ");
    insta::assert_snapshot!(message(&ONE.replace("-----END", "----END"), &ring()), @r"
    error: this file of age cannot be read: it is damaged: its last line is missing
      --> group_vars/all.yml:1:1
    ");
    let of = |header: &str| message(&armored(header.as_bytes()), &ring());
    insta::assert_snapshot!(of("age-encryption.org/v9\n-> X"), @r"
    error: this file of age cannot be read: version `v9` of the format of age is not known, only v1 is
      --> group_vars/all.yml:1:1
    ");
    insta::assert_snapshot!(of("nothing"), @r"
    error: this file of age cannot be read: it is damaged: it does not begin with `age-encryption.org/v1`
      --> group_vars/all.yml:1:1
    ");
}

#[test]
fn headers_that_are_not_the_format_are_refused() {
    let mac = "A".repeat(43);
    let wrapped = "A".repeat(43);
    let share = "A".repeat(43);
    let salt = "A".repeat(22);
    for header in [
        "".to_owned(),
        "-> X25519 ".to_owned(),
        format!("--- {mac}\n"),
        format!("-> X25519 {share}\n{wrapped}\n--- {mac}A\n"),
        format!("-> X25519 {share}\n{wrapped}\n---\n"),
        format!("-> X25519 {share}=\n{wrapped}\n--- {mac}\n"),
        format!("-> X25519 {share} {share}\n{wrapped}\n--- {mac}\n"),
        format!("-> X25519 {share}\n{wrapped}AAAA\n--- {mac}\n"),
        format!("-> scrypt {salt} 010\n{wrapped}\n--- {mac}\n"),
        format!("-> scrypt {salt} 64\n{wrapped}\n--- {mac}\n"),
        format!("-> scrypt {salt} 10\n{wrapped}\n-> X25519 {share}\n{wrapped}\n--- {mac}\n"),
        format!("-> \n{wrapped}\n--- {mac}\n"),
        format!("-> X25519 {share}\n{}\n--- {mac}\n", "A".repeat(65)),
    ] {
        let file = [VERSION, header.as_bytes(), &[0; 40]].concat();
        assert!(matches!(AgeEnvelope::of(&file), Err(VaultError::Damaged(_))), "{header}");
    }
    let low = [VERSION, format!("-> X25519 {share}\n{wrapped}\n--- {mac}\n").as_bytes(), &[0; 40]].concat();
    let low = AgeEnvelope::of(&low).unwrap().open(&identity());
    assert_eq!(low, Err(VaultError::WrongPassword), "a share of low order");
    let hard =
        [VERSION, format!("-> scrypt {salt} 40\n{wrapped}\n--- {mac}\n").as_bytes(), &[0; 40]].concat();
    assert!(matches!(
        AgeEnvelope::of(&hard).unwrap().open_with_passphrase(b"a"),
        Err(VaultError::Damaged(_))
    ));
    let foreign = format!("-> pq abc def\n{}\n\n-> X25519 {share}\n{wrapped}\n--- {mac}\n", "A".repeat(64));
    let foreign = AgeEnvelope::of(&[VERSION, foreign.as_bytes(), &[0; 40]].concat()).unwrap();
    assert_eq!(foreign.recipients(), 2);
}

#[test]
fn keys_are_read_and_written_as_age_does() {
    let text = IDENTITY.lines().last().unwrap();
    let public = IDENTITY.lines().nth(1).unwrap().trim_start_matches("# public key: ");
    assert_eq!(*identity().secret_text(), text);
    assert_eq!(identity().recipient().to_string(), public);
    assert_eq!(public.parse::<Recipient>().unwrap(), identity().recipient());
    assert!(!format!("{:?}", identity()).contains("SECRET"));
    let refused = |text: &str| text.parse::<Recipient>().unwrap_err();
    assert_eq!(refused(text), KeyError::IsSecret);
    assert_eq!(refused("ssh-ed25519 AAAA"), KeyError::Ssh);
    assert_eq!(
        refused("age1yubikey1qwt50d05nh5vutpdzmlg5wn80xq5negm4uj9ghv0snvdd3yysf5yw3rhl3t"),
        KeyError::OtherKind
    );
    assert_eq!(refused("nobody"), KeyError::NotAKey);
    assert_eq!(refused(&public.replace(&public[20..22], "qq")), KeyError::Damaged);
    let refused = |text: &str| text.parse::<Identity>().unwrap_err();
    assert_eq!(refused(public), KeyError::IsPublic);
    assert_eq!(refused("-----BEGIN OPENSSH PRIVATE KEY-----"), KeyError::Ssh);
    assert_eq!(refused("AGE-PLUGIN-YUBIKEY-1QQQ"), KeyError::OtherKind);
    assert_eq!(refused(&text[..text.len() - 1]), KeyError::Damaged);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn what_was_sealed_opens_again_for_each(
        plain in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..100),
            // Lengths around the chunk size of 65,536.
            prop::sample::select(vec![0_usize, 1, 65_535, 65_536, 65_537, 131_072, 131_073])
                .prop_map(|length| vec![7; length]),
        ],
        others in 0_usize..3,
    ) {
        let mut recipients: Vec<Recipient> =
            (0..others).map(|_| Identity::generate().unwrap().recipient()).collect();
        recipients.push(identity().recipient());
        let file = seal_to(&plain, &recipients).unwrap();
        let envelope = AgeEnvelope::parse(&armored(&file)).unwrap();
        prop_assert_eq!(envelope.recipients(), others + 1);
        prop_assert_eq!(&*envelope.open(&identity()).unwrap(), &plain);
        let stranger = Identity::generate().unwrap();
        prop_assert_eq!(envelope.open(&stranger), Err(VaultError::WrongPassword));
    }
}

proptest! {
    #[test]
    fn any_changed_byte_is_refused(at in any::<prop::sample::Index>(), by in 1_u8..=255) {
        let mut file = BINARY.to_vec();
        let at = at.index(file.len());
        file[at] ^= by;
        prop_assert!(AgeEnvelope::of(&file).and_then(|envelope| envelope.open(&identity())).is_err());
    }

    #[test]
    fn any_cut_is_refused(at in any::<prop::sample::Index>()) {
        let at = at.index(BINARY.len());
        let cut = AgeEnvelope::of(&BINARY[..at]).and_then(|envelope| envelope.open(&identity()));
        prop_assert!(cut.is_err());
    }

    #[test]
    fn nothing_panics(
        text in "(-----BEGIN AGE ENCRYPTED FILE-----\n)?[0-9a-zA-Z=/+\n]{0,200}(\n-----END AGE ENCRYPTED FILE-----)?|.{0,100}",
        bytes in "(age-encryption.org/v1\n)?(-> [a-zA-Z0-9 ]{0,60}\n[A-Za-z0-9+/]{0,66}\n){0,3}(--- [A-Za-z0-9+/]{0,44}\n)?.{0,80}",
    ) {
        let _ = AgeEnvelope::parse(&text);
        let _ = AgeEnvelope::of(bytes.as_bytes()).map(|envelope| envelope.open(&identity()));
        let _ = text.parse::<Identity>();
        let _ = text.parse::<Recipient>();
    }
}
