//! Parameters of `dpkg_selections`, and of the kinds that read packages and services as facts.

use serde::{Deserialize, Serialize};

use super::{Alone, Class, Given, Kind, KindInfo, ParamError, Reading, words::words};
use crate::{
    Disruption, NodeOp, lenient,
    operation::{Effect, Needs, Newer, Operation, Reach, paths, undeclared},
};

words! { Selection { Install: "install", Hold: "hold", Deinstall: "deinstall", Purge: "purge" } }

/// Declares what dpkg has noted to do with a package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DpkgSelections {
    /// Package.
    pub name: String,
    /// `hold` keeps its version, `install` lets it be updated again.
    pub selection: Selection,
}

impl Kind for DpkgSelections {
    const INFO: KindInfo = KindInfo {
        name: "dpkg_selections",
        aliases: &["ansible.builtin.dpkg_selections"],
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
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Declares what dpkg has noted to do with a package; `hold` keeps its version.",
        example: "dpkg_selections: {name: cuda-drivers, selection: hold}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let legal = |c: char| c.is_ascii_alphanumeric() || "+-.:".contains(c);
        if self.name.is_empty() || self.name.starts_with('-') || !self.name.chars().all(legal) {
            return Err(ParamError::new("name", format!("`{}` is not the name of a package", self.name)));
        }
        Ok(())
    }
}

impl Operation for DpkgSelections {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Declares
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    fn reach(&self) -> Reach<'_> {
        Reach::Packages(std::slice::from_ref(&self.name))
    }

    fn lasting(&mut self) -> bool {
        true
    }

    fn yields(&mut self, newer: &Newer<'_>) -> bool {
        !matches!(newer.op, NodeOp::DpkgSelections(new) if new.name == self.name)
    }
}

words! { #[derive(Default)] PackageStrategy { #[default] First: "first", All: "all" } }

fn auto() -> Vec<String> {
    vec!["auto".to_owned()]
}

/// Reads the installed packages as the fact `packages`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PackageFacts {
    /// Package managers to ask: `auto` (default), `apt` or `rpm`; `dnf`, `dnf5`, `yum` and `zypper` are `rpm`.
    #[serde(default = "auto", deserialize_with = "lenient::comma_list")]
    pub manager: Vec<String>,
    /// Whether the `first` that the node has is asked (default), or `all`.
    #[serde(default)]
    pub strategy: PackageStrategy,
}

impl Kind for PackageFacts {
    const INFO: KindInfo = KindInfo {
        name: "package_facts",
        aliases: &["ansible.builtin.package_facts"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::AT_ONCE,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Reads the installed packages as the fact `packages`.",
        example: "package_facts: {manager: auto}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        let known = ["auto", "apt", "rpm", "dnf", "dnf5", "yum", "zypper"];
        match self.manager.iter().find(|name| !known.contains(&name.to_ascii_lowercase().as_str())) {
            Some(name) => {
                Err(ParamError::new("manager", format!("`{name}` is none of {}", known.join(", "))))
            }
            None => Ok(()),
        }
    }
}

impl Operation for PackageFacts {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    undeclared!(Nothing);
}

/// Reads the services of systemd as the fact `services`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ServiceFacts {}

impl Kind for ServiceFacts {
    const INFO: KindInfo = KindInfo {
        name: "service_facts",
        aliases: &["ansible.builtin.service_facts"],
        class: Class::Node,
        disruption: Disruption::Live,
        gpus: false,
        needs_root: false,
        judged: false,
        alone: Alone::AT_ONCE,
        free_form: None,
        open_keys: false,
        ignored: &[],
        refused: &[],
        secret: &[],
        numbers: &[],
        since: &[],
        summary: "Reads the services of systemd, and of /etc/init.d, as the fact `services`.",
        example: "service_facts: {}",
        reading: Reading::of::<Self>(),
    };

    fn rewrite(_: &mut Given) {}

    fn check(&self) -> Result<(), ParamError> {
        Ok(())
    }
}

impl Operation for ServiceFacts {
    paths!();

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn needs(&self) -> Needs<'_> {
        Needs::Nothing
    }

    undeclared!(Nothing);
}
