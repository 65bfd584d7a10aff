//! What reads text and bytes from outside, each behind one function that takes anything.
//!
//! For `make fuzz` (libFuzzer, tests/fuzz) and for the test below, which mutates the same corpus a little at every `cargo
//! test`. Invariant: no target ever panics, whatever it gets; what they return does not matter.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use gpufleet_compliance::{Memory, NodePolicy, Waivers, baseline, fold, judge, judge_after, rule};
use gpufleet_language::{diagnostic::SourceFile, yaml};
use gpufleet_mig::parted::{Board, NVIDIA, PartedFile, PciId};
use gpufleet_protocol::signal::{Signal, Signals, SubjectReadings};
use serde_json::Map;

use crate::inventory::{Inventory, LoadOptions};
use crate::migration;
use crate::playbook::{Known, Program};
use crate::template::{self, Dict, Scope};
use crate::vault::{Envelope, age::AgeEnvelope};

/// One reader of foreign input.
pub type Target = fn(&[u8]);

/// All targets by name, which is also the name of the corpus folder.
pub const TARGETS: &[(&str, Target)] = &[
    ("ini", ini),
    ("yaml", yaml_text),
    ("pattern", pattern),
    ("playbook", playbook),
    ("template", template_text),
    ("frame", frame),
    ("vault", vault),
    ("scontrol", scontrol),
    ("kubernetes", kubernetes),
    ("command", command),
    ("baseline", baseline_file),
    ("memory", memory),
    ("signals", signals),
    ("parted", parted),
    ("repositories", repositories),
];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An inventory in INI form, and whatever else a file without an ending may be.
fn ini(bytes: &[u8]) {
    let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm").or_else(|_| tempfile::NamedTempFile::new())
    else {
        return;
    };
    if std::fs::write(file.path(), bytes).is_err() {
        return;
    }
    let options = LoadOptions {
        sources: vec![file.path().display().to_string()],
        allow_empty: true,
        ..LoadOptions::default()
    };
    if let Ok(inventory) = Inventory::load(&options) {
        let _ = inventory.list_text(None, false);
        let _ = inventory.select("all", None);
    }
}

fn yaml_text(bytes: &[u8]) {
    let Ok(tree) = yaml::parse_bytes("fuzz.yml", bytes) else { return };
    // Why both: what is written must read back.
    let json = tree.to_json();
    let written = yaml::block_text(&json);
    let _ = yaml::parse("written.yml", &written);
}

/// A pattern, and behind a line break a limit.
fn pattern(bytes: &[u8]) {
    let options = LoadOptions {
        sources: vec!["gpu001,gpu002,gpu003,login,n-1.example".to_owned()],
        ..LoadOptions::default()
    };
    let Ok(inventory) = Inventory::load(&options) else { return };
    let text = text(bytes);
    let (pattern, limit) =
        text.split_once('\n').map_or((text.as_str(), None), |(pattern, limit)| (pattern, Some(limit)));
    // Why: a limit may name a file of this machine.
    let limit = limit.filter(|limit| !limit.contains('@'));
    if !pattern.contains('@') {
        let _ = inventory.select(pattern, limit);
    }
}

fn playbook(bytes: &[u8]) {
    let files: HashMap<String, String> = [("play.yml".to_owned(), text(bytes))].into();
    if let Ok(program) = Program::load(&["play.yml"], &files) {
        let _ = program.check_variables(&Known::default());
        for play in &program.plays {
            let _ = play.budget(7, false);
        }
    }
    let paths = ["play.yml".to_owned()];
    let report = crate::lint::check(&paths, &files, &Arc::default(), &[], &Arc::default());
    let _ = report.text(true);
    let _ = crate::lint::sarif(&report);
    let _ = migration::report_text(&migration::survey(&paths, &files, &Arc::default(), &[]), true);
}

fn template_text(bytes: &[u8]) {
    let text = text(bytes);
    let variables: Map<String, serde_json::Value> =
        [("a".to_owned(), serde_json::json!([1, {"b": "c"}])), ("s".to_owned(), serde_json::json!("text"))]
            .into_iter()
            .collect();
    let scope = Scope::new(vec![Arc::new(Dict::trusted(&variables))]);
    let _ = template::inspect_template(&text);
    let _ = template::inspect_expression(&text);
    let _ = template::render(&text, &scope);
    let _ = template::condition(&text, &scope);
}

