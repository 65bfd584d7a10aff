//! Fault rules: which call, on which node and GPU, fails and how. Pure.
//!
//! The same rules serve the NVML library (functions), the stand-in programs, the node's start and its SSH server.
//! This module only evaluates them; [`crate::store`] counts calls across processes.

use serde::{Deserialize, Serialize};

/// One rule of a faults file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Glob over node names.
    #[serde(default = "any")]
    pub nodes: String,
    /// Glob over NVML function names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Glob over program names: nvidia-smi, systemctl, reboot, nvidia-cuda-mps-control, sysctl, update-grub, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Only with arguments that contain this text (for programs).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<String>,
    /// Only on the GPU with this index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// Only the nth matching call, counted from 1 over the whole life of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nth: Option<u64>,
    /// Only while fewer than this many calls matched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// Only with this probability, drawn from `seed` and the number of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    #[serde(default)]
    pub seed: u64,
    pub effect: Effect,
}

fn any() -> String {
    "*".to_owned()
}

/// What a fault does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The NVML function returns this code and does nothing.
    Return(u32),
    /// The call takes this many milliseconds longer.
    DelayMs(u64),
    /// The call never returns and ignores every signal but SIGKILL.
    Hang,
    /// The calling process dies of SIGSEGV.
    Segv,
    /// A setter returns success and does nothing; a program exits with 0 and does nothing.
    Lie,
    /// The GPU falls off the bus: this and all later calls on it return 15.
    GpuLost,
    /// The program ends with this exit code and message.
    Exit {
        code: i32,
        #[serde(default)]
        message: String,
    },
    /// The node dies and does not come back.
    Vanish,
    /// The node stops; its connections stay open and silent.
    Freeze,
    /// The calling process is killed.
    Kill,
    /// The calling process and its parent are killed; from the helper's GPU process, that is the helper.
    KillParent,
    /// The node's SSH server stops for this many seconds: connections stay open and silent, and the node works on.
    Cut(u64),
    /// A process begins to use the GPU with this index just before the call.
    Job(u32),
    /// The driver logs this XID of the GPU just before the call; of the first GPU if the call has none.
    Xid(u32),
    /// The node loses power and starts again.
    PowerCut,
    /// The node dies this many seconds after its start.
    VanishAfter(u64),
    /// The node stops this many seconds after its start.
    FreezeAfter(u64),
    /// After a reboot the node never comes back.
    NeverBoot,
    /// A reboot takes this many seconds.
    BootSeconds(f64),
    /// A reboot is accepted but does not happen.
    RebootIgnored,
    /// A reboot ends every process and then hangs: nothing answers, and nothing starts again.
    ShutdownHangs,
    /// After a reboot, the SSH server accepts connections and sends nothing.
    HangAfterBoot,
    /// After a reboot, the system reports that it is still starting.
    StartingForEver,
    /// A reboot leaves the boot id unchanged.
    SameBootId,
    /// After a reboot, the GPU with this index is missing.
    GpuMissing(usize),
    /// A reboot does not make a pending MIG mode current.
    MigStaysPending,
    /// No space is left in this directory; existing files stay.
    Full(String),
    /// Nothing listens on the SSH port.
    RefuseSsh,
    /// The SSH server accepts connections and sends nothing.
    HangHandshake,
    /// The SSH server sends this text before authentication.
    SshBanner(String),
    /// A shell start-up file prints this text before the output of every command.
    RcNoise(String),
    /// The SSH server accepts no key.
    AuthRefused,
    /// The node's host key differs from the one in known_hosts.
    HostKeyChanged,
    /// No NVIDIA driver is installed.
    NoDriver,
    /// The driver is loaded, but its library is not installed.
    NoLibrary,
    /// The library is newer than the loaded module: NVML returns 18 until a reboot.
    LibMismatch,
    /// /tmp, /run, /dev/shm and /var/tmp forbid executing files.
    TmpNoexec,
    /// The file systems that a tool would write to are full.
    DiskFull,
    /// The kernel forbids executable memory files.
    NoMemfdExec,
    /// The GPUs have no `reset` file in sysfs, so only a reboot helps.
    NoReset,
}

