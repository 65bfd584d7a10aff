//! The desired state of the GPUs that a node asserts at each boot, and what came of it.
//!
//! The controller writes the document, signs its bytes, and never sends them changed; the helper checks them before it
//! acts on them. Source of the signature's frame: PROTOCOL.sshsig of OpenSSH.

mod members;

use serde::{Deserialize, Serialize};

use crate::{
    Change, RunEpoch,
    facts::GpuFacts,
    op::{GpuMember, KeepState},
    tasks::{GpuKeep, OnKeepFailure},
};

pub use members::{United, united};

/// What these signatures are for: one of a report or a file is none of a kept state.
pub const NAMESPACE: &str = "gpufleet-keep";
/// Version of the document.
pub const FORMAT: u32 = 1;
/// Largest document, in bytes.
pub const MOST_BYTES: usize = 1 << 20;
/// Number of boots that a node remembers.
pub const MOST_BOOTS: usize = 16;

/// The document: what one machine asserts at each boot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptState {
    pub format: u32,
    /// Content of /etc/machine-id; a copied disk has the same, so the GPUs are named too.
    pub machine_id: String,
    /// UUIDs of all GPUs, sorted.
    pub gpus: Vec<String>,
    /// Milliseconds since 1970 when it was signed. A node takes no document that is older than its own.
    pub serial: u64,
    /// The run that declared it.
    pub run: String,
    pub policy: KeepPolicy,
    pub members: Vec<GpuMember>,
}

impl KeptState {
    /// Returns what a machine keeps once a run has declared more: what it has kept before stays where the run says nothing else.
    /// What does not stay for another reason is told in `asked`.
    pub fn of(
        asked: &mut KeepState,
        before: Option<&Self>,
        machine_id: String,
        gpus: &[GpuFacts],
        run: &RunEpoch,
    ) -> Self {
        let united = united(before.map_or(&[], |before| &before.members), &asked.members, gpus);
        asked.dropped = united.dropped;
        Self {
            format: FORMAT,
            machine_id,
            gpus: uuids(gpus),
            serial: run.epoch,
            run: run.run.clone(),
            policy: KeepPolicy::of(&asked.policy, before.map(|before| &before.policy)),
            members: united.members,
        }
    }

    /// Whether both declare the same for the same machine, whoever signed them when.
    pub fn declares_as(&self, other: &Self) -> bool {
        (self.format, &self.machine_id, &self.gpus, &self.policy, &self.members)
            == (other.format, &other.machine_id, &other.gpus, &other.policy, &other.members)
    }

    /// Whether units wait until the state is as declared.
    pub fn holds(&self) -> bool {
        self.policy.on_failure == OnKeepFailure::Hold
    }
}

/// Returns the UUIDs of GPUs as a document names them.
pub fn uuids(gpus: &[GpuFacts]) -> Vec<String> {
    let mut uuids: Vec<String> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    uuids.sort_unstable();
    uuids
}

/// How a node asserts what it keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepPolicy {
    pub on_failure: OnKeepFailure,
    /// Units that wait with `hold`.
    pub hold: Vec<String>,
    /// Most time of one boot, in seconds.
    pub timeout: u64,
}

impl KeepPolicy {
    /// Returns what a task asks for; what it leaves out stays as the node has it.
    pub fn of(asked: &GpuKeep, before: Option<&Self>) -> Self {
        let first = Self {
            on_failure: OnKeepFailure::Serve,
            hold: ["slurmd.service", "kubelet.service"].map(str::to_owned).to_vec(),
            timeout: 8 * 60,
        };
        let before = before.unwrap_or(&first);
        Self {
            on_failure: asked.on_failure.unwrap_or(before.on_failure),
            hold: asked.hold.clone().unwrap_or_else(|| before.hold.clone()),
            timeout: asked.timeout.unwrap_or(before.timeout),
        }
    }
}

/// A document with its signature.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// JSON of a [`KeptState`], byte for byte as it was signed.
    pub document: String,
    #[serde(flatten)]
    pub seal: Seal,
}

/// Who signed a document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// Public Ed25519 key, 32 bytes as lower-case hexadecimal.
    pub key: String,
    /// Signature, 64 bytes as lower-case hexadecimal; empty in a prediction.
    pub signature: String,
}

/// Returns what the key signs, given the SHA-512 of the document.
pub fn to_be_signed(sha512: &[u8]) -> Vec<u8> {
    let mut bytes = b"SSHSIG".to_vec();
    for part in [NAMESPACE.as_bytes(), b"", b"sha512", sha512] {
        bytes.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend(part);
    }
    bytes
}

/// How the assertion of a kept state ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum KeptVerdict {
    /// The GPUs are as declared.
    Asserted,
    /// Something needs a reset, a reboot or a GPU that is in use; it was left as it is.
    Left,
    Failed,
    /// The document is not for this machine, not authentic, or stale; nothing was touched.
    Refused,
    /// A run of gpufleet works on the node.
    Yielded,
    /// It began and has no end: it still works, or was cut off.
    Begun,
}

impl KeptVerdict {
    pub const ALL: &'static [Self] =
        &[Self::Asserted, Self::Left, Self::Failed, Self::Refused, Self::Yielded, Self::Begun];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Asserted => "asserted",
            Self::Left => "left",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Yielded => "yielded",
            Self::Begun => "begun",
        }
    }
}

impl std::fmt::Display for KeptVerdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What one boot came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeptBoot {
    pub boot_id: String,
    /// Seconds since 1970, by the node's clock.
    pub began: u64,
    /// How long it took, in milliseconds.
    pub ms: u64,
    pub verdict: KeptVerdict,
    /// One sentence each, for people; empty if all is as declared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// What was changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

/// What a node keeps, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeptReport {
    /// The run that declared it; empty if the document cannot be read.
    pub run: String,
    /// Milliseconds since 1970 when it was signed.
    pub serial: u64,
    /// Number of declarations.
    pub tasks: usize,
    /// Whether units wait until the state is as declared.
    pub holds: bool,
    /// Whether those units may start in this boot.
    pub open: bool,
    /// Whether the unit has asserted it in this boot, or a run has proven it since.
    pub proven: bool,
    /// Why the next boot would not assert it, or not start the unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// The latest boots, the newest last.
    pub boots: Vec<KeptBoot>,
}

impl KeptReport {
    /// Returns what a person should look at, one sentence each; empty if the node is as its kept state declares.
    pub fn concerns(&self) -> Vec<String> {
        let mut concerns = self.problems.clone();
        if let Some(last) = self.boots.last()
            && last.verdict != KeptVerdict::Asserted
            && !self.proven
        {
            let reasons = if last.reasons.is_empty() {
                String::new()
            } else {
                format!(": {}", last.reasons.join("; "))
            };
            concerns.push(format!("the last boot's assertion: {}{reasons}", last.verdict));
        }
        if self.holds && !self.open {
            concerns.push("units wait until the GPUs are as declared".to_owned());
        }
        concerns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signed_bytes_are_those_of_sshsig() {
        let bytes = to_be_signed(&[7; 64]);
        assert_eq!(bytes.len(), 6 + 4 + 13 + 4 + 4 + 6 + 4 + 64);
        assert!(bytes.starts_with(b"SSHSIG\0\0\0\x0dgpufleet-keep\0\0\0\0\0\0\0\x06sha512\0\0\0\x40\x07"));
    }
}