/// Frames from a node, in two pieces.
fn frame(bytes: &[u8]) {
    use gpufleet_protocol::frame::{Decoder, Frame, Preamble};
    let mut preamble = Preamble::default();
    let _ = preamble.feed(bytes);
    let mut decoder = Decoder::default();
    let (first, second) = bytes.split_at(bytes.len() / 2);
    for part in [first, second] {
        decoder.feed(part);
        while let Ok(Some(frame)) = decoder.next_frame() {
            if let Frame::Json(json) = &frame {
                let _ = crate::session::weight(json);
            }
            let _ = frame.decode::<serde_json::Value>();
        }
    }
}

/// Files of repositories and keys, as a node has them. What is written must read back.
fn repositories(bytes: &[u8]) {
    use gpufleet_protocol::repository::{deb822, openpgp, repo_file, sources};
    let text = text(bytes);
    for line in text.lines() {
        if let Some(source) = sources::Source::parse(line) {
            let enabled = sources::Source { enabled: true, ..source };
            assert_eq!(sources::Source::parse(&enabled.line()), Some(enabled));
        }
        let _ = sources::file_name(line, None);
        let _ = sources::shown(line);
        if let Ok(parts) = sources::Parts::of(line) {
            let _ = deb822::stanzas(&text).iter().any(|stanza| stanza.covers(&parts));
        }
    }
    if let Ok(sections) = repo_file::sections(&text) {
        for section in &sections {
            let again = repo_file::with_section(&text, &section.name, &section.options);
            assert!(again.is_ok_and(|again| repo_file::sections(&again).is_ok()));
            let _ = repo_file::without_section(&text, &section.name);
        }
    }
    let _ = openpgp::dearmored(&text);
    let mut at = 0;
    for certificate in openpgp::certificates(bytes).unwrap_or_default() {
        assert_eq!(certificate.range.start, at);
        at = certificate.range.end;
    }
}

fn vault(bytes: &[u8]) {
    let text = text(bytes);
    if let Ok(envelope) = Envelope::parse(&text) {
        let _ = envelope.open(b"password");
    }
    let _ = AgeEnvelope::parse(&text);
    let _ = AgeEnvelope::of(bytes);
    let _ = text.parse::<crate::vault::age::Identity>();
}

fn scontrol(bytes: &[u8]) {
    crate::drain::read_foreign_text(&text(bytes));
}

fn kubernetes(bytes: &[u8]) {
    crate::drain::read_foreign_object(bytes);
}

fn command(bytes: &[u8]) {
    let text = text(bytes);
    let _ = migration::advise(&text);
    let _ = migration::needs_shell(&text);
}

/// A file of mig-parted, and whether each of its layouts fits each GPU.
fn parted(bytes: &[u8]) {
    let Ok(file) = PartedFile::read(&SourceFile::new("mig.yaml", text(bytes))) else { return };
    for config in &file.configs {
        for spec in &config.specs {
            let _ = spec.fits();
        }
        let device = PciId { device: 0x2330, vendor: NVIDIA };
        let _ = config.spec_for(Board { index: 0, device, subsystem: None });
    }
}

/// A file of a baseline, and the same text as waivers and as a rule.
fn baseline_file(bytes: &[u8]) {
    let text = text(bytes);
    let source = SourceFile::new("site.yaml", text.as_str());
    let _ = rule::parse(&text);
    let choice = [baseline::Choice::File(Arc::clone(&source))];
    let Ok(loaded) = baseline::load(&choice, &|_| baseline::GroupHint::Known) else { return };
    let _ = Waivers::read(&source, &loaded.policy);
    let _ = judge(&loaded.policy.for_node("gpu001", &[]), &Signals::default());
}

/// What earlier audits remember of a node: a store may hold anything.
fn memory(bytes: &[u8]) {
    static POLICY: LazyLock<Option<Arc<NodePolicy>>> = LazyLock::new(|| {
        let choice = [baseline::Choice::File(SourceFile::new("site.yaml", "checks: ['*']\n"))];
        let loaded = baseline::load(&choice, &|_| baseline::GroupHint::Known).ok()?;
        Some(loaded.policy.for_node("gpu001", &[]))
    });
    let (Some(policy), Ok(value)) = (&*POLICY, serde_json::from_slice(bytes)) else { return };
    let Some(memory) = Memory::read(&value) else { return };
    let counters = ["ecc_cor_vol", "ecc_unc_agg", "remap_cor", "pcie_replays", "nvl_replay", "pcie_width"];
    let readings = counters.map(|name| (name.to_owned(), Signal::from(7))).into();
    let gpu = SubjectReadings { id: "GPU-0".to_owned(), label: "GPU 0".to_owned(), readings };
    let boot_id = Some("b".to_owned());
    let signals = Signals { boot_id, uptime_s: 90_000, gpus: vec![gpu], ..Signals::default() };
    for at in [0, memory.at().saturating_add(86_400), i64::MAX] {
        let findings = judge_after(policy, &signals, Some(&memory), at);
        let next = Memory::after(Some(&memory), &signals, &findings, at);
        let kept = serde_json::to_value(&next).unwrap_or_default();
        assert_eq!(Memory::read(&kept), Some(next), "what is kept is read back");
    }
}