/// What a rule is matched against.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    Function {
        name: &'a str,
        gpu: Option<u32>,
    },
    Program {
        name: &'a str,
        args: &'a str,
    },
    /// The node itself: its start, its disk, its SSH server.
    Node,
}

impl Rule {
    /// Whether the rule applies to this subject, without its counters.
    pub fn concerns(&self, subject: Subject<'_>) -> bool {
        match subject {
            Subject::Function { name, gpu } => {
                self.function.as_deref().is_some_and(|glob| glob_matches(glob, name))
                    && (self.gpu.is_none() || self.gpu == gpu)
            }
            Subject::Program { name, args } => {
                self.program.as_deref().is_some_and(|glob| glob_matches(glob, name))
                    && self.args.as_deref().is_none_or(|part| args.contains(part))
            }
            Subject::Node => self.function.is_none() && self.program.is_none(),
        }
    }

    /// Whether the rule needs the number of earlier matching calls.
    pub fn counts(&self) -> bool {
        self.nth.is_some() || self.times.is_some() || self.probability.is_some()
    }

    /// Whether the rule fires at its `call`-th matching call, counted from 1.
    pub fn fires(&self, call: u64) -> bool {
        self.nth.is_none_or(|nth| nth == call)
            && self.times.is_none_or(|times| call <= times)
            && self.probability.is_none_or(|p| draw(self.seed, call) < p)
    }

    /// Returns what is wrong with the rule: an effect that its subject cannot have.
    pub fn problem(&self) -> Option<String> {
        if self.function.is_some() && self.program.is_some() {
            return Some("a rule has either `function` or `program`, not both".to_owned());
        }
        if self.probability.is_some_and(|p| !(0.0..=1.0).contains(&p)) {
            return Some("`probability` lies between 0 and 1".to_owned());
        }
        let node_only = !matches!(
            self.effect,
            Effect::Return(_)
                | Effect::DelayMs(_)
                | Effect::Hang
                | Effect::Segv
                | Effect::Lie
                | Effect::GpuLost
                | Effect::Exit { .. }
                | Effect::Vanish
                | Effect::Freeze
                | Effect::Kill
                | Effect::KillParent
                | Effect::Cut(_)
                | Effect::Job(_)
                | Effect::Xid(_)
                | Effect::PowerCut
        );
        let node = self.concerns(Subject::Node);
        if node != node_only && !(node && matches!(self.effect, Effect::GpuLost)) {
            let (what, want) = if node {
                ("happens at a call", "name one with `function` or `program`")
            } else {
                ("concerns the whole node", "leave `function` and `program` out")
            };
            return Some(format!("this effect {what}: {want}"));
        }
        if let Effect::Full(path) = &self.effect
            && !(path.starts_with('/') && path.len() > 1 && !path.contains(".."))
        {
            return Some("`full` names a directory by its whole path".to_owned());
        }
        if self.function.is_some() && matches!(self.effect, Effect::Exit { .. }) {
            return Some("`exit` is an effect of programs; a function has `return`".to_owned());
        }
        if self.program.is_some() && matches!(self.effect, Effect::Return(_) | Effect::GpuLost) {
            return Some("`return` and `gpu_lost` are effects of functions; a program has `exit`".to_owned());
        }
        None
    }
}

