//! `apt_key`: keys that apt trusts for every repository, in the keyrings that apt reads.

use std::time::{SystemTime, UNIX_EPOCH};

use gpufleet_protocol::{
    Change, Disruption, Property, Subject,
    change::Value as Typed,
    repository::openpgp::{self, Certificate},
    tasks::{AptKey, RepositoryState},
};
use serde_json::{Map, Value, json};

use super::{
    Keyring, LIMIT, TRUSTED_FOLDER, fingerprint, is_armored, long_id, material, names, no_key, only,
};
use crate::{
    declare::{Node, NodeKind, Plan, Trouble},
    os::files::Ownership,
    tasks::{
        download::{self, Request},
        edits::{Present, Step, by_steps},
    },
};

const TRUSTED: &str = "/etc/apt/trusted.gpg";

#[derive(Debug)]
pub struct State {
    /// The keyrings that count.
    rings: Vec<Keyring>,
    /// Files among them that apt ignores, such as keyboxes of gpg, and what they are.
    ignored: Vec<(String, &'static str)>,
    /// A file among them that apt may read, but the helper cannot, and why.
    unread: Option<(String, &'static str)>,
    /// What the task's source gives, if it was needed.
    material: Option<(Vec<u8>, Vec<Certificate>)>,
    /// The id that the task is about.
    id: Option<String>,
    /// The file for a new key.
    new: Option<Present>,
    /// Seconds since 1970.
    now: u64,
}

impl State {
    fn is_valid(&self, one: &Certificate) -> bool {
        one.expires.is_none_or(|end| end > self.now)
    }

    /// Whether a keyring has a valid certificate with a key of this id.
    fn has(&self, id: &str) -> bool {
        let valid = self.rings.iter().flat_map(|ring| &ring.certificates).filter(|one| self.is_valid(one));
        valid.into_iter().any(|one| one.keys.iter().any(|key| names(id, key)))
    }

    /// Whether nothing of the task's source is missing.
    fn is_there(&self) -> bool {
        match (&self.material, &self.id) {
            (Some((_, all)), _) => {
                let mut valid =
                    all.iter().filter(|one| self.is_valid(one)).filter_map(|one| one.keys.first());
                valid.all(|key| self.has(&fingerprint(key)))
            }
            (None, Some(id)) => self.has(id),
            (None, None) => false,
        }
    }

    /// Returns the ids of all valid keys, as `apt-key` lists them.
    fn ids(&self) -> Vec<String> {
        let valid = self.rings.iter().flat_map(|ring| &ring.certificates).filter(|one| self.is_valid(one));
        let short = self.id.as_ref().is_some_and(|id| id.len() == 8);
        valid.flat_map(|one| &one.keys).map(|key| long_id(key).split_off(if short { 8 } else { 0 })).collect()
    }
}

/// Whether apt takes a file for a keyring: armored, or with the tag of a public key at its begin.
///
/// Source: `is_supported_keyring` of apt-key, apt 2.6.
fn apt_may_read(file: &Present) -> bool {
    let bytes = file.bytes.as_deref().unwrap_or_default();
    is_armored(bytes) || matches!(bytes.first(), Some(0x98 | 0x99 | 0xC6))
}

/// Reads the task's source.
fn read_source(task: &AptKey, node: &Node<'_>) -> Result<Option<(String, Vec<u8>)>, Trouble> {
    let from = |url: &str| -> Result<Option<(String, Vec<u8>)>, Trouble> {
        let request = Request::plain(url, task.validate_certs, LIMIT);
        Ok(Some((download::shown(url), node.downloads.get(&request, node)?.bytes()?)))
    };
    if let Some(url) = &task.url {
        return from(url);
    }
    if let (Some(server), Some(id)) = (&task.keyserver, task.key_id()) {
        return from(&AptKey::at_server(server, &id));
    }
    if let Some(path) = &task.file {
        let file = Present::read(node, path)?;
        let bytes = file.bytes.ok_or_else(|| Trouble::missing(format!("there is no file {path}")))?;
        return Ok(Some((path.clone(), bytes)));
    }
    Ok(task.data.as_ref().map(|data| ("data".to_owned(), data.clone().into_bytes())))
}

impl NodeKind for AptKey {
    type State = State;
    type Step = Step;

    fn observe(&self, node: &Node<'_>) -> Result<State, Trouble> {
        if !node.roots.path("/etc/apt").is_dir() {
            return Err(Trouble::missing(
                "there is no /etc/apt on this node; is it a node of Debian or Ubuntu?",
            ));
        }
        let files = match &self.keyring {
            Some(path) => vec![Present::read(node, path)?],
            None => {
                let mut all = vec![Present::read(node, TRUSTED)?];
                all.extend(Present::all(node, TRUSTED_FOLDER, &[".gpg", ".asc"])?);
                all.retain(|file| file.bytes.is_some());
                all
            }
        };
        let (mut rings, mut ignored, mut unread) = (Vec::new(), Vec::new(), None);
        for file in &files {
            match Keyring::of(file) {
                Ok(ring) => rings.push(ring),
                Err(why) if self.keyring.is_some() => return Err(no_key(&file.shown, why)),
                Err(why) if apt_may_read(file) => unread = Some((file.shown.clone(), why)),
                Err(why) => ignored.push((file.shown.clone(), why)),
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut state = State { rings, ignored, unread, material: None, id: self.key_id(), new: None, now };
        let wanted = self.state == RepositoryState::Present;
        let missing = state.id.as_ref().is_none_or(|id| wanted && !state.has(id));
        if missing && let Some((place, bytes)) = read_source(self, node)? {
            let bytes = material(&bytes).map_err(|why| no_key(&place, why))?;
            let mut all = openpgp::certificates(&bytes).map_err(|why| no_key(&place, why))?;
            let mut bytes = bytes;
            match &state.id {
                Some(id) => {
                    bytes = only(&bytes, std::slice::from_ref(id)).map_err(|id| {
                        let found: Vec<String> =
                            all.iter().filter_map(|one| one.keys.first()).map(fingerprint).collect();
                        no_key(&place, &format!("it holds {}, not {id}", found.join(", ")))
                    })?;
                    all = openpgp::certificates(&bytes).map_err(|why| no_key(&place, why))?;
                }
                None => state.id = all.iter().flat_map(|one| &one.keys).next().map(long_id),
            }
            if wanted && !all.iter().any(|one| state.is_valid(one)) {
                let id = all.iter().find_map(|one| one.keys.first()).map(fingerprint).unwrap_or_default();
                return Err(no_key(&place, &format!("the key {id} has expired")));
            }
            state.material = Some((bytes, all));
        }
        let first = state.material.as_ref().and_then(|(_, all)| all.first()?.keys.first()).map(fingerprint);
        if let (None, Some(name)) = (&self.keyring, first) {
            state.new = Some(Present::read(node, &format!("{TRUSTED_FOLDER}/{name}.gpg"))?);
        }
        Ok(state)
    }

    fn plan(&self, state: &State) -> Result<Plan<Step>, Trouble> {
        let mut plan = Plan::default();
        for (path, why) in &state.ignored {
            plan.warnings.push(format!("{path}: {why}; apt does not read it either"));
        }
        let change = |id: String, from: Typed, to: Typed| {
            Change::new(Subject::SigningKey { id }, Property::STATE, from, to, Disruption::Live)
        };
        let within = |file: &Present| -> Typed { format!("in {}", file.shown).into() };
        match self.state {
            RepositoryState::Present if state.is_there() => {}
            RepositoryState::Present => {
                let Some((bytes, all)) = &state.material else {
                    let id = state.id.as_deref().unwrap_or_default();
                    return Err(Trouble::invalid(format!(
                        "apt does not know the key {id}, and none of `url`, `data`, `file` and `keyserver` says where it is"
                    )));
                };
                let is_new = |old: &Certificate| {
                    let key = old.keys.first().map(fingerprint);
                    all.iter().any(|one| one.keys.first().map(fingerprint) == key)
                };
                // A keyring that is named keeps its other keys; an older form of the same key goes.
                let (file, mut content) = match (&self.keyring, state.rings.first(), &state.new) {
                    (Some(_), Some(ring), _) => (&ring.file, {
                        let kept = ring.without(is_new);
                        material(&kept).unwrap_or(kept)
                    }),
                    (_, _, Some(file)) => (file, Vec::new()),
                    _ => return Err(Trouble::invalid("the keyring cannot be read")),
                };
                content.extend_from_slice(bytes);
                plan.steps.extend(file.written(content, Ownership::default()));
                for key in all.iter().filter_map(|one| one.keys.first()) {
                    plan.changes.push(change(fingerprint(key), Typed::Absent, within(file)));
                }
            }
            RepositoryState::Absent if let Some((path, why)) = &state.unread => {
                return Err(Trouble::io(format!(
                    "whether the key is in {path} cannot be told: {why}; name the keyring with `keyring`, or remove that file"
                )));
            }
            RepositoryState::Absent => {
                let id = state.id.clone().unwrap_or_default();
                for ring in &state.rings {
                    let goes = |one: &Certificate| one.keys.first().is_some_and(|key| names(&id, key));
                    for one in ring.certificates.iter().filter(|one| goes(one)) {
                        let whole = one.keys.first().map(fingerprint).unwrap_or_default();
                        plan.changes.push(change(whole, within(&ring.file), Typed::Absent));
                    }
                    if ring.certificates.iter().any(goes) {
                        let kept = ring.without(goes);
                        match kept.is_empty() {
                            true => plan.steps.push(ring.file.removed()),
                            false => plan.steps.extend(ring.file.written(kept, Ownership::default())),
                        }
                    } else if let Some(one) =
                        ring.certificates.iter().find(|one| one.keys.iter().any(|key| names(&id, key)))
                    {
                        let whole = one.keys.first().map(fingerprint).unwrap_or_default();
                        return Err(Trouble::invalid(format!(
                            "{id} is a subkey; the key that it belongs to is {whole}"
                        )));
                    }
                }
            }
        }
        Ok(plan)
    }

    by_steps!();

    fn data(&self, state: &State) -> Map<String, Value> {
        let id = state.id.clone().unwrap_or_default();
        let last = |digits: usize| id.get(id.len().saturating_sub(digits)..).unwrap_or_default().to_owned();
        let data = [
            ("id", json!(self.id.as_ref().unwrap_or(&id))),
            ("key_id", json!(id)),
            ("fp", json!(last(16))),
            ("short_id", json!(last(8))),
            ("before", json!(state.ids())),
        ];
        data.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use gpufleet_protocol::{OpStatus, message::Mode};

    use super::{
        super::tests::{ARMORED, EXPIRED, FINGERPRINT, curl},
        *,
    };
    use crate::tasks::testing::Bench;

    fn task(value: Value) -> AptKey {
        serde_json::from_value(value).unwrap()
    }

    fn bench() -> Bench {
        let bench = Bench::new();
        bench.write("etc/apt/apt.conf", "");
        bench
    }

    fn own() -> String {
        format!("etc/apt/trusted.gpg.d/{FINGERPRINT}.gpg")
    }

    #[test]
    fn a_key_is_added_once_and_removed() {
        let bench = bench();
        curl(&bench, ARMORED);
        let by_url = task(json!({"url": "https://a.example/key"}));
        let predicted = bench.run(&by_url, Mode::Predict);
        assert_eq!(predicted.status, OpStatus::Changed, "{predicted:?}");
        assert!(!bench.path("etc/apt/trusted.gpg.d").exists());
        bench.forget();
        let applied = bench.run(&by_url, Mode::Apply);
        assert_eq!((&applied.status, &applied.changes), (&OpStatus::Changed, &predicted.changes));
        assert_eq!(std::fs::read(bench.path(&own())).unwrap(), material(ARMORED.as_bytes()).unwrap());
        assert_eq!(
            (&applied.data["fp"], &applied.data["short_id"]),
            (&json!("F7D241EB974ADA98"), &json!("974ADA98"))
        );
        assert_eq!(bench.run(&by_url, Mode::Apply).status, OpStatus::Ok);
        // With an id, nothing is downloaded for a key that is there.
        std::fs::remove_file(bench.path("log")).unwrap();
        let by_id = json!({"id": FINGERPRINT, "url": "https://a.example/key"});
        assert_eq!(bench.run(&task(by_id), Mode::Apply).status, OpStatus::Ok);
        assert!(!bench.path("log").exists());
        let removed = bench.run(&task(json!({"id": "0x974ada98", "state": "absent"})), Mode::Apply);
        assert_eq!(removed.status, OpStatus::Changed);
        assert!(!bench.path(&own()).exists());
        assert_eq!(
            bench.run(&task(json!({"id": "974ADA98", "state": "absent"})), Mode::Apply).status,
            OpStatus::Ok
        );
    }

    #[test]
    fn other_keys_of_a_keyring_stay() {
        let bench = bench();
        let ring = "etc/apt/keyrings/ours.gpg";
        bench.write("key.asc", ARMORED);
        bench.write("old.asc", EXPIRED);
        bench.write(ring, "");
        std::fs::write(bench.path(ring), material(EXPIRED.as_bytes()).unwrap()).unwrap();
        let add =
            |file: &str| task(json!({"file": bench.path(file), "keyring": "/etc/apt/keyrings/ours.gpg"}));
        let expired = bench.run(&add("old.asc"), Mode::Apply);
        assert!(matches!(expired.status, OpStatus::Failed { .. }), "{expired:?}");
        bench.run(&add("key.asc"), Mode::Apply);
        let both = std::fs::read(bench.path(ring)).unwrap();
        assert_eq!(openpgp::certificates(&both).unwrap().len(), 2);
        let gone = json!({"id": FINGERPRINT, "keyring": "/etc/apt/keyrings/ours.gpg", "state": "absent"});
        assert_eq!(bench.run(&task(gone), Mode::Apply).status, OpStatus::Changed);
        assert_eq!(std::fs::read(bench.path(ring)).unwrap(), material(EXPIRED.as_bytes()).unwrap());
        // An armored file stays one.
        bench.write("etc/apt/trusted.gpg.d/both.asc", &format!("{ARMORED}{EXPIRED}"));
        bench.run(&task(json!({"id": FINGERPRINT, "state": "absent"})), Mode::Apply);
        let left = bench.read("etc/apt/trusted.gpg.d/both.asc");
        assert_eq!(material(left.as_bytes()).unwrap(), material(EXPIRED.as_bytes()).unwrap());
        assert!(left.starts_with("-----BEGIN PGP PUBLIC KEY BLOCK-----"));
    }

    #[test]
    fn another_key_than_the_declared_one_is_refused() {
        let bench = bench();
        let before = bench.snapshot();
        let wrong = task(json!({"data": ARMORED, "id": "0123456789ABCDEF"}));
        let failed = bench.run(&wrong, Mode::Apply);
        let OpStatus::Failed { message, .. } = failed.status else { panic!("{failed:?}") };
        assert_eq!(message, format!("data: it holds {FINGERPRINT}, not 0123456789ABCDEF"));
        let unknown = bench.run(&task(json!({"id": "0123456789ABCDEF"})), Mode::Apply);
        assert!(matches!(unknown.status, OpStatus::Failed { .. }), "{unknown:?}");
        assert_eq!(bench.snapshot(), before);
    }

    #[test]
    fn what_apt_does_not_read_is_named() {
        let bench = bench();
        bench.write("etc/apt/trusted.gpg", "KBXf");
        let outcome = bench.run(&task(json!({"id": FINGERPRINT, "state": "absent"})), Mode::Apply);
        assert_eq!(
            outcome.warnings,
            ["/etc/apt/trusted.gpg: it is no OpenPGP key; apt does not read it either"]
        );
        assert_eq!(outcome.status, OpStatus::Ok);
    }

    #[test]
    fn a_keyring_that_cannot_be_judged_is_not_taken_for_one_without_the_key() {
        let bench = bench();
        let whole = material(ARMORED.as_bytes()).unwrap();
        bench.write("etc/apt/trusted.gpg.d/cut.gpg", "");
        std::fs::write(bench.path("etc/apt/trusted.gpg.d/cut.gpg"), &whole[..whole.len() - 9]).unwrap();
        let absent = task(json!({"id": FINGERPRINT, "state": "absent"}));
        for mode in [Mode::Predict, Mode::Apply] {
            let outcome = bench.run(&absent, mode);
            let (OpStatus::Failed { message, .. } | OpStatus::Unknown { reason: message }) = &outcome.status
            else {
                panic!("{outcome:?}")
            };
            assert!(message.contains("trusted.gpg.d/cut.gpg cannot be told"), "{message}");
        }
    }
}