/// What a node says of itself.
fn signals(bytes: &[u8]) {
    let Ok(signals) = serde_json::from_slice::<Signals>(bytes) else { return };
    let core = [baseline::Choice::BuiltIn("core".to_owned())];
    let Ok(loaded) = baseline::load(&core, &|_| baseline::GroupHint::Known) else { return };
    let policy = loaded.policy.for_node("gpu001", &[]);
    let mut findings = judge(&policy, &signals);
    let _ = fold(&policy, &mut findings);
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::*;

    /// SplitMix64: small, and the same everywhere.
    struct Dice(u64);

    impl Dice {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }

        /// Below `length`.
        fn pick(&mut self, length: usize) -> usize {
            (self.next() % length.max(1) as u64) as usize
        }
    }

    fn corpus(name: &str) -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/corpus").join(name);
        let mut paths: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
    }

    /// A few changes to one text of the corpus, some of them with pieces of another.
    fn mutated(corpus: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
        const PIECES: &[&[u8]] = &[
            b"{{",
            b"}}",
            b"{%",
            b"%}",
            b"\n",
            b"\t",
            b": ",
            b"- ",
            b"[",
            b"]",
            b"{",
            b"}",
            b"\"",
            b"'",
            b"|",
            b"#",
            b"*a",
            b"&a ",
            b"!",
            b"<<: ",
            b"[0:9999999999]",
            b"[a:z:0]",
            b"\xff",
            b"\xc3\xa9",
            b"\xf0\x9f\x92\xa9",
            b"99999999999999999999",
            b"-1",
            b"=",
            b"~",
            b",",
            b":",
            b"\0",
        ];
        let mut bytes = corpus[dice.pick(corpus.len())].clone();
        for _ in 0..=dice.pick(6) {
            let at = dice.pick(bytes.len() + 1);
            match dice.pick(6) {
                0 if at < bytes.len() => bytes[at] ^= 1 << dice.pick(8),
                1 if at < bytes.len() => {
                    let end = (at + 1 + dice.pick(8)).min(bytes.len());
                    bytes.drain(at..end);
                }
                2 => {
                    let piece = PIECES[dice.pick(PIECES.len())];
                    bytes.splice(at..at, piece.iter().copied());
                }
                3 => {
                    let other = &corpus[dice.pick(corpus.len())];
                    let from = dice.pick(other.len() + 1);
                    let to = (from + dice.pick(40)).min(other.len());
                    bytes.splice(at..at, other[from..to].iter().copied());
                }
                4 if at < bytes.len() => {
                    let end = (at + dice.pick(20)).min(bytes.len());
                    let copy = bytes[at..end].to_vec();
                    bytes.splice(at..at, copy);
                }
                _ => bytes.truncate(at),
            }
        }
        bytes.truncate(4096);
        bytes
    }

    /// `FUZZ_SECONDS=60 cargo test -p gpufleet --lib fuzzing` is a longer run; `FUZZ_TARGET=ini` takes one of them.
    #[test]
    fn no_mutant_of_the_corpus_panics() {
        let seconds: Option<u64> = std::env::var("FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
        let only = std::env::var("FUZZ_TARGET").ok();
        let seed: u64 = std::env::var("FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
        for (name, target) in
            TARGETS.iter().filter(|(name, _)| only.as_deref().is_none_or(|only| only == *name))
        {
            let corpus = corpus(name);
            let mut dice = Dice(seed);
            corpus.iter().for_each(|bytes| target(bytes));
            let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
            let mut done = 0_u64;
            while if seconds.is_some() { Instant::now() < end } else { done < 60 } {
                let input = mutated(&corpus, &mut dice);
                let outcome = std::panic::catch_unwind(|| target(&input));
                if outcome.is_err() {
                    let place = std::env::temp_dir().join(format!("gpufleet-fuzz-{name}"));
                    std::fs::write(&place, &input).unwrap();
                    panic!("{name} panics on {} ({})", place.display(), String::from_utf8_lossy(&input));
                }
                done += 1;
            }
            if seconds.is_some() {
                eprintln!("{name}: {done} mutants");
            }
        }
    }
}
