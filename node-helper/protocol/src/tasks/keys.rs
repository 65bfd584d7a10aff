//! Parameters of the kinds that declare which keys packages may be signed with.

use serde::{Deserialize, Serialize};

use super::{
    Alone, Class, Given, Kind, KindInfo, ParamError, Reading,
    files::{absolute, on_node, yes},
    repositories::RepositoryState,
    transfer::address,
};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths},
    repository::openpgp,
};

/// Declares a key that apt trusts for every repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AptKey {
    /// Its fingerprint, or the last 8 or 16 digits of it. With it, a key that is there is not looked for elsewhere.
    #[serde(default, deserialize_with = "lenient::optional_text", skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `present` (default) or `absent`.
    #[serde(default)]
    pub state: RepositoryState,
    /// Address of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The armored key itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Path of the key on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Server of keys, such as `keyserver.ubuntu.com`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keyserver: Option<String>,
    /// Keyring that the key belongs in; left out, any that apt reads, and a file of its own below
    /// /etc/apt/trusted.gpg.d for a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keyring: Option<String>,
    /// Whether the server's certificate is checked (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub validate_certs: bool,
}

impl AptKey {
    /// Returns its id in upper case.
    pub fn key_id(&self) -> Option<String> {
        openpgp::key_id(self.id.as_deref()?)
    }

    /// Returns the address that a key server has the key at.
    pub fn at_server(server: &str, id: &str) -> String {
        let base = match server.split_once("://") {
            None => format!("https://{server}"),
            Some(("hkps", host)) => format!("https://{host}"),
            Some(("hkp", host))
                if host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) =>
            {
                format!("http://{host}")
            }
            // The port of the protocol HKP.
            Some(("hkp", host)) => format!("http://{host}:11371"),
            Some(_) => server.to_owned(),
        };
        format!("{}/pks/lookup?op=get&options=mr&search=0x{id}", base.trim_end_matches('/'))
    }
}

impl Kind for AptKey {
    const INFO: KindInfo = KindInfo {
        name: "apt_key",
        aliases: &["ansible.builtin.apt_key"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &["url"],
        numbers: &[],
        since: &[("keyring", "1.3"), ("keyserver", "1.6")],
        summary: "Declares a key that apt trusts for every repository. Without `apt-key` and gpg; `deb822_repository` trusts a key for its own repository only.",
        example: "apt_key: {url: 'https://example.com/key.asc', id: 9FED2BCBDCD29CDF762678CBAED4B06F473041FA}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        if self.id.is_some() && self.key_id().is_none() {
            return Err(ParamError::new("id", "a key id has 8, 16 or more hexadecimal digits"));
        }
        let sources = [&self.url, &self.data, &self.file, &self.keyserver];
        match sources.iter().filter(|source| source.is_some()).count() {
            0 if self.id.is_none() => {
                return Err(ParamError::new(
                    "id",
                    "one of `id`, `url`, `data`, `file` and `keyserver` is needed",
                ));
            }
            0 | 1 => {}
            _ => {
                let message = "only one of `url`, `data`, `file` and `keyserver` can be given";
                return Err(ParamError::new("url", message));
            }
        }
        if let Some(url) = &self.url {
            address("url", url)?;
        }
        if let Some(file) = &self.file {
            on_node("file", file)?;
        }
        if let Some(server) = &self.keyserver {
            if self.id.is_none() {
                return Err(ParamError::new("keyserver", "a key server is asked for an `id`"));
            }
            address("keyserver", &Self::at_server(server, "0"))?;
        }
        if let Some(keyring) = &self.keyring {
            absolute("keyring", keyring)?;
            if keyring.ends_with(".asc") {
                let message = "a keyring is no armored file; give a name that ends with `.gpg`";
                return Err(ParamError::new("keyring", message));
            }
        }
        if let Some(data) = &self.data {
            let keys = match openpgp::dearmored(data) {
                Ok(Some(bytes)) => openpgp::certificates(&bytes).map(|keys| !keys.is_empty()),
                Ok(None) => Ok(false),
                Err(why) => Err(why),
            };
            match keys {
                Ok(true) => {}
                Ok(false) => return Err(ParamError::new("data", "an armored public key is needed")),
                Err(why) => return Err(ParamError::new("data", format!("this is no public key: {why}"))),
            }
        }
        Ok(())
    }
}

impl Operation for AptKey {
    paths!(file);

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        let mut paths = vec!["/etc/apt/trusted.gpg".to_owned(), "/etc/apt/trusted.gpg.d".to_owned()];
        paths.extend(self.keyring.clone());
        Reach::Places { paths, driver: false }
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::AptKey(new) = newer.op else { return true };
        let same = |one: &Option<String>, other: &Option<String>| one.is_some() && one == other;
        let same_key = same(&new.key_id(), &self.key_id())
            || same(&new.url, &self.url)
            || same(&new.data, &self.data)
            || same(&new.file, &self.file);
        !(same_key && new.keyring == self.keyring)
    }
}