/// Returns a number in 0..1 that depends only on its arguments (splitmix64).
fn draw(seed: u64, call: u64) -> f64 {
    let mut x =
        seed.wrapping_add(call.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Matches like a shell, with `*`, `?` and `[abc]`, `[a-c]`, `[!a]`; `a,b` matches either.
pub fn glob_matches(pattern: &str, text: &str) -> bool {
    pattern.split(',').any(|one| matches_one(one.trim().as_bytes(), text.as_bytes()))
}

fn matches_one(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => {
            (0..=text.len()).any(|skip| text.get(skip..).is_some_and(|t| matches_one(rest, t)))
        }
        Some((b'?', rest)) => text.split_first().is_some_and(|(_, t)| matches_one(rest, t)),
        Some((b'[', rest)) => {
            let Some(end) = rest.iter().skip(1).position(|b| *b == b']').map(|at| at + 1) else {
                return text.first() == Some(&b'[') && matches_one(rest, text.get(1..).unwrap_or_default());
            };
            let (set, rest) = (rest.get(..end).unwrap_or_default(), rest.get(end + 1..).unwrap_or_default());
            let Some((first, text)) = text.split_first() else { return false };
            let (negated, set) = match set.split_first() {
                Some((b'!', set)) => (true, set),
                _ => (false, set),
            };
            in_set(set, *first) != negated && matches_one(rest, text)
        }
        Some((literal, rest)) => {
            text.split_first().is_some_and(|(b, t)| b == literal && matches_one(rest, t))
        }
    }
}

fn in_set(set: &[u8], byte: u8) -> bool {
    match set {
        [low, b'-', high, rest @ ..] => (*low..=*high).contains(&byte) || in_set(rest, byte),
        [one, rest @ ..] => *one == byte || in_set(rest, byte),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(effect: Effect) -> Rule {
        Rule {
            nodes: any(),
            function: None,
            program: None,
            args: None,
            gpu: None,
            nth: None,
            times: None,
            probability: None,
            seed: 1,
            effect,
        }
    }

    #[test]
    fn globs_match_as_a_shell_does() {
        for (pattern, text, want) in [
            ("gpu00[1-3]", "gpu002", true),
            ("gpu00[1-3]", "gpu004", false),
            ("gpu00[!1-3]", "gpu004", true),
            ("nvmlDevice*Mode", "nvmlDeviceSetEccMode", true),
            ("gpu00?", "gpu0011", false),
            ("gpu001, gpu007", "gpu007", true),
            ("*", "", true),
        ] {
            assert_eq!(glob_matches(pattern, text), want, "{pattern} {text}");
        }
    }

    #[test]
    fn a_rule_speaks_of_its_subject_only() {
        let mut ecc = rule(Effect::Return(999));
        ecc.function = Some("nvmlDeviceSet*".to_owned());
        ecc.gpu = Some(2);
        assert!(ecc.concerns(Subject::Function { name: "nvmlDeviceSetEccMode", gpu: Some(2) }));
        assert!(!ecc.concerns(Subject::Function { name: "nvmlDeviceSetEccMode", gpu: Some(1) }));
        assert!(!ecc.concerns(Subject::Program { name: "nvidia-smi", args: "" }));
        assert!(!ecc.concerns(Subject::Node));
        assert!(rule(Effect::NeverBoot).concerns(Subject::Node));
    }

    #[test]
    fn counters_and_probability_decide() {
        let mut second = rule(Effect::Hang);
        second.nth = Some(2);
        assert_eq!([1, 2, 3].map(|call| second.fires(call)), [false, true, false]);
        let mut first_two = rule(Effect::Hang);
        first_two.times = Some(2);
        assert_eq!([1, 2, 3].map(|call| first_two.fires(call)), [true, true, false]);
        let mut half = rule(Effect::Hang);
        half.probability = Some(0.5);
        let fired = (1..=1000).filter(|call| half.fires(*call)).count();
        assert!((400..600).contains(&fired), "{fired}");
    }

    #[test]
    fn effects_on_the_wrong_subject_are_named() {
        assert!(rule(Effect::NeverBoot).problem().is_none());
        assert!(rule(Effect::Return(3)).problem().unwrap().contains("name one with"));
        let mut function = rule(Effect::NoDriver);
        function.function = Some("*".to_owned());
        assert!(function.problem().unwrap().contains("whole node"));
        assert!(rule(Effect::Full("/etc".to_owned())).problem().is_none());
        assert!(rule(Effect::Full("etc".to_owned())).problem().unwrap().contains("whole path"));
        assert!(rule(Effect::PowerCut).problem().unwrap().contains("name one with"));
    }
}