/// Declares a key of rpm's database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RpmKey {
    /// Its address, its path on the node, or the id of a key that is there.
    #[serde(deserialize_with = "lenient::text")]
    pub key: String,
    /// `present` (default) or `absent`.
    #[serde(default)]
    pub state: RepositoryState,
    /// Fingerprints that the file must have. If all of them are there already, it is not downloaded.
    #[serde(default, deserialize_with = "lenient::comma_list", skip_serializing_if = "Vec::is_empty")]
    pub fingerprint: Vec<String>,
    /// Whether the server's certificate is checked (default).
    #[serde(default = "yes", deserialize_with = "lenient::flag")]
    pub validate_certs: bool,
}

/// Where the key of `rpm_key` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPlace<'a> {
    Address(&'a str),
    /// In upper case.
    Id(String),
    File(&'a str),
}

impl RpmKey {
    pub fn place(&self) -> KeyPlace<'_> {
        if self.key.contains("://") {
            return KeyPlace::Address(&self.key);
        }
        match openpgp::key_id(&self.key) {
            Some(id) if !self.key.starts_with('/') => KeyPlace::Id(id),
            _ => KeyPlace::File(&self.key),
        }
    }
}

impl Kind for RpmKey {
    const INFO: KindInfo = KindInfo {
        name: "rpm_key",
        aliases: &["ansible.builtin.rpm_key"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: true,
        judged: true,
        alone: Alone::Yes,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &["key"],
        numbers: &[],
        since: &[("fingerprint", "2.9")],
        summary: "Declares a key of rpm's database.",
        example: "rpm_key: {key: 'https://example.com/RPM-GPG-KEY', fingerprint: EBC6 E12C 62B1 C734 026B 2122 A20E 5214 6B8D 79E6}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        match self.place() {
            KeyPlace::Address(url) => address("key", url)?,
            KeyPlace::File(path) => on_node("key", path)?,
            KeyPlace::Id(_) => {}
        }
        let whole = |text: &String| openpgp::key_id(text).is_some_and(|id| id.len() >= 32);
        if !self.fingerprint.iter().all(whole) {
            return Err(ParamError::new("fingerprint", "a fingerprint has 40 or 64 hexadecimal digits"));
        }
        Ok(())
    }
}

impl Operation for RpmKey {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::places(["/var/lib/rpm"])
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        let NodeOp::RpmKey(new) = newer.op else { return true };
        new.key != self.key
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tasks::find;

    #[test]
    fn a_key_comes_from_one_place() {
        let apt = find("apt_key").unwrap();
        for wrong in [
            json!({}),
            json!({"id": "12345"}),
            json!({"url": "https://a/k", "file": "/k"}),
            json!({"keyserver": "keys.example"}),
            json!({"data": "no key"}),
            json!({"data": "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nabc\n"}),
            json!({"id": "7fa2af80", "keyring": "/etc/apt/trusted.gpg.d/x.asc"}),
        ] {
            assert!(apt.parse(wrong.clone()).is_err(), "{wrong}");
        }
        for right in
            [json!({"id": "7fa2af80", "state": "absent"}), json!({"id": 12345678, "keyserver": "hkp://a"})]
        {
            assert!(apt.parse(right.clone()).is_ok(), "{right}");
        }
        let rpm = find("rpm_key").unwrap();
        assert!(rpm.parse(json!({"key": "DEADB33F", "fingerprint": "DEADB33F"})).is_err());
        let key = |text: &str| -> RpmKey { serde_json::from_value(json!({"key": text})).unwrap() };
        assert_eq!(key("0xDEADB33F").place(), KeyPlace::Id("DEADB33F".to_owned()));
        assert_eq!(key("/etc/pki/DEADB33F").place(), KeyPlace::File("/etc/pki/DEADB33F"));
    }

    #[test]
    fn servers_of_keys_speak_http() {
        for (server, address) in [
            ("keyserver.ubuntu.com", "https://keyserver.ubuntu.com/"),
            ("hkp://keyserver.ubuntu.com:80", "http://keyserver.ubuntu.com:80/"),
            ("hkp://keys.example", "http://keys.example:11371/"),
            ("hkps://keys.example", "https://keys.example/"),
            ("http://127.0.0.1:8/", "http://127.0.0.1:8/"),
        ] {
            let wanted = format!("{address}pks/lookup?op=get&options=mr&search=0xAB");
            assert_eq!(AptKey::at_server(server, "AB"), wanted);
        }
    }
}
